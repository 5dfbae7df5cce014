"""Ratios of sums that are pooled over independent replicates, with delete-one jackknife intervals."""

from typing import NamedTuple

import numpy as np

from gpustack_mc.sobol import replicate_interval


class Ratio(NamedTuple):
    """An estimate with the interval of its Monte Carlo error; arrays of one shape.

    Attributes
    ----------
    value, low, high : ndarray
        The ends are NaN for a single replicate.
    """

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def at(self, *place: int) -> "Ratio":
        """Return the estimate and its interval at one place."""
        return Ratio(*(part[place] for part in self))


def pooled(numerator: np.ndarray, denominator: np.ndarray, mass: float = 0.90) -> Ratio:
    """Divide sums over all replicates, and find the error from leaving out one replicate at a time.

    Parameters
    ----------
    numerator : ndarray, shape (R, ...)
        One sum for each replicate.
    denominator : ndarray, shape (R, ...)
        As many leading axes as it needs to broadcast against `numerator`.
    mass : float
        Probability of the interval.

    Returns
    -------
    Ratio
        NaN where the denominator is 0.
    """
    count = len(numerator)
    whole, base = numerator.sum(axis=0), denominator.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = whole / base
        if count == 1:
            unknown = np.full_like(value, np.nan)
            return Ratio(value, unknown, unknown)
        left = (whole - numerator) / (base - denominator)
        # Tukey's pseudo-values: their Student t interval is that of the jackknife.
        pseudo = count * value - (count - 1) * left
        low, high = replicate_interval(pseudo, mass)
        half = (high - low) / 2
    return Ratio(value, value - half, value + half)
