"""The DataTree and what is said about it: groups, attributes, netCDF round trip, ArviZ, summaries, questions."""

import json

import arviz as az
import numpy as np
import pytest
import xarray as xr

from gpustack_mc import answering, summarizing
from gpustack_mc.design import make_design
from gpustack_mc.propagation import simulate
from gpustack_mc.quantities import BY_NAME, OUTPUTS
from gpustack_mc.result import to_datatree, write
from gpustack_mc.scenario import load_scenario

SCENARIO = """\
schema_version: 1
name: A $ name <b>&
workload: {params: 70e9, tokens: 15e12}
cluster: {accelerator: H100-SXM-80GB, count: 8192}
site: {region: US}
questions: {budget: 15 MUSD, deadline: 45 d}
published:
  accelerator_hours: {value: 6.4e6 h, source: A card, url: "https://example.org"}
  energy_mwh: {value: 1 MWh, source: A card, outside: a unit slip}
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    path = tmp_path_factory.mktemp("scenario") / "plan.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return to_datatree(simulate(load_scenario(path), make_design(2**12, seed=3)))


@pytest.fixture(scope="module")
def stored(tree, tmp_path_factory):
    path = tmp_path_factory.mktemp("result") / "result.nc"
    write(tree, path)
    return xr.load_datatree(path)


def test_round_trip_keeps_draws_and_attributes(tree, stored):
    for group in ("prior", "prior_predictive", "constant_data", "statistics", "sensitivity"):
        xr.testing.assert_identical(tree[group].to_dataset(), stored[group].to_dataset())
    assert dict(stored.attrs) == dict(tree.attrs)


def test_the_file_is_what_xarray_would_write(tree, stored, tmp_path):
    tree.to_netcdf(tmp_path / "theirs.nc", engine="h5netcdf")
    xr.testing.assert_identical(xr.load_datatree(tmp_path / "theirs.nc"), stored)


def test_provenance(stored):
    attrs = stored.attrs
    assert attrs["seed"] == 3 and attrs["samples"] == 4096 and attrs["draws"] == 4096
    assert attrs["scenario"] == SCENARIO
    assert len(attrs["scenario_sha256"]) == 64
    assert {"gpustack-mc", "jax", "numpy", "scipy", "xarray"} <= set(json.loads(attrs["versions"]))
    assert json.loads(attrs["basis"]) == {"carbon_accounting": "location-based", "carbon_basis": "direct"}


def test_every_variable_has_unit_name_and_origin(stored):
    for name, variable in stored["prior_predictive"].data_vars.items():
        assert variable.attrs["units"] == BY_NAME[name].unit
        assert variable.attrs["long_name"] and variable.attrs["scope"]
    for variable in stored["prior"].data_vars.values():
        assert variable.attrs["origin"] in ("entered", "fitted", "assumed")
        assert json.loads(variable.attrs["sources"])[0]["url"]
    assert stored["prior_predictive"]["co2e_t"].attrs["carbon_basis"] == "direct"


def test_arviz_reads_it_unchanged(stored):
    table = az.summary(stored, group="prior_predictive", ci_prob=0.9, ci_kind="eti", kind="stats", round_to="none")
    expected = np.quantile(stored["prior_predictive"]["training_days"], [0.05, 0.95])
    got = table.loc["training_days", ["eti90_lb", "eti90_ub"]].astype(float)
    # ArviZ and NumPy interpolate quantiles differently; between two of 4,096 draws that is below 1%.
    np.testing.assert_allclose(got, expected, rtol=0.01)
    plot = az.plot_forest(stored, group="prior", var_names=["mfu", "goodput"], ci_probs=(0.5, 0.9), ci_kind="eti",
                          backend="none")  # fmt: skip
    assert plot is not None


def test_sensitivity_group(stored):
    found = stored["sensitivity"].sel(scale="raw", output="training_days")
    assert found["ST"].sel(input="mfu") > 0.5
    # Some versions of XLA round the run with another PUE otherwise: in the last of 16 digits, squared.
    assert float(found["ST"].sel(input="pue")) < 1e-30
    assert found["ST_lower"].sel(input="mfu") < found["ST"].sel(input="mfu") < found["ST_upper"].sel(input="mfu")
    assert str(found["status"].values) == "ok"
    assert str(stored["sensitivity"]["status"].sel(scale="raw", output="training_flop").values) == "constant"


def test_summary_has_the_published_form(stored):
    found = summarizing.summarise(stored)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert set(found["outputs"]) == set(OUTPUTS)
    days = found["outputs"]["training_days"]
    draws = stored["prior_predictive"]["training_days"].values[0]
    assert days["unit"] == "day" and days["scope"] == "final run"
    np.testing.assert_allclose(
        [*days["interval_90"], *days["interval_50"], days["median"]], np.quantile(draws, [0.05, 0.95, 0.25, 0.75, 0.5])
    )
    assert days["mean"] == pytest.approx(draws.mean()) and days["sd"] == pytest.approx(draws.std())
    assert found["inputs"]["mfu"]["prior"] and found["inputs"]["mfu"]["source"]
    assert found["inputs"]["tdp"]["interval_90"] == [700, 700]
    index = found["sensitivity"]["cost_owned_usd"]["mfu"]
    assert set(index) == {"S1", "S1_interval_90", "ST", "ST_interval_90"}
    assert found["sensitivity"]["training_flop"]["mfu"]["ST"] is None


def test_questions_count_draws(stored):
    found = answering.answers(stored)
    owned = stored["prior_predictive"]["cost_owned_usd"].values <= 15e6
    done = stored["prior_predictive"]["training_days"].values <= 45
    assert found["budget_owned"]["probability"] == pytest.approx(owned.mean())
    assert found["deadline"]["probability"] == pytest.approx(done.mean())
    assert found["all_owned"]["probability"] == pytest.approx((owned & done).mean())
    assert found["all_owned"]["limits"] == ["budget_owned", "deadline"]
    assert 0 < found["deadline"]["monte_carlo_error"] < 0.01


def test_published_figures_say_whether_they_are_inside(stored):
    found = summarizing.summarise(stored)["published"]
    assert found["accelerator_hours"]["inside_interval_90"] is True
    assert found["energy_mwh"]["inside_interval_90"] is False


def test_text(stored):
    found = summarizing.summarise(stored, ["reports/x/result.nc"])
    lines = summarizing.text(found, "either", width=200).splitlines()
    assert lines[0].startswith("70B parameters on 15T tokens with 8,192 H100-SXM-80GB: ")
    assert lines[0].endswith("(90% intervals).")
    text = "\n".join(lines)
    for part in ("median", "50% interval", "90% interval", "CO2e, operational, location-based, direct",
                 "P(run time at most 45 d) = ",
                 "outside the 90% interval: a unit slip", "what drives cost, owned", "fitted: ",
                 "Seed 3, 4,096 samples",
                 "reports/x/result.nc"):  # fmt: skip
        assert part in text


@pytest.mark.parametrize("width", [40, 80, 200])
def test_text_respects_the_width_of_prose(stored, width):
    found = summarizing.summarise(stored)
    first = summarizing.text(found, "own", width=width).split("\n\n")[0]
    assert all(len(line) <= max(width, 40) for line in first.splitlines()[:2])


def test_ownership_selects_the_cost(stored):
    found = summarizing.summarise(stored)
    rented = summarizing.text(found, "rent")
    table = rented.split("\n\n")[1]
    assert "cost, rented" in table and "cost, owned" not in table
    assert "rented (90% intervals)" in rented.replace("\n", " ")
