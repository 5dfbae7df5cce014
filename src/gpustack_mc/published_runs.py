"""The published runs that the utilisation prior was fitted to, and predictions of hours from what a planner knows."""

import csv
import functools
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpustack_mc import catalog, scoring
from gpustack_mc.scoring import Mixture

if TYPE_CHECKING:
    from gpustack_mc.fits.utilization_predict import Draws, Evidence, Record

# Never how a record was made (tier, hours_basis, hours_cover), nor what came out (hours, MFU, goodput).
PLANNED = (
    "params_active", "tokens", "accelerator", "generation", "peak_16bit_flop_per_s", "n_accelerators", "precision",
    "architecture", "publication_date", "sequence_length", "n_layers", "d_model", "global_batch_tokens",
    "activation_recompute", "flash_attention",
)  # fmt: skip

Row = Mapping[str, Any]


class Shipped(NamedTuple):
    """The utilisation prior as it is shipped."""

    rows: list[dict[str, str]]
    settings: Mapping[str, Any]
    constants: Mapping[str, float]
    record: Mapping[str, Any]


@functools.cache
def settings() -> dict[str, Any]:
    """Plain values of ``priors/validation.yaml``."""
    from ruamel.yaml import YAML

    with (catalog.folder("priors") / "validation.yaml").open(encoding="utf-8") as stream:
        return {name: entry["value"] for name, entry in YAML(typ="safe", pure=True).load(stream).items()}


@functools.cache
def shipped() -> Shipped:
    """Return rows, settings and constants of the shipped fit; `Shipped.rows` are those that it used."""
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


def evidence_of_hours(row: Row) -> "Evidence":
    """What the reported hours of a run say of its team, by how they were counted."""
    from gpustack_mc.fits import utilization_data as table
    from gpustack_mc.fits.utilization_predict import Evidence

    kind = "compute_only" if table.compute_only([row])[0] else "total"
    told = {**planner(row), "kind": "training"}
    return Evidence(told, kind, float(table.log_utilization([row])[0]), loose=bool(table.loose_record([row])[0]))


def predict_hours(
    rows: Sequence[Row], draws: "Draws", record: "Record", evidence: "Sequence[Evidence]" = ()
) -> Mixture:
    """Predict log accelerator-hours of runs from what a planner knows.

    Parameters
    ----------
    rows : sequence of mapping
        Columns of ``priors/utilization/data.csv``; all but those of `planner` are dropped first.
    draws : Draws
        Posterior draws of the utilisation program.
    record : Record
        How the hours are counted, see `gpustack_mc.efficiency.published_record`.
    evidence : sequence of Evidence
        What is known of the team, or of the run if it is one row.

    Returns
    -------
    Mixture
        Of log hours, shape (rows, draws).
    """
    from gpustack_mc.fits.utilization_data import log_hours_at_full_use
    from gpustack_mc.fits.utilization_predict import predict

    known = [planner(row) for row in rows]
    found = predict(draws, known, shipped().constants, shipped().settings, record=record, evidence=evidence)
    return scoring.reflected(found.log_utilization, log_hours_at_full_use(known))


def log_hours(rows: Sequence[Row]) -> np.ndarray:
    """Reported log accelerator-hours, shape (rows,)."""
    return np.log([float(row["accelerator_hours"]) for row in rows])
