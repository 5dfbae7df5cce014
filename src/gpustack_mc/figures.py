"""Pictures of a result: intervals of outputs and inputs, and what drives them, from its summaries over all draws."""

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gpustack_mc import forest, hdi, pages, panels
from gpustack_mc.arrays import Result
from gpustack_mc.forest import HIGH, LOW, MEDIAN, Row
from gpustack_mc.quantities import BY_NAME
from gpustack_mc.summarizing import HEADLINE, OTHER_OWNERSHIP

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

# One row each, in this order; outputs with a published figure join those of their domain.
OUTPUT_ROWS = tuple(name for name in HEADLINE if name != "co2e_operational_t")
SENSITIVITY_PANELS = ("training_days", "energy_mwh", "co2e_t", "cost_owned_usd", "cost_rented_usd")
SENSITIVITY_ROWS = 12
# A sentence with more numbers than this is not listened to.
_SPOKEN = 9

Which = Literal["outputs", "inputs", "sensitivity"]


def interval_plot(tree: Result, layout: forest.Layout = forest.WIDE) -> "Figure":
    """Draw median, 50% and 90% interval of the main outputs, with published figures as marks.

    Parameters
    ----------
    tree : xarray.DataTree
        From `gpustack_mc.result.to_datatree`. The summaries over all draws that it holds are drawn, so that the picture
        agrees with every table of the same result.
    layout : gpustack_mc.forest.Layout
        `gpustack_mc.forest.NARROW` fits a phone.

    Returns
    -------
    matplotlib.figure.Figure
        Not known to pyplot. Outputs without spread are named in the caption.
    """
    what = hdi.PLURALS[hdi.kind_of(tree.attrs)]
    said = f"Outputs: median, 50% and 90% {what}, each row relative to its own median"
    if not layout.labels:
        said = f"{what[0].upper()}{what[1:]}, each relative to its own median"
    nothing = "No output varies: every input that matters is fixed."
    return forest.forest(_output_rows(tree), tree, said, nothing, layout)


def input_plot(tree: Result) -> "Figure":
    """Draw median, 50% and 90% interval of the inputs that vary, widest first, with unit and origin.

    Parameters
    ----------
    tree : xarray.DataTree
        From `gpustack_mc.result.to_datatree`.

    Returns
    -------
    matplotlib.figure.Figure
    """
    rows = sorted(_input_rows(tree), key=_relative_width, reverse=True)
    what = hdi.PLURALS[hdi.kind_of(tree.attrs)]
    said = f"Inputs, widest first: median, 50% and 90% {what}, each row relative to its own median"
    return forest.forest(rows, tree, said, "No input varies: every input is fixed.")


def sensitivity_plot(tree: Result, scale: Literal["raw", "log"] = "raw") -> "Figure":
    """Draw first-order inside total Sobol' indices of the main outputs, with their 90% intervals.

    Parameters
    ----------
    tree : xarray.DataTree
        From `gpustack_mc.result.to_datatree`.
    scale : {"raw", "log"}
        Whether the variance is that of the outputs or of their logarithms.

    Returns
    -------
    matplotlib.figure.Figure
        Inputs as rows, sorted by their largest total index; one panel per output.
    """
    what = "of the logarithm of each output" if scale == "log" else "of each output"
    said = f"Share of the variance {what} that an input explains: alone, and with its interactions"
    header = [tree.attrs["name"], said]
    if "sensitivity" not in tree:
        with pages.own_style():
            return pages.message(header, "No sensitivity indices: no input varies, or they were not computed.", "")
    found = tree["sensitivity"].to_dataset().sel(scale=scale)
    outputs = _panels(tree)
    shown, rest = _ranked(found, outputs)
    caption = ["First-order inside total Sobol' index; whiskers: 90% interval of the Monte Carlo error. "
               "Inputs sorted by their largest total index."]  # fmt: skip
    if rest:
        largest = max(_largest(found, outputs, name) for name in rest)
        counted = "1 input with a total index" if len(rest) == 1 else f"{len(rest)} inputs with total indices"
        limit = f"of at most {largest:.2g}" if largest >= 0.001 else "below 0.001"
        caption.append(f"Not drawn: {counted} {limit}: {', '.join(rest)}.")
    with pages.own_style():
        if not shown:
            return pages.message(header, "None of these outputs varies.", "")
        return panels.draw_panels(tree, found, outputs, shown, header, " ".join(caption))


def alt_text(tree: Result, which: Which) -> str:
    """Return what a picture shows as one plain sentence.

    Parameters
    ----------
    tree : xarray.DataTree
    which : {"outputs", "inputs", "sensitivity"}
    """
    name = " ".join(str(tree.attrs["name"]).split()).rstrip(".")
    if which == "sensitivity":
        return f"Bars of Sobol' indices for {name}: {_spoken_drivers(tree)}."
    rows = _output_rows(tree) if which == "outputs" else sorted(_input_rows(tree), key=_relative_width, reverse=True)
    drawn = [row for row in rows if row.varies]
    if not drawn:
        return f"Interval plot of the {which} of {name}, empty because none of them varies."
    said = [f"{r.key} {r.text(MEDIAN)} ({r.text(LOW)} to {r.text(HIGH)})" for r in drawn[:_SPOKEN]]
    said += [f"and {len(drawn) - _SPOKEN} more"] if len(drawn) > _SPOKEN else []
    what = hdi.NAMES[hdi.kind_of(tree.attrs)]
    return f"Interval plot of the {which} of {name}, median and 90% {what}: {'; '.join(said)}."


# ---- from the tree to rows ---------------------------------------------------------------------------------------


def _output_rows(tree: Result) -> list[Row]:
    published = json.loads(tree.attrs["published"])
    names = [*OUTPUT_ROWS, *(name for name in published if name not in OUTPUT_ROWS)]
    domains = [BY_NAME[name].domain for name in names]
    names.sort(key=lambda name: domains.index(BY_NAME[name].domain))
    skip = OTHER_OWNERSHIP.get(tree.attrs["ownership"])
    return [_row(tree, "prior_predictive", name, published) for name in names if name != skip or name in published]


def _input_rows(tree: Result) -> list[Row]:
    return [_row(tree, "prior", str(key), {}) for key in tree["prior"].data_vars]


def _row(tree: Result, group: str, key: str, published: dict[str, Any]) -> Row:
    statistics, attrs = tree["statistics"]["value"].sel(variable=key), tree[group][key].attrs
    names = hdi.FIVE[hdi.kind_of(tree.attrs)]
    values = statistics.sel(statistic=list(names)).values
    errors = statistics.sel(statistic=[f"{name}_error" for name in names]).values
    spread, middle = float(statistics.sel(statistic="sd")), float(statistics.sel(statistic="mean"))
    notes = [readable_unit(attrs["units"]), *(attrs[k] for k in ("origin", "scope") if k in attrs)]
    notes += [", ".join(attrs[k] for k in ("carbon_accounting", "carbon_basis"))] if "carbon_basis" in attrs else []
    return Row(
        key=key,
        description=panels.description_of(attrs, key),
        note=" · ".join(notes),
        unit=attrs["units"],
        values=values,
        errors=errors,
        # The rounding of sums over draws is no spread.
        varies=spread > 1e-9 * abs(middle),
        published=published[key]["value"] if key in published else None,
    )


def readable_unit(unit: str) -> str:
    """Write a unit as people do."""
    return "pure number" if unit == "1" else unit.replace("^3", "³")


def _relative_width(row: Row) -> float:
    low, high = row.values[LOW], row.values[HIGH]
    return math.log(high / low) if low > 0 else math.inf


def _panels(tree: Result) -> list[str]:
    skip = OTHER_OWNERSHIP.get(tree.attrs["ownership"])
    return [name for name in SENSITIVITY_PANELS if name != skip]


def _largest(found: "xr.Dataset", outputs: Sequence[str], name: str) -> float:
    """Return the largest total index of an input over the outputs; constant outputs have none."""
    return float(np.nan_to_num(found["ST"].sel(output=list(outputs), input=name).values).max())


def _ranked(found: "xr.Dataset", outputs: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split inputs into those that are drawn, largest first, and the rest."""
    sizes = {str(name): _largest(found, outputs, name) for name in found["input"].values}
    order = sorted(sizes, key=lambda name: -sizes[name])
    shown = [name for name in order[:SENSITIVITY_ROWS] if sizes[name] >= panels.NEGLIGIBLE]
    return shown, [name for name in order if name not in shown]


def _spoken_drivers(tree: Result) -> str:
    if "sensitivity" not in tree:
        return "there are none, because no input varies or they were not computed"
    total = tree["sensitivity"]["ST"].sel(scale="raw")
    said = []
    for output in _panels(tree):
        indices = total.sel(output=output)
        if np.isfinite(indices.values).any():
            most = indices.idxmax("input").item()
            said.append(f"{output} depends most on {most} (total index {float(indices.max()):.2f})")
        else:
            said.append(f"{output} does not vary")
    return "; ".join(said)
