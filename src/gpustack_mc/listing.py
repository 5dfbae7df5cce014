"""What ``gpustack-mc`` can list: quantities, accelerators, regions, scenarios and priors."""

import json
from collections.abc import Iterable
from typing import Any

import click

from gpustack_mc import catalog, run_columns
from gpustack_mc import priors as marginals
from gpustack_mc.errors import InputError, did_you_mean, option_place
from gpustack_mc.quantities import BY_NAME, INPUTS, QUANTITIES

Table = list[dict[str, Any]]


def echo(table: Table, as_json: bool) -> None:
    """Print a table, aligned for people or as JSON."""
    if as_json:
        click.echo(json.dumps(table, indent=2))
        return
    if not table:
        click.echo("nothing found", err=True)
        return
    columns = list(table[0])
    cells = [columns, *([_cell(row[column]) for column in columns] for row in table)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    for row in cells:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _cell(value: Any) -> str:
    if value is None:
        return "unknown"
    return f"{value:g}" if isinstance(value, float) else str(value)


def quantities() -> Table:
    """Return the table of quantities."""
    return [
        {
            "name": q.name,
            "unit": q.unit,
            "role": q.role,
            "scope": q.scope,
            "low": q.low,
            "high": q.high if q.high < float("inf") else None,
            "description": q.description,
        }
        for q in QUANTITIES
    ]


def columns() -> Table:
    """Return the columns that a table of the user's own runs may have."""
    return [
        {
            "column": c.name,
            "unit": c.unit,
            "informs": c.informs,
            "also": "; ".join(c.aliases),
            "description": c.description,
        }
        for c in run_columns.COLUMNS.values()
    ]


def accelerators() -> Table:
    """Return the known accelerators; unknown figures are None."""
    return [
        {
            "name": a.name,
            "vendor": a.vendor,
            "bf16_tflops": a.peak_flop_per_s["bf16"] / 1e12 if a.peak_flop_per_s["bf16"] else None,
            "fp8_tflops": a.peak_flop_per_s["fp8"] / 1e12 if a.peak_flop_per_s["fp8"] else None,
            "tdp_w": a.tdp,
            "memory_gb": a.memory_gb,
            "year": a.release_year,
            "also": "; ".join(a.aliases),
        }
        for a in catalog.accelerators().values()
    ]


def regions(word: str = "") -> Table:
    """Return the known regions whose id, name or kind holds a word."""
    return [
        {"id": r.id, "name": r.name, "kind": r.kind, "part_of": r.parent}
        for r in catalog.regions().values()
        if word.casefold() in f"{r.id} {r.name} {r.kind}".casefold()
    ]


def scenarios() -> Table:
    """Return the shipped scenarios by name, with what they describe."""
    from gpustack_mc import yamlfile

    table = []
    for name, path in catalog.shipped_scenarios().items():
        data = yamlfile.parse(*yamlfile.read_text(path)).data
        table.append({"scenario": name, "name": data["name"]})
    return table


def priors() -> Table:
    """Return the priors with their number of populations and rows."""
    table = []
    for name in INPUTS:
        fit = catalog.fit_record(name)
        populations = fit.get("populations", [])
        rows = {row for population in populations for row in population["rows"]}
        table.append(
            {
                "prior": name,
                "unit": BY_NAME[name].unit,
                "populations": len(populations) or 1,
                "rows": len(rows) or sum(fit["rows"].values()),
                "sources": len(fit["sources"]),
                "date": fit["date"],
                "title": fit["title"],
            }
        )
    return table


def prior(name: str, where: Iterable[str] = ()) -> dict[str, Any]:
    """Return one prior, each population with its 5%, 50% and 95% quantiles.

    Parameters
    ----------
    name : str
    where : iterable of str
        ``key=value``: only populations of which all of these are said.

    Raises
    ------
    InputError
        There is no such prior, or no such population.
    """
    if name not in INPUTS:
        raise InputError("unknown-prior", f"there is no prior {name[:60]!r}.", did_you_mean(name, INPUTS))
    fit = dict(catalog.fit_record(name)) | {"quantity": name}
    populations = []
    for population in _fitting(name, fit.get("populations", []), tuple(where)):
        shown = dict(population)
        if "regression" not in population["parameters"]:
            marginal = marginals.Marginal(population["family"], population["parameters"])
            shown["quantiles"] = dict(
                zip(("p05", "p50", "p95"), map(float, marginals.quantiles(marginal, [0.05, 0.5, 0.95])), strict=True)
            )
        populations.append(shown)
    return fit | {"populations": populations}


def _fitting(name: str, populations: list[dict[str, Any]], where: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the populations of a prior of which some facts are said."""
    found = populations
    for text in where:
        key, _, value = (part.strip() for part in text.partition("="))
        place = option_place("--where", text)
        keys = list(dict.fromkeys(key for population in populations for key in population["where"]))
        if key not in keys:
            fix = did_you_mean(key, keys) if keys else "Leave it out."
            raise InputError("unknown-fact", f"no population of {name} is told by {key[:60]!r}.", fix, place)
        values = list(dict.fromkeys(str(p["where"][key]) for p in found if key in p["where"]))
        found = [p for p in found if str(p["where"].get(key, "")) == value]
        if not found:
            message = f"there is no population of {name} with {key} {value[:60]!r}."
            raise InputError("unknown-population", message, did_you_mean(value, values), place)
    return found


def prior_text(fit: dict[str, Any], *, short: bool = False) -> str:
    """Return one prior for people; without its sources and limits when short."""
    quantity = BY_NAME[fit["quantity"]]
    lines = [f"{fit['quantity']} [{quantity.unit}]: {fit['title']}", fit["description"], ""]
    for population in fit["populations"]:
        where = ", ".join(f"{key}={value}" for key, value in population["where"].items()) or "otherwise"
        if "quantiles" in population:
            q = population["quantiles"]
            spread = f"{q['p50']:.4g} ({q['p05']:.4g} – {q['p95']:.4g})"
        else:
            spread = "regression on " + ", ".join(population["parameters"]["regression"]["terms"])
        lines.append(f"  {where}: {spread}; {population['label']}, n={population['n']}, {population['family']}")
    if short:
        return "\n".join(lines)
    if "summary" in fit:
        lines.append(f"  joint posterior of {fit['families']} families, rows {fit['rows']}; 5%, 50%, 95%:")
        lines += [f"    {key}: {m:.3g} ({a:.3g} – {b:.3g})" for key, (a, m, b) in fit["summary"].items()]
        found = fit["diagnostics"]
        lines.append(f"    R-hat {found['r_hat']:.3f}, ESS {found['ess_bulk']:.0f}, {found['divergences']} divergences")
    lines += ["", "sources", *(f"  {s['title']}, {s['url']} ({s['licence']})" for s in fit["sources"].values())]
    lines += ["", "limits", *(f"  {limit}" for limit in fit["limits"])]
    return "\n".join(lines)
