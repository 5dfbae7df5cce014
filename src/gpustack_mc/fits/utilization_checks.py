r"""Checks of the utilisation fit: posterior predictive of each kind of row, power-scaling of its priors.

Rows are standardised with the effects of a draw, :math:`z_i = (y_i - \mu_i) / \sigma_i`, or
:math:`z = \Phi^{-1}(F(x))` for lost hours, which are not normal, and compared with standard normal ones. Bounds have no
value to compare.

The priors that are scaled are those of coefficients, spreads and shifts. Effects of families, generations and runs are
part of the model: scaling their normal distributions as well would ask another question.

References
----------
Gelman et al. (2013), Bayesian Data Analysis, 3rd ed., section 6.3.
Kallioinen et al. (2024), Detecting and diagnosing prior and likelihood sensitivity with power-scaling, Statistics and
Computing 34.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpyro.handlers import substitute, trace
from scipy import stats

from gpustack_mc.fits import chain_checks
from gpustack_mc.fits import utilization as program
from gpustack_mc.fits import utilization_data as table

NORMAL_ROWS = ("total", "compute_only", "throughput", "mfu", "paired_mfu", "converted")
EFFECTS = ("generation_z", "family_z", "family_slope_z", "family_loss_z", "benchmark_z", "run_z")
_REPLICATES = 500
_SCALED = 1000  # draws per chain whose densities are worked out
_SHOWN = 4
_ALPHAS = (0.95, 1.05)


def _thinned(chains: Mapping[str, np.ndarray], size: int) -> dict[str, np.ndarray]:
    """So many draws of each chain, evenly spaced."""
    length = np.asarray(next(iter(chains.values()))).shape[1]
    pick = np.linspace(0, length - 1, min(size, length)).round().astype(int)
    return {name: np.asarray(value)[:, pick] for name, value in chains.items()}


def _sites(data: program.Data, settings: Mapping[str, Any], draw: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = trace(substitute(lambda: program.model(data, settings), draw)).get_trace()
    return found


def predictive(
    data: program.Data, settings: Mapping[str, Any], chains: Mapping[str, np.ndarray], seed: int = 0
) -> dict[str, dict[str, float]]:
    """Posterior predictive p-values of the standardised rows of each kind.

    Parameters
    ----------
    data : Data
    settings : mapping
    chains : mapping of str to ndarray, shape (chains, draws, ...)
    seed : int

    Returns
    -------
    dict
        By kind of row, ``largest``, ``smallest``, ``spread`` and ``skewness``; near 0 or 1 the program does not make
        rows like these.
    """
    few = _thinned(chains, -(-_REPLICATES // len(np.asarray(chains["run_sd"]))))
    draws = {name: value.reshape(-1, *value.shape[2:]) for name, value in few.items()}

    def one(draw: dict[str, Any]) -> dict[str, Any]:
        sites = _sites(data, settings, draw)
        return {name: (sites[name]["value"] - sites[name]["fn"].mean) / sites[name]["fn"].variance ** 0.5
                for name in NORMAL_ROWS}  # fmt: skip

    with jax.enable_x64(True):
        seen: dict[str, np.ndarray] = {name: np.asarray(value) for name, value in jax.jit(jax.vmap(one))(draws).items()}
    shape = settings["loss_shape"]
    lost = stats.lomax(shape, scale=(shape - 1) * draws["loss_mean"][:, None])
    seen["goodput"] = np.asarray(stats.norm.ppf(lost.cdf(data.loss)))
    rng = np.random.default_rng(seed)
    return {name: chain_checks.p_values(z, rng.standard_normal(z.shape)) for name, z in seen.items()}


def densities(data: program.Data, settings: Mapping[str, Any], chains: Mapping[str, np.ndarray]) -> Any:
    """Posterior of the scalar parameters with log prior and log likelihood, as `chain_checks.densities_tree`."""
    few = _thinned(chains, _SCALED)

    def one(draw: dict[str, Any]) -> tuple[Any, Any]:
        prior = likelihood = 0.0
        for name, site in _sites(data, settings, draw).items():
            if site["type"] != "sample" or name in EFFECTS:
                continue
            density = site["fn"].log_prob(site["value"]).sum()
            if site["is_observed"]:
                likelihood = likelihood + density
            else:
                prior = prior + density
        return prior, likelihood

    with jax.enable_x64(True):
        prior, likelihood = jax.jit(lambda values: jax.lax.map(jax.vmap(one), values))(few)
    posterior = {name: value for name, value in few.items() if value.ndim == 2}
    posterior |= {f"beta:{name}": few["beta"][..., i] for i, name in enumerate(table.TERMS)}
    return chain_checks.densities_tree(posterior, np.asarray(prior), np.asarray(likelihood))


def checks(
    data: program.Data, settings: Mapping[str, Any], chains: Mapping[str, np.ndarray]
) -> tuple[dict[str, Any], Any]:
    """Both checks, as stored in ``fit.json``, and the tree that `picture` draws from."""
    tree = densities(data, settings, chains)
    found = {
        "posterior_predictive": predictive(data, settings, chains),
        "sensitivity": chain_checks.power_scaling(tree),
    }
    return found, tree


def most_sensitive(sensitivity: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Parameters whose prior matters most, the most sensitive one first."""
    return sorted(sensitivity, key=lambda name: -sensitivity[name]["prior"])[:_SHOWN]


def picture(tree: Any, names: Sequence[str], path: Path) -> None:
    """Draw how posteriors move when priors, or the likelihood, count for a twentieth more or less."""
    import arviz as az
    import matplotlib.pyplot as plt

    layout = {"figsize": (11, 2.4 * len(names)), "layout": "constrained"}
    # 118 runs with their effects: a step of a fifth, the default, leaves few draws with weight under the likelihood
    shown = az.plot_psense_dist(tree, var_names=list(names), alphas=_ALPHAS, backend="matplotlib", figure_kwargs=layout)
    shown.savefig(path, dpi=110)
    plt.close("all")
