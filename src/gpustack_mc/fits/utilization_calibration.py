r"""Simulation-based calibration of `gpustack_mc.fits.utilization`.

Parameters and rows of the shipped design are drawn from the program; it is sampled on the rows; the rank of each true
value among thinned posterior draws is uniform if, and only if on average, the sampler is right. The true values are
themselves a draw from the posterior given their rows, so that a chain that starts there is in equilibrium from its
first step, and its warm-up only adapts. A chain that mixes too slowly to forget its start gives ranks in the middle,
which leave their band. Censored rows have no draws and are left out.

References
----------
Talts et al. (2018), Validating Bayesian inference algorithms with simulation-based calibration, arXiv:1804.06788.
"""

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from numpyro.handlers import seed, trace
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import unconstrain_fn

from gpustack_mc.fits import utilization as program
from gpustack_mc.fits import utilization_data as table
from gpustack_mc.fits.utilization_predict import loss_at
from gpustack_mc.fits.utilization_start import DENSE

SCALARS = (
    "run_sd", "record_shift", "record_sd", "benchmark_gap", "benchmark_sd", "benchmark_family_sd", "recompute_shift",
    "loss_mean", "family_sd", "family_slope_sd", "generation_sd", "mfu_sd", "mfu_sd_unsure",
)  # fmt: skip
NEW_RUN = "utilisation of a new run"
_BATCH = 50  # replications side by side in one compiled program


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


def chain(data: program.Data, settings: Mapping[str, Any], warmup: int, samples: int) -> MCMC:
    """One chain whose arguments are what is drawn."""
    kernel = NUTS(model_of(data, settings), target_accept_prob=settings["target_accept"], dense_mass=DENSE)
    return MCMC(kernel, num_warmup=warmup, num_samples=samples, progress_bar=False, jit_model_args=True)


def ranks(rows: Sequence[table.Row], settings: Mapping[str, Any], *, replications: int = 200, warmup: int = 200,
          samples: int = 200, thin: int = 4, seed_: int = 0) -> dict[str, np.ndarray]:  # fmt: skip
    """Share of posterior draws below the truth, for scalars, coefficients, and a new run.

    Parameters
    ----------
    rows : sequence of mapping
        Rows of ``data.csv`` with ``use`` = ``yes``; they give the design, their values are not used.
    settings : mapping
    replications, warmup, samples, thin : int
    seed_ : int

    Returns
    -------
    dict of str to ndarray, shape (replications,)
    """
    data = program.prepare(rows, settings)
    keys = jax.random.split(jax.random.key(seed_), 2 * replications)
    drawn = [simulated(data, settings, key) for key in keys[:replications]]
    model = model_of(data, settings)
    latent = set(_latent(model, drawn[0][1]))

    def one(key: Any, start: Any, args: tuple[Any, ...]) -> Any:
        begin = unconstrain_fn(model, args, {}, start)
        run = chain(data, settings, warmup, samples)
        run.run(key, *args, init_params=begin)
        return {name: run.get_samples()[name][::thin] for name in (*SCALARS, "beta", "generation_z")}

    lines: list[dict[str, float]] = []
    rng = np.random.default_rng(seed_)
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some donated buffers")  # a matter of memory only
        side_by_side = jax.jit(jax.vmap(one))
        for first in range(0, replications, _BATCH):
            part = drawn[first : first + _BATCH]
            start = {name: np.stack([value[name] for value, _ in part]) for name in latent}
            args = tuple(np.stack([getattr(rows_, name) for _, rows_ in part]) for name in ("log_u", "log_mfu", "loss"))
            found = side_by_side(keys[replications + first : replications + first + len(part)], start, args)
            found = {name: np.asarray(value) for name, value in found.items()}
            for i, (truth, _) in enumerate(part):
                draws = {name: value[i] for name, value in found.items()}
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


def _ranks(truth: Mapping[str, Any], draws: Mapping[str, Any], new_run: Any, rng: np.random.Generator) -> dict:
    line = {name: _rank(draws[name], truth[name], rng) for name in SCALARS}
    line |= {name: _rank(draws["beta"][:, i], truth["beta"][i], rng) for i, name in enumerate(table.TERMS)}
    return line | {NEW_RUN: _rank(new_run(draws), new_run(truth), rng)}


def _rank(draws: np.ndarray, value: Any, rng: np.random.Generator) -> float:
    """Rank in (0, 1), spread evenly over its step so that it is continuous."""
    return float((np.sum(draws < value) + rng.uniform()) / (len(draws) + 1))
