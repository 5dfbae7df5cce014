r"""Predictions from the stored joint draws of the utilisation program: a new run, a known team, a running job.

Draw :math:`s` of the posterior, completed by the loss :math:`\ell_s` of one new family, gives a normal for log MFU, and
with it one component of the mixture for log utilisation:

.. math::
    \log \mathrm{MFU} \mid s \sim N\!\left(x^\top \beta_s + \gamma_s + \hat a_s + \hat c_s t + \hat e_s,\;
        \mathrm{Var}(a + c\,t + e \mid s) + \textstyle\sum_j \beta_{sj}^2 v_j\right), \qquad
    \log g \mid s = -\ell_s .

Family effects (level :math:`a` and slope :math:`c` with size) and run effects are normal within a draw, so that the
user's own runs update :math:`(a, c, e)` in closed form, and the draws themselves by their weights

.. math:: \omega_s \propto \prod_j N(y_j \mid \text{what draw } s \text{ expected, given } y_1, \dots, y_{j-1}),

which is Bayes' rule with the draws as prior. Nothing is refitted; a thousand draws take milliseconds.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpustack_mc.fits import utilization_data as table
from gpustack_mc.scoring import Mixture

SCALARS = (
    "family_sd", "family_slope_sd", "run_sd", "record_shift", "record_sd", "recompute_shift", "mfu_sd", "mfu_sd_unsure",
    "loss_mean", "loss", "loose_uniform", "cover_uniform",
)  # fmt: skip
"""Columns of ``draws.csv`` besides ``beta:<term>`` and ``generation:<name>``."""

UNSURE = ("6N+attn_unspecified", "hw_recompute", "unknown")
"""Conventions of a reported MFU that leave open what was counted."""

_CHUNK = 512  # runs whose expectations under all draws are in memory together

NEW_GENERATION = "new"
"""A generation that the fit does not know: a draw from their population."""


class Draws(NamedTuple):
    """Joint posterior draws.

    Attributes
    ----------
    beta : ndarray, shape (draws, len(TERMS))
    generation : dict of str to ndarray, shape (draws,)
    scalar : dict of str to ndarray, shape (draws,)
        See `SCALARS`: ``loss`` of a new family, and two uniforms that choose the kind of its record.
    """

    beta: np.ndarray
    generation: dict[str, np.ndarray]
    scalar: dict[str, np.ndarray]


class Record(NamedTuple):
    """How the predicted hours are counted.

    Attributes
    ----------
    loose : float
        Probability that the total is rounded, bounded or second-hand; 0 for exact books.
    compute_only : float
        Probability that downtime is left out; 0 for what a bill shows.
    """

    loose: float = 0.0
    compute_only: float = 0.0


CLEAN = Record()
"""Exact books of all accelerator-hours."""


class Evidence(NamedTuple):
    """One observation of the user's own team.

    Attributes
    ----------
    row : mapping
        Covariates, with the keys of ``data.csv``.
    kind : {"total", "compute_only", "mfu"}
        What `value` is: log utilisation from hours with or without downtime (tokens per second count as the latter), or
        log of a reported MFU; against the 16-bit peak.
    value : float
    same_run : bool
        The run that is to be predicted, or an earlier one.
    loose : bool
        The record is rounded or second-hand.
    run : str
        Which earlier run; observations of one run share its effect and its unknown covariates, so that its hours and
        its MFU do not count twice. Empty for a run that is observed once.
    """

    row: Mapping[str, Any]
    kind: str
    value: float
    same_run: bool = False
    loose: bool = False
    run: str = ""


class Team(NamedTuple):
    """What earlier runs say of a family's level and slope in each draw, and of the draws.

    Attributes
    ----------
    mean : ndarray, shape (draws, 2)
    covariance : ndarray, shape (draws, 2, 2)
    log_weight : ndarray, shape (draws,)
        Log density of the observations in each draw; zeros for draws of a fit that saw these runs.
    """

    mean: np.ndarray
    covariance: np.ndarray
    log_weight: np.ndarray


class Prediction(NamedTuple):
    r"""Predictive distribution of rows; ``log_mfu`` and ``log_goodput`` of one draw belong together.

    Attributes
    ----------
    log_utilization : Mixture
        Against the 16-bit peak, shape (rows, draws).
    log_mfu : Mixture
        Utilisation of the productive time, likewise; with the noise of the record, so that the product is exact.
    log_goodput : ndarray, shape (draws,)
        Productive share of the hours, at most 0; its weights are those of `log_mfu`. Hours that a loose record holds
        beyond those of the run count as unproductive.
    expected : ndarray, shape (rows, draws)
        :math:`x^\top \beta_s + \gamma_s`: what differs between draws is not known about the population (epistemic);
        all other spread is between families, runs and records.
    """

    log_utilization: Mixture
    log_mfu: Mixture
    log_goodput: np.ndarray
    expected: np.ndarray


def loss_at(probability: np.ndarray, mean: np.ndarray, shape: float) -> np.ndarray:
    r"""Quantiles of :math:`\ell`, where lost hours per productive hour :math:`e^\ell - 1` are Lomax-distributed.

    Parameters
    ----------
    probability, mean : ndarray
        Of one shape, or such that they broadcast.
    shape : float
        ``loss_shape`` of the settings.
    """
    return np.log1p(mean * (shape - 1) * np.expm1(-np.log1p(-probability) / shape))


def read_draws(columns: Mapping[str, np.ndarray]) -> Draws:
    """Draws from the columns of ``draws.csv``."""
    return Draws(
        np.column_stack([columns[f"beta:{name}"] for name in table.TERMS]),
        {key.partition(":")[2]: columns[key] for key in columns if key.startswith("generation:")},
        {name: np.asarray(columns[name], dtype=float) for name in SCALARS},
    )


def _expected(draws: Draws, found: table.Features) -> tuple[np.ndarray, np.ndarray]:
    """Mean and unknown-covariate variance of the efficiency of a row's family at zero, both of shape (rows, draws)."""
    known = draws.generation
    mean = found.mean @ draws.beta.T + np.array([known.get(name, known[NEW_GENERATION]) for name in found.generation])
    return mean, found.variance @ (draws.beta**2).T


def observations(
    draws: Draws, items: Sequence[Evidence], constants: Mapping[str, float], settings: Mapping[str, Any]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Expected values apart from (a, c, e), variances of noise and of unknown covariates; each (items, draws)."""
    p = draws.scalar
    found = table.features([item.row for item in items], constants, settings)
    mean, unknown = _expected(draws, found)
    loose = np.array([[float(item.loose)] for item in items])
    noise = settings["exact_record_sd"] ** 2 + loose * p["record_sd"] ** 2
    mean = mean + loose * p["record_shift"]
    kinds = np.array([item.kind for item in items])
    total, reported = kinds == "total", kinds == "mfu"
    # A column of the draws: evidence weighs them.
    mean[total] -= p["loss"]
    if reported.any():
        conventions = np.array([item.row.get("mfu_convention") or "unknown" for item in items])[reported]
        unsure = np.isin(conventions, UNSURE)[:, None]
        counted = np.array([settings["attention_counted"][name] for name in conventions])
        shift = np.log1p(counted * np.expm1(found.log_attention[reported]))[:, None]
        recompute = (conventions == "hw_recompute")[:, None]
        mean[reported] += shift + p["recompute_shift"] * recompute - (loose * p["record_shift"])[reported]
        noise[reported] = np.where(unsure, p["mfu_sd_unsure"], p["mfu_sd"]) ** 2
    return mean, noise, unknown


class Effects(NamedTuple):
    """Posterior of (family level, family slope, run effect) in each draw, and the log weights of the draws.

    Attributes
    ----------
    mean : ndarray, shape (draws, 3)
    covariance : ndarray, shape (draws, 3, 3)
    log_weight : ndarray, shape (draws,)
    """

    mean: np.ndarray
    covariance: np.ndarray
    log_weight: np.ndarray


def learn(
    draws: Draws, evidence: Sequence[Evidence], constants: Mapping[str, float], settings: Mapping[str, Any]
) -> Team:
    r"""Condition the family's level and slope on earlier runs.

    Within a draw the observations :math:`k` of run :math:`j`, with what was expected subtracted, are

    .. math:: y_{jk} = g_j^\top (a, c) + e_j + \epsilon_{jk}, \qquad
        g_j = (1, t_j), \quad e_j \sim N(0, \sigma_j^2), \quad \epsilon_{jk} \sim N(0, r_{jk}),

    where :math:`\sigma_j^2` is that of the run effect and of the run's unknown covariates. A run counts as one
    observation of its precision-weighted mean :math:`\bar y_j` with variance :math:`v_j = \sigma_j^2 + 1 / \sum_k
    r_{jk}^{-1}`, so that

    .. math::
        P^{-1} = \mathrm{diag}(\tau^2, \sigma_c^2)^{-1} + \sum_j g_j g_j^\top / v_j, \qquad
        E(a, c) = P \sum_j g_j \bar y_j / v_j .

    Parameters
    ----------
    draws : Draws
    evidence : sequence of Evidence
        None of the run that is to be predicted.
    constants, settings : mapping
        As for `gpustack_mc.fits.utilization_data.features`.
    """
    p = draws.scalar
    size = len(p["run_sd"])
    precision, weighted = np.zeros((size, 2, 2)), np.zeros((size, 2))
    for i, name in enumerate(("family_sd", "family_slope_sd")):
        precision[:, i, i] = p[name] ** -2
    log_density = 0.5 * np.linalg.slogdet(precision)[1]
    runs: dict[str, list[Evidence]] = {}
    for i, item in enumerate(evidence):
        runs.setdefault(item.run or f"\0{i}", []).append(item)
    groups = list(runs.values())
    for start in range(0, len(groups), _CHUNK):
        part = groups[start : start + _CHUNK]
        items = [item for group in part for item in group]
        first = np.cumsum([0, *(len(group) for group in part[:-1])])
        expected, noise, unknown = observations(draws, items, constants, settings)
        gap = np.array([[item.value] for item in items]) - expected
        exact = np.add.reduceat(1 / noise, first)
        mean = np.add.reduceat(gap / noise, first) / exact
        variance = p["run_sd"] ** 2 + unknown[first] + 1 / exact
        # Density of a run's observations around their mean, and then of the mean around the family effect at zero.
        within = np.add.reduceat(gap**2 / noise + np.log(2 * np.pi * noise), first) - exact * mean**2
        within += np.log(exact / (2 * np.pi))
        log_density -= 0.5 * (within + mean**2 / variance + np.log(2 * np.pi * variance)).sum(axis=0)
        g = level_and_slope([items[i].row for i in first], settings)
        precision += np.einsum("ri,rs,rj->sij", g, 1 / variance, g)
        weighted += np.einsum("ri,rs->si", g, mean / variance)
    covariance = np.linalg.inv(precision)
    center = np.einsum("sij,sj->si", covariance, weighted)
    log_density += 0.5 * ((weighted * center).sum(axis=1) - np.linalg.slogdet(precision)[1])
    return Team(center, covariance, log_density)


def level_and_slope(rows: Sequence[table.Row], settings: Mapping[str, Any]) -> np.ndarray:
    """How much a family's level and its slope count in each row, shape (rows, 2)."""
    below = table.below_saturation(rows, settings)
    return np.column_stack([np.ones_like(below), below])


def update(
    draws: Draws, evidence: Sequence[Evidence], run_variance: np.ndarray, constants: Mapping[str, float],
    settings: Mapping[str, Any], team: Team | None = None,
) -> Effects:  # fmt: skip
    r"""Condition the family and run effects on observations of the predicted run, one after the other.

    .. math:: k = \frac{P h}{h^\top P h + r}, \qquad m \leftarrow m + k\,(y - \mu - h^\top m), \qquad
        P \leftarrow P - k h^\top P, \qquad h = (1, t, 1) .

    Parameters
    ----------
    draws : Draws
    evidence : sequence of Evidence
        Those of earlier runs are learned from first.
    run_variance : ndarray, shape (draws,)
        Prior variance of the predicted run's own effect.
    constants, settings : mapping
        As for `gpustack_mc.fits.utilization_data.features`.
    team : Team, optional
        What is known of the family already; then `evidence` is of the predicted run only.
    """
    if team is None:
        team = learn(draws, [item for item in evidence if not item.same_run], constants, settings)
    size = len(team.mean)
    mean, covariance = np.zeros((size, 3)), np.zeros((size, 3, 3))
    mean[:, :2] = team.mean
    covariance[:, :2, :2], covariance[:, 2, 2] = team.covariance, run_variance
    log_weight = team.log_weight.copy()
    for item in evidence:
        if not item.same_run:
            continue
        # Its unknown covariates are those of the prediction: part of e.
        expected, noise, _ = (part[0] for part in observations(draws, [item], constants, settings))
        h = np.append(level_and_slope([item.row], settings)[0], 1.0)
        projected = covariance @ h
        total = projected @ h + noise
        surprise = item.value - expected - mean @ h
        gain = projected / total[:, None]
        mean = mean + gain * surprise[:, None]
        covariance = covariance - gain[:, :, None] * projected[:, None, :]
        log_weight += -0.5 * np.log(2 * np.pi * total) - 0.5 * surprise**2 / total
    return Effects(mean, covariance, log_weight)


def predict(
    draws: Draws, rows: Sequence[table.Row], constants: Mapping[str, float], settings: Mapping[str, Any], *,
    record: Record = CLEAN, evidence: Sequence[Evidence] = (), team: Team | None = None,
) -> Prediction:  # fmt: skip
    """Predict rows from what a planner knows; with `evidence`, as further runs of that team.

    Parameters
    ----------
    draws : Draws
    rows : sequence of mapping
        Planner's columns of ``data.csv``, see `gpustack_mc.fits.utilization_data.features`. With evidence of the same
        run, exactly that one row.
    constants : mapping
        ``constants`` of ``fit.json``.
    settings : mapping
        ``settings`` of ``fit.json``.
    record : Record
        How the hours are counted: `CLEAN` for a bill, the shares in `constants` for published records.
    evidence : sequence of Evidence
        The user's own observations.
    team : Team, optional
        What is known of the family already, see `learn`; then `evidence` is of the predicted run only.

    Returns
    -------
    Prediction
    """
    if any(item.same_run for item in evidence) and len(rows) != 1:
        raise ValueError("evidence of the same run needs exactly one row")
    p = draws.scalar
    found = table.features(rows, constants, settings)
    expected, unknown = _expected(draws, found)
    own = unknown[0] if any(item.same_run for item in evidence) else np.zeros_like(p["run_sd"])
    effects = update(draws, evidence, p["run_sd"] ** 2 + own, constants, settings, team)
    weight = np.exp(effects.log_weight - effects.log_weight.max())
    weights = np.broadcast_to(weight / weight.sum(), expected.shape)
    h = np.column_stack([level_and_slope(rows, settings), np.ones(len(rows))])
    efficiency = expected + h @ effects.mean.T
    variance = np.einsum("ri,sij,rj->rs", h, effects.covariance, h) + (unknown - own)
    loose = p["loose_uniform"] < record.loose
    loss = np.where(p["cover_uniform"] < record.compute_only, 0.0, p["loss"])
    # A posterior draw of the shift above zero would be a goodput above one.
    log_goodput = np.minimum(loose * p["record_shift"] - loss, 0.0)
    sds = np.sqrt(variance + settings["exact_record_sd"] ** 2 + loose * p["record_sd"] ** 2)
    return Prediction(
        Mixture(weights, efficiency + log_goodput, sds), Mixture(weights, efficiency, sds), log_goodput, expected
    )
