"""Reads a user's table of training runs, and says of each row that cannot be used which line it is and why."""

import csv
import functools
import io
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpustack_mc import catalog
from gpustack_mc.constants import FLOP_PER_PARAM_AND_TOKEN, SECONDS_PER_HOUR
from gpustack_mc.errors import InputError, Place, did_you_mean

REQUIRED = ("tokens", "accelerator", "accelerator_hours")
PARAMS = ("params_active", "params_total")
OPTIONAL_NUMBERS = ("n_accelerators", "sequence_length", "n_layers", "d_model", "global_batch_tokens")
WORDS = ("architecture", "precision", "activation_recompute", "flash_attention")
TEXTS = ("model", "family", "publication_date", "batch", "seed27", "tier", "hours_basis", "hours_cover")
KINDS = ("", "training", "training_run")
IDS = ("run_id", "id")
ALIASES = {"params": "params_total", "date": "publication_date"}
"""Other names of columns, which `gpustack-mc calibrate` knows as well."""

SMALLEST_PARAMS = 1e5
SMALLEST_TOKENS = 1e6
# Above its peak an accelerator cannot compute, twice the 16-bit peak with 8-bit numbers; below a thousandth no run is
# known, and a slip of a unit is a factor of a thousand.
LARGEST_UTILIZATION = {"": 1.0, "fp8": 2.0}
SMALLEST_UTILIZATION = 0.001

NOTHING = ("", "unknown")
# A million rows of the columns that are read take less.
MOST_BYTES = 250 * 10**6


class Skipped(NamedTuple):
    """A row that was not used: its line in the file, counting from 1, and why."""

    line: int
    reason: str


def read_runs(path: Path) -> tuple[list[dict[str, Any]], list[Skipped]]:
    """Read training runs from a CSV file with the columns of ``priors/utilization/data.csv``.

    Parameters
    ----------
    path : Path
        Columns in any order; ``tokens``, ``accelerator``, ``accelerator_hours`` and one of ``params_active`` and
        ``params_total`` are required, columns that are not known are ignored.

    Returns
    -------
    rows : list of dict
        Usable rows, with ``line``, ``run_id``, ``family`` (the run's id where none is given), numbers as floats, and
        ``generation`` and ``peak_16bit_flop_per_s`` of the accelerator.
    skipped : list of Skipped
        All other rows, so that every row of the file is in one of the two.

    Raises
    ------
    InputError
        The file as a whole cannot be used.
    """
    rows: list[dict[str, Any]] = []
    skipped: list[Skipped] = []
    seen: dict[str, int] = {}
    for line, cells in records(path, _header):
        try:
            row = _run(line, cells, seen)
        except UnusableError as error:
            skipped.append(Skipped(line, str(error)))
            continue
        seen[row["run_id"]] = line
        rows.append(row)
    if not rows:
        raise _none_usable(path, skipped)
    return rows, skipped


# ---- the file -------------------------------------------------------------------------------------------------------
Header = Callable[[Path, int, list[str]], list[str]]


def records(path: Path, names: Header, columns: str = "") -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the line and the cells of each row that is not blank.

    Parameters
    ----------
    path : Path
    names : callable
        From the path, the line and the cells of the header to the names of the columns; raises an InputError for a
        header that cannot be used.
    columns : str
        What to say of an empty file; what `read_runs` needs when omitted.

    Yields
    ------
    line : int
    cells : dict of str to str
        By column; under ``""`` the word ``extra`` when the row has more cells than the header.
    """
    text = _text(path)
    _require_closed_quotes(text, Place(str(path)))
    reader = csv.reader(io.StringIO(text, newline=""))
    header: list[str] | None = None
    end = 0
    try:
        for cells in reader:
            line, end = end + 1, reader.line_num
            if not any(cell.strip() for cell in cells):
                continue
            if header is None:
                header = names(path, line, cells)
                continue
            extra = len(cells) > len(header) and any(cell.strip() for cell in cells[len(header) :])
            cells += [""] * (len(header) - len(cells))
            found = dict(zip(header, (cell.strip() for cell in cells), strict=False))
            yield line, {**found, "": "extra" if extra else ""}
    except csv.Error as error:
        fix = "Check the quotes on this line; a quote that is not closed swallows what follows."
        raise InputError("csv", f"this is not CSV: {error}.", fix, Place(str(path), reader.line_num or 1)) from error
    if header is None:
        raise InputError("empty-file", "the file is empty.", columns or _COLUMNS, Place(str(path)))


def _require_closed_quotes(text: str, place: Place) -> None:
    """Refuse a file that ends inside a quoted cell, which has swallowed all rows from there on."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    line = 1
    try:
        for _ in reader:
            line = reader.line_num + 1
    except csv.Error as error:
        # What else a strict reader refuses, the lenient one understands.
        if "end of data" not in str(error):
            return
        fix = "Close it: it swallows all rows from here on."
        raise InputError("csv", "a quote is opened and never closed.", fix, place._replace(line=line)) from error


_COLUMNS = f"Give a header with {', '.join(REQUIRED)} and {' or '.join(PARAMS)}, then one run per line."


def require_file(path: Path, place: Place) -> None:
    """Refuse what has no end or no size, and more than fits beside its own cells in a gigabyte of memory.

    Raises
    ------
    InputError
        It is a device, a pipe, or too large; a file that is not there is told by who opens it.
    """
    # Not of pathlib, which fails on a name that is too long.
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise InputError("not-a-file", "this is a device or a pipe.", "Save the table in a file.", place)
    if os.path.isfile(path) and (size := os.path.getsize(path)) > MOST_BYTES:
        found = f"this table has {size / 1e6:,.0f} MB, more than {MOST_BYTES / 1e6:.0f}."
        raise InputError("too-large", found, "Divide it, or leave out columns that are not read.", place)


def _text(path: Path) -> str:
    place = Place(str(path))
    require_file(path, place)
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise InputError("missing-file", "there is no such file.", "Check the path.", place) from error
    except IsADirectoryError as error:
        raise InputError("folder", "this is a folder.", "Give a CSV file in it.", place) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError("cannot-read", f"cannot read: {reason}.", "Check the path.", place) from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = f"byte {error.start + 1} (0x{content[error.start]:02x}) is not UTF-8."
        fix = "Save the file as UTF-8, in a spreadsheet as 'CSV UTF-8'."
        raise InputError("not-utf8", message, fix, place._replace(line=line)) from error


def _header(path: Path, line: int, cells: list[str]) -> list[str]:
    """Check the names of the columns; their case and blanks around them do not matter."""
    names = [cell.strip().lower() for cell in cells]
    names = [ALIASES.get(name, name) for name in names]
    place = Place(str(path), line)
    missing = [name for name in REQUIRED if name not in names]
    if not any(name in names for name in PARAMS):
        missing.append(PARAMS[0])
    if len(names) == 1 and any(mark in names[0] for mark in ";\t"):
        raise InputError("separator", "the columns are not separated by commas.", "Save with commas.", place)
    if missing and not any(name in (*REQUIRED, *PARAMS, *IDS) for name in names):
        raise InputError("no-header", "the first line holds no known column.", _COLUMNS, place)
    if missing:
        offers = [f"{name}: {did_you_mean(name, others)}" for name in missing if (others := _unknown(names))]
        fix = f"Name the columns as in priors/utilization/data.csv. {' '.join(offers)}"
        raise InputError("missing-columns", f"missing columns: {', '.join(missing)}.", fix.strip(), place)
    read = (*REQUIRED, *PARAMS, *OPTIONAL_NUMBERS, *WORDS, *TEXTS, *IDS, "kind")
    twice = sorted({name for name in names if name in read and names.count(name) > 1})
    if twice:
        raise InputError("double-column", f"column {twice[0]} appears twice.", "Remove one.", place)
    return names


def _unknown(names: list[str]) -> tuple[str, ...]:
    """Columns of the file that are not read: one of them may be a required one by another name."""
    read = (*REQUIRED, *PARAMS, *OPTIONAL_NUMBERS, *WORDS, *TEXTS, *IDS, "kind")
    return tuple(name for name in names if name and name not in read)


def _none_usable(path: Path, skipped: list[Skipped]) -> InputError:
    if not skipped:
        return InputError("no-rows", "the file has a header and no rows.", "Add one run per line.", Place(str(path)))
    first = skipped[0]
    message = f"none of the {len(skipped)} rows can be used; the first: {first.reason}"
    return InputError("no-usable-row", message, "Correct this row.", Place(str(path), first.line))


# ---- one row --------------------------------------------------------------------------------------------------------
class UnusableError(Exception):
    """Why a row, or a cell of it, cannot be used."""


def _run(line: int, cells: Mapping[str, str], seen: Mapping[str, int]) -> dict[str, Any]:
    """Return a usable row, or raise `UnusableError`."""
    if cells[""]:
        raise UnusableError("more cells than the header has: quote cells that hold a comma.")
    kind = cells.get("kind", "")
    if kind not in KINDS:
        raise UnusableError(f"kind is {kind[:40]!r}, not a training run.")
    run_id = next((cells[name] for name in IDS if cells.get(name)), f"line {line}")
    if run_id in seen:
        raise UnusableError(f"run id {run_id[:60]!r} is already on line {seen[run_id]}: give each run its own.")
    row: dict[str, Any] = {name: cells.get(name, "") for name in TEXTS}
    row |= {name: cells.get(name, "").lower() for name in WORDS}
    row |= {"line": line, "run_id": run_id, "family": row["family"] or run_id}
    row |= {name: _optional(cells, name) for name in OPTIONAL_NUMBERS}
    row["accelerator_hours"] = positive(cells, "accelerator_hours")
    row["tokens"] = positive(cells, "tokens")
    row["params_active"] = _params(cells, row["architecture"])
    row |= known_accelerator(cells["accelerator"])
    _require_units(row)
    return row


def _number(cells: Mapping[str, str], name: str) -> float:
    text = cells[name]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    # float() also reads 1_000, nan and inf, which no table of runs means.
    if not math.isfinite(value) or "_" in text:
        raise UnusableError(f"{name} is not a number: {text[:40]!r}; write 7000000000 or 7e9.") from None
    return value


def positive(cells: Mapping[str, str], name: str) -> float:
    """Return a number above zero, or raise `UnusableError`."""
    if cells.get(name, "") in NOTHING:
        raise UnusableError(f"{name} is missing.")
    value = _number(cells, name)
    if value <= 0:
        raise UnusableError(f"{name} is {cells[name]}: it must be above zero.")
    return value


def _optional(cells: Mapping[str, str], name: str) -> float | str:
    """Return a number, or an empty text where the table states none."""
    return "" if cells.get(name, "") in NOTHING else positive(cells, name)


def _params(cells: Mapping[str, str], architecture: str) -> float:
    """Active parameters; those of a dense model are all of them."""
    name = next((name for name in PARAMS if cells.get(name, "") not in NOTHING), None)
    if name is None:
        raise UnusableError("params_active is missing.")
    if name == "params_total" and architecture == "moe":
        raise UnusableError("params_active is missing: a mixture of experts computes with a part of params_total.")
    value = positive(cells, name)
    if value < SMALLEST_PARAMS:
        raise UnusableError(f"{name} is {cells[name]}: params in billions? write 7e9.")
    return value


@functools.lru_cache(maxsize=4096)
def _found(word: str) -> dict[str, Any] | str:
    """Look an accelerator up once for all its rows; a text says why it is not known."""
    if not word:
        return "accelerator is missing."
    try:
        found = catalog.find_accelerator(word)
    except InputError as error:
        return str(error)
    return {
        "accelerator": found.name,
        "generation": found.generation,
        "peak_16bit_flop_per_s": found.peak_flop_per_s["bf16"],
    }


def known_accelerator(word: str) -> dict[str, Any]:
    """Return name, generation and 16-bit peak of an accelerator, or raise `UnusableError`."""
    found = _found(word)
    if isinstance(found, str):
        raise UnusableError(found)
    return found


def _require_units(row: Mapping[str, Any]) -> None:
    """Refuse a row whose utilisation no run can have: one of its numbers is in another unit."""
    if row["tokens"] < SMALLEST_TOKENS:
        raise UnusableError(f"tokens is {row['tokens']:g}: tokens in billions? write 2e12.")
    flop = FLOP_PER_PARAM_AND_TOKEN * row["params_active"] * row["tokens"]
    used = flop / (row["accelerator_hours"] * SECONDS_PER_HOUR * row["peak_16bit_flop_per_s"])
    largest = LARGEST_UTILIZATION.get(row["precision"], LARGEST_UTILIZATION[""])
    implied = f"accelerator_hours {row['accelerator_hours']:g} imply a utilisation of {used:.3g} of the 16-bit peak"
    if used > largest:
        fix = "hours in millions or per accelerator? write the hours of all accelerators together, as 6.4e6."
        raise UnusableError(f"{implied}, above {largest:g}: {fix}")
    if used < SMALLEST_UTILIZATION:
        fix = "seconds for hours, or tokens or params in another unit?"
        raise UnusableError(f"{implied}, below {SMALLEST_UTILIZATION:g}: {fix}")
