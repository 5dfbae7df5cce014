"""What ``gpustack-mc calibrate`` does: learn from the user's own runs, write a prior pack, and say what moved."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpustack_mc import calibration_text, catalog, efficiency, formatting, pack, priors, storage
from gpustack_mc.calibration_text import PICTURE, UTILIZATION
from gpustack_mc.errors import GpustackError, InputError, Place
from gpustack_mc.facts import UNSTATED, overlaid, stated_facts
from gpustack_mc.fits import utilization_data, utilization_team
from gpustack_mc.fits.utilization_predict import CLEAN, Evidence, Record, predict
from gpustack_mc.pack import Measurement
from gpustack_mc.priors import Marginal
from gpustack_mc.quantities import BY_NAME, INPUTS
from gpustack_mc.run_table import Skipped
from gpustack_mc.surprise import Surprise, of_measurements, of_runs
from gpustack_mc.user_table import IT_POWER, Run, Table, read_table

Progress = Callable[[str], None]


class DiagnosticsError(GpustackError):
    """A fit whose diagnostics are bad, so that nothing was written."""

    exit_code = 3


class Moved(NamedTuple):
    """One input before and after.

    Attributes
    ----------
    quantity : str
    before, after : Marginal
    count : int
        Rows that speak of it.
    whose : str
        Which run or population the two describe.
    """

    quantity: str
    before: Marginal
    after: Marginal
    count: int  # type: ignore[assignment]  # the field, not the method of a tuple
    whose: str


class Utilization(NamedTuple):
    """What the runs say of utilisation.

    Attributes
    ----------
    learned : Learned
    evidence : list of Evidence
    losses : list of float
    constants : mapping
    loose : float
    method : {"importance weights", "NUTS"}
    diagnostics : dict or None
        Of the new sampling.
    """

    learned: utilization_team.Learned
    evidence: list[Evidence]
    losses: list[float]
    constants: Mapping[str, float]
    loose: float
    method: str
    diagnostics: Mapping[str, Any] | None


class Result(NamedTuple):
    """A calibration before it is written."""

    path: Path
    table: Table
    utilization: Utilization | None
    measurements: list[Measurement]
    moved: list[Moved]
    surprises: list[Surprise]


# ---- learning -------------------------------------------------------------------------------------------------------
def calibrate(path: Path, progress: Progress = lambda line: None) -> Result:
    """Learn from a table of runs; nothing is written.

    Parameters
    ----------
    path : Path
        See `gpustack_mc.user_table.read_table`.
    progress : callable
        Is told in a sentence what takes long.

    Raises
    ------
    InputError
        The table cannot be used.
    DiagnosticsError
        The posterior was sampled anew and did not converge.
    """
    table = read_table(path, pack.options()["shortest_tracked_hours"])
    measurements, unused = _measurements(table)
    table.unused.extend(unused)
    utilization = _utilization(table, progress)
    moved = _moved(table, utilization, measurements)
    if utilization is None and not measurements:
        line, reason = sorted([*table.unused, *table.skipped])[0]
        raise InputError("nothing-learned", f"no row informs an input; the first: {reason}", "", Place(str(path), line))
    table.notes.extend(_unshown(utilization, measurements, moved))
    return Result(path, table, utilization, measurements, moved, _surprises(table, utilization, measurements))


def _unshown(utilization: Utilization | None, measurements: Sequence[Measurement], moved: Sequence[Moved]) -> list[str]:
    """Name what the pack has learned and the table of inputs cannot show, as the rows do not say of which hardware."""
    learned = {"host_power" if item.quantity == IT_POWER else item.quantity for item in measurements}
    learned |= set() if utilization is None else {"goodput"}
    return [
        f"{name} was learned, and no population is shown: its rows lack what the prior depends on. A scenario that "
        "uses the pack says it."
        for name in sorted(learned - {item.quantity for item in moved})
    ]


def evidence_of(run: Run) -> list[Evidence]:
    """Return what a run says of utilisation; observations of one run share its effect."""
    loose = bool(utilization_data.loose_record([run.row])[0])
    return [
        Evidence(run.row, kind, value, loose=loose and kind != "mfu", run=str(run.line))
        for kind, value in run.utilization
    ]


def _utilization(table: Table, progress: Progress) -> Utilization | None:
    runs = _thinned(table)
    evidence = [item for run in runs for item in evidence_of(run)]
    losses = [-float(np.log(value)) for run in runs for name, value in run.measured if name == "goodput"]
    if not evidence and not losses:
        return None
    fit, options = catalog.fit_record("utilization"), pack.options()
    constants, settings = fit["constants"], fit["settings"]
    totals = [item.loose for item in evidence if item.kind == "total"]
    loose = float(np.mean(totals)) if totals else 0.0
    learned = utilization_team.tell(efficiency.draws(), evidence, losses, constants, settings, options)
    enough = learned.effective_draws >= options["minimal_effective_draws"]
    if not evidence or (enough and learned.k_hat <= options["maximal_k_hat"]):
        return Utilization(learned, evidence, losses, constants, loose, "importance weights", None)
    progress(
        f"Your runs leave {learned.effective_draws:.0f} of {len(efficiency.draws().beta):,} shipped draws with weight: "
        "sampling the posterior anew with them, about a minute on 2 cores."
    )
    return _sampled_anew(evidence, losses, loose, fit, options)


def _thinned(table: Table) -> list[Run]:
    """Return the runs that enter the utilisation fit: all, or evenly spaced ones of very many."""
    runs = [run for run in table.runs if run.utilization or any(name == "goodput" for name, _ in run.measured)]
    most = pack.options()["most_runs"]
    if len(runs) <= most:
        return runs
    table.notes.append(f"{most} of {len(runs):,} runs, evenly spaced in the file, enter the utilisation fit.")
    return [runs[i] for i in np.linspace(0, len(runs) - 1, most).round().astype(int)]


def _sampled_anew(
    evidence: list[Evidence], losses: list[float], loose: float, fit: Mapping[str, Any], options: Mapping[str, Any]
) -> Utilization:
    from gpustack_mc.fits import utilization_start
    from gpustack_mc.fits.utilization_fit import read_prior, unhealthy
    from gpustack_mc.fits.utilization_predict import read_draws

    folder = catalog.folder("priors") / "utilization"
    _, rows = read_prior(folder)
    settings = fit["settings"]
    used = [row for row in rows if row["use"] == "yes"]
    found = utilization_team.refit(used, evidence, settings, options, utilization_start.read(folder))
    problem = unhealthy(found.diagnostics)
    if problem:
        fix = (
            "Nothing was written. Look for a run with a wrong unit: one far from all others makes the chains disagree. "
            "If all are right, raise refit_warmup and refit_samples in priors/calibration.yaml."
        )
        found_wrong = problem.partition(";")[0].partition(": ")[0]
        raise DiagnosticsError("diagnostics", f"the posterior with your runs cannot be trusted: {found_wrong}.", fix)
    learned = utilization_team.tell(
        read_draws(found.columns), evidence, losses, found.constants, settings, options, weigh=False
    )
    return Utilization(learned, evidence, losses, found.constants, loose, "NUTS", found.diagnostics)


def _measurements(table: Table) -> tuple[list[Measurement], list[Skipped]]:
    """Return measurements of the inputs but utilisation; equal values under the same facts are one, with a count."""
    found: dict[tuple[Any, ...], Measurement] = {}
    unused = []
    for run in table.runs:
        for quantity, value in run.measured:
            if quantity == "goodput":
                continue
            prior = "host_power" if quantity == IT_POWER else quantity
            ladder = catalog.fit_record(prior)["ladder"]
            item = Measurement(quantity, value, run.run_id, run.facts)
            key = (quantity, value, *(run.facts.get(name, "") for name in ladder))
            if key in found:
                found[key] = found[key]._replace(count=found[key].count + 1)
                continue
            reason = _beyond(item, prior)
            if reason:
                unused.append(Skipped(run.line, reason))
                continue
            found[key] = item
    lines = {run.run_id: run.line for run in table.runs}
    for key, item in list(found.items()):
        if reason := _below_boards(item, list(found.values())):
            unused.append(Skipped(lines[item.run_id], reason))
            del found[key]
    return list(found.values()), unused


def _below_boards(item: Measurement, measurements: Sequence[Measurement]) -> str | None:
    """Why an IT power cannot be taken in: nothing is left of it for the host."""
    if item.quantity != IT_POWER:
        return None
    board = pack.board_power(measurements, item.facts, overlaid(UNSTATED, stated_facts(item.facts)))
    host = priors.select(catalog.fit_record("host_power"), overlaid(UNSTATED, stated_facts(item.facts)))
    if np.isfinite(priors.scores(host.marginal, [item.value - board])[0]):
        return None
    return (
        f"IT power {item.value:.4g} W leaves {item.value - board:.4g} W for the host beside about {board:.4g} W of the "
        "board: power of one accelerator? write its share of the host with it."
    )


def _beyond(item: Measurement, prior: str) -> str | None:
    """Why a value cannot be taken in: the shipped prior holds it impossible."""
    if item.quantity == IT_POWER:
        return None
    facts = overlaid(UNSTATED, stated_facts(item.facts))
    try:
        selection = priors.select(catalog.fit_record(prior), facts)
    except priors.StatementError:
        return None  # the scenario says what this row does not
    if np.isfinite(priors.scores(selection.marginal, [item.value])[0]):
        return None
    ends = [float(end) for end in priors.at_scores(selection.marginal, np.array([-priors.TABLE_Z, priors.TABLE_Z]))]
    unit = BY_NAME[prior].unit
    low, high = (formatting.with_unit(end, unit, 2) for end in ends)
    return (
        f"{prior} {item.value:g} is outside {low} to {high}, all that the shipped prior holds possible; state it in "
        f"the scenario, under inputs.{prior}."
    )


# ---- before and after -----------------------------------------------------------------------------------------------
def _moved(table: Table, utilization: Utilization | None, measurements: Sequence[Measurement]) -> list[Moved]:
    moved = _moved_utilization(table, utilization) if utilization else []
    for quantity in INPUTS:
        mine = [item for item in measurements if (item.quantity == quantity) or _as_host(item, quantity)]
        for item in reversed(mine):
            facts = overlaid(UNSTATED, stated_facts(item.facts))
            try:
                selection = priors.select(catalog.fit_record(quantity), facts)
            except priors.StatementError:
                continue
            found = pack.calibrated(measurements, quantity, facts, selection)
            if found is not None:
                whose = selection.population["label"]
                moved.append(Moved(quantity, selection.marginal, found.marginal, found.count, whose))
                break
    return moved


def _as_host(item: Measurement, quantity: str) -> bool:
    return quantity == "host_power" and item.quantity == IT_POWER


def _moved_utilization(table: Table, found: Utilization) -> list[Moved]:
    """Forecast a run like the last one of the table, before and after."""
    fit = catalog.fit_record("utilization")
    rows = [run for run in table.runs if run.utilization]
    if not rows:
        return []
    run, shipped = rows[-1], efficiency.draws()
    row = {key: value for key, value in run.row.items() if key not in ("tier", "hours_basis", "hours_cover")}
    row = {"tokens": 1e12, **row}
    constants, settings = fit["constants"], fit["settings"]
    record = Record(loose=found.loose) if found.loose else CLEAN
    before = predict(shipped, [row], constants, settings, record=efficiency.published_record(constants))
    after = predict(found.learned.draws, [row], found.constants, settings, record=record, team=found.learned.team)
    count = len(rows)
    goodputs = sum(name == "goodput" for each in table.runs for name, _ in each.measured)
    whose = f"a run like {run.run_id}"

    def pair(name: str, part: str, number: int) -> Moved:
        marginals = []
        for prediction in (before, after):
            if part == "log_goodput":
                w, m = prediction.log_mfu.weights[0], prediction.log_goodput
                s = np.zeros_like(m)
            else:
                w, m, s = (values[0] for values in getattr(prediction, part))
            marginals.append(efficiency.tabulated(w, m, s))
        return Moved(name, marginals[0], marginals[1], number, whose)

    moved = [pair(UTILIZATION, "log_utilization", count), pair("mfu", "log_mfu", count)]
    return [*moved, pair("goodput", "log_goodput", goodputs or count)]


def _surprises(table: Table, utilization: Utilization | None, measurements: Sequence[Measurement]) -> list[Surprise]:
    fit, options = catalog.fit_record("utilization"), pack.options()
    found: list[Surprise] = []
    if utilization and utilization.evidence:
        names = {str(run.line): run.run_id for run in table.runs}
        found += of_runs(
            efficiency.draws(),
            utilization.evidence,
            names,
            fit["constants"],
            fit["settings"],
            options["surprising_tail"],
        )
    a, b = options["share_between_teams"]
    for quantity in INPUTS:
        mine = [item for item in measurements if item.quantity == quantity]
        scored = []
        for item in mine:
            facts = overlaid(UNSTATED, stated_facts(item.facts))
            try:
                selection = priors.select(catalog.fit_record(quantity), facts)
            except priors.StatementError:
                continue
            scored.append((item.run_id, float(priors.scores(selection.marginal, [item.value])[0]), item.count))
        found += of_measurements(quantity, scored, a / (a + b), options["surprising_tail"])
    return found


# ---- the pack -------------------------------------------------------------------------------------------------------
_FIELDS = (
    "accelerator", "region", "operator", "provider_kind", "term", "carbon_basis", "architecture", "precision", "year",
    "params", "active_params", "n_accelerators",
)  # fmt: skip


def record(result: Result) -> dict[str, Any]:
    """Return ``pack.json`` without the hashes of its files; also what ``--json`` prints."""
    table, found = result.table, result.utilization
    used = {"host_power" if item.quantity == IT_POWER else item.quantity for item in result.measurements}
    used |= {"gpu_power_fraction"} if any(item.quantity == IT_POWER for item in result.measurements) else set()
    shipped = sorted(used | ({"utilization"} if found else set()))
    return {
        "schema_version": pack.SCHEMA_VERSION,
        "table": result.path.name,
        "table_sha256": table.sha256,
        "shipped": {prior: pack.shipped_digest(prior) for prior in shipped},
        "rows_used": len(table.runs),
        "rows_not_used": [{"line": line, "reason": reason} for line, reason in table.skipped],
        "cells_not_used": [{"line": line, "reason": reason} for line, reason in table.unused],
        "notes": table.notes,
        "utilization": None if found is None else _about_utilization(table, found),
        "inputs": {item.quantity: _about(item) for item in result.moved},
        "surprising": [item._asdict() for item in result.surprises],
        "settings": pack.options(),
        "versions": {name: version(name) for name in ("gpustack-mc", "numpy", "scipy")},
    }


def _about_utilization(table: Table, found: Utilization) -> dict[str, Any]:
    k_hat = found.learned.k_hat
    return {
        "runs": sum(bool(run.utilization) or any(n == "goodput" for n, _ in run.measured) for run in table.runs),
        "observations": dict(Counter(item.kind for item in found.evidence)) | {"goodput": len(found.losses)},
        "method": found.method,
        "effective_draws": round(found.learned.effective_draws, 1),
        "k_hat": round(k_hat, 3) if np.isfinite(k_hat) else None,
        "diagnostics": found.diagnostics,
        "constants": dict(found.constants),
        "loose": found.loose,
    }


def _about(item: Moved) -> dict[str, Any]:
    def quantiles(marginal: Marginal) -> dict[str, Any]:
        low, quarter, middle, three, high = (
            float(f"{value:.6g}") for value in priors.quantiles(marginal, [0.05, 0.25, 0.5, 0.75, 0.95])
        )
        return {"median": middle, "interval_50": [quarter, three], "interval_90": [low, high]}

    about = {
        "unit": BY_NAME[item.quantity].unit,
        "measurements": item.count,
        "for": item.whose,
        "before": quantiles(item.before),
        "after": quantiles(item.after),
    }
    return about | {"sentence": calibration_text.sentence(item.quantity, about)}


def write(result: Result, out: Path) -> None:
    """Write the prior pack into a folder, whole or not at all."""
    from gpustack_mc import calibration_figures

    content = {pack.MEASUREMENTS: pack.measurements_text(result.measurements, _FIELDS).encode()}
    if result.utilization is not None:
        content[pack.DRAWS] = pack.draws_text(result.utilization.learned).encode()
    about = record(result)
    if about["inputs"]:
        content[PICTURE] = calibration_figures.before_after(about["inputs"], about["table"])
    pack.write(out, about, content)


# ---- the command ----------------------------------------------------------------------------------------------------
def command(path: Path | None, out: Path | None, refit: bool, as_json: bool, progress: Progress) -> str:
    """Do what ``gpustack-mc calibrate`` is asked for, and return what it prints.

    Parameters
    ----------
    path : Path or None
        The table of runs.
    out : Path or None
        Folder of the pack; nothing is written without.
    refit : bool
        Rebuild the shipped priors instead.
    as_json : bool
        Return one JSON object.
    progress : callable
        Is told in a sentence what is being done.
    """
    if (path is None) == (not refit):
        found = "neither a table nor --refit given." if path is None else "a table and --refit exclude each other."
        raise InputError("options", found, "Give a CSV file of your runs; `--columns` lists what it may hold.")
    if path is None:
        from gpustack_mc import refitting

        return refitting.refit_all(as_json, progress)
    if out is not None:
        storage.require_folder(out)
    result = calibrate(path, progress)
    if out is not None:
        write(result, out)
    about = record(result)
    if as_json:
        return json.dumps(about | {"files": _files(out, result)}, indent=1, ensure_ascii=False, allow_nan=False)
    return calibration_text.text(about, out)


def _files(out: Path | None, result: Result) -> list[str]:
    if out is None:
        return []
    names = [pack.RECORD, pack.MEASUREMENTS] + [PICTURE] * bool(result.moved)
    names += [pack.DRAWS] if result.utilization else []
    return [str(out / name) for name in names]
