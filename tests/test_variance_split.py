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


def correlated(problem, rank, share):
    """The same product with correlated factors, both with known shares."""
    inputs = dict(problem.inputs)
    inputs["goodput"] = inputs["goodput"]._replace(epistemic=share)
    matrix = np.array([[1.0, rank], [rank, 1.0]])
    return problem._replace(inputs=inputs, correlated=("mfu", "goodput"), correlation=matrix)


@pytest.mark.parametrize("order", [("mfu", "goodput"), ("goodput", "mfu")])
def test_shares_of_correlated_factors(problem, order):
    """Closed form: parts of equal correlation R have covariances sqrt(s_i s_j) R sigma_i sigma_j, in any order."""
    rank, shares = 0.6, np.array([0.3, 0.1])
    both = correlated(problem, rank, 0.1)._replace(correlated=order)
    (entry,) = variance_split.split(both, make_design(2**16), ["accelerator_hours"]).values()
    sigma = np.array([0.2, 0.1])
    strength = rank / (np.sqrt(shares.prod()) + np.sqrt((1 - shares).prod()))
    whole = sigma @ np.array([[1, rank], [rank, 1]]) @ sigma
    for part, share in (("population", shares), ("members", 1 - shares)):
        covariance = np.sqrt(np.outer(share, share)) * np.array([[1, strength], [strength, 1]])
        # A product moment of 65,536 normal pairs has a standard error below 0.006 without any help of the design.
        assert entry[part]["share"] == pytest.approx(sigma @ covariance @ sigma / whole, abs=0.015)
    assert entry["not_separated"] == [] and entry["other"]["share"] == pytest.approx(0, abs=0.015)


@pytest.mark.parametrize(("rank", "share"), [(0.3, None), (0.999, 0.9)])
def test_correlations_that_no_parts_can_hold_are_not_separated(problem, rank, share):
    """With an input whose shares are unknown; and nearly one input, of which most is and is not known."""
    both = correlated(problem, rank, share)
    (entry,) = variance_split.split(both, make_design(2**12), ["accelerator_hours"]).values()
    assert entry["not_separated"] == ["mfu", "goodput"]
    assert entry["other"]["share"] == pytest.approx(1, abs=1e-9)  # the same draws


def test_covariances_of_parts_are_covariances_and_add_up():
    random = np.random.default_rng(2)
    population = random.uniform(0, 1, 6) * (np.arange(6) < 4)
    other = (np.arange(6) >= 4).astype(float)
    parts = {"population": population, "members": 1 - population - other, "other": other}
    correlation = np.eye(6)
    correlation[:3, :3] += 0.4 * (1 - np.eye(3))
    correlation[3, 4] = correlation[4, 3] = 0.5
    found = variance_split.covariances(parts, correlation)
    assert sum(found.values()) == pytest.approx(correlation, abs=1e-12)
    assert all(np.linalg.eigvalsh(part).min() > -1e-9 for part in found.values())
    assert np.diag(found["population"])[:3] == pytest.approx(population[:3])
    assert np.diag(found["other"]) == pytest.approx([0, 0, 0, 1, 1, 1])  # input 3 is tied to one that is not known


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
