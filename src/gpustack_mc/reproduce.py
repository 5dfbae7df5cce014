"""A result computed again from nothing but its file, and held against what the file says."""

import json
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from gpustack_mc import catalog, hdi, pack, yamlfile
from gpustack_mc.arrays import Result
from gpustack_mc.design import Design, make_design
from gpustack_mc.errors import InputError, Place
from gpustack_mc.problem import Problem
from gpustack_mc.propagation import Precision, Simulation, sampler
from gpustack_mc.reopening import open_result
from gpustack_mc.result import to_datatree, versions
from gpustack_mc.scenario import resolve

# Another machine's exp and log differ in the last of 16 digits, which the model adds up over some 40 operations and the
# inversion of quantile tables magnifies; a change that anyone could see is a thousand times larger than this.
TOLERANCE = 1e-9
_GROUPS = ("prior", "prior_predictive", "constant_data", "so_far", "remaining")


class Reproduced(NamedTuple):
    """What came of it.

    Attributes
    ----------
    verdict : {"identical", "equal", "different"}
        The same bytes; the same numbers within `TOLERANCE`; or other numbers.
    found : dict
        As printed with ``--json``.
    """

    verdict: str
    found: dict[str, Any]


def reproduce(path: Path, calibration: Path | None = None) -> Reproduced:
    """Compute a result again from the scenario, seed and design in its file, and compare every draw and statistic.

    Parameters
    ----------
    path : Path
        A ``result.nc``.
    calibration : Path, optional
        Folder of the prior pack that the result was made with, if one was.

    Raises
    ------
    InputError
        The file is no result, was made by a version that did not say how, or with another prior pack.
    """
    tree = open_result(path)
    problem = _problem(tree, path, calibration)
    samples, method, seed = int(tree.attrs["samples"]), tree.attrs["design"], int(tree.attrs["seed"])
    try:
        design = make_design(samples, method, seed)
    except ValueError as error:
        raise _damaged(path, "a design that is known") from error
    again = to_datatree(_simulated(problem, design, tree, path))
    deviations, identical = _deviations(tree, again)
    worst = max(deviations.values(), default=0.0)
    changed = _changed(tree, again)
    verdict = "identical" if identical and not worst else "equal" if worst <= TOLERANCE else "different"
    found = {
        "file": str(path),
        "name": problem.name,
        "verdict": verdict,
        "tolerance": TOLERANCE,
        "largest_relative_deviation": worst if np.isfinite(worst) else None,
        "samples": design.samples,
        "seed": design.seed,
        "variables": len(deviations),
        "deviating": {name: value if np.isfinite(value) else None for name, value in _largest(deviations)},
        "changed": changed,
    }
    return Reproduced(verdict, found)


def text(done: Reproduced) -> str:
    """Say it in a few lines."""
    found = done.found
    computed = f"{found['file']}: {found['variables']} variables computed again ({found['samples']:,} samples, seed "
    computed += f"{found['seed']})"
    said = {
        "identical": f"{computed}: every draw and statistic has the same bytes.",
        "equal": f"{computed}: the same within {TOLERANCE:g} (largest relative deviation "
        f"{found['largest_relative_deviation'] or 0:.1e}).",
        "different": f"{computed}: NOT the same.",
    }
    lines = [said[done.verdict]]
    if done.verdict == "different":
        for name, value in found["deviating"].items():
            lines.append(
                f"  {name}: " + ("one of the two lacks it" if value is None else f"differs by up to {value:.1e}")
            )
    for name, (before, now) in found["changed"].items():
        lines.append(f"  {name}: {before} when it was written, {now} now")
    return "\n".join(lines)


def _problem(tree: Result, path: Path, calibration: Path | None) -> Problem:
    try:
        written, digest = tree.attrs["scenario_file"], tree.attrs["pack_sha256"]
        overrides = json.loads(tree.attrs["overrides"])
        sound = all(isinstance(each, str) for each in (written, digest, *overrides))
    except (KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise _damaged(path, "the scenario as it was written")
    own = pack.load(calibration) if calibration is not None else None
    if (own.digest if own else "") != digest:
        wanted = f"the prior pack whose pack.json has SHA-256 {digest[:12]}…" if digest else "the shipped priors alone"
        found = f"this result was made with {wanted}, not {f'that of {calibration}' if own else 'the shipped priors'}."
        fix = "Name its folder with --priors." if digest else "Leave out --priors."
        raise InputError("other-pack", found, fix, Place(str(path)))
    document = yamlfile.parse(written, str(path))._replace(pack=own)
    return resolve(document, overrides)


def _simulated(problem: Problem, design: Design, tree: Result, path: Path) -> Simulation:
    """Propagate in the precision of the result, with indices from as many points: a tolerance may have taken more."""
    import jax

    precision: Any = tree.attrs.get("precision")
    if precision not in get_args(Precision):
        raise _damaged(path, "its precision")
    with jax.enable_x64(True):
        made = sampler(problem, design, precision=precision, with_hdi=hdi.kind_of(tree.attrs) == "hdi")
        if "sensitivity" in tree:
            made.lengthen(design.samples, int(tree["sensitivity"].attrs["samples"]) // design.replicates)
        return made.simulation()


def _damaged(path: Path, what: str) -> InputError:
    return InputError("damaged-result", f"this file lacks {what}.", "Run the scenario again.", Place(str(path)))


def _deviations(tree: Result, again: Result) -> tuple[dict[str, float], bool]:
    """Return the largest relative deviation of each variable, and whether all bytes are the same."""
    found, identical = {}, True
    for group in _GROUPS:
        old, new = (each[group].data_vars if group in each else {} for each in (tree, again))
        for name in dict.fromkeys([*old, *new]):
            both = [each[name].values if name in each else None for each in (old, new)]
            found[f"{group}/{name}"], same = _deviation(*both)
            identical &= same
    for group, names in {"statistics": ("value",), "sensitivity": ("S1", "ST")}.items():
        if not all(group in each for each in (tree, again)):
            continue
        for name in names:
            found[f"{group}/{name}"], same = _deviation(tree[group][name].values, again[group][name].values, whole=True)
            identical &= same
    return found, identical


def _deviation(old: np.ndarray | None, new: np.ndarray | None, *, whole: bool = False) -> tuple[float, bool]:
    """Return the largest deviation relative to the value, or with `whole` to one where values are below one.

    Indices are numbers around 0 and 1, of which those of unimportant inputs are noise around zero.
    """
    if old is None or new is None or old.shape != new.shape:
        return float("inf"), False
    if np.array_equal(old, new, equal_nan=True):
        return 0.0, old.tobytes() == new.tobytes()
    scale = np.maximum(np.abs(old), np.abs(new))
    scale = np.maximum(scale, 1.0) if whole else np.where(scale > 0, scale, 1.0)
    with np.errstate(invalid="ignore"):
        apart = np.abs(old - new) / scale
    # Unknown in one and known in the other is a difference; unknown in both is none.
    apart = np.where(np.isnan(old) & np.isnan(new) | (old == new), 0.0, np.where(np.isnan(apart), np.inf, apart))
    return float(apart.max()), False


def _largest(deviations: dict[str, float], most: int = 5) -> list[tuple[str, float]]:
    beyond = [item for item in deviations.items() if item[1] > TOLERANCE]
    return sorted(beyond, key=lambda item: -item[1])[:most]


def _changed(tree: Result, again: Result) -> dict[str, tuple[str, str]]:
    """Return what the numbers depend on and is not what it was: versions, priors, platform."""
    before, now = json.loads(tree.attrs["versions"]), versions()
    found = {
        name: (str(before.get(name, "absent")), str(now.get(name, "absent")))
        for name in dict.fromkeys([*before, *now])
        if before.get(name) != now.get(name)
    }
    if tree.attrs.get("priors_sha256") != catalog.priors_digest():
        found["priors"] = (str(tree.attrs.get("priors_sha256", "unknown"))[:12], catalog.priors_digest()[:12])
    if tree.attrs.get("platform") != again.attrs["platform"]:
        found["platform"] = (str(tree.attrs.get("platform", "unknown")), again.attrs["platform"])
    return found
