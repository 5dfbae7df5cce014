"""What ``gpustack-mc sites`` prints."""

import shutil
from typing import Any

import numpy as np

from gpustack_mc import formatting
from gpustack_mc.answering import WITHIN


def text(summary: dict[str, Any], width: int | None = None) -> str:
    """Return what ``gpustack-mc sites`` prints.

    Parameters
    ----------
    summary : dict
        As written to ``sites.json``.
    width : int, optional
        Columns of the terminal.
    """
    width = width or shutil.get_terminal_size((100, 24)).columns
    lines = [f"{summary['name']}, in {len(summary['regions'])} regions"]
    lines += [_filled(_best(summary, key), width, 2) for key in summary["criteria"]]
    lines += ["", *_table(summary, width), *_lacking(summary, width), *_wider(summary, width)]
    lines += ["", *(_filled(f"  note: {note}.", width, 4) for note in summary["notes"])] if summary["notes"] else []
    return "\n".join([*lines, "", *_closing(summary, width)])


def _filled(line: str, width: int, indent: int) -> str:
    import textwrap

    return textwrap.fill(line, max(width, 40), subsequent_indent=" " * indent, break_long_words=False)


def _best(summary: dict[str, Any], key: str) -> str:
    """Say which regions are probably best by one criterion."""
    rows = {name: row[key] for name, row in summary["regions"].items() if row[key]["rank"] is not None}
    label = summary["criteria"][key]["label"]
    if not rows:
        return f"  lowest {label}: no region has data."
    if len({row["median"] for row in rows.values()}) == 1:
        return f"  lowest {label}: the same in all {len(rows)} regions with data."
    order = sorted(rows, key=lambda name: (-_most(rows[name]), rows[name]["rank"]))
    said = ", ".join(f"{name} {best_words(rows[name])}" for name in order[:4] if _most(rows[name]) >= 0.005)
    return f"  lowest {label}, chance of each: {said}"


def _chances(found: dict[str, Any]) -> tuple[float, float]:
    """Return the smaller and the larger chance of being best under the two couplings."""
    first, second = sorted(found[key]["probability"] for key in ("best_if_independent", "best_if_together"))
    return first, second


def _most(found: dict[str, Any]) -> float:
    return sum(_chances(found))


def best_words(found: dict[str, Any]) -> str:
    """Write the chance of being best: one number, or the two ends that the coupling leaves open."""
    low, high = (f"{value:.0%}" if not 0.995 < value < 1 else ">99%" for value in _chances(found))
    return low if low == high else f"{low.removesuffix('%')} – {high}"


def _table(summary: dict[str, Any], width: int) -> list[str]:
    keys = list(summary["criteria"])
    steps = {key: _step(summary, key) for key in keys}
    header = ["", ""]
    for key in keys:
        step, short = steps[key], {"cost": "cost", "carbon": "CO2e", "water": "water"}[key]
        header += [f"{short}, {(step.prefix + step.suffix).strip()}", "90% interval", "P(best)"]
    header.append(f"{summary['by']} / best, 90%")
    rows = [header]
    for name, row in summary["regions"].items():
        cells = [name, row["name"]]
        for key in keys:
            cells += _cells(row[key], steps[key])
        rows.append([*cells, _above(row[summary["by"]])])
    if _total(rows) > width:
        rows = [[row[0], *row[2:]] for row in rows]
    if _total(rows) > width:  # the intervals of what is not sorted by
        drop = {1 + 3 * i + 1 for i, key in enumerate(keys) if key != summary["by"]}
        rows = [[cell for i, cell in enumerate(row) if i not in drop] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def _above(found: dict[str, Any]) -> str:
    """Write by how much a region is above the best one, draw by draw and independently."""
    entry = found["above_best"]
    if not entry or entry["median"] is None or entry["interval_90"][0] == entry["interval_90"][1]:
        return ""
    low, high = entry["interval_90"]
    ends = [formatting.number(v, formatting.digits_for(v, low, high, 0.0, "1")) for v in (low, high)]
    return f"{ends[0]} – {ends[1]}"


def _total(rows: list[list[str]]) -> int:
    return sum(max(len(row[i]) for row in rows) + 2 for i in range(len(rows[0])))


def _step(summary: dict[str, Any], key: str) -> formatting.Step:
    medians = [row[key]["median"] for row in summary["regions"].values() if row[key]["median"] is not None]
    return formatting.step_for(float(np.median(medians)) if medians else 1.0, summary["criteria"][key]["unit"])


def _cells(found: dict[str, Any], step: formatting.Step) -> list[str]:
    if found["rank"] is None:
        return ["no data", "", ""]
    low, high = found["interval_90"]
    errors = found["monte_carlo_error"]
    triples = zip((low, found["median"], high), (errors["interval_90"][0], errors["median"], errors["interval_90"][1]),
                  strict=True)  # fmt: skip
    ends = [
        formatting.number(value * step.factor, min(formatting.digits_for(value, low, high, error or 0.0), 3))
        for value, error in triples
    ]
    mark = "*" if _wider_data(found) else ""
    return [ends[1] + mark, "fixed" if low == high else f"{ends[0]} – {ends[2]}", best_words(found)]


def _wider_data(found: dict[str, Any]) -> bool:
    return any(source is not None and source != found["region"] for source in found["data"].values())


def _lacking(summary: dict[str, Any], width: int) -> list[str]:
    lines = []
    for key, criterion in summary["criteria"].items():
        names = [name for name, row in summary["regions"].items() if row[key]["rank"] is None]
        if not names:
            continue
        lacking = ", ".join(dict.fromkeys(n for name in names for n in summary["regions"][name][key]["lacking"]))
        basis = f" on the {summary['basis']['carbon_basis']} basis" if key == "carbon" else ""
        lines.append(_filled(f"  not ranked on {criterion['label'].partition(',')[0]}, no {lacking} of their own or "
                             f"their country{basis}: {', '.join(names)}", width, 4))  # fmt: skip
    other = {"direct": "lifecycle", "lifecycle": "direct"}.get(summary["basis"]["carbon_basis"])
    having = summary["regions_with_data_by_basis"]
    if lines and other and having.get(other, 0) > having.get(summary["basis"]["carbon_basis"], 0):
        lines.append(f"  --carbon-basis {other} knows {having[other]} of the {len(summary['regions'])} regions.")
    return ["", *lines] if lines else []


def _wider(summary: dict[str, Any], width: int) -> list[str]:
    said: dict[str, list[str]] = {}
    for name, row in summary["regions"].items():
        for key in summary["criteria"]:
            for item, source in row[key]["data"].items():
                if source not in (None, name):
                    said.setdefault(f"{item} of {source}", []).append(name)
    if not said:
        return []
    parts = "; ".join(f"{what} for {', '.join(dict.fromkeys(names))}" for what, names in said.items())
    if len(said) > 8:
        items = ", ".join(dict.fromkeys(what.partition(" of ")[0] for what in said))
        parts = f"{items} of the state or country around it; sites.json says which for each region"
    return ["", _filled(f"  * from a wider area: {parts}.", width, 4)]


def _closing(summary: dict[str, Any], width: int) -> list[str]:
    basis = summary["basis"]
    errors = [row[key][end]["monte_carlo_error"] for row in summary["regions"].values()
              for key in summary["criteria"] for end in ("best_if_independent", "best_if_together")
              if row[key][end]]  # fmt: skip
    most = max([error for error in errors if error is not None], default=0.0)
    lines = [
        "  Intervals overlap because what is unknown about the run is the same everywhere; P(best) holds regions "
        "against each other draw by draw. It has two ends where no data say whether what differs between regions is "
        "independent or moves together.",
        f"  Final run only. Carbon is {basis['carbon_accounting']}, {basis['carbon_basis']}, for all regions. Seed "
        f"{summary['seed']}, {summary['samples']:,} samples, Monte Carlo error of chances at most "
        f"±{max(WITHIN * most, 0.0005):.1%}.",
    ]
    lines = [_filled(line, width, 2) for line in lines]
    return [*lines, _filled("  " + "  ".join(summary["files"]), width, 2)] if summary["files"] else lines
