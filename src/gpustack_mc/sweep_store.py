"""The folder of a sweep: chunks while it runs, one netCDF file and tables when it is done.

Every chunk is written whole or not at all. A sweep that was interrupted finds its chunks again and computes the others;
its final files depend on the chunks alone, so that they have the same bytes as if nothing had happened. A folder that
belongs to another sweep is never touched.
"""

import csv
import hashlib
import json
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from gpustack_mc import catalog, result, storage
from gpustack_mc.errors import GpustackError, InputError, Place
from gpustack_mc.quantities import BY_NAME
from gpustack_mc.sweep_engine import INDICES, STATISTICS, Chunk, Engine, Settings
from gpustack_mc.sweep_spec import Sweep, shown
from gpustack_mc.sweep_table import REPORTED

SCHEMA_VERSION = 1
RESULT, TABLE, CHANCES, SKIPPED, RECORD = "sweep.nc", "sweep.csv", "probabilities.csv", "skipped.csv", "sweep.json"
CHUNKS = "chunks"
MANIFEST = "manifest.json"
MOST_DRAWS = 2**28


class InterruptedSweep(GpustackError):
    """The user stopped a sweep; what was finished is kept."""

    exit_code = 130


class Skip(NamedTuple):
    """A scenario that could not be run: its line in a table (None for axes), its name, and why."""

    line: int | None
    name: str
    reason: str


def digest_of(sweep: Sweep, settings: Settings) -> str:
    """Return the SHA-256 of everything that the numbers of a sweep depend on."""
    said = {
        "schema_version": SCHEMA_VERSION,
        "text": sweep.text,
        "outputs": sweep.outputs,
        "design": settings.design._asdict(),
        "sensitivity": settings.sensitivity,
        "draws": settings.draws,
        "priors": catalog.priors_digest(),
        "pack": sweep.document.pack.digest if sweep.document.pack else "",
        "versions": result.versions(),
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


class Store:
    """A folder of one sweep.

    Parameters
    ----------
    folder : Path
    digest : str
        From `digest_of`.
    """

    def __init__(self, folder: Path, digest: str):
        self.folder, self.digest = folder, digest
        self.chunks = folder / CHUNKS

    @property
    def complete(self) -> bool:
        """Whether the sweep is done."""
        return (self.folder / RECORD).is_file() and (self.folder / RESULT).is_file()

    def open(self) -> None:
        """Make sure that the folder is this sweep's, or make it so.

        Raises
        ------
        InputError
            It belongs to another sweep.
        GpustackError
            It cannot be written.
        """
        for path in (self.folder / RECORD, self.chunks / MANIFEST):
            if path.is_file():
                self._require_own(path)
        if not self.complete:
            left = [name for name in (RESULT, TABLE) if (self.folder / name).exists()]
            if left and not (self.chunks / MANIFEST).is_file():
                raise self._another(f"{left[0]} of something else")
            storage.require_folder(self.folder)
            storage.write_text(self.chunks / MANIFEST, json.dumps({"kind": "sweep", "digest": self.digest}) + "\n")

    def _require_own(self, path: Path) -> None:
        try:
            found = json.loads(path.read_text(encoding="utf-8")).get("digest")
        except (OSError, ValueError, AttributeError):
            found = None
        if found != self.digest:
            raise self._another("another sweep, or this one with other settings, priors or versions")

    def _another(self, what: str) -> InputError:
        return InputError("other-sweep", f"this folder holds {what}; nothing was changed.",
                          "Choose another folder with --out, or remove this one.", Place(str(self.folder)))  # fmt: skip

    # ---- chunks ----

    def _path(self, number: int) -> Path:
        return self.chunks / f"{number:06d}.npz"

    def missing(self, count: int) -> list[int]:
        """Return the numbers of the chunks that are still to be computed."""
        return [number for number in range(count) if not self._is_sound(number)]

    def _is_sound(self, number: int) -> bool:
        try:
            with zipfile.ZipFile(self._path(number)) as file:
                return file.testzip() is None
        except (OSError, zipfile.BadZipFile):
            return False

    def write(self, number: int, chunk: Chunk) -> None:
        """Keep a chunk.

        Raises
        ------
        GpustackError
            The disk is full, or the folder went away; the chunks that were kept before are sound.
        """
        arrays = chunk._asdict() | {"reasons": np.array(chunk.reasons, dtype=str)}
        try:
            with storage.replacing(self._path(number)) as path, path.open("wb") as stream:
                np.savez(stream, **arrays)
        except GpustackError as error:
            raise self.unwritten(error) from error

    def unwritten(self, error: GpustackError) -> GpustackError:
        """Return the error of a file that could not be written, which says what is kept."""
        reason = error.message.removeprefix("cannot write: ").rstrip(".")
        fix = "What is finished is kept: make room, and run the same command again."
        return GpustackError("cannot-write", f"cannot write: {reason}.", fix, error.place)

    def read(self, number: int) -> Chunk:
        """Return a chunk that was kept."""
        with np.load(self._path(number), allow_pickle=False) as file:
            arrays = dict(file)
        return Chunk(**arrays | {"reasons": [str(reason) for reason in arrays["reasons"]]})

    def remove_chunks(self) -> None:
        """Remove what is in the final files."""
        shutil.rmtree(self.chunks, ignore_errors=True)


# ---- the final files ----------------------------------------------------------------------------------------------


def gathered(store: Store, engine: Engine) -> tuple[xr.Dataset, list[Skip]]:
    """Return the chunks of a sweep as one dataset, and the scenarios that could not be run."""
    parts = [store.read(number) for number in range(engine.chunks)]
    whole = Chunk(
        np.concatenate([part.statistics for part in parts]),
        np.concatenate([part.probabilities for part in parts]),
        np.concatenate([part.indices for part in parts]),
        np.concatenate([part.draws for part in parts]),
        [r for part in parts for r in part.reasons],
    )
    sweep = engine.sweep
    skipped = [Skip(row.line, "", row.reason) for row in sweep.unread]
    for number, reason in enumerate(whole.reasons):
        if reason:
            line = sweep.rows[number].line if sweep.table else None
            skipped.append(Skip(line, sweep.label(number), reason))
    skipped.sort(key=lambda skip: skip.line or 0)
    return _dataset(whole, engine, store.digest, skipped), skipped


def _dataset(whole: Chunk, engine: Engine, digest: str, skipped: Sequence[Skip]) -> xr.Dataset:
    sweep, layout, design = engine.sweep, engine.layout, engine.settings.design
    data: dict[str, Any] = {
        "value": (("scenario", "output", "statistic"), whole.statistics),
        "units": (("output",), [BY_NAME[name].unit for name in layout.outputs]),
    }
    coords: dict[str, Any] = {
        "scenario": np.arange(sweep.count),
        "name": (("scenario",), [sweep.label(number) for number in range(sweep.count)]),
        "output": list(layout.outputs),
        "statistic": list(STATISTICS),
        **dict(_axis_coordinates(sweep)),
    }
    if layout.questions:
        data["probability"] = (("scenario", "question"), whole.probabilities[..., 0])
        data["probability_error"] = (("scenario", "question"), whole.probabilities[..., 1])
        coords["question"] = list(layout.questions)
    if engine.settings.sensitivity:
        coords["input"] = list(layout.inputs)
        for i, name in enumerate(INDICES):
            data[name] = (("scenario", "output", "input"), whole.indices[..., i], {"units": "1"})
    if engine.settings.draws:
        data["draws"] = (("scenario", "output", "draw"), whole.draws)
    if sweep.table:
        coords["line"] = (("scenario",), [row.line for row in sweep.rows])
        names = tuple(dict.fromkeys(REPORTED.values()))
        reported = [[row.reported.get(name, np.nan) for name in names] for row in sweep.rows]
        data["reported"] = (("scenario", "reported_output"), np.array(reported))
        coords["reported_output"] = list(names)
    attributes = {
        "gpustack_mc_sweep": SCHEMA_VERSION,
        "name": sweep.name,
        "comment": "intervals are equal-tailed: 90% from q0.05 to q0.95, 50% from q0.25 to q0.75; *_error is the Monte "
        "Carlo standard error; all scenarios share their draws",
        "ownership": engine.first.file.ownership,
        "seed": design.seed,
        "samples": design.samples,
        "design": design.method,
        "replicates": design.replicates,
        "axes": json.dumps([{"name": axis.name, "keys": axis.keys, "length": len(axis.rows)} for axis in sweep.axes]),
        "skipped": json.dumps([skip._asdict() for skip in skipped]),
        "sweep": sweep.text,
        "sweep_sha256": digest,
        "priors_sha256": catalog.priors_digest(),
        "versions": json.dumps(result.versions()),
    }
    return xr.Dataset(data, coords=coords, attrs=attributes)


def _axis_coordinates(sweep: Sweep) -> Iterator[tuple[str, Any]]:
    """Yield what each key of an axis is in every scenario: numbers, or texts where one of them is not a number."""
    for k, axis in enumerate(sweep.axes):
        inner = int(np.prod([len(other.rows) for other in sweep.axes[k + 1 :]], dtype=int))
        outer = sweep.count // (inner * len(axis.rows))
        for key, column in zip(axis.keys, zip(*axis.rows, strict=True), strict=True):
            numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in column)
            values = np.array(column, dtype=float) if numbers else np.array([shown(v) for v in column], dtype=object)
            yield key, (("scenario",), np.tile(np.repeat(values, inner), outer))


def write_tables(dataset: xr.Dataset, skipped: Sequence[Skip], paths: dict[str, Path]) -> None:
    """Write the tidy tables: one line for each scenario and output, for each question, for each scenario left out."""
    keys = axis_keys(dataset)
    columns = [dataset[key].values.tolist() for key in keys]
    names, units, outputs = (dataset[key].values.tolist() for key in ("name", "units", "output"))
    value = dataset["value"].values
    with paths[TABLE].open("w", encoding="utf-8", newline="") as stream:
        write = csv.writer(stream, lineterminator="\n").writerow
        write(["scenario", *keys, "output", "unit", *STATISTICS])
        for i, name in enumerate(names):
            about = [name, *(_cell(column[i]) for column in columns)]
            for output, unit, row in zip(outputs, units, value[i].tolist(), strict=True):
                write([*about, output, unit, *map(_cell, row)])
    if CHANCES in paths:
        questions = dataset["question"].values.tolist()
        chances, errors = dataset["probability"].values, dataset["probability_error"].values
        with paths[CHANCES].open("w", encoding="utf-8", newline="") as stream:
            write = csv.writer(stream, lineterminator="\n").writerow
            write(["scenario", *keys, "question", "probability", "monte_carlo_error"])
            for i, name in enumerate(names):
                about = [name, *(_cell(column[i]) for column in columns)]
                for question, *pair in zip(questions, chances[i].tolist(), errors[i].tolist(), strict=True):
                    write([*about, question, *map(_cell, pair)])
    if SKIPPED in paths:
        with paths[SKIPPED].open("w", encoding="utf-8", newline="") as stream:
            write = csv.writer(stream, lineterminator="\n").writerow
            write(["line", "scenario", "reason"])
            for skip in skipped:
                write(["" if skip.line is None else skip.line, skip.name, skip.reason])


def axis_keys(dataset: xr.Dataset) -> list[str]:
    """Return the keys that change from scenario to scenario."""
    return [key for axis in json.loads(dataset.attrs["axes"]) for key in axis["keys"]]


def _cell(value: Any) -> str:
    """Write a number with nine digits, and nothing for one that is not known."""
    if isinstance(value, float):
        return f"{value:.9g}" if value == value else ""
    return str(value)


def write_dataset(dataset: xr.Dataset, path: Path) -> None:
    """Write a sweep as netCDF-4."""
    result.write(xr.DataTree(dataset), path)
