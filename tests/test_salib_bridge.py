"""SALib's problem from a scenario and back; SALib's estimators on our design; SALib's own design through our model."""

import json
import warnings

import numpy as np
import pytest

from gpustack_mc import salib_bridge
from gpustack_mc.design import make_design
from gpustack_mc.errors import InputError
from gpustack_mc.scenario import load_scenario
from gpustack_mc.sensitivities import Wanted, run_sensitivity

OUTPUTS = ("cost_rented_usd", "energy_mwh")
PLAN = """\
schema_version: 1
name: Every family that SALib knows
workload: {{params: 7e9, tokens: {{dist: uniform, low: 1e12, high: 2e12}}}}
cluster: {{accelerator: H100-SXM-80GB, count: 512}}
site: {{region: US-TX}}
{correlations}
inputs:
  mfu: {{dist: triangular, low: 0.2, mode: 0.3, high: 0.5}}
  pue: {{dist: truncated_normal, mean: 1.2, sd: 0.1, low: 1.05, high: 1.6}}
  host_power: {{dist: normal, mean: 400 W, sd: 20 W}}
  rental_price: {{dist: log_uniform, low: 1.5 USD/h, high: 4 USD/h}}
  grid_intensity: {{dist: lognormal, median: 400 g/kWh, sigma: 0.2}}
"""
CORRELATED = "correlations: [{between: [mfu, pue], rank: 0.3}]"


@pytest.fixture(scope="module")
def problem():
    return load_scenario("llama-3-70b")


@pytest.fixture
def every_family(scenario_file):
    return load_scenario(scenario_file(PLAN.format(correlations="")))


def analyse(salib, y):
    from SALib.analyze import sobol

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # pandas inside SALib
        return sobol.analyze(salib, y, calc_second_order=False, num_resamples=20, seed=7)


def test_salib_finds_our_indices_on_our_design(problem):
    design = make_design(2**12, seed=3)
    ours = run_sensitivity("llama-3-70b", (), Wanted(outputs=OUTPUTS, scale="raw"), samples=2**12, seed=3,
                           with_files=False)  # fmt: skip
    salib = salib_bridge.to_salib(problem)
    values = salib_bridge.cross_sample(problem, design)
    for name, y in zip(OUTPUTS, salib_bridge.evaluate(problem, values, OUTPUTS).T, strict=True):
        theirs = analyse(salib, y)
        found = ours["outputs"][name]["inputs"]
        for i, key in enumerate(salib["names"]):
            # The same estimators on the same points: they centre by the mean of all rows, and we by that of A and B.
            assert theirs["S1"][i] == pytest.approx(found[key]["S1"], abs=5e-4)
            assert theirs["ST"][i] == pytest.approx(found[key]["ST"], abs=5e-4)


def test_salib_finds_our_indices_of_groups(problem):
    ours = run_sensitivity("llama-3-70b", (), Wanted(outputs=OUTPUTS[:1], scale="raw"), samples=2**12, seed=3,
                           with_files=False)  # fmt: skip
    salib = salib_bridge.to_salib(problem, ours["groups"])
    values = salib_bridge.cross_sample(problem, make_design(2**12, seed=3), ours["groups"])
    theirs = analyse(salib, salib_bridge.evaluate(problem, values, OUTPUTS[:1])[:, 0])
    for i, group in enumerate(dict.fromkeys(salib["groups"])):
        found = ours["outputs"][OUTPUTS[0]]["groups"][group]
        assert theirs["S1"][i] == pytest.approx(found["S1"], abs=5e-4)
        assert theirs["ST"][i] == pytest.approx(found["ST"], abs=5e-4)


def test_salibs_own_sample_through_our_model(problem):
    from SALib.sample import sobol

    salib = salib_bridge.to_salib(problem)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = sobol.sample(salib, 2**11, calc_second_order=False, seed=5)
    theirs = analyse(salib, salib_bridge.evaluate(problem, values, OUTPUTS[1:])[:, 0])
    ours = run_sensitivity("llama-3-70b", (), Wanted(outputs=OUTPUTS[1:], scale="raw"), with_files=False)
    found = ours["outputs"]["energy_mwh"]["inputs"]
    for i, key in enumerate(salib["names"]):
        # SALib's half widths are of 95%: two of them, and 0.01 for ours, are more than any of 20 inputs should need.
        assert theirs["ST"][i] == pytest.approx(found[key]["ST"], abs=2 * theirs["ST_conf"][i] + 0.01)


def test_every_family_keeps_its_quantiles(every_family):
    """SALib's scaling of probabilities gives our draws."""
    from SALib.util import scale_samples

    salib = salib_bridge.to_salib(every_family)
    dists = dict(zip(salib["names"], salib["dists"], strict=True))
    assert {dists[key] for key in ("tokens", "mfu", "pue", "host_power", "rental_price", "grid_intensity")} == {
        "unif", "triang", "truncnorm", "norm", "logunif", "lognorm"}  # fmt: skip
    u = np.random.default_rng(0).random((200, len(salib["names"])))
    theirs = scale_samples(u.copy(), dict(salib))
    for column, name in enumerate(salib["names"]):
        if name in salib["probabilities"]:
            assert np.array_equal(theirs[:, column], u[:, column])
        else:
            # Both compute quantile functions in double precision, by other formulas.
            assert theirs[:, column] == pytest.approx(salib_bridge._values(every_family, name, u[:, column]), rel=1e-8)


def test_there_and_back(every_family, scenario_file):
    salib = salib_bridge.to_salib(every_family)
    stated = salib_bridge.from_salib(json.loads(json.dumps(salib)))
    assert set(stated) | set(salib["probabilities"]) == set(salib["names"])
    overrides = [f"{key}={json.dumps(value)}" for key, value in stated.items() if key != "tokens"]
    again = load_scenario(scenario_file(PLAN.format(correlations=""), "again.yaml"), overrides)
    returned = salib_bridge.to_salib(again)
    assert {key: returned[key] for key in ("names", "dists", "probabilities")} == {
        key: salib[key] for key in ("names", "dists", "probabilities")
    }
    for there, back in zip(salib["bounds"], returned["bounds"], strict=True):
        assert back == pytest.approx(there, rel=1e-12)


def test_a_plain_problem_of_salib_is_uniform():
    stated = salib_bridge.from_salib({"num_vars": 1, "names": ["pue"], "bounds": [[1.1, 1.4]]})
    assert stated == {"pue": {"dist": "uniform", "low": 1.1, "high": 1.4}}


def test_what_has_no_counterpart_is_refused(scenario_file):
    with pytest.raises(InputError, match="no distribution 'weibull'"):
        salib_bridge.from_salib({"names": ["pue"], "bounds": [[1, 2]], "dists": ["weibull"]})
    correlated = load_scenario(scenario_file(PLAN.format(correlations=CORRELATED)))
    with pytest.raises(InputError, match="mfu, pue are correlated"):
        salib_bridge.to_salib(correlated)


def test_files_for_salib(tmp_path, monkeypatch):
    monkeypatch.setattr(salib_bridge, "EXPORTED", 64)
    found = run_sensitivity("llama-3-70b", (), Wanted(outputs=("cost",), salib=True), samples=1024, out=tmp_path)
    assert [path.rpartition("/")[2] for path in found["files"]] == [
        "sensitivity.json", "drivers.png", "tornado.png", "salib.json", "salib.npz"]  # fmt: skip
    salib = json.loads((tmp_path / "salib.json").read_text(encoding="utf-8"))
    with np.load(tmp_path / "salib.npz") as sample:
        assert sample["values"].shape == (64 * (salib["num_vars"] + 2), salib["num_vars"])
        assert sample["output_names"].tolist() == ["cost_owned_usd", "cost_rented_usd"]
        again = salib_bridge.evaluate(load_scenario("llama-3-70b"), sample["values"], sample["output_names"].tolist())
        assert np.array_equal(again, sample["outputs"])
