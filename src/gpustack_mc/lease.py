r"""Rent over the years that owned hardware lives, when its price drifts.

A run costs its hours at today's rental price. Whoever decides whether to own hardware for its life compares with the
rent of all these years instead. With continuous discounting at the cost of capital :math:`r`, a price that grows as
:math:`e^{gt}` is worth the constant price

.. math:: \bar p = p\, \frac{\psi((r - g) L)}{\psi(r L)}, \qquad \psi(x) = \frac{1 - e^{-x}}{x},

over a life of :math:`L` years of equal use: the levelised price, which has the same present value.

References
----------
Brealey, Myers & Allen, Principles of Corporate Finance, chapter 2 (growing annuities); IEA/NEA, Projected Costs of
Generating Electricity, on levelised cost.
"""

import numpy as np

from gpustack_mc.problem import Problem
from gpustack_mc.propagation import Draws


def levelised_share(drift: float, cost_of_capital: np.ndarray, lifetime: np.ndarray) -> np.ndarray:
    """Levelised rental price over today's.

    Parameters
    ----------
    drift : float
        Relative change of the price in a year, above -1; -0.18 where it falls by 18%.
    cost_of_capital : ndarray
        1/year, continuous.
    lifetime : ndarray
        Years.
    """
    growth = np.log1p(drift)
    return _mean_discount((cost_of_capital - growth) * lifetime) / _mean_discount(cost_of_capital * lifetime)


def _mean_discount(x: np.ndarray) -> np.ndarray:
    small = np.abs(x) < 1e-6
    safe = np.where(small, 1.0, x)
    return np.where(small, 1 - x / 2, -np.expm1(-safe) / safe)


def share_of_draws(drift: float, problem: Problem, draws: Draws) -> np.ndarray:
    """`levelised_share` in each draw of a scenario, shape (n,) or ()."""
    return levelised_share(drift, *(_values(name, problem, draws) for name in ("cost_of_capital", "lifetime")))


def _values(name: str, problem: Problem, draws: Draws) -> np.ndarray:
    if name in draws.varying:
        return draws.inputs[draws.varying.index(name)]
    return np.asarray(float(problem.inputs[name].marginal.parameters["value"]))
