"""Cube to quantile functions to model: the only place that compiles.

A problem is split into its *shape* (which inputs, which kernels, which phases), static under ``jax.jit``, and its
numbers, which are not: problems of one shape share one compilation. Everything runs in float64, because 6e24 FLOP
times a peak overflows float32, inside a local switch: importing this module changes nothing in JAX.
"""

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr, ndtri

from gpustack_mc import model, priors, sobol
from gpustack_mc.design import Design, points
from gpustack_mc.errors import InputError
from gpustack_mc.problem import Problem
from gpustack_mc.shapes import MODEL_INPUTS, Shape, blocks_of, dimension, shape_of
from gpustack_mc.tallies import BINS, PROBABILITIES, Grid, Part, Statistics, Tally, exact, from_tallies, grid_around

# Draws kept in memory and in the result; a longer run keeps these and streams the rest into histograms.
KEPT_DRAWS = 2**17
# Points of each replicate that also run pick-freeze; the error of an index is then far below what is printed.
ANALYSED_POINTS = 2**14
CHUNK = 2**12
STREAM_CHUNK = 2**13
MOST = 1e150


class Sensitivity(NamedTuple):
    """Indices of all outputs to all blocks of inputs, on the raw and on the log output.

    Attributes
    ----------
    blocks : tuple of str
        One per independent input; correlated inputs form one block, its name joined by ``+``.
    raw, log : sobol.Indices
        Arrays of shape (blocks, outputs).
    samples : int
        Base sample size.
    """

    blocks: tuple[str, ...]
    raw: sobol.Indices
    log: sobol.Indices
    samples: int


class Simulation(NamedTuple):
    """Draws and summaries of one problem.

    Attributes
    ----------
    problem, design
    varying : tuple of str
        Keys of the inputs that have draws, in the order of the rows.
    inputs : ndarray, shape (len(varying), kept)
    outputs : ndarray, shape (len(problem.outputs), kept)
        Draws that are kept, `replicates` equal parts one after the other.
    input_statistics, output_statistics : Statistics
        Over all draws, kept or not.
    sensitivity : Sensitivity or None
    """

    problem: Problem
    design: Design
    varying: tuple[str, ...]
    inputs: np.ndarray
    outputs: np.ndarray
    input_statistics: Statistics
    output_statistics: Statistics
    sensitivity: Sensitivity | None

    @property
    def kept(self) -> int:
        """Number of draws kept."""
        return self.outputs.shape[1]


# ---- what is compiled --------------------------------------------------------------------------------------------


def _draws(shape: Shape, arrays: dict[str, Any], cholesky: Any, u: Any) -> Any:
    """Map points of the cube, shape (varying, n), to draws of the same shape."""
    z = ndtri(u)
    if shape.correlated:
        index = jnp.array(shape.correlated)
        z = z.at[index].set(cholesky @ z[index])
        u = u.at[index].set(ndtr(z[index]))
    # Without barriers XLA's CPU backend computes every ndtri and exp again for each output that uses it.
    z, u = jax.lax.optimization_barrier((z, u))
    forms = dict(shape.forms)
    rows: dict[str, Any] = {}
    for form in sorted({forms[key] for key in shape.varying}):
        members = [i for i, key in enumerate(shape.varying) if forms[key] == form]
        rows |= _same_form(shape, arrays, form, members, u, z)
    ordered = [rows[key] for key in shape.varying]
    return jax.lax.optimization_barrier(jnp.stack(ordered)) if ordered else jnp.zeros((0, u.shape[1]))


def _same_form(shape: Shape, arrays: dict[str, Any], form: str, members: list[int], u: Any, z: Any) -> dict[str, Any]:
    """Evaluate all inputs of one form at once: one formula to compile instead of one per input."""
    keys = [shape.varying[i] for i in members]
    if form in ("table", "discrete"):
        return {
            key: priors.quantile(form, arrays[key], u[i], z[i], jnp, ndtri)
            for key, i in zip(keys, members, strict=True)
        }
    columns = [jnp.stack(column)[:, None] for column in zip(*(arrays[key] for key in keys), strict=True)]
    index = jnp.array(members)
    return dict(zip(keys, priors.quantile(form, columns, u[index], z[index], jnp, ndtri), strict=True))


def _outputs(shape: Shape, arrays: dict[str, Any], x: Any) -> Any:
    """Run the model on draws, shape (varying, n); returns (outputs, n)."""
    values = {key: arrays[key][0] for key, form in shape.forms if form == "fixed"}
    values |= {key: x[i] for i, key in enumerate(shape.varying)}
    phases = [{name: values[key] for name, key in phase} for phase in shape.phases]
    # A missing one is a TypeError of the program.
    found = getattr(model, shape.program)(phases, **{name: values[name] for name in MODEL_INPUTS if name in values})
    return jnp.stack([jnp.broadcast_to(found[name], x.shape[1:]) for name in shape.outputs])


@functools.partial(jax.jit, static_argnums=0)
def _propagate(shape: Shape, arrays: dict[str, Any], cholesky: Any, u: Any) -> Any:
    x = _draws(shape, arrays, cholesky, u)
    return jnp.concatenate([x, _outputs(shape, arrays, x)])


@functools.partial(jax.jit, static_argnums=0)
def _analyse(shape: Shape, arrays: dict[str, Any], cholesky: Any, u_a: Any, u_b: Any, masks: Any, centre: Any) -> Any:
    """Propagate A and B and each A with one block from B; returns draws of A and the pick-freeze sums."""
    n = u_a.shape[1]
    x = _draws(shape, arrays, cholesky, jnp.concatenate([u_a, u_b], axis=1))
    x_a, x_b = x[:, :n], x[:, n:]

    def outputs(mask: Any) -> Any:
        y = jax.lax.optimization_barrier(_outputs(shape, arrays, jnp.where(mask[:, None], x_b, x_a)))
        return jax.lax.optimization_barrier(jnp.concatenate([y, jnp.log(y)]))

    def one_block(carry: Any, mask: Any) -> Any:
        return carry, sobol.swap_sums(y_a, y_b, outputs(mask), centre)

    # Loops, although the first has two rounds only: each keeps one copy of the model to compile.
    whole = jnp.stack([jnp.zeros_like(masks[0]), jnp.ones_like(masks[0])])
    y_a, y_b = jax.lax.map(outputs, whole)
    _, swap = jax.lax.scan(one_block, None, masks)
    return jnp.concatenate([x_a, y_a[: len(shape.outputs)]]), sobol.variance_sums(y_a, y_b, centre), swap


@functools.partial(jax.jit, static_argnums=0)
def _swapped(shape: Shape, arrays: dict[str, Any], x_a: Any, x_b: Any, masks: Any, rows: Any) -> Any:
    """Run the model on A with one block of inputs from B at a time; shape (blocks, len(rows), n)."""
    return jax.lax.map(lambda mask: _outputs(shape, arrays, jnp.where(mask[:, None], x_b, x_a))[rows], masks)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def batch(
    shape: Shape, rows: tuple[int, ...], own: tuple[int, ...], arrays: dict[str, Any], cholesky: Any, u: Any, u_own: Any
) -> Any:
    """Propagate problems of one shape that share all but a few inputs; returns (problems, len(rows), n).

    `arrays` and `u_own`, points of the inputs `own`, are stacked by problem; points `u` (varying, n) of the others and
    what is drawn at them belong to all.
    """
    shared = _draws(shape, jax.tree.map(lambda stacked: stacked[0], arrays), cholesky, u)
    forms = dict(shape.forms)

    def one(part: Any) -> Any:
        numbers, points_own = part
        index = jnp.array(own, dtype=int)
        at, z = u.at[index].set(points_own), jnp.zeros_like(u).at[index].set(ndtri(points_own))
        drawn: dict[str, Any] = {}
        for form in sorted({forms[shape.varying[i]] for i in own}):
            members = [i for i in own if forms[shape.varying[i]] == form]
            drawn |= _same_form(shape, numbers, form, members, at, z)
        x = shared.at[index].set(jnp.stack([drawn[shape.varying[i]] for i in own])) if own else shared
        return _outputs(shape, numbers, x)[jnp.array(rows)]

    return jax.lax.map(one, (arrays, u_own))


@functools.partial(jax.jit, static_argnums=0)
def _stream(shape: Shape, arrays: dict[str, Any], cholesky: Any, u: Any, grid: "Grid") -> Any:
    """Propagate without keeping draws: sums of deviations and bin numbers, for `Tally`."""
    rows = jax.lax.optimization_barrier(_propagate(shape, arrays, cholesky, u))
    deviation = rows - grid.centre[:, None]
    place = jnp.sign(rows) * jnp.log(jnp.abs(rows) / grid.scale[:, None] + 1)
    position = (place - grid.low[:, None]) * grid.per_unit[:, None]
    finite = jnp.isfinite(rows)
    bins = jnp.where(finite, jnp.clip(position, 0, BINS - 1), 0).astype(jnp.int32)
    return deviation.sum(-1), (deviation**2).sum(-1), bins, rows.shape[1] - finite.sum(-1)


# ---- running it --------------------------------------------------------------------------------------------------


def simulate(
    problem: Problem,
    design: Design,
    *,
    with_sensitivity: bool = True,
    progress: Callable[[float], None] = lambda share: None,
) -> Simulation:
    """Propagate a problem.

    Parameters
    ----------
    problem : Problem
    design : Design
        From `gpustack_mc.design.make_design`.
    with_sensitivity : bool
        Whether to compute Sobol' indices from the same points.
    progress : callable
        Called with the share of the work that is done.

    Returns
    -------
    Simulation

    Raises
    ------
    InputError
        An output is not finite for some draws; the message says which and why.
    """
    with jax.enable_x64(True):
        return _Run(problem, design, with_sensitivity, progress).simulation()


class Propagation:
    """The compiled model of one problem, for callers that choose the points themselves.

    Attributes
    ----------
    problem : Problem
    varying : tuple of str
        Keys of the inputs that vary, in the order of the rows.
    """

    def __init__(self, problem: Problem):
        self.problem = problem
        self.shape, arrays = shape_of(problem)
        self.varying = self.shape.varying
        self.cholesky = np.linalg.cholesky(problem.correlation) if problem.correlated else np.zeros((0, 0))
        self.numbers = arrays

    @functools.cached_property
    def arrays(self) -> dict[str, Any]:
        """The numbers of the problem on the device: once, not again with each chunk."""
        with jax.enable_x64(True):
            return jax.device_put(self.numbers)

    def propagate(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return draws of the inputs (varying, n) and outputs (outputs, n) at points of the cube (varying, n)."""
        with jax.enable_x64(True):
            rows = np.asarray(_propagate(self.shape, self.arrays, self.cholesky, u))
        require_finite(rows[len(self.varying) :], self.problem)
        return rows[: len(self.varying)], rows[len(self.varying) :]

    def swapped(self, x_a: np.ndarray, x_b: np.ndarray, masks: np.ndarray, rows: Sequence[int]) -> np.ndarray:
        """Run the model on A with blocks of inputs from B.

        Parameters
        ----------
        x_a, x_b : ndarray, shape (varying, n)
            Draws of the inputs.
        masks : ndarray of bool, shape (blocks, varying)
            Inputs that a block takes from B.
        rows : sequence of int
            Which outputs to return.

        Returns
        -------
        ndarray, shape (blocks, len(rows), n)
        """
        with jax.enable_x64(True):
            return np.asarray(_swapped(self.shape, self.arrays, x_a, x_b, masks, np.asarray(rows)))


def require_finite(outputs: np.ndarray, problem: Problem, names: Sequence[str] = ()) -> None:
    """Refuse outputs, shape (outputs, n), that are not finite or whose square would not be; all unless named.

    Raises
    ------
    InputError
        It names the output and how many of its draws are concerned.
    """
    # The square of anything larger overflows, and with it the standard deviation.
    bad = ~(np.abs(outputs) < MOST)
    if not bad.any():
        return
    worst = int(bad.sum(axis=1).argmax())
    raise InputError(
        "non-finite",
        f"{(names or problem.outputs)[worst]} is not finite for {bad[worst].mean():.2g} of the draws.",
        "Some input reaches 0 or is far too large; narrow it.",
        problem.place(("inputs",)),
    )


class Draws(NamedTuple):
    """Draws of one problem without summaries.

    Attributes
    ----------
    varying : tuple of str
        Keys of the inputs that have draws, in the order of the rows.
    inputs : ndarray, shape (len(varying), n)
    outputs : ndarray, shape (len(problem.outputs), n)
        Replicates one after the other.
    names : tuple of str
        Of the outputs.
    """

    varying: tuple[str, ...]
    inputs: np.ndarray
    outputs: np.ndarray
    names: tuple[str, ...]

    def output(self, name: str) -> np.ndarray:
        """Draws of one output, shape (n,)."""
        return self.outputs[self.names.index(name)]


def propagate(
    problem: Problem,
    design: Design,
    replicates: Sequence[int] | None = None,
    streams: Mapping[str, tuple[str, int]] | None = None,
) -> Draws:
    """Draw inputs and outputs without summaries or indices: the same draws as `simulate`, in a fraction of its time.

    Parameters
    ----------
    problem : Problem
    design : Design
    replicates : sequence of int, optional
        Only these; all when omitted.
    streams : mapping of str to (str, int), optional
        Name of the random stream and dimension number, for inputs that shall be independent of their own stream.

    Raises
    ------
    InputError
        An output is not finite for some draws.
    """
    with jax.enable_x64(True):
        run = _Run(problem, design, False, lambda share: None)
        own = zip(run.names, run.dimensions, strict=True)
        chosen = [(streams or {}).get(key, (key, place)) for key, place in own]
        run.streams, run.dimensions = [name for name, _ in chosen], [place for _, place in chosen]
        wanted = range(design.replicates) if replicates is None else replicates

        def rows(replicate: int) -> np.ndarray:
            chunks = _chunks(0, design.length, CHUNK)
            return np.concatenate([run.propagate(replicate, *chunk) for chunk in chunks], axis=1)

        draws = np.concatenate(run.each_replicate(rows, wanted), axis=1)
        require_finite(draws[len(run.names) :], problem)
        return Draws(tuple(run.names), draws[: len(run.names)], draws[len(run.names) :], problem.outputs)


class _Run:
    """One propagation: the numbers that all chunks share, and one task per replicate for the worker threads."""

    def __init__(self, problem: Problem, design: Design, with_sensitivity: bool, progress: Callable[[float], None]):
        self.problem, self.design, self.progress = problem, design, progress
        self.shape, arrays = shape_of(problem)
        # On the device once, not again with each chunk.
        self.arrays = jax.device_put(arrays)
        self.cholesky = np.linalg.cholesky(problem.correlation) if problem.correlated else np.zeros((0, 0))
        self.names = list(self.shape.varying)
        self.streams = self.names
        self.dimensions = [dimension(problem.inputs[key], problem) for key in self.names]
        self.blocks = blocks_of(self.shape, problem.correlation)
        length = design.length
        self.kept = min(length, KEPT_DRAWS // design.replicates)
        self.analysed = min(length, ANALYSED_POINTS) if with_sensitivity and self.names else 0
        self.done = 0
        self.stopped = False

    def points(self, replicate: int, start: int, stop: int, block: Any = 0) -> np.ndarray:
        return points(self.design, self.streams, self.dimensions, replicate, start, stop, block)

    def propagate(self, replicate: int, start: int, stop: int) -> np.ndarray:
        u = self.points(replicate, start, stop)
        return np.asarray(_propagate(self.shape, self.arrays, self.cholesky, u))

    def each_replicate(self, task: Callable[[int], Any], wanted: Sequence[int] | None = None) -> list[Any]:
        """Run a task for every replicate, on all cores; results in order, whatever finishes first."""

        def in_float64(replicate: int) -> Any:
            # The switch belongs to the thread.
            with jax.enable_x64(True):
                return task(replicate)

        executor = ThreadPoolExecutor(os.cpu_count())
        try:
            return list(executor.map(in_float64, range(self.design.replicates) if wanted is None else wanted))
        finally:
            self.stopped = True
            executor.shutdown(cancel_futures=True)
            self.stopped = False

    def advance(self, points_done: int) -> None:
        if self.stopped:
            raise KeyboardInterrupt
        self.done += points_done
        self.progress(min(self.done / self.design.samples, 1.0))

    def simulation(self) -> Simulation:
        centre = self.centre() if self.analysed else None
        found = self.each_replicate(functools.partial(self.first_points, centre))
        sums = [part.sums for part in found]
        draws = np.concatenate([part.draws for part in found], axis=1)
        statistics = exact(draws, found) if self.kept == self.design.length else self.streamed(draws)
        count = len(self.names)
        self.progress(1.0)
        return Simulation(
            problem=self.problem,
            design=self.design,
            varying=tuple(self.names),
            inputs=draws[:count],
            outputs=draws[count:],
            input_statistics=Statistics(*(part[..., :count] for part in statistics)),
            output_statistics=Statistics(*(part[..., count:] for part in statistics)),
            sensitivity=self.indices(sums, centre) if centre is not None else None,
        )

    def first_points(self, centre: np.ndarray | None, replicate: int) -> "Part":
        """Draws that are kept, with their summaries, and pick-freeze sums, of one replicate."""
        parts, sums = [], []
        for start, stop in _chunks(0, max(self.kept, self.analysed), CHUNK):
            if start < self.analysed:
                part, *found = self.analyse(replicate, start, stop, centre)
                sums.append(found)
            else:
                part = self.propagate(replicate, start, stop)
            parts.append(part)
            if self.kept == self.design.length:
                self.advance(stop - start)
        kept = np.concatenate(parts, axis=1)[:, : self.kept]
        require_finite(kept[len(self.names) :], self.problem)
        total = tuple(functools.reduce(sobol.add_sums, part) for part in zip(*sums, strict=True))
        return Part(kept, kept.mean(axis=1), np.quantile(kept, PROBABILITIES, axis=1), total)

    def centre(self) -> np.ndarray:
        """Means of raw and log outputs over the first chunk: sums of deviations from them lose no digits."""
        draws, *_ = self.analyse(0, 0, min(self.design.length, CHUNK), np.zeros(2 * len(self.shape.outputs)))
        y = draws[len(self.names) :]
        with np.errstate(divide="ignore", invalid="ignore"):
            return sobol.pilot_centre(np.concatenate([y, np.log(y)]))

    def analyse(self, replicate: int, start: int, stop: int, centre: Any) -> tuple[np.ndarray, Any, Any]:
        u_a, u_b = self.points(replicate, start, stop), self.points(replicate, start, stop, 1)
        masks = np.array([[key in block for key in self.names] for block in self.blocks])
        draws, base, swap = _analyse(self.shape, self.arrays, self.cholesky, u_a, u_b, masks, centre)
        return np.asarray(draws), jax.tree.map(np.asarray, base), jax.tree.map(np.asarray, swap)

    def indices(self, sums: Sequence[tuple[Any, Any]], centre: np.ndarray) -> Sensitivity:
        base, swap = (sobol.stack_sums(part) for part in zip(*sums, strict=True))
        half = len(self.shape.outputs)
        parts = []
        for columns in (slice(None, half), slice(half, None)):
            cut_base = base._replace(**{f: getattr(base, f)[..., columns] for f in ("linear", "square", "nonfinite")})
            cut_swap = type(swap)(*(part[..., columns] for part in swap))
            parts.append(sobol.indices(cut_base, cut_swap, floor=(4 * np.finfo(float).eps * centre[columns]) ** 2))
        names = tuple("+".join(block) for block in self.blocks)
        return Sensitivity(names, *parts, samples=self.analysed * self.design.replicates)

    def streamed(self, draws: np.ndarray) -> Statistics:
        """Summaries over all points of a design too long to keep."""
        grid = grid_around(draws)
        tallies = self.each_replicate(functools.partial(self.tally, grid, len(draws)))
        return from_tallies(tallies, grid)

    def tally(self, grid: Grid, variables: int, replicate: int) -> "Tally":
        tally = Tally(variables)
        for start, stop in _chunks(0, self.design.length, STREAM_CHUNK):
            u = self.points(replicate, start, stop)
            total, square, bins, bad = _stream(self.shape, self.arrays, self.cholesky, u, grid)
            if np.asarray(bad).any():
                require_finite(self.propagate(replicate, start, stop)[len(self.names) :], self.problem)
            tally.add(np.asarray(total), np.asarray(square), np.asarray(bins), stop - start)
            self.advance(stop - start)
        return tally


def _chunks(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    for first in range(start, stop, size):
        yield first, min(first + size, stop)
