"""How well the energy of a run is predicted once its hours are known: measured power, each from fits that never saw it.

Energy given accelerator-hours is mean IT power per accelerator: boards and their hosts. Every measured machine is left
out of the two fits of power in turn, with the board rows of its site; runs on pods of one kind, whose energies were
measured one by one, are left out one by one. Energies that are hours times a rating say nothing about power and are no
rows of these fits.
"""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from gpustack_mc import scoring
from gpustack_mc.arrays import Floats
from gpustack_mc.fits import gpu_power_fraction, hierarchy, host_power, refit
from gpustack_mc.fits.members import LOG, Member, Mixture, Scale, mixture
from gpustack_mc.published_runs import settings

Row = dict[str, str]
# Equally likely values of a factor, before they are combined in random order.
DRAWS = 20_000


class Unit(NamedTuple):
    """What is left out together: a machine, or one run on a machine whose runs were measured one by one."""

    name: str
    rows: list[Row]


def units(rows: list[Row]) -> Iterator[Unit]:
    """Return the measured machines and runs, in the order of the data."""
    alone = settings()["energy_runs_alone"]
    seen: dict[str, list[Row]] = {}
    for row in rows:
        name = row["id"] if row["machine"] in alone else row["machine"]
        seen.setdefault(name, []).append(row)
    return (Unit(name, held) for name, held in seen.items())


def _draws(found: Mixture, scale: Scale, generator: np.random.Generator) -> Floats:
    few = (np.arange(501) + 0.5) / 501
    points = (np.arange(DRAWS) + 0.5) / DRAWS
    return scale.back(generator.permutation(np.interp(points, few, found.quantile(list(few)))))


def _plain(quantity: str) -> tuple[list[Row], dict[str, Any]]:
    rows = [row for row in refit.read_rows(quantity) if row["use"] == "yes"]
    return rows, {name: entry["value"] for name, entry in refit.read_prior(quantity)["settings"].items()}


@functools.cache
def _boards_without(sites: tuple[str, ...]) -> hierarchy.Posterior:
    rows, options = _plain("gpu_power_fraction")
    return hierarchy.sample(gpu_power_fraction.problem([row for row in rows if row["site"] not in sites], options))


def predict(unit: Unit, generator: np.random.Generator) -> Floats:
    """Draw IT power per accelerator (W) of a unit from fits without it, shape (DRAWS,)."""
    _, board_settings = _plain("gpu_power_fraction")
    hosts, host_settings = _plain("host_power")
    row = unit.rows[0]
    posterior = _boards_without(tuple(settings()["energy_same_site"].get(row["machine"], ())))
    kind = row["accelerator"] if row["accelerator"] in board_settings["own_population"] else gpu_power_fraction.GPU
    member = Member({"mean": 1.0, f"kind:{kind}": 1.0}, {"sites": 1.0})
    highest = board_settings["highest"].get(kind, 1.0)
    board = _draws(mixture(posterior, member), Scale(0.0, highest), generator) * float(row["tdp_w"])
    out = {r["id"] for r in unit.rows}
    machine = host_power.machines(unit.rows, host_settings)[0]
    posterior = hierarchy.sample(host_power.problem([r for r in hosts if r["id"] not in out], host_settings))
    host = _draws(mixture(posterior, _host(machine, posterior)), LOG, generator)
    return board + host


def _host(machine: host_power.Machine, posterior: hierarchy.Posterior) -> Member:
    """Member of the machine's generation, or of a new one where nothing else of it was measured."""
    effects = host_power.mean_of(machine)
    group = f"group:{machine.group}"
    if group in posterior.effects:
        return Member(effects, {"machines": 1.0})
    return Member({k: v for k, v in effects.items() if k != group}, {"groups": 1.0, "machines": 1.0})


def measured(unit: Unit, network_share: float) -> float:
    """Mean measured IT power per accelerator, W, with the network's share where it was not measured."""
    return float(
        np.mean(
            [
                float(row["total_w_per_accelerator"]) * (1 + network_share * (row["network_included"] == "no"))
                for row in unit.rows
            ]
        )
    )


def scores() -> dict[str, Any]:
    """Score every measured unit.

    Returns
    -------
    dict
        ``n``, ``mean_abs_log_error``, ``coverage``, ``crps_log``, ``median_p95_over_p5`` and ``rows``: measured and
        predicted watts.
    """
    hosts, host_settings = _plain("host_power")
    generator = np.random.default_rng(0)
    rows = []
    for unit in units(hosts):
        draws = np.log(predict(unit, generator))
        truth = measured(unit, host_settings["network_share"])
        ends = {f"interval_{100 * level:.0f}": np.exp(_ends(draws, level)).tolist() for level in scoring.LEVELS}
        rows.append({
            "unit": unit.name, "accelerator": unit.rows[0]["accelerator"], "measured_w": truth,
            "median_w": float(np.exp(np.median(draws))), **ends,
            "crps_log": float(scoring.crps_draws(draws[None], np.log([truth]))[0]),
        })  # fmt: skip
    errors = np.log([row["median_w"] / row["measured_w"] for row in rows])
    return {
        "n": len(rows),
        "mean_abs_log_error": float(np.abs(errors).mean()),
        "coverage": {str(level): _covered(rows, level) for level in scoring.LEVELS},
        "crps_log": float(np.mean([row["crps_log"] for row in rows])),
        "median_p95_over_p5": float(np.median([row["interval_90"][1] / row["interval_90"][0] for row in rows])),
        "rows": rows,
    }


def _ends(draws: Floats, level: float) -> Floats:
    return np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])


def _covered(rows: list[dict[str, Any]], level: float) -> float:
    ends = [row[f"interval_{100 * level:.0f}"] for row in rows]
    return float(np.mean([low <= row["measured_w"] <= high for row, (low, high) in zip(rows, ends, strict=True)]))
