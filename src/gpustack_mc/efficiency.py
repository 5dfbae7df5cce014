r"""MFU and goodput of a scenario, from the joint posterior draws of the utilisation program.

Draw :math:`s` of the posterior says that log MFU is :math:`N(m_s, v_s^2)` and that goodput is :math:`g_s`. Averaged
over the draws, each becomes a quantile table.
"""

import functools
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from gpustack_mc import catalog
from gpustack_mc.catalog import Accelerator
from gpustack_mc.fits import utilization_data as table
from gpustack_mc.fits import utilization_predict as program
from gpustack_mc.fits.draws_file import read_columns
from gpustack_mc.priors import TABLE_SIZE, TABLE_Z, Marginal
from gpustack_mc.schema import ScenarioFile

# Nodes that stand for one normal component: spacing 0.1 reproduces its distribution function to 1e-5.
_NODES = np.linspace(-6.0, 6.0, 121)
_NODE_WEIGHTS = np.exp(-0.5 * _NODES**2) / np.exp(-0.5 * _NODES**2).sum()
_TABLE_U = np.array([NormalDist().cdf(z) for z in np.linspace(-TABLE_Z, TABLE_Z, TABLE_SIZE)])


class Efficiency(NamedTuple):
    """What the fit says of a scenario.

    Attributes
    ----------
    mfu, goodput : Marginal
        MFU against the peak at the scenario's precision.
    words : str
        What was predicted from what, in one line.
    """

    mfu: Marginal
    goodput: Marginal
    words: str


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
    file: ScenarioFile, accelerator: Accelerator | None, middle: Mapping[str, float], year: int | None
) -> Efficiency:
    """Predict MFU and goodput of a scenario; the parameters are those of `planned_run`."""
    row = planned_run(file, accelerator, middle, year)
    return _predicted(tuple(row.items()), middle["peak_flop_per_s"], file.accounting == "clean")


# Sites of one run differ in what the program does not read.
@functools.lru_cache(maxsize=64)
def _predicted(items: tuple[tuple[str, Any], ...], peak: float, clean: bool) -> Efficiency:
    row, fit = dict(items), catalog.fit_record("utilization")
    record = program.CLEAN if clean else published_record(fit["constants"])
    found = program.predict(draws(), [row], fit["constants"], fit["settings"], record=record)
    # The program counts against the 16-bit peak; the scenario's run may be counted against that of fp8.
    shift = np.log(row["peak_16bit_flop_per_s"] / peak)
    weights, means, sds = (part[0] for part in found.log_mfu)
    stated = sorted(set(row) - {"kind", "params_active", "tokens", "peak_16bit_flop_per_s"})
    others = sum(fit["rows"].values()) - fit["rows"]["training"]
    words = f"{fit['rows']['training']} runs of {fit['families']} families, {others} benchmarks and reports"
    return Efficiency(
        _tabulated(weights, means + shift, sds),
        _tabulated(weights, found.log_goodput, np.zeros_like(sds)),
        f"{words}, given {', '.join(stated)}" + ("; exact books" if clean else ""),
    )


def _tabulated(weights: np.ndarray, means: np.ndarray, sds: np.ndarray) -> Marginal:
    """Quantile table of exp(y), at most 1, with y a mixture of normals of shape (components,)."""
    points = (means[:, None] + sds[:, None] * _NODES).ravel()
    weight = (weights[:, None] * _NODE_WEIGHTS).ravel()
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
    shared = draws().scalar["family_sd"] ** 2 + both @ (beta**2).T
    covariance = (weights * centred) @ centred.T + shared @ weights
    variance = (weights * centred**2).sum(axis=1) + found.sds**2 @ weights
    correlation = covariance / np.sqrt(np.outer(variance, variance))
    np.fill_diagonal(correlation, 1.0)
    return correlation
