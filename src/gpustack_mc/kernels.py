"""What propagation compiles: cells of the design to draws, draws to outputs, outputs to sums and bin numbers.

Pure traceable functions. `Shape` is static; everything else is an array. Each works in float64 or float32, by the dtype
of the arrays it is given, and in chunks that stay in the processor's cache: the caller's memory grows with what it asks
to be returned only.

Two habits keep XLA's CPU backend fast. A barrier after each group of transcendental functions: without it they are
computed again for every output that uses them, 20 times slower in all. And sums in two steps, over lanes first: one sum
over a row is a chain of additions that wait for each other.
"""

from typing import Any, NamedTuple, cast

import jax.numpy as jnp
from jax import lax
from jax.scipy.special import ndtr
from jax.sharding import PartitionSpec

from gpustack_mc import model, priors, sobol, transforms
from gpustack_mc.shapes import MODEL_INPUTS, SITE_INPUTS, Shape
from gpustack_mc.tallies import BINS, Grid

Arrays = dict[str, tuple[Any, ...]]

# Points that are worked on at once: inputs, outputs and their sums stay in the second-level cache of one core.
ROWS = 2**9


class Cells(NamedTuple):
    """Cell numbers of points: those of chunk c are ``run ^ bases[:, c]``.

    Attributes
    ----------
    run : array of uint32, shape (inputs, chunk)
    bases : array of uint32, shape (inputs, chunks)
    """

    run: Any
    bases: Any


def draws_at(shape: Shape, arrays: Arrays, cholesky: Any, z: Any, u: Any) -> Any:
    """Map points of the cube and their normal scores, both (varying, n), to draws of the same shape."""
    if shape.correlated:
        index = jnp.array(shape.correlated)
        z = z.at[index].set(cholesky @ z[index])
        u = u.at[index].set(ndtr(z[index]))
    z, u = lax.optimization_barrier((z, u))
    forms = dict(shape.forms)
    rows: dict[str, Any] = {}
    for form in sorted({forms[key] for key in shape.varying}):
        members = [i for i, key in enumerate(shape.varying) if forms[key] == form]
        rows |= _same_form(shape, arrays, form, members, u, z)
    ordered = [rows[key] for key in shape.varying]
    return lax.optimization_barrier(jnp.stack(ordered)) if ordered else jnp.zeros((0, u.shape[1]), u.dtype)


def _same_form(shape: Shape, arrays: Arrays, form: str, members: list[int], u: Any, z: Any) -> dict[str, Any]:
    """Evaluate all inputs of one form at once: one formula to compile instead of one per input."""
    keys = [shape.varying[i] for i in members]
    quantile = priors.quantile
    if form in ("table", "discrete"):
        return {
            key: quantile(form, arrays[key], u[i], z[i], jnp, transforms.ndtri)
            for key, i in zip(keys, members, strict=True)
        }
    columns = [jnp.stack(column)[:, None] for column in zip(*(arrays[key] for key in keys), strict=True)]
    index = jnp.array(members)
    return dict(zip(keys, quantile(form, columns, u[index], z[index], jnp, transforms.ndtri), strict=True))


def outputs_at(shape: Shape, arrays: Arrays, x: Any) -> Any:
    """Run the model on draws, shape (varying, n); returns (outputs, n)."""
    values = {key: arrays[key][0] for key, form in shape.forms if form == "fixed"}
    values |= {key: x[i] for i, key in enumerate(shape.varying)}
    phases = [{name: values[key] for name, key in phase} for phase in shape.phases]
    # A missing one is a TypeError of the program.
    if shape.sites:
        sites = [{name: values[key] for name, key in site} for site in shape.sites]
        inputs = {name: values[name] for name in SITE_INPUTS if name in values}
        found = model.run_on_sites(shape.program, phases, sites, shape.mode, **inputs)
    else:
        inputs = {name: values[name] for name in MODEL_INPUTS if name in values}
        found = getattr(model, shape.program)(phases, **inputs)
    return jnp.stack([jnp.broadcast_to(found[name], x.shape[1:]) for name in shape.outputs])


def propagate_points(shape: Shape, arrays: Arrays, cholesky: Any, u: Any) -> Any:
    """Draws of inputs and outputs, shape (varying + outputs, n), at points of the cube."""
    x = draws_at(shape, arrays, cholesky, transforms.ndtri(u), u)
    return jnp.concatenate([x, outputs_at(shape, arrays, x)])


def swapped(shape: Shape, arrays: Arrays, x_a: Any, x_b: Any, masks: Any, rows: Any) -> Any:
    """Run the model on A with one block of inputs from B at a time; shape (blocks, len(rows), n)."""
    return lax.map(lambda mask: outputs_at(shape, arrays, jnp.where(mask[:, None], x_b, x_a))[rows], masks)


def related(
    shape: Shape, rows: tuple[int, ...], own: tuple[int, ...], arrays: Arrays, cholesky: Any, u: Any, u_own: Any
) -> Any:
    """Outputs of problems of one shape that share all but a few inputs; shape (problems, len(rows), n).

    `arrays` and `u_own`, points of the inputs `own`, are stacked by problem; points `u` (varying, n) of the others and
    what is drawn at them belong to all.
    """
    first = {key: tuple(stacked[0] for stacked in numbers) for key, numbers in arrays.items()}
    shared = draws_at(shape, first, cholesky, transforms.ndtri(u), u)
    forms = dict(shape.forms)

    def one(part: Any) -> Any:
        numbers, points_own = part
        index = jnp.array(own, dtype=int)
        at, z = u.at[index].set(points_own), jnp.zeros_like(u).at[index].set(transforms.ndtri(points_own))
        drawn: dict[str, Any] = {}
        for form in sorted({forms[shape.varying[i]] for i in own}):
            members = [i for i in own if forms[shape.varying[i]] == form]
            drawn |= _same_form(shape, numbers, form, members, at, z)
        x = shared.at[index].set(jnp.stack([drawn[shape.varying[i]] for i in own])) if own else shared
        return outputs_at(shape, numbers, lax.optimization_barrier(x))[jnp.array(rows)]

    return lax.map(one, (arrays, u_own))


def _draws(shape: Shape, arrays: Arrays, cholesky: Any, cells: Any) -> Any:
    dtype = cholesky.dtype
    u = (cells.astype(dtype) + 0.5) * transforms.CELL
    if dtype == jnp.float32:
        # The last cells round to 1, where quantile functions are infinite.
        u = jnp.minimum(u, 1 - jnp.finfo(dtype).epsneg)
    return draws_at(shape, arrays, cholesky, transforms.scores(cells, dtype), u)


def propagate_cells(shape: Shape, arrays: Arrays, cholesky: Any, cells: Cells) -> Any:
    """Draws of inputs and outputs, shape (varying + outputs, n), at cells of the design."""

    def chunk(base: Any) -> Any:
        x = _draws(shape, arrays, cholesky, cells.run ^ base[:, None])
        return jnp.concatenate([x, outputs_at(shape, arrays, x)])

    return _joined(lax.map(chunk, cells.bases.T))


def _joined(chunks: Any) -> Any:
    """Lay chunks, shape (chunks, variables, n), side by side."""
    return jnp.moveaxis(chunks, 0, 1).reshape(chunks.shape[1], -1)


_COUNTS = ("nonfinite", "count")


class PickFreeze(NamedTuple):
    """What `analyse` returns.

    Attributes
    ----------
    draws : array, shape (varying + outputs, n)
        Of sample A.
    base : sobol.VarianceSums
        Of each chunk (leading axis), of the scaled deviations of the outputs and, after them, of their logarithms;
        ``nonfinite`` counts chunks instead of values.
    swap : sobol.SwapSums
    centre, scale : array, shape (chunks, 2 * outputs)
        From where the deviations of a chunk count, and in which unit.
    """

    draws: Any
    base: sobol.VarianceSums
    swap: sobol.SwapSums
    centre: Any
    scale: Any


def analyse(
    shape: Shape, logs: bool, arrays: Arrays, cholesky: Any, a: Cells, b: Cells, masks: Any, weights: Any = None
) -> PickFreeze:
    """Propagate A and B and each A with one block of inputs from B.

    Parameters
    ----------
    logs : bool
        Whether the sums are wanted of the logarithms of the outputs too.
    a, b : Cells
    masks : array of bool, shape (blocks, varying)
    weights : array of uint8, shape (chunks, resamples, points of a chunk), optional
        How often each point counts in each resample: sums then have resamples as their last axis, after the sum itself.
    """

    def chunk(part: Any) -> PickFreeze:
        *bases, weight = part
        x_a, x_b = (
            _draws(shape, arrays, cholesky, cells.run ^ base[:, None])
            for cells, base in zip((a, b), bases, strict=True)
        )

        def outputs(mask: Any) -> Any:
            x = lax.optimization_barrier(jnp.where(mask[:, None], x_b, x_a))
            y = lax.optimization_barrier(outputs_at(shape, arrays, x))
            return lax.optimization_barrier(jnp.concatenate([y, transforms.log(y)])) if logs else y

        # Loops, although the first has two rounds only: each keeps one copy of the model to compile.
        y_a, y_b = lax.map(outputs, jnp.stack([jnp.zeros_like(masks[0]), jnp.ones_like(masks[0])]))
        centre, scale = _centre_and_scale(y_a)

        def scaled(y: Any) -> Any:
            return lax.optimization_barrier((y - centre[:, None]) * (1 / scale)[:, None])

        d_a, d_b = scaled(y_a), scaled(y_b)

        def change(mask: Any) -> Any:
            return lax.optimization_barrier(scaled(outputs(mask)) - d_a)

        def one_block(mask: Any) -> sobol.SwapSums:
            sums: sobol.SwapSums = _usable(sobol.swap_sums_of(d_b, change(mask), 0), "jansen")
            return sums

        sums = (sobol.variance_sums_of(d_a, d_b, 0), None) if weight is None else _weighted(
            d_a, d_b, lax.map(change, masks), weight)  # fmt: skip
        return PickFreeze(
            draws=jnp.concatenate([x_a, y_a[: len(shape.outputs)]]),
            base=_usable(sums[0], "square"),
            swap=lax.map(one_block, masks) if weight is None else _usable(sums[1], "jansen"),
            centre=centre,
            scale=scale,
        )

    found: PickFreeze = lax.map(chunk, (a.bases.T, b.bases.T, weights))
    return found._replace(draws=_joined(found.draws))


def _weighted(a: Any, b: Any, changes: Any, weight: Any) -> tuple[sobol.VarianceSums, sobol.SwapSums]:
    """Sum the deviations of A and B, (outputs, n), and the changes, (blocks, outputs, n): as they are, then resampled.

    One matrix product instead of a gather for each resample, which is what takes other packages their time. It is in
    float32: deviations are near 1, and the ends of an interval of 100 resamples are known to a tenth of its width.
    """
    of_pair = jnp.stack([a + b, a * a + b * b]).reshape(-1, a.shape[-1])
    of_blocks = jnp.stack([b * changes, changes, changes * changes], axis=1).reshape(-1, a.shape[-1])
    rows = lax.optimization_barrier(jnp.concatenate([of_pair, of_blocks]))
    again = rows.astype(jnp.float32) @ weight.astype(jnp.float32).T
    found = jnp.concatenate([sobol.total(rows)[:, None], again.astype(rows.dtype)], axis=1)
    pair, blocks = jnp.split(found, [len(of_pair)])
    base = pair.reshape(2, len(a), -1)
    swap = blocks.reshape(len(changes), 3, len(a), -1)
    count = jnp.concatenate([jnp.full(1, a.shape[-1]), weight.sum(-1, dtype=int)])
    return sobol.VarianceSums(base[0], base[1], 0, count), sobol.SwapSums(swap[:, 0], swap[:, 1], swap[:, 2], 0)


def _usable(sums: Any, largest: str) -> Any:
    """Set sums to zero where something infinite or not a number was added up, and count each as one such value.

    To look at every value would take as long as the model.
    """
    bad = ~jnp.isfinite(getattr(sums, largest))
    clean = {name: jnp.where(bad, 0.0, part) for name, part in sums._asdict().items() if name not in _COUNTS}
    return sums._replace(**clean, nonfinite=bad.astype(getattr(sums, largest).dtype))


def _centre_and_scale(y: Any) -> tuple[Any, Any]:
    """Mean and mean absolute deviation of the finite values of each row; exact for a constant, whose scale is 1."""
    first = jnp.where(jnp.isfinite(y[:, 0]), y[:, 0], 0.0)
    deviation, _ = sobol.deviations(y, first)
    centre = first + sobol.total(deviation) / y.shape[1]
    deviation, _ = sobol.deviations(y, centre)
    spread = sobol.total(jnp.abs(deviation)) / y.shape[1]
    return centre, jnp.where(spread > 0, spread, 1.0)


class Counted(NamedTuple):
    """What `count` returns.

    Attributes
    ----------
    linear, square : array, shape (chunks, varying + outputs)
        Sums of the scaled deviations and of their squares.
    bins : array of int32, shape (outputs, n)
    nonfinite : array of bool, shape (chunks, varying + outputs)
        Whether some value is not finite, and sums and bins say nothing.
    """

    linear: Any
    square: Any
    bins: Any
    nonfinite: Any


def count(shape: Shape, arrays: Arrays, cholesky: Any, cells: Cells, grid: Grid) -> Counted:
    """Propagate without keeping draws: sums of deviations, and the bins that outputs fall into, for `tallies.Tally`."""
    first = len(shape.varying)

    def chunk(base: Any) -> Counted:
        x = _draws(shape, arrays, cholesky, cells.run ^ base[:, None])
        rows = lax.optimization_barrier(jnp.concatenate([x, outputs_at(shape, arrays, x)]))
        deviation = lax.optimization_barrier((rows - grid.centre[:, None]) * (1 / grid.spread)[:, None])
        square = sobol.total(deviation * deviation)
        y = rows[first:]
        place = jnp.sign(y) * jnp.log(jnp.abs(y) / grid.scale[first:, None] + 1)
        position = (place - grid.low[first:, None]) * grid.per_unit[first:, None]
        bins = jnp.clip(position, 0, BINS - 1).astype(jnp.int32)
        return Counted(sobol.total(deviation), square, bins, ~jnp.isfinite(square))

    found: Counted = lax.map(chunk, cells.bases.T)
    return found._replace(bins=_joined(found.bins))


# How arguments and results of a kernel are divided over devices: by points, or by the chunks that hold them. Every
# device runs the same kernel on its part, and nothing passes between them. `compilation.run` looks for it.
_WHOLE, _CHUNKS, _POINTS = PartitionSpec(), PartitionSpec("points"), PartitionSpec(None, "points")
_CELLS = Cells(run=_WHOLE, bases=_POINTS)
_DIVISIONS: dict[Any, tuple[Any, Any]] = {
    propagate_points: ((_WHOLE, _WHOLE, _POINTS), _POINTS),
    swapped: ((_WHOLE, _POINTS, _POINTS, _WHOLE, _WHOLE), PartitionSpec(None, None, "points")),
    propagate_cells: ((_WHOLE, _WHOLE, _CELLS), _POINTS),
    analyse: (
        (_WHOLE, _WHOLE, _CELLS, _CELLS, _WHOLE, _CHUNKS),
        PickFreeze(*cast(Any, (_POINTS, _CHUNKS, _CHUNKS, _CHUNKS, _CHUNKS))),
    ),
    count: ((_WHOLE, _WHOLE, _CELLS, _WHOLE), Counted(_CHUNKS, _CHUNKS, _POINTS, _CHUNKS)),
}
for kernel, division in _DIVISIONS.items():
    kernel.division = division
