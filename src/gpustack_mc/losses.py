r"""Interruptions and losses of a job that runs, and what they say of its failures and checkpoints.

Where goodput follows from failures, the inputs of `gpustack_mc.failures` have priors and the first days observe what
follows from them. With the accelerator-hours :math:`H` spent and hours lost per productive hour :math:`x = 1/\bar g -
1`, of which failures make :math:`x_\mathrm{f}` and the rest comes steadily,

.. math::
    I_0 \mid \lambda \sim \mathrm{NB}\!\left(\text{mean } \lambda H, \text{shape } 1/\sigma_\lambda^2\right), \qquad
    x_0 \mid x \sim \mathrm{Gamma}\!\left(\text{shape } k, \text{ mean } x\right), \qquad
    \frac{1}{k} = \operatorname{med} \left(\frac{x_\mathrm{f}}{x}\right)^2 \frac{2}{\lambda H} + \sigma_c^2 .

The count is a Poisson count whose rate may have been another in the first days (by :math:`\sigma_\lambda` of its log);
with :math:`\sigma_\lambda = 0` and a flat prior its posterior is a gamma distribution. The losses are as in
`gpustack_mc.fits.utilization_running`: a compound Poisson sum of exponential times, and a level that may change by
:math:`\sigma_c`. One shape, the median over the prior, serves all draws: a moment in which nothing is to be expected
then says nothing (:math:`k = 0`), whatever was lost in it. Where only tokens over days are known,
:math:`\log u_0 = \eta - \log(1 + x_0) + r`, and efficiency and losses are conditioned together.

The rate is conditioned over a grid of its normal score, the others by the weights of Sobol' points of the prior; both
become quantile tables and correlations of normal scores, as those of `gpustack_mc.metering` do.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from gpustack_mc import design, metering, priors
from gpustack_mc.arrays import Real
from gpustack_mc.priors import Marginal
from gpustack_mc.quantities import DIMENSION

NAMES = ("interruption_rate", "checkpoint_interval", "checkpoint_save_time", "restart_time", "unexplained_loss")
"""Inputs that goodput follows from; there is no interval where the best one is taken."""

# Halving the nodes moves no quantile of goodput by more than 0.002.
_NODES = 2**14
_WINDOW_NODES = 12
# A posterior may be a thousandth of the prior's width.
_RATE_SCORES = np.linspace(-4.5, 4.5, 9001)
_SCORES = np.linspace(-4.5, 4.5, 361)
_LOSS_STEPS = 1201
# A gamma of a smaller shape is a point at zero for float64.
_LEAST_SHAPE = 1e-3
# Fewer effective points have no quantiles: the observation lies beyond what the priors hold.
_FEWEST = 30.0


class Given(NamedTuple):
    """A marginal after an observation, and how far its score moved in standard deviations of the prior."""

    marginal: Marginal
    surprise: float


class Progress(NamedTuple):
    r"""What is known of the losses so far.

    Attributes
    ----------
    hours : float
        Accelerator-hours spent.
    loss : float or None
        :math:`\log(1 + x_0)`, minus the log of the productive share; None where it is not known apart from the speed.
    log_utilization : float
        :math:`\log u_0`, of all hours so far.
    """

    hours: float
    loss: float | None
    log_utilization: float


class Prior(NamedTuple):
    r"""Points of the prior, and what follows from them.

    Attributes
    ----------
    names : tuple of str
        Inputs that vary.
    scores : ndarray, shape (names, nodes)
    rate, lost, by_failures : ndarray, shape (nodes,)
        Interruptions per accelerator-hour, :math:`x` and :math:`x_\mathrm{f}`.
    """

    names: tuple[str, ...]
    scores: np.ndarray
    rate: np.ndarray
    lost: np.ndarray
    by_failures: np.ndarray

    def goodput(self) -> Marginal:
        """Distribution of goodput before its observation."""
        return Marginal("sample", {"values": np.sort(1 / (1 + self.lost)).tolist()})


class Rest(NamedTuple):
    """Posterior of the rest of the run.

    Attributes
    ----------
    marginals : dict of str to Marginal
        Of the inputs that vary, ``mfu`` among them where it was conditioned together with the losses.
    correlations : dict of (str, str) to float
        Between their normal scores.
    possible : bool
        Whether the prior holds what was observed.
    expected : ndarray, shape (2,)
        Productive share to be expected of the days so far, 90%.
    """

    marginals: dict[str, Marginal]
    correlations: dict[tuple[str, str], float]
    possible: bool
    expected: np.ndarray


def rate_given(prior: Marginal, count: float, hours: float, change_sd: float) -> Given:
    """Condition the rate of interruptions on their count.

    Parameters
    ----------
    prior : Marginal
        Per accelerator-hour.
    count : float
        Interruptions so far.
    hours : float
        Accelerator-hours so far.
    change_sd : float
        How far the log of the rate may change from the days so far to the rest; 0 for a Poisson count.
    """
    if prior.is_fixed:
        return Given(prior, 0.0)
    mean = priors.at_scores(prior, _RATE_SCORES) * hours
    with np.errstate(divide="ignore", invalid="ignore"):
        # Terms without the rate cancel. A count of 0 of a rate of 0 is certain.
        log_mean = np.where(count > 0, count * np.log(mean), 0.0)
    if change_sd > 0:
        shape = 1 / change_sd**2
        log_weight = log_mean - (shape + count) * np.log1p(mean / shape)
    else:
        log_weight = log_mean - mean
    log_weight = log_weight - 0.5 * _RATE_SCORES**2
    weight = np.exp(log_weight - log_weight.max())
    weight = weight / weight.sum()
    return Given(metering.moved(weight, _RATE_SCORES, prior), abs(float(weight @ _RATE_SCORES)))


def prior_points(marginals: Mapping[str, Marginal], count: float) -> Prior:
    """Draw from the priors of failures and checkpoints.

    Parameters
    ----------
    marginals : mapping of str to Marginal
        Of `NAMES`, without an interval where the best one is taken.
    count : float
        Accelerators of the job.
    """
    # They import jax, which only such scenarios are checked with.
    import jax
    from scipy.special import ndtri

    from gpustack_mc import failures

    names = tuple(name for name in NAMES if name in marginals and not marginals[name].is_fixed)
    points = design.make_design(_NODES, replicates=1)
    z = ndtri(design.points(points, names, [DIMENSION[name] for name in names], 0, 0, points.length))
    value = {
        name: priors.at_scores(marginal, z[names.index(name)] if name in names else np.zeros(points.length))
        for name, marginal in marginals.items()
    }
    rate, saving = value["interruption_rate"], value["checkpoint_save_time"]
    with jax.enable_x64(True):
        interval: Real = (
            value["checkpoint_interval"]
            if "checkpoint_interval" in value
            else failures.best_checkpoint_interval(count, rate, saving)
        )
        restart, other = value["restart_time"], value["unexplained_loss"]
        goodput = np.asarray(failures.expected_goodput(count, rate, interval, saving, restart, other))
        undone = np.asarray(failures.lost_work_share(count, rate, interval, saving, restart, other))
        restarts = np.asarray(failures.restart_loss_share(count, rate, restart, other))
    return Prior(names, z, rate, (1 - goodput) / goodput, (undone + restarts) / goodput)


def rest_of_run(
    prior: Prior, marginals: Mapping[str, Marginal], progress: Progress, *, change_sd: float, resolution: float,
    record_sd: float,
) -> Rest:  # fmt: skip
    """Condition the inputs of goodput, and with them the MFU where the losses are not known apart.

    Parameters
    ----------
    prior : Prior
    marginals : mapping of str to Marginal
        Of the inputs of `prior` and of ``mfu``, which knows what was logged of it.
    progress : Progress
    change_sd, resolution : float
        ``loss_change`` and ``loss_resolution`` of ``priors/observed.yaml``.
    record_sd : float
        Error of the log of a utilisation in exact books, of the days so far as of the rest.
    """
    from scipy.special import gammaincinv

    # A run that makes no progress loses any number of hours; float64 holds their squares.
    lost = np.clip(prior.lost, 1e-12, 1e100)
    by_chance = np.median((prior.by_failures / prior.lost) ** 2 * 2 / (prior.rate * progress.hours))
    shape = max(1 / float(by_chance + change_sd**2), _LEAST_SHAPE)
    at = (np.arange(_WINDOW_NODES) + 0.5) / _WINDOW_NODES
    loss = np.log1p(lost[:, None] * gammaincinv(shape, at) / shape)
    expected = np.exp(-np.quantile(loss, [0.95, 0.05]))
    if progress.loss is not None:
        seen = np.expm1(progress.loss) + resolution
        weight = _normalised(-shape * (np.log(lost) + seen / lost))
        enough = 1 / float(weight @ weight) > _FEWEST
        means = {name: float(weight @ z) for name, z in zip(prior.names, prior.scores, strict=True)}
        return Rest(*_inputs(prior, marginals, weight, means), enough or not prior.names, expected)
    return _joint(prior, marginals, progress, loss, record_sd)._replace(expected=expected)


def _joint(
    prior: Prior, marginals: Mapping[str, Marginal], progress: Progress, loss: np.ndarray, record_sd: float
) -> Rest:
    """Losses and MFU together, where only their product was seen; `loss` has shape (nodes, window nodes)."""
    log_mfu = np.log(priors.at_scores(marginals["mfu"], _SCORES))
    # An MFU is at most 1, so that a loss beyond this cannot have been.
    steps = np.linspace(0.0, max(-progress.log_utilization, 0.0) + 8 * record_sd, _LOSS_STEPS)
    # Both utilisations, of the days so far and of the rest, are the efficiency with an error of their own.
    gap = (progress.log_utilization + steps[:, None] - log_mfu) / (np.sqrt(2) * record_sd)
    both = np.exp(-0.5 * gap**2 - 0.5 * _SCORES**2)
    likelihood = both.sum(axis=1)
    by_node = np.interp(loss, steps, likelihood, right=0.0)
    weight = by_node.sum(axis=1)
    total = weight.sum()
    weight = weight / total if total > 0 else np.full(len(weight), 1 / len(weight))
    enough = total > 0 and 1 / float(weight @ weight) > _FEWEST
    if not enough:
        return Rest({}, {}, not prior.names, np.zeros(2))
    counts, _ = np.histogram(loss, bins=_LOSS_STEPS, range=(steps[0], steps[-1]))
    of_mfu = counts @ both
    of_mfu = of_mfu / of_mfu.sum()
    with np.errstate(invalid="ignore"):
        mean_score = np.nan_to_num(both @ _SCORES / likelihood)
    mean = float(of_mfu @ _SCORES)
    sd = float(np.sqrt(of_mfu @ (_SCORES - mean) ** 2))
    known = (by_node * np.interp(loss, steps, mean_score)).sum(axis=1) / total
    means = {name: float(weight @ z) for name, z in zip(prior.names, prior.scores, strict=True)}
    moved, correlations = _inputs(prior, marginals, weight, means)
    for name, z in zip(prior.names, prior.scores, strict=True):
        spread = np.sqrt(weight @ (z - means[name]) ** 2)
        correlations["mfu", name] = float((known @ z - mean * means[name]) / (spread * sd))
    moved["mfu"] = metering.moved(of_mfu, _SCORES, marginals["mfu"])
    return Rest(moved, correlations, possible=True, expected=np.zeros(2))


def _inputs(
    prior: Prior, marginals: Mapping[str, Marginal], weight: np.ndarray, means: Mapping[str, float]
) -> tuple[dict[str, Marginal], dict[tuple[str, str], float]]:
    """Marginals and correlations of the inputs that vary, from the weights of the points."""
    step = _SCORES[1] - _SCORES[0]
    edges = np.append(_SCORES - step / 2, _SCORES[-1] + step / 2)
    moved, correlations = {}, {}
    centred = {}
    for name, z in zip(prior.names, prior.scores, strict=True):
        inside = np.clip(z, _SCORES[0], _SCORES[-1])
        share, _ = np.histogram(inside, bins=edges, weights=weight)
        moved[name] = metering.moved(share, _SCORES, marginals[name])
        centred[name] = z - means[name]
    for i, first in enumerate(prior.names):
        for second in prior.names[:i]:
            a, b = centred[second], centred[first]
            spread = np.sqrt((weight @ a**2) * (weight @ b**2))
            correlations[second, first] = float(weight @ (a * b) / spread)
    return moved, correlations


def _normalised(log_weight: np.ndarray) -> np.ndarray:
    weight: np.ndarray = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    return weight
