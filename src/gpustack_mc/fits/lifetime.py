r"""Years until accelerators are replaced.

.. math::
    \log L \sim N(\mu, \sigma^2)

Pooled from the latest depreciation life of each company, views of analysts, assumptions of published models and one
claim from operation, with weights by kind of evidence. Companies of one kind choose alike, so that their own spread
says little about the economic life; it is helped by the spread over all rows.
"""

from typing import Any

import numpy as np

from gpustack_mc.fits.populations import Population, evidence, predictive_log_normal

Row = dict[str, str]


def fit(rows: list[Row], settings: dict[str, Any]) -> list[Population]:
    """Return hyperscalers, and any owner."""
    held = [row for row in rows if row["operator_class"] == "hyperscaler"]
    weight = settings["prior_weight"]
    fitted = predictive_log_normal(_years(held), prior_sd=_spread(rows, settings), prior_weight=weight)
    everyone = predictive_log_normal(_years(rows), weights=_weights(rows, settings))
    label = "latest depreciation lives of hyperscalers"
    how = f"Student-t predictive, with the spread of all rows worth {weight} observations"
    hyperscaler = _population({"operator": "hyperscaler"}, label, held, fitted.mu, fitted.sigma, how)
    label = "depreciation lives, analysts, models and one claim from operation"
    how = "Student-t predictive, weighted by kind of evidence"
    return [hyperscaler, _population({}, label, rows, everyone.mu, everyone.sigma, how)]


def _years(rows: list[Row]) -> list[float]:
    return [float(row["useful_life_years"]) for row in rows]


def _spread(rows: list[Row], settings: dict[str, Any]) -> float:
    """Weighted standard deviation of the log over all rows."""
    return float(np.sqrt(np.cov(np.log(_years(rows)), aweights=_weights(rows, settings))))


def _weights(rows: list[Row], settings: dict[str, Any]) -> list[float]:
    """Weight of the kind of evidence, divided among the rows of one company."""
    return [
        settings["weights"][row["kind"]] / sum(other["company"] == row["company"] for other in rows) for row in rows
    ]


def _population(where: dict[str, str], label: str, rows: list[Row], mu: float, sigma: float, how: str) -> Population:
    years = [int(row["fiscal_year"].strip("<>=").split("-")[-1]) for row in rows]
    return Population(
        where=where,
        label=f"{label}, {min(years)}-{max(years)}",
        family="lognormal",
        parameters={"mu": mu, "sigma": sigma},
        method=how,
        years=[min(years), max(years)],
        **evidence(rows),
    )
