"""Hostile and careless input by the hundred thousand: everything that is refused must be refused in one line.

    python benchmarks/fuzz.py                      # all kinds, 100,000 inputs, about an hour on one core
    python benchmarks/fuzz.py result command       # these kinds only; the others keep their last results
    python benchmarks/fuzz.py --share 0.01 --seed 3     # a look, which writes nothing

The kinds are in ``hostile.py``, ``hostile_results.py`` and ``hostile_commands.py``.
What comes back may be an answer or an `InputError` whose
text is one line that names the file, and the line where there is one; any other exception, a crash, ten seconds of
computing without an answer or a gigabyte of memory is a finding, and so are pages that hold markup of a file, files
outside of the output folder, and exit codes that are not documented. Every input follows from the seed and its number,
so that a finding can be made again. Writes ``reports/validation/fuzz.json``.
"""

import argparse
import functools
import importlib
import json
import os
import platform
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import hostile
import hostile_commands
import hostile_results
import numpy as np

RESULT = hostile.ROOT / "reports" / "validation" / "fuzz.json"
KINDS: dict[str, tuple[Callable, int]] = {
    "scenario": (hostile.scenarios, 14_000),
    "line": (hostile.lines, 3_000),
    "table": (hostile.tables, 64_000),
    "sweep": (hostile.sweeps, 12_000),
    "sweep folder": (hostile.kept_sweeps, 500),
    "result": (hostile_results.results, 1_500),
    "pack": (hostile.packs, 1_500),
    "journal": (hostile.journals, 5_000),
    "command": (hostile_commands.commands, 1_500),
}
LONGEST_SECONDS, LONGEST_WAIT, MOST_BYTES, LONGEST_LINE = 10, 300, 2**30, 800
BATCH = 500
MOST_FINDINGS = 50
LIBRARIES = ("numpy", "ruamel.yaml", "pydantic", "click", "h5py", "h5netcdf", "xarray", "jax")
# Errors that speak of a file as a whole.
WHOLE = ("too-large", "not-text", "empty", "unreadable", "not-yaml", "no-rows", "no-such-file", "no-scenario")
WHOLE += ("missing-file", "empty-file", "not-a-file", "cannot-read", "folder")
# Imported before any fork, so that a batch starts at once; JAX is not used before, as XLA does not survive a fork.
FIRST = ("jax", "arviz_plots", "matplotlib.backends.backend_agg", "h5py", "xarray", "gpustack_mc.cli", "jinja2")
FIRST += ("gpustack_mc.calibration", "gpustack_mc.report", "gpustack_mc.sweep", "gpustack_mc.validation")


def main() -> None:
    """Try as many inputs as asked for and write what was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", default=list(KINDS), metavar="KIND")
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="One input of one kind, whose error is shown whole.")
    asked = parser.parse_args()
    os.environ.setdefault("GPUSTACK_MC_CACHE", tempfile.mkdtemp())
    for name in FIRST:
        importlib.import_module(name)
    for kind in asked.kinds:
        if asked.only is not None:
            show(kind, asked.seed, asked.only)
            continue
        found = fuzz(kind, max(round(asked.share * KINDS[kind][1]), 1), asked.seed)
        say(f"{kind}: {json.dumps(found | {'findings': []})}")
        if asked.share >= 1:
            keep(kind, found, asked.seed)


def say(line: str) -> None:
    """Print at once: a run takes long."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def keep(kind: str, found: dict[str, Any], seed: int) -> None:
    """Put the result of one kind beside those of the others."""
    kept = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    kinds = kept.get("kinds", {}) | {kind: found | {"seed": seed, "versions": versions()}}
    kinds = {name: kinds[name] for name in KINDS if name in kinds}
    total = {"inputs": sum(each["inputs"] for each in kinds.values())}
    total["findings"] = sum(each["findings_count"] for each in kinds.values())
    RESULT.write_text(json.dumps(total | {"kinds": kinds}, indent=1) + "\n", encoding="utf-8")


def versions() -> dict[str, str]:
    """Return the versions of what reads the inputs."""
    return {"python": platform.python_version()} | {name: version(name) for name in LIBRARIES}


def fuzz(kind: str, count: int, seed: int) -> dict[str, Any]:
    """Try `count` inputs of one kind, each batch in a process of its own, which may crash."""
    answers: Counter[str] = Counter()
    findings: list[dict[str, Any]] = []
    slowest, memory, began = 0.0, 0, time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _child(lambda: KINDS[kind][0](folder))  # what all batches start from
        first = 0
        while first < count:
            log = folder / "batch.jsonl"
            log.write_text("")
            last = min(first + BATCH, count)
            status = _child(functools.partial(_batch, kind, seed, range(first, last), folder, log))
            told = [json.loads(line) for line in log.read_text().splitlines()]
            for number, answer, finding, seconds, grown in told:
                answers[answer] += 1
                slowest, memory = max(slowest, seconds), max(memory, grown)
                if finding:
                    findings.append({"number": number, "what": finding})
                    say(f"{kind} {number}: {finding}")
            first += len(told)
            if first < last:  # the batch died of the input that comes next
                ended = {signal.SIGPROF: f"no answer in {LONGEST_SECONDS} seconds of computing"}
                answers["died"] += 1
                findings.append({"number": first, "what": ended.get(status, f"the process died ({status})")})
                say(f"{kind} {first}: {findings[-1]['what']}")
                first += 1
    return {
        "inputs": count,
        "answers": dict(answers.most_common()),
        "findings_count": len(findings),
        "findings": findings[:MOST_FINDINGS],
        "slowest_cpu_seconds": round(slowest, 2),
        "largest_growth_mb": round(memory / 2**20),
        "seconds": round(time.monotonic() - began),
    }


def _child(work: Callable[[], Any]) -> int:
    """Do some work in a process of its own; return how it ended."""
    child = os.fork()
    if not child:
        try:
            silence = os.open(os.devnull, os.O_RDWR)
            os.dup2(silence, 0), os.dup2(silence, 1)
            work()
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def _batch(kind: str, seed: int, numbers: range, folder: Path, log: Path) -> None:
    for stop in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(stop, signal.SIG_DFL)
    make, use = KINDS[kind][0](folder)
    started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    with log.open("a") as stream:
        for number in numbers:
            began = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, LONGEST_SECONDS)
            signal.setitimer(signal.ITIMER_REAL, LONGEST_WAIT)
            answer, finding = attempt(make, use, generator(kind, seed, number))
            seconds = time.process_time() - began
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - started
            if grown > MOST_BYTES:
                finding, started = finding or f"{grown / 2**20:.0f} MB of memory", started + grown
            stream.write(json.dumps([number, answer, finding, seconds, grown]) + "\n")
            stream.flush()
    signal.setitimer(signal.ITIMER_PROF, 0)


def generator(kind: str, seed: int, number: int) -> np.random.Generator:
    """Return the random numbers that one input follows from."""
    return np.random.default_rng([seed, list(KINDS).index(kind), number])


def attempt(make: Callable, use: Callable, random: np.random.Generator) -> tuple[str, str]:
    """Use one input; return the kind of answer and, where it is not one that is allowed, what it is."""
    from gpustack_mc.errors import GpustackError

    subject = make(random)
    try:
        found = use(subject)
    except hostile_commands.Refused as refused:
        return str(refused), ""
    except GpustackError as error:
        return error.code, unclear(error)
    except BaseException as error:
        return "exception", f"{type(error).__name__}: {str(error)[:200]}"
    return ("finding", found) if found else ("answered", "")


def unclear(error: Any) -> str:
    """Return what is wrong with an error about a file."""
    line = str(error)
    if len(line.splitlines()) != 1 or not line.isprintable() or len(line) > LONGEST_LINE:
        return f"a message of {len(line)} characters: {line[:200]!r}"
    if error.place is None:
        return f"no file is named: {line[:200]}"
    if str(error.place.file).endswith((".yaml", ".csv")) and error.place.line is None and error.code not in WHOLE:
        return f"no line is named: {line[:200]}"
    return ""


def show(kind: str, seed: int, number: int) -> None:
    """Use one input again and show the error whole."""
    with tempfile.TemporaryDirectory() as name:
        make, use = KINDS[kind][0](Path(name))
        subject = make(generator(kind, seed, number))
        say(f"{subject} {use(subject)}")


if __name__ == "__main__":
    main()
