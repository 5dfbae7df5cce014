"""What a job that runs has spent and what remains, as ``summary.json`` holds it."""

import json
from typing import Any

import numpy as np

from gpustack_mc import hdi
from gpustack_mc.arrays import Result
from gpustack_mc.sobol import replicate_error

_PARTS = ("so_far", "remaining")


def running_job(tree: Result) -> dict[str, Any] | None:
    """Return what is spent and what remains of a job that runs, over the draws that are kept."""
    if "remaining" not in tree:
        return None
    return {
        "conditioned_on": json.loads(tree.attrs["conditioned_on"]),
        **{part: {str(name): _part(tree, part, str(name)) for name in tree[part].data_vars} for part in _PARTS},
    }


def _part(tree: Result, part: str, name: str) -> dict[str, Any]:
    values = tree[part][name].values[0]
    by_replicate = np.quantile(values.reshape(int(tree.attrs["replicates"]), -1), (0.05, 0.5, 0.95), axis=1)
    errors = [_finite(float(replicate_error(row))) if len(row) > 1 else None for row in by_replicate]
    low, quarter, middle, three, high = (float(q) for q in np.quantile(values, (0.05, 0.25, 0.5, 0.75, 0.95)))
    if hdi.kind_of(tree.attrs) == "hdi":
        quarter, three, low, high = map(float, hdi.of_sorted(np.sort(values)[None])[:, 0])
        own = np.sort(values.reshape(int(tree.attrs["replicates"]), -1), axis=1)
        errors[::2] = map(_finite, hdi.error(hdi.of_sorted(own).T)[2:])
    fixed = bool(values.min() == values.max())
    return {
        "unit": tree[part][name].attrs["units"],
        "mean": float(values[0] if fixed else values.mean()),
        "sd": 0.0 if fixed else float(values.std()),
        "median": middle,
        "interval_50": [quarter, three],
        "interval_90": [low, high],
        "monte_carlo_error": {"median": errors[1], "interval_90": [errors[0], errors[2]]},
    }


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
