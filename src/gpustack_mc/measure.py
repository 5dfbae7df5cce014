"""``gpustack-mc measure``: which input to measure first, and what knowing it is worth."""

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtri

from gpustack_mc import decisions, information, storage, units
from gpustack_mc.arrays import Floats
from gpustack_mc.decisions import Decision
from gpustack_mc.design import Design, make_design, points
from gpustack_mc.errors import InputError, Place, did_you_mean
from gpustack_mc.information import Estimate
from gpustack_mc.problem import Problem
from gpustack_mc.propagation import Draws, dimension, propagate
from gpustack_mc.quantities import BY_NAME
from gpustack_mc.scenario import read_document, resolve
from gpustack_mc.yamlfile import Document

OUTPUTS = ("training_days", "energy_mwh", "facility_power_mw", "co2e_t", "water_onsite_m3", "water_offsite_m3",
           "cost_owned_usd", "cost_rented_usd")  # fmt: skip
DEFAULT_ACCURACY = "10%"
# Errors of measurements take dimensions of the Sobol' sequence that no input takes.
_NOISE = 256


def run_measure(
    source: str | Path,
    overrides: Iterable[str] = (),
    *,
    accuracies: Sequence[str] = (),
    decision: str | None = None,
    budget: str | None = None,
    sites: Sequence[str] = (),
    together: Sequence[str] = (),
    samples: int = 65_536,
    seed: int = 0,
    out: Path | None = None,
    calibration: Path | None = None,
) -> dict[str, Any]:
    """Say what measuring each uncertain input of a scenario would bring.

    Parameters
    ----------
    source, overrides
        As for `gpustack_mc.scenario.load_scenario`.
    accuracies : sequence of str
        ``input=5%``, or ``5%`` for all others: relative standard uncertainty of a measurement.
    decision : {"own-or-rent", "go", "site"}, optional
        What the knowledge would be used for; the site where sites are named, own or rent when the scenario leaves it
        open, else going ahead when it has a budget.
    budget : str, optional
        What the run is worth, for ``go``; the scenario's budget when omitted.
    sites : sequence of str
        Regions to choose from, for ``site``.
    together : sequence of str
        Sets of inputs to know at once, each joined by commas.
    samples, seed
        Of the design.
    out : Path, optional
        Folder for ``measure.json`` and a picture.
    calibration : Path, optional
        A prior pack, see `gpustack_mc.pack`.

    Returns
    -------
    dict
        As printed with ``--json``.

    Raises
    ------
    InputError
        The scenario or an option is wrong.
    """
    document = read_document(source, calibration)
    asked = () if budget is None else (f"questions.budget={budget}",)
    return measure(document, (*overrides, *asked), accuracies=accuracies, decision=decision, sites=sites,
                   together=together, samples=samples, seed=seed, out=out)  # fmt: skip


def measure(
    document: Document,
    overrides: tuple[str, ...],
    *,
    accuracies: Sequence[str] = (),
    decision: str | None = None,
    sites: Sequence[str] = (),
    together: Sequence[str] = (),
    samples: int = 65_536,
    seed: int = 0,
    out: Path | None = None,
) -> dict[str, Any]:
    """Do what `run_measure` does for a document that was read."""
    problem = resolve(document, overrides)
    if not 4096 <= samples <= 2**20:
        raise InputError("bad-samples", f"{samples:,} is not between 4,096 and 1,048,576.", "", Place("--samples"))
    design = make_design(samples, seed=seed)
    draws = propagate(problem, design)
    if not draws.varying:
        raise InputError("all-fixed", "every input is fixed: there is nothing to measure.", "", Place("measure"))
    accuracy = _accuracies(accuracies, draws.varying)
    chosen = decisions.decision(document, overrides, problem, design, draws, name=decision, sites=sites)
    sets = [_set(text, tuple(chosen.known)) for text in together] if chosen else []
    found = _found(problem, design, draws, accuracy)
    found["decision"] = _decided(chosen, problem, design, accuracy, sets) if chosen else None
    if out is not None:
        _write(found, out)
    return found


def _accuracies(stated: Sequence[str], keys: Sequence[str]) -> dict[str, float]:
    """Relative standard uncertainty of a measurement of each input."""
    default, own = _accuracy(DEFAULT_ACCURACY), {}
    for text in stated:
        name, equals, amount = text.rpartition("=")
        if not equals:
            default = _accuracy(amount)
        elif name.strip() not in keys:
            message = f"there is no uncertain input {units.shown(name.strip())}."
            raise InputError("unknown-input", message, did_you_mean(name, tuple(keys)), Place("--accuracy"))
        else:
            own[name.strip()] = _accuracy(amount)
    return {key: own.get(key, default) for key in keys}


def _accuracy(text: str) -> float:
    try:
        value = units.to_number(text.strip(), "1", {})
    except units.UnitProblem:
        value = float("nan")
    if not 0 < value <= 10:
        message = f"{units.shown(text)} is not an accuracy."
        fix = "Write a relative standard uncertainty above 0, such as mfu=5%."
        raise InputError("bad-accuracy", message, fix, Place("--accuracy"))
    return value


def _set(text: str, keys: Sequence[str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in keys:
            message = f"there is no uncertain input {units.shown(name)}."
            raise InputError("unknown-input", message, did_you_mean(name, tuple(keys)), Place("--together"))
    if not 2 <= len(names) <= 6:
        message = f"{units.shown(text)} names {len(names)} inputs."
        raise InputError("bad-set", message, "Name two to six, joined by commas.", Place("--together"))
    return names


# ---- numbers -----------------------------------------------------------------------------------------------------


def _found(problem: Problem, design: Design, draws: Draws, accuracy: Mapping[str, float]) -> dict[str, Any]:
    """Widths now, and once each input is known."""
    outputs = np.stack([draws.output(name) for name in OUTPUTS])
    rows = dict(zip(draws.varying, draws.inputs, strict=True))
    now = information.width(outputs, design.replicates)

    def widths(values: Floats) -> dict[str, Any]:
        found = information.expected_width(outputs, information.basis(values), design.replicates)
        return {name: _estimate(each) for name, each in zip(OUTPUTS, found, strict=True)}

    def both(key: str) -> dict[str, Any]:
        reading = information.measured(rows[key], accuracy[key], noise(problem, design, key, key))
        return {"accuracy": accuracy[key], "perfect": widths(rows[key]), "measured": widths(reading)}

    with ThreadPoolExecutor() as executor:
        inputs = dict(zip(rows, executor.map(both, rows), strict=True))
    return {
        "schema_version": 1,
        "name": problem.name,
        "seed": design.seed,
        "samples": design.samples,
        "ownership": problem.file.ownership,
        "width_90": {
            name: {"unit": BY_NAME[name].unit} | _estimate(each) for name, each in zip(OUTPUTS, now, strict=True)
        },
        "expected_width_90": inputs,
        "files": [],
    }


def _decided(
    decision: Decision,
    problem: Problem,
    design: Design,
    accuracy: Mapping[str, float],
    sets: Sequence[tuple[str, ...]],
) -> dict[str, Any]:
    """What knowing each input, sets of them, and everything is worth for a decision."""
    benefits, replicates = decision.benefits, design.replicates
    means = benefits.mean(axis=1)
    best = int(means.argmax())

    def worth(values: Floats) -> dict[str, float | None]:
        return _estimate(information.partial_value(benefits, information.basis(values), replicates))

    def both(name: str) -> dict[str, Any]:
        key = name.partition(" in ")[0]
        reading = information.measured(decision.known[name], accuracy[key], noise(problem, design, key, name))
        return {"accuracy": accuracy[key], "perfect": worth(decision.known[name]), "measured": worth(reading)}

    with ThreadPoolExecutor() as executor:
        inputs = dict(zip(decision.known, executor.map(both, decision.known), strict=True))
    return {
        "name": decision.name,
        "words": decision.words,
        "best_now": decision.options[best],
        "probability_best": float((benefits.argmax(axis=0) == best).mean()),
        "expected_benefit_usd": dict(zip(decision.options, map(float, means), strict=True)),
        "perfect_information_usd": _estimate(information.perfect_value(benefits, replicates)),
        "inputs": inputs,
        "together": [
            {
                "inputs": list(names),
                "value_usd": _estimate(
                    information.partial_value(
                        benefits, information.joint_basis([decision.known[name] for name in names]), replicates
                    )
                ),
            }
            for names in sets
        ],
    }


def _estimate(found: Estimate) -> dict[str, float | None]:
    """A number with its 90% Monte Carlo interval's half width."""
    return {"value": found.value, "monte_carlo_error": found.error if np.isfinite(found.error) else None}


def noise(problem: Problem, design: Design, key: str, name: str) -> Floats:
    """Standard normal error of a measurement, independent of every input."""
    place = _NOISE + dimension(problem.inputs[key], problem)
    parts = [points(design, [f"measurement of {name}"], [place], r, 0, design.length)[0]
             for r in range(design.replicates)]  # fmt: skip
    return ndtri(np.concatenate(parts))


def _write(found: dict[str, Any], out: Path) -> None:
    """Write ``measure.json`` and the picture, both or neither."""
    paths = [out / "measure.json", out / "measure.png"]
    found["files"] = [str(path) for path in paths]
    with storage.replacing_all(paths) as (data, picture):
        data.write_text(json.dumps(found, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        from gpustack_mc import measure_figure, pages

        pages.save(measure_figure.width_plot(found), picture)
