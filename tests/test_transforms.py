"""Scores and logarithms against SciPy and NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from gpustack_mc import transforms

RNG = np.random.default_rng(0)
CELLS = np.concatenate([[0, 1, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1], RNG.integers(0, 2**32, 2**16)])
EPSILONS = pytest.mark.parametrize(("dtype", "epsilon"), [("float32", 2.0**-23), ("float64", 2.0**-52)])


def run(function, *arguments):
    with jax.enable_x64(True):
        return np.asarray(jax.jit(function)(*map(jnp.asarray, arguments)), dtype=float)


@EPSILONS
def test_scores_of_cells(dtype, epsilon):
    cells = CELLS.astype(np.uint32)
    mirrored = np.minimum(CELLS, 2**32 - 1 - CELLS)
    exact = np.where(CELLS >= 2**31, -1, 1) * special.ndtri((mirrored + 0.5) * 2.0**-32)
    # The rational functions are stated to 1e-7 and 1e-16, the rest is a dozen roundings.
    found = run(lambda c: transforms.scores(c, jnp.dtype(dtype)), cells)
    np.testing.assert_allclose(found, exact, rtol=8 * epsilon)


@EPSILONS
def test_scores_of_probabilities_down_to_the_far_tail(dtype, epsilon):
    p = np.concatenate([RNG.random(2**12), 10.0 ** -RNG.uniform(0, 30, 2**12)]).astype(dtype)
    # Near 1/2 the distance from it carries the rounding, so the error there is absolute.
    found = run(transforms.ndtri, p)
    np.testing.assert_allclose(found, special.ndtri(p.astype(float)), rtol=8 * epsilon, atol=8 * epsilon)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scores_of_certainty_are_finite(dtype):
    assert np.isfinite(run(transforms.ndtri, np.array([0, 1], dtype))).all()


@EPSILONS
def test_logarithm(dtype, epsilon):
    x = np.concatenate([10.0 ** RNG.uniform(-30, 30, 2**12), 1 + RNG.normal(0, 1e-3, 2**12)]).astype(dtype)
    # Two units of the last digit.
    np.testing.assert_allclose(run(transforms.log, x), np.log(x.astype(float)), rtol=2 * epsilon, atol=2 * epsilon)


def test_logarithms_that_do_not_exist_are_not_numbers():
    assert np.isnan(run(transforms.log, np.array([0.0, -1.0, np.inf, np.nan, -np.inf]))).all()
