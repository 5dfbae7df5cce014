r"""MFU: a regression of utilisation with one random effect per family of runs.

The effective utilisation of run :math:`i` of family :math:`f`, at the dense peak of its stated precision (the fp8
peak for fp8 runs, else the 16-bit peak), is

.. math:: u_i = \frac{6\, N_i D_i}{3600\, h_i P_i}, \qquad u_i = \mu_i g_i,

of which the records show only the product of MFU and goodput. With the mean and variance of :math:`\log g` under the
goodput prior, :math:`m_i = u_i / e^{E \log g}` is the MFU at typical goodput, and

.. math::
    \mathrm{logit}\, m_i = x_i^\top \beta + b\, B_i + a_f + e_i, \qquad
    a_f \sim N(0, \tau^2), \quad e_i \sim N(0, \sigma_{B_i}^2), \quad \beta_j \sim N(0, s_j^2)

:math:`x` holds an intercept, :math:`\min(\log_{10} N / 10^9, 0)`, mixture of experts, fp8 and one effect per
accelerator generation; :math:`B_i = 1` marks rounded, bounded or second-hand records. :math:`\tau, \sigma_0, \sigma_1`
maximise the likelihood with :math:`\beta` integrated out.

The stored regression describes a run of a *new* family. Three steps lead there: :math:`B` is averaged over the share
:math:`p` of such records (one vote per family), which adds :math:`p(1-p)b^2`; :math:`\tau^2` joins the residual
variance; and the variance of goodput, which the MFU prior must not hold a second time, is taken out to first order,

.. math:: \sigma^2 = \tau^2 + (1-p)\sigma_0^2 + p\sigma_1^2 + p(1-p)b^2 - \mathrm{Var}(\log g) / (1 - \bar m)^2 .
"""

from typing import Any, NamedTuple

import numpy as np
from scipy import optimize

from gpustack_mc.constants import FLOP_PER_PARAM_AND_TOKEN, SECONDS_PER_HOUR
from gpustack_mc.fits.populations import Population, evidence

BILLION = 1e9


class Runs(NamedTuple):
    """Training runs as arrays, one entry per run."""

    utilization: np.ndarray
    design: np.ndarray
    loose_record: np.ndarray
    family: np.ndarray


class Mixed(NamedTuple):
    """Posterior of the coefficients at the most likely spreads."""

    coefficients: np.ndarray
    covariance: np.ndarray
    family_sd: float
    record_sd: tuple[float, float]


def terms(settings: dict[str, Any]) -> list[str]:
    """Covariates of the regression, in the order of the coefficients."""
    return ["intercept", "size_below_1b", "moe", "fp8"] + [f"generation={name}" for name in settings["generations"]]


def read_runs(rows: list[dict[str, str]], settings: dict[str, Any]) -> Runs:
    """Utilisation and covariates of the rows of ``data.csv``."""
    active = np.array([float(row["params_active"]) for row in rows])
    tokens = np.array([float(row["tokens"]) for row in rows])
    hours = np.array([float(row["accelerator_hours"]) for row in rows])
    peak = np.array([float(row["peak_flop_per_s"]) for row in rows])
    design = np.column_stack(
        [
            np.ones(len(rows)),
            np.minimum(np.log10(active / BILLION), 0.0),
            [float(row["architecture"] == "moe") for row in rows],
            [float(row["precision"] == "fp8") for row in rows],
            *([float(row["generation"] == name) for row in rows] for name in settings["generations"]),
        ]
    )
    utilization = FLOP_PER_PARAM_AND_TOKEN * active * tokens / (hours * SECONDS_PER_HOUR * peak)
    loose = np.array([row["tier"] != "A" or row["hours_basis"] in ("upper_bound", "plan") for row in rows])
    return Runs(utilization, design, loose, np.array([row["family"] for row in rows]))


def _logit(x: np.ndarray) -> np.ndarray:
    return np.log(x / (1 - x))


def _covariance_of_runs(runs: Runs, family_sd: float, record_sd: tuple[float, float]) -> np.ndarray:
    same_family = runs.family[:, None] == runs.family[None, :]
    return family_sd**2 * same_family + np.diag(np.where(runs.loose_record, record_sd[1], record_sd[0]) ** 2)


def mixed_model(runs: Runs, settings: dict[str, Any]) -> Mixed:
    """Fit the random-effects regression of the module docstring; the last coefficient is that of the record."""
    y = _logit(runs.utilization / np.exp(settings["goodput_log_mean"]))
    x = np.column_stack([runs.design, runs.loose_record])
    names = ("intercept", "size_below_1b", "moe", "fp8")
    prior_sd = [settings[f"prior_sd_{name}"] for name in names]
    prior_sd += [settings["prior_sd_generation"]] * len(settings["generations"]) + [settings["prior_sd_record"]]
    prior_variance = np.square(prior_sd)

    def minus_log_likelihood(log_sd: np.ndarray) -> float:
        tau, tight, loose = np.exp(log_sd)
        covariance = _covariance_of_runs(runs, tau, (tight, loose)) + (x * prior_variance) @ x.T
        factor = np.linalg.cholesky(covariance)
        return float(np.log(np.diag(factor)).sum() + 0.5 * np.square(np.linalg.solve(factor, y)).sum())

    best = optimize.minimize(minus_log_likelihood, np.log([0.4, 0.2, 0.4]), method="L-BFGS-B", bounds=[(-4, 1)] * 3)
    tau, tight, loose = (float(value) for value in np.exp(best.x))
    weighted = np.linalg.solve(_covariance_of_runs(runs, tau, (tight, loose)), x)
    covariance = np.linalg.inv(weighted.T @ x + np.diag(1 / prior_variance))
    return Mixed(covariance @ (weighted.T @ y), covariance, tau, (tight, loose))


def loose_share(runs: Runs) -> float:
    """Share of rounded, bounded or second-hand records, one vote per family."""
    return float(np.mean([runs.loose_record[runs.family == name].mean() for name in np.unique(runs.family)]))


def new_family_regression(rows: list[dict[str, str]], settings: dict[str, Any]) -> dict:
    """Regression on the logit scale for the MFU of a run of a family that is not in the data."""
    runs = read_runs(rows, settings)
    fitted = mixed_model(runs, settings)
    share = loose_share(runs)
    shift = float(fitted.coefficients[-1])
    # The record's shift moves into the intercept, at its share: a linear map of the coefficients.
    to_planner = np.eye(len(fitted.coefficients))[:-1]
    to_planner[0, -1] = share
    typical = float(np.median(runs.utilization) / np.exp(settings["goodput_log_mean"]))
    goodput_variance = (settings["goodput_log_sd"] / (1 - typical)) ** 2
    variance = (
        fitted.family_sd**2
        + (1 - share) * fitted.record_sd[0] ** 2
        + share * fitted.record_sd[1] ** 2
        + share * (1 - share) * shift**2
        - goodput_variance
    )
    return {
        "terms": terms(settings),
        "coefficients": [float(value) for value in to_planner @ fitted.coefficients],
        "covariance": [[float(v) for v in row] for row in to_planner @ fitted.covariance @ to_planner.T],
        "residual_sd": float(np.sqrt(variance)),
        "residual_df": float(len(np.unique(runs.family)) - np.linalg.matrix_rank(runs.design)),
    }


def fit(rows: list[dict[str, str]], settings: dict[str, Any]) -> list[Population]:
    """One population: any training run, by size, generation, architecture and precision."""
    years = [int(row["publication_date"][:4]) for row in rows if row["publication_date"]]
    return [
        Population(
            where={},
            label="Published training runs of language, code and protein models, by size, accelerator and precision",
            family="logit_normal",
            parameters={"regression": new_family_regression(rows, settings)},
            method="logit regression with family effects and shrunken generation effects; variance of goodput removed",
            years=[min(years), max(years)],
            **evidence(rows),
        )
    ]
