r"""Unexpected interruptions per accelerator and hour: a population of clusters.

A row states a count :math:`k` in a period of :math:`d` days on :math:`n` accelerators, a mean time :math:`m` between
interruptions of a job on :math:`n`, or node failures :math:`f` per 1,000 node-days with :math:`g` accelerators a node:

.. math::
    \lambda = \frac{k}{24\, n\, d}, \qquad \lambda = \frac{1}{n\, m}, \qquad \lambda = \frac{f}{1000 \cdot 24\, g}.

Row :math:`i` of cluster :math:`c` is

.. math::
    \log \lambda_i = \mu + a_c + e_i, \qquad a_c \sim N(0, \sigma^2), \quad e_i \sim N(0, \sigma_\mathrm{count}^2),

sampled by `gpustack_mc.fits.hierarchy`. A draw is a new cluster, :math:`\mu + a`.
"""

import math
from typing import Any

from gpustack_mc.fits import chain_checks, hierarchy
from gpustack_mc.fits.hierarchy import WIDE, Effect, Problem
from gpustack_mc.fits.members import LOG, Member, population
from gpustack_mc.fits.populations import Fitted

Row = dict[str, str]


def rate(row: Row, settings: dict[str, float]) -> float:
    """Return the interruptions per accelerator-hour of one row, 1/h."""
    value, accelerators = float(row["value"]), float(row["accelerators"])
    if row["kind"] == "count":
        return value / (accelerators * float(row["period_days"]) * settings["hours_per_day"])
    if row["kind"] == "hours_between":
        return 1 / (value * accelerators)
    return value / 1000 / (settings["hours_per_day"] * settings["accelerators_per_node"])


def problem(rows: list[Row], settings: dict[str, Any]) -> Problem:
    """Clusters, some with several rows."""
    return Problem(
        rows=[
            hierarchy.Row(
                math.log(rate(row, settings)), {"mean": 1.0, row["system"]: 1.0}, {"count": 1.0}, row["system"],
                (row["id"],),
            )
            for row in rows
        ],
        effects={"mean": Effect(WIDE), **{row["system"]: Effect("clusters") for row in rows}},
        spreads={
            "clusters": hierarchy.expected(settings["cluster_sd"], settings["cluster_weight"]),
            "count": hierarchy.expected(settings["count_sd"], settings["count_weight"]),
        },
    )  # fmt: skip


def fit(rows: list[Row], settings: dict[str, Any]) -> Fitted:
    """Return one population: any cluster."""
    posed = problem(rows, settings)
    posterior = hierarchy.sample(posed)
    systems = {row["system"] for row in rows}
    found = population(
        posterior, Member({"mean": 1.0}, {"clusters": 1.0}), LOG, rows, where={},
        label=f"{len(systems)} training clusters of A100 and H100",
        method="posterior predictive of a new cluster; clusters with several rows count once",
    )  # fmt: skip
    return Fitted([found], chain_checks.checks(posed, posterior))
