r"""Rental price: providers as members of a population, discounts for committed and spot terms, a regression beyond.

One provider's quotes for a group of accelerators in a year and on a term enter as their median. On-demand cells (group,
provider kind, year) have the Student-t predictive of log price with a pooled spread. A term :math:`t` other than
on-demand has a discount :math:`d`, from providers :math:`p` that quote both,

.. math::
    \log d_t \sim N(\delta_t, \sigma_t^2), \qquad
    \log p_{c,t} \sim N(\mu_c + \delta_t,\; \sigma_c^2 + \sigma_t^2),

so that each cell exists on every term. For groups :math:`j` without offers, with :math:`\mu_j` of the newest year,

.. math:: \mu_j = a + b \log_{10} P_j + c\,(\mathrm{release\ year}_j - 2022) + e_j,

and the spread between providers is added to that of :math:`e`.
"""

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np

from gpustack_mc.fits.least_squares import regression
from gpustack_mc.fits.populations import (
    LogFit,
    Population,
    evidence,
    predictive_log_normal,
    sixteen_bit_peak,
)

ON_DEMAND = "on_demand"
Rows = list[dict[str, str]]


class Discount(NamedTuple):
    """Log ratio of a term's price to the on-demand price."""

    mu: float
    sigma: float
    rows: Rows


def _grouped(rows: Rows, *columns: str) -> dict[tuple[str, ...], Rows]:
    groups: dict[tuple[str, ...], Rows] = defaultdict(list)
    for row in rows:
        groups[tuple(row[column] for column in columns)].append(row)
    return dict(groups)


def _median(rows: Rows) -> float:
    return float(np.median([float(row["usd_per_hour"]) for row in rows]))


def _year(row: dict[str, str]) -> str:
    return row["year_month"][:4]


def members(rows: Rows, settings: dict[str, Any]) -> list[float]:
    """One price per provider, or per region and month where there is a single seller."""
    by = ("region", "year_month") if rows[0]["group"] in settings["single_seller"] else ("provider", "provider_kind")
    return [_median(quotes) for quotes in _grouped(rows, *by).values()]


def _cell(rows: Rows, settings: dict[str, Any]) -> LogFit:
    return predictive_log_normal(
        members(rows, settings), prior_sd=settings["prior_sd"], prior_weight=settings["prior_weight"]
    )


def discounts(rows: Rows, settings: dict[str, Any]) -> dict[str, Discount]:
    """Discount of every other term, one mean per provider and group."""
    pairs: dict[str, dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    used: dict[str, Rows] = defaultdict(list)
    for quotes in _grouped(rows, "provider", "group", "year_month", "region").values():
        by_term = _grouped(quotes, "term")
        base = by_term.pop((ON_DEMAND,), None)
        for (term,), committed in by_term.items():
            if base:
                key = (quotes[0]["provider"], quotes[0]["group"])
                pairs[term][key].append(_median(committed) / _median(base))
                used[term] += committed
    result = {}
    for term, ratios in pairs.items():
        fitted = predictive_log_normal(
            [float(np.exp(np.mean(np.log(values)))) for values in ratios.values()],
            prior_sd=settings["discount_prior_sd"], prior_weight=settings["prior_weight"],
        )  # fmt: skip
        result[term] = Discount(fitted.mu, fitted.sigma, used[term])
    return result


def cells(rows: Rows, settings: dict[str, Any]) -> list[tuple[dict[str, str], Rows]]:
    """On-demand cells: by group, kind and year; by group and year; and by group where no year has enough providers."""
    found = []
    for (group,), offers in _grouped(rows, "group").items():
        by_year = defaultdict(list)
        for row in offers:
            by_year[_year(row)].append(row)
        enough = False
        for year, quotes in sorted(by_year.items()):
            if len(members(quotes, settings)) >= settings["min_providers"]:
                found.append(({"accelerator": group, "year": year}, quotes))
                enough = True
            for (kind,), of_kind in sorted(_grouped(quotes, "provider_kind").items()):
                single = group in settings["single_seller"]
                if not single and len(members(of_kind, settings)) >= settings["min_providers"]:
                    found.append(({"accelerator": group, "provider_kind": kind, "year": year}, of_kind))
        if not enough:
            found.append(({"accelerator": group}, offers))
    return found


def _on_every_term(where: dict[str, str], label: str, fitted: LogFit, offers: Rows, by_term: dict[str, Discount],
                   method: str) -> list[Population]:  # fmt: skip
    years = [int(_year(row)) for row in offers]
    populations = []
    for term, discount in {ON_DEMAND: Discount(0.0, 0.0, []), **by_term}.items():
        times = "" if term == ON_DEMAND else f"; times the {term} discount"
        terms = "on demand" if term == ON_DEMAND else f"on-demand offers times the {term} discount of all chips"
        populations.append(
            Population(
                where={**where, "term": term},
                label=f"{label}, {terms}",
                family="lognormal",
                parameters={"mu": fitted.mu + discount.mu, "sigma": float(np.hypot(fitted.sigma, discount.sigma))},
                method=method + times,
                years=[min(years), max(years)],
                **evidence([*offers, *discount.rows]),
            )
        )
    return populations


def _newest_cells(rows: Rows, settings: dict[str, Any]) -> dict[str, Rows]:
    """Offers of the newest year that has enough providers, else all, per group."""
    newest: dict[str, Rows] = {}
    for where, offers in cells(rows, settings):
        if "provider_kind" not in where:
            newest[where["accelerator"]] = offers  # cells come in the order of years
    return newest


def _beyond(rows: Rows, by_term: dict[str, Discount], settings: dict[str, Any]) -> list[Population]:
    newest = _newest_cells(rows, settings)
    design = np.array(
        [[1.0, np.log10(float(o[0]["peak_tflops"])), float(o[0]["release_year"]) - 2022] for o in newest.values()]
    )
    response = np.array([_cell(offers, settings).mu for offers in newest.values()])
    between = float(np.mean([_cell(offers, settings).sigma ** 2 for offers in newest.values()]))
    terms = ["intercept", "log10_peak_tflops", "release_year_minus_2022"]
    fitted = sixteen_bit_peak(regression(design, response, terms))
    used = [row for offers in newest.values() for row in offers]
    populations = []
    for term, discount in {None: Discount(0.0, 0.0, []), **by_term}.items():
        coefficients = [fitted["coefficients"][0] + discount.mu, *fitted["coefficients"][1:]]
        spread = float(np.sqrt(fitted["residual_sd"] ** 2 + between + discount.sigma**2))
        populations.append(
            Population(
                where={} if term is None else {"term": term},
                label=f"Accelerators without offers, by 16-bit peak FLOP/s and release year, {term or 'on demand'}",
                family="lognormal",
                parameters={"regression": fitted | {"coefficients": coefficients, "residual_sd": spread}},
                method=f"log regression over {len(newest)} groups, newest year each; spread between providers added",
                **evidence([*used, *discount.rows]),
            )
        )
    return populations


def fit(rows: Rows, settings: dict[str, Any]) -> list[Population]:
    """On-demand cells on every term, and a regression for accelerators without offers."""
    on_demand = [row for row in rows if row["term"] == ON_DEMAND]
    by_term = discounts(rows, settings)
    populations = []
    for where, offers in cells(on_demand, settings):
        number = len(members(offers, settings))
        kind = where.get("provider_kind", "any provider")
        label = f"{where['accelerator']}, {kind}, {where.get('year', 'all years')}"
        method = f"{number} member(s), one median each; Student-t predictive of the log, spread pooled with prior_sd"
        populations += _on_every_term(where, label, _cell(offers, settings), offers, by_term, method)
    return [*populations, *_beyond(on_demand, by_term, settings)]
