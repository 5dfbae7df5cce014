r"""The rest of a job that runs: what its first days say of MFU and goodput from now on.

`gpustack_mc.fits.utilization_predict` conditions the efficiency :math:`\eta` of the run on its speed or its MFU. Here
the loss of the rest, with the Lomax distribution of mean :math:`\theta_s` in draw :math:`s`, is conditioned on the loss
:math:`\ell_0` of the days so far. In hours lost per productive hour, :math:`x = e^{\ell} - 1`,

.. math::
    x_0 \mid x \sim \mathrm{Gamma}\!\left(\text{shape } k, \text{ mean } x\right), \qquad
    \frac{1}{k} = \frac{2}{I_0} + \frac{2}{I_1} + \sigma_c^2 .

A window with :math:`I` interruptions to expect, each of which costs an exponential time, loses a compound Poisson sum
whose variance over its squared mean is :math:`2 / I`; the gamma has the same two moments. :math:`I_0` belongs to the
days so far and :math:`I_1` to the rest, and :math:`\sigma_c` is how far the level itself changes. With no interruption
to expect, :math:`k = 0` and the prior stays; with many, :math:`\sigma_c` remains: the first days are never exact.

When the speed is known, :math:`\ell_0` is, too, and each node :math:`x` of the prior has the weight
:math:`x^{-k} e^{-k x_0 / x}`. When only tokens and days are, :math:`\eta - \ell_0` is what was seen,

.. math:: \log u_0 = \eta - \ell_0 + r, \qquad r \sim N(0, \sigma_A^2),

and :math:`\ell_0` is integrated out over nodes of the gamma: given it, :math:`\eta` is normal.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from gpustack_mc.fits.utilization_predict import Draws, Prediction, Record, loss_at

# Nodes of the prior of the loss, for each draw; halving them moves no quantile by more than 1%.
LOSS_NODES = 64
# Fewer where the loss so far is unknown as well and all combinations are needed.
JOINT_DRAWS, JOINT_LOSS_NODES, JOINT_WINDOW_NODES = 250, 32, 12
# A gamma of a smaller shape is a point at zero for float64.
_LEAST_SHAPE = 1e-3


class Window(NamedTuple):
    r"""What the days so far say of the losses.

    Attributes
    ----------
    shape : float
        :math:`k`, at least 0.
    loss : float, optional
        :math:`\ell_0`, minus the log of the productive share so far.
    log_utilization : float, optional
        :math:`\log u_0` of all hours so far, against the 16-bit peak, where the loss is not known apart.
    """

    shape: float
    loss: float | None = None
    log_utilization: float | None = None


class Rest(NamedTuple):
    """Posterior of the rest of the run, as weighted components.

    Attributes
    ----------
    weights, means, sds : ndarray, shape (components,)
        Normals of log MFU, against the 16-bit peak.
    loss_weights, log_goodput : ndarray, shape (nodes,)
    correlation : float
        Between the normal scores of MFU and goodput.
    """

    weights: np.ndarray
    means: np.ndarray
    sds: np.ndarray
    loss_weights: np.ndarray
    log_goodput: np.ndarray
    correlation: float


def shape_of_window(interruptions_so_far: float, interruptions_left: float, change_sd: float) -> float:
    """Shape :math:`k` of the gamma, from the interruptions to expect in both parts; 0 where none is to be expected."""
    least = min(interruptions_so_far, interruptions_left)
    if least <= 0:
        return 0.0
    return 1 / (2 / interruptions_so_far + 2 / interruptions_left + change_sd**2)


def rest_of_run(
    draws: Draws, found: Prediction, window: Window, record: Record, *, settings: Mapping[str, Any],
    resolution: float, known_team: bool = False,
) -> Rest:  # fmt: skip
    """Condition the loss, and where it is not known apart the efficiency, on the days so far.

    Parameters
    ----------
    draws : Draws
    found : Prediction
        Of this one run, with the evidence of its speed or MFU.
    window : Window
    record : Record
        How the hours of the rest are counted.
    settings : mapping
        ``settings`` of ``fit.json``.
    known_team : bool
        The loss of each draw is that of a team whose earlier runs are known, and no other is put in its place.
    resolution : float
        Hours per productive hour that no log counts as lost.
    """
    weights, means, sds = (part[0] for part in found.log_mfu)
    if window.loss is not None:
        loss = _loss_nodes(draws.scalar, LOSS_NODES, settings, known_team)
        x = np.expm1(loss)
        seen = np.expm1(window.loss) + resolution
        log_weight = np.log(weights)[:, None] - window.shape * (np.log(x) + seen / x)
        joint = _normalised(log_weight)
        return Rest(joint.sum(axis=1), means, sds, joint.ravel(), _log_goodput(draws.scalar, loss, record).ravel(), 0.0)
    pick = np.unique(np.linspace(0, len(weights) - 1, JOINT_DRAWS).round().astype(int))
    scalar: Mapping[str, Any] = {name: value[pick] for name, value in draws.scalar.items()}
    return _joint(scalar, weights[pick], means[pick], sds[pick], window, record, settings, known_team)


def _joint(
    scalar: Mapping[str, np.ndarray], weights: np.ndarray, means: np.ndarray, sds: np.ndarray, window: Window,
    record: Record, settings: Mapping[str, Any], known_team: bool,
) -> Rest:  # fmt: skip
    """Efficiency and loss together, where only their sum was seen; shape (draws, loss nodes, window nodes)."""
    from scipy.special import gammaincinv

    shape = max(window.shape, _LEAST_SHAPE)
    exact_record_sd = settings["exact_record_sd"]
    loss = _loss_nodes(scalar, JOINT_LOSS_NODES, settings, known_team)
    ratio = gammaincinv(shape, _middles(JOINT_WINDOW_NODES)) / shape
    loss_so_far = np.log1p(np.expm1(loss)[:, :, None] * ratio)
    # What the fit adds to log MFU for the books of the rest is no part of the efficiency.
    variance = np.maximum(sds**2 - exact_record_sd**2, 0.0)[:, None, None]
    total = variance + exact_record_sd**2
    surprise = window.log_utilization + loss_so_far - means[:, None, None]
    joint = _normalised(np.log(weights)[:, None, None] - 0.5 * np.log(total) - 0.5 * surprise**2 / total)
    center = means[:, None, None] + variance / total * surprise
    spread = np.broadcast_to(np.sqrt(variance * exact_record_sd**2 / total + exact_record_sd**2), center.shape)
    log_goodput = _log_goodput(scalar, loss, record)
    return Rest(
        joint.ravel(), center.ravel(), spread.ravel(), joint.sum(axis=2).ravel(), log_goodput.ravel(),
        _correlation(joint, center, spread, log_goodput),
    )  # fmt: skip


def tie(weights: np.ndarray, means: np.ndarray, sds: np.ndarray, log_goodput: np.ndarray) -> float:
    """Correlation of log MFU with the normal score of goodput, where each draw has one of each; shape (draws,)."""
    return _correlation(weights[:, None, None], means[:, None, None], sds[:, None, None], log_goodput[:, None])


def _correlation(joint: np.ndarray, center: np.ndarray, spread: np.ndarray, log_goodput: np.ndarray) -> float:
    """Correlation of log MFU, which is nearly normal, with the normal score of log goodput."""
    from scipy.special import ndtri

    flat, weight = log_goodput.ravel(), joint.sum(axis=2).ravel()
    order = np.argsort(flat, kind="stable")
    cumulative = np.empty_like(weight)
    cumulative[order] = np.cumsum(weight[order]) - weight[order] / 2
    score = ndtri(np.clip(cumulative, 1e-12, 1 - 1e-12)).reshape(log_goodput.shape)[:, :, None]
    mean, level = (joint * center).sum(), (joint * score).sum()
    variance = (joint * ((center - mean) ** 2 + spread**2)).sum()
    covariance = (joint * (center - mean) * (score - level)).sum()
    return float(covariance / np.sqrt(variance * (joint * (score - level) ** 2).sum()))


def _middles(count: int) -> np.ndarray:
    return (np.arange(count) + 0.5) / count


def _loss_nodes(
    scalar: Mapping[str, np.ndarray], count: int, settings: Mapping[str, Any], known_team: bool
) -> np.ndarray:
    """Equally likely losses of each draw, shape (draws, count); its own where it is that of a known team."""
    if known_team:
        return scalar["loss"][:, None]
    return loss_at(_middles(count), scalar["loss_mean"][:, None], settings["loss_shape"])


def _normalised(log_weight: np.ndarray) -> np.ndarray:
    weight = np.exp(log_weight - log_weight.max())
    found: np.ndarray = weight / weight.sum()
    return found


def _log_goodput(scalar: Mapping[str, np.ndarray], loss: np.ndarray, record: Record) -> np.ndarray:
    """Log goodput as the hours are counted, as in `gpustack_mc.fits.utilization_predict.predict`."""
    loose = (scalar["loose_uniform"] < record.loose) * scalar["record_shift"]
    counted = (scalar["cover_uniform"] >= record.compute_only)[:, None] * loss
    found: np.ndarray = np.minimum(loose[:, None] - counted, 0.0)
    return found
