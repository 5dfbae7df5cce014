"""A prior pack: what the user's own runs say of the inputs, kept in a folder of plain files.

``pack.json`` says what was learned from what, ``measurements.csv`` holds the measurements of all inputs but those of
utilisation, and ``draws.csv`` the joint draws of the utilisation program that know the user's runs. A pack belongs to
the shipped priors that it was made with, and is refused with others.
"""

import csv
import functools
import hashlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpustack_mc import catalog, efficiency, priors, storage
from gpustack_mc.efficiency import TeamFit
from gpustack_mc.errors import InputError, Place
from gpustack_mc.facts import overlaid, stated_facts
from gpustack_mc.fits import team, utilization_team
from gpustack_mc.fits.draws_file import read_columns, write_columns
from gpustack_mc.priors import TABLE_SIZE, TABLE_Z, Facts, Marginal, Selection, StatementError
from gpustack_mc.quantities import INPUTS
from gpustack_mc.user_table import IT_POWER

SCHEMA_VERSION = 1
RECORD, MEASUREMENTS, DRAWS = "pack.json", "measurements.csv", "draws.csv"
FILES = (RECORD, MEASUREMENTS, DRAWS)
_MOST_ROWS = 10**9
# A pack of ours has some hundred kilobytes.
_MOST_BYTES = 50 * 10**6
_AGAIN = "Run `gpustack-mc calibrate` again with your runs."
# Finer than the table of a marginal; the distribution function of a mixture is evaluated here and inverted.
_GRID = np.linspace(-1.5 * TABLE_Z, 1.5 * TABLE_Z, 6001)


class Measurement(NamedTuple):
    """One value of an input, in its unit, with the facts that its row states, and how many rows state just that."""

    quantity: str
    value: float
    run_id: str
    facts: Mapping[str, Any]
    count: int = 1  # type: ignore[assignment]  # the field, not the method of a tuple


class Calibrated(NamedTuple):
    """An input's distribution with the user's measurements taken in.

    Attributes
    ----------
    marginal : Marginal
    count : int
        Measurements that speak of the scenario's population.
    """

    marginal: Marginal
    count: int  # type: ignore[assignment]  # the field, not the method of a tuple


@functools.cache
def options() -> dict[str, Any]:
    """Plain values of ``priors/calibration.yaml``."""
    from ruamel.yaml import YAML

    with (catalog.folder("priors") / "calibration.yaml").open(encoding="utf-8") as stream:
        return {name: entry["value"] for name, entry in YAML(typ="safe", pure=True).load(stream).items()}


@functools.cache
def shipped_digest(prior: str) -> str:
    """SHA-256 of a shipped fit."""
    return hashlib.sha256(catalog.fit_path(prior).read_bytes()).hexdigest()


class Pack(NamedTuple):
    """A prior pack.

    Attributes
    ----------
    folder : Path
    record : dict
        ``pack.json``.
    measurements : tuple of Measurement
    team_fit : TeamFit or None
        None when no run tells utilisation.
    digest : str
        SHA-256 of the files together.
    """

    folder: Path
    record: Mapping[str, Any]
    measurements: tuple[Measurement, ...]
    team_fit: TeamFit | None
    digest: str

    def calibrated(self, quantity: str, facts: Facts, selection: Selection) -> Calibrated | None:
        """Take in what the pack says of an input for a scenario, or None where it says nothing.

        A measurement speaks of a scenario that belongs to the same population of the shipped prior; facts that its row
        does not state are those of the scenario.

        Parameters
        ----------
        quantity : str
        facts : Facts
            Of the scenario.
        selection : Selection
            The shipped population that the scenario belongs to.
        """
        return calibrated(self.measurements, quantity, facts, selection)


# ---- inputs ---------------------------------------------------------------------------------------------------------
def calibrated(
    measurements: Sequence[Measurement], quantity: str, facts: Facts, selection: Selection
) -> Calibrated | None:
    """Do what `Pack.calibrated` says, with measurements that are not in a pack yet."""
    found, counts = scores(measurements, quantity, facts, selection)
    if not len(found):
        return None
    return Calibrated(updated(selection.marginal, team.scored(found, counts)), int(counts.sum()))


def scores(
    measurements: Sequence[Measurement], quantity: str, facts: Facts, selection: Selection
) -> tuple[np.ndarray, np.ndarray]:
    """Normal scores, under the shipped prior, of the measurements that speak of a population, and their counts."""
    values: dict[tuple[Any, ...], list[tuple[float, int]]] = {}
    for item in measurements:
        if item.quantity == quantity:
            values.setdefault(tuple(item.facts.items()), []).append((item.value, item.count))
        elif quantity == "host_power" and item.quantity == IT_POWER:
            values.setdefault((("it", True), *item.facts.items()), []).append((item.value, item.count))
    found, counts = [], []
    for key, group in values.items():
        own = dict(key)
        merged = overlaid(facts, stated_facts(own))
        try:
            theirs = priors.select(catalog.fit_record(quantity), merged)
        except StatementError:
            continue
        if theirs.population is not selection.population:
            continue
        x, times = np.array(group).T
        if own.pop("it", False):
            x = x - board_power(measurements, own, merged)
        z = priors.scores(theirs.marginal, x)
        found.append(z[np.isfinite(z)])
        counts.append(times[np.isfinite(z)])
    if not found:
        return np.zeros(0), np.zeros(0)
    return np.concatenate(found), np.concatenate(counts)


def board_power(measurements: Sequence[Measurement], own: Mapping[str, Any], facts: Facts) -> float:
    """Board power that is taken off a measured IT power: TDP times the median share, calibrated where measured; W."""
    selection = priors.select(catalog.fit_record("gpu_power_fraction"), facts)
    found = calibrated(measurements, "gpu_power_fraction", facts, selection)
    share = priors.quantiles(found.marginal if found else selection.marginal, [0.5])[0]
    return float(share) * (catalog.accelerators()[own["accelerator"]].tdp or 0.0)


@functools.cache
def _shares() -> np.ndarray:
    return team.share_nodes(tuple(options()["share_between_teams"]), options()["share_nodes"])


def updated(marginal: Marginal, found: team.Scored) -> Marginal:
    """Distribution of the team's next value, from the shipped one and the scores of its measurements."""
    from scipy.special import ndtr

    w, m, s = (part[0] for part in team.next_score(found, _shares()))
    cumulative = (w * ndtr((_GRID[:, None] - m) / s)).sum(axis=1)
    wanted = ndtr(np.linspace(-TABLE_Z, TABLE_Z, TABLE_SIZE))
    # Where the distribution function is flat in float64 any point will do: there is no mass.
    rising = np.concatenate([[True], np.diff(cumulative) > 0])
    z = np.interp(wanted, cumulative[rising], _GRID[rising])
    return Marginal("tabulated", {"values": priors.at_scores(marginal, np.clip(z, -TABLE_Z, TABLE_Z)).tolist()})


# ---- files ----------------------------------------------------------------------------------------------------------
def load(folder: Path | str) -> Pack:
    """Read a pack.

    Raises
    ------
    InputError
        It is none, it is damaged, or it was made with other shipped priors.
    """
    folder = Path(folder)
    place = Place(str(folder))
    if not folder.is_dir():
        fix = "Make one with `gpustack-mc calibrate my_runs.csv --out my-priors/`."
        raise InputError("no-pack", "there is no such folder.", fix, place)
    if not (folder / RECORD).is_file():
        fix = "Make one with `gpustack-mc calibrate my_runs.csv --out my-priors/`."
        raise InputError("no-pack", f"this folder holds no prior pack ({RECORD} is missing).", fix, place)
    for name in FILES:
        if (folder / name).is_file() and (folder / name).stat().st_size > _MOST_BYTES:
            raise InputError("too-large", f"more than {_MOST_BYTES / 1e6:.0f} MB, which no pack has.", _AGAIN,
                             Place(str(folder / name)))  # fmt: skip
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        if record["schema_version"] != SCHEMA_VERSION:
            raise InputError("pack-version", f"a pack of version {record['schema_version']}.", _AGAIN, place)
        if not isinstance(record["table"], str) or not record["table"].isprintable():
            raise ValueError("it does not name its table")
        _check_fits(record, place)
        content = _content(folder, record["files"])
        measurements = tuple(_read_measurements(content[MEASUREMENTS].decode("utf-8")))
        fitted = _read_team(record, content)
        _require_stated_fits(record, measurements)
    except KeyError as error:
        raise InputError("pack-damaged", f"the pack does not know {error}.", _AGAIN, place) from error
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InputError("pack-damaged", f"the pack cannot be read ({error}).", _AGAIN, place) from error
    digest = hashlib.sha256((folder / RECORD).read_bytes()).hexdigest()
    return Pack(folder, record, measurements, fitted, digest)


def _check_fits(record: Mapping[str, Any], place: Place) -> None:
    for prior, digest in record["shipped"].items():
        if not catalog.fit_path(prior).is_file() or shipped_digest(prior) != digest:
            message = f"this pack was made with another version of the shipped prior of {prior}."
            raise InputError("pack-stale", message, _AGAIN, place)


def _content(folder: Path, digests: Mapping[str, str]) -> dict[str, bytes]:
    """Read the files that a record names, which are the pack's own and no others."""
    content = {}
    for name, digest in digests.items():
        if name not in FILES:
            raise ValueError(f"{str(name)[:40]!r} is no file of a pack")
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{name} is missing")
        content[name] = path.read_bytes()
        if hashlib.sha256(content[name]).hexdigest() != digest:
            raise InputError("pack-changed", "the file was changed after it was made.", _AGAIN, Place(str(path)))
    return content


def _require_stated_fits(record: Mapping[str, Any], measurements: Sequence[Measurement]) -> None:
    """Make sure that every shipped prior that a pack moves was checked."""
    used = {"host_power" if item.quantity == IT_POWER else item.quantity for item in measurements}
    used |= {"utilization"} if record["utilization"] is not None else set()
    if missing := sorted(used - set(record["shipped"])):
        raise ValueError(f"it does not say with which prior of {missing[0]} it was made")


def _finite(value: Any, what: str) -> float:
    """Return a number of a pack, which anyone may have written."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{what} is not a number")
    return value


def _read_measurements(text: str) -> list[Measurement]:
    found = []
    if not text:
        raise ValueError(f"{MEASUREMENTS} is empty")
    for row in csv.DictReader(io.StringIO(text, newline="")):
        facts = {name: value for name, value in row.items() if name not in ("quantity", "value", "run_id", "count")}
        count, value = int(row["count"]), _finite(float(row["value"]), row["quantity"])
        # More rows than any table has would only serve to outvote everything.
        if row["quantity"] not in (*INPUTS, IT_POWER) or not 1 <= count <= _MOST_ROWS or None in row:
            raise ValueError(f"{MEASUREMENTS} does not hold measurements")
        if row["quantity"] == IT_POWER and not facts["accelerator"]:
            raise ValueError("an IT power without its accelerator")
        stated_facts(facts)
        found.append(Measurement(row["quantity"], value, row["run_id"], facts, count))
    return found


def _read_team(record: Mapping[str, Any], content: Mapping[str, bytes]) -> TeamFit | None:
    about = record["utilization"]
    if about is None:
        return None
    columns = read_columns(content[DRAWS].decode("utf-8"))
    if not all(np.isfinite(column).all() for column in columns.values()):
        raise ValueError(f"{DRAWS} holds what is not a number")
    _require_draws(columns)
    draws, known = utilization_team.read(columns)
    fit = catalog.fit_record("utilization")
    constants = {name: _finite(about["constants"][name], name) for name in fit["constants"]}
    if not (0 <= _finite(about["loose"], "loose") <= 1 and isinstance(about["runs"], int) and about["runs"] >= 0):
        raise ValueError("loose is no share, or runs no number")
    return TeamFit(draws, known, constants, fit["settings"], about["loose"], about["runs"])


def _require_draws(columns: Mapping[str, np.ndarray]) -> None:
    """Make sure that the draws have every parameter of the shipped ones, and spreads that are not below zero."""
    shipped = efficiency.draws()
    wanted = {*shipped.scalar, *(f"generation:{name}" for name in shipped.generation)}
    if missing := sorted(wanted - set(columns)):
        raise ValueError(f"{DRAWS} lacks {missing[0]}")
    spreads = [name for name in columns if name.endswith(("_sd", "_sd_unsure", "_variance", "loss", "loss_mean"))]
    for name in spreads:
        if (columns[name] < 0).any():
            raise ValueError(f"{DRAWS} holds a {name[:60]} below zero")
    level, slope, both = (columns[f"team_{name}"] for name in ("level_variance", "slope_variance", "covariance"))
    # Five digits of each are written, so that a correlation of one may be a little more.
    if (both**2 > level * slope * (1 + 1e-3)).any():
        raise ValueError(f"{DRAWS} holds a covariance that no distribution has")


def measurements_text(measurements: Sequence[Measurement], fields: Sequence[str]) -> str:
    """Text of ``measurements.csv``."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["quantity", "value", "count", "run_id", *fields])
    for item in measurements:
        writer.writerow(
            [item.quantity, repr(item.value), item.count, item.run_id, *(item.facts[name] for name in fields)]
        )
    return stream.getvalue()


def write(folder: Path, record: dict[str, Any], content: Mapping[str, bytes]) -> None:
    """Write a pack whole or not at all; files of an earlier pack that this one does not have are removed.

    Parameters
    ----------
    folder : Path
    record : dict
        ``pack.json`` but for the hashes of the files.
    content : mapping of str to bytes
        The other files, pictures among them.
    """
    digests = {name: hashlib.sha256(value).hexdigest() for name, value in content.items() if name in FILES}
    text = json.dumps(record | {"files": digests}, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
    whole = {**content, RECORD: text.encode()}
    with storage.replacing_all([folder / name for name in whole]) as temporary:
        for path, value in zip(temporary, whole.values(), strict=True):
            path.write_bytes(value)
    for name in FILES:
        if name not in whole:
            (folder / name).unlink(missing_ok=True)


def draws_text(learned: utilization_team.Learned) -> str:
    """Text of the pack's ``draws.csv``."""
    return write_columns(utilization_team.columns(learned))
