"""From paired draws to what is said about scenarios: chances, differences, ratios, and what drives them."""

import json
import shutil
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpustack_mc import formatting, priors
from gpustack_mc.answering import WITHIN, percent, within
from gpustack_mc.paired import ROUNDING, DifferenceIndices, Paired
from gpustack_mc.problem import Input, Problem
from gpustack_mc.quantities import BY_NAME, OUTPUTS
from gpustack_mc.sensitivity import Indices, replicate_error
from gpustack_mc.simulate import PROBABILITIES

if TYPE_CHECKING:
    import xarray as xr

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


class Case(NamedTuple):
    """One scenario of a comparison: a letter, a name, and the problem."""

    label: str
    name: str
    problem: Problem


class Row(NamedTuple):
    """One comparison: `names` is the output that each scenario contributes."""

    key: str
    short: str
    unit: str
    scope: str
    names: tuple[str, ...]


class Compared(NamedTuple):
    """Everything that is known after the draws.

    Attributes
    ----------
    cases : tuple of Case
    rows : tuple of Row
    notes : tuple of str
    paired : Paired
    indices : DifferenceIndices or None
    choice : {"common", "independent"}
    bracket : Paired or None
        Under the other choice; None where it does not matter.
    """

    cases: tuple[Case, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    paired: Paired
    indices: DifferenceIndices | None
    choice: str
    bracket: Paired | None


def values_of(paired: Paired, row: Row) -> np.ndarray:
    """Return the draws that a row compares, shape (scenarios, draws)."""
    return np.stack([paired.outputs[k, OUTPUTS.index(name)] for k, name in enumerate(row.names)])


def spread(values: np.ndarray, replicates: int) -> dict[str, Any]:
    """Return median and intervals of draws, with Monte Carlo errors.

    Parameters
    ----------
    values : ndarray, shape (draws,)
        `replicates` equal parts one after the other.
    replicates : int
    """
    if not np.isfinite(values).all():
        return {"median": None, "interval_50": [None, None], "interval_90": [None, None], "monte_carlo_error": None}
    low, first, median, third, high = (float(q) for q in np.quantile(values, PROBABILITIES))
    errors = replicate_error(np.quantile(values.reshape(replicates, -1), PROBABILITIES, axis=1).T)
    errors = [float(error) if np.isfinite(error) else None for error in errors]
    return {
        "mean": float(values.mean()),
        "median": median,
        "interval_50": [first, third],
        "interval_90": [low, high],
        "monte_carlo_error": {"median": errors[2], "interval_90": [errors[0], errors[4]]},
    }


def chance(holds: np.ndarray, replicates: int) -> dict[str, float | None]:
    """Return the share of draws, each between 0 and 1, with its Monte Carlo standard error."""
    error = float(replicate_error(holds.reshape(replicates, -1).mean(axis=1)))
    return {"probability": float(holds.mean()), "monte_carlo_error": error if np.isfinite(error) else None}


def lower(first: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return 1 where `other` is below `first`, and one half where they are equal but for rounding."""
    equal = np.abs(other - first) <= ROUNDING * np.abs(first)
    return np.where(equal, 0.5, other < first)


def lowest(values: np.ndarray) -> np.ndarray:
    """Return each scenario's share in being the lowest, shape (scenarios, draws); ties are divided.

    Parameters
    ----------
    values : ndarray, shape (scenarios, draws)
    """
    least = values.min(axis=0)
    best = values - least <= ROUNDING * np.abs(least)
    return best / best.sum(axis=0)


# ---- summary -----------------------------------------------------------------------------------------------------


def summarise(compared: Compared, files: Iterable[str] = ()) -> dict[str, Any]:
    """Return the object that ``compare --json`` prints and ``comparison.json`` holds."""
    from gpustack_mc.result import versions

    design = compared.paired.design
    basis = compared.cases[0].problem.basis
    return {
        "schema_version": 1,
        "kind": "comparison",
        "seed": design.seed,
        "samples": design.samples,
        "interval": "equal-tailed",
        "basis": basis if all(case.problem.basis == basis for case in compared.cases) else {},
        "coupling": compared.choice,
        "scenarios": [_scenario(compared, k) for k in range(len(compared.cases))],
        "comparisons": [_pair(compared, k) for k in range(1, len(compared.cases))],
        "lowest": {row.key: _lowest(compared, row) for row in compared.rows},
        "differences": [_difference(compared, difference) for difference in compared.paired.coupling.differences],
        "notes": list(compared.notes),
        "files": list(files),
        "versions": versions(),
    }


def _scenario(compared: Compared, k: int) -> dict[str, Any]:
    case, replicates = compared.cases[k], compared.paired.design.replicates
    outputs = {}
    for row in compared.rows:
        found = spread(values_of(compared.paired, row)[k], replicates)
        outputs[row.key] = {"output": row.names[k], "unit": row.unit, "scope": row.scope} | found
    return {
        "label": case.label,
        "name": case.name,
        "scenario": case.problem.name,
        "scenario_sha256": case.problem.digest,
        "ownership": case.problem.file.ownership,
        "basis": case.problem.basis,
        "outputs": outputs,
    }


def _pair(compared: Compared, k: int) -> dict[str, Any]:
    rows = {row.key: _compared(compared, row, i, k) for i, row in enumerate(compared.rows)}
    return {"first": compared.cases[0].label, "other": compared.cases[k].label, "outputs": rows}


def _compared(compared: Compared, row: Row, i: int, k: int) -> dict[str, Any]:
    replicates = compared.paired.design.replicates
    values = values_of(compared.paired, row)
    first, other = values[0], values[k]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = other / first
    found = {
        "unit": row.unit,
        "scope": row.scope,
        "same": bool((np.abs(other - first) <= ROUNDING * np.abs(first)).all()),
        "other_lower": chance(lower(first, other), replicates),
        "difference": spread(other - first, replicates),
        "ratio": spread(ratio, replicates),
    }
    if compared.bracket is not None:
        under = values_of(compared.bracket, row)
        chosen = "independent" if compared.choice == "common" else "common"
        found[f"other_lower_if_{chosen}"] = chance(lower(under[0], under[k]), replicates)
    if compared.indices is not None:
        blocks = compared.indices.blocks
        found["sensitivity_difference"] = _indices(compared.indices.difference[k - 1], blocks, i)
        found["sensitivity_log_ratio"] = _indices(compared.indices.log_ratio[k - 1], blocks, i)
    return found


def _indices(found: Indices, blocks: Sequence[str], i: int) -> dict[str, Any]:
    if found.status[i] not in ("ok", "one replicate"):
        return {"status": found.status[i]}

    def number(value: float) -> float | None:
        return float(value) if np.isfinite(value) else None

    return {
        name: {
            "S1": number(found.first[j, i]),
            "S1_interval_90": [number(found.first_low[j, i]), number(found.first_high[j, i])],
            "ST": number(found.total[j, i]),
            "ST_interval_90": [number(found.total_low[j, i]), number(found.total_high[j, i])],
        }
        for j, name in enumerate(blocks)
    }


def _lowest(compared: Compared, row: Row) -> dict[str, Any]:
    shares = lowest(values_of(compared.paired, row))
    replicates = compared.paired.design.replicates
    return {case.label: chance(share, replicates) for case, share in zip(compared.cases, shares, strict=True)}


def _difference(compared: Compared, difference: Any) -> dict[str, Any]:
    values = {}
    for case in compared.cases:
        item = case.problem.inputs.get(difference.key)
        values[case.label] = None if item is None else input_entry(item)
    rho = difference.correlation
    return {
        "input": difference.key,
        "coupling": difference.how,
        "correlation": float(rho) if np.isfinite(rho) else None,
        "values": values,
    }


def input_entry(item: Input) -> dict[str, Any]:
    """Return median, 90% interval and provenance of an input, without draws."""
    low, median, high = (float(q) for q in priors.quantiles(item.marginal, [0.05, 0.5, 0.95]))
    return {
        "unit": item.quantity.unit,
        "median": median,
        "interval_90": [low, high],
        "origin": item.origin,
        "prior": item.prior,
        "where": dict(item.where),
        "fell_back_from": list(item.missed),
    }


def to_datatree(compared: Compared) -> "xr.DataTree":
    """Return the paired draws; variables have dimensions (chain, draw, scenario).

    Group ``prior_predictive`` holds all outputs and ``prior`` the inputs, NaN in scenarios that do not have one.
    Draw i of one scenario belongs to draw i of the others.
    """
    import xarray as xr

    from gpustack_mc.result import quantity_attributes, versions

    paired = compared.paired
    coords = {
        "chain": [0],
        "draw": np.arange(paired.outputs.shape[2]),
        "scenario": [f"{case.label}: {case.name}" for case in compared.cases],
    }
    dims = ("chain", "draw", "scenario")
    outputs = {
        name: (dims, paired.outputs[:, i].T[None], quantity_attributes(BY_NAME[name])) for i, name in enumerate(OUTPUTS)
    }
    inputs = {}
    for key in dict.fromkeys(key for case in compared.cases for key in case.problem.inputs):
        columns = [_input_draws(paired, k, key) for k in range(len(compared.cases))]
        quantity = next(c.problem.inputs[key].quantity for c in compared.cases if key in c.problem.inputs)
        inputs[key] = (dims, np.stack(columns, axis=1)[None], quantity_attributes(quantity, key))
    root = {
        "gpustack_mc_schema": 1,
        "kind": "comparison",
        "seed": paired.design.seed,
        "samples": paired.design.samples,
        "replicates": paired.design.replicates,
        "coupling": compared.choice,
        "scenarios": json.dumps([case.problem.text for case in compared.cases]),
        "scenario_sha256": json.dumps([case.problem.digest for case in compared.cases]),
        "versions": json.dumps(versions()),
    }
    draws = {"sample_dims": ["chain", "draw"]}
    return xr.DataTree.from_dict({
        "/": xr.Dataset(attrs=root),
        "/prior": xr.Dataset(inputs, coords=coords, attrs=draws),
        "/prior_predictive": xr.Dataset(outputs, coords=coords, attrs=draws),
    })  # fmt: skip


def _input_draws(paired: Paired, k: int, key: str) -> np.ndarray:
    if key in paired.varying[k]:
        return paired.inputs[k][paired.varying[k].index(key)]
    item = paired.problems[k].inputs.get(key)
    # The model does not read an input that is neither fixed nor varying: it is not in this scenario.
    value = float(item.marginal.parameters["value"]) if item is not None else float("nan")
    return np.full(paired.outputs.shape[2], value)


# ---- text --------------------------------------------------------------------------------------------------------


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
            cells.append(percent(_bracket(found)["probability"]))
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


def _driver_lines(summary: dict[str, Any], pair: dict[str, Any], width: int) -> list[str]:
    key = spoken_row(pair)
    table = ranked(pair["outputs"][key].get("sensitivity_difference", {})) if key else []
    table = [(name, index) for name, index in table[:DRIVERS] if index["ST"] >= 0.005]
    if not table or key is None:
        return []
    differing = {difference["input"] for difference in summary["differences"]}
    longest = max(len(name) for name, _ in table)
    room = max(4, min(24, width - longest - 40))
    lines = ["", f"  what drives {pair['other']} - {pair['first']} in {_short(key)} (total Sobol' index, 90% interval)"]
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
        estimated = f"correlation {rho:.2f}, from the fit" if difference["coupling"] == "estimated" else ""
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
