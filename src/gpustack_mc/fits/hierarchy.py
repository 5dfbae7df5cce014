r"""The program behind the fitted priors: rows of members of populations that form a tree.

On the working scale of the quantity (log, logit, or log above one) row :math:`i` is

.. math::
    y_i &= \sum_k A_{ik} b_k + \sum_j O_{ij} s_j + e_i, \qquad
        e_i \sim N\Big(0,\; f_i + \sum_j M_{ij} s_j^2\Big), \\
    b_k &\sim N(m_k, t_k^2), \qquad t_k = \text{a number, or one of the } s_j .

Effects :math:`b` are what rows share: the general mean, the departures of the levels of the tree (region from
country, accelerator from generation, class of operators from all) whose spread :math:`s_j` is estimated, so that a
level with few rows borrows from its parent; members with several rows; slopes. The standard deviations :math:`s` have
one of three priors,

.. math::
    s_j \sim \mathrm{HalfNormal}(c_j), \qquad
    s_j^2 \sim \mathrm{Inv\text{-}}\chi^2(\nu_j, c_j^2), \qquad
    \log s_j = \log s_{p(j)} + \omega z_j,\; z_j \sim N(0, 1),\; \omega \sim \mathrm{HalfNormal}(c_j);

the second is worth :math:`\nu_j` observations of spread :math:`c_j`, the third pools the spreads of populations.
:math:`M` holds, for instance, 2 for a row that counts by half, or the years since a value was measured; :math:`O`
shifts a row by so many standard deviations, as for the best of many sites.

Given :math:`s` everything is normal, so that :math:`b` is integrated out of the density that NUTS samples (`model`),
and is put back exactly (`condition`). Rows whose noise is alike in all :math:`s` share a term of :math:`A^\top D^{-1}
A = \sum_g A_g^\top A_g / d_g`, worked out once (`MarginalRows`). A new member with weights :math:`a, m` and known
variance :math:`v` is, over the draws, a mixture of

.. math:: N\big(a^\top \hat b_s,\; a^\top V_s a + \textstyle\sum_j m_j s_j^2 + v\big).

References
----------
Gelman & Hill (2007), Data Analysis Using Regression and Multilevel/Hierarchical Models, chapters 12-13.
Gelman (2006), Prior distributions for variance parameters, Bayesian Analysis 1(3).
"""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS

WARMUP, SAMPLES, CHAINS = 400, 800, 4
TARGET_ACCEPT = 0.98  # spreads near zero make the density steep
_CHUNK = 20_000_000  # numbers held at once while effects are put back
WIDE = 10.0  # prior standard deviation of a general mean on a log or logit scale: no information


class Spread(NamedTuple):
    r"""Prior of one standard deviation.

    Attributes
    ----------
    kind : {"half_normal", "inverse_chi2", "pooled"}
    scale : float
        Scale of the half-normal; the expected standard deviation; or the scale of :math:`\omega`.
    weight : float
        Observations that an expected standard deviation is worth.
    parent : str
        Of a pooled one.
    """

    kind: Literal["half_normal", "inverse_chi2", "pooled"]
    scale: float
    weight: float = 0.0
    parent: str = ""


def half_normal(scale: float) -> Spread:
    """Spread that may be zero, and of which no more than its order is expected."""
    return Spread("half_normal", scale)


def expected(sd: float, weight: float) -> Spread:
    """Spread expected to be `sd`, worth `weight` observations."""
    return Spread("inverse_chi2", sd, weight)


def pooled(parent: str, scale: float) -> Spread:
    """Spread of one population around that of its like."""
    return Spread("pooled", scale, parent=parent)


class Effect(NamedTuple):
    """Prior of one shared effect; `sd` is a number or the name of a spread."""

    sd: float | str
    mean: float = 0.0


class Row(NamedTuple):
    """One observation on the working scale.

    Attributes
    ----------
    y : float
    effects : dict of str to float
        Multipliers of effects.
    noise : dict of str to float
        Multipliers of variances, by spread.
    unit : str
        What is left out together when predictions are scored, usually a member.
    ids : tuple of str
        Rows of ``data.csv`` that it stands for.
    variance : float
        Known variance of the noise.
    shift : dict of str to float
        Multipliers of spreads in the mean.
    """

    y: float
    effects: dict[str, float]
    noise: dict[str, float]
    unit: str = ""
    ids: tuple[str, ...] = ()
    variance: float = 0.0
    shift: dict[str, float] = {}  # noqa: RUF012 - never mutated


class Problem(NamedTuple):
    """Rows, effects and spreads of one prior."""

    rows: list[Row]
    effects: dict[str, Effect]
    spreads: dict[str, Spread]


class Arrays(NamedTuple):
    """A problem as arrays, n rows, k effects and j spreads."""

    y: np.ndarray  # (n,)
    design: np.ndarray  # (n, k)
    mean: np.ndarray  # (k,)
    fixed_sd: np.ndarray  # (k,) 0 where the sd is a spread
    own_sd: np.ndarray  # (k, j) one-hot
    noise: np.ndarray  # (n, j)
    variance: np.ndarray  # (n,)
    shift: np.ndarray  # (n, j)
    gram: np.ndarray = np.zeros((0, 0, 0))  # (g, k, k) product of the design with itself over rows of equal noise
    first: np.ndarray = np.zeros(0, dtype=int)  # (g,) one row of each


def _with_gram(data: Arrays) -> Arrays:
    """Add `gram` and `first`."""
    patterns = np.column_stack([data.noise, data.variance])
    _, first, group = np.unique(patterns, axis=0, return_index=True, return_inverse=True)
    group = group.reshape(-1)
    parts = [data.design[group == g] for g in range(len(first))]
    return data._replace(gram=np.stack([part.T @ part for part in parts]), first=first)


def arrays(problem: Problem) -> Arrays:
    """Arrays of a problem.

    Raises
    ------
    KeyError
        A row names an effect or a spread that the problem does not have.
    """
    k = {name: i for i, name in enumerate(problem.effects)}
    j = {name: i for i, name in enumerate(problem.spreads)}
    n = len(problem.rows)
    design, noise, shift = np.zeros((n, len(k))), np.zeros((n, len(j))), np.zeros((n, len(j)))
    for i, row in enumerate(problem.rows):
        for target, index, given in ((design, k, row.effects), (noise, j, row.noise), (shift, j, row.shift)):
            for name, value in given.items():
                target[i, index[name]] += value
    own = np.zeros((len(k), len(j)))
    fixed = np.zeros(len(k))
    for i, effect in enumerate(problem.effects.values()):
        if isinstance(effect.sd, str):
            own[i, j[effect.sd]] = 1.0
        else:
            fixed[i] = effect.sd
    return _with_gram(Arrays(
        y=np.array([row.y for row in problem.rows]), design=design,
        mean=np.array([effect.mean for effect in problem.effects.values()]), fixed_sd=fixed, own_sd=own, noise=noise,
        variance=np.array([row.variance for row in problem.rows]), shift=shift,
    ))  # fmt: skip


def reduced(data: Arrays) -> Arrays:
    """The same density with fewer effects: one that a single row has, of mean zero, is noise of that row."""
    alone = (np.count_nonzero(data.design, axis=0) == 1) & (data.mean == 0)
    noise, variance = data.noise.copy(), data.variance.copy()
    for k in np.flatnonzero(alone):
        (i,) = np.flatnonzero(data.design[:, k])
        noise[i] += data.design[i, k] ** 2 * data.own_sd[k]
        variance[i] += (data.design[i, k] * data.fixed_sd[k]) ** 2
    keep = ~alone
    return _with_gram(data._replace(
        design=data.design[:, keep], mean=data.mean[keep], fixed_sd=data.fixed_sd[keep], own_sd=data.own_sd[keep],
        noise=noise, variance=variance,
    ))  # fmt: skip


class Priors(NamedTuple):
    r"""Priors of the standard deviations as arrays, so that one compiled program serves every problem of one size.

    Attributes
    ----------
    half : ndarray, shape (h,)
        Scales of the half-normal ones.
    concentration, rate : ndarray, shape (v,)
        Of the inverse gamma of the variances of the expected ones.
    omega : ndarray, shape (g,)
        Scales of :math:`\omega`, one per parent.
    parent, group : ndarray of int, shape (z,)
        Of the pooled ones: where the parent is among the half-normal and expected ones, and which :math:`\omega`.
    order : ndarray of int, shape (j,)
        Where each spread of the problem is among half-normal, expected and pooled ones.
    """

    half: np.ndarray
    concentration: np.ndarray
    rate: np.ndarray
    omega: np.ndarray
    parent: np.ndarray
    group: np.ndarray
    order: np.ndarray


class Sizes(NamedTuple):
    """Sizes to which a problem is padded."""

    rows: int
    effects: int
    spreads: int
    patterns: int = 1
    half: int = 4
    expected: int = 4
    parents: int = 2
    pooled: int = 8


def priors(spreads: Mapping[str, Spread], sizes: Sizes | None = None) -> Priors:
    """Priors of the spreads of a problem, padded to `sizes` with standard deviations that nothing uses."""
    kinds: dict[str, list[str]] = {"half_normal": [], "inverse_chi2": [], "pooled": []}
    for name, spread in spreads.items():
        kinds[spread.kind].append(name)
    half, known, own = kinds["half_normal"], kinds["inverse_chi2"], kinds["pooled"]
    parents = list(dict.fromkeys(spreads[name].parent for name in own))
    h = max(len(half), sizes.half if sizes else 1)
    v = max(len(known), sizes.expected if sizes else 1)
    g = max(len(parents), (sizes.parents if sizes else 1) if own else 0)
    z = max(len(own), sizes.pooled if sizes and own else 0)
    at = {name: i for i, name in enumerate(half)} | {name: h + i for i, name in enumerate(known)}
    at |= {name: h + v + i for i, name in enumerate(own)}
    weight = _padded([spreads[name].weight for name in known], v, 4.0)
    scale = _padded([spreads[name].scale for name in known], v, 1.0)
    j = max(len(spreads), sizes.spreads if sizes else 0)
    return Priors(
        half=_padded([spreads[name].scale for name in half], h, 1.0),
        concentration=weight / 2, rate=weight / 2 * scale**2,
        omega=_padded([next(s.scale for s in spreads.values() if s.parent == name) for name in parents], g, 1.0),
        parent=_padded([at[spreads[name].parent] for name in own], z, 0).astype(int),
        group=_padded([parents.index(spreads[name].parent) for name in own], z, 0).astype(int),
        order=_padded([at[name] for name in spreads], j, 0).astype(int),
    )  # fmt: skip


def _padded(values: Sequence[float], size: int, fill: float) -> np.ndarray:
    return np.array([*values, *[fill] * (size - len(values))], dtype=float)


_ROWS_AND_EFFECTS = ((32, 16), (64, 32), (192, 32), (128, 64), (384, 64), (384, 128))
_PATTERNS = 16  # rows of equal noise come in multiples of so many patterns


def sizes_of(data: Arrays, spreads: Mapping[str, Spread]) -> Sizes:
    """Smallest standard size that holds a problem; its own beyond the largest."""
    n, k = data.design.shape
    rows, effects = next((size for size in _ROWS_AND_EFFECTS if n <= size[0] and k <= size[1]), (n, k))
    pooled_ones = sum(spread.kind == "pooled" for spread in spreads.values())
    patterns = _PATTERNS * -(-len(data.first) // _PATTERNS)
    return Sizes(rows, effects, 16 if pooled_ones else 8, patterns)


def pad(data: Arrays, sizes: Sizes) -> Arrays:
    """Rows of known unit noise about nothing, effects that no row has, spreads that nothing uses."""
    n, k = data.design.shape
    more = (max(sizes.rows - n, 0), max(sizes.effects - k, 0), max(sizes.spreads - data.noise.shape[1], 0))

    def grown(array: np.ndarray, *axes: int) -> np.ndarray:
        return np.pad(array, [(0, more[axis]) for axis in axes])

    spare = max(sizes.patterns - len(data.first), 0)
    return Arrays(
        y=grown(data.y, 0), design=grown(data.design, 0, 1), mean=grown(data.mean, 1),
        fixed_sd=grown(data.fixed_sd, 1), own_sd=grown(data.own_sd, 1, 2), noise=grown(data.noise, 0, 2),
        variance=np.pad(data.variance, (0, more[0]), constant_values=1.0), shift=grown(data.shift, 0, 2),
        gram=np.pad(data.gram, [(0, spare), (0, more[1]), (0, more[1])]), first=np.pad(data.first, (0, spare)),
    )  # fmt: skip


def _spreads(given: Priors) -> Any:
    """Sample the standard deviations, in the order of the problem."""
    half = numpyro.sample("half", dist.HalfNormal(given.half).to_event(1))
    variance = numpyro.sample("variance", dist.InverseGamma(given.concentration, given.rate).to_event(1))
    found = jnp.concatenate([half, jnp.sqrt(variance)])
    if given.parent.shape[0]:
        omega = numpyro.sample("omega", dist.HalfNormal(given.omega).to_event(1))
        z = numpyro.sample("z", dist.Normal(jnp.zeros(given.parent.shape[0]), 1.0).to_event(1))
        found = jnp.concatenate([found, found[given.parent] * jnp.exp(omega[given.group] * z)])
    return numpyro.deterministic("s", found[given.order])


class MarginalRows(dist.Distribution):  # type: ignore[misc]  # numpyro has no types
    """Rows with their effects integrated out: a multivariate normal of covariance ``design t^2 design' + noise``.

    Parameters
    ----------
    data : Arrays
    location : array, shape (n,)
    effect_sd : array, shape (k,)
    noise : array, shape (n,)
        Variance.
    """

    support = dist.constraints.real_vector

    def __init__(self, data: Arrays, location: Any, effect_sd: Any, noise: Any) -> None:
        self.data, self.location, self.effect_sd, self.noise = data, location, effect_sd, noise
        super().__init__(event_shape=jnp.shape(location))

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Any:
        """Draw rows."""
        n, k = self.data.design.shape
        z = jax.random.normal(key, (*sample_shape, n + k))
        return self.location + (z[..., :k] * self.effect_sd) @ self.data.design.T + jnp.sqrt(self.noise) * z[..., k:]

    def log_prob(self, value: Any) -> Any:
        """Log density, by the matrix inversion lemma."""
        gap, t = value - self.location, self.effect_sd
        # one (patterns) x (k * k) product; as a sum over rows this would be the cost of the whole fit
        product = jnp.tensordot(1 / self.noise[self.data.first], self.data.gram, 1)
        lower = jnp.linalg.cholesky(jnp.eye(len(t)) + t[:, None] * product * t)
        pulled = t * ((gap / self.noise) @ self.data.design)
        whitened = jax.scipy.linalg.solve_triangular(lower, pulled, lower=True)
        squares = (gap**2 / self.noise).sum() - (whitened**2).sum()
        determinant = jnp.log(self.noise).sum() + 2 * jnp.log(jnp.diagonal(lower)).sum()
        return -0.5 * (squares + determinant + len(gap) * math.log(2 * math.pi))


def model(data: Arrays, given: Priors, observed: bool = True) -> None:
    """Generate the rows, as in the docstring of the module.

    Parameters
    ----------
    data : Arrays
    given : Priors
    observed : bool
        Condition on ``data.y``; False draws it.
    """
    s = _spreads(given)
    effect_sd = data.fixed_sd + data.own_sd @ s
    location = data.design @ data.mean + data.shift @ s
    noise = data.variance + data.noise @ s**2
    numpyro.sample("y", MarginalRows(data, location, effect_sd, noise), obs=data.y if observed else None)


class Posterior(NamedTuple):
    """Draws of a problem.

    Attributes
    ----------
    chains : dict of str to ndarray, shape (chains, draws, ...)
        Sampled sites, padded; ``s`` are the standard deviations.
    s : ndarray, shape (draws, j)
        Standard deviations, thinned.
    mean : ndarray, shape (draws, k)
        Mean of the effects given each draw of `s`.
    root : ndarray, shape (draws, k, k)
        Matrix whose product with its transpose is the covariance of the effects given `s`.
    effects, spreads : tuple of str
        Names along the axes.
    divergences : int
    """

    chains: dict[str, np.ndarray]
    s: np.ndarray
    mean: np.ndarray
    root: np.ndarray
    effects: tuple[str, ...]
    spreads: tuple[str, ...]
    divergences: int


@cache
def chain(sizes: Sizes, pooled_ones: bool, warmup: int, samples: int, chains: int) -> MCMC:
    """NUTS; data and priors are arguments, so that one compilation serves problems of one size."""
    kernel = NUTS(model, target_accept_prob=TARGET_ACCEPT, dense_mass=True)
    return MCMC(
        kernel, num_warmup=warmup, num_samples=samples, num_chains=chains, chain_method="vectorized",
        progress_bar=False, jit_model_args=True,
    )  # fmt: skip


def padded(problem: Problem) -> tuple[Arrays, Priors, Sizes]:
    """What is sampled: a problem with fewer effects, padded to a standard size."""
    data = reduced(arrays(problem))
    sizes = sizes_of(data, problem.spreads)
    return pad(data, sizes), priors(problem.spreads, sizes), sizes


def sample(problem: Problem, seed: int = 0, *, warmup: int = WARMUP, samples: int = SAMPLES, chains: int = CHAINS,
           kept: int = 1000) -> Posterior:  # fmt: skip
    """Posterior of a problem.

    Parameters
    ----------
    problem : Problem
    seed : int
    warmup, samples, chains : int
    kept : int
        Draws for which effects are worked out.
    """
    data, given, sizes = padded(problem)
    with jax.enable_x64(True):
        run = chain(sizes, given.parent.size > 0, warmup, samples, chains)
        run.run(jax.random.key(seed), data, given, extra_fields=("diverging",))
        found = {name: np.asarray(value) for name, value in run.get_samples(group_by_chain=True).items()}
        divergences = int(np.asarray(run.get_extra_fields()["diverging"]).sum())
    s = found["s"][..., : len(problem.spreads)].reshape(chains * samples, -1)
    pick = np.linspace(0, len(s) - 1, min(kept, len(s))).round().astype(int)
    return posterior_of(problem, arrays(problem), s[pick], found, divergences)


def posterior_of(problem: Problem, data: Arrays, s: np.ndarray, chains: dict[str, Any], divergences: int) -> Posterior:
    """Put the effects back to draws `s` of the standard deviations, shape (draws, j)."""
    mean, root = condition(data, s)
    return Posterior(chains, s, mean, root, tuple(problem.effects), tuple(problem.spreads), divergences)


def condition(data: Arrays, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Mean and covariance root of the effects, given each draw of the standard deviations.

    With :math:`T = \mathrm{diag}(t)` and :math:`D` the noise, :math:`V = T (I + T A^\top D^{-1} A T)^{-1} T`, which is
    well-conditioned also where a :math:`t` is zero.

    Parameters
    ----------
    data : Arrays
    s : ndarray, shape (draws, j)

    Returns
    -------
    mean : ndarray, shape (draws, k)
    root : ndarray, shape (draws, k, k)
    """
    step = max(1, _CHUNK // max(data.design.size, 1))
    parts = [_condition(data, s[start : start + step]) for start in range(0, len(s), step)]
    return np.concatenate([mean for mean, _ in parts]), np.concatenate([root for _, root in parts])


def _condition(data: Arrays, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    t = data.fixed_sd + s @ data.own_sd.T
    noise = data.variance + s**2 @ data.noise.T
    gap = data.y - data.design @ data.mean - s @ data.shift.T
    scaled = data.design[None] * t[:, None, :]  # (draws, n, k)
    weighted = scaled / noise[:, :, None]
    lower = np.linalg.cholesky(np.eye(data.design.shape[1]) + np.swapaxes(scaled, 1, 2) @ weighted)
    inverse = np.linalg.inv(lower)
    pulled = np.einsum("snk,sn->sk", weighted, gap)
    centered = np.einsum("sab,sa->sb", inverse, np.einsum("sab,sb->sa", inverse, pulled))
    return data.mean + t * centered, t[:, :, None] * np.swapaxes(inverse, 1, 2)
