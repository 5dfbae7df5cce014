r"""Water used on site per kWh of IT energy (WUE).

With :math:`y = \log\frac{\omega}{h - \omega}` of a fleet or survey average :math:`i` in class :math:`c`, hyperscalers
or others,

.. math:: y_i = \mu + \kappa_c + a_i, \qquad \kappa_c \sim N(0, \tau^2), \quad a_i \sim N(0, \sigma^2);

see `gpustack_mc.fits.evidence`. :math:`h` is what a site would use that gets rid of all its heat by evaporation, so
that the prior cannot exceed it. Sites differ at least as fleets do: :math:`\sigma` is expected to be the spread between
sites, next to which the few averages say little. A draw is a new site, :math:`\mu + \kappa_c + a`.
"""

from typing import Any

from gpustack_mc.fits import chain_checks, evidence, hierarchy
from gpustack_mc.fits.hierarchy import Problem
from gpustack_mc.fits.members import Scale, population
from gpustack_mc.fits.populations import Fitted

Row = dict[str, str]
HYPERSCALER = "hyperscaler"


def _scale(settings: dict[str, Any]) -> Scale:
    return Scale(0.0, float(settings["ceiling"]))


def records(rows: list[Row], settings: dict[str, Any]) -> list[evidence.Record]:
    """Averages by class of operator."""
    return [
        evidence.Record(
            _scale(settings).forward(float(row["wue_l_per_kwh"])), row["id"], 1.0, row["id"],
            row["operator_class"] or "other",
        )
        for row in rows
    ]  # fmt: skip


def problem(rows: list[Row], settings: dict[str, Any]) -> Problem:
    """Averages of two classes of operator."""
    return evidence.problem(records(rows, settings), settings)


def fit(rows: list[Row], settings: dict[str, Any]) -> Fitted:
    """Return hyperscaler sites, and the site of an unknown operator."""
    posed = problem(rows, settings)
    posterior = hierarchy.sample(posed)
    fleets = [row for row in rows if row["operator_class"] == HYPERSCALER]
    how = f"posterior predictive of a site below {settings['ceiling']:g} L/kWh, with an expected spread of sites"

    def described(used: list[Row], members: Any, where: dict[str, str], label: str, method: str) -> Any:
        years = [int(row["year"]) for row in used]
        label = f"{label}, {min(years)}-{max(years)}"
        return population(
            posterior, members, _scale(settings), used, where=where, label=label, method=method, years=years
        )

    populations = [
        described(fleets, evidence.member(posed, HYPERSCALER), {"operator": HYPERSCALER},
                  "fleet averages of hyperscalers", how),
        described(rows, evidence.anyone(posed, records(rows, settings)), {},
                  "fleet averages of hyperscalers and the average of US data centres",
                  f"{how}; classes drawn by their number of averages"),
    ]  # fmt: skip
    return Fitted(populations, chain_checks.checks(posed, posterior))
