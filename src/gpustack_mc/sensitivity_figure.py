"""Pictures of `gpustack-mc sensitivity`: shares of the variance, and a tornado in each output's unit."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpustack_mc import formatting, pages, sensitivity_text
from gpustack_mc.figures import readable_unit
from gpustack_mc.quantities import BY_NAME

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Found = Mapping[str, Any]

# Inches.
_WIDTH = 11.0
_ROW = 0.34
_LABELS = 2.1
_GAP = 0.25
_HEAD = 0.46
_TITLE = 0.42
_AXIS = 0.55
_MOST_PANELS = 5
_MOST_ROWS = 12
_MOST_BARS = 8
_BAR = 0.44
# Room beside the bars for the values of the input, as a share of their width.
_BESIDE = 0.3


def driver_plot(found: Found) -> "Figure":
    """Draw the shares of groups and inputs in the variance of each output, with 90% intervals.

    Parameters
    ----------
    found : mapping
        From `gpustack_mc.sensitivities.run_sensitivity`.

    Returns
    -------
    matplotlib.figure.Figure
        Not known to pyplot. First-order inside total indices; with Shapley effects these are the bars and the two
        indices are marks.
    """
    names = list(found["outputs"])[:_MOST_PANELS]
    share = sensitivity_text.main_share(found)
    rows = _rows(found, names, share)
    header = [found["name"], "Share of the variance of each output that a group of inputs, or one input, explains"]
    with pages.own_style():
        if not rows:
            return pages.message(header, "No group and no input explains a hundredth of any output.", "")
        height = len(rows) * _ROW
        figure, top = pages.make_page(_WIDTH, header, _HEAD + _TITLE + height + _AXIS, _caption(found, names, share))
        _share_legend(figure, top, share)
        top -= _HEAD + _TITLE
        _labels(figure, top, rows, height)
        width = (_WIDTH - 2 * pages.MARGIN - _LABELS - (len(names) - 1) * _GAP) / len(names)
        for i, name in enumerate(names):
            left = pages.MARGIN + _LABELS + i * (width + _GAP)
            log = "of the log of " if found["outputs"][name]["scale"] == "log" else ""
            pages.write(figure, left, top + _TITLE - 0.08,
                        pages.Block(pages.wrap(log + BY_NAME[name].short, width, 9, 2, "bold"), 9, "bold"))  # fmt: skip
            axes = pages.place_axes(figure, left, top, width, height)
            _shade(axes, rows)
            _bars(axes, [found["outputs"][name][key][row] if row else None for key, row in rows], share)
        said = "share of the output's variance (no unit)"
        middle = pages.MARGIN + _LABELS + (_WIDTH - 2 * pages.MARGIN - _LABELS) / 2
        x = middle - pages.measure(8, "normal")(said) / 2
        pages.write(figure, x, top - height - 0.26, pages.Block([said], 8, color=pages.GREY))
    return figure


def _rows(found: Found, names: Sequence[str], share: str) -> list[tuple[str, str]]:
    """Rows as (kind, name), groups first, largest first; an empty name is a heading."""
    rows: list[tuple[str, str]] = []
    for key in ("groups", "inputs"):
        entries = [found["outputs"][name][key] for name in names]
        sizes = {row: max(entry[row][share] or 0.0 for entry in entries) for row in entries[0]}
        shown = sorted((row for row in sizes if sizes[row] >= sensitivity_text.SMALL), key=lambda row: -sizes[row])
        rows += [(key, ""), *((key, row) for row in shown[:_MOST_ROWS])] if shown else []
    return rows


def _labels(figure: "Figure", top: float, rows: Sequence[tuple[str, str]], height: float) -> None:
    axes = pages.place_axes(figure, pages.MARGIN, top, _LABELS, height)
    _shade(axes, rows)
    axes.set_xlim(0, _LABELS)
    axes.set_xticks([])
    for i, (key, row) in enumerate(rows):
        heading = {"groups": "Groups", "inputs": "Inputs"}[key]
        text = pages.fit(pages.drawable(row), _LABELS - 0.2, 8) if row else heading
        axes.text(0.12 if row else 0.02, i, text, fontsize=8, va="center", parse_math=False,
                  color=pages.INK, fontweight="normal" if row else "bold")  # fmt: skip


def _shade(axes: "Axes", rows: Sequence[Any]) -> None:
    pages.bands(axes, len(rows))


def _bars(axes: "Axes", indices: Sequence[Mapping[str, Any] | None], share: str) -> None:
    """Draw the shares of one output; None is the row of a heading."""
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "", "0.5", "", "1"])
    axes.grid(axis="x", color=pages.LINE, linewidth=0.7)
    axes.set_axisbelow(True)
    kinds = ((share, 0.6, pages.BLUE, 0.0),) if share == "shapley" else (
        ("ST", 0.64, pages.TINT, 0.22), ("S1", 0.28, pages.BLUE, 0.0))  # fmt: skip
    for i, index in enumerate(indices):
        if index is None:
            continue
        for kind, thickness, color, shift in kinds:
            _bar(axes, i, index, kind, thickness, color, shift)
        if share == "shapley":
            for kind, marker in (("S1", ">"), ("ST", "o")):
                if (index[kind] or 0.0) >= sensitivity_text.SMALL / 2:
                    axes.plot(min(index[kind], 1.0), i, marker, markersize=5, markerfacecolor="white",
                              markeredgecolor=pages.INK, markeredgewidth=1.0, zorder=4, clip_on=False)  # fmt: skip


def _bar(axes: "Axes", i: int, index: Mapping[str, Any], kind: str, thickness: float, color: str, shift: float) -> None:
    value = index[kind]
    if value is None:
        return
    # Estimates may lie a Monte Carlo error outside the only values that mean something.
    value, (low, high) = np.clip(value, 0, 1), index[f"{kind}_interval_90"]
    if value >= sensitivity_text.SMALL / 2:
        axes.barh(i, value, thickness, color=color, edgecolor=pages.BLUE, linewidth=0.6, zorder=2, clip_on=False)
    if low is not None and high >= sensitivity_text.SMALL:
        low, high = np.clip([low, high], 0, 1)
        axes.errorbar(value, i - shift, xerr=[[max(value - low, 0)], [max(high - value, 0)]], fmt="none",
                      ecolor=pages.INK, elinewidth=1, capsize=1.6, capthick=1, zorder=3)  # fmt: skip


def _share_legend(figure: "Figure", top: float, share: str) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def mark(marker: str, label: str) -> Line2D:
        return Line2D([], [], marker=marker, linestyle="none", markersize=5, markerfacecolor="white",
                      markeredgecolor=pages.INK, label=label)  # fmt: skip

    blue: dict[str, Any] = {"facecolor": pages.BLUE, "edgecolor": pages.BLUE, "linewidth": 0.6}
    if share == "shapley":
        handles = [Patch(**blue, label="Shapley effect"), mark(">", "S1: alone, with what it shares"),
                   mark("o", "ST: given all others")]  # fmt: skip
    else:
        light = Patch(facecolor=pages.TINT, edgecolor=pages.BLUE, linewidth=0.6, label="total ST: with interactions")
        handles = [Patch(**blue, label="first-order S1: alone"), light]
    handles.append(Line2D([], [], color=pages.INK, linewidth=1.1, label="90% interval of the Monte Carlo error"))
    pages.legend(figure, handles, pages.MARGIN + _LABELS, top)


def _caption(found: Found, names: Sequence[str], share: str) -> str:
    said = ["Rows sorted by their largest share; shares below 0.01 of every output are not drawn."]
    if share == "shapley":
        said.append(f"Correlated: {', '.join(found['correlated'])}. Shapley effects add up to 1, S1 and ST do not."
                    if found["correlated"] else "Shapley effects add up to 1.")  # fmt: skip
    left = [name for name in found["outputs"] if name not in names]
    said += [f"Not drawn: {', '.join(left)}."] if left else []
    said.append(f"Seed {found['seed']}, {found['samples']:,} samples.")
    return " ".join(said)


# ---- tornado -----------------------------------------------------------------------------------------------------


def tornado_plot(found: Found) -> "Figure":
    """Draw, for each output in its unit, its median with one input held at its 5% and at its 95%.

    Parameters
    ----------
    found : mapping
        From `gpustack_mc.sensitivities.run_sensitivity`, with tornados.

    Returns
    -------
    matplotlib.figure.Figure
    """
    names = list(found["outputs"])[:_MOST_PANELS]
    columns = 1 if len(names) == 1 else 2
    bars = {name: _widest(found["outputs"][name]) for name in names}
    places, height = _packed({name: len(bars[name]) * _BAR + _TITLE + _AXIS for name in names}, columns)
    header = [found["name"], "Median of each output with one input held at its 5% and at its 95%, all others varying"]
    caption = ("Numbers beside the bars: the value at which the input is held. Vertical line: median with no input "
               "held. " + ("Correlated inputs follow the one that is held. " if found["correlated"] else "")
               + f"Seed {found['seed']}, {found['samples']:,} samples.")  # fmt: skip
    with pages.own_style():
        if not any(bars.values()):
            return pages.message(header, "No single input moves any of these outputs.", "")
        figure, top = pages.make_page(_WIDTH, header, _HEAD + height, caption)
        _tornado_legend(figure, top)
        top -= _HEAD
        room = (_WIDTH - 2 * pages.MARGIN - (columns - 1) * _GAP) / columns
        for name, (column, below) in places.items():
            left, start = pages.MARGIN + column * (room + _GAP), top - below
            pages.write(figure, left, start - 0.08,
                        pages.Block([pages.fit(BY_NAME[name].short, room, 9, "bold")], 9, "bold"))  # fmt: skip
            axes = pages.place_axes(
                figure, left + _LABELS, start - _TITLE + 0.1, room - _LABELS, len(bars[name]) * _BAR
            )
            _tornado(axes, found["outputs"][name], name, bars[name])
    return figure


def _packed(heights: Mapping[str, float], columns: int) -> tuple[dict[str, tuple[int, float]], float]:
    """Place panels in the column that is shortest so far; returns (column, inches from the top) of each, and height."""
    filled = [0.0] * columns
    places = {}
    for name, height in heights.items():
        column = int(np.argmin(filled))
        places[name] = (column, filled[column])
        filled[column] += height
    return places, max(filled)


def _widest(entry: Mapping[str, Any]) -> list[str]:
    """Inputs with the longest bars; those too short to see are left out."""
    lengths = {key: abs(bar["at_95"]["median"] - bar["at_5"]["median"]) for key, bar in entry["tornado"].items()}
    longest = max(lengths.values(), default=0.0)
    order = sorted((key for key in lengths if lengths[key] > 0.02 * longest), key=lambda key: -lengths[key])
    return order[:_MOST_BARS]


def _tornado(axes: "Axes", entry: Mapping[str, Any], name: str, keys: Sequence[str]) -> None:
    step = formatting.step_for(entry["median"], entry["unit"])
    base = entry["median"] * step.factor
    pages.bands(axes, max(len(keys), 1))
    every = [base]
    for i, key in enumerate(keys):
        for end, color in (("at_5", pages.BLUE), ("at_95", pages.VERMILLION)):
            value = entry["tornado"][key][end]["median"] * step.factor
            every.append(value)
            axes.barh(i, value - base, 0.56, left=base, color=color, zorder=2)
            beyond = 1 if value >= base else -1
            bar = entry["tornado"][key]
            held = sensitivity_text.amount(key, bar[end]["input"], bar["at_95"]["input"])
            axes.annotate(held, (value, i), xytext=(3 * beyond, 0), textcoords="offset points", fontsize=7,
                          ha="left" if beyond > 0 else "right", va="center", color=pages.GREY, zorder=4,
                          parse_math=False)  # fmt: skip
        axes.annotate(pages.fit(pages.drawable(key), _LABELS - 0.15, 8), (0, i), xycoords=("axes fraction", "data"),
                      xytext=(-6, 0), textcoords="offset points", fontsize=8, ha="right", va="center",
                      color=pages.INK, parse_math=False)  # fmt: skip
    low, high = min(every), max(every)
    room = _BESIDE * (high - low or 1.0)
    axes.set_xlim(low - room, high + room)
    axes.axvline(base, color=pages.INK, linewidth=0.9, zorder=3)
    axes.grid(axis="x", color=pages.LINE, linewidth=0.7)
    axes.set_axisbelow(True)
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, min_n_ticks=3))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.set_xlabel(_axis_name(name, entry["unit"], step), fontsize=8, color=pages.GREY, parse_math=False)


def _axis_name(name: str, unit: str, step: formatting.Step) -> str:
    shown = f"{step.prefix}{step.suffix}".strip() or readable_unit(unit)
    return f"{BY_NAME[name].short} [{'USD' if shown == '$' else shown}]"


def _tornado_legend(figure: "Figure", top: float) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=pages.BLUE, label="input at its 5%"),
               Patch(facecolor=pages.VERMILLION, label="input at its 95%"),
               Line2D([], [], color=pages.INK, linewidth=0.9, label="median of the output")]  # fmt: skip
    pages.legend(figure, handles, pages.MARGIN + _LABELS, top)
