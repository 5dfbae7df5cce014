"""Doubles a design until every index and every reported quantile is known as well as was asked for."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np

from gpustack_mc import propagation, sobol
from gpustack_mc.design import Design
from gpustack_mc.problem import Problem
from gpustack_mc.sampling import Precision, Sensitivity, Simulation
from gpustack_mc.tallies import PROBABILITIES

MOST_SAMPLES = 2**23
"""Where doubling ends: a minute on two cores, and an index that has not settled by then has a heavy tail."""

REPORTED = (0.05, 0.5, 0.95)
"""Probabilities of the quantiles that are reported."""


class Reached(NamedTuple):
    """What doubling came to.

    Attributes
    ----------
    tolerance : float
        What was asked for.
    reached : float
        Half width of the widest 90% interval of the Monte Carlo error: of an index as it is, of a quantile over the
        width of the output's own 90% interval.
    settled : bool
    samples : int
    slowest : str
        Which index or quantile that is.
    """

    tolerance: float
    reached: float
    settled: bool
    samples: int
    slowest: str

    def note(self) -> str:
        """Say it in one sentence without its full stop."""
        if not self.slowest:
            return f"--tolerance {self.tolerance:g} is reached: nothing varies"
        told = f"{self.slowest} is known to ±{self.reached:.2g} with {self.samples:,} samples"
        if self.settled:
            return f"--tolerance {self.tolerance:g} is reached: {told}, all other indices and quantiles better"
        return f"--tolerance {self.tolerance:g} is not reached: {told}, the most that are tried"


def simulate_until(
    problem: Problem,
    design: Design,
    tolerance: float,
    *,
    most: int = MOST_SAMPLES,
    progress: Callable[[float], None] = lambda share: None,
    precision: Precision = "float64",
    with_hdi: bool = False,
    resamples: int = 0,
) -> tuple[Simulation, Reached]:
    """Propagate a problem on a design, and on one twice as long until all has settled; no point runs twice.

    Parameters
    ----------
    problem : Problem
    design : Design
        To start from: Sobol' points or plain Monte Carlo, whose first points stay when more are taken, in at least two
        replicates.
    tolerance : float
        Largest half width of the 90% intervals that is wanted, see `Reached`; above 0.
    most : int
        Samples beyond which it is not doubled.
    progress, precision, with_hdi, resamples
        As for `gpustack_mc.propagation.simulate`.

    Returns
    -------
    Simulation, Reached
        The same numbers, up to rounding, as from the last design at once.

    Raises
    ------
    ValueError
        The design cannot be taken further, or its error is not known.
    """
    if design.method == "lhs" or design.replicates < 2:
        raise ValueError("only Sobol' points and plain Monte Carlo in two or more replicates can be taken further")
    with jax.enable_x64(True):
        made = propagation.sampler(problem, design, True, progress, precision, with_hdi, resamples)
        made.lengthen(design.samples, design.length)
        while True:
            found = made.simulation()
            slowest, reached = max(errors(found), key=lambda pair: pair[1], default=("", 0.0))
            samples = found.design.samples
            if reached <= tolerance or 2 * samples > most:
                return found, Reached(tolerance, reached, reached <= tolerance, samples, slowest)
            made.lengthen(2 * samples, 2 * found.design.length)


def errors(found: Simulation) -> Iterator[tuple[str, float]]:
    """Yield name and half width of the 90% interval of every index and every reported quantile that varies."""
    if found.sensitivity is not None:
        yield from _of_indices(found.sensitivity, found.problem.outputs)
    statistics = found.output_statistics
    low, high = (statistics.quantiles[PROBABILITIES.index(p)] for p in (0.05, 0.95))
    half = sobol.t_quantile(found.design.replicates, 0.90) * statistics.quantile_errors
    for i, name in enumerate(found.problem.outputs):
        if high[i] > low[i]:
            for p in REPORTED:
                yield f"the {p:.0%} quantile of {name}", half[PROBABILITIES.index(p), i] / (high[i] - low[i])


def _of_indices(found: Sensitivity, outputs: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    for scale, part in (("", found.raw), ("the log of ", found.log)):
        for name, low, high in (("S1", part.first_low, part.first_high), ("ST", part.total_low, part.total_high)):
            half = (high - low) / 2
            for i, j in zip(*np.nonzero(np.isfinite(half)), strict=True):
                yield f"{name} of {scale}{outputs[j]} to {found.blocks[i]}", float(half[i, j])
