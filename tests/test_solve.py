"""Solutions against closed forms and brute force, and what cannot be solved."""

import numpy as np
import pytest
from scipy import stats

from gpustack_mc import conditions, knobs, lease, solve_text, targets
from gpustack_mc.design import make_design
from gpustack_mc.errors import InputError, Place
from gpustack_mc.propagation import propagate, simulate
from gpustack_mc.scenario import load_scenario, read_document
from gpustack_mc.solve import UnreachableError, solve
from gpustack_mc.solving import run_solve

# Every input fixed: tests then free the ones they are about.
FIXED = {
    "mfu": 0.4, "goodput": 0.9, "gpu_power_fraction": 0.85, "host_power": 400, "pue": 1.2, "electricity_price": 0.08,
    "grid_intensity": 380, "embodied_carbon": 900, "water_onsite": 0.3, "water_offsite": 3.0, "capex": 40000,
    "residual_share": 0.2, "lifetime": 5, "fleet_utilization": 0.8, "cost_of_capital": 0.09, "operations_rate": 0.05,
    "rental_price": 2.5, "serving_throughput": 1000, "programme_overhead": 3, "interruption_rate": 2e-5,
}  # fmt: skip
SIGMA = 0.4
PRICE = f"rental_price={{dist: lognormal, median: 2.5, sigma: {SIGMA}}}"
MFU = "mfu={dist: log_uniform, low: 0.2, high: 0.5}"
PEAK = 989.4e12
FAST = 4096


@pytest.fixture
def path(scenario_file):
    inputs = "".join(f"  {name}: {value}\n" for name, value in FIXED.items())
    return scenario_file(
        "schema_version: 1\nname: Test\nworkload: {params: 70e9, tokens: 15e12}\n"
        f"cluster: {{accelerator: H100-SXM-80GB, count: 8192}}\ninputs:\n{inputs}"
    )


def solved(path, name, condition, *overrides, samples=FAST, seed=0, **more):
    knob = knobs.knob(name, read_document(path), overrides, **more)
    about = conditions.subject(load_scenario(path, overrides))
    return solve(knob, targets.read(condition, about, Place("--such-that")), make_design(samples, seed=seed))


def test_propagated_draws_are_those_of_a_simulation(path):
    problem = load_scenario(path, [PRICE, MFU])
    design = make_design(1024)
    draws, whole = propagate(problem, design), simulate(problem, design, with_sensitivity=False)
    np.testing.assert_array_equal(draws.outputs, whole.outputs)
    np.testing.assert_array_equal(draws.inputs, whole.inputs)
    # One replicate of several is the same draws again.
    np.testing.assert_array_equal(propagate(problem, design, [1]).outputs, whole.outputs[:, 64:128])


def test_a_scenario_with_checkpoints_is_solved(scenario_file):
    """It has outputs that others do not have; at the MFU that is found the rent is the budget."""
    inputs = {name: value for name, value in FIXED.items() if name != "goodput"}
    checkpoints = "{checkpoint_interval: 1 h, checkpoint_save_time: 60 s, restart_time: 10 min, unexplained_loss: 0.05}"
    plan = scenario_file(
        "schema_version: 1\nname: Test\nworkload: {params: 70e9, tokens: 15e12}\n"
        f"cluster: {{accelerator: H100-SXM-80GB, count: 8192}}\nreliability: {checkpoints}\ninputs: {inputs}\n"
    )
    value = solved(plan, "mfu", "P(cost_rented_usd <= 20 MUSD) >= 0.9").solutions[0].value
    draws = propagate(load_scenario(plan, [f"mfu={value}"]), make_design(256))
    assert draws.output("cost_rented_usd")[0] == pytest.approx(20e6, rel=1e-3)  # the tolerance of solve


@pytest.mark.parametrize("name", ["count", "params"])
def test_what_a_running_job_has_settled_is_not_solved_for(name):
    with pytest.raises(InputError, match=f"--for {name}: `observed` is of a job whose {name} is settled"):
        run_solve("bloom-176b-running", variable=name, limits={"deadline": "150 d"}, samples=256)


def test_another_stream_is_independent(path):
    problem, design = load_scenario(path, [PRICE]), make_design(1024)
    first = propagate(problem, design).inputs[0]
    other = propagate(problem, design, streams={"rental_price": ("rental_price elsewhere", 300)}).inputs[0]
    # The standard error of a correlation of 1,024 independent pairs is 0.031.
    assert abs(np.corrcoef(np.log(first), np.log(other))[0, 1]) < 0.1
    assert np.log(other).std() == pytest.approx(SIGMA, rel=0.02)


def test_largest_model_within_a_budget_is_that_of_the_closed_form(path):
    found = solved(path, "params", "P(cost_rented_usd <= 5 MUSD) >= 0.9", PRICE)
    (solution,) = found.solutions
    # 6 N D / (P mfu goodput) seconds at the 90% quantile of the price.
    price = stats.lognorm(SIGMA, scale=2.5).ppf(0.9)
    exact = 5e6 / price * 3600 * PEAK * 0.4 * 0.9 / (6 * 15e12)
    assert solution.side == "at most"
    # The peak of the data sheet is given to three digits; a scrambled net of 4,096 points errs by far less.
    assert solution.value == pytest.approx(exact, rel=3e-3)
    assert solution.interval[0] < solution.value < solution.interval[1]
    assert solution.interval[1] / solution.interval[0] < 1.05
    assert solution.probability == pytest.approx(0.9, abs=1 / FAST)


def test_tokens_follow_the_parameters(path):
    budget = "P(cost_rented_usd <= 5 MUSD) >= 0.9"
    found = solved(path, "params", budget, PRICE, tokens_per_param=20)
    alone = solved(path, "params", budget, PRICE)
    # N x 20 N where it was N x 15e12.
    assert found.solutions[0].value == pytest.approx(np.sqrt(alone.solutions[0].value * 15e12 / 20), rel=1e-3)
    assert found.problem.inputs["tokens"].marginal.parameters["value"] == 20 * found.solutions[0].value


def test_the_count_is_the_smallest_of_brute_force(path):
    condition = "P(training_days <= 30 d) >= 0.9"
    found = solved(path, "count", condition, MFU)
    hours = propagate(load_scenario(path, [MFU]), make_design(FAST)).output("accelerator_hours")
    counts = np.arange(5000, 20000)
    enough = [(hours / n / 24 <= 30).mean() >= 0.9 for n in counts]
    assert found.solutions[0].value == counts[np.argmax(enough)]
    for chance, value in found.chances.items():
        least = counts[np.argmax([(hours / n / 24 <= 30).mean() >= chance for n in counts])]
        # Interpolated between common random numbers: a few in ten thousand.
        assert value == pytest.approx(least, rel=2e-3)


def test_break_even_utilization_is_that_of_single_draws(path):
    free = (PRICE, "capex={low: 30000, high: 60000}", "operations_rate={low: 0.03, high: 0.15}")
    found = solved(path, "fleet_utilization", "P(cost_owned_usd <= cost_rented_usd) >= 0.75", *free)
    draws = propagate(load_scenario(path, [*free, "fleet_utilization=1"]), make_design(FAST))
    hardware = draws.output("hardware_cost_usd") + draws.output("other_cost_usd")
    exact = hardware / (draws.output("cost_rented_usd") - draws.output("electricity_cost_usd"))
    assert found.solutions[0].value == pytest.approx(np.quantile(exact, 0.75, method="inverted_cdf"), rel=2e-4)
    for chance in (0.05, 0.25, 0.5, 0.75):
        assert found.chances[chance] == pytest.approx(np.quantile(exact, chance), rel=5e-3)
    # Some draws need more than full use: that chance is not reached.
    assert np.quantile(exact, 0.95) > 1
    assert found.chances[0.95] is None


def test_price_at_which_the_answer_flips(path):
    capex = "capex={dist: lognormal, median: 40000, sigma: 0.3}"
    found = solved(path, "rental_price", "P(cost_owned_usd <= cost_rented_usd) >= 0.9", capex)
    own = propagate(load_scenario(path, [capex]), make_design(FAST)).output("owned_usd_per_accelerator_hour")
    assert found.solutions[0].value == pytest.approx(np.quantile(own, 0.9, method="inverted_cdf"), rel=2e-4)


def test_the_monte_carlo_interval_holds_the_exact_value_as_often_as_it_says(path):
    exact = 2.5 * np.exp(SIGMA * stats.norm.ppf(0.9))
    hours = 6 * 70e9 * 15e12 / (PEAK * 0.4 * 0.9) / 3600
    inside = 0
    for seed in range(20):
        found = solved(
            path, "mfu", "P(cost_rented_usd <= 25 MUSD) >= 0.9", PRICE, samples=1024, seed=seed, between=(0.2, 0.9)
        )
        low, high = found.solutions[0].interval
        inside += low <= exact * hours * 0.4 / 25e6 <= high
    # 20 intervals of 90% miss 7 or more with probability 0.2%.
    assert inside >= 14


def test_a_range_with_two_ends(path):
    # More accelerators are faster and need more power.
    condition = "P(training_days <= 30 d and facility_power_mw <= 20 MW) >= 0.9"
    found = solved(path, "count", condition, MFU, "host_power={low: 300, high: 600}")
    assert [each.side for each in found.solutions] == ["at least", "at most"]
    assert found.solutions[0].value < found.solutions[1].value
    assert found.chances == {}
    for each, outside in zip(found.solutions, (-1, 1), strict=True):
        for n, enough in ((each.value, True), (each.value + outside, False)):
            overrides = [MFU, "host_power={low: 300, high: 600}", f"cluster.count={n:.0f}"]
            draws = propagate(load_scenario(path, overrides), make_design(FAST))
            kept = (draws.output("training_days") <= 30) & (draws.output("facility_power_mw") <= 20)
            assert (kept.mean() >= 0.9) == enough


def test_a_short_range_between_the_values_of_the_scan_is_found(path):
    # About 1% wide; the scan has steps of a factor of 3.
    condition = "P(training_days <= 30 d and facility_power_mw <= 8.25 MW) >= 0.9"
    found = solved(path, "count", condition)
    low, high = (each.value for each in found.solutions)
    assert 1 < high / low < 1.1


@pytest.mark.parametrize(
    ("name", "condition", "says"),
    [
        ("count", "P(energy_mwh <= 1 GWh) >= 0.9", "energy_mwh does not depend on count"),
        ("mfu", "P(cost_owned_usd <= cost_rented_usd) >= 0.99", "cost_owned_usd does not depend on mfu"),
        ("count", "P(training_days <= 30 d and facility_power_mw <= 5 MW) >= 0.9", "loses more than it gains"),
        ("mfu", "P(training_days <= 1 d) >= 0.9", "it is at most 0.0%, at 0.999"),
    ],
)
def test_unreachable_is_an_answer_with_its_reason(path, name, condition, says):
    with pytest.raises(UnreachableError, match=says) as caught:
        solved(path, name, condition, MFU if name != "mfu" else PRICE, PRICE)
    assert caught.value.exit_code == 2


def test_what_always_holds_has_no_solution(path):
    found = solved(path, "mfu", "P(cost_rented_usd <= 1 TUSD) >= 0.9", PRICE)
    assert found.solutions == ()


def test_what_depends_on_the_size_is_resolved_anew():
    knob = knobs.knob("count", read_document("scenarios/llama-3-70b.yaml"), [])
    few, many = (np.median(knob.at(n).inputs["mfu"].marginal.parameters["values"]) for n in (512, 16384))
    assert few > many


def test_a_correlated_input_can_be_set(scenario_file):
    text = (
        "schema_version: 1\nname: T\nworkload: {params: 7e9, tokens: 2e12}\n"
        "cluster: {accelerator: H100-SXM-80GB, count: 512}\n"
        "correlations:\n  - {between: [mfu, goodput], rank: 0.5}\n  - {between: [mfu, capex], rank: 0.2}\n"
    )
    found = solved(scenario_file(text), "mfu", "P(training_days <= 20 d) >= 0.5")
    assert "correlations" in found.notes[0]
    assert found.problem.correlated == ("goodput", "capex")


def test_phases_share_their_tokens(scenario_file):
    text = (
        "schema_version: 1\nname: T\nworkload:\n  params: 7e9\n  phases:\n    - {name: a, tokens: 1.5e12}\n"
        "    - {name: b, tokens: 5e11}\ncluster: {accelerator: H100-SXM-80GB, count: 512}\n"
    )
    knob = knobs.knob("tokens", read_document(scenario_file(text)), [])
    inputs = knob.at(4e12).inputs
    assert knob.base == pytest.approx(2e12)
    assert inputs["tokens@a"].marginal.parameters["value"] == pytest.approx(3e12)
    assert inputs["tokens@b"].marginal.parameters["value"] == pytest.approx(1e12)


def test_a_levelised_price_has_the_same_present_value():
    years = np.linspace(0, 4, 400_001)
    for drift, rate in ((-0.18, 0.1), (0.05, 0.08), (-0.3, 0.0), (np.expm1(0.07), 0.07)):
        discount = np.exp(-rate * years)
        falling = np.trapezoid((1 + drift) ** years * discount, years)
        exact = falling / np.trapezoid(discount, years)
        # The trapezoidal rule with 400,000 steps errs in the tenth digit.
        assert lease.levelised_share(drift, np.array(rate), np.array(4.0)) == pytest.approx(exact, rel=1e-8)


def test_a_falling_rent_asks_for_more_use(path):
    free = [PRICE, "lifetime={low: 3, high: 6}"]
    options = {"variable": "fleet_utilization", "probability": "0.5", "samples": FAST}
    flat = run_solve(path, free, **options)["solutions"][0]["value"]
    same = run_solve(path, free, price_drift="0%", **options)["solutions"][0]["value"]
    found = run_solve(path, free, price_drift="-18%", **options)
    assert same == pytest.approx(flat, rel=1e-6)
    draws = propagate(load_scenario(path, [*free, "fleet_utilization=1"]), make_design(FAST))
    life = draws.inputs[draws.varying.index("lifetime")]
    rent = draws.output("cost_rented_usd") * lease.levelised_share(-0.18, np.array(0.09), life)
    hardware = draws.output("hardware_cost_usd") + draws.output("other_cost_usd")
    exact = np.quantile(hardware / (rent - draws.output("electricity_cost_usd")), 0.5, method="inverted_cdf")
    assert found["solutions"][0]["value"] == pytest.approx(exact, rel=2e-4)
    assert "-18% a year" in found["notes"][-1]


def test_served_tokens_are_hours_times_throughput(path):
    found = run_solve(path, [MFU, "serving_throughput={low: 500, high: 2000}"], variable="served-tokens", samples=FAST)
    problem = load_scenario(path, [MFU, "serving_throughput={low: 500, high: 2000}"])
    draws = propagate(problem, make_design(FAST))
    served = draws.output("accelerator_hours") * 3600 * draws.inputs[draws.varying.index("serving_throughput")]
    for name in ("energy", "carbon", "cost"):
        assert found["break_even"][name]["median"] == pytest.approx(np.median(served), rel=1e-9)
        assert found["break_even"][name]["interval_90"] == pytest.approx(list(np.quantile(served, [0.05, 0.95])))
    assert found["per_training_token"]["median"] == pytest.approx(np.median(served) / 15e12, rel=1e-9)
    assert "for each training token" in solve_text.text(found, width=200)


# ---- options -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ({"variable": "cout"}, "unknown-variable", "Did you mean count"),
        ({"variable": "count", "limits": {}}, "no-condition", "nothing says what must hold"),
        (
            {"variable": "count", "limits": {"deadline": "30d"}, "probability": "1"},
            "bad-probability",
            "nothing is certain",
        ),
        ({"variable": "count", "limits": {"deadline": "30d"}, "probability": "0.9999"}, "bad-samples", "100,001"),
        ({"variable": "count", "limits": {"deadline": "30"}}, "bad-unit", "no unit"),
        ({"variable": "count", "limits": {"deadline": "3d"}, "such_that": "P(a)"}, "bad-option", "stated twice"),
        ({"variable": "mfu", "limits": {"deadline": "3d"}, "tokens_per_param": 20}, "bad-option", "--for params"),
        ({"variable": "params", "limits": {"deadline": "3d"}, "tokens_per_param": -1}, "bad-value", "not above 0"),
        ({"variable": "mfu", "limits": {"deadline": "3d"}, "between": ("0.5", "0.2")}, "bad-range", "nothing lies"),
        ({"variable": "mfu", "limits": {"deadline": "3d"}, "between": ("a", "0.2")}, "bad-unit", "not a number"),
        ({"variable": "count", "limits": {"deadline": "3d"}, "price_drift": "-9%"}, "bad-option", "own against rent"),
        ({"variable": "capex", "price_drift": "-95%"}, "bad-value", "out of range"),
        ({"variable": "capex", "price_drift": "fast"}, "bad-value", "falls by 18%"),
        ({"variable": "served-tokens", "limits": {"deadline": "3d"}}, "bad-option", "no condition"),
        ({"variable": "count", "limits": {"deadline": "30d"}, "samples": 3}, "bad-samples", "not between"),
    ],
)
def test_bad_options_say_what_is_wrong(path, options, code, says):
    with pytest.raises(InputError, match=says) as caught:
        run_solve(path, [PRICE], **({"samples": FAST} | options))
    assert caught.value.code == code
    assert caught.value.exit_code == 2


def test_the_answer_is_written_and_said(path, tmp_path):
    import json

    out = tmp_path / "out"
    found = run_solve(path, [MFU], variable="count", limits={"deadline": "30d"}, samples=FAST, out=out)
    stored = json.loads((out / "solve.json").read_text(encoding="utf-8"))
    assert stored == found
    assert (out / "solve.png").stat().st_size > 10_000
    said = solve_text.text(found, width=80)
    value = f"{found['solutions'][0]['value']:,.0f}"
    assert said.startswith(f"At least {value} H100-SXM-80GB give a 90% chance of run time at most 30 d.")
    assert max(map(len, said.splitlines())) <= 100


@pytest.mark.parametrize("name", ["fleet_utilization", "rental_price", "capex", "lifetime"])
def test_rent_or_own_needs_no_condition(path, name):
    found = run_solve(path, [PRICE, "capex={low: 30000, high: 60000}"], variable=name, samples=FAST)
    assert found["condition"] == [{"output": "cost_owned_usd", "relation": "<=", "limit": "cost_rented_usd"}]


def test_the_scenarios_own_questions_are_asked(path):
    found = run_solve(path, [MFU, "questions.deadline=30 d"], variable="count", samples=FAST)
    assert found["condition"] == [{"output": "training_days", "relation": "<=", "limit": 30.0}]


def test_what_is_said_keeps_the_condition(path):
    options = {"variable": "mfu", "limits": {"deadline": "30d"}, "probability": "0.5", "samples": FAST}
    found = run_solve(path, ["goodput={low: 0.7, high: 0.95}"], **options)
    value = found["solutions"][0]["value"]
    said = float(solve_text.sentence(found).split()[4])
    assert value <= said < value * 1.01


def test_the_order_statistic_is_the_share_of_draws():
    from gpustack_mc.solve import _order_statistic

    margins = np.random.default_rng(1).normal(size=1000)
    for p in (0.001, 0.25, 0.9, 0.999):
        threshold = _order_statistic(margins, p)
        assert (margins <= threshold).mean() == pytest.approx(p)
        assert ((margins - threshold) <= 0).mean() >= p
        assert (margins < threshold).mean() < p
