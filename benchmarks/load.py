"""Put load on the program: many runs at once, many scenarios in one process, many samples, large results.

    python benchmarks/load.py                     # half an hour on two cores
    python benchmarks/load.py concurrent --runs 16

concurrent: runs that share one compilation cache, cold at first; eight at a time with files, and all at once
without files. Every result must be that of a lone run, byte for byte, and the cache whole afterwards.
loop: scenarios through the Python API in one process; what is compiled and how memory grows.
samples: peak memory of `run` as the samples grow, in a process each.
large: what becomes of results of gigabytes: asked of `run`, `compare`, `sites` and `sweep`, and opened.

Writes ``reports/validation/load.json``; 3 when one of `PROMISES` is broken.
"""

import argparse
import contextlib
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "reports" / "validation" / "load.json"
RUN = (sys.executable, "-m", "gpustack_mc", "run", "nanochat", "--samples", "1024", "-q", "--no-plots")
# Of the memory that is free, what processes that run at once may take together.
SHARE_OF_MEMORY = 0.6
LOOP = ("worked-7b", "llama-3-70b", "nanochat", "llama-3.1-405b-checkpoints")
# Fewer are for a quick look, and are not written: memory settles after some hundred.
FEWEST_SCENARIOS = 500
FEWEST_RUNS = 24
# Growth beyond what 10,000 scenarios may leave in allocators: a kept result of 256 draws would be 150 times as much.
MOST_GROWTH_MB = 20.0
TOO_LARGE = ("bad-samples", "too-many-draws", "too-large")
SAMPLES = (2**18, 2**22, 2**26)


def say(line: str) -> None:
    """Print at once: a run takes long."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def memory_of(process: int | str = "self", field: str = "Rss") -> float:
    """Resident (``Rss``) or own (``Private_Dirty``) memory of a process in MB; 0 when it has gone."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="utf-8")
        if found := re.search(rf"^{field}:\s+(\d+)", text, re.MULTILINE):
            return int(found[1]) / 1024
    return 0.0


def free_memory() -> float:
    """Memory that programs could still take, in MB."""
    text = Path("/proc/meminfo").read_text(encoding="utf-8")
    return int(re.search(r"MemAvailable:\s+(\d+)", text)[1]) / 1024


# ---- runs at once ------------------------------------------------------------------------------------------------


def numbers_of(path: Path) -> str:
    """SHA-256 of all arrays of a result; its attributes hold the time at which it was made."""
    import h5py

    digest = hashlib.sha256()
    with h5py.File(path, "r") as file:
        found: list[tuple[str, bytes]] = []
        file.visititems(
            lambda name, item: (
                found.append((name, repr(item[()].tolist()).encode() if item.dtype.kind == "O" else item[()].tobytes()))
                if isinstance(item, h5py.Dataset)
                else None
            )
        )
    for name, values in sorted(found):
        digest.update(name.encode() + values)
    return digest.hexdigest()


def fingerprint(folder: Path) -> str:
    """All numbers of a run's files; two runs of one seed agree in it, wherever they were written."""
    text = (folder / "summary.json").read_text(encoding="utf-8").replace(str(folder), "")
    return hashlib.sha256((numbers_of(folder / "result.nc") + text).encode()).hexdigest()


def together(commands: Sequence[Sequence[str]], at_once: int, environment: dict[str, str]) -> dict[str, Any]:
    """Run commands, so many at a time; returns exit codes, what they printed, and the most memory of them all."""
    waiting, running, codes, printed, peak, most = list(enumerate(commands)), {}, {}, {}, 0.0, 0
    began, watched = time.monotonic(), 0.0
    while waiting or running:
        while waiting and len(running) < at_once:
            number, command = waiting.pop(0)
            out = tempfile.TemporaryFile()
            running[number] = (subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT), out)
        most = max(most, len(running))
        if time.monotonic() - watched > 1:
            watched = time.monotonic()
            peak = max(peak, sum(memory_of(process.pid, "Private_Dirty") for process, _ in running.values()))
        for number, (process, out) in list(running.items()):
            if process.poll() is not None:
                codes[number] = process.returncode
                out.seek(0)
                printed[number] = hashlib.sha256(out.read()).hexdigest()
                out.close()
                del running[number]
        time.sleep(0.02)
    return {
        "runs": len(commands), "at_once": most, "exit_codes": sorted(set(codes.values())),
        "printed": sorted(set(printed.values())), "peak_own_memory_mb": round(peak),
        "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip


def whole_entries(cache: Path) -> dict[str, int]:
    """Count entries of the compilation cache, those that are not whole, and what unfinished writes left."""
    entries = [path for path in cache.rglob("*") if path.is_file()]
    digests = [path.read_bytes() for path in entries if not path.name.startswith(".")]
    broken = sum(hashlib.sha256(content[32:]).digest() != content[:32] for content in digests)
    return {"entries": len(digests), "broken": broken, "left_behind": len(entries) - len(digests)}


def concurrent(runs: int = 100) -> dict[str, Any]:
    """Runs that share one cache."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = os.environ | {"GPUSTACK_MC_CACHE": str(folder / "alone")}
        alone = folder / "lone"
        subprocess.run([*RUN, "-o", str(alone)], env=environment, check=True, capture_output=True)
        # Without files and with the cache that is there: what each of many at once costs.
        light = (*RUN, "--json", "--no-files")
        lone = together([light], 1, environment)
        cold = environment | {"GPUSTACK_MC_CACHE": str(folder / "shared")}
        folders = [folder / f"run-{number}" for number in range(runs)]
        few = together([[*RUN, "-o", str(out)] for out in folders], 8, cold)
        del few["printed"]
        few["different_results"] = sum(fingerprint(out) != fingerprint(alone) for out in folders)
        say(f"concurrent, few: {few}")
        room = int(SHARE_OF_MEMORY * free_memory() / max(lone["peak_own_memory_mb"], 100))
        many = together([light] * runs, max(min(runs, room), 2), cold)
        many["different_results"] = len(set(many.pop("printed")) - set(lone["printed"]))
        cache = whole_entries(folder / "shared")
        again = subprocess.run(
            [sys.executable, "-c", _COMPILED], env=cold, check=True, capture_output=True, text=True
        )  # fmt: skip
        cache["compiled_by_a_run_afterwards"] = int(again.stdout)
    return {"eight_at_a_time": few, "all_at_once": many, "cache": cache}


_COMPILED = """
from gpustack_mc import compilation
from gpustack_mc.run import run_scenario
compilation.use_cache()
run_scenario("nanochat", samples=1024, with_files=False)
print(compilation.compilations)
"""


# ---- scenarios in one process ------------------------------------------------------------------------------------


def loop(scenarios: int = 10_000, every: int = 0) -> dict[str, Any]:
    """Scenarios of four shapes, each with values of its own, through the Python API."""
    from gpustack_mc import api, compilation

    every = every or scenarios // 40
    rng = np.random.default_rng(0)
    memory, compiled, first = [], [], time.monotonic()
    for number in range(scenarios):
        source = LOOP[number % len(LOOP)]
        changes = [f"inputs.pue={1.05 + 0.5 * rng.random()}", f"cluster.count={int(rng.integers(64, 20_000))}"]
        tree = api.simulate(api.load_scenario(source, changes), samples=256, seed=number)
        if not np.isfinite(float(tree["statistics"]["value"].sel(variable="energy_mwh", statistic="q0.5"))):
            raise SystemExit(f"scenario {number} has no energy")
        if (number + 1) % every == 0:
            memory.append(memory_of())
            compiled.append(compilation.compilations)
    took = time.monotonic() - first
    # What is imported, compiled and kept once is there after a fifth.
    settled = len(memory) // 5
    growth = np.polyfit(np.arange(settled, len(memory)) * every, memory[settled:], 1)[0] * 10_000
    return {
        "scenarios": scenarios, "shapes": len(LOOP), "samples": 256, "seconds": round(took, 1),
        "ms_per_scenario": round(1e3 * took / scenarios, 1), "compiled_at_first": compiled[0],
        "compiled_at_last": compiled[-1], "memory_mb": [round(value) for value in memory],
        "growth_mb_per_10000_scenarios": round(float(growth), 2),
    }  # fmt: skip


# ---- many samples ------------------------------------------------------------------------------------------------

_PEAK = """
import resource, sys, time
from gpustack_mc import compilation
from gpustack_mc.run import run_scenario
compilation.use_cache()
began = time.monotonic()
done = run_scenario(sys.argv[1], samples=int(sys.argv[2]), precision=sys.argv[3], with_files=sys.argv[4] != "",
                    out=__import__("pathlib").Path(sys.argv[4] or "."), pictures=())
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(peak, time.monotonic() - began, done.result.attrs["samples"], done.result.attrs["draws"])
"""


def samples(counts: Iterable[int] = SAMPLES, precision: str = "float32") -> list[dict[str, Any]]:
    """Peak memory, time and size of the file by number of samples."""
    found = []
    for count in counts:
        with tempfile.TemporaryDirectory() as name:
            command = [sys.executable, "-c", _PEAK, "llama-3-70b", str(count), precision, name]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            peak, seconds, drawn, kept = map(float, done.stdout.split())
            size = (Path(name) / "result.nc").stat().st_size
        found.append({
            "samples": int(drawn), "precision": precision, "peak_memory_mb": round(peak), "seconds": round(seconds, 1),
            "draws_kept": int(kept), "result_mb": round(size / 1e6, 1),
        })  # fmt: skip
        say(f"samples: {found[-1]}")
    return found


# ---- large results -----------------------------------------------------------------------------------------------


def large() -> dict[str, Any]:
    """What each command says when asked for results of gigabytes; everything must be refused before the work."""
    chips = "A100-SXM-80GB,H100-SXM-80GB,H200-SXM,B200-SXM"
    asked = {
        "run with 10^12 samples": ["run", "llama-3-70b", "--samples", str(10**12)],
        "compare with 10^7 samples": ["compare", "llama-3-70b", "--vary", f"cluster.accelerator={chips}",
                                      "--samples", str(10**7), "--no-files"],
        "compare with 262,144 samples of 12 scenarios": [
            "compare", "llama-3-70b", "--vary", f"cluster.count={','.join(str(1000 * n) for n in range(1, 13))}",
            "--samples", str(2**18), "--no-files"],
        "sites with 131,072 samples of 51 states": ["sites", "llama-3-70b-us", "--samples", "131072", "--kind",
                                                    "us_state", "--no-files"],
        "sweep that keeps 10^10 draws": ["sweep", "wide.yaml", "--draws", "--samples", "131072"],
    }  # fmt: skip
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "wide.yaml").write_text(_WIDE, encoding="utf-8")
        for what, arguments in asked.items():
            found[what] = _refusal([sys.executable, "-m", "gpustack_mc", *arguments, "--json"], folder)
        found["opening a file of 2 GB"] = _opened(folder, _hollow)
        found["opening a small file whose arrays are of 2 GB"] = _opened(folder, _packed)
    return found


_WIDE = """
schema_version: 1
name: Wide
base: llama-3-70b
axes:
  cluster.count: {from: 1000, to: 13000, step: 1}
"""


def _hollow(path: Path) -> None:
    """Write the signature of a result, and then two gigabytes of nothing, which take no room on the disk."""
    with path.open("wb") as stream:
        stream.write(b"\x89HDF\r\n\x1a\n")
        stream.truncate(2 * 10**9)


def _packed(path: Path) -> None:
    """Write a file whose arrays unpack to two gigabytes."""
    import h5py

    with h5py.File(path, "w") as file:
        file.create_dataset("zeros", shape=(250_000_000,), dtype="f8", chunks=(1_000_000,), compression="gzip")


def _opened(folder: Path, make: Callable[[Path], None]) -> dict[str, Any]:
    path = folder / "large.nc"
    path.unlink(missing_ok=True)
    make(path)
    code = "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30,) * 2); "
    code += "from gpustack_mc.__main__ import main; sys.argv[1:] = ['reproduce', 'large.nc', '--json']; main()"
    return _refusal([sys.executable, "-c", code], folder)


def _refusal(command: Sequence[str], folder: Path) -> dict[str, Any]:
    """Exit code and the error, which is one JSON object on one line."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    lines = done.stderr.strip().splitlines()
    try:
        told = json.loads(lines[-1])["error"]
    except (IndexError, KeyError, ValueError):
        told = {"code": "not said as JSON", "message": done.stderr[-300:]}
    return {"exit_code": done.returncode, "lines": len(lines), "code": told.get("code"), "said": told.get("message")}


# ---- promises ----------------------------------------------------------------------------------------------------

# By the part of which it is; every part has at least one.
PROMISES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "all runs at once exit with 0": (
        "concurrent", lambda f: f["eight_at_a_time"]["exit_codes"] == f["all_at_once"]["exit_codes"] == [0]
    ),
    "results are those of a lone run": (
        "concurrent",
        lambda f: f["eight_at_a_time"]["different_results"] == f["all_at_once"]["different_results"] == 0,
    ),
    "the shared cache is whole": (
        "concurrent", lambda f: f["cache"]["entries"] > 0 and not any(list(f["cache"].values())[1:])
    ),
    "nothing is compiled after the first of each shape": (
        "loop", lambda f: f["compiled_at_last"] == f["compiled_at_first"]
    ),
    "memory does not grow with scenarios": (
        "loop", lambda f: f["growth_mb_per_10000_scenarios"] <= MOST_GROWTH_MB
    ),
    "memory does not grow with samples": (
        "samples", lambda f: f[-1]["peak_memory_mb"] <= 1.1 * f[0]["peak_memory_mb"]
    ),
    "large results are refused in one line": (
        "large",
        lambda f: all(one["exit_code"] == 2 and one["lines"] == 1 and one["code"] in TOO_LARGE for one in f.values()),
    ),
}  # fmt: skip


def broken(found: dict[str, Any]) -> list[str]:
    """Name the promises that the figures break, of the parts that were measured."""
    return [promise for promise, (part, holds) in PROMISES.items() if part in found and not holds(found[part])]


def main(arguments: list[str] | None = None) -> int:
    """Measure what is named, or all, and write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["concurrent", "loop", "samples", "large"])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--scenarios", type=int, default=10_000)
    parser.add_argument("--billion", action="store_true", help="also 10^9 samples, half an hour more")
    asked = parser.parse_args(arguments)
    parts = {
        "concurrent": lambda: concurrent(asked.runs),
        "loop": lambda: loop(asked.scenarios),
        "samples": lambda: samples((*SAMPLES, 15 * 2**26) if asked.billion else SAMPLES),
        "large": large,
    }
    found = {}
    for part in asked.parts:
        found[part] = parts[part]()
        say(f"{part}: {json.dumps(found[part])[:1500]}")
    # Read afterwards: parts may be measured side by side.
    kept = (json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}) | found
    kept["about"] = {
        "machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version(),
        **{name: version(name) for name in ("gpustack-mc", "numpy", "jax", "h5py")},
    }  # fmt: skip
    if asked.runs >= FEWEST_RUNS and asked.scenarios >= FEWEST_SCENARIOS:
        RESULT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8", newline="\n")
    failed = broken(kept)
    say(f"broken promises: {', '.join(failed) or 'none'}")
    return 3 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
