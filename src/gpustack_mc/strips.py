"""Geometry of the small pictures in a report: where marks lie on a strip, and the outline of a density.

Positions are percentages of the strip's width, so that a page may stretch a strip to any width.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# Points of a density's outline, and how much probability it leaves out at each end.
_STEPS = 40
_TAIL = 0.005
# A density is cut at this many times its mean height; that of a normal distribution is twice as high.
_TALLEST = 4.0
# A support this many times longer than its start is drawn on a log axis.
_WIDE = 8.0


class Strip(NamedTuple):
    """One row of an interval plot, as positions on an axis that all rows share.

    Attributes
    ----------
    ends : tuple of float
        Of the 5%, 25%, 50%, 75% and 95% quantile.
    mark : float or None
        Of the published value, at the edge when it lies beyond.
    beyond : bool
        Whether it does.
    """

    ends: tuple[float, ...]
    mark: float | None
    beyond: bool


class Density(NamedTuple):
    """The outline of a density with its 5%, 50% and 95% quantiles.

    Attributes
    ----------
    path : str
        SVG path of the filled outline in a box of 100 by 100, the largest density at the top.
    middle : str
        Path of the part between the 5% and the 95% quantile.
    median : float
        Where the median lies.
    low, high : float
        Values at the ends of the axis.
    log : bool
        Whether the axis, and the density over it, is logarithmic.
    """

    path: str
    middle: str
    median: float
    low: float
    high: float
    log: bool


def ratio_strips(
    rows: Sequence[Sequence[float]], published: Sequence[float | None]
) -> tuple[list[Strip | None], list[tuple[float, str]]]:
    """Place rows of five quantiles on one log axis of ratios to the row's own median.

    Parameters
    ----------
    rows : sequence of five floats
    published : sequence of float or None

    Returns
    -------
    strips : list of Strip or None
        None for a row without ratios: its median is not above 0, or it has no width.
    ticks : list of (float, str)
        Positions and labels of the axis.
    """
    logs = [_log_ratios(row) for row in rows]
    ends = [log for log in logs if log is not None]
    if not ends:
        return [None] * len(rows), []
    reach = 1.04 * max(max(abs(log[0]), abs(log[-1])) for log in ends)

    def place(log: float) -> float:
        return round(50 + 50 * max(-1.0, min(1.0, log / reach)), 2)

    strips: list[Strip | None] = []
    for row, log, value in zip(rows, logs, published, strict=True):
        if log is None:
            strips.append(None)
            continue
        mark = None if value is None else (math.log(value / row[2]) if value > 0 else -math.inf)
        strips.append(
            Strip(
                tuple(place(end) for end in log),
                None if mark is None else place(mark),
                mark is not None and abs(mark) > reach,
            )
        )
    return strips, [(place(math.log(factor)), label) for factor, label in _factors(math.exp(reach))]


def _log_ratios(row: Sequence[float]) -> list[float] | None:
    if not row[2] > 0 or not row[0] < row[-1]:
        return None
    # An interval that reaches 0 or below has no lower end on this axis; it is drawn to the lowest ratio worth telling.
    return [math.log(max(value / row[2], 1e-3)) for value in row]


def _factors(reach: float) -> list[tuple[float, str]]:
    """Return the ticks that fit: the median and one factor on each side."""
    factor = next(
        (f for f in (1000, 100, 30, 10, 5, 3, 2, 1.5, 1.2, 1.1, 1.05, 1.02, 1.01, 1.001) if f <= reach**0.92), None
    )
    middle = [(1.0, "median")]
    return middle if factor is None else [(1 / factor, f"÷{factor:g}"), *middle, (factor, f"×{factor:g}")]


def density(draws: np.ndarray, log_scale: bool) -> Density | None:
    """Return the outline of the density of draws, from their quantiles.

    Between two quantiles lies a known share of the draws, so its density is that share over their distance: where
    draws are dense the steps are fine.

    Parameters
    ----------
    draws : ndarray, shape (n,)
    log_scale : bool
        Whether the quantity lives on a log scale; it is drawn so where it spans a large factor.

    Returns
    -------
    Density or None
        None for draws of a few values only, such as a choice.
    """
    probabilities = np.linspace(_TAIL, 1 - _TAIL, min(_STEPS, max(len(draws) // 32, 8)) + 1)
    quantiles = np.quantile(draws, probabilities)
    log = bool(log_scale and quantiles[0] > 0 and quantiles[-1] > _WIDE * quantiles[0])
    axis = np.log(quantiles) if log else quantiles
    widths = np.diff(axis)
    if not np.all(np.isfinite(axis)) or not axis[-1] > axis[0] or np.count_nonzero(widths > 0) < len(widths) / 2:
        return None
    # Ties, such as a heap at the end of a support, would be infinitely dense: they share the least width.
    least = (axis[-1] - axis[0]) / 400
    heights = np.diff(probabilities) / np.maximum(widths, least)
    centres = (axis[1:] + axis[:-1]) / 2
    x = 100 * (np.concatenate([axis[:1], centres, axis[-1:]]) - axis[0]) / (axis[-1] - axis[0])
    smooth = _smooth(_smooth(heights))
    y = np.concatenate([smooth[:1] / 2, smooth, smooth[-1:] / 2])
    # A heap at the end of a support would press all the rest to the ground.
    y = 100 * (1 - np.minimum(y / min(y.max(), _TALLEST / (axis[-1] - axis[0])), 1))
    low, median, high = np.quantile(draws, [0.05, 0.5, 0.95])
    a, m, b = (
        100 * ((np.log(value) if log else value) - axis[0]) / (axis[-1] - axis[0]) for value in (low, median, high)
    )
    inside = (x > a) & (x < b)
    middle_x = np.concatenate([[a], x[inside], [b]])
    return Density(
        _outline(x, y),
        _outline(middle_x, np.interp(middle_x, x, y)),
        round(float(m), 2),
        float(quantiles[0]),
        float(quantiles[-1]),
        log,
    )


def _smooth(heights: np.ndarray) -> np.ndarray:
    """Take the mean with the neighbours, which halves the noise of the quantiles and keeps the shape."""
    padded = np.concatenate([heights[:1], heights, heights[-1:]])
    return padded[:-2] / 4 + padded[1:-1] / 2 + padded[2:] / 4


def _outline(x: np.ndarray, y: np.ndarray) -> str:
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    return f"M{x[0]:.1f},100 L{points} L{x[-1]:.1f},100 Z"
