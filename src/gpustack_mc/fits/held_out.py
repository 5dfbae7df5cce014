r"""Held-out predictions of the hierarchical programs: rows or whole units that the fit did not see.

Given the standard deviations :math:`s`, all rows are jointly normal with covariance :math:`\Sigma_s = A T_s^2 A^\top +
D_s` (see `gpustack_mc.fits.hierarchy`), so that rows :math:`I` given all others follow from the precision
:math:`P = \Sigma_s^{-1}` at once,

.. math:: y_I \mid y_{-I}, s \sim N\!\left(y_I - P_{II}^{-1} [P (y - \mu_s)]_I,\; P_{II}^{-1}\right),

and draws of :math:`s` that saw all rows are weighted by :math:`1 / p(y_I \mid y_{-I}, s)`, Pareto smoothed. Where the
shape of their tail is above `MAXIMAL_K_HAT` the program is sampled anew without the rows. Nothing is approximated but
by the draws.

References
----------
Rasmussen & Williams (2006), Gaussian Processes for Machine Learning, section 5.4.2 (leave-one-out from the precision).
Vehtari, Gelman & Gabry (2017), Practical Bayesian model evaluation using leave-one-out cross-validation and WAIC,
Statistics and Computing 27. Vehtari et al. (2024), Pareto smoothed importance sampling, JMLR 25(72) (the limit).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from arviz_stats.base import array_stats

from gpustack_mc.fits import hierarchy
from gpustack_mc.fits.hierarchy import Posterior, Problem
from gpustack_mc.scoring import Mixture

MAXIMAL_K_HAT = 0.7
_MUTE = 1e8  # variance of a row that says nothing, on log and logit scales
DRAWS = 400  # of the standard deviations; their Monte Carlo error is a hundredth of the spread of a row


class HeldOut(NamedTuple):
    """Predictions of every row of a problem by fits without it.

    Attributes
    ----------
    mixture : Mixture
        On the working scale, one row each.
    refitted : int
        Folds that were sampled anew.
    """

    mixture: Mixture
    refitted: int


def predict(problem: Problem, folds: Sequence[Sequence[int]], posterior: Posterior | None = None) -> HeldOut:
    """Predict the rows of each fold from all others.

    Parameters
    ----------
    problem : Problem
    folds : sequence of sequence of int
        Rows that are left out together; each row is in one fold.
    posterior : Posterior, optional
        Of the problem with all rows; sampled here when omitted.
    """
    posterior = posterior or hierarchy.sample(problem)
    s = _thinned(posterior.s)
    precision, pulled = _precision(problem, s)
    shape = (len(problem.rows), len(s))
    weights, means, sds = np.empty(shape), np.empty(shape), np.empty(shape)
    refitted = 0
    y = np.array([row.y for row in problem.rows])
    for fold in folds:
        rows = np.asarray(fold)
        mean, covariance = _conditional(precision, pulled, y, rows)
        density = _log_density(y[rows], mean, covariance)
        smoothed, k_hat = array_stats.psislw(density)  # of the log densities of rows that are left out
        if len(rows) == len(y) or not k_hat <= MAXIMAL_K_HAT:
            anew = _thinned(hierarchy.sample(_without(problem, fold)).s)
            mean, covariance = _conditional(*_precision(problem, anew), y, rows)
            smoothed = np.zeros(len(anew))
            refitted += 1
        weight = np.exp(smoothed - smoothed.max())
        weights[rows] = weight / weight.sum()
        means[rows] = mean.T
        sds[rows] = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2)).T
    return HeldOut(Mixture(weights, means, sds), refitted)


def _without(problem: Problem, fold: Sequence[int]) -> Problem:
    """Problem whose rows of a fold say nothing; they stay, so that no program of another size is compiled."""
    mute = {i: problem.rows[i]._replace(variance=_MUTE) for i in fold}
    return problem._replace(rows=[mute.get(i, row) for i, row in enumerate(problem.rows)])


def units(problem: Problem) -> list[list[int]]:
    """Rows of each unit; a row without one stands alone."""
    found: dict[str, list[int]] = {}
    for i, row in enumerate(problem.rows):
        found.setdefault(row.unit or f"row {i}", []).append(i)
    return list(found.values())


def kinds(problem: Problem) -> list[str]:
    """What each row speaks of: its effects without the levels that are its own."""
    return [" ".join(sorted({name.partition(":")[0] for name in row.effects})) for row in problem.rows]


def _thinned(s: np.ndarray) -> np.ndarray:
    return s[np.linspace(0, len(s) - 1, min(DRAWS, len(s))).round().astype(int)]


def _precision(problem: Problem, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Precision of all rows under each draw, shape (draws, n, n), and its product with what they are off their mean."""
    data = hierarchy.arrays(problem)
    n = len(data.y)
    precision, pulled = np.empty((len(s), n, n)), np.empty((len(s), n))
    for i, draw in enumerate(s):
        t = data.fixed_sd + data.own_sd @ draw
        scaled = data.design * t
        noise = data.variance + data.noise @ draw**2
        precision[i] = np.linalg.inv(scaled @ scaled.T + np.diag(noise))
        pulled[i] = precision[i] @ (data.y - data.design @ data.mean - data.shift @ draw)
    return precision, pulled


def _conditional(
    precision: np.ndarray, pulled: np.ndarray, y: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean, shape (draws, rows), and covariance of rows given all others."""
    covariance = np.linalg.inv(precision[:, rows[:, None], rows[None, :]])
    return y[rows] - np.einsum("sij,sj->si", covariance, pulled[:, rows]), covariance


def _log_density(y: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    gap = y - mean
    _, determinant = np.linalg.slogdet(2 * np.pi * covariance)
    return -0.5 * (np.einsum("si,si->s", gap, np.linalg.solve(covariance, gap[..., None])[..., 0]) + determinant)
