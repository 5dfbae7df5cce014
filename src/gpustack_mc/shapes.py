"""What of a problem is static under ``jax.jit``, and where its inputs lie in the Sobol' sequence."""

from typing import NamedTuple

import numpy as np

from gpustack_mc import priors
from gpustack_mc.problem import PHASE_KEYS, Input, Problem
from gpustack_mc.quantities import DIMENSION

# Total parameters inform priors; the model itself does not read them.
MODEL_INPUTS = tuple(name for name in DIMENSION if name not in PHASE_KEYS and name != "params")
# What a model of sites reads besides, where exchanges between them count.
SITE_INPUTS = (*MODEL_INPUTS, "params")

# Phase inputs take dimensions of the Sobol' sequence above those of the table of quantities.
_PHASE_DIMENSION = 64
_PHASE_SLOTS = {name: i for i, name in enumerate(PHASE_KEYS)}
# Inputs of sites lie above those of 16 phases; with 16 sites they end below the errors of measurements.
_SITE_DIMENSION = 176
SITE_KEYS = ("site_count", "availability", "mean_outage", "link_speed")


class Shape(NamedTuple):
    """What of a problem is static under ``jit``: two problems with equal shapes share a compilation."""

    program: str
    outputs: tuple[str, ...]
    forms: tuple[tuple[str, str], ...]
    varying: tuple[str, ...]
    phases: tuple[tuple[tuple[str, str], ...], ...]
    correlated: tuple[int, ...]
    mode: str = ""
    sites: tuple[tuple[tuple[str, str], ...], ...] = ()


def dimension(item: Input, problem: Problem) -> int:
    """Return the dimension of the Sobol' sequence that belongs to an input, whatever other inputs vary."""
    if "@" not in item.key:
        return DIMENSION[item.quantity.name]
    if problem.sites and item.quantity.name in SITE_KEYS:
        number = next(i for i, keys in enumerate(problem.sites.keys) if item.key in keys.values())
        return _SITE_DIMENSION + len(SITE_KEYS) * number + SITE_KEYS.index(item.quantity.name)
    number = [phase.name for phase in problem.phases].index(item.key.partition("@")[2])
    return _PHASE_DIMENSION + len(_PHASE_SLOTS) * number + _PHASE_SLOTS[item.quantity.name]


def shape_of(problem: Problem) -> tuple[Shape, dict[str, tuple[np.ndarray, ...]]]:
    """Split a problem into its static shape and its arrays."""
    used = {key: item for key, item in problem.inputs.items() if _is_used(key, problem)}
    kernels = {key: priors.kernel(item.marginal) for key, item in used.items()}
    varying = tuple(key for key, kernel in kernels.items() if kernel.form != "fixed")
    shape = Shape(
        program=problem.program,
        outputs=problem.outputs,
        forms=tuple((key, kernel.form) for key, kernel in kernels.items()),
        varying=varying,
        phases=tuple(tuple(phase.keys.items()) for phase in problem.phases),
        correlated=tuple(varying.index(key) for key in problem.correlated),
        mode=problem.sites.mode if problem.sites else "",
        sites=tuple(tuple(keys.items()) for keys in problem.sites.keys) if problem.sites else (),
    )
    return shape, {key: kernel.arrays for key, kernel in kernels.items()}


def _is_used(key: str, problem: Problem) -> bool:
    """Whether the model reads an input, or it is uncertain and so belongs to the result all the same."""
    parts = [phase.keys for phase in problem.phases] + list(problem.sites.keys if problem.sites else ())
    read = key in MODEL_INPUTS or any(key in keys.values() for keys in parts)
    # Exchanges between sites move all parameters.
    read |= key == "params" and problem.sites is not None
    return read or not problem.inputs[key].marginal.is_fixed


def blocks_of(shape: Shape, correlation: np.ndarray) -> list[tuple[str, ...]]:
    """Independent groups of inputs: those that correlations connect together, every other one alone."""
    groups: list[set[int]] = []
    for i, row in enumerate(correlation):
        near = {i} | {j for j in range(i) if row[j] != 0}
        groups = [group for group in groups if not group & near] + [near.union(*(g for g in groups if g & near))]
    together = [tuple(shape.varying[k] for k in sorted(shape.correlated[i] for i in group)) for group in groups]
    grouped = {key for block in together for key in block}
    return sorted(together, key=lambda block: shape.varying.index(block[0])) + [
        (key,) for key in shape.varying if key not in grouped
    ]
