r"""Sample the utilisation program: the stored fit, its diagnostics, and the refits that leave out one family each.

Run ``python -m gpustack_mc.fits.utilization_fit`` to write ``fit.json`` and ``draws.csv`` of ``priors/utilization``.
"""

import csv
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpyro.infer import MCMC, NUTS
from ruamel.yaml import YAML
from scipy import stats

from gpustack_mc.fits import chain_checks, utilization_checks, utilization_start
from gpustack_mc.fits import utilization as program
from gpustack_mc.fits import utilization_data as table
from gpustack_mc.fits.draws_file import read_columns, write_columns  # noqa: F401 - part of this module's API
from gpustack_mc.fits.freshness import digest, statements
from gpustack_mc.fits.utilization_predict import NEW_GENERATION, Draws, loss_at, read_draws

_KEPT = (
    "family_sd", "family_slope_sd", "run_sd", "record_shift", "record_sd", "recompute_shift", "mfu_sd", "mfu_sd_unsure",
    "loss_mean", "generation_sd", "benchmark_gap", "benchmark_family_sd", "benchmark_sd",
)  # fmt: skip
_VECTORS = ("beta", "generation_z")
_HEEDED = 100  # steps of all chains, about a second, between which an interruption is heeded
_KNOBS = chain_checks.Knobs("target_accept", "warmup", "samples", "prior.yaml")


class Fit(NamedTuple):
    """Result of `fit`.

    Attributes
    ----------
    columns : dict of str to ndarray, shape (draws,)
        Columns of ``draws.csv``.
    constants : dict of str to float
        What stands in for covariates that are not stated, and the shares of kinds of records.
    diagnostics : dict
        ``r_hat`` (largest), ``ess_bulk`` and ``ess_tail`` (smallest), ``divergences``, ``draws``, ``chains``.
    chains : dict of str to ndarray, shape (chains, draws, ...)
        All draws of every sampled site.
    """

    columns: dict[str, np.ndarray]
    constants: dict[str, float]
    diagnostics: dict[str, Any]
    chains: dict[str, np.ndarray]


def training_rows(rows: Sequence[table.Row]) -> list[table.Row]:
    """Rows of full runs."""
    return [row for row in rows if row["kind"] == "training"]


def _kernel(data: program.Data, settings: Mapping[str, Any], inverse_mass: dict[Any, Any] | None = None) -> NUTS:
    """NUTS; with an inverse mass matrix, which is then kept."""
    return NUTS(
        lambda keep: program.model(data, settings, keep),
        target_accept_prob=settings["target_accept"],
        dense_mass=utilization_start.DENSE,
        inverse_mass_matrix=inverse_mass,
        adapt_mass_matrix=inverse_mass is None,
    )


def complete(posterior: Mapping[str, np.ndarray], settings: Mapping[str, Any], seed: int) -> dict[str, np.ndarray]:
    r"""Add one new family and run to each posterior draw, and name the columns.

    The loss of the new family and the kind of its record are stratified: a permutation of :math:`(s + 1/2) / S`, so
    that a few hundred draws carry no chance in them.

    Parameters
    ----------
    posterior : mapping of str to ndarray, first axis draws
    settings : mapping
    seed : int
        Of the permutations.
    """
    generator = np.random.default_rng(seed)
    size = len(posterior["run_sd"])

    def strata() -> np.ndarray:
        return (generator.permutation(size) + 0.5) / size

    effects = np.asarray(posterior["generation_z"]) * np.asarray(posterior["generation_sd"])[:, None]
    columns = {f"beta:{name}": np.asarray(posterior["beta"])[:, i] for i, name in enumerate(table.TERMS)}
    columns |= {f"generation:{name}": effects[:, i] for i, name in enumerate(settings["generations"])}
    columns |= {name: np.asarray(posterior[name]) for name in _KEPT if name in posterior}
    columns["loss"] = loss_at(strata(), columns["loss_mean"], settings["loss_shape"])
    columns["loose_uniform"] = strata()
    columns["cover_uniform"] = strata()
    columns[f"generation:{NEW_GENERATION}"] = stats.norm.ppf(strata()) * columns["generation_sd"]
    return {name: np.asarray(value, dtype=float) for name, value in columns.items()}


def sample(
    data: program.Data, settings: Mapping[str, Any], seed: int, start: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], int]:
    """Run NUTS on all rows; chains of shape (chains, draws, ...) and the number of divergences.

    Parameters
    ----------
    data : Data
    settings : mapping
    seed : int
    start : mapping, optional
        From `utilization_start.read`: ends of chains to go on from, in as many chains.

    Notes
    -----
    With ``most_samples`` in the settings, chains whose R-hat or effective size is not yet good go on for another
    ``samples`` steps, to so many at most.
    """
    inverse_mass, begin = utilization_start.resume(start, data) if start else (None, None)
    kernel = _kernel(data, settings, inverse_mass)
    with jax.enable_x64(True):
        keep = jnp.ones(len(data.mean), dtype=bool)
        keys = jax.random.split(jax.random.key(seed), settings["chains"])
        # As one program each: outside of `jit` the start alone compiles 800 operations, half a minute.
        state = jax.jit(lambda keys, z: kernel.init(keys, settings["warmup"], z, (keep,), {}))(keys, begin)
        length = math.gcd(settings["warmup"], settings["samples"], _HEEDED)
        go_on = jax.jit(lambda state: _moved(kernel, state, keep, length))
        for _ in range(0, settings["warmup"], length):
            state, _ = go_on(state)
        pieces, divergences = [], 0
        while True:
            for _ in range(0, settings["samples"], length):
                state, (values, diverging) = go_on(state)
                pieces.append({name: np.asarray(value) for name, value in values.items()})
                divergences += int(np.asarray(diverging).sum())
            found = {name: np.swapaxes(np.concatenate([piece[name] for piece in pieces]), 0, 1) for name in pieces[0]}
            have = len(pieces) * length
            if have + settings["samples"] > settings.get("most_samples", have) or divergences:
                return found, divergences
            if not unhealthy(chain_checks.diagnostics(found, divergences)):
                return found, divergences


def _moved(kernel: NUTS, state: Any, keep: Any, length: int) -> tuple[Any, tuple[dict[str, Any], Any]]:
    """Move all chains on by `length` steps; values of the sites and divergences, leading axes steps and chains."""
    constrain = jax.vmap(kernel.postprocess_fn((keep,), {}))

    def step(state: Any, _: None) -> tuple[Any, tuple[dict[str, Any], Any]]:
        state = kernel.sample(state, (keep,), {})
        return state, (constrain(state.z), state.diverging)

    return lax.scan(step, state, None, length=length)


def fit(
    rows: Sequence[table.Row], settings: Mapping[str, Any], seed: int = 0, start: Mapping[str, Any] | None = None
) -> Fit:
    """Posterior of the program, thinned to the draws that are stored.

    Parameters
    ----------
    rows : sequence of mapping
        Rows of ``data.csv`` with ``use`` = ``yes``.
    settings : mapping
        Plain values of ``prior.yaml``.
    seed : int
        Of the chains and of the draws' completion.
    start : mapping, optional
        As in `sample`.
    """
    chains, divergences = sample(program.prepare(rows, settings), settings, seed, start)
    total = int(np.prod(chains["run_sd"].shape))
    pick = np.linspace(0, total - 1, min(settings["draws"], total)).round().astype(int)
    posterior = {name: value.reshape(total, *value.shape[2:])[pick] for name, value in chains.items()}
    return Fit(
        complete(posterior, settings, seed),
        table.imputation(training_rows(rows), settings),
        chain_checks.diagnostics(chains, divergences),
        chains,
    )


def leave_families_out(
    rows: Sequence[table.Row], settings: Mapping[str, Any], families: Sequence[str] | None = None, seed: int = 0
) -> dict[str, Draws]:
    """Posterior draws without any row of a family, for each family in turn.

    One chain is adapted on all rows. From its end, one chain per left-out family goes on side by side in one compiled
    program that differs in a mask of rows; what the start knew of the left-out family is forgotten during
    ``fold_burn`` steps. The masked posterior is wider than the full one, never of another shape, so that step size and
    mass matrix carry over.

    Parameters
    ----------
    rows : sequence of mapping
    settings : mapping
    families : sequence of str, optional
        All families of training rows when omitted.
    seed : int

    Returns
    -------
    dict of str to Draws
    """
    data = program.prepare(rows, settings)
    names = np.array([row["family"] for row in rows if row["kind"] != "goodput"])
    families = sorted({row["family"] for row in training_rows(rows)}) if families is None else list(families)
    with jax.enable_x64(True):
        kernel = _kernel(data, settings)
        chain = MCMC(kernel, num_warmup=settings["warmup"], num_samples=1, progress_bar=False, jit_model_args=True)
        chain.run(jax.random.key(seed), jnp.ones(len(names), dtype=bool))
        keys = jax.random.split(jax.random.key(seed + 1), len(families))
        keeps = jnp.array([names != family for family in families])
        run = jax.jit(jax.vmap(lambda key, keep: _fold(kernel, chain.last_state, key, keep, settings)))
        folds = {name: np.asarray(value) for name, value in run(keys, keeps).items()}
    return {
        family: read_draws(complete({name: value[i] for name, value in folds.items()}, settings, seed + i))
        for i, family in enumerate(families)
    }


def _fold(kernel: NUTS, state: Any, key: Any, keep: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Go on from `state` with the likelihood of the rows in `keep`."""
    constrain = kernel.postprocess_fn((keep,), {})

    def step(state: Any, _: None) -> tuple[Any, dict[str, Any]]:
        state = kernel.sample(state, (keep,), {})
        values = constrain(state.z)
        return state, {name: values[name] for name in (*_KEPT, *_VECTORS)}

    burn = settings["fold_burn"]
    _, found = lax.scan(step, state._replace(rng_key=key), None, length=burn + settings["fold_samples"])
    return {name: value[burn:] for name, value in found.items()}


# ---- files ----------------------------------------------------------------------------------------------------------
def read_prior(folder: Path) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Return ``prior.yaml`` and the rows of ``data.csv`` in a folder."""
    with (folder / "prior.yaml").open(encoding="utf-8") as stream:
        prior = YAML(typ="safe", pure=True).load(stream)
    with (folder / "data.csv").open(encoding="utf-8", newline="") as stream:
        rows = [dict(row) for row in csv.DictReader(stream)]
    return prior, rows


def plain(prior: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the settings, without why and source."""
    return {name: setting["value"] for name, setting in prior["settings"].items()}


def inputs(folder: Path) -> dict[str, str]:
    """Hashes of what a fit follows from; a record with others is stale."""
    prior, _ = read_prior(folder)
    here = Path(__file__).parent
    code = b"".join(statements(here / f"{module}.py") for module in ("utilization", "utilization_data"))
    return {
        "data_sha256": digest((folder / "data.csv").read_bytes()),
        "settings_sha256": digest(json.dumps(plain(prior), sort_keys=True).encode()),
        "program_sha256": digest(code),
    }


def stale(folder: Path) -> str | None:
    """Why the stored fit does not follow from its inputs, or None; nothing is sampled."""
    record = json.loads((folder / "fit.json").read_text(encoding="utf-8"))
    for key, value in inputs(folder).items():
        if record.get(key) != value:
            return f"{folder / 'fit.json'}: {key} differs; run python -m gpustack_mc.fits.utilization_fit"
    if record["draws_sha256"] != digest((folder / "draws.csv").read_bytes()):
        return f"{folder / 'draws.csv'}: not the draws of fit.json; run python -m gpustack_mc.fits.utilization_fit"
    return None


def unhealthy(diagnostics: Mapping[str, Any]) -> str | None:
    """Why a fit must not be used and what to do, or None."""
    return chain_checks.unhealthy(diagnostics, _KNOBS)


def refit(folder: Path, seed: int = 0, picture: Path | None = None) -> dict[str, Any]:
    """Fit anew and replace ``fit.json``, ``draws.csv`` and ``start.json`` of a folder; returns the record.

    Parameters
    ----------
    folder : Path
        Holds ``prior.yaml`` and ``data.csv``.
    seed : int
    picture : Path, optional
        Where to draw how the parameters whose priors matter most depend on them.
    """
    prior, rows = read_prior(folder)
    settings = plain(prior)
    used = [row for row in rows if row["use"] == "yes"]
    start = time.perf_counter()
    found = fit(used, settings, seed)
    seconds = round(time.perf_counter() - start, 1)
    data = program.prepare(used, settings)
    checks, tree = utilization_checks.checks(data, settings, found.chains)
    text = write_columns(found.columns)
    record = {
        "quantity": prior["quantity"],
        "title": prior["title"],
        "description": " ".join(prior["description"].split()),
        "date": str(prior["date"]),
        "program": "gpustack_mc.fits.utilization",
        "data_file": "priors/utilization/data.csv",
        "seed": seed,
        "seconds": seconds,
        "versions": {name: version(name) for name in ("numpy", "jax", "numpyro", "arviz")},
        "rows": {kind: sum(row["kind"] == kind for row in used) for kind in sorted({row["kind"] for row in used})},
        "families": len({row["family"] for row in training_rows(used)}),
        "diagnostics": found.diagnostics,
        "problem": unhealthy(found.diagnostics),
        "checks": checks,
        "constants": found.constants,
        "settings": settings,
        "summary": {
            name: [float(q) for q in np.quantile(value, [0.05, 0.5, 0.95])]
            for name, value in found.columns.items()
            if not name.endswith("_uniform")
        },
        "sources": {
            key: {field: source[field] for field in ("title", "url", "licence")}
            for key, source in prior["sources"].items()
        },
        "limits": [" ".join(limit.split()) for limit in prior["limits"]],
        "draws_sha256": digest(text.encode()),
        **inputs(folder),
    }
    utilization_start.write(folder, utilization_start.record(data, settings, found.chains))
    (folder / "draws.csv").write_text(text, encoding="utf-8", newline="\n")
    (folder / "fit.json").write_text(
        json.dumps(record, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n"
    )
    if picture:
        utilization_checks.picture(tree, utilization_checks.most_sensitive(checks["sensitivity"]), picture)
    return record


def refit_shipped() -> dict[str, Any]:
    """Refit the prior of the checkout, and draw its sensitivity into ``reports/validation``."""
    root = Path(__file__).resolve().parents[3]
    return refit(root / "priors" / "utilization", picture=root / "reports" / "validation" / "prior_sensitivity.png")


def main() -> int:
    """Refit the shipped prior; 3 when its diagnostics are bad."""
    record = refit_shipped()
    sys.stdout.write(f"utilization: {record['diagnostics']} in {record['seconds']} s\n")
    if record["problem"]:
        sys.stderr.write(record["problem"] + "\n")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
