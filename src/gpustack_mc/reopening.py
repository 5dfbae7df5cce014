"""Opens a ``result.nc``, or computes the result of a scenario where one is named.

A file may come from anyone: it is checked before anything is read out of it.
"""

import datetime
import json
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from gpustack_mc import hdi, storage
from gpustack_mc.conditions import OPERATORS
from gpustack_mc.errors import InputError, Place
from gpustack_mc.problem import QUESTIONS, Term
from gpustack_mc.quantities import BY_NAME, OUTPUTS
from gpustack_mc.result import SCHEMA_VERSION
from gpustack_mc.tallies import PROBABILITIES

SUFFIX = ".nc"
# A result keeps 2^17 draws of some sixty quantities: less than a tenth of this.
MOST_BYTES = 10**9
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_GROUPS = ("prior", "prior_predictive", "constant_data", "statistics")
_TEXTS: tuple[str, ...] = ("name", "description", "ownership", "design", "scenario", "scenario_sha256")
_NUMBERS = ("seed", "samples", "replicates", "draws")
_MAPPINGS = ("versions", "basis", "questions", "published")
# What every scenario states.
_STATED = {"params", "tokens", "accelerator_count", "peak_flop_per_s"}
# What older files and those of other programs may lack.
_OPTIONAL_TEXTS: tuple[str, ...] = (
    "scenario_file",
    "pack_sha256",
    "priors_sha256",
    "platform",
    "precision",
    "created_at",
)
_OPTIONAL_TEXTS += ("creation_library_version",)
_OPTIONAL_LISTS = ("overrides", "conditioned_on")
_BASIS = ("carbon_accounting", "carbon_basis")
_INPUT_TEXTS = ("origin", "prior", "source")
_INPUT_LISTS = {"sources": list, "where": dict, "missed": list}
# The two parts of a job that runs.
_PARTS = ("so_far", "remaining")
_SUMMARIES = ["mean", "mean_error", "sd"]
_SUMMARIES += [f"q{p:g}{end}" for p in PROBABILITIES for end in ("", "_error")]


def open_result(path: Path | str) -> xr.DataTree:
    """Read a result and make sure that it is whole and ours.

    Parameters
    ----------
    path : Path or str
        A file written by `gpustack_mc.result.write`.

    Returns
    -------
    xarray.DataTree
        As from `gpustack_mc.result.to_datatree`, in memory.

    Raises
    ------
    InputError
        There is no such file, it is no result of ours, damaged, or of another version of the format.
    """
    path = Path(path)
    storage.recover_if_needed(path.parent)
    _require_hdf5(path)
    try:
        import h5py

        # Where its first read fails, h5netcdf leaves an object half made whose deletion prints a traceback.
        with h5py.File(path, "r") as file:
            file.attrs.get("_nc3_strict")
            size = _unpacked_size(file)
        if size > MOST_BYTES:
            raise _too_large(path, size)
        tree = xr.load_datatree(path, engine="h5netcdf")
    except InputError:
        raise
    except Exception as error:  # h5py and h5netcdf raise many kinds for damaged files
        raise _refusal(path, "damaged-result", "this file is damaged or cut off.", "Run the scenario again.") from error
    version = tree.attrs.get("gpustack_mc_schema")
    if version is None:
        raise _not_ours(path)
    if not str(version).isdigit() or int(version) != SCHEMA_VERSION:
        writer = str(tree.attrs.get("creation_library_version", "an unknown version"))[:20]
        found = f"this file has format {str(version)[:20]} (written by gpustack-mc {writer}), not {SCHEMA_VERSION}."
        raise _refusal(path, "result-version", found, "Run its scenario again with this version.")
    missing = "sound text" if _has_broken_text(tree) else _missing(tree)
    if missing:
        raise _refusal(path, "damaged-result", f"this file lacks {missing}.", "Run the scenario again.")
    return tree


def result_of(
    source: str | Path,
    overrides: Iterable[str] = (),
    *,
    samples: int = 65_536,
    seed: int = 0,
    progress: Callable[[float], None] = lambda share: None,
    calibration: Path | None = None,
) -> xr.DataTree:
    """Return a result: the one in a file, or that of a scenario.

    Parameters
    ----------
    source : str or Path
        A ``result.nc``, or a scenario as `gpustack_mc.scenario.load_scenario` takes it.
    overrides, samples, seed, progress, calibration
        Of the scenario, see `gpustack_mc.run.run_scenario`; a result has its own.

    Raises
    ------
    InputError
        Bad input.
    """
    if Path(source).suffix == SUFFIX:
        if overrides or calibration is not None:
            found = f"{'--set' if overrides else '--priors'} changes a scenario, and this is a result."
            raise InputError("set-on-result", found, "Name the scenario.", Place(str(source)))
        return open_result(Path(source))
    from gpustack_mc.compilation import use_cache
    from gpustack_mc.run import run_scenario

    use_cache()
    return run_scenario(
        source,
        overrides,
        samples=samples,
        seed=seed,
        with_files=False,
        progress=progress,
        calibration=calibration,
    ).tree


def _unpacked_size(file: Any) -> int:
    """Return the bytes that the arrays of a file take in memory, which a small file may claim to be any number."""
    sizes = []
    file.visititems(lambda name, item: sizes.append(getattr(item, "nbytes", 0)))
    return sum(sizes)


def _too_large(path: Path, size: int) -> InputError:
    found = f"this file holds {size / 1e9:.1f} GB; no result of ours is larger than {MOST_BYTES / 1e9:.0f} GB."
    return _refusal(path, "too-large", found, "Run the scenario again; large runs keep a part of their draws.")


def _refusal(path: Path, code: str, found: str, fix: str) -> InputError:
    return InputError(code, found, fix, Place(str(path)))


def _not_ours(path: Path) -> InputError:
    found = "this file is not a result of gpustack-mc."
    return _refusal(path, "not-a-result", found, "`gpustack-mc run` writes result.nc.")


def _require_hdf5(path: Path) -> None:
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise _refusal(path, "not-a-result", "this is a device or a pipe, not a result.", "Name the result.nc.")
    try:
        with path.open("rb") as stream:
            start = stream.read(len(_SIGNATURE))
    except FileNotFoundError as error:
        raise _refusal(path, "no-such-file", "there is no such file.", "`gpustack-mc run` writes result.nc.") from error
    except IsADirectoryError as error:
        raise _refusal(path, "is-a-folder", "this is a folder, not a result.", "Name the result.nc inside.") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _refusal(path, "unreadable", f"cannot read it: {reason}.", "Check its permissions.") from error
    if start != _SIGNATURE:
        raise _not_ours(path)
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise _too_large(path, size)


def _has_broken_text(tree: xr.DataTree) -> bool:
    """Whether an attribute holds bytes that are not UTF-8, which no page can be written with."""
    for node in tree.subtree:
        for attrs in (node.attrs, *(variable.attrs for variable in node.variables.values())):
            for text in (*attrs, *attrs.values()):
                if isinstance(text, str) and any("\ud800" <= character <= "\udfff" for character in text):
                    return True
    return False


def _missing(tree: xr.DataTree) -> str:
    """Return what a result must hold and this one does not, in words; empty when all is there."""
    for group in _GROUPS:
        if group not in tree.children:
            return f"the group {group}"
    attrs = tree.attrs
    sound = {name: isinstance(attrs.get(name), str) for name in _TEXTS}
    sound |= {name: isinstance(attrs.get(name, ""), str) for name in _OPTIONAL_TEXTS}
    sound |= {name: _is_count(attrs.get(name)) for name in _NUMBERS}
    sound |= {name: isinstance(_json(attrs.get(name)), dict) for name in _MAPPINGS}
    sound |= {name: _is_texts(_json(attrs.get(name, "[]"))) for name in _OPTIONAL_LISTS}
    sound["notes"] = _is_texts(_json(attrs.get("notes")))
    sound["start"] = attrs.get("start", "") == "" or _is_date(attrs["start"])
    for name, is_sound in sound.items():
        if not is_sound:
            return f"the attribute {name}"
    return (
        _unknown_word(tree)
        or _missing_variable(tree)
        or _missing_constant(tree)
        or _missing_part(tree)
        or _unknown_condition(tree)
        or _missing_statistic(tree)
        or _missing_index(tree)
    )


def _unknown_word(tree: xr.DataTree) -> str:
    if tree.attrs["ownership"] not in ("own", "rent", "either"):
        return "a known ownership"
    texts = [*(_json(tree.attrs["basis"]).get(name) for name in _BASIS), *_json(tree.attrs["versions"]).values()]
    if not all(isinstance(text, str) for text in texts):
        return "a basis and versions in words"
    if not 0 < int(tree.attrs["replicates"]) <= int(tree.attrs["draws"]):
        return "a sound number of replicates"
    if not all(key in QUESTIONS and _is_number(limit) for key, limit in _json(tree.attrs["questions"]).items()):
        return "known questions"
    # Parts that only some scenarios state have outputs of their own.
    published = _json(tree.attrs["published"]).items()
    if not all(key in _held(tree) and _is_published(figure) for key, figure in published):
        return "sound published figures"
    return ""


def _held(tree: xr.DataTree) -> set[str]:
    """Return the outputs of a result."""
    return {name for name in tree["prior_predictive"].data_vars if name in BY_NAME and BY_NAME[name].role == "output"}


def _missing_variable(tree: xr.DataTree) -> str:
    for name in OUTPUTS:
        if name not in tree["prior_predictive"].data_vars:
            return f"the output {name}"
    for group in ("prior_predictive", "prior"):
        for key, variable in tree[group].data_vars.items():
            if not _is_draws(tree, variable):
                return f"draws of {_short(key)}"
            if not _is_described(variable):
                return f"the unit and meaning of {_short(key)}"
    for group in ("prior", "constant_data"):
        for key, variable in tree[group].data_vars.items():
            if str(key).partition("@")[0] not in BY_NAME:
                return f"a known meaning for the input {_short(key)!r}"
            known = _is_described(variable) and all(isinstance(variable.attrs.get(name), str) for name in _INPUT_TEXTS)
            lists = all(isinstance(_json(variable.attrs.get(name)), kind) for name, kind in _INPUT_LISTS.items())
            if not known or not lists or not all(map(_is_source, _json(variable.attrs["sources"]))):
                return f"the origin of {key}"
            if not _is_texts(_json(variable.attrs["missed"])):
                return f"the origin of {key}"
    return ""


def _is_draws(tree: xr.DataTree, variable: Any) -> bool:
    # Draws are read as so many equal parts, one for each replicate of the design.
    sound = variable.dims == ("chain", "draw") and variable.sizes["chain"] == 1 and variable.dtype.kind == "f"
    return sound and variable.sizes["draw"] > 0 and not variable.sizes["draw"] % int(tree.attrs["replicates"])


def _is_described(variable: Any) -> bool:
    """Whether unit and meaning are told; all that we say of a variable is text."""
    texts = {"units": None, "long_name": None} | variable.attrs
    return all(isinstance(text, str) for text in texts.values())


def _missing_constant(tree: xr.DataTree) -> str:
    """Return the fixed input whose value is lacking, or what every scenario states and this one does not."""
    for key, variable in tree["constant_data"].data_vars.items():
        if variable.dims or variable.dtype.kind != "f":
            return f"the value of {key}"
    stated = {str(key).partition("@")[0] for group in ("prior", "constant_data") for key in tree[group].data_vars}
    return f"the input {min(_STATED - stated)}" if _STATED - stated else ""


def _missing_part(tree: xr.DataTree) -> str:
    """Return what is lacking of a job that runs, of which what is spent and what remains are told."""
    told = [part for part in _PARTS if part in tree.children]
    if not told:
        return ""
    if len(told) < len(_PARTS) or "conditioned_on" not in tree.attrs:
        return "a part of the job that runs"
    names = [set(tree[part].data_vars) for part in _PARTS]
    every = [variable for part in _PARTS for variable in tree[part].data_vars.values()]
    sound = all(_is_draws(tree, variable) and _is_described(variable) for variable in every)
    if names[0] != names[1] or "training_days" not in names[0] or not names[0] <= _held(tree) or not sound:
        return "a part of the job that runs"
    return ""


def _unknown_condition(tree: xr.DataTree) -> str:
    asked = _json(tree.attrs.get("asked", "[]"))
    held = _held(tree)

    def sound(condition: Any) -> bool:
        if not isinstance(condition, list) or len(condition) != 2:
            return False
        text, terms = condition
        return isinstance(text, str) and isinstance(terms, list) and bool(terms) and all(map(known, terms))

    def known(term: Any) -> bool:
        if not isinstance(term, dict) or set(term) != set(Term._fields):
            return False
        texts = isinstance(term["name"], str) and isinstance(term["output"], str) and isinstance(term["op"], str)
        return texts and term["output"] in held and term["op"] in OPERATORS and _is_number(term["limit"])

    return "" if isinstance(asked, list) and all(map(sound, asked)) else "known conditions"


def _missing_statistic(tree: xr.DataTree) -> str:
    statistics: Any = tree["statistics"]
    if "value" not in statistics or statistics["value"].dims != ("variable", "statistic"):
        return "its statistics"
    if statistics["value"].dtype.kind != "f" or not {"variable", "statistic"} <= set(statistics.coords):
        return "its statistics"
    wanted = {*map(str, tree["prior"].data_vars), *map(str, tree["prior_predictive"].data_vars)}
    held, told = ([str(name) for name in statistics[dim].values] for dim in ("variable", "statistic"))
    names = [*_SUMMARIES]
    if hdi.kind_of(tree.attrs) == "hdi":
        names += [f"{name}{end}" for name in hdi.STATISTICS for end in ("", "_error")]
    unique = len(set(held)) == len(held) and len(set(told)) == len(told)
    if not unique or not wanted <= set(held) or not set(names) <= set(told):
        return "its statistics"
    # An error is unknown where there is one replicate; a quantile never is.
    known = [name for name in names if not name.endswith("_error")]
    found = statistics["value"].sel(variable=sorted(wanted), statistic=known)
    return "" if bool(np.isfinite(found.values).all()) else "its statistics"


def _missing_index(tree: xr.DataTree) -> str:
    """Return what the indices lack; a result without any has none of them."""
    if "sensitivity" not in tree.children:
        return ""
    found: Any = tree["sensitivity"]
    names = [f"{index}{end}" for index in ("S1", "ST") for end in ("", "_lower", "_upper")]
    dims = dict.fromkeys(names, ("scale", "output", "input")) | {"status": ("scale", "output")}
    sound = all(name in found and found[name].dims == wanted for name, wanted in dims.items())
    sound = sound and all(found[name].dtype.kind == "f" for name in names) and _is_count(found.attrs.get("samples"))
    sound = sound and {"scale", "output", "input"} <= set(found.coords)
    if not sound or not set(OUTPUTS) <= set(map(str, found["output"].values)):
        return "its indices"
    if list(map(str, found["scale"].values)) != ["raw", "log"]:
        return "its indices"
    inputs = {part for name in map(str, found["input"].values) for part in name.split("+")}
    return "" if inputs <= set(map(str, tree["prior"].data_vars)) else "its indices"


def _short(name: Any) -> str:
    return str(name)[:60]


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _is_date(text: Any) -> bool:
    try:
        return bool(datetime.date.fromisoformat(text))
    except (TypeError, ValueError):
        return False


def _is_source(source: Any) -> bool:
    return isinstance(source, dict) and all(isinstance(source.get(name), str) for name in ("title", "url"))


def _is_published(figure: Any) -> bool:
    texts = ("source", "url", "outside")
    return isinstance(figure, dict) and _is_number(figure.get("value")) and all(
        isinstance(figure.get(name), str) for name in texts
    )  # fmt: skip


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    whole = isinstance(value, int) or (hasattr(value, "dtype") and value.dtype.kind in "iu" and value.ndim == 0)
    return whole and value >= 0


def _json(text: Any) -> Any:
    """Return what JSON text holds; None where it is none, or holds what no page can be written with."""
    try:
        found = json.loads(text) if isinstance(text, str) else None
        json.dumps(found, ensure_ascii=False).encode()  # half a character, written as an escape
    except (ValueError, RecursionError):
        return None
    return found
