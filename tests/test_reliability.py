"""Scenarios that state reliability: which inputs exist, what they give, what contradicts them."""

import json
import re

import numpy as np
import pytest

from gpustack_mc import catalog, failures
from gpustack_mc.checkpoint_figures import checkpoint_plot
from gpustack_mc.design import make_design
from gpustack_mc.drivers import scale
from gpustack_mc.errors import InputError, InputErrors
from gpustack_mc.priors import quantiles
from gpustack_mc.propagation import simulate
from gpustack_mc.quantities import DIMENSION, INPUTS, OUTPUTS, outputs_of
from gpustack_mc.result import to_datatree
from gpustack_mc.run import run_scenario
from gpustack_mc.scenario import load_scenario
from gpustack_mc.summarizing import summarise, text

BASE = """\
schema_version: 1
name: Test
workload: {params: 70e9, tokens: 15e12}
cluster: {accelerator: H100-SXM-80GB, count: 8192}
"""
STATED = "{checkpoint_interval: 30 min, checkpoint_save_time: 40 s, restart_time: {low: 5 min, high: 20 min}}"
ADDED = ("checkpoint_save_time", "restart_time", "unexplained_loss")


@pytest.fixture
def problem(scenario_file):
    def built(reliability="{}", *overrides, more=""):
        return load_scenario(scenario_file(f"{BASE}reliability: {reliability}\n{more}"), overrides)

    return built


def found(problem, samples=2048):
    return to_datatree(simulate(problem, make_design(samples), with_sensitivity=False))


def output(tree, name):
    return tree["prior_predictive"][name].values[0]


# ---- which inputs exist ----


def test_without_reliability_nothing_is_new(scenario_file):
    plain = load_scenario(scenario_file(BASE))
    assert plain.outputs == OUTPUTS and plain.program == "run"
    assert "goodput" in plain.inputs and not set(ADDED) & set(plain.inputs)


def test_dimensions_of_earlier_inputs_stay():
    """An input that moved to another dimension would change every draw of every scenario."""
    assert INPUTS[-4:] == ("interruption_rate", *ADDED)
    assert [DIMENSION[name] for name in ("mfu", "goodput", "interruption_rate")] == [0, 1, 19]
    assert [DIMENSION[name] for name in ("params", "accelerator_count", "checkpoint_interval")] == [40, 46, 47]


def test_goodput_is_not_an_input_beside_the_mechanism(problem):
    made = problem()
    assert "goodput" not in made.inputs and set(ADDED) <= set(made.inputs)
    assert made.outputs == outputs_of(["reliability"])
    assert all("goodput" not in phase.keys for phase in made.phases)


def test_best_is_what_is_not_stated(problem):
    assert problem().program == problem("{checkpoint_interval: best}").program == "run_with_best_checkpoints"
    assert problem(STATED).program == "run_with_checkpoints"


def test_kinds_choose_the_prior(problem):
    saving = {
        kind: float(quantiles(problem(f"{{checkpointing: {kind}}}").inputs["checkpoint_save_time"].marginal, [0.5])[0])
        for kind in ("asynchronous", "synchronous")
    }
    assert saving["asynchronous"] < 5 < 50 < saving["synchronous"]
    by_hand, alone = (problem(f"{{recovery: {kind}}}").inputs for kind in ("manual", "restart"))
    assert by_hand["unexplained_loss"].where == {"recovery": "manual"}
    assert by_hand["restart_time"].missed == ("recovery=manual",) and alone["restart_time"].missed == ()


def test_set_finds_the_keys(problem):
    inputs = problem("{}", "checkpoint_interval=1 h", "restart_time=90 s").inputs
    assert inputs["checkpoint_interval"].marginal.parameters["value"] == pytest.approx(60)
    assert inputs["restart_time"].marginal.parameters["value"] == pytest.approx(1.5)


# ---- what they give ----


def test_outputs_follow_from_the_draws(problem):
    tree = found(problem(STATED))
    draws = {name: tree["prior"][name].values[0] for name in ("interruption_rate", "restart_time", "unexplained_loss")}
    import jax

    with jax.enable_x64(True):
        goodput = failures.expected_goodput(
            8192.0, draws["interruption_rate"], 30.0, 40.0, draws["restart_time"], draws["unexplained_loss"]
        )
    np.testing.assert_allclose(output(tree, "expected_goodput"), np.asarray(goodput), rtol=1e-12)
    hours = 6 * 70e9 * 15e12 / 3600 / tree["constant_data"]["peak_flop_per_s"].values / tree["prior"]["mfu"].values[0]
    np.testing.assert_allclose(output(tree, "accelerator_hours"), hours / np.asarray(goodput), rtol=1e-12)


def test_time_is_all_accounted_for(problem):
    tree = found(problem())
    parts = ("expected_goodput", "checkpoint_loss_share", "lost_work_share", "restart_loss_share")
    total = sum(output(tree, name) for name in parts) + tree["prior"]["unexplained_loss"].values[0]
    np.testing.assert_allclose(total, 1, atol=1e-12)


def test_best_interval_beats_any_other(problem):
    best = output(found(problem("{checkpoint_save_time: 40 s}")), "expected_goodput")
    for interval in ("3 min", "10 min", "30 min", "2 h"):
        other = output(
            found(problem(f"{{checkpoint_save_time: 40 s, checkpoint_interval: {interval}}}")), "expected_goodput"
        )
        # Equal up to rounding where the interval happens to be the best one.
        assert np.all(other <= best * (1 + 1e-12))


def test_interruptions_agree_with_the_mechanism(problem):
    """Failures strike in all hours: those that the shares imply are those that the run counts."""
    tree = found(problem("{checkpoint_interval: 30 min, checkpoint_save_time: 40 s, restart_time: 10 min}"))
    rate = 8192 * tree["prior"]["interruption_rate"].values[0]
    np.testing.assert_allclose(output(tree, "hours_between_interruptions"), 1 / rate, rtol=1e-9)


PHASES = """\
schema_version: 1
name: Test
workload:
  params: 70e9
  phases: [{name: a, tokens: 1e13}, {name: b, tokens: 5e12, count: 1024}]
cluster: {accelerator: H100-SXM-80GB, count: 8192}
reliability: {checkpoint_save_time: 40 s, restart_time: 10 min, unexplained_loss: 0.01}
inputs: {mfu: 0.4, interruption_rate: 2e-5}
"""


def test_phases_have_the_goodput_of_their_count(scenario_file):
    tree = found(load_scenario(scenario_file(PHASES)), samples=256)
    import jax

    with jax.enable_x64(True):
        goodput = [
            float(
                failures.expected_goodput(n, 2e-5, failures.best_checkpoint_interval(n, 2e-5, 40.0), 40.0, 10.0, 0.01)
            )
            for n in (8192.0, 1024.0)
        ]
    assert goodput[0] < goodput[1]
    # Productive hours over all hours.
    together = 3 / (2 / goodput[0] + 1 / goodput[1])
    assert output(tree, "expected_goodput")[0] == pytest.approx(together, rel=1e-12)


def test_published_goodput_of_llama_3_lies_inside():
    tree = found(load_scenario(catalog.shipped_scenarios()["llama-3.1-405b-checkpoints"]), samples=8192)
    low, high = np.quantile(output(tree, "expected_goodput"), [0.05, 0.95])
    assert low < 0.9 < high < 1


def test_no_progress_is_an_error_with_a_remedy(scenario_file):
    source = scenario_file(f"{BASE}reliability: {{checkpoint_interval: 600 d}}\n")
    with pytest.raises(InputError, match=r"100% of the draws.* never ends\. .*checkpoint_interval: best") as error:
        run_scenario(source, ["interruption_rate=0.01"], samples=256, with_files=False)
    assert error.value.code == "no-progress" and "plan.yaml:5" in str(error.value)


def test_a_run_that_seldom_ends_is_a_note_and_its_outputs_are_numbers(problem):
    made = problem(STATED, "cluster.count=100_000", "interruption_rate={choice: [1e-6, 1e-2], weights: [9, 1]}")
    summary = summarise(found(made))
    assert any("of the draws failures come so fast that the run never ends" in note for note in summary["notes"])
    low, high = summary["outputs"]["expected_goodput"]["interval_90"]
    assert 0 < low < 1e-4 < 0.5 < high < 1
    assert np.isfinite(summary["outputs"]["training_days"]["interval_90"]).all()


def test_a_rate_of_zero_leaves_nothing_to_follow(problem):
    with pytest.raises(InputError, match="interruption_rate: 0 leaves nothing"):
        problem("{}", "interruption_rate=0")


def test_a_heavy_tail_is_told_by_the_indices_of_the_logarithm(problem):
    summary = summarise(to_datatree(simulate(problem(STATED), make_design(8192))))
    assert scale(summary, "cost_owned_usd") == "log"
    said = text(summary, "own", width=200)
    assert "of the variance of its logarithm" in said and "total Sobol' index of its logarithm" in said
    assert "  goodput  " in said and "best checkpoint interval" in said
    drivers = [name for name in summary["sensitivity_log"]["cost_owned_usd"] if name in said]
    assert "interruption_rate" in drivers


def test_a_light_tail_is_told_as_before(scenario_file):
    summary = summarise(to_datatree(simulate(load_scenario(scenario_file(BASE)), make_design(4096))))
    assert scale(summary, "cost_owned_usd") == scale(summary, "training_days") == "raw"


# ---- notes and files ----


def test_notes_say_how_often_and_warn(problem):
    assert problem().notes[0] == (
        "an interruption is expected every 3.8 h at the median rate, every 38 min at its 95% quantile"
    )
    assert not any("hardly any work" in note for note in problem().notes)
    # sqrt(2 x 40 s x 3.8 h)
    assert "about 18 min at the medians" in problem("{checkpoint_save_time: 40 s}").notes[1]
    assert any("hardly any work" in note for note in problem("{checkpoint_interval: 2 h}").notes)
    assert problem("{}", "interruption_rate=1e-5").notes[0] == "an interruption is expected every 12 h"


def test_run_draws_the_picture(problem, tmp_path, scenario_file):
    source = scenario_file(f"{BASE}reliability: {STATED}\n")
    done = run_scenario(source, samples=512, out=tmp_path / "out", pictures=["intervals"])
    assert (tmp_path / "out" / "checkpoints.png").read_bytes()[:4] == b"\x89PNG"
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["outputs"]["expected_goodput"]["unit"] == "1"
    figure = checkpoint_plot(done.tree)
    left, right = figure.axes
    assert left.get_ylabel() == "goodput" and any("stated: 30 min" in entry.get_text() for entry in left.texts)
    median = next(line for line in right.lines if len(line.get_xdata()) > 10)
    # The minimum inside the axes, and the median at the scenario's count is that of the result.
    assert 0 < int(np.argmin(median.get_ydata())) < len(median.get_ydata()) - 1
    at = np.exp(np.interp(np.log(8192), np.log(median.get_xdata()), np.log(median.get_ydata())))
    assert at == pytest.approx(float(np.median(output(done.tree, "training_days"))), rel=0.01)


def test_picture_of_phases_with_their_own_counts_has_no_run_time(scenario_file):
    tree = found(load_scenario(scenario_file(PHASES), ["interruption_rate={low: 1e-5, high: 4e-5}"]), samples=256)
    assert [axes.get_ylabel() for axes in checkpoint_plot(tree).axes] == ["goodput"]


def test_the_page_of_the_documentation_holds(root, scenario_file, capsys):
    page = (root / "docs" / "how-to" / "checkpoints.md").read_text(encoding="utf-8")
    problem = load_scenario(scenario_file(re.search(r"```yaml\n(.*?)```", page, re.DOTALL)[1]))
    assert problem.program == "run_with_checkpoints"
    code, printed = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", page, re.DOTALL).groups()
    exec(compile(code, "checkpoints.md", "exec"), {})
    told = capsys.readouterr().out
    digits = re.compile(r"\d\.\d+")
    assert digits.sub("", told) == digits.sub("", printed)
    # Other libraries of linear algebra may move the last digit.
    assert [*map(float, digits.findall(told))] == pytest.approx([*map(float, digits.findall(printed))], abs=2e-3)
    assert all((root / "docs" / "how-to" / link).exists() for link in re.findall(r"\]\((?!http)([^)#]+)", page))


# ---- bad input ----

BAD = [
    ("{checkpoint_interval: 0 min}", "reliability.checkpoint_interval: 0 is below 0.001"),
    ("{checkpoint_interval: -5 min}", "reliability.checkpoint_interval: -5 is below 0.001"),
    ("{checkpoint_interval: 30 kWh}", "but this is a time"),
    ("{checkpoint_interval: bset}", "'bset' is neither a time nor best"),
    ("{checkpoint_interval: {prior: restart_time}}", "fitted priors describe inputs"),
    ("{checkpoint_save_time: 0}", "0 is not possible"),
    ("{restart_time: -1}", "-1 is below 0"),
    ("{restart_time: {low: 20 min, high: 5 min}}", "low (20) must be below high (5)"),
    ("{unexplained_loss: 1.5}", "1.5 is above 1"),
    ("{recovery: magic}", "'magic' is not one of"),
    ("{chekpoint_interval: best}", "Did you mean"),
    ("5", "is not a mapping"),
]


@pytest.mark.parametrize(("statement", "message"), BAD, ids=[case[0] for case in BAD])
def test_bad_statements_are_errors_with_their_place(problem, statement, message):
    with pytest.raises((InputError, InputErrors)) as error:
        problem(statement)
    assert message in str(error.value) and "plan.yaml:5:" in str(error.value)


@pytest.mark.parametrize(
    ("more", "place"),
    [("inputs: {goodput: 0.9}\n", "inputs.goodput"),
     ("correlations: [{between: [mfu, goodput], rank: 0.3}]\n", "correlations.0.between.1")],
)  # fmt: skip
def test_goodput_beside_reliability_is_refused(problem, more, place):
    with pytest.raises(InputError, match=place):
        problem(more=more)


def test_goodput_of_a_phase_beside_reliability_is_refused(scenario_file):
    wrong = PHASES.replace("tokens: 1e13", "tokens: 1e13, goodput: 0.9")
    with pytest.raises(InputError, match=r"workload\.phases\.0\.goodput: goodput follows from reliability"):
        load_scenario(scenario_file(wrong))


def test_published_output_that_the_scenario_does_not_have_is_refused(scenario_file):
    more = "published: {expected_goodput: {value: 0.9, source: x}}\n"
    with pytest.raises(InputError, match=r"published\.expected_goodput.*State reliability"):
        load_scenario(scenario_file(BASE + more))
