"""Equations of runs on several sites carry the units they declare, with pint; a lost factor of 3600 would show."""

import inspect

import numpy as np
import pytest
from test_equations import CONSTANT_UNITS

from gpustack_mc import constants, outages, units

SITES = 3
# Value and unit of every parameter; what belongs to a site has one value for each.
PARAMETERS = {
    "site_count": ([100.0, 200.0, 50.0], ""),
    "availability": ([0.99, 0.95, 0.9], ""),
    "mean_outage": ([12.0, 30.0, 5.0], "h"),
    "rejoin_time": (40.0, "min"),
    "gpu_power_fraction": (0.8, ""),
    "idle_power_fraction": (0.15, ""),
    "site_waiting_share": (0.07, ""),
    "site_down_share": (0.05, ""),
    "params": (7e9, ""),
    "exchange_bytes": (2.0, "byte"),
    "link_speed": ([10.0, 4.0, 100.0], "Gbit/s"),
    "exchange_time": (30.0, "s"),
    "averaging_steps": (64.0, ""),
    "global_batch_tokens": (4e6, "token"),
    "active_params": (7e9, ""),
    "context_flop_factor": (1.1, ""),
    "accelerator_count": (350.0, ""),
    "peak_flop_per_s": (989e12, "FLOP/s"),
    "mfu": (0.4, ""),
    "exchange_share": (0.1, ""),
    "goodput": (0.9, ""),
    "site_work_share": (0.85, ""),
    "tokens": (2e12, "token"),
    "extra_tokens": (0.05, ""),
}
UNITS = {"exchange_time": "s", "site_tokens": "token"}
FUNCTIONS = {
    name: function
    for name, function in inspect.getmembers(outages, inspect.isfunction)
    if function.__module__ == outages.__name__ and not name.startswith("_")
}
CASES = [
    (name, mode)
    for name, function in FUNCTIONS.items()
    for mode in (outages.MODES if "mode" in inspect.signature(function).parameters else (None,))
]


def arguments(name, mode, of):
    named = [parameter for parameter in inspect.signature(FUNCTIONS[name]).parameters if parameter != "mode"]
    found = {parameter: of(np.asarray(PARAMETERS[parameter][0]), PARAMETERS[parameter][1]) for parameter in named}
    return found | ({"mode": mode} if mode else {})


def test_every_equation_is_here():
    assert {"site_work_share", "exchange_time", "exchange_share"} <= set(FUNCTIONS)
    for function in FUNCTIONS.values():
        assert set(inspect.signature(function).parameters) - {"mode"} <= set(PARAMETERS)


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_units(name, mode, monkeypatch):
    """On quantities with units an equation gives its unit, and the same number as on plain floats."""
    ureg = units.registry()
    monkeypatch.setattr(outages, "jnp", np)
    plain = FUNCTIONS[name](**arguments(name, mode, lambda value, unit: value))
    for constant, unit in CONSTANT_UNITS.items():
        monkeypatch.setattr(constants, constant, ureg.Quantity(getattr(constants, constant), unit))
    got = FUNCTIONS[name](**arguments(name, mode, ureg.Quantity))
    # The same sums in the same order, but for pint's conversions: a few roundings of float64.
    assert got.to(UNITS.get(name, "")).magnitude == pytest.approx(plain, rel=1e-12)
