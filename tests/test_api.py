"""What Python code uses: labelled arrays with units, the same numbers as the file and the command line."""

import doctest

import numpy as np
import pytest

from gpustack_mc import api, units
from gpustack_mc.api import load_scenario, open_result, sensitivity, simulate, summary
from gpustack_mc.quantities import BY_NAME, OUTPUTS


def test_names_are_stable():
    assert api.__all__ == ["load_scenario", "open_result", "sensitivity", "simulate", "summary"]
    assert all(getattr(api, name).__doc__ for name in api.__all__)


def test_a_scenario_or_its_name():
    problem = load_scenario("nanochat")
    assert problem.name.startswith("nanochat")
    first, second = simulate(problem, samples=256, seed=3), simulate("nanochat", samples=256, seed=3)
    np.testing.assert_array_equal(first["prior_predictive"]["energy_mwh"], second["prior_predictive"]["energy_mwh"])
    assert int(first.attrs["seed"]) == 3


def test_summary_is_that_of_the_draws_with_units(llama):
    tree, path = llama
    found = summary(tree)
    assert set(OUTPUTS) <= set(found.data_vars) and "mfu" in found
    for name, variable in found.items():
        assert variable.attrs["units"] == BY_NAME[name].unit
    draws = tree["prior_predictive"]["cost_owned_usd"].values
    wanted = np.quantile(draws, [0.05, 0.5, 0.95])
    # All draws of so small a run are kept; the quantiles of a sample may be interpolated in other ways.
    np.testing.assert_allclose(found["cost_owned_usd"].sel(statistic=["q0.05", "q0.5", "q0.95"]), wanted, rtol=1e-3)
    assert summary(open_result(path)).identical(found)


def test_units_are_understood_by_pint(llama):
    registry = units.registry()
    for variable in summary(llama[0]).values():
        assert registry.Quantity(1.0, variable.attrs["units"]) is not None


def test_sensitivity_is_that_of_the_result(llama):
    found = sensitivity(llama[0])
    assert {"S1", "S1_lower", "S1_upper", "ST", "ST_lower", "ST_upper", "status"} <= set(found.data_vars)
    assert float(found["ST"].sel(output="energy_mwh", input="rental_price")) == pytest.approx(0, abs=1e-6)
    whole = float(sensitivity(llama[0], scale="log")["S1"].sel(output="accelerator_hours").sum())
    # Hours are a product: the first-order indices of their logarithm add up to 1, but for the Monte Carlo error.
    assert whole == pytest.approx(1, abs=0.03)
    with pytest.raises(ValueError, match="no input varies"):
        sensitivity(simulate("worked-7b", samples=256))


def test_the_example_in_the_docstring():
    assert doctest.testmod(api).failed == 0


def test_it_displays_in_notebooks(llama):
    assert "cost_owned_usd" in summary(llama[0])._repr_html_()
