"""Redrawing some inputs given others: exact conditional distributions under a Gaussian copula."""

import numpy as np
import pytest
from problems import CORRELATION
from scipy.special import ndtri

from gpustack_mc.copula import Copula

COPULA = Copula(5, [0, 1, 3, 4], CORRELATION)
N = 2**16


@pytest.fixture(scope="module")
def samples():
    random = np.random.default_rng(5)
    return random.random((2, 5, N)).clip(1e-12, 1 - 1e-12)


def scores(u):
    return COPULA.to_scores(u)


def test_scores_have_the_stated_correlations(samples):
    # Standard error of a correlation of 65,536 pairs: below 0.004; five of them.
    assert np.corrcoef(scores(samples[0])) == pytest.approx(COPULA.matrix(), abs=0.02)


def test_points_come_back_from_their_scores(samples):
    assert COPULA.to_cube(scores(samples[0])) == pytest.approx(samples[0], abs=1e-10)


@pytest.mark.parametrize("kept", [[0], [1, 2], [0, 3], [0, 1, 3], [2, 4]])
def test_what_is_kept_stays_and_the_rest_follows_its_conditional_distribution(samples, kept):
    mask = np.isin(np.arange(5), kept)
    own, new = scores(samples[0]), scores(COPULA.keep(samples[0], samples[1], mask))
    assert new[mask] == pytest.approx(own[mask], abs=1e-9)
    whole = COPULA.matrix()
    # Jointly with the sample it came from: covariance C_K C_KK^-1 C_K', and again correlation C.
    expected = whole[:, mask] @ np.linalg.solve(whole[np.ix_(mask, mask)], whole[mask])
    assert np.cov(np.concatenate([own, new]))[:5, 5:] == pytest.approx(expected, abs=0.02)
    assert np.corrcoef(new) == pytest.approx(whole, abs=0.02)


def test_each_point_may_keep_inputs_of_its_own(samples):
    kept = np.random.default_rng(1).random((5, 64)) < 0.5
    u, v = samples[:, :, :64]
    together = COPULA.keep(u, v, kept)
    for i in range(64):
        # The same map, applied to one column or to many.
        assert together[:, i] == pytest.approx(COPULA.keep(u[:, [i]], v[:, [i]], kept[:, i])[:, 0], abs=1e-12)


def test_all_or_none_are_kept_to_the_last_digit(samples):
    u, v = samples
    assert np.array_equal(COPULA.keep(u, v, np.ones(5, dtype=bool)), u)
    assert np.array_equal(COPULA.keep(u, v, np.zeros(5, dtype=bool)), v)


def test_independent_inputs_are_exchanged(samples):
    mask = np.array([True, False, True])
    mixed = Copula(3).keep(samples[0, :3], samples[1, :3], mask)
    assert np.array_equal(mixed, np.where(mask[:, None], samples[0, :3], samples[1, :3]))


def test_a_set_with_partners_outside_is_told():
    # Places 0 and 1 are correlated, so are 1 and 3; 2 and 4 stand alone.
    told = [COPULA.divides(np.isin(np.arange(5), group)) for group in ([0], [0, 1], [0, 1, 3], [2], [4], [0, 1, 3, 4])]
    assert told == [True, True, False, False, False, False]
    assert not Copula(2).divides(np.array([True, False]))


def test_extreme_points_stay_inside_the_cube():
    edge = np.array([[2.0**-33], [1 - 2.0**-33], [2.0**-33], [1 - 2.0**-33], [0.5]])
    drawn = COPULA.keep(edge, 1 - edge, np.array([True, False, True, False, True]))
    assert (drawn > 0).all() and (drawn < 1).all() and np.isfinite(ndtri(drawn)).all()
