"""Models whose mean, variance and Sobol' indices are known in closed form."""

from collections.abc import Callable, Sequence
from itertools import combinations
from math import factorial
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri


class Problem(NamedTuple):
    """A model of independent inputs with exact answers.

    Attributes
    ----------
    quantile : callable
        Points of the unit cube (inputs, n) to values of the inputs (inputs, n).
    function : callable
        Values of the inputs (inputs, n) to the output (n,).
    distributions : tuple of str
        What `quantile` draws each input from, in words.
    first, total : numpy.ndarray, shape (inputs,)
        Exact Sobol' indices.
    mean, variance : float
        Of the output.
    """

    quantile: Callable[[np.ndarray], np.ndarray]
    function: Callable[[np.ndarray], np.ndarray]
    distributions: tuple[str, ...]
    first: np.ndarray
    total: np.ndarray
    mean: float
    variance: float

    @property
    def names(self) -> list[str]:
        return [f"x{i}" for i in range(len(self.first))]

    def on_cube(self, u: np.ndarray) -> np.ndarray:
        """Points of the unit cube (inputs, n) to outputs (1, n)."""
        return self.function(self.quantile(u))[None]


def ishigami(a: float = 7.0, b: float = 0.1) -> Problem:
    """Ishigami and Homma (1990): non-monotonic, and x2 acts only through its interaction with x0."""
    v0 = 0.5 * (1 + b * np.pi**4 / 5) ** 2
    v1 = a**2 / 8
    v02 = 8 * b**2 * np.pi**8 / 225
    variance = v0 + v1 + v02
    return Problem(
        quantile=lambda u: np.pi * (2 * u - 1),
        function=lambda x: np.sin(x[0]) + a * np.sin(x[1]) ** 2 + b * x[2] ** 4 * np.sin(x[0]),
        distributions=("uniform(-pi, pi)",) * 3,
        first=np.array([v0, v1, 0.0]) / variance,
        total=np.array([v0 + v02, v1, v02]) / variance,
        mean=a / 2,
        variance=variance,
    )


def g_function(*a: float) -> Problem:
    """Saltelli and Sobol' (1995): kinks, and an input matters less the larger its coefficient."""
    weights = np.array(a)
    parts = 1 / (3 * (1 + weights) ** 2)
    variance = np.prod(1 + parts) - 1
    return Problem(
        quantile=lambda u: u,
        function=lambda x: ((np.abs(4 * x - 2) + weights[:, None]) / (1 + weights[:, None])).prod(axis=0),
        distributions=("uniform(0, 1)",) * len(a),
        first=parts / variance,
        total=parts / (1 + parts) * (1 + variance) / variance,
        mean=1.0,
        variance=float(variance),
    )


def lognormal_product(*sigma: float, mu: float = 0.0) -> Problem:
    """Product of lognormal factors, the shape of a cost: skewed, and everything interacts. ``mu``: log median."""
    s2 = np.array(sigma) ** 2
    spread = s2.sum()
    mean = float(np.exp(mu + spread / 2))
    return Problem(
        quantile=lambda u: np.exp(np.array(sigma)[:, None] * ndtri(u)),
        function=lambda x: np.exp(mu) * x.prod(axis=0),
        distributions=tuple(f"lognormal(0, {s})" for s in sigma),
        first=np.expm1(s2) / np.expm1(spread),
        total=(np.exp(spread) - np.exp(spread - s2)) / np.expm1(spread),
        mean=mean,
        variance=mean**2 * float(np.expm1(spread)),
    )


def log_lognormal_product(*sigma: float, mu: float = 0.0) -> Problem:
    """Logarithm of `lognormal_product`: additive, so first order and total agree."""
    s2 = np.array(sigma) ** 2
    product = lognormal_product(*sigma, mu=mu)
    return product._replace(
        function=lambda x: np.log(product.function(x)),
        first=s2 / s2.sum(),
        total=s2 / s2.sum(),
        mean=mu,
        variance=float(s2.sum()),
    )


def linear(constant: float, *slopes: float) -> Problem:
    """Sum of uniform inputs."""
    parts = np.array(slopes) ** 2 / 12
    return Problem(
        quantile=lambda u: u,
        function=lambda x: constant + np.array(slopes) @ x,
        distributions=("uniform(0, 1)",) * len(slopes),
        first=parts / parts.sum(),
        total=parts / parts.sum(),
        mean=constant + sum(slopes) / 2,
        variance=float(parts.sum()),
    )


PROBLEMS = {
    "ishigami": ishigami(),
    "g, all alike": g_function(0.5, 0.5, 0.5),
    "g, usual": g_function(0.0, 1.0, 4.5, 9.0, 99.0, 99.0),
    "lognormal product": lognormal_product(0.5, 0.4, 0.3, 0.2, 0.1),
    "log of lognormal product": log_lognormal_product(0.5, 0.4, 0.3, 0.2, 0.1, mu=2.0),
    "linear": linear(10.0, 4.0, 2.0, 1.0),
}


# ---- correlated inputs -------------------------------------------------------------------------------------------


class Dependent(NamedTuple):
    """A model of inputs with a Gaussian copula whose conditional variances are exact.

    Attributes
    ----------
    function : callable
        Correlated points of the unit cube (inputs, n) to the output (1, n).
    correlation : numpy.ndarray, shape (inputs, inputs)
        Of the normal scores.
    explained : callable
        From places of inputs S to Var(E[Y | X_S]), in the square of the output's unit.
    mean : float
    """

    function: Callable[[np.ndarray], np.ndarray]
    correlation: np.ndarray
    explained: Callable[[Sequence[int]], float]
    mean: float

    @property
    def names(self) -> list[str]:
        return [f"x{i}" for i in range(len(self.correlation))]

    @property
    def variance(self) -> float:
        return self.explained(range(len(self.correlation)))

    def first(self, group: Sequence[int]) -> float:
        """Closed first-order index of a group."""
        return self.explained(group) / self.variance

    def total(self, group: Sequence[int]) -> float:
        """Total index of a group: 1 less the closed index of all others."""
        return 1 - self.first([i for i in range(len(self.correlation)) if i not in group])

    def shapley(self) -> np.ndarray:
        return shapley(self.explained, len(self.correlation)) / self.variance


def shapley(explained: Callable[[Sequence[int]], float], players: int) -> np.ndarray:
    """Shapley values by the sum over all coalitions (Owen and Prieur 2017, equation 3)."""
    found = np.zeros(players)
    for player in range(players):
        others = [i for i in range(players) if i != player]
        for size in range(players):
            weight = factorial(size) * factorial(players - size - 1) / factorial(players)
            for group in combinations(others, size):
                found[player] += weight * (explained((*group, player)) - explained(group))
    return found


def _known(slopes: np.ndarray, correlation: np.ndarray, group: Sequence[int]) -> float:
    """Variance of the mean of a sum of slopes times normal scores, given some of the scores."""
    group = list(group)
    if not group:
        return 0.0
    shared = correlation[group] @ slopes
    return float(shared @ np.linalg.solve(correlation[np.ix_(group, group)], shared))


def linear_gaussian(slopes: Sequence[float], correlation: np.ndarray) -> Dependent:
    """Sum of correlated normal inputs (Owen and Prieur 2017, section 4)."""
    slopes, correlation = np.array(slopes, dtype=float), np.array(correlation, dtype=float)
    return Dependent(lambda u: (slopes @ ndtri(u))[None], correlation,
                     lambda group: _known(slopes, correlation, group), 0.0)  # fmt: skip


def dependent_lognormals(slopes: Sequence[float], correlation: np.ndarray) -> Dependent:
    """Product of correlated lognormal factors, the shape of a cost: the exponential of `linear_gaussian`."""
    log = linear_gaussian(slopes, correlation)
    mean = float(np.exp(log.variance / 2))
    return Dependent(lambda u: np.exp(log.function(u)), log.correlation,
                     lambda group: mean**2 * float(np.expm1(log.explained(group))), mean)  # fmt: skip


CORRELATION = np.array([[1, 0.6, 0, 0], [0.6, 1, -0.3, 0], [0, -0.3, 1, 0], [0, 0, 0, 1.0]])
DEPENDENT = {
    "linear Gaussian": linear_gaussian([1.0, 2.0, -1.0, 0.5], CORRELATION),
    "lognormal product": dependent_lognormals([0.3, 0.4, -0.3, 0.2], CORRELATION),
}
