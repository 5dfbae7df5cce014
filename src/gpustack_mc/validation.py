r"""Scores predictions of accelerator-hours on runs: those that the fit never saw, or a user's own table.

Log hours of a run are a constant minus log utilisation, so that the mixture of normals that the utilisation prior gives
is reflected,

.. math:: \log h = \log \frac{6 N D}{3600\, P} - \log u ,

and every score of `gpustack_mc.scoring` is exact. A prediction reads what a planner knows before the run and nothing
else, see `gpustack_mc.published_runs.planner`. How the hours of a published record were counted is not known before it
is made either: the record is one of the published population, rounded or exact, with downtime or without, by the shares
in the fit.
"""

import io
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpustack_mc import catalog, efficiency, storage, validation_known, validation_text
from gpustack_mc.errors import InputError, Place
from gpustack_mc.published_runs import predict_hours, settings, shipped, training_rows
from gpustack_mc.run_table import read_runs
from gpustack_mc.scoring import Mixture
from gpustack_mc.validation_scores import PLAIN, REFIT, score

if TYPE_CHECKING:
    from gpustack_mc.fits.utilization_predict import Draws

FILES = ("validation.json", "validation.md", "predicted.png", "calibration.png")

_CHUNK = 256  # rows that are predicted together

Progress = Callable[[str], None]


def _quiet(_: str) -> None:
    """Say nothing."""


# ---- what is scored -------------------------------------------------------------------------------------------------
def validate_shipped(progress: Progress = _quiet, folds: Mapping[str, "Draws"] | None = None) -> dict[str, Any]:
    """Score the shipped training runs, each predicted by a fit that saw no run of its family.

    Parameters
    ----------
    progress : callable
        Is told in a sentence what is being done.
    folds : mapping of str to Draws, optional
        From `gpustack_mc.fits.utilization_fit.leave_families_out`; made here, in about six minutes, when omitted.
    """
    if folds is None:
        from gpustack_mc.fits.utilization_fit import leave_families_out

        count = len({row["family"] for row in training_rows()})
        progress(f"Refitting without each of {count} families in turn; about 6 minutes on 2 cores.")
        folds = leave_families_out(shipped().rows, shipped().settings, seed=shipped().record["seed"])
    progress("Scoring.")
    known = validation_known.scores_when_known(folds)
    progress("Refitting power without each measured machine in turn; about 3 minutes.")
    from gpustack_mc import validation_energy

    scored = score(training_rows(), _left_out(folds), method=REFIT)
    return {**scored, "known": known, "energy": validation_energy.scores()}


def _left_out(folds: Mapping[str, "Draws"]) -> Mixture:
    """Predict each family with its own fold; how records are counted is taken from the other families as well."""
    from gpustack_mc.fits.utilization_data import imputation

    rows = training_rows()
    families = np.array([row["family"] for row in rows])
    parts: list[Mixture] = []
    order: list[np.ndarray] = []
    for family in sorted(set(families)):
        mine = np.flatnonzero(families == family)
        others = [row for row in rows if row["family"] != family]
        record = efficiency.published_record(imputation(others, shipped().settings))
        parts.append(predict_hours([rows[i] for i in mine], folds[family], record))
        order.append(mine)
    back = np.argsort(np.concatenate(order))
    return Mixture(*(np.concatenate(arrays)[back] for arrays in zip(*parts, strict=True)))


def validate_file(path: Path, progress: Progress = _quiet) -> dict[str, Any]:
    """Score the runs in a CSV file against predictions of the shipped fit.

    Parameters
    ----------
    path : Path
        See `gpustack_mc.run_table.read_runs`.
    progress : callable
        Is told in a sentence what is being done.
    """
    rows, skipped = read_runs(path)
    progress(f"Predicting {len(rows):,} runs.")
    draws = _thinned(efficiency.draws(), len(rows))
    record = efficiency.published_record(shipped().constants)
    pieces = (predict_hours(rows[at : at + _CHUNK], draws, record) for at in range(0, len(rows), _CHUNK))
    return score(rows, pieces, reference=training_rows(), skipped=skipped, method=PLAIN)


def _thinned(draws: "Draws", rows: int) -> "Draws":
    """Evenly spaced draws, fewer for larger tables."""
    have = len(draws.beta)
    affordable = math.isqrt(settings()["squared_draws_times_rows"] // rows)
    count = min(have, max(settings()["minimal_draws"], affordable))
    pick = np.linspace(0, have - 1, count).round().astype(int)
    generation, scalar = ({name: value[pick] for name, value in part.items()} for part in draws[1:])
    return type(draws)(draws.beta[pick], generation, scalar)


# ---- the command ----------------------------------------------------------------------------------------------------
def run_validation(data: Path | None, refit: bool, out: Path | None, as_json: bool, progress: Progress = _quiet) -> str:
    """Do what ``gpustack-mc validate`` is asked for, and return what it prints.

    Parameters
    ----------
    data : Path or None
        Table of runs to be scored with the shipped fit.
    refit : bool
        Refit without each family in turn and score the shipped runs; without `data` and `refit` the published scores
        are read.
    out : Path or None
        Folder for `FILES`.
    as_json : bool
        Return one JSON object instead of tables.
    progress : callable
        Is told in a sentence what is being done.
    """
    if data is not None and refit:
        raise InputError("options", "--data and --refit exclude each other.", "Give one of them.")
    if out is not None:
        storage.require_folder(out)  # before minutes of work
    if data is not None:
        result = validate_file(data, progress)
    else:
        result = validate_shipped(progress) if refit else published()
    if out is not None:
        write(result, out)
    return to_json(result) if as_json else validation_text.text(_rounded(result))


def published() -> dict[str, Any]:
    """Return the published scores of the shipped runs.

    Raises
    ------
    InputError
        They are not installed; the message says how to make them.
    """
    path = catalog.folder("reports") / "validation" / "validation.json"
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return record
    except FileNotFoundError as error:
        fix = (
            "Run `gpustack-mc validate --refit` (about 6 minutes on 2 cores), or score your own runs with --data FILE."
        )
        raise InputError(
            "not-installed", "the published scores are in a checkout only.", fix, Place(str(path))
        ) from error


def to_json(result: Mapping[str, Any]) -> str:
    """Return the JSON text of a result, floats to six digits."""
    return json.dumps(_rounded(result), indent=1, ensure_ascii=False, allow_nan=False)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def write(result: Mapping[str, Any], out: Path) -> None:
    """Write `FILES` into a folder, all or none."""
    from gpustack_mc import validation_figures

    result = _rounded(result)  # table and pictures follow from the JSON as it is written
    content = {
        "validation.json": to_json(result).encode() + b"\n",
        "validation.md": validation_text.markdown(result).encode(),
    }
    figures = {
        "predicted.png": validation_figures.predicted_against_reported(result),
        "calibration.png": validation_figures.calibration(result),
    }
    for name, figure in figures.items():
        stream = io.BytesIO()
        validation_figures.save(figure, stream)
        content[name] = stream.getvalue()
    with storage.replacing_all([out / name for name in FILES]) as temporary:
        for path, name in zip(temporary, FILES, strict=True):
            path.write_bytes(content[name])
