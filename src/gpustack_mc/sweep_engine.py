"""Runs the scenarios of a sweep, chunk by chunk: a chunk depends on the sweep and on its own number alone.

The same function runs in this process and on the workers of a cluster, so that both give the same numbers.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from gpustack_mc import conditions, sobol, sweep_model
from gpustack_mc.design import Design, points
from gpustack_mc.errors import InputError
from gpustack_mc.priors import Kernel
from gpustack_mc.problem import Problem, Term
from gpustack_mc.sampling import MOST
from gpustack_mc.sweep_inputs import Loader, completed, terms_of
from gpustack_mc.sweep_model import Cube, Plan, Points
from gpustack_mc.sweep_plans import Group, Member, plan_for
from gpustack_mc.sweep_spec import Sweep
from gpustack_mc.sweep_statistics import Summarizer
from gpustack_mc.tallies import STATISTICS

CHUNK = 256
SAMPLES = (256, 2**17)
# Sets of points that are kept: one for each group of scenarios, and each block, that is run together.
MOST_POINTS = 16
INDICES = ("S1", "S1_lower", "S1_upper", "ST", "ST_lower", "ST_upper")


class Settings(NamedTuple):
    """How a sweep is run.

    Attributes
    ----------
    design : Design
    sensitivity : bool
        Whether Sobol' indices are computed.
    draws : bool
        Whether the draws of all outputs are kept.
    """

    design: Design
    sensitivity: bool = False
    draws: bool = False


class Chunk(NamedTuple):
    """Results of consecutive scenarios; NaN for those that could not be run.

    Attributes
    ----------
    statistics : ndarray, shape (scenarios, outputs, len(STATISTICS))
    probabilities : ndarray, shape (scenarios, questions, 2)
        Each with its Monte Carlo standard error.
    indices : ndarray, shape (scenarios, outputs, inputs, len(INDICES))
        Without inputs unless asked for.
    draws : ndarray, shape (scenarios, outputs, samples)
        Without samples unless asked for.
    reasons : list of str
        Why a scenario could not be run; empty where it was.
    """

    statistics: np.ndarray
    probabilities: np.ndarray
    indices: np.ndarray
    draws: np.ndarray
    reasons: list[str]


class Layout(NamedTuple):
    """What all chunks of a sweep have in common.

    Attributes
    ----------
    outputs : tuple of str
    computed : tuple of str
        Those, and what questions read besides.
    questions : tuple of str
    inputs : tuple of str
        Of the indices; correlated inputs form one.
    plans : dict of Group to (Plan, dict of str to Kernel)
        With the distributions of the slots that all scenarios of a group share.
    """

    outputs: tuple[str, ...]
    computed: tuple[str, ...]
    questions: tuple[str, ...]
    inputs: tuple[str, ...]
    plans: Mapping[Group, tuple[Plan, Mapping[str, Kernel]]]


class _Work(NamedTuple):
    """One batch of one group: places of its scenarios in the chunk, and everything that the model takes."""

    places: list[int]
    asks: list[Mapping[str, tuple[Term, ...]]]
    plan: Plan
    group: Group
    arrays: Any


class Engine:
    """Everything that the chunks of a sweep share: what was read, and the points.

    Parameters
    ----------
    sweep : Sweep
    settings : Settings
    layout : Layout, optional
        That of an equal engine elsewhere; found by going through all scenarios when omitted.

    Raises
    ------
    InputError
        No scenario can be run.
    """

    def __init__(self, sweep: Sweep, settings: Settings, layout: Layout | None = None):
        self.sweep, self.settings = sweep, settings
        self.loader = Loader(sweep)
        self.reading, self.making = threading.Lock(), threading.RLock()
        self.first = self._first()
        self.cubes: dict[Any, Cube] = {}
        self.points: dict[Any, Points] = {}
        self.layout = layout or self._layout()
        self.loader.interned = {group: kernels for group, (_, kernels) in self.layout.plans.items()}

    def _layout(self) -> Layout:
        sweep = self.sweep
        survey = self.loader.survey()
        # Scenarios that are read in full are not in the survey, which may be empty.
        asks = terms_of(self.first) | survey.asks
        asked = {term.output for terms in asks.values() for term in terms}
        # What only a question reads comes last, so that statistics are of the outputs that were asked for.
        computed = (*sweep.outputs, *sorted(asked - set(sweep.outputs)))
        plans = survey.plans(computed)
        inputs: dict[str, None] = {}
        if self.settings.sensitivity:
            for group, (plan, _) in plans.items():
                inputs |= dict.fromkeys(_blocks(group, plan))
        return Layout(sweep.outputs, computed, tuple(asks), tuple(inputs), plans)

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return -(-self.sweep.count // CHUNK)

    def _first(self) -> Problem:
        """Return the first scenario that can be run."""
        problem = None
        for number in range(min(self.sweep.count, 1000)):
            try:
                self.loader.member(number)
                return self.loader.problem(number)
            except InputError as error:
                problem = problem or error
        raise InputError("no-scenario", f"no scenario can be run; the first: {problem.message}",  # type: ignore[union-attr]
                         problem.fix, problem.place)  # type: ignore[union-attr]  # fmt: skip

    # ---- reading ----

    def load(self, chunk: int) -> tuple[list[_Work], list[str]]:
        """Make a chunk ready; also say why scenarios of it cannot be run."""
        numbers = range(chunk * CHUNK, min((chunk + 1) * CHUNK, self.sweep.count))
        reasons = [""] * len(numbers)
        groups: dict[Group, list[tuple[int, Member]]] = {}
        for place, number in enumerate(numbers):
            try:
                member = self.loader.member(number)
            except InputError as error:
                reasons[place] = reason_of(error)
                continue
            groups.setdefault(member.group, []).append((place, member))
        size = sweep_model.batch_size(self.settings.design.samples)
        works = []
        for group, found in groups.items():
            members = [member for _, member in found]
            plan = plan_for(group, members, self.layout.plans, self.layout.computed)
            kernels = completed(members)
            for start in range(0, len(found), size):
                part = slice(start, start + size)
                places = [place for place, _ in found[part]]
                asks = [member.asks for member in members[part]]
                works.append(_Work(places, asks, plan, group, sweep_model.stacked(plan, kernels[part], size)))
        return works, reasons

    # ---- running ----

    def cube(self, plan: Plan, group: Group, block: Any = 0) -> Cube:
        """Return the points of a plan, made once."""

        def made() -> Cube:
            design = self.settings.design
            dimensions = dict(zip(group.slots, group.streams, strict=True))
            rows = [dimensions[slot] for slot in plan.varying]
            u = np.concatenate([points(design, plan.varying, rows, replicate, 0, design.length, block)
                                for replicate in range(design.replicates)], axis=1)  # fmt: skip
            places = [plan.varying.index(name) for name in group.correlated]
            matrix = np.frombuffer(group.correlation).reshape(len(places), len(places))
            return sweep_model.cube(u, places, matrix)

        return self._kept(self.cubes, (plan.varying, group.streams, group.correlated, group.correlation, block), made)

    def points_of(self, plan: Plan, group: Group, block: Any = 0) -> Points:
        """Return what scenarios of a plan draw from, made once."""
        kernels = self.layout.plans[group][1] if plan.shared else {}
        return self._kept(self.points, (plan, group, block),
                          lambda: sweep_model.points_of(plan, kernels, self.cube(plan, group, block)))  # fmt: skip

    def _kept[Made](self, known: dict[Any, Made], key: Any, make: Callable[[], Made]) -> Made:
        """Return what was made for a key; only so many are kept, because each takes megabytes."""
        with self.making:
            if key not in known:
                if len(known) >= MOST_POINTS:
                    del known[next(iter(known))]
                known[key] = make()
            return known[key]

    def run(self, work: _Work, results: Chunk) -> None:
        """Run one batch and put its results in their places."""
        design, plan = self.settings.design, work.plan
        found = sweep_model.propagate(plan, work.arrays, self.points_of(plan, work.group))
        rows = [plan.outputs.index(name) for name in self.layout.outputs if name in plan.outputs]
        having = [i for i, name in enumerate(self.layout.outputs) if name in plan.outputs]
        summarizer = Summarizer(design.samples, design.replicates)
        # Of all scenarios of the batch at once: one of them alone would take a fifth longer.
        y = np.stack([part[: len(work.places)] for part in found], axis=1)
        for one, place in zip(y, work.places, strict=True):
            if not summarizer.finite(one):
                results.reasons[place] = _not_finite(plan, one)
                one[:] = 0.0
        statistics = summarizer.statistics(y.reshape(-1, design.samples)).reshape(*y.shape[:2], -1)
        indices = self.indices(work) if self.settings.sensitivity else None
        for k, (place, asks) in enumerate(zip(work.places, work.asks, strict=True)):
            if results.reasons[place]:
                continue
            results.statistics[place, having] = statistics[k][rows]
            outputs = dict(zip(plan.outputs, y[k], strict=True))
            for i, name in enumerate(self.layout.questions):
                # Other scenarios may ask what this one does not.
                if name in asks and all(term.output in outputs for term in asks[name]):
                    shares = summarizer.shares(conditions.holds_all(asks[name], outputs))
                    results.probabilities[place, i] = shares.mean(), float(sobol.replicate_error(shares))
            if self.settings.draws:
                results.draws[place, having] = y[k][rows]
            if indices is not None:
                where = [self.layout.inputs.index(name) for name in indices[0]]
                results.indices[place][np.ix_(having, where)] = indices[1][k][rows]

    def indices(self, work: _Work) -> tuple[list[str], list[np.ndarray]]:
        """Return the blocks of a batch and, for each scenario, its indices: (outputs, blocks, len(INDICES))."""
        plan, group = work.plan, work.group
        blocks = _blocks(group, plan)
        masks = np.array([[key in keys for key in plan.varying] for keys in blocks.values()])
        a, b = (self.points_of(plan, group, block) for block in (0, 1))
        sums = sweep_model.analyse(plan, work.arrays, a, b, masks, self.settings.design.replicates)
        found = []
        for k in range(len(work.places)):
            base = sobol.VarianceSums(*(np.asarray(part)[k] for part in sums.base))
            swap = sobol.SwapSums(*(np.moveaxis(np.asarray(part)[k], 0, 1) for part in sums.swap))
            floor = (4 * np.finfo(float).eps * sums.centre[k]) ** 2
            one = sobol.indices(base, swap, floor=floor)
            parts = (one.first, one.first_low, one.first_high, one.total, one.total_low, one.total_high)
            found.append(np.stack([part.T for part in parts], axis=-1))
        return list(blocks), found

    def empty(self, chunk: int) -> Chunk:
        """Return results of a chunk in which nothing was run."""
        return self.blank(min((chunk + 1) * CHUNK, self.sweep.count) - chunk * CHUNK)

    def blank(self, count: int) -> Chunk:
        """Return results of scenarios none of which was run."""
        outputs, layout = len(self.layout.outputs), self.layout
        samples = self.settings.design.samples if self.settings.draws else 0
        return Chunk(
            np.full((count, outputs, len(STATISTICS)), np.nan),
            np.full((count, len(layout.questions), 2), np.nan),
            np.full((count, outputs, len(layout.inputs), len(INDICES)), np.nan),
            np.full((count, outputs, samples), np.nan),
            [""] * count,
        )

    def run_chunk(self, number: int) -> Chunk:
        """Run one chunk in this thread; several threads may."""
        with self.reading:
            works, reasons = self.load(number)
            for work in works:
                self.ready(work)
        results = self.empty(number)._replace(reasons=reasons)
        for work in works:
            self.run(work, results)
        return results

    def ready(self, work: _Work) -> None:
        """Make the points of a batch, if they are not there."""
        for block in (0, 1) if self.settings.sensitivity else (0,):
            self.points_of(work.plan, work.group, block)

    def compute(self, wanted: Sequence[int]) -> Iterator[tuple[int, Chunk]]:
        """Run chunks on all cores; the next one is read while one runs."""
        with ThreadPoolExecutor(os.cpu_count()) as executor:
            waiting: list[tuple[int, Chunk, list[Future[Any]]]] = []
            try:
                for number in wanted:
                    works, reasons = self.load(number)
                    results = self.empty(number)._replace(reasons=reasons)
                    for work in works:
                        self.ready(work)
                    waiting.append((number, results, [executor.submit(self.run, work, results) for work in works]))
                    if len(waiting) > 1:
                        yield _done(waiting.pop(0))
                while waiting:
                    yield _done(waiting.pop(0))
            finally:
                executor.shutdown(cancel_futures=True)


def _done(waiting: tuple[int, Chunk, list[Future[Any]]]) -> tuple[int, Chunk]:
    number, results, futures = waiting
    for future in futures:
        future.result()
    return number, results


def reason_of(error: InputError) -> str:
    """Write what is wrong with a scenario without a place in a file, which is not where the value stands."""
    return f"{error.message} {error.fix}".split("(see `gpustack-mc check`)")[0].strip()


def _not_finite(plan: Plan, y: np.ndarray) -> str:
    bad = ~(np.abs(y) < MOST)
    worst = int(bad.sum(axis=1).argmax())
    return (f"{plan.outputs[worst]} is not finite for {bad[worst].mean():.2g} of the draws. "
            "Some input reaches 0 or is far too large; narrow it.")  # fmt: skip


def _blocks(group: Group, plan: Plan) -> dict[str, tuple[str, ...]]:
    """Return the independent inputs of a plan: those that a stated correlation connects are one."""
    together = tuple(key for key in plan.varying if key in group.correlated)
    blocks = {"+".join(together): together} if together else {}
    return blocks | {key: (key,) for key in plan.varying if key not in together}
