r"""For which value of a quantity does a condition hold with a stated probability? Solved on common random numbers.

Every trial value is propagated with the same points of the unit cube, so that the share of draws that keep the
condition is a function of the value without noise, and its root is exact. The condition holds with probability
:math:`p` where the :math:`\lceil pN \rceil`-th smallest of the `N` margins is at most 0; this order statistic is
continuous in the value, nearly a power law, and its roots are found by Brent's method. Nothing is assumed monotone: a
scan of the whole range on one replicate finds where the answer changes, and every change is then solved on all draws.
"""

import csv
import functools
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from gpustack_mc import catalog, conditions
from gpustack_mc.design import Design
from gpustack_mc.errors import GpustackError, InputError, Place
from gpustack_mc.knobs import Knob
from gpustack_mc.lease import Drift, share_of_draws
from gpustack_mc.problem import Problem
from gpustack_mc.propagation import Draws, propagate
from gpustack_mc.sobol import replicate_error, replicate_interval
from gpustack_mc.targets import FEWEST_BEYOND, Target

SCAN = 13
TOLERANCE = 1e-4
CHANCES = (0.05, 0.25, 0.5, 0.75, 0.95)
# Common random numbers: what falls by more than this on the way up is no noise.
_MONOTONE = 1e-3
_INDEPENDENT = 1e-9
# An output with a smaller elasticity is not steered by the quantity.
_HARDLY = 0.1
_PICTURE = (0.005, 0.02, 0.1, 0.15, 0.35, 0.65, 0.85, 0.98, 0.995)
# A logarithm of a ratio: interpolation over this distance errs by less than a thousandth.
_NEAR = 0.01


class Solution(NamedTuple):
    """One end of the range in which the condition holds.

    Attributes
    ----------
    value : float
    side : {"at least", "at most"}
        On which side of the value the condition holds.
    interval : (float, float)
        90% Monte Carlo interval of the value, from the replicates.
    probability, error : float
        At the value, with its Monte Carlo standard error.
    """

    value: float
    side: Literal["at least", "at most"]
    interval: tuple[float, float]
    probability: float
    error: float


class Solved(NamedTuple):
    """What was found.

    Attributes
    ----------
    solutions : tuple of Solution
        In rising order; none when every value keeps the condition.
    base : (float, float)
        Chance at the scenario's own value and its Monte Carlo standard error.
    chances : dict of float to (float or None)
        Value at which the chance is so; None beyond the range. Empty when the chance does not only rise or only fall:
        where it does, this is also the distribution of the break-even value of single draws.
    curve : list of (float, float, float)
        Value, chance and its Monte Carlo standard error, in rising order.
    draws : Draws
        At the first solution.
    problem : Problem
        At the first solution.
    notes : tuple of str
    """

    solutions: tuple[Solution, ...]
    base: tuple[float, float]
    chances: dict[float, float | None]
    curve: list[tuple[float, float, float]]
    draws: Draws
    problem: Problem
    notes: tuple[str, ...]


class UnreachableError(GpustackError):
    """No value keeps the condition; the message says why."""

    exit_code = 2


def solve(
    knob: Knob,
    condition: Target,
    design: Design,
    *,
    chances: Sequence[float] = CHANCES,
    tolerance: float = TOLERANCE,
    for_picture: bool = False,
    price_drift: Drift | None = None,
) -> Solved:
    """Find where a condition holds.

    Parameters
    ----------
    knob : Knob
        From `gpustack_mc.knobs.knob`.
    condition : Target
    design : Design
        From `gpustack_mc.design.make_design`.
    chances : sequence of float
        Probabilities to solve for besides.
    tolerance : float
        Relative; whole numbers are exact.
    for_picture : bool
        Whether the curve shall be fine enough to be drawn.
    price_drift : Drift, optional
        Yearly change of the rental price; the rented cost is then that of the levelised price of `gpustack_mc.lease`.

    Raises
    ------
    UnreachableError
        No value keeps the condition.
    InputError
        The scenario is wrong, or the sample too small for the probability.
    """
    p = condition.probability
    if min(p, 1 - p) * design.samples < FEWEST_BEYOND:
        needed = int(np.ceil(FEWEST_BEYOND / min(p, 1 - p)))
        message = f"a probability of {p:g} needs at least {needed:,} samples."
        raise InputError("bad-samples", message, f"Add --samples {needed}.", Place("--samples"))
    search = _Search(knob, condition, design, tolerance, price_drift)
    roots = search.roots(p)
    if not roots and search.sign(search.scanned[0], p) > 0:
        raise UnreachableError("unreachable", _why(search, p), "Relax the limit or the probability.")
    solutions = tuple(search.solution(value, side, p) for value, side in roots)
    at = solutions[0].value if solutions else knob.base
    problem = knob.at(at)
    base = search.chance(knob.base)
    found = search.chances(chances) if search.monotone() else {}
    if found and for_picture:
        search.chances(_PICTURE)
    return Solved(
        solutions, base, found, search.curve(), propagate(problem, design), problem,
        (*knob.notes, *search.notes, *_beyond_data(knob, problem, at)),
    )  # fmt: skip


class _Search:
    """Margins of trial values, kept, and the roots of their order statistics."""

    def __init__(
        self, knob: Knob, condition: Target, design: Design, tolerance: float, price_drift: Drift | None = None
    ):
        self.knob, self.condition, self.design, self.tolerance = knob, condition, design, tolerance
        self.price_drift = price_drift
        self.notes: list[str] = []
        self._pilot: dict[float, np.ndarray] = {}
        self._full: dict[float, np.ndarray] = {}
        self.scanned = self._scan()

    def _scan(self) -> list[float]:
        knob = self.knob
        places = np.linspace(knob.to_scale(knob.low), knob.to_scale(knob.high), SCAN)
        inner = [knob.from_scale(place) for place in places[1:-1]]
        values = {knob.low, *inner, knob.high} | ({knob.base} if knob.low < knob.base < knob.high else set())
        ordered = sorted({float(round(value)) for value in values} if knob.whole else values)
        failed: list[tuple[float, InputError]] = []
        for value in ordered:
            try:
                self.pilot(value)
            except InputError as error:
                failed.append((value, error))
        if len(failed) == len(ordered):
            raise failed[0][1]
        if failed:
            first, why = failed[0]
            self.notes.append(f"{knob.text(first)} and others were left out: {why.message.rstrip('.')}")
        return sorted(self._pilot)

    def _margin(self, value: float, replicates: list[int] | None) -> np.ndarray:
        problem = self.knob.at(value)
        draws = propagate(problem, self.design, replicates)
        outputs = dict(zip(draws.names, draws.outputs, strict=True))
        if self.price_drift is not None:
            share = share_of_draws(self.price_drift, problem, draws, self.design, replicates)
            outputs["cost_rented_usd"] = outputs["cost_rented_usd"] * share
        return self.condition.margin(outputs)

    def pilot(self, value: float) -> np.ndarray:
        """Margins of the first replicate."""
        if value not in self._pilot:
            self._pilot[value] = self._margin(value, [0])
        return self._pilot[value]

    def full(self, value: float) -> np.ndarray:
        """Margins of all draws."""
        if value not in self._full:
            self._full[value] = self._margin(value, None)
        return self._full[value]

    def sign(self, value: float, p: float) -> float:
        """Order statistic of all draws: at most 0 where the condition holds with the probability."""
        return _order_statistic(self.full(value), p)

    def chance(self, value: float) -> tuple[float, float]:
        """Share of the draws that keep the condition, and its Monte Carlo standard error."""
        kept = self.full(value) <= 0
        return float(kept.mean()), float(replicate_error(kept.reshape(self.design.replicates, -1).mean(axis=1)))

    def curve(self) -> list[tuple[float, float, float]]:
        """The chance and its Monte Carlo standard error at every value that all draws were propagated for."""
        if not self.monotone():
            for value in self.scanned:
                if 0 < (self._pilot[value] <= 0).mean() < 1:
                    self.full(value)
        return [(value, *self.chance(value)) for value in sorted(self._full)]

    def monotone(self) -> bool:
        """Whether the chance only rises or only falls over the scan."""
        steps = np.diff([(self._pilot[value] <= 0).mean() for value in self.scanned])
        return bool((steps >= -_MONOTONE).all() or (steps <= _MONOTONE).all())

    def roots(self, p: float) -> list[tuple[float, Literal["at least", "at most"]]]:
        """All values at which the condition begins or ceases to hold."""
        found = []
        for low, high in self._changes(p):
            ends = self._bracket(low, high, p)
            if ends is not None:
                found.append(self._root(*ends, p))
        return found

    def _changes(self, p: float) -> list[tuple[float, float]]:
        """Neighbours of the scan between which the pilot changes its mind."""
        values = self.scanned
        held = [_order_statistic(self._pilot[value], p) <= 0 for value in values]
        if not any(held):
            values, held = self._with_best(values, held, p)
        return [(values[i], values[i + 1]) for i in range(len(values) - 1) if held[i] != held[i + 1]]

    def chances(self, wanted: Sequence[float]) -> dict[float, float | None]:
        """Value at which the chance is so, where it only rises or only falls; None beyond what is looked at.

        All draws are propagated near each of them, and the order statistic is interpolated between these values.
        """
        guesses = {c: [self._guess(*ends, c) for ends in self._changes(c)] for c in wanted}
        for values in guesses.values():
            for value in values:
                self.full(value)
        found = {c: self._interpolated(c) if values else None for c, values in guesses.items()}
        for c, place in found.items():
            nearest = min(abs(self.sign(known, c)) for known in self._full)
            if place is not None and nearest > _NEAR:
                self.full(place)
                found[c] = self._interpolated(c)
        return found

    def _interpolated(self, p: float) -> float | None:
        values = self._apart(sorted(self._full))
        signs = np.array([self.sign(value, p) for value in values])
        crossings = np.flatnonzero((signs[:-1] > 0) != (signs[1:] > 0))
        places = np.array([self.knob.to_scale(value) for value in values])
        if len(crossings):
            i = int(crossings[0])
        else:
            # All are on one side of the root, the nearest of them hardly away from it.
            i = min(int(np.abs(signs).argmin()), len(values) - 2)
        if signs[i + 1] == signs[i]:
            return None
        place = places[i] - signs[i] * (places[i + 1] - places[i]) / (signs[i + 1] - signs[i])
        nearest = min((i, i + 1), key=lambda j: abs(places[j] - place))
        # From the near value on, along the chord: a chord over a long step would cut the curve.
        slope = self._slope(places, signs, nearest)
        value = self._value(float(places[nearest] - signs[nearest] / slope))
        if self.knob.whole:
            exact = self.knob.from_scale(float(places[nearest] - signs[nearest] / slope))
            value = float(np.ceil(exact) if slope < 0 else np.floor(exact))
        return value

    def _apart(self, values: list[float]) -> list[float]:
        """Values without those so near to another that a chord between them is noise."""
        kept = values[:1]
        for value in values[1:]:
            if self.knob.to_scale(value) - self.knob.to_scale(kept[-1]) > self._width / 10:
                kept.append(value)
        return kept

    @staticmethod
    def _slope(places: np.ndarray, signs: np.ndarray, i: int) -> float:
        """Slope at one of the values, of the parabola through it and its neighbours."""
        if len(places) < 3:
            return float(np.diff(signs)[0] / np.diff(places)[0])
        return float(np.gradient(signs, places)[i])

    def _guess(self, low: float, high: float, p: float) -> float:
        """Where the pilot has its root, about, between two values of the scan."""
        ends = [self.knob.to_scale(end) for end in (low, high)]
        signs = [_order_statistic(self.pilot(end), p) for end in (low, high)]
        return self._value(ends[0] - signs[0] * (ends[1] - ends[0]) / (signs[1] - signs[0]))

    def _with_best(self, values: list[float], held: list[bool], p: float) -> tuple[list[float], list[bool]]:
        """Look for a short range that holds between the values of the scan."""
        best = int(np.argmin([_order_statistic(self._pilot[value], p) for value in values]))
        if best in (0, len(values) - 1):
            # The pilot may err at an end by its own Monte Carlo error.
            held = list(held)
            held[best] = self.sign(values[best], p) <= 0
            return values, held
        ends = [self.knob.to_scale(values[best + step]) for step in (-1, 1)]
        found = minimize_scalar(
            lambda place: _order_statistic(self.pilot(self._value(place)), p), bounds=ends, method="bounded",
            options={"xatol": (ends[1] - ends[0]) * 1e-3},
        )  # fmt: skip
        value = self._value(float(found.x))
        more = sorted({*values, value})
        return more, [each == value and self.sign(value, p) <= 0 for each in more]

    def _value(self, place: float) -> float:
        value = min(max(self.knob.from_scale(place), self.knob.low), self.knob.high)
        return float(round(value)) if self.knob.whole else value

    def _bracket(self, low: float, high: float, p: float) -> tuple[float, float] | None:
        """Two near values between which all draws, and not only the pilot, change their mind.

        They lie about where the pilot changes its own; the width grows until they do, up to the two values of the scan
        and, if the pilot erred, beyond.
        """
        rising = _order_statistic(self.pilot(low), p) > 0
        value = self._guess(low, high, p)
        width = self._width
        limits = (low, high)
        while True:
            near = self._around(value, width)
            ends = (max(near[0], limits[0]), min(near[1], limits[1]))
            signs = [self.sign(end, p) for end in ends]
            if (signs[0] > 0) == rising and (signs[1] > 0) != rising:
                return ends
            if ends == (self.knob.low, self.knob.high):
                return None
            if ends == limits:
                limits = self._wider(*limits)
            elif width == self._width and signs[0] != signs[1]:
                value = min(max(self._secant(ends, signs), low), high)
            width *= 3

    def _wider(self, low: float, high: float) -> tuple[float, float]:
        places = [self.knob.to_scale(end) for end in (low, high)]
        step = (places[1] - places[0]) / 4
        return self._value(places[0] - step), self._value(places[1] + step)

    def _secant(self, ends: tuple[float, float], signs: list[float]) -> float:
        places = [self.knob.to_scale(end) for end in ends]
        return self._value(places[0] - signs[0] * (places[1] - places[0]) / (signs[1] - signs[0]))

    @property
    def _width(self) -> float:
        return (self.knob.to_scale(self.knob.high) - self.knob.to_scale(self.knob.low)) * 1e-3

    def _root(self, low: float, high: float, p: float) -> tuple[float, Literal["at least", "at most"]]:
        side: Literal["at least", "at most"] = "at least" if self.sign(low, p) > 0 else "at most"
        first, last = (self.knob.to_scale(end) for end in (low, high))
        step = self.tolerance / 4
        if self.knob.whole:
            step = min(step, 0.25 / high)
        place = brentq(lambda t: self.sign(self._value(t), p), first, last, xtol=step, rtol=8.9e-16)
        value = self._value(float(place))
        if not self.knob.whole:
            return value, side
        # Brent's method ends on one side of the step between two whole numbers.
        near = [float(n) for n in range(int(value) - 2, int(value) + 3) if low <= n <= high]
        holds = [n for n in near if self.sign(n, p) <= 0]
        return (min(holds) if side == "at least" else max(holds)), side

    def solution(self, value: float, side: Literal["at least", "at most"], p: float) -> Solution:
        """A root with its Monte Carlo interval: every replicate has a root of its own on the same tangent."""
        knob = self.knob
        places, signs = [], []
        for end in self._around(value, self._width):
            parts = self.full(end).reshape(self.design.replicates, -1)
            places.append(knob.to_scale(end))
            signs.append(np.array([_order_statistic(part, p) for part in parts]))
        slopes = (signs[1] - signs[0]) / (places[1] - places[0])
        roots = places[0] - signs[0] / slopes
        low, high = replicate_interval(roots)
        middle = knob.to_scale(value)
        ends = [knob.from_scale(middle + float(end - roots.mean())) for end in (low, high)]
        if knob.whole:
            ends = [float(round(end)) for end in ends]
        return Solution(value, side, (ends[0], ends[1]), *self.chance(value))

    def _around(self, value: float, width: float) -> tuple[float, float]:
        """Two values about one, far enough apart for a slope and near enough for a straight line."""
        knob = self.knob
        place = knob.to_scale(value)
        low, high = (self._value(place + step * width) for step in (-1, 1))
        if knob.whole and high - low < 2:
            low, high = max(value - 1, knob.low), min(value + 1, knob.high)
        return low, high


def _order_statistic(margins: np.ndarray, p: float) -> float:
    """The margin that a share `p` of the draws does not exceed: at most 0 exactly where so many draws keep it."""
    rank = int(np.ceil(p * len(margins) - 1e-9)) - 1
    return float(np.partition(margins, rank)[rank])


def _why(search: _Search, p: float) -> str:
    """Say why no value keeps the condition."""
    knob = search.knob
    terms = " and ".join(map(conditions.spoken, search.condition.terms))
    signs = np.array([_order_statistic(search.pilot(value), p) for value in search.scanned])
    if np.ptp(signs) < _INDEPENDENT:
        outputs = " and ".join(term.output for term in search.condition.terms)
        chance = search.chance(knob.base)[0]
        verb = "do" if " and " in outputs else "does"
        return f"{outputs} {verb} not depend on {knob.name}: the chance of {terms} is {chance:.1%} whatever it is."
    best = min(search._pilot, key=lambda value: _order_statistic(search.pilot(value), p))
    chance = search.chance(best)[0]
    start = (
        f"no {knob.name} from {knob.text(search.scanned[0])} to {knob.text(search.scanned[-1])} gives "
        f"a {100 * p:.3g}% chance of {terms}: it is at most {chance:.1%}, at {knob.text(best)}"
    )
    if best not in (search.scanned[0], search.scanned[-1]):
        return f"{start}; beyond that, more of it loses more than it gains."
    low, high = search.scanned[0], search.scanned[-1]
    if len(search.condition.terms) == 1 and low > 0 and np.ptp(signs) < _HARDLY * np.log(high / low):
        output, size = search.condition.terms[0].output, np.exp(np.ptp(signs))
        return f"{start}; {output} hardly depends on {knob.name}: by a factor of {size:.2g} over this whole range."
    return f"{start}."


@functools.cache
def _largest_runs() -> dict[str, float]:
    """Largest published run of the MFU fit by each measure of size."""
    path = catalog.folder("priors") / "utilization" / "data.csv"
    with path.open(encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["kind"] == "training"]
    columns = {"count": "n_accelerators", "params": "params_active", "tokens": "tokens"}
    return {name: max(float(row[column]) for row in rows if row[column]) for name, column in columns.items()}


def _beyond_data(knob: Knob, problem: Problem, value: float) -> tuple[str, ...]:
    """Warn where the fitted MFU is asked about runs larger than any that it was fitted on."""
    # Phases have their own MFU, and goodput may follow from failures.
    inputs = problem.inputs.values()
    fitted = any(item.quantity.name in ("mfu", "goodput") and item.origin == "fitted" for item in inputs)
    largest = _largest_runs().get(knob.name)
    if not fitted or largest is None or value <= largest:
        return ()
    return (f"beyond the largest published run that MFU was fitted on ({knob.text(largest)}): extrapolated",)
