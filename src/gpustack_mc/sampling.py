"""Runs the kernels on the points of a design, on all cores, and adds up what they return.

A design may be taken further: the points that are there stay, and what was computed of them is kept.
"""

import functools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from gpustack_mc import compilation, hdi, kernels, priors, sobol
from gpustack_mc.design import Design, cells
from gpustack_mc.errors import InputError
from gpustack_mc.problem import Problem
from gpustack_mc.shapes import blocks_of, dimension, shape_of
from gpustack_mc.tallies import PROBABILITIES, Grid, Part, Statistics, Tally, exact, from_tallies, grid_around

Precision = Literal["float64", "float32"]

# Draws kept in memory and in the result; a longer run keeps these and streams the rest into histograms.
KEPT_DRAWS = 2**17
# Points of each replicate that also run pick-freeze; the error of an index is then far below what is printed.
ANALYSED_POINTS = 2**14
CHUNK = 2**12
# A design that is taken further runs in pieces as long as it was at first, up to so many; then in longer ones, for
# which the kernels are compiled again.
PIECES = 2**4
STREAM_CHUNK = 2**16
MOST = 1e150
# Keeps the resamples apart from all other random numbers of a seed.
_BOOTSTRAP = 0x424F_4F54
# Poisson numbers of mean 1 by their probability, to 1 in 65,536.
_POISSON = np.searchsorted(
    np.cumsum([math.exp(-1) / math.factorial(k) for k in range(9)]), (np.arange(2**16) + 0.5) / 2**16
).astype(np.uint8)


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
    resamples : int
        Of the bootstrap that the intervals come from; 0 where they come from the replicates.
    """

    blocks: tuple[str, ...]
    raw: sobol.Indices
    log: sobol.Indices
    samples: int
    resamples: int = 0


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
        return int(self.outputs.shape[1])


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


class Sampler:
    """One propagation: the numbers that all chunks share, and one task per replicate for the worker threads.

    Parameters
    ----------
    problem : Problem
    design : Design
    with_sensitivity : bool
        Whether to run pick-freeze.
    progress : callable
        Called with the share of the work that is done.
    precision : {"float64", "float32"}
        Of the kernels.
    outputs : sequence of str, optional
        Only these; all of the problem when omitted. A `Simulation` needs all.
    logs : bool
        Whether indices of the logarithms of the outputs are wanted too. A `Sensitivity` needs them.
    with_hdi : bool
        Whether highest-density intervals are wanted too.
    resamples : int
        Of a bootstrap over points for the intervals of indices; with 0 they come from the replicates.
    """

    def __init__(
        self,
        problem: Problem,
        design: Design,
        with_sensitivity: bool,
        progress: Callable[[float], None] = lambda share: None,
        precision: Precision = "float64",
        outputs: Sequence[str] | None = None,
        logs: bool = True,
        with_hdi: bool = False,
        resamples: int = 0,
    ):
        self.resamples = resamples
        self.with_hdi = with_hdi
        self.problem, self.design, self.progress, self.precision = problem, design, progress, precision
        self.shape, arrays = shape_of(problem)
        if outputs is not None:
            self.shape = self.shape._replace(outputs=tuple(outputs))
        self.logs = logs
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
        length = self.shortest = design.length
        self.kept = min(length, KEPT_DRAWS // design.replicates)
        self.analysed = min(length, ANALYSED_POINTS) if with_sensitivity and self.names else 0
        # Of each replicate: draws, and the centre of its sums with these; then how many points they come from.
        self.drawn: list[list[np.ndarray]] = [[] for _ in range(design.replicates)]
        self.sums: list[tuple[Any, ...]] = [() for _ in range(design.replicates)]
        self.covered = 0
        self.grid: Grid | None = None
        self.tallies: list[Tally] = []
        self.counted = 0
        self.done = 0
        self.stopped = False

    def cells(self, replicate: int, start: int, stop: int, block: Any = 0) -> kernels.Cells:
        """Cell numbers of some points of one replicate."""
        found = cells(self.design, self.streams, self.dimensions, replicate, start, stop, block, kernels.ROWS)
        return kernels.Cells(*found)

    def propagate(self, replicate: int, start: int, stop: int) -> np.ndarray:
        """Draws of inputs and outputs, shape (varying + outputs, n), at some points of one replicate."""
        given = (self.arrays, self.cholesky, self.cells(replicate, start, stop))
        return np.asarray(compilation.run(kernels.propagate_cells, (self.shape,), *given), dtype=float)

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
        """Tell that some points are done; ends the thread when the run was interrupted."""
        if self.stopped:
            raise KeyboardInterrupt
        self.done += points_done
        self.progress(min(self.done / self.design.samples, 1.0))

    def simulation(self) -> Simulation:
        """Run what has not been run of the design, and summarise it."""
        self.extend()
        draws = self.draws()
        statistics = self.exact(draws) if self.kept == self.design.length else self.streamed(draws)
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
            sensitivity=self.indices() if self.analysed else None,
            precision=self.precision,
        )

    def draws(self) -> np.ndarray:
        """Draws that are kept, shape (variables, replicates * kept), and the only copy of them."""
        found = np.empty((len(self.names) + len(self.shape.outputs), self.kept * self.design.replicates))
        for own, parts in zip(np.split(found, self.design.replicates, axis=1), self.drawn, strict=True):
            stop = 0
            for part in parts:
                piece = part[:, : self.kept - stop]
                own[:, stop : stop + piece.shape[1]] = piece
                stop += piece.shape[1]
            parts[:] = [own]
        return found

    def lengthen(self, samples: int, analysed: int) -> None:
        """Take a design of Sobol' points further, without forgetting what was computed.

        Parameters
        ----------
        samples : int
            Of the longer design.
        analysed : int
            Points of each replicate that run pick-freeze.
        """
        self.design = self.design._replace(samples=samples)
        self.kept = min(self.design.length, KEPT_DRAWS // self.design.replicates)
        self.analysed = min(self.design.length, analysed) if self.analysed else 0
        self.done = self.covered * self.design.replicates

    def extend(self) -> None:
        """Run the points that are kept or analysed and have not been run."""
        stop = max(self.kept, self.analysed)
        self.each_replicate(functools.partial(self.first_points, self.covered, stop))
        self.covered = stop

    def piece(self, last: int) -> int:
        """Points of a replicate to run at once when so many are wanted in all."""
        size = min(self.shortest, CHUNK)
        while size < CHUNK and last > PIECES * size:
            size = min(size * PIECES, CHUNK)
        return size

    def first_points(self, first: int, last: int, replicate: int) -> None:
        """Keep draws and pick-freeze sums of some points of one replicate."""
        for start, stop in chunks_of(first, last, self.piece(last)):
            if start < self.analysed:
                found = self.analyse(replicate, start, stop)
                draws = np.asarray(found.draws, dtype=float)
                self.add_sums(replicate, found)
            else:
                draws = self.propagate(replicate, start, stop)
            require_finite(draws[len(self.names) :], self.problem)
            if start < self.kept:
                self.drawn[replicate].append(draws)
            if self.kept == self.design.length:
                self.advance(stop - start)

    def analyse(self, replicate: int, start: int, stop: int) -> kernels.PickFreeze:
        """Draws and pick-freeze sums at some points of one replicate."""
        a, b = (self.cells(replicate, start, stop, block) for block in (0, 1))
        given = (self.arrays, self.cholesky, a, b, self.masks, self.weights(replicate, start, a))
        ran = compilation.run(kernels.analyse, (self.shape, self.logs), *given)
        found: kernels.PickFreeze = jax.tree.map(np.asarray, ran)
        if not self.resamples:
            return found
        # Resamples after the chunks, as the sums of several replicates have them.
        base = sobol.VarianceSums(*map(_resamples_after_chunks, found.base))
        swap = sobol.SwapSums(*map(_resamples_after_chunks, found.swap))
        return found._replace(base=base, swap=swap, centre=found.centre[:, None], scale=found.scale[:, None])

    def weights(self, replicate: int, start: int, cells: kernels.Cells) -> np.ndarray | None:
        """How often each point of a replicate counts in each resample: a Poisson number of mean 1.

        Independent numbers resample as a bootstrap does, whatever the chunks (Chamandy, Muralidharan, Najmi and Naidu
        2012, Estimating uncertainty for massive data streams, Google research).
        """
        if not self.resamples:
            return None
        shape = (cells.bases.shape[1], self.resamples, cells.run.shape[1])
        random = np.random.default_rng([self.design.seed, _BOOTSTRAP, replicate, start])
        found: np.ndarray = _POISSON[random.integers(0, len(_POISSON), shape, np.uint16)]
        return found

    def add_sums(self, replicate: int, found: kernels.PickFreeze) -> None:
        """Add the sums of all chunks to those of the replicate, which count from the centre of its first chunk."""
        centre, scale = found.centre.astype(float), found.scale.astype(float)
        known = self.sums[replicate]
        to = known[0] if known else centre.reshape(-1, centre.shape[-1])[0]
        base, swap = sobol.recentred(found.base, found.swap, centre, scale, to)
        base, swap = sobol.added_up([base]), sobol.added_up([swap])
        if known:
            base, swap = sobol.add_sums(known[1], base), sobol.add_sums(known[2], swap)
        self.sums[replicate] = (to, base, swap)

    def indices(self) -> Sensitivity:
        """Indices of outputs and of their logarithms, from the sums of all replicates."""
        names = tuple("+".join(block) for block in self.blocks)
        raw, log = self.scales()
        return Sensitivity(names, raw, log, self.analysed * self.design.replicates, self.resamples)

    def scales(self) -> list[sobol.Indices]:
        """Indices of the outputs, and of their logarithms where these are wanted."""
        to, one = self.sums[0][0], np.ones_like(self.sums[0][0])
        moved = [sobol.recentred(base, swap, centre, one, to) for centre, base, swap in self.sums]
        base, swap = (sobol.stack_sums(part) for part in zip(*moved, strict=True))
        half = len(self.shape.outputs)
        spacing = float(np.finfo(self.precision).eps)
        scales = []
        for columns in (slice(None, half), slice(half, None))[: 1 + self.logs]:
            cut_base = base._replace(**{f: getattr(base, f)[..., columns] for f in ("linear", "square", "nonfinite")})
            cut_swap = type(swap)(*(part[..., columns] for part in swap))
            floor = (4 * spacing * to[columns]) ** 2
            indices = sobol.bootstrapped if self.resamples else sobol.indices
            scales.append(indices(cut_base, cut_swap, floor=floor, precision=spacing))
        return scales

    def exact(self, draws: np.ndarray) -> Statistics:
        """Summaries over draws that are all kept."""

        def part(replicate: int) -> Part:
            own = draws[:, replicate * self.kept : (replicate + 1) * self.kept]
            return Part(own, np.sort(own, axis=1))

        return exact(draws, self.each_replicate(part), self.with_hdi)

    def streamed(self, draws: np.ndarray) -> Statistics:
        """Summaries over all points of a design too long to keep."""
        if self.grid is None:
            self.grid = grid_around(draws)
            self.tallies = [Tally(len(draws), len(self.shape.outputs)) for _ in range(self.design.replicates)]
        self.each_replicate(functools.partial(self.tally, self.counted, self.design.length))
        self.counted = self.design.length
        marginals = [functools.partial(priors.quantiles, self.problem.inputs[key].marginal) for key in self.names]
        of_inputs = np.array([quantiles(PROBABILITIES) for quantiles in marginals]).reshape(-1, len(PROBABILITIES)).T
        if not self.with_hdi:
            return from_tallies(self.tallies, self.grid, of_inputs)
        densest = np.array([hdi.of_quantile_function(quantiles) for quantiles in marginals])
        return from_tallies(self.tallies, self.grid, of_inputs, densest.reshape(-1, len(hdi.STATISTICS)).T)

    def tally(self, first: int, last: int, replicate: int) -> None:
        """Count some points of one replicate."""
        assert self.grid is not None  # made from the first draws, before any is counted
        grid = Grid(*(part.astype(self.cholesky.dtype) for part in self.grid))
        for start, stop in chunks_of(first, last, STREAM_CHUNK):
            given = (self.arrays, self.cholesky, self.cells(replicate, start, stop), grid)
            found = compilation.run(kernels.count, (self.shape,), *given)
            linear, square, bins, bad = (np.asarray(part) for part in found)
            if bad.any():
                require_finite(self.propagate(replicate, start, stop)[len(self.names) :], self.problem)
            self.tallies[replicate].add(linear, square, bins)
            self.advance(stop - start)


def chunks_of(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield start and stop of pieces of at most a size."""
    for first in range(start, stop, size):
        yield first, min(first + size, stop)


def _resamples_after_chunks(part: np.ndarray) -> np.ndarray:
    return np.moveaxis(part, -1, 1) if part.ndim > 2 else part
