r"""Share of the hardware's life in which it is busy with any job.

.. math::
    \log\frac{u}{1 - u} \sim N(\mu, \sigma^2)

:math:`\mu` is the weighted mean over clusters, :math:`\sigma` the Student-t predictive spread for a new one. Measured
clusters count in full; the two ends of a stated range, and assumptions, by half.
"""

import math
from typing import Any

import numpy as np

from gpustack_mc.fits.populations import Population, evidence, predictive_widening

Row = dict[str, str]


def fit(rows: list[Row], settings: dict[str, Any]) -> list[Population]:
    """Return neoclouds, and any owner."""
    neoclouds = [row for row in rows if row["owner"] == "neocloud"]
    pooled = _moments(rows, settings)[1]
    label = "neoclouds, stated ranges and assumptions"
    return [
        _population({"provider_kind": "neocloud"}, label, neoclouds, settings, pooled),
        _population({}, "research clusters, clouds and planning figures", rows, settings, None),
    ]


def _moments(rows: list[Row], settings: dict[str, Any]) -> tuple[float, float, float]:
    """Weighted mean and variance of the logits, and the effective number of rows."""
    share = np.array([float(row["share"]) for row in rows])
    weight = np.array([settings["weights"][row["evidence"]] for row in rows])
    logit = np.log(share / (1 - share))
    n = float(weight.sum() ** 2 / (weight**2).sum())
    mean = float(np.average(logit, weights=weight))
    return mean, float(np.average((logit - mean) ** 2, weights=weight)) * n / (n - 1), n


def _population(
    where: dict[str, str], label: str, rows: list[Row], settings: dict[str, Any], pooled: float | None
) -> Population:
    mean, variance, n = _moments(rows, settings)
    freedom, how = n - 1, "Student-t predictive of logits, weighted by kind of evidence"
    if pooled is not None:
        extra = settings["prior_weight"]
        variance = (variance * freedom + extra * pooled) / (freedom + extra)
        freedom += extra
        how += f", with the spread of all rows worth {extra} observations"
    years = [int(row["year"]) for row in rows]
    return Population(
        where=where,
        label=f"{label}, {min(years)}-{max(years)}",
        family="logit_normal",
        parameters={"mu": mean, "sigma": math.sqrt(variance) * predictive_widening(n, freedom)},
        method=how,
        years=[min(years), max(years)],
        **evidence(rows),
    )
