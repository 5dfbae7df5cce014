r"""Water used on site per kWh of IT energy (WUE).

.. math::
    \log\frac{\omega}{h - \omega} \sim N(\mu, \sigma^2)

:math:`h` is what a site would use that gets rid of all its heat by evaporation, so that the prior cannot exceed it.
:math:`\mu` is the mean over operators; :math:`\sigma` the Student-t predictive spread of the log, for which the few
fleet values are helped by a spread expected between sites.
"""

import math
from typing import Any

from gpustack_mc.fits.populations import Population, evidence, predictive_log_normal

Row = dict[str, str]


def fit(rows: list[Row], settings: dict[str, Any]) -> list[Population]:
    """Return hyperscaler sites, and the site of an unknown operator."""
    fleets = [row for row in rows if row["operator_class"] == "hyperscaler"]
    return [
        _population({"operator": "hyperscaler"}, "fleet averages of hyperscalers", fleets, settings),
        _population({}, "fleet averages of hyperscalers and the average of US data centres", rows, settings),
    ]


def _population(where: dict[str, str], label: str, rows: list[Row], settings: dict[str, Any]) -> Population:
    ceiling = float(settings["ceiling"])
    values = [float(row["wue_l_per_kwh"]) for row in rows]
    centre = predictive_log_normal(values, prior_sd=settings["site_sd"], prior_weight=settings["site_weight"])
    share = math.exp(centre.mu) / ceiling
    years = [int(row["year"]) for row in rows]
    return Population(
        where=where,
        label=f"{label}, {min(years)}-{max(years)}",
        family="logit_normal",
        parameters={"mu": math.log(share / (1 - share)), "sigma": centre.sigma, "low": 0.0, "high": ceiling},
        method=f"Student-t predictive of {len(rows)} averages and an expected spread of sites, below {ceiling:g} L/kWh",
        years=[min(years), max(years)],
        **evidence(rows),
    )
