"""Questions, conditions and gates: what they mean, and every way of asking wrongly."""

import json
import math
from statistics import NormalDist

import numpy as np
import pytest

from gpustack_mc import answering, conditions
from gpustack_mc.design import make_design
from gpustack_mc.errors import InputError, Place
from gpustack_mc.propagation import simulate
from gpustack_mc.quantities import OUTPUTS, outputs_of
from gpustack_mc.result import to_datatree
from gpustack_mc.scenario import load_scenario

FIXED = {
    "mfu": 0.4, "goodput": 0.9, "gpu_power_fraction": 0.85, "host_power": 400, "pue": 1.2, "electricity_price": 0.08,
    "grid_intensity": 380, "embodied_carbon": 900, "water_onsite": 0.3, "water_offsite": 3.0, "capex": 40000,
    "residual_share": 0.2, "lifetime": 5, "fleet_utilization": 0.8, "cost_of_capital": 0.09, "operations_rate": 0.05,
    "rental_price": "{dist: lognormal, median: 2.5, sigma: 0.4}", "serving_throughput": 1000,
    "programme_overhead": "{dist: uniform, low: 2, high: 4}", "interruption_rate": 2e-5,
}  # fmt: skip
TEXT = (
    "schema_version: 1\nname: Test\nworkload: {params: 70e9, tokens: 15e12}\n"
    "cluster: {accelerator: H100-SXM-80GB, count: 8192}\ninputs:\n"
    + "".join(f"  {name}: {value}\n" for name, value in FIXED.items())
)
LIMITS = {"budget": 12e6, "deadline": 30.0}
NORMAL = NormalDist()


def about(ownership, limits=LIMITS, rates=(), outputs=OUTPUTS):
    return conditions.Subject(outputs, limits, ownership, dict(rates))


@pytest.fixture
def load(scenario_file):
    return lambda more="", *overrides: load_scenario(scenario_file(TEXT + more), overrides)


def tree_of(problem):
    return to_datatree(simulate(problem, make_design(2**13), with_sensitivity=False))


def test_terms_of_conditions():
    found = conditions.parse_condition("budget  AND programme_co2e_t<=9 kt", about("rent"))
    assert found.text == "budget and programme_co2e_t<=9 kt"
    assert [term[:3] for term in found.terms] == [("cost_rented_usd", "<=", 12e6), ("programme_co2e_t", "<=", 9000.0)]
    assert conditions.scope_of(found) == "final run and programme"


def test_a_budget_may_be_in_another_currency():
    found = conditions.parse_condition("cost < 10 MEUR", about("own", rates={"EUR": 1.1}))
    assert found.terms[0].output == "cost_owned_usd"
    assert found.terms[0].limit == pytest.approx(11e6)


def test_outputs_are_compared_with_each_other():
    found = conditions.parse_condition("cost_owned_usd < cost_rented_usd & energy_mwh ≥ 2 GWh", about("either"))
    assert [term[:3] for term in found.terms] == [
        ("cost_owned_usd", "<", "cost_rented_usd"),
        ("energy_mwh", ">=", 2000.0),
    ]
    assert " and ".join(map(conditions.spoken, found.terms)) == "cost owned below cost rented and energy at least 2 GWh"
    values = {"cost_owned_usd": np.array([1.0, 3.0, 1.0]), "cost_rented_usd": np.array([2.0, 2.0, 2.0]),
              "energy_mwh": np.array([2500.0, 2500.0, 100.0])}  # fmt: skip
    assert conditions.holds(found, values.__getitem__).tolist() == [True, False, False]


def test_outputs_of_a_part_are_those_of_scenarios_that_state_it():
    with_failures = outputs_of(("reliability",))
    found = conditions.parse_condition("expected_goodput >= 85%", about("own", outputs=with_failures))
    assert found.terms[0][:3] == ("expected_goodput", ">=", 0.85)
    with pytest.raises(InputError, match="Only one that states reliability has it"):
        conditions.parse_condition("expected_goodput >= 85%", about("own"))


def test_probabilities_that_shall_be_reached():
    place = Place("--such-that")
    found, chance = conditions.parse_probable("p( budget and deadline ) ≥ 90%", about("rent"), place)
    assert [term.output for term in found.terms] == ["cost_rented_usd", "training_days"]
    assert chance == 0.9


def test_probabilities_are_those_of_the_closed_form(load):
    """The rented cost is lognormal around hours times price; the programme multiplies it by a uniform factor."""
    problem = load("ownership: rent\nquestions: {budget: 15 MUSD, ask: ['programme_cost_rented_usd <= 40 MUSD', "
                   "'budget and deadline'], deadline: 30 d}\n")  # fmt: skip
    tree = tree_of(problem)
    found = answering.answers(tree)
    median = 2.5 * float(tree["prior_predictive"]["accelerator_hours"][0, 0])

    def below(limit: float) -> float:
        return NORMAL.cdf(math.log(limit / median) / 0.4)

    # Scrambled Sobol' points; three Monte Carlo errors of the 16 replicates.
    def agrees(answer, expected):
        assert answer["probability"] == pytest.approx(expected, abs=3 * answer["monte_carlo_error"] + 1e-4)

    agrees(found["budget_rented"], below(15e6))
    factors = np.linspace(2, 4, 20_001)
    agrees(found["programme_cost_rented_usd <= 40 MUSD"], np.mean([below(40e6 / factor) for factor in factors]))
    assert found["budget_rented"]["scope"] == "final run"
    assert found["programme_cost_rented_usd <= 40 MUSD"]["scope"] == "programme"
    # The time is fixed at 25 days, so that both together are the budget alone.
    together = {found[key]["probability"] for key in ("budget and deadline", "all_rented", "budget_rented")}
    assert len(together) == 1


def test_questions_say_what_they_cover(load):
    from gpustack_mc.summarizing import summarise, text

    shown = text(
        summarise(tree_of(load("questions: {budget: 15 MUSD, ask: [programme_co2e_t <= 9000 t]}\n"))), "either"
    )
    lines = [line for line in shown.splitlines() if line.startswith("  P(")]
    assert [line.rpartition("%  ")[2] for line in lines] == ["final run", "final run", "programme"]


# ---- dates ----


def test_a_deadline_may_be_a_date(load):
    problem = load("start: 2027-01-15\nquestions: {deadline: 2027-02-11}\n")
    assert problem.questions["deadline"] == 28  # both days are used
    assert problem.year == 2027
    ends = answering.finish(tree_of(problem))
    # 25.0 days, and a little less than 25 with the exact peak, need the 25th day.
    assert ends == {"start": "2027-01-15", "median": "2027-02-08", "interval_90": ["2027-02-08", "2027-02-08"]}


def test_the_date_selects_prices_where_it_is_stated(load):
    assert load("start: 2027-01-15\ndate: 2024\n").year == 2024


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("questions: {deadline: 2027-01-10}", "is a date, and the scenario does not say when the run starts"),
        ("start: 2027-01-15\nquestions: {deadline: 2027-01-15}", "2027-01-15 is not after the start on 2027-01-15"),
        ("start: 2027-01-15\nquestions: {deadline: 2026-12-01}", "2026-12-01 is not after the start"),
        ("start: 2027-01-15\nquestions: {deadline: 2027-02-30}", "'2027-02-30' is not a day"),
        ("start: 2027-13-15", "start: '2027-13-15' is not a day"),
        ("start: soon", "start: 'soon' is not a day"),
        ("questions: {budget: 15}", "questions.budget: 15 has no unit"),
        ("questions: {deadline: -5 d}", "questions.deadline: -5 is below 0"),
        ("questions: {ask: [programme_cost_owned_usd <= 40]}", "programme_cost_owned_usd: 40 has no unit"),
        ("questions: {ask: [deadline]}", "the scenario states no deadline"),
        ("inputs2: {}", "unknown key 'inputs2'"),
    ],
)
def test_wrong_questions_in_a_file(load, more, message):
    with pytest.raises(InputError) as error:
        load(more + "\n")
    assert message in str(error.value) and "plan.yaml:" in str(error.value)


# ---- gates ----


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("P(budget) < 1", "a probability of 1 can be neither asked nor kept"),
        ("P(budget) < 0", "a probability of 0 can be neither"),
        ("P(budget) < 1.5", "a probability of 1.5"),
        ("P(budget) < often", "'often' is not a probability"),
        ("P(budget) = 0.9", "not a probability or a quantile with a limit"),
        ("P(training_days <= -3 d) < 0.9", "is not a limit: training_days cannot be less"),
        ("P(training_days <= energy_mwh) < 0.9", "Compare outputs of one unit"),
        ("P(training_dayz <= 30 d) < 0.9", "Did you mean training_days"),
        ("budget < 0.9", "not a probability or a quantile with a limit"),
        ("P(carbon_cap) < 0.9", "the scenario states no carbon_cap"),
        ("P(bugdet) < 0.9", "there is no 'bugdet' to ask about. Did you mean budget"),
        ("P(cost_owned_usd) < 0.9", "cost_owned_usd has no limit"),
        ("P(cost_owned_usd <= 3) < 0.9", "cost_owned_usd: 3 has no unit"),
        ("P(cost_owned_usd <= 3 kg) < 0.9", "is a mass, but this is an amount of money"),
        ("P(cost) < 0.9", "cost has no limit"),
        ("P() < 0.9", "'' is not a condition"),
        ("P(__import__('os')) < 0.9", "is not a condition"),
        ("p99(cost_owned_usd) > 3 USD", "there is no quantile 'p99'"),
        ("p95(price) > 3 USD", "has no output 'price'"),
        ("p95(cost_owned_usd) >", "not a probability or a quantile"),
        ("p95(cost_owned_usd) > 10 MEUR", "the scenario states no rate"),
    ],
)
def test_wrong_gates(text, message):
    with pytest.raises(InputError) as error:
        conditions.parse_gate(text, about("own"))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_the_cost_is_that_which_the_scenario_means():
    with pytest.raises(InputError, match="ownership=own or rent"):
        conditions.parse_gate("P(cost <= 3 USD) < 0.9", about("either"))


def test_a_budget_of_either_cost_is_ambiguous():
    with pytest.raises(InputError, match="Write budget_owned or budget_rented"):
        conditions.parse_gate("P(budget) < 0.9", about("either"))


def test_gates_fail_and_pass(load):
    tree = tree_of(load("ownership: rent\nquestions: {budget: 15 MUSD}\n"))

    def said(text):
        return answering.failure(tree, conditions.parse_gate(text, about("rent", {"budget": 15e6})))

    # P = Phi(log(15 / 12.3) / 0.4) = 0.69, and the 95% quantile is 12.3 exp(0.4 * 1.645) = 23.7 million.
    assert said("P(budget) < 0.9").startswith("--fail-if P(budget) < 0.9: it is 69.")
    assert "(final run)" in said("P(budget) < 0.9")
    assert said("P(budget) < 0.5") == ""
    assert said("P(budget) < 50%") == ""
    assert "it is $23.7M" in said("p95(cost_rented_usd) > 20 MUSD")
    assert said("p95(cost_rented_usd) > 30 MUSD") == ""
    exact = answering.answers(tree)["budget_rented"]["probability"]
    assert "more --samples" in said(f"P(budget) < {exact + 1e-5:.6f}")


# ---- the price of carbon ----


def test_a_carbon_price_adds_its_line_to_both_costs(load):
    without, priced = tree_of(load()), tree_of(load("", "carbon_price=100 USD/t"))

    def output(tree, name):
        return tree["prior_predictive"][name].values[0]

    added = 100 * output(priced, "co2e_t")
    np.testing.assert_allclose(output(priced, "carbon_cost_usd"), added, rtol=1e-12)
    for cost in ("cost_owned_usd", "cost_rented_usd"):
        np.testing.assert_allclose(output(priced, cost) - output(without, cost), added, rtol=1e-9)
    assert not output(without, "carbon_cost_usd").any()


def test_a_carbon_price_is_said(load):
    assert any("at $100 a tonne" in note for note in load("", "carbon_price=100 USD/t").notes)
    assert not any("tonne" in note for note in load().notes)


def test_draws_of_other_inputs_do_not_change_with_a_carbon_price(load):
    without, priced = tree_of(load()), tree_of(load("", "carbon_price={low: 50 USD/t, high: 200 USD/t}"))
    np.testing.assert_array_equal(without["prior"]["rental_price"], priced["prior"]["rental_price"])
    assert json.loads(priced["prior"]["carbon_price"].attrs["sources"]) == []
