r"""How well the hours of a run are forecast once its speed is known.

Scored are published runs whose total hours and whose speed while training were reported apart from each other; a run
whose hours *are* tokens over speed tells nothing. Each is predicted by draws that saw no run of its family, given what
a planner knows and one observation,

.. math:: \log \frac{6 N \dot D}{n P} \qquad \text{of kind ``compute-only''}.

So few runs have both that the scores are a check and no proof: each is shown.
"""

import csv
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpustack_mc import catalog, scoring, validation
from gpustack_mc.constants import FLOP_PER_PARAM_AND_TOKEN
from gpustack_mc.scoring import Mixture

if TYPE_CHECKING:
    from gpustack_mc.fits.utilization_predict import Draws


def speeds() -> dict[str, dict[str, str]]:
    """Rows of ``priors/observed.csv`` that are scored, by run."""
    with (catalog.folder("priors") / "observed.csv").open(encoding="utf-8", newline="") as stream:
        return {row["run_id"]: row for row in csv.DictReader(stream) if row["use"] == "yes"}


def predict_hours(row: Mapping[str, Any], speed: Mapping[str, str] | None, draws: "Draws") -> Mixture:
    """Predict log accelerator-hours of one run in exact books, from its speed when that is given."""
    from gpustack_mc.fits.utilization_data import log_hours_at_full_use
    from gpustack_mc.fits.utilization_predict import Evidence, predict

    shipped = validation.shipped()
    known = validation.planner(row)
    evidence = []
    if speed is not None:
        flop = FLOP_PER_PARAM_AND_TOKEN * float(row["params_active"]) * float(speed["tokens_per_second"])
        peak = float(row["peak_16bit_flop_per_s"]) * float(speed["accelerators"])
        evidence = [Evidence({"kind": "training", **known}, "compute_only", float(np.log(flop / peak)), same_run=True)]
    found = predict(draws, [known], shipped.constants, shipped.settings, evidence=evidence)
    return scoring.reflected(found.log_utilization, log_hours_at_full_use([known]))


def score(folds: Mapping[str, "Draws"]) -> dict[str, Any]:
    """Score the runs with a known speed, beside the same runs without it.

    Parameters
    ----------
    folds : mapping of str to Draws
        Draws for each family, without it.

    Returns
    -------
    dict
        ``n``, ``metrics`` (with the speed), ``without_speed``, and ``rows``: reported and predicted hours.
    """
    stated = speeds()
    rows = [row for row in validation.training_rows() if row["id"] in stated]
    told = _joined([predict_hours(row, stated[row["id"]], folds[row["family"]]) for row in rows])
    plain = _joined([predict_hours(row, None, folds[row["family"]]) for row in rows])
    y = validation.log_hours(rows)
    scored, without = scoring.score_rows(told, y), scoring.score_rows(plain, y)
    low, high = scored.intervals[0.9].T
    return {
        "n": len(rows),
        "metrics": scoring.metrics(scored),
        "without_speed": scoring.metrics(without),
        "rows": [
            {
                "run_id": row["id"], "family": row["family"], "reported": float(row["accelerator_hours"]),
                "median": float(np.exp(scored.median[i])), "interval_90": [float(np.exp(low[i])), float(np.exp(high[i]))],
                "log_error": float(scored.median[i] - y[i]), "log_error_without_speed": float(without.median[i] - y[i]),
            }
            for i, row in enumerate(rows)
        ],
    }  # fmt: skip


def _joined(parts: Sequence[Mixture]) -> Mixture:
    return Mixture(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
