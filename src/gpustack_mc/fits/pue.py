r"""Power usage effectiveness of one site, by class of operator.

.. math::
    \log(\mathrm{PUE} - 1) \sim N\left(\mu,\; \sigma_\mathrm{operators}^2 + \sigma_\mathrm{sites}^2\right)

:math:`\mu` and :math:`\sigma_\mathrm{operators}` are the Student-t predictive over the operators of a class.
:math:`\sigma_\mathrm{sites}`, the spread of the sites of one operator around its fleet, follows from the best site
that an operator names: if it is the lowest of about `sites_per_operator` sites, it lies :math:`z` standard deviations
below the fleet. Single sites (HPC, training sites) carry their own spread. Where the upper tail would pass the
physical bound, the same numbers are put on a logit scale between 1 and `ceiling`.
"""

import math
from statistics import fmean
from typing import Any

from scipy import stats

from gpustack_mc.fits.populations import LogFit, Population, evidence, predictive_log_normal

Row = dict[str, str]
_TAIL = 1e-7  # well inside the mass that may lie beyond a bound
_WEIGHTED = {"fleet": "fleet_weight", "survey": "fleet_weight", "site": "site_weight", "training_site": "site_weight"}


def fit(rows: list[Row], settings: dict[str, Any]) -> list[Population]:
    """Return hyperscaler, colocation, HPC and enterprise sites, and the site of an unknown operator."""
    best = [row for row in rows if row["role"] == "best_site"]
    used = [row for row in rows if row["role"] != "best_site"]
    sites = _site_spread(best, used, settings)
    populations = [
        _class("hyperscaler", "hyperscaler fleets and published training sites", used, sites, settings),
        _class("colocation", "colocation fleets and design values", used, sites, settings),
        _class("hpc", "liquid-cooled HPC sites", used, 0.0, settings),
        _class("enterprise", "survey averages of enterprise and all sites", used, sites, settings),
    ]
    return [*populations, _unknown(used, sites, settings)]


def _overhead(row: Row) -> float:
    return float(row["pue"]) - 1.0


def _site_spread(best: list[Row], used: list[Row], settings: dict[str, Any]) -> float:
    """Root mean square over operators of the gap between fleet and best site, in standard deviations."""
    fleets = {row["operator"]: _overhead(row) for row in used if row["role"] == "fleet"}
    lowest: dict[str, float] = {}
    for row in best:
        lowest[row["operator"]] = min(_overhead(row), lowest.get(row["operator"], math.inf))
    depth = -stats.norm.ppf(1 / (settings["sites_per_operator"] + 1))
    gaps = [math.log(fleets[operator] / value) / depth for operator, value in sorted(lowest.items())]
    return math.sqrt(fmean(gap**2 for gap in gaps))


def _predictive(rows: list[Row], settings: dict[str, Any], sites: float) -> LogFit:
    weights = [settings[_WEIGHTED[row["role"]]] for row in rows]
    if not sites:
        weights = [1.0] * len(rows)
    return predictive_log_normal(
        [_overhead(row) for row in rows], weights=weights, prior_sd=settings["prior_sd"],
        prior_weight=settings["prior_weight"],
    )  # fmt: skip


def _class(name: str, label: str, used: list[Row], sites: float, settings: dict[str, Any]) -> Population:
    rows = [row for row in used if row["operator_class"] == name]
    centre = _predictive(rows, settings, sites)
    how = "Student-t predictive of log(PUE - 1)"
    if sites:
        how += f", with {sites:.2f} for sites around their fleet"
    return _population({"operator": name}, label, rows, centre.mu, math.hypot(centre.sigma, sites), how, settings)


def _unknown(used: list[Row], sites: float, settings: dict[str, Any]) -> Population:
    """One value per operator, so that no operator counts for its many rows."""
    by_operator: dict[str, list[Row]] = {}
    for row in used:
        by_operator.setdefault(row["operator"], []).append(row)
    means = [fmean(math.log(_overhead(row)) for row in held) for _, held in sorted(by_operator.items())]
    centre = predictive_log_normal([math.exp(mean) for mean in means])
    rows = [row for held in by_operator.values() for row in held]
    how = f"Student-t predictive over {len(means)} operators, one value each"
    label = "operator unknown: all operators and surveys, one value each"
    return _population({}, label, rows, centre.mu, centre.sigma, how, settings)


def _population(
    where: dict[str, str], label: str, rows: list[Row], mu: float, sigma: float, how: str, settings: dict[str, Any]
) -> Population:
    span = settings["ceiling"] - 1.0
    family, parameters = "lognormal", {"mu": mu, "sigma": sigma, "shift": 1.0}
    if math.exp(mu + stats.norm.ppf(1 - _TAIL) * sigma) > span:
        share = math.exp(mu) / span
        family = "logit_normal"
        parameters = {"mu": math.log(share / (1 - share)), "sigma": sigma, "low": 1.0, "high": settings["ceiling"]}
    years = [int(row["year"]) for row in rows]
    return Population(
        where=where,
        label=f"{label}, {min(years)}-{max(years)}",
        family=family,
        parameters=parameters,
        method=how,
        years=[min(years), max(years)],
        **evidence(rows),
    )
