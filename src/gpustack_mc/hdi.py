"""Highest-density intervals (HDI): the narrowest intervals that hold a probability, beside the equal-tailed ones.

From draws the definition is ArviZ's (`arviz.hdi` with ``method="nearest"``): of all intervals between two of the n
sorted draws with ``floor(mass * n)`` steps between them, the narrowest. From counters and from quantile functions it is
the limit of that.

An HDI depends on the scale on which a quantity is written, an equal-tailed interval does not: that of a cost in dollars
is not the exponential of that of its logarithm.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

Kind = Literal["equal-tailed", "hdi"]

MASSES = (0.5, 0.9)
STATISTICS = tuple(f"hdi{mass:g}_{end}" for mass in MASSES for end in ("low", "high"))

# From the lower end of the widest interval over the median to the upper end.
FIVE = {
    "equal-tailed": ("q0.05", "q0.25", "q0.5", "q0.75", "q0.95"),
    "hdi": ("hdi0.9_low", "hdi0.5_low", "q0.5", "hdi0.5_high", "hdi0.9_high"),
}
# What an interval is called behind its percentage, and what several are.
NAMES = {"equal-tailed": "interval", "hdi": "HDI"}
PLURALS = {"equal-tailed": "equal-tailed intervals", "hdi": "highest-density intervals (HDI)"}

_STEPS = 2**10


def kind_of(attributes: Mapping[Any, Any]) -> Kind:
    """Return which intervals a result tells, from its attributes; older ones do not say."""
    return "hdi" if attributes.get("interval") == "hdi" else "equal-tailed"


def of_sorted(ordered: np.ndarray) -> np.ndarray:
    """HDI of sorted draws.

    Parameters
    ----------
    ordered : ndarray, shape (variables, n)
        Each row sorted.

    Returns
    -------
    ndarray, shape (len(STATISTICS), variables)
    """
    n, rows = ordered.shape[1], np.arange(len(ordered))
    ends = []
    for mass in MASSES:
        steps = min(int(np.floor(mass * n)), n - 1)
        low = (ordered[:, steps:] - ordered[:, : n - steps]).argmin(axis=1)
        ends += [ordered[rows, low], ordered[rows, low + steps]]
    return np.stack(ends)


def of_counts(counts: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """HDI of one histogram, uniform inside each bin.

    Parameters
    ----------
    counts : ndarray, shape (bins,)
    edges : ndarray, shape (bins + 1,)

    Returns
    -------
    ndarray, shape (len(STATISTICS),)
    """
    below = np.concatenate([[0], np.cumsum(counts)])
    width, share = np.diff(edges), np.maximum(counts, 1)
    ends: list[float] = []
    for mass in MASSES:
        wanted = mass * below[-1]
        # Where the density falls on one side and rises on the other the narrowest one begins or ends at an edge, to
        # within a bin.
        last = below.searchsorted(below[-1] - wanted, side="right")
        right = below[:last] + wanted
        bins = np.clip(below.searchsorted(right, side="left") - 1, 0, len(counts) - 1)
        from_edge = edges[:last], edges[bins] + width[bins] * (right - below[bins]) / share[bins]
        first = below.searchsorted(wanted, side="left")
        left = below[first:] - wanted
        bins = np.clip(below.searchsorted(left, side="right") - 1, 0, len(counts) - 1)
        to_edge = edges[bins] + width[bins] * (left - below[bins]) / share[bins], edges[first:]
        low, high = (np.concatenate(both) for both in zip(from_edge, to_edge, strict=True))
        best = (high - low).argmin()
        ends += [low[best], high[best]]
    return np.array(ends)


def of_quantile_function(quantile: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """HDI of a distribution, from its quantile function on (0, 1); shape (len(STATISTICS),).

    Where several are as narrow as each other, as those of a uniform distribution, the most central one.
    """
    ends: list[float] = []
    for mass in MASSES:
        low, high = 0.0, 1.0 - mass
        # Each round narrows the probability below the interval 512 times.
        for _ in range(3):
            below = low + (high - low) * (np.arange(_STEPS) + 0.5) / _STEPS
            left, right = quantile(below), quantile(below + mass)
            width = right - left
            as_narrow = np.flatnonzero(width <= width.min() * (1 + 1e-9))
            best = as_narrow[np.abs(below[as_narrow] - (1 - mass) / 2).argmin()]
            found = [float(left[best]), float(right[best])]
            step = (high - low) / _STEPS
            low, high = max(low, below[best] - step), min(high, below[best] + step)
        ends += found
    return np.array(ends)


def error(by_replicate: np.ndarray) -> np.ndarray:
    r"""Monte Carlo standard error of the ends of the HDI of all replicates pooled, from those of each.

    The ends converge with the cube root of the number of draws, not with the square root: pooling R replicates
    divides their standard deviation by :math:`R^{1/3}`.

    Parameters
    ----------
    by_replicate : ndarray, shape (R, ...)

    Returns
    -------
    ndarray, shape (...)
        NaN for a single replicate.

    References
    ----------
    J. Kim and D. Pollard (1990), Cube root asymptotics, Annals of Statistics 18, 191-219, example 6.1 (the shorth).
    """
    if len(by_replicate) == 1:
        return np.full(by_replicate.shape[1:], np.nan)
    found: np.ndarray = by_replicate.std(axis=0, ddof=1) / len(by_replicate) ** (1 / 3)
    return found
