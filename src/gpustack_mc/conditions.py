"""Conditions on outputs, as people write them: ``budget and deadline``, ``programme_cost_owned_usd <= 40 MUSD``.

The grammar, which a few regular expressions read (nothing is evaluated as code):

.. code-block:: text

    condition = term { "and" term }
    term      = limit | output op amount            limit: a question of the scenario, such as budget
    gate      = "P(" condition ")" op probability   of --fail-if
              | quantile "(" output ")" op amount   quantile: median or p05 ... p95
    op        = "<" | "<=" | ">" | ">="
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpustack_mc import units
from gpustack_mc.errors import InputError, Place, did_you_mean, option_place
from gpustack_mc.problem import QUESTIONS, Condition, Term
from gpustack_mc.quantities import BY_NAME, OUTPUTS, Quantity

OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_QUANTILES = {"median": 0.5, "p05": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95}
_TERM = re.compile(r"^\s*([A-Za-z]\w*)\s*(?:(<=|>=|<|>)\s*(.*?))?\s*$")
_PROBABILITY = re.compile(r"^\s*P\s*\((.*)\)\s*(<=|>=|<|>)\s*(.+?)\s*$", re.IGNORECASE)
_QUANTILE = re.compile(r"^\s*([A-Za-z]\w*)\s*\(\s*([A-Za-z]\w*)\s*\)\s*(<=|>=|<|>)\s*(.+?)\s*$")
_PLAIN = re.compile(r"^[-+\d._eE]+$")
_LONGEST = 500


class Gate(NamedTuple):
    """What ``--fail-if`` asks: a probability or a quantile, and the values at which the command fails.

    Attributes
    ----------
    text : str
        As the user wrote it.
    condition : Condition or None
        The gate is on its probability.
    output : str
        Without a condition: the output whose quantile the gate is on.
    quantile : float
        Its probability.
    op : str
        One of `OPERATORS`.
    limit : float
        A probability, or an amount in the output's unit.
    """

    text: str
    condition: Condition | None
    output: str
    quantile: float
    op: str
    limit: float


def parse_condition(
    text: str,
    limits: Mapping[str, float],
    ownership: str,
    rates: Mapping[str, float],
    place: Place | None = None,
) -> Condition:
    """Read a condition.

    Parameters
    ----------
    text : str
    limits : mapping of str to float
        Questions of the scenario, in the unit of their output.
    ownership : {"own", "rent", "either"}
        Which cost a budget is held against.
    rates : mapping of str to float
        USD per unit of other currencies.
    place : Place, optional
        Where the condition stands, for errors.

    Raises
    ------
    InputError
        It is not a condition on outputs of the scenario.
    """
    if len(text) > _LONGEST:
        raise InputError("bad-question", "this condition is too long.", "Ask several.", place)
    parts = re.split(r"\s+and\s+", text.strip(), flags=re.IGNORECASE)
    terms = tuple(_term(part, limits, ownership, rates, place) for part in parts)
    return Condition(" and ".join(" ".join(part.split()) for part in parts), terms)


def _term(text: str, limits: Mapping[str, float], ownership: str, rates: Mapping[str, float], place) -> Term:
    found = _TERM.match(text)
    if not found:
        fix = "Write a question of the scenario, such as budget, or an output with a limit: cost_owned_usd <= 15 MUSD."
        raise InputError("bad-question", f"{units.shown(text.strip())} is not a condition.", fix, place)
    name, op, amount = found.groups()
    if op is None:
        return _limit(name, limits, ownership, place)
    if name not in OUTPUTS:
        raise InputError(
            "unknown-output",
            f"the scenario has no output {units.shown(name)}.",
            f"{did_you_mean(name, OUTPUTS)} `gpustack-mc quantities` lists all.",
            place,
        )
    return Term(name, op, amount_in(amount, BY_NAME[name], rates, place))


def _limit(name: str, limits: Mapping[str, float], ownership: str, place) -> Term:
    """Return the condition that a question of the scenario is kept."""
    if name in OUTPUTS:
        unit = "" if BY_NAME[name].unit == "1" else f" {BY_NAME[name].unit}"
        raise InputError("bad-question", f"{name} has no limit.", f"Write {name} <= 1{unit}, with your limit.", place)
    base, _, kind = name.partition("_") if name.startswith("budget_") else (name, "", "")
    if base not in QUESTIONS or kind not in ("", "owned", "rented"):
        known = (*limits, *OUTPUTS)
        raise InputError("unknown-output", f"there is no {units.shown(name)} to ask about.",
                         did_you_mean(name, known), place)  # fmt: skip
    if base not in limits:
        unit = QUESTIONS[base][1]
        flag = "--" + base.replace("_", "-")
        fix = f"State questions.{base}, or {flag} with a value in {unit}."
        raise InputError("unknown-question", f"the scenario states no {base}.", fix, place)
    if base != "budget":
        return Term(QUESTIONS[base][0], "<=", limits[base], base)
    if not kind and ownership == "either":
        fix = "Write budget_owned or budget_rented, or state `ownership: own` or `rent`."
        raise InputError("bad-question", "the budget is of the owned or of the rented cost.", fix, place)
    kind = kind or {"own": "owned", "rent": "rented"}[ownership]
    return Term(f"cost_{kind}_usd", "<=", limits[base], name)


def amount_in(text: str, quantity: Quantity, rates: Mapping[str, float], place: Place | None = None) -> float:
    """Convert an amount to the unit of an output; one without a unit is refused unless the output is a pure number.

    Raises
    ------
    InputError
        It is no amount of this quantity.
    """
    if not text.strip():
        raise InputError("bad-question", f"{quantity.name} has no limit.", "State one after the sign.", place)
    if quantity.unit != "1" and _PLAIN.match(text.strip()):
        fix = f"Write it with one, such as {text.strip()} {quantity.unit}."
        raise InputError("bad-unit", f"{quantity.name}: {text.strip()} has no unit.", fix, place)
    try:
        value = units.to_number(text, quantity.unit, rates)
    except units.UnitProblem as problem:
        raise InputError("bad-unit", f"{quantity.name}: {problem}", place=place) from None
    if not np.isfinite(value):
        raise InputError("not-finite", f"{units.shown(text)} is not a finite number.", "State a limit.", place)
    return value


def parse_gate(text: str, limits: Mapping[str, float], ownership: str, rates: Mapping[str, float]) -> Gate:
    """Read what ``--fail-if`` says.

    Raises
    ------
    InputError
        It is no gate on outputs of the scenario.
    """
    place = option_place("--fail-if", text)
    if found := _PROBABILITY.match(text):
        condition = parse_condition(found[1], limits, ownership, rates, place)
        return Gate(text.strip(), condition, "", 0.0, found[2], _probability(found[3], place))
    found = _QUANTILE.match(text)
    if not found:
        fix = "Write 'P(budget and deadline) < 0.9' or 'p95(cost_owned_usd) > 20 MUSD'."
        raise InputError("bad-gate", "this is not a probability or a quantile with a limit.", fix, place)
    quantile, name, op, amount = found.groups()
    if quantile.lower() not in _QUANTILES:
        fix = f"Known: P, {', '.join(_QUANTILES)}."
        raise InputError("bad-gate", f"there is no quantile {units.shown(quantile)}.", fix, place)
    if name not in OUTPUTS:
        raise InputError("unknown-output", f"the scenario has no output {units.shown(name)}.",
                         did_you_mean(name, OUTPUTS), place)  # fmt: skip
    limit = amount_in(amount, BY_NAME[name], rates, place)
    return Gate(text.strip(), None, name, _QUANTILES[quantile.lower()], op, limit)


def _probability(text: str, place: Place) -> float:
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        fix = "Write a number such as 0.9 or 90%."
        raise InputError("bad-probability", f"{units.shown(text)} is not a probability.", fix, place) from None
    if not 0 < value < 1:
        certain = "nothing is certain, so a probability of 1 can be neither asked nor kept" if value == 1 else (
            f"a probability of {text} can be neither asked nor kept")  # fmt: skip
        raise InputError("bad-probability", f"{certain}.", "State one between 0 and 1, such as 0.95.", place)
    return value


def holds(condition: Condition, values: Callable[[str], np.ndarray]) -> np.ndarray:
    """Say for each draw whether a condition holds.

    Parameters
    ----------
    condition : Condition
    values : callable
        From the name of an output to its draws, in its unit.

    Returns
    -------
    numpy.ndarray of bool, shape (draws,)
    """
    return np.logical_and.reduce([OPERATORS[term.op](values(term.output), term.limit) for term in condition.terms])


def holds_all(terms: Sequence[Term], outputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Say for each draw whether comparisons all hold; see `holds`."""
    return holds(Condition("", tuple(terms)), outputs.__getitem__)


def scope_of(condition: Condition) -> str:
    """Return what the outputs of a condition cover, e.g. ``final run``; several when they differ."""
    return " and ".join(dict.fromkeys(BY_NAME[term.output].scope for term in condition.terms))
