"""``gpustack-mc sensitivity`` from its options to its files."""

import json
import re

import numpy as np
import pytest

from gpustack_mc import pages, sensitivities, sensitivity_figure, sensitivity_text
from gpustack_mc.cli import main
from gpustack_mc.sensitivities import Wanted, run_sensitivity

QUICK = ("--samples", "1024", "--no-files")
PLAN = """\
schema_version: 1
name: Correlated
ownership: rent
workload: {params: 7e9, tokens: 2e12}
cluster: {accelerator: H100-SXM-80GB, count: 512}
site: {region: US-TX}
questions: {budget: 300 kUSD, deadline: 30 d}
correlations:
  - {between: [mfu, goodput], rank: 0.5}
  - {between: [mfu, rental_price], rank: 0.4}
"""


@pytest.fixture
def invoke(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("GPUSTACK_MC_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        with pytest.raises(SystemExit) as stop:
            main(["sensitivity", *(str(argument) for argument in arguments)])
        out, err = capsys.readouterr()
        return stop.value.code, out, err

    return call


@pytest.fixture(scope="module")
def plain():
    return run_sensitivity("llama-3-70b", (), Wanted(second_order=True), samples=2**13, with_files=False)


@pytest.fixture(scope="module")
def correlated(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "plan.yaml"
    path.write_text(PLAN, encoding="utf-8")
    return run_sensitivity(path, (), Wanted(outputs=("cost", "energy_mwh")), samples=2**13, with_files=False)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--group", "a=mfuu"), "unknown-input", "Did you mean mfu?"),
        (("--group", "a=mfu", "--group", "b=pue,mfu"), "overlapping-groups", "mfu is in the group 'a' as well"),
        (("--group", "a=mfu", "--group", "a=pue"), "bad-group", "there is a group 'a' already"),
        (("--group", "a="), "empty-group", "names no input"),
        (("--group", "a= , ,"), "empty-group", "names no input"),
        (("--group", "=mfu"), "bad-group", "this is no group"),
        (("--group", "mfu"), "bad-group", "this is no group"),
        (("--group", "rest=mfu"), "bad-group", "rest is what no group holds"),
        (("--group", "a=tdp"), "fixed-input", "tdp is fixed"),
        (("training_flop",), "constant-output", "in every draw"),
        (("carbon_cost_usd",), "constant-output", "0 USD in every draw"),
        (("cost_owned",), "unknown-output", "Did you mean cost_owned_usd"),
        (("mfu",), "unknown-output", "mfu is an input"),
        (("--samples", "0"), "bad-samples", "not between"),
        (("--samples", "1000000000000"), "bad-samples", "not between"),
        (("--salib",), "bad-option", "it writes files"),
    ],
)
def test_bad_input_is_one_line(invoke, arguments, code, said):
    given = ("llama-3-70b", *arguments, "--no-files")
    status, out, err = invoke(*given)
    assert (status, out, err.count("\n")) == (2, "", 1) and said in err
    status, out, err = invoke(*given, "--json")
    assert (status, out) == (2, "") and json.loads(err)["error"]["code"] == code


def test_nothing_varies(invoke):
    status, _, err = invoke("worked-7b", "--no-files")
    assert status == 2 and "every input is fixed" in err


def test_an_output_without_a_logarithm(invoke):
    low = '--set=electricity_price={"dist": "normal", "mean": 0.01, "sd": 0.02}'
    status, _, err = invoke("llama-3-70b", "electricity_cost_usd", low, "--scale", "log", *QUICK)
    assert status == 2 and "is not above 0 for 0.3" in err and err.count("\n") == 1
    status, out, _ = invoke("llama-3-70b", "electricity_cost_usd", low, *QUICK)
    assert status == 0 and "electricity_price" in out


def test_a_constant_among_the_main_outputs_is_said(invoke):
    # Rented accelerators by the hour for a fixed time: nothing of the run time is uncertain.
    fixed = [f"--set={text}" for text in ("mfu=0.4", "goodput=0.9")]
    status, out, _ = invoke("llama-3-70b", *fixed, *QUICK, "--json")
    found = json.loads(out)
    assert status == 0 and found["constant_outputs"] == ["training_days"]
    assert "training_days does not vary: no input explains it." in found["notes"]
    assert "training_days" not in found["outputs"]


def test_files_are_written_and_named(invoke, tmp_path):
    status, out, _ = invoke("llama-3-70b", "cost", "--samples", "1024", "-o", "here")
    assert status == 0 and "here/sensitivity.json" in out
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == [
        "drivers.png", "sensitivity.json", "tornado.png"]  # fmt: skip
    found = json.loads((tmp_path / "here" / "sensitivity.json").read_text(encoding="utf-8"))
    assert list(found["outputs"]) == ["cost_owned_usd", "cost_rented_usd"]
    status, out, _ = invoke("llama-3-70b", "cost", "--samples", "1024", "--no-tornado", "-o", "there")
    assert sorted(path.name for path in (tmp_path / "there").iterdir()) == ["drivers.png", "sensitivity.json"]


def test_a_failure_leaves_no_folder(invoke, tmp_path):
    status, _, _ = invoke("llama-3-70b", "training_flop", "--samples", "1024", "-o", "gone")
    assert status == 2 and not (tmp_path / "gone").exists()


def test_the_same_seed_gives_the_same_bytes(invoke):
    first, again, other = (
        invoke("llama-3-70b", "cost", *QUICK, "--shapley", "--json", "--seed", seed)[1] for seed in (0, 0, 1)
    )
    assert first == again != other


def test_groups_hold_their_inputs_and_the_rest(invoke):
    given = ("--group", "site=pue,electricity_price,grid_intensity", "--group", "speed=mfu")
    found = json.loads(invoke("llama-3-70b", "energy-mwh", *QUICK, *given, "--json")[1])
    assert list(found["groups"]) == ["site", "speed", "rest"]
    assert "pue" not in found["groups"]["rest"] and "goodput" in found["groups"]["rest"]
    entry = found["outputs"]["energy_mwh"]
    assert entry["groups"]["speed"]["ST"] == pytest.approx(entry["inputs"]["mfu"]["ST"], abs=1e-12)  # the same exchange


def test_numbers_agree_with_those_of_run(plain):
    from gpustack_mc.run import run_scenario

    summary = run_scenario("llama-3-70b", samples=2**13, with_files=False, pictures=[]).summary
    for name, entry in plain["outputs"].items():
        # The same draws; a kernel of single precision would differ in the seventh digit.
        assert entry["median"] == pytest.approx(summary["outputs"][name]["median"], rel=1e-6)
        assert entry["interval_90"] == pytest.approx(summary["outputs"][name]["interval_90"], rel=1e-6)
        raw = entry["inputs"] if entry["scale"] == "raw" else entry["inputs_raw"]
        for key, index in raw.items():
            # The same draws and estimators, added up in another order and perhaps in single precision.
            assert index["ST"] == pytest.approx(summary["sensitivity"][name][key]["ST"], abs=1e-4)


def test_parts_of_a_plain_call(plain):
    entry = plain["outputs"]["cost_owned_usd"]
    assert set(entry["groups"]) == {"hardware", "efficiency", "energy", "price", "carbon", "water", "finance",
                                    "serving", "programme"}  # fmt: skip
    assert sum(index["S1"] for index in entry["groups"].values()) <= 1.02
    assert entry["sum_of_S1"]["S1"] == pytest.approx(sum(i["S1"] for i in entry["inputs"].values()), abs=1e-9)
    assert not any("shapley" in index for index in entry["inputs"].values())
    assert entry["region"]["question"] == "budget" and entry["region"]["limit"] == 15e6
    assert plain["outputs"]["energy_mwh"]["region"]["question"] == ""
    told = {tuple(pair["inputs"]) for pair in entry["second_order"]}
    assert ("mfu", "fleet_utilization") in told and all(pair["S2"] >= 0.001 for pair in entry["second_order"])
    bars = entry["tornado"]
    assert bars["mfu"]["at_5"]["median"] > entry["median"] > bars["mfu"]["at_95"]["median"]


def test_a_limit_that_nothing_exceeds_is_said(invoke):
    given = ("cost_rented_usd", "--set", "ownership=rent", "--budget", "10000 MUSD")
    found = json.loads(invoke("llama-3-70b", *given, *QUICK, "--json")[1])["outputs"]["cost_rented_usd"]
    assert found["asked_region"]["share_of_runs"] == 0.0 and found["region"]["question"] == ""
    status, out, _ = invoke("llama-3-70b", *given, *QUICK)
    assert status == 0 and "No run has cost rented over $10B" in " ".join(out.split())


def test_heavy_tails_are_told_on_the_log_scale(invoke):
    """MFU uniform down to 0: the cost has no finite mean, and its logarithm has every moment."""
    heavy = '--set=mfu={"dist": "uniform", "low": 0, "high": 0.5}'
    found = json.loads(invoke("llama-3-70b", "training_days", heavy, *QUICK, "--json")[1])
    entry = found["outputs"]["training_days"]
    assert entry["scale"] == "log" and any("logarithm" in note for note in found["notes"])
    assert sum(index["S1"] for index in entry["inputs"].values()) == pytest.approx(1, abs=0.1)  # log hours are a sum
    raw = json.loads(invoke("llama-3-70b", "training_days", heavy, *QUICK, "--scale", "raw", "--json")[1])
    assert raw["outputs"]["training_days"]["scale"] == "raw"


def test_correlated_inputs_bring_shapley_effects(correlated):
    for entry in correlated["outputs"].values():
        for kind in ("inputs", "groups"):
            assert sum(index["shapley"] for index in entry[kind].values()) == pytest.approx(1, abs=1e-9)
        # Inputs that no formula of the output reads and no correlation ties get nothing.
        assert entry["inputs"]["water_onsite"]["shapley"] == 0.0
        assert "sum_of_S1" not in entry
    assert set(correlated["correlated"]) == {"mfu", "goodput", "rental_price"}
    assert any("Shapley effects add up to 1" in note for note in correlated["notes"])
    # Energy does not read the rental price, which shares what it says about MFU.
    index = correlated["outputs"]["energy_mwh"]["inputs"]["rental_price"]
    assert index["shapley"] > 0.01 and index["ST"] == pytest.approx(0, abs=1e-9)


def test_the_text_says_what_was_found(plain, correlated):
    lines = sensitivity_text.text(plain, width=120)
    said = " ".join(lines.split())
    assert "By group: finance 0." in said and "(the budget;" in said and "Second order (S2), above the noise of" in said
    assert max(map(len, lines.splitlines())) <= 120
    for found in (plain, correlated):
        assert not re.search(r"\b(nan|None|inf)\b", sensitivity_text.text(found))
    assert "Shapley" in sensitivity_text.text(correlated)


def test_pictures_have_units_and_a_palette_for_all(plain, correlated):
    for found in (plain, correlated):
        for draw in (sensitivity_figure.driver_plot, sensitivity_figure.tornado_plot):
            figure = draw(found)
            used = {patch.get_facecolor()[:3] for axes in figure.axes for patch in axes.patches}
            from matplotlib.colors import to_rgb

            allowed = {to_rgb(color) for color in (pages.BLUE, pages.TINT, pages.VERMILLION, pages.BAND)}
            assert used <= allowed
    labels = [axes.get_xlabel() for axes in sensitivity_figure.tornado_plot(plain).axes]
    assert "cost, owned [$M]" in labels and "energy [GWh]" in labels and "run time [d]" in labels


def test_bars_of_the_tornado_end_at_its_numbers(plain):
    figure = sensitivity_figure.tornado_plot(plain)
    (axes,) = [axes for axes in figure.axes if axes.get_xlabel() == "cost, owned [$M]"]
    ends = {round(patch.get_x() + patch.get_width(), 6) for patch in axes.patches}
    bar = plain["outputs"]["cost_owned_usd"]["tornado"]["mfu"]
    assert {round(bar[end]["median"] / 1e6, 6) for end in ("at_5", "at_95")} <= ends


def test_small_estimates_are_no_negative_numbers():
    cell = sensitivity_text._cell
    assert cell({"S1": -0.001, "S1_interval_90": [-0.004, 0.002]}, "S1") == "≈0"
    assert cell({"S1": 0.03, "S1_interval_90": [-0.05, 0.11]}, "S1") == "≈0 (at most 0.11)"
    assert cell({"S1": 0.31, "S1_interval_90": [0.30, 0.32]}, "S1") == "0.31 (0.30 – 0.32)"
    assert cell({"S1": None, "S1_interval_90": [None, None]}, "S1") == "unknown"
    assert np.isfinite(float(cell({"S1": 0.5, "S1_interval_90": [None, None]}, "S1")))


def test_draws_that_are_not_kept_leave_the_indices_alone(monkeypatch):
    wanted = Wanted(outputs=("cost_rented_usd",), tornado=False, second_order=True)
    whole = run_sensitivity("llama-3-70b", (), wanted, samples=2**11, with_files=False)
    monkeypatch.setattr(sensitivities, "KEPT_DRAWS", 2**10)
    few = run_sensitivity("llama-3-70b", (), wanted, samples=2**11, with_files=False)
    one, other = (found["outputs"]["cost_rented_usd"] for found in (whole, few))
    assert one["interval_90"] != other["interval_90"]
    for key in one["inputs"]:
        # The centre of the sums comes from other draws: the same numbers but for rounding.
        assert other["inputs"][key]["ST"] == pytest.approx(one["inputs"][key]["ST"], rel=1e-9, abs=1e-12)
