"""Many scenarios through one compiled model: the scenarios are a batch axis.

All scenarios of a sweep take their points from the same streams (an input's stream is set by its name), so that their
differences are not noise, and so that a point and its normal score are made once for all of them. What may differ from
scenario to scenario, also whether an input is fixed and which formula it has, is an array and not part of the shape:
for each input all formulas that occur are evaluated and the scenario's own is chosen. An input with one distribution in
all scenarios of a sweep is drawn once for all of them, and what follows from such inputs alone is computed once for
each batch. A batch always has the same number of scenarios, the last one is padded, so that a sweep compiles once.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr, ndtri

from gpustack_mc import model, priors, sobol
from gpustack_mc.priors import Kernel
from gpustack_mc.shapes import MODEL_INPUTS

# Numbers of one output of a batch: few enough for the processor's cache, enough that a call's own time is nothing.
BATCH_POINTS = 2**16
_BIG = 2.0


class Plan(NamedTuple):
    """What is static under ``jit``.

    Attributes
    ----------
    program : str
        Function of `gpustack_mc.model`.
    outputs : tuple of str
        Outputs that are computed.
    slots : tuple of (str, tuple of str)
        Every input that the model reads, and the kernel forms, besides ``fixed``, that it has in some scenario.
    phases : tuple of tuple of (str, str)
        For each phase: parameters of `gpustack_mc.model.phase` and the slot that each takes.
    sizes : tuple of (str, int)
        Number of values of ``discrete`` slots, padded.
    shared : tuple of str
        Varying slots that have one and the same distribution in all scenarios.
    """

    program: str
    outputs: tuple[str, ...]
    slots: tuple[tuple[str, tuple[str, ...]], ...]
    phases: tuple[tuple[tuple[str, str], ...], ...]
    sizes: tuple[tuple[str, int], ...]
    shared: tuple[str, ...] = ()

    @property
    def varying(self) -> tuple[str, ...]:
        """Slots that vary in some scenario, in the order of the rows of points."""
        return tuple(key for key, forms in self.slots if forms)


def batch_size(samples: int) -> int:
    """Return how many scenarios one call of the model takes."""
    return max(1, BATCH_POINTS // samples)


# ---- from kernels to arrays -------------------------------------------------------------------------------------


def stacked(plan: Plan, members: Sequence[Mapping[str, Kernel]], size: int) -> dict[str, Any]:
    """Return the numbers of up to `size` scenarios as arrays with a leading axis of `size`; the last one is repeated.

    Slots that all scenarios share are left out.

    Parameters
    ----------
    plan : Plan
    members : sequence of mapping
        For each scenario the kernel of every slot.
    size : int
    """
    padded = [*members, *[members[-1]] * (size - len(members))]
    sizes = dict(plan.sizes)
    return {
        key: _slot([one[key] for one in padded], forms, sizes.get(key, 0))
        for key, forms in plan.slots
        if key not in plan.shared
    }


def _slot(kernels: Sequence[Kernel], forms: tuple[str, ...], size: int) -> dict[str, Any]:
    fixed = np.array([float(k.arrays[0]) if k.form == "fixed" else np.nan for k in kernels])
    found: dict[str, Any] = {"fixed": fixed}
    if not forms:
        return found
    found["choice"] = np.array([0 if k.form == "fixed" else 1 + forms.index(k.form) for k in kernels], dtype=np.int32)
    for form in forms:
        own = [_padded(k, size) if k.form == form else None for k in kernels]
        # Where a scenario has another form this one's result is not used: any numbers will do.
        some = next((arrays for arrays in own if arrays is not None), None)
        filler = some if some is not None else _filler(form, size)
        found[form] = tuple(np.stack(column) for column in zip(*(arrays or filler for arrays in own), strict=True))
    return found


_COUNTS = {"normal": 2, "lognormal": 3, "logit_normal": 4, "uniform": 2, "log_uniform": 2, "truncated_normal": 4,
           "triangular": 3, "zero_inflated_lognormal": 3}  # fmt: skip


def _filler(form: str, size: int) -> tuple[np.ndarray, ...]:
    if form == "table":
        return (np.ones(priors.TABLE_SIZE),)
    if form == "discrete":
        return np.full(size - 1, _BIG), np.ones(size)
    return tuple(np.asarray(0.5) for _ in range(_COUNTS[form]))


def _padded(kernel: Kernel, size: int) -> tuple[np.ndarray, ...]:
    """Lengthen the table of a discrete distribution: no point is above the steps that are added."""
    if kernel.form != "discrete":
        return kernel.arrays
    steps, values = kernel.arrays
    more = size - len(values)
    return np.pad(steps, (0, more), constant_values=_BIG), np.pad(values, (0, more), mode="edge")


# ---- what is compiled -------------------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnums=0)
def _shared(forms: tuple[str, ...], kernels: Any, u: Any, z: Any) -> Any:
    """Return one row of draws for each kernel."""
    parts = zip(forms, kernels, u, z, strict=True)
    return tuple(priors.quantile(form, arrays, at, score, jnp, ndtri) for form, arrays, at, score in parts)


def _inputs(plan: Plan, arrays: Mapping[str, Any], rows: Mapping[str, Any], u: Any, z: Any) -> dict[str, Any]:
    """Return the draws of the varying slots of one scenario, each of shape (n,); `rows` are those of shared slots."""
    found, forms = {}, dict(plan.slots)
    for i, key in enumerate(plan.varying):
        if key in plan.shared:
            found[key] = rows[key]
            continue
        own = arrays[key]
        value = jnp.broadcast_to(own["fixed"], u[i].shape)
        for number, form in enumerate(forms[key], start=1):
            drawn = priors.quantile(form, own[form], u[i], z[i], jnp, ndtri)
            value = jnp.where(own["choice"] == number, drawn, value)
        # Without a barrier XLA's CPU backend computes every exp again for each output that uses it. One for each slot:
        # slots that no wanted output reads are not drawn.
        found[key] = jax.lax.optimization_barrier(value)
    return found


def _outputs(plan: Plan, arrays: Mapping[str, Any], rows: Mapping[str, Any], n: int) -> tuple[Any, ...]:
    """Run the model on one scenario; returns a row of shape (n,) for each output."""
    values = {key: arrays[key]["fixed"] for key, forms in plan.slots if not forms} | dict(rows)
    phases = [{name: values[key] for name, key in phase} for phase in plan.phases]
    found = getattr(model, plan.program)(phases, **{name: values[name] for name in MODEL_INPUTS if name in values})
    return tuple(jnp.broadcast_to(found[name], (n,)) for name in plan.outputs)


@functools.partial(jax.jit, static_argnums=0)
def _propagate(plan: Plan, arrays: Any, rows: Any, u: Any, z: Any) -> Any:
    def one(own: Any) -> Any:
        return _outputs(plan, own, _inputs(plan, own, rows, u, z), u.shape[1])

    # Rows of shared slots have no batch axis, and neither has what follows from them alone.
    return jax.vmap(one)(arrays)


@functools.partial(jax.jit, static_argnums=(0, 5))
def _analyse(plan: Plan, arrays: Any, points_a: Any, points_b: Any, masks: Any, replicates: int) -> Any:
    """Return pick-freeze sums of one scenario after the other, for each replicate, and the centres of its outputs."""
    n = points_a[1].shape[1]
    varying = plan.varying

    def outputs(own: Any, rows: Any) -> Any:
        return jnp.stack(_outputs(plan, own, rows, n))

    def one(own: Any) -> Any:
        a, b = _inputs(plan, own, *points_a), _inputs(plan, own, *points_b)
        y_a, y_b = jax.lax.optimization_barrier((outputs(own, a), outputs(own, b)))
        centre = y_a.mean(axis=1)
        parts = _by_replicate(y_a, replicates), _by_replicate(y_b, replicates)

        def swapped(carry: Any, mask: Any) -> Any:
            mixed = {key: jnp.where(mask[i], b[key], a[key]) for i, key in enumerate(varying)}
            y = jax.lax.optimization_barrier(outputs(own, jax.lax.optimization_barrier(mixed)))
            sums = jax.vmap(sobol.swap_sums, in_axes=(0, 0, 0, None))(*parts, _by_replicate(y, replicates), centre)
            return carry, sums

        base = jax.vmap(lambda left, right: sobol.variance_sums(left, right, centre))(*parts)
        _, swap = jax.lax.scan(swapped, None, masks)
        return centre, base, swap

    return jax.lax.map(one, arrays)


def _by_replicate(y: Any, replicates: int) -> Any:
    return y.reshape(y.shape[0], replicates, -1).swapaxes(0, 1)


# ---- running it -------------------------------------------------------------------------------------------------


class Cube(NamedTuple):
    """Points of all varying slots and their normal scores, each of shape (varying, samples), on the device."""

    u: Any
    z: Any


def cube(points: np.ndarray, correlated: Sequence[int] = (), correlation: np.ndarray | None = None) -> Cube:
    """Make the points of a group of scenarios, with the Gaussian copula of correlated slots."""
    with jax.enable_x64(True):
        u = jnp.asarray(points)
        z = ndtri(u)
        if correlation is not None and len(correlated):
            index = np.asarray(correlated)
            z = z.at[index].set(np.linalg.cholesky(correlation) @ z[index])
            u = u.at[index].set(ndtr(z[index]))
        return Cube(u, z)


class Points(NamedTuple):
    """What all scenarios of a plan draw from.

    Attributes
    ----------
    rows : dict of str to array, shape (samples,)
        Draws of the shared slots.
    u, z : array, shape (varying, samples)
        A `Cube`.
    """

    rows: Any
    u: Any
    z: Any


def points_of(plan: Plan, kernels: Mapping[str, Kernel], points: Cube) -> Points:
    """Draw the shared slots of a plan.

    Parameters
    ----------
    plan : Plan
    kernels : mapping
        Of the shared slots.
    points : Cube
    """
    if not plan.shared:
        return Points({}, *points)
    sizes, where = dict(plan.sizes), np.array([plan.varying.index(key) for key in plan.shared])
    forms = tuple(kernels[key].form for key in plan.shared)
    arrays = tuple(_padded(kernels[key], sizes.get(key, 0)) for key in plan.shared)
    with jax.enable_x64(True):
        drawn = _shared(forms, arrays, points.u[where], points.z[where])
        return Points(dict(zip(plan.shared, drawn, strict=True)), *points)


def propagate(plan: Plan, arrays: Any, points: Points) -> list[np.ndarray]:
    """Run a batch; returns draws of float64, shape (batch, samples), for each output."""
    with jax.enable_x64(True):
        return [np.asarray(part) for part in _propagate(plan, arrays, *points)]


class BatchSums(NamedTuple):
    """Pick-freeze sums of a batch.

    Attributes
    ----------
    centre : ndarray, shape (batch, outputs)
    base : sobol.VarianceSums
        Leading axes (batch, replicates).
    swap : sobol.SwapSums
        Leading axes (batch, blocks, replicates).
    """

    centre: np.ndarray
    base: sobol.VarianceSums
    swap: sobol.SwapSums


def analyse(plan: Plan, arrays: Any, a: Points, b: Points, masks: np.ndarray, replicates: int) -> BatchSums:
    """Run a batch on A, on B and on A with each block of slots from B.

    Parameters
    ----------
    masks : ndarray of bool, shape (blocks, varying)
    """
    with jax.enable_x64(True):
        centre, base, swap = _analyse(plan, arrays, tuple(a), tuple(b), masks, replicates)
        return BatchSums(np.asarray(centre), jax.tree.map(np.asarray, base), jax.tree.map(np.asarray, swap))
