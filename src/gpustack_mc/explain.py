"""From the inputs to one output: each step with its equation, its value and the share of the variance it brings."""

import shutil
import textwrap
from typing import Any

import numpy as np

from gpustack_mc import chain, hdi, notation, summarizing
from gpustack_mc.arrays import Result
from gpustack_mc.errors import InputError, did_you_mean
from gpustack_mc.quantities import BY_NAME, OUTPUTS

# A given-data estimate from fewer draws than this says nothing.
_FEWEST_DRAWS = 256


def explain(tree: Result, output: str | None = None, found: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the chain of equations that leads to an output.

    Parameters
    ----------
    tree : xarray.DataTree
    output : str, optional
        One that the scenario has; the cost that it asks for when omitted.
    found : dict, optional
        The summary of the result, when it is at hand.

    Returns
    -------
    dict
        JSON-ready. ``steps`` holds the equations, each after those that it needs, and ``inputs`` what they start from.
        ``share`` is the first-order index: the part of the output's variance that would go if the quantity were
        known. For inputs it is the Sobol' index of the result; for steps it is estimated from the draws.

    Raises
    ------
    InputError
        There is no such output.
    """
    output = output or summarizing.main_cost(tree.attrs["ownership"])
    require_output(output)
    found = found or summarizing.summarise(tree)
    if output not in found["outputs"]:
        fix = f"Only one that states {BY_NAME[output].part} has it."
        raise InputError("unknown-output", f"the scenario has no output {output!r}.", fix)
    indices = found["sensitivity"].get(output, {})
    # A scenario that states `reliability` has other inputs than one that does not.
    follows = [
        name for name, step in chain.FOLLOWS.items() if name not in found["inputs"] and step in found["outputs"]
    ] + [name for name in chain.ON_SITES.values() if name in found["outputs"]]
    # Where all parameters are used for each token, one input is two quantities.
    keys = [key for name in chain.inputs_of(output, follows) for key in _keys(name, found["inputs"])]
    return {
        "schema_version": 1,
        "name": found["name"],
        "output": output,
        "description": BY_NAME[output].description,
        "scope": BY_NAME[output].scope,
        "basis": found["basis"],
        "interval": found["interval"],
        "steps": [_step(tree, step, output, found) for step in chain.steps_to(output, follows)],
        "inputs": [_input(key, found["inputs"][key], indices) for key in dict.fromkeys(keys)],
    }


def require_output(output: str) -> None:
    """Raise an InputError unless some scenario has such an output."""
    if output not in BY_NAME or BY_NAME[output].role != "output":
        raise InputError("unknown-output", f"there is no output {output[:60]!r}.", did_you_mean(output, OUTPUTS))


def _keys(name: str, inputs: dict[str, Any]) -> list[str]:
    """Return the keys of an input: one, or one for each phase that has its own; a dense model uses all parameters."""
    if name == "active_params" and name not in inputs:
        return ["params"]
    return [key for key in inputs if key.partition("@")[0] == name]


def _step(tree: Result, step: chain.Step, output: str, found: dict[str, Any]) -> dict[str, Any]:
    draws, goal = (tree["prior_predictive"][name].values[0] for name in (step.name, output))
    share = first_order(draws, goal)
    return {
        "name": step.name,
        "description": BY_NAME[step.name].description,
        "symbol": BY_NAME[step.name].symbol,
        "equation": notation.plain(step.latex),
        "latex": step.latex,
        "uses": list(step.uses),
        "assumes": step.assumes,
        "references": step.references,
        **_spread(found["outputs"][step.name]),
        "share": 1.0 if step.name == output and share is not None else share,
    }


def _input(key: str, entry: dict[str, Any], indices: dict[str, Any]) -> dict[str, Any]:
    block = next((name for name in indices if key in name.split("+")), None)
    index = indices[block] if block else {"S1": None, "S1_interval_90": [None, None], "ST": None}
    fixed = entry["sd"] == 0
    return {
        "name": key,
        "description": entry["description"],
        "symbol": BY_NAME[key.partition("@")[0]].symbol,
        **_spread(entry),
        "share": 0.0 if fixed else index["S1"],
        "share_interval_90": [0.0, 0.0] if fixed else index["S1_interval_90"],
        "total": 0.0 if fixed else index["ST"],
        "shared_with": [name for name in block.split("+") if name != key] if block else [],
        **{name: entry[name] for name in ("origin", "prior", "sources", "fell_back_from", "dated", "collected")},
    }


def _spread(entry: dict[str, Any]) -> dict[str, Any]:
    names = ("unit", "median", "interval_90", "sd", "monte_carlo_error")
    return {name: entry[name] for name in names if name in entry}


def first_order(x: np.ndarray, y: np.ndarray) -> float | None:
    r"""Estimate :math:`\mathrm{Var}(\mathrm{E}[y \mid x]) / \mathrm{Var}(y)` from draws alone.

    The draws are sorted by `x` and cut into classes of equal size. The variance of the class means holds the variance
    within a class over its size besides, which is taken off.

    Parameters
    ----------
    x, y : ndarray, shape (n,)

    Returns
    -------
    float or None
        Between 0 and 1; None when `y` does not vary or there are too few draws.

    References
    ----------
    Plischke, Borgonovo & Smith (2013), European Journal of Operational Research 226, 536-550 (given-data estimators).
    """
    # Finer classes follow the curve better, also in a long tail, and hold fewer draws: both grow with the draws.
    classes = round(2 * len(y) ** 0.5)
    whole = float(np.var(y))
    if len(y) < _FEWEST_DRAWS or not np.isfinite(whole) or whole <= (1e-9 * abs(float(np.mean(y)))) ** 2:
        return None
    if np.ptp(x) == 0:
        return 0.0
    size = len(y) // classes
    ordered = y[np.argsort(x, kind="stable")][: classes * size].reshape(classes, size)
    between = float(np.var(ordered.mean(axis=1)))
    within = float(np.mean(np.var(ordered, axis=1, ddof=1)))
    return float(np.clip((between - within / size) / whole, 0.0, 1.0))


# ---- text --------------------------------------------------------------------------------------------------------


def text(found: dict[str, Any], width: int | None = None) -> str:
    """Return an explanation for people.

    Parameters
    ----------
    found : dict
        From `explain`.
    width : int, optional
        Columns of the terminal.
    """
    width = max(width or shutil.get_terminal_size((100, 24)).columns, 40)
    goal = found["steps"][-1]
    lines = [
        _filled(f"{goal['description']} ({goal['name']}, {found['scope'] or 'per unit'}): {_value(goal)}", width, 2),
        "",
        _filled("How it is computed; each share is that of the variance which would go if the step were known.", width),
    ]
    for number, step in enumerate(found["steps"], 1):
        lines += ["", _filled(f"  {number}. {step['description']}", width, 5)]
        lines += [_filled(f"     {step['equation']}", width, 9)]
        share = "" if step["share"] is None else f", share {_share(step['share'])}"
        lines += [_filled(f"     {step['name']} = {_value(step)}{share}", width, 9)]
        if step["assumes"]:
            lines += [_filled(f"     {step['assumes']}", width, 5)]
    lines += ["", _filled(f"From what (median and 90% {hdi.NAMES[found['interval']]}; share alone; origin)", width)]
    rows = [(notation.plain(item["symbol"]), item["name"], _value(item), _share(item["share"]), item) for item in
            sorted(found["inputs"], key=lambda item: -(item["share"] or 0))]  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for *cells, item in rows:
        start = "  " + "  ".join(cell.ljust(size) for cell, size in zip(cells, widths, strict=True)) + "  "
        indent = len(start) if width - len(start) > 36 else 6
        lines.append(_filled(start + _origin(item), width, indent))
    return "\n".join(lines)


def _filled(line: str, width: int, indent: int = 0) -> str:
    return textwrap.fill(line, width, subsequent_indent=" " * indent, break_long_words=False, drop_whitespace=True)


def _value(entry: dict[str, Any]) -> str:
    return summarizing.with_interval(entry)


def _share(share: float | None) -> str:
    if share is None:
        return ""
    return "≈0" if share < 0.005 else f"{share:.2f}"


def _origin(item: dict[str, Any]) -> str:
    prior = f": {item['prior']}" if item["prior"] else ""
    missed = f" [no data for {', '.join(item['fell_back_from'])}]" if item["fell_back_from"] else ""
    titles = list(dict.fromkeys(source["title"] for source in item["sources"]))
    more = f" and {len(titles) - 2} more" if len(titles) > 2 else ""
    together = f" (share together with {', '.join(item['shared_with'])})" if item["shared_with"] else ""
    return f"{item['origin']}{prior}{missed}{'; ' if titles else ''}{'; '.join(titles[:2])}{more}{together}"
