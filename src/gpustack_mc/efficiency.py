r"""MFU and goodput of a scenario, from the joint posterior draws of the utilisation program.

Draw :math:`s` of the posterior says that log MFU is :math:`N(m_s, v_s^2)` and that goodput is :math:`g_s`. Averaged
over the draws, each becomes a quantile table. Evidence of the user's own runs, or of the first days of this one,
conditions the draws first.
"""

import functools
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from gpustack_mc import catalog
from gpustack_mc.catalog import Accelerator
from gpustack_mc.fits import utilization_data as table
from gpustack_mc.fits import utilization_predict as program
from gpustack_mc.fits import utilization_running as running
from gpustack_mc.fits.draws_file import read_columns
from gpustack_mc.priors import TABLE_SIZE, TABLE_Z, Marginal
from gpustack_mc.schema import ScenarioFile

# Nodes that stand for one normal component: spacing 0.1 reproduces its distribution function to 1e-5.
_NODES = np.linspace(-6.0, 6.0, 121)
_NODE_WEIGHTS = np.exp(-0.5 * _NODES**2) / np.exp(-0.5 * _NODES**2).sum()
_COARSE = np.linspace(-4.5, 4.5, 13)
_COARSE_WEIGHTS = np.exp(-0.5 * _COARSE**2) / np.exp(-0.5 * _COARSE**2).sum()
_MANY = 5000
_TABLE_U = np.array([NormalDist().cdf(z) for z in np.linspace(-TABLE_Z, TABLE_Z, TABLE_SIZE)])


class Efficiency(NamedTuple):
    """What the fit says of a scenario.

    Attributes
    ----------
    mfu, goodput : Marginal
        MFU against the peak at the scenario's precision.
    words : str
        What was predicted from what, in one line.
    correlation : float
        Between the normal scores of MFU and goodput, where the evidence ties them together.
    epistemic : mapping of str to float
        Shares of the variances of ``mfu`` and ``goodput`` that better-known populations would remove, where told apart.
    """

    mfu: Marginal
    goodput: Marginal
    words: str
    correlation: float = 0.0
    epistemic: Mapping[str, float] = MappingProxyType({})


class TeamFit(NamedTuple):
    """A fit that knows a team's own runs, see `gpustack_mc.pack`.

    Attributes
    ----------
    draws : Draws
    team : Team
        Of the family that the scenario's run belongs to.
    constants, settings : mapping
    loose : float
        Share of the team's totals that are rounded or second-hand.
    runs : int
    """

    draws: program.Draws
    team: program.Team
    constants: Mapping[str, float]
    settings: Mapping[str, Any]
    loose: float
    runs: int


@functools.cache
def draws() -> program.Draws:
    """Return the stored joint draws."""
    text = (catalog.folder("priors") / "utilization" / "draws.csv").read_text(encoding="utf-8")
    return program.read_draws(read_columns(text))


def published_record(constants: Mapping[str, float]) -> program.Record:
    """How the hours of a published run may have been counted, by the shares in a fit."""
    return program.Record(constants["share_loose_record"], constants["share_compute_only"])


def planned_run(
    file: ScenarioFile, accelerator: Accelerator | None, middle: Mapping[str, float], year: int | None
) -> dict[str, Any]:
    """Return a scenario as a row that the program reads; what is not stated is absent and averaged over.

    Parameters
    ----------
    file : ScenarioFile
    accelerator : Accelerator or None
        None for one of the user's own, whose generation is a draw from the population of generations.
    middle : mapping of str to float
        Medians of the workload and of the peak, by quantity.
    year : int or None
    """
    workload = file.workload
    peak = accelerator.peak_flop_per_s["bf16"] if accelerator else middle["peak_flop_per_s"]
    architecture = workload.architecture or ("moe" if workload.active_params is not None else "dense")
    row = {
        "kind": "training",
        "params_active": middle.get("active_params", middle["params"]),
        "tokens": middle["tokens"],
        "n_accelerators": middle["accelerator_count"],
        "peak_16bit_flop_per_s": peak,
        "generation": accelerator.generation if accelerator else program.NEW_GENERATION,
        "architecture": architecture,
        "precision": file.cluster.precision,
        "sequence_length": workload.sequence_length,
        "n_layers": workload.n_layers,
        "d_model": workload.d_model,
        "global_batch_tokens": workload.global_batch_tokens,
        "activation_recompute": workload.activation_recompute,
        "flash_attention": None if workload.flash_attention is None else "yes" if workload.flash_attention else "no",
        "publication_date": None if year is None else str(year),
    }
    return {key: value for key, value in row.items() if value is not None}


def efficiency(
    file: ScenarioFile, accelerator: Accelerator | None, middle: Mapping[str, float], year: int | None,
    evidence: Sequence[program.Evidence] = (), window: running.Window | None = None, *, team: TeamFit | None = None,
) -> Efficiency:  # fmt: skip
    """Predict MFU and goodput of a scenario, or of the rest of it.

    Parameters
    ----------
    file, accelerator, middle, year
        As for `planned_run`.
    evidence : sequence of Evidence
        Observations of this run.
    window : Window, optional
        Losses of the days so far; the prediction is then of the rest of the run.
    team : TeamFit, optional
        The run is the team's next one, whose hours are counted as those of its earlier runs were.
    """
    row = planned_run(file, accelerator, middle, year)
    peak = middle["peak_flop_per_s"]
    # The books of a job that runs are its user's own. Failures and checkpoints account for all hours of a run; how a
    # published record counts them is then left out.
    own_books = window is not None and "accounting" not in file.model_fields_set
    clean = file.accounting == "clean" or own_books or file.reliability is not None
    if team is None and window is None and not evidence:
        return _of_new_team(tuple(row.items()), peak, clean)
    return _predicted(row, peak, clean, evidence, window, team)


# Sites of one run differ in what the program does not read.
@functools.lru_cache(maxsize=64)
def _of_new_team(items: tuple[tuple[str, Any], ...], peak: float, clean: bool) -> Efficiency:
    return _predicted(dict(items), peak, clean)


def _predicted(
    row: Mapping[str, Any], peak: float, clean: bool, evidence: Sequence[program.Evidence] = (),
    window: running.Window | None = None, team: TeamFit | None = None,
) -> Efficiency:  # fmt: skip
    fit = catalog.fit_record("utilization")
    if team is None:
        posterior, learned, fixed = draws(), None, (fit["constants"], fit["settings"])
        record = published_record(fit["constants"])
    else:
        posterior, learned, fixed = team.draws, team.team, (team.constants, team.settings)
        record = program.Record(loose=team.loose)
    record = program.CLEAN if clean else record
    found = program.predict(posterior, [row], *fixed, record=record, evidence=evidence, team=learned)
    weights, means, sds = (part[0] for part in found.log_mfu)
    losses, log_goodput, correlation = weights, found.log_goodput, 0.0
    if window is not None:
        rest = running.rest_of_run(
            posterior, found, window, record, settings=fixed[1], known_team=team is not None,
            resolution=catalog.observed_settings()["loss_resolution"],
        )  # fmt: skip
        weights, means, sds, losses, log_goodput, correlation = rest
    elif team is not None:
        correlation = running.tie(weights, means, sds, log_goodput)
    stated = sorted(set(row) - {"kind", "params_active", "tokens", "peak_16bit_flop_per_s"})
    others = sum(fit["rows"].values()) - fit["rows"]["training"]
    words = f"{fit['rows']['training']} runs of {fit['families']} families, {others} benchmarks and reports"
    return Efficiency(
        tabulated(weights, means + np.log(row["peak_16bit_flop_per_s"] / peak), sds),
        tabulated(losses, log_goodput),
        f"{words}, given {', '.join(stated)}"
        + ("; exact books" if clean else "")
        + ("; then the days so far" if window is not None else ""),
        correlation,
        _epistemic(found, posterior, fixed[1]) if team is None and window is None else {},
    )


def _epistemic(found: program.Prediction, posterior: program.Draws, settings: Mapping[str, Any]) -> dict[str, float]:
    """Shares of the variances of log MFU and log goodput that differ between posterior draws."""
    weights, means, sds = (part[0] for part in found.log_mfu)
    expected = found.expected[0]

    def spread(values: np.ndarray) -> float:
        return float(weights @ (values - weights @ values) ** 2)

    probability = (np.arange(200) + 0.5) / 200
    loss = program.loss_at(probability, posterior.scalar["loss_mean"][:, None], settings["loss_shape"])
    between = spread(loss.mean(axis=1))
    return {
        "mfu": spread(expected) / (spread(means) + float(weights @ sds**2)),
        "goodput": between / (between + float(weights @ loss.var(axis=1))),
    }


def log_peak_ratio(row: Mapping[str, Any], middle: Mapping[str, float]) -> float:
    """Log of the 16-bit peak, which the program counts against, over the peak that a scenario is counted against."""
    return float(np.log(row["peak_16bit_flop_per_s"] / middle["peak_flop_per_s"]))


def tabulated(weights: np.ndarray, means: np.ndarray, sds: np.ndarray | None = None) -> Marginal:
    """Quantile table of exp(y), at most 1, with y a mixture of normals, or of points, of shape (components,)."""
    if sds is None:
        points, weight = means, weights
    else:
        # Many components overlap, so that a few nodes of each make the same distribution.
        nodes, node_weights = (_NODES, _NODE_WEIGHTS) if len(means) <= _MANY else (_COARSE, _COARSE_WEIGHTS)
        points, weight = (means[:, None] + sds[:, None] * nodes).ravel(), (weights[:, None] * node_weights).ravel()
    order = np.argsort(points, kind="stable")
    points, weight = points[order], weight[order]
    # A share above one does not exist: the prediction is conditional on the rest.
    weight = np.where(points <= 0, weight, 0.0)
    cumulative = (np.cumsum(weight) - weight / 2) / weight.sum()
    return Marginal("tabulated", {"values": np.exp(np.interp(_TABLE_U, cumulative, np.minimum(points, 0.0))).tolist()})


def mfu_correlation(rows: Sequence[Mapping[str, Any]]) -> np.ndarray:
    r"""Correlation of log MFU between planned runs of one team, by the joint posterior draws.

    The runs share what is not known about the population, the family effect and covariates that are stated for
    neither; run effects and the noise of records are their own. See `gpustack_mc.coupling`.

    Parameters
    ----------
    rows : sequence of mapping
        From `planned_run`.

    Returns
    -------
    ndarray, shape (rows, rows)
        Positive definite, ones on the diagonal.
    """
    fit = catalog.fit_record("utilization")
    constants, settings = fit["constants"], fit["settings"]
    found = program.predict(draws(), rows, constants, settings, record=published_record(constants)).log_mfu
    weights, beta = found.weights[0], draws().beta
    centred = found.means - (found.means @ weights)[:, None]
    unknown = table.features(rows, constants, settings).variance
    both = np.minimum(unknown[:, None, :], unknown[None, :, :])
    p, (level, slope) = draws().scalar, program.level_and_slope(rows, settings).T
    shared = np.outer(level, level)[:, :, None] * p["family_sd"] ** 2
    shared = shared + np.outer(slope, slope)[:, :, None] * p["family_slope_sd"] ** 2 + both @ (beta**2).T
    covariance = (weights * centred) @ centred.T + shared @ weights
    variance = (weights * centred**2).sum(axis=1) + found.sds**2 @ weights
    correlation: np.ndarray = covariance / np.sqrt(np.outer(variance, variance))
    np.fill_diagonal(correlation, 1.0)
    return correlation
