r"""Grid intensity: latest value of each region, widened by how much like regions moved in as many years.

With :math:`\ell(x) = \log\frac{x}{h - x}`, where :math:`h` is above every grid, a region whose latest value is
:math:`x` from year :math:`t` has in year :math:`T`

.. math::
    \ell(\gamma) \sim N\left(\ell(x),\; \sigma^2(T - t, x)\right), \qquad
    \sigma^2(a, x) = \frac{1}{|S|} \sum_{(i, j) \in S} \left(\ell(x_j) - \ell(x_i)\right)^2 .

:math:`S` holds the pairs of years of one region that lie about :math:`a` years apart and start on the same side of
`low_below`, because grids that burn little move more in relative terms; from the same country where it has enough
pairs. Where no pairs are so far apart, the longest span is scaled by the root of the ratio. The mean square includes
the common decline, so that no trend is assumed. States of the US, known for 2016 only, are first moved by the change
of the national mean.

Direct (combustion) and life-cycle values never meet: each population names its ``carbon_basis``.
"""

import math
from collections import defaultdict
from itertools import combinations
from statistics import fmean
from typing import Any, NamedTuple

from gpustack_mc.fits.populations import Population, evidence, predictive_log_normal

Row = dict[str, str]
_SERIES = ("google-region-carbon", "eccc-nir-2022")


class Move(NamedTuple):
    """Change of one region between two years, on the logit scale."""

    country: str
    apart: int
    low: bool
    change: float


def fit(rows: list[Row], settings: dict[str, Any]) -> list[Population]:
    """Return one population per region and basis, and the two last resorts."""
    direct = [row for row in rows if row["carbon_basis"] == "direct"]
    life = [row for row in rows if row["carbon_basis"] == "lifecycle"]
    moves = _moves([row for row in direct if row["source"] in _SERIES], settings)
    states = [row for row in direct if row["region_kind"] == "us_state"]
    national = [row for row in direct if row["region"] == "US"]
    plain = [row for row in direct if row not in states and row not in national]
    populations = [_region(row, 1.0, moves, settings) for row in _latest(plain)]
    populations += _states(_latest(states), national, moves, settings)
    populations.append(_united_states(national, moves, settings))
    populations += [_region(row, 1.0, moves, settings) for row in _latest(life)]
    populations.append(_anywhere_direct(direct))
    populations.append(_anywhere_life(life, direct))
    return populations


def _value(row: Row) -> float:
    return float(row["gco2e_per_kwh"])


def _logit(value: float, settings: dict[str, Any]) -> float:
    return math.log(value / (settings["ceiling"] - value))


def _moves(rows: list[Row], settings: dict[str, Any]) -> list[Move]:
    """Every pair of years of one region."""
    series: dict[str, dict[int, Row]] = defaultdict(dict)
    for row in rows:
        series[row["region"]][int(row["year"])] = row
    return [
        Move(
            country=held[early]["country"],
            apart=late - early,
            low=_value(held[early]) < settings["low_below"],
            change=_logit(_value(held[late]), settings) - _logit(_value(held[early]), settings),
        )
        for _, held in sorted(series.items())
        for early, late in combinations(sorted(held), 2)
    ]


def _spread(age: int, value: float, country: str, moves: list[Move], settings: dict[str, Any]) -> float:
    """Root mean square change over about `age` years among like regions."""
    like = [move for move in moves if move.low == (value < settings["low_below"])]
    near = [move for move in like if move.country == country]
    for pool in (near, like):
        for years in range(max(age, 1), 0, -1):
            squares = [move.change**2 for move in pool if abs(move.apart - years) <= settings["lag_tolerance"]]
            if len(squares) >= settings["enough_pairs"]:
                return math.sqrt(fmean(squares) * max(age, 1) / years)
    raise ValueError(f"grid_intensity: fewer than {settings['enough_pairs']} changes of regions like {country}")


def _latest(rows: list[Row]) -> list[Row]:
    newest: dict[str, Row] = {}
    for row in rows:
        held = newest.get(row["region"])
        if held is None or int(row["year"]) > int(held["year"]):
            newest[row["region"]] = row
    return [newest[region] for region in sorted(newest)]


def _region(row: Row, factor: float, moves: list[Move], settings: dict[str, Any], extra: str = "") -> Population:
    value, age = _value(row) * factor, settings["year"] - int(row["year"])
    basis = "combustion only" if row["carbon_basis"] == "direct" else "life-cycle factors"
    return Population(
        where={"region": row["region"], "carbon_basis": row["carbon_basis"]},
        label=f"{row['place']}, annual average {row['year']}{extra}, {basis}",
        family="logit_normal",
        parameters={
            "mu": _logit(value, settings),
            "sigma": _spread(age, value, row["country"], moves, settings),
            "low": 0.0,
            "high": float(settings["ceiling"]),
        },
        method=f"latest value{extra}; spread: changes of like regions over about {age} years",
        years=[int(row["year"])] * 2,
        **evidence([row]),
    )


def _states(states: list[Row], national: list[Row], moves: list[Move], settings: dict[str, Any]) -> list[Population]:
    now = next(row for row in national if row["source"] == "egrid-2022")
    before = next(row for row in national if row["source"] == "egrid-2016")
    populations = []
    for row in states:
        old = row["year"] == before["year"]
        factor = _value(now) / _value(before) if old else 1.0
        extra = f", times {factor:.3f} (change of the US mean {before['year']}-{now['year']})" if old else ""
        populations.append(_region(row, factor, moves, settings, extra))
    return populations


def _united_states(national: list[Row], moves: list[Move], settings: dict[str, Any]) -> Population:
    recent = [row for row in national if int(row["year"]) >= settings["us_since"]]
    centre = predictive_log_normal([_value(row) for row in recent])
    value, ceiling = math.exp(centre.mu), float(settings["ceiling"])
    years = [int(row["year"]) for row in recent]
    age = settings["year"] - max(years)
    estimates = centre.sigma * ceiling / (ceiling - value)  # spread of the log, carried over to the logit
    sigma = math.hypot(estimates, _spread(age, value, "US", moves, settings))
    return Population(
        where={"region": "US", "carbon_basis": "direct"},
        label=f"US average, {min(years)}-{max(years)}, combustion only, {len(recent)} estimates",
        family="logit_normal",
        parameters={"mu": _logit(value, settings), "sigma": sigma, "low": 0.0, "high": ceiling},
        method=f"Student-t predictive of the estimates, widened by changes of like regions over about {age} years",
        years=[min(years), max(years)],
        **evidence(recent),
    )


def _anywhere_direct(direct: list[Row]) -> Population:
    sites = [row for row in _latest(direct) if row["source"] == "google-region-carbon"]
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
    counts: dict[str, int] = defaultdict(int)
    for row in _latest(direct):
        if row["source"] == "google-region-carbon":
            counts[row["country"]] += 1
    countries = [row for row in _latest(life) if row["region"] in counts]
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
