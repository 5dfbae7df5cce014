"""Reads a table of workloads: which cells a scenario is made of, and why a row cannot be run."""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from gpustack_mc import schema
from gpustack_mc.errors import InputError, Place, did_you_mean, printable
from gpustack_mc.run_table import (
    KINDS,
    NOTHING,
    SMALLEST_PARAMS,
    SMALLEST_TOKENS,
    Skipped,
    UnusableError,
    positive,
    records,
    require_file,
)
from gpustack_mc.yamlfile import Path_

NO_DEFAULTS: Mapping[str, Any] = MappingProxyType({})
# Columns that every row needs, unless the base scenario states them.
NEEDED = ("params", "tokens", "accelerator", "count")
_NUMBERS: dict[str, Path_] = {
    "params": ("workload", "params"),
    "active_params": ("workload", "active_params"),
    "tokens": ("workload", "tokens"),
    "count": ("cluster", "count"),
    "sequence_length": ("workload", "sequence_length"),
    "n_layers": ("workload", "n_layers"),
    "d_model": ("workload", "d_model"),
    "global_batch_tokens": ("workload", "global_batch_tokens"),
}
_WHOLE = ("sequence_length", "n_layers", "d_model")
_WORDS: dict[str, Path_] = {
    "accelerator": ("cluster", "accelerator"),
    "precision": ("cluster", "precision"),
    "region": ("site", "region"),
    "operator": ("site", "operator"),
    "date": ("date",),
    "architecture": ("workload", "architecture"),
    "activation_recompute": ("workload", "activation_recompute"),
    "flash_attention": ("workload", "flash_attention"),
    "provider_kind": ("market", "provider_kind"),
    "term": ("market", "term"),
}
_LOWER = ("precision", "architecture", "activation_recompute", "operator", "provider_kind", "term")
_STATED = {name: ("inputs", name) for name in schema.Inputs.model_fields}
_ASKED = {name: ("questions", name) for name in ("budget", "deadline", "carbon_cap", "energy_cap", "power_cap")}
# What a row may report, to hold against its interval.
REPORTED = {
    "accelerator_hours": "accelerator_hours",
    "wall_clock_days": "training_days",
    "energy_mwh": "energy_mwh",
    "co2e_t": "co2e_operational_t",
}
_ALIASES = {
    "params_total": "params", "params_active": "active_params", "n_accelerators": "count",
    "accelerator_count": "count", "publication_date": "date", "year": "date",
}  # fmt: skip
NAMES = ("name", "run_id", "id", "model")
# Columns of tables of runs that say nothing of a scenario, or only how a record was made.
_UNREAD = frozenset(
    "family organization mfu_reported mfu_kind mfu_convention goodput_reported goodput_definition energy_basis "
    "mean_gpu_power_w mean_system_power_w_per_accelerator grid_gco2_per_kwh kind tier seed27 source_title source_url "
    "locator note notes comment description hours_basis mfu_peak_basis batch framework parallelism "
    "interconnect_gbps_per_accelerator interconnect_kind nodes_gpus micro_batch vocab_size ownership team_kind "
    "hours_cover hours_source_precision covariate_tier covariate_source_url covariate_locator generation "
    "peak_16bit_flop_per_s goodput_bound source use".split()
)
_KNOWN = (*NAMES, *_NUMBERS, *_WORDS, *_STATED, *_ASKED, *REPORTED, *_ALIASES)
_NEED = "name, params, tokens, accelerator, count, region and date"
_FIX = f"Give a header with {_NEED}, then one workload per line."


_Read = tuple[int, str, tuple[tuple[Path_, Any], ...], dict[str, float]]


class Workloads(NamedTuple):
    """A table that was read: (line, name, settings, reported) of each row that may be run, and the others."""

    rows: list[_Read]
    skipped: list[Skipped]
    notes: list[str]
    digest: str


def read_workloads(path: Path, base: Mapping[str, Any] = NO_DEFAULTS) -> Workloads:
    """Read a table.

    Parameters
    ----------
    path : Path
        CSV, or Parquet where pyarrow is installed. Columns in any order, also by the names of a table of runs.
    base : mapping
        The base scenario, whose values take the place of empty cells.

    Raises
    ------
    InputError
        The file as a whole cannot be used.
    """
    header = _Header(base)
    rows: list[_Read] = []
    skipped: list[Skipped] = []
    seen: dict[str, int] = {}
    lines = _parquet(path, header) if path.suffix.lower() == ".parquet" else records(path, header, _FIX)
    for line, cells in lines:
        try:
            row = _row(line, cells, header, seen)
        except UnusableError as problem:
            skipped.append(Skipped(line, str(problem)))
            continue
        seen[row[1]] = line
        rows.append(row)
    if not rows:
        raise _none_usable(path, skipped)
    return Workloads(rows, skipped, header.notes, hashlib.sha256(path.read_bytes()).hexdigest())


def _none_usable(path: Path, skipped: list[Skipped]) -> InputError:
    if not skipped:
        return InputError("no-rows", "the file has a header and no rows.", "Add one workload per line.",
                          Place(str(path)))  # fmt: skip
    line, reason = skipped[0]
    message = f"none of the {len(skipped):,} rows can be run; the first: {reason}"
    return InputError("no-usable-row", message, "Correct this row.", Place(str(path), line))


class _Header:
    """Checks the names of the columns, and knows what the base states."""

    def __init__(self, base: Mapping[str, Any]):
        self.base = base
        self.notes: list[str] = []

    def stated(self, name: str) -> bool:
        """Whether the base has a value for a column."""
        node: Any = self.base
        for step in (_NUMBERS | _WORDS)[name]:
            if not isinstance(node, Mapping) or step not in node:
                return False
            node = node[step]
        return node is not None

    def __call__(self, path: Path, line: int, cells: list[str]) -> list[str]:
        written = [cell.strip().lower().replace(" ", "_") for cell in cells]
        place = Place(str(path), line)
        if len(written) == 1 and any(mark in written[0] for mark in ";\t"):
            raise InputError("separator", "the columns are not separated by commas.", "Save with commas.", place)
        found = [_ALIASES.get(name, name) for name in written]
        if not set(found) & set(_KNOWN):
            raise InputError("no-header", "the first line holds no known column.", _FIX, place)
        for name in written:
            self._check(name, place)
        for name in sorted({name for name in found if name in _KNOWN and found.count(name) > 1}):
            raise InputError("double-column", f"column {name} appears twice.", "Remove one.", place)
        missing = [name for name in NEEDED if name not in found and not self.stated(name)]
        if "params" in missing and "active_params" in found:
            missing.remove("params")
        if missing:
            fix = f"Add them, or state them in the base scenario. A table has {_NEED}."
            raise InputError("missing-columns", f"missing columns: {', '.join(missing)}.", fix, place)
        return found

    def _check(self, name: str, place: Place) -> None:
        """Refuse a column that looks like a known one by another name, and note what is not read."""
        if not name or name in _KNOWN or name in _UNREAD:
            return
        from difflib import get_close_matches

        near = get_close_matches(name, _KNOWN, n=1, cutoff=0.75)
        if near:
            raise InputError("unknown-column", f"column {name[:60]!r} is not known.", did_you_mean(name, _KNOWN), place)
        self.notes.append(f"column {printable(name[:60])!r} is not read")


def _parquet(path: Path, header: _Header) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield rows of a Parquet file as texts; the row after the header is line 2, as it would be in CSV."""
    place = Place(str(path))
    require_file(path, place)
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        fix = "Install it: pip install 'gpustack-mc[parquet]', or save the table as CSV."
        raise InputError("no-pyarrow", "reading Parquet needs pyarrow, which is not installed.", fix, place) from None
    try:
        table = parquet.read_table(path)
    except FileNotFoundError:
        raise InputError("missing-file", "there is no such file.", "Check the path.", place) from None
    except (OSError, ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise InputError("cannot-read", f"this is not Parquet: {reason}.", "Check the file.", place) from None
    names = header(path, 1, list(table.column_names))
    for number, row in enumerate(table.to_pylist()):
        yield number + 2, {name: _text(cell) for name, cell in zip(names, row.values(), strict=True)} | {"": ""}


def _text(cell: Any) -> str:
    if cell is None or cell != cell:
        return ""
    return f"{cell:g}" if isinstance(cell, float) and cell == int(cell) else str(cell)


def _row(line: int, cells: Mapping[str, str], header: _Header, seen: Mapping[str, int]) -> _Read:
    if cells[""]:
        raise UnusableError("more cells than the header has: quote cells that hold a comma.")
    cells = {name: "" if cell.lower() in NOTHING else cell for name, cell in cells.items()}
    if cells.get("kind", "") not in KINDS:
        raise UnusableError(f"kind is {cells['kind'][:40]!r}, not a training run.")
    name = printable(next((cells[key] for key in NAMES if cells.get(key)), f"line {line}"))[:200]
    if name in seen:
        raise UnusableError(f"the name {name[:60]!r} is already on line {seen[name]}: give each row its own.")
    settings = dict(_workload(cells, header))
    for column, path in _WORDS.items():
        if cells.get(column):
            settings[path] = _word(column, cells[column])
    for column, path in (_STATED | _ASKED).items():
        if cells.get(column):
            settings[path] = _amount(cells[column])
    return line, name, tuple(settings.items()), dict(_reported(cells))


def _reported(cells: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    """Yield what a row reports; a cell that is no amount reports nothing, and does not keep the row from being run."""
    for column, output in REPORTED.items():
        with contextlib.suppress(UnusableError):
            yield output, positive(cells, column)


def _workload(cells: Mapping[str, str], header: _Header) -> Iterator[tuple[Path_, Any]]:
    """Yield the numbers of a row; a dense model's parameters are all active."""
    numbers = {column: positive(cells, column) for column in _NUMBERS if cells.get(column)}
    numbers.setdefault("params", numbers.get("active_params", 0.0))
    if numbers.get("active_params") == numbers["params"]:
        del numbers["active_params"]
    if not numbers["params"]:
        del numbers["params"]
    for column in NEEDED:
        if column not in numbers and not cells.get(column) and not header.stated(column):
            raise UnusableError(f"{column} is missing.")
    for column, least, example in (("params", SMALLEST_PARAMS, "7e9"), ("tokens", SMALLEST_TOKENS, "2e12")):
        if numbers.get(column, least) < least:
            raise UnusableError(f"{column} is {numbers[column]:g}: {column} in billions? write {example}.")
    for column in _WHOLE:
        if numbers.get(column, 0.0) != int(numbers.get(column, 0.0)):
            raise UnusableError(f"{column} is {numbers[column]:g}: it must be a whole number.")
    for column, value in numbers.items():
        yield _NUMBERS[column], int(value) if column in _WHOLE else value


def _word(column: str, text: str) -> Any:
    if column == "flash_attention":
        if text.lower() not in ("yes", "no"):
            raise UnusableError(f"flash_attention is {text[:40]!r}: write yes or no.")
        return text.lower() == "yes"
    return text.lower() if column in _LOWER else text


def _amount(text: str) -> Any:
    """Return a number where the text is one; what has a unit stays a text."""
    try:
        return float(text)
    except ValueError:
        return text
