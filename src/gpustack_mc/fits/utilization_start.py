"""Where a new sampling of the utilisation program starts: ends of the shipped chains and the scales they found.

A user's runs move the shipped posterior little, so that chains which start there, with its covariance as the inverse
mass matrix, need a warm-up for their step size only. What the shipped fit does not have, the user's family and runs,
starts at its prior: zero, with variance one.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpyro.infer.util import unconstrain_fn

from gpustack_mc.fits import utilization as program

FILE = "start.json"
DENSE = [("beta", "benchmark_gap", "record_shift", "loss_mean", "generation_z")]
"""Sites that trade off with each other: coefficients with each other and the generations; the families hardly do."""
_DIGITS = 5


def record(data: program.Data, settings: Mapping[str, Any], chains: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Ends of the chains and variances of what was sampled, on the unconstrained scale, by name.

    Parameters
    ----------
    data : Data
    settings : mapping
    chains : mapping of str to ndarray, shape (chains, draws, ...)

    Returns
    -------
    dict
        ``sites``: by site ``labels``, ``variance`` of shape (labels,) and ``ends`` of shape (chains, labels);
        ``covariance`` of the sites of `DENSE`, one after the other.
    """

    def free(draw: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = unconstrain_fn(lambda: program.model(data, settings), (), {}, draw)
        return found

    with jax.enable_x64(True):
        found = jax.jit(jax.vmap(jax.vmap(free)))(dict(chains))
    flat = {name: np.asarray(value).reshape(*value.shape[:2], -1) for name, value in found.items()}
    block = np.concatenate([flat[name] for name in DENSE[0]], axis=2)
    return {
        "covariance": _rounded(np.cov(block.reshape(-1, block.shape[2]).T)),
        "sites": {
            name: {
                "labels": data.labels.get(name, [name]),
                "variance": _rounded(value.var(axis=(0, 1))),
                "ends": _rounded(value[:, -1]),
            }
            for name, value in sorted(flat.items())
        },
    }


def _rounded(values: np.ndarray) -> list[Any]:
    found: list[Any] = np.vectorize(lambda value: float(f"{value:.{_DIGITS}g}"))(values).tolist()
    return found


def write(folder: Path, found: Mapping[str, Any]) -> None:
    """Write the record beside the fit."""
    text = json.dumps(found, sort_keys=True, ensure_ascii=False)
    (folder / FILE).write_text(text + "\n", encoding="utf-8", newline="\n")


def read(folder: Path) -> dict[str, Any]:
    """Return the record beside the fit."""
    found: dict[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return found


def resume(found: Mapping[str, Any], data: program.Data) -> tuple[dict[tuple[str, ...], np.ndarray], dict[str, Any]]:
    """Inverse mass matrix and unconstrained starts, leading axis chains, for data with other families or runs."""
    variance, starts = {}, {}
    for name, site in found["sites"].items():
        at = {label: i for i, label in enumerate(site["labels"])}
        scales, ends = np.array(site["variance"]), np.array(site["ends"])
        if name not in data.labels:
            variance[name], starts[name] = scales, ends[:, 0]
            continue
        labels = data.labels[name]
        known = np.array([label in at for label in labels])
        pick = np.array([at.get(label, 0) for label in labels])
        variance[name] = np.where(known, scales[pick], 1.0)
        starts[name] = np.where(known, ends[:, pick], 0.0)
    rest = tuple(sorted(set(variance) - set(DENSE[0])))
    diagonal = np.concatenate([variance[name] for name in rest])
    return {DENSE[0]: np.array(found["covariance"]), rest: diagonal}, starts
