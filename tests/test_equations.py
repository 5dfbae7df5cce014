"""The equations against their table: names, units by running them on pint quantities, elasticities by gradients."""

import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpustack_mc import constants, equations, failures, units
from gpustack_mc.quantities import BY_NAME, outputs_of

FUNCTIONS = {
    name: f
    for module in (equations, failures)
    for name, f in inspect.getmembers(module, inspect.isfunction)
    if f.__module__ == module.__name__ and not name.startswith("_")
}
# Parameters that no scenario output uses: the shape of the model, only needed for the context factor.
SHAPE = {"n_layers": 80.0, "d_model": 8192.0, "sequence_length": 32768.0, "reference_sequence_length": 4096.0}
CONSTANT_UNITS = {
    "SECONDS_PER_HOUR": "s/h",
    "MINUTES_PER_HOUR": "min/h",
    "HOURS_PER_DAY": "h/day",
    "HOURS_PER_YEAR": "h/year",
    "WATTS_PER_MEGAWATT": "W/MW",
    "KILOWATT_HOURS_PER_MEGAWATT_HOUR": "kWh/MWh",
    "WATTS_PER_KILOWATT": "W/kW",
    "GRAMS_PER_TONNE": "gCO2e/tCO2e",
    "GRAMS_PER_KILOGRAM": "gCO2e/kgCO2e",
    "KILOGRAMS_PER_TONNE": "kgCO2e/tCO2e",
    "LITRES_PER_CUBIC_METRE": "L/m^3",
    "BITS_PER_BYTE": "bit/byte",
    "BITS_PER_GIGABIT": "bit/Gbit",
    "TOKENS_PER_MILLION": "token",
    "FLOP_PER_PARAM_AND_TOKEN": "FLOP/token",
}
# One plausible value per quantity, none equal to another, so that a swapped pair shows.
VALUES = {
    "params": 70e9, "active_params": 41e9, "tokens": 15e12, "context_flop_factor": 1.1, "peak_flop_per_s": 989e12,
    "tdp": 700.0, "accelerator_count": 8192.0, "mfu": 0.41, "goodput": 0.93, "gpu_power_fraction": 0.86,
    "host_power": 550.0, "pue": 1.21, "electricity_price": 0.083, "grid_intensity": 377.0, "embodied_carbon": 620.0,
    "water_onsite": 0.31, "water_offsite": 3.2, "capex": 43000.0, "residual_share": 0.17, "lifetime": 4.6,
    "fleet_utilization": 0.79, "cost_of_capital": 0.094, "operations_rate": 0.043, "rental_price": 2.6,
    "serving_throughput": 1430.0, "programme_overhead": 3.4,
    "checkpoint_interval": 37.0, "checkpoint_save_time": 43.0, "restart_time": 11.0, "unexplained_loss": 0.03,
    "interruption_rate": 2.1e-5, "carbon_price": 85.0, "carbon_cost_usd": 156e3,
    "interruptions": 70.0, "training_flop": 3.69e24, "training_days": 22.0,
    "accelerator_hours": 3.3e6, "it_energy_mwh": 3900.0, "energy_mwh": 4700.0, "co2e_operational_t": 1770.0,
    "co2e_embodied_t": 61.0, "co2e_t": 1830.0, "electricity_cost_usd": 390e3, "hardware_cost_usd": 4.3e6,
    "other_cost_usd": 0.9e6, "cost_owned_usd": 5.6e6, "cost_rented_usd": 8.6e6,
    "serving_kwh_per_million_tokens": 0.26, **SHAPE,
}  # fmt: skip


def parameters(function) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_every_output_has_its_equation_and_every_equation_its_row():
    assert set(FUNCTIONS) - {"context_flop_factor"} == set(outputs_of(["reliability"]))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_parameters_are_quantities_without_defaults(name):
    signature = inspect.signature(FUNCTIONS[name])
    for parameter in signature.parameters.values():
        assert parameter.name in BY_NAME or parameter.name in SHAPE
        assert parameter.default is inspect.Parameter.empty


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstring_has_the_equation(name):
    assert ".. math::" in inspect.getdoc(FUNCTIONS[name])


def test_every_constant_has_a_unit_here():
    names = {name for name in vars(constants) if name.isupper()}
    assert names == set(CONSTANT_UNITS)


@pytest.mark.parametrize("name", [n for n, unit in CONSTANT_UNITS.items() if unit not in ("token", "FLOP/token")])
def test_conversion_constants_are_exact(name):
    """A conversion times its unit is the pure number 1, in pint's own definitions."""
    ureg = units.registry()
    top, bottom = CONSTANT_UNITS[name].split("/")
    assert getattr(constants, name) == pytest.approx(ureg.Quantity(1, bottom).to(top).magnitude, rel=1e-12)


@pytest.fixture
def with_units(monkeypatch):
    """Give the constants their units and NumPy in place of jax.numpy, so that the equations run on pint quantities."""
    ureg = units.registry()
    for name, unit in CONSTANT_UNITS.items():
        monkeypatch.setattr(constants, name, ureg.Quantity(getattr(constants, name), unit))
    for module in (equations, failures):
        monkeypatch.setattr(module, "jnp", np)
    return ureg


def pint_unit(name: str) -> str:
    if name in ("sequence_length", "reference_sequence_length"):
        return "dimensionless"
    if name in SHAPE or BY_NAME[name].unit == "1":
        return "dimensionless"
    return BY_NAME[name].unit


@pytest.mark.parametrize("name", FUNCTIONS)
def test_units(name, with_units):
    """On quantities with units an equation gives the declared unit and the same number as on plain floats.

    A forgotten factor of 1000 or an inverted ratio changes the unit or the number.
    """
    function, ureg = FUNCTIONS[name], with_units
    got = function(**{p: ureg.Quantity(VALUES[p], pint_unit(p)) for p in parameters(function)})
    with pytest.MonkeyPatch.context() as plain:
        for constant in CONSTANT_UNITS:
            plain.setattr(constants, constant, getattr(constants, constant).magnitude)
        expected = function(**{p: VALUES[p] for p in parameters(function)})
    assert ureg.Quantity(got).to(pint_unit(name)).magnitude == pytest.approx(float(expected), rel=1e-12)


def elasticity(function, values: dict[str, float], parameter: str) -> float:
    """d log f / d log x."""
    others = {p: values[p] for p in parameters(function) if p != parameter}
    with jax.enable_x64(True):
        slope = jax.grad(lambda x: jnp.log(function(**{parameter: x}, **others)))(values[parameter])
    return float(slope) * values[parameter]


# +1 and -1 are exact proportionalities; "+" and "-" are signs of sums. Units cannot see an inverted pure number.
ELASTICITIES = {
    "training_flop": {"active_params": 1, "tokens": 1},
    "accelerator_hours": {"training_flop": 1, "context_flop_factor": 1, "peak_flop_per_s": -1, "mfu": -1,
                          "goodput": -1},
    "training_days": {"accelerator_hours": 1, "accelerator_count": -1},
    "effective_utilization": {"training_flop": 1, "accelerator_hours": -1, "peak_flop_per_s": -1},
    "interruptions": {"accelerator_hours": 1, "interruption_rate": 1},
    "hours_between_interruptions": {"training_days": 1, "interruptions": -1},
    "it_energy_mwh": {"accelerator_hours": 1, "tdp": "+", "gpu_power_fraction": "+", "host_power": "+"},
    "energy_mwh": {"it_energy_mwh": 1, "pue": 1},
    "facility_power_mw": {"energy_mwh": 1, "training_days": -1},
    "co2e_operational_t": {"energy_mwh": 1, "grid_intensity": 1},
    "co2e_embodied_t": {"accelerator_hours": 1, "embodied_carbon": 1, "lifetime": -1, "fleet_utilization": -1},
    "co2e_t": {"co2e_operational_t": "+", "co2e_embodied_t": "+"},
    "water_onsite_m3": {"it_energy_mwh": 1, "water_onsite": 1},
    "water_offsite_m3": {"energy_mwh": 1, "water_offsite": 1},
    "electricity_cost_usd": {"energy_mwh": 1, "electricity_price": 1},
    "hardware_cost_usd": {"accelerator_hours": 1, "capex": 1, "residual_share": "-", "lifetime": -1,
                          "fleet_utilization": -1},
    "other_cost_usd": {"accelerator_hours": 1, "capex": 1, "residual_share": "+", "lifetime": "+",
                       "fleet_utilization": -1, "cost_of_capital": "+", "operations_rate": "+"},
    "carbon_cost_usd": {"co2e_t": 1, "carbon_price": 1},
    "cost_owned_usd": {"hardware_cost_usd": "+", "electricity_cost_usd": "+", "other_cost_usd": "+",
                       "carbon_cost_usd": "+"},
    "owned_usd_per_accelerator_hour": {"cost_owned_usd": 1, "accelerator_hours": -1},
    "cost_rented_usd": {"accelerator_hours": "+", "rental_price": "+", "carbon_cost_usd": "+"},
    "electricity_share": {"electricity_cost_usd": 1, "cost_owned_usd": -1},
    "usd_per_million_training_tokens": {"cost_owned_usd": 1, "tokens": -1},
    "serving_usd_per_million_tokens": {"rental_price": 1, "serving_throughput": -1},
    "serving_kwh_per_million_tokens": {"tdp": "+", "gpu_power_fraction": "+", "host_power": "+", "pue": 1,
                                       "serving_throughput": -1},
    "serving_kgco2e_per_million_tokens": {"serving_kwh_per_million_tokens": "+", "grid_intensity": "+",
                                          "embodied_carbon": "+", "lifetime": "-", "fleet_utilization": "-",
                                          "serving_throughput": "-"},
    "programme_accelerator_hours": {"accelerator_hours": 1, "programme_overhead": 1},
    "programme_energy_mwh": {"energy_mwh": 1, "programme_overhead": 1},
    "programme_co2e_t": {"co2e_t": 1, "programme_overhead": 1},
    "programme_cost_owned_usd": {"cost_owned_usd": 1, "programme_overhead": 1},
    "programme_cost_rented_usd": {"cost_rented_usd": 1, "programme_overhead": 1},
    # At an interval above the best one.
    "expected_goodput": {"accelerator_count": "-", "interruption_rate": "-", "checkpoint_interval": "-",
                         "checkpoint_save_time": "-", "restart_time": "-", "unexplained_loss": "-"},
    "checkpoint_loss_share": {"accelerator_count": "-", "interruption_rate": "-", "checkpoint_interval": "-",
                              "checkpoint_save_time": "+", "restart_time": "-", "unexplained_loss": "-"},
    "lost_work_share": {"accelerator_count": "+", "interruption_rate": "+", "checkpoint_interval": "+",
                        "checkpoint_save_time": "+", "restart_time": "-", "unexplained_loss": "-"},
    "restart_loss_share": {"accelerator_count": "+", "interruption_rate": "+", "restart_time": "+",
                           "unexplained_loss": "-"},
    "best_checkpoint_interval": {"accelerator_count": "-", "interruption_rate": "-", "checkpoint_save_time": "+"},
    "context_flop_factor": {"active_params": "-", "n_layers": "+", "d_model": "+", "sequence_length": "+",
                            "reference_sequence_length": "-"},
}  # fmt: skip


def test_elasticities_are_stated_for_every_parameter():
    assert {name: set(parameters(f)) for name, f in FUNCTIONS.items()} == {n: set(e) for n, e in ELASTICITIES.items()}


@pytest.mark.parametrize(("name", "parameter"), [(n, p) for n, e in ELASTICITIES.items() for p in e])
def test_elasticity(name, parameter):
    expected = ELASTICITIES[name][parameter]
    got = elasticity(FUNCTIONS[name], VALUES, parameter)
    if expected == "+":
        assert got > 1e-6
    elif expected == "-":
        assert got < -1e-6
    else:
        # float64 gradients of products are exact to a few units in the last place.
        assert got == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("length", "reference"), [(32768, 4096), (4096, 4096), (2048, 8192)])
def test_context_factor_counts_the_matrix_products(length, reference):
    """Against the products of every query with the keys before it, layer by layer, as PaLM's appendix B counts them."""
    layers, width, active = 80, 8192, 70e9

    def flop_per_token(s):
        pairs = s * s / 2  # causal: half of all query-key pairs
        scores, weighted_values = 2 * width * pairs, 2 * width * pairs  # a multiplication and an addition each
        forward = 2 * active + layers * (scores + weighted_values) / s
        return 3 * forward  # the backward pass takes twice the forward

    found = equations.context_flop_factor(active, layers, width, length, reference)
    assert found == pytest.approx(flop_per_token(length) / flop_per_token(reference), rel=1e-12)


def test_capital_cost_equals_the_annuity():
    """Straight-line loss plus capital cost equals the annuity that repays the price less the residual value.

    Independent route: present values by summing continuous payments over the life.
    """
    capex, residual, life, rate, utilization = 40_000.0, 0.2, 5.0, 0.1, 1.0
    annuity = (capex - capex * residual * math.exp(-rate * life)) * rate / (1 - math.exp(-rate * life))
    hours = constants.HOURS_PER_YEAR
    hardware = equations.hardware_cost_usd(hours, capex, residual, life, utilization)
    with jax.enable_x64(True):
        other = float(equations.other_cost_usd(hours, capex, residual, life, utilization, rate, 0.0))
    assert hardware + other == pytest.approx(annuity, rel=1e-12)


def test_capital_cost_is_continuous_at_a_rate_of_zero():
    arguments = {p: VALUES[p] for p in parameters(equations.other_cost_usd)} | {"operations_rate": 0.0}
    with jax.enable_x64(True):
        at = {
            rate: float(equations.other_cost_usd(**arguments | {"cost_of_capital": rate}))
            for rate in (0.0, 2.1e-5, 2.2e-5)
        }
        slope = float(jax.grad(lambda r: equations.other_cost_usd(**arguments | {"cost_of_capital": r}))(0.0))
    assert at[0.0] == 0
    # 2.1e-5 * 4.6 years is below, 2.2e-5 * 4.6 above the switch to the series: both sides agree to its cubic term.
    assert at[2.2e-5] / at[2.1e-5] == pytest.approx(2.2 / 2.1, rel=1e-5)
    assert np.isfinite(slope) and slope > 0
