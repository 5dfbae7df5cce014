"""Conditions on outputs, as people write them: ``budget and deadline``, ``programme_cost_owned_usd <= 40 MUSD``.

The grammar, which a few regular expressions read (nothing is evaluated as code):

.. code-block:: text

    condition = term { "and" term }
    term      = limit                               a question of the scenario, such as budget
              | output op amount
              | output op output                    cost_owned_usd <= cost_rented_usd
    gate      = "P(" condition ")" op probability   of --fail-if; of --such-that with op >=
              | quantile "(" output ")" op amount   quantile: median or p05 ... p95
    op        = "<" | "<=" | ">" | ">="

``cost`` stands for the owned or the rented cost, where the scenario says which one it means.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpustack_mc import formatting, units
from gpustack_mc.arrays import Bools, Floats
from gpustack_mc.errors import InputError, Place, did_you_mean, option_place
from gpustack_mc.problem import QUESTIONS, Condition, Problem, Term
from gpustack_mc.quantities import BY_NAME, Quantity

OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_WORDS = {"<": "below", "<=": "at most", ">": "above", ">=": "at least"}
_QUANTILES = {"median": 0.5, "p05": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95}
_COSTS = {"own": "cost_owned_usd", "rent": "cost_rented_usd"}
_TERM = re.compile(r"^\s*([A-Za-z]\w*)\s*(?:(<=|>=|<|>)\s*(.*?))?\s*$")
_PROBABILITY = re.compile(r"^\s*P\s*\((.*)\)\s*(<=|>=|<|>|=)\s*([^()]+?)\s*$", re.IGNORECASE)
_QUANTILE = re.compile(r"^\s*([A-Za-z]\w*)\s*\(\s*([A-Za-z]\w*)\s*\)\s*(<=|>=|<|>)\s*(.+?)\s*$")
_AND = re.compile(r"\s+and\s+|\s*&\s*", re.IGNORECASE)
_PLAIN = re.compile(r"^[-+\d._eE]+$")
_WORD = re.compile(r"^[A-Za-z]\w*$")
_LONGEST = 500


class Subject(NamedTuple):
    """What conditions on a scenario may speak of.

    Attributes
    ----------
    outputs : tuple of str
        Names of its outputs.
    limits : mapping of str to float
        Its questions, in the unit of their output.
    ownership : {"own", "rent", "either"}
        Which cost a budget is held against.
    rates : mapping of str to float
        USD per unit of other currencies.
    """

    outputs: tuple[str, ...]
    limits: Mapping[str, float]
    ownership: str
    rates: Mapping[str, float]


def subject(problem: Problem) -> Subject:
    """Return what conditions on a scenario may speak of."""
    file = problem.file
    return Subject(problem.outputs, problem.questions, file.ownership, file.exchange_rates)


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


# ---- conditions --------------------------------------------------------------------------------------------------


def parse_condition(text: str, about: Subject, place: Place | None = None) -> Condition:
    """Read a condition.

    Parameters
    ----------
    text : str
    about : Subject
    place : Place, optional
        Where the condition stands, for errors.

    Raises
    ------
    InputError
        It is not a condition on outputs of the scenario.
    """
    if len(text) > _LONGEST:
        raise InputError("bad-question", "this condition is too long.", "Ask several.", place)
    parts = _AND.split(text.strip())
    terms = tuple(_term(part.replace("≤", "<=").replace("≥", ">="), about, place) for part in parts)
    return Condition(" and ".join(" ".join(part.split()) for part in parts), terms)


def _term(text: str, about: Subject, place: Place | None) -> Term:
    found = _TERM.match(text)
    if not found:
        fix = "Write a question of the scenario, such as budget, or an output with a limit: cost_owned_usd <= 15 MUSD."
        raise InputError("bad-question", f"{units.shown(text.strip())} is not a condition.", fix, place)
    word, op, amount = found.groups()
    if op is None:
        return _limit(word, about, place)
    name = output_named(word, about, place)
    if _WORD.match(amount):
        other = output_named(amount, about, place)
        if BY_NAME[other].unit != BY_NAME[name].unit:
            message = f"{name} is in {BY_NAME[name].unit} and {other} in {BY_NAME[other].unit}."
            raise InputError("bad-unit", message, "Compare outputs of one unit.", place)
        return Term(name, op, other)
    return Term(name, op, amount_in(amount, BY_NAME[name], about.rates, place))


def output_named(word: str, about: Subject, place: Place | None = None) -> str:
    """Return the output of a scenario that a word names.

    Raises
    ------
    InputError
        There is none.
    """
    if word == "cost":
        return cost(about, place)
    return require_output(word, about.outputs, place)


def require_output(word: str, outputs: tuple[str, ...], place: Place | None = None) -> str:
    """Return the name of an output.

    Raises
    ------
    InputError
        It is none of those that there are.
    """
    if word in outputs:
        return word
    if word in BY_NAME and BY_NAME[word].part and BY_NAME[word].role == "output":
        message, part = f"the scenario has no output {word!r}.", BY_NAME[word].part
        raise InputError("unknown-output", message, f"Only one that states {part} has it.", place)
    fix = f"{did_you_mean(word, outputs)} `gpustack-mc quantities` lists all."
    raise InputError("unknown-output", f"the scenario has no output {units.shown(word)}.", fix, place)


def outputs_listed(text: str, outputs: tuple[str, ...]) -> tuple[str, ...]:
    """Return the outputs that ``--outputs`` names with commas, each once.

    Raises
    ------
    InputError
        One of them does not exist.
    """
    place = option_place("--outputs", text)
    words = [word.strip() for word in text.split(",") if word.strip()]
    return tuple(dict.fromkeys(require_output(word, outputs, place) for word in words))


def cost(about: Subject, place: Place | None = None) -> str:
    """Return the output that "cost" means.

    Raises
    ------
    InputError
        The scenario does not say.
    """
    if about.ownership not in _COSTS:
        message = "the scenario does not say whether the accelerators are owned or rented."
        fix = "Add --set ownership=own or rent, or name cost_owned_usd."
        raise InputError("which-cost", message, fix, place)
    return _COSTS[about.ownership]


def _limit(name: str, about: Subject, place: Place | None) -> Term:
    """Return the condition that a question of the scenario is kept."""
    if name in about.outputs or name == "cost":
        unit = "USD" if name == "cost" else BY_NAME[name].unit
        fix = f"Write {name} <= 1{'' if unit == '1' else f' {unit}'}, with your limit."
        raise InputError("bad-question", f"{name} has no limit.", fix, place)
    base, _, kind = name.partition("_") if name.startswith("budget_") else (name, "", "")
    if base not in QUESTIONS or kind not in ("", "owned", "rented"):
        known = (*about.limits, *about.outputs)
        raise InputError("unknown-output", f"there is no {units.shown(name)} to ask about.",
                         did_you_mean(name, known), place)  # fmt: skip
    if base not in about.limits:
        unit = QUESTIONS[base][1]
        flag = "--" + base.replace("_", "-")
        fix = f"State questions.{base}, or {flag} with a value in {unit}."
        raise InputError("unknown-question", f"the scenario states no {base}.", fix, place)
    if base != "budget":
        return Term(QUESTIONS[base][0], "<=", about.limits[base], base)
    if not kind and about.ownership == "either":
        fix = "Write budget_owned or budget_rented, or state `ownership: own` or `rent`."
        raise InputError("bad-question", "the budget is of the owned or of the rented cost.", fix, place)
    output = f"cost_{kind}_usd" if kind else _COSTS[about.ownership]
    return Term(output, "<=", about.limits[base], name)


def amount_in(text: str, quantity: Quantity, rates: Mapping[str, float], place: Place | None = None) -> float:
    """Convert an amount to the unit of an output; one without a unit is refused unless the output is a pure number.

    Raises
    ------
    InputError
        It is no amount that this quantity can have.
    """
    text = text.strip()
    if not text:
        raise InputError("bad-question", f"{quantity.name} has no limit.", "State one after the sign.", place)
    if quantity.unit != "1" and _PLAIN.match(text):
        fix = f"Write it with one, such as {text} {quantity.unit}."
        raise InputError("bad-unit", f"{quantity.name}: {text} has no unit.", fix, place)
    try:
        value = units.to_number(text, quantity.unit, rates)
    except units.UnitProblem as problem:
        raise InputError("bad-unit", f"{quantity.name}: {problem}", place=place) from None
    if not np.isfinite(value):
        raise InputError("not-finite", f"{units.shown(text)} is not a finite number.", "State a limit.", place)
    if quantity.low == 0 and value <= 0:
        message = f"{units.shown(text)} is not a limit: {quantity.name} cannot be less."
        raise InputError("bad-value", message, "State one above 0.", place)
    return value


# ---- gates and probabilities -------------------------------------------------------------------------------------


def parse_gate(text: str, about: Subject) -> Gate:
    """Read what ``--fail-if`` says.

    Raises
    ------
    InputError
        It is no gate on outputs of the scenario.
    """
    place = option_place("--fail-if", text)
    found = _PROBABILITY.match(text)
    if found and found[2] != "=":
        return Gate(text.strip(), parse_condition(found[1], about, place), "", 0.0, found[2],
                    probability(found[3], place))  # fmt: skip
    found = _QUANTILE.match(text)
    if not found:
        fix = "Write 'P(budget and deadline) < 0.9' or 'p95(cost_owned_usd) > 20 MUSD'."
        raise InputError("bad-gate", "this is not a probability or a quantile with a limit.", fix, place)
    quantile, word, op, amount = found.groups()
    if quantile.lower() not in _QUANTILES:
        fix = f"Known: P, {', '.join(_QUANTILES)}."
        raise InputError("bad-gate", f"there is no quantile {units.shown(quantile)}.", fix, place)
    name = output_named(word, about, place)
    limit = amount_in(amount, BY_NAME[name], about.rates, place)
    return Gate(text.strip(), None, name, _QUANTILES[quantile.lower()], op, limit)


def parse_probable(text: str, about: Subject, place: Place) -> tuple[Condition, float]:
    """Read a condition that shall hold with at least a probability: ``P(training_days <= 30 d) >= 0.9``.

    Raises
    ------
    InputError
        It is none.
    """
    found = _PROBABILITY.match(text.replace("≥", ">="))
    if not found or found[2] not in (">=", "="):
        fix = "Write 'P(training_days <= 30 d) >= 0.9'."
        raise InputError("bad-condition", f"{units.shown(text)} is not a condition with a probability.", fix, place)
    return parse_condition(found[1], about, place), probability(found[3], place)


def probability(text: str, place: Place) -> float:
    """Read a probability, as 0.9 or 90%.

    Raises
    ------
    InputError
        It is none, or 0 or 1, which no distribution with tails reaches.
    """
    try:
        value = units.to_number(text, "1", {})
    except units.UnitProblem:
        message = f"{units.shown(text)} is not a probability."
        raise InputError("bad-probability", message, "Write 0.9 or 90%.", place) from None
    if not 0 < value < 1:
        why = "nothing is certain, so a" if value == 1 else "a"
        message = f"{why} probability of {text} can be neither asked nor kept."
        raise InputError("bad-probability", message, "State one between 0 and 1, such as 0.95.", place)
    return value


# ---- what they mean ----------------------------------------------------------------------------------------------


def holds(condition: Condition, values: Callable[[str], Floats]) -> Bools:
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
    found: Bools = np.logical_and.reduce([OPERATORS[term.op](values(term.output), limit(term, values))
                                          for term in condition.terms])  # fmt: skip
    return found


def limit(term: Term, values: Callable[[str], Floats]) -> Floats:
    """Return what a term holds its output against: a number, or the draws of another output."""
    return values(term.limit) if isinstance(term.limit, str) else np.asarray(term.limit, dtype=float)


def spoken(term: Term) -> str:
    """Write a term in words."""
    if isinstance(term.limit, str):
        other = _short(term.limit)
    else:
        other = formatting.with_unit(term.limit, BY_NAME[term.output].unit, 4, exact=True)
    return f"{_short(term.output)} {_WORDS[term.op]} {other}"


def _short(output: str) -> str:
    return BY_NAME[output].short.replace(",", "")


def holds_all(terms: Sequence[Term], outputs: Mapping[str, Floats]) -> Bools:
    """Say for each draw whether comparisons all hold; see `holds`."""
    return holds(Condition("", tuple(terms)), outputs.__getitem__)


def scope_of(condition: Condition) -> str:
    """Return what the outputs of a condition cover, e.g. ``final run``; several when they differ."""
    return " and ".join(dict.fromkeys(BY_NAME[term.output].scope for term in condition.terms))
