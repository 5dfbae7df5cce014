"""The model on 20,000 random plants: what physics allows, what must scale, and the same numbers by another road."""

import jax
import numpy as np
import pytest

from gpustack_mc import model
from gpustack_mc.quantities import BY_NAME, OUTPUTS

SIZE = 20_000
# From a small experiment to the largest run thinkable; shares are drawn evenly, all else evenly on a log scale.
RANGES = {
    "active_params": (1e8, 1e13), "tokens": (1e9, 1e14), "context_flop_factor": (1.0, 3.0),
    "accelerator_count": (1.0, 1e6), "peak_flop_per_s": (1e13, 1e16), "mfu": (0.02, 0.9), "goodput": (0.2, 1.0),
    "tdp": (75.0, 2000.0), "gpu_power_fraction": (0.3, 1.1), "host_power": (20.0, 1500.0), "pue": (1.0, 2.5),
    "electricity_price": (0.005, 0.6), "grid_intensity": (5.0, 1200.0), "embodied_carbon": (50.0, 4000.0),
    "water_onsite": (0.0, 3.0), "water_offsite": (0.0, 15.0), "capex": (1e3, 2e5), "residual_share": (0.0, 0.6),
    "lifetime": (1.0, 10.0), "fleet_utilization": (0.1, 1.0), "cost_of_capital": (0.0, 0.3),
    "operations_rate": (0.0, 0.3), "rental_price": (0.1, 20.0), "serving_throughput": (10.0, 1e5),
    "programme_overhead": (1.0, 10.0), "interruption_rate": (1e-7, 1e-3), "carbon_price": (0.0, 500.0),
}  # fmt: skip
PHASE = ("active_params", "tokens", "context_flop_factor", "accelerator_count", "peak_flop_per_s", "mfu", "goodput")


def drawn() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(11)
    found = {}
    for name, (low, high) in RANGES.items():
        u = generator.uniform(size=SIZE)
        found[name] = low + (high - low) * u if low == 0 or BY_NAME[name].high <= 1 else low * (high / low) ** u
    return found


def run(values: dict[str, np.ndarray], **changes) -> dict[str, np.ndarray]:
    values = values | {name: values[name] * factor for name, factor in changes.items()}
    with jax.enable_x64(True):
        phase = {name: values[name] for name in PHASE}
        rest = {name: value for name, value in values.items() if name not in PHASE}
        return {name: np.asarray(value) for name, value in model.run([phase], **rest).items()}


@pytest.fixture(scope="module")
def inputs():
    return drawn()


@pytest.fixture(scope="module")
def outputs(inputs):
    return run(inputs)


def test_every_output_is_a_positive_number_within_its_bounds(outputs):
    assert set(outputs) == set(OUTPUTS)
    for name, values in outputs.items():
        assert values.shape == (SIZE,) and np.isfinite(values).all(), name
        assert (values >= BY_NAME[name].low).all() and (values <= BY_NAME[name].high * (1 + 1e-12)).all(), name


def test_physics(inputs, outputs):
    # A little more than 1: 16 digits, a dozen operations.
    rounding = 1 + 1e-12
    board = outputs["accelerator_hours"] * inputs["tdp"] * inputs["gpu_power_fraction"] / 1e6
    assert (outputs["effective_utilization"] <= inputs["mfu"] * inputs["goodput"] * rounding).all()
    assert (board <= outputs["it_energy_mwh"] * rounding).all()
    assert (outputs["it_energy_mwh"] <= outputs["energy_mwh"] * rounding).all()
    assert (outputs["electricity_cost_usd"] <= outputs["cost_owned_usd"] * rounding).all()
    assert (outputs["co2e_operational_t"] <= outputs["co2e_t"] * rounding).all()
    assert (outputs["electricity_share"] <= rounding).all()
    for name in ("accelerator_hours", "energy_mwh", "co2e_t", "cost_owned_usd", "cost_rented_usd"):
        assert (outputs[name] <= outputs[f"programme_{name}"] * rounding).all()


# What a factor on some inputs does to some outputs, for every plant; all that is not named stays as it is.
EXTENSIVE = (
    "accelerator_hours", "training_days", "energy_mwh", "co2e_t", "water_onsite_m3", "water_offsite_m3",
    "cost_owned_usd", "cost_rented_usd", "programme_co2e_t", "interruptions",
)  # fmt: skip
SCALINGS = {
    "twice the tokens is twice of everything": ({"tokens": 2}, dict.fromkeys(EXTENSIVE, 2) | {"training_flop": 2}),
    "twice the count is half the days and nothing else": ({"accelerator_count": 2}, {"training_days": 0.5}),
    "another currency": (
        {name: 7.3 for name in ("capex", "electricity_price", "rental_price", "carbon_price")},
        dict.fromkeys(
            ("cost_owned_usd", "cost_rented_usd", "electricity_cost_usd", "hardware_cost_usd", "other_cost_usd",
             "carbon_cost_usd", "owned_usd_per_accelerator_hour", "usd_per_million_training_tokens",
             "serving_usd_per_million_tokens", "programme_cost_owned_usd", "programme_cost_rented_usd"), 7.3
        ),
    ),
    "a chip twice as fast at the same MFU": ({"peak_flop_per_s": 2}, dict.fromkeys(EXTENSIVE, 0.5)),
    "twice the watts": (
        {"tdp": 2, "host_power": 2},
        dict.fromkeys(("energy_mwh", "facility_power_mw", "co2e_operational_t", "electricity_cost_usd",
                       "serving_kwh_per_million_tokens"), 2),
    ),
}  # fmt: skip
UNTOUCHED = {
    "twice the count is half the days and nothing else": set(OUTPUTS)
    - {"training_days", "facility_power_mw", "hours_between_interruptions"},
    "another currency": {"electricity_share", "energy_mwh", "co2e_t", "training_days", "accelerator_hours"},
    "twice the watts": {"accelerator_hours", "training_days", "co2e_embodied_t", "hardware_cost_usd"},
}


@pytest.mark.parametrize("name", SCALINGS)
def test_what_scales_and_what_does_not(inputs, outputs, name):
    changes, expected = SCALINGS[name]
    changed = run(inputs, **changes)
    for output, factor in expected.items():
        np.testing.assert_allclose(changed[output], factor * outputs[output], rtol=1e-12, err_msg=output)
    for output in UNTOUCHED.get(name, ()):
        np.testing.assert_allclose(changed[output], outputs[output], rtol=1e-12, err_msg=output)


def test_the_same_numbers_by_another_road(inputs, outputs):
    """Seconds, joules and a yearly bill of the plant, in NumPy: no equation of the program is used."""
    v = inputs
    flop = 6 * v["active_params"] * v["tokens"]
    seconds = (
        flop * v["context_flop_factor"] / (v["peak_flop_per_s"] * v["mfu"] * v["goodput"] * v["accelerator_count"])
    )
    joules = seconds * v["accelerator_count"] * (v["tdp"] * v["gpu_power_fraction"] + v["host_power"])
    kwh = joules * v["pue"] / 3.6e6
    # The plant is paid for over the hours in which it is busy.
    year = 8766 * 3600.0
    share = seconds * v["accelerator_count"] / (year * v["fleet_utilization"])
    rate, life = np.maximum(v["cost_of_capital"], 1e-9), v["lifetime"]
    # A continuous annuity that pays back the loss of value with interest, and the interest on the rest.
    annuity = v["capex"] * (1 - v["residual_share"]) * rate / (1 - np.exp(-rate * life))
    owning = annuity + v["capex"] * (rate * v["residual_share"] + v["operations_rate"])
    embodied = v["embodied_carbon"] / life * share
    tonnes = kwh * v["grid_intensity"] / 1e6 + embodied / 1e3
    expected = {
        "training_days": seconds / 86400,
        "energy_mwh": kwh / 1000,
        "facility_power_mw": joules * v["pue"] / seconds / 1e6,
        "co2e_t": tonnes,
        "water_onsite_m3": joules / 3.6e6 * v["water_onsite"] / 1000,
        "water_offsite_m3": kwh * v["water_offsite"] / 1000,
        "cost_owned_usd": share * owning + kwh * v["electricity_price"] + tonnes * v["carbon_price"],
        "cost_rented_usd": seconds / 3600 * v["accelerator_count"] * v["rental_price"] + tonnes * v["carbon_price"],
        "hours_between_interruptions": 1 / (v["interruption_rate"] * v["accelerator_count"]),
    }
    for name, values in expected.items():
        # The annuity at rates near zero loses eight digits in this form; all others are exact to rounding.
        np.testing.assert_allclose(
            outputs[name], values, rtol=1e-6 if name == "cost_owned_usd" else 1e-12, err_msg=name
        )
