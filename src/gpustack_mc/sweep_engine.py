"""Runs the scenarios of a sweep, chunk by chunk: a chunk depends on the sweep and on its own number alone.

The same function runs in this process and on the workers of a cluster, so that both give the same numbers.
"""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from gpustack_mc import answering, batch, conditions, sobol
from gpustack_mc.batch import Cube, Plan
from gpustack_mc.design import Design, points
from gpustack_mc.errors import InputError
from gpustack_mc.problem import Problem, Term
from gpustack_mc.sampling import MOST
from gpustack_mc.sweep_inputs import Group, Loader, Member, completed, plan_for
from gpustack_mc.sweep_spec import Sweep
from gpustack_mc.tallies import PROBABILITIES

CHUNK = 256
SAMPLES = (256, 2**17)
STATISTICS = ("mean", "mean_error", "sd", *(f"q{p:g}" for p in PROBABILITIES),
              *(f"q{p:g}_error" for p in PROBABILITIES))  # fmt: skip
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
    questions : tuple of str
    inputs : tuple of str
        Of the indices; correlated inputs form one.
    plans : dict of Group to Plan
    """

    outputs: tuple[str, ...]
    questions: tuple[str, ...]
    inputs: tuple[str, ...]
    plans: Mapping[Group, Plan]


class _Work(NamedTuple):
    """One batch of one group: places of its scenarios in the chunk, and everything that the model takes."""

    places: list[int]
    problems: list[Problem]
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
        self.reading = threading.Lock()
        self.first = self._first()
        self.cubes: dict[Any, Cube] = {}
        questions = terms_of(self.first)
        asked = {term.output for terms in questions.values() for term in terms}
        # What only a question reads comes last, so that statistics are of the outputs that were asked for.
        self.computed = (*sweep.outputs, *sorted(asked - set(sweep.outputs)))
        self.layout = layout or self._layout(tuple(questions))

    def _layout(self, questions: tuple[str, ...]) -> Layout:
        sweep, settings = self.sweep, self.settings
        plans = self.loader.plans(self.computed)
        inputs: dict[str, None] = {}
        if settings.sensitivity:
            for group, plan in plans.items():
                inputs |= dict.fromkeys(_blocks(group, plan))
        return Layout(sweep.outputs, questions, tuple(inputs), plans)

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return -(-self.sweep.count // CHUNK)

    def _first(self) -> Problem:
        """Return the first scenario that can be run, whose questions are those of all."""
        problem = None
        for number in range(min(self.sweep.count, 1000)):
            try:
                return self.loader.member(number).problem
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
        size = batch.batch_size(self.settings.design.samples)
        works = []
        for group, found in groups.items():
            members = [member for _, member in found]
            plan = plan_for(group, members, self.layout.plans, self.computed)
            kernels = completed(members)
            for start in range(0, len(found), size):
                part = slice(start, start + size)
                places = [place for place, _ in found[part]]
                problems = [member.problem for member in members[part]]
                works.append(_Work(places, problems, plan, group, batch.stacked(plan, kernels[part], size)))
        return works, reasons

    # ---- running ----

    def cube(self, plan: Plan, group: Group, block: Any = 0) -> Cube:
        """Return the points of a plan, made once."""
        key = (plan.varying, group.streams, group.correlated, group.correlation, block)
        if key not in self.cubes:
            design = self.settings.design
            dimensions = dict(zip(group.slots, group.streams, strict=True))
            rows = [dimensions[slot] for slot in plan.varying]
            u = np.concatenate([points(design, plan.varying, rows, replicate, 0, design.length, block)
                                for replicate in range(design.replicates)], axis=1)  # fmt: skip
            places = [plan.varying.index(name) for name in group.correlated]
            matrix = np.frombuffer(group.correlation).reshape(len(places), len(places))
            self.cubes[key] = batch.cube(u, places, matrix)
        return self.cubes[key]

    def run(self, work: _Work, results: Chunk) -> None:
        """Run one batch and put its results in their places."""
        design, plan = self.settings.design, work.plan
        device = batch.propagate(plan, work.arrays, self.cube(plan, work.group))
        y = np.asarray(device)
        count = len(self.layout.outputs)
        rows = [plan.outputs.index(name) for name in self.layout.outputs if name in plan.outputs]
        having = [i for i, name in enumerate(self.layout.outputs) if name in plan.outputs]
        # What is not finite is told below, scenario by scenario.
        with np.errstate(over="ignore", invalid="ignore"):
            found = summaries(y, device, design.replicates)
        if self.settings.sensitivity:
            indices = self.indices(work)
        for k, (place, problem) in enumerate(zip(work.places, work.problems, strict=True)):
            bad = ~(np.abs(y[k]) < MOST)
            if bad.any():
                worst = int(bad.sum(axis=1).argmax())
                results.reasons[place] = (f"{plan.outputs[worst]} is not finite for {bad[worst].mean():.2g} of the "
                                          "draws. Some input reaches 0 or is far too large; narrow it.")  # fmt: skip
                continue
            results.statistics[place, having] = found[k][rows]
            outputs = dict(zip(plan.outputs, y[k], strict=True))
            answers = [conditions.holds_all(terms, outputs) for terms in terms_of(problem).values()]
            for i, holds in enumerate(answers[: len(self.layout.questions)]):
                shares = holds.reshape(design.replicates, -1).mean(axis=1)
                results.probabilities[place, i] = holds.mean(), float(sobol.replicate_error(shares))
            if self.settings.draws:
                results.draws[place, having] = y[k][rows]
            if self.settings.sensitivity:
                where = [self.layout.inputs.index(name) for name in indices[0]]
                results.indices[place][np.ix_(range(count), where)] = np.nan
                results.indices[place][np.ix_(having, where)] = indices[1][k][rows]

    def indices(self, work: _Work) -> tuple[list[str], list[np.ndarray]]:
        """Return the blocks of a batch and, for each scenario, its indices: (outputs, blocks, len(INDICES))."""
        plan, group = work.plan, work.group
        blocks = _blocks(group, plan)
        masks = np.array([[key in keys for key in plan.varying] for keys in blocks.values()])
        cubes = (self.cube(plan, group, 0), self.cube(plan, group, 1))
        sums = batch.analyse(plan, work.arrays, *cubes, masks, self.settings.design.replicates)
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
        count = min((chunk + 1) * CHUNK, self.sweep.count) - chunk * CHUNK
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
                self.cubes_of(work)
        results = self.empty(number)._replace(reasons=reasons)
        for work in works:
            self.run(work, results)
        return results

    def cubes_of(self, work: _Work) -> None:
        """Make the points of a batch, if they are not there."""
        for block in (0, 1) if self.settings.sensitivity else (0,):
            self.cube(work.plan, work.group, block)

    def compute(self, wanted: Sequence[int]) -> Iterator[tuple[int, Chunk]]:
        """Run chunks on all cores; the next one is read while one runs."""
        with ThreadPoolExecutor(os.cpu_count()) as executor:
            waiting: list[tuple[int, Chunk, list[Future[Any]]]] = []
            try:
                for number in wanted:
                    works, reasons = self.load(number)
                    results = self.empty(number)._replace(reasons=reasons)
                    for work in works:
                        self.cubes_of(work)
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


def terms_of(problem: Problem) -> dict[str, tuple[Term, ...]]:
    """Return what a scenario asks, by the name of the question, as comparisons that must all hold."""
    limits = answering.limits_as_terms(problem.questions, problem.file.ownership)
    return limits | {asked.text: asked.terms for asked in problem.asked}


def _blocks(group: Group, plan: Plan) -> dict[str, tuple[str, ...]]:
    """Return the independent inputs of a plan: those that a stated correlation connects are one."""
    together = tuple(key for key in plan.varying if key in group.correlated)
    blocks = {"+".join(together): together} if together else {}
    return blocks | {key: (key,) for key in plan.varying if key not in together}


# ---- summaries --------------------------------------------------------------------------------------------------


def summaries(y: np.ndarray, device: Any, replicates: int) -> np.ndarray:
    """Return the statistics of a batch.

    Parameters
    ----------
    y : ndarray, shape (batch, outputs, samples)
        Replicates one after the other.
    device : array
        The same numbers on the device.
    replicates : int

    Returns
    -------
    ndarray, shape (batch, outputs, len(STATISTICS))
        The Monte Carlo error of a quantile is that of the share of draws below it, from the replicates, times the slope
        of the quantile function there.
    """
    # Deviations keep the digits of constants: the variance of equal numbers must be zero.
    deviation = y - y[..., :1]
    by_replicate = deviation.reshape(*y.shape[:2], replicates, -1).mean(axis=-1)
    shift = by_replicate.mean(axis=-1)
    deviation -= shift[..., None]
    sd = np.sqrt(np.einsum("ijk,ijk->ij", deviation, deviation) / y.shape[-1])
    del deviation
    quantiles, slopes = _quantiles(y)
    shares = batch.shares_below(device, quantiles, replicates)
    doubt = sobol.replicate_error(np.moveaxis(shares, -1, 0))
    error = sobol.replicate_error(np.moveaxis(by_replicate, -1, 0))
    mean = y[..., 0] + shift
    constant = sd == 0
    parts = [mean, np.where(constant, 0.0, error), sd]
    found = np.concatenate([np.stack(parts, axis=-1), quantiles, doubt * slopes], axis=-1)
    found[constant, 3 : 3 + len(PROBABILITIES)] = mean[constant, None]
    return found


def _quantiles(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return quantiles, linear between ordered draws, and how steep they are there: (batch, outputs, quantiles).

    Only 16 bits of each draw are ordered, which takes a sixth of the time of ordering the draws: they tell which few
    draws lie around a quantile, and these are then ordered as they are.
    """
    count = y.shape[-1]
    rows = y.reshape(-1, count)
    # Single precision holds nothing above 3e38: larger numbers are put in order by their fractions of the largest.
    largest = float(np.abs(rows).max())
    factor = 2.0 ** -int(np.frexp(largest)[1]) if 1e30 < largest < np.inf else 1.0
    keys, low, shift = _keys(rows if factor == 1.0 else rows * factor)
    ordered = np.sort(keys, axis=-1, kind="stable")
    positions = np.array(PROBABILITIES) * (count - 1)
    below = np.minimum(positions.astype(int), count - 2)
    share = positions - below
    values = np.empty((len(rows), len(below)))
    firsts, lasts = ordered[:, below], ordered[:, below + 1]
    for i, row in enumerate(rows):
        starts = np.searchsorted(ordered[i], firsts[i])
        for j, (first, last) in enumerate(zip(firsts[i], lasts[i], strict=True)):
            near = np.sort(row[(keys[i] >= first) & (keys[i] <= last)])
            pair = near[below[j] - starts[j] : below[j] - starts[j] + 2]
            values[i, j] = pair[0] + share[j] * (pair[1] - pair[0])
    # A window of about three standard errors of the share on both sides.
    reach = max(int(1.5 * np.sqrt(count)), 1)
    ends = [np.clip(below + step, 0, count - 1) for step in (-reach, reach)]
    start, stop = (_from_keys(ordered[:, end], low, shift) for end in ends)
    slopes = (stop - start) / factor * count / (ends[1] - ends[0])
    return values.reshape(*y.shape[:2], -1), slopes.reshape(*y.shape[:2], -1)


_SIGN = np.uint32(2**31)


def _keys(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return 16-bit numbers in the order of the draws of each row, and the offset and step that they count in."""
    # What single precision cannot hold shares a key with its neighbours, which are ordered as they are.
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        bits = rows.astype(np.float32).view(np.uint32)
    # The bits of a float are in its order, once those of negative ones are turned over.
    bits ^= np.where(bits >= _SIGN, np.uint32(2**32 - 1), _SIGN) if (rows < 0).any() else _SIGN
    low, high = bits.min(axis=1), bits.max(axis=1)
    shift = np.array([max(int(span).bit_length() - 16, 0) for span in high - low], dtype=np.uint32)
    bits -= low[:, None]
    bits >>= shift[:, None]
    return bits.astype(np.uint16), low, shift


def _from_keys(keys: np.ndarray, low: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Return the draws that keys stand for, to within a step."""
    bits = (keys.astype(np.uint32) << shift[:, None]) + low[:, None]
    bits = np.where(bits >= _SIGN, bits ^ _SIGN, ~bits)
    draws: np.ndarray = bits.view(np.float32).astype(float)
    return draws
