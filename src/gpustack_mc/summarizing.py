"""From a result to what is said about it: one plain sentence, a table, the main drivers, the assumptions."""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gpustack_mc import answering, drivers, formatting, hdi, reliability, site_inputs
from gpustack_mc.arrays import Result
from gpustack_mc.quantities import BY_NAME
from gpustack_mc.spent_summary import running_job

HEADLINE = (
    "training_days",
    "accelerator_hours",
    "energy_mwh",
    "facility_power_mw",
    "co2e_t",
    "co2e_operational_t",
    "water_offsite_m3",
    "water_onsite_m3",
    "cost_owned_usd",
    "cost_rented_usd",
)
# The cost that a scenario did not ask for.
OTHER_OWNERSHIP = {"own": "cost_rented_usd", "rent": "cost_owned_usd"}
_ORIGINS = ("entered", "calibrated", "fitted", "assumed", "cited", "derived")
DRIVERS = 6
# What no output holds, whatever the scenario.
NOT_INCLUDED = (
    "experiments, failed runs and evaluation around the final run",
    "staff",
    "data",
    "storage beyond the servers",
    "taxes",
)

Style = Callable[..., str]


def _plain(text: str, **_: Any) -> str:
    return text


def summarise(tree: Result, files: Iterable[str] = ()) -> dict[str, Any]:
    """Return the object that ``run --json`` prints and ``summary.json`` holds.

    Parameters
    ----------
    tree : xarray.DataTree
        From `gpustack_mc.result.to_datatree`.
    files : iterable of str
        Paths that were written.

    Returns
    -------
    dict
        JSON-ready: unknown numbers are None.
    """
    attrs = tree.attrs
    return {
        "schema_version": int(attrs["gpustack_mc_schema"]),
        "name": attrs["name"],
        "seed": int(attrs["seed"]),
        "samples": int(attrs["samples"]),
        "design": attrs["design"],
        "interval": hdi.kind_of(tree.attrs),
        "basis": json.loads(attrs["basis"]),
        "notes": [*json.loads(attrs["notes"]), *reliability.afterthoughts(tree)],
        "outputs": {
            str(name): _variable(tree, "prior_predictive", name) for name in tree["prior_predictive"].data_vars
        },
        "inputs": {key: _input(tree, key) for key in input_keys(tree)},
        "sensitivity": _indices(tree, "raw"),
        "sensitivity_log": _indices(tree, "log"),
        "sensitivity_status": _status(tree),
        "questions": answering.answers(tree),
        **({"finish": finish} if (finish := answering.finish(tree)) else {}),
        "published": _published(tree),
        "running": running_job(tree),
        "files": list(files),
        "versions": json.loads(attrs["versions"]),
        "scenario_sha256": attrs["scenario_sha256"],
        "priors_sha256": attrs.get("priors_sha256", ""),
    }


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def _variable(tree: Result, group: str, key: Any) -> dict[str, Any]:
    statistics = tree["statistics"]["value"].sel(variable=key)
    attrs = tree[group][key].attrs
    got = {
        str(name): float(value) for name, value in zip(statistics["statistic"].values, statistics.values, strict=True)
    }
    low, quarter, _, three, high = hdi.FIVE[kind := hdi.kind_of(tree.attrs)]
    found = {
        "unit": attrs["units"],
        "scope": attrs.get("scope", ""),
        "description": attrs["long_name"],
        "mean": got["mean"],
        "sd": got["sd"],
        "median": got["q0.5"],
        "interval_50": [got[quarter], got[three]],
        "interval_90": [got[low], got[high]],
        "monte_carlo_error": {
            "mean": _number(got["mean_error"]),
            "median": _number(got["q0.5_error"]),
            "interval_90": [_number(got[f"{low}_error"]), _number(got[f"{high}_error"])],
        },
    }
    if kind == "hdi":
        found |= {"equal_tailed_50": [got["q0.25"], got["q0.75"]], "equal_tailed_90": [got["q0.05"], got["q0.95"]]}
    return found


def input_keys(tree: Result) -> list[str]:
    """Return the keys of all inputs in the order of the table of quantities, those of single phases last."""
    order = {name: i for i, name in enumerate(BY_NAME)}
    keys = [*map(str, tree["prior"].data_vars), *map(str, tree["constant_data"].data_vars)]
    return sorted(keys, key=lambda key: ("@" in key, order[key.partition("@")[0]]))


def _input(tree: Result, key: str) -> dict[str, Any]:
    varying = key in tree["prior"]
    attrs = tree["prior" if varying else "constant_data"][key].attrs
    about = {
        "prior": attrs["prior"],
        "origin": attrs["origin"],
        "source": attrs["source"],
        "sources": json.loads(attrs["sources"]),
        "where": json.loads(attrs["where"]),
        "fell_back_from": json.loads(attrs["missed"]),
        "dated": attrs.get("dated", ""),
        "collected": attrs.get("collected", ""),
    }
    if varying:
        return _variable(tree, "prior", key) | about
    value = float(tree["constant_data"][key])
    fixed = {"unit": attrs["units"], "scope": "", "description": attrs["long_name"], "mean": value, "sd": 0.0}
    return fixed | {"median": value, "interval_50": [value, value], "interval_90": [value, value]} | about


def _indices(tree: Result, scale: str) -> dict[str, Any]:
    if "sensitivity" not in tree:
        return {}
    found = tree["sensitivity"].sel(scale=scale)
    table = {name: found[name].values for name in ("S1", "S1_lower", "S1_upper", "ST", "ST_lower", "ST_upper")}
    inputs = [str(name) for name in found["input"].values]
    return {
        str(output): {
            name: {
                "S1": _number(table["S1"][i, j]),
                "S1_interval_90": [_number(table["S1_lower"][i, j]), _number(table["S1_upper"][i, j])],
                "ST": _number(table["ST"][i, j]),
                "ST_interval_90": [_number(table["ST_lower"][i, j]), _number(table["ST_upper"][i, j])],
            }
            for j, name in enumerate(inputs)
        }
        for i, output in enumerate(found["output"].values)
    }


def _status(tree: Result) -> dict[str, dict[str, str]]:
    """Return what is odd about outputs, by scale; outputs with sound indices are left out."""
    if "sensitivity" not in tree:
        return {}
    status = tree["sensitivity"]["status"]
    return {
        str(scale): {
            str(output): str(value)
            for output, value in zip(status["output"].values, status.sel(scale=scale).values, strict=True)
            if value != "ok"
        }
        for scale in status["scale"].values
    }


def _published(tree: Result) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(tree.attrs["published"])
    for name, figure in figures.items():
        found = _variable(tree, "prior_predictive", name)
        low, high = found["interval_90"]
        # A fixed output has no width: a published figure agrees with it to its printed digits, not exactly.
        agrees = found["sd"] == 0 and np.isclose(low, figure["value"], rtol=5e-3)
        figure["inside_interval_90"] = bool(low <= figure["value"] <= high or agrees)
    return figures


# ---- text --------------------------------------------------------------------------------------------------------


def sentence(summary: dict[str, Any], ownership: str) -> str:
    """Return the answer in one plain sentence."""
    inputs, outputs = summary["inputs"], summary["outputs"]
    size, count = (formatting.count(inputs[name]["median"]) for name in ("params", "accelerator_count"))
    tokens = sum(entry["median"] for key, entry in inputs.items() if key.partition("@")[0] == "tokens")
    chip = inputs["peak_flop_per_s"]["prior"].partition(",")[0]
    chip = chip if inputs["peak_flop_per_s"]["origin"] == "cited" else "accelerators"
    time = _spoken(outputs["training_days"])
    if summary["running"]:
        time += f" in all ({_spoken(summary['running']['so_far']['training_days'])} so far)"
    if ownership == "own":
        money = _spoken(outputs["cost_owned_usd"]) + " owned"
    elif ownership == "rent":
        money = _spoken(outputs["cost_rented_usd"]) + " rented"
    else:
        money = f"{_spoken(outputs['cost_owned_usd'])} owned or {_spoken(outputs['cost_rented_usd'])} rented"
    fixed = outputs["training_days"]["sd"] == 0 and outputs["cost_owned_usd"]["sd"] == 0
    kind = "90% intervals" if summary["interval"] == "equal-tailed" else "90% HDI, the narrowest intervals"
    ending = "every input is fixed, so there is no interval" if fixed else kind
    return f"{size} parameters on {formatting.count(tokens)} tokens with {count} {chip}: {time} and {money} ({ending})."


def _spoken(entry: dict[str, Any]) -> str:
    low, high = entry["interval_90"]
    step = formatting.step_for(entry["median"], entry["unit"])
    digits = digits_of(entry)
    if entry["sd"] == 0:
        return formatting.with_unit(entry["median"], entry["unit"], digits[1], step, exact=True)
    ends = formatting.interval(low, high, entry["unit"], (digits[0], digits[2]), step)
    return ends.replace(" – ", " to ") + ("" if step.prefix else step.suffix)


def digits_of(entry: dict[str, Any]) -> tuple[int, int, int]:
    """Return the digits of the lower end, the median and the upper end of a 90% interval."""
    low, high = entry["interval_90"]
    errors = entry.get("monte_carlo_error", {"median": 0.0, "interval_90": [0.0, 0.0]})
    triples = ((low, errors["interval_90"][0]), (entry["median"], errors["median"]), (high, errors["interval_90"][1]))
    first, middle, last = (formatting.digits_for(v, low, high, error or 0.0, entry["unit"]) for v, error in triples)
    return first, middle, last


def text(
    summary: dict[str, Any],
    ownership: str,
    style: Style = _plain,
    width: int | None = None,
    outputs: Sequence[str] = (),
) -> str:
    """Return the terminal report.

    Parameters
    ----------
    summary : dict
        From `summarise`.
    ownership : {"own", "rent", "either"}
    style : callable
        ``click.style`` or one that ignores its options.
    width : int, optional
        Columns of the terminal.
    outputs : sequence of str
        Only these, with the questions and what is published of them; the whole report when empty.
    """
    width = width or shutil.get_terminal_size((100, 24)).columns
    if outputs:
        return "\n".join([
            *_columns(_rows_of({name: _spread(summary["outputs"][name]) for name in outputs}, summary, width), style),
            *answering.lines(summary, style),
            *answering.published_lines(summary, style, outputs),
            "",
            f"  Final run unless said. Seed {summary['seed']}, {summary['samples']:,} samples.",
        ])  # fmt: skip
    drivers = driver_sentence(summary, ownership)
    parts = [
        _wrapped(style(sentence(summary, ownership), bold=True), width, 0),
        *([_wrapped(drivers, width, 0)] if drivers else []),
        "",
        *_table(summary, ownership, style, width),
        *_running_lines(summary, ownership, style, width),
        *_note_lines(summary, width),
        *answering.lines(summary, style),
        *answering.published_lines(summary, style),
        *_driver_lines(summary, ownership, style, width),
        *_assumption_lines(summary, style, width),
        "",
        *_closing(summary, width),
    ]
    return "\n".join(parts)


def _wrapped(line: str, width: int, indent: int) -> str:
    import textwrap

    return textwrap.fill(line, max(width, 40), subsequent_indent=" " * indent, break_long_words=False)


def main_cost(ownership: str) -> str:
    """Return the output that the drivers are told of."""
    return "cost_rented_usd" if ownership == "rent" else "cost_owned_usd"


def ranking(summary: dict[str, Any], output: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the inputs with their indices for one output, largest total index first."""
    found = drivers.indices(summary, output)
    known = [(name, index) for name, index in found.items() if index["ST"] is not None]
    return sorted(known, key=lambda pair: -pair[1]["ST"])


def driver_sentence(summary: dict[str, Any], ownership: str) -> str:
    """Return what moves the cost most in one plain sentence; empty when nothing does."""
    output = main_cost(ownership)
    ranked = ranking(summary, output)
    if not ranked:
        return ""
    name, index = ranked[0]
    if "+" in name:
        together = f"The {name.count('+') + 1} correlated inputs together explain {index['ST']:.0%}"
        return f"{together} of the variance of the cost."
    described = BY_NAME[name.partition("@")[0]].description if name.partition("@")[0] in BY_NAME else name
    what = BY_NAME[output].short.replace(",", "")
    whose = "the variance of its logarithm" if drivers.scale(summary, output) == "log" else "its variance"
    return f"What moves the {what} most is {name} ({lower_first(described)}): {index['ST']:.0%} of {whose}."


def lower_first(text: str) -> str:
    """Lower the first letter unless an abbreviation begins there."""
    return text if text[:2].isupper() else text[0].lower() + text[1:]


def _rows(summary: dict[str, Any], ownership: str) -> list[str]:
    skip = OTHER_OWNERSHIP.get(ownership)
    priced = ("carbon_cost_usd",) if summary["outputs"]["carbon_cost_usd"]["median"] else ()
    rows = (*HEADLINE, *priced, *reliability.ROWS, *site_inputs.ROWS)
    return [name for name in rows if name != skip and name in summary["outputs"]]


def label_of(name: str, summary: dict[str, Any]) -> str:
    """Return the short label of an output, with the basis of the emissions."""
    if name == "co2e_operational_t":
        basis = summary["basis"]
        return f"{BY_NAME[name].short}, {basis['carbon_accounting']}, {basis['carbon_basis']}"
    return BY_NAME[name].short


def headline_table(summary: dict[str, Any], ownership: str) -> dict[str, tuple[str, str, str]]:
    """Return median, 50% and 90% interval of the main outputs as text; an output without spread is ``fixed``."""
    return {name: _spread(summary["outputs"][name]) for name in _rows(summary, ownership)}


def _spread(entry: dict[str, Any]) -> tuple[str, str, str]:
    step, digits = formatting.step_for(entry["median"], entry["unit"]), digits_of(entry)
    middle = formatting.with_unit(entry["median"], entry["unit"], digits[1], step, exact=entry["sd"] == 0)
    if entry["sd"] == 0:
        return middle, "fixed", "fixed"
    (low, high), (lowest, highest) = entry["interval_50"], entry["interval_90"]
    half = formatting.interval(low, high, entry["unit"], (digits[1], digits[1]), step)
    return middle, half, formatting.interval(lowest, highest, entry["unit"], (digits[0], digits[2]), step)


def _table(summary: dict[str, Any], ownership: str, style: Style, width: int) -> list[str]:
    return _columns(_rows_of(headline_table(summary, ownership), summary, width), style)


def _rows_of(table: Mapping[str, tuple[str, ...]], summary: dict[str, Any], width: int) -> list[tuple[str, ...]]:
    what = hdi.NAMES[summary["interval"]]
    rows: list[tuple[str, ...]] = [("", "median", f"50% {what}", f"90% {what}")]
    rows += [(label_of(name, summary), *cells) for name, cells in table.items()]
    if max(sum(len(cell) + 3 for cell in row) for row in rows) > width:
        rows = [(label, middle, most) for label, middle, _, most in rows]
    return rows


def _columns(rows: list[tuple[str, ...]], style: Style) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for number, row in enumerate(rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append(style("  " + "   ".join(cells).rstrip(), dim=number == 0))
    return lines


def _running_lines(summary: dict[str, Any], ownership: str, style: Style, width: int) -> list[str]:
    """Tell what is spent and what remains, and what the forecast of the rest is conditioned on."""
    found = summary["running"]
    if found is None:
        return []
    rows: list[tuple[str, ...]] = [
        ("of which", "spent so far", "remaining, median", f"90% {hdi.NAMES[summary['interval']]}")
    ]
    for name in _rows(summary, ownership):
        if name not in found["remaining"]:
            continue
        spent, rest = found["so_far"][name], found["remaining"][name]
        step = formatting.step_for(rest["median"], rest["unit"])
        ends = "fixed"
        if rest["sd"] > 0:
            (low, high), digits = rest["interval_90"], digits_of(rest)
            ends = formatting.interval(low, high, rest["unit"], (digits[0], digits[2]), step)
        rows.append(
            (label_of(name, summary), ("" if spent["sd"] == 0 else "about ") + _middle(spent), _middle(rest), ends)
        )
    lines = ["", *_columns(rows, style), "", style("  the rest is forecast from", dim=True)]
    return lines + [_wrapped(f"  {line}", width, 4) for line in found["conditioned_on"]]


def _middle(entry: dict[str, Any]) -> str:
    """Write a median: as it is where it is known, rounded as its interval deserves where it is not."""
    digits = 4 if entry["sd"] == 0 else digits_of(entry)[1]
    return formatting.with_unit(entry["median"], entry["unit"], digits, exact=entry["sd"] == 0)


def _note_lines(summary: dict[str, Any], width: int) -> list[str]:
    notes = [_wrapped(f"  note: {note}.", width, 4) for note in summary["notes"]]
    return ["", *notes] if notes else []


def _driver_lines(summary: dict[str, Any], ownership: str, style: Style, width: int) -> list[str]:
    output = main_cost(ownership)
    ranked = ranking(summary, output)[:DRIVERS]
    if not ranked:
        status = summary["sensitivity_status"].get("raw", {}).get(output)
        return ["", f"  no sensitivity: {BY_NAME[output].short} is {status}"] if status else []
    longest = max(len(name) for name, _ in ranked)
    room = max(4, min(24, width - longest - 34))
    of = " of its logarithm" if drivers.scale(summary, output) == "log" else ""
    lines = ["", style(f"  what drives {BY_NAME[output].short} (total Sobol' index{of}, 90% interval)", dim=True)]
    for name, index in ranked:
        bar = "█" * max(round(room * min(max(index["ST"], 0), 1)), 0)
        lines.append(f"  {name.ljust(longest)}  {bar.ljust(room)}  {index_text(index)}")
    return lines


def index_text(index: dict[str, Any]) -> str:
    """Return a total index with its 90% interval; estimates below what is known are about 0."""
    low, high = index["ST_interval_90"]
    ends = f"  ({max(low, 0):.2f} – {max(high, 0):.2f})" if low is not None else ""
    value = "≈0  " if index["ST"] < 0.005 else f"{index['ST']:.2f}"
    return value + ends


def _assumption_lines(summary: dict[str, Any], style: Style, width: int) -> list[str]:
    what = f"median and 90% {hdi.NAMES[summary['interval']]}"
    lines = ["", style(f"  what was assumed ({what}), and from where", dim=True)]
    shown = {key: entry for key, entry in summary["inputs"].items() if entry["origin"] != "derived"}
    names = max(len(key) for key in shown)
    values = {key: with_interval(entry) for key, entry in shown.items()}
    longest = max(len(value) for value in values.values())
    for key, entry in shown.items():
        note = f" [no data for {', '.join(entry['fell_back_from'])}]" if entry["fell_back_from"] else ""
        source = f"; {_few(entry['sources'])}" if entry["sources"] else ""
        prior = f": {entry['prior']}" if entry["prior"] else ""
        line = f"  {key.ljust(names)}  {values[key].ljust(longest)}  {entry['origin']}{prior}{note}{source}"
        room = names + longest + 6
        lines.append(_wrapped(line, width, room if width - room > 36 else 6))
    return lines


def _few(sources: list[dict[str, str]]) -> str:
    """Name the first two sources, and how many there are besides."""
    titles = list(dict.fromkeys(source["title"] for source in sources))
    more = f" and {len(titles) - 2} more" if len(titles) > 2 else ""
    return "; ".join(titles[:2]) + more


def with_interval(entry: dict[str, Any]) -> str:
    """Return the median of a variable with its 90% interval in brackets."""
    digits = digits_of(entry)
    step = formatting.step_for(entry["median"], entry["unit"])
    middle = formatting.with_unit(entry["median"], entry["unit"], digits[1], step, exact=entry["sd"] == 0)
    if entry["sd"] == 0:
        return middle
    low, high = entry["interval_90"]
    return f"{middle} ({formatting.interval(low, high, entry['unit'], (digits[0], digits[2]), step)})"


def _closing(summary: dict[str, Any], width: int) -> list[str]:
    tally = {origin: sum(entry["origin"] == origin for entry in summary["inputs"].values()) for origin in _ORIGINS}
    words = {
        "entered": "from your file",
        "calibrated": "calibrated on your runs",
        "fitted": "from fitted priors",
        "assumed": "judged from few data",
        "cited": "from data sheets",
    }
    shown = sum(number for origin, number in tally.items() if origin in words)
    said = ", ".join(f"{number} {words[origin]}" for origin, number in tally.items() if number and origin in words)
    lines = [
        _wrapped(f"  {shown} inputs: {said}. All sources: summary.json, `gpustack-mc priors show`.", width, 2),
        _wrapped(
            f"  Final run only; experiments and failed runs are in the programme_* outputs of summary.json. "
            f"Seed {summary['seed']}, {summary['samples']:,} samples, Monte Carlo error below the last digit shown.",
            width,
            2,
        ),
    ]
    if summary["files"]:
        lines.append(_wrapped("  " + "  ".join(summary["files"]), width, 2))
    return lines
