r"""Share of the hardware's life in which it is busy with any job: neoclouds, and any owner.

With :math:`y` the logit of the share of record :math:`i` in class :math:`c`, neoclouds or others,

.. math::
    y_i = \mu + \kappa_c + \frac{a_i}{\sqrt{w_i}}, \qquad
    \kappa_c \sim N(0, \tau^2), \quad a_i \sim N(0, \sigma^2),

:math:`w` by kind of evidence: measured clusters count in full, ends of stated ranges and assumptions by half; see
`gpustack_mc.fits.evidence`. A draw is a new fleet, :math:`\mu + \kappa_c + a`.
"""

from typing import Any

from gpustack_mc.fits import chain_checks, evidence, hierarchy
from gpustack_mc.fits.hierarchy import Problem
from gpustack_mc.fits.members import Scale, population
from gpustack_mc.fits.populations import Fitted

Row = dict[str, str]
NEOCLOUD = "neocloud"
_SHARE = Scale(0.0, 1.0)


def records(rows: list[Row], settings: dict[str, Any]) -> list[evidence.Record]:
    """Shares by class of owner."""
    return [
        evidence.Record(
            _SHARE.forward(float(row["share"])), row["id"], settings["weights"][row["evidence"]], row["id"],
            row["owner"] if row["owner"] == NEOCLOUD else "other",
        )
        for row in rows
    ]  # fmt: skip


def problem(rows: list[Row], settings: dict[str, Any]) -> Problem:
    """Fleets of two classes of owner."""
    return evidence.problem(records(rows, settings), settings)


def fit(rows: list[Row], settings: dict[str, Any]) -> Fitted:
    """Return neoclouds, and any owner."""
    posed = problem(rows, settings)
    posterior = hierarchy.sample(posed)
    neoclouds = [row for row in rows if row["owner"] == NEOCLOUD]
    how = "posterior predictive of a new fleet, weighted by kind of evidence"

    def described(used: list[Row], members: Any, where: dict[str, str], label: str, method: str) -> Any:
        years = [int(row["year"]) for row in used]
        label = f"{label}, {min(years)}-{max(years)}"
        return population(posterior, members, _SHARE, used, where=where, label=label, method=method, years=years)

    populations = [
        described(neoclouds, evidence.member(posed, NEOCLOUD), {"provider_kind": NEOCLOUD},
                  "neoclouds, stated ranges and assumptions", f"{how}, pooled with other owners"),
        described(rows, evidence.anyone(posed, records(rows, settings)), {},
                  "research clusters, clouds and planning figures", f"{how}; classes drawn by that weight"),
    ]  # fmt: skip
    return Fitted(populations, chain_checks.checks(posed, posterior))
