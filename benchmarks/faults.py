"""Faults injected into whole runs, and what survives them: kills, full disks, rivals for one folder, broken caches.

    python benchmarks/faults.py                # some ten minutes on two cores

Every fault is tried on ``gpustack-mc run`` with all its files, in a folder that holds an older result. A result
survives when all its files belong together, which the seed inside them tells. Writes
``reports/validation/faults.json``.
"""

import argparse
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "reports" / "validation" / "faults.json"
FILES = ("result.nc", "summary.json", "intervals.png", "sensitivity.png", "report.html")
_RUN = (sys.executable, "-m", "gpustack_mc", "run", "nanochat", "--samples", "4096", "-q", "-o")


def run(folder: Path, seed: int, environment: Mapping[str, str] = os.environ, before: Callable | None = None):
    """Start a run of which stderr is kept."""
    command = [*_RUN, str(folder), "--seed", str(seed)]
    return subprocess.Popen(command, env=dict(environment), stderr=subprocess.PIPE, text=True, preexec_fn=before)


def seeds(folder: Path) -> set[int]:
    """Return the seeds that the files of a folder were made with; one where they belong together."""
    from gpustack_mc.reopening import open_result

    found = {int(open_result(folder / "result.nc").attrs["seed"])}
    found.add(json.loads((folder / "summary.json").read_text(encoding="utf-8"))["seed"])
    found.add(int(re.search(r"seed\D{0,20}(\d+)", (folder / "report.html").read_text(encoding="utf-8"))[1]))
    return found


def state(folder: Path, old: int, new: int) -> str:
    """Say what a folder holds after a fault."""
    if not all((folder / name).is_file() for name in FILES):
        return "lost"
    found = seeds(folder)
    return "old" if found == {old} else "new" if found == {new} else "mixed"


def killed(base: Path, tries: int) -> dict:
    """Kill -9 at any moment of a run, half of the time while files are written at its end."""
    chance, counts = random.Random(0), {}
    began = time.monotonic()
    run(base, 1).wait()
    whole = time.monotonic() - began
    for number in range(tries):
        folder = base.with_name(f"killed-{number}")
        shutil.copytree(base, folder)
        process = run(folder, 2)
        if number % 2:
            time.sleep(chance.uniform(0, whole))
        else:
            while process.poll() is None and not list(folder.glob(".gpustack-mc-report*")):
                time.sleep(0.001)
            time.sleep(chance.uniform(0, 0.3 * whole))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        found = state(folder, 1, 2)
        counts[found] = counts.get(found, 0) + 1
        shutil.rmtree(folder)
    return {"tried": tries, **counts}


def interrupted(base: Path, tries: int) -> dict:
    """Ctrl-C at any moment: exit code 130, one line, no partial file."""
    chance, counts = random.Random(1), {}
    for number in range(tries):
        folder = base.with_name(f"interrupted-{number}")
        shutil.copytree(base, folder)
        process = run(folder, 2)
        # Python's own start, before a line of the program runs, is not the program's.
        time.sleep(chance.uniform(0.15, 4))
        process.send_signal(signal.SIGINT)
        text = process.communicate()[1]
        found = state(folder, 1, 2)
        if process.returncode not in (0, 130):
            found = f"exit {process.returncode}"
        elif "Traceback" in text:
            found = "traceback"
        elif sorted(os.listdir(folder)) != sorted(FILES):
            found = "rubbish"
        counts[found] = counts.get(found, 0) + 1
        shutil.rmtree(folder)
    return {"tried": tries, **counts}


def full_disk(base: Path, sizes: tuple[int, ...] = (0, 10_000, 100_000, 400_000)) -> dict:
    """Files that cannot grow beyond a size, which is how a full disk looks to a program."""
    counts: dict[str, int] = {}
    for size in sizes:
        folder = base.with_name(f"full-{size}")
        shutil.copytree(base, folder)
        limits = (size, size)

        def limit(limits: tuple[int, int] = limits) -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

        # Python itself would leave a compiled module that is cut off, and fail on it ever after.
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
        environment |= {"GPUSTACK_MC_CACHE": str(base.with_name("cache-full"))}
        process = run(folder, 2, environment, limit)
        text = process.communicate()[1]
        found = state(folder, 1, 2)
        if process.returncode != 1 or len(text.strip().splitlines()) != 1:
            found = f"exit {process.returncode} with {len(text.splitlines())} lines"
        counts[found] = counts.get(found, 0) + 1
    return {"tried": len(sizes), **counts}


def rivals(base: Path, number: int) -> dict:
    """Runs that write into one folder at the same time."""
    folder = base.with_name("rivals")
    shutil.copytree(base, folder)
    processes = [run(folder, 2 + seed) for seed in range(number)]
    codes = {process.communicate() and process.returncode for process in processes}
    return {"tried": number, "exit codes": sorted(codes), "seeds in the folder": len(seeds(folder))}


def caches(base: Path, number: int) -> dict:
    """Runs that share one cold compilation cache, then one whose entries are cut off, garbage, or empty."""
    cache = base.with_name("cache")
    environment = os.environ | {"GPUSTACK_MC_CACHE": str(cache)}
    folders = [base.with_name(f"cached-{k}") for k in range(number)]
    processes = [run(folder, 1, environment) for folder in folders]
    texts = [process.communicate()[1] for process in processes]
    same = {(folder / "summary.json").read_text().replace(folder.name, "") for folder in folders}
    cold = {
        "tried": number,
        "exit codes": sorted({p.returncode for p in processes}),
        "different results": len(same) - 1,
    }
    cold["lines on stderr"] = sum(len(text.splitlines()) for text in texts)
    entries = sorted(path for path in cache.rglob("*") if path.is_file())
    for k, path in enumerate(entries):
        path.write_bytes((b"", b"garbage" * 100, path.read_bytes()[: path.stat().st_size // 2])[k % 3])
    folder = base.with_name("cached-broken")
    process = run(folder, 1, environment)
    text = process.communicate()[1]
    again = (folder / "summary.json").read_text().replace(folder.name, "")
    broken = {"entries": len(entries), "exit code": process.returncode, "same result": again in same}
    return {"cold and shared": cold, "broken": broken | {"lines on stderr": len(text.splitlines())}}


def main() -> None:
    """Inject every fault and write what survived."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tries", type=int, default=60)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        base = Path(name) / "base"
        found = {"kill -9": killed(base, asked.tries)}
        found["Ctrl-C"] = interrupted(base, asked.tries // 2)
        found["full disk"] = full_disk(base)
        found["rivals for one folder"] = rivals(base, 6)
        found["compilation cache"] = caches(base, 8)
    text = json.dumps(found, indent=1) + "\n"
    sys.stdout.write(text)
    RESULT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
