r"""Yearly cost of operation besides electricity, over the purchase price of accelerator, server and network.

.. math::
    \log o \sim N(\mu, \sigma^2)

It holds repair, staff, insurance, and the building or the fee of a colocation site, because the purchase price holds
no building. :math:`\sigma` is the Student-t predictive spread over cost models, with weights by kind of evidence.
"""

from typing import Any

from gpustack_mc.fits.populations import Population, evidence, predictive_log_normal

Row = dict[str, str]


def fit(rows: list[Row], settings: dict[str, Any]) -> list[Population]:
    """Return one population for all owners."""
    weights = [settings["weights"][row["evidence"]] for row in rows]
    fitted = predictive_log_normal([float(row["rate"]) for row in rows], weights=weights)
    years = [int(row["year"]) for row in rows]
    return [
        Population(
            where={},
            label=f"cost models and colocation fees, {min(years)}-{max(years)}",
            family="lognormal",
            parameters={"mu": fitted.mu, "sigma": fitted.sigma},
            method="Student-t predictive, weighted by kind of evidence",
            years=[min(years), max(years)],
            **evidence(rows),
        )
    ]
