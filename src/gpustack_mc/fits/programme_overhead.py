r"""Compute of a whole programme over that of its final run.

.. math::
    \log\frac{\kappa - 1}{h - \kappa} \sim N(\mu, \sigma^2)

A lognormal of :math:`\kappa - 1` in all but the far tail, which the ceiling :math:`h` cuts. :math:`\sigma` is the
Student-t predictive spread over programmes; the two ends of a stated range count by half.
"""

import math
from typing import Any

from gpustack_mc.fits.populations import Population, evidence, predictive_log_normal

Row = dict[str, str]


def fit(rows: list[Row], settings: dict[str, Any]) -> list[Population]:
    """Return one population for all programmes."""
    weights = [settings["weights"][row["evidence"]] for row in rows]
    fitted = predictive_log_normal([float(row["factor"]) for row in rows], weights=weights, shift=1.0)
    span = settings["ceiling"] - 1.0
    share = math.exp(fitted.mu) / span
    years = [int(row["year"]) for row in rows]
    return [
        Population(
            where={},
            label=f"disclosed programmes and estimates for companies, {min(years)}-{max(years)}",
            family="logit_normal",
            parameters={
                "mu": math.log(share / (1 - share)),
                "sigma": fitted.sigma,
                "low": 1.0,
                "high": float(settings["ceiling"]),
            },
            method="Student-t predictive of the compute outside the final run, weighted by kind of evidence",
            years=[min(years), max(years)],
            **evidence(rows),
        )
    ]
