r"""Held-out predictions of the hierarchical programs: rows or whole units that the fit did not see.

Given the standard deviations :math:`s`, all rows are jointly normal with covariance :math:`\Sigma_s = A T_s^2 A^\top +
D_s` (see `gpustack_mc.fits.hierarchy`), so that rows :math:`I` given all others follow from the precision
:math:`P = \Sigma_s^{-1}` at once,

.. math:: y_I \mid y_{-I}, s \sim N\!\left(y_I - P_{II}^{-1} [P (y - \mu_s)]_I,\; P_{II}^{-1}\right),

and draws of :math:`s` that saw all rows are weighted by :math:`1 / p(y_I \mid y_{-I}, s)`, Pareto smoothed. Where the
shape of their tail is above a limit the program is sampled anew without the rows. Nothing is approximated but
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
from arviz_stats.base.array import array_stats

from gpustack_mc.fits import hierarchy
from gpustack_mc.fits.hierarchy import Arrays, Posterior, Problem
from gpustack_mc.scoring import Mixture

_FEWEST = 25
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


def predict(
    problem: Problem, folds: Sequence[Sequence[int]], posterior: Posterior | None = None, *, maximal_k_hat: float
) -> HeldOut:
    """Predict the rows of each fold from all others.

    Parameters
    ----------
    problem : Problem
    folds : sequence of sequence of int
        Rows that are left out together; each row is in one fold.
    posterior : Posterior, optional
        Of the problem with all rows; sampled here when omitted.
    maximal_k_hat : float
        Shape of the tail of weights above which a fold is sampled anew.
    """
    posterior = _thinned(posterior or hierarchy.sample(problem))
    data = hierarchy.arrays(problem)
    shape = (len(problem.rows), len(posterior.s))
    weights, means, sds = np.empty(shape), np.empty(shape), np.empty(shape)
    refitted = 0
    for fold in folds:
        rows = np.asarray(fold)
        mean, covariance = _given_others(data, posterior, rows)
        density = _log_density(data.y[rows], mean, covariance)
        # Of the log densities of rows that are left out; a few draws have no tail that could be smoothed.
        smoothed, k_hat = array_stats.psislw(density) if len(density) >= _FEWEST else (-density, 0.0)
        if len(rows) == len(data.y) or not k_hat <= maximal_k_hat:
            mean, covariance = _new(data, _thinned(hierarchy.sample(_without(problem, fold))), rows)
            smoothed = np.zeros(shape[1])
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


def _thinned(posterior: Posterior) -> Posterior:
    pick = np.linspace(0, len(posterior.s) - 1, min(DRAWS, len(posterior.s))).round().astype(int)
    return posterior._replace(s=posterior.s[pick], mean=posterior.mean[pick], root=posterior.root[pick])


def _parts(data: Arrays, posterior: Posterior, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean of rows given the effects' mean, variance of their noise, and covariance that the effects give them."""
    reach = np.einsum("ik,skq->siq", data.design[rows], posterior.root)
    mean = posterior.mean @ data.design[rows].T + posterior.s @ data.shift[rows].T
    return mean, data.variance[rows] + posterior.s**2 @ data.noise[rows].T, reach @ np.swapaxes(reach, 1, 2)


def _given_others(data: Arrays, posterior: Posterior, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Mean, shape (draws, rows), and covariance of rows given all others, from effects that saw these rows as well.

    With :math:`V` the covariance and :math:`\hat b` the mean of the effects given all rows, :math:`P_{II} = D_I^{-1} -
    D_I^{-1} A_I V A_I^\top D_I^{-1}` and :math:`[P (y - \mu)]_I = D_I^{-1} (y_I - A_I \hat b)`.
    """
    mean, noise, shared = _parts(data, posterior, rows)
    precision = -shared / noise[:, :, None] / noise[:, None, :]
    at = np.arange(len(rows))
    precision[:, at, at] += 1 / noise
    covariance = np.linalg.inv(precision)
    return data.y[rows] - np.einsum("sij,sj->si", covariance, (data.y[rows] - mean) / noise), covariance


def _new(data: Arrays, posterior: Posterior, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of rows that the posterior has not seen."""
    mean, noise, covariance = _parts(data, posterior, rows)
    at = np.arange(len(rows))
    covariance[:, at, at] += noise
    return mean, covariance


def _log_density(y: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    gap = y - mean
    _, determinant = np.linalg.slogdet(2 * np.pi * covariance)
    square: np.ndarray = np.einsum("si,si->s", gap, np.linalg.solve(covariance, gap[..., None])[..., 0])
    found: np.ndarray = -0.5 * (square + determinant)
    return found
