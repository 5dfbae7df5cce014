"""What a sweep found, as text: the range of each output over the scenarios, and who stands at its ends."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from gpustack_mc import formatting
from gpustack_mc.answering import percent, within
from gpustack_mc.quantities import BY_NAME

if TYPE_CHECKING:
    import xarray as xr

# So many scenarios are told one by one.
FEW = 24
_TOLD = ("training_days", "energy_mwh", "co2e_t", "cost_owned_usd", "cost_rented_usd")
_REASONS, _PLACES = 8, 5
_WIDTH = 44


def digest(dataset: "xr.Dataset") -> dict[str, Any]:
    """Return what `text` tells of a sweep: each output's range over scenarios, and each scenario where they are few."""
    outputs = [str(name) for name in dataset["output"].values]
    found: dict[str, Any] = {"outputs": {}, "questions": {}}
    value, names = dataset["value"].values, dataset["name"].values
    statistics = [str(name) for name in dataset["statistic"].values]
    for j, name in enumerate(outputs):
        medians = value[:, j, statistics.index("q0.5")]
        if np.isnan(medians).all():
            continue
        ends = {"lowest": int(np.nanargmin(medians)), "highest": int(np.nanargmax(medians))}
        found["outputs"][name] = {
            "unit": BY_NAME[name].unit,
            "scope": BY_NAME[name].scope,
            **{end: {"scenario": str(names[i])} | _spread(value[i, j], statistics) for end, i in ends.items()},
        }
    for j, name in enumerate(dataset["question"].values if "question" in dataset.coords else ()):
        chances = dataset["probability"].values[:, j]
        known = chances[~np.isnan(chances)]
        found["questions"][str(name)] = {
            "likely": int((known >= 0.9).sum()),
            "unlikely": int((known <= 0.1).sum()),
            "scenarios": len(known),
        }
    if "reported" in dataset:
        found["reported"] = dict(_reported(dataset, outputs, statistics))
    if len(names) <= FEW:
        told = [name for name in (*_TOLD, *outputs) if name in outputs][: len(_TOLD)]
        told = list(dict.fromkeys(told))
        found["each"] = {
            str(scenario): {name: _spread(value[i, outputs.index(name)], statistics) for name in told}
            for i, scenario in enumerate(names)
            if not np.isnan(value[i]).all()
        }
    return found


def _reported(dataset: "xr.Dataset", outputs: list[str], statistics: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield how many reported values lie inside the intervals."""
    for k, name in enumerate(dataset["reported_output"].values.tolist()):
        if name not in outputs:
            continue
        rows = dataset["value"].values[:, outputs.index(name)]
        low, first, third, high = (rows[:, statistics.index(q)] for q in ("q0.05", "q0.25", "q0.75", "q0.95"))
        value = dataset["reported"].values[:, k]
        known = np.isfinite(value) & np.isfinite(low)
        if known.any():
            yield (
                name,
                {
                    "scenarios": int(known.sum()),
                    "inside_90": int((known & (low <= value) & (value <= high)).sum()),
                    "inside_50": int((known & (first <= value) & (value <= third)).sum()),
                },
            )


def _spread(row: np.ndarray, statistics: list[str]) -> dict[str, Any]:
    got = dict(zip(statistics, row.tolist(), strict=True))
    return {
        "median": got["q0.5"],
        "interval_50": [got["q0.25"], got["q0.75"]],
        "interval_90": [got["q0.05"], got["q0.95"]],
        "monte_carlo_error": {
            "median": got["q0.5_error"],
            "interval_90": [got["q0.05_error"], got["q0.95_error"]],
        },
    }


def text(summary: dict[str, Any]) -> str:
    """Return the report of a sweep for a terminal."""
    lines = [_title(summary), ""]
    lines += _each(summary) if "each" in summary else _ranges(summary)
    if summary["questions"]:
        lines += ["", "  questions"]
        for name, found in summary["questions"].items():
            of = formatting.plural(found["scenarios"], "scenario")
            lines.append(f"  {name}: kept with 90% or more by {found['likely']:,} of {of}, "
                         f"with 10% or less by {found['unlikely']:,}")  # fmt: skip
    if summary.get("reported"):
        lines += ["", "  against what was reported"]
        for name, found in summary["reported"].items():
            inside = f"{found['inside_90']} of {found['scenarios']} inside the 90% interval"
            lines.append(f"  {BY_NAME[name].short}: {inside}, {found['inside_50']} inside the 50% interval")
    lines += _portfolio(summary.get("portfolio"))
    lines += _skipped(summary)
    lines += [f"  note: {note}." for note in summary["notes"]]
    lines += ["", *(f"  wrote {file}" for file in summary["files"])]
    return "\n".join(line.rstrip() for line in lines)


def _title(summary: dict[str, Any]) -> str:
    axes = [f"{axis['name']} {axis['length']:,}" for axis in summary["axes"]]
    of = f" ({' x '.join(axes)})" if axes else f" from {summary['table']}" if summary["table"] else ""
    ran = formatting.plural(summary["ran"], "scenario")
    return f"{summary['name']}: {ran}{of}, {summary['samples']:,} shared draws each. Medians and 90% intervals."


def _each(summary: dict[str, Any]) -> list[str]:
    rows = summary["each"]
    names = list(next(iter(rows.values()), {}))
    cells = [[name[:_WIDTH], *(_cell(row[output], output) for output in names)] for name, row in rows.items()]
    return _table(["", *(BY_NAME[name].short for name in names)], cells)


def _ranges(summary: dict[str, Any]) -> list[str]:
    cells = []
    for name, found in summary["outputs"].items():
        for end in ("lowest", "highest"):
            label = BY_NAME[name].short if end == "lowest" else ""
            cells.append([label, end, _cell(found[end], name), found[end]["scenario"][:60]])
    return _table(["", "", "median (90% interval)", "scenario"], cells)


def _cell(spread: dict[str, Any], name: str) -> str:
    low, high = spread["interval_90"]
    unit = BY_NAME[name].unit
    step = formatting.step_for(spread["median"], unit)
    values = (low, spread["median"], high)
    found = spread["monte_carlo_error"]
    errors = [error or 0.0 for error in (found["interval_90"][0], found["median"], found["interval_90"][1])]
    digits = [formatting.digits_for(v, low, high, e, unit) for v, e in zip(values, errors, strict=True)]
    middle = formatting.with_unit(spread["median"], unit, digits[1], step)
    return f"{middle} ({formatting.interval(low, high, unit, (digits[0], digits[2]), step)})" if low < high else middle


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in [header, *rows]]  # fmt: skip


def _portfolio(found: dict[str, Any] | None) -> list[str]:
    """Tell the totals, what they would be without sharing, the chances, and what drives the cost."""
    if not found:
        return []
    rows = []
    for name, total in found["totals"].items():
        # An interval, not a standard deviation, is what the other column shows.
        wider = total["sd"] / total["sd_if_nothing_were_shared"] if total["sd_if_nothing_were_shared"] else 1.0
        rows.append([BY_NAME[name].short, _cell(total, name), f"{wider:.1f} times as wide as of independent runs"])
    said = ["", f"  all {formatting.plural(found['scenarios'], 'scenario')} together"]
    said += _table(["", "median (90% interval)", "spread"], rows)
    for name, chance in found["chances"].items():
        amount = formatting.with_unit(chance["limit"], chance["unit"], 4, exact=True)
        label = BY_NAME[chance["output"]].short.replace(",", "")
        said.append(f"  P(total {label} at most {amount}) = {percent(chance['probability'])}{within(chance)}  {name}")
    drivers = found["drivers"]
    if drivers:
        said += ["", f"  what drives the total {BY_NAME[drivers['output']].short} (total Sobol' index, 90% interval)"]
        for name, index in drivers["inputs"].items():
            low, high = index["interval_90"]
            said.append(f"  {name[:30]:30}  {index['total']:.2f}  ({low:.2f} – {high:.2f})")
    differ = found["shared"]["differ"]
    words = {"common": "at the same quantile", "independent": "independent", "estimated": "correlated as of one team"}
    told = [f"{key} {words[how]}" for key, how in differ.items() if how in words]
    same = len(found["shared"]["same_number_in_all"])
    said += ["", f"  shared: {formatting.plural(same, 'input')} are one number in all scenarios"
             + (f"; {', '.join(told)}" if told else "")]  # fmt: skip
    return said


def _skipped(summary: dict[str, Any]) -> list[str]:
    if not summary["skipped_count"]:
        return []
    said = ["", f"  not run: {formatting.plural(summary['skipped_count'], 'scenario')}"]
    reasons: dict[str, list[str]] = {}
    for skip in summary["skipped"]:
        reasons.setdefault(skip["reason"], []).append(str(skip["line"] if skip["line"] is not None else skip["name"]))
    for reason, places in list(reasons.items())[:_REASONS]:
        more = f" and {len(places) - _PLACES:,} more" if len(places) > _PLACES else ""
        lines = "" if summary["skipped"][0]["line"] is None else "line " if len(places) == 1 else "lines "
        said.append(f"    {lines}{', '.join(places[:_PLACES])}{more}: {reason}")
    told = min(len(reasons), _REASONS)
    whole = told == len(reasons) and all(len(places) <= _PLACES for places in reasons.values())
    return said if whole and len(summary["skipped"]) == summary["skipped_count"] else [*said, "    all: skipped.csv"]
