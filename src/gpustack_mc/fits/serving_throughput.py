r"""Serving throughput: a regression of offline benchmarks, shifted to production.

Rows of one model, accelerator, source and prompt length count once, as their geometric mean; with output tokens per
second and accelerator :math:`\theta_j`,

.. math::
    \log \theta_j = a + b_1 \log_{10} N_{\mathrm{a},j} + b_2 \log_{10} N_j + b_3 \log_{10} P_j + b_4 \log_{10} B_j
        + c\, L_j + e_j, \qquad e_j \sim N(0, \sigma^2),

active and total parameters :math:`N_\mathrm{a}, N` in 1e9, 16-bit peak :math:`P` in TFLOP/s, memory bandwidth
:math:`B` in TB/s, and :math:`L = 1` where prompts are many times longer than answers. The priors of :math:`b_1, b_3`
are centred at what compute-bound batches would show, :math:`\theta \propto P / N_\mathrm{a}`. A service reaches a
share :math:`r` of the benchmark with short prompts, for its load, latency and own prompts,

.. math::
    \log \theta^\mathrm{prod} = \log \theta\,|_{L=0} + \log r, \qquad \log r \sim N(\log \bar r, \sigma_r^2).
"""

from collections import defaultdict
from typing import Any

import numpy as np

from gpustack_mc.fits.least_squares import regression
from gpustack_mc.fits.populations import Population, evidence, sixteen_bit_peak

TERMS = ["intercept", "log10_active_params_b", "log10_params_b", "log10_peak_tflops", "log10_bandwidth_tb_s"]


def benchmarks(rows: list[dict[str, str]]) -> tuple[np.ndarray, np.ndarray]:
    """Covariates with the long-prompt flag last, and log throughput, one row per cell."""
    grouped = defaultdict(list)
    for row in rows:
        grouped[row["model"], row["accelerator"], row["source"], row["long_prompt"]].append(row)
    columns = ("active_params_b", "params_b", "peak_tflops", "bandwidth_tb_s")
    design, response = [], []
    for (*_, long_prompt), group in grouped.items():
        design.append([1.0, *(np.log10(float(group[0][name])) for name in columns), float(long_prompt == "yes")])
        response.append(np.mean([np.log(float(row["output_tokens_per_s"])) for row in group]))
    return np.array(design), np.array(response)


def benchmark_regression(rows: list[dict[str, str]], settings: dict[str, Any]) -> dict:
    """Regression of log benchmark throughput; its last term is the long-prompt flag."""
    design, response = benchmarks(rows)
    names = [*TERMS, "long_prompt"]
    centre = np.array([settings["physical_slope"].get(name, 0.0) for name in names])
    prior_sd = [settings["prior_sd"][name] for name in names]
    fitted = regression(design, response - design @ centre, names, prior_sd=prior_sd)
    return fitted | {"coefficients": [float(value) for value in np.array(fitted["coefficients"]) + centre]}


def production_regression(rows: list[dict[str, str]], settings: dict[str, Any]) -> dict:
    """Regression for a production service: short prompts, times the production share."""
    fitted = benchmark_regression(rows, settings)
    kept = slice(0, len(TERMS))
    coefficients = np.array(fitted["coefficients"])[kept]
    coefficients[0] += np.log(settings["production_share"])
    return sixteen_bit_peak(
        {
            "terms": TERMS,
            "coefficients": [float(value) for value in coefficients],
            "covariance": np.array(fitted["covariance"])[kept, kept].tolist(),
            "residual_sd": float(np.hypot(fitted["residual_sd"], settings["log_sd_production"])),
            "residual_df": fitted["residual_df"],
        }
    )


def fit(rows: list[dict[str, str]], settings: dict[str, Any]) -> list[Population]:
    """One population: any open model on any accelerator."""
    cells = len(benchmarks(rows)[1])
    return [
        Population(
            where={},
            label="Offline benchmarks of open models times the production share, by model size and accelerator",
            family="lognormal",
            parameters={"regression": production_regression(rows, settings)},
            method=f"log regression over {cells} cells of model, accelerator and source; judged production share",
            **evidence(rows),
        )
    ]
