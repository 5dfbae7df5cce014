r"""How well the hours of a run are forecast once its speed is known.

Scored are published runs whose total hours and whose speed while training were reported apart from each other; a run
whose hours *are* tokens over speed tells nothing. Each is predicted by draws that saw no run of its family, given what
a planner knows and one observation,

.. math:: \log \frac{6 N \dot D}{n P} \qquad \text{of kind ``compute-only''}.

So few runs have both that the scores are a check and no proof: each is shown. Even with the speed known exactly, the
loss :math:`\ell` leaves a mean absolute log error of :math:`E|\ell - \mathrm{median}(\ell)|`. What narrows it is the
productive share so far.

Run ``python -m gpustack_mc.speed_scoring`` to write ``observed.json`` and ``observed.md`` of ``reports/validation``.
"""

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpustack_mc import catalog, published_runs, scoring, storage
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

    shipped = published_runs.shipped()
    known = published_runs.planner(row)
    evidence = []
    if speed is not None:
        flop = FLOP_PER_PARAM_AND_TOKEN * float(row["params_active"]) * float(speed["tokens_per_second"])
        peak = float(row["peak_16bit_flop_per_s"]) * float(speed["accelerators"])
        evidence = [Evidence({"kind": "training", **known}, "compute_only", float(np.log(flop / peak)), same_run=True)]
    found = predict(draws, [known], shipped.constants, shipped.settings, evidence=evidence)
    return scoring.reflected(found.log_utilization, log_hours_at_full_use([known]))


def score(folds: Mapping[str, "Draws"]) -> dict[str, Any]:
    r"""Score the runs with a known speed, beside the same runs without it.

    Parameters
    ----------
    folds : mapping of str to Draws
        Draws for each family, without it.

    Returns
    -------
    dict
        ``n``, ``metrics`` (with the speed), ``without_speed``, ``standard_error`` (of the mean absolute log error with
        the speed), ``floor`` (what the loss alone leaves of it), and ``rows``: reported and predicted hours.
    """
    stated = speeds()
    rows = [row for row in published_runs.training_rows() if row["id"] in stated]
    told = _joined([predict_hours(row, stated[row["id"]], folds[row["family"]]) for row in rows])
    plain = _joined([predict_hours(row, None, folds[row["family"]]) for row in rows])
    y = published_runs.log_hours(rows)
    scored, without = scoring.score_rows(told, y), scoring.score_rows(plain, y)
    low, high = scored.intervals[0.9].T
    loss = np.concatenate([folds[row["family"]].scalar["loss"] for row in rows])
    return {
        "n": len(rows),
        "metrics": scoring.metrics(scored),
        "without_speed": scoring.metrics(without),
        "standard_error": _error(scored.median - y),
        "floor": float(np.abs(loss - np.median(loss)).mean()),
        "rows": [
            {
                "run_id": row["id"], "family": row["family"], "reported": float(row["accelerator_hours"]),
                "median": float(np.exp(scored.median[i])),
                "interval_90": [float(np.exp(low[i])), float(np.exp(high[i]))],
                "log_error": float(scored.median[i] - y[i]), "log_error_without_speed": float(without.median[i] - y[i]),
            }
            for i, row in enumerate(rows)
        ],
    }  # fmt: skip


def _error(log_errors: np.ndarray) -> float:
    """Standard error of the mean absolute log error; each run is of a family of its own."""
    return float(np.std(np.abs(log_errors), ddof=1) / np.sqrt(len(log_errors)))


def _joined(parts: Sequence[Mixture]) -> Mixture:
    return Mixture(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _without(found: Mapping[str, Any], run: str) -> float:
    return float(np.mean([abs(row["log_error"]) for row in found["rows"] if row["run_id"] != run]))


def markdown(found: Mapping[str, Any]) -> str:
    """Return the page ``observed.md``."""
    told, without = found["metrics"], found["without_speed"]
    lines = [
        "# Hours of a run whose speed is known",
        f"{found['n']} published runs reported their total hours and, apart from them, their speed. Each was predicted "
        "by a fit that saw no run of its family; hours are counted exactly.",
        "| | with the speed | without |\n| --- | ---: | ---: |\n"
        + "\n".join(
            f"| {name} | {told[key]:.3f} | {without[key]:.3f} |"
            for name, key in (
                ("mean absolute log error", "mean_abs_log_error"), ("median miss", "mdape"), ("CRPS (log)", "crps_log"),
                ("log score", "log_score"), ("median p95/p5", "median_p95_over_p5"),
            )
        ),
        f"The standard error of {told['mean_abs_log_error']:.3f} is {found['standard_error']:.3f}; without PaLM, whose "
        f"speed is that of its last phase, the mean is {_without(found, 'palm-540b'):.3f}, seen afterwards and "
        "so no score.",
        f"With losses as they are in the fit, a speed that is known exactly leaves {found['floor']:.3f}; `observed:` "
        "with tokens and days goes below it, because the productive share so far is then known as well.",
        "| run | reported h | median h | 90% interval | log error | without the speed |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: |\n"
        + "\n".join(
            f"| {row['run_id']} | {row['reported']:,.0f} | {row['median']:,.0f} | {row['interval_90'][0]:,.0f} – "
            f"{row['interval_90'][1]:,.0f} | {row['log_error']:+.3f} | {row['log_error_without_speed']:+.3f} |"
            for row in found["rows"]
        ),
        "Speeds, their sources, and runs that were set aside and why: `priors/observed.csv`. Made by "
        "`python -m gpustack_mc.speed_scoring`.",
    ]  # fmt: skip
    return "\n\n".join(lines) + "\n"


def main() -> int:
    """Refit without each family that has a speed, score, and write the published page."""
    from gpustack_mc.fits.utilization_fit import leave_families_out

    shipped = published_runs.shipped()
    families = sorted({row["family"] for row in published_runs.training_rows() if row["id"] in speeds()})
    found = score(leave_families_out(shipped.rows, shipped.settings, families, seed=shipped.record["seed"]))
    out = catalog.folder("reports") / "validation"
    content = {"observed.json": json.dumps(found, indent=1) + "\n", "observed.md": markdown(found)}
    with storage.replacing_all([out / name for name in content]) as paths:
        for path, text in zip(paths, content.values(), strict=True):
            path.write_text(text, encoding="utf-8")
    sys.stdout.write(content["observed.md"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
