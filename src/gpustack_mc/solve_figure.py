"""Picture of a solution: the chance of the condition against what was solved for."""

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gpustack_mc import pages, solve_text
from gpustack_mc.answering import WITHIN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BLUE, _VERMILLION, _INK, _GREY, _LINE, _BAND = "#0072B2", "#D55E00", "#1A1A1A", "#595959", "#D9D9D9", "#B9DDF3"


def chance_plot(found: Mapping[str, Any]) -> "Figure":
    """Draw the chance of the condition against the value, with its 90% Monte Carlo band and the solutions.

    Parameters
    ----------
    found : mapping
        From `gpustack_mc.solving.run_solve`, with a curve.

    Returns
    -------
    matplotlib.figure.Figure
        Not known to pyplot.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, PercentFormatter

    with pages.own_style():
        figure = Figure(figsize=(8, 4.8), facecolor="white", layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        curve = found["curve"]
        x = np.array([point["value"] for point in curve])
        y = np.array([point["probability"] for point in curve])
        half = WITHIN * np.array([point["monte_carlo_error"] or 0.0 for point in curve])
        axes.fill_between(x, y - half, y + half, color=_BAND, linewidth=0)
        axes.plot(x, y, color=_BLUE, linewidth=1.6)
        if found["quantity"] not in _LINEAR and x.min() > 0 and x.max() > 10 * x.min():
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.axhline(found["probability"], color=_GREY, linewidth=0.8, linestyle=(0, (4, 3)))
        for each in found["solutions"]:
            axes.axvline(each["value"], color=_VERMILLION, linewidth=1.0)
            axes.annotate(
                f"{each['holds']} {solve_text.said(found, each['value'])}",
                (each["value"], 0.02), xytext=(4, 0), textcoords="offset points", fontsize=9, color=_VERMILLION,
            )  # fmt: skip
        own = found["scenario"]
        if x.min() <= own["value"] <= x.max():
            axes.plot(own["value"], own["probability"], "D", color=_INK, markersize=5, zorder=3)
            axes.annotate("the scenario", (own["value"], own["probability"]), xytext=(7, -12),
                          textcoords="offset points", fontsize=9, color=_INK)  # fmt: skip
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(found, value)))
        axes.xaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
        axes.set_xlabel(f"{found['for']} [{found['unit']}]" if found["unit"] != "1" else found["for"], color=_INK)
        axes.set_ylabel("chance of keeping the limits", color=_INK)
        axes.grid(color=_LINE, linewidth=0.6)
        axes.set_axisbelow(True)
        for name, spine in axes.spines.items():
            spine.set_visible(name in ("left", "bottom"))
            spine.set_color(_GREY)
        said = textwrap.fill(f"{found['name']}: {solve_text.sentence(found)}", 105)
        # Two dollar signs would be read as a formula.
        axes.set_title(said, fontsize=9.5, loc="left", parse_math=False)
    return figure


def _tick(found: Mapping[str, Any], value: float) -> str:
    share = found["unit"] == "1" and not found["whole"] and found["quantity"] != "params"
    return f"{value:g}" if share else solve_text.said(found, value)


_LINEAR = ("mfu", "goodput", "fleet_utilization", "residual_share", "pue")
