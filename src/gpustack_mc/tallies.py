"""Summaries of draws, each with its Monte Carlo error: exact where the draws are kept, from histograms where not."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gpustack_mc import sobol

PROBABILITIES = (0.05, 0.25, 0.5, 0.75, 0.95)
BINS = 2**14
# Names of what `Statistics.rows` holds.
STATISTICS = (
    "mean",
    "mean_error",
    "sd",
    *(f"q{p:g}" for p in PROBABILITIES),
    *(f"q{p:g}_error" for p in PROBABILITIES),
)


class Statistics(NamedTuple):
    """Summaries of variables, each with its Monte Carlo standard error.

    Attributes
    ----------
    mean, mean_error, sd : ndarray, shape (variables,)
    quantiles, quantile_errors : ndarray, shape (len(PROBABILITIES), variables)
    """

    mean: np.ndarray
    mean_error: np.ndarray
    sd: np.ndarray
    quantiles: np.ndarray
    quantile_errors: np.ndarray

    def rows(self) -> np.ndarray:
        """Return all in the order of `STATISTICS`, shape (len(STATISTICS), variables)."""
        return np.concatenate([self.mean[None], self.mean_error[None], self.sd[None], self.quantiles,
                               self.quantile_errors])  # fmt: skip


class Part(NamedTuple):
    """What one replicate contributes: draws (variables, n), their means and quantiles, pick-freeze sums."""

    draws: np.ndarray
    mean: np.ndarray
    quantiles: np.ndarray
    sums: tuple[Any, ...]


class Grid(NamedTuple):
    """Histogram bins of variables: equal steps of sign(x) log(1 + |x|/scale), which is the log away from zero."""

    centre: Any
    scale: Any
    low: Any
    per_unit: Any


def _statistics(
    mean: np.ndarray, variance: np.ndarray, quantiles: np.ndarray, by_mean: np.ndarray, by_quantile: np.ndarray
) -> Statistics:
    """Join pooled estimates with the spread of those of the replicates (leading axis)."""
    return Statistics(
        mean,
        sobol.replicate_error(by_mean),
        np.sqrt(np.maximum(variance, 0)),
        quantiles,
        sobol.replicate_error(by_quantile),
    )


def exact(draws: np.ndarray, parts: Sequence[Part]) -> Statistics:
    """Summaries of draws that are all in memory, shape (variables, n)."""
    by_mean, by_quantile = np.stack([part.mean for part in parts]), np.stack([part.quantiles for part in parts])
    # Deviations from the middle keep the digits of constants: the variance of equal numbers must be zero.
    centred = draws - draws[:, :1]
    ordered = np.quantile(draws, PROBABILITIES, axis=1)
    return _statistics(draws[:, 0] + centred.mean(axis=1), centred.var(axis=1), ordered, by_mean, by_quantile)


class Tally:
    """Counters of one replicate: exact integers and float64 sums of deviations."""

    def __init__(self, variables: int):
        self.counts = np.zeros((variables, BINS), dtype=np.int64)
        self.total = np.zeros(variables)
        self.square = np.zeros(variables)
        self.n = 0

    def add(self, total: np.ndarray, square: np.ndarray, bins: np.ndarray, n: int) -> None:
        """Count one chunk of `n` points; `bins` has shape (variables, n)."""
        for counts, row in zip(self.counts, bins, strict=True):
            counts += np.bincount(row, minlength=BINS)
        self.total += total
        self.square += square
        self.n += n


def grid_around(draws: np.ndarray) -> Grid:
    """Bins that hold the pilot draws with a margin of half their range on both sides."""
    scale = np.maximum(np.median(np.abs(draws), axis=1) * 1e-3, 1e-300)
    position = np.sign(draws) * np.log1p(np.abs(draws) / scale[:, None])
    low, high = position.min(axis=1), position.max(axis=1)
    margin = np.maximum((high - low) / 2, 1e-9)
    return Grid(draws.mean(axis=1), scale, low - margin, BINS / (high - low + 2 * margin))


def from_tallies(tallies: Sequence[Tally], grid: Grid) -> Statistics:
    """Summaries over the draws that all replicates counted."""
    n = sum(tally.n for tally in tallies)
    shift = sum(tally.total for tally in tallies) / n
    variance = sum(tally.square for tally in tallies) / n - shift**2
    by_mean = np.stack([grid.centre + tally.total / tally.n for tally in tallies])
    by_quantile = np.stack([_binned_quantiles(tally.counts, grid) for tally in tallies])
    pooled = _binned_quantiles(sum(tally.counts for tally in tallies), grid)
    # A bin has a width; what does not vary, such as a cost of carbon without a price, is known exactly.
    constant = sum(tally.square for tally in tallies) == 0
    by_quantile = np.where(constant, grid.centre, by_quantile)
    pooled = np.where(constant, grid.centre, pooled)
    return _statistics(grid.centre + shift, variance, pooled, by_mean, by_quantile)


def _binned_quantiles(counts: np.ndarray, grid: Grid) -> np.ndarray:
    """Quantiles from bin counts, linear inside a bin; shape (probabilities, variables)."""
    columns = []
    for row, scale, low, per_unit in zip(counts, grid.scale, grid.low, grid.per_unit, strict=True):
        cumulative = np.concatenate([[0], np.cumsum(row)])
        wanted = np.asarray(PROBABILITIES) * cumulative[-1]
        index = np.clip(np.searchsorted(cumulative, wanted, side="left") - 1, 0, BINS - 1)
        inside = (wanted - cumulative[index]) / np.maximum(row[index], 1)
        place = low + (index + inside) / per_unit
        columns.append(np.sign(place) * scale * np.expm1(np.abs(place)))
    result = np.stack(columns, axis=1)
    # An output that is always 0 falls into bins around the smallest scale there is.
    return np.where(np.abs(result) < 1e-290, 0.0, result)
