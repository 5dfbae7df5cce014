"""Pictures of a validation: predicted against reported hours, and whether the intervals hold as often as they say.

Like those of `gpustack_mc.figures`, they are drawn under matplotlib's default style and not known to pyplot.
"""

import math
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import stats

from gpustack_mc import pages
from gpustack_mc.scoring import LEVELS, SUBSETS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMED = 12
"""Misses with a name at most."""

BAND = 0.9
"""Probability that a calibrated prediction stays inside the simultaneous band."""

# Okabe and Ito's blue and vermillion stay apart for every kind of colour vision; misses have another mark as well.
_BLUE, _VERMILLION, _INK, _GREY, _LINE, _SHADE = "#0072B2", "#D55E00", "#1A1A1A", "#595959", "#D9D9D9", "#E3EEF5"
_SIMULATIONS = 4000
_POINTS = 200  # at which the band is made for large tables
_FEW = 3  # groups with fewer runs are not drawn


class _Runs(NamedTuple):
    names: list[str]
    reported: np.ndarray
    median: np.ndarray
    interval: np.ndarray
    missed: np.ndarray


def _runs(result: Mapping[str, Any]) -> _Runs:
    rows = result["rows"]
    reported = np.array([row["reported"] for row in rows])
    interval = np.array([row["interval_90"] for row in rows])
    return _Runs(
        [row["run_id"] for row in rows],
        reported,
        np.array([row["median"] for row in rows]),
        interval,
        (reported < interval[:, 0]) | (reported > interval[:, 1]),
    )


def save(figure: "Figure", stream: IO[bytes]) -> None:
    """Write a picture as PNG with bytes that depend on the picture alone."""
    with pages.own_style():
        figure.savefig(stream, format="png", dpi=120, metadata={"Software": None})


def _new(width: float, height: float) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _tidy(axes: "Axes") -> None:
    axes.tick_params(labelsize=8, colors=_GREY, which="both", length=2.5)
    axes.set_axisbelow(True)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(_GREY)


def _method(result: Mapping[str, Any]) -> str:
    if result["method"] == "leave-one-family-out":
        return "each predicted by a fit without its family"
    return "predicted by the shipped fit"


# ---- predicted against reported -------------------------------------------------------------------------------------
def predicted_against_reported(result: Mapping[str, Any]) -> "Figure":
    """Draw median and 90% interval of each run over its reported hours, and name the largest misses.

    Parameters
    ----------
    result : mapping
        From `gpustack_mc.validation_scores.score`.

    Returns
    -------
    matplotlib.figure.Figure
    """
    runs = _runs(result)
    with pages.own_style():
        figure = _new(8.4, 7.6)
        axes = figure.add_axes((0.09, 0.085, 0.88, 0.81))
        _tidy(axes)
        axes.set_xscale("log")
        axes.set_yscale("log")
        every = np.concatenate([runs.reported, runs.interval.ravel()])
        limits = every.min() / 1.6, every.max() * 1.6
        axes.set_xlim(*limits)
        axes.set_ylim(*limits)
        axes.grid(color=_LINE, linewidth=0.6)
        axes.plot(limits, limits, color=_GREY, linewidth=0.9, zorder=1)
        axes.set_xlabel("reported accelerator-hours (h, log scale)", fontsize=9, color=_INK)
        axes.set_ylabel("predicted accelerator-hours (h, log scale)", fontsize=9, color=_INK)
        inside = result["metrics"]["coverage"]["0.9"]
        _bars(axes, runs, ~runs.missed, _BLUE, "o", f"inside its 90% interval: {inside:.0%} of the runs")
        named = f"; the {NAMED} farthest are named" if runs.missed.sum() > NAMED else ""
        _bars(axes, runs, runs.missed, _VERMILLION, "D", f"outside: {1 - inside:.0%}{named}")
        _name_misses(axes, runs, limits)
        axes.legend(loc="lower right", fontsize=8, frameon=False, labelcolor=_INK)
        figure.text(0.03, 0.965, f"Predicted against reported accelerator-hours of {result['n']:,} training runs",
                    fontsize=12, fontweight="bold", color=_INK)  # fmt: skip
        said = f"Median and 90% interval, {_method(result)}; on the line, predicted equals reported"
        figure.text(0.03, 0.932, said, fontsize=9, color=_GREY)
    return figure


def _bars(axes: "Axes", runs: _Runs, which: np.ndarray, color: str, marker: str, label: str) -> None:
    if not which.any():
        return
    middle, (low, high) = runs.median[which], runs.interval[which].T
    crowded = len(runs.names) > 1000
    axes.errorbar(runs.reported[which], middle, yerr=[middle - low, high - middle], fmt=marker, color=color,
                  markersize=2 if crowded else 4, markeredgecolor="white", markeredgewidth=0.4, elinewidth=0.9,
                  alpha=0.25 if crowded else 0.9, zorder=3, label=label, rasterized=crowded)  # fmt: skip


def _name_misses(axes: "Axes", runs: _Runs, limits: tuple[float, float]) -> None:
    """Name misses in the empty corners: above the line on the left, below it on the right, each on its own line."""
    outside = np.maximum(np.log(runs.interval[:, 0] / runs.reported), np.log(runs.reported / runs.interval[:, 1]))
    largest = [i for i in np.argsort(-outside)[:NAMED] if runs.missed[i]]
    for above in (True, False):
        mine = [i for i in largest if (runs.median[i] > runs.reported[i]) == above]
        # In the order of the points, so that the lines to them do not cross.
        mine.sort(key=lambda i: runs.median[i], reverse=True)
        for position, i in zip(_positions(runs.median[mine], limits, above), mine, strict=True):
            name = pages.fit(pages.drawable(runs.names[i]), 1.9, 7.5)
            axes.annotate(
                name, (runs.reported[i], runs.median[i]), (0.015 if above else 0.985, position),
                textcoords="axes fraction", ha="left" if above else "right", va="center", fontsize=7.5, color="#A34700",
                parse_math=False, zorder=4, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
                arrowprops={"arrowstyle": "-", "color": _VERMILLION, "linewidth": 0.5, "alpha": 0.6, "shrinkB": 3},
            )  # fmt: skip


def _positions(heights: np.ndarray, limits: tuple[float, float], above: bool) -> np.ndarray:
    """Heights of the labels as a share of the axes: at their points where there is room, else pushed apart."""
    step = 0.032
    low, high = (0.3, 0.97) if above else (0.13, 0.75)
    wanted = np.log(np.asarray(heights) / limits[0]) / math.log(limits[1] / limits[0])
    found = np.clip(wanted, low, high)
    for i in range(1, len(found)):
        found[i] = min(found[i], found[i - 1] - step)
    if len(found) and found[-1] < low:
        found[-1] = low
        for i in range(len(found) - 2, -1, -1):
            found[i] = max(found[i], found[i + 1] + step)
    return found


# ---- calibration ----------------------------------------------------------------------------------------------------
def simultaneous_band(n: int, points: np.ndarray, probability: float = BAND, seed: int = 0) -> np.ndarray:
    r"""Band around the ECDF of `n` uniform values that holds at all points together with some probability.

    With :math:`\gamma` the `1 - probability` quantile, over simulated samples, of the smallest two-sided tail
    probability of the count below any point, the band at :math:`z` is :math:`[Q(\gamma/2), Q(1 - \gamma/2)] / n` of the
    binomial :math:`B(n, z)` (Säilynoja, Bürkner & Vehtari 2022, Statistics and Computing 32:32, algorithm 1).

    Parameters
    ----------
    n : int
    points : ndarray, shape (points,)
        Increasing, inside (0, 1).
    probability : float
    seed : int

    Returns
    -------
    ndarray, shape (points, 2)
    """
    shares = np.diff(np.concatenate([[0.0], points, [1.0]]))
    counts = np.random.default_rng(seed).multinomial(n, shares, size=_SIMULATIONS)[:, :-1].cumsum(axis=1)
    below = stats.binom.cdf(counts, n, points)
    above = stats.binom.sf(counts - 1, n, points)
    gamma = np.quantile((2 * np.minimum(below, above)).min(axis=1), 1 - probability)
    return np.column_stack([stats.binom.ppf(end, n, points) for end in (gamma / 2, 1 - gamma / 2)]) / n


def calibration(result: Mapping[str, Any]) -> "Figure":
    """Draw the ECDF of the PIT values with its simultaneous band, and the coverage of the 90% interval by group.

    Parameters
    ----------
    result : mapping
        From `gpustack_mc.validation_scores.score`.

    Returns
    -------
    matplotlib.figure.Figure
    """
    rows = _coverage_rows(result)
    height = 1.9 + max(0.27 * len(rows), 3.2)
    with pages.own_style():
        figure = _new(10.0, height)
        bottom, top = 0.95 / height, 1 - 0.95 / height
        left = figure.add_axes((0.075, bottom, 0.37, top - bottom))
        right = figure.add_axes((0.665, bottom, 0.3, top - bottom))
        for axes in (left, right):
            _tidy(axes)
        _pit_ecdf(left, np.array([row["pit"] for row in result["rows"]]))
        _coverage(right, rows)
        title = f"Calibration on {result['n']:,} training runs, {_method(result)}"
        figure.text(0.025, 1 - 0.3 / height, title, fontsize=12, fontweight="bold", color=_INK)
        for x, said in (
            (0.025, "PIT: predicted probability of fewer hours than reported"),
            (0.5, "Runs inside their 90% interval, with exact 90% binomial intervals"),
        ):
            figure.text(x, 1 - 0.6 / height, said, fontsize=9, color=_GREY)
        note = (
            "Both take runs as independent; runs of a family are not quite, so that the true bands are a little wider."
        )
        figure.text(0.025, 0.14 / height, note, fontsize=8, color=_GREY)
    return figure


def _pit_ecdf(axes: "Axes", pit: np.ndarray) -> None:
    n = len(pit)
    points = np.arange(1, min(n, _POINTS) + 1) / (min(n, _POINTS) + 1)
    band = simultaneous_band(n, points) - points[:, None]
    axes.fill_between(points, *band.T, color=_SHADE, linewidth=0, label=f"{BAND:.0%} simultaneous band")
    x = np.concatenate([[0.0], np.sort(pit), [1.0]])
    share = np.concatenate([[0.0], np.arange(1, n + 1) / n, [1.0]])
    # A step function minus a slope: a point before and one after each step.
    axes.plot(np.repeat(x, 2)[1:], np.repeat(share, 2)[:-1] - np.repeat(x, 2)[1:], color=_BLUE, linewidth=1.3,
              label="observed")  # fmt: skip
    axes.axhline(0, color=_GREY, linewidth=0.8)
    axes.set_xlim(0, 1)
    reach = 1.25 * max(np.abs(band).max(), np.abs(share - x).max())
    axes.set_ylim(-reach, reach)
    axes.set_xlabel("PIT value (no unit)", fontsize=9, color=_INK)
    axes.set_ylabel("ECDF minus uniform (no unit)", fontsize=9, color=_INK)
    axes.legend(loc="upper right", fontsize=8, frameon=False, labelcolor=_INK, ncols=2)


def _coverage_rows(result: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """Label, runs, and runs inside of all runs and of each group that is not too small."""
    key = str(LEVELS[-1])
    found = [("all runs", result["n"], round(result["n"] * result["metrics"]["coverage"][key]))]
    for column, entries in result["groups"].items():
        for name, entry in entries.items():
            if entry["n"] >= _FEW and name != "not stated":
                label = SUBSETS[name] if column == "subset" else f"{column} {name}"
                found.append((label, entry["n"], round(entry["n"] * entry["coverage"][key])))
    return found


def _coverage(axes: "Axes", rows: Sequence[tuple[str, int, int]]) -> None:
    level = LEVELS[-1]
    axes.axvline(level, color=_GREY, linewidth=0.9, zorder=1)
    ends = [stats.binomtest(inside, n).proportion_ci(0.9, "exact") for _, n, inside in rows]
    for y, ((_, n, inside), (low, high)) in enumerate(zip(rows, ends, strict=True)):
        off = not low <= level <= high
        color = _VERMILLION if off else _BLUE
        axes.plot([low, high], [y, y], color=color, linewidth=1.4, zorder=2, clip_on=False)
        axes.plot(inside / n, y, marker="D" if off else "o", color=color, markersize=5, markeredgecolor="white",
                  markeredgewidth=0.5, zorder=3, clip_on=False)  # fmt: skip
    labels = [f"{pages.fit(pages.drawable(label), 1.5, 8)}  n = {n:,}" for label, n, _ in rows]
    axes.set_yticks(range(len(rows)), labels, parse_math=False, color=_INK)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(max(min(0.4, *(low - 0.02 for low, _ in ends)), 0), 1)
    axes.grid(axis="x", color=_LINE, linewidth=0.6)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("share inside (no unit); line: 0.9 as promised", fontsize=9, color=_INK)
