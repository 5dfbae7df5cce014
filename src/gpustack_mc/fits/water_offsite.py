r"""Water consumed at power plants per kWh of electricity, by country.

.. math::
    \log \omega_\mathrm{off} \sim N(\log x, \sigma^2)

:math:`x` is the value of the country's generation mix. :math:`\sigma` is the Student-t predictive spread of three
estimates for the United States: how far a second method lands from the first. A country that is not listed is a new
draw among the listed ones.
"""

import math
from typing import Any

from gpustack_mc.fits.populations import Population, evidence, predictive_log_normal

Row = dict[str, str]


def fit(rows: list[Row], settings: dict[str, Any]) -> list[Population]:
    """Return one population per country, the US from several estimates, and the country that is not listed."""
    american = [row for row in rows if row["region"] == "US"]
    national = predictive_log_normal([_value(row) for row in american])
    others = [row for row in rows if row["region"] != "US"]
    populations = [_country(row, national.sigma) for row in sorted(others, key=lambda row: row["region"])]
    years = [int(row["year"]) for row in american]
    populations.append(
        Population(
            where={"region": "US"},
            label=f"US grid and data-centre weighted estimates, {min(years)}-{max(years)}",
            family="lognormal",
            parameters={"mu": national.mu, "sigma": national.sigma},
            method=f"Student-t predictive of {len(american)} estimates",
            years=[min(years), max(years)],
            **evidence(american),
        )
    )
    mixes = [row for row in rows if row["source"] == settings["country_source"]]
    spread = predictive_log_normal([_value(row) for row in mixes])
    populations.append(
        Population(
            where={},
            label=f"country unknown: {len(mixes)} countries, unweighted",
            family="lognormal",
            parameters={"mu": spread.mu, "sigma": math.hypot(spread.sigma, national.sigma)},
            method="Student-t predictive over countries, plus the spread of estimates",
            years=[min(int(row["year"]) for row in mixes), max(int(row["year"]) for row in mixes)],
            **evidence(mixes),
        )
    )
    return populations


def _value(row: Row) -> float:
    return float(row["ewif_l_per_kwh"])


def _country(row: Row, sigma: float) -> Population:
    return Population(
        where={"region": row["region"]},
        label=f"{row['place']}, national generation mix, {row['year']}",
        family="lognormal",
        parameters={"mu": math.log(_value(row)), "sigma": sigma},
        method="value of the national mix; spread of estimates as for the US",
        years=[int(row["year"])] * 2,
        **evidence([row]),
    )
