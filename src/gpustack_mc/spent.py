"""What a job that runs has spent, and what remains: the totals of its phases apart."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpustack_mc import model
from gpustack_mc.propagation import Simulation
from gpustack_mc.quantities import BY_NAME
from gpustack_mc.shapes import MODEL_INPUTS

# Outputs that are sums over the phases; shares, prices per unit and means are not, and programmes are no part of a run.
ADDITIVE = (
    "training_flop", "training_days", "accelerator_hours", "interruptions", "it_energy_mwh", "energy_mwh",
    "co2e_operational_t", "co2e_embodied_t", "co2e_t", "water_onsite_m3", "water_offsite_m3", "electricity_cost_usd",
    "hardware_cost_usd", "other_cost_usd", "cost_owned_usd", "cost_rented_usd",
)  # fmt: skip


class Parts(NamedTuple):
    """Draws of `ADDITIVE`, which add up to those of the simulation.

    Attributes
    ----------
    so_far, remaining : dict of str to ndarray, shape (kept,)
    """

    so_far: dict[str, np.ndarray]
    remaining: dict[str, np.ndarray]


def parts(simulation: Simulation) -> Parts:
    """Divide the totals of a job that runs, on the draws that are kept."""
    problem = simulation.problem
    values = {
        key: item.marginal.parameters["value"] for key, item in problem.inputs.items() if item.marginal.is_fixed
    } | dict(zip(simulation.varying, simulation.inputs, strict=True))
    with jax.enable_x64(True):
        arrays = {key: jnp.asarray(value, dtype=float) for key, value in values.items()}
        # What goodput follows from is of the rest: that of the days so far is known.
        shared = {name: arrays[name] for name in MODEL_INPUTS if name in arrays and not BY_NAME[name].part}
        spent = [{name: arrays[key] for name, key in problem.phases[0].keys.items()}]
        found = model.run(spent, **shared)
        so_far = {name: np.broadcast_to(np.asarray(found[name]), (simulation.kept,)) for name in ADDITIVE}
    total = dict(zip(problem.outputs, simulation.outputs, strict=True))
    return Parts(so_far, {name: total[name] - so_far[name] for name in ADDITIVE})
