"""Finds what is shipped (priors, scenarios, accelerators, regions), in a checkout or in an installed wheel."""

import csv
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpustack_mc.errors import InputError, did_you_mean

_PACKAGE = Path(__file__).parent


def folder(name: str) -> Path:
    """Return the folder of shipped files called `name` (``priors`` or ``scenarios``)."""
    installed = _PACKAGE / "_shipped" / name
    return installed if installed.is_dir() else _PACKAGE.parents[1] / name


class Accelerator(NamedTuple):
    """One accelerator of ``priors/accelerators.csv``; None where its maker states no figure."""

    name: str
    vendor: str
    group: str
    generation: str
    aliases: tuple[str, ...]
    peak_flop_per_s: dict[str, float | None]
    tdp: float | None
    memory_gb: float
    memory_bandwidth_tb_s: float
    release_year: int
    source_url: str
    note: str

    @property
    def ladder(self) -> tuple[str, ...]:
        """From the accelerator itself to its vendor: the names under which priors may know it."""
        return (self.name, self.group, self.generation, self.vendor)


class Region(NamedTuple):
    """One region of ``priors/regions.csv``."""

    id: str
    name: str
    kind: str
    parent: str
    aliases: tuple[str, ...]


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(";") if part.strip())


@functools.cache
def accelerators() -> dict[str, Accelerator]:
    """Return all accelerators by name."""
    found = {}
    for row in _rows(folder("priors") / "accelerators.csv"):
        bf16 = float(row["peak_dense_bf16_flops"])
        fp8 = float(row["peak_dense_fp8_flops"]) if row["peak_dense_fp8_flops"] else None
        found[row["accelerator"]] = Accelerator(
            name=row["accelerator"],
            vendor=row["vendor"],
            group=row["group"],
            generation=row["generation"],
            aliases=_split(row["aliases"]),
            # Makers state one dense 16-bit peak for bf16 and fp16.
            peak_flop_per_s={"bf16": bf16, "fp16": bf16, "fp8": fp8},
            tdp=float(row["tdp_w"]) if row["tdp_w"] else None,
            memory_gb=float(row["memory_gb"]),
            memory_bandwidth_tb_s=float(row["memory_bandwidth_bytes_per_s"]) / 1e12,
            release_year=int(row["release_year"]),
            source_url=row["source_url"],
            note=row["note"],
        )
    return found


@functools.cache
def regions() -> dict[str, Region]:
    """Return all regions by id."""
    return {
        row["region"]: Region(row["region"], row["name"], row["kind"], row["parent"], _split(row["aliases"]))
        for row in _rows(folder("priors") / "regions.csv")
    }


def find_accelerator(word: str) -> Accelerator:
    """Return the accelerator with a name or alias, whatever its case.

    Raises
    ------
    InputError
        No accelerator has it; the message names the nearest ones.
    """
    known = accelerators()
    names = {alias: accelerator for accelerator in known.values() for alias in accelerator.aliases}
    return _find(word, {**names, **known}, tuple(known) + tuple(names), "accelerator", "gpustack-mc accelerators")


def find_region(word: str) -> Region:
    """Return the region with an id, name or alias, whatever its case.

    Raises
    ------
    InputError
        No region has it; the message names the nearest ones.
    """
    known = regions()
    names = {alias: region for region in known.values() for alias in (*region.aliases, region.name)}
    return _find(word, {**names, **known}, tuple(names) + tuple(known), "region", "gpustack-mc regions")


def _find[Found](word: str, by_name: Mapping[str, Found], offered: tuple[str, ...], what: str, command: str) -> Found:
    if word in by_name:
        return by_name[word]
    folded = {name.casefold(): found for name, found in by_name.items()}
    if word.casefold() in folded:
        return folded[word.casefold()]
    fix = f"{did_you_mean(word, offered)} `{command}` lists all."
    raise InputError(f"unknown-{what}", f"{word[:60]!r} is not a known {what}.", fix)


def region_ladder(region: Region) -> tuple[str, ...]:
    """Return the ids from a region up to the world."""
    ladder = [region.id]
    while (parent := regions()[ladder[-1]].parent) != "":
        ladder.append(parent)
    return tuple(ladder)


# Inputs that are fitted together and kept in one folder.
JOINT = {"mfu": "utilization", "goodput": "utilization"}


def fit_path(quantity: str) -> Path:
    """Return where the fitted prior of a quantity is kept."""
    return folder("priors") / JOINT.get(quantity, quantity) / "fit.json"


@functools.cache
def fit_record(quantity: str) -> dict[str, Any]:
    """Return the fitted prior of a quantity, as written by `fits.refit` or, if joint, by `fits.utilization_fit`."""
    record: dict[str, Any] = json.loads(fit_path(quantity).read_text(encoding="utf-8"))
    return record


def observed_settings() -> dict[str, float]:
    """Plain values of ``priors/observed.yaml``."""
    return _settings("observed.yaml")


def price_drift_settings() -> dict[str, Any]:
    """Plain values of ``priors/price_drift.yaml``."""
    return _settings("price_drift.yaml")


def distributed_settings() -> dict[str, float]:
    """Plain values of ``priors/distributed.yaml``."""
    return _settings("distributed.yaml")


@functools.cache
def _settings(file: str) -> dict[str, float]:
    from ruamel.yaml import YAML

    with (folder("priors") / file).open(encoding="utf-8") as stream:
        return {name: entry["value"] for name, entry in YAML(typ="safe", pure=True).load(stream).items()}


_DATES = ("year", "year_month", "publication_date", "fiscal_year")


@functools.cache
def _row_years(quantity: str) -> dict[str, int]:
    """Return the year of each row of a prior's data; rows without a date are absent."""
    path = fit_path(quantity).with_name("data.csv")
    with path.open(encoding="utf-8", newline="") as stream:
        header, *rows = csv.reader(stream)
    column = next((header.index(name) for name in _DATES if name in header), None)
    if column is None:
        return {}
    name, use = header.index("id") if "id" in header else 0, header.index("use")
    return {row[name]: int(row[column][:4]) for row in rows if row[column][:4].isdigit() and row[use][:2] != "no"}


def years(quantity: str, rows: Iterable[str] | None = None) -> str:
    """Return the years that the data of a prior are from, e.g. ``2019-2025``; empty where the rows have no date.

    Parameters
    ----------
    quantity : str
    rows : iterable of str, optional
        Ids of the rows of a population; all rows that are used when omitted.
    """
    known = _row_years(quantity)
    found = sorted({known[row] for row in (known if rows is None else rows) if row in known})
    return "" if not found else str(found[0]) if len(found) == 1 else f"{found[0]}-{found[-1]}"


def priors_digest() -> str:
    """Return the SHA-256 of all fitted priors and tables that a run may read."""
    digest = hashlib.sha256()
    for path in sorted([*folder("priors").glob("*/fit.json"), *folder("priors").glob("*.csv")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def shipped_scenarios() -> dict[str, Path]:
    """Return the shipped scenarios by name."""
    return {path.stem: path for path in sorted(folder("scenarios").glob("*.yaml"))}
