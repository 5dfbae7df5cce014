r"""Rental price: providers in markets of accelerator, year and kind; discounts for committed and spot terms.

One provider's offers of a group of accelerators :math:`g` in a year :math:`y` on demand enter as their median. With
:math:`k` the kind of the provider :math:`i`,

.. math::
    \log p_{igy} &= \mu_{gyk} + e_{igy}, \qquad e \sim N(0, \sigma_k^2), \quad
        \log \sigma_k = \log \sigma + \omega z_k, \\
    \mu_{gyk} &= a + b\,(\log_{10} P_g - 3) + c\,(\mathrm{release\ year}_g - 2022) + \gamma_g + \upsilon_{gy}
        + \kappa_k, \\
    \gamma &\sim N(0, \sigma_\gamma^2), \quad \upsilon \sim N(0, \sigma_\upsilon^2), \quad
    \kappa \sim N(0, \sigma_\kappa^2),

so that a market with three offers borrows from the same accelerator in other years, from the same kind elsewhere, and
from the line of the 16-bit peak :math:`P` in TFLOP/s and release year. An effect of accelerator, year and kind
together had a spread of 0.05, an eighth of that between providers, and is left out. Accelerators that one company
alone rents out have its regions and months as members, with a spread of their own. Providers count once per market,
whatever else they offer. A term :math:`t` has a discount from providers that quote both on one day and place, one
mean per provider and group,

.. math::
    \log d_{itg} = \delta_t + \pi_{it} + e'_{itg}, \qquad \pi \sim N(0, \sigma_\pi^2), \quad
    e' \sim N(0, \sigma_t^2), \quad \log \sigma_t = \log \sigma' + \omega' z_t .

Sampled by `gpustack_mc.fits.hierarchy`. A draw is a new provider, :math:`\mu_{gyk} + e`, on a term other than on
demand with :math:`\delta_t + \pi + e'` added, so that each market exists on every term. Where the kind is not known it
is drawn as often as the market has providers of it; where the accelerator has no offers, :math:`\gamma` and
:math:`\upsilon` are new, and the kind is one more of its population.
"""

from collections import defaultdict
from typing import Any

import numpy as np

from gpustack_mc.fits import chain_checks, hierarchy
from gpustack_mc.fits.hierarchy import WIDE, Effect, Posterior, Problem
from gpustack_mc.fits.members import LOG, Member, population, regression_population
from gpustack_mc.fits.populations import Fitted, Population

ON_DEMAND = "on_demand"
TERMS = {"intercept": 0.0, "log10_peak_tflops": 3.0, "release_year_minus_2022": 0.0}
Row = dict[str, str]
Rows = list[Row]


def _grouped(rows: Rows, *columns: str) -> dict[tuple[str, ...], Rows]:
    groups: dict[tuple[str, ...], Rows] = defaultdict(list)
    for row in rows:
        groups[tuple(row[column] for column in columns)].append(row)
    return dict(groups)


def _median(rows: Rows) -> float:
    return float(np.median([float(row["usd_per_hour"]) for row in rows]))


def _year(row: Row) -> str:
    return row["year_month"][:4]


def _ids(rows: Rows) -> tuple[str, ...]:
    return tuple(row["id"] for row in rows)


def members(rows: Rows, settings: dict[str, Any]) -> list[Rows]:
    """Offers of each provider, or of each region and month where there is a single seller."""
    by = ("region", "year_month") if rows[0]["group"] in settings["single_seller"] else ("provider", "provider_kind")
    return list(_grouped(rows, *by).values())


def discounts(rows: Rows) -> dict[tuple[str, str, str], tuple[float, Rows]]:
    """Mean log discount and the offers behind it, by term, provider and group."""
    pairs: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    used: dict[tuple[str, str, str], Rows] = defaultdict(list)
    for quotes in _grouped(rows, "provider", "group", "year_month", "region").values():
        by_term = _grouped(quotes, "term")
        base = by_term.pop((ON_DEMAND,), None)
        for (term,), committed in by_term.items():
            if base:
                key = (term, quotes[0]["provider"], quotes[0]["group"])
                pairs[key].append(float(np.log(_median(committed) / _median(base))))
                used[key] += committed
    return {key: (float(np.mean(values)), used[key]) for key, values in sorted(pairs.items())}


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


# ---- program --------------------------------------------------------------------------------------------------------
def line(row: Row) -> dict[str, float]:
    """Covariates of a group of accelerators."""
    return {
        "intercept": 1.0,
        "log10_peak_tflops": float(np.log10(float(row["peak_tflops"]))) - TERMS["log10_peak_tflops"],
        "release_year_minus_2022": float(row["release_year"]) - 2022,
    }


def market(row: Row) -> dict[str, float]:
    """Effects that make the mean of the market that an offer belongs to."""
    group, kind = row["group"], row["provider_kind"]
    return line(row) | {f"group:{group}": 1.0, f"year:{group}:{_year(row)}": 1.0, f"kind:{kind}": 1.0}


def _spread(row: Row, settings: dict[str, Any]) -> str:
    return "regions" if row["group"] in settings["single_seller"] else f"providers:{row['provider_kind']}"


_SPREAD_OF = {"group": "groups", "year": "years", "kind": "kinds"}


def problem(rows: Rows, settings: dict[str, Any]) -> Problem:
    """One row per provider and market, and per provider, group and term."""
    on_demand = [row for row in rows if row["term"] == ON_DEMAND]
    paired = discounts(rows)
    terms = sorted({term for term, *_ in paired})
    kinds = sorted({row["provider_kind"] for row in on_demand})
    half, expected, pooled = hierarchy.half_normal, hierarchy.expected, hierarchy.pooled
    omega = settings["pooled_spread"]
    posed = Problem(
        [],
        {
            "intercept": Effect(WIDE),
            "log10_peak_tflops": Effect(settings["peak_slope_sd"]),
            "release_year_minus_2022": Effect(settings["year_slope_sd"]),
            **{f"discount:{term}": Effect(WIDE) for term in terms},
        },
        {
            **{name: half(settings["group_sd"]) for name in _SPREAD_OF.values()},
            "providers": expected(settings["prior_sd"], settings["prior_weight"]),
            "regions": expected(settings["prior_sd"], settings["prior_weight"]),
            "sellers": half(settings["discount_prior_sd"]),
            "discounts": expected(settings["discount_prior_sd"], settings["prior_weight"]),
            **{f"providers:{kind}": pooled("providers", omega) for kind in kinds},
            **{f"discounts:{term}": pooled("discounts", omega) for term in terms},
        },
    )
    for offers in _grouped(on_demand, "group", "provider_kind").values():
        by_year = defaultdict(list)
        for row in offers:
            by_year[_year(row)].append(row)
        for quotes in by_year.values():
            for held in members(quotes, settings):
                _offer(posed, held, settings)
    for (term, provider, _), (y, held) in paired.items():
        seller = f"seller:{term}:{provider}"
        posed.effects[seller] = Effect("sellers")
        shared = {f"discount:{term}": 1.0, seller: 1.0}
        posed.rows.append(hierarchy.Row(y, shared, {f"discounts:{term}": 1.0}, provider, _ids(held)))
    return posed


def _offer(posed: Problem, held: Rows, settings: dict[str, Any]) -> None:
    shared = market(held[0])
    for name in shared:
        level, _, rest = name.partition(":")
        if rest:
            posed.effects[name] = Effect(_SPREAD_OF[level])
    y = float(np.log(_median(held)))
    unit = f"{held[0]['group']} {held[0]['provider_kind']} {_year(held[0])}"
    posed.rows.append(hierarchy.Row(y, shared, {_spread(held[0], settings): 1.0}, unit, _ids(held)))


# ---- populations ----------------------------------------------------------------------------------------------------
def _of_cell(offers: Rows, settings: dict[str, Any]) -> list[Member]:
    """New providers of a cell, by kind and year as often as it has members of them."""
    found = []
    by_market: dict[tuple[str, str], Rows] = defaultdict(list)
    for row in offers:
        by_market[row["provider_kind"], _year(row)].append(row)
    for _, held in sorted(by_market.items()):
        weight = float(len(members(held, settings)))
        found.append(Member(market(held[0]), {_spread(held[0], settings): 1.0}, weight=weight))
    return found


def _on_term(member: Member, term: str) -> Member:
    if term == ON_DEMAND:
        return member
    effects = {**member.effects, f"discount:{term}": 1.0}
    return member._replace(effects=effects, noise={**member.noise, "sellers": 1.0, f"discounts:{term}": 1.0})


def fit(rows: Rows, settings: dict[str, Any]) -> Fitted:
    """On-demand cells on every term, and a regression for accelerators without offers."""
    posed = problem(rows, settings)
    posterior = hierarchy.sample(posed)
    on_demand = [row for row in rows if row["term"] == ON_DEMAND]
    by_term: dict[str, Rows] = {ON_DEMAND: []}
    for (term, *_), (_, used) in discounts(rows).items():
        by_term.setdefault(term, []).extend(used)
    found = cells(on_demand, settings)
    populations = []
    for where, offers in found:
        number = len(members(offers, settings))
        kind = where.get("provider_kind", "any provider")
        for term, used in by_term.items():
            terms = "on demand" if term == ON_DEMAND else f"on-demand offers times the {term} discount of all chips"
            populations.append(
                population(
                    posterior, [_on_term(member, term) for member in _of_cell(offers, settings)], LOG,
                    [*offers, *used], where={**where, "term": term}, years=[int(_year(row)) for row in offers],
                    label=f"{where['accelerator']}, {kind}, {where.get('year', 'all years')}, {terms}",
                    method=f"posterior predictive of a new provider; {number} known, one median each; markets pooled"
                    + ("" if term == ON_DEMAND else f"; times the {term} discount"),
                )
            )  # fmt: skip
    return Fitted([*populations, *_beyond(posterior, found, by_term)], chain_checks.checks(posed, posterior))


def _beyond(
    posterior: Posterior, found: list[tuple[dict[str, str], Rows]], by_term: dict[str, Rows]
) -> list[Population]:
    newest = {where["accelerator"]: offers for where, offers in found if "provider_kind" not in where}
    used = [row for offers in newest.values() for row in offers]
    new = Member({}, {name: 1.0 for name in _SPREAD_OF.values()} | {"providers": 1.0})
    populations = []
    for term in (None, *(name for name in by_term if name != ON_DEMAND)):
        populations.append(
            regression_population(
                posterior, TERMS, _on_term(new, term or ON_DEMAND), [*used, *(by_term[term] if term else [])],
                cases=[line(offers[0]) for offers in newest.values()], where={"term": term} if term else {}, peak=True,
                label=f"Accelerators without offers, by 16-bit peak FLOP/s and release year, {term or 'on demand'}",
                method=f"posterior predictive of a new group and provider, from {len(newest)} groups",
            )
        )  # fmt: skip
    return populations
