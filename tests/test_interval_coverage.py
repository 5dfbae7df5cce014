"""Coverage of printed intervals at reduced size, and the figures of the full size that are kept."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from gpustack_mc import answering

_SPEC = importlib.util.spec_from_file_location(
    "interval_coverage", Path(__file__).parents[1] / "benchmarks" / "interval_coverage.py"
)
interval_coverage = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(interval_coverage)
STUDIES = interval_coverage.STUDIES


@pytest.fixture(scope="module")
def kept():
    return json.loads(interval_coverage.RESULT.read_text(encoding="utf-8"))


def few(monkeypatch, name, change=lambda told: told):
    """Coverage of a study with 20 scrambles and a small reference, its intervals changed."""
    study = STUDIES[name]

    def answer(samples, seed):
        yield from ((key, change(told)) for key, told in study.answer(samples, seed))

    reference = 2**15 if study.reference else 0
    monkeypatch.setitem(STUDIES, name, study._replace(answer=answer, reference=reference))
    return {row["kind"]: row["mean"] for row in interval_coverage.coverage(name, 20, references=1)}


@pytest.mark.parametrize("name", ["closed forms", "scores", "sites"])
def test_intervals_hold_as_often_as_they_say(monkeypatch, name):
    found = few(monkeypatch, name)
    # Of 20 scrambles, the mean of one quantity has a standard deviation of 0.07; three of them below 0.9.
    assert found and all(0.68 < mean <= 1 for mean in found.values())


def test_intervals_of_half_the_width_are_seen(monkeypatch):
    def halved(told):
        return told._replace(low=(told.low + told.value) / 2, high=(told.high + told.value) / 2)

    # Half of a 90% interval holds 59% of a normal distribution.
    assert all(mean < 0.75 for mean in few(monkeypatch, "closed forms", halved).values())


def test_half_widths_are_those_of_student_t_with_16_replicates():
    assert answering.WITHIN == pytest.approx(stats.t.ppf(0.95, 15))
    told = answering.within({"probability": 0.5, "monte_carlo_error": 0.02})
    # With the quantile of the normal distribution it would be 3.3%.
    assert told == " ± 3.5%"


def test_what_has_no_interval_is_not_counted():
    def told(width, exact, times=20):
        return np.array([[1.0, width, exact]] * times)

    assert interval_coverage._has_interval("Sobol' indices", told(0.1, 0.5))
    assert not interval_coverage._has_interval("Sobol' indices", told(0.0, 0.0))
    assert not interval_coverage._has_interval("chance of keeping limits", told(0.001, 0.0005))
    assert not interval_coverage._has_interval("Sobol' indices", told(0.1, 0.5, times=3))


def test_every_kind_is_within_what_is_allowed(kept):
    assert {"run", "sites", "closed forms"} <= set(kept["studies"]) <= set(STUDIES)
    assert all(study["scrambles"] >= interval_coverage.FEWEST for study in kept["studies"].values())
    low, high = interval_coverage.ALLOWED
    assert [row["kind"] for row in kept["monte_carlo"] if not low <= row["mean"] <= high] == []
    assert kept["monte_carlo"] == interval_coverage.merged([r for s in kept["studies"].values() for r in s["rows"]])
