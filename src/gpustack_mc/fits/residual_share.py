r"""Resale value at the end of the accounting life over the price when new.

A row gives a yearly rate of loss or a share at some age; all are carried to the same age :math:`L` along the
published anchor curve with rate :math:`k`:

.. math::
    \rho = e^{-kL}, \qquad \rho = s_a e^{-k(L - a)}, \qquad \rho = (1 + d)\, e^{-k(L - 1)}

for the curve, for a share :math:`s_a` at age :math:`a`, and for a change :math:`d` observed over one year, which is
not taken to last. The logits are normal, with Student-t predictive spread.
"""

import math
from typing import Any

import numpy as np

from gpustack_mc.fits.populations import Population, evidence, predictive_widening

Row = dict[str, str]


def fit(rows: list[Row], settings: dict[str, Any]) -> list[Population]:
    """Return one population for all owners."""
    anchor = [row for row in rows if row["role"] == "anchor"]
    rate = float(np.mean([-math.log(_value(row)) / float(row["age_years"]) for row in anchor]))
    age = float(settings["age"])
    shares = [math.exp(-rate * age)]
    for row in rows:
        if row["role"] == "share_at_age":
            shares.append(_value(row) * math.exp(-rate * (age - float(row["age_years"]))))
        elif row["role"] == "annual_change":
            shares.append((1 + _value(row)) * math.exp(-rate * (age - 1)))
    logits = np.log(np.array(shares) / (1 - np.array(shares)))
    n = len(logits)
    years = [int(row["fiscal_year"]) for row in rows]
    return [
        Population(
            where={},
            label=f"resale values carried to {age:g} years, {n} estimates, {min(years)}-{max(years)}",
            family="logit_normal",
            parameters={"mu": float(logits.mean()), "sigma": float(logits.std(ddof=1)) * predictive_widening(n, n - 1)},
            method=f"Student-t predictive of logits; anchor curve loses {rate:.3f} a year (log)",
            years=[min(years), max(years)],
            **evidence(rows),
        )
    ]


def _value(row: Row) -> float:
    return float(row["value"])
