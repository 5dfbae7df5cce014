"""What ``gpustack-mc compare`` prints."""

import shutil
from typing import Any

from gpustack_mc import drivers, formatting
from gpustack_mc.answering import WITHIN, percent, within
from gpustack_mc.quantities import BY_NAME

# What the first sentence speaks of: the first of these that differs.
_SPOKEN = ("cost_usd", "cost_owned_usd", "cost_rented_usd", "co2e_t", "co2e_operational_t", "energy_mwh",
           "training_days")  # fmt: skip
DRIVERS = 6
_HOW = {
    "common": "at the same quantile",
    "independent": "independent",
    "fixed": "",
    "own": "in some only",
}


def text(summary: dict[str, Any], width: int | None = None) -> str:
    """Return what ``gpustack-mc compare`` prints.

    Parameters
    ----------
    summary : dict
        From `summarise`.
    width : int, optional
        Columns of the terminal.
    """
    width = width or shutil.get_terminal_size((100, 24)).columns
    several = len(summary["comparisons"]) > 1
    lines = [f"  {case['label']}  {case['name']}" for case in summary["scenarios"]]
    if several:
        lines += ["", *_lowest_lines(summary)]
    for pair in summary["comparisons"]:
        lines += ["", _filled(_sentence(summary, pair), width, 0), "", *_table(summary, pair, width)]
        lines += _driver_lines(summary, pair, width)
    lines += _difference_lines(summary, width)
    lines += ["", *(_filled(f"  note: {note}.", width, 4) for note in summary["notes"])] if summary["notes"] else []
    return "\n".join([*lines, "", *_closing(summary, width)])


def _filled(line: str, width: int, indent: int) -> str:
    import textwrap

    return textwrap.fill(line, max(width, 40), subsequent_indent=" " * indent, break_long_words=False)


def spoken_row(pair: dict[str, Any]) -> str | None:
    """Return the row that a comparison is first about; None when nothing differs."""
    differing = [key for key, found in pair["outputs"].items() if not found["same"]]
    return next((key for key in _SPOKEN if key in differing), differing[0] if differing else None)


def _short(key: str) -> str:
    return BY_NAME[key].short if key in BY_NAME else "cost"


def _sentence(summary: dict[str, Any], pair: dict[str, Any]) -> str:
    first, other, key = pair["first"], pair["other"], spoken_row(pair)
    if key is None:
        return f"{other} and {first} are the same in all of these outputs."
    found = pair["outputs"][key]
    answer, ratio = found["other_lower"], found["ratio"]
    chances = f"{percent(answer['probability'])}{within(answer)}"
    bracket = _bracket(found)
    if bracket is not None:
        ways = ("move together", "are independent")
        now, otherwise = ways if summary["coupling"] == "common" else ways[::-1]
        chances += f" if the inputs that differ {now}, {percent(bracket['probability'])} if they {otherwise}"
    line = f"P({other} is below {first} in {_short(key).replace(', ', ' ')}) = {chances}"
    if ratio["median"] is None:
        return line + "."
    return f"{line}; {other} is {_ratio(ratio)[0]} times {first} (90%: {_ratio(ratio)[1]})."


def _bracket(found: dict[str, Any]) -> dict[str, Any] | None:
    return found.get("other_lower_if_independent", found.get("other_lower_if_common"))


def _ratio(entry: dict[str, Any]) -> tuple[str, str]:
    """Write median and 90% interval of a ratio."""
    (low, high), error = entry["interval_90"], entry["monte_carlo_error"]
    ends = [
        formatting.number(value, formatting.digits_for(value, low, high, e or 0.0, "1"))
        for value, e in zip((low, entry["median"], high), (error["interval_90"][0], error["median"],
                                                           error["interval_90"][1]), strict=True)
    ]  # fmt: skip
    return ends[1], "fixed" if high - low < 1e-9 * abs(high) else f"{ends[0]} – {ends[2]}"


def _amounts(entry: dict[str, Any], unit: str) -> str:
    """Write the 90% interval of a difference in one display unit, with signs."""
    (low, high), errors = entry["interval_90"], entry["monte_carlo_error"]["interval_90"]
    step = formatting.step_for(max(abs(low), abs(high)), unit)
    ends = [
        formatting.with_unit(value, unit, min(formatting.digits_for(value, low, high, error or 0.0), 2), step)
        for value, error in zip((low, high), errors, strict=True)
    ]
    return " to ".join(ends)


def _plain(entry: dict[str, Any], unit: str) -> str:
    low, high = entry["interval_90"]
    error = (entry["monte_carlo_error"] or {}).get("median") or 0.0
    return formatting.with_unit(entry["median"], unit, formatting.digits_for(entry["median"], low, high, error, unit))


def _table(summary: dict[str, Any], pair: dict[str, Any], width: int) -> list[str]:
    first, other = (next(c for c in summary["scenarios"] if c["label"] == pair[side]) for side in ("first", "other"))
    a, b = first["label"], other["label"]
    header = ["", a, b, f"{b} - {a} (90%)", f"{b} / {a}", "90% interval", f"P({b} < {a})"]
    bracketed = any(_bracket(found) for found in pair["outputs"].values())
    if bracketed:
        header.append("independent" if summary["coupling"] == "common" else "same quantile")
    rows, same = [header], []
    for key, found in pair["outputs"].items():
        short = _short(key) + (f" ({found['scope']})" if found["scope"] in ("serving", "per accelerator") else "")
        if found["same"]:
            same.append(short)
            continue
        unit = found["unit"]
        difference = _amounts(found["difference"], unit)
        ratio = _ratio(found["ratio"]) if found["ratio"]["median"] is not None else ("unknown", "")
        cells = [short, *(_plain(case["outputs"][key], unit) for case in (first, other)), difference, *ratio]
        cells.append(percent(found["other_lower"]["probability"]))
        if bracketed:
            bracket = _bracket(found)
            cells.append(percent(bracket["probability"]) if bracket else "")
        rows.append(cells)
    lines = _columns(rows, width) if len(rows) > 1 else []
    if same:
        lines.append(_filled(f"  the same in both: {'; '.join(same)}", width, 4))
    return lines


def _columns(rows: list[list[str]], width: int) -> list[str]:
    def total(part: list[list[str]]) -> int:
        return sum(max(len(row[i]) for row in part) + 2 for i in range(len(part[0]))) + 2

    if total(rows) > width:  # the ratio says the same as the difference, without a unit
        rows = [row[:3] + row[4:] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def ranked(found: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the blocks of an index table, the largest total index first; empty when it has none."""
    known = [(name, index) for name, index in found.items() if isinstance(index, dict) and index["ST"] is not None]
    return sorted(known, key=lambda pair: -pair[1]["ST"])


def drivers_of(found: dict[str, Any]) -> tuple[drivers.Scale, list[tuple[str, dict[str, Any]]]]:
    """Return the scale of the indices that are told of one row, by the rule of a single run, and the blocks by rank.

    On the scale ``log`` they are those of the logarithm of the ratio.
    """
    raw, log = (ranked(found.get(f"sensitivity_{kind}", {})) for kind in ("difference", "log_ratio"))
    scale = drivers.scale({"sensitivity": {"": dict(raw)}, "sensitivity_log": {"": dict(log)}}, "")
    return scale, log if scale == "log" else raw


def _driver_lines(summary: dict[str, Any], pair: dict[str, Any], width: int) -> list[str]:
    key = spoken_row(pair)
    scale, table = drivers_of(pair["outputs"][key]) if key else ("raw", [])
    table = [(name, index) for name, index in table[:DRIVERS] if index["ST"] >= 0.005]
    if not table or key is None:
        return []
    differing = {difference["input"] for difference in summary["differences"]}
    longest = max(len(name) for name, _ in table)
    room = max(4, min(24, width - longest - 40))
    what = f"{pair['other']} {'/' if scale == 'log' else '-'} {pair['first']} in {_short(key)}"
    of = " of the logarithm" if scale == "log" else ""
    lines = ["", f"  what drives {what} (total Sobol' index{of}, 90% interval)"]
    for name, index in table:
        low, high = index["ST_interval_90"]
        ends = f"  ({max(low, 0):.2f} – {max(high, 0):.2f})" if low is not None else ""
        mark = "  differs" if name.partition(" of ")[0] in differing else "  shared"
        bar = "█" * round(room * min(max(index["ST"], 0.0), 1.0))
        lines.append(f"  {name.ljust(longest)}  {bar.ljust(room)}  {index['ST']:.2f}{ends}{mark}")
    return lines


def _lowest_lines(summary: dict[str, Any]) -> list[str]:
    labels = [case["label"] for case in summary["scenarios"]]
    rows = [["P(lowest)", *labels]]
    for key, found in summary["lowest"].items():
        if not all(pair["outputs"][key]["same"] for pair in summary["comparisons"]):
            rows.append([_short(key), *(percent(found[name]["probability"]) for name in labels)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def _difference_lines(summary: dict[str, Any], width: int) -> list[str]:
    found = summary["differences"]
    if not found:
        return []
    labels = [case["label"] for case in summary["scenarios"]]
    rows = [["what differs", *labels, ""]]
    for difference in found:
        values = [_input(difference["values"][name]) for name in labels]
        rho = difference["correlation"]
        known = "the drift of prices" if difference["input"] == "rental_price" else "the fit"
        estimated = f"correlation {rho:.2f}, from {known}" if difference["coupling"] == "estimated" else ""
        rows.append([difference["input"], *values, estimated or _HOW[difference["coupling"]]])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    if sum(widths) + 2 * len(widths) > width:
        return ["", "  what differs (median and 90% interval)", *_stacked(rows[1:], labels, width)]
    return ["", *("  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)]


def _stacked(rows: list[list[str]], labels: list[str], width: int) -> list[str]:
    names = max(len(row[0]) for row in rows)
    lines = []
    for row in rows:
        values = "; ".join(f"{name} {value}" for name, value in zip(labels, row[1:-1], strict=True))
        lines.append(_filled(f"  {row[0].ljust(names)}  {values}{'; ' + row[-1] if row[-1] else ''}", width, names + 4))
    return lines


def _input(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return "none"
    lacks = f" [no data for {', '.join(entry['fell_back_from'])}]" if entry["fell_back_from"] else ""
    low, high = entry["interval_90"]
    step = formatting.step_for(entry["median"], entry["unit"])
    digits = [formatting.digits_for(value, low, high, 0.0, entry["unit"]) for value in (low, entry["median"], high)]
    middle = formatting.with_unit(entry["median"], entry["unit"], digits[1], step, exact=low == high)
    if low == high:
        return middle + lacks
    return f"{middle} ({formatting.interval(low, high, entry['unit'], (digits[0], digits[2]), step)}){lacks}"


def _closing(summary: dict[str, Any], width: int) -> list[str]:
    basis = f" Carbon is {summary['basis']['carbon_accounting']}, {summary['basis']['carbon_basis']}." if summary[
        "basis"] else ""  # fmt: skip
    said = "Inputs that are the same in all are drawn once for all, as for one run carried out in different ways."
    if any(difference["coupling"] == summary["coupling"] for difference in summary["differences"]):
        said += {
            "common": " Those that differ are drawn at the same quantile (`--independent`: independently); no data say "
            "how they go together, so the last column holds the chances at the other end.",
            "independent": " Those that differ are drawn independently; no data say how they go together, so the last "
            "column holds the chances with both at the same quantile.",
        }[summary["coupling"]]
    errors = [found["other_lower"]["monte_carlo_error"] for pair in summary["comparisons"]
              for found in pair["outputs"].values()
              if found["other_lower"]["monte_carlo_error"] is not None]  # fmt: skip
    error = f", Monte Carlo error of chances at most ±{max(WITHIN * max(errors), 0.0005):.2%}" if errors else ""
    lines = [
        _filled(f"  {said}", width, 2),
        _filled(
            f"  Final run only unless said.{basis} Seed {summary['seed']}, {summary['samples']:,} samples{error}.",
            width,
            2,
        ),
    ]
    return [*lines, _filled("  " + "  ".join(summary["files"]), width, 2)] if summary["files"] else lines
