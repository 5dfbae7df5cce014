"""Faults injected into whole runs, and what survives them: kills, full disks, rivals for one folder, broken caches.

    python benchmarks/faults.py                # some ten minutes on two cores

Most faults are tried on ``gpustack-mc run`` with all its files, in a folder that holds an older result. A result
survives when all its files belong together, which the seed inside them tells. Kills are tried on ``calibrate``,
``report`` and ``sweep`` as well: a pack must be whole, a report that of before or after, and a sweep must go on to the
bytes it would have had. Writes ``reports/validation/faults.json``.
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
from typing import Any

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


def _command(*arguments: str | Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "gpustack_mc", *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _count(counts: dict[str, int], found: str) -> None:
    counts[found] = counts.get(found, 0) + 1


def _killed_at_random(process: subprocess.Popen, chance: random.Random, whole: float) -> None:
    time.sleep(chance.uniform(0.3, 1.0) * whole)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def killed_calibrate(base: Path, tries: int) -> dict:
    """Kill -9 while a prior pack takes the place of another, which was learned from other runs."""
    from gpustack_mc import pack
    from gpustack_mc.errors import GpustackError

    chance, counts = random.Random(2), {}
    tables = [base.with_name(f"runs-{k}.csv") for k in range(2)]
    text = (ROOT / "docs" / "how-to" / "my_runs.csv").read_text(encoding="utf-8")
    tables[0].write_text(text, encoding="utf-8")
    tables[1].write_text("\n".join(text.splitlines()[:2]) + "\n", encoding="utf-8")
    began = time.monotonic()
    _command("calibrate", tables[0], "-o", base.with_name("pack")).communicate()
    whole = time.monotonic() - began
    for _ in range(tries):
        folder = base.with_name("pack-killed")
        shutil.copytree(base.with_name("pack"), folder)
        _killed_at_random(_command("calibrate", tables[1], "-o", folder), chance, whole)
        try:
            found = pack.load(folder).record["table"]
        except GpustackError as error:
            found = error.code
        _count(counts, {tables[0].name: "old", tables[1].name: "new"}.get(found, found))
        shutil.rmtree(folder)
    return {"tried": tries, **counts}


def killed_report(base: Path, tries: int) -> dict:
    """Kill -9 while a report with sliders takes the place of one without."""
    chance, counts = random.Random(3), {}
    page = base / "report.html"
    old = page.read_bytes()
    began = time.monotonic()
    _command("report", base / "result.nc", "--interactive").communicate()
    whole, new = time.monotonic() - began, page.read_bytes()
    for _ in range(tries):
        page.write_bytes(old)
        _killed_at_random(_command("report", base / "result.nc", "--interactive"), chance, whole)
        found = page.read_bytes() if page.exists() else b""
        _count(counts, "old" if found == old else "new" if found == new else "lost" if not found else "cut off")
    page.write_bytes(old)
    return {"tried": tries, **counts}


def killed_sweep(base: Path, tries: int) -> dict:
    """Kill -9 at any moment of a sweep of three chunks, which is then run again to its end."""
    chance, counts = random.Random(4), {}
    spec = base.with_name("grid.yaml")
    values = ", ".join(f"{0.2 + 0.0005 * k:.4f}" for k in range(600))
    spec.write_text(f"schema_version: 1\nbase: nanochat\naxes: {{inputs.mfu: [{values}]}}\noutputs: [energy_mwh]\n")
    names = ("sweep.nc", "sweep.csv")

    def sweep(out: Path) -> subprocess.Popen:
        return _command("sweep", spec, "--samples", "1024", "--no-plots", "-o", out)

    began = time.monotonic()
    sweep(base.with_name("sweep")).communicate()
    whole = time.monotonic() - began
    wanted = [(base.with_name("sweep") / name).read_bytes() for name in names]
    for _ in range(tries):
        folder = base.with_name("sweep-killed")
        _killed_at_random(sweep(folder), chance, whole)
        kept = len(list(folder.glob("chunks/*.npz"))) if folder.exists() else 0
        again = sweep(folder)
        told = again.communicate()[1]
        if again.returncode or told:
            found = f"exit {again.returncode}: {told[:200]}"
        else:
            same = [(folder / name).read_bytes() for name in names] == wanted
            found = f"same bytes, {kept} chunks kept" if same else "other bytes"
        _count(counts, found)
        shutil.rmtree(folder)
    return {"tried": tries, **dict(sorted(counts.items()))}


def read_only(base: Path) -> dict:
    """A folder that cannot be written, for a user who is not root."""
    folder = base.with_name("read-only")
    shutil.copytree(base, folder)
    nobody = 65534
    for path in (base.parent, folder, *folder.iterdir()):
        os.chmod(path, 0o755 if path.is_dir() else 0o644)
    if os.geteuid():
        folder.chmod(0o555)
    environment = os.environ | {
        "HOME": "/nonexistent",
        "GPUSTACK_MC_CACHE": "/nonexistent",
        "MPLCONFIGDIR": "/nonexistent",
    }

    def become() -> None:
        if not os.geteuid():
            os.setgid(nobody), os.setuid(nobody)

    try:
        process = run(folder, 2, environment, become)
        text = process.communicate()[1]
    except (OSError, subprocess.SubprocessError) as error:  # an interpreter that others may not start
        return {"tried": 0, "not possible here": type(error).__name__}
    found = state(folder, 1, 2)
    if process.returncode != 1 or len(text.strip().splitlines()) != 1:
        found = f"exit {process.returncode}: {text.strip().splitlines()[-1:]}"
    return {"tried": 1, found: 1}


def journals(base: Path) -> dict:
    """A change of files cut off after each of its renames, and a journal cut off itself: the next reader mends."""
    counts: dict[str, int] = {}
    newer = base.with_name("newer")
    run(newer, 2).communicate()
    for moved in range(len(FILES) + 1):
        folder = base.with_name(f"journal-{moved}")
        shutil.copytree(base, folder)
        pairs = [[f".gpustack-mc-{name}", name] for name in FILES]
        for number, (temporary, name) in enumerate(pairs):
            shutil.copy(newer / name, folder / (name if number < moved else temporary))
        (folder / ".gpustack-mc.journal").write_text(json.dumps(pairs), encoding="utf-8")
        _count(counts, state(folder, 1, 2))
    folder = base.with_name("journal-cut")
    shutil.copytree(base, folder)
    (folder / ".gpustack-mc.journal").write_text('[[".gpustack-mc-result.nc", "resu', encoding="utf-8")
    _count(counts, state(folder, 1, 2))
    return {"tried": len(FILES) + 2, **counts}


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
    parser.add_argument("--dry", action="store_true", help="Write nothing.")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        base = Path(name) / "base"
        found: dict[str, Any] = {"kill -9, run": killed(base, asked.tries)}
        found["kill -9, calibrate"] = killed_calibrate(base, asked.tries // 2)
        found["kill -9, report"] = killed_report(base, asked.tries // 2)
        found["kill -9, sweep"] = killed_sweep(base, asked.tries // 3)
        found["interrupted change of files"] = journals(base)
        found["read-only folder"] = read_only(base)
        found["Ctrl-C"] = interrupted(base, asked.tries // 2)
        found["full disk"] = full_disk(base)
        found["rivals for one folder"] = rivals(base, 6)
        found["compilation cache"] = caches(base, 8)
    text = json.dumps(found, indent=1) + "\n"
    sys.stdout.write(text)
    if not asked.dry:
        RESULT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
