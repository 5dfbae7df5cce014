r"""Loss that failures and checkpoints do not explain, from goodputs that were published.

A job with goodput :math:`g` lost :math:`-\log g = L + r`: the part :math:`L` of failures and checkpoints, which
`gpustack_mc.failures.expected_goodput` gives, and a residual whose mean differs between jobs that recover by
themselves and jobs that are restarted by hand,

.. math:: r \sim \mathrm{Exp}(\text{mean } \theta), \qquad \log \theta \sim U(\log \theta_0, \log \theta_1)

What a job does not state of its rate of interruptions, its saving and restart times is drawn from their priors for its
way of saving and recovering, and a checkpoint interval that it does not state is the best one. With :math:`L_{is}` for
draw :math:`s` of job :math:`i` and goodputs rounded by :math:`h`, or bounded from below by :math:`b`,

.. math::
    p(g_i \mid \theta) &= \frac{1}{S} \sum_s
        F_\theta\bigl(-\log(g_i - h) - L_{is}\bigr) - F_\theta\bigl(-\log(g_i + h) - L_{is}\bigr), \\
    p(b_i \mid \theta) &= \frac{1}{S} \sum_s F_\theta(-\log b_i - L_{is}),
    \qquad F_\theta(x) = 1 - e^{-\max(x, 0) / \theta} .

One parameter: its posterior is computed on a grid, without sampling. The residual of a new job is the mixture of the
exponentials, stored as the logit-normal of :math:`\zeta = 1 - e^{-r}` with the same 5-95% band; where it is not known
how the job recovers, the two kinds are mixed in the proportion of their rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.stats import qmc

from gpustack_mc import catalog, failures
from gpustack_mc.arrays import Floats, Real
from gpustack_mc.fits.populations import Population, evidence
from gpustack_mc.priors import Facts, Marginal, from_quantiles, quantiles, select
from gpustack_mc.quantities import BY_NAME

Row = Mapping[str, str]
LOG2_DRAWS = 13
_GRID = 400
# Prior and column of each quantity that a job may state.
COLUMNS = {
    "interruption_rate": "interruptions_per_hour",
    "checkpoint_save_time": "checkpoint_save_time_s",
    "restart_time": "restart_time_min",
}


def loss_of_failures(row: Row) -> Floats:
    """Draws of what failures and checkpoints cost a job, ``-log`` of its goodput; shape (2**LOG2_DRAWS,)."""
    points = qmc.Sobol(len(COLUMNS), scramble=True, rng=0).random_base2(LOG2_DRAWS)
    drawn = {
        name: np.full(len(points), float(row[column])) if row[column] else quantiles(_prior(name, row), u)
        for (name, column), u in zip(COLUMNS.items(), points.T, strict=True)
    }
    count, rate, saving = float(row["accelerators"]), drawn["interruption_rate"], drawn["checkpoint_save_time"]
    with jax.enable_x64(True):
        if row["checkpoint_interval_min"]:
            interval: Real = float(row["checkpoint_interval_min"])
        else:
            interval = failures.best_checkpoint_interval(count, rate, saving)
        goodput: Floats = np.asarray(
            failures.expected_goodput(count, rate, interval, saving, drawn["restart_time"], 0.0)
        )
    return -np.log(np.maximum(goodput, np.finfo(float).tiny))


def _prior(quantity: str, row: Row) -> Marginal:
    """Return the prior of a quantity for the job's way of saving and recovering."""
    ladders: dict[str, tuple[str, ...]] = {fact: (row[fact],) for fact in ("checkpointing", "recovery") if row[fact]}
    return select(catalog.fit_record(quantity), Facts(ladders, {})).marginal


def log_likelihood(row: Row, mean_loss: Floats, settings: Mapping[str, Any]) -> Floats:
    """Log probability of a published goodput for each mean of the residual; same shape."""
    lost, stated, rounding = loss_of_failures(row), float(row["goodput"]), settings["rounding"]

    def above(loss: float) -> Floats:
        return np.exp(-np.maximum(loss - lost, 0) / mean_loss[:, None]).mean(axis=1)

    if row["bound"] == "lower":
        return np.log1p(-above(-np.log(stated)))
    # Survival functions, because those of large losses differ where distribution functions are both 1.
    return np.log(above(-np.log(min(stated + rounding, 1.0))) - above(-np.log(stated - rounding)))


def grid(settings: Mapping[str, Any]) -> Floats:
    """Means of the residual at which the posterior is computed, evenly spaced in the log."""
    return np.geomspace(settings["smallest_mean_loss"], settings["largest_mean_loss"], _GRID)


def posterior(rows: Sequence[Row], settings: Mapping[str, Any]) -> Floats:
    """Return the posterior probabilities of the means of `grid`."""
    means = grid(settings)
    log_weight: Floats = sum((log_likelihood(row, means, settings) for row in rows), np.zeros_like(means))
    weight: Floats = np.exp(log_weight - log_weight.max())
    return weight / weight.sum()


def residual_quantiles(weights: Floats, settings: Mapping[str, Any], u: Floats) -> Floats:
    """Quantiles of a new job's residual: the mixture of exponentials with posterior `weights`."""
    x = np.geomspace(1e-8, 50, 20_000)
    cdf = (weights[:, None] * -np.expm1(-x / grid(settings)[:, None])).sum(axis=0)
    return np.interp(u, cdf, x)


class LeftOut(NamedTuple):
    """A published goodput and its prediction from failures, the job's facts and a residual fitted to the other jobs.

    Attributes
    ----------
    row : mapping
    quantiles : ndarray, shape (3,)
        5%, 50% and 95% of the predicted goodput.
    below : float
        Probability of a goodput at or below the published one.
    """

    row: Row
    quantiles: Floats
    below: float


def leave_one_out(rows: list[Row], settings: Mapping[str, Any]) -> list[LeftOut]:
    """Predict each job by the other jobs that recover like it, by themselves or by hand."""
    found = []
    for row in rows:
        by_hand = row["recovery"] == "manual"
        others = [other for other in rows if other is not row and (other["recovery"] == "manual") == by_hand]
        lost = loss_of_failures(row)
        # Every quantile of the residual once, in an order of its own.
        u = np.random.default_rng(0).permutation((np.arange(len(lost)) + 0.5) / len(lost))
        goodput = np.exp(-lost - residual_quantiles(posterior(others, settings), settings, u))
        below = float(np.mean(goodput <= float(row["goodput"])))
        found.append(LeftOut(row, np.quantile(goodput, [0.05, 0.5, 0.95]), below))
    return found


def fit(rows: list[dict[str, str]], settings: dict[str, Any]) -> list[Population]:
    """Return jobs that recover by themselves, jobs restarted by hand, and any job."""
    by_hand = [row for row in rows if row["recovery"] == "manual"]
    alone = [row for row in rows if row["recovery"] != "manual"]
    weights = {"alone": posterior(alone, settings), "by hand": posterior(by_hand, settings)}
    either = (len(alone) * weights["alone"] + len(by_hand) * weights["by hand"]) / len(rows)
    how = "exponential residual beside the loss of failures, posterior on a grid; logit-normal with its 5-95% band"
    recovered = f"{len(alone)} jobs that recovered by themselves"
    found = [
        _population({"recovery": kind}, recovered, alone, weights["alone"], settings, how)
        for kind in ("restart", "in_place")
    ]
    label = f"{len(by_hand)} jobs restarted by hand"
    found.append(_population({"recovery": "manual"}, label, by_hand, weights["by hand"], settings, how))
    label, also = f"{len(rows)} jobs with a published goodput", f"{how}; mixture of both ways to recover"
    return [*found, _population({}, label, rows, either, settings, also)]


def _population(
    where: dict[str, str], label: str, rows: list[dict[str, str]], weights: Floats, settings: dict[str, Any],
    how: str,
) -> Population:  # fmt: skip
    low, high = -np.expm1(-residual_quantiles(weights, settings, np.array([0.05, 0.95])))
    found = from_quantiles(BY_NAME["unexplained_loss"], (0.05, float(low)), (0.95, float(high)))
    return Population(where, label, found.family, dict(found.parameters), method=how, **evidence(rows))
