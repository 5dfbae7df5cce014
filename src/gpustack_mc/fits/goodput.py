r"""Goodput: a logit-normal population of jobs above a lower end, some of which are known only to exceed a bound.

.. math::
    y_i = \mathrm{logit}\, \frac{g_i - g_0}{1 - g_0} \sim N(\mu, \sigma^2), \qquad p(\mu, \sigma) \propto 1 / \sigma,
    \qquad L = \prod_{i\,\mathrm{exact}} \phi\!\left(\frac{y_i - \mu}{\sigma}\right) \frac{1}{\sigma}
        \prod_{i\,\mathrm{bound}} \left[1 - \Phi\!\left(\frac{y_i - \mu}{\sigma}\right)\right] .

The lower end :math:`g_0` is judged: a job that loses more than that is stopped and mended. Without it the reciprocal of
goodput, which every cost is proportional to, has a tail that no job has shown.

The posterior is summed on a grid; the predictive distribution of a new job is a mixture of normals on the logit
scale. The stored logit-normal has its median and the width of its 5-95% band.
"""

from typing import Any

import numpy as np
from scipy import optimize, stats

from gpustack_mc.fits.populations import Population, evidence


def predictive_quantiles(
    exact: np.ndarray, bounds: np.ndarray, settings: dict[str, Any], probabilities: tuple[float, ...]
) -> list[float]:
    """Quantiles, on the logit scale, of a new job."""
    points = settings["grid_points"]
    mean, sd = np.meshgrid(np.linspace(*settings["grid_mean"], points), np.geomspace(*settings["grid_sd"], points))
    # Uniform in log sd is the prior 1/sd, so that the grid carries the prior.
    log_weight = stats.norm.logpdf(exact[:, None, None], mean, sd).sum(axis=0)
    log_weight += stats.norm.logsf(bounds[:, None, None], mean, sd).sum(axis=0)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    lowest, highest = settings["grid_mean"][0] - 50.0, settings["grid_mean"][1] + 50.0
    return [
        float(optimize.brentq(lambda y, p=p: (weight * stats.norm.cdf(y, mean, sd)).sum() - p, lowest, highest))
        for p in probabilities
    ]


def fit(rows: list[dict[str, str]], settings: dict[str, Any]) -> list[Population]:
    """One population: any job."""
    value = np.array([float(row["goodput"]) for row in rows])
    lower_end = settings["lower_end"]
    logit = np.log((value - lower_end) / (1 - value))
    bound = np.array([row["bound"] == "lower" for row in rows])
    low, median, high = predictive_quantiles(logit[~bound], logit[bound], settings, (0.05, 0.5, 0.95))
    years = [int(row["year"]) for row in rows]
    return [
        Population(
            where={},
            label="Long training jobs that state or allow to compute their productive share, with and without recovery",
            family="logit_normal",
            parameters={
                "mu": median,
                "sigma": (high - low) / (2 * float(stats.norm.ppf(0.95))),
                "low": lower_end,
                "high": 1.0,
            },
            method="grid posterior with lower bounds as censored; predictive of a new job",
            years=[min(years), max(years)],
            **evidence(rows),
        )
    ]
