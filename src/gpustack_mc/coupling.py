r"""How the draws of several scenarios belong together.

An input that is the same quantity in two scenarios (same name, same distribution, same population and the same facts
that the population was a substitute for) is drawn once for both: it is one unknown number, and it cancels from ratios.
Inputs that differ, such as the electricity price of two regions, have a correlation that no data here tell. Two stated
choices bracket it, as correlations :math:`\rho` of normal scores:

``common``
    :math:`\rho = 1`: both at the same quantile. What makes one high (the method of an estimate, the skill of a buyer)
    makes the other high.
``independent``
    :math:`\rho = 0`: knowing one says nothing about the other.

Predicted MFU is neither. The posterior draws :math:`s` of the utilisation program say how much of it two runs of one
team share: what is not known about the population, the family effect, and covariates stated for neither,

.. math::
    \rho = \frac{\mathrm{Cov}_s(m_A, m_B)
                 + \mathrm{E}_s[\sigma_a^2 + \textstyle\sum_j \beta_j^2 \min(v_{Aj}, v_{Bj})]}
                {\sqrt{\mathrm{Var}(\log \mathrm{MFU}_A)\, \mathrm{Var}(\log \mathrm{MFU}_B)}},

with :math:`m` the mean of log MFU in a draw and :math:`v_j` the variance of a covariate that is not stated; run effects
and the noise of records are each run's own. It is used under both choices, because it is known. So is that of rental
prices of one market on several days, which the drift of prices between them leaves (`gpustack_mc.price_drift`).

Each correlated set of k inputs is driven by up to k independent streams through a factor of its correlation matrix
(Gaussian copula). The first stream is that of the input's own name, so that the first scenario gets the very draws of
``gpustack-mc run``. Evidence may tie inputs of a scenario together, such as MFU and goodput after a team's own runs,
and not alike in all scenarios: each makes its inputs of the same independent scores by its own ties.
"""

from collections.abc import Hashable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from gpustack_mc import catalog
from gpustack_mc.efficiency import mfu_correlation, planned_run
from gpustack_mc.errors import InputError
from gpustack_mc.facts import medians
from gpustack_mc.price_drift import correlation
from gpustack_mc.problem import Input, Problem
from gpustack_mc.propagation import dimension

Choice = Literal["common", "independent"]


class Stream(NamedTuple):
    """One independent uniform number per draw.

    Attributes
    ----------
    name : str
    dimension : int or None
        Of the design, for the stream of an input's own name. None for those that are added: they are Latin hypercubes,
        because further dimensions of a Sobol' sequence fill their planes with the first ones unevenly (with 1,024
        points a chance had three times the error of plain draws), and because there may be hundreds.
    """

    name: str
    dimension: int | None


class Difference(NamedTuple):
    """An input that is not the same in all scenarios.

    Attributes
    ----------
    key : str
    how : {"common", "independent", "estimated", "fixed", "own"}
        How its values are coupled; ``estimated`` where it is known; ``fixed`` where it varies in one scenario at most,
        ``own`` where only some have it.
    correlation : float
        Smallest correlation of normal scores between two scenarios; NaN where none is needed.
    """

    key: str
    how: str
    correlation: float


class Coupling(NamedTuple):
    """Independent streams, and what each scenario makes of them.

    Attributes
    ----------
    streams : tuple of Stream
    weights : tuple of dict of str to ndarray, shape (streams,)
        For each scenario: by key of a varying input, the weights of the streams' normal scores; their squares add to 1.
    blocks : dict of str to list of int
        Streams by block of a sensitivity analysis; blocks are independent of each other.
    differences : tuple of Difference
        Inputs that differ, in the order of the table of quantities.
    """

    streams: tuple[Stream, ...]
    weights: tuple[dict[str, np.ndarray], ...]
    blocks: dict[str, list[int]]
    differences: tuple[Difference, ...]


def couple(problems: Sequence[Problem], choice: Choice) -> Coupling:
    """Decide which inputs are shared, and how the others are coupled.

    Parameters
    ----------
    problems : sequence of Problem
    choice : {"common", "independent"}
        For inputs that differ and whose correlation is not known.

    Raises
    ------
    InputError
        The scenarios state different rank correlations.
    """
    if any(problem.file.correlations != problems[0].file.correlations for problem in problems):
        found = "the scenarios state different correlations, so that their draws cannot be paired."
        raise InputError("different-correlations", found, "State the same `correlations` in all of them.")
    return _Builder(problems, choice).coupling()


def identity(item: Input) -> Hashable:
    """Return what makes two inputs of one name the same quantity: distribution, population, and what it stands for."""
    parameters = sorted(
        (key, np.asarray(value, dtype=float).tobytes()) for key, value in item.marginal.parameters.items()
    )
    where = sorted((key, str(value)) for key, value in item.where.items())
    return item.marginal.family, tuple(parameters), tuple(where), tuple(sorted(item.missed))


class _Builder:
    def __init__(self, problems: Sequence[Problem], choice: Choice):
        self.problems, self.choice = problems, choice
        self.correlated = tuple(dict.fromkeys(key for problem in problems for key in problem.correlated))
        self.streams: list[Stream] = []
        self.parts: list[dict[str, dict[int, float]]] = [{} for _ in problems]
        self.blocks: dict[str, list[int]] = {}
        self.differences: list[Difference] = []

    def coupling(self) -> Coupling:
        keys = list(dict.fromkeys(key for problem in self.problems for key in problem.inputs))
        for key in keys:
            self.add(key)
        width = len(self.streams)
        weights = tuple({key: _row(part, width) for key, part in parts.items()} for parts in self.parts)
        return Coupling(tuple(self.streams), weights, self.blocks, tuple(self.differences))

    def add(self, key: str) -> None:
        having = [i for i, problem in enumerate(self.problems) if key in problem.inputs]
        varying = [i for i in having if not self.problems[i].inputs[key].marginal.is_fixed]
        names = {i: identity(self.problems[i].inputs[key]) for i in having}
        groups = list(dict.fromkeys(names[i] for i in varying))
        same = len(having) == len(self.problems) and len(set(names.values())) == 1
        if not same:
            self.differences.append(self.difference(key, having, groups))
        if not varying:
            return
        members = [next(i for i in varying if names[i] == group) for group in groups]
        factor = self.factor(key, members)
        numbers = [self.stream(key, j, members[0]) for j in range(len(groups)) if factor[:, j].any()]
        for i in varying:
            row = factor[groups.index(names[i])]
            self.parts[i][key] = {n: float(w) for n, w in zip(numbers, row, strict=False) if w}
        self.block(key, numbers, factor, members)

    def difference(self, key: str, having: list[int], groups: list[Hashable]) -> Difference:
        if len(having) < len(self.problems):
            return Difference(key, "own", float("nan"))
        if len(groups) < 2:
            return Difference(key, "fixed", float("nan"))
        estimated = self.estimated(key)
        how = "estimated" if estimated else self.choice
        members = list(range(len(self.problems)))
        known = self.matrix(key, members).min() if estimated else float(self.choice == "common")
        return Difference(key, how, float(known))

    def estimated(self, key: str) -> bool:
        """Whether an input is predicted by the utilisation program, or carried on from one price, in every scenario."""
        if key == "rental_price" and all(key in problem.inputs for problem in self.problems):
            return correlation([problem.inputs[key] for problem in self.problems]) is not None
        return key == "mfu" and all(key in p.inputs and p.inputs[key].origin == "fitted" for p in self.problems)

    def matrix(self, key: str, members: Sequence[int]) -> np.ndarray:
        """Return known correlations of an input that is `estimated`."""
        if key == "mfu":
            return _mfu_matrix(self.problems, members)
        found = correlation([self.problems[i].inputs[key] for i in members])
        return np.eye(1) if found is None else found

    def factor(self, key: str, members: list[int]) -> np.ndarray:
        """Return L with L L' the correlation matrix of the groups' normal scores."""
        count = len(members)
        if count == 1:
            return np.eye(1)
        if self.estimated(key):
            return np.linalg.cholesky(self.matrix(key, members))
        return np.eye(count) if self.choice == "independent" else np.eye(count)[:1].repeat(count, axis=0)

    def stream(self, key: str, number: int, owner: int) -> int:
        taken = {stream.dimension for stream in self.streams}
        own = dimension(self.problems[owner].inputs[key], self.problems[owner])
        free = number == 0 and own not in taken
        self.streams.append(Stream(f"{key}~{number}" if number else key, own if free else None))
        return len(self.streams) - 1

    def block(self, key: str, numbers: list[int], factor: np.ndarray, members: list[int]) -> None:
        if key in self.correlated:
            self.blocks.setdefault("+".join(self.correlated), []).extend(numbers)
        elif len(numbers) > 1 and np.array_equal(factor, np.eye(len(numbers))):
            for number, owner in zip(numbers, members, strict=True):
                self.blocks[f"{key} of {label(owner)}"] = [number]
        else:
            self.blocks[key] = numbers


def label(index: int) -> str:
    """Return the letter by which a scenario is called: A, B, ..."""
    return chr(ord("A") + index) if index < 26 else f"S{index + 1}"


def _row(part: dict[int, float], width: int) -> np.ndarray:
    row = np.zeros(width)
    for number, weight in part.items():
        row[number] = weight
    return row


def _mfu_matrix(problems: Sequence[Problem], members: Sequence[int]) -> np.ndarray:
    """Return correlations of log MFU between some of the scenarios, just positive definite."""
    rows = []
    for problem in (problems[i] for i in members):
        name = problem.file.cluster.accelerator
        accelerator = None if name.casefold() == "other" else catalog.find_accelerator(name)
        rows.append(planned_run(problem.file, accelerator, medians(problem.inputs), problem.year))
    return mfu_correlation(rows)
