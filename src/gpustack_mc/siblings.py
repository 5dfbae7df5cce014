"""How much one earlier run of the same team is worth: published runs, forecast from their siblings.

Each run of a family with two or more is held out and forecast with draws of a fit that saw no run of the family: first
without its siblings, then told of one of them, then of all. Hours of the held-out run are counted as those of the runs
that are told, as they are for a team that keeps its books in one way.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpustack_mc import pack, scoring, validation
from gpustack_mc.fits import utilization_data, utilization_team
from gpustack_mc.fits.utilization_predict import Draws, Evidence, Record, predict
from gpustack_mc.scoring import RowScores

WAYS = ("none", "one", "all")
"""Which siblings the forecast knows."""


class Siblings(NamedTuple):
    """Scores of all pairs of a held-out run and what is known of its siblings.

    Attributes
    ----------
    run : ndarray of int, shape (pairs,)
        Row of the held-out run.
    family : ndarray of str, shape (pairs,)
    weight : ndarray, shape (pairs,)
        Sums to one over the pairs of a run, divided by the number of runs.
    scores : RowScores
        Of log utilisation, shape (pairs,).
    """

    run: np.ndarray
    family: np.ndarray
    weight: np.ndarray
    scores: RowScores


def families(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Families with two runs or more."""
    counts = Counter(str(row["family"]) for row in rows)
    return sorted(name for name, count in counts.items() if count > 1)


def score(folds: Mapping[str, Draws], way: str) -> Siblings:
    """Forecast each run of the families in `folds`.

    Parameters
    ----------
    folds : mapping of str to Draws
        By family, from a fit without it; see `gpustack_mc.fits.utilization_fit.leave_families_out`.
    way : {"none", "one", "all"}
        ``one`` takes each sibling in turn and gives each pair an equal part of the run's weight.
    """
    rows = validation.training_rows()
    value = utilization_data.log_utilization(rows)
    loose, alone = utilization_data.loose_record(rows), utilization_data.compute_only(rows)
    settings, options = validation.shipped().settings, pack.options()
    found: list[tuple[int, str, float]] = []
    mixtures: list[scoring.Mixture] = []
    for family, draws in folds.items():
        mine = [i for i, row in enumerate(rows) if row["family"] == family]
        constants = utilization_data.imputation([row for row in rows if row["family"] != family], settings)
        for run in mine:
            others = [i for i in mine if i != run]
            for told in [[i] for i in others] if way == "one" else [others]:
                record = Record(float(loose[told].mean()), float(alone[told].mean()))
                evidence = [
                    Evidence(
                        validation.planner(rows[i]), "compute_only" if alone[i] else "total", float(value[i]),
                        loose=bool(loose[i]), run=str(i),
                    )
                    for i in (told if way != "none" else [])
                ]  # fmt: skip
                learned = utilization_team.tell(draws, evidence, [], constants, settings, options)
                row = [validation.planner(rows[run])]
                forecast = predict(learned.draws, row, constants, settings, record=record, team=learned.team)
                mixtures.append(forecast.log_utilization)
                found.append((run, family, 1 / len(others) if way == "one" else 1.0))
    run, family, weight = (np.array(part) for part in zip(*found, strict=True))
    together = scoring.Mixture(*(np.concatenate(parts) for parts in zip(*mixtures, strict=True)))
    return Siblings(run, family, weight / weight.sum(), scoring.score_rows(together, value[run]))


def metrics(found: Siblings) -> dict[str, Any]:
    """Weighted scores; each held-out run counts once."""
    s, w = found.scores, found.weight
    low, high = s.intervals[0.9].T
    inside = {str(level): float(w @ ((s.observed >= ends[:, 0]) & (s.observed <= ends[:, 1])))
              for level, ends in s.intervals.items()}  # fmt: skip
    return {
        "n": len(np.unique(found.run)),
        "families": len(np.unique(found.family)),
        "mdape": _weighted_median(scoring.absolute_percentage_error(-s.median, -s.observed), w),
        "mean_abs_log_error": float(w @ np.abs(s.median - s.observed)),
        "crps_log": float(w @ s.crps),
        "log_score": float(w @ s.log_score),
        "coverage": inside,
        "median_p95_over_p5": _weighted_median(np.exp(high - low), w),
    }


def _weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    order = np.argsort(values)
    return float(values[order][np.searchsorted(np.cumsum(weights[order]), 0.5)])


def gain(before: Siblings, after: Siblings) -> tuple[float, float]:
    """Difference in CRPS per held-out run (negative is better), and its standard error by a bootstrap of families."""

    def per_run(found: Siblings) -> np.ndarray:
        runs = np.unique(found.run)
        return np.array([np.average(found.scores.crps[found.run == run], weights=found.weight[found.run == run])
                         for run in runs])  # fmt: skip

    difference = per_run(after) - per_run(before)
    rows = validation.training_rows()
    names = [str(rows[run]["family"]) for run in np.unique(after.run)]
    return float(difference.mean()), scoring.cluster_bootstrap(difference, names)
