r"""Unexpected interruptions per accelerator and hour: a lognormal population of clusters.

A row states a count :math:`k` in a period of :math:`d` days on :math:`n` accelerators, a mean time :math:`m` between
interruptions of a job on :math:`n`, or node failures :math:`f` per 1,000 node-days with :math:`g` accelerators a node:

.. math::
    \lambda = \frac{k}{24\, n\, d}, \qquad \lambda = \frac{1}{n\, m}, \qquad \lambda = \frac{f}{1000 \cdot 24\, g}.

Rows of one cluster are averaged on the log scale; :math:`\log \lambda` of a new cluster is Student-t, stored as the
lognormal with the same 5-95% band.
"""

from typing import Any

import numpy as np

from gpustack_mc.fits.populations import Population, evidence, predictive_log_normal


def rate(row: dict[str, str], settings: dict[str, Any]) -> float:
    """Return the interruptions per accelerator-hour of one row, 1/h."""
    value, accelerators = float(row["value"]), float(row["accelerators"])
    if row["kind"] == "count":
        return value / (accelerators * float(row["period_days"]) * settings["hours_per_day"])
    if row["kind"] == "hours_between":
        return 1 / (value * accelerators)
    return value / 1000 / (settings["hours_per_day"] * settings["accelerators_per_node"])


def fit(rows: list[dict[str, str]], settings: dict[str, Any]) -> list[Population]:
    """Return one population: any cluster."""
    systems = sorted({row["system"] for row in rows})
    by_system = [
        float(np.exp(np.mean([np.log(rate(row, settings)) for row in rows if row["system"] == system])))
        for system in systems
    ]
    found = predictive_log_normal(by_system)
    return [
        Population(
            where={},
            label=f"{len(systems)} training clusters of A100 and H100",
            family="lognormal",
            parameters={"mu": found.mu, "sigma": found.sigma},
            method="Student-t predictive of logs, one value per cluster",
            **evidence(rows),
        )
    ]
