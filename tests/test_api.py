"""What Python code uses: labelled arrays with units, the same numbers as the file and the command line."""

import doctest
import re
import subprocess
import sys

import numpy as np
import pytest

import gpustack_mc as mc
from gpustack_mc import api, summarizing, units
from gpustack_mc.comparing import run_comparison
from gpustack_mc.errors import InputError
from gpustack_mc.quantities import BY_NAME, OUTPUTS

load_scenario, open_result, sensitivity, simulate, summary = (
    mc.load_scenario, mc.open_result, mc.sensitivity, mc.simulate, mc.summary)  # fmt: skip


def test_names_are_stable():
    assert mc.__all__ == ["compare", "load_scenario", "open_result", "sensitivity", "simulate", "summary", "table"]
    assert mc.__all__ == api.__all__
    assert set(mc.__all__) <= set(dir(mc))
    assert all(getattr(mc, name) is getattr(api, name) and getattr(api, name).__doc__ for name in mc.__all__)
    with pytest.raises(AttributeError, match="simulat'"):
        _ = mc.simulat


def test_the_package_loads_its_functions_when_asked():
    program = """
import sys, gpustack_mc
assert set(gpustack_mc.__all__) <= set(dir(gpustack_mc))
from gpustack_mc import quantities
assert not {"jax", "arviz", "xarray", "numpy"} & set(sys.modules)
from gpustack_mc import summary
assert summary is gpustack_mc.summary and "xarray" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_editors_know_the_names(root):
    """What type checkers read is what `__getattr__` gives."""
    text = (root / "src" / "gpustack_mc" / "__init__.py").read_text(encoding="utf-8")
    typed = re.search(r"from gpustack_mc.api import (.*)", text)[1]
    assert typed.split(", ") == mc.__all__
    assert (root / "src" / "gpustack_mc" / "py.typed").exists()


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


def test_units_are_understood_by_pint(llama, pair):
    """Every variable of every group has a unit that pint reads, so that pint-xarray can quantify it."""
    registry = units.registry()
    kinds = set()
    for tree in (llama[0], pair):
        for node in tree.subtree:
            for name, variable in node.data_vars.items():
                # Tables of statistics and of texts have no single unit.
                if node.name != "statistics" and name != "status":
                    kinds.add(str(registry.Quantity(1.0, variable.attrs["units"]).units))
    assert len(kinds) > 15
    assert registry.Quantity(1.0, summary(llama[0])["energy_mwh"].attrs["units"]).to("GJ").magnitude == pytest.approx(
        3.6
    )


def test_sensitivity_is_that_of_the_result(llama):
    found = sensitivity(llama[0])
    assert {"S1", "S1_lower", "S1_upper", "ST", "ST_lower", "ST_upper", "status"} <= set(found.data_vars)
    assert float(found["ST"].sel(output="energy_mwh", input="rental_price")) == pytest.approx(0, abs=1e-6)
    whole = float(sensitivity(llama[0], scale="log")["S1"].sel(output="accelerator_hours").sum())
    # Hours are a product: the first-order indices of their logarithm add up to 1, but for the Monte Carlo error.
    assert whole == pytest.approx(1, abs=0.03)
    with pytest.raises(ValueError, match="no input varies"):
        sensitivity(simulate("worked-7b", samples=256))


@pytest.mark.parametrize("module", [mc, api])
def test_the_example_in_the_docstring(module):
    found = doctest.testmod(module)
    assert found.attempted == 3 and found.failed == 0


def test_it_displays_in_notebooks(llama):
    assert "cost_owned_usd" in summary(llama[0])._repr_html_()
    table = mc.table(llama[0])
    assert table._repr_html_().count("<tr") == len(table) + 2
    rows = summarizing.headline_table(summarizing.summarise(llama[0]), "either")
    assert [tuple(row) for row in table.to_numpy()] == list(rows.values())


# ---- comparisons -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair():
    changed = load_scenario("llama-3-70b", ["cluster.accelerator=B200-SXM"])
    return mc.compare({"H100": "llama-3-70b", "B200": changed}, samples=1024, seed=2)


def test_a_comparison_is_that_of_the_command(pair):
    vary = ["cluster.accelerator=H100-SXM-80GB,B200-SXM"]
    done = run_comparison(["llama-3-70b"], vary=vary, samples=1024, seed=2, with_files=False).summary
    for name in ("energy_mwh", "cost_owned_usd"):
        wanted = done["comparisons"][0]["outputs"][name]
        for group in ("difference", "ratio"):
            found = pair[group][name].sel(scenario="B200")
            assert float(found.sel(statistic="mean")) == pytest.approx(wanted[group]["mean"])
            assert [float(found.sel(statistic=q)) for q in ("q0.05", "q0.95")] == pytest.approx(
                wanted[group]["interval_90"]
            )
            error = wanted[group]["monte_carlo_error"]["median"]
            assert float(found.sel(statistic="q0.5_error")) == pytest.approx(error)
        assert float(pair["probability_lower"][name].sel(scenario="B200")) == wanted["other_lower"]["probability"]
        assert float(pair["probability_lowest"][name].sum()) == pytest.approx(1)
        assert pair["difference"][name].attrs["units"] == BY_NAME[name].unit


def test_draws_of_a_comparison_belong_together(pair):
    outputs = pair["prior_predictive"]["energy_mwh"]
    assert outputs.sizes == {"chain": 1, "draw": 1024, "scenario": 2}
    alone = simulate("llama-3-70b", samples=1024, seed=2)["prior_predictive"]["energy_mwh"]
    np.testing.assert_allclose(outputs.sel(scenario="H100"), alone, rtol=1e-12)
    both = outputs.sel(scenario="B200") - outputs.sel(scenario="H100")
    np.testing.assert_allclose(both.mean(), pair["difference"]["energy_mwh"].sel(statistic="mean").item(), rtol=1e-9)


def test_a_ratio_that_is_not_finite_is_unknown():
    """Carbon has no price here, so that its cost is 0 in both: no ratio, and no difference."""
    tree = mc.compare(["worked-7b", "worked-7b"], samples=256)
    assert np.isnan(tree["ratio"]["carbon_cost_usd"]).all()
    assert (tree["difference"]["carbon_cost_usd"].sel(statistic="q0.95") == 0).all()
    assert list(tree["ratio"]["scenario"].values) == [f"B: {load_scenario('worked-7b').name}"]


def test_what_cannot_be_compared(pair):
    with pytest.raises(InputError, match="nothing to compare with"):
        mc.compare("worked-7b")
    with pytest.raises(InputError, match="13 scenarios to compare"):
        mc.compare([load_scenario("worked-7b")] * 13)
    with pytest.raises(InputError, match="carbon is counted in different ways"):
        mc.compare(["llama-3-70b", load_scenario("llama-3-70b", ["site.carbon_basis=lifecycle"])], samples=256)
    for function in (summary, sensitivity, mc.table):
        with pytest.raises(ValueError, match="this is a comparison"):
            function(pair)
