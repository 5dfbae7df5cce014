"""A result whose inputs can be moved in the browser: draws, and the equations of the model translated for it.

The page holds some thousand draws of the inputs. Moving one shifts, narrows or fixes its draws on the scale on which
its prior is symmetric, and all outputs are computed again from all inputs, by `gpustack_mc.model` as
`gpustack_mc.javascript` translates it. Before a page is written, the model is run here on the very draws that it will
hold and must give the outputs of the result.
"""

import base64
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpustack_mc import figures, formatting, javascript, model, summarizing
from gpustack_mc.arrays import Result
from gpustack_mc.errors import InputError
from gpustack_mc.problem import PHASE_KEYS
from gpustack_mc.quantities import BY_NAME
from gpustack_mc.shapes import MODEL_INPUTS

# Enough for an error of about half a per cent in the ends of a 90% interval, in a page below 2 MB.
DRAWS = 2**13
_MOST_NUMBERS = 2**18
# Draws come from the beginnings of this many replicates: each fills space evenly, and their errors are independent.
_REPLICATES = 8
# Single precision halves the page; its rounding is far below the Monte Carlo error.
_ROUNDING = 1e-5
# Sliders that are open from the start.
MAIN = 8
# Inputs with a total index below this for every output that is shown do nothing to them, and have no slider.
_NOTHING = 1e-4
# Power and PUE may belong to one phase as well.
_PHASE_POWER = ("tdp", "gpu_power_fraction", "host_power", "pue")
# How far a slider reaches: beyond the 0.5% and 99.5% quantile by this share of their distance from the median, or for a
# value without spread this much on the log (or log-odds) scale.
_BEYOND, _AROUND = 0.5, math.log(3.0)
_HIGHEST_CARBON_PRICE = 300.0


class Inputs(NamedTuple):
    """What enters the model, in the order in which the page holds it.

    Attributes
    ----------
    keys : tuple of str
    values : ndarray of float32, shape (len(keys), draws)
    varying : tuple of bool
    """

    keys: tuple[str, ...]
    values: np.ndarray
    varying: tuple[bool, ...]


def inputs_of(tree: Result) -> Inputs:
    """Return the draws of everything that the model reads."""
    read = {key for phase in _phases(tree) for key in phase.values()} | set(MODEL_INPUTS)
    taken = places(tree)
    keys, rows, varying = [], [], []
    for key in summarizing.input_keys(tree):
        varies = key in tree["prior"].data_vars
        if key not in read:
            continue
        draws = tree["prior"][key].values[0, taken] if varies else np.float64(tree["constant_data"][key])
        keys.append(key)
        rows.append(np.broadcast_to(draws, taken.shape))
        varying.append(varies)
    return Inputs(tuple(keys), np.asarray(rows, dtype=np.float32), tuple(varying))


def places(tree: Result) -> np.ndarray:
    """Return which draws of a result the page holds."""
    replicates, draws = int(tree.attrs["replicates"]), tree["prior_predictive"].sizes["draw"]
    wanted = min(DRAWS, _MOST_NUMBERS // max(len(tree["prior"].data_vars), 1))
    used = min(replicates, _REPLICATES) if draws > wanted else replicates
    each = min(draws // replicates, max(wanted // used, 1))
    found: np.ndarray = (np.arange(used)[:, None] * (draws // replicates) + np.arange(each)).reshape(-1)
    return found


def _phases(tree: Result) -> list[dict[str, str]]:
    """Return the key of each quantity of each phase; a phase that has its own is named behind an @."""
    held = {*map(str, tree["prior"].data_vars), *map(str, tree["constant_data"].data_vars)}
    names = [key.partition("@")[2] for key in summarizing.input_keys(tree) if key.startswith("tokens@")] or [""]
    phases = []
    for name in names:
        own = {key: f"{key}@{name}" for key in (*PHASE_KEYS, *_PHASE_POWER) if name and f"{key}@{name}" in held}
        whole = {key: key for key in PHASE_KEYS if key in held}
        # All parameters of a dense model are active.
        phases.append({"active_params": "params"} | whole | own)
    return phases


def program(tree: Result, keys: Sequence[str]) -> Callable[..., list[Any]]:
    """Return the model of a result as a function of its inputs, in the order of `keys`, to its outputs in theirs."""
    phases = _phases(tree)
    outputs = list(map(str, tree["prior_predictive"].data_vars))
    run: Callable[..., dict[str, Any]] = model.run
    if "expected_goodput" in outputs:
        run = model.run_with_checkpoints if "checkpoint_interval" in keys else model.run_with_best_checkpoints

    def evaluate(*numbers: Any) -> list[Any]:
        values = dict(zip(keys, numbers, strict=True))
        shared = {name: values[name] for name in MODEL_INPUTS if name in values}
        found = run([{name: values[key] for name, key in phase.items()} for phase in phases], **shared)
        return [found[name] + jnp.zeros(()) for name in outputs]

    return evaluate


def require_same_equations(tree: Result, inputs: Inputs) -> None:
    """Refuse a result that the model of this version would not give.

    Raises
    ------
    InputError
        Its outputs do not follow from its inputs by the equations of this version.
    """
    with jax.enable_x64(True):
        try:
            found = program(tree, inputs.keys)(*(jnp.asarray(row, dtype=float) for row in inputs.values))
        except (KeyError, TypeError) as error:
            raise _other_equations(tree, "some output cannot be computed") from error
        rows = [np.broadcast_to(np.asarray(row), inputs.values.shape[1:]) for row in found]
    taken = places(tree)
    for (name, variable), row in zip(tree["prior_predictive"].data_vars.items(), rows, strict=True):
        stored = variable.values[0, taken]
        if not np.allclose(row, stored, rtol=_ROUNDING, atol=1e-12 * float(np.abs(stored).max(initial=0))):
            raise _other_equations(tree, f"{name} does not follow from its inputs")


def _other_equations(tree: Result, what: str) -> InputError:
    version = str(tree.attrs.get("creation_library_version", "another version"))[:20]
    found = f"this result was computed by gpustack-mc {version} with other equations: {what} by those of this version."
    return InputError("other-equations", found, "Run its scenario again.")


# ---- what the page holds -----------------------------------------------------------------------------------------


def values(tree: Result, found: Mapping[str, Any], asked: Sequence[str]) -> dict[str, Any]:
    """Return what the template of the report shows of it: controls, rows, data and the program.

    Parameters
    ----------
    tree : xarray.DataTree
    found : mapping
        Its summary.
    asked : sequence of str
        What each of its questions asks, in words.

    Raises
    ------
    InputError
        As of `require_same_equations`.
    """
    inputs = inputs_of(tree)
    require_same_equations(tree, inputs)
    script = code(tree, inputs.keys)
    rows = list(summarizing.headline_table(dict(found), tree.attrs["ownership"]))
    controls = _controls(tree, found, inputs, rows)
    outputs, answers = list(map(str, tree["prior_predictive"].data_vars)), found["questions"]
    units = {control["data"]["unit"] for control in controls} | {BY_NAME[name].unit for name in rows}
    data = {
        "draws": inputs.values.shape[1],
        "inputs": [
            _packed(row) if varies else float(row[0]) for row, varies in zip(inputs.values, inputs.varying, strict=True)
        ],
        "outputs": len(tree["prior_predictive"].data_vars),
        "controls": [control["data"] for control in controls],
        "rows": [_row(name, outputs, found, tree.attrs["ownership"]) for name in rows],
        "questions": [{"terms": _terms(answer, outputs, answers)} for answer in answers.values()],
        "units": {unit: [list(step) for step in formatting.steps(unit)] for unit in sorted(units)},
    }
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return {
        "draws": f"{inputs.values.shape[1]:,}",
        "all_draws": f"{found['samples']:,}",
        "main": controls[:MAIN],
        "further": controls[MAIN:],
        "rows": data["rows"],
        "questions": asked,
        "correlated": [name.replace("+", ", ") for name in _blocks(tree) if "+" in name],
        # An opening bracket would let a text end the element that holds it.
        "data": json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        "script": script,
        "sha256": digest,
    }


def code(tree: Result, keys: Sequence[str]) -> str:
    """Return the program of the page: the translated model, and what moves inputs and shows outputs."""
    # A phase has any name that its scenario gives it: identifiers are made of our own names.
    names = [f"{key.partition('@')[0]}_{i}" for i, key in enumerate(keys)]
    translated = javascript.translate(program(tree, keys), names, "model")
    page = (Path(__file__).parent / "templates" / "interactive.js").read_text(encoding="utf-8")
    return f'"use strict";\n{translated}{page}'


def _packed(row: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(row, dtype="<f4").tobytes()).decode()


def _row(name: str, outputs: Sequence[str], found: Mapping[str, Any], ownership: str) -> dict[str, Any]:
    about = {
        "output": outputs.index(name),
        "label": summarizing.label_of(name, dict(found)),
        "unit": BY_NAME[name].unit,
    }
    return about | {"said": name in ("training_days", summarizing.main_cost(ownership))}


def _terms(answer: Mapping[str, Any], outputs: Sequence[str], answers: Mapping[str, Any]) -> list[list[Any]]:
    """Return a question as comparisons (output, operator, limit) that must all hold."""
    if "limits" in answer:
        return [term for name in answer["limits"] for term in _terms(answers[name], outputs, answers)]
    terms = answer.get("terms", [{"output": answer.get("output"), "op": "<=", "limit": answer.get("limit")}])
    return [[outputs.index(term["output"]), term["op"], term["limit"]] for term in terms]


# ---- controls ----------------------------------------------------------------------------------------------------


def _blocks(tree: Result) -> list[str]:
    return list(map(str, tree["sensitivity"]["input"].values)) if "sensitivity" in tree else []


def _controls(tree: Result, found: Mapping[str, Any], inputs: Inputs, rows: Sequence[str]) -> list[dict[str, Any]]:
    """List the inputs that can be moved: what moves the shown outputs most first, then what is fixed.

    Facts of the scenario, such as the count of accelerators, cannot: priors of other inputs depend on them. Neither can
    correlated inputs, one without the others.
    """
    skip = summarizing.OTHER_OWNERSHIP.get(tree.attrs["ownership"])
    main = _largest(found, [name for name in figures.SENSITIVITY_PANELS if name != skip])
    shown = _largest(found, rows)
    moving, fixed = [], []
    for i, (key, varies) in enumerate(zip(inputs.keys, inputs.varying, strict=True)):
        if key not in BY_NAME or (BY_NAME[key].role != "input" and key != "carbon_price"):
            continue
        if not varies:
            fixed.append(_control(tree, key, i, inputs.values[i]))
        elif max(main.get(key, 0.0), shown.get(key, 0.0)) >= _NOTHING:
            moving.append((-main.get(key, 0.0), -shown.get(key, 0.0), _control(tree, key, i, inputs.values[i])))
    # The price of carbon, which is 0 unless it is stated, comes last.
    fixed.sort(key=lambda control: control["key"] == "carbon_price")
    return [*(control for *_, control in sorted(moving, key=lambda item: item[:2])), *fixed]


def _largest(found: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, float]:
    """Return the largest total index of each input for some outputs; correlated inputs have none of their own."""
    indices = [found["sensitivity"].get(output, {}) for output in outputs]
    return {key: max(each[key]["ST"] or 0.0 for each in indices if key in each) for each in indices for key in each}


def _control(tree: Result, key: str, place: int, draws: np.ndarray) -> dict[str, Any]:
    quantity = BY_NAME[key]
    middle = float(np.quantile(draws.astype(float), 0.5))
    varies = key in tree["prior"].data_vars
    scale = "linear" if key == "carbon_price" else _scale(quantity.scale, draws, middle)
    low, high = _reach(key, scale, draws.astype(float), middle)
    group = "prior" if varies else "constant_data"
    return {
        "key": key,
        "id": f"input-{place}",
        "description": str(tree[group][key].attrs["long_name"]),
        "varies": varies,
        "data": {
            "input": place, "key": key, "scale": scale, "middle": middle, "low": low, "high": high, "varies": varies,
            "unit": quantity.unit, "least": quantity.low, "most": _finite(quantity.high),
        },
    }  # fmt: skip


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _scale(scale: str, draws: np.ndarray, middle: float) -> str:
    """Return the scale on which an input is moved; where draws leave it, they are shifted as they are."""
    floor = 1.0 if scale == "log_above_one" else 0.0
    inside = draws.min() >= floor and middle > floor and (scale != "logit" or (draws.max() <= 1 and middle < 1))
    return scale if inside else "linear"


def _reach(key: str, scale: str, draws: np.ndarray, middle: float) -> tuple[float, float]:
    """Return the ends of a slider, inside the physical bounds of the quantity."""
    if key == "carbon_price":
        return 0.0, max(_HIGHEST_CARBON_PRICE, 3 * middle)
    forward, back = _TRANSFORMS[scale]
    tails = np.quantile(draws, [0.005, 0.995])
    with np.errstate(divide="ignore"):
        low, centre, high = (float(forward(value)) for value in (tails[0], middle, tails[1]))
    around = _AROUND if scale != "linear" else max(abs(middle), 1.0)
    # A heap at the end of a scale, such as a share of 1, lies infinitely far out.
    left = (centre - low) * (1 + _BEYOND) if math.isfinite(low) and low < centre else around
    right = (high - centre) * (1 + _BEYOND) if math.isfinite(high) and high > centre else around
    ends = float(back(centre - left)), float(back(centre + right))
    return max(ends[0], BY_NAME[key].low), min(ends[1], BY_NAME[key].high)


_TRANSFORMS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "log": (np.log, np.exp),
    "log_above_one": (lambda x: np.log(x - 1), lambda t: 1 + np.exp(t)),
    "logit": (lambda x: np.log(x / (1 - x)), lambda t: 1 / (1 + np.exp(-t))),
    "linear": (lambda x: x, lambda t: t),
}
