r"""How much of an output's variance is not known about populations, and how much differs from run to run.

A fitted prior says which share :math:`e_i` of its variance, on its working scale, better-known populations would
remove (epistemic); the rest is how their members differ, which no further data remove. Inputs that state no share
(entered, calibrated, or fitted in closed form) are a third part of their own. The normal scores of the inputs are then
sums of independent parts, :math:`z = \sum_p g_p` with covariances :math:`C_p` that add up to the correlation matrix
:math:`C` and have the shares :math:`s_{pi}` of the inputs on their diagonals. Two runs that share the part :math:`p`
have scores with covariance :math:`C_p`, so that its closed first-order index is

.. math::
    S_p = \frac{\mathrm{Cov}\big(y(z),\, y(z')\big)}{\mathrm{Var}(y)}, \qquad
    z' = C_p C^{-1} z + F z^*, \quad F F^\top = C - C_p C^{-1} C_p ,

with :math:`z^*` independent of :math:`z`. For independent inputs :math:`C_p` is the diagonal of shares. Nothing tells
to which part a correlation belongs; it is taken to be equally strong in all of them,

.. math::
    (C_p)_{ij} = \sqrt{s_{pi} s_{pj}}\, R_{ij}, \qquad R_{ij} = C_{ij} \Big/ \sum_p \sqrt{s_{pi} s_{pj}} .

That has no solution where :math:`R` is no correlation matrix, as when an input whose shares are known is correlated
with one whose shares are not: such inputs are then not separated. What is left of the variance is due to interactions
between the parts.

References
----------
Owen (2013), Variance components and generalized Sobol' indices, SIAM/ASA J. Uncertainty Quantification 1(1) (closed
indices as covariances).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpustack_mc.copula import Copula
from gpustack_mc.design import Design, points
from gpustack_mc.problem import Problem
from gpustack_mc.propagation import Propagation
from gpustack_mc.quantities import BY_NAME
from gpustack_mc.shapes import dimension
from gpustack_mc.sobol import replicate_interval

PARTS = {
    "population": "not known about the population",
    "members": "differs from run to run, site to site",
    "other": "stated by you, or not separated",
}
# Points of each replicate: with 16 of them the error of a share is below 0.01.
POINTS = 2**12


def shares(problem: Problem, keys: Sequence[str]) -> dict[str, np.ndarray]:
    """Share of each input's variance in each of `PARTS`, shape (inputs,); they sum to one."""
    known = [problem.inputs[key].epistemic for key in keys]
    population = np.array([0.0 if share is None else share for share in known])
    other = np.array([float(share is None) for share in known])
    return {"population": population, "members": 1 - other - population, "other": other}


def covariances(parts: Mapping[str, np.ndarray], correlation: np.ndarray) -> dict[str, np.ndarray]:
    """Divide a correlation matrix of normal scores into covariances of independent parts.

    Parameters
    ----------
    parts : mapping of str to ndarray, shape (inputs,)
        From `shares`; ``other`` takes what cannot be divided.
    correlation : ndarray, shape (inputs, inputs)

    Returns
    -------
    dict of str to ndarray, shape (inputs, inputs)
        Positive semidefinite; they add up to `correlation`.
    """
    rows = np.stack(list(parts.values()))
    undivided = np.zeros(rows.shape[1], dtype=bool)
    for block in _blocks(correlation):
        roots = np.sqrt(rows[:, block])
        common = np.einsum("pi,pj->ij", roots, roots)
        own = correlation[np.ix_(block, block)]
        with np.errstate(divide="ignore", invalid="ignore"):
            strength = np.where(own == 0, 0.0, own / common)
        sound = np.isfinite(strength).all() and np.linalg.eigvalsh(strength).min() >= -1e-12
        undivided[block] = not sound
    shared = np.where(undivided, np.array([[float(name == "other")] for name in parts]), rows)
    roots = np.sqrt(shared)
    common = np.einsum("pi,pj->ij", roots, roots)
    strength = np.divide(correlation, common, out=np.zeros_like(correlation), where=correlation != 0)
    return {name: np.outer(root, root) * strength for name, root in zip(parts, roots, strict=True)}


def _blocks(correlation: np.ndarray) -> list[np.ndarray]:
    """Sets of inputs that correlations connect, shape (members,) each."""
    reached = correlation != 0
    for _ in range(len(correlation)):
        wider = (reached.astype(int) @ reached) > 0
        if (wider == reached).all():
            break
        reached = wider
    return [np.flatnonzero(row) for row in np.unique(reached, axis=0)]


def split(problem: Problem, design: Design, outputs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Closed first-order indices of `PARTS`, of the logarithm of outputs that are positive and else of themselves.

    Parameters
    ----------
    problem : Problem
    design : Design
    outputs : sequence of str

    Returns
    -------
    dict
        By output: ``scale`` (log or raw), ``not_separated`` (inputs of the part ``other``), and for each part ``share``
        and ``interval_90``; None where the output does not vary.
    """
    from scipy.special import ndtri

    model = Propagation(problem)
    keys = model.varying
    copula = Copula.of(problem, keys)
    correlation = copula.matrix()
    parts = covariances(shares(problem, keys), correlation)
    redraws = [_redraw(part, correlation) for part in parts.values()]
    places = [dimension(problem.inputs[key], problem) for key in keys]
    rows = [problem.outputs.index(name) for name in outputs]
    length = min(design.length, POINTS)
    found = []
    for replicate in range(design.replicates):
        cubes = [points(design, keys, places, replicate, 0, length, block) for block in (0, 1)]
        first, new = copula.to_scores(cubes[0]), ndtri(cubes[1])
        runs = [cubes[0]] + [copula.to_cube(shared @ first + factor @ new) for shared, factor in redraws]
        found.append(np.stack([model.propagate(u)[1][rows] for u in runs]))
    draws = np.stack(found)  # (replicates, 1 + parts, outputs, n)
    not_separated = [key for i, key in enumerate(keys) if parts["other"][i, i] > 0]
    return {name: _of(draws[:, :, i], not_separated) for i, name in enumerate(outputs)}


def _redraw(part: np.ndarray, correlation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Matrices that make scores which share one part with others: of those scores, and of new independent ones."""
    shared = np.linalg.solve(correlation, part).T
    left = correlation - shared @ part
    values, vectors = np.linalg.eigh((left + left.T) / 2)
    return shared, vectors * np.sqrt(np.maximum(values, 0.0))


def _of(draws: np.ndarray, not_separated: list[str]) -> dict[str, Any]:
    """Indices of one output from draws of shape (replicates, 1 + parts, n)."""
    positive = bool((draws > 0).all())
    y = np.log(draws) if positive else draws
    entry: dict[str, Any] = {"scale": "log" if positive else "raw", "not_separated": not_separated}
    centred = y - y[:, 0].mean()
    whole = float((centred[:, 0] ** 2).mean())
    if whole <= (1e-9 * max(abs(float(y[:, 0].mean())), 1.0)) ** 2:
        return entry | {part: {"share": None, "interval_90": [None, None]} for part in PARTS}
    for i, part in enumerate(PARTS, start=1):
        by_replicate = (centred[:, 0] * centred[:, i]).mean(axis=1) / whole
        low, high = replicate_interval(by_replicate) if len(by_replicate) > 1 else (np.nan, np.nan)
        ends = [float(low), float(high)] if np.isfinite(low) else [None, None]
        entry[part] = {"share": float(by_replicate.mean()), "interval_90": ends}
    return entry


def lines(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the table of shares for a terminal."""
    known = {name: entry for name, entry in found.items() if entry["population"]["share"] is not None}
    if not known:
        return []
    width = max(len(BY_NAME[name].short) for name in known)
    said = [
        f"  {BY_NAME[name].short.ljust(width)}  " + "  ".join(_cell(entry[part]["share"]) for part in PARTS)
        for name, entry in known.items()
    ]
    others = sorted({key for entry in known.values() for key in entry["not_separated"]})
    head = f"  {'share of the variance (of the log) that'.ljust(width)}"
    legend = [f"  {i}. {words}" for i, words in enumerate(PARTS.values(), start=1)]
    numbers = "  ".join(f"{i:>5}" for i in range(1, len(PARTS) + 1))
    told = [f"  not separated: {', '.join(others)}"] if others else []
    return ["", head.rstrip(), *legend, f"  {' ' * width}  {numbers}", *said, *told]


def _cell(share: float) -> str:
    return f"{max(share, 0.0):>5.0%}"
