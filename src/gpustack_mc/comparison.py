"""From paired draws to what is known about scenarios: chances, differences, ratios, and what drives them."""

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpustack_mc import priors
from gpustack_mc.arrays import Chance, Floats
from gpustack_mc.paired import ROUNDING, DifferenceIndices, Paired
from gpustack_mc.problem import Input, Problem
from gpustack_mc.quantities import BY_NAME
from gpustack_mc.sobol import Indices, replicate_error
from gpustack_mc.tables import Table, Tree
from gpustack_mc.tallies import PROBABILITIES, STATISTICS, Part, exact

if TYPE_CHECKING:
    import xarray as xr

# Groups that a tree of paired draws gets from `with_statistics`.
_AGAINST_FIRST = ("difference", "ratio", "probability_lower", "probability_lowest")


class Case(NamedTuple):
    """One scenario of a comparison: a letter, a name, and the problem."""

    label: str
    name: str
    problem: Problem


class Row(NamedTuple):
    """One comparison: `names` is the output that each scenario contributes."""

    key: str
    short: str
    unit: str
    scope: str
    names: tuple[str, ...]


class Compared(NamedTuple):
    """Everything that is known after the draws.

    Attributes
    ----------
    cases : tuple of Case
    rows : tuple of Row
    notes : tuple of str
    paired : Paired
    indices : DifferenceIndices or None
    choice : {"common", "independent"}
    bracket : Paired or None
        Under the other choice; None where it does not matter.
    """

    cases: tuple[Case, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    paired: Paired
    indices: DifferenceIndices | None
    choice: str
    bracket: Paired | None


def values_of(paired: Paired, row: Row) -> Floats:
    """Return the draws that a row compares, shape (scenarios, draws)."""
    return np.stack([paired.outputs[k, paired.names.index(name)] for k, name in enumerate(row.names)])


def spread(values: Floats, replicates: int) -> dict[str, Any]:
    """Return median and intervals of draws, with Monte Carlo errors.

    Parameters
    ----------
    values : ndarray, shape (draws,)
        `replicates` equal parts one after the other.
    replicates : int
    """
    if not np.isfinite(values).all():
        return {"median": None, "interval_50": [None, None], "interval_90": [None, None], "monte_carlo_error": None}
    low, first, median, third, high = (float(q) for q in _quantiles(values))
    found = replicate_error(_quantiles(values.reshape(replicates, -1)))
    errors = [float(error) if np.isfinite(error) else None for error in found]
    return {
        "mean": float(values.mean()),
        "median": median,
        "interval_50": [first, third],
        "interval_90": [low, high],
        "monte_carlo_error": {"median": errors[2], "interval_90": [errors[0], errors[4]]},
    }


def _quantiles(values: Floats) -> Floats:
    """Return `PROBABILITIES` along the last axis, as the last axis: those of ``numpy.quantile``, by sorting once."""
    ordered = np.sort(values, axis=-1)
    place = np.asarray(PROBABILITIES) * (values.shape[-1] - 1)
    below = np.floor(place).astype(int)
    lower, upper = ordered[..., below], ordered[..., np.minimum(below + 1, values.shape[-1] - 1)]
    share = place - below
    # From the nearer end, as NumPy does.
    found: Floats = np.where(share < 0.5, lower + (upper - lower) * share, upper - (upper - lower) * (1 - share))
    return found


def chance(holds: Floats, replicates: int) -> Chance:
    """Return the share of draws, each between 0 and 1, with its Monte Carlo standard error."""
    error = float(replicate_error(holds.reshape(replicates, -1).mean(axis=1)))
    return {"probability": float(holds.mean()), "monte_carlo_error": error if np.isfinite(error) else None}


def lower(first: Floats, other: Floats) -> Floats:
    """Return 1 where `other` is below `first`, and one half where they are equal but for rounding."""
    equal = np.abs(other - first) <= ROUNDING * np.abs(first)
    return np.where(equal, 0.5, other < first)


def lowest(values: Floats) -> Floats:
    """Return each scenario's share in being the lowest, shape (scenarios, draws); ties are divided.

    Parameters
    ----------
    values : ndarray, shape (scenarios, draws)
    """
    least = values.min(axis=0)
    best = values - least <= ROUNDING * np.abs(least)
    return best / best.sum(axis=0)


# ---- summary -----------------------------------------------------------------------------------------------------


def summarise(compared: Compared, files: Iterable[str] = ()) -> dict[str, Any]:
    """Return the object that ``compare --json`` prints and ``comparison.json`` holds."""
    from gpustack_mc.result import versions

    design = compared.paired.design
    basis = compared.cases[0].problem.basis
    return {
        "schema_version": 1,
        "kind": "comparison",
        "seed": design.seed,
        "samples": design.samples,
        "interval": "equal-tailed",
        "basis": basis if all(case.problem.basis == basis for case in compared.cases) else {},
        "coupling": compared.choice,
        "scenarios": [_scenario(compared, k) for k in range(len(compared.cases))],
        "comparisons": [_pair(compared, k) for k in range(1, len(compared.cases))],
        "lowest": {row.key: _lowest(compared, row) for row in compared.rows},
        "differences": [_difference(compared, difference) for difference in compared.paired.coupling.differences],
        "notes": list(compared.notes),
        "files": list(files),
        "versions": versions(),
    }


def _scenario(compared: Compared, k: int) -> dict[str, Any]:
    case, replicates = compared.cases[k], compared.paired.design.replicates
    outputs = {}
    for row in compared.rows:
        found = spread(values_of(compared.paired, row)[k], replicates)
        outputs[row.key] = {"output": row.names[k], "unit": row.unit, "scope": row.scope} | found
    return {
        "label": case.label,
        "name": case.name,
        "scenario": case.problem.name,
        "scenario_sha256": case.problem.digest,
        "ownership": case.problem.file.ownership,
        "basis": case.problem.basis,
        "outputs": outputs,
    }


def _pair(compared: Compared, k: int) -> dict[str, Any]:
    rows = {row.key: _compared(compared, row, i, k) for i, row in enumerate(compared.rows)}
    return {"first": compared.cases[0].label, "other": compared.cases[k].label, "outputs": rows}


def _compared(compared: Compared, row: Row, i: int, k: int) -> dict[str, Any]:
    replicates = compared.paired.design.replicates
    values = values_of(compared.paired, row)
    first, other = values[0], values[k]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = other / first
    found = {
        "unit": row.unit,
        "scope": row.scope,
        "same": bool((np.abs(other - first) <= ROUNDING * np.abs(first)).all()),
        "other_lower": chance(lower(first, other), replicates),
        "difference": spread(other - first, replicates),
        "ratio": spread(ratio, replicates),
    }
    if compared.bracket is not None:
        under = values_of(compared.bracket, row)
        chosen = "independent" if compared.choice == "common" else "common"
        found[f"other_lower_if_{chosen}"] = chance(lower(under[0], under[k]), replicates)
    if compared.indices is not None:
        blocks = compared.indices.blocks
        found["sensitivity_difference"] = _indices(compared.indices.difference[k - 1], blocks, i)
        found["sensitivity_log_ratio"] = _indices(compared.indices.log_ratio[k - 1], blocks, i)
    return found


def _indices(found: Indices, blocks: Sequence[str], i: int) -> dict[str, Any]:
    if found.status[i] not in ("ok", "one replicate"):
        return {"status": found.status[i]}

    def number(value: float) -> float | None:
        return float(value) if np.isfinite(value) else None

    return {
        name: {
            "S1": number(found.first[j, i]),
            "S1_interval_90": [number(found.first_low[j, i]), number(found.first_high[j, i])],
            "ST": number(found.total[j, i]),
            "ST_interval_90": [number(found.total_low[j, i]), number(found.total_high[j, i])],
        }
        for j, name in enumerate(blocks)
    }


def _lowest(compared: Compared, row: Row) -> dict[str, Any]:
    shares = lowest(values_of(compared.paired, row))
    replicates = compared.paired.design.replicates
    return {case.label: chance(share, replicates) for case, share in zip(compared.cases, shares, strict=True)}


def _difference(compared: Compared, difference: Any) -> dict[str, Any]:
    values = {}
    for case in compared.cases:
        item = case.problem.inputs.get(difference.key)
        values[case.label] = None if item is None else input_entry(item)
    rho = difference.correlation
    return {
        "input": difference.key,
        "coupling": difference.how,
        "correlation": float(rho) if np.isfinite(rho) else None,
        "values": values,
    }


def input_entry(item: Input) -> dict[str, Any]:
    """Return median, 90% interval and provenance of an input, without draws."""
    low, median, high = (float(q) for q in priors.quantiles(item.marginal, [0.05, 0.5, 0.95]))
    return {
        "unit": item.quantity.unit,
        "median": median,
        "interval_90": [low, high],
        "origin": item.origin,
        "prior": item.prior,
        "where": dict(item.where),
        "fell_back_from": list(item.missed),
    }


def to_datatree(compared: Compared) -> "xr.DataTree":
    """Return `to_tree` for xarray."""
    return to_tree(compared).as_datatree()


def to_tree(compared: Compared) -> Tree:
    """Return the paired draws; variables have dimensions (chain, draw, scenario).

    Group ``prior_predictive`` holds all outputs and ``prior`` the inputs, NaN in scenarios that do not have one.
    Draw i of one scenario belongs to draw i of the others.
    """
    from gpustack_mc.result import quantity_attributes, versions

    paired = compared.paired
    coords = {
        "chain": [0],
        "draw": np.arange(paired.outputs.shape[2]),
        "scenario": [f"{case.label}: {case.name}" for case in compared.cases],
    }
    dims = ("chain", "draw", "scenario")
    outputs = {
        name: (dims, paired.outputs[:, i].T[None], quantity_attributes(BY_NAME[name]))
        for i, name in enumerate(paired.names)
    }
    inputs = {}
    for key in dict.fromkeys(key for case in compared.cases for key in case.problem.inputs):
        columns = [_input_draws(paired, k, key) for k in range(len(compared.cases))]
        quantity = next(c.problem.inputs[key].quantity for c in compared.cases if key in c.problem.inputs)
        inputs[key] = (dims, np.stack(columns, axis=1)[None], quantity_attributes(quantity, key))
    root = {
        "gpustack_mc_schema": 1,
        "kind": "comparison",
        "seed": paired.design.seed,
        "samples": paired.design.samples,
        "replicates": paired.design.replicates,
        "coupling": compared.choice,
        "scenarios": json.dumps([case.problem.text for case in compared.cases]),
        "scenario_sha256": json.dumps([case.problem.digest for case in compared.cases]),
        "versions": json.dumps(versions()),
    }
    draws = {"sample_dims": ["chain", "draw"]}
    groups = {"prior": Table(inputs, coords, draws), "prior_predictive": Table(outputs, coords, draws)}
    return Tree(groups, root)


def _input_draws(paired: Paired, k: int, key: str) -> Floats:
    if key in paired.varying[k]:
        drawn: Floats = paired.inputs[k][paired.varying[k].index(key)]
        return drawn
    item = paired.problems[k].inputs.get(key)
    # The model does not read an input that is neither fixed nor varying: it is not in this scenario.
    value = float(item.marginal.parameters["value"]) if item is not None else float("nan")
    return np.full(paired.outputs.shape[2], value)


def with_statistics(tree: "xr.DataTree", labels: Sequence[str]) -> "xr.DataTree":
    """Return paired draws with what they say about each scenario against the first.

    Parameters
    ----------
    tree : xarray.DataTree
        From `to_datatree`.
    labels : sequence of str
        Names of the scenarios, all different.

    Returns
    -------
    xarray.DataTree
        With the groups ``difference`` and ``ratio``, over (scenario, statistic), ``probability_lower`` than the first
        and ``probability_lowest`` of all, over (scenario,).
    """
    import xarray as xr

    replicates = int(tree.attrs["replicates"])
    groups: dict[str, dict[str, Any]] = {name: {} for name in _AGAINST_FIRST}
    for key, variable in tree["prior_predictive"].data_vars.items():
        name = str(key)
        values, about = variable.values[0].T, variable.attrs
        share = about | {"units": "1"}
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = values[1:] / values[0]
        below = [lower(values[0], other).mean() for other in values[1:]]
        dims = ("scenario", "statistic")
        groups["difference"][name] = (dims, _statistics(values[1:] - values[0], replicates), about)
        groups["ratio"][name] = (dims, _statistics(ratios, replicates), share)
        groups["probability_lower"][name] = (("scenario",), below, share)
        groups["probability_lowest"][name] = (("scenario",), lowest(values).mean(axis=1), share)
    coords: dict[str, dict[str, Any]] = {name: {"scenario": list(labels[1:])} for name in groups}
    coords["probability_lowest"] = {"scenario": list(labels)}
    for name in ("difference", "ratio"):
        coords[name]["statistic"] = list(STATISTICS)
    draws = {
        name: tree[name].to_dataset().assign_coords(scenario=list(labels)) for name in ("prior", "prior_predictive")
    }
    found = {name: xr.Dataset(data, coords=coords[name]) for name, data in groups.items()}
    return xr.DataTree.from_dict({"/": xr.Dataset(attrs=tree.attrs), **draws, **found})


def _statistics(draws: Floats, replicates: int) -> Floats:
    """Return the `STATISTICS` of draws, shape (rows, draws), as (rows, statistics); NaN where one is not finite."""
    finite = np.isfinite(draws).all(axis=1)
    sound = np.where(finite[:, None], draws, 0.0)
    parts = [Part(part, np.sort(part, axis=1)) for part in np.split(sound, replicates, axis=1)]
    return np.where(finite[:, None], exact(sound, parts).rows().T, np.nan)
