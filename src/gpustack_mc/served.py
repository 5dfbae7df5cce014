r"""How many served tokens outweigh the training of a model, as a distribution.

For each draw, :math:`S = 10^6 X / x`, with :math:`X` the energy, emissions or cost of training and :math:`x` that of a
million output tokens served. Inputs that both share, such as the power of the hosts, are the same draw in both.
"""

from typing import Any

import numpy as np

from gpustack_mc import constants as c
from gpustack_mc.design import Design
from gpustack_mc.problem import Problem
from gpustack_mc.propagation import Draws, propagate
from gpustack_mc.sobol import replicate_error

PROBABILITIES = (0.05, 0.25, 0.5, 0.75, 0.95)


def break_even(draws: Draws) -> dict[str, np.ndarray]:
    """Served tokens at which serving has taken as much as training, for each draw; by what is counted."""
    energy = draws.output("energy_mwh") * c.KILOWATT_HOURS_PER_MEGAWATT_HOUR
    carbon = draws.output("co2e_t") * c.KILOGRAMS_PER_TONNE
    cost = draws.output("cost_rented_usd")
    return {
        "energy": c.TOKENS_PER_MILLION * energy / draws.output("serving_kwh_per_million_tokens"),
        "carbon": c.TOKENS_PER_MILLION * carbon / draws.output("serving_kgco2e_per_million_tokens"),
        "cost": c.TOKENS_PER_MILLION * cost / draws.output("serving_usd_per_million_tokens"),
    }


def served_tokens(problem: Problem, design: Design) -> dict[str, Any]:
    """Return the break-even tokens of a scenario, JSON-ready."""
    draws = propagate(problem, design)
    found = break_even(draws)
    # Tokens of the run: its compute over 6 times its active parameters would say the same.
    tokens = draws.output("cost_owned_usd") / draws.output("usd_per_million_training_tokens") * c.TOKENS_PER_MILLION
    notes = [
        "serving draws the power and pays the rent of training, and idle serving capacity is not counted: with it, "
        "serving outweighs training sooner",
        "serving throughput counts output tokens",
    ]
    return {
        "schema_version": 1,
        "name": problem.name,
        "for": "served_tokens",
        "quantity": "served_tokens",
        "unit": "token",
        "whole": False,
        "break_even": {name: _summary(values, design) for name, values in found.items()},
        "per_training_token": _summary(found["energy"] / tokens, design),
        "notes": notes,
    }


def _summary(values: np.ndarray, design: Design) -> dict[str, Any]:
    ends = np.quantile(values, PROBABILITIES)
    errors = replicate_error(np.quantile(values.reshape(design.replicates, -1), PROBABILITIES, axis=1).T)
    # Sums in another order end in other last digits.
    low, lower, middle, upper, high = (float(f"{end:.12g}") for end in ends)
    return {
        "median": middle,
        "interval_50": [lower, upper],
        "interval_90": [low, high],
        "monte_carlo_error": [float(error) if np.isfinite(error) else None for error in errors],
    }
