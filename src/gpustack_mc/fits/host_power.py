r"""Host power: what measured nodes and systems draw beyond the boards.

For machine :math:`m` with measured total power :math:`W_m` per accelerator,

.. math:: h_m = W_m (1 + \nu\,[\text{network not included}]) - B_m,

where :math:`B_m` is the measured board power, or else TDP times the mean of the board-power prior, so that board and
host add up to the measured total: what is wrong with the share of the board cancels in the sum, which is why it is no
part of the spread here. Runs on one machine count once, as their mean. Generations :math:`g` (single accelerators for
TPUs, whose hosts differ threefold) follow their peak, because bigger chips come with bigger hosts,

.. math::
    \log h_m = a + b\,(\log_{10} P_m - 3) + \gamma_{g(m)} + e_m, \qquad
    \gamma \sim N(0, \tau^2), \quad e \sim N(0, \sigma^2),

with the 16-bit peak :math:`P` in TFLOP/s; sampled by `gpustack_mc.fits.hierarchy`. A draw is a new machine,
:math:`a + b\,(\log_{10} P_g - 3) + \gamma_g + e`; for other accelerators :math:`\gamma` is new.
"""

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np

from gpustack_mc.fits import chain_checks, hierarchy
from gpustack_mc.fits.hierarchy import WIDE, Effect, Problem
from gpustack_mc.fits.members import LOG, Member, population, regression_population
from gpustack_mc.fits.populations import Fitted

Row = dict[str, str]
TERMS = {"intercept": 0.0, "log10_peak_tflops": 3.0}


class Machine(NamedTuple):
    """Mean host power of one machine; `group` is its generation, or accelerator for TPUs."""

    name: str
    group: str
    peak_tflops: float
    host_w: float
    rows: list[Row]


def host_watts(row: Row, settings: dict[str, float]) -> float:
    """Power besides the board in one row, W per accelerator."""
    total = float(row["total_w_per_accelerator"])
    if row["network_included"] == "no":
        total *= 1 + settings["network_share"]
    if row["board_basis"] == "fraction of TDP":
        return total - settings["board_fraction"] * float(row["tdp_w"])
    return total - float(row["board_w_per_accelerator"])


def machines(rows: list[Row], settings: dict[str, Any]) -> list[Machine]:
    """One entry per machine, in the order of the data."""
    grouped = defaultdict(list)
    for row in rows:
        grouped[row["machine"]].append(row)
    return [
        Machine(
            name, held[0]["accelerator"] if held[0]["generation"] == "tpu" else held[0]["generation"],
            float(held[0]["peak_tflops"]), float(np.mean([host_watts(row, settings) for row in held])), held,
        )
        for name, held in grouped.items()
    ]  # fmt: skip


def mean_of(machine: Machine) -> dict[str, float]:
    """Effects that make the mean of a machine."""
    return {
        "intercept": 1.0,
        "log10_peak_tflops": float(np.log10(machine.peak_tflops)) - TERMS["log10_peak_tflops"],
        f"group:{machine.group}": 1.0,
    }


def problem(rows: list[Row], settings: dict[str, Any]) -> Problem:
    """Machines in generations along a line of peak FLOP/s."""
    measured = machines(rows, settings)
    return Problem(
        [
            hierarchy.Row(
                float(np.log(m.host_w)), mean_of(m), {"machines": 1.0}, m.name, tuple(row["id"] for row in m.rows)
            )
            for m in measured
        ],
        {
            "intercept": Effect(WIDE),
            "log10_peak_tflops": Effect(settings["slope_sd"]),
            **{f"group:{machine.group}": Effect("groups") for machine in measured},
        },
        {
            "groups": hierarchy.half_normal(settings["group_sd"]),
            "machines": hierarchy.expected(settings["prior_sd"], settings["prior_weight"]),
        },
    )


def fit(rows: list[Row], settings: dict[str, Any]) -> Fitted:
    """One population per generation (per accelerator for TPUs), and a regression on peak FLOP/s for the rest."""
    posed = problem(rows, settings)
    posterior = hierarchy.sample(posed)
    grouped: dict[str, list[Machine]] = defaultdict(list)
    for machine in machines(rows, settings):
        grouped[machine.group].append(machine)
    populations = [
        population(
            posterior, Member(mean_of(held[0]), {"machines": 1.0}), LOG, [row for m in held for row in m.rows],
            where={"accelerator": name},
            label=f"{name}: measured node or system power less the boards, with the network share",
            method=f"posterior predictive of a new machine; {len(held)} measured, generations pooled along peak",
        )
        for name, held in grouped.items()
    ]  # fmt: skip
    populations.append(
        regression_population(
            posterior, TERMS, Member({}, {"groups": 1.0, "machines": 1.0}), rows, where={}, peak=True,
            cases=[mean_of(held[0]) for held in grouped.values()],
            label="Measured nodes and systems of all generations, by 16-bit peak FLOP/s",
            method=f"posterior predictive of a machine of a new generation, from {len(posed.rows)} machines",
        )
    )  # fmt: skip
    return Fitted(populations, chain_checks.checks(posed, posterior))
