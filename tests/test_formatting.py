"""Numbers as people say them."""

import pytest

from gpustack_mc import formatting


@pytest.mark.parametrize(
    ("value", "unit", "digits", "text"),
    [
        (39.2, "day", 2, "39 d"), (0.9, "day", 2, "22 h"), (0.01, "day", 2, "14 min"), (7.66e6, "h", 2, "7.7 M h"),
        (58958, "h", 3, "59,000 h"), (9812, "MWh", 2, "9.8 GWh"), (999.9, "MWh", 2, "1.0 GWh"),
        (0.5, "MWh", 2, "500 kWh"),
        (11.26, "MW", 3, "11.3 MW"), (3712, "tCO2e", 2, "3,700 t"), (0.3, "tCO2e", 1, "300 kg"),
        (14.2e6, "USD", 2, "$14M"),
        (5766, "USD", 4, "$5,766"), (0.4629, "USD", 3, "$0.463"), (1.3576, "USD/h", 3, "$1.36/h"),
        (-0.02, "USD/kWh", 1, "-$0.02/kWh"),
        (6.3e24, "FLOP", 3, "6.30e24 FLOP"), (0.0742, "1", 2, "0.074"), (9.96, "USD", 2, "$10"), (0, "USD", 2, "$0"),
        (float("nan"), "day", 2, "unknown min"), (27123, "m^3", 2, "27,000 m³"), (0.085, "1/year", 2, "8.5% a year"),
    ],
)  # fmt: skip
def test_with_unit(value, unit, digits, text):
    assert formatting.with_unit(value, unit, digits) == text


def test_exact_values_have_no_trailing_zeros():
    assert formatting.with_unit(25.0, "day", 4, exact=True) == "25 d"
    assert formatting.with_unit(7e10, "1", 4, exact=True) == "7e10"
    assert formatting.with_unit(8190.0, "1", 4, exact=True) == "8,190"


@pytest.mark.parametrize(
    ("value", "low", "high", "error", "unit", "digits"),
    [
        (39, 26, 61, 0.05, "day", 2), (39, 38.5, 39.5, 0.001, "day", 3), (39, 39, 39, 0, "day", 4),
        (39, 26, 61, 4.0, "day", 1),  # an error of 4 leaves no digit after the first
        (39, 38, 40, 0.3, "day", 2),  # the error takes the third digit
        (1.11, 1.04, 1.31, 1e-4, "1", 3), (0.95, 0.6, 0.997, 1e-4, "1", 2), (0.997, 0.6, 0.997, 1e-4, "1", 3),
    ],
)  # fmt: skip
def test_digits_follow_spread_and_error(value, low, high, error, unit, digits):
    assert formatting.digits_for(value, low, high, error, unit) == digits


def test_the_last_digit_is_above_the_error():
    for error in (0.001, 0.02, 0.3, 2.0):
        digits = formatting.digits_for(39.0, 10.0, 90.0, error)
        half_a_unit = 0.5 * 10 ** (1 - digits + 1)
        assert error <= half_a_unit or digits == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [(70e9, "70B"), (70.6e9, "70.6B"), (15e12, "15T"), (8192, "8,192"), (1.35e8, "135M"), (1e16, "10,000T")],
)
def test_count(value, text):
    assert formatting.count(value) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (16384.0, "1", "16,384"),
        (58958.4, "h", "58,958 h"),
        (77674.9, "USD", "$77,675"),
        (7e9, "1", "7e9"),
        (1e-7, "1", "1e-7"),
    ],
)
def test_exact_values_keep_the_digits_before_the_point(value, unit, text):
    assert formatting.with_unit(value, unit, 4, exact=True) == text
