"""What a user states about a quantity (a number, an interval, a distribution) becomes a marginal, or an error."""

from collections.abc import Callable
from typing import Any

import numpy as np

from gpustack_mc import priors, schema, units
from gpustack_mc.errors import InputError, InputErrors, Place
from gpustack_mc.priors import Marginal, StatementError
from gpustack_mc.quantities import Quantity
from gpustack_mc.yamlfile import Path_

# One draw in a million outside the physical bounds is the most that a stated distribution may have.
TAIL = 1e-6
# Outside these an interval says next to nothing about the other quantiles.
MASS = (0.01, 0.999999)
# A hundred thousand wrong values need not all be told.
MOST_ERRORS = 20
_PROBABILITY = {"p05": 0.05, "p10": 0.1, "p25": 0.25, "median": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95}
_DIVISORS = ("mfu", "goodput", "lifetime", "fleet_utilization", "serving_throughput", "checkpoint_save_time")
# Stands in for a value that is wrong, so that reading can go on and tell all that is wrong.
UNKNOWN = Marginal("fixed", {"value": float("nan")})


class Statements:
    """Reads the values of one document; collects errors with their places instead of stopping at the first.

    Parameters
    ----------
    place : callable
        From a path in the document, and whether its key is meant, to a `Place`.
    """

    def __init__(self, place: Callable[..., Place]):
        self.place = place
        self.errors: list[InputError] = []
        self.rates: dict[str, float] = {}

    def fail(self, path: Path_, message: str, fix: str = "", code: str = "bad-value", key: bool = False) -> None:
        """Record what is wrong with the value at a path, and what to do."""
        if len(self.errors) >= MOST_ERRORS:
            self.stop_if_wrong()
        dotted = ".".join(str(step) for step in path)
        self.errors.append(
            InputError(code, f"{dotted}: {message}" if path else message, fix, self.place(path, key=key))
        )

    def stop_if_wrong(self) -> None:
        """Raise what was recorded, if anything was."""
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            raise InputErrors(self.errors)

    def number(self, amount: Any, quantity: Quantity, path: Path_, *, bounded: bool = True) -> float:
        """Convert an amount to the quantity's unit and check its bounds; NaN after a recorded error."""
        try:
            if isinstance(amount, str):
                value = units.to_number(amount, quantity.unit, self.rates)
            else:
                value = float(amount)
        except units.UnitProblem as problem:
            self.fail(path, str(problem), code="bad-unit")
            return float("nan")
        except OverflowError:
            value = float("inf")
        if not np.isfinite(value):
            self.fail(
                path, f"{units.shown(amount)} is not a finite number.", "State a value that is known.", "not-finite"
            )
            return float("nan")
        if bounded and not quantity.low <= value <= quantity.high:
            side, bound = ("below", quantity.low) if value < quantity.low else ("above", quantity.high)
            self.fail(path, f"{value:.6g} is {side} {bound:g}.", _sentence(quantity.reason), "out-of-bounds")
            return float("nan")
        if bounded and value == 0 and quantity.name in _DIVISORS:
            self.fail(path, "0 is not possible.", "The model divides by it.", "out-of-bounds")
            return float("nan")
        return value

    def marginal(self, value: Any, quantity: Quantity, path: Path_) -> tuple[Marginal, str]:
        """Turn a stated value into a distribution and its description."""
        before = len(self.errors)
        try:
            marginal, words = self._stated(value, quantity, path)
            if len(self.errors) > before:
                return UNKNOWN, ""
            marginal = priors.checked(marginal)
            self.check_tails(marginal, quantity, f"this {marginal.family}")
        except StatementError as problem:
            self.fail(path, str(problem))
            return UNKNOWN, ""
        return marginal, words

    def _stated(self, value: Any, quantity: Quantity, path: Path_) -> tuple[Marginal, str]:
        def read(amount: Any, *steps: str | int, bounded: bool = True) -> float:
            return self.number(amount, quantity, (*path, *steps), bounded=bounded)

        match value:
            case schema.Interval():
                return self._interval(value, quantity, path, read)
            case schema.Quantiles():
                return self._two_quantiles(value, quantity, read)
            case schema.Distribution():
                return self._named(value, quantity, read)
            case schema.Sample():
                values = [read(amount, "sample", i) for i, amount in enumerate(value.sample)]
                return Marginal("sample", {"values": values}), f"{len(values)} values"
            case schema.Choice():
                return self._choice(value, read), f"choice of {len(value.choice)}"
            case schema.FittedPrior():
                raise StatementError("fitted priors describe inputs; state a number, an interval or a distribution.")
            case _:
                return Marginal("fixed", {"value": read(value)}), value if isinstance(value, str) else ""

    def _interval(
        self, value: schema.Interval, quantity: Quantity, path: Path_, read: Callable[..., float]
    ) -> tuple[Marginal, str]:
        if not MASS[0] <= value.mass <= MASS[1]:
            found = f"{value.mass:g} is not between {MASS[0]:g} and {MASS[1]:g}."
            self.fail((*path, "mass"), found, "Write 0.9 for 90%.")
            return UNKNOWN, ""
        low, high = read(value.low, "low"), read(value.high, "high")
        tail = (1 - value.mass) / 2
        if np.isnan(low) or np.isnan(high):
            return UNKNOWN, ""
        if not low < high:
            raise StatementError(f"low ({low:g}) must be below high ({high:g}).")
        words = f"{value.mass:.0%} between {value.low} and {value.high}"
        return priors.from_quantiles(quantity, (tail, low), (1 - tail, high)), words

    def _two_quantiles(
        self, value: schema.Quantiles, quantity: Quantity, read: Callable[..., float]
    ) -> tuple[Marginal, str]:
        stated = {name: getattr(value, name) for name in value.model_fields_set}
        if len(stated) != 2:
            raise StatementError(f"state exactly two quantiles, found {len(stated)} ({', '.join(sorted(stated))}).")
        pairs = [(_PROBABILITY[name], read(amount, name)) for name, amount in stated.items()]
        words = " and ".join(f"{name} {amount}" for name, amount in stated.items())
        if any(np.isnan(pair[1]) for pair in pairs):
            return UNKNOWN, ""
        return priors.from_quantiles(quantity, *pairs), words

    def _choice(self, value: schema.Choice, read: Callable[..., float]) -> Marginal:
        values = [read(amount, "choice", i) for i, amount in enumerate(value.choice)]
        weights = list(value.weights) if value.weights is not None else [1.0] * len(values)
        if len(weights) != len(values):
            raise StatementError(f"{len(weights)} weights for {len(values)} values.")
        if not all(0 <= weight < float("inf") for weight in weights) or not sum(weights) > 0:
            raise StatementError("weights must be 0 or above, and one of them above 0.")
        return Marginal("choice", {"values": values, "weights": weights})

    def _named(
        self, value: schema.Distribution, quantity: Quantity, read: Callable[..., float]
    ) -> tuple[Marginal, str]:
        family = value.dist
        stated = {name: getattr(value, name) for name in value.model_fields_set if name != "dist"}
        wanted = set(priors.PARAMETERS[family]) | ({"median"} if family in ("lognormal", "logit_normal") else set())
        wanted -= {"shift"}
        for name in stated:
            if name not in wanted:
                raise StatementError(f"{family} has no parameter {name}; it takes {', '.join(sorted(wanted))}.")
        # An end of a support may lie on a bound, and a location of a heavy tail anywhere: the tails are checked below.
        in_unit = {"mean", "sd", "median", "low", "mode", "high", "loc", "scale"}
        p = {
            name: read(amount, name, bounded=name in ("mean", "median", "mode")) if name in in_unit else float(amount)
            for name, amount in stated.items()
        }
        if "median" in p:
            if "mu" in p:
                raise StatementError(f"state mu or median of a {family}, not both.")
            median = p.pop("median")
            if np.isnan(median):
                return UNKNOWN, ""
            if median <= 0 or (family == "logit_normal" and median >= 1):
                raise StatementError(f"median {median:g} is outside the support of a {family}.")
            p["mu"] = float(np.log(median) if family == "lognormal" else np.log(median / (1 - median)))
        words = ", ".join(f"{name} {amount}" for name, amount in stated.items())
        return Marginal(family, p), f"{family} ({words})"

    def check_tails(self, marginal: Marginal, quantity: Quantity, what: str) -> None:
        """Raise a StatementError when a distribution reaches beyond the physical bounds of its quantity."""
        if marginal.is_fixed or marginal.family in ("sample", "choice"):
            return
        low, high = priors.quantiles(marginal, [TAIL, 1 - TAIL])
        if low >= quantity.low and high <= quantity.high:
            return
        bound, end = (quantity.low, low) if low < quantity.low else (quantity.high, high)
        side = "below" if low < quantity.low else "above"
        instead = {"logit": "logit_normal", "log": "lognormal", "log_above_one": "truncated_normal"}[quantity.scale]
        raise StatementError(
            f"{what} reaches {end:.3g}, {side} {bound:g}; {quantity.reason}. "
            f"Use a distribution that stays inside, such as {{low: ..., high: ...}} or {{dist: {instead}, ...}}."
        )


def _sentence(text: str) -> str:
    """Capitalise the first letter only: ``MFU is`` stays, ``it is`` becomes ``It is``."""
    return f"{text[0].upper()}{text[1:]}."
