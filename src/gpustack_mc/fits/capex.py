r"""Capex: list prices of servers, raised by the network share, per group of accelerators.

A price :math:`q` becomes an all-in price per accelerator by what it leaves out,

.. math::
    C = \frac{q}{1 - s}\ (\text{server}), \qquad C = \frac{q\,k}{1 - s}\ (\text{card}), \qquad C = q\ (\text{cluster}),

with :math:`s` the share of the network in a cluster and :math:`k` the price of a server over that of its cards.
Prices by one author count once, as their geometric mean. A group has the Student-t predictive of :math:`\log C`, its
spread pooled with that of other groups, to which the uncertainty of :math:`s` and :math:`k` is added:

.. math:: \sigma^2 = \sigma_\mathrm{pred}^2 + \sigma_s^2 + \pi_\mathrm{card}\, \sigma_k^2 .

For any other accelerator, over groups :math:`j`,

.. math:: \overline{\log C}_j = a + b \log_{10} P_j + c\,(\mathrm{release\ year}_j - 2022) + e_j .
"""

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np

from gpustack_mc.fits.least_squares import regression
from gpustack_mc.fits.populations import Population, evidence, predictive_log_normal, sixteen_bit_peak


class Price(NamedTuple):
    """All-in price per accelerator by one author, USD."""

    usd: float
    from_card: bool


def all_in(row: dict[str, str], settings: dict[str, Any]) -> float:
    """Price of one row with server and network, USD per accelerator."""
    usd = float(row["value"])
    if row["basis"] == "cluster":
        return usd
    with_server = usd * (settings["server_to_card"] if row["basis"] == "card" else 1.0)
    return with_server / (1 - settings["interconnect_share"])


def prices(rows: list[dict[str, str]], settings: dict[str, Any]) -> list[Price]:
    """One price per author and basis: the geometric mean of what they quote."""
    grouped = defaultdict(list)
    for row in rows:
        grouped[row["author"], row["basis"]].append(np.log(all_in(row, settings)))
    return [Price(float(np.exp(np.mean(logs))), basis == "card") for (_, basis), logs in grouped.items()]


def _population(where: dict[str, str], rows: list[dict[str, str]], settings: dict[str, Any], label: str) -> Population:
    quoted = prices(rows, settings)
    fitted = predictive_log_normal(
        [price.usd for price in quoted], prior_sd=settings["prior_sd"], prior_weight=settings["prior_weight"]
    )
    cards = np.mean([price.from_card for price in quoted])
    conversion = settings["log_sd_network"] ** 2 + cards * settings["log_sd_server"] ** 2
    years = [int(row["year_month"][:4]) for row in rows if row["year_month"]]
    return Population(
        where=where,
        label=label,
        family="lognormal",
        parameters={"mu": fitted.mu, "sigma": float(np.hypot(fitted.sigma, np.sqrt(conversion)))},
        method=f"{len(quoted)} price(s), one per author; Student-t predictive of the log; pooled spread and conversion",
        years=[min(years), max(years)],
        **evidence(rows),
    )


def fit(rows: list[dict[str, str]], settings: dict[str, Any]) -> list[Population]:
    """One population per group of accelerators, one for TPUs, and a regression for the rest."""
    grouped = defaultdict(list)
    for row in rows:
        grouped["tpu" if row["group"] in settings["estimated_groups"] else row["group"]].append(row)
    populations = [
        _population({"accelerator": name}, members, settings,
                    "TPUs: an analyst's estimates per chip, with server and network share" if name == "tpu" else
                    f"{name}: server or card prices with network share")
        for name, members in grouped.items()
    ]  # fmt: skip
    sold = [name for name in grouped if name != "tpu"]
    design = np.array(
        [
            [1.0, np.log10(float(grouped[name][0]["peak_tflops"])), float(grouped[name][0]["release_year"]) - 2022]
            for name in sold
        ]
    )
    response = np.array([np.mean([np.log(price.usd) for price in prices(grouped[name], settings)]) for name in sold])
    fitted = regression(design, response, ["intercept", "log10_peak_tflops", "release_year_minus_2022"])
    fitted["residual_sd"] = float(np.hypot(fitted["residual_sd"], settings["log_sd_network"]))
    general = Population(
        where={},
        label="Accelerators on sale, by 16-bit peak FLOP/s and release year; for groups without a price",
        family="lognormal",
        parameters={"regression": sixteen_bit_peak(fitted)},
        method=f"log regression over {len(sold)} groups of accelerators, one mean each",
        **evidence([row for name in sold for row in grouped[name]]),
    )
    return [*populations, general]
