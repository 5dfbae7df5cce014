r"""Tornado: what an output becomes when one input is held at its 5% or its 95% and all others vary.

Each bar runs between the medians of the output given the input, :math:`\mathrm{med}(Y \mid X_i = q_{05})` and
:math:`\mathrm{med}(Y \mid X_i = q_{95})`, and the conditional means :math:`\mathrm{E}[Y \mid X_i = q]` are given beside
them. The usual tornado, which holds the others at their medians, leaves out what they add on average and what they do
together with the input. Inputs that are correlated with the one held follow it (conditional draws).
"""

from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from gpustack_mc.cube import CHUNK, Cube, each_replicate, sample
from gpustack_mc.design import Design
from gpustack_mc.sobol import replicate_error

ENDS = (0.05, 0.95)
# Points of each replicate: 16 of them know a median to a hundredth of the spread.
POINTS = 2**11


class Tornado(NamedTuple):
    """Outputs with one input held at the ends of its 90% interval.

    Attributes
    ----------
    held : ndarray, shape (2, inputs)
        Values of each input at its 5% and its 95%, in its unit.
    median, median_error, mean, mean_error : ndarray, shape (2, inputs, outputs)
        Of the outputs, in their unit; with Monte Carlo standard errors, NaN for a single replicate.
    base : ndarray, shape (outputs,)
        Median with no input held, on the same points.
    """

    held: np.ndarray
    median: np.ndarray
    median_error: np.ndarray
    mean: np.ndarray
    mean_error: np.ndarray
    base: np.ndarray


def tornado(cube: Cube, design: Design) -> Tornado:
    """Hold each input in turn at the ends of its 90% interval.

    Parameters
    ----------
    cube : Cube
    design : Design
        The first `POINTS` of each replicate are used.

    Returns
    -------
    Tornado
    """
    length = min(design.length, POINTS, CHUNK)
    count = len(cube.names)
    ends = [np.full((count, length), end) for end in ENDS]
    # At independent points all at one probability correlated inputs would not be at theirs.
    at_ends = [cube.run(cube.copula.to_cube(ndtri(end)))[0] for end in ends]
    single = np.eye(count, dtype=bool)
    free = [i for i in range(count) if not cube.copula.divides(single[i])]

    def replicate(number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        u = sample(cube, design, number, 0, length)
        x, y = cube.run(u)
        found = np.empty((len(ENDS), count, *y.shape))
        for side, (end, held) in enumerate(zip(ends, at_ends, strict=True)):
            found[side, free] = cube.swapped(x, held, single[free])
            for i in set(range(count)) - set(free):
                u_held = cube.copula.to_cube(ndtri(end))
                found[side, i] = cube.run(cube.copula.keep(u_held, u, single[i]))[1]
        return np.median(found, axis=-1), found.mean(axis=-1), np.median(y, axis=-1)

    median, mean, base = (np.stack(part) for part in zip(*each_replicate(design, replicate), strict=True))
    return Tornado(
        held=np.stack([held[:, 0] for held in at_ends]),
        median=median.mean(axis=0),
        median_error=replicate_error(median),
        mean=mean.mean(axis=0),
        mean_error=replicate_error(mean),
        base=base.mean(axis=0),
    )
