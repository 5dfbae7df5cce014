r"""Compute of a whole programme over that of its final run.

With :math:`y = \log\frac{\kappa - 1}{h - \kappa}`, a log of :math:`\kappa - 1` in all but the far tail, which the
ceiling :math:`h` cuts, a programme, or an end of a range, :math:`i` has

.. math::
    y_i = \mu + \frac{a_i}{\sqrt{w_i}}, \qquad a_i \sim N(0, \sigma^2),

:math:`w` by kind of evidence. There are no groups; see `gpustack_mc.fits.evidence`. A draw is a new
programme, :math:`\mu + a`.
"""

from typing import Any

from gpustack_mc.fits import chain_checks, evidence, hierarchy
from gpustack_mc.fits.hierarchy import Problem
from gpustack_mc.fits.members import Scale, population
from gpustack_mc.fits.populations import Fitted

Row = dict[str, str]


def _scale(settings: dict[str, Any]) -> Scale:
    return Scale(1.0, float(settings["ceiling"]))


def problem(rows: list[Row], settings: dict[str, Any]) -> Problem:
    """Records of programmes; the ends of a range are how programmes differ, and enter each."""
    records = [
        evidence.Record(
            _scale(settings).forward(float(row["factor"])), row["id"], settings["weights"][row["evidence"]],
            row["id"],
        )
        for row in rows
    ]  # fmt: skip
    return evidence.problem(records, settings)


def fit(rows: list[Row], settings: dict[str, Any]) -> Fitted:
    """Return one population for all programmes."""
    posed = problem(rows, settings)
    posterior = hierarchy.sample(posed)
    years = [int(row["year"]) for row in rows]
    found = population(
        posterior, evidence.member(posed), _scale(settings), rows, where={}, years=years,
        label=f"disclosed programmes and estimates for companies, {min(years)}-{max(years)}",
        method="posterior predictive of a new programme, weighted by kind of evidence",
    )  # fmt: skip
    return Fitted([found], chain_checks.checks(posed, posterior))
