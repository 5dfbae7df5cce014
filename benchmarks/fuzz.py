"""Hostile and careless input by the hundred thousand: everything that is refused must be refused in one line.

    python benchmarks/fuzz.py                             # 100,000 inputs, about an hour on one core
    python benchmarks/fuzz.py scenario --count 500 --seed 3

Four kinds of input are changed at random: scenario files (values, keys, structure and raw text), tables of runs,
results in netCDF and prior packs. What comes back may be an answer or an `InputError` whose text is one line and names
a remedy; any other exception, a crash, ten seconds without an answer or a gigabyte of memory is a finding. Every input
follows from its seed and number, so that a finding can be made again. Writes ``reports/validation/fuzz.json``.
"""

import argparse
import copy
import io
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "reports" / "validation" / "fuzz.json"
SHARES = {"scenario": 0.6, "table": 0.32, "result": 0.03, "pack": 0.05}
LONGEST_SECONDS, MOST_BYTES, LONGEST_LINE = 10, 2**30, 600
BATCH = 250
HOSTILE = (
    *("", " ", "~", "null", ".nan", ".inf", "-.inf", "-1", "0", "-0.0", "1e308", "1e400", "1e-400", "9" * 400, "0x10"),
    *(
        "true",
        "no",
        "7B",
        "7 billion",
        "5 km",
        "5 USD/parsec",
        "1_000",
        "1,000",
        "½",
        "٣",
        "0.4%",
        "400%",
        "2027-02-30",
    ),
    *("../../etc/passwd", "/dev/zero", "<script>alert(1)</script>", "{{7*7}}", "${HOME}", "%n%s", "\x1b[31m", "\u202e"),
    *("[1, 2]", "{low: 2, high: 1}", "{low: .nan, high: 1}", "{low: 0.1, high: 0.2, mass: 1.5}", "{low: 0.1}"),
    *("{median: 0.4}", "{value: 0.4, low: 0.2}", "[[[[[[[[]]]]]]]]", "!!python/object/apply:os.system ['true']"),
    *("*nothing", "&a [*a]", "!!binary aGk=", "? ", "|", ">", "'", '"', "@", "`", "- - -", "a" * 5000, "é" * 300),
)


def main() -> None:
    """Try as many inputs as asked for and write what was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", default=list(SHARES))
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    total = sum(SHARES[kind] for kind in asked.kinds)
    found: dict[str, Any] = {"seed": asked.seed, "kinds": {}}
    for kind in asked.kinds:
        found["kinds"][kind] = fuzz(kind, round(asked.count * SHARES[kind] / total), asked.seed)
        say(f"{kind}: {json.dumps(found['kinds'][kind])[:2000]}")
    if asked.kinds == list(SHARES):
        RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def say(line: str) -> None:
    """Print at once: a run takes long."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def fuzz(kind: str, count: int, seed: int) -> dict[str, Any]:
    """Try `count` inputs of one kind, each batch in a process of its own, which may crash."""
    answers, findings, slowest, memory = Counter(), [], 0.0, 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make, use = KINDS[kind](folder)
        first = 0
        while first < count:
            last = min(first + BATCH, count)
            done = _batch(make, use, kind, seed, range(first, last), folder)
            answers.update(done["answers"])
            findings += done["findings"]
            slowest, memory = max(slowest, done["slowest"]), max(memory, done["memory"])
            first = done["next"]
    return {
        "inputs": count,
        "answers": dict(answers.most_common()),
        "findings": findings,
        "slowest_cpu_seconds": round(slowest, 2),
        "largest_growth_mb": round(memory / 2**20),
        "seconds": round(time.monotonic() - began),
    }


def _batch(make: Callable, use: Callable, kind: str, seed: int, numbers: range, folder: Path) -> dict[str, Any]:
    report = folder / "batch.json"
    report.unlink(missing_ok=True)
    at = folder / "number"
    child = os.fork()
    if not child:
        try:
            report.write_text(json.dumps(_tried(make, use, kind, seed, numbers, at)))
        finally:
            os._exit(0)
    status = os.waitpid(child, 0)[1]
    if report.exists():
        return json.loads(report.read_text())
    # The batch died: the input at hand is the finding, and the rest goes on after it.
    number = int(at.read_text())
    ended = "no answer in ten seconds of computing" if status == signal.SIGPROF else f"the process died ({status})"
    finding = {"number": number, "what": ended}
    return {"answers": {"died": 1}, "findings": [finding], "slowest": 0.0, "memory": 0, "next": number + 1}


def _tried(make: Callable, use: Callable, kind: str, seed: int, numbers: range, at: Path) -> dict[str, Any]:
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    answers, findings, slowest = Counter(), [], 0.0
    for number in numbers:
        at.write_text(str(number))
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, LONGEST_SECONDS)
        answer, finding = attempt(make, use, np.random.default_rng([seed, list(SHARES).index(kind), number]))
        signal.setitimer(signal.ITIMER_PROF, 0)
        slowest = max(slowest, time.process_time() - began)
        answers[answer] += 1
        if finding:
            findings.append({"number": number, "what": finding})
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - started
    if memory > MOST_BYTES:
        findings.append({"number": numbers[0], "what": f"a batch took {memory / 2**20:.0f} MB more"})
    return {"answers": answers, "findings": findings, "slowest": slowest, "memory": memory, "next": numbers.stop}


def attempt(make: Callable, use: Callable, random: np.random.Generator) -> tuple[str, str]:
    """Use one input; return the kind of answer and, where it is not one that is allowed, what it is."""
    from gpustack_mc.errors import GpustackError

    subject = make(random)
    try:
        use(subject)
    except GpustackError as error:
        line = str(error)
        if len(line.splitlines()) != 1 or not line.isprintable() or len(line) > LONGEST_LINE:
            return error.code, f"a message of {len(line)} characters: {line[:200]!r}"
        return error.code, ""
    except BaseException as error:
        return "exception", f"{type(error).__name__}: {str(error)[:200]}"
    return "answered", ""


# ---- what is changed ------------------------------------------------------------------------------------------------
def _pick(random: np.random.Generator, choices: Any) -> Any:
    return choices[int(random.integers(len(choices)))]


def _flip(random: np.random.Generator, data: bytes) -> bytes:
    """Change, drop, repeat or add some bytes."""
    changed = bytearray(data)
    for _ in range(int(_pick(random, (1, 1, 2, 5, 30)))):
        at, how = int(random.integers(len(changed) + 1)), int(random.integers(5))
        length = int(random.integers(1, 40))
        if how == 0:
            changed[at : at + 1] = random.bytes(1)
        elif how == 1:
            del changed[at : at + length]
        elif how == 2:
            changed[at:at] = changed[max(at - length, 0) : at]
        elif how == 3:
            changed[at:at] = _pick(random, HOSTILE).encode()
        else:
            changed = changed[: max(at, 1)] if random.random() < 0.1 else changed
        if not changed:
            changed = bytearray(b"x")
    return bytes(changed)


def _places(node: Any, path: tuple = ()) -> list[tuple]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(place for key, value in items for place in _places(value, (*path, key)))]


def _restructured(random: np.random.Generator, data: Any, keys: list[str]) -> Any:
    """Replace, drop, move, nest or add parts of a tree of dicts and lists."""
    for _ in range(int(random.integers(1, 4))):
        path = _pick(random, _places(data))
        if not path:
            continue
        parent = data
        for step in path[:-1]:
            parent = parent[step]
        how = int(random.integers(5))
        if how == 0:
            del parent[path[-1]]
        elif how == 1:
            parent[path[-1]] = _scalar(_pick(random, HOSTILE))
        elif how == 2 and isinstance(parent, dict):
            parent[_pick(random, keys)] = _scalar(_pick(random, HOSTILE))
        elif how == 3:
            parent[path[-1]] = {_pick(random, keys): parent[path[-1]]}
        else:
            parent[path[-1]] = [copy.deepcopy(parent[path[-1]]) for _ in range(int(random.integers(1, 4)))]
    return data


def _scalar(text: str) -> Any:
    if "&" in text:  # a list that holds itself: only as text
        return text
    try:
        return YAML(typ="safe", pure=True).load(text)
    except Exception:
        return text


def _scenarios(folder: Path) -> tuple[Callable, Callable]:
    from gpustack_mc import schema
    from gpustack_mc.quantities import BY_NAME
    from gpustack_mc.scenario import load_scenario

    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "scenarios").glob("*.yaml"))]
    keys = [*BY_NAME, *(name for model in vars(schema).values() for name in getattr(model, "model_fields", ()))]
    path = folder / "plan.yaml"

    def make(random: np.random.Generator) -> Path:
        text = _pick(random, texts)
        if random.random() < 0.6:
            out = io.StringIO()
            YAML(typ="safe", pure=True).dump(_restructured(random, YAML(typ="safe", pure=True).load(text), keys), out)
            text = out.getvalue()
        path.write_bytes(_flip(random, text.encode()) if random.random() < 0.6 else text.encode())
        return path

    return make, load_scenario


def _tables(folder: Path) -> tuple[Callable, Callable]:
    from gpustack_mc.run_columns import COLUMNS
    from gpustack_mc.user_table import read_table

    own = (ROOT / "docs" / "how-to" / "my_runs.csv").read_text(encoding="utf-8").splitlines()
    shipped = (ROOT / "priors" / "utilization" / "data.csv").read_text(encoding="utf-8").splitlines()[:12]
    names = list(COLUMNS)
    path = folder / "runs.csv"

    def make(random: np.random.Generator) -> Path:
        rows = [line.split(",") for line in (own if random.random() < 0.6 else shipped)]
        for _ in range(int(random.integers(1, 6))):
            row = rows[int(random.integers(len(rows)))]
            cell = int(random.integers(len(row)))
            row[cell] = _pick(random, names) if row is rows[0] and random.random() < 0.7 else _pick(random, HOSTILE)
        raw = "\n".join(",".join(row) for row in rows).encode()
        path.write_bytes(_flip(random, raw) if random.random() < 0.4 else raw)
        return path

    return make, read_table


def _results(folder: Path) -> tuple[Callable, Callable]:
    from gpustack_mc import explain, reopening, summarizing
    from gpustack_mc.run import run_scenario

    run_scenario("nanochat", samples=256, out=folder / "result", pictures=())
    raw = (folder / "result" / "result.nc").read_bytes()
    path = folder / "changed.nc"

    def make(random: np.random.Generator) -> Path:
        changed = bytearray(raw)
        for _ in range(int(_pick(random, (1, 3, 20, 200)))):
            changed[int(random.integers(len(changed)))] = int(random.integers(256))
        path.write_bytes(changed[: int(random.integers(len(changed)))] if random.random() < 0.1 else changed)
        return path

    def use(path: Path) -> None:
        tree = reopening.open_result(path)
        summarizing.text(summarizing.summarise(tree), tree.attrs["ownership"])
        explain.text(explain.explain(tree, None))

    return make, use


def _packs(folder: Path) -> tuple[Callable, Callable]:
    from gpustack_mc import calibration, pack

    made = folder / "pack"
    calibration.command(ROOT / "docs" / "how-to" / "my_runs.csv", made, False, False, lambda line: None)
    whole = {name: (made / name).read_bytes() for name in pack.FILES if (made / name).exists()}

    def make(random: np.random.Generator) -> Path:
        for name, content in whole.items():
            (made / name).write_bytes(content)
        name = _pick(random, [*whole, pack.RECORD, pack.RECORD])
        content = whole[name]
        if name == pack.RECORD and random.random() < 0.7:
            record = json.loads(content)
            content = json.dumps(_restructured(random, record, list(record))).encode()
        else:
            content = _flip(random, content)
        (made / name).write_bytes(content)
        return made

    return make, pack.load


KINDS: dict[str, Callable] = {"scenario": _scenarios, "table": _tables, "result": _results, "pack": _packs}

if __name__ == "__main__":
    main()
