r"""Yearly cost of operation besides electricity, over the purchase price of accelerator, server and network.

It holds repair, staff, insurance, and the building or the fee of a colocation site, because the purchase price holds
no building. There are no groups; a cost model, or an end of a range, :math:`i` has

.. math::
    \log o_i = \mu + \frac{a_i}{\sqrt{w_i}}, \qquad a_i \sim N(0, \sigma^2),

:math:`w` by kind of evidence; see `gpustack_mc.fits.evidence`. A draw is a new cost model, :math:`\mu + a`.
"""

import math
from typing import Any

from gpustack_mc.fits import chain_checks, evidence, hierarchy
from gpustack_mc.fits.hierarchy import Problem
from gpustack_mc.fits.members import LOG, population
from gpustack_mc.fits.populations import Fitted

Row = dict[str, str]


def problem(rows: list[Row], settings: dict[str, Any]) -> Problem:
    """Records of cost models; the ends of a range are how sites differ, and enter each."""
    records = [
        evidence.Record(math.log(float(row["rate"])), row["id"], settings["weights"][row["evidence"]], row["id"])
        for row in rows
    ]
    return evidence.problem(records, settings)


def fit(rows: list[Row], settings: dict[str, Any]) -> Fitted:
    """Return one population for all owners."""
    posed = problem(rows, settings)
    posterior = hierarchy.sample(posed)
    years = [int(row["year"]) for row in rows]
    found = population(
        posterior, evidence.member(posed), LOG, rows, where={}, years=years,
        label=f"cost models and colocation fees, {min(years)}-{max(years)}",
        method="posterior predictive of a new cost model, weighted by kind of evidence",
    )  # fmt: skip
    return Fitted([found], chain_checks.checks(posed, posterior))
