"""The command calibrate: what moved, packs, gates, surprises, and scenarios that use a pack."""

# Fixtures are imported, and then named by arguments.
# ruff: noqa: F401, F811

import json
import time

import numpy as np
import pytest
from click.testing import CliRunner
from team_runs import MOVED, RUNS, folder, made, plan, result, table

from gpustack_mc import (
    calibration,
    calibration_text,
    catalog,
    checking,
    cli,
    pack,
    priors,
    refitting,
    surprise,
)
from gpustack_mc.efficiency import draws
from gpustack_mc.errors import GpustackError, InputError
from gpustack_mc.fits.utilization_predict import Evidence
from gpustack_mc.scenario import load_scenario


def invoke(*arguments):
    with pytest.raises(SystemExit) as stop:
        cli.main([str(argument) for argument in arguments])
    return stop.value.code


def ends(item):
    return priors.quantiles(item.marginal, [0.05, 0.5, 0.95])


# ---- what is learned ------------------------------------------------------------------------------------------------
def test_every_input_that_was_measured_moves_and_says_so(plan, made):
    before, after = load_scenario(plan).inputs, load_scenario(plan, priors=made).inputs
    moved = {key for key in after if after[key].origin == "calibrated"}
    assert moved == set(MOVED)
    for name in MOVED:
        low, _, high = ends(after[name])
        assert high - low < np.diff(ends(before[name])[[0, 2]])[0]
        shown = f"{priors.quantiles(before[name].marginal, [0.5])[0]:.3g}"
        assert "shipped prior" in after[name].prior, shown
        assert after[name].sources[0].title.startswith("my_runs.csv")
        assert not after[name].missed
    for key in set(before) - moved:
        assert after[key] == before[key]
    # the user's rows lie at 0.80 to 0.87 of TDP, 450 and 470 W, 2.1 USD/h
    assert 0.75 < ends(after["gpu_power_fraction"])[1] < 0.88
    assert 430 < ends(after["host_power"])[1] < 475
    assert ends(after["rental_price"])[1] < ends(before["rental_price"])[1]


def test_an_input_that_the_scenario_states_wins(plan, made):
    inputs = load_scenario(plan, ["pue=1.4", "mfu=0.3"], made).inputs
    assert (inputs["pue"].origin, inputs["mfu"].origin) == ("entered", "entered")
    assert inputs["goodput"].origin == "calibrated"


def test_a_measurement_speaks_of_its_own_population_only(plan, made):
    inputs = load_scenario(plan, ["site.region=FR", "cluster.accelerator=B200"], made).inputs
    assert inputs["electricity_price"].origin == "fitted"  # paid in Texas
    assert inputs["rental_price"].origin == "fitted"  # of H100
    assert inputs["gpu_power_fraction"].origin == "calibrated"  # one population of all GPUs
    assert inputs["mfu"].origin == "calibrated"


def test_facts_that_a_row_does_not_state_are_those_of_the_scenario(plan, folder):
    path = folder / "prices.csv"
    path.write_text("electricity_price\n0.04\n", encoding="utf-8")
    calibration.write(calibration.calibrate(path), folder / "prices")
    for region in ("US-TX", "FR", "CA-QC"):
        inputs = load_scenario(plan, [f"site.region={region}"], folder / "prices").inputs
        assert inputs["electricity_price"].origin == "calibrated"
        assert inputs["mfu"].origin == "fitted"  # a partial pack


def test_a_value_that_is_stated_again_counts_once(result):
    prices = [item for item in result.measurements if item.quantity == "electricity_price"]
    assert [item.count for item in prices] == [2]
    assert result.table.unused == []


def test_it_power_alone_tells_host_power(plan, folder):
    path = folder / "it.csv"
    path.write_text("accelerator,it_power_w_per_accelerator\nH100,1190\nH100,1200\nH100,1210\n", encoding="utf-8")
    calibration.write(calibration.calibrate(path), folder / "it")
    before, after = load_scenario(plan).inputs, load_scenario(plan, priors=folder / "it").inputs
    board = 700 * ends(before["gpu_power_fraction"])[1]
    expected = 1200 - board
    assert ends(before["host_power"])[1] < ends(after["host_power"])[1] < expected + 5
    assert after["gpu_power_fraction"].origin == "fitted"


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ("goodput\n0.95\n", "goodput"),
        ("capex\n60000\n", "capex"),
        ("serving_throughput,params_active\n3000,7e9\n", "serving_throughput"),
    ],
)
def test_rows_that_leave_the_population_open_are_learned_and_this_is_said(plan, folder, capsys, content, name):
    """The scenario says which hardware the price is of; the table alone has nothing to show."""
    path, out = folder / "open.csv", folder / f"open-{name}"
    path.write_text(content, encoding="utf-8")
    assert invoke("calibrate", path, "--out", out) == 0
    said = capsys.readouterr().out
    assert f"note: {name} was learned, and no population is shown" in said
    assert "what moved" not in said.replace("\n    ", " ")
    before, after = (load_scenario(plan, priors=pack).inputs[name] for pack in (None, out))
    assert after.origin == "calibrated"
    assert ends(after)[2] / ends(after)[0] < ends(before)[2] / ends(before)[0]


def test_it_power_that_leaves_nothing_for_the_host_is_named(folder):
    path = folder / "low.csv"
    path.write_text("accelerator,it_power_w_per_accelerator\nH100,60\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"low.csv:2: .* IT power 60 W leaves -5[0-9.]+ W for the host"):
        calibration.calibrate(path)


def test_clean_accounting_holds_with_a_pack(plan, made):
    clean = load_scenario(plan, ["accounting=clean"], made).inputs
    usual = load_scenario(plan, priors=made).inputs
    # the user's totals are exact, so that both count hours alike
    np.testing.assert_allclose(ends(clean["goodput"]), ends(usual["goodput"]))


def test_more_runs_than_the_fit_takes_are_thinned_and_this_is_said(folder, monkeypatch):
    options = pack.options() | {"most_runs": 5}
    monkeypatch.setattr(pack, "options", lambda: options)
    path = folder / "many.csv"
    rows = [f"r{i},7e9,1e12,H100,{42000 + 100 * i}" for i in range(20)]
    path.write_text("run_id,params,tokens,accelerator,accelerator_hours\n" + "\n".join(rows) + "\n", encoding="utf-8")
    found = calibration.calibrate(path)
    assert len(found.utilization.evidence) == 5
    assert "5 of 20 runs" in found.table.notes[-1]
    assert len(found.table.runs) == 20


# ---- the gate -------------------------------------------------------------------------------------------------------
def far_runs(folder):
    path = folder / "far.csv"
    rows = [f"r{i},{n:g},1e12,A100,{6 * n * 1e12 / (0.02 * 3600 * 312e12):.6g}" for i, n in enumerate((1e8, 1e9, 1e10))]
    path.write_text("run_id,params,tokens,accelerator,accelerator_hours\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


class _Fit:
    """A new sampling that is the shipped one."""

    def __init__(self, **diagnostics):
        from gpustack_mc.fits.draws_file import read_columns

        text = (catalog.folder("priors") / "utilization" / "draws.csv").read_text(encoding="utf-8")
        self.columns = read_columns(text)
        self.constants = catalog.fit_record("utilization")["constants"]
        self.diagnostics = {"r_hat": 1.002, "ess_bulk": 700, "ess_tail": 800, "divergences": 0} | diagnostics


def test_few_effective_draws_ask_for_a_new_sampling(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(
        calibration.utilization_team, "refit", lambda rows, evidence, *_: asked.append((rows, evidence)) or _Fit()
    )
    told = []
    found = calibration.calibrate(far_runs(folder), told.append)
    assert found.utilization.method == "NUTS"
    assert len(asked[0][1]) == 3
    assert all(row["use"] == "yes" for row in asked[0][0])
    assert "sampling the posterior anew" in told[0]
    about = calibration.record(found)
    assert "sampled anew: R-hat 1.002" in calibration_text.text(about, None)


@pytest.mark.parametrize(
    "bad", [{"r_hat": 1.2}, {"ess_bulk": 20}, {"ess_tail": 20}, {"divergences": 7}], ids=lambda bad: next(iter(bad))
)
def test_bad_diagnostics_exit_3_and_say_what_to_do(folder, monkeypatch, capsys, bad):
    monkeypatch.setattr(calibration.utilization_team, "refit", lambda *_: _Fit(**bad))
    out = folder / f"out-{next(iter(bad))}"
    assert invoke("calibrate", far_runs(folder), "--out", out) == 3
    said = capsys.readouterr().err
    assert "raise refit_warmup and refit_samples" in said
    assert not (out / "pack.json").exists()


# ---- surprises ------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_run_that_was_surprising_is_named(folder, result):
    path = folder / "odd.csv"
    path.write_text(RUNS + "slow,7e9,1.5e12,H100,256,900000,,,,,,,,,2025,US-TX\n", encoding="utf-8")
    found = calibration.calibrate(path)
    named = [item for item in found.surprises if item.run_id == "slow"]
    assert named
    assert named[0].tail < 0.01
    assert "above its" in named[0].text  # its hours are
    assert not [item for item in result.surprises if item.run_id == "b-7b"]


def test_surprising_hours_are_told_from_usual_ones():
    fit = catalog.fit_record("utilization")
    plan = {
        "params_active": 7e9, "tokens": 2e12, "generation": "hopper", "peak_16bit_flop_per_s": 989e12,
        "n_accelerators": 512, "architecture": "dense", "precision": "bf16", "publication_date": "2026-01",
    }  # fmt: skip
    evidence = [Evidence(plan, "total", float(np.log(u)), run=str(u)) for u in (0.02, 0.3)]
    names = {item.run: f"run at {item.run}" for item in evidence}
    (found,) = surprise.of_runs(draws(), evidence[:1], names, fit["constants"], fit["settings"], 0.01)
    assert (found.run_id, found.tail < 0.01) == ("run at 0.02", True)
    assert "above its" in found.text  # its hours are
    assert surprise.of_runs(draws(), evidence[1:], names, fit["constants"], fit["settings"], 0.01) == []


def test_probabilities_of_runs_are_uniform_under_the_program():
    """Runs drawn from the shipped draws themselves."""
    fit = catalog.fit_record("utilization")
    plan = {
        "params_active": 7e9, "tokens": 2e12, "generation": "hopper", "peak_16bit_flop_per_s": 989e12,
        "n_accelerators": 512, "architecture": "dense", "precision": "bf16", "publication_date": "2026-01",
        "activation_recompute": "none", "flash_attention": "yes",
    }  # fmt: skip
    mean, noise, unknown = surprise.observations(
        draws(), [Evidence(plan, "compute_only", 0.0)], fit["constants"], fit["settings"]
    )
    generator = np.random.default_rng(0)
    p = draws().scalar
    pick = generator.integers(0, mean.shape[1], 400)
    slope = (np.log10(7e9 / fit["settings"]["saturating_params"]) * p["family_slope_sd"]) ** 2
    sd = np.sqrt(noise + unknown + p["family_sd"] ** 2 + slope + p["run_sd"] ** 2)[0, pick]
    values = mean[0, pick] + sd * generator.normal(size=400)
    evidence = [Evidence(plan, "compute_only", float(value)) for value in values]
    pits = surprise.pit_of_runs(draws(), evidence, fit["constants"], fit["settings"])
    # Kolmogorov's 1% point for 400 values is 0.081
    grid = np.arange(1, 401) / 400
    assert np.abs(np.sort(pits) - grid).max() < 0.081


def test_measurements_far_out_are_named_alone_and_together():
    found = surprise.of_measurements("pue", [("a", 3.2, 1), ("b", 0.1, 1)], 0.78, 0.01)
    assert [item.run_id for item in found] == ["a", ""]
    assert found[0].tail == pytest.approx(0.00137, rel=0.01)  # two-sided normal tail of 3.2
    assert not surprise.of_measurements("pue", [("a", 1.0, 1), ("b", 0.8, 5)], 0.78, 0.01)


# ---- the command ----------------------------------------------------------------------------------------------------
def test_what_is_printed(table, folder, capsys):
    assert invoke("calibrate", table, "--out", folder / "printed") == 0
    said = capsys.readouterr().out
    assert said.startswith("3 runs used, 1 not:")
    assert "line 5: accelerator_hours is 0: it must be above zero." in said
    for name in ("effective utilization", *MOVED):
        assert name in said
    assert "shipped prior" in said
    assert "with your runs" in said
    assert "--priors" in said
    assert "For a run like c-13b expect" in said
    assert all(len(line) <= 120 or "/" in line for line in said.splitlines())


def test_json(table, capsys):
    assert invoke("calibrate", table, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows_used"] == 3
    assert found["files"] == []
    entry = found["inputs"]["host_power"]
    assert entry["measurements"] == 2
    assert entry["before"]["interval_90"][0] < entry["after"]["interval_90"][0]
    assert found["utilization"]["observations"] == {"total": 1, "compute_only": 1, "mfu": 2, "goodput": 1}


@pytest.mark.parametrize("arguments", [[], ["x.csv", "--refit"]])
def test_a_table_or_refit(arguments, capsys):
    assert invoke("calibrate", *arguments) == 2
    assert "--columns" in capsys.readouterr().err


def test_bad_input_is_json_with_json(tmp_path, capsys):
    path = tmp_path / "runs.csv"
    path.write_text("run_id,pue\na,0.5\n", encoding="utf-8")
    assert invoke("calibrate", path, "--json") == 2
    error = json.loads(capsys.readouterr().err)["error"]
    assert (error["code"], error["where"]["line"]) == ("no-usable-row", 2)


def test_columns_are_listed(capsys):
    found = CliRunner().invoke(cli.cli, ["calibrate", "--columns", "--json"])
    assert {"accelerator_hours", "electricity_price"} <= {row["column"] for row in json.loads(found.output)}


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", "{plan}", "--vary", "ownership=own,rent", "--no-files"),
        ("sites", "{plan}", "--regions", "US-TX,CA-QC", "--no-files"),
        ("solve", "{plan}", "--for", "count", "--deadline", "14d"),
        ("measure", "{plan}"),
        ("explain", "{plan}", "accelerator_hours"),
        ("cite", "{plan}"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_every_question_is_answered_with_a_pack(plan, made, capsys, arguments):
    command = [argument.format(plan=plan) for argument in arguments] + ["--samples", "4096", "--json"]
    assert invoke(*command) == 0
    shipped = json.loads(capsys.readouterr().out)
    assert invoke(*command, "--priors", made) == 0
    assert json.loads(capsys.readouterr().out) != shipped
    # That the pack was read, and did not merely stir the draws: without the folder there is no answer.
    assert invoke(*command, "--priors", made / "nowhere") == 2
    assert json.loads(capsys.readouterr().err)["error"]["code"] == "no-pack"


def test_solving_with_a_pack_holds_what_run_says_with_it(plan, made, capsys):
    deadline = ("--deadline", "14d", "--samples", "4096", "--json", "--priors", made)
    assert invoke("solve", plan, "--for", "count", *deadline) == 0
    count = json.loads(capsys.readouterr().out)["solutions"][0]["value"]
    assert invoke("run", plan, "--set", f"cluster.count={count:g}", "--no-files", *deadline) == 0
    answers = json.loads(capsys.readouterr().out)["questions"]
    # The same draws: the smallest whole number of accelerators at which the chance is 90%, one step is below 0.5%.
    assert answers["deadline"]["probability"] == pytest.approx(0.9, abs=0.005)


def test_scenarios_whose_utilisation_is_tied_differently_are_paired(plan, made, capsys):
    assert invoke("compare", plan, "--vary", "cluster.count=512,4096", "--no-files", "--priors", made) == 0
    assert "mfu+goodput" in capsys.readouterr().out


def test_a_result_has_its_own_priors(tmp_path, made, capsys):
    assert invoke("cite", tmp_path / "result.nc", "--priors", made) == 2
    assert "--priors changes a scenario" in capsys.readouterr().err


def test_check_says_what_was_calibrated(plan, made):
    found = checking.assumptions(plan, calibration=made)
    assert found["inputs"]["mfu"]["origin"] == "calibrated"
    assert "calibrated: on your 3 runs; shipped prior" in checking.text(found)


def test_ten_runs_take_seconds(folder):
    path = folder / "ten.csv"
    rows = [f"r{i},{(1 + i) * 1e9:g},1e12,H100,{(1 + i) * 6100 * (1 + 0.02 * (i % 3)):g}" for i in range(10)]
    path.write_text("run_id,params,tokens,accelerator,accelerator_hours\n" + "\n".join(rows) + "\n", encoding="utf-8")
    start = time.process_time()
    found = calibration.calibrate(path)
    assert found.utilization.method == "importance weights"
    assert time.process_time() - start < 60  # measured about 1 s of processor time


# ---- shipped priors -------------------------------------------------------------------------------------------------
def test_refit_needs_a_checkout(monkeypatch, tmp_path):
    monkeypatch.setattr(catalog, "folder", lambda name: tmp_path / name)
    with pytest.raises(InputError, match="in a checkout only"):
        refitting.refit_all(False, print)


def test_refit_calls_every_fit_and_stops_at_bad_diagnostics(monkeypatch, root):
    from gpustack_mc.fits import refit, utilization_fit

    called = []
    sound = {"populations": [], "problem": None, "diagnostics": {"r_hat": 1.0}}
    monkeypatch.setattr(refit, "refit", lambda quantity, root=None: called.append(quantity) or sound)
    good = {"problem": None, "diagnostics": {}, "seconds": 1.0}
    monkeypatch.setattr(utilization_fit, "refit", lambda folder, seed=0: called.append(folder.name) or good)
    said = refitting.refit_all(False, lambda line: None)
    assert called[-1] == "utilization"
    assert {"pue", "host_power", "rental_price"} <= set(called)
    assert f"{len(called)} priors refitted" in said
    bad = good | {"problem": "R-hat 1.200: the chains disagree; raise warmup and samples in prior.yaml"}
    monkeypatch.setattr(utilization_fit, "refit", lambda folder, seed=0: bad)
    with pytest.raises(GpustackError, match="R-hat") as caught:
        refitting.refit_all(False, lambda line: None)
    assert caught.value.exit_code == 3


def test_sentence_says_how_far_an_input_moved():
    def entry(low, median, high, rows):
        before = {"median": 1.0, "interval_90": [0.5, 2.0]}
        return {"before": before, "after": {"median": median, "interval_90": [low, high]}, "measurements": rows}

    # On a log scale 0.5 to 2 has the width log 4: 1 to 2 has half of it, 2 to 8 all of it.
    assert calibration_text.sentence("pue", entry(1.0, 1.25, 2.0, 1)) == (
        "pue: 1 row of yours moves its median up by 25%, inside the shipped 90% interval; the new one is 50% as wide."
    )
    assert calibration_text.sentence("pue", entry(2.0, 4.0, 8.0, 3)) == (
        "pue: 3 rows of yours move its median up by 300%, outside the shipped 90% interval; the new one is as wide as "
        "before."
    )
    assert "2 rows of yours leave its median where it was, inside" in calibration_text.sentence(
        "pue", entry(0.9, 1.001, 1.1, 2)
    )
    assert "move its median down by 40%" in calibration_text.sentence("pue", entry(0.4, 0.6, 1.1, 2))
