r"""Time for which training stands still to save a checkpoint: teams that save synchronously, and asynchronously.

With :math:`y = \log\frac{\delta}{h - \delta}` of row :math:`i` of team :math:`t` and way of saving :math:`c`,

.. math::
    y_i = \mu + \kappa_c + a_{tc} + e_i, \qquad
    \kappa_c \sim N(0, \tau^2), \quad a_{tc} \sim N(0, \sigma_c^2), \quad \log\sigma_c = \log\sigma + \omega z_c, \quad
    e_i \sim N(0, \sigma_\mathrm{record}^2),

sampled by `gpustack_mc.fits.hierarchy`; see `gpustack_mc.fits.evidence`. :math:`e` is there only for teams with several
rows; the few asynchronous teams borrow from the spread of the others. :math:`h` is longer than anyone waits. A draw is
a new team, :math:`\mu + \kappa_c + a`; where the way of saving is not known, both are equally likely.
"""

from typing import Any

from gpustack_mc.fits import chain_checks, evidence, hierarchy
from gpustack_mc.fits.hierarchy import Problem
from gpustack_mc.fits.members import Scale, population
from gpustack_mc.fits.populations import Fitted

Row = dict[str, str]
KINDS = ("synchronous", "asynchronous")


def _scale(settings: dict[str, Any]) -> Scale:
    return Scale(0.0, float(settings["ceiling"]))


def records(rows: list[Row], settings: dict[str, Any]) -> list[evidence.Record]:
    """Times by team and way of saving; one team in two ways is two members."""
    return [
        evidence.Record(
            _scale(settings).forward(float(row["value_s"])), f"{row['team']}, {row['kind']}", 1.0, row["id"],
            row["kind"],
        )
        for row in rows
    ]  # fmt: skip


def problem(rows: list[Row], settings: dict[str, Any]) -> Problem:
    """Times of teams that save in one of two ways."""
    return evidence.problem(records(rows, settings), settings)


def fit(rows: list[Row], settings: dict[str, Any]) -> Fitted:
    """Return the two ways of saving, and a scenario that states none."""
    posed = problem(rows, settings)
    posterior = hierarchy.sample(posed)
    how = "posterior predictive of a new team; spreads of the two ways pooled"

    def described(used: list[Row], members: Any, where: dict[str, str], label: str, method: str = how) -> Any:
        return population(posterior, members, _scale(settings), used, where=where, label=label, method=method)

    populations = []
    for kind in KINDS:
        held = [row for row in rows if row["kind"] == kind]
        label = f"{kind} saving by {len({row['team'] for row in held})} teams"
        populations.append(described(held, evidence.member(posed, kind), {"checkpointing": kind}, label))
    label = f"saving by {len({row['team'] for row in rows})} teams, synchronous or not"
    both = [evidence.member(posed, kind) for kind in KINDS]
    populations.append(described(rows, both, {}, label, f"{how}; both ways equally likely"))
    return Fitted(populations, chain_checks.checks(posed, posterior))
