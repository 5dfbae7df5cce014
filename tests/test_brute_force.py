"""Answers of every kind against plain Monte Carlo, at reduced size; the full size is kept and was not far off."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from gpustack_mc.answering import answers
from gpustack_mc.design import make_design
from gpustack_mc.propagation import simulate
from gpustack_mc.result import to_datatree
from gpustack_mc.scenario import load_scenario

_SPEC = importlib.util.spec_from_file_location(
    "brute_force", Path(__file__).parents[1] / "benchmarks" / "brute_force.py"
)
brute_force = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(brute_force)


@pytest.fixture(scope="module")
def kept():
    return json.loads(brute_force.REPORT.read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", brute_force.CHECKS)
def test_answers_are_those_of_brute_force(kind):
    rng = np.random.default_rng(1)
    found = list(brute_force.CHECKS[kind](2**15, 8192, rng))
    assert found
    # Four standard errors each, of about a hundred answers: one in a hundred such tables has one beyond.
    assert [one.what for one in found if not abs(one.error) <= one.allowed] == []


def test_a_wrong_answer_would_be_seen():
    """With 0.05 more on the chance of a deadline nothing is left to sampling."""
    right = next(one for one in brute_force.run_checks(2**15, 8192, np.random.default_rng(1)) if "deadline" in one.what)
    assert abs(right._replace(answer=right.answer + 0.05).error) > right.allowed


def test_the_kept_table_has_a_million_draws_and_nothing_far_off(kept):
    assert kept["draws"] >= 1_000_000
    assert kept["far"] == []
    for one in kept["checks"]:
        assert abs(one["error"]) <= one["allowed"] and one["error"] == one["answer"] - one["brute_force"]
    kinds = {one["what"].partition(" ")[0].rstrip(":") for one in kept["checks"]}
    assert kinds == set(brute_force.CHECKS)


def test_the_kept_answers_are_those_of_this_program(kept):
    tree = to_datatree(
        simulate(load_scenario(brute_force.SCENARIO), make_design(kept["samples"]["run"]), with_sensitivity=False)
    )
    told = {one["what"]: one["answer"] for one in kept["checks"]}
    for key, answer in answers(tree).items():
        # A draw may fall on the other side of a limit by rounding on another machine.
        assert told[f"run {brute_force.SCENARIO}: P({key})"] == pytest.approx(answer["probability"], abs=1e-4)
