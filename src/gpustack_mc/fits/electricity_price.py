r"""Electricity price: average of a region, the deviation of one large site from it, and the years since.

The price that one large site pays in a region whose figure is :math:`\bar p`, :math:`a` years old, is

.. math::
    \log p = \log \bar p + a \delta + f + d + \sqrt{a}\,(n + r) + u, \qquad
    d \sim N(0, \sigma_\mathrm{site}^2), \quad n \sim N(0, \sigma_n^2), \quad r \sim N(0, \sigma_r^2), \quad
    u \sim N(0, \sigma_\mathrm{source}^2),

with a step :math:`n` of the nation and :math:`r` of the region per year, the error :math:`u` of a source of a country,
and :math:`f` what turns the kind of the figure into what a large site pays. The region's own figure stays the centre:
it is a report about the region and no sample of the others'. What regions have in common is learned from

.. math::
    \text{US average, year on year:} \quad & \log (p_{t+1} / p_t) = \delta + n_t, \\
    \text{states, April on April:} \quad & \log (p_{s,t+1} / p_{s,t}) = \delta + n_t + r_{s,t}, \\
    \text{two sources of a country, years } b \text{ apart:} \quad & \log (p_1 / p_2) \sim
        N\big(0,\; 2 \sigma_\mathrm{source}^2 + b\,(\sigma_n^2 + \sigma_r^2)\big), \\
    \text{contracts of large buyers:} \quad & \log p_i \sim N(\mu_c, \sigma_c^2), \\
    \text{large over medium tariffs:} \quad & \log (p_\mathrm{large} / p_\mathrm{medium}) \sim N(f_b, \sigma_b^2), \\
    \text{industrial over commercial:} \quad & \log (p_\mathrm{ind} / p_\mathrm{com}) \sim N(f_k, \sigma_k^2), \\
    \text{all-in over energy price:} \quad & \log (p / p_\mathrm{energy}) \sim N(f_e, \sigma_e^2),

the last from Singapore and from the US average over :math:`\mu_c`. No row shows the spread of sites around the average
of their region. Two spreads enclose it: that of contracts anywhere in the US is too wide, as it includes the
differences between states, and that of size discounts too narrow. It is their common centre,

.. math::
    \log \sigma_c = \log \sigma_\mathrm{site} + \omega z_c, \qquad
    \log \sigma_b = \log \sigma_\mathrm{site} + \omega z_b .

The drift :math:`\delta` applies to the US only. Canada and the country that is not listed are new members of the
populations of provinces and of countries, :math:`\log \bar p_j \sim N(\mu, \tau^2)`. The US is a mixture of the states
that host cloud regions. Sampled by `gpustack_mc.fits.hierarchy`.
"""

import math
from collections import defaultdict
from itertools import combinations, pairwise
from statistics import fmean
from typing import Any, NamedTuple

from gpustack_mc.fits import chain_checks, hierarchy
from gpustack_mc.fits.hierarchy import WIDE, Effect, Posterior, Problem
from gpustack_mc.fits.members import LOG, Member, population
from gpustack_mc.fits.populations import Fitted, Population

Row = dict[str, str]
Roles = dict[str, list[Row]]
_ORDER = ("country_datacentre", "country_industrial", "country_business", "energy_only")
_WHAT = {
    "country_datacentre": "tariff of data centres",
    "country_industrial": "industrial price, taxes as in the source",
    "country_business": "medium business tariff with levies, turned into a large-power one",
    "energy_only": "energy without grid and taxes, turned into an all-in price",
}
_FACTOR = {"country_business": "business", "energy_only": "delivery"}
_HOW = "latest value, {age} years old{factor}; spread of sites, years{source}"


class Figure(NamedTuple):
    """What is known of one region: the member that a site there is, with its rows and words."""

    region: str
    member: Member
    rows: list[Row]
    label: str
    method: str


def by_role(rows: list[Row]) -> Roles:
    """Rows by what they say."""
    found: Roles = defaultdict(list)
    for row in rows:
        found[row["role"]].append(row)
    return found


def _log(row: Row) -> float:
    return math.log(float(row["usd_per_kwh"]))


def _mean(rows: list[Row]) -> float:
    return fmean(_log(row) for row in rows)


# ---- figures of regions ---------------------------------------------------------------------------------------------
def _figure(rows: list[Row], what: str, settings: dict[str, Any], *, drift: bool = False, factor: str = "",
            source: bool = False) -> Figure:  # fmt: skip
    """Figure of one region from rows of one kind and year; `factor` names what turns it into a large site's price."""
    first = rows[0]
    age = max(settings["year"] - int(first["year"]), 0)
    effects = ({"drift": float(age)} if drift else {}) | ({factor: 1.0} if factor else {})
    unknown = {"nation": float(age), "region": float(age)} | ({"source": 1.0} if source else {})
    unknown |= {factor: 1.0} if factor else {}
    return Figure(
        first["region"],
        Member(effects, {"sites": 1.0}, center=_mean(rows), unknown=unknown),
        rows,
        f"{first['place']}, {what}, {first['year']}",
        _HOW.format(age=age, factor=f" times the {factor} factor" if factor else "", source=" and sources" * source),
    )


def states(roles: Roles, settings: dict[str, Any]) -> list[Figure]:
    """US states: industrial averages; the commercial one of a state that has no other."""
    found = [
        _figure([row], "industrial average revenue per kWh with demand and delivery", settings, drift=True)
        for row in roles["state_industrial"]
    ]
    known = {figure.region for figure in found}
    what = "commercial average of one month, turned into an industrial one"
    return found + [
        _figure([row], what, settings, drift=True, factor="commercial")
        for row in roles["state_commercial_july"]
        if row["region"] not in known
    ]


def provinces(roles: Roles, settings: dict[str, Any]) -> list[Figure]:
    """Canadian provinces: tariffs of large power."""
    return [
        _figure([row], "large-power tariff, 85% load, ex taxes", settings)
        for row in roles["tariff_large"]
        if row["region"].startswith("CA-")
    ]


def countries(roles: Roles, settings: dict[str, Any]) -> list[Figure]:
    """Countries: of several figures the nearest to what a large site pays, then the newest."""
    best: dict[str, tuple[tuple[int, int], list[Row]]] = {}
    for rank, role in enumerate(_ORDER):
        for row in roles[role]:
            key = (rank, -int(row["year"]))
            held = best.get(row["region"])
            if held is None or key < held[0]:
                best[row["region"]] = (key, [row])
            elif key == held[0]:
                held[1].append(row)
    found = []
    for region in sorted(best):
        rows = best[region][1]
        role, basis = rows[0]["role"], rows[0]["demand_or_tax_basis"]
        what = _WHAT[role] + (f" ({basis})" if basis else "")
        found.append(_figure(rows, what, settings, factor=_FACTOR.get(role, ""), source=True))
    return found


# ---- what regions have in common ------------------------------------------------------------------------------------
def problem(rows: list[Row], settings: dict[str, Any]) -> Problem:
    """Changes, disagreements, contracts, ratios, and the populations of provinces and countries."""
    roles = by_role(rows)
    posed = Problem(
        [],
        {
            "drift": Effect(settings["drift_sd"]),
            **{name: Effect(WIDE) for name in ("contracts", "business", "commercial", "delivery", "Canada", "world")},
        },
        {
            "sites": hierarchy.half_normal(settings["site_sd"]),
            "contracts": hierarchy.pooled("sites", settings["enclosing_spread"]),
            "business": hierarchy.pooled("sites", settings["enclosing_spread"]),
            "nation": hierarchy.half_normal(settings["year_sd"]),
            "region": hierarchy.half_normal(settings["year_sd"]),
            "source": hierarchy.half_normal(settings["source_sd"]),
            "commercial": hierarchy.half_normal(settings["site_sd"]),
            "delivery": hierarchy.expected(settings["delivery_sd"], settings["delivery_weight"]),
            "provinces": hierarchy.half_normal(settings["place_sd"]),
            "countries": hierarchy.half_normal(settings["place_sd"]),
        },
    )
    _changes(roles, posed)
    _disagreements(roles, posed, settings)
    _ratios(roles, posed)
    _places(roles, posed, settings)
    return posed


def _changes(roles: Roles, posed: Problem) -> None:
    series = sorted(roles["us_series"], key=lambda row: int(row["year"]))
    for before, after in pairwise(series):
        ids = (before["id"], after["id"])
        posed.rows.append(hierarchy.Row(_log(after) - _log(before), {"drift": 1.0}, {"nation": 1.0}, "US", ids))
    april: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in roles["april"]:
        april[row["region"]][row["year"]] = row
    posed.effects["nation, April on April"] = Effect("nation")
    shared = {"drift": 1.0, "nation, April on April": 1.0}
    for region, held in april.items():
        after, before = held[max(held)], held[min(held)]  # one year apart
        ids = (before["id"], after["id"])
        posed.rows.append(hierarchy.Row(_log(after) - _log(before), shared, {"region": 1.0}, region, ids))


def _disagreements(roles: Roles, posed: Problem, settings: dict[str, Any]) -> None:
    """Pairs of sources that report a country within few years of each other."""
    prices: dict[str, list[Row]] = defaultdict(list)
    for role in ("country_datacentre", "country_industrial"):
        for row in roles[role]:
            prices[row["region"]].append(row)
    for region, held in sorted(prices.items()):
        for a, b in combinations(held, 2):
            apart = abs(int(a["year"]) - int(b["year"]))
            if a["source"] != b["source"] and apart <= settings["same_period"]:
                noise = {"source": 2.0, "nation": float(apart), "region": float(apart)}
                posed.rows.append(hierarchy.Row(_log(a) - _log(b), {}, noise, region, (a["id"], b["id"])))


def _ratios(roles: Roles, posed: Problem) -> None:
    for row in roles["contract"]:
        posed.rows.append(hierarchy.Row(_log(row), {"contracts": 1.0}, {"contracts": 1.0}, row["id"], (row["id"],)))
    pairs = {
        "business": (roles["tariff_large"], roles["tariff_medium"]),
        "commercial": (roles["state_industrial"], roles["state_commercial"]),
    }
    for name, (first, second) in pairs.items():
        other = {row["region"]: row for row in second}
        for row in first:
            if row["region"] in other:
                ids = (row["id"], other[row["region"]]["id"])
                y = _log(row) - _log(other[row["region"]])
                posed.rows.append(hierarchy.Row(y, {name: 1.0}, {name: 1.0}, row["region"], ids))
    us = max(roles["us_series"], key=lambda row: int(row["year"]))
    both = {"contracts": 1.0, "delivery": 1.0}
    posed.rows.append(hierarchy.Row(_log(us), both, {"delivery": 1.0}, "US", (us["id"],)))
    wholesale = roles["wholesale"][0]
    tariff = next(row for row in roles["country_datacentre"] if row["region"] == wholesale["region"])
    y, ids = _log(tariff) - _log(wholesale), (tariff["id"], wholesale["id"])
    posed.rows.append(hierarchy.Row(y, {"delivery": 1.0}, {"delivery": 1.0}, wholesale["region"], ids))


def _places(roles: Roles, posed: Problem, settings: dict[str, Any]) -> None:
    for figure in provinces(roles, settings):
        ids = tuple(row["id"] for row in figure.rows)
        y = figure.member.center
        posed.rows.append(hierarchy.Row(y, {"Canada": 1.0}, {"provinces": 1.0}, figure.region, ids))
    for figure in countries(roles, settings):
        ids = tuple(row["id"] for row in figure.rows)
        factor = {name: -value for name, value in figure.member.effects.items()}
        noise = {"countries": 1.0} | {name: 1.0 for name in factor}
        posed.rows.append(hierarchy.Row(figure.member.center, {"world": 1.0, **factor}, noise, figure.region, ids))
    means = {"US": _mean([row for figure, _ in hosts(roles, settings) for row in figure.rows])}
    means["CA"] = fmean(figure.member.center for figure in provinces(roles, settings))
    for region, y in means.items():
        posed.rows.append(hierarchy.Row(y, {"world": 1.0}, {"countries": 1.0}, region))


def hosts(roles: Roles, settings: dict[str, Any]) -> list[tuple[Figure, float]]:
    """States that host cloud regions, and how many."""
    sites = settings["us_sites"]
    return [(figure, sites[figure.region]) for figure in states(roles, settings) if figure.region in sites]


# ---- populations ----------------------------------------------------------------------------------------------------
def fit(rows: list[Row], settings: dict[str, Any]) -> Fitted:
    """Return populations of US states, Canadian provinces, countries, Canada, the US, and the world."""
    roles = by_role(rows)
    posed = problem(rows, settings)
    posterior = hierarchy.sample(posed)
    nations = countries(roles, settings)
    figures = [*states(roles, settings), *provinces(roles, settings), *nations]
    populations = [
        population(
            posterior, figure.member, LOG, figure.rows, where={"region": figure.region}, label=figure.label,
            method=figure.method, years=_years(figure.rows),
        )
        for figure in figures
    ]  # fmt: skip
    populations += [_canada(posterior, roles, settings), _united_states(posterior, roles, settings)]
    used = [row for figure in nations for row in figure.rows]
    used += [row for figure in provinces(roles, settings) for row in figure.rows]
    used += [row for figure, _ in hosts(roles, settings) for row in figure.rows]
    populations.append(
        population(
            posterior, Member({"world": 1.0}, {"countries": 1.0, "sites": 1.0}), LOG, used, where={},
            label=f"country unknown: central prices of {len(nations) + 2} countries, unweighted, tax bases mixed",
            method="posterior predictive of a site in a new country", years=_years(used),
        )
    )  # fmt: skip
    return Fitted(populations, chain_checks.checks(posed, posterior))


def _years(rows: list[Row]) -> list[int]:
    return [int(row["year"]) for row in rows]


def _canada(posterior: Posterior, roles: Roles, settings: dict[str, Any]) -> Population:
    rows = [row for figure in provinces(roles, settings) for row in figure.rows]
    age = float(settings["year"] - int(rows[0]["year"]))
    return population(
        posterior, Member({"Canada": 1.0}, {"provinces": 1.0}, unknown={"nation": age, "region": age}), LOG, rows,
        where={"region": "CA"}, years=_years(rows),
        label=f"Canada, large-power tariffs of {len(rows)} provinces, 85% load, ex taxes, {rows[0]['year']}",
        method=f"posterior predictive of a new province, {age:.0f} years old",
    )  # fmt: skip


def _united_states(posterior: Posterior, roles: Roles, settings: dict[str, Any]) -> Population:
    held = hosts(roles, settings)
    members = [figure.member._replace(weight=float(weight)) for figure, weight in held]
    rows = [row for figure, _ in held for row in figure.rows]
    return population(
        posterior, members, LOG, rows, where={"region": "US"}, years=_years(rows),
        label=f"US, industrial averages of {len(held)} states weighted by the cloud regions they host",
        method="mixture of the states' populations",
    )  # fmt: skip
