"""The tornado against conditional medians and means in closed form."""

import numpy as np
import pytest
from problems import CORRELATION, DEPENDENT, lognormal_product
from scipy.special import ndtri

from gpustack_mc.copula import Copula
from gpustack_mc.cube import FunctionCube
from gpustack_mc.design import make_design
from gpustack_mc.tornado import ENDS, tornado

Z = ndtri(np.array(ENDS))
DESIGN = make_design(2**15, seed=9)


def test_a_product_of_lognormals():
    sigma = np.array([0.5, 0.3, 0.2])
    problem = lognormal_product(*sigma)
    found = tornado(FunctionCube(lambda x: problem.function(x)[None], problem.names, quantile=problem.quantile), DESIGN)
    assert found.held == pytest.approx(np.exp(Z[:, None] * sigma), rel=1e-9)
    # The others have median 1, and mean exp of half their variance; errors are below half a percent at 32,768 points.
    assert found.median[:, :, 0] == pytest.approx(np.exp(Z[:, None] * sigma), rel=0.01)
    others = np.exp((np.sum(sigma**2) - sigma**2) / 2)
    assert found.mean[:, :, 0] == pytest.approx(np.exp(Z[:, None] * sigma) * others, rel=0.01)
    assert found.base[0] == pytest.approx(1, rel=0.01)
    assert (0 < found.median_error).all() and (found.median_error < 0.02).all()


def test_correlated_inputs_follow_the_one_that_is_held():
    model = DEPENDENT["linear Gaussian"]
    slopes = np.array([1.0, 2.0, -1.0, 0.5])
    found = tornado(FunctionCube(model.function, model.names, Copula(4, range(4), model.correlation)), DESIGN)
    # E[z_j | z_i] = C_ij z_i, and a sum of normal variables has its median at its mean.
    exact = Z[:, None] * (CORRELATION @ slopes)
    assert found.mean[:, :, 0] == pytest.approx(exact, abs=0.03)  # sd 2.7 over the root of 32,768, twice
    assert found.median[:, :, 0] == pytest.approx(exact, abs=0.05)


def test_an_input_that_does_nothing_leaves_the_output_where_it_is():
    found = tornado(FunctionCube(lambda x: x[:1], ["a", "idle"]), make_design(2**12))
    assert found.median[:, 1, 0] == pytest.approx(found.base[0], abs=1e-15)
    assert found.median[:, 0, 0] == pytest.approx(ENDS, abs=1e-12)
