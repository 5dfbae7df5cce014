"""Values with units, against conversions by hand."""

import pytest

from gpustack_mc.quantities import QUANTITIES
from gpustack_mc.units import _USUAL, UnitProblem, registry, to_number


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("2.10 USD/h", "USD/h", 2.10), ("80 USD/MWh", "USD/kWh", 0.08), ("8 EUR/MWh", "USD/kWh", 8 * 1.08 / 1000),
        ("0.7 kW", "W", 700), ("48 months", "year", 4), ("0.38 kgCO2e/kWh", "gCO2e/kWh", 380),
        ("380 g/kWh", "gCO2e/kWh", 380), ("15 MUSD", "USD", 15e6), ("2 MEUR", "USD", 2.16e6), ("30 d", "day", 30),
        ("720 h", "day", 30), ("2.5 USD/GPU-hour", "USD/h", 2.5), ("2.5 USD/GPU/h", "USD/h", 2.5), ("40%", "1", 0.4),
        ("8%/year", "1/year", 0.08), ("15e12 tokens", "token", 15e12), ("989 TFLOP/s", "FLOP/s", 989e12),
        ("10 GWh", "MWh", 10_000), ("3000 t", "tCO2e", 3000), ("1_500 tokens/s", "token/s", 1500), ("7e9", "1", 7e9),
        ("2 m^3", "m^3", 2), ("1.8 L/kWh", "L/kWh", 1.8), ("-0.02 USD/kWh", "USD/kWh", -0.02),
    ],
)  # fmt: skip
def test_conversion(text, unit, value):
    assert to_number(text, unit, {"EUR": 1.08}) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "unit", "message"),
    [
        ("85 EUR/MWh", "USD/kWh", r"is in EUR, and the scenario states no rate.*exchange_rates"),
        ("0.08 USD/kW", "USD/kWh", "is a price of power, but this is a price of energy"),
        ("5 kW", "MWh", "is a power, but this is an energy"),
        ("5 kWh", "W", "is an energy, but this is a power"),
        ("7B", "1", r"mixes a number and a word. Write 7e\+09"),
        ("seven billion", "1", "is not a number"),
        ("5 USD", "1", "is an amount of money, but this is a pure number"),
        ("3 bananas", "W", "no unit that is known"),
        ("2 __import__('os')", "1", "no unit that is known"),
        ("1 m**99999999", "W", "no unit that is known"),
        ("40%", "W", "is a share, but this is in W"),
        ("1 " + "(" * 500, "W", "no unit that is known"),
    ],
)
def test_refused(text, unit, message):
    with pytest.raises(UnitProblem, match=message) as caught:
        to_number(text, unit, {})
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("unit", sorted({q.unit for q in QUANTITIES}))
def test_every_unit_of_the_table_is_known(unit):
    registry().parse_units("dimensionless" if unit == "1" else unit)


@pytest.mark.parametrize(("suffix", "unit"), _USUAL)
def test_usual_units_are_those_of_pint(suffix, unit):
    expected = registry().Quantity(7.0, suffix).to(unit).magnitude
    # A conversion by pint goes through base units, with some roundings.
    assert to_number(f"7 {suffix}", unit, {}) == pytest.approx(float(expected), rel=1e-14)
