"""Rebuilds the shipped priors from ``priors/``, in a checkout; what ``gpustack-mc calibrate --refit`` does."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpustack_mc import catalog
from gpustack_mc.errors import GpustackError, InputError, Place


class RefitError(GpustackError):
    """A fit that must not be used."""

    exit_code = 3


def refit_all(as_json: bool, progress: Callable[[str], None], root: Path | None = None) -> str:
    """Refit every prior and replace its ``fit.json``; return what is printed.

    Parameters
    ----------
    as_json : bool
    progress : callable
        Is told in a sentence what is being done.
    root : Path, optional
        Folder of the priors; that of the checkout when omitted.

    Raises
    ------
    InputError
        This is an installed wheel, whose priors are fixed.
    RefitError
        A fit has bad diagnostics, or rows that contradict each other. Fits before it were replaced; git shows which.
    """
    root = root or _checkout()
    from gpustack_mc.fits import refit, utilization_fit

    done: dict[str, Any] = {}
    quantities = [name for name in refit.quantities_with_prior(root) if name not in catalog.JOINT]
    for quantity in quantities:
        start = time.perf_counter()
        try:
            record = refit.refit(quantity, root)
        except (refit.PriorError, OSError) as error:
            fix = "Correct the file named; `git diff priors` shows what was refitted before."
            raise RefitError("refit-failed", f"{quantity}: {error}.", fix, Place(str(root / quantity))) from error
        _require_sound(quantity, record)
        done[quantity] = _about(record, time.perf_counter() - start)
        progress(f"{quantity}: {len(record['populations'])} populations, {done[quantity]['seconds']:.1f} s")
    progress("utilization: sampling, one to two minutes on 2 cores.")
    record = utilization_fit.refit(root / "utilization")
    _require_sound("utilization", record)
    done["utilization"] = _about(record, record["seconds"])
    if as_json:
        return json.dumps({"schema_version": 1, "refitted": done}, indent=1, allow_nan=False)
    total = sum(entry["seconds"] for entry in done.values())
    return f"{len(done)} priors refitted in {total:.0f} s, diagnostics sound; `git diff priors` shows what changed."


def _checkout() -> Path:
    root = catalog.folder("priors")
    if not (root.parent / "pyproject.toml").is_file():
        fix = "Clone the repository and run it there: an installed package carries its priors as they were released."
        raise InputError("not-a-checkout", "priors can be refitted in a checkout only.", fix, Place(str(root)))
    return root


def _require_sound(quantity: str, record: dict[str, Any]) -> None:
    """Stop at the first fit whose record names a problem, as those that are sampled do."""
    if record.get("problem"):
        fix = (
            f"Follow this in priors/{quantity}/prior.yaml and run it again; `git checkout priors/{quantity}` undoes it."
        )
        raise RefitError("diagnostics", f"{quantity}: {record['problem']}.", fix)


def _about(record: dict[str, Any], seconds: float) -> dict[str, Any]:
    return {"seconds": round(seconds, 2), "diagnostics": record.get("diagnostics")}
