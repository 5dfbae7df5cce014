"""Several scenarios on the same draws, and the Sobol' indices of the difference and the ratio of two of them."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gpustack_mc import sobol
from gpustack_mc.arrays import Floats
from gpustack_mc.coupling import Coupling, couple, identity
from gpustack_mc.design import DIMENSION_LIMIT, Design, points
from gpustack_mc.problem import Problem
from gpustack_mc.propagation import Propagation
from gpustack_mc.same_shape import SIZE, Batch

# Points of each replicate that also run pick-freeze: 16 replicates give 32,768 base samples, an error near 0.02.
ANALYSED_POINTS = 2**11
CHUNK = 2**12
# Blocks are run in multiples of this, so that their number does not ask for another compilation.
BLOCKS = 32
# Differences this far below the output itself are rounding.
ROUNDING = 1e-12

Row = tuple[int, ...]


class Paired(NamedTuple):
    """Draws of several scenarios that belong together.

    Attributes
    ----------
    problems : tuple of Problem
    design : Design
    coupling : Coupling
    varying : tuple of tuple of str
        Keys of the inputs that vary in each scenario.
    inputs : tuple of ndarray, shape (len(varying[k]), draws)
    outputs : ndarray, shape (scenarios, len(names), draws)
        Replicates one after the other.
    names : tuple of str
        Of the outputs: those that all scenarios have.
    """

    problems: tuple[Problem, ...]
    design: Design
    coupling: Coupling
    varying: tuple[tuple[str, ...], ...]
    inputs: tuple[Floats, ...]
    outputs: Floats
    names: tuple[str, ...]


class DifferenceIndices(NamedTuple):
    """Indices of differences and log ratios of the scenarios to the first.

    Attributes
    ----------
    blocks : tuple of str
    difference, log_ratio : tuple of sobol.Indices
        One per scenario but the first; arrays of shape (blocks, rows).
    samples : int
        Base sample size.
    """

    blocks: tuple[str, ...]
    difference: tuple[sobol.Indices, ...]
    log_ratio: tuple[sobol.Indices, ...]
    samples: int


class Pairing:
    """Scenarios on common streams.

    Parameters
    ----------
    problems : sequence of Problem
        The first one is what the others are compared with.
    design : Design
    choice : {"common", "independent"}
        See `gpustack_mc.coupling`.

    Raises
    ------
    InputError
        The scenarios cannot be paired, or an output is not finite.
    """

    def __init__(self, problems: Sequence[Problem], design: Design, choice: Any = "common"):
        self.problems, self.design = tuple(problems), design
        self.names = shared_outputs(problems)
        self.coupling = couple(problems, choice)
        self.models = [Propagation(problem) for problem in problems]
        self.weights = [
            np.array([weights[key] for key in model.varying]).reshape(len(model.varying), len(self.coupling.streams))
            for weights, model in zip(self.coupling.weights, self.models, strict=True)
        ]

        # An input that is one stream takes its points to the last digit: they are those of `gpustack-mc run`.
        self.single = [np.abs(weights).max(axis=1, initial=0.0) == 1.0 for weights in self.weights]
        self.largest = [np.abs(w).argmax(axis=1) if len(w) else np.zeros(0, dtype=int) for w in self.weights]

    def streams(self, replicate: int, start: int, stop: int, block: Any = 0) -> Floats:
        """Return points of all streams, shape (streams, stop - start)."""
        streams = self.coupling.streams
        result = np.empty((len(streams), stop - start))
        for own, design in ((True, self.design), (False, self.design._replace(method="lhs"))):
            rows = [i for i, stream in enumerate(streams) if (stream.dimension is not None) == own]
            # Latin hypercubes are told apart by their names; their numbers only have to differ.
            for some in range(0, len(streams), DIMENSION_LIMIT):
                part = [i for i in rows if some <= i < some + DIMENSION_LIMIT]
                names = [streams[i].name for i in part]
                numbers = [i % DIMENSION_LIMIT if (n := streams[i].dimension) is None else n for i in part]
                if part:
                    result[part] = points(design, names, numbers, replicate, start, stop, block)
        return result

    def cube(self, scenario: int, u: Floats) -> Floats:
        """Map streams to the points of one scenario, shape (varying, n)."""
        weights, alone = self.weights[scenario], self.single[scenario]
        result = u[self.largest[scenario]] if len(weights) else np.zeros((0, u.shape[1]))
        if not alone.all():
            from scipy.special import ndtr, ndtri

            used = (weights[~alone] != 0).any(axis=0)
            result[~alone] = ndtr(weights[~alone][:, used] @ ndtri(u[used]))
        return result

    def _each(self, task: Callable[[int], Any], numbers: Iterable[int]) -> list[Any]:
        """Run a task for every number on all cores, results in order."""
        with ThreadPoolExecutor(os.cpu_count()) as executor:
            return list(executor.map(task, numbers))

    def _each_replicate(self, task: Callable[[int], Any]) -> list[Any]:
        return self._each(task, range(self.design.replicates))

    def draws(self) -> Paired:
        """Propagate every scenario."""
        u = self.streams(0, 0, min(CHUNK, self.design.length))
        # Each scenario compiles once, before the replicates would all ask for it at the same time.
        self._each(lambda k: self.models[k].propagate(self.cube(k, u)), self._one_of_each_shape())
        found = self._each_replicate(self._replicate)
        count = len(self.problems)
        inputs = tuple(np.concatenate([part[k][0] for part in found], axis=1) for k in range(count))
        # Outputs that only some scenarios have come after those of all.
        shared = slice(len(self.names))
        outputs = np.stack([np.concatenate([part[k][1][shared] for part in found], axis=1) for k in range(count)])
        varying = tuple(model.varying for model in self.models)
        return Paired(self.problems, self.design, self.coupling, varying, inputs, outputs, self.names)

    def _replicate(self, replicate: int) -> list[tuple[Floats, Floats]]:
        parts: list[list[tuple[Floats, Floats]]] = [[] for _ in self.problems]
        for start in range(0, self.design.length, CHUNK):
            u = self.streams(replicate, start, min(start + CHUNK, self.design.length))
            for k, model in enumerate(self.models):
                parts[k].append(model.propagate(self.cube(k, u)))
        sides = ((np.concatenate(side, axis=1) for side in zip(*part, strict=True)) for part in parts)
        return [(inputs, outputs) for inputs, outputs in sides]

    def outputs(self, names: Sequence[str]) -> Floats:
        """Propagate every scenario and keep some outputs only, shape (scenarios, len(names), draws)."""
        wanted = [self.names.index(name) for name in names]
        length = self.design.length
        found = np.empty((len(self.models), len(names), self.design.samples))
        groups = list(self._groups())

        def chunk(number: int, start: int, only: Sequence[int] = range(len(groups))) -> None:
            stop = min(start + CHUNK, length)
            u = self.streams(number, start, stop)
            place = slice(number * length + start, number * length + stop)
            for members, batch in (groups[i] for i in only):
                if batch is None:
                    found[members[0], :, place] = self.models[members[0]].propagate(self.cube(members[0], u))[1][wanted]
                    continue
                own = np.stack([self._points(k, u, list(batch.own)) for k in members])
                found[members, :, place] = batch.outputs(self.cube(members[0], u), own, wanted)

        # Each shape compiles once, before the replicates would all ask for it at the same time.
        chunk(0, 0, list({self.models[members[0]].shape: i for i, (members, _) in enumerate(groups)}.values()))

        def replicate(number: int) -> None:
            for start in range(0, length, CHUNK):
                chunk(number, start)

        self._each_replicate(replicate)
        return found

    def _points(self, scenario: int, u: Floats, rows: list[int]) -> Floats:
        """Return some rows of `cube`."""
        if self.single[scenario][rows].all():
            return u[self.largest[scenario][rows]]
        return self.cube(scenario, u)[rows]

    def _groups(self) -> Iterator[tuple[list[int], Batch | None]]:
        """Yield scenarios that run in one call; without a `Batch` where one has to run alone."""
        members: dict[Any, list[int]] = {}
        for k, model in enumerate(self.models):
            members.setdefault(model.shape, []).append(k)
        for group in members.values():
            own = [i for i in range(len(self.models[group[0]].varying)) if self._is_own(group, i)]
            tied = [self.problems[k].correlation for k in group]
            alike = all(np.array_equal(other, tied[0]) for other in tied)
            if not alike or not Batch.fits(self.models[group[0]], own):
                yield from (([k], None) for k in group)
                continue
            for some in (group[i : i + SIZE] for i in range(0, len(group), SIZE)):
                yield some, Batch([self.models[k] for k in some], own)

    def _is_own(self, group: Sequence[int], i: int) -> bool:
        """Whether an input of scenarios of one shape is not one number in all of them."""
        key = self.models[group[0]].varying[i]
        if any(not np.array_equal(self.weights[k][i], self.weights[group[0]][i]) for k in group):
            return True
        return len({identity(self.problems[k].inputs[key]) for k in group}) > 1

    def _one_of_each_shape(self) -> list[int]:
        """Return a scenario for every program that is compiled."""
        return list({model.shape: k for k, model in enumerate(self.models)}.values())

    # ---- sensitivity of differences ----

    def indices(self, rows: Sequence[Row]) -> DifferenceIndices | None:
        """Compute the indices of the differences to the first scenario, by pick-freeze on the streams.

        Parameters
        ----------
        rows : sequence of tuple of int
            For each row: which output of each scenario it compares, as places in `names`.

        Returns
        -------
        DifferenceIndices or None
            None when nothing varies.
        """
        if not self.coupling.blocks:
            return None
        length = min(self.design.length, ANALYSED_POINTS)
        pilot = self._sums(rows, None, 0)
        sums = self._each_replicate(partial(self._sums, rows, pilot))
        pairs = len(self.problems) - 1
        found: list[list[sobol.Indices]] = [[], []]
        for k in range(pairs):
            for kind in (0, 1):
                base, swap = (sobol.stack_sums(part) for part in zip(*(s[k][kind] for s in sums), strict=True))
                floor = (ROUNDING * (1.0 if kind else pilot[k].size)) ** 2
                found[kind].append(sobol.indices(base, swap, floor=floor))
        blocks = tuple(self.coupling.blocks)
        return DifferenceIndices(blocks, tuple(found[0]), tuple(found[1]), length * self.design.replicates)

    def _sums(self, rows: Sequence[Row], pilot: "list[_Pilot] | None", replicate: int) -> list[Any]:
        """Return for each pair the pick-freeze sums of difference and log ratio; without `pilot`, the `_Pilot`."""
        # As many points as `draws` takes at a time, so that nothing is compiled for another number of points.
        u_a, u_b = (self.streams(replicate, 0, min(CHUNK, self.design.length), block) for block in (0, 1))
        runs = [self._runs(k, u_a, u_b, rows) for k in range(len(self.problems))]
        found: list[Any] = []
        for k in range(1, len(self.problems)):
            kinds = [[compare(*y) for y in zip(runs[0], runs[k], strict=True)] for compare in (_difference, _log_ratio)]
            if pilot is None:
                difference, log_ratio = (sobol.pilot_centre(y[0]) for y in kinds)
                found.append(_Pilot(difference, log_ratio, np.abs(runs[0][0]).mean(axis=1)))
                continue
            found.append([
                (sobol.variance_sums(y_a, y_b, centre), sobol.swap_sums(y_a, y_b, y_ab, centre))
                for (y_a, y_b, y_ab), centre in zip(kinds, pilot[k - 1][:2], strict=True)
            ])  # fmt: skip
        return found

    def _runs(self, scenario: int, u_a: Floats, u_b: Floats, rows: Sequence[Row]) -> list[Floats]:
        """Return the rows' outputs on A, on B, each (rows, n), and on A with each block from B, (blocks, rows, n)."""
        model, weights = self.models[scenario], self.weights[scenario]
        wanted = [row[scenario] for row in rows]
        (x_a, y_a), (x_b, y_b) = (
            tuple(part[:, :ANALYSED_POINTS] for part in model.propagate(self.cube(scenario, u))) for u in (u_a, u_b)
        )
        masks = np.zeros((-(-len(self.coupling.blocks) // BLOCKS) * BLOCKS, len(model.varying)), dtype=bool)
        for mask, numbers in zip(masks, self.coupling.blocks.values(), strict=False):
            mask[:] = (weights[:, numbers] != 0).any(axis=1)
        swapped = model.swapped(x_a, x_b, masks, wanted)[: len(self.coupling.blocks)]
        return [y_a[wanted], y_b[wanted], swapped]


class _Pilot(NamedTuple):
    """Centres of the sums, and the size of the outputs themselves, each of shape (rows,)."""

    difference: Floats
    log_ratio: Floats
    size: Floats


def _difference(first: Floats, other: Floats) -> Floats:
    return other - first


def _log_ratio(first: Floats, other: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(other / first)


def shared_outputs(problems: Sequence[Problem]) -> tuple[str, ...]:
    """Return the outputs that all scenarios have; they come first in each, in the same order."""
    return tuple(name for name in problems[0].outputs if all(name in problem.outputs for problem in problems))
