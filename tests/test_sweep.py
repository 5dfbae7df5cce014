"""Sweeps end to end: the numbers of single runs, in one compilation, whatever interrupts them."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from gpustack_mc import answering, sweep_engine, sweep_figures, sweep_model, sweep_store, sweep_zarr
from gpustack_mc import sweep as sweeps
from gpustack_mc.design import make_design
from gpustack_mc.errors import GpustackError, InputError
from gpustack_mc.propagation import simulate
from gpustack_mc.result import to_datatree
from gpustack_mc.scenario import load_scenario
from gpustack_mc.sweep import run_sweep
from gpustack_mc.sweep_statistics import Summarizer
from gpustack_mc.sweep_store import InterruptedSweep
from gpustack_mc.tallies import PROBABILITIES

# MFU is stated, so that not even its table differs from that of a single run.
SPEC = """
schema_version: 1
name: Grid
base: llama-3-70b
axes:
  inputs.mfu: [0.4, {low: 0.3, high: 0.5}]
  cluster.count: {from: 1024, to: 16384, points: 5, scale: log}
  site.region: [US, FR]
"""
CHUNK = 8


@pytest.fixture
def spec(tmp_path):
    def write(text: str = SPEC) -> Path:
        path = tmp_path / "grid.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(sweep_engine, "CHUNK", CHUNK)
    monkeypatch.setattr(sweeps, "CHUNK", CHUNK)


def run(path, out, **more):
    return run_sweep(path, samples=256, seed=1, out=out, **{"with_plots": False} | more)


def contents(folder: Path) -> dict[str, bytes]:
    # The summary names the files by their folder.
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.name != "sweep.json"}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A sweep with everything: (dataset, folder, summary)."""
    folder = tmp_path_factory.mktemp("sweep")
    path = folder / "grid.yaml"
    path.write_text(SPEC, encoding="utf-8")
    out = folder / "out"
    found = run_sweep(path, samples=256, seed=1, out=out, sensitivity=True, draws=True)
    with xr.open_dataset(out / "sweep.nc") as dataset:
        return dataset.load(), out, found


@pytest.mark.parametrize("number", [0, 7, 19])
def test_every_scenario_has_the_numbers_of_a_single_run(done, number):
    dataset = done[0].sel(scenario=number)
    coordinates = {key: dataset[key].item() for key in ("inputs.mfu", "cluster.count", "site.region")}
    problem = load_scenario("llama-3-70b", [f"{key}={value}" for key, value in coordinates.items()])
    one = simulate(problem, make_design(256, seed=1))
    tree = to_datatree(one)
    for k, name in enumerate(problem.outputs):
        if name not in dataset["output"]:
            continue
        row, expected = dataset["value"].sel(output=name), one.output_statistics
        np.testing.assert_allclose(dataset["draws"].sel(output=name), one.outputs[k], rtol=1e-12)
        for statistic, value in (("mean", expected.mean), ("sd", expected.sd), ("mean_error", expected.mean_error)):
            np.testing.assert_allclose(row.sel(statistic=statistic), value[k], rtol=1e-9)
        quantiles = row.sel(statistic=["q0.05", "q0.25", "q0.5", "q0.75", "q0.95"])
        np.testing.assert_allclose(quantiles, expected.quantiles[:, k], rtol=1e-12)
        blocks = [name for name in one.sensitivity.blocks]
        for index, values in (("S1", one.sensitivity.raw.first), ("ST", one.sensitivity.raw.total),
                              ("ST_lower", one.sensitivity.raw.total_low)):  # fmt: skip
            # Sums of squares are taken around another centre: eight digits of an index of up to 1.
            np.testing.assert_allclose(dataset[index].sel(output=name, input=blocks), values[:, k], atol=1e-8)
    for question, answer in answering.answers(tree).items():
        assert dataset["probability"].sel(question=question).item() == answer["probability"]
        error = dataset["probability_error"].sel(question=question).item()
        np.testing.assert_allclose(error, answer["monte_carlo_error"] or 0.0, rtol=1e-12)


def test_a_question_is_answered_for_the_scenarios_that_ask_it(spec, tmp_path):
    axes = "schema_version: 1\nbase: nanochat\naxes:\n  questions: [{budget: 100 USD}, {deadline: 0.2 d}]\n"
    run(spec(axes), tmp_path / "out")
    with xr.open_dataset(tmp_path / "out" / "sweep.nc") as dataset:
        found = dataset["probability"].load()
    for number, (asked, other, override) in enumerate([
        ("budget_rented", "deadline", "questions={budget: 100 USD}"),
        ("deadline", "budget_rented", "questions={deadline: 0.2 d}"),
    ]):  # fmt: skip
        tree = to_datatree(simulate(load_scenario("nanochat", [override]), make_design(256, seed=1)))
        answer = answering.answers(tree)[asked]["probability"]
        assert 0 < answer < 1
        # The MFU of a sweep is a table, which may put one draw in 256 on the other side.
        assert found[number].sel(question=asked).item() == pytest.approx(answer, abs=1.5 / 256)
        assert np.isnan(found[number].sel(question=other).item())


def test_errors_of_quantiles_are_those_of_replicates():
    """Against the spread of the quantiles of many independent samples, which is their true error."""
    generator = np.random.default_rng(5)
    errors, values = [], []
    for _ in range(200):
        y = np.exp(generator.normal(size=(1, 4096)))
        found = Summarizer(4096, 16).statistics(y)[0]
        values.append(found[3:8])
        errors.append(found[8:13])
    # 16 replicates tell a standard error to 18%, and the mean of 200 of them to 1.3%; 200 samples tell the truth to 5%:
    # 15% is three standard errors of both together.
    np.testing.assert_allclose(np.mean(errors, axis=0), np.std(values, axis=0), rtol=0.15)


def test_what_does_not_vary_has_no_spread():
    y = np.full((2, 256), 0.1)
    y[1] = 0.0
    found = Summarizer(256, 16).statistics(y)
    np.testing.assert_array_equal(found[:, 0], [0.1, 0.0])
    np.testing.assert_array_equal(found[:, [1, 2, 8, 9, 10, 11, 12]], 0.0)
    np.testing.assert_array_equal(found[:, 3:8], found[:, :1].repeat(5, axis=1))


@pytest.mark.parametrize("scale", [1.0, 1e100, 1e-100, -1.0])
@pytest.mark.parametrize("shape", ["wide", "mixed signs", "few values", "one far out"])
def test_quantiles_are_those_of_numpy(shape, scale):
    """Also beyond single precision, in which the draws are put in order first."""
    generator = np.random.default_rng(0)
    y = {
        "wide": generator.lognormal(sigma=8, size=(6, 1024)),
        "mixed signs": generator.normal(size=(6, 1024)),
        "few values": generator.choice([0.0, 1.0, 2.5], size=(6, 1024)),
        "one far out": np.concatenate([generator.normal(size=(6, 1023)), np.full((6, 1), 1e30)], axis=1),
    }[shape] * scale
    found, _, shares = Summarizer(1024, 16)._quantiles(y)
    np.testing.assert_allclose(found.T, np.quantile(y, PROBABILITIES, axis=-1), rtol=1e-12)
    below = y.reshape(6, 1, 16, 64) <= found[:, :, None, None]
    np.testing.assert_array_equal(shares, below.mean(axis=-1))


def test_one_compilation_whatever_the_values(spec, tmp_path):
    run(spec(), tmp_path / "first")
    before = sweep_model._propagate._cache_size()
    other = (
        SPEC.replace("0.4,", "0.2,")
        .replace("from: 1024", "from: 2048")
        .replace("FR", "SE")
        .replace("points: 5", "points: 9")
    )
    done = run(spec(other), tmp_path / "other")
    assert sweep_model._propagate._cache_size() == before and done.summary["scenarios"] == 36


def test_the_files_of_a_sweep(done):
    dataset, out, found = done
    assert dataset.sizes["scenario"] == 20 and not np.isnan(dataset["value"]).any()
    assert dataset["name"][3].item() == "0.4, 2,048, FR"
    assert dataset["cluster.count"].values.tolist()[:4] == [1024, 1024, 2048, 2048]
    with (out / "sweep.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 20 * dataset.sizes["output"]
    row = next(r for r in rows if r["scenario"] == "0.4, 2,048, FR" and r["output"] == "energy_mwh")
    wanted = dataset["value"].sel(scenario=3, output="energy_mwh", statistic="q0.95").item()
    assert float(row["q0.95"]) == pytest.approx(wanted, rel=1e-8) and row["unit"] == "MWh"
    assert json.loads((out / "sweep.json").read_text()) == found.summary
    assert sorted(p.name for p in out.iterdir()) == sorted(Path(f).name for f in found.summary["files"])
    for picture in ("intervals.png", "map.png", "pareto.png"):
        assert (out / picture).read_bytes().startswith(b"\x89PNG")
    assert "20 scenarios" in found.text and "0.4, 1,024, US" in found.text


# ---- what goes wrong ----------------------------------------------------------------------------------------------

_KILLED = """
import os, resource, signal, sys
from pathlib import Path
from gpustack_mc import sweep_engine, sweep as sweeps, sweep_store
sweep_engine.CHUNK = sweeps.CHUNK = {chunk}
write = sweep_store.Store.write
def die(self, number, chunk):
    write(self, number, chunk)
    if number == 1:
        (self.chunks / ".000002-half.npz").write_bytes(b"half a chunk")
        (self.chunks / "000004.npz").write_bytes(b"PK damaged")
        os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[3] == "kill":
    sweep_store.Store.write = die
else:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
from gpustack_mc.errors import GpustackError
try:
    sweeps.run_sweep(sys.argv[1], samples=256, seed=1, out=Path(sys.argv[2]), with_plots=False)
except GpustackError as error:
    sys.exit(str(error))
"""


def elsewhere(path, out, how):
    code = _KILLED.format(chunk=CHUNK)
    return subprocess.run([sys.executable, "-c", code, str(path), str(out), how], capture_output=True, text=True)


def test_a_killed_sweep_goes_on_and_ends_with_the_same_bytes(spec, tmp_path):
    path = spec(SPEC.replace("points: 5", "points: 10"))
    run(path, tmp_path / "whole")
    killed = elsewhere(path, tmp_path / "killed", "kill")
    assert killed.returncode == -9, killed.stderr
    assert not (tmp_path / "killed" / "sweep.nc").exists()
    computed = []
    store = sweep_store.Store.write
    try:
        sweep_store.Store.write = lambda self, number, chunk: (computed.append(number), store(self, number, chunk))
        run(path, tmp_path / "killed")
    finally:
        sweep_store.Store.write = store
    assert computed == [2, 3, 4]
    assert contents(tmp_path / "whole") == contents(tmp_path / "killed")


def test_a_full_disk_keeps_what_is_finished(spec, tmp_path):
    path = spec(SPEC.replace("points: 5", "points: 10"))
    run(path, tmp_path / "whole")
    # Chunks of 8 scenarios fit into 30 kB, the final file does not.
    failed = elsewhere(path, tmp_path / "full", "30000")
    assert failed.returncode == 1 and failed.stderr.count("\n") == 1
    assert "make room, and run the same command again" in failed.stderr and "File too large" in failed.stderr
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["chunks"]
    failed = elsewhere(path, tmp_path / "fuller", "5000")
    assert failed.returncode == 1 and "is kept" in failed.stderr
    run(path, tmp_path / "full")
    run(path, tmp_path / "fuller")
    assert contents(tmp_path / "whole") == contents(tmp_path / "full") == contents(tmp_path / "fuller")


def test_the_folder_of_another_sweep_is_not_touched(spec, tmp_path):
    out = tmp_path / "out"
    run(spec(), out)
    before = contents(out)
    with pytest.raises(InputError, match="another sweep"):
        run(spec(SPEC.replace("0.4", "0.41")), out)
    with pytest.raises(InputError, match="another sweep"):
        run_sweep(spec(), samples=256, seed=2, out=out)
    assert contents(out) == before
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "sweep.nc").write_text("mine")
    with pytest.raises(InputError, match="something else"):
        run(spec(), tmp_path / "foreign")


def test_the_folder_of_an_interrupted_other_sweep_is_not_touched(spec, tmp_path):
    elsewhere(spec(), tmp_path / "out", "kill")
    with pytest.raises(InputError, match="another sweep"):
        run(spec(SPEC.replace("0.4", "0.41")), tmp_path / "out")


def test_zarr_holds_the_numbers_of_netcdf_and_its_bytes_are_those_of_an_uninterrupted_sweep(
    spec, tmp_path, monkeypatch
):
    pytest.importorskip("zarr", reason="needs gpustack-mc[zarr]")

    def files(folder: Path) -> dict[str, bytes]:
        return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*"))
                if p.is_file() and p.name != "sweep.json"}  # fmt: skip

    path = spec()
    run(path, tmp_path / "netcdf")
    done = run(path, tmp_path / "whole", form="zarr")
    assert done.summary["files"][0].endswith("sweep.zarr") and not (tmp_path / "whole" / "sweep.nc").exists()
    with (
        xr.open_zarr(tmp_path / "whole" / "sweep.zarr", chunks=None) as zarr,
        xr.open_dataset(tmp_path / "netcdf" / "sweep.nc") as netcdf,
    ):
        assert zarr["value"].encoding["chunks"][0] == CHUNK
        # Texts come back as other types of texts.
        texts = {
            name: zarr[name].astype(netcdf[name].dtype) for name in zarr.variables if zarr[name].dtype.kind in "TU"
        }
        xr.testing.assert_equal(zarr.assign(texts), netcdf)
        other = {"sweep_sha256"}
        assert {k: v for k, v in zarr.attrs.items() if k not in other} == {
            k: v for k, v in netcdf.attrs.items() if k not in other
        }

    # Stopped while the store is written, after some of its parts.
    to_zarr = xr.Dataset.to_zarr

    def stopped(self, *arguments, **more):
        to_zarr(self, *arguments, **more)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(GpustackError, match=r"No space left on device.*is kept"):
        patched.setattr(xr.Dataset, "to_zarr", stopped)
        run(path, tmp_path / "again", form="zarr")
    assert [p.name for p in (tmp_path / "again").iterdir()] == ["chunks"]
    run(path, tmp_path / "again", form="zarr")
    assert files(tmp_path / "whole") == files(tmp_path / "again")
    with pytest.raises(InputError, match="other settings"):
        run(path, tmp_path / "whole")


@pytest.mark.parametrize("stop", ["the new store is written", "the new store takes its place"])
def test_a_zarr_store_that_is_replaced_stays_whole_until_the_new_one_stands(tmp_path, monkeypatch, stop):
    pytest.importorskip("zarr", reason="needs gpustack-mc[zarr]")

    def value(path: Path) -> float:
        with xr.open_zarr(path, chunks=None) as store:
            return float(store["value"][0])

    path = tmp_path / "sweep.zarr"
    old, new = (xr.Dataset({"value": ("scenario", [number])}) for number in (1.0, 2.0))
    sweep_zarr.write_zarr(old, path, 1)

    def full(self, *arguments, **more):
        if type(self) is xr.Dataset or self.name == ".sweep.zarr.part":
            raise OSError(28, "No space left on device")
        return rename(self, *arguments, **more)

    rename = Path.rename
    broken = (xr.Dataset, "to_zarr") if stop.endswith("written") else (Path, "rename")
    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space"):
        patched.setattr(*broken, full)
        sweep_zarr.write_zarr(new, path, 1)
    assert value(path) == 1
    # What a process leaves that was killed between the two steps, and after them.
    path.rename(tmp_path / ".sweep.zarr.old")
    sweep_zarr.write_zarr(new, path, 1)
    shutil.copytree(path, tmp_path / ".sweep.zarr.old")
    sweep_zarr.write_zarr(new, path, 1)
    assert value(path) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["sweep.zarr"]


def test_without_zarr_the_error_says_what_to_install(spec, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(InputError, match=r"gpustack-mc\[zarr\]"):
        run(spec(), tmp_path / "out", form="zarr")
    assert not (tmp_path / "out").exists()


def test_what_is_done_is_not_done_again(spec, tmp_path, monkeypatch):
    first = run(spec(), tmp_path / "out")
    monkeypatch.setattr(sweeps, "Engine", None)
    assert run(spec(), tmp_path / "out") == first


def test_ctrl_c_says_what_is_kept(spec, tmp_path, monkeypatch):
    compute = sweep_engine.Engine.compute

    def interrupted(self, wanted):
        yield next(compute(self, wanted))
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep_engine.Engine, "compute", interrupted)
    with pytest.raises(InterruptedSweep, match=r"8 of 20 scenarios are kept. Run the same command again") as found:
        run(spec(), tmp_path / "out")
    assert found.value.exit_code == 130


def test_one_bad_row_does_not_stop_the_others(tmp_path):
    header = "name,params,tokens,accelerator,count,region,date,pue,budget,accelerator_hours\n"
    rows = [f"run {i},7e9,{1 + i / 10}e12,H100,512,US,2026,1.2,1 MUSD,1e5\n" for i in range(30)]
    rows[11] = rows[11].replace("US", "Atlantis")
    rows[20] = rows[20].replace("1.2,", "0.8,")
    rows[21] = rows[21].replace(",7e9,", ",7,")
    path = tmp_path / "table.csv"
    path.write_text(header + "".join(rows), encoding="utf-8")
    done = run(path, tmp_path / "out")
    assert done.summary["ran"] == 27 and done.summary["skipped_count"] == 3
    reasons = {skip["line"]: skip["reason"] for skip in done.summary["skipped"]}
    assert list(reasons) == [13, 22, 23]
    assert "not a known region" in reasons[13] and "PUE is facility energy" in reasons[22] and "billions" in reasons[23]
    assert "Atlantis" in done.text and "line 13" in done.text
    with xr.open_dataset(tmp_path / "out" / "sweep.nc") as dataset:
        gone = np.isnan(dataset["value"]).all(("output", "statistic")).values
        assert dataset["line"].values[gone].tolist() == [13, 22]
        assert (dataset["reported"].sel(reported_output="accelerator_hours") == 1e5).all()
        assert list(dataset["question"].values) == ["budget_owned", "budget_rented"]
    with (tmp_path / "out" / "skipped.csv").open(newline="") as stream:
        assert [row["line"] for row in csv.DictReader(stream)] == ["13", "22", "23"]


def test_an_output_that_is_not_finite_is_told_of_its_scenario_alone(spec, tmp_path):
    tiny = "{dist: lognormal, mu: -600, sigma: 1}"
    text = SPEC.replace("site.region: [US, FR]", f"inputs.serving_throughput: [1000, {tiny}]")
    done = run(spec(text), tmp_path / "out", outputs="serving_usd_per_million_tokens")
    assert done.summary["skipped_count"] == 10 and done.summary["ran"] == 10
    assert "serving_usd_per_million_tokens is not finite" in done.text


def test_nothing_runs_when_no_scenario_can(spec, tmp_path):
    with pytest.raises(InputError, match=r"no scenario can be run; the first: .*Atlantis"):
        run(spec(SPEC.replace("[US, FR]", "[Atlantis]")), tmp_path / "out")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"samples": 100}, "not between 256"),
        ({"outputs": "cost"}, "no output 'cost'"),
        ({"draws": True, "samples": 2**17, "outputs": "all", "scale": True}, "would take"),
    ],
)
def test_options_out_of_range(spec, tmp_path, more, message):
    text = SPEC.replace("points: 5", "points: 500") if more.pop("scale", False) else SPEC
    with pytest.raises(GpustackError, match=message):
        run_sweep(spec(text), out=tmp_path / "out", **{"samples": 256} | more)


def test_a_folder_that_cannot_be_written(spec, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(GpustackError, match="cannot write"):
        run(spec(), tmp_path / "file" / "out")


# ---- pictures -----------------------------------------------------------------------------------------------------


def test_pareto_keeps_what_nothing_beats():
    values = np.array([[1, 5], [2, 3], [2, 4], [3, 3], [4, 1], [np.nan, 0], [5, 2]])
    assert sweep_figures.pareto(values).tolist() == [0, 1, 4]


def test_pictures_draw_the_numbers(done):
    dataset = done[0]
    figure = sweep_figures.interval_plot(dataset, "cost_owned_usd")
    axes = figure.axes[1]
    medians = dataset["value"].sel(output="cost_owned_usd", statistic="q0.5").values
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), medians)
    figure = sweep_figures.map_plot(dataset, "cost_owned_usd")
    image = figure.axes[0].images[0].get_array()
    np.testing.assert_array_equal(image, medians.reshape(2, 5, 2)[:, :, 0])


def test_many_scenarios_are_drawn_as_bands(done):
    many = xr.concat([done[0][["value"]]] * 25, "scenario", data_vars="all").assign_attrs(done[0].attrs)
    figure = sweep_figures.interval_plot(many, "energy_mwh")
    (line,) = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 500]
    assert (np.diff(line.get_ydata()) >= 0).all()


def test_the_command(spec, tmp_path):
    environment = os.environ | {"NO_COLOR": "1"}
    command = [sys.executable, "-m", "gpustack_mc", "sweep", str(spec()), "--samples", "256", "--no-plots", "--json",
               "-o", str(tmp_path / "out")]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert json.loads(done.stdout)["ran"] == 20 and not done.stderr


def test_several_sites_are_refused_with_their_place(spec, tmp_path):
    text = "schema_version: 1\nbase: two-sites-70b\naxes: {mfu: [0.3, 0.4]}\n"
    with pytest.raises(InputError, match=r"several sites cannot be swept.*gpustack-mc run"):
        run(spec(text), tmp_path / "out")
