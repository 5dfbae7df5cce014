"""What `solve` shall reach, such as ``P(training_days <= 30 d and cost_owned_usd <= 5 MUSD) >= 0.9``."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from gpustack_mc import conditions
from gpustack_mc.arrays import Floats
from gpustack_mc.conditions import Subject
from gpustack_mc.errors import Place
from gpustack_mc.problem import Term

# A probability is only as good as the draws beyond it.
FEWEST_BEYOND = 10


class Target(NamedTuple):
    """Terms that shall all hold with a probability."""

    terms: tuple[Term, ...]
    probability: float

    def __str__(self) -> str:
        return f"P({' and '.join(map(conditions.spoken, self.terms))}) ≥ {self.probability:g}"

    def margin(self, outputs: Mapping[str, Floats]) -> Floats:
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
        distances: Floats = np.maximum.reduce([_distance(term, outputs) for term in self.terms], axis=0)
        return distances


def _distance(term: Term, outputs: Mapping[str, Floats]) -> Floats:
    left, right = outputs[term.output], conditions.limit(term, outputs.__getitem__)
    if (left > 0).all() and (right > 0).all():
        left, right = np.log(left), np.log(right)
    return left - right if term.op in ("<", "<=") else right - left


def read(text: str, about: Subject, place: Place) -> Target:
    """Read a condition with its probability, in the grammar of `gpustack_mc.conditions`.

    Raises
    ------
    InputError
        It is no condition on outputs of the scenario.
    """
    condition, probability = conditions.parse_probable(text, about, place)
    return Target(condition.terms, probability)


def from_questions(about: Subject, names: Collection[str], probability: float, place: Place) -> Target:
    """Return the condition that some questions of a scenario are all kept.

    Raises
    ------
    InputError
        There is a budget, and the scenario does not say which cost it limits.
    """
    if "budget" in names:
        conditions.cost(about, place)
    condition = conditions.parse_condition(" and ".join(names), about, place)
    return Target(tuple(term._replace(name="") for term in condition.terms), probability)
