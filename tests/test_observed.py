"""A job that runs, from scenario to result: what is spent is fixed, what contradicts itself is refused."""

import json

import numpy as np
import pytest

from gpustack_mc import checking, priors
from gpustack_mc.design import make_design
from gpustack_mc.errors import InputError
from gpustack_mc.propagation import simulate
from gpustack_mc.quantities import OBSERVED, OUTPUTS
from gpustack_mc.result import to_datatree
from gpustack_mc.scenario import load_scenario
from gpustack_mc.schema import Observed
from gpustack_mc.spent import ADDITIVE, parts
from gpustack_mc.summarizing import summarise, text

BASE = """\
schema_version: 1
name: Running
workload: {params: 70e9, tokens: 2e12, n_layers: 80, d_model: 8192, sequence_length: 4096, global_batch_tokens: 4e6}
cluster: {accelerator: H100-SXM-80GB, count: 1024}
questions: {deadline: 30 d}
observed: {days: 10, tokens: 8e11}
"""
PLANNED = BASE.replace("observed: {days: 10, tokens: 8e11}\n", "accounting: clean\n")
METERED = ["observed.tokens_per_second=1e6", "observed.facility_power=1.3 MW", "observed.board_power=590 W"]
SAMPLES = 4096


@pytest.fixture
def load(scenario_file):
    return lambda *overrides, base=BASE: load_scenario(scenario_file(base), overrides)


def simulated(problem):
    return simulate(problem, make_design(SAMPLES, "sobol", 0), with_sensitivity=False)


def band(problem, name):
    return priors.quantiles(problem.inputs[name].marginal, [0.05, 0.5, 0.95])


def width(values):
    low, high = np.quantile(values, [0.05, 0.95])
    return np.log(high / low)


# ---- what is spent --------------------------------------------------------------------------------------------------
def test_what_is_spent_is_known_and_the_parts_add_up(load):
    simulation = simulated(load(*METERED))
    so_far, remaining = parts(simulation)
    hours = 10 * 24 * 1024
    np.testing.assert_allclose(so_far["training_days"], 10, rtol=1e-12)
    np.testing.assert_allclose(so_far["accelerator_hours"], hours, rtol=1e-12)
    np.testing.assert_allclose(so_far["energy_mwh"], 1.3 * 240, rtol=1e-12)
    np.testing.assert_allclose(so_far["training_flop"], 6 * 70e9 * 8e11, rtol=1e-12)
    for name in ADDITIVE:
        total = simulation.outputs[OUTPUTS.index(name)]
        np.testing.assert_allclose(so_far[name] + remaining[name], total, rtol=1e-12)
    assert all(remaining[name].min() > 0 for name in ADDITIVE)


def test_energy_spent_is_as_uncertain_as_power_where_nothing_was_metered(load):
    so_far, _ = parts(simulated(load()))
    assert np.ptp(so_far["accelerator_hours"]) == pytest.approx(0, abs=1e-6)
    assert width(so_far["energy_mwh"]) > 0.1


@pytest.mark.parametrize(
    ("scope", "spent"),
    [("it_energy: 260 MWh", {"it_energy_mwh": 260.0}), ("facility_energy: 312 MWh", {"energy_mwh": 312.0})],
)
def test_a_meter_fixes_its_own_scope(load, scope, spent):
    so_far, _ = parts(simulated(load(base=BASE.replace("8e11}", f"8e11, {scope}}}"))))
    for name, value in spent.items():
        np.testing.assert_allclose(so_far[name], value, rtol=1e-12)


def test_energy_and_the_power_it_makes_say_the_same(load):
    by_power = load("observed.it_power=1.1 MW")
    by_energy = load("observed.it_energy=264 MWh")
    for name in ("gpu_power_fraction", "host_power"):
        np.testing.assert_allclose(band(by_power, name), band(by_energy, name), rtol=1e-9)


# ---- limits ---------------------------------------------------------------------------------------------------------
def test_nearly_done_is_nearly_certain(load):
    widths = []
    for days, tokens in ((2.5, 2e11), (12.5, 1e12), (22.5, 1.8e12), (24.975, 1.998e12)):
        problem = load(f"observed.days={days}", f"observed.tokens={tokens}", "observed.tokens_per_second=1e6")
        found = simulated(problem).outputs[OUTPUTS.index("training_days")]
        assert found.min() > days
        widths.append(width(found))
    assert np.all(np.diff(widths) < 0)
    assert widths[-1] < 0.002
    assert np.median(found) == pytest.approx(25, rel=0.002)


def test_a_moment_says_little_and_the_prior_stays(load):
    """One accelerator for an hour: no interruption is to be expected, and the losses stay those of the prior."""
    small = ["cluster.count=1", "workload.params=1e8", "workload.tokens=2e11", "workload.global_batch_tokens=5e5",
             "workload.n_layers=12", "workload.d_model=768"]  # fmt: skip
    plain = load(*small, base=PLANNED)
    # A speed as expected, so that it favours no draw of the fit.
    speed = band(plain, "mfu")[1] * 989e12 / 6e8
    moment = ["observed.days=0.05", f"observed.tokens={0.9 * speed * 4320}", f"observed.tokens_per_second={speed}"]
    told = load(*small, *moment)
    # 64 nodes per draw against one; what is left of the weights moves the median by less.
    np.testing.assert_allclose(band(told, "goodput"), band(plain, "goodput"), atol=0.012)
    assert width(band(told, "mfu")) < 0.5 * width(band(plain, "mfu"))


def test_the_speed_is_what_the_rest_is_forecast_from(load):
    slow, fast = (load(f"observed.tokens_per_second={speed}", "observed.tokens=5e11") for speed in (6.5e5, 9e5))
    # The median follows the speed, but for a pull to the prior of 5 per cent noise against its 0.2.
    ratio = band(fast, "mfu")[1] / band(slow, "mfu")[1]
    assert ratio == pytest.approx(9 / 6.5, rel=0.06)
    assert width(band(fast, "mfu")) < 0.3


def test_losses_so_far_move_those_of_the_rest_but_are_not_copied(load):
    bad, good = (load("observed.tokens_per_second=1e6", f"observed.tokens={t}") for t in (6.05e11, 8.55e11))
    assert band(bad, "goodput")[1] < band(good, "goodput")[1] - 0.05
    assert 0.70 < band(bad, "goodput")[1] < 0.9
    assert band(good, "goodput")[1] > 0.9


def test_tokens_and_days_alone_tie_mfu_and_goodput(load):
    problem = load()
    assert problem.correlated == ("mfu", "goodput")
    assert problem.correlation[0, 1] < -0.1
    found = simulated(problem)
    rest = parts(found).remaining["training_days"]
    # 1.2e12 of 2e12 tokens at 8e10 a day; the rest is known better than MFU and goodput are apart.
    assert np.median(rest) == pytest.approx(15, rel=0.06)
    assert width(rest) < width(band(problem, "mfu")) + width(band(problem, "goodput"))


def test_a_forecast_of_your_own_for_goodput_counts(load):
    problem = load("goodput=0.97", "observed.tokens_per_second=1e6")
    assert problem.inputs["goodput"].marginal.parameters["value"] == 0.97
    assert problem.correlated == ()


def test_an_mfu_is_read_in_its_convention(load):
    plain, full = (load("observed.mfu=0.42", f"observed.mfu_convention={c}") for c in ("6N_only", "6N+attn_full"))
    assert band(full, "mfu")[1] < band(plain, "mfu")[1]


def test_step_time_is_a_speed(load):
    by_step, by_speed = load("observed.step_time=4 s"), load("observed.tokens_per_second=1e6")
    np.testing.assert_allclose(band(by_step, "mfu"), band(by_speed, "mfu"), rtol=1e-12)


def test_goodput_and_tokens_make_a_speed(load):
    told = load("observed.goodput=0.92593")
    np.testing.assert_allclose(band(told, "mfu"), band(load("observed.tokens_per_second=1e6"), "mfu"), rtol=1e-4)


def test_fp8_is_counted_against_its_own_peak(load):
    told = load("cluster.precision=fp8", "observed.tokens_per_second=1e6")
    assert band(told, "mfu")[1] == pytest.approx(1e6 * 6 * 70e9 / (1024 * 1979e12), rel=0.06)


# ---- phases ---------------------------------------------------------------------------------------------------------
PHASES = BASE.replace("tokens: 2e12,", "").replace(
    "global_batch_tokens: 4e6}",
    "phases: [{name: short, tokens: 5e11}, {name: main, tokens: {low: 1.4e12, high: 1.6e12}}, "
    "{name: long, tokens: 1e11, sequence_length: 131072, count: 512}]}",
)


def test_phases_are_done_in_turn(load):
    problem = load(base=PHASES)
    assert [phase.name for phase in problem.phases] == ["so far", "main", "long"]
    assert "tokens@short" not in problem.inputs
    low, high = priors.quantiles(problem.inputs["tokens@main"].marginal, [0.05, 0.95])
    assert low == pytest.approx(1.1e12, rel=1e-3)
    assert high == pytest.approx(1.3e12, rel=1e-3)
    so_far, _ = parts(simulated(problem))
    np.testing.assert_allclose(so_far["training_days"], 10, rtol=1e-12)


def test_a_phase_that_runs_has_the_job_s_count(load):
    with pytest.raises(InputError, match=r"phases\.2: long has run or runs now, so its accelerator_count"):
        load("observed.tokens=2.05e12", "observed.days=25", "workload.phases.1.tokens=1.5e12", base=PHASES)


# ---- what is told ---------------------------------------------------------------------------------------------------
def test_the_result_holds_both_parts(load):
    problem = load(*METERED)
    tree = to_datatree(simulate(problem, make_design(SAMPLES, "sobol", 0)))
    assert set(tree["so_far"].data_vars) == set(tree["remaining"].data_vars) == set(ADDITIVE)
    blocks = {str(name) for name in tree["sensitivity"]["input"].values}
    assert "gpu_power_fraction+host_power+pue" in blocks
    found = summarise(tree)
    told = found["running"]
    assert told["so_far"]["energy_mwh"]["sd"] == 0
    assert told["so_far"]["training_days"]["median"] == pytest.approx(10)
    total, rest = found["outputs"]["training_days"], told["remaining"]["training_days"]
    assert total["median"] == pytest.approx(10 + rest["median"], rel=1e-9)
    json.dumps(found, allow_nan=False)
    written = " ".join(text(found, "own").split())
    assert "in all (10 d so far)" in written
    assert "the rest is forecast from" in written
    assert "speed while it trains: 0.415 of the peak" in written
    # The deadline is asked of the whole run.
    days = tree["prior_predictive"]["training_days"].values
    assert found["questions"]["deadline"]["probability"] == pytest.approx((days <= 30).mean())


def test_check_says_what_was_conditioned_on(scenario_file):
    found = checking.assumptions(scenario_file(BASE), METERED)
    assert len(found["conditioned_on"]) == 5
    assert "facility power: 1,270 W per accelerator" in checking.text(found)
    assert checking.assumptions(scenario_file(PLANNED))["conditioned_on"] == []


def test_a_plan_has_no_parts(load):
    summary = summarise(to_datatree(simulated(load(base=PLANNED))))
    assert summary["running"] is None


def test_the_schema_holds_what_the_table_does():
    assert set(Observed.model_fields) == {quantity.name for quantity in OBSERVED} | {"mfu_convention"}


# ---- what is refused ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["observed.days=0"], "observed.days: 0 is below 0.001"),
        (["observed.days=2026-11-01"], "observed.days: 2026-11-01 is a date"),
        (["observed={tokens: 1e12}"], "observed: days is missing"),
        (["observed={days: 3}"], "observed: how far the run is, is not said"),
        (["observed={days: 3, mfu: 0.4, goodput: 0.9}"], "observed: how far the run is, is not said"),
        (["observed.tokens=2e12"], "observed.tokens: 2T tokens are done of 2T"),
        (["observed.tokens=3e12"], "nothing is left to forecast"),
        (["workload.tokens={low: 1e12, high: 3e12}"], "of what may be as few as"),
        (["observed.days=1"], "observed.tokens: this would be 3.84 of the peak"),
        (["observed.tokens_per_second=1e7"], "observed.tokens_per_second: this would be 4.15 of the peak"),
        (["observed.tokens_per_second=8e5"], "observed.tokens: 8e+11, but at 8e+05 token/s"),
        (["observed.tokens_per_second=1e6", "observed.goodput=0.7"], "observed.tokens: 8e+11, but 1e+06 token/s x"),
        (["observed.step_time=4 s", "observed.tokens_per_second=2e6"], "observed.step_time: 4e+06 tokens in 4 s"),
        (["observed.step_time=4"], "observed.step_time: 4 has no unit"),
        (["observed.goodput=1.1"], "observed.goodput: 1.1 is above 1"),
        (["observed.goodput=0.3"], "observed.goodput: this would be 1.28 of the peak"),
        (["observed.mfu=0.2"], "observed.mfu: 0.2, but tokens over days are 0.384"),
        (["observed.mfu=0.8", "observed.tokens_per_second=1e6"], "observed.mfu: 0.8, but the speed is 0.415"),
        (["observed.mfu_convention=6N_only"], "there is no observed.mfu"),
        (["mfu=0.4"], "inputs.mfu: would overrule what was observed"),
        (["cluster.count={low: 900, high: 1100}"], "cluster.count: a job that runs has a known value"),
        (["workload.params={low: 6e10, high: 8e10}"], "workload.params: a job that runs has a known value"),
        (["observed.board_power=600"], "observed.board_power: 600 has no unit"),
        (["observed.board_power=5 kW"], "5000 W per board is more than 1.5 x TDP"),
        (["observed.board_power=650 W", "observed.it_power=0.6 MW"], "is less than the 650 W of board_power"),
        (["observed.it_power=1.1 GW"], "which no site draws"),
        (["observed.it_power=1.1 MW", "observed.it_energy=400 MWh"], "observed.it_energy: the energy over the days"),
        (["observed.facility_power=9 MW"], "is not what the stated or known boards, hosts and PUE can make"),
        (
            ["gpu_power_fraction=0.8", "host_power=400", "pue=1.2", "observed.facility_power=2 MW"],
            "is not what the stated or known boards, hosts and PUE can make",
        ),
        (["correlations=[{between: [mfu, goodput], rank: 0.3}]"], "ties mfu and goodput already"),
        (["observed.power=3"], "unknown key 'power' in observed"),
    ],
)
def test_contradictions_are_told_where_they_are(load, overrides, told):
    with pytest.raises(InputError) as caught:
        load(*overrides)
    assert told in str(caught.value)
    assert caught.value.fix
    assert caught.value.place is not None


def test_a_phase_may_not_be_called_so_far(load):
    with pytest.raises(InputError, match=r"phases\.0\.name: 'so far' is the part that has run"):
        load("workload.phases.0.name=so far", base=PHASES)


def test_step_time_needs_the_tokens_of_a_step(load):
    with pytest.raises(InputError, match="needs the tokens of a step"):
        load("observed.step_time=4 s", base=BASE.replace(", global_batch_tokens: 4e6", ""))


def test_an_unlikely_speed_is_pointed_out_and_counts(load):
    problem = load("observed.tokens=2e10")
    assert (
        "progress over the days so far is 0.0096 of the peak, outside of what published runs lead to expect"
        in problem.notes[0]
    )
    assert load().notes[0].startswith("owned cost")
