r"""Power usage effectiveness of one site: classes of operators, operators in a class, sites of an operator.

With :math:`y = \log\frac{\mathrm{PUE} - 1}{h - \mathrm{PUE}}`, which is :math:`\log(\mathrm{PUE} - 1)` in all but the
far tail that the physical bound :math:`h` cuts, operator :math:`o` of class :math:`c` has a fleet at

.. math::
    \mu_c = \mu + \kappa_c, \quad \kappa_c \sim N(0, \tau^2), \qquad
    \theta_o = \mu_{c(o)} + a_o, \quad a_o \sim N(0, \sigma_\mathrm{operators}^2),

and a row of it is

.. math::
    \text{fleet, survey:} \quad & y = \theta_o + e, && e \sim N(0, \sigma_\mathrm{report}^2), \\
    \text{site:} \quad & y = \theta_o + r, && r \sim N(0, \sigma_\mathrm{sites}^2), \\
    \text{best of about } S \text{ sites:} \quad & y = \theta_o - z_S\, \sigma_\mathrm{sites} + m,
        && m \sim N(0, v_S\, \sigma_\mathrm{sites}^2),

with :math:`z_S = -\Phi^{-1}(1 / (S + 1))` and :math:`v_S` the variance of the smallest of :math:`S` standard normals.
A draw is a site of a new operator, :math:`\mu_c + a + r`; sampled by `gpustack_mc.fits.hierarchy`. Where the operator
is not known, its class is drawn as often as it has operators here. Classes with few operators borrow from the others.
"""

from collections import Counter
from functools import cache
from typing import Any

from scipy import integrate, stats

from gpustack_mc.fits import chain_checks, hierarchy
from gpustack_mc.fits.hierarchy import WIDE, Effect, Problem
from gpustack_mc.fits.members import Member, Scale, population
from gpustack_mc.fits.populations import Fitted, Population

Row = dict[str, str]
CLASSES = {
    "hyperscaler": "hyperscaler fleets and published training sites",
    "colocation": "colocation fleets and design values",
    "hpc": "liquid-cooled HPC sites",
    "enterprise": "survey averages of enterprise and all sites",
}
_OTHER = "other"  # rows of no class


@cache
def variance_of_lowest(sites: int) -> float:
    """Variance of the smallest of so many independent standard normals."""

    def moment(power: int) -> float:
        return integrate.quad(
            lambda z: z**power * sites * stats.norm.pdf(z) * stats.norm.sf(z) ** (sites - 1), -12, 12, limit=200
        )[0]

    return moment(2) - moment(1) ** 2


def _scale(settings: dict[str, Any]) -> Scale:
    return Scale(1.0, float(settings["ceiling"]))


def _class(row: Row) -> str:
    return row["operator_class"] or _OTHER


def _row(row: Row, settings: dict[str, Any]) -> hierarchy.Row:
    effects = {"mean": 1.0, f"class:{_class(row)}": 1.0, f"operator:{row['operator']}": 1.0}
    y = _scale(settings).forward(float(row["pue"]))
    unit, ids = row["operator"], (row["id"],)
    count = settings["sites_per_operator"]
    if row["role"] == "best_site":
        depth = -float(stats.norm.ppf(1 / (count + 1)))
        return hierarchy.Row(y, effects, {"sites": variance_of_lowest(count)}, unit, ids, shift={"sites": -depth})
    if row["role"] in ("fleet", "survey"):
        return hierarchy.Row(y, effects, {}, unit, ids, variance=settings["report_sd"] ** 2)
    return hierarchy.Row(y, effects, {"sites": 1.0}, unit, ids)


def _lowest(rows: list[Row]) -> list[Row]:
    """All rows, but of the best sites of one operator the very best only."""
    best: dict[str, Row] = {}
    for row in rows:
        if row["role"] == "best_site":
            held = best.get(row["operator"])
            best[row["operator"]] = row if held is None or float(row["pue"]) < float(held["pue"]) else held
    return [row for row in rows if row["role"] != "best_site" or best[row["operator"]] is row]


def problem(rows: list[Row], settings: dict[str, Any]) -> Problem:
    """Rows of operators in classes."""
    used = _lowest(rows)
    return Problem(
        rows=[_row(row, settings) for row in used],
        effects={
            "mean": Effect(WIDE),
            **{f"class:{_class(row)}": Effect("classes") for row in used},
            **{f"operator:{row['operator']}": Effect("operators") for row in used},
        },
        spreads={
            "classes": hierarchy.half_normal(settings["class_sd"]),
            "operators": hierarchy.expected(settings["prior_sd"], settings["prior_weight"]),
            "sites": hierarchy.expected(settings["site_sd"], settings["site_weight"]),
        },
    )


def fit(rows: list[Row], settings: dict[str, Any]) -> Fitted:
    """Return hyperscaler, colocation, HPC and enterprise sites, and the site of an unknown operator."""
    posed = problem(rows, settings)
    posterior = hierarchy.sample(posed)
    members = {name: _member(name) for name in CLASSES}
    populations = []
    for name, label in CLASSES.items():
        own = [row for row in rows if row["operator_class"] == name]
        how = f"posterior predictive of a site of a new operator; {name} with partial pooling to all classes"
        populations.append(_population(posterior, [members[name]], own, {"operator": name}, label, how, settings))
    counts = Counter(_class(row) for row in {row["operator"]: row for row in rows}.values())
    anyone = [_member(name)._replace(weight=count) for name, count in sorted(counts.items())]
    label = "operator unknown: all operators and surveys, one value each"
    how = "posterior predictive, classes drawn by their number of operators"
    populations.append(_population(posterior, anyone, rows, {}, label, how, settings))
    return Fitted(populations, chain_checks.checks(posed, posterior))


def _member(name: str) -> Member:
    return Member({"mean": 1.0, f"class:{name}": 1.0}, {"operators": 1.0, "sites": 1.0})


def _population(
    posterior: hierarchy.Posterior, members: list[Member], rows: list[Row], where: dict[str, str], label: str, how: str,
    settings: dict[str, Any],
) -> Population:  # fmt: skip
    years = [int(row["year"]) for row in rows]
    return population(
        posterior, members, _scale(settings), rows, where=where, label=f"{label}, {min(years)}-{max(years)}",
        method=how, years=years,
    )  # fmt: skip
