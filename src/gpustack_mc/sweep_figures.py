"""Pictures of a sweep: intervals over its scenarios, a map of two axes, and cost against carbon."""

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gpustack_mc import formatting, pages
from gpustack_mc.quantities import BY_NAME
from gpustack_mc.sweep_spec import shown

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INTERVALS, MAP, PARETO = "intervals.png", "map.png", "pareto.png"
# Scenarios that have a row of their own; more are drawn as one band, in the order of their medians.
ROWS = 60
# Values of an axis that a map labels; of a longer one every so many.
_TICKS = 12
_WIDTH = 10.0
_ROW = 0.24
_BEST = 40
_QUANTILES = ("q0.05", "q0.25", "q0.5", "q0.75", "q0.95")


def pictures(dataset: "xr.Dataset") -> dict[str, "Figure"]:
    """Return the pictures that a sweep has, by the names of their files.

    Parameters
    ----------
    dataset : xarray.Dataset
        See `gpustack_mc.sweep_store.gathered`.

    Returns
    -------
    dict
        ``intervals.png``; ``map.png`` where two axes have several values; ``pareto.png`` where cost and CO2e are known.
    """
    outputs = [str(name) for name in dataset["output"].values]
    found = {}
    with pages.own_style():
        if main := main_output(dataset):
            found[INTERVALS] = interval_plot(dataset, main)
            if len(_map_axes(dataset)) == 2:
                found[MAP] = map_plot(dataset, main)
        cost = _cost(dataset)
        if cost in outputs and "co2e_t" in outputs and len(dataset["scenario"]) > 1:
            found[PARETO] = pareto_plot(dataset, cost, "co2e_t")
    return {name: figure for name, figure in found.items() if figure is not None}


def _cost(dataset: "xr.Dataset") -> str:
    return "cost_rented_usd" if dataset.attrs["ownership"] == "rent" else "cost_owned_usd"


def main_output(dataset: "xr.Dataset") -> str:
    """Return the output that pictures of one output show: what a table reports most, else the cost, else the first."""
    outputs = [str(name) for name in dataset["output"].values]
    if "reported" in dataset:
        counts = np.isfinite(dataset["reported"].values).sum(axis=0)
        reported = [str(name) for name in dataset["reported_output"].values]
        best = reported[int(counts.argmax())]
        if counts.max() > 0 and best in outputs:
            return best
    return _cost(dataset) if _cost(dataset) in outputs else outputs[0]


def _values(dataset: "xr.Dataset", output: str) -> np.ndarray:
    """Return the five quantiles of one output, shape (scenarios, 5)."""
    return dataset["value"].sel(output=output, statistic=list(_QUANTILES)).values


# ---- intervals --------------------------------------------------------------------------------------------------


def interval_plot(dataset: "xr.Dataset", output: str) -> "Figure | None":
    """Draw median, 50% and 90% interval of every scenario: rows where they are few, else bands over their ranks."""
    values = _values(dataset, output)
    known = np.flatnonzero(np.isfinite(values).all(axis=1) & (values[:, 0] > 0))
    if not len(known):
        return None
    reported = _reported(dataset, output)
    few = len(known) <= ROWS
    # Axes have an order of their own; rows of a table and long sweeps are read by size.
    by_size = not few or "reported" in dataset
    order = known[np.argsort(values[known, 2], kind="stable")] if by_size else known
    said = f"{_label(output)}: median, 50% and 90% interval of {_plural(len(known))}"
    header = [str(dataset.attrs["name"]), said]
    inside = [values[i, 0] <= reported[i] <= values[i, 4] for i in order if np.isfinite(reported[i])]
    caption = (f"A diamond is what the run reported: {sum(inside)} of {len(inside)} lie inside the 90% interval. "
               if inside else "")  # fmt: skip
    caption += "All scenarios share their draws."
    if len(known) < len(values):
        caption += f" {len(values) - len(known)} could not be run, or reach 0."
    draw = _rows if few else _band
    return draw(dataset, output, values[order], reported[order], order, header, caption)


def _label(output: str) -> str:
    return BY_NAME[output].short[0].upper() + BY_NAME[output].short[1:]


def _plural(count: int) -> str:
    return formatting.plural(count, "scenario")


def _reported(dataset: "xr.Dataset", output: str) -> np.ndarray:
    if "reported" not in dataset or output not in dataset["reported_output"].values:
        return np.full(len(dataset["scenario"]), np.nan)
    return dataset["reported"].sel(reported_output=output).values


def _rows(dataset: "xr.Dataset", output: str, values: np.ndarray, reported: np.ndarray, order: np.ndarray,
          header: Sequence[str], caption: str) -> "Figure":  # fmt: skip
    names = [pages.drawable(str(dataset["name"].values[i])) for i in order]
    measured = pages.measure(7.5, "normal")
    room = min(max(measured(name) for name in names) + 0.15, 4.2)
    height, legend, foot = _ROW * len(names), 0.42, 0.5
    figure, top = pages.make_page(_WIDTH, header, legend + height + foot, caption)
    width = _WIDTH - 2 * pages.MARGIN - room
    labels = pages.place_axes(figure, pages.MARGIN, top - legend, room, height)
    axes = pages.place_axes(figure, pages.MARGIN + room, top - legend, width, height)
    for part in (labels, axes):
        pages.bands(part, len(names))
    labels.set_xlim(0, room)
    labels.set_xticks([])
    for i, name in enumerate(names):
        labels.text(0, i, pages.fit(name, room - 0.1, 7.5), fontsize=7.5, va="center", color=pages.INK,
                    parse_math=False)  # fmt: skip
    y = np.arange(len(names))
    axes.hlines(y, values[:, 0], values[:, 4], color=pages.BLUE, linewidth=1.1)
    axes.hlines(y, values[:, 1], values[:, 3], color=pages.BLUE, linewidth=4)
    axes.plot(values[:, 2], y, linestyle="none", marker="o", markersize=4, markerfacecolor="white",
              markeredgecolor=pages.BLUE, markeredgewidth=1.1)  # fmt: skip
    known = np.isfinite(reported)
    axes.plot(reported[known], y[known], linestyle="none", marker="D", markersize=4.5, color=pages.VERMILLION,
              markeredgecolor="white", markeredgewidth=0.6, zorder=5)  # fmt: skip
    _amounts(axes, "x", output)
    _legend(figure, top, bool(known.any()), pages.MARGIN + room)
    return figure


def _band(dataset: "xr.Dataset", output: str, values: np.ndarray, reported: np.ndarray, order: np.ndarray,
          header: Sequence[str], caption: str) -> "Figure":  # fmt: skip
    del dataset, order
    height, legend, foot, left = 4.2, 0.42, 0.55, 0.9
    figure, top = pages.make_page(_WIDTH, header, legend + height + foot, caption)
    axes = pages.place_axes(figure, pages.MARGIN + left, top - legend, _WIDTH - 2 * pages.MARGIN - left, height)
    x = np.arange(1, len(values) + 1)
    if len(x) <= 400:
        axes.vlines(x, values[:, 0], values[:, 4], color=pages.TINT, linewidth=1.6)
        axes.vlines(x, values[:, 1], values[:, 3], color=pages.BLUE, linewidth=1.6, alpha=0.55)
        axes.plot(x, values[:, 2], linestyle="none", marker="_", markersize=3.5, color=pages.INK)
    else:
        axes.fill_between(x, values[:, 0], values[:, 4], color=pages.TINT, linewidth=0)
        axes.fill_between(x, values[:, 1], values[:, 3], color=pages.BLUE, alpha=0.55, linewidth=0)
        axes.plot(x, values[:, 2], color=pages.INK, linewidth=1.2)
    known = np.isfinite(reported)
    axes.plot(x[known], reported[known], linestyle="none", marker="D", markersize=3.8, color=pages.VERMILLION,
              markeredgecolor="white", markeredgewidth=0.5, zorder=5)  # fmt: skip
    axes.set_xlim(0, len(x) + 1)
    axes.tick_params(labelleft=True)
    _amounts(axes, "y", output)
    axes.set_xlabel("scenarios, by their median", fontsize=8, color=pages.GREY)
    _legend(figure, top, bool(known.any()), pages.MARGIN + left, bands=True)
    return figure


def _legend(figure: "Figure", top: float, reported: bool, left: float, bands: bool = False) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=pages.INK, linewidth=1.2, label="median"),
        Line2D([], [], color=pages.BLUE, alpha=0.55, linewidth=5, label="50% interval"),
        Line2D([], [], color=pages.TINT, linewidth=5, label="90% interval"),
    ] if bands else [
        Line2D([], [], linestyle="none", marker="o", markersize=4, markerfacecolor="white",
               markeredgecolor=pages.BLUE, label="median"),
        Line2D([], [], color=pages.BLUE, linewidth=4, label="50% interval"),
        Line2D([], [], color=pages.BLUE, linewidth=1.1, label="90% interval"),
    ]  # fmt: skip
    if reported:
        handles.append(Line2D([], [], linestyle="none", marker="D", markersize=4.5, color=pages.VERMILLION,
                              markeredgecolor="white", label="reported"))  # fmt: skip
    pages.legend(figure, handles, left, top)


def _amounts(axes: "Axes", side: Literal["x", "y"], output: str) -> None:
    """Make an axis one of amounts, with logarithmic steps, and name it."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    unit = BY_NAME[output].unit
    axis = axes.xaxis if side == "x" else axes.yaxis
    (axes.set_xscale if side == "x" else axes.set_yscale)("log")
    low, high = axes.get_xlim() if side == "x" else axes.get_ylim()
    decades = math.log10(high / low)
    subs = (1.0, 2.0, 5.0) if decades < 2.5 else (1.0, 3.0) if decades < 5 else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=30))
    axis.set_major_formatter(FuncFormatter(lambda value, _: formatting.with_unit(value, unit, 3, exact=True)))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
    axes.grid(axis=side, color=pages.LINE, linewidth=0.7)
    axes.set_axisbelow(True)
    (axes.set_xlabel if side == "x" else axes.set_ylabel)(
        f"{BY_NAME[output].short} (log scale)", fontsize=8, color=pages.GREY)  # fmt: skip


# ---- map ----------------------------------------------------------------------------------------------------------


def _map_axes(dataset: "xr.Dataset") -> list[int]:
    """Return the places of the two axes that a map shows: the first with several values."""
    axes = json.loads(dataset.attrs["axes"])
    return [i for i, axis in enumerate(axes) if axis["length"] > 1][:2]


def map_plot(dataset: "xr.Dataset", output: str) -> "Figure | None":
    """Draw the median over the first two axes, and beside it how wide the 90% interval is: p95 over p5.

    Other axes stand at their first value.
    """
    axes = json.loads(dataset.attrs["axes"])
    lengths = [axis["length"] for axis in axes]
    first, second = _map_axes(dataset)
    places = tuple(slice(None) if i in (first, second) else 0 for i in range(len(axes)))
    values = _values(dataset, output).reshape(*lengths, len(_QUANTILES))[places]
    if not np.isfinite(values).any() or not np.nanmin(values) > 0:
        return None
    columns = [dataset[axes[i]["keys"][0]].values.reshape(lengths) for i in range(len(axes))]
    ticks = [
        [shown(_whole(v)) for v in np.moveaxis(columns[i], i, 0).reshape(lengths[i], -1)[:, 0].tolist()]
        for i in (first, second)
    ]
    others = [f"{axis['keys'][0]} {shown(_whole(columns[i].reshape(-1)[0]))}" for i, axis in enumerate(axes)
              if i not in (first, second) and axis["length"] > 1]  # fmt: skip
    header = [str(dataset.attrs["name"]), f"{_label(output)}: median, and how wide its 90% interval is"]
    caption = "Width: the upper end of the 90% interval over its lower end."
    caption += f" Other axes at their first value: {', '.join(others)}." if others else ""
    labels = 0.2 + max(pages.measure(7.5, "normal")(tick) for tick in ticks[0])
    labels = min(labels, 2.2)
    panel = (_WIDTH - 2 * pages.MARGIN - labels - 2 * 0.95 - 0.2) / 2
    widest = max(pages.measure(7.5, "normal")(tick) for tick in ticks[1])
    slanted = widest + 0.08 > panel / min(lengths[second], _TICKS)
    down = 0.65 * min(widest, 2.0) if slanted else 0.0
    height, foot = min(max(0.3 * lengths[first], 2.4), 6.0), 0.6 + down
    figure, top = pages.make_page(_WIDTH, header, 0.4 + height + foot, caption)
    for k, (image, title) in enumerate(((values[..., 2], "median"), (values[..., 4] / values[..., 0], "p95 / p5"))):
        left = pages.MARGIN + labels + k * (panel + 0.95 + 0.2)
        place = pages.place_axes(figure, left, top - 0.4, panel, height)
        bar = pages.place_axes(figure, left + panel + 0.08, top - 0.4, 0.12, height)
        _panel(figure, place, bar, image, output if k == 0 else "")
        place.set_title(title, fontsize=9, color=pages.INK, loc="left")
        _label_map(place, ticks, axes[second]["name"], slanted, k == 0)
        if k == 0:
            place.set_ylabel(axes[first]["name"], fontsize=8, color=pages.GREY)
    return figure


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value == int(value) and abs(value) < 1e6 else value


def _panel(figure: "Figure", place: "Axes", bar: "Axes", image: np.ndarray, output: str) -> None:
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    low, high = float(np.nanmin(image)), float(np.nanmax(image))
    high = high if high > low * (1 + 1e-9) else low * 1.1
    norm = LogNorm(low, high) if output else Normalize(low, high)
    drawn = place.imshow(image, aspect="auto", cmap="cividis", norm=norm, origin="upper", interpolation="nearest")
    figure.colorbar(drawn, cax=bar)
    bar.tick_params(labelleft=False, labelright=True, labelsize=7.5, colors=pages.GREY, length=0)
    if output:
        unit = BY_NAME[output].unit
        marks = np.exp(np.linspace(math.log(low), math.log(high), 5))
        bar.set_yticks(marks, [formatting.with_unit(mark, unit, 2) for mark in marks])
        bar.yaxis.set_minor_locator(NullLocator())
    else:
        bar.yaxis.set_major_locator(MaxNLocator(5))
        bar.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))


def _label_map(place: "Axes", ticks: Sequence[Sequence[str]], name: str, slanted: bool, left: bool) -> None:
    for axis, labels, side in ((place.yaxis, ticks[0], "y"), (place.xaxis, ticks[1], "x")):
        every = -(-len(labels) // _TICKS)
        at = list(range(0, len(labels), every))
        told = [pages.fit(pages.drawable(labels[i]), 2.0, 7.5) for i in at]
        axis.set_ticks(at, told if side == "x" or left else [""] * len(at))
    place.tick_params(axis="x", labelrotation=40 if slanted else 0, labelsize=7.5)
    place.tick_params(axis="y", labelleft=left, labelsize=7.5)
    for label in place.get_xticklabels() if slanted else ():
        label.set_horizontalalignment("right")
        label.set_rotation_mode("anchor")
    place.set_xlabel(name, fontsize=8, color=pages.GREY)


# ---- cost against carbon --------------------------------------------------------------------------------------------


def pareto(values: np.ndarray) -> np.ndarray:
    """Return the rows that no other row is below in all columns, ordered by the first column.

    Parameters
    ----------
    values : ndarray, shape (n, 2)
        Rows with NaN are never returned.
    """
    order = [i for i in np.lexsort((values[:, 1], values[:, 0])) if np.isfinite(values[i]).all()]
    best, kept = math.inf, []
    for i in order:
        if values[i, 1] < best:
            best = float(values[i, 1])
            kept.append(int(i))
    return np.array(kept, dtype=int)


def pareto_plot(dataset: "xr.Dataset", first: str, second: str) -> "Figure | None":
    """Draw medians of two outputs, and those that no other scenario beats in both with their 90% intervals."""
    x, y = _values(dataset, first), _values(dataset, second)
    middle = np.column_stack([x[:, 2], y[:, 2]])
    front = pareto(middle)
    if not len(front) or not (x[front, 0] > 0).all() or not (y[front, 0] > 0).all():
        return None
    named = front if len(front) <= _BEST else front[np.linspace(0, len(front) - 1, _BEST).round().astype(int)]
    count = _plural(int(np.isfinite(middle).all(axis=1).sum()))
    said = f"{_label(first)} against {BY_NAME[second].short}: medians of {count}; {len(front)} that none beats in both"
    header = [str(dataset.attrs["name"]), said]
    caption = f"Bars are 90% intervals. Numbers, by cost: {_listed(dataset, named)}. "
    caption += "Scenarios share what is uncertain for all, so that their order is surer than overlapping bars suggest."
    height, left, gap, foot = 4.6, 0.9, 0.2, 0.55
    figure, top = pages.make_page(_WIDTH, header, gap + height + foot, caption)
    axes = pages.place_axes(figure, pages.MARGIN + left, top - gap, _WIDTH - 2 * pages.MARGIN - left, height)
    axes.plot(middle[:, 0], middle[:, 1], linestyle="none", marker="o", markersize=2.5 if len(middle) > 500 else 4,
              color=pages.TINT, markeredgewidth=0, rasterized=True)  # fmt: skip
    axes.hlines(y[named, 2], x[named, 0], x[named, 4], color=pages.BLUE, linewidth=0.8, alpha=0.6)
    axes.vlines(x[named, 2], y[named, 0], y[named, 4], color=pages.BLUE, linewidth=0.8, alpha=0.6)
    axes.plot(middle[front, 0], middle[front, 1], linestyle="none", marker="o", markersize=5, color=pages.BLUE,
              markeredgecolor="white")  # fmt: skip
    for number, i in enumerate(named[:_NUMBERED], start=1):
        axes.annotate(str(number), middle[i], (5, 5), textcoords="offset points", fontsize=7.5, color=pages.INK)
    axes.tick_params(labelleft=True)
    _amounts(axes, "x", first)
    _amounts(axes, "y", second)
    return figure


_NUMBERED = 8


def _listed(dataset: "xr.Dataset", rows: np.ndarray) -> str:
    names = dataset["name"].values
    told = [f"{number} {names[i]}" for number, i in enumerate(rows[:_NUMBERED], start=1)]
    more = len(rows) - len(told)
    return "; ".join(told) + (f"; {more} more" if more > 0 else "")
