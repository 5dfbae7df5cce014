"""A simulation as an `xarray.DataTree`, and back from its netCDF file.

Groups follow ArviZ: ``prior`` holds the draws of the inputs, ``prior_predictive`` those of the outputs and
``constant_data`` the inputs that are fixed; ``sensitivity`` and ``statistics`` are our own, and so are ``so_far`` and
``remaining``, the two parts of the outputs of a job that runs. Draws have dimensions
(chain, draw) with one chain, so that ArviZ reads them without being told anything.
"""

import io
import json
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpustack_mc import __version__, catalog
from gpustack_mc.problem import Input, Problem
from gpustack_mc.propagation import Sensitivity, Simulation
from gpustack_mc.quantities import BY_NAME, Quantity
from gpustack_mc.spent import parts
from gpustack_mc.tables import AnyTree, Table, Tree, tables_of

if TYPE_CHECKING:
    import xarray as xr

SCHEMA_VERSION = 1
_LIBRARIES = ("jax", "jaxlib", "numpy", "scipy", "xarray", "arviz", "numpyro")


def versions() -> dict[str, str]:
    """Return the versions of everything that the numbers depend on."""
    found = {"gpustack-mc": __version__, "python": platform.python_version()}
    for library in _LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found


def to_datatree(simulation: Simulation) -> "xr.DataTree":
    """Return a simulation as a DataTree with units, sources and provenance in its attributes, see `to_tree`."""
    return to_tree(simulation).as_datatree()


def to_tree(simulation: Simulation) -> Tree:
    """Return a simulation as labelled tables with units, sources and provenance in their attributes.

    Returns
    -------
    Tree
        Root attributes: ``gpustack_mc_schema``, ``name``, ``seed``, ``samples``, ``design``, ``precision``,
        ``interval`` (of which kind are told), ``draws``,
        ``scenario`` (its YAML text with what was laid over it), ``scenario_sha256``, ``scenario_file`` (the text
        alone), ``overrides``, ``pack_sha256``, ``versions``, ``basis``, ``questions``, ``published``,
        ``conditioned_on``, the last five as JSON, because netCDF attributes hold no mappings.
    """
    problem = simulation.problem
    created = {"created_at": datetime.now(UTC).isoformat(timespec="seconds")}
    library = {"creation_library": "gpustack-mc", "creation_library_version": __version__}
    draws = {"sample_dims": ["chain", "draw"], **created, **library}
    groups = {
        "prior": _draws(_input_variables(simulation), draws),
        "prior_predictive": _draws(_output_variables(simulation), draws),
        "constant_data": _constants(problem, created | library),
        "statistics": _statistics(simulation),
    }
    if simulation.sensitivity:
        groups["sensitivity"] = _sensitivity(simulation.sensitivity, problem)
    if problem.running:
        for name, values in parts(simulation)._asdict().items():
            groups[name] = _draws(_described(values, problem.basis, name.replace("_", " ")), draws)
    return Tree(groups, _root_attributes(simulation) | created | library)


def write(tree: AnyTree, path: Path) -> None:
    """Write a result as netCDF-4, which `xarray.open_datatree` reads back identical.

    A netCDF-4 file is an HDF5 file whose dimensions are dimension scales. `xarray.DataTree.to_netcdf` writes the same
    and takes ten times as long, a sixth of a whole run.
    """
    import h5py

    # In memory first: when the disk is full HDF5 crashes while closing a file, and Python does not.
    buffer = io.BytesIO()
    with h5py.File(buffer, "w", track_order=True) as file:
        for name, node in tables_of(tree):
            group = file if name == "/" else file.create_group(name, track_order=True)
            _write_attributes(group, node.attrs)
            _write_variables(group, node)
    # A copy: a view that a failed write leaves in its traceback cannot be let go of.
    path.write_bytes(buffer.getvalue())


def _write_variables(group: Any, node: Any) -> None:
    for dimension, size in node.sizes.items():
        if dimension not in node.variables:
            # The name by which netCDF knows a dimension that has no coordinates.
            scale = group.create_dataset(dimension, shape=(size,), dtype=">f4")
            scale.make_scale(f"This is a netCDF dimension but not a netCDF variable.{size:10d}")
    # Coordinates of dimensions come first, so that the others find their scales.
    for name in sorted(node.variables, key=lambda name: name not in node.sizes):
        variable = node.variables[name]
        values = variable.values
        text = values.dtype.kind in "UO"
        dataset = group.create_dataset(name, data=values.astype(object) if text else values, dtype=_dtype(values))
        if name in node.sizes:
            dataset.make_scale(name)
        else:
            for axis, dimension in enumerate(variable.dims):
                dataset.dims[axis].attach_scale(group[dimension])
        _write_attributes(dataset, variable.attrs)


def _dtype(values: np.ndarray) -> Any:
    import h5py

    return h5py.string_dtype() if values.dtype.kind in "UO" else values.dtype


def _write_attributes(place: Any, attributes: Mapping[Any, Any]) -> None:
    for name, value in attributes.items():
        array = np.atleast_1d(np.asarray(value))
        if array.dtype.kind in "UO" and array.size > 1:
            place.attrs.create(name, array.astype(object), dtype=_dtype(array))
        else:
            # netCDF has no scalar attributes but texts: a number is an array of one.
            place.attrs[name] = value if isinstance(value, str) else array


def _root_attributes(simulation: Simulation) -> dict[str, Any]:
    problem, design = simulation.problem, simulation.design
    published = {
        name: {
            "value": figure.value,
            "source": figure.source.title,
            "url": figure.source.url,
            "outside": figure.outside,
        }
        for name, figure in problem.published.items()
    }
    return {
        "gpustack_mc_schema": SCHEMA_VERSION,
        "name": problem.name,
        "description": problem.file.description,
        "ownership": problem.file.ownership,
        "seed": design.seed,
        "samples": design.samples,
        "design": design.method,
        "replicates": design.replicates,
        "precision": simulation.precision,
        "interval": "hdi" if len(simulation.output_statistics.densest) else "equal-tailed",
        "draws": simulation.kept,
        "scenario": problem.text,
        "scenario_sha256": problem.digest,
        "scenario_file": problem.written,
        "overrides": json.dumps(problem.overrides),
        "pack_sha256": problem.pack_digest,
        "priors_sha256": catalog.priors_digest(),
        "versions": json.dumps(versions()),
        "platform": f"{platform.system()} {platform.machine()}",
        "basis": json.dumps(problem.basis),
        "questions": json.dumps(problem.questions),
        "asked": json.dumps([[asked.text, [term._asdict() for term in asked.terms]] for asked in problem.asked]),
        "start": problem.start.isoformat() if problem.start else "",
        "published": json.dumps(published),
        "notes": json.dumps(problem.notes),
        "conditioned_on": json.dumps(problem.running.words if problem.running else ()),
    }


def _draws(variables: dict[str, tuple[np.ndarray, dict[str, Any]]], attributes: dict[str, Any]) -> Table:
    data = {name: (("chain", "draw"), values[None, :], attrs) for name, (values, attrs) in variables.items()}
    length = next((len(values) for values, _ in variables.values()), 0)
    return Table(data, {"chain": [0], "draw": np.arange(length)}, attrs=attributes)


def quantity_attributes(quantity: Quantity, key: str | None = None) -> dict[str, str]:
    """Return unit, long name and scope of a variable, as stored in every result."""
    phase = f", {key.partition('@')[2]}" if key and "@" in key else ""
    scope = {"scope": quantity.scope} if quantity.scope else {}
    return {"units": quantity.unit, "long_name": quantity.description + phase, "domain": quantity.domain, **scope}


def _input_attributes(item: Input) -> dict[str, Any]:
    sources = [source._asdict() for source in item.sources]
    marginal = {"family": item.marginal.family, "parameters": dict(item.marginal.parameters)}
    return {
        **quantity_attributes(item.quantity, item.key),
        "origin": item.origin,
        "prior": item.prior,
        "source": "; ".join(source.title for source in item.sources),
        "sources": json.dumps(sources),
        "where": json.dumps(dict(item.where)),
        "missed": json.dumps(list(item.missed)),
        "dated": item.dated,
        "collected": item.collected,
        "distribution": json.dumps(marginal) if item.marginal.family != "sample" else json.dumps({"family": "sample"}),
    }


def _input_variables(simulation: Simulation) -> dict[str, tuple[np.ndarray, dict[str, Any]]]:
    inputs = simulation.problem.inputs
    return {
        key: (values, _input_attributes(inputs[key]))
        for key, values in zip(simulation.varying, simulation.inputs, strict=True)
    }


def _output_variables(simulation: Simulation) -> dict[str, tuple[np.ndarray, dict[str, Any]]]:
    return _described(dict(zip(simulation.problem.outputs, simulation.outputs, strict=True)), simulation.problem.basis)


def _described(
    outputs: Mapping[str, np.ndarray], basis: Mapping[str, str], part: str = ""
) -> dict[str, tuple[np.ndarray, dict[str, Any]]]:
    variables = {}
    for name, values in outputs.items():
        attributes = quantity_attributes(BY_NAME[name])
        if part:
            attributes["long_name"] += f", {part}"
        if BY_NAME[name].domain == "carbon":
            attributes |= basis
        variables[name] = (values, attributes)
    return variables


def _constants(problem: Problem, attributes: dict[str, Any]) -> Table:
    fixed = {
        key: ((), float(item.marginal.parameters["value"]), _input_attributes(item))
        for key, item in problem.inputs.items()
        if item.marginal.is_fixed
    }
    return Table(fixed, attrs=attributes)


def _statistics(simulation: Simulation) -> Table:
    """Summaries over all draws: one array with dimensions (variable, statistic).

    A variable of its own for each quantity would read nicer, and make the file three times slower to write.
    """
    keys = [*simulation.varying, *simulation.problem.outputs]
    rows = np.concatenate([simulation.input_statistics.rows(), simulation.output_statistics.rows()], axis=1)
    units = [BY_NAME[key.partition("@")[0]].unit for key in keys]
    about = "over all draws; *_error is the Monte Carlo standard error, from independent replicates of the design"
    return Table(
        {"value": (("variable", "statistic"), rows.T, {}), "units": (("variable",), units, {})},
        coords={"variable": keys, "statistic": list(simulation.output_statistics.names)},
        attrs={"comment": about},
    )


def _sensitivity(found: Sensitivity, problem: Problem) -> Table:
    """Indices with dimensions (scale, output, input); constant and non-finite outputs are NaN and named."""
    data: dict[str, tuple[tuple[str, ...], np.ndarray, dict[str, str]]] = {}
    for name, field in (("S1", "first"), ("ST", "total")):
        for suffix, end in (("", ""), ("_lower", "_low"), ("_upper", "_high")):
            values = np.stack([getattr(part, field + end).T for part in (found.raw, found.log)])
            data[name + suffix] = (("scale", "output", "input"), values, {"units": "1"})
    data["S1"][2]["long_name"] = "First-order Sobol' index"
    data["ST"][2]["long_name"] = "Total Sobol' index"
    status = np.array([list(part.status) for part in (found.raw, found.log)])
    data["status"] = (("scale", "output"), status, {})
    attributes = {
        "samples": found.samples,
        "interval": f"90% percentile interval of a bootstrap over points, {found.resamples} resamples"
        if found.resamples
        else "90% t-interval from independent replicates of the design",
        "estimators": "S1 Saltelli et al. 2010, ST Jansen 1999",
    }
    if problem.correlated:
        attributes["comment"] = "correlated inputs form one block; an index of a block is that of the inputs together"
    coords = {"scale": ["raw", "log"], "output": list(problem.outputs), "input": list(found.blocks)}
    return Table(data, coords, attributes)
