r"""How much of an output's variance is not known about populations, and how much differs from run to run.

A fitted prior says which share :math:`e_i` of its variance, on its working scale, better-known populations would
remove (epistemic); the rest is how their members differ, which no further data remove. An input's normal score is then
:math:`z_i = \sqrt{e_i}\, a_i + \sqrt{1 - e_i}\, b_i` with independent :math:`a_i, b_i`. Two runs that share all
:math:`a` have scores with correlations :math:`e_i`, so that the closed first-order index of all :math:`a` together is

.. math::
    S_a = \frac{\mathrm{Cov}\big(y(z),\, y(z')\big)}{\mathrm{Var}(y)}, \qquad
    z'_i = e_i z_i + \sqrt{1 - e_i^2}\; z^*_i ,

with :math:`z^*` independent of :math:`z`. That of all :math:`b` follows with :math:`1 - e_i`. Inputs that state no
share (entered, calibrated, or fitted in closed form) are a third part of their own. What is left is due to
interactions between the parts.

References
----------
Owen (2013), Variance components and generalized Sobol' indices, SIAM/ASA J. Uncertainty Quantification 1(1) (closed
indices as covariances).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

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
    from scipy.special import ndtr, ndtri

    model = Propagation(problem)
    keys = model.varying
    parts = shares(problem, keys)
    places = [dimension(problem.inputs[key], problem) for key in keys]
    rows = [problem.outputs.index(name) for name in outputs]
    length = min(design.length, POINTS)
    found = []
    for replicate in range(design.replicates):
        first, second = (ndtri(points(design, keys, places, replicate, 0, length, block)) for block in (0, 1))
        runs = [first] + [s[:, None] * first + np.sqrt(1 - s[:, None] ** 2) * second for s in parts.values()]
        found.append(np.stack([model.propagate(np.clip(ndtr(z), 1e-12, 1 - 1e-12))[1][rows] for z in runs]))
    draws = np.stack(found)  # (replicates, 1 + parts, outputs, n)
    not_separated = [key for key, share in zip(keys, parts["other"], strict=True) if share]
    return {name: _of(draws[:, :, i], not_separated) for i, name in enumerate(outputs)}


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
