r"""Grid intensity: latest value of each region, widened by how far grids move in as many years.

With :math:`\ell(x) = \log\frac{x}{h - x}`, where :math:`h` is above every grid, region :math:`r` of a kind :math:`k`,
grids that burn little or the others, changes between its values of years :math:`t` and :math:`t + a` by

.. math::
    \ell_{r,t+a} - \ell_{r,t} &= \sqrt{a}\,(c_{k,t} + w_{r,t}) + \varepsilon_{r,t+a} - \varepsilon_{r,t}, \\
    c &\sim N(0, \sigma_{k,\mathrm{common}}^2), \quad w \sim N(0, \sigma_{k,g}^2), \quad
    \varepsilon \sim N(0, \eta_k^2),

a random walk with a part common to all grids of its kind and its own part; and what one year's weather and outages
add, which does not stay. Own steps of a country :math:`g` with enough changes have a spread of their own, :math:`\log
\sigma_{k,g} = \log \sigma_k + \omega z_{k,g}`. Kinds are apart because grids that burn little move more in relative
terms. No trend is assumed: the common part has mean zero, so that past declines widen the forecast and do not move
it. Successive changes of a region enter as independent rows; that they share an :math:`\varepsilon` is left out,
which changes no variance. Sampled by `gpustack_mc.fits.hierarchy`. A draw is the year :math:`T` of a region whose
latest value is :math:`x` from year :math:`t`, with :math:`a = T - t`,

.. math::
    \ell(\gamma) = \ell(x) + \sqrt{a}\,(c + w) + \varepsilon_T - \varepsilon_t .

States of the US, known for 2016 only, are first moved by the change of the national mean, after which only the years
since then have a common part. Estimates of the US average differ by :math:`N(0, \sigma_\mathrm{estimates}^2)`.

Direct (combustion) and life-cycle values never meet: each population names its ``carbon_basis``. Life-cycle values move
as direct ones do. The last resorts are the empirical distributions of the places where a large cloud operates.
"""

import math
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any, NamedTuple

from gpustack_mc.fits import chain_checks, hierarchy
from gpustack_mc.fits.hierarchy import WIDE, Effect, Posterior, Problem
from gpustack_mc.fits.members import Member, Scale, population
from gpustack_mc.fits.populations import Fitted, Population, evidence

Row = dict[str, str]
KINDS = ("low", "high")
_SERIES = ("google-region-carbon", "eccc-nir-2022")


class Move(NamedTuple):
    """Change of one region between successive years of its series, on the logit scale."""

    region: str
    country: str
    kind: str
    years: tuple[int, int]
    change: float
    ids: tuple[str, str]


def _value(row: Row) -> float:
    return float(row["gco2e_per_kwh"])


def _scale(settings: dict[str, Any]) -> Scale:
    return Scale(0.0, float(settings["ceiling"]))


def kind_of(value: float, settings: dict[str, Any]) -> str:
    """Grids that burn little, or the others."""
    return "low" if value < settings["low_below"] else "high"


def moves(rows: list[Row], settings: dict[str, Any]) -> list[Move]:
    """Changes within the direct series, each between neighbouring years that are known."""
    series: dict[str, dict[int, Row]] = defaultdict(dict)
    for row in rows:
        if row["carbon_basis"] == "direct" and row["source"] in _SERIES:
            series[row["region"]][int(row["year"])] = row
    scale = _scale(settings)
    return [
        Move(
            region, held[early]["country"], kind_of(_value(held[early]), settings), (early, late),
            scale.forward(_value(held[late])) - scale.forward(_value(held[early])),
            (held[early]["id"], held[late]["id"]),
        )
        for region, held in sorted(series.items())
        for early, late in pairwise(sorted(held))
    ]  # fmt: skip


def estimates(rows: list[Row], settings: dict[str, Any]) -> list[Row]:
    """Recent direct estimates of the US average."""
    return [
        row
        for row in rows
        if row["region"] == "US" and row["carbon_basis"] == "direct" and int(row["year"]) >= settings["us_since"]
    ]


def problem(rows: list[Row], settings: dict[str, Any]) -> Problem:
    """Changes of regions in countries and kinds, and estimates of the US average."""
    seen = moves(rows, settings)
    counts = Counter((move.kind, move.country) for move in seen)
    own = sorted(key for key, count in counts.items() if count >= settings["enough_changes"])
    spreads = {}
    for kind in KINDS:
        spreads[f"steps:{kind}"] = hierarchy.expected(settings["step_sd"][kind], settings["step_weight"])
        spreads[f"common:{kind}"] = hierarchy.half_normal(settings["step_sd"][kind])
        spreads[f"year:{kind}"] = hierarchy.half_normal(settings["step_sd"][kind])
    spreads["estimates"] = hierarchy.expected(settings["estimate_sd"], settings["estimate_weight"])
    spreads |= {
        f"steps:{kind}:{country}": hierarchy.pooled(f"steps:{kind}", settings["pooled_spread"]) for kind, country in own
    }
    posed = Problem([], {"US": Effect(WIDE)}, spreads)
    for move in seen:
        early, late = move.years
        apart = late - early
        common = f"common:{move.kind}:{early}-{late}"
        posed.effects[common] = Effect(f"common:{move.kind}")
        noise = {_steps(posed, move.kind, move.country): float(apart), f"year:{move.kind}": 2.0}
        posed.rows.append(hierarchy.Row(move.change, {common: math.sqrt(apart)}, noise, move.region, move.ids))
    for row in estimates(rows, settings):
        y = _scale(settings).forward(_value(row))
        posed.rows.append(hierarchy.Row(y, {"US": 1.0}, {"estimates": 1.0}, "US", (row["id"],)))
    return posed


def _steps(posed: Problem, kind: str, country: str) -> str:
    name = f"steps:{kind}:{country}"
    return name if name in posed.spreads else f"steps:{kind}"


def forecast(posed: Problem, kind: str, country: str, age: int, since_common: int | None = None) -> Member:
    """Member that a figure of so many years ago becomes; `since_common` where the common part is known for longer."""
    shared = float(age if since_common is None else since_common)
    return Member(
        {},
        {f"year:{kind}": 1.0},
        unknown={
            _steps(posed, kind, country): float(age), f"common:{kind}": shared, f"year:{kind}": 1.0,
        },
    )  # fmt: skip


def latest(rows: list[Row]) -> list[Row]:
    """Newest row of each region."""
    newest: dict[str, Row] = {}
    for row in rows:
        held = newest.get(row["region"])
        if held is None or int(row["year"]) > int(held["year"]):
            newest[row["region"]] = row
    return [newest[region] for region in sorted(newest)]


def fit(rows: list[Row], settings: dict[str, Any]) -> Fitted:
    """Return one population per region and basis, and the two last resorts."""
    posed = problem(rows, settings)
    posterior = hierarchy.sample(posed)
    direct = [row for row in rows if row["carbon_basis"] == "direct"]
    life = [row for row in rows if row["carbon_basis"] == "lifecycle"]
    states = [row for row in direct if row["region_kind"] == "us_state"]
    national = [row for row in direct if row["region"] == "US"]
    plain = [row for row in direct if row not in states and row not in national]

    def described(found: list[Row]) -> list[Population]:
        return [_region(row, posed, posterior, national, settings) for row in latest(found)]

    populations = [*described(plain), *described(states), _united_states(rows, posed, posterior, settings)]
    populations += [*described(life), _anywhere_direct(direct), _anywhere_life(life, direct)]
    return Fitted(populations, chain_checks.checks(posed, posterior))


def _region(
    row: Row, posed: Problem, posterior: Posterior, national: list[Row], settings: dict[str, Any]
) -> Population:
    """Population of one region from its latest value; an old one of a US state is moved by the national mean."""
    now = next(other for other in national if other["source"] == "egrid-2022")
    before = next(other for other in national if other["source"] == "egrid-2016")
    moved = row["region_kind"] == "us_state" and row["year"] == before["year"]
    factor = _value(now) / _value(before) if moved else 1.0
    extra = f", times {factor:.3f} (change of the US mean {before['year']}-{now['year']})" if moved else ""
    value, age = _value(row) * factor, settings["year"] - int(row["year"])
    since = settings["year"] - int(now["year"]) if moved else None
    new = forecast(posed, kind_of(value, settings), row["country"], age, since)
    basis = "combustion only" if row["carbon_basis"] == "direct" else "life-cycle factors"
    scale = _scale(settings)
    return population(
        posterior, new._replace(center=scale.forward(value)), scale, [row],
        where={"region": row["region"], "carbon_basis": row["carbon_basis"]},
        label=f"{row['place']}, annual average {row['year']}{extra}, {basis}", years=[int(row["year"])],
        method=f"latest value{extra}; spread: random walk of like grids over {age} years",
    )  # fmt: skip


def _united_states(rows: list[Row], posed: Problem, posterior: Posterior, settings: dict[str, Any]) -> Population:
    recent = estimates(rows, settings)
    years = [int(row["year"]) for row in recent]
    age = settings["year"] - max(years)
    new = forecast(posed, "high", "US", age)
    unknown = {**new.unknown, "estimates": 1.0}
    return population(
        posterior, new._replace(effects={"US": 1.0}, unknown=unknown), _scale(settings), recent,
        where={"region": "US", "carbon_basis": "direct"}, years=years,
        label=f"US average, {min(years)}-{max(years)}, combustion only, {len(recent)} estimates",
        method=f"posterior predictive of one more estimate, widened by the random walk of like grids over {age} years",
    )  # fmt: skip


def _anywhere_direct(direct: list[Row]) -> Population:
    sites = [row for row in latest(direct) if row["source"] == "google-region-carbon"]
    return Population(
        where={"carbon_basis": "direct"},
        label="one of the places where a large cloud operates, latest year, combustion only",
        family="sample",
        parameters={"values": [_value(row) for row in sites]},
        method="empirical: clean and dirty grids form two groups that no simple family follows",
        years=_years(sites),
        **evidence(sites),
    )


def _anywhere_life(life: list[Row], direct: list[Row]) -> Population:
    counts = Counter(row["country"] for row in latest(direct) if row["source"] == "google-region-carbon")
    countries = [row for row in latest(life) if row["region"] in counts]
    return Population(
        where={"carbon_basis": "lifecycle"},
        label="country of one of the places where a large cloud operates, latest year, life-cycle factors",
        family="sample",
        parameters={
            "values": [_value(row) for row in countries],
            "weights": [float(counts[row["region"]]) for row in countries],
        },
        method="empirical: countries weighted by the cloud regions that they host",
        years=_years(countries),
        **evidence(countries),
    )


def _years(rows: list[Row]) -> list[int]:
    years = [int(row["year"]) for row in rows]
    return [min(years), max(years)]
