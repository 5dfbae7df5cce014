"""Checks of a sampled fit: chains, posterior predictive checks, sensitivity to prior and likelihood."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import arviz as az
import jax
import numpy as np
from numpyro.handlers import substitute, trace

from gpustack_mc.fits.hierarchy import Arrays, Posterior, Priors, Problem, arrays, model, padded

MAXIMAL_R_HAT, MINIMAL_ESS = 1.01, 400  # of every sampled fit: Vehtari et al. (2021), Bayesian Analysis 16(2)
_REPLICATES = 500


class Knobs(NamedTuple):
    """What to raise when chains are bad, and where it is set."""

    acceptance: str = "TARGET_ACCEPT"
    warmup: str = "WARMUP"
    samples: str = "SAMPLES"
    place: str = "gpustack_mc.fits.hierarchy"


def convergence(chains: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Worst rank-normalised R-hat and effective sizes over all parameters.

    Parameters
    ----------
    chains : mapping of str to ndarray, shape (chains, draws, ...)

    References
    ----------
    Vehtari et al. (2021), Rank-normalization, folding, and localization, Bayesian Analysis 16(2).
    """
    posterior = az.from_dict({"posterior": {name: np.asarray(value) for name, value in chains.items()}})["posterior"]
    return {
        "r_hat": max(float(value.max()) for value in az.rhat(posterior).data_vars.values()),
        "ess_bulk": min(float(value.min()) for value in az.ess(posterior, method="bulk").data_vars.values()),
        "ess_tail": min(float(value.min()) for value in az.ess(posterior, method="tail").data_vars.values()),
    }


def diagnostics(chains: Mapping[str, np.ndarray], divergences: int) -> dict[str, Any]:
    """Convergence, divergences and size of sampled chains, shape (chains, draws, ...) each."""
    first = np.asarray(next(iter(chains.values())))
    size = {"chains": first.shape[0], "draws": first.shape[0] * first.shape[1]}
    return {**convergence(chains), "divergences": divergences, **size}


def unhealthy(found: Mapping[str, Any], knobs: Knobs = Knobs()) -> str | None:  # noqa: B008 - never mutated
    """Why a fit must not be used and what to do, or None."""
    if found["divergences"]:
        return f"{found['divergences']} divergent steps; raise {knobs.acceptance} in {knobs.place}"
    if found["r_hat"] > MAXIMAL_R_HAT:
        what = f"{knobs.warmup} and {knobs.samples}"
        return f"R-hat {found['r_hat']:.3f}: the chains disagree; raise {what} in {knobs.place}"
    smallest = min(found["ess_bulk"], found["ess_tail"])
    if smallest < MINIMAL_ESS:
        return f"effective sample size {smallest:.0f}; raise {knobs.samples} in {knobs.place}"
    return None


def predictive(data: Arrays, posterior: Posterior, seed: int = 0) -> dict[str, float]:
    """Posterior predictive p-values of the standardised rows: extremes, spread and skewness.

    Rows are replicated with the effects of the draw, so that the check is of the noise and its shape. Values near 0
    or 1 say that the program does not make data like these.

    References
    ----------
    Gelman et al. (2013), Bayesian Data Analysis, 3rd ed., section 6.3.
    """
    rng = np.random.default_rng(seed)
    pick = np.linspace(0, len(posterior.s) - 1, min(_REPLICATES, len(posterior.s))).astype(int)
    s = posterior.s[pick]
    normal = rng.standard_normal((len(pick), data.design.shape[1]))
    b = posterior.mean[pick] + np.einsum("skq,sq->sk", posterior.root[pick], normal)
    sd = np.sqrt(data.variance + s**2 @ data.noise.T)
    seen = (data.y - b @ data.design.T - s @ data.shift.T) / sd
    drawn = rng.standard_normal(seen.shape)
    return p_values(seen, drawn)


def p_values(seen: np.ndarray, drawn: np.ndarray) -> dict[str, float]:
    """Share of replicates whose largest, smallest, spread and skewness exceed those of the data.

    Parameters
    ----------
    seen, drawn : ndarray, shape (draws, rows)
        Standardised rows of the data under each draw, and standard normal replicates.
    """
    statistics: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "largest": lambda z: z.max(axis=1),
        "smallest": lambda z: z.min(axis=1),
        "spread": lambda z: z.std(axis=1),
        "skewness": lambda z: ((z - z.mean(axis=1, keepdims=True)) ** 3).mean(axis=1) / z.std(axis=1) ** 3,
    }
    return {name: round(float(np.mean(of(drawn) > of(seen))), 3) for name, of in statistics.items()}


@jax.jit
def _densities(data: Arrays, given: Priors, values: Mapping[str, Any]) -> tuple[Any, Any]:
    """Log density of the standard deviations under their priors and of the rows, for each draw."""

    def one(draw: Mapping[str, Any]) -> tuple[Any, Any]:
        sites = trace(substitute(lambda: model(data, given), draw)).get_trace()
        parts = {name: site["fn"].log_prob(site["value"]) for name, site in sites.items() if site["type"] == "sample"}
        return sum(value for name, value in parts.items() if name != "y"), parts["y"]

    return jax.vmap(jax.vmap(one))(values)


def densities_tree(posterior: Mapping[str, np.ndarray], prior: np.ndarray, likelihood: np.ndarray) -> Any:
    """Posterior with the log densities that power-scaling needs, each of shape (chains, draws)."""
    return az.from_dict(
        {"posterior": dict(posterior), "log_prior": {"prior": prior}, "log_likelihood": {"y": likelihood}}
    )


def power_scaling(tree: Any) -> dict[str, dict[str, float]]:
    """Power-scaling sensitivity of each parameter to its prior and to the likelihood.

    Above 0.05 in `prior` with little in `likelihood`, a prior speaks rather than the data.

    Parameters
    ----------
    tree : xarray.DataTree
        From `densities_tree`, with scalar parameters.

    References
    ----------
    Kallioinen et al. (2024), Detecting and diagnosing prior and likelihood sensitivity with power-scaling,
    Statistics and Computing 34.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pareto shape of the resampling; its effect is in the digits that are kept
        found = {group: az.psense(tree, group=group) for group in ("prior", "likelihood")}
    return {
        name: {group: round(float(values[name]), 3) for group, values in found.items()} for name in tree["posterior"]
    }


def sensitivity(problem: Problem, posterior: Posterior) -> dict[str, dict[str, float]]:
    """Power-scaling sensitivity of the standard deviations; the likelihood has the effects integrated out."""
    data, given, _ = padded(problem)
    sampled = {name: value for name, value in posterior.chains.items() if name != "s"}
    with jax.enable_x64(True):
        prior, likelihood = _densities(data, given, {name: np.asarray(value) for name, value in sampled.items()})
    logs = {name: np.log(posterior.chains["s"][..., i]) for i, name in enumerate(problem.spreads)}
    return power_scaling(densities_tree(logs, np.asarray(prior), np.asarray(likelihood)))


def checks(problem: Problem, posterior: Posterior) -> dict[str, Any]:
    """All checks, as stored in ``fit.json``."""
    return {
        "diagnostics": diagnostics(posterior.chains, posterior.divergences),
        "posterior_predictive": predictive(arrays(problem), posterior),
        "sensitivity": sensitivity(problem, posterior),
    }
