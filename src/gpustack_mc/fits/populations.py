r"""What a fit returns, and the predictive distributions that small samples support.

A prior is a list of populations. Each says whom it describes (``where``), with how many rows, and which
distribution a *new* member of that population has. A scenario takes the most specific population that it matches.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats


class Population(NamedTuple):
    """One population of a prior, as stored in ``fit.json``.

    Attributes
    ----------
    where : dict of str to str
        Facts that a scenario must have, e.g. ``{"region": "US-CA"}``; a fact that is not named may be anything.
    label : str
        Plain words for the reader: what was pooled, from where, of which years.
    family : str
        Name of the distribution, as in a scenario's ``dist``.
    parameters : dict
        Parameters of the family in the unit of the quantity; or ``{"regression": {...}}``, with ``terms``,
        ``coefficients``, ``covariance`` and ``residual_sd`` on the working scale, see `gpustack_mc.priors.predict`.
    n : int
        Rows used.
    rows : list of str
        Their ``id`` in ``data.csv``.
    method : str
        How the parameters follow from the rows, in one line.
    sources : list of str
        Keys of the sources in ``prior.yaml``.
    years : list of int
        First and last year of the rows; empty when they carry none.
    match : dict of str to float, optional
        Of a population that was sampled: how far quantiles of `family` are from those of the predictive, over the
        width of its 5-95% band; between 5 and 95% (``inside``) and between 1 and 99% (``tails``).
    epistemic_share : float, optional
        Share of the variance, on the working scale, that would vanish if the population were known; the rest is how
        its members differ.
    """

    where: dict[str, str]
    label: str
    family: str
    parameters: dict[str, Any]
    n: int
    rows: list[str]
    method: str
    sources: list[str]
    years: list[int] = []  # noqa: RUF012 - never mutated
    match: dict[str, float] | None = None
    epistemic_share: float | None = None


class Fitted(NamedTuple):
    """What a sampled fit returns.

    Attributes
    ----------
    populations : list of Population
    checks : dict
        Diagnostics of the chains, posterior predictive checks and prior sensitivity.
    """

    populations: list[Population]
    checks: dict[str, Any]


class LogFit(NamedTuple):
    """Centre and spread, on the natural-log scale, of a new member of a population."""

    mu: float
    sigma: float
    n: int


def predictive_widening(n: float, freedom: float) -> float:
    r"""Factor from a sample's standard deviation to that of a normal with the predictive's 5-95% band.

    .. math:: \sqrt{1 + 1/n}\; t_{0.95,\, \nu} / z_{0.95}

    Parameters
    ----------
    n, freedom : float
        Effective size of the sample, and the degrees of freedom of its spread; both above 0.

    References
    ----------
    Gelman et al., Bayesian Data Analysis, 3rd ed., section 3.2 (predictive of a normal with unknown variance).
    """
    return math.sqrt(1 + 1 / n) * float(stats.t.ppf(0.95, freedom) / stats.norm.ppf(0.95))


def predictive_log_normal(
    values: Sequence[float], *, weights: Sequence[float] | None = None, shift: float = 0.0,
    prior_sd: float | None = None, prior_weight: float = 0.0,
) -> LogFit:  # fmt: skip
    r"""Lognormal whose 5-95% band equals that of the Student-t predictive for a new draw.

    With :math:`y_i = \log(x_i - s)`, weights :math:`w_i`, the effective size :math:`n = (\sum w)^2 / \sum w^2` and
    an optional prior spread :math:`\sigma_0` worth :math:`\nu_0` observations,

    .. math::
        s^2 = \frac{(n-1) s_y^2 + \nu_0 \sigma_0^2}{n - 1 + \nu_0}, \qquad
        \sigma = s \sqrt{1 + 1/n}\; \frac{t_{0.95,\, n-1+\nu_0}}{z_{0.95}} .

    A handful of rows thus gives a wide band, not a confident one.

    Parameters
    ----------
    values : sequence of float
        Observations above `shift`, in the unit of the quantity.
    weights : sequence of float, optional
        Relative weights, e.g. 0.5 for a second-hand row. Equal when omitted.
    shift : float
        Lower end of the support.
    prior_sd, prior_weight : float, optional
        Spread expected from like populations, and how many observations it is worth.

    Returns
    -------
    LogFit

    Raises
    ------
    ValueError
        No value, a value at or below `shift`, or too few values to have a spread.

    References
    ----------
    Gelman et al., Bayesian Data Analysis, 3rd ed., section 3.2 (predictive of a normal with unknown variance).
    """
    x = np.asarray(values, dtype=float)
    if x.size == 0 or not np.all(np.isfinite(x)) or np.any(x <= shift):
        raise ValueError(f"values must be finite and above {shift}, got {list(values)}")
    w = np.ones_like(x) if weights is None else np.asarray(weights, dtype=float)
    y = np.log(x - shift)
    n = float(w.sum() ** 2 / (w**2).sum())
    mu = float(np.average(y, weights=w))
    freedom = n - 1 + prior_weight
    if freedom <= 0:
        raise ValueError("one value has no spread: give prior_sd and prior_weight")
    within = float(np.average((y - mu) ** 2, weights=w)) * n
    pooled = (within + prior_weight * (prior_sd or 0.0) ** 2) / freedom
    return LogFit(mu, math.sqrt(pooled) * predictive_widening(n, freedom), int(x.size))


def log_means(rows: Sequence[dict[str, str]], group: str, value: str) -> dict[str, float]:
    """Geometric mean of a column within each group of rows, by the name of the group, sorted."""
    return {
        name: float(np.exp(np.mean([np.log(float(row[value])) for row in rows if row[group] == name])))
        for name in sorted({row[group] for row in rows})
    }


def evidence(rows: Sequence[dict[str, str]]) -> dict[str, Any]:
    """``n``, ``rows`` and ``sources`` of a population that uses `rows` of ``data.csv``."""
    return {
        "n": len(rows),
        "rows": [row["id"] for row in rows],
        "sources": sorted({row["source"] for row in rows}),
    }


def sixteen_bit_peak(fitted: dict[str, Any]) -> dict[str, Any]:
    r"""Add the term ``fp8`` so that a regression on 16-bit peaks also serves scenarios with an fp8 peak.

    A scenario supplies :math:`\log_{10}` of the peak at its own precision, which is twice as high in fp8; hence
    :math:`\log_{10} P_{16} = \log_{10} P - \log_{10} 2\,[\mathrm{fp8}]`, a linear map of the coefficients.
    """
    terms = fitted["terms"]
    to_new = np.vstack([np.eye(len(terms)), np.zeros(len(terms))])
    to_new[-1, terms.index("log10_peak_tflops")] = -np.log10(2)
    covariance = to_new @ np.asarray(fitted["covariance"]) @ to_new.T
    return fitted | {
        "terms": [*terms, "fp8"],
        "coefficients": [float(value) for value in to_new @ np.asarray(fitted["coefficients"])],
        "covariance": [[float(value) for value in row] for row in covariance],
    }
