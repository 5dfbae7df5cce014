r"""Simulation-based calibration of `gpustack_mc.fits.utilization`.

Parameters and rows of the shipped design are drawn from the program; it is sampled on the rows; the rank of each true
value among thinned posterior draws is uniform if, and only if on average, the sampler is right. The true values are
themselves a draw from the posterior given their rows, so that a chain that starts there is in equilibrium from its
first step, and its warm-up only adapts the step size. A chain that mixes too slowly to forget its start gives ranks
in the middle, which leave their band. Censored rows have no draws and are left out.

References
----------
Talts et al. (2018), Validating Bayesian inference algorithms with simulation-based calibration, arXiv:1804.06788.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from numpyro.handlers import seed, trace
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import unconstrain_fn

from gpustack_mc.fits import utilization as program
from gpustack_mc.fits import utilization_data as table
from gpustack_mc.fits import utilization_start
from gpustack_mc.fits.utilization_predict import loss_at

SCALARS = (
    "run_sd", "record_shift", "record_sd", "benchmark_gap", "benchmark_sd", "benchmark_family_sd", "recompute_shift",
    "loss_mean", "family_sd", "family_slope_sd", "generation_sd", "mfu_sd", "mfu_sd_unsure",
)  # fmt: skip
NEW_RUN = "utilisation of a new run"


def simulated(data: program.Data, settings: Mapping[str, Any], key: Any) -> tuple[dict[str, np.ndarray], program.Data]:
    """Parameters, and data with rows drawn from the program with them."""
    with jax.enable_x64(True):
        sites = trace(seed(program.model, key)).get_trace(data, settings, None, False)
        value = {name: np.asarray(site["value"]) for name, site in sites.items() if site["type"] == "sample"}
    log_u, log_mfu = data.log_u.copy(), data.log_mfu.copy()
    for name in ("total", "compute_only", "throughput"):
        log_u[data.rows[name]] = value[name]
    log_mfu[data.rows["mfu"]] = value["mfu"]
    log_mfu[data.rows["paired"]] = value["paired_mfu"]
    converted = data.rows["converted"]
    log_mfu[converted] = log_u[converted] + value["converted"]
    return value, data._replace(log_u=log_u, log_mfu=log_mfu, loss=value["loss"], loss_bound=np.zeros(0))


def model_of(data: program.Data, settings: Mapping[str, Any]) -> Any:
    """The program with what is drawn as its arguments, bounds left out."""
    keep = np.ones(len(data.mean), dtype=bool)
    keep[data.rows["bound"]] = False

    def model(log_u: Any, log_mfu: Any, loss: Any) -> None:
        drawn = data._replace(log_u=log_u, log_mfu=log_mfu, loss=loss, loss_bound=np.zeros(0))
        program.model(drawn, settings, keep)

    return model


def sampler(
    data: program.Data, settings: Mapping[str, Any], warmup: int, samples: int, start: Mapping[str, Any] | None = None
) -> Callable[[Any, Sequence[Any], Mapping[str, Any] | None], dict[str, Any]]:
    """Function of a key, of what is drawn and of the values to start from, which runs one chain.

    With `start`, the chain moves on the scales that the shipped fit found.

    It is compiled once: `MCMC.run` by itself compiles its loop anew whenever it is called, which takes longer than the
    steps do and fills the memory maps of the process.
    """
    model = model_of(data, settings)
    kernel = NUTS(
        model, target_accept_prob=settings["target_accept"], dense_mass=utilization_start.DENSE,
        inverse_mass_matrix=utilization_start.resume(start, data)[0] if start else None,
        adapt_mass_matrix=start is None,
    )  # fmt: skip

    @jax.jit
    def run(key: Any, args: Sequence[Any], latent: Mapping[str, Any] | None) -> dict[str, Any]:
        chain = MCMC(kernel, num_warmup=warmup, num_samples=samples, progress_bar=False)
        chain.run(key, *args, init_params=unconstrain_fn(model, args, {}, latent) if latent else None)
        found: dict[str, Any] = chain.get_samples()
        return found

    return run


def ranks(
    rows: Sequence[table.Row], settings: Mapping[str, Any], start: Mapping[str, Any], replications: Sequence[int], *,
    warmup: int = 60, samples: int = 320, thin: int = 8,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Share of posterior draws below the truth, for scalars, coefficients, and a new run.

    Parameters
    ----------
    rows : sequence of mapping
        Rows of ``data.csv`` with ``use`` = ``yes``; they give the design, their values are not used.
    settings, start : mapping
        Of the shipped fit; `start` gives the scales on which the sampler moves.
    replications : sequence of int
        Each is a seed of its own, so that parts may be run apart.
    warmup, samples, thin : int
        The worst parameter of the shipped fit forgets itself in about as many steps as `thin`.

    Returns
    -------
    dict of str to ndarray, shape (replications,)
    """
    data = program.prepare(rows, settings)
    model = model_of(data, settings)
    with jax.enable_x64(True):
        run = sampler(data, settings, warmup, samples, start)
    lines: list[dict[str, float]] = []
    for replication in replications:
        first, second = jax.random.split(jax.random.key(replication))
        truth, drawn = simulated(data, settings, first)
        args = (drawn.log_u, drawn.log_mfu, drawn.loss)
        with jax.enable_x64(True):
            latent = {name: truth[name] for name in _latent(model, drawn)}
            found = run(second, args, latent)
        draws = {name: np.asarray(value)[thin - 1 :: thin] for name, value in found.items()}
        rng = np.random.default_rng(replication)
        lines.append(_ranks(truth, draws, partial(_new_run, data, settings, rng), rng))
    return {name: np.array([line[name] for line in lines]) for name in lines[0]}


def _latent(model: Any, drawn: program.Data) -> list[str]:
    with jax.enable_x64(True):
        sites = trace(seed(model, jax.random.key(0))).get_trace(drawn.log_u, drawn.log_mfu, drawn.loss)
    return [name for name, site in sites.items() if site["type"] == "sample" and not site["is_observed"]]


def _new_run(data: program.Data, settings: Mapping[str, Any], rng: np.random.Generator, p: Mapping[str, Any]) -> Any:
    """Log utilisation of a run of a new family with the covariates of the first total, for each draw of `p`."""
    row = data.rows["total"][0]
    shape = np.shape(p["run_sd"])
    spread = np.sqrt(np.square(p["family_sd"]) + np.square(p["run_sd"]))
    generation = np.asarray(p["generation_z"])[..., data.generation[row]] * p["generation_sd"]
    loss = loss_at(rng.uniform(size=shape), p["loss_mean"], settings["loss_shape"])
    return np.asarray(p["beta"]) @ data.mean[row] + generation + spread * rng.standard_normal(shape) - loss


def _ranks(
    truth: Mapping[str, Any], draws: Mapping[str, Any], new_run: Any, rng: np.random.Generator
) -> dict[str, Any]:
    line = {name: _rank(draws[name], truth[name], rng) for name in SCALARS}
    line |= {name: _rank(draws["beta"][:, i], truth["beta"][i], rng) for i, name in enumerate(table.TERMS)}
    return line | {NEW_RUN: _rank(new_run(draws), new_run(truth), rng)}


def _rank(draws: np.ndarray, value: Any, rng: np.random.Generator) -> float:
    """Rank in (0, 1), spread evenly over its step so that it is continuous."""
    return float((np.sum(draws < value) + rng.uniform()) / (len(draws) + 1))
