"""``gpustack-mc measure``: which input to measure first, and what knowing it is worth."""

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from gpustack_mc import conditions, information, storage, units
from gpustack_mc.design import Design, make_design, points
from gpustack_mc.errors import InputError, Place, did_you_mean
from gpustack_mc.information import Estimate
from gpustack_mc.problem import Problem
from gpustack_mc.quantities import BY_NAME
from gpustack_mc.scenario import load_scenario
from gpustack_mc.simulate import Draws, dimension, propagate

OUTPUTS = ("training_days", "energy_mwh", "facility_power_mw", "co2e_t", "water_onsite_m3", "water_offsite_m3",
           "cost_owned_usd", "cost_rented_usd")  # fmt: skip
DECISIONS = ("own-or-rent", "go")
DEFAULT_ACCURACY = "10%"
# Errors of measurements take dimensions of the Sobol' sequence that no input takes.
_NOISE = 256
# Below this share of the width or of the value of all information, an input is not worth a line.
NEGLIGIBLE = 0.005


class Decision(NamedTuple):
    """Alternatives with their net benefits.

    Attributes
    ----------
    name, words : str
        As chosen, and the question in words.
    options : tuple of str
    benefits : ndarray, shape (options, n)
        USD.
    """

    name: str
    words: str
    options: tuple[str, ...]
    benefits: np.ndarray


def run_measure(
    source: str | Path,
    overrides: Iterable[str] = (),
    *,
    accuracies: Sequence[str] = (),
    decision: str | None = None,
    budget: str | None = None,
    together: Sequence[str] = (),
    samples: int = 65_536,
    seed: int = 0,
    out: Path | None = None,
) -> dict[str, Any]:
    """Say what measuring each uncertain input of a scenario would bring.

    Parameters
    ----------
    source, overrides
        As for `gpustack_mc.scenario.load_scenario`.
    accuracies : sequence of str
        ``input=5%``, or ``5%`` for all others: relative standard uncertainty of a measurement.
    decision : {"own-or-rent", "go"}, optional
        What the knowledge would be used for; own or rent when omitted and the scenario leaves it open, else going
        ahead when it has a budget.
    budget : str, optional
        What the run is worth, for ``go``; the scenario's budget when omitted.
    together : sequence of str
        Sets of inputs to know at once, each joined by commas.
    samples, seed
        Of the design.
    out : Path, optional
        Folder for ``measure.json`` and a picture.

    Returns
    -------
    dict
        As printed with ``--json``.

    Raises
    ------
    InputError
        The scenario or an option is wrong.
    """
    problem = load_scenario(source, overrides)
    if not 4096 <= samples <= 2**20:
        raise InputError("bad-samples", f"{samples:,} is not between 4,096 and 1,048,576.", "", Place("--samples"))
    design = make_design(samples, seed=seed)
    draws = propagate(problem, design)
    if not draws.varying:
        raise InputError("all-fixed", "every input is fixed: there is nothing to measure.", "", Place("measure"))
    accuracy = _accuracies(accuracies, draws.varying)
    sets = [_set(text, draws.varying) for text in together]
    chosen = _decision(problem, draws, decision, budget)
    found = _found(problem, design, draws, accuracy, sets, chosen)
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


# ---- decisions ---------------------------------------------------------------------------------------------------


def _decision(problem: Problem, draws: Draws, name: str | None, budget: str | None) -> Decision | None:
    ownership = problem.file.ownership
    worth = _worth(problem, budget)
    if name is None:
        if ownership == "either":
            name = "own-or-rent"
        elif worth is not None:
            name = "go"
        else:
            return None
    if name not in DECISIONS:
        fix = did_you_mean(name, DECISIONS)
        raise InputError("unknown-decision", f"{units.shown(name)} is no decision.", fix, Place("--decision"))
    if name == "own-or-rent":
        benefits = -np.stack([draws.output("cost_owned_usd"), draws.output("cost_rented_usd")])
        return Decision(name, "own or rent", ("own", "rent"), benefits)
    if worth is None:
        fix = "Add --budget, or questions.budget to the scenario."
        raise InputError("no-budget", "nothing says what the run is worth.", fix, Place("--decision"))
    output = conditions.cost(ownership, "--decision")
    gain = worth - draws.output(output)
    said = f"go ahead or not, the run being worth its budget of {worth:,.0f} USD, {BY_NAME[output].short}"
    return Decision(name, said, ("go", "no go"), np.stack([gain, np.zeros_like(gain)]))


def _worth(problem: Problem, budget: str | None) -> float | None:
    if budget is None:
        return problem.questions.get("budget")
    rates = {code: float(rate) for code, rate in problem.file.exchange_rates.items()}
    return conditions.limit(budget, "USD", rates, "--budget")


# ---- numbers -----------------------------------------------------------------------------------------------------


def _found(
    problem: Problem,
    design: Design,
    draws: Draws,
    accuracy: Mapping[str, float],
    sets: Sequence[tuple[str, ...]],
    decision: Decision | None,
) -> dict[str, Any]:
    outputs = np.stack([draws.output(name) for name in OUTPUTS])
    rows = dict(zip(draws.varying, draws.inputs, strict=True))
    benefits = decision.benefits if decision else None
    now = information.width(outputs, design.replicates)

    def known(values: np.ndarray) -> dict[str, Any]:
        regressors = information.basis(values)
        found: dict[str, Any] = {
            "expected_width_90": {
                name: _estimate(each)
                for name, each in zip(
                    OUTPUTS, information.expected_width(outputs, regressors, design.replicates), strict=True
                )
            }
        }
        if benefits is not None:
            found["value_usd"] = _estimate(information.partial_value(benefits, regressors, design.replicates))
        return found

    def both(key: str) -> dict[str, Any]:
        noise = _noise(problem, design, key)
        reading = information.measured(rows[key], accuracy[key], noise)
        return {"accuracy": accuracy[key], "perfect": known(rows[key]), "measured": known(reading)}

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
        "inputs": inputs,
        "decision": _decided(decision, rows, sets, design.replicates) if decision else None,
        "files": [],
    }


def _estimate(found: Estimate) -> dict[str, float | None]:
    """A number with its 90% Monte Carlo interval's half width."""
    return {"value": found.value, "monte_carlo_error": found.error if np.isfinite(found.error) else None}


def _noise(problem: Problem, design: Design, key: str) -> np.ndarray:
    """Standard normal error of a measurement, independent of every input."""
    place = _NOISE + dimension(problem.inputs[key], problem)
    parts = [points(design, [f"measurement of {key}"], [place], r, 0, design.length)[0]
             for r in range(design.replicates)]  # fmt: skip
    return ndtri(np.concatenate(parts))


def _decided(
    decision: Decision, rows: Mapping[str, np.ndarray], sets: Sequence[tuple[str, ...]], replicates: int
) -> dict[str, Any]:
    means = decision.benefits.mean(axis=1)
    best = int(means.argmax())
    wins = (decision.benefits.argmax(axis=0) == best).mean()
    return {
        "name": decision.name,
        "words": decision.words,
        "best_now": decision.options[best],
        "probability_best": float(wins),
        "expected_benefit_usd": dict(zip(decision.options, map(float, means), strict=True)),
        "perfect_information_usd": _estimate(information.perfect_value(decision.benefits, replicates)),
        "together": [
            {
                "inputs": list(names),
                "value_usd": _estimate(
                    information.partial_value(
                        decision.benefits, information.joint_basis([rows[name] for name in names]), replicates
                    )
                ),
            }
            for names in sets
        ],
    }


def _write(found: dict[str, Any], out: Path) -> None:
    """Write ``measure.json`` and the picture, both or neither."""
    paths = [out / "measure.json", out / "measure.png"]
    found["files"] = [str(path) for path in paths]
    with storage.replacing_all(paths) as (data, picture):
        data.write_text(json.dumps(found, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        from gpustack_mc import figures, measure_figure

        figures.save(measure_figure.width_plot(found), picture)
