r"""New members of populations: predictive distributions of `gpustack_mc.fits.hierarchy`, as stored in ``fit.json``.

The predictive of a new member is a mixture of normals on the working scale, one per draw. It is stored as the normal
with its median and the width of its 5-95% band, that is a lognormal or logit-normal of the quantity. `match` says how
far the stored distribution is from the mixture; where it is farther than `MAXIMAL_MISMATCH`, the mixture's own
quantiles are stored as a table.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special, stats

from gpustack_mc.arrays import Floats
from gpustack_mc.fits.hierarchy import Posterior
from gpustack_mc.fits.populations import Population, evidence, sixteen_bit_peak
from gpustack_mc.priors import TABLE_SIZE, TABLE_Z

Z95 = float(stats.norm.ppf(0.95))
INSIDE = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
MAXIMAL_MISMATCH = 0.05  # of the width of the 5-95% band, anywhere inside it


class Member(NamedTuple):
    """A new member of one population.

    Attributes
    ----------
    effects : dict of str to float
        Multipliers of effects, as in `gpustack_mc.fits.hierarchy.Row`.
    noise : dict of str to float
        Multipliers of the variances by which members differ from their population.
    variance : float
        Known variance to be added.
    weight : float
        In a mixture of several kinds of member.
    center : float
        What is added to the mean: the reported figure of a region, which is not an effect of the program.
    unknown : dict of str to float
        Multipliers of variances by which the population may differ from what was reported of it, such as the years
        since: they would vanish if it were known.
    """

    effects: dict[str, float]
    noise: dict[str, float]
    variance: float = 0.0
    weight: float = 1.0
    center: float = 0.0
    unknown: dict[str, float] = {}  # noqa: RUF012 - never mutated


class Mixture(NamedTuple):
    """Mixture of normals; `mean`, `known` and `run` of shape (components,), weights add up to one.

    `known` is the variance of what is not known about the population given the spreads, `run` that between members.
    """

    mean: Floats
    known: Floats
    run: Floats
    weight: Floats

    def cdf(self, y: Floats) -> Floats:
        """Distribution function at `y`, shape (points,)."""
        z = (np.asarray(y)[:, None] - self.mean) / np.sqrt(self.known + self.run)
        return special.ndtr(z) @ self.weight

    def quantile(self, p: Sequence[float] | Floats) -> Floats:
        """Quantiles by bisection, to 1e-10 of the spread."""
        sd = np.sqrt(self.known + self.run)
        low: Floats = np.full(len(p), np.min(self.mean - 9 * sd))
        high: Floats = np.full(len(p), np.max(self.mean + 9 * sd))
        for _ in range(60):
            middle = (low + high) / 2
            below = self.cdf(middle) < np.asarray(p)
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return (low + high) / 2

    def log_density(self, y: float) -> float:
        """Log density at one value."""
        variance = self.known + self.run
        return float(special.logsumexp(-0.5 * (np.log(2 * np.pi * variance) + (y - self.mean) ** 2 / variance),
                                       b=self.weight))  # fmt: skip

    def epistemic_share(self) -> float:
        """Share of the variance that would vanish if the population were known."""
        center = self.mean @ self.weight
        unknown = (self.known + (self.mean - center) ** 2) @ self.weight
        return float(unknown / (unknown + self.run @ self.weight))


class Match(NamedTuple):
    """Normal that stands for a mixture.

    Attributes
    ----------
    mu, sigma : float
    inside, tails : float
        Largest distance of a quantile, between 5 and 95% and between 1 and 99%, over the width of the 5-95% band.
    """

    mu: float
    sigma: float
    inside: float
    tails: float


def mixture(posterior: Posterior, members: Member | Sequence[Member]) -> Mixture:
    """Predictive of a new member, or of one of several kinds of member, with `Member.weight`."""
    members = [members] if isinstance(members, Member) else list(members)
    total = sum(member.weight for member in members)
    parts = [_one(posterior, member) for member in members]
    draws = len(posterior.s)
    weights = [np.full(draws, member.weight / total / draws) for member in members]
    mean, known, run = (np.concatenate(values) for values in zip(*parts, strict=True))
    return Mixture(mean, known, run, np.concatenate(weights))


def _one(posterior: Posterior, member: Member) -> tuple[Floats, Floats, Floats]:
    a = np.zeros(len(posterior.effects))
    for name, value in member.effects.items():
        a[posterior.effects.index(name)] += value
    m, u = np.zeros(len(posterior.spreads)), np.zeros(len(posterior.spreads))
    for target, given in ((m, member.noise), (u, member.unknown)):
        for name, value in given.items():
            target[posterior.spreads.index(name)] += value
    known = np.square(np.einsum("k,skq->sq", a, posterior.root)).sum(axis=1) + posterior.s**2 @ u
    return posterior.mean @ a + member.center, known, posterior.s**2 @ m + member.variance


def match(found: Mixture) -> Match:
    """Normal with the median and the width of the 5-95% band of a mixture, and how close it is."""
    points = (0.01, *INSIDE, 0.99)
    exact = found.quantile(points)
    low, mu, high = exact[1], exact[1 + INSIDE.index(0.5)], exact[-2]
    sigma = (high - low) / (2 * Z95)
    gap = np.abs(mu + sigma * stats.norm.ppf(points) - exact) / (high - low)
    return Match(float(mu), float(sigma), float(gap[1:-1].max()), float(gap.max()))


def table(found: Mixture) -> Floats:
    """Quantiles of a mixture at the points of a tabulated marginal, on the working scale."""
    z = np.linspace(-TABLE_Z, TABLE_Z, TABLE_SIZE)
    few = np.linspace(-TABLE_Z, TABLE_Z, 129)
    return np.interp(z, few, found.quantile(special.ndtr(few)))


class Scale(NamedTuple):
    """Working scale of a quantity between `low` and `high`: log of the distance to `low`, or logit.

    Attributes
    ----------
    low : float
    high : float
        Infinite for the log.
    """

    low: float = 0.0
    high: float = math.inf

    def forward(self, value: float) -> float:
        """From the quantity to the working scale."""
        above = math.log(value - self.low)
        return above if math.isinf(self.high) else above - math.log(self.high - value)

    def back(self, y: Floats) -> Floats:
        """From the working scale to the quantity."""
        y = np.asarray(y, dtype=float)
        return self.low + (np.exp(y) if math.isinf(self.high) else (self.high - self.low) * special.expit(y))

    def marginal(self, mu: float, sigma: float) -> tuple[str, dict[str, Any]]:
        """Family and parameters, as in ``fit.json``."""
        if math.isinf(self.high):
            return "lognormal", {"mu": mu, "sigma": sigma, **({"shift": self.low} if self.low else {})}
        return "logit_normal", {"mu": mu, "sigma": sigma, "low": self.low, "high": self.high}


LOG = Scale()


def stored(found: Mixture, scale: Scale = LOG) -> dict[str, Any]:
    """``family``, ``parameters``, ``match`` and ``epistemic_share`` of a population."""
    normal = match(found)
    family, parameters = scale.marginal(normal.mu, normal.sigma)
    if normal.inside > MAXIMAL_MISMATCH:
        family, parameters = "tabulated", {"values": [float(value) for value in scale.back(table(found))]}
    return {
        "family": family,
        "parameters": parameters,
        "match": {"inside": round(normal.inside, 4), "tails": round(normal.tails, 4)},
        "epistemic_share": round(found.epistemic_share(), 3),
    }


def population(
    posterior: Posterior, members: Member | Sequence[Member], scale: Scale, rows: Sequence[dict[str, str]], *,
    where: dict[str, str], label: str, method: str, years: Sequence[int] = (),
) -> Population:  # fmt: skip
    """Population of new members, from `rows` of ``data.csv``; `years` are those of the rows."""
    return Population(
        where=where, label=label, method=method, years=[min(years), max(years)] if years else [], **evidence(rows),
        **stored(mixture(posterior, members), scale),
    )  # fmt: skip


def regression_population(
    posterior: Posterior, terms: Mapping[str, float], new: Member, rows: Sequence[dict[str, str]], *,
    cases: Sequence[Mapping[str, float]], where: dict[str, str], label: str, method: str, peak: bool = False,
    years: Sequence[int] = (),
) -> Population:  # fmt: skip
    r"""Population that a scenario's covariates place: mean :math:`x^\top\beta`, variance :math:`x^\top V x + \sigma^2`.

    :math:`\beta` and :math:`V` are mean and covariance of the slopes over the draws; :math:`\sigma` is chosen so that
    the widths of the 5-95% bands at `cases` are, on average, those of the mixture. ``match`` is the worst of them.

    Parameters
    ----------
    posterior : Posterior
    terms : mapping of str to float
        Effects that are the intercept and slopes, and what the program subtracts from their covariates.
    new : Member
        Effects besides the terms, and noise, of a new member.
    rows : sequence of mapping
    cases : sequence of mapping of str to float
        Covariates, as the program has them, at which the match is made.
    peak : bool
        Slopes are on 16-bit peaks; add the term that serves scenarios with an fp8 peak.
    where, label, method, years
        As in `Population`.
    """
    index = [posterior.effects.index(name) for name in terms]
    means, roots = posterior.mean[:, index], posterior.root[:, index, :]
    other = np.zeros(len(posterior.effects))
    for name, value in new.effects.items():
        other[posterior.effects.index(name)] = value
    # The general mean of what is new joins the intercept, so that its uncertainty and covariance are kept.
    means = means + np.eye(len(index))[0] * (posterior.mean @ other + new.center)[:, None]
    roots = roots + np.eye(len(index))[0][:, None] * np.einsum("k,skq->sq", other, posterior.root)[:, None, :]
    beta = means.mean(axis=0)
    covariance = np.einsum("siq,sjq->ij", roots, roots) / len(roots) + np.cov(means.T, bias=True)
    worst, residual = [], []
    for case in cases:
        x = np.array([case[name] for name in terms])
        member = new._replace(effects={**new.effects, **{name: case[name] for name in terms}})
        normal = match(mixture(posterior, member))
        residual.append(normal.sigma**2 - x @ covariance @ x)
        worst.append(normal)
    # from covariates less their reference to plain ones
    plain = np.eye(len(index))
    plain[0, 1:] = -np.array(list(terms.values()))[1:]
    fitted = {
        "terms": list(terms),
        "coefficients": [float(value) for value in plain @ beta],
        "covariance": (plain @ covariance @ plain.T).tolist(),
        "residual_sd": float(np.sqrt(np.mean(residual))),
    }
    return Population(
        where=where, label=label, family="lognormal",
        parameters={"regression": sixteen_bit_peak(fitted) if peak else fitted}, method=method,
        years=[min(years), max(years)] if years else [],
        match={"inside": round(max(m.inside for m in worst), 4), "tails": round(max(m.tails for m in worst), 4)},
        **evidence(rows),
    )  # fmt: skip
