r"""The utilisation program told of a user's own runs, which form a family of their own.

Lost hours are the team's, as in the program: a posterior draw is split into strata of the loss :math:`\ell` of the
team; within one the family's level and slope are conditioned on hours, throughput and MFU in closed form
(`gpustack_mc.fits.utilization_predict.learn`), and goodputs that are known have the density

.. math:: -\log g_i \sim N(\ell, \sigma_g^2) .

The draws are weighted by the density of all observations (Bayes' rule with the draws as prior), checked by Kish's
effective number and by the shape of the tail of the weights (Vehtari et al. 2024), and resampled. Where the weights
leave too few, `refit` samples the program anew with the user's runs among its rows.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpustack_mc.fits import utilization_data as table
from gpustack_mc.fits.utilization_predict import Draws, Evidence, Team, learn, loss_at

USERS_FAMILY = "yours"


class Learned(NamedTuple):
    """Equally likely draws that know the user's runs.

    Attributes
    ----------
    draws : Draws
        Their ``loss`` is the team's.
    team : Team
    effective_draws : float
        Kish's number before resampling.
    k_hat : float
        Shape of the tail of the weights.
    """

    draws: Draws
    team: Team
    effective_draws: float
    k_hat: float


def expand(
    draws: Draws, settings: Mapping[str, Any], options: Mapping[str, Any], generator: np.random.Generator
) -> Draws:
    """Split each draw into strata of the team's loss; shape (draws * strata,).

    Parameters
    ----------
    draws : Draws
    settings : mapping
        Of the fit.
    options : mapping
        Plain values of ``priors/calibration.yaml``.
    generator : numpy.random.Generator
    """
    size, strata = len(draws.scalar["run_sd"]), options["loss_strata"]
    # Turned from draw to draw: picks at equal steps would otherwise meet one stratum in all of them.
    turned = (np.arange(strata) + generator.permutation(size)[:, None]) % strata
    probability = ((turned + generator.random((size, 1))) / strata).ravel()
    found = _taken(draws, np.repeat(np.arange(size), strata))
    loss = loss_at(probability, found.scalar["loss_mean"], settings["loss_shape"])
    return found._replace(scalar=found.scalar | {"loss": loss})


def _strata(size: int, generator: np.random.Generator) -> np.ndarray:
    return (generator.permutation(size) + 0.5) / size


def _taken(draws: Draws, pick: np.ndarray) -> Draws:
    return Draws(
        draws.beta[pick],
        {name: value[pick] for name, value in draws.generation.items()},
        {name: value[pick] for name, value in draws.scalar.items()},
    )


def loss_log_density(draws: Draws, losses: Sequence[float], options: Mapping[str, Any]) -> np.ndarray:
    """Log density, but for a constant, of known losses in each expanded draw, shape (draws,)."""
    gaps = np.asarray(losses)[:, None] - draws.scalar["loss"]
    found: np.ndarray = -0.5 * ((gaps / options["goodput_between_runs_sd"]) ** 2).sum(axis=0)
    return found


def tell(
    draws: Draws, evidence: Sequence[Evidence], losses: Sequence[float], constants: Mapping[str, float],
    settings: Mapping[str, Any], options: Mapping[str, Any], *, weigh: bool = True,
) -> Learned:  # fmt: skip
    """Condition the draws on a team's runs.

    Parameters
    ----------
    draws : Draws
        Of the shipped fit, or of `refit`.
    evidence : sequence of Evidence
    losses : sequence of float
        Known :math:`-log` goodputs.
    constants, settings : mapping
        Of the fit.
    options : mapping
        Plain values of ``priors/calibration.yaml``.
    weigh : bool
        False for draws that saw the runs already: only the strata within a draw are then weighted.
    """
    generator = np.random.default_rng(options["seed"])
    wide = expand(draws, settings, options, generator)
    team = learn(wide, evidence, constants, settings)
    log_weight = (team.log_weight + loss_log_density(wide, losses, options)).reshape(-1, options["loss_strata"])
    peak = log_weight.max(axis=1, keepdims=True)
    by_draw = peak[:, 0] + np.log(np.exp(log_weight - peak).sum(axis=1))
    if weigh:
        effective, k_hat = quality(by_draw)
    else:
        log_weight = log_weight - by_draw[:, None]
        effective, k_hat = float(len(by_draw)), math.nan
    weight = np.exp(log_weight - log_weight.max()).ravel()
    pick = _systematic(weight, options["stored_draws"], generator)
    told = _taken(wide, pick)
    size = len(pick)
    scalar = told.scalar | {
        "loose_uniform": _strata(size, generator),
        "cover_uniform": _strata(size, generator),
    }
    team = Team(team.mean[pick], team.covariance[pick], np.zeros(size))
    return Learned(told._replace(scalar=scalar), team, effective, k_hat)


def quality(log_weight: np.ndarray) -> tuple[float, float]:
    """Kish's effective number of draws, and the shape of the tail of their weights (PSIS k-hat)."""
    from arviz_stats.base.array import array_stats

    weight = np.exp(log_weight - log_weight.max())
    effective = float(weight.sum() ** 2 / (weight**2).sum())
    if np.ptp(log_weight) < 1e-9:  # no tail to fit
        return effective, -math.inf
    _, k_hat = array_stats.psislw(-log_weight)  # it takes log likelihoods of left-out rows, whose inverses are weights
    return effective, float(k_hat)


def _systematic(weight: np.ndarray, size: int, generator: np.random.Generator) -> np.ndarray:
    """Indices of equally likely draws: one point in each of `size` equal parts of the cumulated weight.

    In a random order: the strata of a draw are neighbours, and equal steps would meet one stratum only.
    """
    order = generator.permutation(len(weight))
    cumulative = np.cumsum(weight[order])
    points = (np.arange(size) + 0.5) / size
    return order[np.minimum(np.searchsorted(cumulative / cumulative[-1], points), len(weight) - 1)]


def columns(learned: Learned) -> dict[str, np.ndarray]:
    """Columns of the pack's ``draws.csv``, as `read` takes them."""
    found = {f"beta:{name}": learned.draws.beta[:, i] for i, name in enumerate(table.TERMS)}
    found |= {f"generation:{name}": value for name, value in learned.draws.generation.items()}
    found |= learned.draws.scalar
    mean, covariance = learned.team.mean, learned.team.covariance
    parts = {"level": mean[:, 0], "slope": mean[:, 1], "level_variance": covariance[:, 0, 0]}
    parts |= {"slope_variance": covariance[:, 1, 1], "covariance": covariance[:, 0, 1]}
    return found | {f"team_{name}": value for name, value in parts.items()}


def read(stored: Mapping[str, np.ndarray]) -> tuple[Draws, Team]:
    """Draws and team from `columns`."""
    generation = {key.partition(":")[2]: value for key, value in stored.items() if key.startswith("generation:")}
    beta = np.column_stack([stored[f"beta:{name}"] for name in table.TERMS])
    scalar = {key: value for key, value in stored.items() if ":" not in key and not key.startswith("team_")}
    mean = np.column_stack([stored["team_level"], stored["team_slope"]])
    covariance = np.empty((len(beta), 2, 2))
    covariance[:, 0, 0], covariance[:, 1, 1] = stored["team_level_variance"], stored["team_slope_variance"]
    covariance[:, 0, 1] = covariance[:, 1, 0] = stored["team_covariance"]
    team = Team(mean, covariance, np.zeros(len(beta)))
    return Draws(beta, generation, scalar), team


def rows_for_refit(evidence: Sequence[Evidence]) -> list[dict[str, Any]]:
    """Return the user's runs as rows of ``data.csv``; each run once.

    A run known by its hours or its throughput is a row of a total or of compute-only hours, with its MFU where that is
    known too; a run known by its MFU alone is one of compute-only hours at that utilisation.
    """
    runs: dict[str, list[Evidence]] = {}
    for i, item in enumerate(evidence):
        runs.setdefault(item.run or str(i), []).append(item)
    rows = []
    for name, items in runs.items():
        first = next((item for item in items if item.kind != "mfu"), items[0])
        mfu = next((item for item in items if item.kind == "mfu"), None)
        row = {key: str(value) for key, value in first.row.items()}
        tokens = float(first.row.get("tokens", 1e12))
        rate = math.exp(first.value) * float(first.row["peak_16bit_flop_per_s"])
        seconds = 6 * float(first.row["params_active"]) * tokens / rate
        row |= {"id": f"{USERS_FAMILY}-{name}", "kind": "training", "family": USERS_FAMILY, "use": "yes"}
        row |= {"tokens": str(tokens), "accelerator_hours": repr(seconds / 3600), "hours_basis": "", "hours_cover": ""}
        row["tier"] = "B" if first.loose else "A"
        if first.kind != "total":
            row["hours_cover"] = "compute-only"
        row["mfu_reported"] = repr(math.exp(mfu.value)) if mfu is not None and mfu is not first else ""
        row["mfu_kind"] = row["mfu_peak_basis"] = ""
        rows.append(row)
    return rows


def refit(
    shipped: Sequence[Mapping[str, Any]], evidence: Sequence[Evidence], settings: Mapping[str, Any],
    options: Mapping[str, Any], start: Mapping[str, Any] | None = None,
) -> Any:  # fmt: skip
    """Sample the program anew with the user's runs among its rows.

    Parameters
    ----------
    shipped : sequence of mapping
        Rows of ``data.csv`` that the shipped fit used.
    evidence : sequence of Evidence
    settings : mapping
        Of the shipped fit.
    options : mapping
        Plain values of ``priors/calibration.yaml``.
    start : mapping, optional
        Of the shipped fit, from `gpustack_mc.fits.utilization_start.read`.

    Returns
    -------
    gpustack_mc.fits.utilization_fit.Fit
    """
    from gpustack_mc.fits.utilization_fit import fit

    mine = rows_for_refit(evidence)
    blank = dict.fromkeys(shipped[0], "")
    own = {name: options[f"refit_{name}"] for name in ("warmup", "samples", "most_samples", "target_accept")}
    shorter = {**settings, **own}
    return fit([*shipped, *({**blank, **row} for row in mine)], shorter, options["seed"], start)
