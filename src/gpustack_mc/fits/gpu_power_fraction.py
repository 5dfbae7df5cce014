r"""Board power over TDP: sites of GPUs, and TPUs whose listed TDP means something else.

Power is averaged over all accelerator-hours of a run, those that are lost included. A row that covers busy time alone
is multiplied by :math:`1 - \lambda \iota (1 - \rho)`, with :math:`\lambda` the lost share of the time, :math:`\iota`
the part of it that is idle and not repeated work, and :math:`\rho` idle over busy power.

Rows of one site count once, as their mean. With :math:`h` the highest possible share, 1 or the measured maximum where
that is far below the listed TDP, site :math:`s` of kind :math:`k` (GPUs, or one TPU) has

.. math::
    \log\frac{\phi_s}{h_k - \phi_s} = \mu + \kappa_k + a_s, \qquad
    \kappa_k \sim N(0, \tau^2), \quad a_s \sim N(0, \sigma^2),

sampled by `gpustack_mc.fits.hierarchy`, so that a TPU with one value borrows spread and, in part, place. The mean over
a run cannot exceed the board limit. A draw is a new site, :math:`\mu + \kappa_k + a`.
"""

from collections import defaultdict
from typing import Any

import numpy as np

from gpustack_mc.fits import chain_checks, hierarchy
from gpustack_mc.fits.hierarchy import WIDE, Effect, Problem
from gpustack_mc.fits.members import Member, Scale, population
from gpustack_mc.fits.populations import Fitted

Row = dict[str, str]
GPU = "GPU"


def _kind(row: Row, settings: dict[str, Any]) -> str:
    return row["accelerator"] if row["accelerator"] in settings["own_population"] else GPU


def _scale(kind: str, settings: dict[str, Any]) -> Scale:
    return Scale(0.0, settings["highest"].get(kind, 1.0))


def share(row: Row, settings: dict[str, Any]) -> float:
    """Board power over TDP, averaged over all time of a run."""
    found = float(row["board_power_w"]) / float(row["tdp_w"])
    if row["covers"] == "busy time":
        found *= 1 - settings["lost_share"] * settings["lost_share_idle"] * (1 - settings["idle_over_busy"])
    return found


def problem(rows: list[Row], settings: dict[str, Any]) -> Problem:
    """One row per site: the mean of its shares."""
    sites = defaultdict(list)
    for row in rows:
        sites[row["site"]].append(row)
    posed = []
    for site, held in sites.items():
        kind = _kind(held[0], settings)
        y = _scale(kind, settings).forward(float(np.mean([share(row, settings) for row in held])))
        ids = tuple(row["id"] for row in held)
        posed.append(hierarchy.Row(y, {"mean": 1.0, f"kind:{kind}": 1.0}, {"sites": 1.0}, site, ids))
    kinds = {name for row in posed for name in row.effects if name != "mean"}
    return Problem(
        posed,
        {"mean": Effect(WIDE), **{name: Effect("kinds") for name in sorted(kinds)}},
        {
            "kinds": hierarchy.half_normal(settings["kind_sd"]),
            "sites": hierarchy.expected(settings["prior_sd"], settings["prior_weight"]),
        },
    )


def fit(rows: list[Row], settings: dict[str, Any]) -> Fitted:
    """Any accelerator from the GPU sites, and the TPUs."""
    posed = problem(rows, settings)
    posterior = hierarchy.sample(posed)
    populations = [
        population(
            posterior, Member({"mean": 1.0, f"kind:{kind}": 1.0}, {"sites": 1.0}), _scale(kind, settings),
            [row for row in rows if _kind(row, settings) == kind],
            where={} if kind == GPU else {"accelerator": kind},
            label="Measured board power of A100 and H100 in training" if kind == GPU else
                  f"{kind}: measured mean chip power over the listed TDP",
            method="posterior predictive of a new site; spread, and in part place, pooled with other kinds",
        )
        for kind in [*settings["own_population"], GPU]
    ]  # fmt: skip
    return Fitted(populations, chain_checks.checks(posed, posterior))
