"""The commands of decisions: flags of ``run``, ``compare``, ``sites``, their exit codes and one-line errors."""

import json

import pytest

from gpustack_mc.cli import main

QUICK = ("--samples", "512", "--no-files")
PLAN = """\
schema_version: 1
name: Test
workload: {params: 7e9, tokens: 2e12}
cluster: {accelerator: H100-SXM-80GB, count: 512}
site: {region: US-TX}
"""


@pytest.fixture
def invoke(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("GPUSTACK_MC_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return stop.value.code, out, err

    return call


def test_limits_and_conditions_as_flags(invoke, scenario_file):
    limits = ("--budget", "300 kUSD", "--deadline", "10 d")
    asked = ("--ask", "programme_cost_owned_usd <= 1 MUSD", "--ask", "budget_owned and deadline")
    code, out, err = invoke("run", scenario_file(PLAN), *QUICK, "--json", *limits, *asked)
    assert code == 0 and err == ""
    found = json.loads(out)["questions"]
    assert list(found) == ["budget_owned", "budget_rented", "deadline", "all_owned", "all_rented",
                           "programme_cost_owned_usd <= 1 MUSD", "budget_owned and deadline"]  # fmt: skip
    assert found["budget_owned and deadline"]["probability"] == found["all_owned"]["probability"]
    assert {answer["scope"] for answer in found.values()} == {"final run", "programme"}


def test_a_flag_takes_the_place_of_the_question_in_the_file(invoke, scenario_file):
    path = scenario_file(PLAN + "questions: {deadline: 1 d, power_cap: 1 MW}\n")
    _, out, _ = invoke("run", path, *QUICK, "--json", "--deadline", "100 d")
    found = json.loads(out)["questions"]
    assert found["deadline"]["limit"] == 100 and found["power_cap"]["limit"] == 1


def test_a_gate_that_fails_exits_3_after_the_answer(invoke, scenario_file):
    path = scenario_file(PLAN)
    gate = ("--deadline", "1 h", "--fail-if", "P(deadline) < 0.9")
    code, out, err = invoke("run", path, *QUICK, *gate)
    assert code == 3 and "run time" in out
    assert err.splitlines() == ["--fail-if P(deadline) < 0.9: it is 0.0% ± 0.1% (final run)."]
    code, out, err = invoke("run", path, *QUICK, *gate, "--json")
    assert code == 3 and json.loads(out)["name"] == "Test" and json.loads(err)["error"]["code"] == "gate"
    code, _, err = invoke("run", path, *QUICK, "--deadline", "1000 d", "--fail-if", "P(deadline) < 0.9", "-q")
    assert code == 0 and err == ""


def test_only_the_outputs_that_are_named_are_printed(invoke):
    code, out, err = invoke("run", "llama-3-70b", *QUICK, "--outputs", "programme_cost_rented_usd, accelerator_hours")
    assert code == 0 and err == ""
    lines = out.splitlines()
    assert [line.split("  ")[1] for line in lines[1:3]] == ["programme cost, rented", "accelerator-hours"]
    assert "what drives" not in out and "what was assumed" not in out
    # The questions stay, and of the public figures that of the hours.
    assert sum(line.startswith("  P(") for line in lines) == 5
    assert lines[-3].startswith("  accelerator_hours 6.4 M h, inside") and "co2e_operational_t" not in out


def test_outputs_of_reliability_are_asked_gated_and_printed(invoke):
    asked = ("--ask", "expected_goodput >= 50%", "--fail-if", "P(expected_goodput >= 0.5) < 0.6")
    arguments = ("llama-3.1-405b-checkpoints", *QUICK, "--outputs", "expected_goodput", *asked)
    code, out, _ = invoke("run", *arguments)
    assert code == 0 and "P(goodput at least 0.5)" in out and "expected_goodput 0.9, inside" in out


def test_compare_and_sites_print_one_json_object(invoke):
    code, out, err = invoke("compare", "llama-3-70b-us", "llama-3-70b-quebec", *QUICK, "--json")
    assert code == 0 and err == "" and json.loads(out)["kind"] == "comparison"
    code, out, err = invoke("sites", "llama-3-70b-us", "--regions", "US-CA,CA-QC", *QUICK, "--json")
    assert code == 0 and err == "" and json.loads(out)["kind"] == "sites"


@pytest.mark.parametrize("columns", ["60", "100", "160"])
def test_text_for_people_fits_the_terminal(invoke, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    _, out, _ = invoke("compare", "llama-3-70b-us", "llama-3-70b-quebec", *QUICK)
    prose = [line for line in out.splitlines() if line.startswith(("P(", "  Inputs", "  Final"))]
    assert prose and all(len(line) <= int(columns) for line in prose)
    for part in (
        "B / A",
        "P(B < A)",
        "what drives B / A in cost, owned (total Sobol' index of the logarithm",
        "what differs",
        "electricity_price",
    ):
        assert part in out
    _, out, _ = invoke("sites", "llama-3-70b-us", "--regions", "US-CA,CA-QC", *QUICK)
    assert "P(best)" in out and "lowest cost, owned" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "llama-3-70b", "--budget", "15"], "questions.budget: 15 has no unit"),
        (["run", "llama-3-70b", "--deadline", "2020-01-01"], "the scenario does not say when the run starts"),
        (["run", "llama-3-70b", "--set", "start=2026-12-01", "--deadline", "2026-11-30"], "is not after the start"),
        (["run", "llama-3-70b", "--fail-if", "P(budget_owned) < 1"], "nothing is certain"),
        (["run", "llama-3-70b", "--ask", "profit > 3 USD"], "the scenario has no output 'profit'"),
        (["run", "llama-3-70b", "--ask", "energy_cap"], "State questions.energy_cap, or --energy-cap"),
        (["run", "llama-3-70b", "--outputs", "expected_goodput"], "Only one that states reliability has it"),
        (["solve", "llama-3-70b", "--for", "count", "--budget", "5"], "questions.budget: 5 has no unit"),
        (["measure", "llama-3-70b", "--budget", "5"], "questions.budget: 5 has no unit"),
        (["compare", "llama-3-70b"], "there is nothing to compare with"),
        (["compare"], "Missing argument 'SCENARIOS...'"),
        (["compare", "llama-3-70b", "--vary", "site.region=FR,US-CA"], "carbon is counted in different ways"),
        (["sites", "llama-3-70b"], "0 regions cannot be ranked"),
        (["sites", "llama-3-70b", "--regions", "US-CA,XX"], "'XX' is not a known region"),
        (["sites", "llama-3-70b", "--regions", "US-CA,FR", "--samples", "1"], "--samples 1 is not between 256 and"),
        (["sites", "llama-3-70b", "--regions", "US-CA,FR", "--by", "price"], "'price' is not one of"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(invoke, arguments, message):
    code, out, err = invoke(*arguments)
    assert code == 2 and out == ""
    assert message in err and len(err.splitlines()) == 1 and "Traceback" not in err
