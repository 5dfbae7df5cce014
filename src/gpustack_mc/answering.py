"""Answers to the questions of a scenario, from the draws of its result, and the gates of ``--fail-if``."""

import datetime
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np

from gpustack_mc import conditions, formatting, hdi
from gpustack_mc.arrays import Chance, Result
from gpustack_mc.conditions import Gate
from gpustack_mc.design import REPLICATES
from gpustack_mc.problem import QUESTIONS, Condition, Term
from gpustack_mc.quantities import BY_NAME
from gpustack_mc.sobol import replicate_error, t_quantile

# Half of a 90% interval, in standard errors that come from the replicates of a design: those of a normal distribution
# would hold 88%.
WITHIN = t_quantile(REPLICATES, 0.90)


def answers(tree: Result) -> dict[str, Any]:
    """Return the probability that each limit of the scenario is kept, alone and together, with Monte Carlo errors.

    A budget is asked of the owned and of the rented cost, unless the scenario says which one is meant.

    Returns
    -------
    dict
        By question, or by the text of a condition that the scenario asks about.
    """
    limits = json.loads(tree.attrs["questions"])
    kept: dict[str, np.ndarray] = {}
    about: dict[str, dict[str, Any]] = {}
    for name, limit in limits.items():
        for output in _outputs_of(QUESTIONS[name][0], tree.attrs["ownership"]):
            key = name if QUESTIONS[name][0] == output else f"{name}_{output.split('_')[1]}"
            kept[key] = tree["prior_predictive"][output].values[0] <= limit
            about[key] = {
                "output": output,
                "limit": limit,
                "unit": QUESTIONS[name][1],
                "scope": BY_NAME[output].scope,
            }
    found = {key: {**about[key], **probability(values, tree)} for key, values in kept.items()}
    if len(limits) > 1:
        for way in _ways(kept):
            together = np.logical_and.reduce([kept[key] for key in way])
            found["all_" + way[0].rpartition("_")[2] if "budget_" in way[0] else "all"] = {
                "limits": way,
                "scope": " and ".join(dict.fromkeys(about[key]["scope"] for key in way)),
                **probability(together, tree),
            }
    return found | {condition.text: _asked(condition, tree) for condition in _conditions(tree)}


def limits_as_terms(limits: Mapping[str, float], ownership: str) -> dict[str, tuple[Term, ...]]:
    """Return the limits of a scenario, alone and together, by the names that `answers` gives them."""
    alone = {}
    for name, limit in limits.items():
        for output in _outputs_of(QUESTIONS[name][0], ownership):
            key = name if QUESTIONS[name][0] == output else f"{name}_{output.split('_')[1]}"
            alone[key] = Term(output, "<=", limit, key)
    found: dict[str, tuple[Term, ...]] = {key: (term,) for key, term in alone.items()}
    if len(limits) > 1:
        for way in _ways(alone):
            name = "all_" + way[0].rpartition("_")[2] if "budget_" in way[0] else "all"
            found[name] = tuple(alone[key] for key in way)
    return found


def _conditions(tree: Result) -> list[Condition]:
    stored = json.loads(tree.attrs.get("asked", "[]"))
    return [Condition(text, tuple(Term(**term) for term in terms)) for text, terms in stored]


def _asked(condition: Condition, tree: Result) -> dict[str, Any]:
    terms = [term._asdict() | {"unit": BY_NAME[term.output].unit} for term in condition.terms]
    about = {"condition": condition.text, "terms": terms, "scope": conditions.scope_of(condition)}
    return {**about, **probability(_holds(condition, tree), tree)}


def _holds(condition: Condition, tree: Result) -> np.ndarray:
    return conditions.holds(condition, lambda output: tree["prior_predictive"][output].values[0])


def _outputs_of(output: str, ownership: str) -> tuple[str, ...]:
    if output != "cost":
        return (output,)
    own, rent = ("cost_owned_usd",), ("cost_rented_usd",)
    return {"own": own, "rent": rent, "either": own + rent}[ownership]


def _ways(kept: Iterable[str]) -> list[list[str]]:
    """List what must hold together: once, or once owned and once rented."""
    budgets = [key for key in kept if key.startswith("budget")]
    others = [key for key in kept if not key.startswith("budget")]
    return [[budget, *others] for budget in budgets] or [others]


def probability(values: np.ndarray, tree: Result) -> Chance:
    """Return the share of draws for which something holds, and its Monte Carlo standard error."""
    by_replicate = values.reshape(int(tree.attrs["replicates"]), -1).mean(axis=1)
    error = float(replicate_error(by_replicate)) if len(by_replicate) > 1 else math.nan
    return {"probability": float(values.mean()), "monte_carlo_error": error if math.isfinite(error) else None}


def finish(tree: Result) -> dict[str, Any] | None:
    """Return the day on which the run ends, when the scenario says on which it starts.

    A run that starts on a day uses this day as well.
    """
    if not tree.attrs.get("start"):
        return None
    start = datetime.date.fromisoformat(tree.attrs["start"])
    statistics = tree["statistics"]["value"].sel(variable="training_days")

    def day(name: str) -> str:
        days = min(float(statistics.sel(statistic=name)), 3e6)
        try:
            return (start + datetime.timedelta(days=math.ceil(days) - 1)).isoformat()
        except OverflowError:
            return datetime.date.max.isoformat()

    low, *_, high = hdi.FIVE[hdi.kind_of(tree.attrs)]
    return {"start": start.isoformat(), "median": day("q0.5"), "interval_90": [day(low), day(high)]}


# ---- gates -------------------------------------------------------------------------------------------------------


def failure(tree: Result, gate: Gate) -> str:
    """Say why a result does not pass a gate; empty when it passes."""
    if gate.condition is None:
        value = float(tree["statistics"]["value"].sel(variable=gate.output, statistic=f"q{gate.quantile:g}"))
        if not conditions.OPERATORS[gate.op](value, gate.limit):
            return ""
        quantity = BY_NAME[gate.output]
        shown = formatting.with_unit(value, quantity.unit, 3)
        return f"--fail-if {gate.text}: it is {shown} ({quantity.scope})."
    found = probability(_holds(gate.condition, tree), tree)
    if not conditions.OPERATORS[gate.op](found["probability"], gate.limit):
        return ""
    near = abs(found["probability"] - gate.limit) < WITHIN * (found["monte_carlo_error"] or 0.0)
    fix = " That is within the Monte Carlo error: use more --samples." if near else ""
    scope = conditions.scope_of(gate.condition)
    return f"--fail-if {gate.text}: it is {percent(found['probability'])}{within(found)} ({scope}).{fix}"


# ---- text --------------------------------------------------------------------------------------------------------


def lines(summary: dict[str, Any], style: Callable[..., str]) -> list[str]:
    """Return the answers as lines of the terminal report, each with what it covers."""
    found, day = summary["questions"], summary.get("finish")
    ends = []
    if day:
        first, last = day["interval_90"]
        what = "90% HDI" if summary["interval"] == "hdi" else "90%"
        ends = ["", f"  starting on {day['start']} it ends on {day['median']} ({what}: {first} to {last})"]
    if not found:
        return ends
    start = day["start"] if day else ""
    said = [f"  P({words(answer, start)}) = {percent(answer['probability'])}{within(answer)}  {answer['scope']}"
            for answer in found.values()]  # fmt: skip
    return [*ends, "", style("  questions", dim=True), *said]


def published_lines(summary: dict[str, Any], style: Callable[..., str], outputs: Collection[str] = ()) -> list[str]:
    """Return the public figures, of some outputs only where they are named, and how they lie to the intervals."""
    found = {name: figure for name, figure in summary["published"].items() if not outputs or name in outputs}
    if not found:
        return []
    lines = ["", style("  published", dim=True)]
    for name, figure in found.items():
        value = formatting.with_unit(figure["value"], BY_NAME[name].unit, 4, exact=True)
        fixed = summary["outputs"][name]["sd"] == 0
        verdict = verdict_of(figure["inside_interval_90"], fixed, summary["interval"])
        why = f": {figure['outside']}" if figure["outside"] and not figure["inside_interval_90"] else ""
        lines.append(f"  {name} {value}, {verdict}{why} [{figure['source']}]")
    return lines


def verdict_of(inside: bool, fixed: bool, kind: hdi.Kind = "equal-tailed") -> str:
    """Say how a published figure lies to the interval."""
    if fixed:
        return "which agrees" if inside else "which differs"
    return f"{'inside' if inside else 'outside'} the 90% {hdi.NAMES[kind]}"


def words(answer: dict[str, Any], start: str = "") -> str:
    """Return what a question asks, without its answer; with the day of a deadline when the run starts on a day."""
    if "limits" in answer:
        return " and ".join(answer["limits"])
    if "terms" in answer:
        terms = [Term(*(term[field] for field in Term._fields)) for term in answer["terms"]]
        return " and ".join(term.name or conditions.spoken(term) for term in terms)
    if start and answer["output"] == "training_days" and answer["limit"] == int(answer["limit"]) < 1e5:
        end = datetime.date.fromisoformat(start) + datetime.timedelta(days=int(answer["limit"]) - 1)
        return f"{conditions.spoken(Term('training_days', '<=', answer['limit']))}, by {end}"
    return conditions.spoken(Term(answer["output"], "<=", answer["limit"]))


def percent(probability: float) -> str:
    """Write a probability; nearly 0 and nearly 1 are not 0 and 1."""
    if 0 < probability < 0.001:
        return "<0.1%"
    return ">99.9%" if 0.999 < probability < 1 else f"{probability:.1%}"


def within(answer: Mapping[str, Any]) -> str:
    """Write the half width of the 90% interval of the Monte Carlo error."""
    error = answer["monte_carlo_error"]
    # What is written as a bound has no error of its own.
    if error is None or percent(answer["probability"])[0] in "<>":
        return ""
    return f" ± {max(WITHIN * error, 0.0005):.1%}"
