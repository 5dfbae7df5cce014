"""``gpustack-mc solve`` from its options to its answer and files."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpustack_mc import catalog, conditions, knobs, priors, storage, targets, units
from gpustack_mc.design import Design, make_design
from gpustack_mc.equal_loss import equal_loss
from gpustack_mc.errors import InputError, Place, option_place
from gpustack_mc.knobs import Knob
from gpustack_mc.lease import Drift, share_of_draws
from gpustack_mc.loading import load_meanwhile
from gpustack_mc.price_drift import rate
from gpustack_mc.problem import Problem, Term
from gpustack_mc.propagation import Draws
from gpustack_mc.quantities import BY_NAME
from gpustack_mc.scenario import read_document, resolve
from gpustack_mc.served import served_tokens
from gpustack_mc.solve import Solved, solve
from gpustack_mc.targets import Target
from gpustack_mc.yamlfile import Document

# For these the question is nearly always whether owning beats renting.
_RENT_OR_OWN = ("fleet_utilization", "rental_price", "capex", "residual_share", "lifetime", "cost_of_capital",
                "operations_rate")  # fmt: skip
# What --price-drift takes for the drift that posted prices had.
FITTED = "fitted"
SHOWN = ("training_days", "accelerator_hours", "energy_mwh", "co2e_t", "cost_owned_usd", "cost_rented_usd")


def run_solve(
    source: str | Path,
    overrides: Iterable[str] = (),
    *,
    variable: str,
    such_that: str | None = None,
    limits: Mapping[str, str] | None = None,
    probability: str = "0.9",
    tokens_per_param: float | None = None,
    price_drift: str | None = None,
    instead: float | None = None,
    between: tuple[str, str] | None = None,
    samples: int = 65_536,
    seed: int = 0,
    out: Path | None = None,
    calibration: Path | None = None,
) -> dict[str, Any]:
    """Solve a scenario for one quantity.

    Parameters
    ----------
    source, overrides
        As for `gpustack_mc.scenario.load_scenario`.
    variable : str
        One of `gpustack_mc.knobs.known`.
    such_that : str, optional
        A condition as `gpustack_mc.targets.read` takes it.
    limits : mapping of str to str, optional
        Or limits by question, that shall all be kept: as in the scenario's ``questions``.
    probability : str
        Of keeping them.
    tokens_per_param : float, optional
        Tokens follow the parameters; for ``params``.
    price_drift : str, optional
        Yearly change of the rental price over the hardware's life, such as ``-18%``, or ``fitted`` for what posted
        prices did, for own against rent.
    instead : float, optional
        With ``served-tokens``: parameters of a smaller model trained to the same loss.
    between : (str, str), optional
        Where to look.
    samples, seed
        Of the design.
    out : Path, optional
        Folder for ``solve.json`` and a picture.
    calibration : Path, optional
        A prior pack, see `gpustack_mc.pack`.

    Returns
    -------
    dict
        As printed with ``--json``.

    Raises
    ------
    InputError, UnreachableError
        The options or the scenario are wrong, or nothing fulfils the condition.
    """
    limits = limits or {}
    name, overrides = knobs.named(variable), (*overrides, *(f"questions.{key}={text}" for key, text in limits.items()))
    if instead is not None and name != knobs.SERVED:
        raise InputError("bad-option", f"it does not go with --for {name}.", "Use --for served-tokens.",
                         Place("--instead"))  # fmt: skip
    if out is not None:
        load_meanwhile("matplotlib.backends.backend_agg", "gpustack_mc.solve_figure")
    document = read_document(source, calibration)
    base = resolve(document, overrides)
    if not 256 <= samples <= 2**20:
        raise InputError("bad-samples", f"{samples:,} is not between 256 and 1,048,576.", "", Place("--samples"))
    design = make_design(samples, seed=seed)
    _require_open(name, base)
    if name == knobs.SERVED:
        if such_that or limits:
            raise InputError("bad-option", "served tokens take no condition.", "Leave it out.", Place("--for"))
        if instead is None:
            found: dict[str, Any] = served_tokens(base, design)
        else:
            found = equal_loss(document, tuple(overrides), base, design, instead)
    else:
        condition = _condition(name, base, such_that, limits, probability)
        drift = _drift(price_drift, condition, base)
        ends = _ends(between, name, document, overrides) if between else None
        knob = knobs.knob(name, document, overrides, tokens_per_param, ends)
        solved = solve(knob, condition, design, for_picture=out is not None, price_drift=drift)
        found = _as_dict(solved, knob, condition, base)
        if drift is not None:
            found["price_drift"] = drift.low if drift.low == drift.high else [drift.low, drift.high]
            found["price_drift_fitted"] = drift.fitted
            found["notes"].append(_drift_note(drift, solved, design))
    found |= {"seed": seed, "samples": design.samples, "files": []}
    if out is not None:
        _write(found, out)
    return found


def _require_open(name: str, base: Problem) -> None:
    """Refuse to turn what a job that runs has already settled: its days so far would be read as another job's."""
    if base.file.observed is not None and name in ("count", "params"):
        fix = "Leave `observed` out to plan another job, or solve for tokens or an input."
        raise InputError("job-runs", f"`observed` is of a job whose {name} is settled.", fix, Place(f"--for {name}"))


def _condition(name: str, base: Problem, such_that: str | None, limits: Mapping[str, str], probability: str) -> Target:
    """Choose the condition: the stated one, else own against rent, else what the scenario asks."""
    about = conditions.subject(base)
    if such_that is not None:
        if limits:
            fix = "Write every limit into --such-that, or none."
            raise InputError("bad-option", "limits are stated twice.", fix, Place("--such-that"))
        return targets.read(such_that, about, option_place("--such-that", such_that))
    chance = conditions.probability(probability, option_place("--probability", probability))
    if not limits and name in _RENT_OR_OWN:
        return Target((Term("cost_owned_usd", "<=", "cost_rented_usd"),), chance)
    if not (limits or base.questions):
        fix = "Add --deadline 30d, --budget 5MUSD or --such-that 'P(training_days <= 30 d) >= 0.9'."
        raise InputError("no-condition", "nothing says what must hold.", fix, Place("solve"))
    return targets.from_questions(about, limits or base.questions, chance, Place("--budget"))


def _drift(text: str | None, condition: Target, base: Problem) -> Drift | None:
    if text is None:
        return None
    place = Place("--price-drift")
    if not any("cost_rented_usd" in (term.limit, term.output) and isinstance(term.limit, str)
               for term in condition.terms):  # fmt: skip
        message = "the price of later years matters to own against rent alone."
        raise InputError("bad-option", message, "Leave it out.", place)
    if text.strip().casefold() == FITTED:
        years = float(priors.quantiles(base.inputs["lifetime"].marginal, [0.5])[0])
        return Drift(*rate(years), fitted=True)
    ends = text.split(" to ")
    try:
        values = [units.to_number(end, "1", {}) for end in ends]
    except units.UnitProblem as problem:
        fix = f"Write -18% where it falls by 18% a year, or {FITTED}."
        raise InputError("bad-value", str(problem), fix, place) from None
    if not all(-0.9 <= value <= 1 for value in values):
        raise InputError("bad-value", f"{text} a year is out of range.", "Write -18% for a fall of 18%.", place)
    if len(values) > 2 or values != sorted(values):
        fix = "Write '-25% to 0%' for 90% between the two, the lower first."
        raise InputError("bad-value", f"{units.shown(text)} is no interval.", fix, place)
    return Drift(values[0], values[-1])


def _drift_note(drift: Drift, solved: Solved, design: Design) -> str:
    share = float(np.median(share_of_draws(drift, solved.problem, solved.draws, design)))
    whose = ""
    if drift.fitted:
        whose = f", as posted prices did in {catalog.price_drift_settings()['period']}, see priors/price_drift.yaml,"
    said = f"{drift.low:+.0%}" if drift.low == drift.high else f"{drift.low:+.0%} to {drift.high:+.0%} (90%)"
    return (
        f"the rental price changes by {said} a year{whose} over the hardware's life, so that owning competes with "
        f"{share:.0%} of today's price (median); the costs shown are at today's"
    )


def _ends(between: tuple[str, str], name: str, document: Document, overrides: Iterable[str]) -> tuple[float, float]:
    unit = knobs.knob(name, document, overrides).quantity.unit
    try:
        low, high = (units.to_number(end, unit, {}) for end in between)
    except units.UnitProblem as problem:
        raise InputError("bad-unit", str(problem), "", Place("--between")) from None
    return low, high


def _as_dict(solved: Solved, knob: Knob, condition: Target, base: Problem) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "name": base.name,
        "for": knob.name,
        "quantity": knob.quantity.name,
        "unit": knob.quantity.unit,
        "whole": knob.whole,
        "condition": [
            {"output": term.output, "relation": term.op, "limit": term.limit}
            for term in condition.terms
        ],
        "probability": condition.probability,
        "status": "solved" if solved.solutions else "always",
        "searched": [knob.low, knob.high],
        "solutions": [
            {
                "value": each.value,
                "holds": each.side,
                "monte_carlo_interval_90": list(each.interval),
                "probability": each.probability,
                "monte_carlo_error": _number(each.error),
            }
            for each in solved.solutions
        ],
        "scenario": {
            "value": knob.base, "probability": solved.base[0], "monte_carlo_error": _number(solved.base[1])
        },
        "chances": [{"probability": chance, "value": value} for chance, value in solved.chances.items()],
        "curve": [
            {"value": value, "probability": chance, "monte_carlo_error": _number(error)}
            for value, chance, error in solved.curve
        ],
        "outputs": {name: _statistics(solved.draws, name) for name in SHOWN},
        "notes": list(solved.notes),
        "what": _what(knob, solved.problem),
    }  # fmt: skip


def _what(knob: Knob, problem: Problem) -> str:
    """What is counted, for the sentence; empty for what has a name of its own."""
    if knob.name == "count":
        peak = problem.inputs["peak_flop_per_s"]
        return peak.prior.partition(",")[0] if peak.origin == "cited" else "accelerators"
    return {"params": "parameters", "tokens": "tokens"}.get(knob.name, "")


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _statistics(draws: Draws, name: str) -> dict[str, Any]:
    low, middle, high = (float(q) for q in np.quantile(draws.output(name), [0.05, 0.5, 0.95]))
    return {"unit": BY_NAME[name].unit, "median": middle, "interval_90": [low, high]}


# ---- files -------------------------------------------------------------------------------------------------------


def _write(found: dict[str, Any], out: Path) -> None:
    """Write ``solve.json`` and the picture, both or neither."""
    paths = [out / "solve.json"] + ([out / "solve.png"] if "curve" in found else [])
    found["files"] = [str(path) for path in paths]
    with storage.replacing_all(paths) as (data, *pictures):
        data.write_text(json.dumps(found, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        if not pictures:
            return
        from gpustack_mc import pages, solve_figure

        pages.save(solve_figure.chance_plot(found), pictures[0])
