"""Hostile and careless input of every kind that the program reads: how each is made, and what is done with it.

A kind is a function of a folder that returns two: one makes an input from a random generator, the other uses it as the
program does. What that returns is a finding in words, empty where all is well; `benchmarks/fuzz.py` counts them.
"""

import contextlib
import copy
import csv
import io
import json
import os
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
Random = np.random.Generator
Make, Use = Callable[[Random], Any], Callable[[Any], str | None]

MARKUP = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</script><script>alert(1)</script>",
    "javascript:alert(1)",
    "a](javascript:alert(1)) | b\\n# c",
    "`</pre><iframe src=//x>`",
    "}\\\\write18{alert(1)}, title={",
    "'{{7*7}}' {% if 1 %}",
    "]]><svg onload=alert(1)>",
)
HOSTILE = (
    *("", " ", "~", "null", ".nan", ".inf", "-.inf", "-1", "0", "-0.0", "1e308", "1e400", "1e-400", "9" * 400, "0x10"),
    *("true", "no", "7B", "7 billion", "5 km", "5 USD/parsec", "1_000", "1,000", "½", "٣", "0.4%", "400%"),
    *("2027-02-30", "0001-01-01", "9999-12-31", "1e-320", "5e-324", "-1e-320", "1 USD", "0 d", "-5 MUSD", "1e300 yr"),
    *("../../etc/passwd", "/dev/zero", "/proc/self/mem", "..", ".", "CON", "a/b", "~root", "nul\\0"),
    *("{{7*7}}", "${HOME}", "%n%s", "\x1b[31m", "\u202e", "\ud800".encode("utf-8", "surrogatepass").decode("latin-1")),
    *("[1, 2]", "{low: 2, high: 1}", "{low: .nan, high: 1}", "{low: 0.1, high: 0.2, mass: 1.5}", "{low: 0.1}"),
    *("{median: 0.4}", "{value: 0.4, low: 0.2}", "[[[[[[[[]]]]]]]]", "!!python/object/apply:os.system ['true']"),
    *("{low: 1e-300, high: 1e300}", "{dist: normal, mean: 0.4, sd: 1e308}", "{dist: beta, a: 1e-9, b: 1e-9}"),
    *("*nothing", "&a [*a]", "!!binary aGk=", "? ", "|", ">", "'", '"', "@", "`", "- - -", "a" * 5000, "é" * 300),
    *MARKUP,
)


def pick(random: Random, choices: Any) -> Any:
    """Return one of several."""
    return choices[int(random.integers(len(choices)))]


# ---- changes --------------------------------------------------------------------------------------------------------
def flipped(random: Random, data: bytes) -> bytes:
    """Change, drop, repeat or add some bytes."""
    changed = bytearray(data)
    for _ in range(int(pick(random, (1, 1, 2, 5, 30)))):
        at, how = int(random.integers(len(changed) + 1)), int(random.integers(5))
        length = int(random.integers(1, 40))
        if how == 0:
            changed[at : at + 1] = random.bytes(1) if random.random() < 0.2 else bytes([random.integers(32, 127)])
        elif how == 1:
            del changed[at : at + length]
        elif how == 2:
            changed[at:at] = changed[max(at - length, 0) : at]
        elif how == 3:
            changed[at:at] = pick(random, HOSTILE).encode()
        else:
            changed = changed[: max(at, 1)] if random.random() < 0.1 else changed
        if not changed:
            changed = bytearray(b"x")
    return bytes(changed)


def places(node: Any, path: tuple = ()) -> list[tuple]:
    """Return the paths of a tree of dicts and lists."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(place for key, value in items for place in places(value, (*path, key)))]


def restructured(random: Random, data: Any, keys: list[str]) -> Any:
    """Replace, drop, move, nest or add parts of a tree of dicts and lists."""
    for _ in range(int(random.integers(1, 4))):
        path = pick(random, places(data))
        if not path:
            continue
        parent = data
        for step in path[:-1]:
            parent = parent[step]
        how = int(random.integers(5))
        if how == 0:
            del parent[path[-1]]
        elif how == 1:
            parent[path[-1]] = scalar(pick(random, HOSTILE))
        elif how == 2 and isinstance(parent, dict):
            parent[pick(random, keys)] = scalar(pick(random, HOSTILE))
        elif how == 3:
            parent[path[-1]] = {pick(random, keys): parent[path[-1]]}
        else:
            parent[path[-1]] = [copy.deepcopy(parent[path[-1]]) for _ in range(int(random.integers(1, 4)))]
    return data


def scalar(text: str) -> Any:
    """Return what YAML makes of a text, or the text."""
    if "&" in text:  # a list that holds itself: only as text
        return text
    try:
        return YAML(typ="safe", pure=True).load(text)
    except Exception:
        return text


def dumped(data: Any) -> str:
    """Return plain data as YAML."""
    out = io.StringIO()
    YAML(typ="safe", pure=True).dump(data, out)
    return out.getvalue()


def changed_yaml(random: Random, text: str, keys: list[str]) -> bytes:
    """Change structure, bytes or both of a YAML file; nothing once in six times."""
    if random.random() < 0.6:
        text = dumped(restructured(random, YAML(typ="safe", pure=True).load(text), keys))
    return flipped(random, text.encode()) if random.random() < 0.6 else text.encode()


def scenario_texts() -> list[str]:
    """Return the shipped scenarios."""
    return [path.read_text(encoding="utf-8") for path in sorted((ROOT / "scenarios").glob("*.yaml"))]


def scenario_keys() -> list[str]:
    """Return all words that are keys somewhere in a scenario, and inputs and outputs."""
    from gpustack_mc import schema
    from gpustack_mc.quantities import BY_NAME

    return [*BY_NAME, *(name for model in vars(schema).values() for name in getattr(model, "model_fields", ()))]


# ---- what must not be in a page -------------------------------------------------------------------------------------
class _Page(HTMLParser):
    """Collects what a browser would run or fetch, and the page's own scripts would not."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("iframe", "object", "embed", "base", "form") or (tag == "img" and dict(attrs).get("src") == "x"):
            self.found.append(f"a {tag}")
        for name, value in attrs:
            if name.startswith("on"):
                self.found.append(f"a handler {name}")
            if name in ("href", "src", "xlink:href", "action") and not (value or "").startswith(
                ("https://", "http://", "#", "data:image/", "data:,", "mailto:")
            ):
                self.found.append(f"a link to {(value or '')[:40]}")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script" and "alert(1)" in data.replace('\\"', "") and "\\u003c" not in data:
            self.found.append("a foreign script")


def page_findings(path: Path) -> str:
    """Return what a written page, picture or text holds that came from a file and would be run."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".html", ".svg"):
        page = _Page()
        page.feed(text)
        return f"{path.name} holds {page.found[0]}" if page.found else ""
    if path.suffix == ".md" and any(mark in text for mark in ("<script", "<img src=x", "](javascript:", "<iframe")):
        return f"{path.name} holds markup of a file"
    return ""


# ---- scenarios ------------------------------------------------------------------------------------------------------
def scenarios(folder: Path) -> tuple[Make, Use]:
    """Scenario files with other values, keys, structure and bytes."""
    from gpustack_mc.scenario import load_scenario

    texts, keys, path = scenario_texts(), scenario_keys(), folder / "plan.yaml"

    def make(random: Random) -> Path:
        path.write_bytes(changed_yaml(random, pick(random, texts), keys))
        return path

    def use(path: Path) -> None:
        load_scenario(path)

    return make, use


WRONG = ("'?!'", "[[1]]", "-1e400", "{zz: 1}", ".nan", "true", "!!int 5", "*none", "'-3 parsec'", "[]", "99e99")


def lines(folder: Path) -> tuple[Make, Use]:
    """Scenario files with one wrong value: the error must name its line."""
    from gpustack_mc.errors import GpustackError, InputErrors
    from gpustack_mc.scenario import load_scenario

    texts, path = scenario_texts(), folder / "plan.yaml"
    leaves = [(text, node) for text in texts for node in _leaves(YAML(typ="safe", pure=True).compose(text))]

    def make(random: Random) -> tuple[Path, int]:
        text, node = pick(random, leaves)
        start, end = node.start_mark, node.end_mark
        # A block of text ends where the next key begins, and has to leave it its line.
        ending = "\n" if text[start.index : end.index].endswith("\n") else ""
        path.write_text(text[: start.index] + pick(random, WRONG) + ending + text[end.index :], encoding="utf-8")
        return path, start.line + 1

    def use(subject: tuple[Path, int]) -> str:
        path, line = subject
        try:
            load_scenario(path)
        except GpustackError as error:
            every = error.errors if isinstance(error, InputErrors) else [error]
            if not any(each.place and each.place.line == line for each in every):
                return f"line {line} is wrong, and the error is {error}"
            raise
        return ""

    return make, use


def _leaves(node: Any) -> list[Any]:
    if type(node).__name__ == "ScalarNode":
        return [node]
    values = [value for _, value in node.value] if type(node).__name__ == "MappingNode" else node.value
    return [leaf for value in values for leaf in _leaves(value)]


# ---- tables ---------------------------------------------------------------------------------------------------------
def changed_table(random: Random, rows: list[list[str]], names: list[str]) -> bytes:
    """Change cells, column names and bytes of a table."""
    rows = [list(row) for row in rows]
    for _ in range(int(random.integers(1, 6))):
        row = rows[int(random.integers(len(rows)))]
        cell = int(random.integers(len(row)))
        row[cell] = pick(random, names) if row is rows[0] and random.random() < 0.7 else pick(random, HOSTILE)
    if random.random() < 0.5:
        out = io.StringIO()
        csv.writer(out).writerows(rows)
        raw = out.getvalue().encode()
    else:
        raw = "\n".join(",".join(row) for row in rows).encode()
    return flipped(random, raw) if random.random() < 0.4 else raw


def table_rows() -> list[list[list[str]]]:
    """Return the tables that are changed."""
    paths = (
        ROOT / "docs/how-to/my_runs.csv",
        ROOT / "priors/utilization/data.csv",
        ROOT / "docs/how-to/published_runs.csv",
    )
    return [list(csv.reader(path.read_text(encoding="utf-8").splitlines()[:12])) for path in paths]


def tables(folder: Path) -> tuple[Make, Use]:
    """Tables of runs, for calibration, for validation and for a sweep."""
    from gpustack_mc.run_columns import COLUMNS
    from gpustack_mc.run_table import read_runs
    from gpustack_mc.sweep_table import read_workloads
    from gpustack_mc.user_table import read_table

    every, names, path = table_rows(), list(COLUMNS), folder / "runs.csv"

    def make(random: Random) -> tuple[Callable, Path]:
        path.write_bytes(changed_table(random, pick(random, every), names))
        return pick(random, (read_table, read_table, read_runs, read_workloads)), path

    def use(subject: tuple[Callable, Path]) -> None:
        read, path = subject
        read(path)

    return make, use


# ---- sweeps ---------------------------------------------------------------------------------------------------------
def sweep_texts() -> list[str]:
    """Return the sweeps that are changed."""
    names = ("chips_and_sites", "lab_year", "published_runs")
    found = [(ROOT / "docs/how-to" / f"{name}.yaml").read_text(encoding="utf-8") for name in names]
    return [
        *found,
        "schema_version: 1\nname: ranges\nbase: {schema_version: 1, name: b, workload: {params: 7e9, tokens: 2e12}, "
        "cluster: {accelerator: H100-SXM-80GB, count: 512}, site: {region: US-TX}}\n"
        "axes:\n  cluster.count: {from: 64, to: 512, points: 4, scale: log}\n  electricity_price: "
        "{from: 40 USD/MWh, to: 80 USD/MWh, step: 20 USD/MWh}\noutputs: [cost_owned_usd]\n",
    ]


SWEEP_KEYS = ["base", "axes", "table", "zip", "from", "to", "step", "points", "scale", "outputs", "portfolio", "budget"]


def sweeps(folder: Path) -> tuple[Make, Use]:
    """Sweep files and the tables they name."""
    from gpustack_mc.sweep_spec import read_sweep

    texts, keys, path = sweep_texts(), [*SWEEP_KEYS, *scenario_keys()], folder / "sweep.yaml"
    shutil.copy(ROOT / "docs/how-to/published_runs.csv", folder)

    def make(random: Random) -> Path:
        path.write_bytes(changed_yaml(random, pick(random, texts), keys))
        return path

    def use(path: Path) -> None:
        sweep = read_sweep(path)
        for number in {0, sweep.count // 2, sweep.count - 1}:
            sweep.label(number), sweep.settings(number)

    return make, use


SMALL_SWEEP = (
    "schema_version: 1\nbase: nanochat\naxes: {cluster.count: [8, 16], site.region: [US-TX, US-CA]}\n"
    "outputs: [cost_owned_usd, energy_mwh]\n"
)


def kept_sweeps(folder: Path) -> tuple[Make, Use]:
    """Folders of sweeps, finished and unfinished, whose files were changed: the sweep goes on in them or refuses."""
    from gpustack_mc import sweep

    spec, whole, part, at = folder / "small.yaml", folder / "whole", folder / "part", folder / "sweep"
    spec.write_text(SMALL_SWEEP, encoding="utf-8")
    if not whole.exists():
        sweep.run_sweep(spec, samples=256, out=whole, with_plots=False)
        removed, sweep.Store.remove_chunks = sweep.Store.remove_chunks, lambda store: None
        sweep.run_sweep(spec, samples=256, out=part, with_plots=False)
        sweep.Store.remove_chunks = removed
        for name in (sweep.RECORD, sweep.RESULT):
            (part / name).unlink()
    fresh = {path.relative_to(at.parent): path.read_bytes() for path in whole.rglob("*") if path.is_file()}

    def make(random: Random) -> Path:
        shutil.rmtree(at, ignore_errors=True)
        shutil.copytree(pick(random, (whole, part)), at)
        for _ in range(int(random.integers(1, 3))):
            path = pick(random, sorted(path for path in at.rglob("*") if path.is_file()))
            raw, how = path.read_bytes(), random.random()
            if path.suffix == ".npz" and how < 0.5:
                path.write_bytes(_changed_arrays(random, path))
            elif path.suffix == ".json" and how < 0.7:
                record = json.loads(raw)
                path.write_text(json.dumps(restructured(random, record, list(record)), default=str))
            else:
                path.write_bytes(flipped(random, raw))
        return at

    def use(at: Path) -> str:
        sweep.run_sweep(spec, samples=256, out=at, with_plots=False)
        table = next(content for name, content in fresh.items() if name.name == sweep.TABLE)
        unchanged = (at / sweep.TABLE).read_bytes() == table
        return "" if unchanged or (at / sweep.RECORD).exists() else "another table"

    return make, use


def _parsed(raw: bytes) -> Any:
    with contextlib.suppress(ValueError):
        return json.loads(raw)


def _changed_arrays(random: Random, path: Path) -> bytes:
    try:
        with np.load(path) as file:
            arrays = dict(file)
    except Exception:  # changed before
        return path.read_bytes()[:-1]
    name = pick(random, sorted(arrays))
    value, how = arrays[name], int(random.integers(5))
    if how == 0:
        del arrays[name]
    elif how == 1:
        arrays[name] = value[:-1] if value.ndim else value
    elif how == 2:
        arrays[name] = value.astype(str) if value.dtype.kind == "f" else value
    elif how == 3:
        arrays[name] = np.full(value.shape, np.nan) if value.dtype.kind == "f" else value
    else:
        arrays[pick(random, ("x", "value", "reasons"))] = np.zeros(3)
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


# ---- prior packs ----------------------------------------------------------------------------------------------------
def packs(folder: Path) -> tuple[Make, Use]:
    """Prior packs whose record, measurements or draws were changed, and a scenario run with what is accepted."""
    import hashlib

    from gpustack_mc import calibration, pack
    from gpustack_mc.scenario import load_scenario

    made, origin = folder / "pack", folder / "origin"
    if not origin.exists():
        calibration.command(ROOT / "docs" / "how-to" / "my_runs.csv", origin, False, False, lambda line: None)
    whole = {name: (origin / name).read_bytes() for name in pack.FILES if (origin / name).exists()}
    made.mkdir(exist_ok=True)

    def make(random: Random) -> Path:
        for name, content in whole.items():
            (made / name).write_bytes(content)
        name = pick(random, [*whole, pack.RECORD, pack.RECORD])
        content = whole[name]
        if name == pack.RECORD and random.random() < 0.7:
            record = json.loads(content)
            content = json.dumps(restructured(random, record, list(record)), default=str).encode()
        elif name == pack.RECORD:
            content = flipped(random, content)
        else:
            rows = list(csv.reader(content.decode().splitlines()))[: int(pick(random, (3, 50, 10_000)))]
            content = changed_table(random, rows, rows[0])
            # A stranger would change the hash in the record as well.
            record = json.loads(whole[pack.RECORD])
            record["files"][name] = hashlib.sha256(content).hexdigest()
            (made / pack.RECORD).write_text(json.dumps(record))
        (made / name).write_bytes(content)
        return made

    def use(made: Path) -> None:
        load_scenario("nanochat", (), made)

    return make, use


# ---- journals -------------------------------------------------------------------------------------------------------
NAMES = ("result.nc", "../outside", "/tmp/outside", "..", ".", "", "a/b", "\x00", "x" * 300, ".gpustack-mc-a", "ü",
         ".gpustack-mc-../../outside", "C:\\x", ".gpustack-mc.journal", None, 3, [], {})  # fmt: skip


def journals(folder: Path) -> tuple[Make, Use]:
    """Journals of a change of files that was cut off: nothing outside of the folder may move."""
    from gpustack_mc import storage

    outside, inside = folder / "outside", folder / "folder"
    around = {*os.listdir(folder), "outside", "folder"}

    def make(random: Random) -> Path:
        shutil.rmtree(inside, ignore_errors=True)
        inside.mkdir()
        outside.write_text("mine")
        (inside / ".gpustack-mc-a").write_text("new")
        (inside / "result.nc").write_text("old")
        pairs: Any = [[pick(random, NAMES) for _ in range(int(pick(random, (1, 2, 2, 2, 3))))] for _ in range(3)]
        text = json.dumps(pick(random, (pairs, pairs, pairs, {"a": pairs}, None, 3, "x")))
        journal = inside / ".gpustack-mc.journal"
        journal.write_bytes(flipped(random, text.encode()) if random.random() < 0.5 else text.encode())
        return inside

    def use(inside: Path) -> str:
        storage.recover_if_needed(inside)
        if outside.read_text() != "mine" or set(os.listdir(folder)) != around:
            return "a file outside of the folder was changed"
        return ""

    return make, use
