r"""Embodied carbon: module plus an eighth of the server.

The mean :math:`m_{ag}` of the values that author :math:`a` gives for modules of generation :math:`g`, and the value
:math:`h_a` of a server without accelerators, are

.. math::
    \log m_{ag} &= \mu_m + \gamma_g + e_{ag}, \qquad \gamma_g \sim N(0, \tau^2), \quad e \sim N(0, \sigma_m^2), \\
    \log h_a &= \mu_h + e'_a, \qquad e' \sim N(0, \sigma_h^2),

sampled by `gpustack_mc.fits.hierarchy`: methods disagree more than objects, so that a generation with one value
borrows from the others. With :math:`k` accelerators per server a draw is one more study's

.. math:: E = m + h / k .

The sum is stored as the lognormal with its median and the width of its 5-95% band.
"""

import math
from collections import defaultdict
from typing import Any

import numpy as np
from scipy import stats

from gpustack_mc.fits import chain_checks, hierarchy
from gpustack_mc.fits.hierarchy import WIDE, Effect, Problem
from gpustack_mc.fits.members import Match, Member, match, mixture
from gpustack_mc.fits.populations import Fitted, Population, evidence

Row = dict[str, str]
_POINTS = 400  # equal-probability points per part; the quantiles no longer change in the third digit
_OTHER = "other"  # modules of no accelerator in the table


def lognormal_of_sum(first: Match, second: Match, factor: float) -> tuple[float, float]:
    """Location and scale of the lognormal that stands for ``first + factor * second``."""
    z = stats.norm.ppf((np.arange(_POINTS) + 0.5) / _POINTS)
    total = np.exp(first.mu + first.sigma * z)[:, None] + factor * np.exp(second.mu + second.sigma * z)[None, :]
    low, median, high = np.log(np.quantile(total, [0.05, 0.5, 0.95]))
    return float(median), float((high - low) / (2 * stats.norm.ppf(0.95)))


def _generation(row: Row) -> str:
    return row["generation"] or _OTHER


def problem(rows: list[Row], settings: dict[str, Any]) -> Problem:
    """One row per author and accelerator, or author of a server: the mean of their values."""
    grouped: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        grouped[row["part"], row["author"], row["accelerator"]].append(row)
    posed = []
    effects = {"card": Effect(WIDE), "host": Effect(WIDE)}
    for (part, author, accelerator), held in grouped.items():
        y = math.log(float(np.mean([float(row["kgco2e"]) for row in held])))
        shared = {part: 1.0}
        if part == "card":
            shared[_generation(held[0])] = 1.0
            effects[_generation(held[0])] = Effect("generations")
        ids = tuple(row["id"] for row in held)
        posed.append(hierarchy.Row(y, shared, {f"{part}:methods": 1.0}, f"{part} {author} {accelerator}", ids))
    weight = settings["prior_weight"]
    return Problem(
        posed,
        effects,
        {
            "generations": hierarchy.half_normal(settings["generation_sd"]),
            "card:methods": hierarchy.expected(settings["card_prior_sd"], weight),
            "host:methods": hierarchy.expected(settings["host_prior_sd"], weight),
        },
    )


def fit(rows: list[Row], settings: dict[str, Any]) -> Fitted:
    """One population per generation with module values, and one over all modules."""
    posed = problem(rows, settings)
    posterior = hierarchy.sample(posed)
    host_rows = [row for row in rows if row["part"] == "host"]
    host = match(mixture(posterior, Member({"host": 1.0}, {"host:methods": 1.0})))
    modules: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["part"] == "card":
            modules[_generation(row)].append(row)
    own = {name: Member({"card": 1.0, name: 1.0}, {"card:methods": 1.0}, weight=len(modules[name])) for name in modules}
    cases = [(name, [own[name]], modules[name]) for name in modules if name != _OTHER]
    cases.append(("", list(own.values()), [row for held in modules.values() for row in held]))
    populations = []
    for name, members, used in cases:
        found = mixture(posterior, members)
        card = match(found)
        mu, sigma = lognormal_of_sum(card, host, 1 / settings["accelerators_per_server"])
        populations.append(
            Population(
                where={"accelerator": name} if name else {},
                label=f"{name or 'All'} modules plus the share of the server",
                family="lognormal",
                parameters={"mu": mu, "sigma": sigma},
                method="posterior predictives of one more study: module, pooled over generations, plus server over "
                f"{settings['accelerators_per_server']}",
                match={"inside": round(card.inside, 4), "tails": round(card.tails, 4)},
                **evidence([*used, *host_rows]),
            )
        )
    return Fitted(populations, chain_checks.checks(posed, posterior))
