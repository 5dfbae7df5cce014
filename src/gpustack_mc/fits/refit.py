r"""Refit priors: read ``priors/<quantity>/prior.yaml`` and ``data.csv``, run the fit program, write ``fit.json``.

Run ``python -m gpustack_mc.fits.refit`` for every prior, or name the quantities to refit. ``fit.json`` is written
whole or not at all, with sorted keys and one population per line, so that a change of the data reads as a diff.
A fit whose chains did not converge is not written, and the command ends with 3.
"""

import csv
import importlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from gpustack_mc.fits.freshness import digest, statements
from gpustack_mc.fits.populations import Fitted, Population
from gpustack_mc.priors import Marginal, quantiles
from gpustack_mc.quantities import BY_NAME, INPUTS

FACTS = (
    "region", "accelerator", "operator", "provider_kind", "term", "year", "carbon_basis", "architecture", "precision",
    "cooling", "checkpointing", "recovery",
)  # fmt: skip
"""Facts of a scenario that a population may ask for."""

COVARIATES = (
    "intercept", "log10_active_params_b", "size_below_1b", "log10_params_b", "log10_peak_tflops",
    "log10_bandwidth_tb_s", "release_year_minus_2022", "year_minus_2024", "log10_count", "moe", "fp8", "fp16",
)  # fmt: skip
"""Covariates that a scenario can supply, besides ``generation=<name>``."""

_LAST_RESORTS = {"grid_intensity": [{"carbon_basis": "direct"}, {"carbon_basis": "lifecycle"}]}
_TAIL = 1e-6  # mass that may lie beyond a physical bound
_DIGITS = 8
UTILIZATION = "utilization"  # MFU and goodput are fitted together, by `gpustack_mc.fits.utilization_fit`
_LIBRARIES, _SAMPLERS = ("numpy", "scipy"), ("jax", "numpyro", "arviz")
_SHARED = ("populations", "hierarchy", "members", "chain_checks")  # modules that every fit program may use
_USES = {
    name: ("evidence",)
    for name in (
        "cost_of_capital",
        "operations_rate",
        "programme_overhead",
        "residual_share",
        "lifetime",
        "fleet_utilization",
        "water_onsite",
        "checkpoint_save_time",
        "restart_time",
    )
}  # further modules of the fit of a quantity


class PriorError(ValueError):
    """A prior that cannot be used; the message says which file and what to change."""


class ChainError(PriorError):
    """Chains that did not converge; the message says what to do."""


def priors_root(root: Path | str | None = None) -> Path:
    """Directory that holds one folder per quantity: `root`, or ``priors/`` of the checkout."""
    return Path(root) if root is not None else Path(__file__).resolve().parents[3] / "priors"


def quantities_with_prior(root: Path | str | None = None) -> list[str]:
    """List the inputs that have a folder with ``prior.yaml``, in the order of the table of quantities."""
    return [name for name in INPUTS if (priors_root(root) / name / "prior.yaml").is_file()]


def read_prior(quantity: str, root: Path | str | None = None) -> dict[str, Any]:
    """Read ``prior.yaml``; dates become text, and missing keys are named in the error."""
    path = priors_root(root) / quantity / "prior.yaml"
    with path.open(encoding="utf-8") as stream:
        prior: dict[str, Any] = YAML(typ="safe", pure=True).load(stream)
    expected = ("quantity", "title", "description", "ladder", "date", "settings", "sources", "limits")
    missing = [key for key in expected if key not in prior]
    if missing:
        raise PriorError(f"{path}: missing {', '.join(missing)}")
    if prior["quantity"] != quantity:
        raise PriorError(f"{path}: quantity is {prior['quantity']!r}, but the folder is {quantity!r}")
    unknown = [fact for fact in prior["ladder"] if fact not in FACTS]
    if unknown:
        raise PriorError(f"{path}: ladder names unknown facts {unknown}; known are {', '.join(FACTS)}")
    for name, setting in (prior["settings"] or {}).items():
        if not isinstance(setting, dict) or "value" not in setting or not setting.get("why"):
            raise PriorError(f"{path}: settings.{name} needs value and why")
        source = setting.get("source")
        for key in source if isinstance(source, list) else [source]:
            if key is not None and key not in prior["sources"]:
                raise PriorError(f"{path}: settings.{name} has source {key!r}, which sources does not list")
    for key, source in prior["sources"].items():
        if not all(source.get(field) for field in ("title", "url", "licence")):
            raise PriorError(f"{path}: sources.{key} needs title, url and licence")
    prior["date"] = str(prior["date"])
    return prior


def read_rows(quantity: str, root: Path | str | None = None) -> list[dict[str, str]]:
    """Rows of ``data.csv`` as text, all of them; their ids are unique and ``use`` says yes or why not."""
    path = priors_root(root) / quantity / "data.csv"
    with path.open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        rows = list(reader)
    missing = [name for name in ("id", "source", "use") if name not in (reader.fieldnames or [])]
    if missing:
        raise PriorError(f"{path}: no column {', '.join(missing)}")
    for line, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise PriorError(f"{path}: row {line} ({row['id']}) does not have {len(reader.fieldnames or [])} columns")
        if row["use"] != "yes" and not row["use"].startswith("no: "):
            raise PriorError(f"{path}: row {line} ({row['id']}): use must be 'yes' or 'no: reason', got {row['use']!r}")
    twice = [name for name, count in Counter(row["id"] for row in rows).items() if count > 1]
    if twice:
        raise PriorError(f"{path}: ids occur twice: {', '.join(twice[:5])}")
    return rows


def compute(quantity: str, root: Path | str | None = None) -> dict[str, Any]:
    """Run the fit program of one quantity and return the validated record that ``fit.json`` stores.

    The program sees only the rows with ``use`` = ``yes``, and the plain values of the settings.

    Raises
    ------
    PriorError
        Rows, settings or populations that contradict each other.
    ChainError
        Chains that did not converge.
    """
    if quantity not in INPUTS:
        raise PriorError(f"{quantity!r} is not an input; inputs are {', '.join(INPUTS)}")
    record = _words(quantity, root)
    rows = read_rows(quantity, root)
    program = importlib.import_module(f"gpustack_mc.fits.{quantity}")
    found = program.fit([row for row in rows if row["use"] == "yes"], record["settings"])
    sampled = isinstance(found, Fitted)
    populations = found.populations if sampled else found
    record |= {
        "quantity": quantity,
        "unit": BY_NAME[quantity].unit,
        "program": f"gpustack_mc.fits.{quantity}",
        "versions": {name: version(name) for name in (*_LIBRARIES, *(_SAMPLERS if sampled else ()))},
        "seed": 0 if sampled else None,
        "checks": _rounded(found.checks) if sampled else None,
        "populations": [_plain(population) for population in populations],
        **hashes(quantity, root),
    }
    record["populations_sha256"] = digest(_json(record["populations"]).encode())
    _validate(record, rows)
    if sampled:
        from gpustack_mc.fits.chain_checks import unhealthy

        problem = unhealthy(record["checks"]["diagnostics"])
        if problem:
            raise ChainError(f"{quantity}: {problem}")
    return record


def _words(quantity: str, root: Path | str | None) -> dict[str, Any]:
    """What ``fit.json`` copies from ``prior.yaml``."""
    prior = read_prior(quantity, root)
    return {
        "title": prior["title"],
        "description": " ".join(prior["description"].split()),
        "ladder": list(prior["ladder"]),
        "date": prior["date"],
        "settings": {name: setting["value"] for name, setting in (prior["settings"] or {}).items()},
        "sources": {
            key: {field: source[field] for field in ("title", "url", "licence")}
            for key, source in prior["sources"].items()
        },
        "limits": [" ".join(limit.split()) for limit in prior["limits"]],
    }


def hashes(quantity: str, root: Path | str | None = None) -> dict[str, str]:
    """Hashes of the data and of the code that a fit follows from."""
    here = Path(__file__).parent
    modules = (quantity, *_SHARED, *_USES.get(quantity, ()))
    return {
        "data_sha256": digest((priors_root(root) / quantity / "data.csv").read_bytes()),
        "program_sha256": digest(b"".join(statements(here / f"{name}.py") for name in modules)),
    }


def refit(quantity: str, root: Path | str | None = None) -> dict[str, Any]:
    """Fit one prior anew and replace its ``fit.json``.

    Parameters
    ----------
    quantity : str
        Name of an input, see `gpustack_mc.quantities.INPUTS`.
    root : path, optional
        Directory of the priors; ``priors/`` of the checkout when omitted.

    Returns
    -------
    dict
        What was written.

    Raises
    ------
    PriorError
        Rows, settings or populations that contradict each other; nothing is written then.
    """
    record = compute(quantity, root)
    target = priors_root(root) / quantity / "fit.json"
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".fit-", suffix=".json")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(as_text(record))
        Path(name).chmod(0o644)  # mkstemp makes it private; the file is checked in
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return record


def stale(quantity: str, root: Path | str | None = None) -> str | None:
    """Why ``fit.json`` no longer follows from its inputs, or None when it does; nothing is sampled.

    Compared are the words and settings of ``prior.yaml``, and hashes of the data, of the code of the program and of
    the populations themselves; versions of libraries are not.
    """
    path = priors_root(root) / quantity / "fit.json"
    todo = f"run python -m gpustack_mc.fits.refit {quantity}"
    if not path.is_file():
        return f"{path}: missing; {todo}"
    stored = json.loads(path.read_text(encoding="utf-8"))
    fresh = _rounded(_words(quantity, root)) | hashes(quantity, root)
    for key, value in fresh.items():
        if stored.get(key) != value:
            return f"{path}: {key} differs from its input; {todo}"
    if stored.get("populations_sha256") != digest(_json(stored.get("populations")).encode()):
        return f"{path}: populations are not those of the fit; {todo}"
    return None


def as_text(record: dict[str, Any]) -> str:
    """JSON with sorted keys, and one population, source or limit per line."""
    lines = []
    for key in sorted(record):
        value = record[key]
        if key in ("populations", "limits"):
            inner = ",\n".join("  " + _json(item) for item in value)
            lines.append(f"{_json(key)}: [\n{inner}\n ]")
        elif key == "sources":
            inner = ",\n".join(f"  {_json(name)}: {_json(value[name])}" for name in sorted(value))
            lines.append(f"{_json(key)}: {{\n{inner}\n }}")
        else:
            lines.append(f"{_json(key)}: {_json(value)}")
    return "{\n " + ",\n ".join(lines) + "\n}\n"


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)


def _rounded(value: Any) -> Any:
    """Plain JSON values; floats cut to the digits that fit.json keeps."""
    if isinstance(value, dict):
        return {str(key): _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    return float(f"{float(value):.{_DIGITS}g}")


def _plain(population: Population) -> dict[str, Any]:
    found: dict[str, Any] = _rounded({key: value for key, value in population._asdict().items() if value is not None})
    return found


def _validate(record: dict[str, Any], rows: list[dict[str, str]]) -> None:
    quantity = record["quantity"]
    used = {row["id"]: row for row in rows if row["use"] == "yes"}
    for row in used.values():
        if row["source"] not in record["sources"]:
            raise PriorError(f"{quantity}/data.csv: row {row['id']} has unknown source {row['source']!r}")
    populations = record["populations"]
    wheres = [population["where"] for population in populations]
    for population in populations:
        name = f"{quantity}: population {_json(population['where'])}"
        if wheres.count(population["where"]) > 1:
            raise PriorError(f"{name} occurs twice")
        _validate_population(name, population, record, used)
    for last_resort in _LAST_RESORTS.get(quantity, [{}]):
        if last_resort not in wheres:
            raise PriorError(f"{quantity}: no population {_json(last_resort)}, the last resort")


def _validate_population(
    name: str, population: dict[str, Any], record: dict[str, Any], used: dict[str, dict[str, str]]
) -> None:
    outside = [fact for fact in population["where"] if fact not in record["ladder"]]
    if outside:
        raise PriorError(f"{name}: {', '.join(outside)} is not in the ladder of prior.yaml")
    lost = [row for row in population["rows"] if row not in used]
    if lost:
        raise PriorError(f"{name}: rows {', '.join(lost[:5])} are not in data.csv with use = yes")
    unknown = [key for key in population["sources"] if key not in record["sources"]]
    if unknown:
        raise PriorError(f"{name}: prior.yaml lists no source {', '.join(unknown)}")
    if not population["rows"] and not population["method"].startswith("judged:"):
        raise PriorError(f"{name}: has no rows, so that its method must start with 'judged:'")
    quantity = BY_NAME[record["quantity"]]
    if "regression" in population["parameters"]:
        _validate_regression(name, population)
        return
    try:
        low, high = quantiles(Marginal(population["family"], population["parameters"]), [_TAIL, 1 - _TAIL])
    except (KeyError, TypeError, ValueError) as error:
        raise PriorError(f"{name}: {error}") from error
    if not (quantity.low <= low <= high <= quantity.high):
        raise PriorError(
            f"{name}: draws reach {low:.4g} to {high:.4g} {quantity.unit}, but {quantity.name} lies between "
            f"{quantity.low:g} and {quantity.high:g}: {quantity.reason}"
        )


def _validate_regression(name: str, population: dict[str, Any]) -> None:
    if population["family"] not in ("lognormal", "logit_normal"):
        raise PriorError(f"{name}: a regression needs family lognormal or logit_normal, got {population['family']}")
    terms = population["parameters"]["regression"]["terms"]
    unknown = [term for term in terms if term not in COVARIATES and not term.startswith("generation=")]
    if unknown:
        raise PriorError(f"{name}: no scenario supplies the covariates {', '.join(unknown)}")


def main(arguments: list[str]) -> int:
    """Refit the named quantities, or all with `UTILIZATION`; print one line each.

    Returns
    -------
    int
        1 for a prior that cannot be used, 3 for chains that did not converge.
    """
    from gpustack_mc.compilation import use_jax_cache

    use_jax_cache()  # most priors are one compiled program
    for quantity in arguments or [*quantities_with_prior(), UTILIZATION]:
        start = time.perf_counter()
        try:
            what = _refit_utilization() if quantity == UTILIZATION else _refit_one(quantity)
        except ChainError as error:
            sys.stderr.write(f"{error}\n")
            return 3
        except (PriorError, OSError) as error:
            sys.stderr.write(f"{error}\n")
            return 1
        sys.stdout.write(f"{quantity}: {what} in {time.perf_counter() - start:.1f} s\n")
        sys.stdout.flush()
    return 0


def _refit_one(quantity: str) -> str:
    return f"{len(refit(quantity)['populations'])} populations"


def _refit_utilization() -> str:
    from gpustack_mc.fits import utilization_fit

    record = utilization_fit.refit_shipped()
    if record["problem"]:
        raise ChainError(f"{UTILIZATION}: {record['problem']}")
    return f"{record['diagnostics']['draws']} draws"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
