"""Pictures of decisions: scenarios beside each other, and regions as a dot plot.

Like those of `gpustack_mc.figures`, they are drawn under matplotlib's default style and not known to pyplot.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpustack_mc import figures, forest, formatting, pages
from gpustack_mc.answering import percent
from gpustack_mc.comparison_text import spoken_row
from gpustack_mc.quantities import BY_NAME
from gpustack_mc.sites_text import best_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette after a grey for the first scenario; every bar has its letter as well.
COLORS = ("#595959", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MOST_REGIONS = 60
_WIDTH = 12.0
_LABELS = 2.3
_GAP = 0.3
_SIZE = 7.5


class _Bar(NamedTuple):
    """One interval on a log axis: where it is, the logarithms of its five quantiles, its text and its colour."""

    y: float
    logs: np.ndarray
    text: str
    color: str


def comparison_plot(summary: Mapping[str, Any]) -> "Figure":
    """Draw the scenarios relative to the first one's median, and their paired ratios to it.

    Parameters
    ----------
    summary : mapping
        From `gpustack_mc.comparison.summarise`.

    Returns
    -------
    matplotlib.figure.Figure
        Outputs that are the same in all scenarios, or not above 0, are named in the caption.
    """
    scenarios, pairs = summary["scenarios"], summary["comparisons"]
    keys = list(scenarios[0]["outputs"])
    same = [key for key in keys if all(pair["outputs"][key]["same"] for pair in pairs)]
    drawn = [key for key in keys if key not in same and _positive(scenarios, key)]
    others = ", ".join(_named(case) for case in scenarios[1:])
    header = [f"{others} against {_named(scenarios[0])}", _said(summary)]
    caption = _comparison_caption(summary, keys, same, drawn)
    with pages.own_style():
        if not drawn:
            return pages.message(header, "Nothing differs between these scenarios.", caption)
        return _draw_comparison(summary, drawn, header, caption)


def _named(case: Mapping[str, Any]) -> str:
    return f"{case['label']}: {case['name']}"


def _said(summary: Mapping[str, Any]) -> str:
    parts = []
    for pair in summary["comparisons"]:
        if key := spoken_row(dict(pair)):
            answer = _chances(pair["outputs"][key])
            parts.append(f"P({pair['other']} below {pair['first']} in {_label(key)}) = {answer}")
    return "; ".join(parts)


def _chances(found: Mapping[str, Any]) -> str:
    """Write the chance of being lower: one number, or those of both couplings."""
    ends = [found[name]["probability"] for name in found if name.startswith("other_lower")]
    low, high = (percent(end) for end in (min(ends), max(ends)))
    return low if low == high else f"{low.removesuffix('%')} – {high}"


def _positive(scenarios: Sequence[Mapping[str, Any]], key: str) -> bool:
    lows = [case["outputs"][key]["interval_90"][0] for case in scenarios]
    return all(low is not None and low > 0 for low in lows)


def _comparison_caption(
    summary: Mapping[str, Any], keys: Sequence[str], same: Sequence[str], drawn: Sequence[str]
) -> str:
    how = "at the same quantile" if summary["coupling"] == "common" else "independently"
    parts = [
        "Median, 50% and 90% equal-tailed intervals. Left: each scenario. Right: ratios draw by draw, in which what is "
        f"shared cancels; inputs that differ are drawn {how}, and a second chance is that of the other way."
    ]
    if same:
        parts.append(f"The same in all: {', '.join(_label(key) for key in same)}.")
    if hidden := [key for key in keys if key not in same and key not in drawn]:
        parts.append(f"Not drawn, because not always above 0: {', '.join(_label(key) for key in hidden)}.")
    return " ".join(parts)


def _label(key: str) -> str:
    return BY_NAME[key].short if key in BY_NAME else "cost"


def _logs(entry: Mapping[str, Any]) -> np.ndarray:
    low, high = entry["interval_90"]
    first, third = entry["interval_50"]
    return np.log([low, first, entry["median"], third, high])


def _draw_comparison(summary: Mapping[str, Any], keys: Sequence[str], header: Sequence[str], caption: str) -> "Figure":
    scenarios, pairs = summary["scenarios"], summary["comparisons"]
    step = 0.24
    row = 0.16 + step * len(scenarios)
    height, title, foot = row * len(keys), 0.34, 0.5
    figure, top = pages.make_page(_WIDTH, header, title + height + foot, caption)
    room = _WIDTH - 2 * pages.MARGIN - _LABELS - _GAP
    widths = (0.56 * room, 0.44 * room)
    labels = pages.place_axes(figure, pages.MARGIN, top - title, _LABELS, height)
    left = pages.place_axes(figure, pages.MARGIN + _LABELS, top - title, widths[0], height)
    right = pages.place_axes(figure, pages.MARGIN + _LABELS + widths[0] + _GAP, top - title, widths[1], height)
    for axes in (labels, left, right):
        pages.bands(axes, len(keys))
    _names(labels, [(_label(key), _unit(scenarios[0]["outputs"][key])) for key in keys])
    first = scenarios[0]["label"]
    absolute, ratios = [], []
    for i, key in enumerate(keys):
        middle = math.log(scenarios[0]["outputs"][key]["median"])
        for k, case in enumerate(scenarios):
            entry = case["outputs"][key]
            y = i + (k - (len(scenarios) - 1) / 2) * step / row
            absolute.append(_Bar(y, _logs(entry) - middle, f"{case['label']} {_amount(entry)}", _color(k)))
        for k, pair in enumerate(pairs):
            found = pair["outputs"][key]
            y = i + (k - (len(pairs) - 1) / 2) * step / row
            if found["ratio"]["median"] and not found["same"]:
                text = f"P({pair['other']} < {first}) {_chances(found)}"
                ratios.append(_Bar(y, _logs(found["ratio"]), text, _color(k + 1)))
    for axes, bars, width, what in (
        (left, absolute, widths[0], f"ratio to the median of {first} (log scale)"),
        (right, ratios, widths[1], f"ratio to {first}, draw by draw (log scale)"),
    ):
        _forest(axes, bars, width)
        _titled(axes, what)
    return figure


def _titled(axes: "Axes", text: str) -> None:
    axes.set_xlabel(text, fontsize=8, color=pages.GREY)


def _color(number: int) -> str:
    return COLORS[number] if number < len(COLORS) else COLORS[1 + (number - 1) % (len(COLORS) - 1)]


def _unit(entry: Mapping[str, Any]) -> str:
    scope = f" · {entry['scope']}" if entry["scope"] else ""
    return figures.readable_unit(entry["unit"]) + scope


def _amount(entry: Mapping[str, Any]) -> str:
    low, high = entry["interval_90"]
    errors = entry["monte_carlo_error"] or {"median": 0.0}
    digits = formatting.digits_for(entry["median"], low, high, errors["median"] or 0.0, entry["unit"])
    return formatting.with_unit(entry["median"], entry["unit"], digits)


def _names(axes: "Axes", names: Sequence[tuple[str, str]]) -> None:
    """Write a name and a smaller line below it for each row."""
    axes.set_xlim(0, _LABELS)
    axes.set_xticks([])
    for i, (name, below) in enumerate(names):
        room = _LABELS - 0.1
        axes.annotate(pages.fit(pages.drawable(name), room, 9), (0.02, i), (0, 2), textcoords="offset points",
                      fontsize=9, va="bottom", parse_math=False)  # fmt: skip
        axes.annotate(pages.fit(pages.drawable(below), room, 7), (0.02, i), (0, -1), textcoords="offset points",
                      fontsize=7, va="top", color=pages.GREY, parse_math=False)  # fmt: skip


def _forest(axes: "Axes", bars: Sequence[_Bar], width: float) -> None:
    """Draw bars with their texts at the upper ends, on an axis wide enough for both."""
    low, high = _limits(bars, width)
    _lines(axes, bars, 4.0)
    forest.ratio_axis(axes, (low, high), width)
    axes.set_xticks(axes.get_xticks(), [_plain_ratio(tick) for tick in axes.get_xticks()])
    for bar in bars:
        axes.annotate(bar.text, (math.exp(bar.logs[-1]), bar.y), (5, 0), textcoords="offset points", va="center",
                      fontsize=_SIZE, color=bar.color, parse_math=False)  # fmt: skip


def _lines(axes: "Axes", bars: Sequence[_Bar], thickness: float) -> None:
    """Draw each bar as a thin line (90%), a thick one (50%) and a dot (median)."""
    low, first, median, third, high = np.exp([bar.logs for bar in bars]).T
    y, colors = [bar.y for bar in bars], [bar.color for bar in bars]
    # Lines and dots alone: ArviZ draws the same forest, and takes a second to load for the intervals of draws.
    axes.hlines(y, low, high, colors, linewidth=1.3, capstyle="butt")
    axes.hlines(y, first, third, colors, linewidth=thickness, capstyle="butt")
    axes.scatter(median, y, s=20, facecolor="white", edgecolor=colors, linewidth=1.4, zorder=4)


def _plain_ratio(tick: float) -> str:
    if tick >= 1:
        return f"×{formatting.count(tick) if tick > 999 else f'{tick:.4g}'}"
    return f"÷{formatting.count(1 / tick) if tick < 1e-3 else f'{1 / tick:.4g}'}"


def _limits(bars: Sequence[_Bar], width: float, around: float = 0.0) -> tuple[float, float]:
    """Return limits between which all bars fit with the texts at their upper ends."""
    measured = pages.measure(_SIZE, "normal")
    texts = [measured(bar.text) + 0.15 for bar in bars]
    low = min([around, *(float(bar.logs[0]) for bar in bars)])
    high = max([around, *(float(bar.logs[-1]) for bar in bars)])
    least = low
    for _ in range(60):
        per_inch = max(high - least, 1e-6) / width
        low = least - 0.1 * per_inch
        high = max(float(bar.logs[-1]) + text * per_inch for bar, text in zip(bars, texts, strict=True))
        high = max(high, around + 0.1 * per_inch)
    return low, high


# ---- regions -----------------------------------------------------------------------------------------------------


def site_plot(summary: Mapping[str, Any]) -> "Figure":
    """Draw one panel for each criterion: regions as rows, medians as dots with 50% and 90% intervals.

    Parameters
    ----------
    summary : mapping
        As written to ``sites.json``.

    Returns
    -------
    matplotlib.figure.Figure
        Rows in the order of the table; at most `MOST_REGIONS`.
    """
    rows = dict(list(summary["regions"].items())[:MOST_REGIONS])
    basis = summary["basis"]
    header = [
        f"{summary['name']}: where to run it",
        f"{len(summary['regions'])} regions, sorted by {summary['by']}; carbon {basis['carbon_accounting']}, "
        f"{basis['carbon_basis']}, final run",
    ]
    caption = [
        "Median, 50% and 90% equal-tailed intervals, log scales. Percentages: chance of being the best, draw by draw; "
        "two where no data say whether what differs between regions is independent or moves together. Intervals "
        "overlap because what is unknown about the run is the same everywhere."
    ]
    if more := len(summary["regions"]) - len(rows):
        caption.append(f"{more} more regions are in sites.json.")
    with pages.own_style():
        return _draw_sites(summary, rows, header, " ".join(caption))


def _draw_sites(summary: Mapping[str, Any], rows: Mapping[str, Any], header: Sequence[str], caption: str) -> "Figure":
    step, title, foot = 0.25, 0.34, 0.45
    height = step * len(rows)
    figure, top = pages.make_page(_WIDTH, header, title + height + foot, caption)
    criteria = summary["criteria"]
    width = (_WIDTH - 2 * pages.MARGIN - _LABELS - (len(criteria) - 1) * _GAP) / len(criteria)
    labels = pages.place_axes(figure, pages.MARGIN, top - title, _LABELS, height)
    pages.bands(labels, len(rows))
    labels.set_xlim(0, _LABELS)
    labels.set_xticks([])
    for i, (name, row) in enumerate(rows.items()):
        text = pages.fit(pages.drawable(name if name == row["name"] else f"{name}  {row['name']}"), _LABELS, 8)
        labels.text(0.02, i, text, fontsize=8, va="center", parse_math=False)
    for number, (key, criterion) in enumerate(criteria.items()):
        left = pages.MARGIN + _LABELS + number * (width + _GAP)
        axes = pages.place_axes(figure, left, top - title, width, height)
        pages.bands(axes, len(rows))
        pages.write(figure, left, top - 0.06, pages.Block([pages.fit(criterion["label"], width, 8.5, "bold")],
                                                               8.5, "bold"))  # fmt: skip
        found = [row[key] for row in rows.values()]
        _site_panel(axes, found, criterion["unit"], width)
    return figure


def _site_panel(axes: "Axes", found: Sequence[Mapping[str, Any]], unit: str, width: float) -> None:
    from matplotlib.ticker import NullLocator

    known = [(i, entry) for i, entry in enumerate(found) if entry["rank"] is not None and entry["interval_90"][0] > 0]
    axes.set_yticks([])
    for i, entry in enumerate(found):
        if entry["rank"] is None:
            axes.text(0.02, i, "no data", transform=axes.get_yaxis_transform(), fontsize=7, va="center",
                      color=pages.GREY)  # fmt: skip
    if not known:
        axes.set_xticks([])
        return
    bars = [_Bar(i, _logs(entry), best_words(dict(entry)), COLORS[1]) for i, entry in known]
    middle = float(np.median([bar.logs[2] for bar in bars]))
    low, high = _limits(bars, width, middle)
    _lines(axes, bars, 3.5)
    axes.set_xscale("log")
    axes.set_xlim(math.exp(low), math.exp(high))
    # One unit for the whole axis, that of the middle.
    unit_step = formatting.step_for(math.exp(middle), unit)
    ticks = _amount_ticks((low, high), width, lambda tick: _tick(tick, unit_step))
    axes.set_xticks(ticks, [_tick(tick, unit_step) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(axis="x", color=pages.LINE, linewidth=0.7)
    axes.set_axisbelow(True)
    for bar in bars:
        axes.annotate(bar.text, (math.exp(bar.logs[-1]), bar.y), (4, 0), textcoords="offset points", va="center",
                      fontsize=7, color=pages.GREY, parse_math=False)  # fmt: skip


def _tick(tick: float, step: formatting.Step) -> str:
    return f"{step.prefix}{formatting.number(tick * step.factor, 1)}{step.suffix}"


def _amount_ticks(limits: tuple[float, float], width: float, text: Callable[[float], str]) -> list[float]:
    """Choose the finest of the usual series whose labels do not touch."""
    low, high = limits
    powers = range(math.floor(low / math.log(10)) - 1, math.ceil(high / math.log(10)) + 2)
    measured = pages.measure(8, "normal")
    for digits in ((1, 2, 5), (1, 3), (1,)):
        for every in (1, 2, 3):
            ticks = [digit * 10.0**power for power in powers if power % every == 0 for digit in digits]
            inside = [tick for tick in ticks if low <= math.log(tick) <= high]
            if len(inside) < 2:
                continue
            room = np.diff(np.log(inside)) * width / (high - low)
            if room.min() > max(measured(text(tick)) for tick in inside) + 0.08:
                return inside
    return [math.exp((low + high) / 2)]
