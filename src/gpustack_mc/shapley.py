r"""Shapley effects: shares of an output's variance that add up to 1 whatever the correlations.

The Shapley effect of a player :math:`i` (an input, or a group) is its average marginal contribution
:math:`c(S \cup i) - c(S)` over all orders in which players join, with
:math:`c(S) = \mathrm{E}[\mathrm{Var}(Y \mid X_{-S})]` (Song, Nelson & Staum 2016, who show that
:math:`\mathrm{Var}(\mathrm{E}[Y \mid X_S])` gives the same effects). What correlated inputs share is divided evenly
among them, and so is every interaction.

Each point of the sample has a random order of its own. Along it the players are redrawn one after the other, each
time from the exact conditional distribution given those not yet redrawn (see `gpustack_mc.copula`). With
:math:`Y_0, Y_1, \dots, Y_d` the outputs on the way, the player that joins at step :math:`j` gets

.. math:: \tfrac12 \left[(Y_0 - Y_j)^2 - (Y_0 - Y_{j-1})^2\right],

whose expectation is its marginal contribution: the estimator of Goda (2021), for dependent inputs by the conditional
draws. The sum over players is :math:`\tfrac12 (Y_0 - Y_d)^2`, an estimate of the variance, by which all are divided.

References
----------
E. Song, B. L. Nelson, J. Staum (2016), Shapley effects for global sensitivity analysis: theory and computation,
SIAM/ASA J. Uncertainty Quantification 4(1), 1060-1083. T. Goda (2021), A simple algorithm for global sensitivity
analysis with Shapley effects, Reliability Engineering & System Safety 213, 107702. A. B. Owen and C. Prieur (2017), On
Shapley value for measuring importance of dependent inputs, SIAM/ASA J. Uncertainty Quantification 5(1), 986-1002.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpustack_mc.cube import Cube, chunks, each_replicate, pair
from gpustack_mc.design import Design
from gpustack_mc.group_indices import masks_of
from gpustack_mc.ratios import Ratio, pooled

# Every point has its own order while the subsets of the correlated inputs are this few; else orders are shared.
_FEW_CORRELATED = 8
_SHARED_ORDERS = 128
# Keeps the orders apart from all other random numbers of a seed.
_STREAM = 0x5348_4150


def shapley_effects(cube: Cube, design: Design, players: Mapping[str, Sequence[str]], mass: float = 0.90) -> Ratio:
    """Estimate Shapley effects with intervals of their Monte Carlo error.

    Parameters
    ----------
    cube : Cube
    design : Design
        The model is run ``design.samples * (players + 1)`` times.
    players : mapping of str to sequence of str
        Inputs of each player, none twice. Inputs of no player are held, which is right only for those that change no
        output.
    mass : float
        Probability of the intervals.

    Returns
    -------
    Ratio
        Shares of the variance, arrays of shape (players, outputs); they add up to 1. NaN where an output is constant
        or not finite.

    Raises
    ------
    ValueError
        An input belongs to two players.
    """
    masks = masks_of(cube, players)
    if (masks.sum(axis=0) > 1).any():
        raise ValueError("an input belongs to two players")

    def replicate(number: int) -> np.ndarray:
        orders = np.random.default_rng([design.seed, _STREAM, number])
        total: np.ndarray = sum(_chunk(cube, design, number, ends, masks, orders) for ends in chunks(design))
        return total

    sums = np.stack(each_replicate(design, replicate))
    return pooled(sums, sums.sum(axis=1, keepdims=True), mass)


def _chunk(
    cube: Cube, design: Design, number: int, ends: tuple[int, int], masks: np.ndarray, random: np.random.Generator
) -> Any:
    """Sum what each player gets over one chunk, shape (players, outputs)."""
    runs = pair(cube, design, number, *ends)
    count, n = len(masks), runs.u_a.shape[1]
    order = _orders(random, count, n, len(cube.copula.correlated))
    redrawn = np.zeros((len(cube.names), n), dtype=bool)
    found = np.zeros((count, len(runs.y_a)))
    before = runs.y_a
    for step in range(count):
        joining = order[step]
        redrawn |= masks[joining].T
        # All are redrawn at the last step, which makes B of A, unless inputs are held.
        last = step == count - 1 and redrawn.all()
        after = runs.y_b if last else cube.run(cube.copula.keep(runs.u_a, runs.u_b, ~redrawn))[1]
        gains = 0.5 * (before - after) * (2 * runs.y_a - before - after)
        for output, gain in enumerate(gains):
            found[:, output] += np.bincount(joining, weights=gain, minlength=count)
        before = after
    return found


def _orders(random: np.random.Generator, players: int, n: int, correlated: int) -> np.ndarray:
    """Random orders of the players, shape (players, n): half of them are the others backwards."""
    few = correlated <= _FEW_CORRELATED
    some = -(-n // 2) if few else min(_SHARED_ORDERS // 2, -(-n // 2))
    ahead = random.permuted(np.tile(np.arange(players), (some, 1)), axis=1)
    both = np.concatenate([ahead, ahead[:, ::-1]])
    return random.permutation(both)[:n].T if few else both[random.integers(len(both), size=n)].T
