r"""Rent over the years that owned hardware lives, when its price drifts.

A run costs its hours at today's rental price. Whoever decides whether to own hardware for its life compares with the
rent of all these years instead. With continuous discounting at the cost of capital :math:`r`, a price that grows as
:math:`e^{gt}` is worth the constant price

.. math:: \bar p = p\, \frac{\psi((r - g) L)}{\psi(r L)}, \qquad \psi(x) = \frac{1 - e^{-x}}{x},

over a life of :math:`L` years of equal use: the levelised price, which has the same present value. A growth that is
itself uncertain is one number for all years, normal in :math:`g`, and drawn beside the inputs. What newer hardware does
for less (obsolescence) is the same effect: the price is then that of the work, not of the chip.

References
----------
Brealey, Myers & Allen, Principles of Corporate Finance, chapter 2 (growing annuities); IEA/NEA, Projected Costs of
Generating Electricity, on levelised cost.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from gpustack_mc.arrays import Floats
from gpustack_mc.design import Design, points
from gpustack_mc.problem import Problem
from gpustack_mc.propagation import Draws

# Of the Sobol' sequence: below those of phases, where its planes are even, and no input takes it.
_DIMENSION = 61


class Drift(NamedTuple):
    """Relative change of the rental price in a year: "90% between" two rates, which are equal where it is known.

    `fitted` says that they are those of `gpustack_mc.price_drift` and not of the user.
    """

    low: float
    high: float
    fitted: bool = False

    def draws(self, design: Design, replicates: Sequence[int] | None = None) -> Floats:
        """Return the rate in each draw, shape (n,), replicates one after the other; shape () where it is known."""
        low, high = np.log1p([self.low, self.high])
        if low == high:
            return np.asarray(self.low)
        wanted = range(design.replicates) if replicates is None else replicates
        parts = [points(design, ["rental price drift"], [_DIMENSION], r, 0, design.length)[0] for r in wanted]
        rates: Floats = np.expm1((low + high) / 2 + (high - low) / 2 / ndtri(0.95) * ndtri(np.concatenate(parts)))
        return rates


def levelised_share(drift: float | Floats, cost_of_capital: Floats, lifetime: Floats) -> Floats:
    """Levelised rental price over today's.

    Parameters
    ----------
    drift : float or ndarray
        Relative change of the price in a year, above -1; -0.18 where it falls by 18%.
    cost_of_capital : ndarray
        1/year, continuous.
    lifetime : ndarray
        Years.
    """
    growth = np.log1p(drift)
    return _mean_discount((cost_of_capital - growth) * lifetime) / _mean_discount(cost_of_capital * lifetime)


def _mean_discount(x: Floats) -> Floats:
    small = np.abs(x) < 1e-6
    safe = np.where(small, 1.0, x)
    return np.where(small, 1 - x / 2, -np.expm1(-safe) / safe)


def share_of_draws(
    drift: Drift, problem: Problem, draws: Draws, design: Design, replicates: Sequence[int] | None = None
) -> Floats:
    """`levelised_share` in each draw of a scenario, shape (n,) or (); the draws are those of these replicates."""
    rates = drift.draws(design, replicates)
    return levelised_share(rates, *(_values(name, problem, draws) for name in ("cost_of_capital", "lifetime")))


def _values(name: str, problem: Problem, draws: Draws) -> Floats:
    if name in draws.varying:
        drawn: Floats = draws.inputs[draws.varying.index(name)]
        return drawn
    return np.asarray(float(problem.inputs[name].marginal.parameters["value"]))
