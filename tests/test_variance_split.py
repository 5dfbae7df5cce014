"""What is not known about populations, and what differs from run to run, as shares of the variance of outputs."""

import json

import numpy as np
import pytest

from gpustack_mc import catalog, priors, variance_split
from gpustack_mc.cli import main
from gpustack_mc.design import make_design
from gpustack_mc.priors import Marginal
from gpustack_mc.scenario import load_scenario


@pytest.fixture(scope="module")
def problem():
    """Hours = constant / (mfu goodput), with lognormal factors."""
    loaded = load_scenario("llama-3-70b")
    fixed = {
        key: item._replace(marginal=Marginal("fixed", {"value": float(priors.quantiles(item.marginal, [0.5])[0])}))
        for key, item in loaded.inputs.items()
    }
    for name, median, sigma, share in (("mfu", 0.3, 0.2, 0.3), ("goodput", 0.5, 0.1, None)):
        marginal = Marginal("lognormal", {"mu": float(np.log(median)), "sigma": sigma, "shift": 0.0})
        fixed[name] = fixed[name]._replace(marginal=marginal, epistemic=share)
    return loaded._replace(inputs=fixed)


def test_shares_of_a_product_of_lognormals(problem):
    """Closed form: log hours are a sum, whose variance 0.2² + 0.1² is divided as the shares of its terms say."""
    found = variance_split.split(problem, make_design(2**16), ["accelerator_hours"])
    entry = found["accelerator_hours"]
    assert (entry["scale"], entry["not_separated"]) == ("log", ["goodput"])
    expected = {"population": 0.3 * 0.04 / 0.05, "members": 0.7 * 0.04 / 0.05, "other": 0.01 / 0.05}
    for part, share in expected.items():
        # A product moment of 65,536 normal pairs has a standard error below 0.006 without any help of the design.
        assert entry[part]["share"] == pytest.approx(share, abs=0.015)
        low, high = entry[part]["interval_90"]
        assert low < entry[part]["share"] < high


def test_an_output_that_does_not_vary_has_no_shares(problem):
    (entry,) = variance_split.split(problem, make_design(2**10), ["training_flop"]).values()
    assert entry["population"] == {"share": None, "interval_90": [None, None]}
    assert variance_split.lines({"training_flop": entry}) == []


def test_every_share_lies_between_none_and_all():
    for name in ("pue", "capex", "interruption_rate"):
        for population in catalog.fit_record(name)["populations"]:
            if "regression" not in population["parameters"]:
                share = priors.epistemic_share(population, {})
                assert share is None or 0 < share < 1, (name, population["label"])
    inputs = load_scenario("llama-3-70b").inputs
    assert 0 < inputs["mfu"].epistemic < 0.5  # teams differ more than the population is unknown
    assert 0 < inputs["goodput"].epistemic < 0.2
    assert inputs["tokens"].epistemic is None  # stated


def test_share_of_a_regression():
    population = {"parameters": {"regression": {
        "terms": ["intercept", "moe"], "coefficients": [0.0, 0.0], "covariance": [[0.02, 0.0], [0.0, 0.01]],
        "residual_sd": 0.1}}}  # fmt: skip
    assert priors.epistemic_share(population, {"moe": 1.0}) == pytest.approx(0.03 / 0.04)
    assert priors.epistemic_share(population, {"moe": 0.0}) == pytest.approx(0.02 / 0.03)


def test_the_command_prints_and_stores_the_shares(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["run", "llama-3-70b", "--samples", "1024", "--no-files", "--variance-split", "--json"])
    assert stop.value.code == 0
    found = json.loads(capsys.readouterr().out)["variance_split"]
    whole = sum(found["training_days"][part]["share"] for part in variance_split.PARTS)
    assert whole == pytest.approx(1, abs=0.1)  # log hours are a sum; 1,024 draws
