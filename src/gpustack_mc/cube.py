"""A model on the unit cube, as sensitivity analysis needs it: two samples A and B, and mixtures of them."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import numpy as np

from gpustack_mc.copula import Copula
from gpustack_mc.design import Design, points
from gpustack_mc.problem import Problem
from gpustack_mc.propagation import Propagation
from gpustack_mc.shapes import dimension

CHUNK = 2**12
# Mixtures are run in multiples of this, so that their number does not ask for another compilation.
MASKS = 32


class Pair(NamedTuple):
    """Two independent samples and the outputs of the model on them.

    Attributes
    ----------
    u_a, u_b : ndarray, shape (inputs, n)
        Independent points of the cube.
    x_a, x_b : ndarray, shape (inputs, n)
        Values of the inputs.
    y_a, y_b : ndarray, shape (outputs, n)
    """

    u_a: np.ndarray
    u_b: np.ndarray
    x_a: np.ndarray
    x_b: np.ndarray
    y_a: np.ndarray
    y_b: np.ndarray


class Cube(Protocol):
    """A model of inputs that are points of the unit cube."""

    @property
    def names(self) -> Sequence[str]:
        """Names of the inputs."""

    @property
    def dimensions(self) -> Sequence[int]:
        """Their dimensions of the Sobol' sequence."""

    @property
    def copula(self) -> Copula:
        """What ties them together."""

    def run(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return values of the inputs (inputs, n) and outputs (outputs, n) at independent points (inputs, n)."""

    def swapped(self, x_a: np.ndarray, x_b: np.ndarray, masks: np.ndarray) -> np.ndarray:
        """Return outputs (masks, outputs, n) of A with the inputs that a mask (masks, inputs) marks from B."""


class FunctionCube:
    """Any vectorised function of inputs, shape (inputs, n), to outputs, shape (outputs, n).

    Parameters
    ----------
    function : callable
    names : sequence of str
    copula : Copula, optional
        Independent inputs when omitted.
    quantile : callable, optional
        From correlated points of the cube to values of the inputs; the points themselves when omitted.
    """

    def __init__(
        self,
        function: Callable[[np.ndarray], np.ndarray],
        names: Sequence[str],
        copula: Copula | None = None,
        quantile: Callable[[np.ndarray], np.ndarray] | None = None,
    ):
        self.function, self.names, self.dimensions = function, list(names), range(len(names))
        self.copula = copula or Copula(len(names))
        self.quantile = quantile or (lambda u: u)

    def run(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `Cube.run`."""
        from scipy.special import ndtr

        x = self.quantile(ndtr(self.copula.to_scores(u)) if len(self.copula.correlated) else u)
        return x, self.function(x)

    def swapped(self, x_a: np.ndarray, x_b: np.ndarray, masks: np.ndarray) -> np.ndarray:
        """As `Cube.swapped`."""
        return np.stack([self.function(np.where(mask[:, None], x_b, x_a)) for mask in masks])


class ModelCube:
    """A scenario, and some of its outputs.

    Parameters
    ----------
    problem : Problem
    outputs : sequence of str
    """

    def __init__(self, problem: Problem, outputs: Sequence[str]):
        self.model = Propagation(problem)
        self.names = list(self.model.varying)
        self.dimensions = [dimension(problem.inputs[key], problem) for key in self.names]
        self.copula = Copula.of(problem, self.names)
        self.rows = [problem.outputs.index(name) for name in outputs]

    def run(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `Cube.run`."""
        x, y = self.model.propagate(u)
        return x, y[self.rows]

    def swapped(self, x_a: np.ndarray, x_b: np.ndarray, masks: np.ndarray) -> np.ndarray:
        """As `Cube.swapped`."""
        padded = np.zeros((-(-len(masks) // MASKS) * MASKS, len(self.names)), dtype=bool)
        padded[: len(masks)] = masks
        parts = [self.model.swapped(x_a, x_b, padded[i : i + MASKS], self.rows) for i in range(0, len(padded), MASKS)]
        return np.concatenate(parts)[: len(masks)]


class LogCube:
    """Outputs of another cube followed by their logarithms; those of numbers that are not positive are NaN."""

    def __init__(self, cube: Cube):
        self.cube, self.names, self.dimensions, self.copula = cube, cube.names, cube.dimensions, cube.copula

    def run(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `Cube.run`."""
        x, y = self.cube.run(u)
        return x, _with_logs(y, 0)

    def swapped(self, x_a: np.ndarray, x_b: np.ndarray, masks: np.ndarray) -> np.ndarray:
        """As `Cube.swapped`."""
        return _with_logs(self.cube.swapped(x_a, x_b, masks), 1)


def _with_logs(y: np.ndarray, axis: int) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.concatenate([y, np.where(y > 0, np.log(y), np.nan)], axis=axis)


def chunks(design: Design, most: int | None = None) -> Iterator[tuple[int, int]]:
    """Cut a replicate, or its first points, into pieces of equal memory."""
    length = min(design.length, most or design.length)
    for start in range(0, length, CHUNK):
        yield start, min(start + CHUNK, length)


def sample(cube: Cube, design: Design, replicate: int, start: int, stop: int, block: Any = 0) -> np.ndarray:
    """Independent points of the cube, shape (inputs, stop - start)."""
    return points(design, cube.names, cube.dimensions, replicate, start, stop, block)


def pair(cube: Cube, design: Design, replicate: int, start: int, stop: int) -> Pair:
    """Run the model on samples A and B."""
    u_a, u_b = (sample(cube, design, replicate, start, stop, block) for block in (0, 1))
    (x_a, y_a), (x_b, y_b) = cube.run(u_a), cube.run(u_b)
    return Pair(u_a, u_b, x_a, x_b, y_a, y_b)


def each_replicate(design: Design, task: Callable[[int], Any]) -> list[Any]:
    """Run a task for every replicate on all cores, results in order."""
    executor = ThreadPoolExecutor(os.cpu_count())
    try:
        return list(executor.map(task, range(design.replicates)))
    finally:
        executor.shutdown(cancel_futures=True)
