"""Reads a user's table of runs: what each row measures, and why others measure nothing."""

import contextlib
import datetime
import hashlib
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpustack_mc import catalog, run_columns, user_cells
from gpustack_mc.constants import FLOP_PER_PARAM_AND_TOKEN, HOURS_PER_DAY, SECONDS_PER_HOUR, WATTS_PER_MEGAWATT
from gpustack_mc.errors import InputError, Place, printable
from gpustack_mc.quantities import BY_NAME
from gpustack_mc.run_columns import COLUMNS, MEASURED, NAMES
from gpustack_mc.run_table import (
    LARGEST_UTILIZATION,
    NOTHING,
    SMALLEST_UTILIZATION,
    Skipped,
    UnusableError,
    known_accelerator,
    records,
)  # fmt: skip

IT_POWER = "it_power"
"""IT power per accelerator where the board's is not known apart; W."""

_FIX = f"Give a header with any of {', '.join(MEASURED[:6])}, ...; `gpustack-mc calibrate --columns` lists all."
_KINDS = ("", "training", "training_run")
_FACTS = (
    "accelerator", "region", "operator", "provider_kind", "term", "carbon_basis", "architecture", "precision", "year",
    "params", "active_params", "n_accelerators",
)  # fmt: skip


class Run(NamedTuple):
    """One row.

    Attributes
    ----------
    line : int
    run_id : str
    row : dict
        With the keys of ``priors/utilization/data.csv``; what is not stated is absent.
    utilization : tuple of (kind, value)
        Evidence for `gpustack_mc.fits.utilization_predict`: log utilisation or log MFU against the 16-bit peak.
    measured : tuple of (quantity, value)
        Other inputs; `IT_POWER` where only the IT power as a whole is known.
    facts : dict of str
        What the row says of site and hardware, see `gpustack_mc.facts.stated_facts`.
    """

    line: int
    run_id: str
    row: dict[str, Any]
    utilization: tuple[tuple[str, float], ...]
    measured: tuple[tuple[str, float], ...]
    facts: dict[str, Any]


class Table(NamedTuple):
    """A user's file: runs that measure something, rows that do not, and cells of used rows that do not."""

    runs: list[Run]
    skipped: list[Skipped]
    unused: list[Skipped]
    notes: list[str]
    sha256: str


def read_table(path: Path, shortest_hours: float = 0.0) -> Table:
    """Read a user's table.

    Parameters
    ----------
    path : Path
        CSV with the columns of `gpustack_mc.run_columns.COLUMNS`, in any order and with any of them, or CodeCarbon's
        ``emissions.csv``.
    shortest_hours : float
        Rows of CodeCarbon that are shorter are not used.

    Raises
    ------
    InputError
        The file as a whole cannot be used.
    """
    reader = _Reader(path, shortest_hours)
    for line, cells in records(path, reader.header, _FIX):
        reader.take(line, cells)
    runs = list(reader.runs.values())
    skipped = sorted(reader.skipped)
    if not runs:
        raise _none_usable(path, skipped)
    notes = list(reader.notes)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Table(runs, skipped, sorted(reader.unused), notes, digest)


def _none_usable(path: Path, skipped: list[Skipped]) -> InputError:
    if not skipped:
        return InputError("no-rows", "the file has a header and no rows.", "Add one run per line.", Place(str(path)))
    line, reason = skipped[0]
    message = f"none of the {len(skipped)} rows can be used; the first: {reason}"
    return InputError("no-usable-row", message, "Correct this row.", Place(str(path), line))


class _Reader:
    """State of reading one file."""

    def __init__(self, path: Path, shortest_hours: float):
        self.path, self.shortest_hours = path, shortest_hours
        self.codecarbon = False
        self.runs: dict[str, Run] = {}
        self.skipped: list[Skipped] = []
        self.unused: list[Skipped] = []
        self.notes: list[str] = []

    def header(self, path: Path, line: int, cells: list[str]) -> list[str]:
        """Return the names of the columns, aliases resolved."""
        names = [cell.strip().lower().replace("-", "_") for cell in cells]
        place = Place(str(path), line)
        if set(run_columns.CODECARBON) <= set(names):
            self.codecarbon = True
            self.notes.append(run_columns.CODECARBON_SAYS)
            return names
        if len(names) == 1 and any(mark in names[0] for mark in ";\t"):
            raise InputError("separator", "the columns are not separated by commas.", "Save with commas.", place)
        found = [NAMES.get(name, name) for name in names]
        known = [name for name in found if name in COLUMNS]
        if not known:
            raise InputError("no-header", "the first line holds no known column.", _FIX, place)
        if not any(name in MEASURED for name in known):
            self._suspects([name for name in names if name and name not in NAMES])
            fix = " ".join([*self.notes, _FIX])
            raise InputError("missing-columns", "no column holds a measurement.", fix, place)
        twice = sorted({name for name in known if found.count(name) > 1})
        if twice:
            raise InputError("double-column", f"column {twice[0]} appears twice.", "Remove one.", place)
        self._suspects([name for name in names if name and name not in NAMES])
        return found

    def _suspects(self, unknown: list[str]) -> None:
        """Name columns that are not read and look like one that is."""
        from difflib import get_close_matches

        for name in unknown:
            near = get_close_matches(name, MEASURED, n=1, cutoff=0.75)
            if near:
                self.notes.append(f"column {name[:60]!r} is not read. Did you mean {near[0]}?")

    def take(self, line: int, cells: dict[str, str]) -> None:
        """Sort a row into used and not used."""
        if self.codecarbon:
            cells = run_columns.from_codecarbon(cells) | {"": cells[""]}
        cells = {name: "" if cell.lower() in NOTHING else cell for name, cell in cells.items()}
        run_id = printable(cells.get("run_id", "")) or f"line {line}"
        try:
            if run_id in self.runs:
                self._again(line, run_id)
            self.runs[run_id] = self._run(line, run_id, cells)
        except UnusableError as error:
            self.skipped.append(Skipped(line, str(error)))

    def _again(self, line: int, run_id: str) -> None:
        first = self.runs[run_id].line
        if not self.codecarbon:
            raise UnusableError(f"run id {run_id[:60]!r} is already on line {first}: give each run its own.")
        # A tracker that is flushed writes a row each time, whose figures are those since its start.
        self.skipped.append(
            Skipped(first, f"run id {run_id[:60]!r} is logged again on line {line}, with all its energy.")
        )
        del self.runs[run_id]

    def _run(self, line: int, run_id: str, cells: dict[str, str]) -> Run:
        if cells.get(""):
            raise UnusableError("more cells than the header has: quote cells that hold a comma.")
        if cells.get("kind", "") not in _KINDS:
            raise UnusableError(f"kind is {cells['kind'][:40]!r}, not a training run.")
        if self.codecarbon and "tracked_hours" not in cells:
            raise UnusableError("gpu_energy, gpu_count or duration is missing or zero: no board power.")
        if self.codecarbon and float(cells["tracked_hours"]) < self.shortest_hours:
            raise UnusableError(f"shorter than {60 * self.shortest_hours:.0f} minutes: mostly loading, not training.")
        reasons: list[str] = []
        values = user_cells.values(cells, reasons)
        words = user_cells.words(cells, reasons)
        chip = self._chip(cells["accelerator"]) if cells.get("accelerator") else {}
        row = _row(values, words, cells, chip)
        utilization = tuple(_utilization(row, values, words, reasons))
        measured = tuple(_measured(values, cells, chip, row, reasons))
        if not utilization and not measured:
            raise UnusableError("; ".join(reasons) or "no measurement on this line.")
        self.unused += [Skipped(line, reason) for reason in reasons]
        return Run(line, run_id, row, utilization, measured, _facts(values, words, cells, chip))

    def _chip(self, word: str) -> dict[str, Any]:
        """Return the accelerator of a row; trackers write its name as the driver does."""
        for name in run_columns.chip_names(word) if self.codecarbon else ():
            with contextlib.suppress(UnusableError):
                return known_accelerator(name)
        return known_accelerator(word)


# ---- what a row says of itself -----------------------------------------------------------------------------------
def _row(
    values: Mapping[str, float], words: Mapping[str, str], cells: Mapping[str, str], chip: dict[str, Any]
) -> dict[str, Any]:
    """Return the row as the utilisation program reads it."""
    moe = words.get("architecture") == "moe"
    active = values.get("params_active", None if moe else values.get("params_total"))
    row: dict[str, Any] = {
        "kind": "training",
        "params_active": active,
        **{name: values.get(name) for name in ("tokens", "n_accelerators", "sequence_length", "n_layers", "d_model")},
        "global_batch_tokens": values.get("global_batch_tokens"),
        **{name: words.get(name) for name in ("architecture", "precision", "activation_recompute", "flash_attention")},
        "publication_date": cells.get("publication_date"),
        "mfu_convention": words.get("mfu_convention"),
        "mfu_kind": cells.get("mfu_kind"),
        "mfu_peak_basis": cells.get("mfu_peak_basis"),
        # A team's own books are exact unless the row says otherwise.
        "tier": "B" if words.get("tier") == "b" else "A",
        "hours_basis": cells.get("hours_basis"),
        "hours_cover": cells.get("hours_cover"),
        **chip,
    }
    return {key: value for key, value in row.items() if value not in (None, "")}


def _facts(
    values: Mapping[str, float], words: Mapping[str, str], cells: Mapping[str, str], chip: dict[str, Any]
) -> dict[str, Any]:
    region = ""
    if cells.get("region"):
        try:
            region = catalog.find_region(cells["region"]).id
        except InputError as error:
            raise UnusableError(str(error)) from error
    found = {
        "accelerator": chip.get("accelerator", ""),
        "region": region,
        **{name: words.get(name, "") for name in ("operator", "provider_kind", "term", "carbon_basis")},
        **{name: words.get(name, "") for name in ("architecture", "precision")},
        "year": _year(cells.get("publication_date", "")),
        "params": values.get("params_total", values.get("params_active", "")),
        "active_params": values.get("params_active", ""),
        "n_accelerators": values.get("n_accelerators", ""),
    }
    return {name: found[name] for name in _FACTS}


def _year(text: str) -> int | str:
    if not text:
        return ""
    try:
        year = datetime.date.fromisoformat((text + "-01-01")[:10] if len(text) in (4, 7) else text[:10]).year
    except ValueError:
        year = 0
    if not 1990 <= year <= 2100:
        raise UnusableError(f"publication_date is {text[:40]!r}, not a date: write 2026 or 2026-11-30.")
    return year


# ---- utilisation ----------------------------------------------------------------------------------------------------
def _utilization(
    row: Mapping[str, Any], values: Mapping[str, float], words: Mapping[str, str], reasons: list[str]
) -> Iterable[tuple[str, float]]:
    """Yield what a row says of utilisation: hours, throughput, MFU."""
    hours = _hours(values)
    named = [name for name in ("accelerator_hours", "wall_clock_days", *_SPEEDS, "mfu_reported") if name in values]
    if not named:
        return
    missing = [name for name in ("params_active", "tokens", "accelerator") if not row.get(name)]
    if hours is not None and not missing:
        kind = "total"
        value = _log_utilization(row, row["tokens"] / (hours * SECONDS_PER_HOUR), f"{hours:g} accelerator-hours")
        if row.get("hours_cover") == "compute-only" or row.get("hours_basis") in _COMPUTE_ONLY:
            kind = "compute_only"
        elif "goodput" in values:
            # What is lost is known, so that the rest is the utilisation of the productive time.
            kind, value = "compute_only", value - math.log(values["goodput"])
        yield kind, value
    elif hours is not None or "wall_clock_days" in values or "accelerator_hours" in values:
        lost = missing or ["n_accelerators"]
        reasons.append(f"hours tell utilisation only with {' and '.join(lost)}.")
    yield from _from_speed(row, values, reasons)
    yield from _from_mfu(row, values, words, reasons)


_SPEEDS = ("tokens_per_second", "tokens_per_second_per_accelerator", "step_time_s")
_COMPUTE_ONLY = ("step_time_x_steps", "throughput_x_tokens", "rate_x_tokens")


def _hours(values: Mapping[str, float]) -> float | None:
    if "accelerator_hours" in values:
        return values["accelerator_hours"]
    if "wall_clock_days" in values and "n_accelerators" in values:
        return values["wall_clock_days"] * HOURS_PER_DAY * values["n_accelerators"]
    return None


def _log_utilization(row: Mapping[str, Any], rate: float, what: str) -> float:
    """Return log utilisation from tokens per accelerator-second; beyond what a run can have a unit is wrong."""
    used = FLOP_PER_PARAM_AND_TOKEN * row["params_active"] * rate / row["peak_16bit_flop_per_s"]
    largest = LARGEST_UTILIZATION.get(str(row.get("precision")), LARGEST_UTILIZATION[""])
    implied = f"{what} imply a utilisation of {used:.3g} of the 16-bit peak"
    if used > largest:
        fix = "hours in millions or per accelerator? write those of all accelerators together, as 6.4e6; or a rate of "
        raise UnusableError(f"{implied}, above {largest:g}: {fix}the whole cluster as that of one accelerator?")
    if used < SMALLEST_UTILIZATION:
        fix = "seconds for hours, or tokens or params in another unit?"
        raise UnusableError(f"{implied}, below {SMALLEST_UTILIZATION:g}: {fix}")
    return math.log(used)


def _from_speed(row: Mapping[str, Any], values: Mapping[str, float], reasons: list[str]) -> Iterable[tuple[str, float]]:
    name = next((name for name in _SPEEDS if name in values), None)
    if name is None:
        return
    needed = {
        "tokens_per_second": ("params_active", "accelerator", "n_accelerators"),
        "tokens_per_second_per_accelerator": ("params_active", "accelerator"),
        "step_time_s": ("params_active", "accelerator", "n_accelerators", "global_batch_tokens"),
    }[name]
    missing = [key for key in needed if not row.get(key)]
    if missing:
        reasons.append(f"{name} tells utilisation only with {' and '.join(missing)}.")
        return
    rate = values[name]
    if name == "tokens_per_second":
        rate /= row["n_accelerators"]
    elif name == "step_time_s":
        rate = row["global_batch_tokens"] / values[name] / row["n_accelerators"]
    yield "compute_only", _log_utilization(row, rate, f"{name} {values[name]:g}")


def _from_mfu(
    row: Mapping[str, Any], values: Mapping[str, float], words: Mapping[str, str], reasons: list[str]
) -> Iterable[tuple[str, float]]:
    if "mfu_reported" not in values:
        return
    if row.get("mfu_kind") == "peak_benchmark":
        reasons.append("mfu_reported is of kernels at their best (mfu_kind), no average of a run.")
        return
    missing = [key for key in ("params_active", "accelerator") if not row.get(key)]
    if missing:
        reasons.append(f"mfu_reported tells utilisation only with {' and '.join(missing)}.")
        return
    value = values["mfu_reported"]
    if row.get("mfu_peak_basis") == "fp8":
        peaks = catalog.accelerators()[row["accelerator"]].peak_flop_per_s
        if not peaks["fp8"]:
            reasons.append(f"mfu_peak_basis is fp8, and no fp8 peak is known for {row['accelerator']}.")
            return
        value *= peaks["fp8"] / row["peak_16bit_flop_per_s"]
    yield "mfu", math.log(value)


# ---- other inputs ---------------------------------------------------------------------------------------------------
def _measured(
    values: Mapping[str, float],
    cells: Mapping[str, str],
    chip: dict[str, Any],
    row: Mapping[str, Any],
    reasons: list[str],
) -> Iterable[tuple[str, float]]:
    for column in COLUMNS.values():
        if column.informs == column.name and column.name in values:
            yield column.informs, values[column.name]
    yield from _power(values, cells, chip, reasons)


def _power(
    values: Mapping[str, float], cells: Mapping[str, str], chip: dict[str, Any], reasons: list[str]
) -> Iterable[tuple[str, float]]:
    """Yield the board's share of its rating, and the host's power, from powers or energies of any scope."""
    watts = {
        scope: values[name]
        for scope, name in (
            ("board", "mean_gpu_power_w"),
            ("it", "mean_system_power_w_per_accelerator"),
            ("facility", "facility_power_w_per_accelerator"),
        )
        if name in values
    }
    watts = _with_energy(watts, values, cells, reasons)
    if "facility" in watts and "it" not in watts:
        if "pue" in values:
            watts["it"] = watts["facility"] / values["pue"]
        else:
            reasons.append("facility power tells host power only with pue.")
    if not watts.keys() & {"board", "it"}:
        return
    tdp = catalog.accelerators()[chip["accelerator"]].tdp if chip else None
    if tdp is None:
        reasons.append("power tells the share of TDP only with an accelerator whose TDP is known.")
        return
    if "board" in watts:
        share = watts["board"] / tdp
        quantity = BY_NAME["gpu_power_fraction"]
        if share > quantity.high:
            raise UnusableError(
                f"board power of {watts['board']:.4g} W is {share:.3g} times the TDP of {tdp:g} W: {quantity.reason}; "
                "power of several accelerators? write that of one."
            )
        yield "gpu_power_fraction", share
    if "it" in watts and "board" in watts:
        if watts["it"] <= watts["board"]:
            raise UnusableError(f"IT power {watts['it']:.4g} W is not above board power {watts['board']:.4g} W.")
        yield "host_power", watts["it"] - watts["board"]
    elif "it" in watts:
        yield IT_POWER, watts["it"]


def _with_energy(
    watts: dict[str, float], values: Mapping[str, float], cells: Mapping[str, str], reasons: list[str]
) -> dict[str, float]:
    if "energy_mwh" not in values:
        return watts
    basis, hours = cells.get("energy_basis", "").lower(), _hours(values)
    scope = run_columns.ENERGY_SCOPES.get(basis)
    if basis.startswith("codecarbon"):
        reasons.append("energy_mwh of CodeCarbon mixes measured and modelled parts; give its emissions.csv itself.")
    elif scope is None and basis:
        reasons.append(
            f"energy_basis {basis[:40]!r} is no measurement; measured_gpu, measured_it or measured_facility."
        )
    elif scope is None:
        reasons.append("energy_mwh needs energy_basis: measured_gpu, measured_it or measured_facility.")
    elif hours is None:
        reasons.append("energy_mwh tells power only with accelerator_hours.")
    elif scope not in watts:
        mean = values["energy_mwh"] * WATTS_PER_MEGAWATT / hours
        if not 1 <= mean <= 1e5:
            raise UnusableError(f"energy_mwh {values['energy_mwh']:g} is {mean:.3g} W per accelerator: kWh for MWh?")
        return watts | {scope: mean}
    return watts
