"""Readings that turn an answer over, against closed forms of a product of lognormals."""

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from gpustack_mc import milestones

N, REPLICATES = 2**16, 16


def lognormal_run(seed=0, accuracy=0.0):
    """Days = 30 x 1 / (x y) with log x and log y normal; a reading of x, and the probability of 35 days given it."""
    rng = np.random.default_rng(seed)
    x, y, e = 0.2 * rng.standard_normal((1, N)), 0.15 * rng.standard_normal((1, N)), rng.standard_normal(N)
    reading = np.exp(x[0] + accuracy * e)
    kept = 30 * np.exp(-x[0] - y[0]) <= 35
    return reading, kept


def exact(level, accuracy):
    # log x given a reading r is normal with mean w log r and variance w a^2, with w = 0.04 / (0.04 + a^2).
    weight = 0.04 / (0.04 + accuracy**2)
    spread = np.sqrt(weight * accuracy**2 + 0.15**2)
    return np.exp((np.log(30 / 35) + spread * ndtri(level)) / weight)


@pytest.mark.parametrize("accuracy", [0.0, 0.1])
@pytest.mark.parametrize("level", milestones.LEVELS)
def test_the_reading_is_that_of_the_closed_form(accuracy, level):
    reading, kept = lognormal_run(accuracy=accuracy)
    found = milestones.crossing(reading, kept, level, REPLICATES)
    assert found.above
    # Five of its own standard errors; those are below 2%, so that the test can fail.
    assert found.error < 0.02 * found.value
    assert found.value == pytest.approx(exact(level, accuracy), abs=5 * found.error)
    above = 1 - ndtr(np.log(exact(level, accuracy)) / np.hypot(0.2, accuracy))
    # The density of the reading times five errors of the crossing is the error of the chance.
    assert found.chance == pytest.approx(above, abs=5 * 2 * found.error + 0.01)


def test_the_error_is_honest():
    # Twenty repetitions: their spread is the error that each of them states, within a factor of two.
    found = [milestones.crossing(*lognormal_run(seed, 0.1), 0.5, REPLICATES) for seed in range(20)]
    spread, stated = np.std([each.value for each in found]), np.mean([each.error for each in found])
    assert 0.5 < stated / spread < 2


def test_what_hurts_is_kept_below():
    reading, kept = lognormal_run()
    found = milestones.crossing(-reading, kept, 0.5, REPLICATES)
    assert not found.above
    assert found.value == pytest.approx(-exact(0.5, 0.0), abs=5 * found.error)


def test_what_decides_alone_crosses_exactly():
    reading = np.random.default_rng(1).uniform(size=N)
    found = milestones.crossing(reading, reading <= 0.7, 0.5, REPLICATES)
    # The gap between neighbours of 65,536 uniform draws.
    assert found.value == pytest.approx(0.7, abs=1e-3)
    assert found.chance == pytest.approx(0.7, abs=0.01)


@pytest.mark.parametrize("kept", [np.ones(N, dtype=bool), np.zeros(N, dtype=bool)])
def test_what_is_certain_turns_over_at_no_reading(kept):
    assert milestones.crossing(np.random.default_rng(2).uniform(size=N), kept, 0.5, REPLICATES) is None


def test_what_does_not_matter_turns_nothing_over():
    rng = np.random.default_rng(3)
    assert milestones.crossing(rng.uniform(size=N), rng.uniform(size=N) < 0.8, 0.5, REPLICATES) is None


def test_after_a_reading_stands_what_the_closed_form_says():
    rng = np.random.default_rng(4)
    x, y = 0.2 * rng.standard_normal(N), 0.15 * rng.standard_normal(N)
    low, high = milestones.after_reading(np.exp(x), {"days": np.exp(-x - y)})
    for end, found in ((0.05, low), (0.95, high)):
        assert found["reading"] == pytest.approx(np.exp(0.2 * ndtri(end)), rel=0.01)
        days = found["outputs"]["days"]
        # 2,600 draws in the window: 0.15 x 1.25 / sqrt(2600) is 0.4% of the median, 1% of the ends; the window adds
        # a spread of 0.2 x 0.4 / 2 to the 0.15, of which the curvature at the tail is a few per cent.
        assert days["median"] == pytest.approx(np.exp(-0.2 * ndtri(end)), rel=0.02)
        ends = np.exp(-0.2 * ndtri(end) + 0.15 * ndtri([0.05, 0.95]))
        assert days["interval_90"] == pytest.approx(list(ends), rel=0.06)
