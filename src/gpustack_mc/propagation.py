"""Draws, summaries and indices of a problem, in one pass over the points of a design.

A problem is split into its *shape* (which inputs, which kernels, which phases), static under ``jax.jit``, and its
numbers, which are not: problems of one shape share one compilation. Everything runs inside a local switch to float64:
importing this module changes nothing in JAX.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from gpustack_mc import compilation, kernels
from gpustack_mc.design import Design
from gpustack_mc.problem import Problem
from gpustack_mc.sampling import CHUNK, Precision, Sampler, Sensitivity, Simulation, chunks_of, require_finite
from gpustack_mc.shapes import dimension, shape_of

__all__ = [
    "Draws",
    "Precision",
    "Propagation",
    "Sensitivity",
    "Simulation",
    "dimension",
    "propagate",
    "require_finite",
    "sampler",
    "simulate",
]

# Points on which float32 is held against float64.
PILOT = 2**10
# How far an output in float32 may lie from float64: in standard deviations, or relative to its size.
NEAR_SPREAD, NEAR_SIZE = 1e-3, 1e-5


def simulate(
    problem: Problem,
    design: Design,
    *,
    with_sensitivity: bool = True,
    progress: Callable[[float], None] = lambda share: None,
    precision: Precision = "float64",
    with_hdi: bool = False,
    resamples: int = 0,
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
    precision : {"float64", "float32"}
        Of the model; sums over draws are float64 in both. float32 is used only where it agrees with float64 on the
        first points, and `Simulation.precision` says what was used.
    with_hdi : bool
        Whether to find highest-density intervals too.
    resamples : int
        Of a bootstrap over points for the intervals of indices; with 0 they come from the replicates.

    Returns
    -------
    Simulation

    Raises
    ------
    InputError
        An output is not finite for some draws; the message says which and why.
    """
    with jax.enable_x64(True):
        return sampler(problem, design, with_sensitivity, progress, precision, with_hdi, resamples).simulation()


def sampler(
    problem: Problem,
    design: Design,
    with_sensitivity: bool = True,
    progress: Callable[[float], None] = lambda share: None,
    precision: Precision = "float64",
    with_hdi: bool = False,
    resamples: int = 0,
) -> Sampler:
    """Return what makes a simulation, in float32 only where that agrees; for use inside ``jax.enable_x64(True)``."""
    made = functools.partial(
        Sampler, problem, design, with_sensitivity, progress, with_hdi=with_hdi, resamples=resamples
    )
    exact = made()
    if precision == "float64":
        return exact
    single = made(precision=precision)
    return single if _agree(*(each.propagate(0, 0, min(design.length, PILOT)) for each in (single, exact))) else exact


def _agree(single: np.ndarray, exact: np.ndarray) -> bool:
    """Whether draws in float32 are near enough to those in float64, both of shape (variables, n)."""
    near = np.maximum(NEAR_SPREAD * exact.std(axis=1, keepdims=True), NEAR_SIZE * np.abs(exact))
    return bool((np.abs(single - exact) <= near).all())


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
            numbers: dict[str, Any] = jax.device_put(self.numbers)
            return numbers

    def propagate(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return draws of the inputs (varying, n) and outputs (outputs, n) at points of the cube (varying, n)."""
        with jax.enable_x64(True):
            rows = np.asarray(compilation.run(kernels.propagate_points, (self.shape,), self.arrays, self.cholesky, u))
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
            wanted = (self.arrays, x_a, x_b, masks, np.asarray(rows))
            return np.asarray(compilation.run(kernels.swapped, (self.shape,), *wanted))


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
        draws: np.ndarray = self.outputs[self.names.index(name)]
        return draws


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
        run = Sampler(problem, design, False)
        own = zip(run.names, run.dimensions, strict=True)
        chosen = [(streams or {}).get(key, (key, place)) for key, place in own]
        run.streams, run.dimensions = [name for name, _ in chosen], [place for _, place in chosen]
        wanted = range(design.replicates) if replicates is None else replicates

        def rows(replicate: int) -> np.ndarray:
            chunks = chunks_of(0, design.length, CHUNK)
            return np.concatenate([run.propagate(replicate, *chunk) for chunk in chunks], axis=1)

        draws = np.concatenate(run.each_replicate(rows, wanted), axis=1)
        require_finite(draws[len(run.names) :], problem)
        return Draws(tuple(run.names), draws[: len(run.names)], draws[len(run.names) :], problem.outputs)
