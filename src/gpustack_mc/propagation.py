"""Runs the compiled kernels on the points of a design: the only place that compiles.

A problem is split into its *shape* (which inputs, which kernels, which phases), static under ``jax.jit``, and its
numbers, which are not: problems of one shape share one compilation. Kernels run in float64 unless float32 is asked for
and agrees, inside a local switch: importing this module changes nothing in JAX.
"""

import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from gpustack_mc import compilation, kernels, priors, sobol
from gpustack_mc.design import Design, cells
from gpustack_mc.errors import InputError
from gpustack_mc.problem import Problem
from gpustack_mc.shapes import blocks_of, dimension, shape_of
from gpustack_mc.tallies import PROBABILITIES, Grid, Moments, Part, Statistics, Tally, exact, from_moments, grid_around

Precision = Literal["float64", "float32"]

# Draws kept in memory and in the result; a longer run keeps these and streams the rest into histograms.
KEPT_DRAWS = 2**17
# Points of each replicate that also run pick-freeze; the error of an index is then far below what is printed.
ANALYSED_POINTS = 2**14
CHUNK = 2**12
STREAM_CHUNK = 2**15
MOST = 1e150
# How far an output in float32 may lie from float64: in standard deviations, or relative to its size.
NEAR_SPREAD, NEAR_SIZE = 1e-3, 1e-5


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
    precision : {"float64", "float32"}
        Of the kernels that made the draws and sums.
    """

    problem: Problem
    design: Design
    varying: tuple[str, ...]
    inputs: np.ndarray
    outputs: np.ndarray
    input_statistics: Statistics
    output_statistics: Statistics
    sensitivity: Sensitivity | None
    precision: Precision = "float64"

    @property
    def kept(self) -> int:
        """Number of draws kept."""
        return self.outputs.shape[1]


# ---- what is compiled --------------------------------------------------------------------------------------------

# Static arguments come first.
_KERNELS = {
    function.__name__: jax.jit(function, static_argnums=static)
    for function, static in (
        (kernels.propagate_points, (0,)),
        (kernels.propagate_cells, (0,)),
        (kernels.swapped, (0,)),
        (kernels.analyse, (0, 1)),
        (kernels.count, (0,)),
    )
}
_STATIC = {"analyse": 2}


def _run(name: str, *arguments: Any) -> Any:
    """Run a kernel, compiled once for each shape: kept in memory, and in the user's cache where that is on."""
    static, arrays = arguments[: _STATIC.get(name, 1)], arguments[_STATIC.get(name, 1) :]
    return compilation.compiled(name, _KERNELS[name], static, arrays)(*arrays)


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
        with jax.enable_x64(True):
            self.arrays = jax.device_put(arrays)

    def propagate(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return draws of the inputs (varying, n) and outputs (outputs, n) at points of the cube (varying, n)."""
        with jax.enable_x64(True):
            rows = np.asarray(_run("propagate_points", self.shape, self.arrays, self.cholesky, u))
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
            return np.asarray(_run("swapped", self.shape, self.arrays, x_a, x_b, masks, np.asarray(rows)))


def require_finite(outputs: np.ndarray, problem: Problem) -> None:
    """Refuse outputs, shape (outputs, n), that are not finite or whose square would not be.

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
        f"{problem.outputs[worst]} is not finite for {bad[worst].mean():.2g} of the draws.",
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

    def __init__(self, problem: Problem, design: Design, with_sensitivity: bool, progress: Callable[[float], None],
                 precision: Precision = "float64"):  # fmt: skip
        self.problem, self.design, self.progress, self.precision = problem, design, progress, precision
        self.shape, arrays = shape_of(problem)
        dtype = np.dtype(precision)
        # On the device once, not again with each chunk.
        self.arrays = jax.device_put(
            {key: tuple(part.astype(dtype) for part in parts) for key, parts in arrays.items()}
        )
        self.cholesky = (np.linalg.cholesky(problem.correlation) if problem.correlated else np.zeros((0, 0))).astype(
            dtype
        )
        self.names = list(self.shape.varying)
        self.streams = self.names
        self.dimensions = [dimension(problem.inputs[key], problem) for key in self.names]
        self.blocks = blocks_of(self.shape, problem.correlation)
        self.masks = np.array([[key in block for key in self.names] for block in self.blocks])
        length = design.length
        self.kept = min(length, KEPT_DRAWS // design.replicates)
        self.analysed = min(length, ANALYSED_POINTS) if with_sensitivity and self.names else 0
        self.done = 0
        self.stopped = False
        self.lock = threading.Lock()

    def cells(self, replicate: int, start: int, stop: int, block: Any = 0) -> kernels.Cells:
        found = cells(self.design, self.streams, self.dimensions, replicate, start, stop, block, kernels.ROWS)
        return kernels.Cells(*found)

    def propagate(self, replicate: int, start: int, stop: int) -> np.ndarray:
        found = _run("propagate_cells", self.shape, self.arrays, self.cholesky, self.cells(replicate, start, stop))
        return np.asarray(found, dtype=float)

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
        found = self.each_replicate(self.first_points)
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
            sensitivity=self.indices([part.sums for part in found]) if self.analysed else None,
            precision=self.precision,
        )

    def first_points(self, replicate: int) -> Part:
        """Draws that are kept, with their order, and pick-freeze sums, of one replicate."""
        parts, sums = [], []
        for start, stop in _chunks(0, max(self.kept, self.analysed), CHUNK):
            if start < self.analysed:
                found = self.analyse(replicate, start, stop)
                parts.append(np.asarray(found.draws, dtype=float))
                sums.append(found._replace(draws=None))
            else:
                parts.append(self.propagate(replicate, start, stop))
            if self.kept == self.design.length:
                self.advance(stop - start)
        kept = np.concatenate(parts, axis=1)[:, : self.kept]
        require_finite(kept[len(self.names) :], self.problem)
        return Part(kept, np.sort(kept, axis=1), tuple(sums))

    def analyse(self, replicate: int, start: int, stop: int, logs: bool = True) -> kernels.PickFreeze:
        a, b = (self.cells(replicate, start, stop, block) for block in (0, 1))
        found = _run("analyse", self.shape, logs, self.arrays, self.cholesky, a, b, self.masks)
        return jax.tree.map(np.asarray, found)

    def indices(self, parts: Sequence[Sequence[kernels.PickFreeze]]) -> Sensitivity:
        """Indices from the sums of all chunks of all replicates."""
        # Any value near the means would do: deviations from it lose no digits.
        to = parts[0][0].centre[0].astype(float)
        replicates = []
        for chunks in parts:
            joined = [
                sobol.recentred(part.base, part.swap, part.centre.astype(float), part.scale.astype(float), to)
                for part in chunks
            ]
            replicates.append([sobol.added_up(sums) for sums in zip(*joined, strict=True)])
        base, swap = (sobol.stack_sums(part) for part in zip(*replicates, strict=True))
        half = len(self.shape.outputs)
        spacing = float(np.finfo(self.precision).eps)
        scales = []
        for columns in (slice(None, half), slice(half, None)):
            cut_base = base._replace(**{f: getattr(base, f)[..., columns] for f in ("linear", "square", "nonfinite")})
            cut_swap = type(swap)(*(part[..., columns] for part in swap))
            floor = (4 * spacing * to[columns]) ** 2
            scales.append(sobol.indices(cut_base, cut_swap, floor=floor, precision=spacing))
        names = tuple("+".join(block) for block in self.blocks)
        return Sensitivity(names, *scales, samples=self.analysed * self.design.replicates)

    def streamed(self, draws: np.ndarray) -> Statistics:
        """Summaries over all points of a design too long to keep."""
        grid = grid_around(draws)
        whole = Tally(len(draws), len(self.shape.outputs))
        parts = self.each_replicate(functools.partial(self.tally, grid, whole))
        of_inputs = [priors.quantiles(self.problem.inputs[key].marginal, PROBABILITIES) for key in self.names]
        return from_moments(parts, whole.counts, grid, np.array(of_inputs).reshape(-1, len(PROBABILITIES)).T)

    def tally(self, grid: Grid, whole: Tally, replicate: int) -> Moments:
        """Count the points of one replicate, for itself and for all together."""
        own = Tally(len(whole.linear), len(whole.counts))
        on_device = Grid(*(part.astype(self.cholesky.dtype) for part in grid))
        for start, stop in _chunks(0, self.design.length, STREAM_CHUNK):
            found = _run("count", self.shape, self.arrays, self.cholesky, self.cells(replicate, start, stop), on_device)
            linear, square, bins, bad = (np.asarray(part) for part in found)
            if bad.any():
                require_finite(self.propagate(replicate, start, stop)[len(self.names) :], self.problem)
            own.add(linear, square, bins)
            self.advance(stop - start)
        with self.lock:
            whole.counts += own.counts
        return own.moments(grid)


def _chunks(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    for first in range(start, stop, size):
        yield first, min(first + size, stop)
