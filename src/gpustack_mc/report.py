"""One result as one HTML page: what a person reads, forwards and cites.

This module turns a result into plain values for ``templates/report.html``, which escapes every one of them: names,
sources and notes come from files that anyone may have written. The page needs no network and runs no script, and says
so to the browser; with sliders it runs the one script whose hash it states.
"""

import json
import shlex
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpustack_mc import (
    answering,
    chain_picture,
    explain,
    figures,
    forest,
    formatting,
    hdi,
    notation,
    pages,
    strips,
    summarizing,
)
from gpustack_mc.arrays import Result
from gpustack_mc.quantities import BY_NAME, OUTPUTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What the origin of an input means to a reader.
ORIGINS = {
    "entered": "stated in the scenario",
    "fitted": "fitted to published data",
    "cited": "from a data sheet",
    "assumed": "judged from few data",
    "derived": "computed from the other inputs",
}
# Inputs with a total index below this in every panel are named, not drawn.
_NEGLIGIBLE = 0.005
_SENSITIVITY_ROWS = 12


def write(
    tree: Result,
    path: Path,
    found: dict[str, Any] | None = None,
    intervals: "Figure | None" = None,
    with_sliders: bool = False,
) -> None:
    """Write the report of a result, in place; wrap the call in `gpustack_mc.storage.replacing`.

    Parameters
    ----------
    tree : xarray.DataTree
        From `gpustack_mc.result.to_datatree` or `gpustack_mc.reopening.open_result`.
    path : Path
    found : dict, optional
        Its summary, when it is at hand.
    intervals : matplotlib.figure.Figure, optional
        Its interval plot, when it is drawn already.
    with_sliders : bool
        Whether its inputs can be moved in the browser, see `gpustack_mc.interactive`.

    Raises
    ------
    InputError
        Sliders are asked for and the result was computed with other equations.
    """
    path.write_text(page(tree, found, intervals, with_sliders), encoding="utf-8")


def page(
    tree: Result,
    found: dict[str, Any] | None = None,
    intervals: "Figure | None" = None,
    with_sliders: bool = False,
) -> str:
    """Return the report of a result as one self-contained HTML page; parameters as of `write`."""
    found = found or summarizing.summarise(tree)
    shown = values(tree, found, intervals or figures.interval_plot(tree))
    if with_sliders:
        from gpustack_mc import interactive

        shown["interactive"] = interactive.values(tree, found, [question["asked"] for question in shown["questions"]])
    return render("report.html", shown)


def render(template: str, shown: dict[str, Any]) -> str:
    """Return a page of the templates with plain values, every one of which is escaped."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["interval_name"] = hdi.NAMES["equal-tailed"]
    environment.filters["web"] = web_address
    environment.filters["lower_first"] = summarizing.lower_first
    return environment.get_template(template).render(shown)


def values(tree: Result, found: dict[str, Any], intervals: "Figure | None") -> dict[str, Any]:
    """Return everything that the page shows, as plain values; without an interval plot where there is none."""
    attrs, ownership = tree.attrs, tree.attrs["ownership"]
    return {
        "name": attrs["name"],
        "description": attrs["description"],
        "sentence": summarizing.sentence(found, ownership),
        "driver_sentence": summarizing.driver_sentence(found, ownership),
        "notes": found["notes"],
        "basis": found["basis"],
        "answer": _answer(found, ownership),
        "questions": _questions(found),
        "picture": pages.svg(intervals, "intervals", figures.alt_text(tree, "outputs")) if intervals else "",
        "narrow_picture": pages.svg(
            figures.interval_plot(tree, forest.NARROW), "narrow", figures.alt_text(tree, "outputs")
        )
        if intervals
        else "",
        "sensitivity": _sensitivity(tree, found, ownership),
        "chain": _chain(tree, found),
        "assumptions": _assumptions(tree, found, ownership),
        "origins": ORIGINS,
        "published": _published(found),
        "everything": [_everything(name, entry) for name, entry in found["outputs"].items()],
        "not_included": summarizing.NOT_INCLUDED,
        "programme": _programme(found, ownership),
        "reproduce": _reproduce(tree, found),
        "interval_name": hdi.NAMES[found["interval"]],
        "interactive": None,
    }


def web_address(url: str) -> str:
    """Return an address that is safe to follow, and nothing for any other text."""
    return url if url.startswith(("https://", "http://")) else ""


# ---- the answer --------------------------------------------------------------------------------------------------


def _quantiles(entry: Mapping[str, Any]) -> list[float]:
    low, high = entry["interval_90"]
    return [low, entry["interval_50"][0], entry["median"], entry["interval_50"][1], high]


def _answer(found: dict[str, Any], ownership: str) -> dict[str, Any]:
    table = summarizing.headline_table(found, ownership)
    published = {name: figure["value"] for name, figure in found["published"].items()}
    quantiles = [_quantiles(found["outputs"][name]) for name in table]
    placed, ticks = strips.ratio_strips(quantiles, [published.get(name) for name in table])
    rows = [
        {
            "label": summarizing.label_of(name, found),
            "description": BY_NAME[name].description,
            "median": middle,
            "half": half,
            "most": most,
            "strip": strip,
            "published": _exact(published[name], name) if name in published else "",
        }
        for (name, (middle, half, most)), strip in zip(table.items(), placed, strict=True)
    ]
    return {"rows": rows, "ticks": ticks, "marked": any(row["published"] and row["strip"] for row in rows)}


def _exact(value: float, name: str) -> str:
    return formatting.with_unit(value, BY_NAME[name].unit, 4, exact=True)


def _questions(found: dict[str, Any]) -> list[dict[str, Any]]:
    answers = []
    start = found["finish"]["start"] if found.get("finish") else ""
    for answer in found["questions"].values():
        parts = [found["questions"][name] for name in answer["limits"]] if "limits" in answer else [answer]
        answers.append(
            {
                "asked": " and ".join(answering.words(part, start) for part in parts),
                "probability": answering.percent(answer["probability"]),
                "error": answering.within(answer).removeprefix(" ± "),
                "scope": answer["scope"],
                "share": round(100 * answer["probability"], 2),
            }
        )
    return answers


def _published(found: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for name, figure in found["published"].items():
        entry = found["outputs"][name]
        rows.append(
            {
                "label": summarizing.label_of(name, found),
                "value": _exact(figure["value"], name),
                "interval": summarizing.with_interval(entry),
                "inside": figure["inside_interval_90"],
                "verdict": answering.verdict_of(figure["inside_interval_90"], entry["sd"] == 0, found["interval"]),
                "why": figure["outside"] if not figure["inside_interval_90"] else "",
                "source": figure["source"],
                "url": figure["url"],
            }
        )
    return rows


def _everything(name: str, entry: dict[str, Any]) -> dict[str, Any]:
    about = {"name": name, "description": BY_NAME[name].description, "scope": BY_NAME[name].scope}
    return about | {"value": summarizing.with_interval(entry), "unit": entry["unit"]}


def _programme(found: dict[str, Any], ownership: str) -> list[tuple[str, str]]:
    skip = {"own": "programme_cost_rented_usd", "rent": "programme_cost_owned_usd"}.get(ownership)
    names = [name for name in OUTPUTS if BY_NAME[name].scope == "programme" and name != skip]
    return [(BY_NAME[name].description, summarizing.with_interval(found["outputs"][name])) for name in names]


# ---- what drives it ----------------------------------------------------------------------------------------------


def _sensitivity(tree: Result, found: dict[str, Any], ownership: str) -> dict[str, Any]:
    skip = summarizing.OTHER_OWNERSHIP.get(ownership)
    panels = [name for name in figures.SENSITIVITY_PANELS if name != skip]
    panels = [name for name in panels if summarizing.ranking(found, name)]
    if not panels:
        return {"panels": [], "rows": [], "rest": []}
    largest: dict[str, float] = {}
    for output in panels:
        for name, index in summarizing.ranking(found, output):
            largest[name] = max(largest.get(name, 0.0), index["ST"])
    order = sorted(largest, key=lambda name: -largest[name])
    shown = [name for name in order[:_SENSITIVITY_ROWS] if largest[name] >= _NEGLIGIBLE]
    rows = [
        {
            "name": name.replace("+", " + "),
            "description": _input_description(tree, name),
            "cells": [_cell(found["sensitivity"][output][name]) for output in panels],
        }
        for name in shown
    ]
    return {
        "panels": [{"label": BY_NAME[name].short, "description": BY_NAME[name].description} for name in panels],
        "rows": rows,
        "rest": [name for name in order if name not in shown],
    }


def _input_description(tree: Result, name: str) -> str:
    if name in tree["prior"].data_vars:
        return str(tree["prior"][name].attrs["long_name"])
    return "Correlated inputs, taken together"


def _cell(index: dict[str, Any]) -> dict[str, Any] | None:
    if index["ST"] is None:
        return None
    low, high = index["ST_interval_90"]
    first = index["S1"] if index["S1"] is not None else 0.0
    return {
        "first": _share(first),
        "total": _share(index["ST"]),
        "low": _share(low) if low is not None else None,
        "high": _share(high) if high is not None else None,
        "text": f"{index['ST']:.2f}" if index["ST"] >= _NEGLIGIBLE else "≈0",
        "title": f"total {summarizing.index_text(index)}, alone {max(first, 0):.2f}",
    }


def _share(value: float) -> float:
    """Return a share in per cent; estimates may lie a Monte Carlo error outside of it."""
    return round(100 * max(0.0, min(1.0, value)), 2)


# ---- how it is computed ------------------------------------------------------------------------------------------


def _chain(tree: Result, found: dict[str, Any]) -> dict[str, Any]:
    explanation = explain.explain(tree, None, found)
    steps = [
        {
            "description": step["description"],
            "name": step["name"],
            "equation": notation.mathml(step["latex"]),
            "value": summarizing.with_interval(step),
            "share": "" if step["share"] is None else "≈0" if step["share"] < _NEGLIGIBLE else f"{step['share']:.2f}",
            "assumes": step["assumes"],
            "references": step["references"],
        }
        for step in explanation["steps"]
    ]
    symbols = [(notation.mathml(item["symbol"], "inline"), item["name"]) for item in explanation["inputs"]]
    return {"picture": chain_picture.svg(explanation), "steps": steps, "symbols": symbols, "output": steps[-1]}


# ---- assumptions -------------------------------------------------------------------------------------------------


def _assumptions(tree: Result, found: dict[str, Any], ownership: str) -> list[dict[str, Any]]:
    """List the inputs: what moves the cost most first, then what is fixed, in the order of the table."""
    weight = {
        name: index["ST"]
        for block, index in summarizing.ranking(found, summarizing.main_cost(ownership))
        for name in block.split("+")
    }
    made = str(tree.attrs.get("created_at", ""))[:4]
    keys = sorted(found["inputs"], key=lambda key: -max(weight.get(key, -1.0), -1.0))
    return [_assumption(tree, key, found["inputs"][key], weight.get(key), made) for key in keys]


def _assumption(tree: Result, key: str, entry: dict[str, Any], weight: float | None, made: str) -> dict[str, Any]:
    quantity = BY_NAME[key.partition("@")[0]]
    shape = None
    if key in tree["prior"].data_vars:
        draws = np.asarray(tree["prior"][key].values[0], dtype=float)
        shape = strips.density(draws, quantity.scale == "log")
    low, high = entry["interval_90"]
    ends = (formatting.number(end, 2) for end in (shape.low, shape.high)) if shape else ("", "")
    return {
        "key": key,
        "description": entry["description"],
        "unit": "" if entry["unit"] == "1" else entry["unit"],
        "value": summarizing.with_interval(entry),
        "fixed": low == high,
        "density": shape,
        "ends": tuple(ends),
        "origin": entry["origin"],
        "prior": entry["prior"],
        "sources": entry["sources"],
        "missed": entry["fell_back_from"],
        "age": _age(entry["dated"], entry["collected"], made),
        "share": None if weight is None or weight < _NEGLIGIBLE else f"{weight:.0%}",
    }


def _age(dated: str, collected: str, made: str) -> str:
    """Say how old the data of an input are; what is not known is not said."""
    parts = []
    newest = dated.rpartition("-")[2]
    if dated:
        parts.append(f"data of {dated.replace('-', '–')}")
    if newest.isdigit() and made.isdigit():
        years = int(made) - int(newest)
        age = "under a year" if years <= 0 else "1 year" if years == 1 else f"{years} years"
        parts.append(f"newest {age} old")
    if collected:
        parts.append(f"collected {_month(collected)}" if dated else f"undated rows, collected {_month(collected)}")
    return ", ".join(parts)


def _month(day: str) -> str:
    try:
        return date.fromisoformat(day).strftime("%Y-%m")
    except ValueError:
        return day


# ---- how to reproduce --------------------------------------------------------------------------------------------


def _overrides(text: Any) -> list[str]:
    """Return what was laid over the scenario; nothing where a file does not say it in a sound way."""
    try:
        found = json.loads(text) if isinstance(text, str) else []
    except ValueError:
        return []
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def _reproduce(tree: Result, found: dict[str, Any]) -> dict[str, Any]:
    attrs = tree.attrs
    options = "".join(f" --set {shlex.quote(override)}" for override in _overrides(attrs.get("overrides")))
    options += " --priors my-priors" if attrs.get("pack_sha256") else ""
    options += "" if attrs["design"] == "sobol" else f" --design {attrs['design']}"
    options += "" if found["interval"] == "equal-tailed" else f" --interval {found['interval']}"
    return {
        "command": f"gpustack-mc run scenario.yaml --seed {found['seed']} --samples {found['samples']}{options}",
        "scenario": str(attrs.get("scenario_file", attrs["scenario"])),
        "facts": [
            ("seed", str(found["seed"])),
            ("samples", f"{found['samples']:,}, {attrs['design']} design in {int(attrs['replicates'])} replicates"),
            ("SHA-256 of the scenario", found["scenario_sha256"]),
            ("SHA-256 of the priors", found["priors_sha256"] or "not recorded"),
            ("computed", f"{attrs.get('created_at', 'at an unknown time')}, {attrs.get('platform', '')}".rstrip(", ")),
            ("versions", ", ".join(f"{name} {version}" for name, version in found["versions"].items())),
        ],
    }
