r"""Resale value at the end of the accounting life over the price when new.

A row gives a yearly rate of loss or a share at some age; all are carried to the same age :math:`L` along the
published anchor curve with rate :math:`k`:

.. math::
    \rho = e^{-kL}, \qquad \rho = s_a e^{-k(L - a)}, \qquad \rho = (1 + d)\, e^{-k(L - 1)}

for the curve, for a share :math:`s_a` at age :math:`a`, and for a change :math:`d` observed over one year, which is
not taken to last. There are no groups; the logits are

.. math:: \log\frac{\rho_i}{1 - \rho_i} = \mu + a_i, \qquad a_i \sim N(0, \sigma^2),

sampled as in `gpustack_mc.fits.evidence`. A draw is the share of a new kind of accelerator, :math:`\mu + a`.
"""

import math
from typing import Any

import numpy as np

from gpustack_mc.fits import chain_checks, evidence, hierarchy
from gpustack_mc.fits.hierarchy import Problem
from gpustack_mc.fits.members import Scale, population
from gpustack_mc.fits.populations import Fitted

Row = dict[str, str]
_SHARE = Scale(0.0, 1.0)


def anchor_rate(rows: list[Row]) -> float:
    """Loss per year on the log scale, mean of the anchor curve."""
    return float(np.mean([-math.log(_value(row)) / float(row["age_years"]) for row in rows if row["role"] == "anchor"]))


def problem(rows: list[Row], settings: dict[str, Any]) -> Problem:
    """One share per estimate, all at one age."""
    rate, age = anchor_rate(rows), float(settings["age"])
    shares = {"anchor": math.exp(-rate * age)}
    for row in rows:
        if row["role"] == "share_at_age":
            shares[row["id"]] = _value(row) * math.exp(-rate * (age - float(row["age_years"])))
        elif row["role"] == "annual_change":
            shares[row["id"]] = (1 + _value(row)) * math.exp(-rate * (age - 1))
    records = [evidence.Record(_SHARE.forward(share), name, 1.0, name) for name, share in shares.items()]
    return evidence.problem(records, settings)


def fit(rows: list[Row], settings: dict[str, Any]) -> Fitted:
    """Return one population for all owners."""
    posed = problem(rows, settings)
    posterior = hierarchy.sample(posed)
    years = [int(row["fiscal_year"]) for row in rows]
    found = population(
        posterior, evidence.member(posed), _SHARE, rows, where={}, years=years,
        label=f"resale values carried to {settings['age']:g} years, {len(posed.rows)} estimates, "
              f"{min(years)}-{max(years)}",
        method=f"posterior predictive of a new estimate; anchor curve loses {anchor_rate(rows):.3f} a year (log)",
    )  # fmt: skip
    return Fitted([found], chain_checks.checks(posed, posterior))


def _value(row: Row) -> float:
    return float(row["value"])
