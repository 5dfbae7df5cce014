r"""Second-order Sobol' indices: what two inputs do together that neither does alone.

.. math:: S_{ij} = \frac{1}{\mathrm{Var}(Y)} \mathrm{E}\left[(Y_b - \mu)\left(Y_{ij} - Y_i - Y_j + Y_a\right)\right],

with :math:`Y_{ij}` the output on A with both inputs from B. It is the difference of the closed index of the pair and
the two first-order indices in the form of Saltelli et al. (2010), all on the same points: the double difference is
zero, point by point, where the two inputs do not interact, and so is the noise.

References
----------
A. Saltelli et al. (2010), Variance based sensitivity analysis of model output, Computer Physics Communications 181,
259-270. R. Liu and A. B. Owen (2006), Estimating mean dimensionality of analysis of variance decompositions, J.
American Statistical Association 101, 712-721 (double differences).
"""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from gpustack_mc.cube import MASKS, Cube, chunks, each_replicate, pair
from gpustack_mc.design import Design
from gpustack_mc.group_indices import squares
from gpustack_mc.ratios import Ratio, pooled
from gpustack_mc.sobol import VarianceSums

# Of all pairs together, so that a table without any interaction is empty in nine cases of ten.
MASS_OF_ALL = 0.90
# Less than a thousandth of the variance is no interaction that anyone acts on, and may be rounding.
SMALLEST = 0.001


class Pairs(NamedTuple):
    """Second-order indices of pairs of inputs.

    Attributes
    ----------
    names : tuple of (str, str)
    index : Ratio
        Arrays of shape (pairs, outputs), with 90% intervals.
    above_noise : ndarray of bool, shape (pairs, outputs)
        Whether the index is at least `SMALLEST` and 0 lies below the interval that holds for all pairs at once
        (Bonferroni).
    """

    names: tuple[tuple[str, str], ...]
    index: Ratio  # type: ignore[assignment]  # the field, not the method of a tuple
    above_noise: np.ndarray


def second_order(cube: Cube, design: Design, inputs: Sequence[str], base: VarianceSums, centre: np.ndarray) -> Pairs:
    """Estimate the second-order indices of all pairs of some independent inputs.

    Parameters
    ----------
    cube : Cube
    design : Design
    inputs : sequence of str
        At least two, none correlated with another input.
    base : VarianceSums
        Of the same design, by replicate, from `gpustack_mc.group_indices.group_indices`.
    centre : ndarray, shape (outputs,)
        Near the mean of each output.

    Returns
    -------
    Pairs
    """
    names = tuple(combinations(inputs, 2))
    single = np.array([[name == key for name in cube.names] for key in inputs])
    double = np.array([[name in both for name in cube.names] for both in names])
    first, second = (np.array([list(inputs).index(both[side]) for both in names]) for side in (0, 1))

    def replicate(number: int) -> np.ndarray:
        total = np.zeros((len(names), len(centre)))
        for ends in chunks(design):
            runs = pair(cube, design, number, *ends)
            alone = cube.swapped(runs.x_a, runs.x_b, single)
            factor = runs.y_b - centre[:, None]
            # As many pairs at a time as the model runs in one call, so that memory does not grow with their number.
            for start in range(0, len(names), MASKS):
                some = slice(start, start + MASKS)
                both = cube.swapped(runs.x_a, runs.x_b, double[some])
                difference = both - alone[first[some]] - alone[second[some]] + runs.y_a
                total[some] += np.einsum("on,pon->po", factor, difference)
        return total

    sums = np.stack(each_replicate(design, replicate))
    spread = squares(base)[:, None, :]
    corrected = 1 - (1 - MASS_OF_ALL) / len(names)
    strict = pooled(sums, spread, corrected)
    return Pairs(names, pooled(sums, spread), (strict.low > 0) & (strict.value >= SMALLEST))
