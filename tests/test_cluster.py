"""Sweeps on a Dask cluster: the bytes of one machine, also when a worker is killed."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from gpustack_mc import cluster, sweep_engine
from gpustack_mc import sweep as sweeps
from gpustack_mc.errors import GpustackError, InputError
from gpustack_mc.sweep import run_sweep

SPEC = """
schema_version: 1
name: Grid
base: llama-3-70b
axes:
  inputs.mfu: {from: 0.2, to: 0.5, points: 64}
  cluster.count: [1024, 2048, 4096, 8192]
  site.region: [US, FR, SE, NO]
"""


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "grid.yaml"
    path.write_text(SPEC, encoding="utf-8")
    return path


def test_without_dask_the_error_says_what_to_install(spec, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"gpustack-mc\[dask\]"):
        run_sweep(spec, samples=256, out=tmp_path / "out", scheduler="tcp://127.0.0.1:8786")


@pytest.fixture(scope="module")
def local():
    distributed = pytest.importorskip("distributed", reason="needs gpustack-mc[dask]")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as made:
        yield made


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.name != "sweep.json"}


@pytest.mark.filterwarnings("ignore")
def test_a_cluster_gives_the_bytes_of_one_machine_and_a_killed_worker_changes_nothing(spec, tmp_path, local):
    run_sweep(spec, samples=256, out=tmp_path / "here", with_plots=False)
    run_sweep(spec, samples=256, out=tmp_path / "there", with_plots=False, scheduler=local.scheduler_address)
    assert contents(tmp_path / "here") == contents(tmp_path / "there")
    worker = next(iter(local.workers.values()))
    killed = []

    def kill_after_the_first(share: float) -> None:
        if 0 < share < 1 and not killed:
            killed.append(worker.pid)
            os.kill(worker.pid, signal.SIGKILL)
            time.sleep(0.5)

    run_sweep(spec, samples=256, out=tmp_path / "killed", with_plots=False, scheduler=local.scheduler_address,
              progress=kill_after_the_first)  # fmt: skip
    assert killed and contents(tmp_path / "here") == contents(tmp_path / "killed")


@pytest.mark.filterwarnings("ignore")
def test_workers_of_other_versions_are_refused(spec, tmp_path, local, monkeypatch):
    own = cluster.about()
    monkeypatch.setattr(cluster, "about", lambda: own | {"numpy": "1.0"})

    class Client:
        def wait_for_workers(self, count, timeout):
            pass

        def run(self, function):
            return {"tcp://worker:1": own}

    with pytest.raises(GpustackError, match=r"worker tcp://worker:1 has numpy .*, here 1.0"):
        cluster._require_workers(Client(), None)


@pytest.mark.parametrize(
    ("address", "message"), [("nonsense", "no address"), ("tcp://127.0.0.1:9", "no scheduler answers")]
)
def test_a_scheduler_that_is_not_there(spec, tmp_path, address, message):
    pytest.importorskip("distributed", reason="needs gpustack-mc[dask]")
    with pytest.raises(GpustackError, match=message) as found:
        run_sweep(spec, samples=256, out=tmp_path / "out", scheduler=address)
    assert str(found.value).startswith(f"--scheduler {address}")


def test_a_chunk_is_the_same_wherever_it_runs(spec):
    import pickle

    from gpustack_mc.design import make_design
    from gpustack_mc.sweep_engine import Engine, Settings
    from gpustack_mc.sweep_spec import read_sweep

    engine = Engine(read_sweep(spec), Settings(make_design(256)))
    ((_, here),) = engine.compute([1])
    there = cluster.run_chunk(pickle.dumps((engine.sweep, engine.settings, engine.layout)), "x", 1)
    assert here.statistics.tobytes() == there.statistics.tobytes()
    assert here.probabilities.tobytes() == there.probabilities.tobytes()
    assert sweeps.CHUNK == sweep_engine.CHUNK
