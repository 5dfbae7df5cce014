"""Picture of a run's failures: goodput over the checkpoint interval, and run time over the number of accelerators.

Drawn from the draws of a result like those of `gpustack_mc.figures`, under the same style.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from gpustack_mc import failures, formatting, pages
from gpustack_mc.arrays import Result
from gpustack_mc.constants import HOURS_PER_DAY, MINUTES_PER_HOUR

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# More draws move the curves by less than their width.
_DRAWS = 4096
_POINTS = 120
_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
# How far the axes reach: a factor below and above the median best interval, and the scenario's count.
_INTERVAL_REACH = 30.0
_COUNT_REACH = (1 / 16, 256.0)
_WIDTH, _HEIGHT, _GAP, _LEFT, _BOTTOM = 11.0, 3.6, 0.9, 0.75, 0.7

_BLUE, _TINT, _BAND, _VERMILLION, _INK, _GREY, _LINE = (
    "#0072B2", "#8FC3E6", "#D5E9F6", "#D55E00", "#1A1A1A", "#595959", "#D9D9D9")  # fmt: skip


class _Draws(NamedTuple):
    """What the mechanism takes, each of shape (draws,) or (); the interval is None where it is the best one."""

    count: Any
    rate: Any
    interval: Any
    saving: Any
    restart: Any
    other: Any
    days: np.ndarray
    same_count: bool
    spent: bool


def checkpoint_plot(tree: Result) -> "Figure":
    """Draw goodput over the checkpoint interval and run time over the count, with 50% and 90% equal-tailed bands.

    Parameters
    ----------
    tree : xarray.DataTree
        From `gpustack_mc.result.to_datatree`, of a scenario that states ``reliability``.

    Returns
    -------
    matplotlib.figure.Figure
        Not known to pyplot. Everything but what is on the axes is as in the scenario, MFU included. Run time is left
        out when phases have counts of their own, and when the job runs already.
    """
    draws = _draws(tree)
    counts = draws.same_count and not draws.spent
    name = " ".join(str(tree.attrs["name"]).split())
    said = "Median, 50% and 90% equal-tailed bands: what an interval between checkpoints costs"
    if counts:
        said = said.replace(":", "; left,") + "; right, what more accelerators bring"
    with pages.own_style(), jax.enable_x64(True):
        figure, top = pages.make_page(_WIDTH, (name, said), _HEIGHT + _BOTTOM, _caption(draws))
        room = (_WIDTH - 2 * pages.MARGIN - 2 * _LEFT - _GAP) / 2
        left = pages.MARGIN + _LEFT
        _intervals(_axes(figure, left, top, room), draws)
        if counts:
            _counts(_axes(figure, left + room + _GAP + _LEFT, top, room), draws)
    return figure


def _draws(tree: Result) -> _Draws:
    groups = ("prior", "constant_data")

    def values(name: str) -> Any:
        for group in groups:
            if name in tree[group]:
                found = tree[group][name].values
                return found[0, :_DRAWS] if found.ndim else float(found)
        return None

    days = tree["prior_predictive"]["training_days"].values[0, :_DRAWS]
    own = any(str(key).startswith("accelerator_count@") for group in groups for key in tree[group].data_vars)
    return _Draws(
        count=values("accelerator_count"),
        rate=values("interruption_rate"),
        interval=values("checkpoint_interval"),
        saving=values("checkpoint_save_time"),
        restart=values("restart_time"),
        other=values("unexplained_loss"),
        days=days,
        same_count=not own,
        spent="so_far" in tree,
    )


def _goodput(draws: _Draws, count: Any, interval: Any) -> np.ndarray:
    """Goodput at a count and an interval, None for the best one."""
    if interval is None:
        interval = failures.best_checkpoint_interval(count, draws.rate, draws.saving)
    return np.asarray(failures.expected_goodput(count, draws.rate, interval, draws.saving, draws.restart, draws.other))


def _intervals(axes: "Axes", draws: _Draws) -> None:
    best = np.asarray(failures.best_checkpoint_interval(draws.count, draws.rate, draws.saving))
    middle = float(np.median(best))
    grid = np.geomspace(middle / _INTERVAL_REACH, middle * _INTERVAL_REACH, _POINTS)
    curves = np.broadcast_to(_goodput(draws, draws.count, grid[:, None]), (_POINTS, len(draws.days)))
    _curves(axes, grid, curves)
    axes.set_ylim(0, 1)
    axes.set_xlabel("working time between checkpoints (log scale)", fontsize=9, color=_INK)
    axes.set_ylabel("goodput", fontsize=9, color=_INK)
    _ticks(axes, grid, (0.1, 1 / 4, 1, 5, 15, 60, 240, 1440, 10080), _time)
    stated = None if draws.interval is None else float(np.median(draws.interval))
    if stated is not None and grid[0] < stated < grid[-1]:
        axes.axvline(stated, color=_VERMILLION, linewidth=1.2)
        axes.text(stated, 1.01, f"stated: {_time(stated)}", color=_VERMILLION, fontsize=8, ha="center", va="bottom")
    else:
        low, high = np.quantile(best, [0.05, 0.95])
        axes.plot([max(low, grid[0]), min(high, grid[-1])], [0.985, 0.985], color=_VERMILLION, linewidth=2)
        axes.text(middle, 1.01, f"best: {_time(middle)} ({_time(low)} – {_time(high)})", color=_VERMILLION, fontsize=8,
                  ha="center", va="bottom")  # fmt: skip


def _counts(axes: "Axes", draws: _Draws) -> None:
    count = float(np.median(draws.count))
    grid = np.geomspace(max(count * _COUNT_REACH[0], 1.0), count * _COUNT_REACH[1], _POINTS)
    here = draws.days * draws.count * _goodput(draws, draws.count, draws.interval)
    curves = here / (grid[:, None] * _goodput(draws, grid[:, None], draws.interval))
    middle = _curves(axes, grid, curves)
    fastest = int(middle.argmin())
    axes.set_yscale("log")
    axes.set_ylim(middle.min() / 4, np.nanmax(middle[: fastest + 1]) * 4)
    axes.set_xlabel("accelerators (log scale)", fontsize=9, color=_INK)
    axes.set_ylabel("run time (log scale)", fontsize=9, color=_INK)
    _ticks(axes, grid, tuple(10.0**k for k in range(10)), formatting.count)
    low, high = axes.get_ylim()
    ticks = [t for t in (1 / 24, 0.25, 1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 100_000) if low < t < high]
    axes.set_yticks(ticks, [_time(t * HOURS_PER_DAY * MINUTES_PER_HOUR) for t in ticks])
    axes.minorticks_off()
    axes.axvline(count, color=_GREY, linewidth=0.9, linestyle=":")
    axes.text(count, 1.01, f"here: {formatting.count(count)}", color=_GREY, fontsize=8, ha="center", va="bottom",
              transform=axes.get_xaxis_transform())  # fmt: skip
    if 0 < fastest < _POINTS - 1:
        axes.plot(grid[fastest], middle[fastest], "o", color=_VERMILLION, markersize=5)
        said = f"fastest at the median: {float(f'{grid[fastest]:.2g}'):,.0f}"
        axes.text(grid[fastest], middle[fastest] / 1.35, said, color=_VERMILLION, fontsize=8, ha="center", va="top")


def _curves(axes: "Axes", grid: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Draw the bands and the median of curves, shape (points, draws); return the median."""
    bands: list[np.ndarray] = list(np.quantile(draws, _LEVELS, axis=1))
    lowest, low, middle, high, highest = bands
    axes.fill_between(grid, lowest, highest, color=_BAND, linewidth=0)
    axes.fill_between(grid, low, high, color=_TINT, linewidth=0)
    axes.plot(grid, middle, color=_BLUE, linewidth=1.8)
    axes.set_xscale("log")
    axes.set_xlim(grid[0], grid[-1])
    return middle


def _ticks(axes: "Axes", grid: np.ndarray, places: tuple[float, ...], label: Any) -> None:
    shown = [place for place in places if grid[0] <= place <= grid[-1]]
    axes.set_xticks(shown, [label(place) for place in shown])
    axes.minorticks_off()


def _time(minutes: float) -> str:
    days = minutes / MINUTES_PER_HOUR / HOURS_PER_DAY
    if minutes < 1:
        return f"{float(f'{60 * minutes:.2g}'):g} s"
    return formatting.with_unit(days, "day", 2, exact=True)


def _axes(figure: "Figure", left: float, top: float, width: float) -> "Axes":
    axes = pages.place_axes(figure, left, top - 0.3, width, _HEIGHT - 0.3)
    axes.tick_params(length=2.5, labelsize=8, colors=_GREY, labelleft=True)
    axes.grid(color=_LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    for name in ("left", "bottom"):
        axes.spines[name].set_visible(True)
        axes.spines[name].set_color(_GREY)
    return axes


def _caption(draws: _Draws) -> str:
    said = "Goodput is the share of accelerator time that advances the run."
    if draws.spent:
        return f"{said} It is that of the rest of the run, given the days so far."
    if not draws.same_count:
        return f"{said} Phases have counts of their own: the curve is that of the cluster's."
    kept = "at the best interval of each count" if draws.interval is None else "at the stated interval"
    return (
        f"{said} Run time is {kept}, with every other input as in the scenario; where the curve turns up, failures "
        f"take more than further accelerators bring."
    )
