r"""Simulation-based calibration of `gpustack_mc.fits.hierarchy`.

Spreads, effects, rows and one new member are drawn from the program; the program is sampled on the rows; the rank of
each true value among independent posterior draws is uniform if, and only if on average, the sampler and what is done
with its draws are right.

References
----------
Talts et al. (2018), Validating Bayesian inference algorithms with simulation-based calibration, arXiv:1804.06788.
Sailynoja, Burkner & Vehtari (2022), Graphical test for discrete uniformity, Statistics and Computing 32.
"""

import warnings
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from arviz_stats.ecdf_utils import ecdf_pit
from numpyro.handlers import seed, trace
from scipy import stats

from gpustack_mc.fits import hierarchy
from gpustack_mc.fits.hierarchy import Arrays, Problem
from gpustack_mc.fits.members import Member, mixture

BAND = 0.99  # simultaneous over the ranks of one quantity
UNLIKELY = 0.01  # probability of so many quantities outside their bands below which a program is not calibrated


def drawn(problem: Problem, key: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Standard deviations, effects and rows from the program itself.

    Returns
    -------
    s : ndarray, shape (j,)
    b : ndarray, shape (k,)
    y : ndarray, shape (n,)
    """
    data = hierarchy.arrays(problem)
    with jax.enable_x64(True):
        first, second = jax.random.split(key)
        given = hierarchy.priors(problem.spreads)
        sites = trace(seed(lambda: hierarchy.model(data, given), first)).get_trace()
        s = np.asarray(sites["s"]["value"])
        normal = np.asarray(jax.random.normal(second, (sum(data.design.shape),)))
    k = data.design.shape[1]
    b = data.mean + (data.fixed_sd + data.own_sd @ s) * normal[:k]
    noise = np.sqrt(data.variance + data.noise @ s**2)
    return s, b, data.design @ b + data.shift @ s + noise * normal[k:]


def ranks(problem: Problem, member: Member, *, replications: int = 200, warmup: int = 400, samples: int = 300,
          thin: int = 3, seed_: int = 0) -> dict[str, np.ndarray]:  # fmt: skip
    """Share of posterior draws below the truth, for each spread, effect, and a new member.

    All replications run side by side in one compiled program.

    Parameters
    ----------
    problem : Problem
        Its rows give the design; their values are not used.
    member : Member
        A new member, of which the predictive is checked.
    replications, warmup, samples, thin : int
    seed_ : int

    Returns
    -------
    dict of str to ndarray, shape (replications,)
    """
    data = hierarchy.arrays(problem)
    keys = jax.random.split(jax.random.key(seed_), 2 * replications)
    truths = [drawn(problem, key) for key in keys[:replications]]
    fewer = hierarchy.reduced(data)
    given = hierarchy.priors(problem.spreads)
    rows, effects = fewer.design.shape
    sizes = hierarchy.Sizes(rows, effects, len(problem.spreads))

    def one(key: Any, y: Any) -> Any:
        run = hierarchy.chain.__wrapped__(sizes, given.parent.size > 0, warmup, samples, 1)
        run.run(key, fewer._replace(y=y), given)
        return run.get_samples()["s"]

    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some donated buffers")  # a matter of memory only
        found = np.asarray(jax.vmap(one)(keys[replications:], np.stack([y for *_, y in truths])))[:, ::thin]
    rng = np.random.default_rng(seed_)
    lines: list[dict[str, float]] = []
    for (s, b, y), draws in zip(truths, found, strict=True):
        lines.append(_ranks(problem, data._replace(y=y), (s, b), draws, member, rng))
    return {name: np.array([line[name] for line in lines]) for name in lines[0]}


def _ranks(problem: Problem, data: Arrays, truth: tuple[np.ndarray, np.ndarray], draws: np.ndarray, member: Member,
           rng: np.random.Generator) -> dict[str, float]:  # fmt: skip
    s, b = truth
    posterior = hierarchy.posterior_of(problem, data, draws, {}, 0)
    effects = posterior.mean + np.einsum("skq,sq->sk", posterior.root, rng.standard_normal(posterior.mean.shape))
    known = hierarchy.Posterior({}, s[None], b[None], np.zeros((1, len(b), len(b))), posterior.effects,
                                posterior.spreads, 0)  # fmt: skip
    truth_of = mixture(known, member)
    new = truth_of.mean[0] + np.sqrt(truth_of.run[0]) * rng.standard_normal()
    line = {name: _rank(draws[:, i], s[i], rng) for i, name in enumerate(problem.spreads)}
    line |= {name: _rank(effects[:, i], b[i], rng) for i, name in enumerate(problem.effects)}
    return line | {"a new member": float(mixture(posterior, member).cdf(np.array([new]))[0])}


def _rank(draws: np.ndarray, value: float, rng: np.random.Generator) -> float:
    """Rank in (0, 1), spread evenly over its step so that it is continuous."""
    return float((np.sum(draws < value) + rng.uniform()) / (len(draws) + 1))


def bands(found: Mapping[str, np.ndarray], seed_: int = 0) -> dict[str, dict[str, Any]]:
    """ECDF of the ranks against its simultaneous band.

    Returns
    -------
    dict
        Per quantity ``x``, ``ecdf``, ``low``, ``high``, and ``inside``: whether the ECDF stays in the band.
    """
    result = {}
    for name, values in found.items():
        x, ecdf, low, high = ecdf_pit(values, BAND, 2000, rng=np.random.default_rng(seed_))
        inside = bool(np.all((ecdf >= low) & (ecdf <= high)))
        result[name] = {"x": x, "ecdf": ecdf, "low": low, "high": high, "inside": inside}
    return result


def by_chance(outside: int, quantities: int) -> float:
    """Probability that at least so many quantities of a calibrated program leave their bands.

    Binomial, as if the quantities were independent. They share replications, so that those that trade off with each
    other leave together: several outside that speak of one thing are weaker evidence than the number says.
    """
    return float(stats.binom.sf(outside - 1, quantities, 1 - BAND))
