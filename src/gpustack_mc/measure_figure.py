"""Picture of what measuring each input would bring."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpustack_mc import measure_text, pages
from gpustack_mc.quantities import BY_NAME

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BLUE, _TINT, _INK, _GREY, _LINE = "#0072B2", "#B9DDF3", "#1A1A1A", "#595959", "#D9D9D9"
_ROWS = 10


def width_plot(found: Mapping[str, Any]) -> "Figure":
    """Draw by how much the expected 90% interval of each main output narrows when one input is known.

    Parameters
    ----------
    found : mapping
        From `gpustack_mc.measure.run_measure`.

    Returns
    -------
    matplotlib.figure.Figure
        Not known to pyplot. Light bars: known exactly; dark bars: measured with the stated accuracy.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    outputs = [name for name in measure_text.columns(found) if name != "facility_power_mw"]
    keys = [
        key
        for key in measure_text.ranked(found)
        if any(measure_text.narrowing(found, key, name) > measure_text.SMALL for name in outputs)
    ][:_ROWS]
    with pages.own_style():
        figure = Figure(figsize=(2.2 + 1.9 * len(outputs), 1.6 + 0.42 * len(keys)), facecolor="white",
                        layout="constrained")  # fmt: skip
        FigureCanvasAgg(figure)
        panels = figure.subplots(1, len(outputs), sharey=True, squeeze=False)[0]
        for axes, name in zip(panels, outputs, strict=True):
            for how, colour, height in (("perfect", _TINT, 0.7), ("measured", _BLUE, 0.34)):
                shares = [max(measure_text.narrowing(found, key, name, how), 0.0) for key in keys]
                axes.barh(range(len(keys)), shares, height=height, color=colour)
            axes.set_title(BY_NAME[name].short, fontsize=10, color=_INK)
            axes.set_yticks(range(len(keys)), keys)
            axes.set_ylim(len(keys) - 0.5, -0.5)
            axes.set_xlim(0, None)
            axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
            axes.xaxis.set_major_locator(figures_locator())
            axes.tick_params(labelsize=9, colors=_INK, length=2)
            axes.grid(axis="x", color=_LINE, linewidth=0.6)
            axes.set_axisbelow(True)
            for side, spine in axes.spines.items():
                spine.set_visible(side == "left")
                spine.set_color(_GREY)
        title = figure.suptitle(
            f"{found['name']}: expected narrowing of the 90% interval when one input is known\n"
            "exactly (light) and measured with the stated accuracy (dark)",
            fontsize=10, color=_INK, x=0.01, ha="left",
        )  # fmt: skip
        title.set_parse_math(False)
    return figure


def figures_locator() -> Any:
    """Few ticks, so that percentages of neighbouring panels do not touch."""
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=3, min_n_ticks=2)
