"""Summaries of draws, each with its Monte Carlo error: exact where the draws are kept, from histograms where not."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpustack_mc import hdi, sobol

PROBABILITIES = (0.05, 0.25, 0.5, 0.75, 0.95)
BINS = 2**14
# Names of what `Statistics.rows` holds, but for highest-density intervals.
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
    densest, densest_errors : ndarray, shape (len(hdi.STATISTICS), variables)
        Ends of the highest-density intervals; of shape (0, variables) where they were not asked for.
    """

    mean: np.ndarray
    mean_error: np.ndarray
    sd: np.ndarray
    quantiles: np.ndarray
    quantile_errors: np.ndarray
    densest: np.ndarray
    densest_errors: np.ndarray

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the rows."""
        asked = hdi.STATISTICS if len(self.densest) else ()
        return (*STATISTICS, *asked, *(f"{name}_error" for name in asked))

    def rows(self) -> np.ndarray:
        """Return all in the order of `names`, shape (len(names), variables)."""
        return np.concatenate([self.mean[None], self.mean_error[None], self.sd[None], self.quantiles,
                               self.quantile_errors, self.densest, self.densest_errors])  # fmt: skip


class Part(NamedTuple):
    """What one replicate contributes.

    Attributes
    ----------
    draws : ndarray, shape (variables, n)
    ordered : ndarray, shape (variables, n)
        The same, each row sorted.
    """

    draws: np.ndarray
    ordered: np.ndarray


class Grid(NamedTuple):
    """Histogram bins of variables: equal steps of sign(x) log(1 + |x|/scale), which is the log away from zero.

    Attributes
    ----------
    centre, spread : array, shape (variables,)
        From where deviations count, and in which unit.
    scale, low, per_unit : array, shape (variables,)
        Of the bins.
    """

    centre: Any
    spread: Any
    scale: Any
    low: Any
    per_unit: Any


def _statistics(
    mean: np.ndarray,
    variance: np.ndarray,
    quantiles: np.ndarray,
    by_mean: np.ndarray,
    by_quantile: np.ndarray,
    densest: np.ndarray | None = None,
    by_densest: np.ndarray | None = None,
) -> Statistics:
    """Join pooled estimates with the spread of those of the replicates (leading axis)."""
    none = np.zeros((0, len(mean)))
    return Statistics(
        mean,
        sobol.replicate_error(by_mean),
        np.sqrt(np.maximum(variance, 0)),
        quantiles,
        sobol.replicate_error(by_quantile),
        none if densest is None else densest,
        none if by_densest is None else hdi.error(by_densest),
    )


def exact(draws: np.ndarray, parts: Sequence[Part], with_hdi: bool = False) -> Statistics:
    """Summaries of draws that are all in memory, shape (variables, n)."""
    by_mean = np.stack([part.draws.mean(axis=1) for part in parts])
    by_quantile = np.stack([_quantiles(part.ordered) for part in parts])
    # Deviations from the middle keep the digits of constants: the variance of equal numbers must be zero.
    centred = draws - draws[:, :1]
    pooled = _pooled_quantiles(draws, [part.ordered for part in parts])
    intervals = (_densest(parts), np.stack([hdi.of_sorted(part.ordered) for part in parts])) if with_hdi else ()
    mean = draws[:, 0] + centred.mean(axis=1)
    return _statistics(mean, centred.var(axis=1), pooled, by_mean, by_quantile, *intervals)


def _densest(parts: Sequence[Part]) -> np.ndarray:
    """Highest-density intervals of all replicates together, shape (len(hdi.STATISTICS), variables)."""
    # A stable sort merges what is sorted already, in half the time of another one.
    rows = (np.concatenate(row)[None] for row in zip(*(part.ordered for part in parts), strict=True))
    return np.concatenate([hdi.of_sorted(np.sort(row, kind="stable")) for row in rows], axis=1)


def _rank(p: float, n: int) -> tuple[int, float]:
    """Return the place of a quantile among n sorted values, and how far it lies from there to the next."""
    place = p * (n - 1)
    below = min(int(place), max(n - 2, 0))
    return below, place - below


def _quantiles(ordered: np.ndarray) -> np.ndarray:
    """Quantiles of sorted rows, shape (variables, n), linear between values; shape (probabilities, variables)."""
    n = ordered.shape[1]
    found = []
    for p in PROBABILITIES:
        below, share = _rank(p, n)
        low, high = ordered[:, below], ordered[:, min(below + 1, n - 1)]
        found.append(low + (high - low) * share)
    return np.stack(found)


def _pooled_quantiles(draws: np.ndarray, ordered: Sequence[np.ndarray]) -> np.ndarray:
    """Quantiles of all draws, (variables, n), from those of the sorted replicates; shape (probabilities, variables).

    A value of the whole lies between the lowest and the highest value at the same place of the replicates: the few
    values there are sorted instead of all.
    """
    n, length = draws.shape[1], ordered[0].shape[1]
    found = np.empty((len(PROBABILITIES), len(draws)))
    for k, p in enumerate(PROBABILITIES):
        below, share = _rank(p, n)
        inside, _ = _rank(p, length)
        lows = np.min([rows[:, max(inside - 1, 0)] for rows in ordered], axis=0)
        highs = np.max([rows[:, min(inside + 2, length - 1)] for rows in ordered], axis=0)
        for i, (low, high) in enumerate(zip(lows, highs, strict=True)):
            ends = [rows[i].searchsorted([low, high], side="left") for rows in ordered]
            before = sum(int(first) for first, _ in ends)
            # Beyond the upper end one value of each replicate is enough: the next in order is among them.
            near = np.sort(np.concatenate([rows[i, a : b + 2] for rows, (a, b) in zip(ordered, ends, strict=True)]))
            place = below - before
            if not 0 <= place < len(near) - 1 or near[place + 1] > high:
                near, place = np.sort(draws[i]), below
            pair = near[place : place + 2]
            found[k, i] = pair[0] + (pair[-1] - pair[0]) * share
    return found


class Tally:
    """Counters of one replicate: exact integers and float64 sums of scaled deviations."""

    def __init__(self, variables: int, outputs: int):
        # Half the memory of 64 digits, until they are needed.
        self.counts = np.zeros((outputs, BINS), dtype=np.uint32)
        self.linear = np.zeros(variables)
        self.square = np.zeros(variables)
        self.n = 0

    def add(self, linear: np.ndarray, square: np.ndarray, bins: np.ndarray) -> None:
        """Count points.

        Parameters
        ----------
        linear, square : ndarray, shape (chunks, variables)
            Sums of scaled deviations and of their squares.
        bins : ndarray of int32, shape (outputs, n)
        """
        if self.n + bins.shape[1] >= 2**32 and self.counts.dtype == np.uint32:
            self.counts = self.counts.astype(np.int64)
        for counts, row in zip(self.counts, bins, strict=True):
            np.add(counts, np.bincount(row, minlength=BINS), out=counts, casting="unsafe")
        self.linear += linear.sum(axis=0, dtype=float)
        self.square += square.sum(axis=0, dtype=float)
        self.n += bins.shape[1]


def grid_around(draws: np.ndarray) -> Grid:
    """Bins that hold the pilot draws, shape (variables, n), with a margin of half their range on both sides."""
    # A scale needs no more of them.
    size = np.abs(draws[:, : 2**12])
    scale = np.median(size, axis=1)
    smallest = np.where(size > 0, size, np.inf).min(axis=1)
    # More than half may be zero, such as a cost of carbon without a price.
    scale = 1e-3 * np.where(scale > 0, scale, np.where(np.isfinite(smallest), smallest, 1.0))
    low, high = (np.sign(ends) * np.log1p(np.abs(ends) / scale) for ends in (draws.min(axis=1), draws.max(axis=1)))
    margin = np.maximum((high - low) / 2, 1e-6)
    deviation = draws - draws[:, :1]
    centre = draws[:, 0] + deviation.mean(axis=1)
    spread = np.abs(deviation).mean(axis=1)
    return Grid(centre, np.where(spread > 0, spread, 1.0), scale, low - margin, BINS / (high - low + 2 * margin))


def from_tallies(
    tallies: Sequence[Tally], grid: Grid, of_inputs: np.ndarray, densest_inputs: np.ndarray | None = None
) -> Statistics:
    """Summaries over the draws that all replicates counted.

    Parameters
    ----------
    tallies : sequence of Tally
        One per replicate.
    grid : Grid
    of_inputs : ndarray, shape (len(PROBABILITIES), inputs)
        Quantiles of the inputs, which their distributions say exactly.
    densest_inputs : ndarray, shape (len(hdi.STATISTICS), inputs), optional
        Their highest-density intervals; those of the outputs are then found too.
    """
    n = sum(tally.n for tally in tallies)
    shift = sum(tally.linear for tally in tallies) / n
    square = sum(tally.square for tally in tallies)
    by_mean = np.stack([grid.centre + grid.spread * tally.linear / tally.n for tally in tallies])
    counts = np.asarray(sum(tally.counts.astype(np.int64) for tally in tallies))

    def both(inputs: np.ndarray, binned: Callable[[np.ndarray, Grid], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return a summary of all variables over all replicates, and of each replicate."""
        all_of = (np.concatenate([inputs, binned(some, grid)], axis=1) for some in (counts, *own))
        # A bin has a width; what does not vary is known exactly.
        pooled, *alone = (np.where(square == 0, grid.centre, found) for found in all_of)
        return pooled, np.stack(alone)

    own = [tally.counts for tally in tallies]
    pooled, by_quantile = both(of_inputs, _binned_quantiles)
    intervals = () if densest_inputs is None else both(densest_inputs, _binned_densest)
    mean = grid.centre + grid.spread * shift
    variance = grid.spread**2 * (square / n - shift**2)
    return _statistics(mean, variance, pooled, by_mean, by_quantile, *intervals)


def _binned_quantiles(counts: np.ndarray, grid: Grid) -> np.ndarray:
    """Quantiles from bin counts of the outputs, the last of the grid's rows, linear inside a bin.

    Returns
    -------
    ndarray, shape (probabilities, outputs)
    """
    columns = []
    for row, scale, low, per_unit in _of_outputs(counts, grid):
        cumulative = np.concatenate([[0], np.cumsum(row)])
        wanted = np.asarray(PROBABILITIES) * cumulative[-1]
        index = np.clip(np.searchsorted(cumulative, wanted, side="left") - 1, 0, BINS - 1)
        inside = (wanted - cumulative[index]) / np.maximum(row[index], 1)
        columns.append(_value(index + inside, scale, low, per_unit))
    return np.stack(columns, axis=1)


def _binned_densest(counts: np.ndarray, grid: Grid) -> np.ndarray:
    """Highest-density intervals from bin counts, shape (len(hdi.STATISTICS), outputs)."""
    columns = [hdi.of_counts(row, _value(np.arange(BINS + 1.0), *bins)) for row, *bins in _of_outputs(counts, grid)]
    return np.stack(columns, axis=1)


def _of_outputs(counts: np.ndarray, grid: Grid) -> Iterator[Any]:
    """Yield counts, scale, low and per_unit of each output; these are the last of the grid's rows."""
    rows = (part[-len(counts) :] for part in (grid.scale, grid.low, grid.per_unit))
    return zip(counts, *rows, strict=True)


def _value(position: np.ndarray, scale: float, low: float, per_unit: float) -> np.ndarray:
    """Value at a place among the bins, counted from the lower edge of the first."""
    place = low + position / per_unit
    return np.sign(place) * scale * np.expm1(np.abs(place))
