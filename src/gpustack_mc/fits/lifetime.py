r"""Years until accelerators are replaced: hyperscalers, and any owner.

With :math:`y = \log L` of record :math:`i` (the latest depreciation life of a company, a view of an analyst, an
assumption of a model, a claim from operation) in class :math:`c`, hyperscalers or others,

.. math::
    y_i = \mu + \kappa_c + \frac{a_i}{\sqrt{w_i}}, \qquad
    \kappa_c \sim N(0, \tau^2), \quad a_i \sim N(0, \sigma^2),

:math:`w` by kind of evidence, divided among the rows of one company, which are ends of a range; see
`gpustack_mc.fits.evidence`. Companies of one kind choose alike, so that their own spread says little about the economic
life: the spread is that of all owners. A draw is a new owner.
"""

import math
from collections import Counter
from typing import Any

from gpustack_mc.fits import chain_checks, evidence, hierarchy
from gpustack_mc.fits.hierarchy import Problem
from gpustack_mc.fits.members import LOG, population
from gpustack_mc.fits.populations import Fitted

Row = dict[str, str]
HYPERSCALER = "hyperscaler"


def records(rows: list[Row], settings: dict[str, Any]) -> list[evidence.Record]:
    """Lives by company and class of operator."""
    companies = Counter(row["company"] for row in rows)
    return [
        evidence.Record(
            math.log(float(row["useful_life_years"])), row["id"],
            settings["weights"][row["kind"]] / companies[row["company"]], row["id"],
            row["operator_class"] if row["operator_class"] == HYPERSCALER else "other",
        )
        for row in rows
    ]  # fmt: skip


def problem(rows: list[Row], settings: dict[str, Any]) -> Problem:
    """Lives of companies in two classes."""
    return evidence.problem(records(rows, settings), settings)


def fit(rows: list[Row], settings: dict[str, Any]) -> Fitted:
    """Return hyperscalers, and any owner."""
    posed = problem(rows, settings)
    posterior = hierarchy.sample(posed)
    held = [row for row in rows if row["operator_class"] == HYPERSCALER]
    how = "posterior predictive of a new company"

    def described(used: list[Row], members: Any, where: dict[str, str], label: str, method: str) -> Any:
        years = [int(row["fiscal_year"].strip("<>=").split("-")[-1]) for row in used]
        label = f"{label}, {min(years)}-{max(years)}"
        return population(posterior, members, LOG, used, where=where, label=label, method=method, years=years)

    populations = [
        described(held, evidence.member(posed, HYPERSCALER), {"operator": HYPERSCALER},
                  "latest depreciation lives of hyperscalers", f"{how}, mean pooled with other owners, spread of all"),
        described(rows, evidence.anyone(posed, records(rows, settings)), {},
                  "depreciation lives, analysts, models and one claim from operation",
                  f"{how}, classes drawn by the weight of their evidence"),
    ]  # fmt: skip
    return Fitted(populations, chain_checks.checks(posed, posterior))
