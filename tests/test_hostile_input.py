"""A sample of the hostile inputs of benchmarks/fuzz.py: refused in one line or answered, nothing else."""

import importlib.util

import numpy as np
import pytest


@pytest.fixture(scope="module")
def fuzz(root):
    spec = importlib.util.spec_from_file_location("fuzz", root / "benchmarks" / "fuzz.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", ["scenario", "table"])
def test_only_answers_and_errors_of_one_line(fuzz, tmp_path, kind):
    make, use = fuzz.KINDS[kind](tmp_path)
    found = [fuzz.attempt(make, use, np.random.default_rng([9, number])) for number in range(100)]
    assert [finding for _, finding in found if finding] == []
    # The sample is worth something: some inputs are still sound, and the others are refused for many reasons.
    answers = {answer for answer, _ in found}
    assert "answered" in answers and len(answers) >= 6


def test_an_error_that_is_not_ours_is_a_finding(fuzz):
    def broken(subject):
        raise ValueError("not for users")

    assert fuzz.attempt(lambda random: None, broken, None) == ("exception", "ValueError: not for users")
