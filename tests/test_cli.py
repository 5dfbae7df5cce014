"""The command line as a user meets it: outputs, files, exit codes, one-line errors."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from gpustack_mc.cli import main
from gpustack_mc.quantities import BY_NAME, INPUTS, OUTPUTS

GOOD = """\
schema_version: 1
name: Test
workload: {params: 7e9, tokens: 2e12}
cluster: {accelerator: H100-SXM-80GB, count: 1024}
site: {region: US}
"""
QUICK = ["--samples", "1024"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("GPUSTACK_MC_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def invoke(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return stop.value.code, out, err

    return call


def test_run_writes_the_named_files(invoke, scenario_file, tmp_path):
    code, out, err = invoke("run", scenario_file(GOOD, "my plan.yaml"), *QUICK, "--no-plots")
    assert code == 0 and err == ""
    folder = tmp_path / "reports" / "my-plan"
    assert sorted(os.listdir(folder)) == ["result.nc", "summary.json"]
    assert "reports/my-plan/result.nc" in out
    assert json.loads((folder / "summary.json").read_text())["outputs"]["training_days"]["median"] > 0


def test_run_draws_the_pictures(invoke, scenario_file, tmp_path):
    code, _, _ = invoke("run", scenario_file(GOOD), *QUICK, "--out", tmp_path / "here", "-q", "--input-plot")
    assert code == 0
    pictures = [name for name in sorted(os.listdir(tmp_path / "here")) if name.endswith(".png")]
    assert pictures == ["inputs.png", "intervals.png", "sensitivity.png"]
    assert all((tmp_path / "here" / name).read_bytes().startswith(b"\x89PNG") for name in pictures)


def test_json_is_one_object_and_quiet_is_silent(invoke, scenario_file):
    path = scenario_file(GOOD)
    code, out, err = invoke("run", path, *QUICK, "--json", "--no-files")
    assert code == 0 and err == ""
    found = json.loads(out)
    assert set(found["outputs"]) == set(OUTPUTS) and found["files"] == []
    assert invoke("run", path, *QUICK, "--quiet", "--no-files") == (0, "", "")


def test_seed_zero_is_a_seed(invoke, scenario_file):
    path = scenario_file(GOOD)
    found = {}
    for seed in ("0", "1"):
        _, out, _ = invoke("run", path, *QUICK, "--json", "--no-files", "--seed", seed)
        found[seed] = json.loads(out)["outputs"]["training_days"]["mean"]
    _, again, _ = invoke("run", path, *QUICK, "--json", "--no-files", "--seed", "0")
    assert json.loads(again)["outputs"]["training_days"]["mean"] == found["0"] != found["1"]


def test_shipped_scenarios_by_name(invoke):
    code, out, _ = invoke("check", "worked-70b")
    assert code == 0 and "the scenario is sound" in out
    assert invoke("check", "scenarios/worked-70b.yaml")[0] == 0


def test_standard_input(scenario_file):
    done = subprocess.run(
        [sys.executable, "-m", "gpustack_mc.cli", "check", "-"], input=GOOD, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "Test: the scenario is sound" in done.stdout
    wrong = GOOD.replace("7e9", "-1")
    done = subprocess.run(
        [sys.executable, "-m", "gpustack_mc.cli", "check", "-"],
        input=wrong,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == (
        "<stdin>:3:20: workload.params: -1 is below 10000. "
        "No model has fewer than 10,000 or more than 1e16 parameters; 7 billion is written 7e9.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "none.yaml"], "none.yaml: there is no such file."),
        (["run", "."], ".: this is a folder, not a scenario."),
        (["run"], "Missing argument 'SCENARIO'"),
        (["run", "worked-70b", "--samples", "many"], "'many' is not a valid integer"),
        (["run", "worked-70b", "--seed", "-1"], "-1 is not in the range"),
        (["run", "worked-70b", "--design", "magic"], "'magic' is not one of"),
        (["run", "worked-70b", "--nonsense"], "No such option"),
        (["sweep", "grid.yaml", "--no-files"], "--no-plots'? See `"),
        (["runn"], "No such command 'runn'"),
        (["priors", "show", "mffu"], "there is no prior 'mffu'. Did you mean mfu"),
        (["priors", "show", "rental_price", "--where", "chip=H100"], "told by 'chip'. Known: accelerator, term"),
        (["priors", "show", "rental_price", "--where", "accelerator=H10"], "with accelerator 'H10'. Did you mean"),
        (["priors", "show", "mfu", "--where", "year=2024"], "no population of mfu is told by 'year'. Leave it out"),
        (["check", "worked-70b", "--set", "mfu=38"], "--set mfu=38: inputs.mfu: 38 is above 1"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(invoke, arguments, message):
    code, out, err = invoke(*arguments)
    assert code == 2 and out == ""
    assert message in err
    assert len(err.splitlines()) == 1 and "Traceback" not in err


def test_errors_as_json(invoke, scenario_file, tmp_path):
    path = scenario_file(GOOD + "inputs: {mfu: 38}\n")
    code, out, err = invoke("run", path, "--json")
    assert code == 2 and out == ""
    error = json.loads(err)["error"]
    assert error["code"] == "out-of-bounds"
    assert error["where"] == {"file": str(path), "line": 6, "column": 15}
    assert "38 is above 1" in error["message"] and "0.38" in error["fix"]
    assert not (tmp_path / "reports").exists()
    assert json.loads(invoke("run", "--json")[2])["error"]["code"] == "usage"


def test_check_lists_every_error(invoke, scenario_file):
    code, _, err = invoke("check", scenario_file(GOOD + "inputs: {mfu: 38, pue: 0.9}\n"))
    assert code == 2
    assert len(err.splitlines()) == 2


def test_results_that_cannot_be_written(invoke, scenario_file, tmp_path):
    (tmp_path / "out").write_text("mine")
    code, out, err = invoke("run", scenario_file(GOOD), *QUICK, "--out", tmp_path / "out")
    assert code == 1 and out == ""
    assert "cannot write" in err and len(err.splitlines()) == 1
    assert (tmp_path / "out").read_text() == "mine"


def test_lists(invoke):
    _, out, _ = invoke("quantities", "--json")
    assert {row["name"] for row in json.loads(out)} == set(BY_NAME)
    _, out, _ = invoke("priors", "list", "--json")
    assert [row["prior"] for row in json.loads(out)] == list(INPUTS)
    _, out, _ = invoke("accelerators", "--json")
    assert len(json.loads(out)) == 33
    _, out, _ = invoke("regions", "quebec")
    assert "CA-QC" in out
    _, out, _ = invoke("scenarios")
    assert "llama-3-70b" in out


@pytest.mark.parametrize("name", INPUTS)
def test_every_prior_can_be_shown(invoke, name):
    code, out, _ = invoke("priors", "show", name)
    assert code == 0
    assert "sources" in out and "http" in out


def test_populations_of_a_prior_are_chosen(invoke):
    _, out, _ = invoke(
        "priors", "show", "rental_price", "--where", "accelerator=H100", "--where", "year=2026", "--json"
    )
    wheres = [population["where"] for population in json.loads(out)["populations"]]
    assert wheres and all((w["accelerator"], w["year"]) == ("H100", "2026") for w in wheres)
    _, out, _ = invoke("priors", "show", "rental_price", "--where", "accelerator=H100", "--where", "year=2026")
    assert "sources" not in out and len(out.splitlines()) == len(wheres) + 3


def test_completion_as_click_gives_it():
    environment = os.environ | {"_GPUSTACK_MC_COMPLETE": "bash_source"}
    done = subprocess.run(
        ["gpustack-mc"], env=environment, capture_output=True, text=True, check=False, shell=False,
        executable=os.path.join(os.path.dirname(sys.executable), "gpustack-mc"),
    )  # fmt: skip
    assert "_gpustack_mc_completion" in done.stdout


def test_interrupt_exits_130(invoke, scenario_file, monkeypatch, tmp_path):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("gpustack_mc.run.simulate", interrupted)
    code, out, err = invoke("run", scenario_file(GOOD), *QUICK, "--out", tmp_path / "out")
    assert code == 130 and out == ""
    assert err.strip() == "interrupted; nothing was written"
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_device_is_told_as_json_too():
    command = [sys.executable, "-m", "gpustack_mc.cli", "quantities", "--json"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    error = json.loads(done.stderr)["error"]
    assert error["code"] == "cannot-write" and error["fix"]


@pytest.mark.parametrize("command", ["solve", "measure"])
def test_decisions_answer_as_text_and_json(invoke, command):
    options = {"solve": ["--for", "count", "--deadline", "60 d"], "measure": []}[command]
    arguments = [command, "llama-3-70b", "--samples", "4096", *options]
    code, text, _ = invoke(*arguments)
    assert code == 0
    found = json.loads(invoke(*arguments, "--json")[1])
    assert found["name"] == "Llama 3 70B"
    if command == "solve":
        assert f"{found['solutions'][0]['value']:,.0f}" in text


def test_an_unreachable_limit_is_one_line_and_exit_code_2(invoke):
    arguments = ["solve", "llama-3-70b", "--for", "count", "--energy-cap", "1 MWh", "--samples", "4096"]
    code, out, err = invoke(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("no count from 9 to 8,192,000 gives a 90% chance of energy at most 1 MWh")
    assert err.count("\n") == 1
    assert json.loads(invoke(*arguments, "--json")[2])["error"]["code"] == "unreachable"


def interrupted_when(tmp_path, condition):
    """Start a run into a new folder, press Ctrl-C once `condition` holds, and return exit code, stderr and folder."""
    folder = tmp_path / "new" / "out"
    command = [sys.executable, "-m", "gpustack_mc", "run", "nanochat", "--samples", "1024", "-o", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not condition(folder):
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    return process.communicate()[1], process.returncode, folder


@pytest.mark.parametrize("when", ["the folder is made", "files are written"])
def test_control_c_leaves_nothing_unfinished(tmp_path, when):
    def condition(folder):
        pattern = "*" if when == "the folder is made" else ".gpustack-mc-report*"
        return any(folder.glob(pattern)) or (when == "the folder is made" and folder.exists())

    said, code, folder = interrupted_when(tmp_path, condition)
    assert (said.strip(), code) == ("interrupted; nothing was written", 130)
    assert not folder.parent.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--samples", "0"], "--samples 0 is below 256"),
        (["--samples", "1"], "--samples 1 is below 256"),
        (["--samples", "1000000000000"], "would take about"),
        (["--tolerance", "0"], "--tolerance 0 is not between 0 and 1"),
        (["--tolerance", "-0.1"], "--tolerance -0.1 is not between 0 and 1"),
        (["--tolerance", "nan"], "--tolerance nan is not between 0 and 1"),
        (["--tolerance", "0.01", "--design", "lhs"], "a Latin hypercube of twice the size is another one"),
    ],
)
def test_bad_sizes_are_one_line(options, said, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["run", "llama-3-70b", "--no-files", *options])
    lines = capsys.readouterr().err.splitlines()
    assert (stop.value.code, len(lines)) == (2, 1)
    assert said in lines[0]


def test_samples_that_are_rounded_up_are_said(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["run", "llama-3-70b", "--no-files", "--json", "--samples", "300"])
    found = json.loads(capsys.readouterr().out)
    assert not stop.value.code
    assert found["samples"] == 512
    assert "300 samples are rounded up to 512, as sobol points need" in found["notes"]


def test_a_run_without_files_loads_neither_xarray_nor_pandas():
    program = (
        "import sys\nfrom gpustack_mc.cli import main\ntry:\n    main(['run', 'llama-3-70b', '--no-files', '--json', "
        "'--samples', '256'])\nexcept SystemExit as stop:\n    assert not stop.code\nprint(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"xarray", "pandas", "arviz", "matplotlib", "h5py", "scipy.stats"} & set(
        done.stdout.splitlines()[-1].split()
    )


INTERRUPTED_IMPORT = """
import os, signal, sys
from gpustack_mc import interruption
interruption.arm()
open("slow.py", "w").write("import os, signal\\nos.kill(os.getpid(), signal.SIGINT)\\nprint('never')")
sys.path.insert(0, "")
import slow
"""


def test_an_interruption_in_the_middle_of_an_import_ends_at_once(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "interrupted; nothing was written\n", 130)
