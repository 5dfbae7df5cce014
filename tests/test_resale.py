"""Resale value at the life that a scenario states."""

import numpy as np
import pytest

from gpustack_mc import knobs, priors
from gpustack_mc.resale import fitted_age
from gpustack_mc.scenario import load_scenario, read_document, resolve

BASE = """\
schema_version: 1
name: Life
workload: {params: 70e9, tokens: 2e12}
cluster: {accelerator: H100-SXM-80GB, count: 1024}
"""
POINTS = [0.01, 0.25, 0.5, 0.75, 0.99]


@pytest.fixture
def load(scenario_file):
    return lambda *overrides: load_scenario(scenario_file(BASE), overrides)


def left(problem):
    return priors.quantiles(problem.inputs["residual_share"].marginal, POINTS)


@pytest.mark.parametrize("life", [1.0, 3.0, 8.0])
def test_each_draw_loses_value_at_its_own_constant_rate(load, life):
    """The share after L years is that of the fit's age to the power L/a: half after 5 years is a quarter after 10."""
    found = load(f"lifetime={life}")
    # Between the nodes of two quantile tables.
    np.testing.assert_allclose(left(found), left(load()) ** (life / fitted_age()), rtol=2e-4)
    assert f"at {life:g}" in found.inputs["residual_share"].prior


def test_the_age_of_the_fit_changes_nothing(load):
    assert load(f"lifetime={fitted_age()}").inputs["residual_share"] == load().inputs["residual_share"]


def test_an_interval_counts_by_its_median(load):
    wide, narrow = load("lifetime={low: 2, high: 4.5}"), load("lifetime=3")
    np.testing.assert_allclose(left(wide), left(narrow), rtol=1e-6)


def test_a_resale_value_of_your_own_stays(load):
    assert load("lifetime=3", "residual_share=0.3").inputs["residual_share"].marginal.parameters["value"] == 0.3


def test_solving_for_the_life_carries_the_resale_value_along(scenario_file):
    document = read_document(scenario_file(BASE))
    for overrides in ((), ("lifetime=8",)):
        knob = knobs.knob("lifetime", document, overrides)
        np.testing.assert_allclose(left(knob.at(3.0)), left(resolve(document, ("lifetime=3",))), rtol=2e-4)
