"""``measure``: the model's own answers against nested Monte Carlo, and what is refused."""

import json

import numpy as np
import pytest
from scipy import stats

from gpustack_mc import measure_text, priors
from gpustack_mc.design import make_design
from gpustack_mc.errors import InputError
from gpustack_mc.knobs import knob
from gpustack_mc.measure import run_measure
from gpustack_mc.propagation import propagate
from gpustack_mc.scenario import load_scenario, read_document

SCENARIO = "scenarios/llama-3-70b.yaml"
SAMPLES = 2**16


@pytest.fixture(scope="module")
def found():
    return run_measure(SCENARIO, samples=SAMPLES, accuracies=["mfu=5%"], together=["fleet_utilization,rental_price"])


@pytest.mark.parametrize("name", ["fleet_utilization", "rental_price", "mfu"])
def test_widths_are_those_of_nested_monte_carlo(found, name):
    marginal = load_scenario(SCENARIO).inputs[name].marginal
    turned = knob(name, read_document(SCENARIO), [])
    # Outer expectation by Gauss-Hermite quadrature over the normal score of the input.
    nodes, weights = np.polynomial.hermite_e.hermegauss(13)
    weights /= weights.sum()
    widths = []
    for value in priors.quantiles(marginal, stats.norm.cdf(nodes)):
        inner = propagate(turned.at(float(value)), make_design(2**14, seed=1))
        costs = np.stack([inner.output("cost_owned_usd"), inner.output("cost_rented_usd")])
        widths.append(np.diff(np.quantile(costs, [0.05, 0.95], axis=1), axis=0)[0])
    for output, nested in zip(("cost_owned_usd", "cost_rented_usd"), weights @ np.array(widths), strict=True):
        entry = found["expected_width_90"][name]["perfect"][output]
        # All nodes share their inner draws, whose 95% quantile of the owned cost errs by 1%.
        assert entry["value"] == pytest.approx(nested, rel=0.03)


def test_the_value_of_one_input_is_that_of_the_model(found):
    # Costs are a + b/u in the utilisation and proportional to the rental price, so that conditional means are exact.
    inputs = load_scenario(SCENARIO).inputs
    known, full = (propagate(problem, make_design(2**16, seed=1)) for problem in (
        load_scenario(SCENARIO), load_scenario(SCENARIO, ["fleet_utilization=1"])))  # fmt: skip
    own, rent = (known.output(f"cost_{how}_usd").mean() for how in ("owned", "rented"))
    power = full.output("electricity_cost_usd").mean()
    hardware = full.output("cost_owned_usd").mean() - power
    u = (np.arange(200_000) + 0.5) / 200_000
    spread = {name: priors.quantiles(inputs[name].marginal, u) for name in ("fleet_utilization", "rental_price")}
    given = {
        "fleet_utilization": np.minimum(power + hardware / spread["fleet_utilization"], rent),
        "rental_price": np.minimum(known.output("accelerator_hours").mean() * spread["rental_price"], own),
        # Both costs are proportional to the hours.
        "mfu": np.array([min(own, rent)]),
    }
    for name, costs in given.items():
        entry = found["decision"]["inputs"][name]["perfect"]
        exact = min(own, rent) - costs.mean()
        # The mean costs of the two samples differ by about 0.1%, a few thousandths of the value of everything.
        whole = found["decision"]["perfect_information_usd"]["value"]
        assert entry["value"] == pytest.approx(exact, abs=4 * entry["monte_carlo_error"] + 0.01 * whole)


def test_no_part_is_worth_more_than_the_whole(found):
    whole = found["decision"]["perfect_information_usd"]
    (pair,) = found["decision"]["together"]
    parts = [found["decision"]["inputs"][name]["perfect"]["value"] for name in pair["inputs"]]
    assert max(parts) < pair["value_usd"]["value"] < whole["value"]
    for entry in found["decision"]["inputs"].values():
        exact, stated = (entry[how] for how in ("perfect", "measured"))
        assert exact["value"] <= whole["value"]
        errors = exact["monte_carlo_error"] + stated["monte_carlo_error"]
        assert stated["value"] <= exact["value"] + 4 * errors


def test_the_value_of_everything_is_that_of_the_draws(found):
    draws = propagate(load_scenario(SCENARIO), make_design(SAMPLES))
    own, rent = draws.output("cost_owned_usd"), draws.output("cost_rented_usd")
    exact = min(own.mean(), rent.mean()) - np.minimum(own, rent).mean()
    assert found["decision"]["perfect_information_usd"]["value"] == pytest.approx(exact, rel=1e-9)
    assert found["decision"]["best_now"] == "own"
    assert found["decision"]["probability_best"] == pytest.approx((own < rent).mean())


def test_what_is_said(found):
    said = measure_text.text(found, width=100)
    assert said.startswith("Measure mfu first (model FLOP utilisation while the run is productive")
    assert "no study is worth more" in said
    assert max(map(len, said.splitlines())) <= 100


def test_a_finer_measurement_narrows_more():
    widths = []
    for accuracy in ("3%", "30%"):
        found = run_measure(SCENARIO, samples=8192, accuracies=[accuracy])
        widths.append(found["expected_width_90"]["mfu"]["measured"]["training_days"]["value"])
        assert found["expected_width_90"]["mfu"]["accuracy"] == float(accuracy[:-1]) / 100
    assert widths[0] < 0.9 * widths[1]


def test_going_ahead_on_a_budget():
    found = run_measure(SCENARIO, ["ownership=rent"], budget="30 MUSD", samples=8192)
    decision = found["decision"]
    assert (decision["name"], decision["best_now"]) == ("go", "go")
    draws = propagate(load_scenario(SCENARIO), make_design(8192))
    gain = 30e6 - draws.output("cost_rented_usd")
    exact = np.maximum(gain, 0).mean() - max(gain.mean(), 0)
    assert decision["perfect_information_usd"]["value"] == pytest.approx(exact, rel=1e-9)
    # Ownership of the hardware does not matter to a rent.
    assert decision["inputs"]["capex"]["perfect"]["value"] < 0.01 * exact


def test_sites_have_their_own_inputs():
    found = run_measure(SCENARIO, ["fleet_utilization=0.8"], sites=["US-TX", "US-CA", "CA-QC"], samples=8192)
    decision = found["decision"]
    assert decision["name"] == "site"
    inputs = decision["inputs"]
    assert {"electricity_price in US-TX", "electricity_price in US-CA", "pue in CA-QC", "mfu"} <= set(inputs)
    prices = {name: entry["perfect"]["value"] for name, entry in inputs.items()}
    # Which site is cheapest hangs on the prices of electricity; MFU scales all of them alike.
    assert prices["mfu"] < 0.1 * max(prices.values())
    assert max(prices, key=prices.get).startswith("electricity_price")
    assert max(prices.values()) < decision["perfect_information_usd"]["value"]


def test_without_a_decision_there_are_widths_alone(scenario_file):
    text = (
        "schema_version: 1\nname: T\nownership: own\nworkload: {params: 7e9, tokens: 2e12}\n"
        "cluster: {accelerator: H100-SXM-80GB, count: 512}\n"
    )
    found = run_measure(scenario_file(text), samples=4096)
    assert found["decision"] is None
    assert "decision" not in measure_text.text(found)


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ({"accuracies": ["mfu=0"]}, "bad-accuracy", "above 0"),
        ({"accuracies": ["mfu=5 kg"]}, "bad-accuracy", "not an accuracy"),
        ({"accuracies": ["mfo=5%"]}, "unknown-input", "Did you mean mfu"),
        ({"decision": "rent"}, "unknown-decision", "Did you mean own-or-rent"),
        ({"decision": "go"}, "which-cost", "ownership=own or rent"),
        ({"decision": "go", "budget": "5"}, "bad-unit", "no unit"),
        ({"together": ["mfu"]}, "bad-set", "two to six"),
        ({"together": ["mfu,goodputt"]}, "unknown-input", "goodput"),
        ({"samples": 100}, "bad-samples", "not between"),
        ({"sites": ["FR"]}, "bad-sites", "no choice"),
        ({"sites": ["FR", "Atlantis"]}, "unknown-region", "Atlantis"),
        ({"sites": ["FR", "DE"], "decision": "own-or-rent"}, "bad-option", "do not matter"),
    ],
)
def test_bad_options_say_what_is_wrong(options, code, says):
    with pytest.raises(InputError, match=says) as caught:
        run_measure(SCENARIO, **({"samples": 4096} | options))
    assert caught.value.code == code


def test_nothing_to_measure():
    with pytest.raises(InputError, match="nothing to measure"):
        run_measure("scenarios/worked-70b.yaml", samples=4096)


def test_files(tmp_path):
    found = run_measure(SCENARIO, samples=4096, out=tmp_path / "out")
    assert json.loads((tmp_path / "out" / "measure.json").read_text(encoding="utf-8")) == found
    assert (tmp_path / "out" / "measure.png").stat().st_size > 10_000
