"""Sobol' indices as panels of bars, one per output: first-order inside total, and whiskers of their error."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpustack_mc import pages
from gpustack_mc.arrays import Result

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# An index below this is drawn as a hairline: such inputs are named in the caption instead.
NEGLIGIBLE = 0.005

# Inches.
_PANELS_WIDTH = 11.0
_PANELS_ROW = 0.5
_PANEL_GAP = 0.2


def draw_panels(tree: Result, found: "xr.Dataset", panels: Sequence[str], shown: Sequence[str],
                 header: Sequence[str], caption: str) -> "Figure":  # fmt: skip
    """Draw the indices of the inputs that are `shown`, one panel for each output in `panels`."""
    width = (_PANELS_WIDTH - 2 * pages.MARGIN - pages.LABELS - (len(panels) - 1) * _PANEL_GAP) / len(panels)
    titles = [_panel_title(tree, output, width) for output in panels]
    above = max(sum(block.height for block in title) for title in titles)
    legend, foot, height = 0.46, 0.5, len(shown) * _PANELS_ROW
    figure, top = pages.make_page(_PANELS_WIDTH, header, legend + above + 0.06 + height + foot, caption)
    _panels_legend(figure, top)
    top -= legend
    labels = pages.place_axes(figure, pages.MARGIN, top - above - 0.06, pages.LABELS, height)
    pages.bands(labels, len(shown))
    pages.label_rows(labels, [_block_label(tree, name) for name in shown], _PANELS_ROW)
    for i, (output, title) in enumerate(zip(panels, titles, strict=True)):
        left = pages.MARGIN + pages.LABELS + i * (width + _PANEL_GAP)
        # Titles end on one line, just above their panels.
        y = top - above + sum(block.height for block in title)
        for block in title:
            pages.write(figure, left, y, block)
            y -= block.height
        axes = pages.place_axes(figure, left, top - above - 0.06, width, height)
        pages.bands(axes, len(shown))
        _panel(axes, found.sel(output=output, input=list(shown)))
    axis_title = "share of the output's variance (no unit)"
    first = pages.MARGIN + pages.LABELS
    x = first + (_PANELS_WIDTH - pages.MARGIN - first - pages.measure(8, "normal")(axis_title)) / 2
    pages.write(figure, x, top - above - 0.06 - height - 0.22, pages.Block([axis_title], 8, color=pages.GREY))
    return figure


def _panel_title(tree: Result, output: str, width: float) -> list[pages.Block]:
    description = tree["prior_predictive"][output].attrs["long_name"]
    return [
        pages.Block(pages.wrap(description, width, 8, 4, "bold"), 8, "bold"),
        pages.Block([pages.fit(output, width, 7)], 7, color=pages.GREY),
    ]


def _block_label(tree: Result, name: str) -> tuple[str, str, str]:
    if name in tree["prior"]:
        attrs = tree["prior"][name].attrs
        return description_of(attrs, name), name, attrs["origin"]
    return name.replace("+", " + "), "correlated inputs", "taken together"


def _panel(axes: "Axes", found: "xr.Dataset") -> None:
    """Draw the indices of one output."""
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "", "0.5", "", "1"])
    axes.grid(axis="x", color=pages.LINE, linewidth=0.7)
    axes.set_axisbelow(True)
    status = str(found["status"].item())
    if not np.isfinite(found["ST"].values).any():
        note = "does not vary" if status == "constant" else "no index:\nnot finite"
        axes.text(0.5, 0.5, note, transform=axes.transAxes, ha="center", va="center", fontsize=8, color=pages.GREY,
                  backgroundcolor="white")  # fmt: skip
        return
    y = np.arange(found.sizes["input"])
    # The whisker of the total index lies on the light strip above the dark bar.
    for index, thickness, color, shift in (("ST", 0.64, pages.TINT, 0.23), ("S1", 0.26, pages.BLUE, 0.0)):
        # Estimates may lie a Monte Carlo error outside the only values that mean something.
        value, low, high = (np.clip(found[index + end].values, 0, 1) for end in ("", "_lower", "_upper"))
        some = value >= NEGLIGIBLE
        axes.barh(y[some], value[some], thickness, color=color, edgecolor=pages.BLUE, linewidth=0.6, zorder=2,
                  clip_on=False, label=index)  # fmt: skip
        known = np.isfinite(low) & (high >= NEGLIGIBLE)
        around = np.maximum([value - low, high - value], 0)[:, known]
        axes.errorbar(value[known], y[known] - shift, xerr=around, fmt="none", ecolor=pages.INK, elinewidth=1,
                      capsize=1.6, capthick=1, zorder=3).lines[2][0].set_clip_on(False)  # fmt: skip


def _panels_legend(figure: "Figure", top: float) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=pages.BLUE, edgecolor=pages.BLUE, linewidth=0.6, label="first-order: the input alone"),
        Patch(facecolor=pages.TINT, edgecolor=pages.BLUE, linewidth=0.6, label="total: with its interactions"),
        Line2D([], [], color=pages.INK, linewidth=1.1, label="90% interval of the Monte Carlo error"),
    ]
    pages.legend(figure, handles, pages.MARGIN + pages.LABELS, top)


def description_of(attrs: Mapping[Any, Any], key: str) -> str:
    """Return the long name without the phase, which the key beside it says."""
    return str(attrs["long_name"]).removesuffix(f", {key.partition('@')[2]}")
