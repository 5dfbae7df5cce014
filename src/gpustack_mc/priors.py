r"""Marginal distributions with quantile functions, and the choice of a fitted prior for a scenario.

Every input enters the model through its quantile function, so that points of the unit cube become draws. The same
formulas serve NumPy (checks, tables) and JAX (propagation): a marginal is first reduced to a *kernel*, a name that is
static under ``jax.jit`` and arrays that are not, so that a sweep over values compiles once.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import NormalDist
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from gpustack_mc.quantities import Quantity

# Beyond |z| = 6.5 lies 8e-11 of the mass, less than one point of a design of 1e10.
TABLE_Z = 6.5
TABLE_SIZE = 2049

# scipy.special takes 0.3 s to import; for the few points that are needed before sampling the standard library will do.
_NORMAL = NormalDist()
_ndtri = np.vectorize(_NORMAL.inv_cdf, otypes=[float])


class Marginal(NamedTuple):
    """A distribution of one input.

    Attributes
    ----------
    family : str
        One of `PARAMETERS`.
    parameters : dict of str to float, or to a sequence of floats
        In the unit of the quantity.
    """

    family: str
    parameters: Mapping[str, Any]

    @property
    def is_fixed(self) -> bool:
        """Whether every draw is the same."""
        return self.family == "fixed"


PARAMETERS: dict[str, tuple[str, ...]] = {
    "fixed": ("value",),
    "normal": ("mean", "sd"),
    "truncated_normal": ("mean", "sd", "low", "high"),
    "lognormal": ("mu", "sigma", "shift"),
    "logit_normal": ("mu", "sigma", "low", "high"),
    "uniform": ("low", "high"),
    "log_uniform": ("low", "high"),
    "triangular": ("low", "mode", "high"),
    "pert": ("low", "mode", "high"),
    "beta": ("a", "b", "low", "high"),
    "gamma": ("shape", "scale"),
    "student_t": ("df", "loc", "scale"),
    "zero_inflated_lognormal": ("zero", "mu", "sigma"),
    "sample": ("values",),
    "choice": ("values", "weights"),
    "tabulated": ("values",),
}
_DEFAULTS: dict[str, dict[str, float]] = {
    "lognormal": {"shift": 0.0},
    "logit_normal": {"low": 0.0, "high": 1.0},
    "beta": {"low": 0.0, "high": 1.0},
}


class Kernel(NamedTuple):
    """A marginal reduced to a formula of `quantile` and its arrays."""

    form: str
    arrays: tuple[np.ndarray, ...]


def kernel(marginal: Marginal) -> Kernel:
    """Reduce a marginal to what the compiled model needs; families without a closed form become a table."""
    family = marginal.family
    values = {**_DEFAULTS.get(family, {}), **marginal.parameters}
    if family in ("sample", "choice"):
        return _discrete(values["values"], values.get("weights"))
    if family == "tabulated":
        return Kernel("table", (np.asarray(values["values"], dtype=float),))
    if family not in PARAMETERS:
        raise ValueError(f"unknown family {family!r}")
    numbers = {name: float(values[name]) for name in PARAMETERS[family]}
    if family in ("beta", "pert", "gamma", "student_t"):
        return Kernel("table", (_table(family, tuple(numbers.items())),))
    if family == "truncated_normal":
        edges = [_NORMAL.cdf((numbers[side] - numbers["mean"]) / numbers["sd"]) for side in ("low", "high")]
        return Kernel(family, tuple(np.asarray(v) for v in (numbers["mean"], numbers["sd"], *edges)))
    return Kernel(family, tuple(np.asarray(number) for number in numbers.values()))


def _discrete(values: Sequence[float], weights: Sequence[float] | None) -> Kernel:
    ordered = np.argsort(np.asarray(values, dtype=float), kind="stable")
    weight = np.ones(len(ordered)) if weights is None else np.asarray(weights, dtype=float)[ordered]
    cumulative = np.cumsum(weight) / weight.sum()
    return Kernel("discrete", (cumulative[:-1], np.asarray(values, dtype=float)[ordered]))


@lru_cache(maxsize=256)
def _table(family: str, parameters: tuple[tuple[str, float], ...]) -> np.ndarray:
    from scipy import special

    p = dict(parameters)
    z = np.linspace(-TABLE_Z, TABLE_Z, TABLE_SIZE)
    u = special.ndtr(z)
    if family == "gamma":
        return special.gammaincinv(p["shape"], u) * p["scale"]
    if family == "student_t":
        return p["loc"] + p["scale"] * special.stdtrit(p["df"], u)
    if family == "pert":
        width = p["high"] - p["low"]
        a, b = 1 + 4 * (p["mode"] - p["low"]) / width, 1 + 4 * (p["high"] - p["mode"]) / width
    else:
        a, b = p["a"], p["b"]
    return p["low"] + (p["high"] - p["low"]) * special.betaincinv(a, b, u)


def quantile(form: str, arrays: Sequence[Any], u: Any, z: Any, xp: ModuleType, ndtri: Any) -> Any:
    """Evaluate the quantile function of a kernel.

    Parameters
    ----------
    form, arrays
        A `Kernel`.
    u, z : array, shape (n,)
        Points in (0, 1) and their standard normal scores.
    xp : module
        ``numpy`` or ``jax.numpy``.
    ndtri : callable
        Standard normal quantile function of the same library.

    Returns
    -------
    array, shape (n,)
        Draws in the unit of the quantity.
    """
    match form:
        case "fixed":
            return arrays[0] + 0 * u
        case "normal":
            return arrays[0] + arrays[1] * z
        case "lognormal":
            return arrays[2] + xp.exp(arrays[0] + arrays[1] * z)
        case "logit_normal":
            return arrays[2] + (arrays[3] - arrays[2]) / (1 + xp.exp(-arrays[0] - arrays[1] * z))
        case "uniform":
            return arrays[0] + (arrays[1] - arrays[0]) * u
        case "log_uniform":
            return arrays[0] * xp.exp(xp.log(arrays[1] / arrays[0]) * u)
        case "truncated_normal":
            return arrays[0] + arrays[1] * ndtri(arrays[2] + (arrays[3] - arrays[2]) * u)
        case "triangular":
            return _triangular(arrays[0], arrays[1], arrays[2], u, xp)
        case "zero_inflated_lognormal":
            rescaled = xp.maximum((u - arrays[0]) / (1 - arrays[0]), 1e-12)
            return xp.where(u < arrays[0], 0.0, xp.exp(arrays[1] + arrays[2] * ndtri(rescaled)))
        case "table":
            return _interpolated(arrays[0], z, xp)
        case "discrete":
            return arrays[1][xp.searchsorted(arrays[0], u, side="right")]
        case _:
            raise ValueError(f"unknown kernel {form!r}")


def _triangular(low: Any, mode: Any, high: Any, u: Any, xp: ModuleType) -> Any:
    width = high - low
    rising = low + xp.sqrt(u * width * (mode - low))
    falling = high - xp.sqrt((1 - u) * width * (high - mode))
    return xp.where(u * width < mode - low, rising, falling)


def _interpolated(table: Any, z: Any, xp: ModuleType) -> Any:
    position = (xp.clip(z, -TABLE_Z, TABLE_Z) + TABLE_Z) * ((TABLE_SIZE - 1) / (2 * TABLE_Z))
    index = xp.minimum(xp.floor(position).astype(int), TABLE_SIZE - 2)
    fraction = position - index
    return table[index] * (1 - fraction) + table[index + 1] * fraction


def quantiles(marginal: Marginal, u: Sequence[float] | np.ndarray) -> np.ndarray:
    """Evaluate a marginal's quantile function in NumPy.

    Parameters
    ----------
    marginal : Marginal
    u : array_like, shape (n,)
        Probabilities in (0, 1).

    Returns
    -------
    ndarray, shape (n,)
    """
    points = np.asarray(u, dtype=float)
    form, arrays = kernel(marginal)
    # A wild statement overflows to infinity, which its caller compares with the physical bounds.
    with np.errstate(over="ignore"):
        return np.asarray(quantile(form, arrays, points, _ndtri(points), np, _ndtri))


def at_scores(marginal: Marginal, z: np.ndarray) -> np.ndarray:
    """Evaluate a marginal at normal scores: the value whose probability is that of `z`; shape (n,)."""
    from scipy.special import ndtr

    form, arrays = kernel(marginal)
    return np.asarray(quantile(form, arrays, ndtr(z), z, np, _ndtri))


def scores(marginal: Marginal, values: Sequence[float] | np.ndarray) -> np.ndarray:
    r"""Normal scores :math:`\Phi^{-1}(F(x))` of values, infinite beyond the ends of the table; shape (n,)."""
    z = np.linspace(-TABLE_Z, TABLE_Z, TABLE_SIZE)
    table = at_scores(marginal, z)
    x = np.asarray(values, dtype=float)
    return np.where(x < table[0], -np.inf, np.where(x > table[-1], np.inf, np.interp(x, table, z)))


# ---- from what people state to a marginal ------------------------------------------------------------------------


class StatementError(ValueError):
    """A statement about an input is no distribution; the text says why and what to write instead."""


def working_scale(quantity: Quantity, value: float) -> float:
    """Map a value to the scale on which two quantiles define a normal distribution.

    Raises
    ------
    StatementError
        The value is at or beyond the end of the scale.
    """
    if quantity.scale == "logit":
        if not 0 < value < 1:
            raise StatementError(_end_of_scale(quantity, value))
        return float(np.log(value / (1 - value)))
    shift = 1.0 if quantity.scale == "log_above_one" else 0.0
    if value <= shift:
        raise StatementError(_end_of_scale(quantity, value))
    return float(np.log(value - shift))


def _end_of_scale(quantity: Quantity, value: float) -> str:
    return (
        f"{value:g} cannot be a quantile: {quantity.name} never reaches it. "
        f"State a value inside, or a distribution that ends there: {{dist: uniform, low: ..., high: ...}}."
    )


def from_quantiles(quantity: Quantity, first: tuple[float, float], second: tuple[float, float]) -> Marginal:
    """Return the two-parameter distribution with two given quantiles.

    It is logit-normal for shares, lognormal above 1 for ratios that start there, and lognormal otherwise.

    Parameters
    ----------
    quantity : Quantity
    first, second : (probability, value)

    Raises
    ------
    StatementError
        The values are not increasing, or one lies at the end of the scale.
    """
    (p1, x1), (p2, x2) = sorted((first, second))
    if not x1 < x2:
        raise StatementError(f"{x1:g} must be below {x2:g}.")
    y1, y2 = working_scale(quantity, x1), working_scale(quantity, x2)
    sigma = (y2 - y1) / (_NORMAL.inv_cdf(p2) - _NORMAL.inv_cdf(p1))
    mu = y1 - sigma * _NORMAL.inv_cdf(p1)
    if quantity.scale == "logit":
        return Marginal("logit_normal", {"mu": mu, "sigma": sigma})
    shift = 1.0 if quantity.scale == "log_above_one" else 0.0
    return Marginal("lognormal", {"mu": mu, "sigma": sigma, "shift": shift})


def checked(marginal: Marginal) -> Marginal:
    """Return the marginal if its parameters define a distribution.

    Raises
    ------
    StatementError
        A parameter is missing, not finite, or out of range.
    """
    family, p = marginal
    for name in PARAMETERS[family]:
        if name not in p and name not in _DEFAULTS.get(family, {}) and name != "weights":
            raise StatementError(f"{family} needs {', '.join(PARAMETERS[family])}; {name} is missing.")
    for name, value in p.items():
        if not np.all(np.isfinite(np.asarray(value, dtype=float))):
            raise StatementError(f"{name} must be a finite number.")
    for name in ("sd", "sigma", "scale", "a", "b", "shape", "df"):
        if name in p and not p[name] > 0:
            raise StatementError(f"{name} is {p[name]:g} and must be above 0.")
    if "low" in p and "high" in p and not p["low"] < p["high"]:
        raise StatementError(f"low ({p['low']:g}) must be below high ({p['high']:g}).")
    if "mode" in p and not p["low"] <= p["mode"] <= p["high"]:
        raise StatementError(f"mode ({p['mode']:g}) must lie between low ({p['low']:g}) and high ({p['high']:g}).")
    if family == "log_uniform" and p["low"] <= 0:
        raise StatementError(f"low is {p['low']:g}; log_uniform needs it above 0.")
    _check_shape(family, p)
    return marginal


def _check_shape(family: str, p: Mapping[str, Any]) -> None:
    """Refuse shapes whose quantiles float64 cannot tell apart."""
    for name in ("a", "b", "shape", "df"):
        if name in p and not 1e-3 <= p[name] <= 1e6:
            raise StatementError(f"{name} is {p[name]:g}; use a value between 0.001 and 1e6.")
    if family == "truncated_normal":
        inside = _NORMAL.cdf((p["high"] - p["mean"]) / p["sd"]) - _NORMAL.cdf((p["low"] - p["mean"]) / p["sd"])
        if inside < 1e-6:
            raise StatementError(f"this normal has no mass between {p['low']:g} and {p['high']:g}.")


# ---- fitted priors -----------------------------------------------------------------------------------------------


class Facts(NamedTuple):
    """What a scenario says about itself, as fitted priors ask for it.

    Attributes
    ----------
    ladders : dict of str to tuple of str
        From most specific to most general, e.g. ``{"region": ("US-CA", "US", "WORLD")}``; unstated facts are absent.
    covariates : dict of str to float
        Numbers for regressions.
    year : int or None
        Year of the run.
    """

    ladders: dict[str, tuple[str, ...]]
    covariates: dict[str, float]
    year: int | None = None


# The second step of the ladder of accelerators is the same chip in another form: prices know no finer one.
_NEAR = {"accelerator": 1}


class Selection(NamedTuple):
    """The population chosen for a scenario.

    Attributes
    ----------
    population : dict
        As in ``fit.json``.
    marginal : Marginal
    missed : tuple of str
        Facts of the scenario for which the data knew only something more general, as "region=US-WY".
    """

    population: dict[str, Any]
    marginal: Marginal
    missed: tuple[str, ...]


def select(fit: Mapping[str, Any], facts: Facts) -> Selection:
    """Choose the most specific population of a fitted prior that a scenario belongs to.

    Populations are ranked by how near each of their facts is to the scenario's, in the order of the prior's ladder.

    Raises
    ------
    StatementError
        No population matches, for instance a carbon basis for which there are no data.
    """
    ladder = fit["ladder"]
    years = _years_by_nearness(facts.year, fit) if "year" in ladder else []
    ranked = []
    for population in fit["populations"]:
        where = population["where"]
        found = [rank for key in ladder if (rank := _rank(key, where, facts, years)) is not None]
        if set(where) <= set(ladder) and len(found) == len(ladder):
            ranked.append((tuple(found), population))
    if not ranked:
        stated = ", ".join(f"{key}={steps[0]}" for key, steps in facts.ladders.items() if key in ladder)
        raise StatementError(f"the prior of {fit['quantity']} has no data for {stated}. State a value.")
    ranks, population = min(ranked, key=lambda pair: pair[0])
    missed = tuple(
        f"{key}={facts.ladders[key][0]}"
        for key, rank in zip(ladder, ranks, strict=True)
        if rank > _NEAR.get(key, 0) and facts.ladders.get(key) and key != "year"
    )
    return Selection(population, predict(population, facts.covariates), missed)


def _rank(key: str, where: Mapping[str, str], facts: Facts, years: Sequence[int]) -> int | None:
    """Rank a population by one fact: 0 is nearest, None is no match."""
    last = 1000
    if key not in where:
        return last
    if key == "year":
        return years.index(int(where["year"]))
    steps = facts.ladders.get(key, ())
    return steps.index(where[key]) if where[key] in steps else None


def _years_by_nearness(wanted: int | None, fit: Mapping[str, Any]) -> list[int]:
    """Order years: the newest that is not after the run, then older ones, then the future nearest first."""
    years = sorted({int(p["where"]["year"]) for p in fit["populations"] if "year" in p["where"]}, reverse=True)
    if wanted is None:
        return years
    return [y for y in years if y <= wanted] + sorted(y for y in years if y > wanted)


def predict(population: Mapping[str, Any], covariates: Mapping[str, float]) -> Marginal:
    r"""Return the distribution of a new member of a population.

    A regression population has, on its working scale, mean :math:`x^\top \beta` and variance
    :math:`x^\top V x + \sigma^2`.

    Raises
    ------
    StatementError
        The regression needs a covariate that the scenario does not have.
    """
    parameters = population["parameters"]
    if "regression" not in parameters:
        return Marginal(population["family"], parameters)
    fitted = parameters["regression"]
    x = np.array([_covariate(term, covariates) for term in fitted["terms"]])
    mean = float(x @ np.asarray(fitted["coefficients"]))
    variance = float(x @ np.asarray(fitted["covariance"]) @ x) + fitted["residual_sd"] ** 2
    extra = {name: value for name, value in parameters.items() if name != "regression"}
    return Marginal(population["family"], {"mu": mean, "sigma": float(np.sqrt(variance)), **extra})


def epistemic_share(population: Mapping[str, Any], covariates: Mapping[str, float]) -> float | None:
    r"""Share of a new member's variance that a better-known population would remove; None where it is not known.

    That of a regression is :math:`x^\top V x / (x^\top V x + \sigma^2)`, see `predict`.
    """
    if "regression" in population["parameters"]:
        fitted = population["parameters"]["regression"]
        x = np.array([_covariate(term, covariates) for term in fitted["terms"]])
        unknown = float(x @ np.asarray(fitted["covariance"]) @ x)
        return unknown / (unknown + float(fitted["residual_sd"]) ** 2)
    share: float | None = population.get("epistemic_share")
    return share


def _covariate(term: str, covariates: Mapping[str, float]) -> float:
    if term == "intercept":
        return 1.0
    if "=" in term:
        # Indicators of levels that are not the scenario's are zero; the level itself is in the covariates.
        return covariates.get(term, 0.0)
    if term not in covariates:
        raise StatementError(f"the fitted prior needs {term}, which is not known here. State a value.")
    return covariates[term]
