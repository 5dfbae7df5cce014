r"""First-order and total Sobol' indices of single inputs and of groups of them.

A group is exchanged as a whole, all its columns at once: its first-order index is the *closed* index
:math:`\mathrm{Var}(\mathrm{E}[Y \mid X_G]) / \mathrm{Var}(Y)`, which holds the interactions inside the group, and its
total index is :math:`\mathrm{E}[\mathrm{Var}(Y \mid X_{-G})] / \mathrm{Var}(Y)`.

Where a group (or an input) is correlated with inputs outside it these are what the formulas say and no more: the first
holds what the group shares with its partners, the second leaves that out, and neither adds up to 1 over the inputs
(Kucherenko, Tarantola & Annoni 2012). Each then takes a run of its own with exact conditional draws, see
`gpustack_mc.copula`; estimators are those of `gpustack_mc.sobol`.

References
----------
S. Kucherenko, S. Tarantola, P. Annoni (2012), Estimation of global sensitivity indices for models with dependent
variables, Computer Physics Communications 183, 937-946.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from gpustack_mc import sobol
from gpustack_mc.arrays import Bools, Floats
from gpustack_mc.cube import Cube, Pair, chunks, each_replicate, pair
from gpustack_mc.design import Design
from gpustack_mc.ratios import Ratio, pooled


class Sums(NamedTuple):
    """What indices are made of, by replicate (leading axis)."""

    base: sobol.VarianceSums
    swap: sobol.SwapSums


def squares(base: sobol.VarianceSums) -> Floats:
    """Number of points times the variance, a part from each replicate; shape (replicates, outputs)."""
    values = 2.0 * np.asarray(base.count)[:, None]
    mean = base.linear.sum(axis=0) / values.sum(axis=0)
    deviations = base.square - 2 * mean * base.linear + values * mean**2
    found: Floats = deviations / 2 * values.sum() / (values.sum() - 1)
    return found


def alone_together(sums: Sums, members: Sequence[int]) -> Ratio:
    """Sum of the first-order indices of some groups, with its interval; shape (outputs,).

    Parameters
    ----------
    sums : Sums
    members : sequence of int
        Places of the groups.
    """
    values = 2.0 * np.asarray(sums.base.count)
    mean = sums.base.linear.sum(axis=0) / values.sum()
    parts = sums.swap.product - mean * sums.swap.difference
    return pooled(parts[:, list(members)].sum(axis=1), squares(sums.base))


def masks_of(cube: Cube, groups: Mapping[str, Sequence[str]]) -> Bools:
    """Mark the inputs of each group, shape (groups, inputs) of bool."""
    return np.array([[name in members for name in cube.names] for members in groups.values()], dtype=bool)


def group_indices(
    cube: Cube, design: Design, groups: Mapping[str, Sequence[str]], centre: Floats
) -> tuple[sobol.Indices, Sums]:
    """Compute closed first-order and total indices of groups of inputs.

    Parameters
    ----------
    cube : Cube
    design : Design
    groups : mapping of str to sequence of str
        Names of the inputs of each group; a single input is a group of one. Groups may overlap.
    centre : ndarray, shape (outputs,)
        Near the mean of each output.

    Returns
    -------
    indices : sobol.Indices
        Arrays of shape (groups, outputs).
    sums : Sums
    """
    masks = masks_of(cube, groups)
    divided = np.array([cube.copula.divides(mask) for mask in masks], dtype=bool)

    def replicate(number: int) -> tuple[sobol.VarianceSums, sobol.SwapSums]:
        found = [_chunk(cube, pair(cube, design, number, *ends), masks, divided, centre) for ends in chunks(design)]
        return reduce(sobol.add_sums, [base for base, _ in found]), reduce(sobol.add_sums, [swap for _, swap in found])

    sums = each_replicate(design, replicate)
    base, swap = sobol.stack_sums([base for base, _ in sums]), sobol.stack_sums([swap for _, swap in sums])
    # Below this an output differs from its centre by rounding in double precision only.
    return sobol.indices(base, swap, floor=(4 * np.finfo(float).eps * centre) ** 2), Sums(base, swap)


def _chunk(
    cube: Cube, runs: Pair, masks: Bools, divided: Bools, centre: Floats
) -> tuple[sobol.VarianceSums, sobol.SwapSums]:
    parts: dict[int, sobol.SwapSums] = {}
    whole = np.flatnonzero(~divided)
    if len(whole):
        together = sobol.swap_sums(runs.y_a, runs.y_b, cube.swapped(runs.x_a, runs.x_b, masks[whole]), centre)
        for place, number in enumerate(whole.tolist()):
            parts[number] = sobol.SwapSums(*(part[place] for part in together))
    for number in np.flatnonzero(divided).tolist():
        parts[number] = _divided(cube, runs, masks[number], centre)
    return sobol.variance_sums(runs.y_a, runs.y_b, centre), sobol.stack_sums([parts[i] for i in range(len(masks))])


def _divided(cube: Cube, runs: Pair, mask: Bools, centre: Floats) -> sobol.SwapSums:
    """Sums of a group with partners outside: B's group with the rest of A given it, and A with the group redrawn."""
    alone = cube.run(cube.copula.keep(runs.u_b, runs.u_a, mask))[1]
    given_rest = cube.run(cube.copula.keep(runs.u_a, runs.u_b, ~mask))[1]
    first = sobol.swap_sums(runs.y_a, runs.y_b, alone, centre)
    total = sobol.swap_sums(runs.y_a, runs.y_b, given_rest, centre)
    return first._replace(jansen=total.jansen, nonfinite=first.nonfinite + total.nonfinite)
