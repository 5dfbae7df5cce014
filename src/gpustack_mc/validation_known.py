"""How much better hours are predicted when more is known: exact books, an earlier run of the team, a reported MFU.

Every family is predicted with the draws that never saw it, and then told one thing of it. Unlike in the main table, how
the predicted record counts its hours is known here: these are questions that a user asks of their own books.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpustack_mc.fits import utilization_data as table
from gpustack_mc.fits.utilization_predict import Evidence, Record
from gpustack_mc.published_runs import Row, evidence_of_hours, planner, predict_hours, training_rows
from gpustack_mc.scoring import Mixture
from gpustack_mc.validation_scores import scores_of

if TYPE_CHECKING:
    from gpustack_mc.fits.utilization_predict import Draws

KNOWN = {
    "exact_books": "exact books",
    "one_earlier_run": "an earlier run of the team",
    "reported_mfu": "the run's reported MFU",
}
"""What is known, as tables call it."""

Case = tuple[Row, Sequence[Evidence]]


def own_record(row: Row) -> Record:
    """How the hours of a row are counted, as its own books say."""
    return Record(float(table.loose_record([row])[0]), float(table.compute_only([row])[0]))


def exact_books(rows: Sequence[Row]) -> Iterator[Case]:
    """Runs whose records are neither rounded nor second-hand."""
    return ((row, ()) for row in rows if not table.loose_record([row])[0])


def one_earlier_run(rows: Sequence[Row]) -> Iterator[Case]:
    """Runs of a family after its first, with the hours of the one before it; those of one date in the file's order."""
    families: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["publication_date"]):
        families.setdefault(row["family"], []).append(row)
    for runs in families.values():
        yield from ((later, [evidence_of_hours(earlier)]) for earlier, later in itertools.pairwise(runs))


def reported_mfu(rows: Sequence[Row]) -> Iterator[Case]:
    """Runs with a reported MFU of the whole run, which is told with its convention."""
    for row in rows:
        if not row["mfu_reported"] or row["mfu_kind"] == "peak_benchmark":
            continue
        value = np.log(table.number(row, "mfu_reported"))
        if row["mfu_peak_basis"] == "fp8":
            value += np.log(table.number(row, "peak_flop_per_s") / table.number(row, "peak_16bit_flop_per_s"))
        told = {**planner(row), "kind": "training", "mfu_convention": row["mfu_convention"]}
        yield row, [Evidence(told, "mfu", float(value), same_run=True)]


_CASES: dict[str, Callable[[Sequence[Row]], Iterator[Case]]] = {
    "exact_books": exact_books,
    "one_earlier_run": one_earlier_run,
    "reported_mfu": reported_mfu,
}


def scores_when_known(folds: Mapping[str, "Draws"]) -> dict[str, dict[str, Any]]:
    """Scores of the published runs for each of `KNOWN`, over all runs and over those of batch 1.

    Parameters
    ----------
    folds : mapping of str to Draws
        Draws without each family.

    Returns
    -------
    dict
        By what is known: the metrics of `gpustack_mc.validation_scores.scores_of`, ``n``, ``families``, and ``batch_1``
        with the same.
    """
    rows = training_rows()
    found = {}
    for name, cases in _CASES.items():
        told = list(cases(rows))
        first = [case for case in told if case[0]["batch"] == "1"]
        found[name] = {**_scored(told, folds), "batch_1": _scored(first, folds)}
    return found


def _scored(cases: Sequence[Case], folds: Mapping[str, "Draws"]) -> dict[str, Any]:
    parts = [predict_hours([row], folds[row["family"]], own_record(row), evidence) for row, evidence in cases]
    mixture = Mixture(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
    rows = [row for row, _ in cases]
    return {"n": len(rows), "families": len({row["family"] for row in rows}), **scores_of(rows, mixture)}
