r"""Totals over scenarios: what is the same number in several of them is drawn once, so that it does not average out.

The sum of runs is wider than the sum of independent runs would be, because they share an electricity price, a team, a
population of chips. `gpustack_mc.coupling` says what is shared: an input of the same distribution and population is one
unknown number, predicted MFU is correlated as far as runs of one team are, and inputs that differ are at the same
quantile (``common``) or independent. What drives the total are the Sobol' indices of the sum, with an input's streams
in all scenarios as one block.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpustack_mc import sobol
from gpustack_mc.comparison import spread
from gpustack_mc.conditions import amount_in
from gpustack_mc.design import Design
from gpustack_mc.paired import Pairing
from gpustack_mc.portfolio_spec import PortfolioSpec
from gpustack_mc.problem import Problem
from gpustack_mc.quantities import BY_NAME, OUTPUTS

MOST = 400
TOTALS = ("accelerator_hours", "energy_mwh", "co2e_t", "cost_owned_usd", "cost_rented_usd")
_LIMITED = {"budget": ("cost_owned_usd", "cost_rented_usd"), "carbon_cap": ("co2e_t",), "energy_cap": ("energy_mwh",)}
_CHUNK = 4096
# Points of each replicate that also run pick-freeze.
ANALYSED = 512
_TOLD = 6


def limits_of(spec: PortfolioSpec) -> dict[str, float]:
    """Return the limits of a portfolio in the unit of their output.

    Raises
    ------
    InputError
        One has no unit, or another dimension.
    """
    return {name: amount_in(str(text), BY_NAME[_LIMITED[name][0]], {}) for name, text in spec.limits.items()}


def totals(
    problems: Sequence[Problem], design: Design, spec: PortfolioSpec, limits: Mapping[str, float]
) -> dict[str, Any]:
    """Add scenarios up.

    Parameters
    ----------
    problems : sequence of Problem
    design : Design
    spec : PortfolioSpec
    limits : mapping of str to float
        From `limits_of`.

    Returns
    -------
    dict
        ``totals`` by output, ``chances`` of keeping the limits, ``drivers`` of the cost, and what is ``shared``.

    Raises
    ------
    InputError
        They cannot be paired.
    """
    pairing = Pairing(problems, design, "independent" if spec.independent else "common")
    draws, alone = _sums(pairing)
    ownership = problems[0].file.ownership
    wanted = {"own": TOTALS[:4], "rent": (*TOTALS[:3], TOTALS[4]), "either": TOTALS}[ownership]
    found: dict[str, Any] = {"scenarios": len(problems), "totals": {}, "chances": {}}
    for name in wanted:
        row = draws[TOTALS.index(name)]
        found["totals"][name] = {"unit": BY_NAME[name].unit, **spread(row, design.replicates), "sd": float(row.std()),
                                 "sd_if_nothing_were_shared": float(alone[TOTALS.index(name)])}  # fmt: skip
    for name, limit in limits.items():
        for output in _LIMITED[name]:
            if output in wanted:
                holds = (draws[TOTALS.index(output)] <= limit).reshape(design.replicates, -1).mean(axis=1)
                found["chances"][name if len(_LIMITED[name]) == 1 else f"{name}_{output.split('_')[1]}"] = {
                    "output": output,
                    "limit": limit,
                    "unit": BY_NAME[output].unit,
                    "probability": float(holds.mean()),
                    "monte_carlo_error": float(sobol.replicate_error(holds)),
                }
    cost = "cost_rented_usd" if ownership == "rent" else "cost_owned_usd"
    return found | {"drivers": _drivers(pairing, cost), "shared": _shared(pairing)}


def _sums(pairing: Pairing) -> tuple[np.ndarray, np.ndarray]:
    """Return draws of the totals, (totals, samples), and their sd if the scenarios were independent, (totals,)."""
    design, rows = pairing.design, [OUTPUTS.index(name) for name in TOTALS]
    parts = []
    first = np.zeros((len(pairing.problems), len(rows)))
    second = np.zeros_like(first)
    for replicate in range(design.replicates):
        for start in range(0, design.length, _CHUNK):
            u = pairing.streams(replicate, start, min(start + _CHUNK, design.length))
            total = np.zeros((len(rows), u.shape[1]))
            for k, model in enumerate(pairing.models):
                y = model.propagate(pairing.cube(k, u))[1][rows]
                first[k] += y.sum(axis=1)
                second[k] += (y**2).sum(axis=1)
                total += y
            parts.append(total)
    count = design.samples
    variance = np.maximum(second / count - (first / count) ** 2, 0.0)
    return np.concatenate(parts, axis=1), np.sqrt(variance.sum(axis=0))


def _drivers(pairing: Pairing, output: str) -> dict[str, Any]:
    """Return the total Sobol' indices of one total, the largest first."""
    blocks, row = pairing.coupling.blocks, [OUTPUTS.index(output)]
    length = min(pairing.design.length, ANALYSED)
    sums = []
    centre = np.zeros(1)
    for replicate in range(pairing.design.replicates):
        u_a, u_b = (pairing.streams(replicate, 0, length, block) for block in (0, 1))
        y_a, y_b, swapped = np.zeros((1, length)), np.zeros((1, length)), np.zeros((len(blocks), 1, length))
        for k, model in enumerate(pairing.models):
            (x_a, own_a), (x_b, own_b) = (model.propagate(pairing.cube(k, u)) for u in (u_a, u_b))
            masks = np.array([(pairing.weights[k][:, streams] != 0).any(axis=1) for streams in blocks.values()])
            y_a, y_b = y_a + own_a[row], y_b + own_b[row]
            swapped += model.swapped(x_a, x_b, masks.reshape(len(blocks), len(model.varying)), row)
        if replicate == 0:
            centre = y_a.mean(axis=1)
        sums.append((sobol.variance_sums(y_a, y_b, centre), sobol.swap_sums(y_a, y_b, swapped, centre)))
    if not blocks:
        return {}
    found = sobol.indices(*(sobol.stack_sums(part) for part in zip(*sums, strict=True)))
    total = found.total[:, 0]
    order = [i for i in np.argsort(-total) if np.isfinite(total[i])]
    names = list(blocks)
    return {
        "output": output,
        "inputs": {
            names[i]: {"total": float(total[i]), "interval_90": [float(found.total_low[i, 0]),
                                                                 float(found.total_high[i, 0])]}
            for i in order[:_TOLD]
        },
    }  # fmt: skip


def _shared(pairing: Pairing) -> dict[str, Any]:
    """Say how inputs that are not the same in all scenarios are coupled."""
    differing = {difference.key: difference.how for difference in pairing.coupling.differences}
    varying = dict.fromkeys(key for weights in pairing.coupling.weights for key in weights)
    return {"same_number_in_all": [key for key in varying if key not in differing],
            "differ": {key: how for key, how in differing.items() if key in varying}}  # fmt: skip
