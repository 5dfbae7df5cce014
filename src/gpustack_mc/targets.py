"""What `solve` shall reach, such as ``P(training_days <= 30 d and cost_owned_usd <= 5 MUSD) >= 0.9``."""

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from gpustack_mc import formatting, units
from gpustack_mc.errors import InputError, Place, did_you_mean
from gpustack_mc.problem import QUESTIONS
from gpustack_mc.quantities import BY_NAME, OUTPUTS

_WHOLE = re.compile(r"^\s*P\s*\((?P<terms>.+)\)\s*(?:>=|≥|=)\s*(?P<probability>[^()]+?)\s*$", re.IGNORECASE)
_TERM = re.compile(r"^\s*(?P<output>\w+)\s*(?P<relation><=|>=|≤|≥|<|>)\s*(?P<limit>.+?)\s*$")
_FORM = "Write --such-that 'P(training_days <= 30 d) >= 0.9'."
# A probability is only as good as the draws beyond it.
FEWEST_BEYOND = 10


class Term(NamedTuple):
    """One comparison.

    Attributes
    ----------
    output : str
    at_most : bool
        Whether the output shall stay below the limit, and not above it.
    limit : float or str
        In the unit of the output, or the name of another output.
    """

    output: str
    at_most: bool
    limit: float | str

    def __str__(self) -> str:
        said = "at most" if self.at_most else "at least"
        if isinstance(self.limit, str):
            return f"{_spoken(self.output)} {said} {_spoken(self.limit)}"
        limit = formatting.with_unit(self.limit, BY_NAME[self.output].unit, 4, exact=True)
        return f"{_spoken(self.output)} {said} {limit}"


def _spoken(output: str) -> str:
    return BY_NAME[output].short.replace(",", "")


class Target(NamedTuple):
    """Terms that shall all hold with a probability."""

    terms: tuple[Term, ...]
    probability: float

    def __str__(self) -> str:
        return f"P({' and '.join(map(str, self.terms))}) ≥ {self.probability:g}"

    def margin(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """How far each draw is from keeping every term: at most 0 where all hold.

        Parameters
        ----------
        outputs : mapping of str to ndarray, shape (n,)

        Returns
        -------
        ndarray, shape (n,)
            The largest distance of the terms: logarithm of the ratio of output and limit where both are positive in
            every draw, which makes it a smooth function of what is solved for; else their difference.
        """
        return np.max([_distance(term, outputs) for term in self.terms], axis=0)


def _distance(term: Term, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
    left = outputs[term.output]
    right = outputs[term.limit] if isinstance(term.limit, str) else np.asarray(term.limit, dtype=float)
    if (left > 0).all() and (right > 0).all():
        left, right = np.log(left), np.log(right)
    return left - right if term.at_most else right - left


def read(text: str, ownership: str, rates: Mapping[str, float]) -> Target:
    """Read a condition.

    Parameters
    ----------
    text : str
        ``P(term and term ...) >= probability``; a term is an output, ``<=`` or ``>=``, and a limit with its unit or
        another output.
    ownership : {"own", "rent", "either"}
        Which cost ``cost`` means.
    rates : mapping of str to float
        USD per unit of other currencies.

    Raises
    ------
    InputError
        It is no condition; an output is not known; a limit has no unit or the wrong one.
    """
    found = _WHOLE.match(text)
    if not found:
        raise _wrong(f"{units.shown(text)} is not a condition.", _FORM)
    terms = re.split(r"\s+and\s+|\s*&\s*", found["terms"].strip())
    return Target(tuple(_term(term, ownership, rates) for term in terms), probability(found["probability"]))


def _wrong(message: str, fix: str, code: str = "bad-condition", option: str = "--such-that") -> InputError:
    return InputError(code, message, fix, Place(option))


def _term(text: str, ownership: str, rates: Mapping[str, float]) -> Term:
    found = _TERM.match(text)
    if not found:
        raise _wrong(f"{units.shown(text)} is not a comparison.", _FORM)
    name = _output(found["output"], ownership)
    at_most = found["relation"] in ("<=", "≤", "<")
    word = found["limit"]
    if word in BY_NAME or re.fullmatch(r"[A-Za-z_]+", word):
        other = _output(word, ownership)
        if BY_NAME[other].unit != BY_NAME[name].unit:
            message = f"{name} is in {BY_NAME[name].unit} and {other} in {BY_NAME[other].unit}."
            raise _wrong(message, "Compare outputs of one unit.", "bad-unit")
        return Term(name, at_most, other)
    return Term(name, at_most, limit(word, BY_NAME[name].unit, rates, "--such-that"))


def _output(word: str, ownership: str) -> str:
    if word == "cost":
        return cost(ownership, "--such-that")
    if word not in OUTPUTS:
        raise _wrong(f"there is no output {units.shown(word)}.", did_you_mean(word, OUTPUTS), "unknown-output")
    return word


def cost(ownership: str, option: str) -> str:
    """Return the output that "cost" means.

    Raises
    ------
    InputError
        The scenario does not say.
    """
    names = {"own": "cost_owned_usd", "rent": "cost_rented_usd"}
    if ownership not in names:
        message = "the scenario does not say whether the accelerators are owned or rented."
        raise _wrong(message, "Add --set ownership=own or rent, or name cost_owned_usd.", "which-cost", option)
    return names[ownership]


def limit(text: str, unit: str, rates: Mapping[str, float], option: str) -> float:
    """Read a limit with its unit.

    Raises
    ------
    InputError
        It has no unit, or one of another dimension, or is not finite.
    """
    if unit != "1" and re.fullmatch(r"[\d._eE+-]+", text.strip()):
        fix = f"Write it with one, such as {text} {unit}."
        raise _wrong(f"{text} has no unit.", fix, "bad-unit", option)
    try:
        value = units.to_number(text, unit, rates)
    except units.UnitProblem as problem:
        raise _wrong(str(problem), "", "bad-unit", option) from None
    if not np.isfinite(value) or (unit != "1" and value <= 0):
        raise _wrong(f"{text} is not a limit.", "State one above 0.", "bad-value", option)
    return value


def probability(text: str, option: str = "--such-that") -> float:
    """Read a probability, as 0.9 or 90%.

    Raises
    ------
    InputError
        It is none, or 0 or 1, which no distribution with tails reaches.
    """
    try:
        value = units.to_number(text, "1", {})
    except units.UnitProblem:
        raise _wrong(f"{units.shown(text)} is not a probability.", "Write 0.9 or 90%.", "bad-value", option) from None
    if value in (0.0, 1.0):
        fix = "The inputs have tails without end; ask for 0.99 or less." if value else "Ask for more than 0."
        said = "certainty" if value else "no chance at all"
        raise _wrong(f"a probability of {value:g} is {said}.", fix, "bad-probability", option)
    if not 0 < value < 1:
        raise _wrong(f"{text} is not between 0 and 1.", "Write 0.9 or 90%.", "bad-probability", option)
    return value


def from_limits(limits: Mapping[str, str], chance: float, ownership: str, rates: Mapping[str, float]) -> Target | None:
    """Return the condition that limits stated one by one are all kept; None when there are none.

    Parameters
    ----------
    limits : mapping of str to str
        By question: ``budget``, ``deadline``, ``carbon_cap``, ``energy_cap``, ``power_cap``.
    chance : float
        Probability of keeping all.
    ownership, rates
        As for `read`.
    """
    terms = []
    for name, text in limits.items():
        output, unit = QUESTIONS[name]
        option = f"--{name.replace('_', '-')}"
        output = cost(ownership, option) if output == "cost" else output
        terms.append(Term(output, True, limit(text, unit, rates, option)))
    return Target(tuple(terms), chance) if terms else None


def from_questions(questions: Mapping[str, float], chance: float, ownership: str) -> Target | None:
    """Return the condition that all questions of a scenario are kept; None when it asks none."""
    terms = []
    for name, value in questions.items():
        output = QUESTIONS[name][0]
        terms.append(Term(cost(ownership, "questions.budget") if output == "cost" else output, True, value))
    return Target(tuple(terms), chance) if terms else None
