"""SALib's ``problem`` from a scenario and back, and designs in SALib's order that its estimators read.

SALib (https://salib.readthedocs.io) knows fewer distributions than scenarios have. An input of a family that it lacks
is exported as its probability, uniform between 0 and 1, and named in ``probabilities``; `evaluate` turns it into a
value. SALib draws inputs independently, so scenarios with correlations have no such form.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpustack_mc import priors, units
from gpustack_mc.design import Design, make_design, points
from gpustack_mc.errors import InputError, Place, did_you_mean
from gpustack_mc.priors import Marginal
from gpustack_mc.problem import Problem
from gpustack_mc.propagation import Propagation
from gpustack_mc.shapes import dimension

# Base points of a sample that is written: 22 times as many rows of 20 inputs take 14 MB.
EXPORTED = 2**12
_CHUNK = 2**14


def to_salib(problem: Problem, groups: Mapping[str, Sequence[str]] | None = None) -> dict[str, Any]:
    """Return SALib's description of the uncertain inputs of a scenario.

    Parameters
    ----------
    problem : Problem
    groups : mapping of str to sequence of str, optional
        Inputs of each group, together all that vary, each once.

    Returns
    -------
    dict
        ``num_vars``, ``names``, ``bounds``, ``dists`` and ``groups`` as SALib reads them; ``probabilities``: names of
        the inputs that are given as probabilities, which SALib ignores.

    Raises
    ------
    InputError
        Inputs are correlated.
    """
    names = _names(problem)
    forms = [_form(problem.inputs[name].marginal) for name in names]
    found = {
        "num_vars": len(names),
        "names": names,
        "bounds": [form[1] if form else [0.0, 1.0] for form in forms],
        "dists": [form[0] if form else "unif" for form in forms],
        "probabilities": [name for name, form in zip(names, forms, strict=True) if not form],
    }
    if groups:
        owner = {key: group for group, keys in groups.items() for key in keys}
        found["groups"] = [owner[name] for name in names]
    return found


def _names(problem: Problem) -> list[str]:
    if len(problem.correlated) and not np.array_equal(problem.correlation, np.eye(len(problem.correlated))):
        message = f"{', '.join(problem.correlated)} are correlated, and SALib draws inputs independently."
        raise InputError("correlated", message, "Leave the correlations out.", Place("SALib"))
    return [key for key, item in problem.inputs.items() if key in set(Propagation(problem).varying)]


def _form(marginal: Marginal) -> tuple[str, list[float]] | None:
    """Return SALib's name and numbers of a distribution; None where it has none."""
    p = marginal.parameters
    match marginal.family:
        case "uniform":
            return "unif", [p["low"], p["high"]]
        case "log_uniform":
            return "logunif", [p["low"], p["high"]]
        case "normal":
            return "norm", [p["mean"], p["sd"]]
        case "truncated_normal":
            return "truncnorm", [p["low"], p["high"], p["mean"], p["sd"]]
        case "lognormal" if not p.get("shift"):
            return "lognorm", [p["mu"], p["sigma"]]
        case "triangular" if p["mode"] < p["high"] and p["low"] >= 0:
            return "triang", [p["low"], p["high"], (p["mode"] - p["low"]) / (p["high"] - p["low"])]
    return None


_STATED = {
    "unif": lambda b: {"dist": "uniform", "low": b[0], "high": b[1]},
    "logunif": lambda b: {"dist": "log_uniform", "low": b[0], "high": b[1]},
    "norm": lambda b: {"dist": "normal", "mean": b[0], "sd": b[1]},
    "truncnorm": lambda b: {"dist": "truncated_normal", "mean": b[2], "sd": b[3], "low": b[0], "high": b[1]},
    "lognorm": lambda b: {"dist": "lognormal", "mu": b[0], "sigma": b[1]},
    "triang": lambda b: {"dist": "triangular", "low": b[0], "mode": b[0] + b[2] * (b[1] - b[0]), "high": b[1]},
}


def from_salib(salib: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what a scenario would state under ``inputs`` for the distributions of a SALib problem.

    Parameters
    ----------
    salib : mapping
        A SALib problem. Names with their distributions in the units of `gpustack_mc.quantities`; inputs that
        ``probabilities`` names keep what the scenario has.

    Returns
    -------
    dict
        By input, e.g. ``{"pue": {"dist": "uniform", "low": 1.1, "high": 1.4}}``.

    Raises
    ------
    InputError
        A distribution has no counterpart.
    """
    names = list(salib["names"])
    dists = list(salib.get("dists") or ["unif"] * len(names))
    found = {}
    for name, dist, bounds in zip(names, dists, salib["bounds"], strict=True):
        if name in salib.get("probabilities", ()):
            continue
        if dist not in _STATED:
            message = f"{name}: scenarios have no distribution {units.shown(str(dist))}."
            raise InputError("unknown-distribution", message, did_you_mean(dist, tuple(_STATED)), Place("SALib"))
        found[name] = {key: each if key == "dist" else float(each) for key, each in _STATED[dist](bounds).items()}
    return found


def cross_sample(problem: Problem, design: Design, groups: Mapping[str, Sequence[str]] | None = None) -> np.ndarray:
    """Return the points of our own design in the order of ``SALib.sample.sobol`` without second order.

    Parameters
    ----------
    problem : Problem
    design : Design
    groups : mapping of str to sequence of str, optional
        As for `to_salib`; in the order in which their first inputs come, as SALib takes them.

    Returns
    -------
    ndarray, shape (samples * (exchanged + 2), inputs)
        For each point: A, then A with each input or group in turn from B, then B; values as in `to_salib`.
    """
    salib = to_salib(problem, groups)
    names = salib["names"]
    exchanged = list(dict.fromkeys(salib.get("groups", names)))
    owner = np.array(salib.get("groups", names))
    places = [dimension(problem.inputs[name], problem) for name in names]
    parts = []
    for replicate in range(design.replicates):
        a, b = (points(design, names, places, replicate, 0, design.length, block).T for block in (0, 1))
        mixed = [np.where(owner == name, b, a) for name in exchanged]
        parts.append(np.stack([a, *mixed, b], axis=1).reshape(-1, len(names)))
    values = np.concatenate(parts)
    for column, name in enumerate(names):
        if name not in salib["probabilities"]:
            values[:, column] = _values(problem, name, values[:, column])
    return values


def evaluate(problem: Problem, values: np.ndarray, outputs: Sequence[str]) -> np.ndarray:
    """Run the model on the rows of a SALib sample.

    Parameters
    ----------
    problem : Problem
    values : ndarray, shape (rows, inputs)
        Columns in the order, and with the meaning, of `to_salib`.
    outputs : sequence of str

    Returns
    -------
    ndarray, shape (rows, outputs)
    """
    salib = to_salib(problem)
    model = Propagation(problem)
    columns = {
        name: _values(problem, name, column) if name in salib["probabilities"] else column
        for name, column in zip(salib["names"], np.asarray(values, dtype=float).T, strict=True)
    }
    x = np.stack([columns[name] for name in model.varying])
    rows = [problem.outputs.index(name) for name in outputs]
    nothing = np.zeros((1, len(x)), dtype=bool)
    found = [
        model.swapped(part, part, nothing, rows)[0]
        for part in (x[:, start : start + _CHUNK] for start in range(0, x.shape[1], _CHUNK))
    ]
    return np.concatenate(found, axis=1).T


def write(problem: Problem, outputs: Sequence[str], seed: int, description: Path, sample: Path) -> None:
    """Write a scenario for SALib: its ``problem`` as JSON, and a sample with its outputs as NumPy arrays.

    Parameters
    ----------
    problem : Problem
    outputs : sequence of str
    seed : int
    description, sample : Path
        The latter gets ``values`` (rows, inputs), ``outputs`` (rows, outputs) and ``output_names``.
    """
    description.write_text(json.dumps(to_salib(problem), indent=2) + "\n", encoding="utf-8")
    values = cross_sample(problem, make_design(EXPORTED, seed=seed))
    with sample.open("wb") as file:
        np.savez(file, values=values, outputs=evaluate(problem, values, outputs), output_names=np.array(outputs))


def _values(problem: Problem, name: str, u: np.ndarray) -> np.ndarray:
    """Turn probabilities of an input into its values."""
    from scipy.special import ndtri

    return priors.at_scores(problem.inputs[name].marginal, ndtri(np.clip(u, 2.0**-53, 1 - 2.0**-53)))
