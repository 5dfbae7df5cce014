r"""Scores predictions of accelerator-hours on runs: those that the fit never saw, or a user's own table.

Log hours of a run are a constant minus log utilisation, so that the mixture of normals that the utilisation prior gives
is reflected,

.. math:: \log h = \log \frac{6 N D}{3600\, P} - \log u ,

and every score of `gpustack_mc.scoring` is exact. A prediction reads what a planner knows before the run and nothing
else (`planner`). How the hours of a published record were counted is not known before it is made either: the record is
one of the published population, rounded or exact, with downtime or without, by the shares in the fit.
"""

import functools
import io
import json
import math
import platform
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpustack_mc import catalog, efficiency, scoring, storage
from gpustack_mc.errors import InputError, Place
from gpustack_mc.run_table import Skipped, read_runs
from gpustack_mc.scoring import Mixture, RowScores

if TYPE_CHECKING:
    from gpustack_mc.fits.utilization_predict import Draws, Record

SCHEMA_VERSION = 1
REFIT = "leave-one-family-out"
PLAIN = "prediction from the shipped fit"
GROUPS = ("batch", "generation", "architecture")
FILES = ("validation.json", "validation.md", "predicted.png", "calibration.png")

# Never how a record was made (tier, hours_basis, hours_cover), nor what came out (hours, MFU, goodput).
PLANNED = (
    "params_active", "tokens", "accelerator", "generation", "peak_16bit_flop_per_s", "n_accelerators", "precision",
    "architecture", "publication_date", "sequence_length", "n_layers", "d_model", "global_batch_tokens",
    "activation_recompute", "flash_attention",
)  # fmt: skip

_CHUNK = 256  # rows whose mixtures are in memory together
_LINES = 5  # first skipped rows that are named

Row = Mapping[str, Any]
Progress = Callable[[str], None]


def _quiet(_: str) -> None:
    """Say nothing."""


# ---- predictions ----------------------------------------------------------------------------------------------------
class Shipped(NamedTuple):
    """The utilisation prior as it is shipped."""

    rows: list[dict[str, str]]
    settings: Mapping[str, Any]
    constants: Mapping[str, float]
    record: Mapping[str, Any]


@functools.cache
def settings() -> dict[str, float]:
    """Plain values of ``priors/validation.yaml``."""
    from ruamel.yaml import YAML

    with (catalog.folder("priors") / "validation.yaml").open(encoding="utf-8") as stream:
        return {name: entry["value"] for name, entry in YAML(typ="safe", pure=True).load(stream).items()}


@functools.cache
def shipped() -> Shipped:
    """Return rows, settings and constants of the shipped fit; `Shipped.rows` are those that it used."""
    import csv

    folder = catalog.folder("priors") / "utilization"
    record = json.loads((folder / "fit.json").read_text(encoding="utf-8"))
    with (folder / "data.csv").open(encoding="utf-8", newline="") as stream:
        rows = [{**row, "run_id": row["id"]} for row in csv.DictReader(stream) if row["use"] == "yes"]
    return Shipped(rows, record["settings"], record["constants"], record)


def training_rows() -> list[dict[str, str]]:
    """Rows of full runs that the shipped fit used, in the order of the file."""
    return [row for row in shipped().rows if row["kind"] == "training"]


def planner(row: Row) -> dict[str, Any]:
    """Keep what is known before the run."""
    return {name: row.get(name, "") for name in PLANNED}


def predict_hours(rows: Sequence[Row], draws: "Draws", record: "Record") -> Mixture:
    """Predict log accelerator-hours of runs from what a planner knows.

    Parameters
    ----------
    rows : sequence of mapping
        Columns of ``priors/utilization/data.csv``; all but those of `planner` are dropped first.
    draws : Draws
        Posterior draws of the utilisation program.
    record : Record
        How the hours are counted, see `gpustack_mc.efficiency.published_record`.

    Returns
    -------
    Mixture
        Of log hours, shape (rows, draws).
    """
    from gpustack_mc.fits.utilization_data import log_hours_at_full_use
    from gpustack_mc.fits.utilization_predict import predict

    known = [planner(row) for row in rows]
    found = predict(draws, known, shipped().constants, shipped().settings, record=record)
    return scoring.reflected(found.log_utilization, log_hours_at_full_use(known))


def log_hours(rows: Sequence[Row]) -> np.ndarray:
    """Reported log accelerator-hours, shape (rows,)."""
    return np.log([float(row["accelerator_hours"]) for row in rows])


# ---- scores ---------------------------------------------------------------------------------------------------------
def score(
    rows: Sequence[Row], mixtures: Mixture | Sequence[Mixture], *, reference: Sequence[Row] | None = None,
    skipped: Sequence[Skipped] = (), method: str = PLAIN,
) -> dict[str, Any]:  # fmt: skip
    """Score predictions against the reported hours, beside what one could say without a model.

    Parameters
    ----------
    rows : sequence of mapping
        With ``run_id``, ``family``, ``accelerator_hours`` and the columns that make the groups.
    mixtures : Mixture or sequence of Mixture
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


def _score_pieces(pieces: Sequence[Mixture], y: np.ndarray) -> RowScores:
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


def _inside(scores: RowScores, level: float) -> np.ndarray:
    low, high = scores.intervals[level].T
    return ((scores.observed >= low) & (scores.observed <= high)).astype(float)


def _metrics(scores: RowScores, families: np.ndarray, model: RowScores | None = None) -> dict[str, Any]:
    """Metrics with standard errors; those of a baseline also hold the errors of its differences to the model."""
    found = scoring.metrics(scores)
    del found["n"], found["interval_score_90"]
    clusters = _clusters(families)

    def error(values: np.ndarray, statistic: Callable = np.mean) -> float | None:
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


def _clusters(families: np.ndarray) -> np.ndarray:
    """Numbers of the families, merged at random when there are many; a union of clusters is a cluster."""
    _, number = np.unique(families, return_inverse=True)
    limit = settings()["bootstrap_clusters"]
    if number.max() < limit:
        return number
    return np.random.default_rng(0).permutation(number.max() + 1)[number] % limit


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


def _group(scores: RowScores, baselines: Mapping[str, RowScores], mask: np.ndarray) -> dict[str, Any]:
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
    return score(training_rows(), _left_out(folds), method=REFIT)


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


# ---- for people -----------------------------------------------------------------------------------------------------
def summary(result: Mapping[str, Any]) -> str:
    """Say in one sentence how good the predictions were, and whether the fit knew the runs."""
    covered, error = result["metrics"]["coverage"]["0.9"], result["metrics"]["mdape"]
    n = result["n"]
    scored = (
        f"{covered:.0%} fell inside the 90% interval; for half of the runs the predicted median was "
        f"within {error:.1%} of the reported accelerator-hours."
    )
    if result["method"] == REFIT:
        return f"Of {n:,} {_runs(n)} that the fit never saw, {scored}"
    seen = _seen(result)
    known = f", of which {seen:,} {'was' if seen == 1 else 'were'} in the data that it was fitted to" if seen else ""
    return f"Of {n:,} {_runs(n)} predicted by the shipped fit{known}, {scored}"


def _runs(n: int) -> str:
    return "run" if n == 1 else "runs"


def _seen(result: Mapping[str, Any]) -> int:
    known = {(row["id"], float(row["accelerator_hours"])) for row in training_rows()}
    return sum((row["run_id"], row["reported"]) in known for row in result["rows"])


_COLUMNS = ("", "median miss", "mean |log error|", "CRPS (log)", "log score", "cover 50/80/90%", "p95/p5")
_GROUP_COLUMNS = ("", "runs", "median miss", "CRPS (log)", "of the median of others", "90% coverage")
_NAMES = {
    "rule_6nd_40": "6ND at 40%",
    "median_of_other_families": "median of other families",
    **scoring.SUBSETS,
}


def _with_error(value: float, error: float | None) -> str:
    return f"{value:.3f}" if error is None else f"{value:.3f} ± {error:.3f}"


def _metric_rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    found = [("this prior", result["metrics"])]
    found += [(_NAMES[name], baseline) for name, baseline in result["baselines"].items()]
    return [
        (
            name,
            *(
                _with_error(entry[key], entry["standard_errors"][key])
                for key in ("mdape", "mean_abs_log_error", "crps_log", "log_score")
            ),
            " / ".join(f"{value:.2f}" for value in entry["coverage"].values()),
            f"{entry['median_p95_over_p5']:.2f}",
        )
        for name, entry in found
    ]


def _group_rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows = []
    for column, entries in result["groups"].items():
        if column != "subset" and set(entries) == {"not stated"}:
            continue
        for name, entry in entries.items():
            label = _NAMES.get(name, name) if column == "subset" else f"{column} {name}"
            other = entry["baselines"]["median_of_other_families"]["crps_log"]
            share = f"{entry['crps_log'] / other:.0%}"
            cover = f"{entry['coverage']['0.9']:.2f}"
            rows.append((label, f"{entry['n']:,}", f"{entry['mdape']:.3f}", f"{entry['crps_log']:.3f}", share, cover))
    return rows


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [
        "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(cells))
        for cells in (list(zip(row, widths, strict=True)) for row in [header, *rows])
    ]
    return "\n".join(line.rstrip() for line in lines)


def _skipped_text(result: Mapping[str, Any]) -> str:
    """Count the rows that were not used, by reason, and name the first ones."""
    skipped = result["skipped"]
    if not skipped:
        return f"All {result['n']:,} rows were used." if result["method"] == PLAIN else ""
    total = result["n"] + len(skipped)
    verb = "was" if len(skipped) == 1 else "were"
    lines = [f"{result['n']:,} of {total:,} rows were used; {len(skipped):,} {verb} not:"]
    counts = Counter(entry["reason"] for entry in skipped)
    first: dict[str, int] = {}
    for entry in skipped:
        first.setdefault(entry["reason"], entry["line"])
    for reason, count in counts.most_common(_LINES):
        more = f" (and {count - 1:,} more)" if count > 1 else ""
        lines.append(f"  line {first[reason]}{more}: {reason}")
    if len(counts) > _LINES:
        lines.append(f"  and {len(counts) - _LINES:,} other reasons: see --json.")
    return "\n".join(lines)


def text(result: Mapping[str, Any]) -> str:
    """Return the tables for a terminal."""
    parts = [summary(result), _table(_COLUMNS, _metric_rows(result)), _table(_GROUP_COLUMNS, _group_rows(result))]
    return "\n\n".join([*parts, *filter(None, [_skipped_text(result)])])


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


_MADE = {
    REFIT: (
        "Made by `gpustack-mc validate --refit --out DIR`. Each family of runs (a team and its stack) was left out in "
        "turn, the utilisation program was fitted to all other rows, and the left-out runs were predicted from what a "
        "planner knows: parameters, tokens, accelerator, count, precision, architecture, date, and sequence length, "
        "layers, width, batch, recomputation and flash attention where stated. How the reported hours were counted was "
        "not read."
    ),
    PLAIN: (
        "Made by `gpustack-mc validate --data FILE --out DIR`: the runs in the file, predicted by the shipped fit from "
        "what a planner knows. Nothing was refitted."
    ),
}


def _gain(name: str, baseline: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    errors = baseline["standard_errors"]
    crps = _with_error(baseline["crps_log"] - model["crps_log"], errors["crps_log_difference"])
    log_score = _with_error(model["log_score"] - baseline["log_score"], errors["log_score_difference"])
    return f"- {_NAMES[name]}: CRPS higher by {crps}, log score lower by {log_score}, run by run"


def markdown(result: Mapping[str, Any]) -> str:
    """Return the page ``validation.md``."""
    gains = [_gain(name, entry, result["metrics"]) for name, entry in result["baselines"].items()]
    versions = ", ".join(f"{name} {value[:12]}" for name, value in result["versions"].items())
    parts = [
        "# Predicted against reported accelerator-hours",
        summary(result),
        _markdown_table(_COLUMNS, _metric_rows(result)),
        "± is one standard error by a bootstrap over families. CRPS and log score are on natural-log hours. The rule's "
        f"spread is {settings()['rule_sd']} in log hours; it states none itself.",
        "\n".join(gains),
        "![Predicted against reported accelerator-hours](predicted.png)",
        "![Calibration](calibration.png)",
        "## Groups",
        _markdown_table(_GROUP_COLUMNS, _group_rows(result)),
        "'of the median of others' is the CRPS relative to that of the median of other families; below 100% is better.",
        "## How it was made",
        _MADE[result["method"]],
        _skipped_text(result),
        f"`validation.json` holds every run with its intervals. Versions: {versions}.",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


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
    return to_json(result) if as_json else text(_rounded(result))


def published() -> dict[str, Any]:
    """Return the published scores of the shipped runs.

    Raises
    ------
    InputError
        They are not installed; the message says how to make them.
    """
    path = catalog.folder("reports") / "validation" / "validation.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
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
    content = {"validation.json": to_json(result).encode() + b"\n", "validation.md": markdown(result).encode()}
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
