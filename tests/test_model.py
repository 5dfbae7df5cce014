"""The composed model: the two worked numbers, Euler's theorem, phases, and what cancels."""

import inspect

import jax
import jax.numpy as jnp
import pytest

from gpustack_mc import model
from gpustack_mc.quantities import BY_NAME, OUTPUTS

PHASE = {
    "active_params": 70e9, "tokens": 15e12, "context_flop_factor": 1.0, "accelerator_count": 8192.0,
    "peak_flop_per_s": 989e12, "mfu": 0.40, "goodput": 0.90,
}  # fmt: skip
INPUTS = {
    "tdp": 700.0, "gpu_power_fraction": 0.85, "host_power": 550.0, "pue": 1.2, "electricity_price": 0.08,
    "grid_intensity": 380.0, "embodied_carbon": 500.0, "water_onsite": 0.3, "water_offsite": 3.1, "capex": 35_000.0,
    "residual_share": 0.0, "lifetime": 4.0, "fleet_utilization": 0.8, "cost_of_capital": 0.0, "operations_rate": 0.0,
    "rental_price": 2.5, "serving_throughput": 1500.0, "programme_overhead": 1.0,
    "interruption_rate": 2e-5, "carbon_price": 0.0,
}  # fmt: skip


def run(phases=(PHASE,), **changes):
    with jax.enable_x64(True):
        return {name: float(value) for name, value in model.run(list(phases), **INPUTS | changes).items()}


def test_outputs_are_those_of_the_table_in_its_order():
    assert tuple(run()) == OUTPUTS


def test_parameters_are_quantities():
    names = set(inspect.signature(model.run).parameters) | set(inspect.signature(model.phase).parameters)
    assert names - {"phases"} <= set(BY_NAME)


# Every figure of the first worked example, to its last printed digit.
@pytest.mark.parametrize(
    ("output", "printed", "unit"),
    [
        ("training_flop", "6.30", 1e24), ("training_days", "25", 1), ("accelerator_hours", "4.92", 1e6),
        ("facility_power_mw", "11.3", 1), ("energy_mwh", "6753", 1), ("co2e_operational_t", "2566", 1),
        ("cost_rented_usd", "12.3", 1e6), ("owned_usd_per_accelerator_hour", "1.36", 1), ("cost_owned_usd", "6.7", 1e6),
        ("serving_usd_per_million_tokens", "0.463", 1),
    ],
)  # fmt: skip
def test_first_worked_example(output, printed, unit):
    decimals = len(printed.partition(".")[2])
    assert f"{run()[output] / unit:.{decimals}f}" == printed


@pytest.mark.parametrize(("intensity", "printed"), [(30, "203"), (380, "2566"), (800, "5403")])
def test_first_worked_example_on_three_grids(intensity, printed):
    assert f"{run(grid_intensity=intensity)['co2e_operational_t']:.0f}" == printed


def test_first_worked_example_serving_at_a_higher_throughput():
    assert f"{run(serving_throughput=6000.0)['serving_usd_per_million_tokens']:.3f}" == "0.116"


SECOND_PHASE = PHASE | {"active_params": 7e9, "tokens": 2e12, "accelerator_count": 1024.0, "peak_flop_per_s": 989.4e12,
                        "goodput": 1.0}  # fmt: skip
SECOND = {
    "gpu_power_fraction": 0.85, "host_power": 957.64 - 0.85 * 700, "electricity_price": 0.0851, "capex": 58_803.90,
    "lifetime": 5.5, "fleet_utilization": 1.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("output", "printed"),
    [
        ("training_days", "2.4"), ("accelerator_hours", "58958"), ("energy_mwh", "67.8"),
        ("electricity_cost_usd", "5766"), ("hardware_cost_usd", "71910"), ("cost_owned_usd", "77675"),
        ("usd_per_million_training_tokens", "0.0388"), ("electricity_share", "0.074"),
    ],
)  # fmt: skip
def test_second_worked_example(output, printed):
    decimals = len(printed.partition(".")[2])
    assert f"{run([SECOND_PHASE], **SECOND)[output]:.{decimals}f}" == printed


def elasticities(output: str, names: list[str], **changes) -> float:
    """Sum of d log output / d log input over some inputs of the run."""
    inputs = INPUTS | changes

    def log_output(values):
        phase = PHASE | {k: v for k, v in values.items() if k in PHASE}
        return jnp.log(model.run([phase], **inputs | {k: v for k, v in values.items() if k in inputs})[output])

    values = {name: (PHASE | inputs)[name] for name in names}
    with jax.enable_x64(True):
        slopes = jax.grad(log_output)(values)
    return sum(float(slopes[name]) * values[name] for name in names)


# A cost is proportional to all prices together, whatever the split between them (Euler's theorem, degree one).
@pytest.mark.parametrize(
    ("output", "prices"),
    [("cost_rented_usd", ["rental_price"]), ("cost_owned_usd", ["capex", "electricity_price"]),
     ("co2e_t", ["grid_intensity", "embodied_carbon"]), ("it_energy_mwh", ["gpu_power_fraction", "host_power"])],
)  # fmt: skip
def test_degree_one_in_prices(output, prices):
    changes = {"cost_of_capital": 0.09, "operations_rate": 0.04, "residual_share": 0.2}
    assert elasticities(output, prices, **changes) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("output", ["accelerator_hours", "energy_mwh", "co2e_t", "cost_owned_usd", "cost_rented_usd"])
def test_work_and_speed_enter_once_and_the_count_cancels(output):
    assert elasticities(output, ["tokens"]) == pytest.approx(1, abs=1e-9)
    assert elasticities(output, ["active_params"]) == pytest.approx(1, abs=1e-9)
    assert elasticities(output, ["mfu"]) == pytest.approx(-1, abs=1e-9)
    assert elasticities(output, ["goodput"]) == pytest.approx(-1, abs=1e-9)
    assert elasticities(output, ["accelerator_count"]) == pytest.approx(0, abs=1e-9)


def test_a_run_split_into_equal_phases_is_the_same_run():
    half = PHASE | {"tokens": PHASE["tokens"] / 2}
    whole, split = run(), run([half, half])
    for name in OUTPUTS:
        assert split[name] == pytest.approx(whole[name], rel=1e-12), name


def test_a_long_context_phase_costs_its_factor():
    tail = PHASE | {"tokens": 1e12, "context_flop_factor": 2.5}
    added = run([PHASE, tail])["accelerator_hours"] - run()["accelerator_hours"]
    assert added == pytest.approx(2.5 * run()["accelerator_hours"] / 15, rel=1e-9)


def test_finite_in_float64_at_1e28_flop():
    found = run([PHASE | {"active_params": 1e13, "tokens": 1.7e14}])
    assert found["training_flop"] == pytest.approx(1.02e28)
    assert all(jnp.isfinite(value) for value in found.values())
