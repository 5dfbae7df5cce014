"""Intervals as a forest of lines on an axis of ratios: median, 50% and 90% interval, and published values as marks."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpustack_mc import formatting, hdi, pages
from gpustack_mc.arrays import Result

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOW, MEDIAN, HIGH = 0, 2, 4


class Layout(NamedTuple):
    """How an interval plot is laid out, in inches.

    Attributes
    ----------
    width, margin : float
        Of the page.
    labels : float
        Width of the labels left of the intervals; 0 puts each label above its interval.
    row : float
        Height of a row.
    line : float
        Where in a row the interval lies, as a share of the height below the middle.
    """

    width: float
    margin: float
    labels: float
    row: float
    line: float

    @property
    def room(self) -> float:
        """Width of the intervals."""
        return self.width - 2 * self.margin - self.labels


WIDE = Layout(10.0, pages.MARGIN, pages.LABELS, 0.56, 0.0)
# On a phone its texts are as large as those of the page around it.
NARROW = Layout(3.5, 0.12, 0.0, 0.86, 0.13)


class Row(NamedTuple):
    """One variable of an interval plot; `values` and `errors` are five quantiles and their Monte Carlo errors."""

    key: str
    description: str
    note: str
    unit: str
    values: np.ndarray
    errors: np.ndarray
    varies: bool
    published: float | None

    def text(self, i: int) -> str:
        """Write quantile `i` with its unit, as the table of the report does."""
        low, high = self.values[LOW], self.values[HIGH]
        digits = formatting.digits_for(self.values[i], low, high, np.nan_to_num(self.errors[i]), self.unit)
        step = formatting.step_for(self.values[MEDIAN], self.unit)
        return formatting.with_unit(self.values[i], self.unit, digits, step)

    @property
    def published_text(self) -> str:
        """Write the published value with as many of up to four digits as it has."""
        value = float(self.published or 0)
        digits = next((d for d in (1, 2, 3) if math.isclose(float(f"{value:.{d}g}"), value, rel_tol=1e-9)), 4)
        return f"published {formatting.with_unit(value, self.unit, digits)}"


class _Span(NamedTuple):
    """Where one row lies on the ratio axis, as natural logarithms.

    Attributes
    ----------
    quantiles : numpy.ndarray
    left, right : float
        Beyond these the values of the ends are written.
    mark : float or None
        Of the published value.
    shape : {"", "D", "<", ">"}
        Of the mark; an arrow where the value lies beyond it.
    clipped : bool
        Whether the lower end is 0 or below, so that its place is not its value.
    """

    quantiles: np.ndarray
    left: float
    right: float
    mark: float | None
    shape: str
    clipped: bool


def forest(rows: Sequence[Row], tree: Result, said: str, nothing: str, layout: Layout = WIDE) -> "Figure":
    """Draw rows under the tree's name and `said`; `nothing` is said instead where no row varies."""
    drawn = [row for row in rows if row.varies and row.values[MEDIAN] > 0]
    header = [tree.attrs["name"], said]
    with pages.own_style():
        if not drawn:
            said = "No median is above 0." if any(row.varies for row in rows) else nothing
            return pages.message(header, said, _forest_caption(rows), layout.width, layout.margin)
        spans, limits = _spans(drawn, layout.room)
        caption = _forest_caption(rows, far=any(span.shape in ("<", ">") for span in spans))
        return _draw_forest(drawn, spans, limits, header, caption, layout, hdi.NAMES[hdi.kind_of(tree.attrs)])


def _forest_caption(rows: Sequence[Row], far: bool = False) -> str:
    parts = []
    constant = [row for row in rows if not row.varies]
    if constant:
        said = (f"{row.key} {row.text(MEDIAN)}" + (f" ({row.published_text})" if row.published is not None else "")
                for row in constant)  # fmt: skip
        parts.append(f"Without spread: {', '.join(said)}.")
    hidden = [row for row in rows if row.varies and row.values[MEDIAN] <= 0]
    if hidden:
        said = (f"{row.key} {row.text(MEDIAN)} ({row.text(LOW)} to {row.text(HIGH)})" for row in hidden)
        parts.append(f"Not drawn, because a median of 0 or below has no ratios: {', '.join(said)}.")
    if any(row.varies and row.values[LOW] <= 0 < row.values[MEDIAN] for row in rows):
        parts.append("An arrow at an interval's end: it reaches 0 or below, which a ratio axis cannot show.")
    if far:
        parts.append("A triangle: the published value lies farther out than it is drawn.")
    return " ".join(parts)


def _draw_forest(rows: Sequence[Row], spans: Sequence[_Span], limits: tuple[float, float], header: Sequence[str],
                 caption: str, layout: Layout, what: str) -> "Figure":  # fmt: skip
    legend, foot = (0.42 if layout.labels else 0.6), 0.5
    height = len(rows) * layout.row
    figure, top = pages.make_page(layout.width, header, legend + height + foot, caption, layout.margin)
    labels = pages.place_axes(figure, layout.margin, top - legend, layout.labels or layout.room, height)
    forest = pages.place_axes(figure, layout.margin + layout.labels, top - legend, layout.room, height)
    for axes in (labels, forest) if layout.labels else (forest,):
        pages.bands(axes, len(rows))
    if layout.labels:
        pages.label_rows(labels, [(row.description, row.key, row.note) for row in rows], layout.row)
    else:
        pages.label_above(labels, [row.description for row in rows], layout.row, layout.room)
    places = np.arange(len(spans)) + layout.line
    arviz_forest(figure, labels, forest, [span.quantiles for span in spans], places)
    ratio_axis(forest, limits, layout.room)
    for i, (row, span) in enumerate(zip(rows, spans, strict=True)):
        per_inch = (limits[1] - limits[0]) / layout.room
        _row_texts(forest, float(places[i]), row, span, limits, per_inch, pages.BAND if i % 2 == 0 else "white")
    _forest_legend(figure, top, any(row.published is not None for row in rows), layout, what)
    return figure


def arviz_forest(
    figure: "Figure",
    labels: "Axes",
    forest: "Axes",
    logs: Sequence[np.ndarray],
    y: Sequence[float] | np.ndarray,
    color: str = pages.BLUE,
    thickness: float = 5.5,
) -> None:
    """Draw lines and dots with ArviZ, on axes that exist already, from five logarithms for each place `y`.

    The quantiles are handed over instead of draws: they are those of all draws, also of those that were not kept, and
    ArviZ would take longer over 65,536 draws than everything else here together.
    """
    import arviz as az
    import xarray as xr

    ratios = xr.DataArray(np.exp(logs), dims=("row", "quantile"))
    ratios = ratios.assign_coords(row=np.arange(len(logs)))

    def interval(low: int, high: int) -> "xr.Dataset":
        ends = ratios.isel(quantile=[low, high]).rename(quantile="ci_bound")
        return ends.assign_coords(ci_bound=["lower", "upper"]).to_dataset(name="ratio")

    median = ratios.isel(quantile=MEDIAN).to_dataset(name="ratio")
    draws = median.expand_dims(chain=1, draw=1)
    viz = xr.Dataset(
        {
            "figure": ((), np.array(figure, dtype=object)),
            "plot": (("column",), np.array([labels, forest], dtype=object)),
        },
        coords={"column": ["labels", "forest"]},
    )
    # PlotCollection.grid would make the figure with pyplot, which keeps it and may open a window.
    aes = {"y": ["row"], "overlay": ["row"]}
    collection = az.PlotCollection(
        draws, xr.DataTree(viz), aes=aes, backend="matplotlib", y=np.asarray(y), overlay=[None] * len(logs)
    )
    az.plot_forest(
        draws,
        sample_dims=["chain", "draw"],
        combined=True,
        labels=[],
        plot_collection=collection,
        point_estimate="median",
        ci_kind="eti",
        ci_probs=(0.5, 0.9),
        stats={"trunk": interval(1, 3), "twig": interval(LOW, HIGH), "point_estimate": median},
        visuals={
            "twig": {"color": color, "width": 1.3, "solid_capstyle": "butt"},
            "trunk": {"color": color, "width": thickness, "solid_capstyle": "butt"},
            "point_estimate": {"facecolor": "white", "edgecolor": color, "size": 20, "width": 1.4, "zorder": 4},
            "ticklabels": False,
            "remove_axis": False,
        },
    )


def _spans(rows: Sequence[Row], room: float) -> tuple[list[_Span], tuple[float, float]]:
    """Place rows on the log axis, and find limits between which their texts fit as well.

    The room that a text takes depends on the limits and the limits on the texts: a few rounds settle it.
    """
    ratios = [row.values / row.values[MEDIAN] for row in rows]
    positive = np.concatenate([ratio[ratio > 0] for ratio in ratios])
    floor = positive.min() * 0.8
    logs = [np.log(np.where(ratio > 0, ratio, floor)) for ratio in ratios]
    marks = [_mark(row, max(max(abs(log[LOW]), log[HIGH]) for log in logs)) for row in rows]
    widths = [[pages.measure(8, "normal")(row.text(i)) + 0.2 for i in (LOW, HIGH)] for row in rows]
    known = [mark for mark in marks if mark is not None]
    low, high = -1e-6, 1e-6
    spans: list[_Span] = []
    for _ in range(60):
        per_inch = (high - low) / room
        spans = [
            _span(row, log, mark, width, per_inch)
            for row, log, mark, width in zip(rows, logs, marks, widths, strict=True)
        ]
        edge = 0.12 * per_inch  # half a mark and some air
        low = min(span.left - width[0] * per_inch for span, width in zip(spans, widths, strict=True))
        high = max(span.right + width[1] * per_inch for span, width in zip(spans, widths, strict=True))
        low, high = min([low, *(mark - edge for mark in known)]), max([high, *(mark + edge for mark in known)])
    return spans, (low, high)


def _log_published(row: Row) -> float:
    ratio = (row.published or 0.0) / row.values[MEDIAN]
    return math.log(ratio) if ratio > 0 else -math.inf


def _mark(row: Row, reach: float) -> float | None:
    """Return the log ratio of a published value; one that would squeeze all intervals is put just outside them."""
    if row.published is None:
        return None
    log = _log_published(row)
    return log if abs(log) <= max(2 * reach, math.log(2)) else math.copysign(1.3 * reach, log)


def _span(row: Row, log: np.ndarray, mark: float | None, widths: Sequence[float], per_inch: float) -> _Span:
    left, right = log[LOW], log[HIGH]
    half = 0.07 * per_inch  # of the mark
    if mark is not None:
        # A mark outside the interval would lie on the text of that end: the text goes beyond the mark.
        if left - (widths[0] * per_inch + half) < mark < left + half:
            left = min(left, mark - half)
        if right - half < mark < right + widths[1] * per_inch + half:
            right = max(right, mark + half)
    return _Span(log, left, right, mark, _shape(row, mark), bool(row.values[LOW] <= 0))


def _shape(row: Row, mark: float | None) -> str:
    if mark is None or row.published is None:
        return ""
    if mark == _log_published(row):
        return "D"
    return ">" if mark > 0 else "<"


def ratio_axis(axes: "Axes", limits: tuple[float, float], room: float) -> None:
    """Make the x axis one of ratios between two logarithms, `room` inches wide."""
    from matplotlib.ticker import NullLocator

    axes.set_xscale("log")
    axes.set_xlim(*np.exp(limits))
    ticks = _ratio_ticks(limits, room)
    axes.set_xticks(ticks, [_ratio_label(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(axis="x", color=pages.LINE, linewidth=0.7)
    axes.axvline(1, color=pages.GREY, linewidth=0.8, zorder=1)
    axes.set_xlabel("ratio to the row's median (no unit, log scale)", fontsize=8, color=pages.GREY)
    axes.set_axisbelow(True)


def _ratio_ticks(limits: tuple[float, float], room: float) -> list[float]:
    """Choose the finest set of simple factors whose labels do not touch."""
    low, high = limits
    reach = math.exp(max(-low, high))
    steps = [[1 + k * step for k in range(1, 60)] for step in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)]
    powers = [[base**k for k in range(1, 2 + int(math.log(reach, base)))] for base in (2, 4, 10, 100, 1e3, 1e6)]
    for factors in (*steps, *powers):
        # A set that ends before the axis does would leave a part of it without ticks.
        if factors[-1] < reach and factors in steps:
            continue
        ticks = sorted({1.0, *factors, *(1 / factor for factor in factors)})
        inside = [tick for tick in ticks if low <= math.log(tick) <= high]
        gaps = np.diff(np.log(inside)) * room / (high - low)
        if len(inside) < 2 or gaps.min() >= 0.62:
            return inside
    return [1.0]


def _ratio_label(tick: float) -> str:
    if math.isclose(tick, 1):
        return "median"
    factor = max(tick, 1 / tick)
    written = formatting.count(factor) if factor > 999 else f"{factor:.4g}"
    return f"×{written}" if tick > 1 else f"÷{written}"


def _row_texts(
    axes: "Axes", y: float, row: Row, span: _Span, limits: tuple[float, float], per_inch: float, ground: str
) -> None:
    """Write the values at the ends, the median above and the published value below the line."""
    # The paper behind a text keeps grid lines from striking it through.
    paper = {"facecolor": ground, "edgecolor": "none", "pad": 1}

    def write(log: float, text: str, offset: tuple[float, float], align: str, **style: Any) -> None:
        axes.annotate(text, (math.exp(log), y), offset, textcoords="offset points", ha=align, va="center",
                      parse_math=False, zorder=1.5, bbox=paper,
                      **{"fontsize": 8, "color": pages.INK, **style})  # fmt: skip

    write(span.left, row.text(LOW), (-8 if span.clipped else -5, 0), "right")
    write(span.right, row.text(HIGH), (5, 0), "left")
    write(0.0, row.text(MEDIAN), (0, 12), "center", fontweight="bold")
    if span.clipped:
        axes.plot(math.exp(span.quantiles[LOW]), y, marker="<", markersize=5, color=pages.BLUE)
    if span.mark is None:
        return
    axes.plot(math.exp(span.mark), y, marker=span.shape, markersize=6.5, color=pages.VERMILLION,
              markeredgecolor="white", markeredgewidth=0.8, zorder=5, gid=f"published:{row.key}")  # fmt: skip
    half = (pages.measure(7.5, "normal")(row.published_text) / 2 + 0.04) * per_inch
    centre = float(np.clip(span.mark, limits[0] + half, limits[1] - half))
    write(centre, row.published_text, (0, -12), "center", fontsize=7.5, color=pages.PUBLISHED)


def _forest_legend(figure: "Figure", top: float, published: bool, layout: Layout, what: str) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], linestyle="none", marker="o", markersize=4.5, markerfacecolor="white",
               markeredgecolor=pages.BLUE, markeredgewidth=1.4, label="median"),
        Line2D([], [], color=pages.BLUE, linewidth=5.5, solid_capstyle="butt", label=f"50% {what}"),
        Line2D([], [], color=pages.BLUE, linewidth=1.3, solid_capstyle="butt", label=f"90% {what}"),
    ]  # fmt: skip
    if published:
        handles.append(Line2D([], [], linestyle="none", marker="D", markersize=6.5, color=pages.VERMILLION,
                              markeredgecolor="white", label="published value"))  # fmt: skip
    pages.legend(figure, handles, layout.margin + layout.labels, top, len(handles) if layout.labels else 2)
