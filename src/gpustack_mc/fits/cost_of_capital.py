r"""Yearly cost of the money bound in the hardware.

.. math::
    \log r \sim N(\mu, \sigma^2)

Each company, however many loans it has, counts once, times the weight of its kind of evidence; :math:`\sigma` is the
Student-t predictive spread for a new company.
"""

from typing import Any

from gpustack_mc.fits.populations import Population, evidence, predictive_log_normal

Row = dict[str, str]


def fit(rows: list[Row], settings: dict[str, Any]) -> list[Population]:
    """Return one population for all owners."""
    weights = [
        settings["weights"][row["evidence"]] / sum(other["company"] == row["company"] for other in rows) for row in rows
    ]
    fitted = predictive_log_normal([float(row["rate"]) for row in rows], weights=weights)
    years = [int(row["year"]) for row in rows]
    return [
        Population(
            where={},
            label=f"debt, modelled cost of capital and assumptions, one vote per company, {min(years)}-{max(years)}",
            family="lognormal",
            parameters={"mu": fitted.mu, "sigma": fitted.sigma},
            method="Student-t predictive, one vote per company, weighted by kind of evidence",
            years=[min(years), max(years)],
            **evidence(rows),
        )
    ]
