"""What a sweep runs: a base scenario, and axes of values that are crossed or change together, or rows of a table."""

import math
import os
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from gpustack_mc import schema, units, yamlfile
from gpustack_mc.errors import InputError, Place, did_you_mean
from gpustack_mc.portfolio_spec import PortfolioSpec, read_portfolio
from gpustack_mc.quantities import OUTPUTS
from gpustack_mc.run_table import Skipped
from gpustack_mc.scenario import read_document
from gpustack_mc.sweep_table import read_workloads
from gpustack_mc.yamlfile import Document, Path_

MOST_SCENARIOS = 1_000_000
MOST_VALUES = 100_000
# What a draw of one scenario takes on two cores, for the time that is told before anything is run; s.
SECONDS_PER_DRAW = 2e-7
MAIN_OUTPUTS = ("training_days", "accelerator_hours", "energy_mwh", "facility_power_mw", "co2e_t",
                "co2e_operational_t", "water_offsite_m3", "water_onsite_m3", "cost_owned_usd",
                "cost_rented_usd")  # fmt: skip
TABLES = (".csv", ".parquet")
_KEYS = ("schema_version", "name", "base", "axes", "table", "outputs", "portfolio")
_RANGE = {"from", "to", "step", "points", "scale"}
_AMOUNT = re.compile(r"^\s*([-+]?[\d._]+(?:[eE][-+]?\d+)?)\s*(.*?)\s*$")

Setting = tuple[Path_, Any]


class Axis(NamedTuple):
    """Values that one or several keys take together.

    Attributes
    ----------
    name : str
    keys : tuple of str
        As written.
    paths : tuple of Path_
        Where they stand in a scenario.
    rows : tuple of tuple
        One value for each key.
    """

    name: str
    keys: tuple[str, ...]
    paths: tuple[Path_, ...]
    rows: tuple[tuple[Any, ...], ...]


class Row(NamedTuple):
    """One line of a table of workloads."""

    line: int
    name: str
    settings: tuple[Setting, ...]
    reported: Mapping[str, float]


class Sweep(NamedTuple):
    """Everything that a sweep runs.

    Attributes
    ----------
    name : str
    document : Document
        The base scenario, with what was overridden.
    axes : tuple of Axis
        The last one changes fastest; empty for a table.
    rows : tuple of Row
        Of a table; empty for axes.
    unread : tuple of Skipped
        Rows of the table that are no workload.
    notes : tuple of str
    outputs : tuple of str
    portfolio : PortfolioSpec or None
    text : str
        Of all files that were read, for the digest.
    table : str
        Name of the table's file.
    """

    name: str
    document: Document
    axes: tuple[Axis, ...]
    rows: tuple[Row, ...]
    unread: tuple[Skipped, ...]
    notes: tuple[str, ...]
    outputs: tuple[str, ...]
    portfolio: PortfolioSpec | None
    text: str
    table: str = ""

    @property
    def count(self) -> int:  # type: ignore[override]  # the property, not the method of a tuple
        """Number of scenarios."""
        return len(self.rows) if self.table else math.prod(len(axis.rows) for axis in self.axes)

    def indices(self, number: int) -> tuple[int, ...]:
        """Return the place on every axis of a scenario."""
        places = []
        for axis in reversed(self.axes):
            number, place = divmod(number, len(axis.rows))
            places.append(place)
        return tuple(reversed(places))

    def settings(self, number: int) -> tuple[Setting, ...]:
        """Return what a scenario changes in the base, in the order of the axes."""
        if self.table:
            return self.rows[number].settings
        chosen = zip(self.axes, self.indices(number), strict=True)
        return tuple(pair for axis, i in chosen for pair in zip(axis.paths, axis.rows[i], strict=True))

    def label(self, number: int) -> str:
        """Return the name of a scenario."""
        if self.table:
            return self.rows[number].name
        chosen = zip(self.axes, self.indices(number), strict=True)
        return ", ".join(shown(value) for axis, i in chosen for value in axis.rows[i])


def shown(value: Any) -> str:
    """Write a value of an axis: digits as they were meant, and distributions by what they state."""
    if isinstance(value, bool) or not isinstance(value, int | float | dict | list):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {shown(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(shown(part) for part in value) + "]"
    if not math.isfinite(value):
        return str(value)  # refused where the scenario is read
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    plain = f"{value:.12g}"
    mantissa, _, exponent = f"{value:.11e}".partition("e")
    scientific = f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return scientific if len(scientific) < len(plain) else plain


def read_sweep(source: str | Path, overrides: Sequence[str] = (), priors: Any = None) -> Sweep:
    """Read what a sweep runs.

    Parameters
    ----------
    source : str or Path
        A YAML file, or a table of workloads.
    overrides : sequence of str
        ``key=value`` for the base scenario.
    priors : path, optional
        A prior pack.

    Raises
    ------
    InputError
        The file as a whole cannot be used, or it asks for too much.
    """
    if Path(source).suffix.lower() in TABLES:
        base = _with(read_base(priors), overrides)
        text = "".join(f"\n# --set {override}" for override in overrides)
        sweep = _of_table(Path(source), base.data, Path(source).stem, text, MAIN_OUTPUTS, None)
        return sweep._replace(document=base)
    spec = yamlfile.parse(*yamlfile.read_text(source))
    return _Spec(spec, Path(source)).sweep(overrides, priors)


def read_base(priors: Any) -> Document:
    """Return the base of a table that names none: nothing is known but what its rows say."""
    return yamlfile.parse("schema_version: 1\nname: table\n", "<table>")._replace(pack=_pack(priors))


def _pack(priors: Any) -> Any:
    if not isinstance(priors, str | Path):
        return priors
    from gpustack_mc import pack

    return pack.load(priors)


def _with(document: Document, overrides: Sequence[str]) -> Document:
    """Return a document with what ``--set`` changes."""
    if not overrides:
        return document
    from gpustack_mc.reading import Reader

    return document._replace(data=Reader(document, tuple(overrides)).document.data)


def normal_path(key: str) -> Path_:
    """Return the path of a key as ``--set`` reads it: the name of an input alone is enough."""
    path: list[str | int] = [int(part) if part.isascii() and part.isdigit() else part for part in key.split(".")]
    for part, fields in (("inputs", schema.Inputs), ("reliability", schema.Reliability)):
        if path[0] not in schema.ScenarioFile.model_fields and path[0] in fields.model_fields:
            path.insert(0, part)
    return tuple(path)


def _of_table(path: Path, base: Mapping[str, Any], name: str, text: str, outputs: tuple[str, ...],
              portfolio: PortfolioSpec | None) -> Sweep:  # fmt: skip
    found = read_workloads(path, base)
    rows = tuple(Row(*row) for row in found.rows)
    if len(rows) > MOST_SCENARIOS:
        raise _too_many(len(rows), Place(str(path)))
    return Sweep(name, yamlfile.Document(None, "", "", {}, {}), (), rows, tuple(found.skipped), tuple(found.notes),
                 outputs, portfolio, text + found.digest, str(path))  # fmt: skip


class _Spec:
    """Reads one YAML file."""

    def __init__(self, document: Document, source: Path):
        self.document, self.source = document, source
        self.data = document.data

    def place(self, *path: str | int, key: bool = False) -> Place:
        return self.document.place(path, key=key)

    def fail(self, path: Path_, message: str, fix: str = "", code: str = "bad-sweep") -> InputError:
        dotted = ".".join(str(step) for step in path)
        return InputError(code, f"{dotted}: {message}" if path else message, fix, self.document.place(path))

    def sweep(self, overrides: Sequence[str], priors: Any) -> Sweep:
        self.require_keys()
        base = self.base()
        base = _with(base._replace(pack=_pack(priors)), overrides)
        outputs = self.outputs()
        portfolio = read_portfolio(self.data["portfolio"], self.fail) if "portfolio" in self.data else None
        name = self.data.get("name") or self.source.stem
        if not isinstance(name, str):
            raise self.fail(("name",), "is not text.")
        text = self.document.text + base.text + "".join(f"\n# --set {override}" for override in overrides)
        if "table" in self.data:
            table = self.data["table"]
            if not isinstance(table, str):
                raise self.fail(("table",), "is not the name of a file.")
            if not os.path.exists(self.source.parent / table):
                found = f"there is no file {units.shown(table)} beside this one."
                raise self.fail(("table",), found, "Check the name.", "missing-file")
            sweep = _of_table(self.source.parent / table, base.data, name, text, outputs, portfolio)
            return sweep._replace(document=base)
        axes = self.axes()
        sweep = Sweep(name, base, axes, (), (), (), outputs, portfolio, text)
        if sweep.count > MOST_SCENARIOS:
            raise _too_many(sweep.count, self.place("axes"), [(axis.name, len(axis.rows)) for axis in axes])
        return sweep

    def require_keys(self) -> None:
        if not isinstance(self.data, dict):
            raise InputError("not-a-sweep", "this is not a mapping of keys to values.",
                             "A sweep has `base` and `axes`, or `table`.", self.place())  # fmt: skip
        if "workload" in self.data:
            raise InputError("not-a-sweep", "this is one scenario.",
                             f"Write a sweep: `base: {self.source.name}` and `axes`.", self.place())  # fmt: skip
        for key in self.data:
            if key not in _KEYS:
                message = f"unknown key {key[:60]!r}."
                raise InputError("unknown-key", message, did_you_mean(key, _KEYS), self.place(key, key=True))
        if self.data.get("schema_version") != 1:
            raise self.fail(("schema_version",), "must be 1.", "Write `schema_version: 1`.")
        if ("axes" in self.data) == ("table" in self.data):
            found = "both stand here" if "axes" in self.data else "neither is stated"
            raise InputError("bad-sweep", f"axes and table: {found}.", "State one of the two.", self.place())

    def base(self) -> Document:
        base = self.data.get("base")
        if base is None and "table" in self.data:
            return read_base(None)
        if isinstance(base, str):
            beside = self.source.parent / base
            return read_document(beside if beside.is_file() else base)
        if isinstance(base, dict):
            keys, values = (
                {path[1:]: at for path, at in places.items() if path[:1] == ("base",)}
                for places in (self.document.keys, self.document.values)
            )
            # Where the whole base stands is no place inside it.
            return self.document._replace(data=base, text="", keys=keys, values=values)
        raise self.fail(("base",), "is missing." if base is None else "is neither a file nor a scenario.",
                        "Name a scenario file, or write one here.", "missing-key")  # fmt: skip

    def outputs(self) -> tuple[str, ...]:
        wanted = self.data.get("outputs")
        if wanted is None:
            return MAIN_OUTPUTS
        return find_outputs(wanted, lambda message, fix: self.fail(("outputs",), message, fix, "unknown-output"))

    # ---- axes ----

    def axes(self) -> tuple[Axis, ...]:
        stated = self.data["axes"]
        if not isinstance(stated, dict) or not stated:
            raise self.fail(("axes",), "has no axis.", "Write e.g. `axes: {cluster.count: [1024, 2048]}`.")
        axes, taken = [], {}
        for key, value in stated.items():
            axis = self.together(key, value["zip"]) if _is_zip(value) else self.single(key, value)
            for path, written in zip(axis.paths, axis.keys, strict=True):
                if path in taken:
                    raise self.fail(("axes", key), f"{written} is on two axes.", "Keep one.")
                taken[path] = key
            axes.append(axis)
        return tuple(axes)

    def single(self, key: str, value: Any) -> Axis:
        values = self.values(("axes", key), key, value)
        return Axis(key, (key,), (self.path(("axes", key), key),), tuple((one,) for one in values))

    def together(self, name: str, parts: Any) -> Axis:
        where = ("axes", name, "zip")
        if not isinstance(parts, dict) or not parts:
            raise self.fail(where, "is not a mapping of keys to lists.", "Write `zip: {key: [...], key: [...]}`.")
        columns = [self.values((*where, key), key, value, once=False) for key, value in parts.items()]
        lengths = {key: len(column) for key, column in zip(parts, columns, strict=True)}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{key} has {length}" for key, length in lengths.items())
            raise self.fail(where, f"{told}.", "Keys that change together need lists of one length.")
        rows = [repr(row) for row in zip(*columns, strict=True)]
        if len(set(rows)) < len(rows):
            again = next(i for i, row in enumerate(rows) if row in rows[:i])
            raise self.fail(where, f"entry {again + 1} is the same as an earlier one.", "Keep one.", "double-value")
        paths = tuple(self.path((*where, key), key) for key in parts)
        return Axis(name, tuple(parts), paths, tuple(zip(*columns, strict=True)))

    def path(self, where: Path_, key: str) -> Path_:
        path = normal_path(key)
        if path[0] not in schema.ScenarioFile.model_fields:
            known = [*schema.ScenarioFile.model_fields, *schema.Inputs.model_fields]
            raise InputError("unknown-key", f"{key[:60]!r} is no key of a scenario.", did_you_mean(key, known),
                             self.document.place(where, key=True))  # fmt: skip
        return path

    def values(self, where: Path_, key: str, value: Any, once: bool = True) -> list[Any]:
        if isinstance(value, dict) and _RANGE >= set(value) >= {"from", "to"}:
            return self.ranged(where, key, value)
        if not isinstance(value, list):
            fix = "Write a list, or {from: ..., to: ..., step: ...}, or {from: ..., to: ..., points: ..., scale: log}."
            raise self.fail(where, "is neither a list nor a range.", fix)
        if not value:
            raise self.fail(where, "has no values.", "Give one or more.", "empty-axis")
        seen: list[str] = []
        for i, one in enumerate(value):
            if one is None:
                raise self.fail((*where, i), "has no value.", "Remove it, or give one.", "no-value")
            seen.append(repr(one))
        if once and len(set(seen)) < len(seen):
            again = next(one for one in seen if seen.count(one) > 1)
            raise self.fail(where, f"{again[:60]} stands here twice.", "Keep one.", "double-value")
        return value

    def ranged(self, where: Path_, key: str, value: Mapping[str, Any]) -> list[Any]:
        first, unit = self.amount((*where, "from"), value["from"])
        last, other = self.amount((*where, "to"), value["to"])
        if unit != other:
            found = f"{unit or 'no unit'} and {other or 'no unit'}"
            raise self.fail(where, f"from and to are in {found}.", "Write both in one unit.", "mixed-units")
        log = value.get("scale", "linear")
        if log not in ("linear", "log"):
            raise self.fail((*where, "scale"), f"{units.shown(log)} is neither linear nor log.")
        if not first < last or (log == "log" and first <= 0):
            raise self.fail(where, f"from {first:g} to {last:g} is no {log} range.", "State from below to."
                            + (" A log range starts above 0." if log == "log" else ""), "empty-axis")  # fmt: skip
        numbers = self.steps(where, value, first, last, log == "log")
        if normal_path(key) == ("cluster", "count"):
            numbers = list(dict.fromkeys(round(number) for number in numbers))
        return [f"{number!r} {unit}" for number in numbers] if unit else numbers

    def steps(self, where: Path_, value: Mapping[str, Any], first: float, last: float, log: bool) -> list[float]:
        if ("step" in value) == ("points" in value):
            raise self.fail(where, "needs step or points, and not both.", "Write e.g. points: 9.")
        if "points" in value:
            count = value["points"]
            if not isinstance(count, int) or isinstance(count, bool) or not 2 <= count <= MOST_VALUES:
                raise self.fail((*where, "points"), f"{units.shown(count)} is not between 2 and {MOST_VALUES:,}.")
            shares = [i / (count - 1) for i in range(count)]
            if log:
                found = [math.exp(math.log(first) + share * (math.log(last) - math.log(first))) for share in shares]
            else:
                found = [first + share * (last - first) for share in shares]
            return _readable(found, first, last)
        step, unit = self.amount((*where, "step"), value["step"])
        if log or not step > 0 or unit not in ("", self.amount(where, value["from"])[1]):
            raise self.fail((*where, "step"), "must be above 0, in the unit of from, on a linear range.")
        count = math.floor((last - first) / step * (1 + 1e-12)) + 1
        if count > MOST_VALUES:
            raise self.fail(where, f"makes {count:,} values, more than {MOST_VALUES:,}.", "Take larger steps.")
        return [float(f"{first + i * step:.12g}") for i in range(count)]

    def amount(self, where: Path_, value: Any) -> tuple[float, str]:
        """Return a number and its unit as written."""
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return value, ""
        found = _AMOUNT.match(value) if isinstance(value, str) else None
        try:
            return float(found[1].replace("_", "")), found[2]  # type: ignore[index]
        except (TypeError, ValueError):
            raise self.fail(where, f"{units.shown(value)} is not a number.") from None


def _readable(numbers: list[float], first: float, last: float) -> list[float]:
    """Round the steps of a range to as few digits as keep them evenly apart; the ends are those that were stated."""
    for digits in (4, 6, 12):
        found = [first, *(float(f"{number:.{digits}g}") for number in numbers[1:-1]), last]
        gaps = [later - earlier for earlier, later in pairwise(numbers)]
        if all(abs(a - b) < 1e-2 * gap for a, b, gap in zip(found[1:], numbers[1:], gaps, strict=True)):
            return found
    return found


def _is_zip(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"zip"}


def find_outputs(wanted: Any, error: Any) -> tuple[str, ...]:
    """Return the outputs that a user names; ``all`` is every output of a scenario."""
    names = [part.strip() for part in wanted.split(",") if part.strip()] if isinstance(wanted, str) else wanted
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise error("is not a list of names.", "Write e.g. [cost_owned_usd, co2e_t], or all.")
    if names == ["all"]:
        return OUTPUTS
    for name in names:
        if name not in OUTPUTS:
            raise error(f"there is no output {units.shown(name)}.",
                        f"{did_you_mean(name, OUTPUTS)} `gpustack-mc quantities` lists all.")  # fmt: skip
    return tuple(dict.fromkeys(names))


def _too_many(count: int, place: Place, axes: Sequence[tuple[str, int]] = ()) -> InputError:
    told = f" ({' x '.join(f'{length:,}' for _, length in axes)})" if len(axes) > 1 else ""
    seconds = count * 16_384 * SECONDS_PER_DRAW
    fix = f"Run at most {MOST_SCENARIOS:,}: fewer values, wider steps, or keys that change together (zip)."
    return InputError("too-many", f"{count:,} scenarios{told} would take {duration(seconds)}.", fix, place)


def duration(seconds: float) -> str:
    """Write a time that is only roughly known."""
    for size, unit in ((365.25 * 86400, "years"), (86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"about {float(f'{seconds / size:.2g}'):,.10g} {unit}"
    return f"about {max(seconds, 1):.0f} seconds"
