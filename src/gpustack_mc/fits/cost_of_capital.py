r"""Yearly cost of the money bound in the hardware: a population of companies.

With :math:`y = \log r` of record :math:`i` (a loan, a modelled cost of capital, an assumption) of company :math:`m`,

.. math::
    y_i = \mu + \frac{a_m + e_i}{\sqrt{w_i}}, \qquad
    a_m \sim N(0, \sigma^2), \quad e_i \sim N(0, \sigma_\mathrm{record}^2),

:math:`w` by kind of evidence; see `gpustack_mc.fits.evidence`. However many loans a company has, they inform its own
:math:`a_m`. A draw is a new company, :math:`\mu + a`.
"""

import math
from typing import Any

from gpustack_mc.fits import chain_checks, evidence, hierarchy
from gpustack_mc.fits.hierarchy import Problem
from gpustack_mc.fits.members import LOG, population
from gpustack_mc.fits.populations import Fitted

Row = dict[str, str]


def problem(rows: list[Row], settings: dict[str, Any]) -> Problem:
    """Records of companies."""
    records = [
        evidence.Record(math.log(float(row["rate"])), row["company"], settings["weights"][row["evidence"]], row["id"])
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
        label=f"debt, modelled cost of capital and assumptions, one vote per company, {min(years)}-{max(years)}",
        method="posterior predictive of a new company, weighted by kind of evidence",
    )  # fmt: skip
    return Fitted([found], chain_checks.checks(posed, posterior))
