r"""Water consumed at power plants per kWh of electricity, by country.

With :math:`x_{cs}` the estimate of study :math:`s` for country :math:`c`, values of one study counting once, as their
geometric mean,

.. math::
    \log x_{cs} = \mu + \kappa_c + e_{cs}, \qquad \kappa_c \sim N(0, \tau^2), \quad e \sim N(0, \sigma^2),

sampled by `gpustack_mc.fits.hierarchy`. :math:`\sigma` is how far studies of one country land from each other; it is
seen for the United States only. A draw is the estimate of one more study. For a listed country with :math:`m` studies
it is

.. math:: \log \omega_\mathrm{off} = \overline{\log x_c} + \bar e_c + e, \qquad \bar e_c \sim N(0, \sigma^2 / m),

so that its own figure stays the centre: the figure follows from the country's plants and is no sample of the others'.
A country that is not listed has a new level, :math:`\mu + \kappa + e`.
"""

import math
from collections import defaultdict
from statistics import fmean
from typing import Any

from gpustack_mc.fits import chain_checks, hierarchy
from gpustack_mc.fits.hierarchy import WIDE, Effect, Problem
from gpustack_mc.fits.members import LOG, Member, population
from gpustack_mc.fits.populations import Fitted

Row = dict[str, str]


def studies(rows: list[Row]) -> dict[tuple[str, str], list[Row]]:
    """Rows by country and study."""
    grouped: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        grouped[row["region"], row["source"]].append(row)
    return dict(sorted(grouped.items()))


def _estimate(study: list[Row]) -> float:
    """Log of the estimate of one study, the mean of its values."""
    return fmean(math.log(float(row["ewif_l_per_kwh"])) for row in study)


def problem(rows: list[Row], settings: dict[str, Any]) -> Problem:
    """One row per country and study."""
    return Problem(
        [
            hierarchy.Row(
                _estimate(held), {"mean": 1.0, f"country:{region}": 1.0}, {"studies": 1.0}, region,
                tuple(row["id"] for row in held),
            )
            for (region, _), held in studies(rows).items()
        ],
        {"mean": Effect(WIDE), **{f"country:{region}": Effect("countries") for region, _ in studies(rows)}},
        {
            "countries": hierarchy.half_normal(settings["country_sd"]),
            "studies": hierarchy.expected(settings["study_sd"], settings["study_weight"]),
        },
    )  # fmt: skip


def fit(rows: list[Row], settings: dict[str, Any]) -> Fitted:
    """Return one population per country, and the country that is not listed."""
    posed = problem(rows, settings)
    posterior = hierarchy.sample(posed)
    by_country: dict[str, list[list[Row]]] = defaultdict(list)
    for (region, _), held in studies(rows).items():
        by_country[region].append(held)
    how = "posterior predictive of one more study"
    populations = []
    for region, found in by_country.items():
        values, held = [_estimate(study) for study in found], [row for study in found for row in study]
        years = [int(row["year"]) for row in held]
        when = f"{min(years)}-{max(years)}" if len(set(years)) > 1 else f"{years[0]}"
        populations.append(
            population(
                posterior,
                Member({}, {"studies": 1.0}, center=fmean(values), unknown={"studies": 1 / len(values)}), LOG, held,
                where={"region": region}, label=f"{held[0]['place']}, national generation mix, {when}",
                years=years, method=f"{how} around the mean of {len(values)}; spread of studies as for the US",
            )
        )  # fmt: skip
    populations.append(
        population(
            posterior, Member({"mean": 1.0}, {"countries": 1.0, "studies": 1.0}), LOG, rows, where={},
            label=f"country unknown: {len(by_country)} countries, unweighted", method=f"{how}, of a new country",
            years=[int(row["year"]) for row in rows],
        )
    )  # fmt: skip
    return Fitted(populations, chain_checks.checks(posed, posterior))
