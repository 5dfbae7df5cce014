"""Closed first-order and total indices of groups, of independent and of correlated inputs."""

import numpy as np
import pytest
from problems import DEPENDENT, g_function, ishigami, lognormal_product

from gpustack_mc.copula import Copula
from gpustack_mc.cube import FunctionCube, LogCube
from gpustack_mc.design import make_design
from gpustack_mc.group_indices import alone_together, group_indices

DESIGN = make_design(2**14, seed=3)


def cube_of(problem):
    return FunctionCube(lambda x: problem.function(x)[None], problem.names, quantile=problem.quantile)


def dependent_cube(model):
    count = len(model.names)
    return FunctionCube(model.function, model.names, Copula(count, range(count), model.correlation))


def within(index, low, high, exact):
    """The estimate lies within three half widths of the exact value: 0.03% of normal errors lie further away."""
    return np.abs(index - exact) <= 3 * (high - low) / 2 + 1e-9


def test_groups_of_ishigami():
    problem = ishigami()
    first, _, interaction = problem.total[0], problem.total[1], problem.total[2]
    found, sums = group_indices(cube_of(problem), DESIGN, {"a": ["x0", "x2"], "b": ["x1"], "c": ["x0", "x1"]},
                                np.array([problem.mean]))  # fmt: skip
    exact_first = [first, problem.first[1], problem.first[0] + problem.first[1]]
    exact_total = [first, problem.total[1], 1.0]
    assert within(found.first[:, 0], found.first_low[:, 0], found.first_high[:, 0], np.array(exact_first)).all()
    assert within(found.total[:, 0], found.total_low[:, 0], found.total_high[:, 0], np.array(exact_total)).all()
    assert interaction > 0.2 and found.status == ("ok",)
    together = alone_together(sums, [0, 1])
    assert within(together.value[0], together.low[0], together.high[0], exact_first[0] + exact_first[1])


def test_groups_of_the_g_function():
    problem = g_function(0.0, 1.0, 4.5)
    parts = 1 / (3 * (1 + np.array([0.0, 1.0, 4.5])) ** 2)
    found, _ = group_indices(cube_of(problem), DESIGN, {"a": ["x0", "x1"]}, np.array([problem.mean]))
    # A product: the closed variance of a set is the product of 1 + V_i over it, less one.
    closed = ((1 + parts[0]) * (1 + parts[1]) - 1) / problem.variance
    total = 1 - parts[2] / problem.variance
    assert within(found.first[0, 0], found.first_low[0, 0], found.first_high[0, 0], closed)
    assert within(found.total[0, 0], found.total_low[0, 0], found.total_high[0, 0], total)


def test_a_group_of_all_inputs_explains_everything():
    problem = lognormal_product(0.5, 0.3)
    found, _ = group_indices(cube_of(problem), DESIGN, {"all": problem.names}, np.array([problem.mean]))
    assert found.first[0, 0] == pytest.approx(1, abs=0.03) and found.total[0, 0] == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("name", DEPENDENT)
def test_correlated_inputs_and_groups(name):
    """First-order and total indices of Kucherenko et al. (2012), exact for sums and products of Gaussian scores."""
    model = DEPENDENT[name]
    sets = {"a": [0], "b": [1], "c": [2], "d": [3], "ab": [0, 1], "ac": [0, 2], "bd": [1, 3], "abc": [0, 1, 2]}
    groups = {key: [model.names[i] for i in places] for key, places in sets.items()}
    found, _ = group_indices(dependent_cube(model), DESIGN, groups, np.array([model.mean]))
    exact_first, exact_total = (np.array([index(places) for places in sets.values()])
                                for index in (model.first, model.total))  # fmt: skip
    assert within(found.first[:, 0], found.first_low[:, 0], found.first_high[:, 0], exact_first).all()
    assert within(found.total[:, 0], found.total_low[:, 0], found.total_high[:, 0], exact_total).all()
    # They tell something only where intervals are narrow: a tenth of the variance is far wider than any of them.
    assert (found.first_high - found.first_low < 0.1).all()


def test_logarithms_come_after_the_outputs_and_are_unknown_where_an_output_is_not_positive():
    cube = LogCube(FunctionCube(lambda x: np.stack([np.exp(x[0]), x[0] - 0.5]), ["a", "b"]))
    found, _ = group_indices(cube, make_design(2**10), {"a": ["a"], "b": ["b"]}, np.zeros(4))
    assert found.status == ("ok", "ok", "ok", "non-finite")
    assert found.first[0, 2] == pytest.approx(1, abs=0.05) and np.isnan(found.first[:, 3]).all()


def test_a_constant_output_has_no_indices():
    cube = FunctionCube(lambda x: np.full((1, x.shape[1]), 7.0), ["a"])
    found, _ = group_indices(cube, make_design(2**10), {"a": ["a"]}, np.array([7.0]))
    assert found.status == ("constant",) and np.isnan(found.first).all()
