r"""Scores of predictive distributions of a positive quantity, on its natural-log scale.

Every prediction is a mixture of normals of :math:`y = \log h` (or of any other log quantity),

.. math:: F_i(y) = \sum_k w_{ik}\, \Phi\!\left(\frac{y - m_{ik}}{s_{ik}}\right), \qquad \sum_k w_{ik} = 1,

so that density, distribution function and CRPS are exact and nothing is smoothed. Posterior draws of a model with
normal errors are such a mixture as they are; plain draws (rows x draws) are scored by `crps_draws`, and a log score is
not offered for them, because a kernel density estimate rewards its bandwidth.

References
----------
Gneiting & Raftery (2007), Strictly Proper Scoring Rules, Prediction, and Estimation, JASA 102:359 (CRPS, log score,
interval score). Grimit et al. (2006), The continuous ranked probability score for circular variables, QJRMS 132:2925
(CRPS of a mixture of normals).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpustack_mc.arrays import Bools, Floats, Integers


def _normal_cdf(z: Floats) -> Floats:
    from scipy.special import ndtr  # here, because predictions for a scenario need no score

    return ndtr(z)


def _normal_log_density(z: Floats) -> Floats:
    return -0.5 * z * z - 0.5 * float(np.log(2 * np.pi))


LEVELS = (0.5, 0.8, 0.9)
# Subsets of the published runs, as tables and pictures call them.
SUBSETS = {"seed27": "reference set of 27", "tier_a": "exact records (tier A)"}
"""Central probabilities whose coverage is reported."""


class Mixture(NamedTuple):
    """Mixtures of normals, one per row.

    Attributes
    ----------
    weights : ndarray, shape (rows, components)
        Each row sums to one.
    means, sds : ndarray, shape (rows, components)
        On the log scale.
    """

    weights: Floats
    means: Floats
    sds: Floats

    def take(self, rows: Integers | Bools) -> "Mixture":
        """Return the mixtures of some rows."""
        return Mixture(self.weights[rows], self.means[rows], self.sds[rows])

    def cdf(self, y: Floats) -> Floats:
        """Distribution function at `y`, shape (rows,)."""
        return (self.weights * _normal_cdf((np.asarray(y)[:, None] - self.means) / self.sds)).sum(axis=1)

    def log_density(self, y: Floats) -> Floats:
        """Log density at `y`, shape (rows,), per unit of the log scale."""
        with np.errstate(divide="ignore"):  # a component may have no weight
            terms = np.log(self.weights / self.sds) + _normal_log_density(
                (np.asarray(y)[:, None] - self.means) / self.sds
            )
        highest = terms.max(axis=1, keepdims=True)
        return highest[:, 0] + np.log(np.exp(terms - highest).sum(axis=1))

    def quantile(self, probability: float) -> Floats:
        """Quantile of each row, shape (rows,), by bisection.

        Sixty halvings of a bracket of 16 standard deviations leave an error below 1e-15 of it.
        """
        low = (self.means - 8 * self.sds).min(axis=1)
        high = (self.means + 8 * self.sds).max(axis=1)
        for _ in range(60):
            middle = 0.5 * (low + high)
            below = self.cdf(middle) < probability
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return 0.5 * (low + high)


def normal(means: Floats, sds: Floats) -> Mixture:
    """One normal per row as a mixture; `means` and `sds` have shape (rows,)."""
    means, sds = np.broadcast_arrays(np.asarray(means, dtype=float), np.asarray(sds, dtype=float))
    return Mixture(np.ones((means.size, 1)), means[:, None], sds[:, None])


def reflected(mixture: Mixture, offset: Floats) -> Mixture:
    r"""Mixture of :math:`c_i - y_i`, e.g. of log hours from log utilisation; `offset` has shape (rows,)."""
    return Mixture(mixture.weights, np.asarray(offset)[:, None] - mixture.means, mixture.sds)


# ---- scores of one row each -----------------------------------------------------------------------------------------
def _mean_abs(mean: Floats, sd: Floats) -> Floats:
    """Mean of the absolute value of a normal."""
    z = mean / sd
    return mean * (2 * _normal_cdf(z) - 1) + 2 * sd * np.exp(_normal_log_density(z))


def crps_mixture(mixture: Mixture, y: Floats) -> Floats:
    r"""CRPS of mixtures of normals, shape (rows,), in log units; smaller is better.

    .. math:: \mathrm{CRPS} = \sum_k w_k A(y - m_k, s_k^2)
        - \tfrac12 \sum_{k,l} w_k w_l\, A\!\left(m_k - m_l, s_k^2 + s_l^2\right), \qquad
        A(\mu, \sigma^2) = E|N(\mu, \sigma^2)| .

    Rows are handled one by one, since the double sum of a thousand components takes 8 MB.
    """
    scores = np.empty(len(mixture.means))
    for i, (w, m, s) in enumerate(zip(*mixture, strict=True)):
        first = w @ _mean_abs(y[i] - m, s)
        pairs = _mean_abs(m[:, None] - m[None, :], np.hypot(s[:, None], s[None, :]))
        scores[i] = first - 0.5 * w @ pairs @ w
    return scores


def crps_draws(draws: Floats, y: Floats) -> Floats:
    r"""CRPS of the empirical distribution of draws, shape (rows,), exact from sorted draws.

    .. math:: \mathrm{CRPS} = \frac1S \sum_s |x_{(s)} - y| - \frac1{S^2} \sum_s (2 s - S - 1)\, x_{(s)} .

    Parameters
    ----------
    draws : ndarray, shape (rows, draws)
        Of the log quantity, in any order.
    y : ndarray, shape (rows,)
        Observed log quantity.
    """
    x = np.sort(draws, axis=1)
    size = x.shape[1]
    rank = 2 * np.arange(1, size + 1) - size - 1
    found: Floats = np.abs(x - np.asarray(y)[:, None]).mean(axis=1) - (x * rank).sum(axis=1) / size**2
    return found


def interval_score(low: Floats, high: Floats, y: Floats, level: float) -> Floats:
    r"""Interval score :math:`(u - l) + \frac{2}{\alpha} \max(l - y, 0, y - u)` with :math:`\alpha = 1 -` `level`."""
    outside = np.maximum(np.maximum(low - y, y - high), 0.0)
    return (high - low) + 2 / (1 - level) * outside


def absolute_percentage_error(median: Floats, y: Floats) -> Floats:
    """Absolute error of the predicted median relative to the observed quantity; both on the log scale."""
    return np.abs(np.expm1(median - y))


# ---- all scores of a set of rows ------------------------------------------------------------------------------------
class RowScores(NamedTuple):
    """Scores and quantiles per row, each of shape (rows,); intervals have shape (rows, 2), on the log scale."""

    median: Floats
    intervals: dict[float, Floats]
    crps: Floats
    log_score: Floats
    pit: Floats
    observed: Floats


def score_rows(mixture: Mixture, y: Floats) -> RowScores:
    """Score the mixtures against the observed log quantity `y`, shape (rows,)."""
    y = np.asarray(y, dtype=float)
    intervals = {
        level: np.column_stack([mixture.quantile((1 - level) / 2), mixture.quantile((1 + level) / 2)])
        for level in LEVELS
    }
    return RowScores(
        mixture.quantile(0.5), intervals, crps_mixture(mixture, y), mixture.log_density(y), mixture.cdf(y), y
    )


def metrics(scores: RowScores, rows: Bools | None = None) -> dict[str, Any]:
    """Metrics of all rows, or of those that `rows` picks; an empty pick gives an error.

    Returns
    -------
    dict
        ``n``, ``mdape``, ``mean_abs_log_error``, ``coverage`` (by level, as text), ``median_p95_over_p5``,
        ``crps_log``, ``log_score``, ``interval_score_90``.
    """
    pick = np.arange(len(scores.observed)) if rows is None else np.flatnonzero(np.asarray(rows))
    if not pick.size:
        raise ValueError("no rows to score")
    y, median = scores.observed[pick], scores.median[pick]
    inside = {
        str(level): float(np.mean((y >= ends[pick, 0]) & (y <= ends[pick, 1])))
        for level, ends in scores.intervals.items()
    }
    low, high = scores.intervals[LEVELS[-1]][pick].T
    return {
        "n": int(pick.size),
        "mdape": float(np.median(absolute_percentage_error(median, y))),
        "mean_abs_log_error": float(np.mean(np.abs(median - y))),
        "coverage": inside,
        "median_p95_over_p5": float(np.median(np.exp(high - low))),
        "crps_log": float(scores.crps[pick].mean()),
        "log_score": float(scores.log_score[pick].mean()),
        "interval_score_90": float(interval_score(low, high, y, LEVELS[-1]).mean()),
    }


def cluster_bootstrap(
    values: Floats,
    families: Sequence[str] | np.ndarray,
    statistic: Callable[[Floats], Any] = np.mean,
    *,
    repeats: int = 1000,
    seed: int = 0,
) -> float:
    """Standard error of a statistic when whole families are drawn with replacement.

    Rows of a family share their errors, so that drawing rows would make the error look smaller than it is.

    Parameters
    ----------
    values : ndarray, shape (rows,)
        Scores, or paired differences of scores of two models.
    families : sequence of str, length rows
    statistic : callable
        From the drawn values to one number.
    repeats, seed : int
        Bootstrap samples and the seed of their generator.
    """
    values, labels = np.asarray(values, dtype=float), np.asarray(families)
    members = [values[labels == name] for name in np.unique(labels)]
    generator = np.random.default_rng(seed)
    picks = generator.integers(0, len(members), size=(repeats, len(members)))
    return float(np.std([statistic(np.concatenate([members[k] for k in pick])) for pick in picks], ddof=1))


# ---- baselines ------------------------------------------------------------------------------------------------------
def rule_of_thumb(rows: int, utilization: float, sd: float) -> Mixture:
    """Log utilisation under a rule such as 6ND at 40%: one normal for every row."""
    return normal(np.full(rows, np.log(utilization)), np.full(rows, sd))


def median_of_other_families(families: Sequence[str], y: Floats, known_families: Sequence[str]) -> Mixture:
    """Median and standard deviation of a log quantity over the known rows of other families, one normal per row.

    Parameters
    ----------
    families : sequence of str, length rows
        Of the rows to be predicted.
    y : ndarray, shape (known,)
        Observed log quantity.
    known_families : sequence of str, length known

    Raises
    ------
    ValueError
        When fewer than two rows of other families are known.
    """
    y, known = np.asarray(y, dtype=float), np.asarray(known_families)
    found: dict[str, tuple[float, float]] = {}
    for name in set(families):
        others = y[known != name]
        if len(others) < 2:
            raise ValueError("the median of other families needs two rows of other families")
        found[name] = np.median(others), np.std(others, ddof=1)
    return normal(*np.array([found[name] for name in families]).T)
