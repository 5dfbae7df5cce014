r"""Serving throughput: offline benchmarks of models on accelerators, shifted to production.

Rows of one model, accelerator, source and prompt length count once, as their geometric mean; with output tokens per
second and accelerator :math:`\theta_j`,

.. math::
    \log \theta_j = b_0 + b_1 \log_{10} N_{\mathrm{a},j} + b_2 \log_{10} N_j + b_3 \log_{10} P_j + b_4 \log_{10} B_j
        + c\, L_j + \alpha_{m(j)} + \gamma_{h(j)} + \zeta_{s(j)} + e_j, \qquad b \sim N(b^*, t^2),

active and total parameters :math:`N_\mathrm{a}, N` in 1e9, 16-bit peak :math:`P` in TFLOP/s, memory bandwidth
:math:`B` in TB/s, and :math:`L = 1` where prompts are many times longer than answers. The priors of :math:`b_1, b_3`
are centred at what compute-bound batches would show, :math:`\theta \propto P / N_\mathrm{a}`. Models :math:`m`,
accelerators :math:`h` and sources :math:`s` are pooled,

.. math::
    \alpha \sim N(0, \tau_\alpha^2), \quad \gamma \sim N(0, \tau_\gamma^2), \quad \zeta \sim N(0, \tau_\zeta^2), \quad
    e \sim N(0, \sigma^2),

so that twelve cells of one model do not count as twelve models; sampled by `gpustack_mc.fits.hierarchy`. A service
reaches a share :math:`r` of the benchmark with short prompts, for its load, latency and own prompts,

.. math::
    \log \theta^\mathrm{prod} = \log \theta\,|_{L=0} + \log r, \qquad \log r \sim N(\log \bar r, \sigma_r^2),

and a draw is a service with a new model, accelerator and stack, :math:`\zeta + e` of one new source.
"""

from collections import defaultdict
from statistics import fmean
from typing import Any

import numpy as np

from gpustack_mc.fits import chain_checks, hierarchy
from gpustack_mc.fits.hierarchy import WIDE, Effect, Posterior, Problem
from gpustack_mc.fits.members import Member, regression_population
from gpustack_mc.fits.populations import Fitted, Population

Row = dict[str, str]
TERMS = {
    "intercept": 0.0, "log10_active_params_b": 1.5, "log10_params_b": 1.5, "log10_peak_tflops": 3.0,
    "log10_bandwidth_tb_s": 0.5,
}  # fmt: skip
"""Slopes, and what is taken from their covariates so that the intercept lies among the benchmarks."""
_COLUMNS = ("active_params_b", "params_b", "peak_tflops", "bandwidth_tb_s")
_GROUPS = ("model", "accelerator", "source")


def cells(rows: list[Row]) -> list[list[Row]]:
    """Rows of one model, accelerator, source and prompt length."""
    grouped: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        grouped[(*(row[name] for name in _GROUPS), row["long_prompt"])].append(row)
    return list(grouped.values())


def covariates(row: Row) -> dict[str, float]:
    """Slopes' covariates of one row."""
    logs = dict(zip(list(TERMS)[1:], (float(np.log10(float(row[name]))) for name in _COLUMNS), strict=True))
    return {"intercept": 1.0} | {name: value - TERMS[name] for name, value in logs.items()}


def _row(held: list[Row]) -> hierarchy.Row:
    first = held[0]
    effects = covariates(first) | {f"{name}:{first[name]}": 1.0 for name in _GROUPS}
    if first["long_prompt"] == "yes":
        effects["long_prompt"] = 1.0
    y = fmean(float(np.log(float(row["output_tokens_per_s"]))) for row in held)
    return hierarchy.Row(y, effects, {"cells": 1.0}, first["model"], tuple(row["id"] for row in held))


def problem(rows: list[Row], settings: dict[str, Any]) -> Problem:
    """Cells along lines of size, peak and bandwidth, with effects of model, accelerator and source."""
    posed = [_row(held) for held in cells(rows)]
    slopes = {
        name: Effect(settings["slope_sd"][name], settings["physical_slope"].get(name, 0.0)) for name in list(TERMS)[1:]
    }
    groups = {f"{name}:{row[name]}": Effect(f"{name}s") for name in _GROUPS for row in rows}
    return Problem(
        posed,
        {
            "intercept": Effect(WIDE),
            **slopes,
            "long_prompt": Effect(settings["slope_sd"]["long_prompt"]),
            **groups,
        },
        {
            **{f"{name}s": hierarchy.half_normal(settings["group_sd"]) for name in _GROUPS},
            "cells": hierarchy.expected(settings["cell_sd"], settings["cell_weight"]),
        },
    )


def service(posterior: Posterior, rows: list[Row], settings: dict[str, Any]) -> Population:
    """Population of new services: a new model, accelerator and source, times the production share."""
    distinct = {tuple(covariates(held[0]).items()): covariates(held[0]) for held in cells(rows)}
    noise = {**{f"{name}s": 1.0 for name in _GROUPS}, "cells": 1.0}
    new = Member({}, noise, settings["log_sd_production"] ** 2, center=float(np.log(settings["production_share"])))
    return regression_population(
        posterior, TERMS, new, rows, cases=list(distinct.values()), where={}, peak=True,
        label="Offline benchmarks of open models times the production share, by model size and accelerator",
        method=f"posterior predictive of a new model, accelerator and source, from {len(cells(rows))} cells; judged "
        "production share",
    )  # fmt: skip


def fit(rows: list[Row], settings: dict[str, Any]) -> Fitted:
    """One population: any open model on any accelerator."""
    posed = problem(rows, settings)
    posterior = hierarchy.sample(posed)
    return Fitted([service(posterior, rows, settings)], chain_checks.checks(posed, posterior))
