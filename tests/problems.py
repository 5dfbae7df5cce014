"""Models whose mean, variance and Sobol' indices are known in closed form."""

from collections.abc import Callable
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
