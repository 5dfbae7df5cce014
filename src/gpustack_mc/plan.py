"""``gpustack-mc plan``: the short design document that a team could start from, with what would overturn it."""

import copy
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpustack_mc import (
    answering,
    catalog,
    information,
    measure_text,
    memory,
    milestones,
    priors,
    reliability,
    storage,
    summarizing,
    units,
)
from gpustack_mc import measure as measuring
from gpustack_mc.arrays import Result
from gpustack_mc.design import Design, make_design
from gpustack_mc.errors import InputError, Place
from gpustack_mc.facts import medians
from gpustack_mc.problem import Problem
from gpustack_mc.propagation import Draws, propagate, simulate
from gpustack_mc.quantities import BY_NAME
from gpustack_mc.result import to_datatree
from gpustack_mc.scenario import read_document, resolve
from gpustack_mc.yamlfile import Document

if TYPE_CHECKING:
    import xarray as xr

# Inputs that say most about each output; more rows than these are no main risks.
_RISKS = 5
_TESTS = 4
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class Options(NamedTuple):
    """What a plan may be told besides its scenario; see `run_plan`."""

    accuracies: tuple[str, ...] = ()
    days: float = 3.0
    memory: str | None = None
    activations: str | None = None
    bytes_per_param: str | None = None


class Plan(NamedTuple):
    """A plan.

    Attributes
    ----------
    found : dict
        As printed with ``--json``.
    tree : xarray.DataTree
        The result that it rests on.
    """

    found: dict[str, Any]
    tree: Result


def run_plan(
    source: str | Path,
    overrides: Iterable[str] = (),
    *,
    options: Options | None = None,
    samples: int = 65_536,
    seed: int = 0,
    out: Path | None = None,
    with_files: bool = True,
    calibration: Path | None = None,
) -> Plan:
    """Plan a run and write ``plan.md`` and ``plan.html``, both or neither.

    Parameters
    ----------
    source, overrides
        As for `gpustack_mc.scenario.load_scenario`.
    options : Options, optional
        ``accuracies`` as for `gpustack_mc.measure.run_measure`; ``days`` after which the first readings are judged;
        ``memory`` of one accelerator and ``activations`` that it keeps, with units; ``bytes_per_param`` of weights,
        gradients and optimizer state, with commas.
    samples, seed
        Of the design.
    out : Path, optional
        Folder of the two files; ``reports/<name of the file>`` when omitted.
    with_files : bool
    calibration : Path, optional
        A prior pack, see `gpustack_mc.pack`.

    Raises
    ------
    InputError
        The scenario or an option is wrong, the job runs already, or the state of the model does not fit.
    """
    options = options or Options()
    document, overrides = read_document(source, calibration), tuple(overrides)
    problem = resolve(document, overrides)
    if problem.running is not None:
        fix = "`gpustack-mc run` forecasts the rest of it."
        raise InputError("runs-already", "this job runs already, which is no time to plan it.", fix,
                         problem.place(("observed",)))  # fmt: skip
    if not 0 < options.days <= 3650:
        raise InputError("bad-days", f"{options.days:g} is no number of first days.", "Write 3.", Place("--days"))
    if not 4096 <= samples <= 2**17:
        raise InputError("bad-samples", f"{samples:,} is not between 4,096 and 131,072.", "", Place("--samples"))
    # Before any sampling: a model that does not fit needs no forecast.
    held = _memory(problem, options)
    tree, found = _planned(document, overrides, problem, make_design(samples, seed=seed), options)
    found |= {"memory": held, "options": options._asdict() | {"accuracies": list(options.accuracies)}}
    if with_files:
        folder = out if out is not None else Path("reports") / storage.slug(storage.stem(source, problem.name))
        _write(found, tree, folder)
    return Plan(found, tree)


def _write(found: dict[str, Any], tree: "xr.DataTree", folder: Path) -> None:
    from gpustack_mc import plan_pages

    paths = [folder / "plan.md", folder / "plan.html"]
    found["files"] = [str(path) for path in paths]
    with storage.replacing_all(paths) as temporary:
        for path, text in zip(temporary, plan_pages.pages(found, tree), strict=True):
            path.write_text(text, encoding="utf-8")


def _planned(
    document: Document, overrides: tuple[str, ...], problem: Problem, design: Design, options: Options
) -> tuple["xr.DataTree", dict[str, Any]]:
    tree = to_datatree(simulate(problem, design))
    summary = summarizing.summarise(tree)
    if problem.file.reliability is not None:
        goodput = tree["prior_predictive"].dataset["expected_goodput"].values[0]
        reliability.require_progress(goodput, problem.place(("reliability",)))
    found = {
        "schema_version": 1,
        "name": problem.name,
        "ownership": problem.file.ownership,
        "workload": _workload(problem),
        "memory": None,
        "reliability": _reliability(document, overrides, problem, design, summary),
        "risks": _risks(summary, problem.file.ownership),
        "first_days": _first_days(document, overrides, problem, design, tree, summary, options),
        "summary": summary,
        "files": [],
    }
    return tree, found


def _workload(problem: Problem) -> dict[str, Any]:
    middle, file = medians(problem.inputs), problem.file
    return {
        "params": middle["params"],
        "active_params": middle.get("active_params", middle["params"]),
        "tokens": middle["tokens"],
        "tokens_per_param": middle["tokens"] / middle.get("active_params", middle["params"]),
        "accelerator": file.cluster.accelerator,
        "count": middle["accelerator_count"],
        "precision": file.cluster.precision,
        "region": file.site.region,
        "start": problem.start.isoformat() if problem.start else None,
    }


# ---- memory ------------------------------------------------------------------------------------------------------


def _memory(problem: Problem, options: Options) -> dict[str, Any] | None:
    """Fit the state of the model; None where the memory of the accelerator is not known."""
    state = _state(options.bytes_per_param)
    size = _bytes(options.memory, "--memory")
    name = problem.file.cluster.accelerator
    if size is None:
        if name.casefold() == "other":
            return None
        size = catalog.find_accelerator(name).memory_gb * memory.GIGABYTE
    workload, middle = problem.file.workload, medians(problem.inputs)
    shape = memory.Shape(workload.n_layers, workload.d_model, workload.sequence_length, workload.activation_recompute)
    stated = _bytes(options.activations, "--activations")
    activations = stated if stated is not None else memory.activation_bytes(shape)
    counts = {key: value for key, value in middle.items() if key.partition("@")[0] == "accelerator_count"}
    count, place = min(counts.values()), problem.place(("cluster", "count"))
    if problem.sites is not None:
        # Links between sites carry averages, not shards: each site holds the model, the smallest one too.
        count = min(middle[keys["site_count"]] for keys in problem.sites.keys)
        place = problem.place(("distributed", "sites"))
    found = memory.fit(middle["params"], count, size, state, activations, place)
    return found | {
        "per_site": problem.sites is not None,
        "activations": "stated" if stated is not None else "computed" if activations is not None else "unknown",
        "recompute": shape.recompute,
        "sequence_length": shape.sequence_length,
        "state": "stated" if options.bytes_per_param else "usual",
    }


def _state(text: str | None) -> memory.State:
    if text is None:
        return memory.usual_state()
    parts = [part.strip() for part in text.split(",")]
    try:
        state = memory.State(*(float(part) for part in parts))
    except (TypeError, ValueError):
        state = memory.State(-1, 0, 0)
    if not all(0 <= part < 1e3 for part in state) or not state.total > 0:
        message = f"{units.shown(text)} is not the bytes of weights, gradients and optimizer state."
        raise InputError("bad-value", message, "Write three numbers with commas, such as 2,4,12.",
                         Place("--bytes-per-param"))  # fmt: skip
    return state


def _bytes(text: str | None, option: str) -> float | None:
    """Read a size with its unit."""
    if text is None:
        return None
    fix = "Write it with one, such as 140 GB."
    try:
        size = units.to_number(text, "byte", {})
        bare = not any(character.isalpha() for character in text)
    except units.UnitProblem as problem:
        raise InputError("bad-unit", str(problem), "Write 140 GB, for example.", Place(option)) from None
    if bare:
        raise InputError("bad-unit", f"{units.shown(text)} has no unit.", fix, Place(option))
    if not 0 < size < float("inf"):
        raise InputError("bad-value", f"{units.shown(text)} is not a size.", "State one above 0.", Place(option))
    return size


# ---- checkpoints -------------------------------------------------------------------------------------------------


def _reliability(
    document: Document, overrides: tuple[str, ...], problem: Problem, design: Design, summary: dict[str, Any]
) -> dict[str, Any] | None:
    """Checkpoint interval and expected goodput: those of the scenario, or what the shipped priors lead to expect."""
    stated = problem.file.reliability is not None
    if stated:
        known, outputs = problem, {name: summary["outputs"][name] for name in reliability.ROWS}
    else:
        try:
            known = resolve(*_with_reliability(document, overrides))
        except InputError as error:
            if error.code != "out-of-bounds":
                raise
            # Without interruptions nothing follows from their rate.
            return None
        draws = propagate(known, design)
        outputs = {name: _entry(draws.output(name), name) for name in reliability.ROWS}
    parts = ("interruption_rate", "checkpoint_interval", "checkpoint_save_time", "restart_time", "unexplained_loss")
    return {
        "stated": stated,
        "outputs": outputs,
        "interruptions": summary["outputs"]["interruptions"],
        "goodput": None if stated else _goodput(summary),
        "inputs": {name: _input(known, name) for name in parts if name in known.inputs},
        "never_ends": None if stated else float(np.mean(draws.output("expected_goodput") < reliability.NO_PROGRESS)),
    }


def _with_reliability(document: Document, overrides: tuple[str, ...]) -> tuple[Document, tuple[str, ...]]:
    """Return the scenario with its goodput left to failures and checkpoints."""
    data = copy.deepcopy(document.data)
    kept = tuple(text for text in overrides if text.partition("=")[0].strip().split(".")[-1] != "goodput")
    phases = (data.get("workload") or {}).get("phases") or ()
    for part in (data.get("inputs") or {}, *phases):
        part.pop("goodput", None)
    if "correlations" in data:
        data["correlations"] = [each for each in data["correlations"] if "goodput" not in each["between"]]
    return document._replace(data=data | {"reliability": {}}), kept


def _goodput(summary: dict[str, Any]) -> dict[str, Any] | None:
    return next((entry for key, entry in summary["inputs"].items() if key.partition("@")[0] == "goodput"), None)


def _entry(values: np.ndarray, name: str) -> dict[str, Any]:
    least, low, middle, high, most = (float(value) for value in np.quantile(values, _QUANTILES))
    return {
        "unit": BY_NAME[name].unit,
        "scope": BY_NAME[name].scope,
        "description": BY_NAME[name].description,
        "median": middle,
        "sd": float(values.std()),
        "interval_50": [low, high],
        "interval_90": [least, most],
    }


def _input(problem: Problem, name: str) -> dict[str, Any]:
    item = problem.inputs[name]
    low, middle, high = (float(value) for value in priors.quantiles(item.marginal, [0.05, 0.5, 0.95]))
    return {
        "unit": item.quantity.unit,
        "description": item.quantity.description,
        "median": middle,
        "sd": 0.0 if item.marginal.is_fixed else high - low,
        "interval_90": [low, high],
        "origin": item.origin,
        "prior": item.prior,
        "sources": [source._asdict() for source in item.sources],
    }


# ---- risks and first days ----------------------------------------------------------------------------------------


def _risks(summary: dict[str, Any], ownership: str) -> dict[str, list[dict[str, Any]]]:
    """Return the inputs that bring most of the variance of time, energy, emissions and cost."""
    found = {}
    for output in ("training_days", "energy_mwh", "co2e_t", summarizing.main_cost(ownership)):
        ranked = summarizing.ranking(summary, output)[:_RISKS]
        rows = [
            {"input": name, "share": index["ST"], "share_interval_90": index["ST_interval_90"], "shows": _shows(name)}
            for name, index in ranked
            if index["ST"] >= measure_text.SMALL
        ]
        if rows:
            found[output] = rows
    return found


def _shows(block: str) -> str:
    """Say when the inputs of a block can be measured; empty where not in the first days."""
    words = [milestones.MEASURED.get(key.partition("@")[0], "") for key in block.split("+")]
    return "; ".join(dict.fromkeys(words)) if all(words) else ""


def _first_days(
    document: Document,
    overrides: tuple[str, ...],
    problem: Problem,
    design: Design,
    tree: Result,
    summary: dict[str, Any],
    options: Options,
) -> dict[str, Any] | None:
    """What each first measurement brings, and the readings that confirm or overturn the answer to each question."""
    draws = propagate(problem, design)
    if not draws.varying:
        return None
    count = summary["outputs"]["interruptions"]["median"] * options.days / summary["outputs"]["training_days"]["median"]
    accuracies = options.accuracies
    if "interruption_rate" in draws.varying:
        # A count of k independent events is known to 1 / sqrt(k); fewer than one event says next to nothing.
        accuracies = (f"interruption_rate={max(count, 0.01) ** -0.5}", *accuracies)
    worth = measuring.measure(document, overrides, accuracies=accuracies, samples=design.samples, seed=design.seed)
    keys = [key for key in draws.varying if milestones.first_days(key)]
    readings = {key: _reading(problem, design, draws, worth, key) for key in keys}
    return {
        "days": options.days,
        "share_of_run": options.days / summary["outputs"]["training_days"]["median"],
        "interruptions": count,
        "measure": worth,
        "tests": _tests(tree, summary, worth, readings, design.replicates),
        "after": _after(problem, draws, worth, readings),
    }


def _reading(problem: Problem, design: Design, draws: Draws, worth: dict[str, Any], key: str) -> np.ndarray:
    values = draws.inputs[draws.varying.index(key)]
    accuracy = worth["expected_width_90"][key]["accuracy"]
    read = information.measured(values, accuracy, measuring.noise(problem, design, key, key))
    return np.exp(read) if (values > 0).all() else read


def _tests(
    tree: Result,
    summary: dict[str, Any],
    worth: dict[str, Any],
    readings: dict[str, np.ndarray],
    replicates: int,
) -> list[dict[str, Any]]:
    """For each limit of the scenario: the readings at which its answer turns over, and from which it is safe."""
    tests = []
    for name, answer in summary["questions"].items():
        if "output" not in answer:
            continue
        kept = tree["prior_predictive"][answer["output"]].values[0] <= answer["limit"]
        start = summary["finish"]["start"] if summary.get("finish") else ""
        rows = []
        for key in sorted(readings, key=lambda key: -_narrowed(worth, key, answer["output"])):
            crossed = [milestones.crossing(readings[key], kept, level, replicates) for level in milestones.LEVELS]
            if any(crossed):
                rows.append({
                    "input": key,
                    "accuracy": worth["expected_width_90"][key]["accuracy"],
                    "crossings": [_crossed(each) for each in crossed if each],
                })  # fmt: skip
        tests.append({
            "question": name,
            "words": answering.words(answer, start),
            "probability": answer["probability"],
            "monte_carlo_error": answer["monte_carlo_error"],
            "rows": rows[:_TESTS],
        })  # fmt: skip
    return tests


def _crossed(found: milestones.Crossing) -> dict[str, Any]:
    return found._asdict() | {"error": found.error if np.isfinite(found.error) else None}


def _narrowed(worth: dict[str, Any], key: str, output: str) -> float:
    return measure_text.narrowing(worth, key, output, "measured") if worth["width_90"][output]["value"] > 0 else 0.0


def _after(
    problem: Problem, draws: Draws, worth: dict[str, Any], readings: dict[str, np.ndarray]
) -> list[dict[str, Any]]:
    """What run time and cost become after a low and a high reading of the inputs that narrow them most."""
    outputs = ("training_days", summarizing.main_cost(problem.file.ownership))
    gain = {key: max(_narrowed(worth, key, output) for output in outputs) for key in readings}
    best = [key for key in sorted(gain, key=lambda key: -gain[key]) if gain[key] > measure_text.SMALL][:3]
    return [
        {
            "input": key,
            "unit": problem.inputs[key].quantity.unit,
            "readings": milestones.after_reading(readings[key], {name: draws.output(name) for name in outputs}),
        }
        for key in best
    ]


def dumped(plan: Plan) -> str:
    """Return the plan as one JSON object."""
    return json.dumps(plan.found, indent=2, allow_nan=False)
