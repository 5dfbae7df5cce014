"""Shapley effects against closed forms: shares that add up to one, with and without correlations."""

import numpy as np
import pytest
from problems import DEPENDENT, g_function, ishigami, linear_gaussian, log_lognormal_product, lognormal_product, shapley

from gpustack_mc.copula import Copula
from gpustack_mc.cube import FunctionCube
from gpustack_mc.design import make_design
from gpustack_mc.shapley import shapley_effects

DESIGN = make_design(2**14, seed=1)


def alone(names):
    return {name: [name] for name in names}


def cube_of(problem):
    return FunctionCube(lambda x: problem.function(x)[None], problem.names, quantile=problem.quantile)


def dependent_cube(model):
    count = len(model.names)
    return FunctionCube(model.function, model.names, Copula(count, range(count), model.correlation))


def check(found, exact):
    """Within three half widths of the exact value (0.03% of normal errors lie further away), and adding up to one."""
    half = (found.high - found.low)[:, 0] / 2
    assert (np.abs(found.value[:, 0] - exact) <= 3 * half + 1e-12).all()
    assert found.value.sum() == pytest.approx(1, abs=1e-12)  # by construction, up to rounding
    assert (half < 0.05).all()  # a wide interval would make the first line empty


def test_ishigami():
    """The one interaction, of x0 and x2, is divided evenly (Owen 2014)."""
    problem = ishigami()
    pair = problem.total[2]
    check(
        shapley_effects(cube_of(problem), DESIGN, alone(problem.names)),
        problem.first + np.array([pair / 2, 0, pair / 2]),
    )


@pytest.mark.parametrize("problem", [g_function(0.0, 1.0, 4.5), lognormal_product(0.4, 0.3, 0.2)])
def test_products(problem):
    """Of independent factors: the variance explained by a set is a product over it."""
    parts = problem.first * problem.variance / problem.mean**2

    def explained(group):
        return problem.mean**2 * (np.prod(1 + parts[list(group)]) - 1) / problem.variance

    check(shapley_effects(cube_of(problem), DESIGN, alone(problem.names)), shapley(explained, len(parts)))


def test_without_interactions_and_correlations_they_are_the_first_order_indices():
    problem = log_lognormal_product(0.5, 0.4, 0.3)
    check(shapley_effects(cube_of(problem), DESIGN, alone(problem.names)), problem.first)


@pytest.mark.parametrize("name", DEPENDENT)
def test_correlated_inputs(name):
    model = DEPENDENT[name]
    check(shapley_effects(dependent_cube(model), DESIGN, alone(model.names)), model.shapley())


def test_two_correlated_normal_inputs():
    """Owen and Prieur (2017), theorem 2 for two inputs of a linear model, in its printed form."""
    b1, b2, rho = 1.0, 2.0, 0.7
    model = linear_gaussian([b1, b2], [[1, rho], [rho, 1]])
    variance = b1**2 + 2 * rho * b1 * b2 + b2**2
    exact = np.array([b1**2 * (1 - rho**2 / 2) + rho * b1 * b2 + b2**2 * rho**2 / 2,
                      b2**2 * (1 - rho**2 / 2) + rho * b1 * b2 + b1**2 * rho**2 / 2]) / variance  # fmt: skip
    assert model.shapley() == pytest.approx(exact, abs=1e-12)
    check(shapley_effects(dependent_cube(model), DESIGN, alone(model.names)), exact)


def test_a_copy_of_an_input_takes_half_of_its_share_though_the_model_does_not_read_it():
    """Nearly perfect correlation: what one says, the other says as well."""
    model = linear_gaussian([1.0, 0.0], [[1, 0.999], [0.999, 1]])
    found = shapley_effects(dependent_cube(model), DESIGN, alone(model.names))
    check(found, model.shapley())
    assert found.value[:, 0] == pytest.approx([0.5, 0.5], abs=0.05)


def test_groups_are_players():
    model = DEPENDENT["linear Gaussian"]
    groups = {"left": ["x0", "x3"], "right": ["x1", "x2"]}
    members = [[0, 3], [1, 2]]
    exact = shapley(lambda group: model.first([i for k in group for i in members[k]]), 2)
    check(shapley_effects(dependent_cube(model), DESIGN, groups), exact)


def test_many_correlated_inputs_share_orders():
    count = 10
    correlation = np.full((count, count), 0.3) + 0.7 * np.eye(count)
    model = linear_gaussian(np.ones(count), correlation)
    found = shapley_effects(dependent_cube(model), make_design(2**12), alone(model.names))
    check(found, np.full(count, 1 / count))  # by symmetry


def test_more_samples_halve_the_interval():
    problem = ishigami()
    few, many = (shapley_effects(cube_of(problem), make_design(n), alone(problem.names)) for n in (2**10, 2**14))
    # Plain Monte Carlo at worst: a quarter of the width, which 16 replicates scatter by less than a third.
    assert (many.high - many.low).max() < (few.high - few.low).max() / 2


def test_seeds_and_masses():
    cube, players = cube_of(ishigami()), alone(ishigami().names)
    first, again, other = (shapley_effects(cube, make_design(2**10, seed=seed), players) for seed in (4, 4, 5))
    assert np.array_equal(first.value, again.value) and not np.array_equal(first.value, other.value)
    narrow = shapley_effects(cube, make_design(2**10, seed=4), players, mass=0.5)
    assert (narrow.high - narrow.low < first.high - first.low).all()


def test_inputs_of_no_player_are_held_and_of_two_players_refused():
    cube = FunctionCube(lambda x: x[:1] + 2 * x[1:2], ["a", "b", "idle"])
    found = shapley_effects(cube, make_design(2**12), {"a": ["a"], "b": ["b"]})
    check(found, np.array([0.2, 0.8]))  # variances 1/12 and 4/12
    with pytest.raises(ValueError, match="two players"):
        shapley_effects(cube, make_design(2**12), {"a": ["a", "b"], "b": ["b"]})
