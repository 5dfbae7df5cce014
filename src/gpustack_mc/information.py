r"""What it is worth to know an input: expected widths of intervals and expected values of decisions, from draws.

All is estimated from one sample of inputs and outputs, by regression of the outputs on what would be known. What is
known, :math:`m`, is an input itself (measured perfectly), or the input with the error of a measurement added (measured
with a stated accuracy), or several inputs at once; the same regression serves them all.

Value of a decision (Strong, Oakley & Brennan 2014, equation 3; Strong et al. 2015 for measurements with an error): with
net benefits :math:`B_d`,

.. math:: \mathrm{EVPPI}(m) = E_m \max_d E[B_d \mid m] - \max_d E[B_d],

in which the inner expectation is the fitted mean of a regression of :math:`B_d` on :math:`m`.

Expected width of an interval: :math:`E_m [Q_{95}(Y \mid m) - Q_5(Y \mid m)]`. The draws are cut into bins along
:math:`m`; in each, the quantiles are those of the residuals of a regression of :math:`\log Y` on :math:`m`, so that
what moves with :math:`m` inside a bin does not count as width. Exact for a product of lognormals.

References
----------
M. Strong, J. E. Oakley, A. Brennan, Medical Decision Making 34 (2014) 311-326; M. Strong, J. E. Oakley, A. Brennan,
P. Breeze, Medical Decision Making 35 (2015) 570-583.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.interpolate import BSpline
from scipy.special import ndtri

from gpustack_mc.arrays import Bools, Floats, Integers

# Of the sample; more would fit the noise of a replicate.
KNOTS = 6
BINS = 32
DRAWS_PER_BIN = 256
# A quantity with no more values than this is a list of alternatives.
FEW_VALUES = 40
DEGREE = 3
TAILS = (0.05, 0.95)


class Estimate(NamedTuple):
    """A number with its Monte Carlo standard error."""

    value: float
    error: float


class Basis(NamedTuple):
    """Regressors, and the draws in the order of what is known.

    Attributes
    ----------
    matrix : ndarray, shape (n, terms)
    order : ndarray of int, shape (n,)
        Draws from the lowest to the highest of what is known.
    few : bool
        Whether what is known has few values, each of which has a column.
    """

    matrix: Floats
    order: Integers
    few: bool


def scores(known: Floats) -> Floats:
    """Normal scores of the ranks, shape (n,): regressions on them depend neither on a unit nor on tails."""
    ranks = np.empty(len(known))
    ranks[np.argsort(known, kind="stable")] = np.arange(len(known))
    return ndtri((ranks + 0.5) / len(known))


def basis(known: Floats) -> Basis:
    """Cubic regression spline along one quantity; indicators where it has few values.

    Parameters
    ----------
    known : ndarray, shape (n,)
    """
    order = np.argsort(known, kind="stable")
    values = np.unique(known[:: max(len(known) // 512, 1)])
    if len(values) <= FEW_VALUES and len(values := np.unique(known)) <= FEW_VALUES:
        return Basis((known[:, None] == values).astype(float), order, True)
    return Basis(_spline(scores(known)), order, False)


def _spline(z: Floats) -> Floats:
    inner = ndtri(np.linspace(0, 1, KNOTS + 2)[1:-1])
    ends = (z.min() - 1e-9, z.max() + 1e-9)
    knots = np.concatenate([[ends[0]] * 4, inner, [ends[1]] * 4])
    return BSpline.design_matrix(z, knots, 3).toarray()


def joint_basis(known: Sequence[Floats]) -> Basis:
    """Regressors on several quantities together: splines of each, and the products of their scores up to degree 3.

    Parameters
    ----------
    known : sequence of ndarray, shape (n,)
    """
    if len(known) == 1:
        return basis(known[0])
    columns = [np.ones((len(known[0]), 1))]
    # The columns of one spline sum to one: each but the first has one column too many.
    columns += [basis(part).matrix[:, 1:] for part in known]
    z = np.stack([scores(part) for part in known])
    # Hermite polynomials of different scores are orthogonal.
    hermite = [np.ones_like(z), z, (z**2 - 1) / np.sqrt(2)]
    for i in range(len(known)):
        for j in range(i):
            columns.append((z[i] * z[j])[:, None])
            columns.append((hermite[2][i] * z[j])[:, None])
            columns.append((z[i] * hermite[2][j])[:, None])
            columns.extend((z[i] * z[j] * z[k])[:, None] for k in range(j))
    return Basis(np.concatenate(columns, axis=1), np.argsort(z.sum(axis=0)), False)


def fitted(matrix: Floats, values: Floats) -> Floats:
    """Least-squares fit of values, shape (n, k), by the columns of a matrix, shape (n, terms)."""
    return matrix @ np.linalg.lstsq(matrix.T @ matrix, matrix.T @ values, rcond=None)[0]


# ---- decisions ---------------------------------------------------------------------------------------------------


def perfect_value(benefits: Floats, replicates: int) -> Estimate:
    """Expected value of perfect information.

    Parameters
    ----------
    benefits : ndarray, shape (decisions, n)
        Net benefit of each decision in each draw.
    replicates : int
        Equal parts, one after the other, that are independent.
    """
    gains = _gains(benefits)
    total = gains.reshape(len(gains), replicates, -1).sum(axis=2)
    best = np.maximum(gains.max(axis=0), 0).reshape(replicates, -1).sum(axis=1)
    return _jackknife(best.sum(), total.sum(axis=1), best.sum() - best, total.sum(axis=1)[:, None] - total,
                      benefits.shape[1], replicates)  # fmt: skip


def partial_value(benefits: Floats, known: Basis, replicates: int) -> Estimate:
    """Expected value of knowing something, by regression.

    Parameters
    ----------
    benefits : ndarray, shape (decisions, n)
    known : Basis
        From `basis` or `joint_basis`.
    replicates : int
        As for `perfect_value`; the regression is made anew without each of them for the Monte Carlo error.

    Returns
    -------
    Estimate
    """
    gains = _gains(benefits).T
    matrix, decisions = known.matrix, gains.shape[1]
    parts = matrix.reshape(replicates, -1, matrix.shape[1])
    targets = gains.reshape(replicates, -1, decisions)
    squares, products = parts.transpose(0, 2, 1) @ parts, parts.transpose(0, 2, 1) @ targets
    square, product = squares.sum(axis=0), products.sum(axis=0)
    # Coefficients with all replicates, and without each.
    found = [_least_squares(square, product)]
    found += [_least_squares(square - squares[r], product - products[r]) for r in range(replicates)]
    coefficients = np.stack(found, axis=1).reshape(matrix.shape[1], -1)
    means = (matrix @ coefficients).reshape(replicates, -1, replicates + 1, decisions)
    best = np.maximum(means.max(axis=3), 0).sum(axis=1)
    sums = means.sum(axis=1)
    own = np.arange(replicates)
    return _jackknife(
        best[:, 0].sum(),
        sums[:, 0].sum(axis=0),
        best[:, 1:].sum(axis=0) - best[own, own + 1],
        (sums[:, 1:].sum(axis=0) - sums[own, own + 1]).T,
        len(matrix),
        replicates,
    )


def _least_squares(square: Floats, product: Floats) -> Floats:
    return np.linalg.lstsq(square, product, rcond=None)[0]


def _gains(benefits: Floats) -> Floats:
    """Benefits over those of the decision that is best without knowing more: what is common to all has no noise."""
    best = int(benefits.mean(axis=1).argmax())
    gains: Floats = np.delete(benefits, best, axis=0) - benefits[best]
    return gains


def _jackknife(
    best: float, sums: Floats, best_without: Floats, sums_without: Floats, n: int, replicates: int
) -> Estimate:
    """Join sums over all draws, and over those without each replicate, into a value and its standard error.

    Parameters
    ----------
    best : float
        Sum of what the best decision gains when more is known.
    sums : ndarray, shape (decisions,)
        Sums of what each decision gains when nothing more is known.
    best_without, sums_without : ndarray, shapes (replicates,) and (decisions, replicates)
    n, replicates : int
    """
    value = float((best - max(sums.max(), 0.0)) / n)
    if replicates == 1:
        return Estimate(value, float("nan"))
    without = (best_without - np.maximum(sums_without.max(axis=0), 0.0)) / (n - n // replicates)
    return Estimate(value, float(np.sqrt(np.var(without) * (replicates - 1))))


# ---- widths ------------------------------------------------------------------------------------------------------


def width(outputs: Floats, replicates: int) -> list[Estimate]:
    """Width of the 90% equal-tailed interval of each output.

    Parameters
    ----------
    outputs : ndarray, shape (outputs, n)
    replicates : int
        Equal parts, one after the other.
    """
    low, high = np.quantile(outputs, TAILS, axis=1)
    parts = np.quantile(outputs.reshape(len(outputs), replicates, -1), TAILS, axis=2)
    return _estimates(high - low, (parts[1] - parts[0]).T)


def expected_width(outputs: Floats, known: Basis, replicates: int) -> list[Estimate]:
    """Expected width of the 90% equal-tailed interval of each output once something is known.

    Parameters
    ----------
    outputs : ndarray, shape (outputs, n)
    known : Basis
    replicates : int
    """
    n = outputs.shape[1]
    length = n // replicates
    positive = (outputs > 0).all(axis=1)
    scaled = outputs.copy()
    scaled[positive] = np.log(scaled[positive])
    means = fitted(known.matrix, scaled.T).T
    residuals = scaled - means
    place = np.empty(n, dtype=np.int64)
    place[known.order] = np.arange(n)
    whole = _mean_width(means, residuals, known.order, positive)
    parts = []
    for r in range(replicates):
        inside = slice(r * length, (r + 1) * length)
        order = np.argsort(place[inside])
        parts.append(_mean_width(means[:, inside], residuals[:, inside], order, positive))
    return _estimates(whole, np.array(parts))


def _mean_width(means: Floats, residuals: Floats, order: Integers, positive: Bools) -> Floats:
    """Mean over draws of the width of the residuals in a draw's bin, moved to the fitted mean of the draw."""
    n = len(order)
    bins = max(min(BINS, n // DRAWS_PER_BIN), 1)
    size = n // bins
    # Draws that do not fill a bin are the last ones; they join none, and at most one in a bin's worth is lost.
    used = order[: bins * size]
    low, high = _binned_quantiles(residuals[:, used].reshape(len(means), bins, size))
    middle = means[:, used].reshape(len(means), bins, size)
    scale = np.where(positive[:, None], np.exp(np.where(positive[:, None, None], middle, 0.0)).mean(axis=2), 1.0)
    span = np.where(positive[:, None], np.exp(high) - np.exp(low), high - low)
    return (scale * span).mean(axis=1)


def _binned_quantiles(values: Floats) -> tuple[Floats, Floats]:
    """5% and 95% quantiles along the last axis, at the ranks whose expected probabilities they are."""
    size = values.shape[-1]
    places = [min(max(tail * (size + 1) - 1, 0.0), size - 1.0) for tail in TAILS]
    ranks = sorted({rank for place in places for rank in (int(place), min(int(place) + 1, size - 1))})
    ordered = np.partition(values, ranks, axis=-1)
    found = []
    for at in places:
        lower, upper = ordered[..., int(at)], ordered[..., min(int(at) + 1, size - 1)]
        found.append(lower + (at - int(at)) * (upper - lower))
    return found[0], found[1]


def _estimates(values: Floats, by_replicate: Floats) -> list[Estimate]:
    count = len(by_replicate)
    errors = by_replicate.std(axis=0, ddof=1) / np.sqrt(count) if count > 1 else np.full(len(values), np.nan)
    return [Estimate(float(value), float(error)) for value, error in zip(values, errors, strict=True)]


def measured(values: Floats, accuracy: float, noise: Floats) -> Floats:
    r"""What a measurement would read: a positive quantity times :math:`e^{a \varepsilon}`.

    Parameters
    ----------
    values : ndarray, shape (n,)
        The truth in each draw.
    accuracy : float
        Relative standard uncertainty :math:`a`; relative to the median where a quantity is not positive in all draws.
    noise : ndarray, shape (n,)
        Standard normal.
    """
    if (values > 0).all():
        return np.log(values) + accuracy * noise
    return values + accuracy * float(np.abs(np.median(values))) * noise
