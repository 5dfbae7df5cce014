"""The plan: the same numbers as a run, its parts against closed forms, pages that any text cannot break, refusals."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from gpustack_mc import plan as planning
from gpustack_mc import plan_pages, plan_text
from gpustack_mc.cli import main
from gpustack_mc.design import make_design
from gpustack_mc.errors import InputError
from gpustack_mc.propagation import propagate
from gpustack_mc.run import run_scenario
from gpustack_mc.scenario import load_scenario

SAMPLES = 4096
LIMITS = ("questions.deadline=40 d", "questions.budget=14 MUSD")


@pytest.fixture(scope="module")
def llama_plan():
    return planning.run_plan("llama-3-70b", LIMITS, samples=SAMPLES, with_files=False)


def command(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(["plan", *arguments])
    return stop.value.code, *capsys.readouterr()


def test_key_numbers_are_those_of_a_run(llama_plan):
    run = run_scenario("llama-3-70b", LIMITS, samples=SAMPLES, with_files=False, pictures=[])
    for part in ("outputs", "inputs", "questions", "sensitivity", "notes"):
        assert llama_plan.found["summary"][part] == run.summary[part]


def test_goodput_follows_from_the_shipped_priors_where_the_scenario_states_no_reliability(llama_plan):
    found = llama_plan.found["reliability"]
    assert not found["stated"]
    stated = propagate(load_scenario("llama-3-70b", ["reliability={}"]), make_design(SAMPLES))
    for name in ("expected_goodput", "best_checkpoint_interval"):
        assert found["outputs"][name]["median"] == np.median(stated.output(name))
    assert found["inputs"]["restart_time"]["sources"]


def test_a_stated_goodput_is_set_aside_for_the_checkpoints_only():
    found = planning.run_plan("llama-3-70b", ["goodput=0.9", "inputs.mfu=0.4"], samples=SAMPLES, with_files=False).found
    assert found["reliability"]["goodput"]["median"] == 0.9
    assert found["reliability"]["outputs"]["expected_goodput"]["sd"] > 0
    assert any("another goodput" in note for note in plan_text.checkpoint_notes(found))


def test_stated_reliability_is_used_as_it_is():
    overrides = ["reliability.checkpoint_interval=30 min", "reliability.restart_time=10 min"]
    found = planning.run_plan("llama-3-70b", overrides, samples=SAMPLES, with_files=False).found
    assert found["reliability"]["stated"] and found["reliability"]["goodput"] is None
    assert found["reliability"]["outputs"]["expected_goodput"] == found["summary"]["outputs"]["expected_goodput"]
    assert "The scenario saves every 30 min" in plan_text.checkpoint_sentence(found)


def test_readings_turn_the_answer_over_in_the_draws(llama_plan):
    """Among draws near the crossing half keep the limit; by brute force, with the readings of a measurement."""
    found = llama_plan.found["first_days"]
    test = next(test for test in found["tests"] if test["question"] == "deadline")
    assert test["rows"][0]["input"] == "mfu"
    crossed = next(each for each in test["rows"][0]["crossings"] if each["level"] == 0.5)
    draws = propagate(load_scenario("llama-3-70b", LIMITS), make_design(2**17, seed=1))
    error = np.random.default_rng(5).standard_normal(2**17)
    reading = draws.inputs[draws.varying.index("mfu")] * np.exp(0.1 * error)
    near = np.abs(np.log(reading / crossed["value"])) < 0.02
    kept = (draws.output("training_days") <= 40)[near].mean()
    # 4,096 draws put the crossing to within its error, which moves the chance by its slope (about 4 per unit of log).
    assert kept == pytest.approx(0.5, abs=0.02 + 5 * 4 * crossed["error"] / crossed["value"])
    assert crossed["chance"] == pytest.approx((reading >= crossed["value"]).mean(), abs=0.02)


def test_a_count_of_interruptions_is_as_good_as_its_square_root():
    overrides = ["reliability={}", "inputs.interruption_rate={low: 1e-5, high: 4e-5}"]
    found = planning.run_plan("llama-3-70b", overrides, samples=SAMPLES, with_files=False).found["first_days"]
    outputs = found["measure"]["expected_width_90"]
    assert outputs["interruption_rate"]["accuracy"] == pytest.approx(found["interruptions"] ** -0.5)
    # n lambda t, at the medians: 8,192 x 2e-5 x 72; skewness and the best interval move the ratio of medians little.
    assert found["interruptions"] == pytest.approx(8192 * 2e-5 * 72, rel=0.1)


def test_the_shares_of_the_risks_are_sorted_and_say_when_they_show(llama_plan):
    for risks in llama_plan.found["risks"].values():
        shares = [risk["share"] for risk in risks]
        assert shares == sorted(shares, reverse=True) and len(shares) <= 5
    cost = {risk["input"]: risk["shows"] for risk in llama_plan.found["risks"]["cost_owned_usd"]}
    assert cost["mfu"].startswith("throughput") and cost["fleet_utilization"] == ""


def test_activations_follow_from_the_shape():
    shape = ["workload.n_layers=80", "workload.d_model=8192", "workload.sequence_length=8192"]
    found = planning.run_plan("llama-3-70b", shape, samples=SAMPLES, with_files=False).found["memory"]
    assert found["activations_gb"] == 34 * 80 * 8192 * 8192 / 1e9
    # 183 GB of activations on 80 GB: nothing fits as it is, and it is no refusal.
    assert not any(way["fits"] for way in found["ways"])
    full = [*shape, "workload.activation_recompute=full"]
    found = planning.run_plan("llama-3-70b", full, samples=SAMPLES, with_files=False).found["memory"]
    assert [way["fits"] for way in found["ways"]] == [False, False, False, True]


def test_a_scenario_without_spread_has_a_plan():
    done = planning.run_plan("worked-7b", samples=SAMPLES, with_files=False)
    assert done.found["first_days"] is None and done.found["risks"] == {}
    markdown, page = plan_pages.pages(done.found, done.tree)
    assert "Every input is fixed" in markdown and "Every input is fixed" in page
    # Its accelerator is the scenario's own, of unknown memory, unless that is stated.
    assert load_scenario("worked-7b").file.cluster.accelerator


def test_each_site_holds_the_model(scenario_file):
    text = """
schema_version: 1
name: sites
workload: {params: 70e9, tokens: 2e11}
cluster: {accelerator: H100-SXM-80GB, count: 72}
distributed:
  mode: survivors
  sites:
    - {name: a, count: 56, availability: 0.9, mean_outage: 6 h}
    - {name: b, count: 16, availability: 0.9, mean_outage: 6 h}
"""
    path = scenario_file(text)
    found = planning.run_plan(path, samples=SAMPLES, with_files=False).found
    assert found["memory"]["count"] == 16
    assert "the smallest has 16 accelerators" in " ".join(plan_text.memory_notes(found))
    # 1,260 GB over 80: 16 hold it and 15 do not, although the cluster does.
    fewer = ["distributed.sites.1.count=15", "distributed.sites.0.count=57"]
    with pytest.raises(InputError, match="At least 16 such"):
        planning.run_plan(path, fewer, samples=SAMPLES, with_files=False)


# ---- pages -------------------------------------------------------------------------------------------------------


class Seen(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.links, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("href", "src") and value]

    def handle_data(self, data):
        self.text.append(data)


EVIL = """
schema_version: 1
name: "</title><script>alert(1)</script> | [x](javascript:alert(1)) `a` *b*"
description: "<img src=x onerror=alert(2)> {{ 7*7 }}"
workload: {params: 7e9, tokens: 2e11}
cluster: {accelerator: H100-SXM-80GB, count: 64}
questions: {deadline: 20 d}
published:
  training_days: {value: 9 d, source: "<b>s</b>", url: "javascript:alert(3)"}
"""


def test_no_text_of_a_scenario_becomes_markup(scenario_file):
    done = planning.run_plan(scenario_file(EVIL), samples=SAMPLES, with_files=False)
    markdown, page = plan_pages.pages(done.found, done.tree)
    seen = Seen()
    seen.feed(page)
    assert not {"script", "img", "b"} & set(seen.tags)
    assert not any(link.startswith("javascript") for link in seen.links)
    assert "{{ 7*7 }}" in "".join(seen.text)
    assert "\\<script\\>" in markdown and "<script" not in re.sub(r"\\<", "", markdown)
    assert "[x](" not in markdown and " \\| \\[x\\]" in markdown


def test_both_pages_say_the_same(llama_plan):
    markdown, page = plan_pages.pages(llama_plan.found, llama_plan.tree)
    seen = Seen()
    seen.feed(page)
    text = " ".join(" ".join(seen.text).split())
    plain = " ".join(re.sub(r"\\(.)", r"\1", markdown).split())
    for said in (
        plan_text.memory_sentence(llama_plan.found),
        plan_text.checkpoint_sentence(llama_plan.found),
        plan_text.first_sentence(llama_plan.found),
        *(line for _, lines in plan_text.tests(llama_plan.found) for line in lines),
    ):
        assert said in text and said in plain
    assert "http" not in "".join(re.findall(r"<(?:link|script|img)[^>]*>", page))


def test_the_command_to_reproduce_has_the_options():
    options = planning.Options(accuracies=("mfu=5%",), days=2, memory="90 GB")
    done = planning.run_plan("nanochat", ["pue=1.2"], options=options, samples=SAMPLES, with_files=False)
    shown = plan_pages.values(done.found, done.tree)["reproduce"]["command"]
    expected = "--seed 0 --samples 4096 --set pue=1.2 --accuracy mfu=5% --days 2 --memory '90 GB'"
    assert shown == f"gpustack-mc plan scenario.yaml {expected}"


def test_every_row_of_a_table_has_all_columns(llama_plan):
    markdown, _ = plan_pages.pages(llama_plan.found, llama_plan.tree)
    columns = 0
    for line in markdown.splitlines():
        if line.startswith("|"):
            cells = len(re.findall(r"(?<!\\)\|", line))
            assert columns in (0, cells), line
            columns = cells
        else:
            columns = 0


def test_the_same_seed_writes_the_same_plan(tmp_path):
    texts = []
    for name in ("a", "b"):
        done = planning.run_plan("nanochat", samples=SAMPLES, out=tmp_path / name)
        assert done.found["files"] == [str(tmp_path / name / file) for file in ("plan.md", "plan.html")]
        text = (tmp_path / name / "plan.md").read_text(encoding="utf-8")
        texts.append(re.sub(r"\| computed \|.*", "", text))
    assert texts[0] == texts[1]


# ---- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["llama-3-70b", "--set", "cluster.count=8"], "At least 16 such accelerators hold it."),
        (["bloom-176b-running"], "this job runs already"),
        (["llama-3-70b", "--memory", "80"], "'80' has no unit"),
        (["llama-3-70b", "--memory", "80 d"], "is a time, but this is an amount of data"),
        (["llama-3-70b", "--activations", "0 GB"], "--activations: '0 GB' is not a size."),
        (["llama-3-70b", "--bytes-per-param", "2,4"], "--bytes-per-param: '2,4' is not"),
        (["llama-3-70b", "--bytes-per-param", "2,4,nan"], "--bytes-per-param: '2,4,nan' is not"),
        (["llama-3-70b", "--days", "0"], "--days: 0 is no number of first days."),
        (["llama-3-70b", "--samples", "10"], "--samples: 10 is not between"),
        (["llama-3-70b", "--accuracy", "mfu=0"], "is not an accuracy"),
        (["nowhere.yaml"], "there is no such file"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(capsys, tmp_path, arguments, said):
    out = tmp_path / "plan"
    code, printed, error = command(capsys, *arguments, "-o", str(out))
    assert code == 2 and printed == "" and not out.exists()
    assert said in error and error.count("\n") == 1


def test_errors_are_json_when_asked(capsys):
    code, _, error = command(capsys, "llama-3-70b", "--set", "cluster.count=8", "--json", "--no-files")
    assert code == 2 and json.loads(error)["error"]["code"] == "does-not-fit"


def test_the_command_prints_a_plan(capsys, tmp_path):
    options = ["--samples", str(SAMPLES), "--deadline", "4 h", "-o", str(tmp_path)]
    code, printed, _ = command(capsys, "nanochat", *options)
    assert code == 0 and "Run time at most 4 h" in printed and "plan.html" in printed
    code, printed, _ = command(capsys, "nanochat", *options, "--json")
    assert code == 0 and json.loads(printed)["memory"]["least_count"] == 1


def test_an_unknown_memory_is_said(scenario_file):
    text = """
schema_version: 1
name: own chip
workload: {params: 7e9, tokens: 2e11}
cluster: {accelerator: other, count: 64}
inputs: {peak_flop_per_s: 4e14, tdp: 300, capex: 20 kUSD, rental_price: 2 USD/h, embodied_carbon: 200 kg,
  serving_throughput: 1000 token/s}
"""
    path = scenario_file(text)
    done = planning.run_plan(path, samples=SAMPLES, with_files=False)
    assert done.found["memory"] is None
    assert "state it with --memory" in "".join(plan_pages.pages(done.found, done.tree))
    options = planning.Options(memory="1 GB")
    # 7e9 parameters x 18 bytes on 64 GB.
    with pytest.raises(InputError, match="At least 126 such"):
        planning.run_plan(path, options=options, samples=SAMPLES, with_files=False)
