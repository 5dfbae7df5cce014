r"""Time from an interruption until work resumes: teams that restart the job, and systems that recover in place.

With :math:`y = \log R` of row :math:`i` of team :math:`t` and way of recovering :math:`c`,

.. math::
    y_i = \mu + \kappa_c + a_{tc}, \qquad
    \kappa_c \sim N(0, \tau^2), \quad a_{tc} \sim N(0, \sigma_c^2), \quad \log\sigma_c = \log\sigma + \omega z_c,

sampled by `gpustack_mc.fits.hierarchy`; see `gpustack_mc.fits.evidence`. A draw is a new team,
:math:`\mu + \kappa_c + a`. Who does not say how the run recovers is taken to restart the job.
"""

import math
from typing import Any

from gpustack_mc.fits import chain_checks, evidence, hierarchy
from gpustack_mc.fits.hierarchy import Problem
from gpustack_mc.fits.members import LOG, population
from gpustack_mc.fits.populations import Fitted

Row = dict[str, str]


def records(rows: list[Row]) -> list[evidence.Record]:
    """Times by team and way of recovering; one team in two ways is two members."""
    return [
        evidence.Record(
            math.log(float(row["value_min"])), f"{row['team']}, {row['kind']}", 1.0, row["id"], row["kind"]
        )
        for row in rows
    ]  # fmt: skip


def problem(rows: list[Row], settings: dict[str, Any]) -> Problem:
    """Times of teams that recover in one of two ways."""
    return evidence.problem(records(rows), settings)


def fit(rows: list[Row], settings: dict[str, Any]) -> Fitted:
    """Return restarts of the job, which are also the last resort, and recovery in place."""
    posed = problem(rows, settings)
    posterior = hierarchy.sample(posed)
    restart, in_place = ([row for row in rows if row["kind"] == kind] for kind in ("restart", "in_place"))
    label = f"restarts of the whole job by {len({row['team'] for row in restart})} teams"

    def described(used: list[Row], kind: str, where: dict[str, str], label: str) -> Any:
        return population(
            posterior, evidence.member(posed, kind), LOG, used, where=where, label=label,
            method="posterior predictive of a new team; spreads of the two ways pooled",
        )  # fmt: skip

    populations = [
        described(restart, "restart", {"recovery": "restart"}, label),
        described(in_place, "in_place", {"recovery": "in_place"}, f"recovery in place, {len(in_place)} systems"),
        described(restart, "restart", {}, label),
    ]
    return Fitted(populations, chain_checks.checks(posed, posterior))
