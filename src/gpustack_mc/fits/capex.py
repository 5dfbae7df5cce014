r"""Capex: list prices of servers and cards by author, in groups of accelerators along a line of peak and release year.

A price :math:`q_i` by one author, their geometric mean if they quote several, leaves out the network or also the
server. With :math:`C` the all-in price per accelerator,

.. math::
    \log q_i = \log C_i + \nu [\text{not a cluster}] - \lambda_{g(i)} [\text{card}], \qquad
    \nu \sim N(\log(1 - \bar s), \sigma_s^2), \quad \lambda_g \sim N(\log \bar k, \sigma_k^2),

where :math:`\bar s` is the share of the network in a cluster and :math:`\bar k` the price of a server over that of its
cards, which is a group's own. Authors :math:`i` are members of groups :math:`g`,

.. math::
    \log C_i = \mu_g + e_i, \qquad e_i \sim N(0, \sigma_g^2), \qquad
    \mu_g = a + b\,(\log_{10} P_g - 3) + c\,(\mathrm{release\ year}_g - 2022) + \gamma_g, \quad
    \gamma \sim N(0, \tau^2),

with the 16-bit peak :math:`P` in TFLOP/s. TPUs, of which only estimates exist, are one group of chips with a
:math:`\mu` and a :math:`\sigma` of its own. Spreads of groups with several prices are pooled, :math:`\log \sigma_g =
\log \sigma + \omega z_g`; the others have :math:`\sigma`. Sampled by `gpustack_mc.fits.hierarchy`. A draw is a new
buyer, :math:`\mu_g + e`; for an accelerator without a price :math:`\gamma` is new.
"""

import math
from collections import defaultdict
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from gpustack_mc.fits import chain_checks, hierarchy
from gpustack_mc.fits.hierarchy import WIDE, Effect, Problem
from gpustack_mc.fits.members import LOG, Member, population, regression_population
from gpustack_mc.fits.populations import Fitted

Row = dict[str, str]
TERMS = {"intercept": 0.0, "log10_peak_tflops": 3.0, "release_year_minus_2022": 0.0}
TPU = "tpu"


class Price(NamedTuple):
    """Price of one group by one author."""

    group: str
    basis: str
    rows: list[Row]


def group_of(row: Row, settings: dict[str, Any]) -> str:
    """Group of accelerators; all TPUs are one."""
    return TPU if row["group"] in settings["estimated_groups"] else row["group"]


def prices(rows: list[Row], settings: dict[str, Any]) -> list[Price]:
    """One entry per group, author and basis."""
    grouped: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        grouped[group_of(row, settings), row["author"], row["basis"]].append(row)
    return [Price(group, basis, held) for (group, _, basis), held in grouped.items()]


def mean_of(row: Row, settings: dict[str, Any]) -> dict[str, float]:
    """Effects that make the all-in price of a group."""
    group = group_of(row, settings)
    if group == TPU:
        return {TPU: 1.0}
    return {
        "intercept": 1.0,
        "log10_peak_tflops": float(np.log10(float(row["peak_tflops"]))) - TERMS["log10_peak_tflops"],
        "release_year_minus_2022": float(row["release_year"]) - 2022,
        f"group:{group}": 1.0,
    }


def _spread(group: str, posed: Problem) -> str:
    if group == TPU:
        return "chips"
    return f"authors:{group}" if f"authors:{group}" in posed.spreads else "authors"


def problem(rows: list[Row], settings: dict[str, Any]) -> Problem:
    """Prices by authors of groups."""
    quoted = prices(rows, settings)
    groups = list(dict.fromkeys(price.group for price in quoted))
    several = [
        name for name in groups if name != TPU and sum(p.group == name for p in quoted) >= settings["own_spread_from"]
    ]
    effects = {
        "intercept": Effect(WIDE),
        "log10_peak_tflops": Effect(settings["peak_slope_sd"]),
        "release_year_minus_2022": Effect(settings["year_slope_sd"]),
        TPU: Effect(WIDE),
        "network": Effect(settings["log_sd_network"], math.log(1 - settings["interconnect_share"])),
    }
    effects |= {f"group:{name}": Effect("groups") for name in groups if name != TPU}
    posed = Problem(
        [],
        effects,
        {
            "groups": hierarchy.half_normal(settings["group_sd"]),
            "authors": hierarchy.expected(settings["prior_sd"], settings["prior_weight"]),
            "chips": hierarchy.expected(settings["chip_sd"], settings["prior_weight"]),
            **{f"authors:{name}": hierarchy.pooled("authors", settings["pooled_spread"]) for name in several},
        },
    )
    for price in quoted:
        shared = mean_of(price.rows[0], settings)
        if price.basis != "cluster":
            shared["network"] = 1.0
        if price.basis == "card":
            shared[f"server:{price.group}"] = -1.0
            effects[f"server:{price.group}"] = Effect(settings["log_sd_server"], math.log(settings["server_to_card"]))
        y = fmean(math.log(float(row["value"])) for row in price.rows)
        ids = tuple(row["id"] for row in price.rows)
        posed.rows.append(hierarchy.Row(y, shared, {_spread(price.group, posed): 1.0}, price.group, ids))
    return posed


def fit(rows: list[Row], settings: dict[str, Any]) -> Fitted:
    """One population per group of accelerators, one for TPUs, and a regression for the rest."""
    posed = problem(rows, settings)
    posterior = hierarchy.sample(posed)
    grouped: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        grouped[group_of(row, settings)].append(row)
    counts = {name: sum(price.group == name for price in prices(rows, settings)) for name in grouped}
    populations = [
        population(
            posterior, Member(mean_of(held[0], settings), {_spread(name, posed): 1.0}), LOG, held,
            where={"accelerator": name}, years=[int(row["year_month"][:4]) for row in held if row["year_month"]],
            label="TPUs: an analyst's estimates per chip, with server and network share" if name == TPU else
            f"{name}: server or card prices with network share",
            method=f"posterior predictive of a new buyer; {counts[name]} price(s), one per author" +
            ("" if name == TPU else "; groups pooled along peak and release year"),
        )
        for name, held in grouped.items()
    ]  # fmt: skip
    sold = [held for name, held in grouped.items() if name != TPU]
    populations.append(
        regression_population(
            posterior, TERMS, Member({}, {"groups": 1.0, "authors": 1.0}), [row for held in sold for row in held],
            cases=[mean_of(held[0], settings) for held in sold], where={}, peak=True,
            label="Accelerators on sale, by 16-bit peak FLOP/s and release year; for groups without a price",
            method=f"posterior predictive of a new group and buyer, from {len(sold)} groups of accelerators",
        )
    )  # fmt: skip
    return Fitted(populations, chain_checks.checks(posed, posterior))
