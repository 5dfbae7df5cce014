"""Scenarios that state `distributed`: what they give, against the plain run and closed forms, and what contradicts."""

import re

import numpy as np
import pytest

from gpustack_mc import explain, site_inputs
from gpustack_mc.catalog import accelerators
from gpustack_mc.design import make_design
from gpustack_mc.errors import InputError
from gpustack_mc.propagation import propagate, simulate
from gpustack_mc.reopening import open_result
from gpustack_mc.result import to_datatree, write
from gpustack_mc.run import run_scenario
from gpustack_mc.scenario import load_scenario
from gpustack_mc.summarizing import summarise, text

BASE = """\
schema_version: 1
name: Test
workload: {params: 7e9, tokens: 2e12, global_batch_tokens: 4e6}
cluster: {accelerator: H100-SXM-80GB, count: 512}
"""
SITES = """\
distributed:
  mode: lockstep
  rejoin_time: 0 min
  sites:
    - {name: Oslo, count: 384, availability: 0.9, mean_outage: 6 h}
    - {name: Bergen, count: 128, availability: 0.8, mean_outage: 2 h}
"""
WORK = {"lockstep": 0.72, "survivors": 0.75 * 0.9 + 0.25 * 0.8, "local_steps": 0.875}
EXACT = {"rtol": 1e-12, "atol": 0.0}


@pytest.fixture
def scenario(scenario_file):
    def built(*overrides, base=BASE, sites=SITES):
        return load_scenario(scenario_file(base + sites), overrides)

    return built


def draws(problem):
    return propagate(problem, make_design(1024))


def mode(name):
    return (f"distributed.mode={name}", *(("distributed.averaging_steps=50",) if name == "local_steps" else ()))


@pytest.mark.parametrize("name", WORK)
def test_time_and_cost_grow_by_what_outages_take(scenario, name):
    plain, found = draws(scenario(sites="")), draws(scenario(*mode(name)))
    np.testing.assert_allclose(found.output("site_work_share"), WORK[name], **EXACT)
    for output in ("training_days", "accelerator_hours", "cost_rented_usd", "co2e_embodied_t"):
        np.testing.assert_allclose(found.output(output), plain.output(output) / WORK[name], **EXACT)
    goodput = plain.inputs[plain.varying.index("goodput")]
    np.testing.assert_allclose(found.output("site_goodput"), goodput * WORK[name], **EXACT)


@pytest.mark.parametrize("name", WORK)
def test_idle_sites_draw_idle_power(scenario, name):
    fixed = ("gpu_power_fraction=0.8", "host_power=400", "distributed.idle_power_fraction=0.15")
    plain, found = draws(scenario(*fixed[:2], sites="")), draws(scenario(*mode(name), *fixed))
    busy = {"lockstep": 0.72}.get(name, 0.875)
    tdp = accelerators()["H100-SXM-80GB"].tdp
    power = tdp * (0.8 * busy + 0.15 * (1 - busy)) + 400
    expected = plain.output("accelerator_hours") / WORK[name] * power / 1e6
    np.testing.assert_allclose(found.output("it_energy_mwh"), expected, **EXACT)


def test_sites_that_never_fail_change_nothing(scenario):
    never = [f"distributed.sites.{i}.availability=1" for i in range(2)]
    plain, found = draws(scenario(sites="")), draws(scenario(*never))
    for output in plain.names:
        np.testing.assert_allclose(found.output(output), plain.output(output), rtol=1e-12, atol=0)


def test_earlier_inputs_keep_their_draws(scenario):
    plain, found = draws(scenario(sites="")), draws(scenario("distributed.sites.0.availability={low: 0.9, high: 0.99}"))
    for key in plain.varying:
        assert (plain.inputs[plain.varying.index(key)] == found.inputs[found.varying.index(key)]).all()


def test_an_uncertain_availability_widens_the_interval(scenario):
    plain, found = draws(scenario()), draws(scenario("distributed.sites.0.availability={low: 0.7, high: 0.95}"))
    work = found.output("site_work_share")
    availability = found.inputs[found.varying.index("availability@Oslo")]
    np.testing.assert_allclose(work, 0.8 * availability, **EXACT)
    low, high = np.quantile(availability, [0.05, 0.95])
    # The ends that were stated, to the spacing of 1,024 draws.
    assert (low, high) == pytest.approx((0.7, 0.95), abs=0.005)
    assert np.ptp(plain.output("site_work_share")) == 0


def test_exchanges_lower_mfu(scenario):
    links = [f"distributed.sites.{i}.link_speed=100 Gbit/s" for i in range(2)]
    found = draws(scenario(*links, "mfu=0.4"))
    time = 7e9 * 2 * 8 / 100e9  # 2 (k - 1) / k is 1 for two sites
    step = 6 * 7e9 * 4e6 / (512 * 989e12 * 0.4)
    np.testing.assert_allclose(found.output("exchange_time"), time, **EXACT)
    # The peak is that of the table, 989 and not 989.4 TFLOP/s.
    np.testing.assert_allclose(found.output("exchange_share"), time / (time + step), rtol=1e-3)
    without = draws(scenario("mfu=0.4"))
    ratio = found.output("accelerator_hours") / without.output("accelerator_hours")
    np.testing.assert_allclose(ratio, 1 / (1 - found.output("exchange_share")), **EXACT)
    np.testing.assert_allclose(found.output("site_mfu"), 0.4 * (1 - found.output("exchange_share")), **EXACT)
    local = draws(scenario(*links, *mode("local_steps"), "mfu=0.4"))
    np.testing.assert_allclose(local.output("exchange_share"), time / (time + 50 * step), rtol=1e-3)


def test_without_links_no_exchange_is_claimed(scenario):
    problem = scenario()
    assert "exchange_time" not in problem.outputs
    assert any("no link_speed is stated" in note for note in problem.notes)


def test_averaging_steps_stand_beside_modes_that_have_none(scenario):
    """So that one scenario serves `compare --vary distributed.mode=...`."""
    links = [f"distributed.sites.{i}.link_speed=100 Gbit/s" for i in range(2)]
    plain, found = scenario(*links), scenario(*links, "distributed.averaging_steps=50")
    assert (draws(plain).outputs == draws(found).outputs).all()
    assert any("averaging_steps does not count" in note for note in found.notes)


def test_extra_tokens_are_applied_when_asked(scenario):
    plain, found = (
        draws(scenario(*mode("survivors"))),
        draws(scenario(*mode("survivors"), "distributed.extra_tokens=5%")),
    )
    np.testing.assert_allclose(found.output("training_flop"), 1.05 * plain.output("training_flop"), **EXACT)
    np.testing.assert_allclose(found.output("training_days"), 1.05 * plain.output("training_days"), **EXACT)
    assert (plain.output("site_tokens") == 2e12).all()


@pytest.mark.parametrize("name", ["survivors", "local_steps"])
def test_what_was_published_on_learning_is_reported_beside(scenario, name):
    said = " ".join(scenario(*mode(name)).notes)
    rows = [row for row in site_inputs.findings() if row["mode"] == name]
    assert rows and all(row["finding"] in said and row["source_title"] in said for row in rows)
    assert all(row["source_url"].startswith("https://") and row["licence"] for row in rows)


def test_failures_of_accelerators_come_on_top(scenario):
    states = ("reliability={restart_time: 10 min, checkpoint_save_time: 30 s}",)
    plain, found = draws(scenario(*states, sites="")), draws(scenario(*states))
    np.testing.assert_allclose(found.output("expected_goodput"), plain.output("expected_goodput"), **EXACT)
    np.testing.assert_allclose(found.output("site_goodput"), 0.72 * plain.output("expected_goodput"), **EXACT)
    np.testing.assert_allclose(found.output("training_days"), plain.output("training_days") / 0.72, **EXACT)


def test_phases_share_the_sites(scenario):
    phases = BASE.replace("tokens: 2e12", "phases: [{name: a, tokens: 1.5e12}, {name: b, tokens: 5e11, mfu: 0.2}]")
    plain, found = draws(scenario(base=phases, sites="")), draws(scenario(base=phases))
    np.testing.assert_allclose(found.output("training_days"), plain.output("training_days") / 0.72, **EXACT)
    goodput = plain.inputs[plain.varying.index("goodput")]
    np.testing.assert_allclose(found.output("site_goodput"), 0.72 * goodput, **EXACT)


def test_rejoining_takes_the_restart_prior_unless_stated(scenario):
    default = scenario(sites=SITES.replace("  rejoin_time: 0 min\n", ""))
    named = scenario("distributed.rejoin_time={prior: restart_time}")
    assert default.inputs["rejoin_time"].marginal == named.inputs["rejoin_time"].marginal
    assert default.inputs["rejoin_time"].origin == "fitted" and default.inputs["rejoin_time"].sources
    assert draws(default).output("site_work_share").max() < 0.72


def test_the_result_is_read_back_and_explained(scenario, tmp_path):
    links = [f"distributed.sites.{i}.link_speed=1 Tbit/s" for i in range(2)]
    tree = to_datatree(simulate(scenario(*links, *mode("local_steps")), make_design(1024)))
    write(tree, tmp_path / "result.nc")
    again = open_result(tmp_path / "result.nc")
    summary = summarise(again)
    assert "waiting for other sites" in text(summary, "either") and "lost to exchanges" in text(summary, "either")
    steps = {step["name"]: step for step in explain.explain(again, "energy_mwh")["steps"]}
    assert steps["accelerator_hours"]["uses"][-2:] == ["site_mfu", "site_goodput"]
    assert "held_power_fraction" in steps["it_energy_mwh"]["uses"] and "site_work_share" in steps
    names = [item["name"] for item in explain.explain(again, "energy_mwh")["inputs"]]
    assert "mean_outage@Bergen" in names and len(names) == len(set(names))


def test_the_command_writes_all_files(scenario_file, tmp_path):
    done = run_scenario(scenario_file(BASE + SITES), samples=512, out=tmp_path / "out", with_report=True)
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"report.html", "result.nc", "summary.json"}
    assert done.summary["outputs"]["site_waiting_share"]["median"] == pytest.approx(0.875 - 0.72)


# ---- bad input ----


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("distributed.sites.0.availability=0", "distributed.sites.0.availability: 0 is below 0.001."),
        ("distributed.sites.0.availability=1.2", "is above 1."),
        ("distributed.sites.0.availability={low: 0.5, high: 1.5}", "availability"),
        ("distributed.sites.0.mean_outage=0 h", "mean_outage: 0 is below"),
        ("distributed.sites.0.mean_outage=6 W", "is a power, but this is a time"),
        ("distributed.sites.0.count=100", "the counts add up to 228, and cluster.count is 512."),
        ("cluster.count=-1e400", "cluster.count: -inf is not a finite number."),
        ("cluster.count=0", "cluster.count: 0 is below"),
        ("distributed.sites.0.count=0", "greater than 0"),
        ("cluster.count={low: 500, high: 600}", "sites need a count that is a plain number."),
        ("distributed.mode=sometimes", "'sometimes' is not one of 'lockstep', 'survivors' or 'local_steps'."),
        ("distributed.mode=local_steps", "local_steps needs averaging_steps."),
        ("distributed.averaging_steps=0", "greater than 0"),
        ("distributed.sites.0.link_speed=10 Gbit/s", "Bergen has no link_speed, and others have."),
        ("distributed.exchange_bytes=2", "without link_speed no exchange is counted."),
        ("distributed.sites.1.name=Oslo", "'Oslo' must be unique"),
        ("distributed.sites.1.name=a@b", "must be unique"),
        ("distributed.sites=[]", "at least 2"),
        ("distributed.rejoin_time={prior: mfu}", "mfu"),
        ("observed={days: 3, tokens: 1e11}", "a job that runs on several sites is not forecast."),
        ("published.site_goodput={value: 0.5, source: x}", "unknown key 'site_goodput'"),
    ],
)
def test_bad_input_is_one_line_with_its_place(scenario, override, said):
    with pytest.raises(InputError) as refused:
        scenario(override)
    line = str(refused.value)
    assert said in line and "\n" not in line and refused.value.exit_code == 2
    # What another key contradicts is told at that key, in the file.
    assert re.match(r"--set |\S+plan\.yaml:\d+:\d+: ", line)


def test_the_time_of_exchanges_needs_the_size_of_a_step(scenario):
    links = [f"distributed.sites.{i}.link_speed=10 Gbit/s" for i in range(2)]
    with pytest.raises(InputError, match=r"needs workload\.global_batch_tokens"):
        scenario(*links, base=BASE.replace(", global_batch_tokens: 4e6", ""))


def test_a_count_of_a_phase_is_refused_at_its_place(scenario):
    phases = BASE.replace("tokens: 2e12", "phases: [{name: a, tokens: 1.5e12, count: 64}]")
    with pytest.raises(InputError, match=r"plan.yaml:3:.*the sites take part in every phase"):
        scenario(base=phases)
