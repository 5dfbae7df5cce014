"""The picture of a calibration: each input before and after the user's own runs, relative to its shipped median."""

import io
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from gpustack_mc import formatting, pages
from gpustack_mc.quantities import BY_NAME

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's blue; the grey is lighter than it in print as well.
_BLUE, _INK, _GREY, _BEFORE, _LINE, _BAND = "#0072B2", "#1A1A1A", "#595959", "#9A9A9A", "#D9D9D9", "#F5F5F5"
_WIDTH, _ROW, _LABELS, _VALUES = 10.0, 0.62, 2.3, 2.35  # inches
_HEAD, _FOOT, _MARGIN = 1.0, 0.62, 0.2
_OFFSET = 0.19  # of a line from the middle of its row
_TICKS = (1.0, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0)
_PARTS = ("before", "after")


def before_after(inputs: Mapping[str, Mapping[str, Any]], table: str) -> bytes:
    """Draw median, 50% and 90% interval of each input that the runs inform, before and after.

    Parameters
    ----------
    inputs : mapping
        ``inputs`` of ``pack.json``.
    table : str
        Name of the user's file.

    Returns
    -------
    bytes
        PNG; the same for the same input.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with pages.own_style():
        height = _HEAD + _ROW * len(inputs) + _FOOT
        figure = Figure(figsize=(_WIDTH, height), facecolor="white")
        FigureCanvasAgg(figure)
        _draw(figure, height, inputs, table)
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=120, metadata={"Software": None})
    return stream.getvalue()


def _draw(figure: "Figure", height: float, inputs: Mapping[str, Mapping[str, Any]], table: str) -> None:
    room = _WIDTH - 2 * _MARGIN - _LABELS - _VALUES
    tall = _ROW * len(inputs)

    def axes(left: float, width: float) -> "Axes":
        found = figure.add_axes((left / _WIDTH, _FOOT / height, width / _WIDTH, tall / height))
        found.set_ylim(len(inputs) - 0.5, -0.5)
        return found

    labels, forest = axes(_MARGIN, _LABELS), axes(_MARGIN + _LABELS, room)
    values = axes(_MARGIN + _LABELS + room, _VALUES)
    for column in (labels, values):
        column.axis("off")
        column.set_xlim(0, 1)
    ratios = {part: _ratios(inputs, part) for part in _PARTS}
    for part, color, side in (("before", _BEFORE, -_OFFSET), ("after", _BLUE, _OFFSET)):
        _intervals(figure, labels, forest, ratios[part], np.arange(len(inputs)) + side, color)
    _scale(forest, np.concatenate(list(ratios.values())))
    for i, (name, entry) in enumerate(inputs.items()):
        if i % 2 == 0:
            for column in (labels, forest, values):
                column.axhspan(i - 0.5, i + 0.5, color=_BAND, zorder=0, linewidth=0)
        unit = entry["unit"]
        short = BY_NAME[name].short if BY_NAME[name].role == "output" else name
        labels.text(0, i - 0.1, short, va="center", fontsize=9, color=_INK, fontweight="bold", parse_math=False)
        rows = f"{formatting.plural(entry['measurements'], 'row')} of yours"
        labels.text(0, i + 0.22, rows, va="center", fontsize=7.5, color=_GREY)
        for part, color, side in (("before", _GREY, -_OFFSET), ("after", _BLUE, _OFFSET)):
            low, high = entry[part]["interval_90"]
            text = formatting.median_and_interval(entry[part]["median"], low, high, unit)
            values.text(0.04, i + side, text, va="center", fontsize=8, color=color, parse_math=False)
    shown = table if len(table) <= 60 else f"...{table[-57:]}"
    figure.text(_MARGIN / _WIDTH, 1 - 0.2 / height, "Priors before and after your own runs", va="top", fontsize=12,
                fontweight="bold", color=_INK)  # fmt: skip
    said = f"{shown}: median, 50% and 90% equal-tailed intervals for the next run, relative to the shipped median"
    figure.text(_MARGIN / _WIDTH, 1 - 0.47 / height, said, va="top", fontsize=8.5, color=_GREY, parse_math=False)
    _legend(figure, height)


def _legend(figure: "Figure", height: float) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=_BEFORE, linewidth=5, solid_capstyle="butt", label="shipped prior"),
        Line2D([], [], color=_BLUE, linewidth=5, solid_capstyle="butt", label="with your runs"),
    ]
    figure.legend(
        handles=handles, loc="upper left", ncols=2, frameon=False, fontsize=8.5, borderaxespad=0.0, borderpad=0.0,
        bbox_to_anchor=((_MARGIN + _LABELS) / _WIDTH, 1 - 0.72 / height),
    )  # fmt: skip


def _ratios(inputs: Mapping[str, Mapping[str, Any]], part: str) -> np.ndarray:
    """Five quantiles over the median before, shape (inputs, 5)."""
    rows = []
    for entry in inputs.values():
        found = entry[part]
        low, high = found["interval_90"]
        quarter, three = found["interval_50"]
        rows.append(np.array([low, quarter, found["median"], three, high]) / entry["before"]["median"])
    return np.array(rows)


def _intervals(
    figure: "Figure", labels: "Axes", forest: "Axes", ratios: np.ndarray, places: np.ndarray, color: str
) -> None:
    """Draw lines and dots with ArviZ on axes that exist already, from quantiles instead of draws."""
    import arviz as az

    found = xr.DataArray(ratios, dims=("row", "quantile"), coords={"row": np.arange(len(ratios))})

    def interval(low: int, high: int) -> xr.Dataset:
        ends = found.isel(quantile=[low, high]).rename(quantile="ci_bound")
        return ends.assign_coords(ci_bound=["lower", "upper"]).to_dataset(name="ratio")

    median = found.isel(quantile=2).to_dataset(name="ratio")
    draws = median.expand_dims(chain=1, draw=1)
    viz = xr.Dataset(
        {
            "figure": ((), np.array(figure, dtype=object)),
            "plot": (("column",), np.array([labels, forest], dtype=object)),
        },
        coords={"column": ["labels", "forest"]},
    )
    # PlotCollection.grid would make the figure with pyplot, which keeps it and may open a window.
    collection = az.PlotCollection(
        draws, xr.DataTree(viz), aes={"y": ["row"], "overlay": ["row"]}, backend="matplotlib", y=places,
        overlay=[None] * len(ratios),
    )  # fmt: skip
    az.plot_forest(
        draws,
        sample_dims=["chain", "draw"],
        combined=True,
        labels=[],
        plot_collection=collection,
        point_estimate="median",
        ci_kind="eti",
        ci_probs=(0.5, 0.9),
        stats={"trunk": interval(1, 3), "twig": interval(0, 4), "point_estimate": median},
        visuals={
            "twig": {"color": color, "width": 1.3, "solid_capstyle": "butt"},
            "trunk": {"color": color, "width": 5.0, "solid_capstyle": "butt"},
            "point_estimate": {"facecolor": "white", "edgecolor": color, "size": 18, "width": 1.3, "zorder": 4},
            "ticklabels": False,
            "remove_axis": False,
        },
    )


def _scale(axes: "Axes", ratios: np.ndarray) -> None:
    from matplotlib.ticker import NullLocator

    inside = ratios[ratios > 0]
    low, high = math.log(min(inside.min(), 0.95)), math.log(max(inside.max(), 1.05))
    edge = 0.05 * (high - low)
    axes.set_xscale("log")
    axes.set_xlim(math.exp(low - edge), math.exp(high + edge))
    near, ticks = 0.09 * (high - low), [1.0]
    for factor in (*_TICKS, *(1 / tick for tick in _TICKS)):
        place = math.log(factor)
        if low <= place <= high and all(abs(place - math.log(tick)) > near for tick in ticks):
            ticks.append(factor)
    axes.set_xticks(ticks, [_tick(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yticks([])
    axes.tick_params(labelsize=8, colors=_GREY, length=2.5)
    axes.grid(axis="x", color=_LINE, linewidth=0.7)
    axes.axvline(1, color=_GREY, linewidth=0.8, zorder=1)
    axes.set_axisbelow(True)
    axes.set_xlabel("ratio to the shipped median (no unit, log scale)", fontsize=8, color=_GREY)
    for name, spine in axes.spines.items():
        spine.set_visible(name == "bottom")
        spine.set_color(_GREY)


def _tick(value: float) -> str:
    if value == 1:
        return "shipped"
    return f"×{value:g}" if value > 1 else f"÷{1 / value:g}"
