"""What `gpustack-mc solve` can turn: a quantity of a scenario, and the scenario with another value of it."""

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

import numpy as np

from gpustack_mc import formatting
from gpustack_mc.errors import InputError, Place, did_you_mean
from gpustack_mc.facts import medians
from gpustack_mc.priors import Marginal
from gpustack_mc.problem import Input, Problem
from gpustack_mc.quantities import BY_NAME, INPUTS, Quantity
from gpustack_mc.resale import at_end_of_life
from gpustack_mc.scenario import resolve
from gpustack_mc.yamlfile import Document

# How far from the scenario's own value is looked at.
REACH = 1000.0
SHARE_END = 1e-3
WORKLOAD = {"params": "params", "tokens": "tokens", "count": "accelerator_count"}
SERVED = "served_tokens"
_ALIASES = {"accelerator_count": "count", "accelerators": "count", "price": "rental_price", "utilization": "mfu"}


class Knob(NamedTuple):
    """One quantity that a scenario is solved for.

    Attributes
    ----------
    name : str
    quantity : Quantity
    scale : {"log", "logit", "linear"}
        On which the answer is looked for.
    low, high : float
        Ends of what is looked at.
    base : float
        The scenario's own value; of an uncertain quantity its median.
    whole : bool
        Whether only whole numbers make sense.
    at : callable
        From a value to the scenario with this value, everything that depends on it resolved anew.
    notes : tuple of str
        What the user should know.
    """

    name: str
    quantity: Quantity
    scale: Literal["log", "logit", "linear"]
    low: float
    high: float
    base: float
    whole: bool
    at: Callable[[float], Problem]
    notes: tuple[str, ...] = ()

    def to_scale(self, value: float) -> float:
        """Map a value to the scale of the search."""
        if self.scale == "logit":
            return float(np.log(value / (1 - value))) if value < 1 else float("inf")
        return float(np.log(value)) if self.scale == "log" else float(value)

    def from_scale(self, place: float) -> float:
        """Map a place on the scale of the search back to a value."""
        if self.scale == "logit":
            return float(1 / (1 + np.exp(-place)))
        return float(np.exp(place)) if self.scale == "log" else float(place)

    def text(self, value: float, digits: int = 3) -> str:
        """Write a value as people say it."""
        if self.whole:
            return f"{value:,.0f}"
        if self.quantity.name in ("params", "tokens"):
            return formatting.count(value)
        return formatting.with_unit(value, self.quantity.unit, digits)


def known() -> tuple[str, ...]:
    """Names that can be solved for."""
    return (*WORKLOAD, *INPUTS, SERVED)


def named(word: str) -> str:
    """Return the name meant by a word.

    Raises
    ------
    InputError
        There is none.
    """
    name = word.strip().replace("-", "_").casefold()
    name = _ALIASES.get(name, name)
    if name not in known():
        message = f"{word[:60]!r} cannot be solved for."
        raise InputError("unknown-variable", message, did_you_mean(name, known()), Place("--for"))
    return name


def knob(
    name: str,
    document: Document,
    overrides: Iterable[str],
    tokens_per_param: float | None = None,
    between: tuple[float, float] | None = None,
) -> Knob:
    """Return what turns one quantity of a scenario.

    Parameters
    ----------
    name : str
        From `named`.
    document, overrides
        The scenario.
    tokens_per_param : float, optional
        Tokens follow the parameters at this ratio; for ``params`` only.
    between : (float, float), optional
        What is looked at, instead of a thousandth to a thousand times the scenario's own value.

    Raises
    ------
    InputError
        The scenario is wrong, or nothing lies between the ends.
    """
    base = resolve(document, overrides)
    if tokens_per_param is not None and not tokens_per_param > 0:
        raise InputError("bad-value", f"{tokens_per_param:g} is not above 0.", "", Place("--tokens-per-param"))
    if tokens_per_param is not None and name != "params":
        fix = "It says how tokens follow params: add --for params."
        raise InputError("bad-option", f"it does not go with --for {name}.", fix, Place("--tokens-per-param"))
    if name == "count" and base.sites is not None:
        fix = "Change the counts of the sites, and compare scenarios."
        raise InputError("bad-option", "the count is that of the sites, which the scenario states.", fix,
                         base.place(("distributed", "sites")))  # fmt: skip
    if name in WORKLOAD:
        made = _workload(name, base, document, tuple(overrides), tokens_per_param)
    else:
        made = _input(name, base)
    if between is None:
        return made
    low, high = (min(max(end, made.quantity.low), made.quantity.high) for end in between)
    if made.whole:
        low, high = float(np.ceil(low)), float(np.floor(high))
    if not low < high or (made.scale == "log" and low <= 0):
        message = f"nothing lies between {between[0]:g} and {between[1]:g}."
        raise InputError("bad-range", message, made.quantity.reason.capitalize() + ".", Place("--between"))
    return made._replace(low=low, high=high)


def _workload(
    name: str, base: Problem, document: Document, overrides: tuple[str, ...], tokens_per_param: float | None
) -> Knob:
    quantity = BY_NAME[WORKLOAD[name]]
    middle = medians(base.inputs)
    value = middle[quantity.name]
    if base.file.workload.phases is not None and tokens_per_param is not None:
        fix = "Solve for params without it."
        raise InputError("bad-option", "the scenario states tokens by phase.", fix, Place("--tokens-per-param"))

    def changes(x: float) -> list[str]:
        if name == "count":
            return [f"cluster.count={round(x)}"]
        if name == "params":
            found = [f"workload.params={x!r}"]
            if "active_params" in middle:
                found.append(f"workload.active_params={x * middle['active_params'] / value!r}")
            if tokens_per_param is not None:
                found.append(f"workload.tokens={x * tokens_per_param!r}")
            return found
        if base.file.workload.phases is None:
            return [f"workload.tokens={x!r}"]
        return [
            f"workload.phases.{i}.tokens={middle[f'tokens@{phase.name}'] * x / value!r}"
            for i, phase in enumerate(base.file.workload.phases)
        ]

    def at(x: float) -> Problem:
        return resolve(document, (*overrides, *changes(float(x))))

    low, high = max(value / REACH, quantity.low), min(value * REACH, quantity.high)
    if name == "count":
        low, high = float(np.ceil(low)), float(np.floor(high))
    notes = tuple(_workload_notes(name, base, tokens_per_param))
    return Knob(name, quantity, "log", low, high, value, name == "count", at, notes)


def _workload_notes(name: str, base: Problem, tokens_per_param: float | None) -> Iterator[str]:
    """Yield what stays as it is while a size changes."""
    if name == "tokens" and base.file.workload.phases is not None:
        yield "the phases keep their shares of the tokens"
    if name == "count" and any(key.startswith("accelerator_count@") for key in base.inputs):
        yield "phases with a count of their own keep it"
    if name != "params":
        return
    if "active_params" in base.inputs:
        yield "the share of active parameters stays as it is"
    if tokens_per_param is not None:
        yield f"tokens follow at {tokens_per_param:g} per parameter, also at the scenario's own size"
    elif base.file.workload.tokens is not None:
        yield "tokens stay as stated; --tokens-per-param 20 lets them follow"
    if base.inputs["context_flop_factor"].marginal.parameters.get("value", 1.0) != 1.0:
        yield "layers and width stay as stated in the share of attention"


def _input(name: str, base: Problem) -> Knob:
    quantity = BY_NAME[name]
    value = medians(base.inputs)[name]
    notes = []
    if name in base.correlated:
        notes.append(f"{name} is set here, so what was said of its correlations does not count")

    def at(x: float) -> Problem:
        item = base.inputs[name]
        stated = Input(item.key, quantity, Marginal("fixed", {"value": float(x)}), "entered", "set by solve")
        changed = {name: stated}
        if name == "lifetime" and "residual_share" not in base.file.inputs.model_fields_set:
            changed["residual_share"] = at_end_of_life(base.inputs["residual_share"], stated)
        problem = base._replace(inputs=base.inputs | changed)
        if name not in base.correlated:
            return problem
        keep = [i for i, key in enumerate(base.correlated) if key != name]
        correlated = tuple(base.correlated[i] for i in keep) if len(keep) > 1 else ()
        correlation = base.correlation[np.ix_(keep, keep)] if len(keep) > 1 else np.zeros((0, 0))
        return problem._replace(correlated=correlated, correlation=correlation)

    if quantity.scale == "logit":
        return Knob(name, quantity, "logit", SHARE_END, 1 - SHARE_END, value, False, at, tuple(notes))
    if quantity.scale == "log_above_one" or value <= 0:
        return Knob(name, quantity, "linear", quantity.low, quantity.high, value, False, at, tuple(notes))
    low, high = max(value / REACH, quantity.low), min(value * REACH, quantity.high)
    return Knob(name, quantity, "log", low, high, value, False, at, tuple(notes))
