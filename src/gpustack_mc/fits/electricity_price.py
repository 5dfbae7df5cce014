r"""Electricity price: average of a region, the deviation of one large site from it, and the years since.

.. math::
    \log p \sim N\left(\log \bar p + \delta a + \log f,\;
    \sigma_\mathrm{site}^2 + a\,\sigma_\mathrm{year}^2 + \sigma_\mathrm{source}^2 + \sigma_f^2\right)

with :math:`a` years since the row. :math:`\sigma_\mathrm{site}` is the geometric mean of two predictive spreads that
enclose it: prices that large buyers contracted for anywhere in the US (too wide, they include the differences between
states) and large over medium tariffs of seven cities (too narrow, they differ by size only). :math:`\delta` and
:math:`\sigma_\mathrm{year}` come from the yearly changes of the US industrial average and from how changes of states
scatter around them (the drift applies to the US only); :math:`\sigma_\mathrm{source}` from countries that two sources
report. :math:`f` turns what a row reports into what a large site pays: large over medium tariffs of seven cities for
business tariffs, industrial over commercial averages of the states, and all-in tariffs over energy prices where only
the energy price is known.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from itertools import combinations, pairwise
from statistics import fmean, stdev
from typing import Any, NamedTuple

from gpustack_mc.fits.populations import Population, evidence, predictive_log_normal

Row = dict[str, str]
_ORDER = ("country_datacentre", "country_industrial", "country_business", "energy_only")


class Spreads(NamedTuple):
    """What the rows say about deviations, on the natural-log scale."""

    site: float
    drift: float
    year: float
    source: float
    business: tuple[float, float]
    commercial: tuple[float, float]
    delivery: tuple[float, float]


def fit(rows: list[Row], settings: dict[str, Any]) -> list[Population]:
    """Return populations of US states, Canadian provinces, countries, the US, and the world."""
    by_role: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_role[row["role"]].append(row)
    spreads = _spreads(by_role, settings)
    states = [_state(row, spreads, settings) for row in by_role["state_industrial"]]
    known = {state.where["region"] for state in states}
    states += [_state(row, spreads, settings) for row in by_role["state_commercial_july"] if row["region"] not in known]
    provinces = [
        _population([row], 0.0, (0.0, 0.0), spreads, settings, "large-power tariff, 85% load, ex taxes")
        for row in by_role["tariff_large"]
        if row["region"].startswith("CA-")
    ]
    countries = _countries(by_role, spreads, settings)
    canada = _canada(by_role["tariff_large"], spreads, settings)
    united_states = _united_states(states, spreads, settings)
    nations = [*countries, canada, united_states]
    return [*states, *provinces, *nations, _world(nations, spreads)]


def _price(row: Row) -> float:
    return float(row["usd_per_kwh"])


def _log_ratio(pairs: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Mean and predictive spread of the log of first over second."""
    ratio = predictive_log_normal([first / second for first, second in pairs])
    return ratio.mu, ratio.sigma


def _paired(first: list[Row], second: list[Row]) -> list[tuple[float, float]]:
    other = {row["region"]: _price(row) for row in second}
    return [(_price(row), other[row["region"]]) for row in first if row["region"] in other]


def _spreads(by_role: dict[str, list[Row]], settings: dict[str, Any]) -> Spreads:
    series = sorted(by_role["us_series"], key=lambda row: int(row["year"]))
    changes = [math.log(_price(b) / _price(a)) for a, b in pairwise(series)]
    april: dict[str, dict[str, float]] = defaultdict(dict)
    for row in by_role["april"]:
        april[row["region"]][row["year"]] = _price(row)
    moves = [math.log(prices[max(prices)] / prices[min(prices)]) for prices in april.values()]  # one year apart
    contracts = predictive_log_normal([_price(row) for row in by_role["contract"]])
    business = _log_ratio(_paired(by_role["tariff_large"], by_role["tariff_medium"]))
    return Spreads(
        site=math.sqrt(contracts.sigma * business[1]),
        drift=fmean(changes),
        year=math.hypot(stdev(changes), stdev(moves)),
        source=_disagreement(by_role, settings),
        business=business,
        commercial=_log_ratio(_paired(by_role["state_industrial"], by_role["state_commercial"])),
        delivery=_delivery(by_role, settings),
    )


def _disagreement(by_role: dict[str, list[Row]], settings: dict[str, Any]) -> float:
    """Spread of one source's price of a country, from countries that two sources report within few years."""
    prices: dict[str, list[Row]] = defaultdict(list)
    for role in ("country_datacentre", "country_industrial"):
        for row in by_role[role]:
            prices[row["region"]].append(row)
    squares = [
        math.log(_price(a) / _price(b)) ** 2
        for _, held in sorted(prices.items())
        for a, b in combinations(held, 2)
        if a["source"] != b["source"] and abs(int(a["year"]) - int(b["year"])) <= settings["same_period"]
    ]
    return math.sqrt(fmean(squares) / 2)


def _delivery(by_role: dict[str, list[Row]], settings: dict[str, Any]) -> tuple[float, float]:
    """Log of an all-in price over the price of the energy alone: US average over contracts, Singapore."""
    us = {int(row["year"]): _price(row) for row in by_role["us_series"]}
    contracts = predictive_log_normal([_price(row) for row in by_role["contract"]])
    wholesale = by_role["wholesale"][0]
    tariff = next(row for row in by_role["country_datacentre"] if row["region"] == wholesale["region"])
    ratios = [us[max(us)] / math.exp(contracts.mu), _price(tariff) / _price(wholesale)]
    fitted = predictive_log_normal(ratios, prior_sd=settings["delivery_sd"], prior_weight=settings["delivery_weight"])
    return fitted.mu, fitted.sigma


def _population(
    rows: list[Row], drift: float, factor: tuple[float, float], spreads: Spreads, settings: dict[str, Any], what: str,
    source: float = 0.0,
) -> Population:  # fmt: skip
    """Population of one region from rows of one kind and year."""
    first = rows[0]
    age = max(settings["year"] - int(first["year"]), 0)
    shift = drift * age + factor[0]
    sigma = math.sqrt(spreads.site**2 + age * spreads.year**2 + factor[1] ** 2 + source**2)
    return Population(
        where={"region": first["region"]},
        label=f"{first['place']}, {what}, {first['year']}",
        family="lognormal",
        parameters={"mu": fmean(math.log(_price(row)) for row in rows) + shift, "sigma": sigma},
        method=f"latest value, {age} years old, times {math.exp(shift):.3f}; spread of sites and years",
        years=[int(first["year"])] * 2,
        **evidence(rows),
    )


def _state(row: Row, spreads: Spreads, settings: dict[str, Any]) -> Population:
    if row["role"] == "state_industrial":
        what, factor = "industrial average revenue per kWh with demand and delivery", (0.0, 0.0)
    else:
        what, factor = "commercial average of one month, turned into an industrial one", spreads.commercial
    return _population([row], spreads.drift, factor, spreads, settings, what)


def _countries(by_role: dict[str, list[Row]], spreads: Spreads, settings: dict[str, Any]) -> list[Population]:
    best: dict[str, tuple[tuple[int, int], list[Row]]] = {}
    for rank, role in enumerate(_ORDER):
        for row in by_role[role]:
            key = (rank, -int(row["year"]))
            held = best.get(row["region"])
            if held is None or key < held[0]:
                best[row["region"]] = (key, [row])
            elif key == held[0]:
                held[1].append(row)
    factors = {"country_business": spreads.business, "energy_only": spreads.delivery}
    whats = {
        "country_datacentre": "tariff of data centres",
        "country_industrial": "industrial price, taxes as in the source",
        "country_business": "medium business tariff with levies, turned into a large-power one",
        "energy_only": "energy without grid and taxes, turned into an all-in price",
    }
    populations = []
    for region in sorted(best):
        rows = best[region][1]
        role, basis = rows[0]["role"], rows[0]["demand_or_tax_basis"]
        what = whats[role] + (f" ({basis})" if basis else "")
        factor = factors.get(role, (0.0, 0.0))
        populations.append(_population(rows, 0.0, factor, spreads, settings, what, spreads.source))
    return populations


def _canada(tariffs: list[Row], spreads: Spreads, settings: dict[str, Any]) -> Population:
    rows = [row for row in tariffs if row["region"].startswith("CA-")]
    pooled = predictive_log_normal([_price(row) for row in rows])
    age = settings["year"] - int(rows[0]["year"])
    return Population(
        where={"region": "CA"},
        label=f"Canada, large-power tariffs of {len(rows)} provinces, 85% load, ex taxes, {rows[0]['year']}",
        family="lognormal",
        parameters={"mu": pooled.mu, "sigma": math.sqrt(pooled.sigma**2 + age * spreads.year**2)},
        method=f"Student-t predictive of the provinces, {age} years old",
        years=[int(rows[0]["year"])] * 2,
        **evidence(rows),
    )


def _united_states(states: list[Population], spreads: Spreads, settings: dict[str, Any]) -> Population:
    """Lognormal with mean and variance, on the log scale, of a mixture over the states that host cloud regions."""
    sites = settings["us_sites"]
    hosts = [state for state in states if state.where["region"] in sites]
    weights = [sites[state.where["region"]] for state in hosts]
    total = sum(weights)
    mu = sum(w * s.parameters["mu"] for w, s in zip(weights, hosts, strict=True)) / total
    variance = sum(
        w * (s.parameters["sigma"] ** 2 + (s.parameters["mu"] - mu) ** 2) for w, s in zip(weights, hosts, strict=True)
    )
    return Population(
        where={"region": "US"},
        label=f"US, industrial averages of {len(hosts)} states weighted by the cloud regions they host",
        family="lognormal",
        parameters={"mu": mu, "sigma": math.sqrt(variance / total)},
        n=len(hosts),
        rows=[name for state in hosts for name in state.rows],
        method="mixture of the states' populations, matched in mean and variance of the log",
        sources=sorted({source for state in hosts for source in state.sources}),
        years=[min(s.years[0] for s in hosts), max(s.years[1] for s in hosts)],
    )


def _world(nations: list[Population], spreads: Spreads) -> Population:
    centres = predictive_log_normal([math.exp(nation.parameters["mu"]) for nation in nations])
    rows = sorted({name for nation in nations for name in nation.rows})
    return Population(
        where={},
        label=f"country unknown: central prices of {len(nations)} countries, unweighted, tax bases mixed",
        family="lognormal",
        parameters={"mu": centres.mu, "sigma": math.hypot(centres.sigma, spreads.site)},
        n=len(rows),
        rows=rows,
        method="Student-t predictive over countries, plus the spread of sites",
        sources=sorted({source for nation in nations for source in nation.sources}),
        years=[min(n.years[0] for n in nations), max(n.years[1] for n in nations)],
    )
