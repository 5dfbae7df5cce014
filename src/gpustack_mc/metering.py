r"""Power that was metered on a job that runs, and what it says of the power of the rest.

A meter of scope board, IT or facility reads, per accelerator,

.. math::
    w_\mathrm{b} = W_\mathrm{tdp} \phi, \qquad w_\mathrm{IT} = W_\mathrm{tdp} \phi + W_\mathrm{host}, \qquad
    w = (W_\mathrm{tdp} \phi + W_\mathrm{host})\, \mathrm{PUE},

each with an error :math:`N(0, \sigma^2)` of its log, which also holds how far the first days stand for the rest. The
priors of :math:`\phi`, :math:`W_\mathrm{host}` and PUE are any distributions; in their normal scores :math:`z` they are
standard normal, so that the posterior is the product of normal densities over a grid of scores. For a sum that is
linear in the scores it is the conjugate update of a normal; the grid does not need that.
"""

from collections.abc import Mapping
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from gpustack_mc import priors
from gpustack_mc.priors import TABLE_SIZE, TABLE_Z, Marginal

POWER = ("gpu_power_fraction", "host_power", "pue")
SCOPES = ("board", "it", "facility")
"""From the narrowest; each reads one more of `POWER` than the one before."""

# Scores beyond 4.5 hold 7e-6 of a prior. The step stays below the posterior spread in any direction, so that the sum
# over the grid is exact to far more digits than the draws (trapezoidal rule for a normal density).
_REACH = 4.5
_STEPS = {1: 721, 2: 181, 3: 91}
_TABLE_SCORES = np.linspace(-TABLE_Z, TABLE_Z, TABLE_SIZE)
_cdf = np.vectorize(NormalDist().cdf, otypes=[float])
_score = np.vectorize(NormalDist().inv_cdf, otypes=[float])


class Metered(NamedTuple):
    """Posterior of the power of the rest.

    Attributes
    ----------
    marginals : dict of str to Marginal
        Of those of `POWER` that vary and are read.
    correlations : dict of (str, str) to float
        Between their normal scores.
    surprise : float
        Largest distance, in prior standard deviations, that a score's mean moved.
    misfit : float
        Largest mean distance, in standard deviations of its error, between a reading and what is expected of it now.
    """

    marginals: dict[str, Marginal]
    correlations: dict[tuple[str, str], float]
    surprise: float
    misfit: float


def watts(tdp: float, fraction: np.ndarray, host: np.ndarray, pue: np.ndarray) -> dict[str, np.ndarray]:
    """Power per accelerator that a meter of each scope reads."""
    board = tdp * fraction
    return {"board": board, "it": board + host, "facility": (board + host) * pue}


def condition(
    marginals: Mapping[str, Marginal], tdp: float, metered: Mapping[str, float], sds: Mapping[str, float]
) -> Metered:
    """Condition the priors of power on what was metered.

    Parameters
    ----------
    marginals : mapping of str to Marginal
        Of `POWER`.
    tdp : float
        In W.
    metered : mapping of str to float
        Mean power per accelerator in W, by scope.
    sds : mapping of str to float
        Standard deviations of the log of each scope's reading.
    """
    read = POWER[: 1 + max(SCOPES.index(scope) for scope in metered)]
    varying = [name for name in read if not marginals[name].is_fixed]
    if not varying:
        fixed = watts(tdp, *(priors.quantiles(marginals[name], [0.5]) for name in POWER))
        misfit = max(abs(float(np.log(fixed[scope][0] / value))) / sds[scope] for scope, value in metered.items())
        return Metered({}, {}, 0.0, misfit)
    scores = np.linspace(-_REACH, _REACH, _STEPS[len(varying)])
    at = _cdf(scores)
    values = {}
    for name in POWER:
        axis = varying.index(name) if name in varying else None
        points = priors.quantiles(marginals[name], at if axis is not None else [0.5])
        shape = [1] * len(varying)
        if axis is not None:
            shape[axis] = -1
        values[name] = points.reshape(shape)
    expected = watts(tdp, *(values[name] for name in POWER))
    log_weight = np.zeros([len(scores)] * len(varying))
    for axis in range(len(varying)):
        log_weight = log_weight - 0.5 * np.moveaxis(np.broadcast_to(scores, log_weight.shape), -1, axis) ** 2
    gaps = [(np.log(expected[scope]) - np.log(value)) / sds[scope] for scope, value in metered.items()]
    log_weight = log_weight - 0.5 * sum(gap**2 for gap in gaps)
    weight = np.exp(log_weight - log_weight.max())
    weight = weight / weight.sum()
    return _summarised(weight, scores, varying, marginals)._replace(
        misfit=max(float((weight * np.abs(gap)).sum()) for gap in gaps)
    )


def _summarised(
    weight: np.ndarray, scores: np.ndarray, varying: list[str], marginals: Mapping[str, Marginal]
) -> Metered:
    """Marginals and correlations of the scores, from their weights on the grid."""
    axes = range(len(varying))
    alone = [weight.sum(axis=tuple(other for other in axes if other != axis)) for axis in axes]
    means = [float(part @ scores) for part in alone]
    # All weight on one score has no spread, and correlates with nothing.
    sds = [max(float(np.sqrt(part @ (scores - mean) ** 2)), 1e-9) for part, mean in zip(alone, means, strict=True)]
    found = {name: moved(part, scores, marginals[name]) for name, part in zip(varying, alone, strict=True)}
    correlations = {}
    for i in axes:
        for j in range(i):
            both = weight.sum(axis=tuple(other for other in axes if other not in (i, j)))
            covariance = (scores - means[j]) @ both @ (scores - means[i])
            correlations[varying[j], varying[i]] = float(covariance / (sds[i] * sds[j]))
    return Metered(found, correlations, max(abs(mean) for mean in means), 0.0)


def moved(weight: np.ndarray, scores: np.ndarray, prior: Marginal) -> Marginal:
    """Quantile table of a prior whose normal score has been given weights, shape (scores,), on an even grid."""
    step = scores[1] - scores[0]
    cumulative = np.cumsum(weight)
    inside = (cumulative > 1e-12) & (cumulative < 1 - 1e-12)
    # Between scores the posterior is nearly normal: linear in normal scores, and so are its tails.
    target = _score(cumulative[inside])
    place = scores[inside] + step / 2
    if len(target) < 2:
        # All weight on one score, at the edge of what the prior holds: as wide as the grid can tell.
        target, place = np.array([-1.0, 1.0]), scores @ weight + step * np.array([-0.5, 0.5])
    z = np.interp(_TABLE_SCORES, target, place)
    for end, side in ((0, _TABLE_SCORES < target[0]), (-1, _TABLE_SCORES > target[-1])):
        slope = (place[-1] - place[0]) / (target[-1] - target[0])
        z[side] = place[end] + slope * (_TABLE_SCORES[side] - target[end])
    return Marginal("tabulated", {"values": priors.quantiles(prior, _cdf(np.clip(z, -TABLE_Z, TABLE_Z))).tolist()})


def table(marginal: Marginal) -> np.ndarray:
    """Quantiles of a marginal at the nodes of a quantile table."""
    return priors.quantiles(marginal, _cdf(_TABLE_SCORES))


def split(metered: Mapping[str, float], tdp: float, middle: Mapping[str, float]) -> dict[str, float]:
    """Share the metered power out to `POWER`, so that the part already spent has the energy that was metered.

    What the meters do not tell apart is shared out as the medians of the rest are: it moves no energy.

    Parameters
    ----------
    metered : mapping of str to float
        Mean power per accelerator in W, by scope; a wider scope reads more.
    tdp : float
        In W.
    middle : mapping of str to float
        Medians of `POWER`.

    Returns
    -------
    dict of str to float
        Those of `POWER` that the meters fix.
    """
    board, host, pue = tdp * middle["gpu_power_fraction"], middle["host_power"], middle["pue"]
    found: dict[str, float] = {}
    it = metered.get("it")
    if "facility" in metered:
        it = metered["facility"] / pue if it is None else it
        # A facility meter beside a board meter may read less than the median PUE allows.
        it = max(it, metered.get("board", 0.0))
        found["pue"] = metered["facility"] / it
    if it is not None:
        board = metered.get("board", board * it / (board + host))
        found["host_power"] = it - board
    if "board" in metered or it is not None:
        found["gpu_power_fraction"] = metered.get("board", board) / tdp
    return found
