r"""Host power: what measured nodes and systems draw beyond the boards.

For machine :math:`m` with measured total power :math:`W_m` per accelerator,

.. math:: h_m = W_m (1 + \nu\,[\text{network not included}]) - B_m,

where :math:`B_m` is the measured board power, or else TDP times the mean of the board-power prior, so that board and
host add up to the measured total. Runs on one machine count once, as their mean. A generation has the Student-t
predictive of :math:`\log h` with a pooled spread. For accelerators of other generations

.. math:: \log h_m = a + b \log_{10} P_m + e_m, \qquad e_m \sim N(0, \sigma^2),

with the 16-bit peak :math:`P` in TFLOP/s: bigger chips come with bigger hosts.
"""

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np

from gpustack_mc.fits.populations import Population, evidence, predictive_log_normal, regression, sixteen_bit_peak


class Machine(NamedTuple):
    """Mean host power of one machine."""

    accelerator: str
    generation: str
    peak_tflops: float
    host_w: float
    rows: list[dict[str, str]]


def host_watts(row: dict[str, str], settings: dict[str, Any]) -> float:
    """Power besides the board in one row, W per accelerator."""
    total = float(row["total_w_per_accelerator"])
    if row["network_included"] == "no":
        total *= 1 + settings["network_share"]
    if row["board_basis"] == "fraction of TDP":
        return total - settings["board_fraction"] * float(row["tdp_w"])
    return total - float(row["board_w_per_accelerator"])


def machines(rows: list[dict[str, str]], settings: dict[str, Any]) -> list[Machine]:
    """One entry per machine, in the order of the data."""
    grouped = defaultdict(list)
    for row in rows:
        grouped[row["machine"]].append(row)
    return [
        Machine(group[0]["accelerator"], group[0]["generation"], float(group[0]["peak_tflops"]),
                float(np.mean([host_watts(row, settings) for row in group])), group)
        for group in grouped.values()
    ]  # fmt: skip


def _population(where: dict[str, str], name: str, members: list[Machine], settings: dict[str, Any]) -> Population:
    fitted = predictive_log_normal(
        [machine.host_w for machine in members], prior_sd=settings["prior_sd"], prior_weight=settings["prior_weight"]
    )
    return Population(
        where=where,
        label=f"{name}: measured node or system power less the boards, with the network share",
        family="lognormal",
        parameters={"mu": fitted.mu, "sigma": fitted.sigma},
        method=f"{len(members)} machine mean(s); Student-t predictive of the log, spread pooled with prior_sd",
        **evidence([row for machine in members for row in machine.rows]),
    )


def fit(rows: list[dict[str, str]], settings: dict[str, Any]) -> list[Population]:
    """One population per generation (per accelerator for TPUs), and a regression on peak FLOP/s for the rest."""
    measured = machines(rows, settings)
    grouped = defaultdict(list)
    for machine in measured:
        # Hosts of two TPU generations differ threefold, so that "tpu" is no population.
        grouped[machine.accelerator if machine.generation == "tpu" else machine.generation].append(machine)
    populations = [_population({"accelerator": name}, name, members, settings) for name, members in grouped.items()]
    peak = np.log10([machine.peak_tflops for machine in measured])
    fitted = regression(
        np.column_stack([np.ones(len(peak)), peak]), np.log([machine.host_w for machine in measured]),
        ["intercept", "log10_peak_tflops"],
    )  # fmt: skip
    general = Population(
        where={},
        label="Measured nodes and systems of all generations, by 16-bit peak FLOP/s",
        family="lognormal",
        parameters={"regression": sixteen_bit_peak(fitted)},
        method=f"log regression on the 16-bit peak over {len(measured)} machines",
        **evidence(rows),
    )
    return [*populations, general]
