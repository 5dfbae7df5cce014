"""Scores of predicted accelerator-hours: metrics with errors, baselines, groups and rows, as the JSON holds them."""

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from gpustack_mc import scoring
from gpustack_mc.arrays import Bools, Floats, Integers
from gpustack_mc.published_runs import Row, log_hours, settings, shipped
from gpustack_mc.run_table import Skipped
from gpustack_mc.scoring import Mixture, RowScores

SCHEMA_VERSION = 1
REFIT = "leave-one-family-out"
PLAIN = "prediction from the shipped fit"
GROUPS = ("batch", "generation", "architecture")

_CHUNK = 256  # rows whose mixtures are in memory together


def score(
    rows: Sequence[Row], mixtures: Mixture | Iterable[Mixture], *, reference: Sequence[Row] | None = None,
    skipped: Sequence[Skipped] = (), method: str = PLAIN,
) -> dict[str, Any]:  # fmt: skip
    """Score predictions against the reported hours, beside what one could say without a model.

    Parameters
    ----------
    rows : sequence of mapping
        With ``run_id``, ``family``, ``accelerator_hours`` and the columns that make the groups.
    mixtures : Mixture or iterable of Mixture
        Predicted log hours of the rows, in their order; in one piece or in several.
    reference : sequence of mapping, optional
        Rows whose other families give the median that a run is compared with; `rows` when omitted.
    skipped : sequence of Skipped
        Rows of the table that could not be used.
    method : str
        `REFIT` or `PLAIN`.

    Returns
    -------
    dict
        What ``gpustack-mc validate --json`` prints.
    """
    pieces = [mixtures] if isinstance(mixtures, Mixture) else mixtures
    y = log_hours(rows)
    scores = _score_pieces(pieces, y)
    families = np.array([str(row["family"]) for row in rows])
    baselines = {name: _score_pieces([found], y) for name, found in _baselines(rows, reference or rows).items()}
    return {
        "schema_version": SCHEMA_VERSION,
        "n": len(rows),
        "families": len(np.unique(families)),
        "metrics": _metrics(scores, families),
        "baselines": {name: _metrics(found, families, scores) for name, found in baselines.items()},
        "groups": _groups(rows, scores, families, baselines),
        "rows": _scored_rows(rows, scores),
        "skipped": [{"line": line, "reason": reason} for line, reason in skipped],
        "method": method,
        "versions": _versions(),
    }


def scores_of(rows: Sequence[Row], mixture: Mixture) -> dict[str, Any]:
    """Metrics of predicted log hours of rows, with standard errors by a bootstrap over families."""
    families = np.array([str(row["family"]) for row in rows])
    return _metrics(_score_pieces([mixture], log_hours(rows)), families)


def _score_pieces(pieces: Iterable[Mixture], y: Floats) -> RowScores:
    """Score a few rows at a time: a thousand components of 100,000 rows would take gigabytes."""
    done, at = [], 0
    for piece in pieces:
        for start in range(0, len(piece.means), _CHUNK):
            part = piece.take(np.arange(start, min(start + _CHUNK, len(piece.means))))
            done.append(scoring.score_rows(part, y[at : at + len(part.means)]))
            at += len(part.means)
    if at != len(y):
        raise ValueError(f"{at} predictions for {len(y)} rows")
    joined = {
        name: np.concatenate([getattr(d, name) for d in done]) for name in RowScores._fields if name != "intervals"
    }
    intervals = {level: np.concatenate([d.intervals[level] for d in done]) for level in scoring.LEVELS}
    return RowScores(intervals=intervals, **joined)


def _baselines(rows: Sequence[Row], reference: Sequence[Row]) -> dict[str, Mixture]:
    """Predicted log hours of the rule of thumb, and of the median utilisation of other families."""
    from gpustack_mc.fits.utilization_data import log_hours_at_full_use

    offset = log_hours_at_full_use(rows)
    rule = scoring.rule_of_thumb(len(rows), settings()["rule_utilization"], settings()["rule_sd"])
    return {
        "rule_6nd_40": scoring.reflected(rule, offset),
        "median_of_other_families": scoring.reflected(_other_families(rows, reference), offset),
    }


def _other_families(rows: Sequence[Row], reference: Sequence[Row]) -> Mixture:
    """Median and standard deviation of log utilisation over the reference rows of other families."""
    from gpustack_mc.fits.utilization_data import log_utilization

    families, theirs = ([str(row["family"]) for row in table] for table in (rows, reference))
    return scoring.median_of_other_families(families, log_utilization(reference), theirs)


def _inside(scores: RowScores, level: float) -> Floats:
    low, high = scores.intervals[level].T
    inside: Bools = (scores.observed >= low) & (scores.observed <= high)
    return inside.astype(float)


def _metrics(scores: RowScores, families: np.ndarray, model: RowScores | None = None) -> dict[str, Any]:
    """Metrics with standard errors; those of a baseline also hold the errors of its differences to the model."""
    found = scoring.metrics(scores)
    del found["n"], found["interval_score_90"]
    clusters = _clusters(families)

    def error(values: Floats, statistic: Callable[[Floats], Any] = np.mean) -> float | None:
        if len(np.unique(clusters)) < 2:
            return None
        return scoring.cluster_bootstrap(values, clusters, statistic, repeats=settings()["bootstrap_repeats"])

    found["standard_errors"] = {
        "mdape": error(scoring.absolute_percentage_error(scores.median, scores.observed), np.median),
        "mean_abs_log_error": error(np.abs(scores.median - scores.observed)),
        "coverage": {str(level): error(_inside(scores, level)) for level in scoring.LEVELS},
        "crps_log": error(scores.crps),
        "log_score": error(scores.log_score),
    }
    if model is not None:  # the same runs are hard for both, so that their difference is known better than either
        found["standard_errors"]["crps_log_difference"] = error(scores.crps - model.crps)
        found["standard_errors"]["log_score_difference"] = error(scores.log_score - model.log_score)
    return found


def _clusters(families: np.ndarray) -> Integers:
    """Numbers of the families, merged at random when there are many; a union of clusters is a cluster."""
    _, number = np.unique(families, return_inverse=True)
    limit = settings()["bootstrap_clusters"]
    if number.max() < limit:
        return number
    merged: Integers = np.random.default_rng(0).permutation(number.max() + 1)[number] % limit
    return merged


def _groups(
    rows: Sequence[Row], scores: RowScores, families: np.ndarray, baselines: Mapping[str, RowScores]
) -> dict[str, dict[str, Any]]:
    """Scores of the rows that share a value, and of the subsets of earlier studies."""
    found: dict[str, dict[str, Any]] = {}
    for column in GROUPS:
        values = np.array([str(row.get(column) or "") for row in rows])
        found[column] = {
            name or "not stated": _group(scores, baselines, values == name) for name in sorted(np.unique(values))
        }
    subsets = {
        "seed27": ("seed27", "1"),
        "tier_a": ("tier", "A"),
    }
    masks = {name: np.array([str(row.get(key)) == value for row in rows]) for name, (key, value) in subsets.items()}
    found["subset"] = {name: _group(scores, baselines, mask) for name, mask in masks.items() if mask.any()}
    return found


def _group(scores: RowScores, baselines: Mapping[str, RowScores], mask: Bools) -> dict[str, Any]:
    found = scoring.metrics(scores, mask)
    del found["interval_score_90"]
    others = {name: scoring.metrics(baseline, mask) for name, baseline in baselines.items()}
    return {
        **found,
        "baselines": {name: {key: other[key] for key in ("mdape", "crps_log")} for name, other in others.items()},
    }


def _scored_rows(rows: Sequence[Row], scores: RowScores) -> list[dict[str, Any]]:
    ends = {f"interval_{level * 100:.0f}": np.exp(scores.intervals[level]).tolist() for level in scoring.LEVELS}
    columns = {
        "run_id": [str(row["run_id"]) for row in rows],
        "family": [str(row["family"]) for row in rows],
        "reported": [float(row["accelerator_hours"]) for row in rows],
        "median": np.exp(scores.median).tolist(),
        **ends,
        "crps_log": scores.crps.tolist(),
        "log_score": scores.log_score.tolist(),
        "pit": scores.pit.tolist(),
    }
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _versions() -> dict[str, Any]:
    names = ("gpustack-mc", "numpy", "scipy", "jax", "numpyro", "arviz")
    record = shipped().record
    return {
        "python": platform.python_version(),
        **{name: version(name) for name in names},
        **{f"utilization_{key}": record[key] for key in ("data_sha256", "settings_sha256", "program_sha256")},
    }
