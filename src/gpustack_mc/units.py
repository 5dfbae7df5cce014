"""Units at the boundary: "85 EUR/MWh" becomes a number in the unit of its quantity, or an explanation.

Plain numbers never load pint.
"""

import functools
import re
from collections.abc import Mapping
from typing import Any

_NUMBER = r"[-+]?(?:\d[\d_]*\.?[\d_]*|\.\d+)(?:[eE][-+]?\d+)?"
_QUANTITY = re.compile(rf"^\s*({_NUMBER})\s*(.*?)\s*$")
_CURRENCY = re.compile(r"\b[kMGT]?(EUR|GBP|CAD|AUD|CHF|JPY|CNY|INR|SEK|NOK|DKK|BRL|KRW|SGD|MXN|ZAR|PLN|NZD|HKD|TWD)\b")
_WORDS = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
# Two-digit and chained exponents are never units, and pint takes hours over some of them.
_UNIT_TEXT = re.compile(r"^[A-Za-z0-9_/*^ .()$%-]{1,40}$")
_HUGE_POWER = re.compile(r"\d\d|%.*%|(\^|\*\*)[^/]*(\^|\*\*)[^/]*(\^|\*\*)|(\^|\*\*)\s*-?\d\s*(\^|\*\*)")
_DIMENSIONS = {
    "kWh": "an energy",
    "W": "a power",
    "day": "a time",
    "kg": "a mass",
    "USD": "an amount of money",
    "USD/kWh": "a price of energy",
    "USD/kW": "a price of power",
    "USD/h": "a price per hour",
    "kg/kWh": "a mass per energy",
    "L/kWh": "a volume per energy",
    "L": "a volume",
    "token": "a count of tokens",
    "token/s": "tokens per time",
    "FLOP": "a count of operations",
    "FLOP/s": "operations per time",
    "1/year": "a rate per time",
    "byte": "an amount of data",
    "byte/s": "data per time",
    "dimensionless": "a pure number",
}


# The usual ways to write limits, which a run need not load pint for.
_USUAL = {
    ("kUSD", "USD"): 1e3, ("MUSD", "USD"): 1e6, ("d", "day"): 1.0, ("days", "day"): 1.0, ("t", "tCO2e"): 1.0,
    ("tCO2", "tCO2e"): 1.0, ("GWh", "MWh"): 1e3,
}  # fmt: skip


class UnitProblem(ValueError):
    """A value and its unit do not fit the quantity; the text says why and what to write."""


# The units that a scenario may use. pint's own list has thousands and takes 0.7 s to read. CO2e is a mass, so that
# "380 g/kWh" and "380 gCO2e/kWh" are the same; money, tokens and FLOP are dimensions of their own.
_DEFINITIONS = """
milli- = 1e-3 = m-
kilo- = 1e3 = k-
mega- = 1e6 = M-
giga- = 1e9 = G-
tera- = 1e12 = T-
peta- = 1e15 = P-
exa- = 1e18 = E-
percent = 0.01 = %
metre = [length] = m = meter
second = [time] = s = sec
minute = 60 * second = min
hour = 60 * minute = h = hr
day = 24 * hour = d
week = 7 * day
year = 365.25 * day = yr = y
month = year / 12
gram = [mass] = g = gCO2e = gCO2eq = gCO2
tonne = 1e6 * gram = t = metric_ton = tCO2e = tCO2eq = tCO2 = ton
watt = gram * 1e3 * metre ** 2 / second ** 3 = W
joule = watt * second = J
watt_hour = watt * hour = Wh
litre = 1e-3 * metre ** 3 = L = l = liter
USD = [currency] = _ = dollar
token = [token] = _ = tok
FLOP = [flop] = _ = flop = FLOPs = flops = FLOPS
GPU = 1 = _ = gpu = accelerator = chip
bit = [information]
byte = 8 * bit = B
"""


@functools.cache
def registry() -> Any:
    """Return the pint registry of the units that a scenario may use."""
    import pint

    return pint.UnitRegistry(_DEFINITIONS.strip().splitlines())


def shown(value: object) -> str:
    """Return a value as quoted in messages: short, on one line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def to_number(text: str, unit: str, rates: Mapping[str, float]) -> float:
    """Convert a value with a unit, such as ``"2.10 USD/h"``, to a number in `unit`.

    Parameters
    ----------
    text : str
        A number and a unit.
    unit : str
        Unit of the quantity, as in `gpustack_mc.quantities`; ``"1"`` for pure numbers.
    rates : mapping of str to float
        USD per unit of other currencies.

    Raises
    ------
    UnitProblem
        Not a number, an unknown unit, another dimension, or a currency without a rate.
    """
    match = _QUANTITY.match(text)
    if not match:
        raise UnitProblem(f"{shown(text)} is not a number. Write digits, such as 7e9 or 0.08 USD/kWh.")
    number, suffix = float(match[1].replace("_", "")), match[2]
    if not suffix:
        return number
    if suffix == "%":
        return _percent(number, text, unit)
    if suffix.lower() in _WORDS and unit in ("1", "token", "FLOP"):
        scaled = number * _WORDS[suffix.lower()]
        raise UnitProblem(f"{shown(text)} mixes a number and a word. Write {scaled:g}.")
    if not _UNIT_TEXT.match(suffix) or _HUGE_POWER.search(suffix):
        raise UnitProblem(f"{shown(text)} has no unit that is known. {_written(unit)}")
    return _convert(number, suffix, text, unit, rates)


def _written(unit: str) -> str:
    """Say how a value is written."""
    if unit == "1":
        return "Write a plain number, such as 0.4 or 7e9, or {low: ..., high: ...}."
    return f"Write it in {unit}, such as 4e6 USD or 4 MUSD." if unit == "USD" else f"Write it in {unit}."


def _percent(number: float, text: str, unit: str) -> float:
    if unit not in ("1", "1/year"):
        raise UnitProblem(f"{shown(text)} is a share, but this is in {unit}.")
    return number / 100


def _convert(number: float, suffix: str, text: str, unit: str, rates: Mapping[str, float]) -> float:
    if suffix == unit or (suffix, unit) in _USUAL:
        return number * _USUAL.get((suffix, unit), 1.0)
    import pint

    ureg = registry()
    readable = re.sub(r"\b(GPU|gpu|accelerator|chip)[- ]?(h|hour|hours)\b", "hour", suffix).replace("$", "USD")
    factor = 1.0
    for name in set(_CURRENCY.findall(readable)):
        if name not in rates:
            raise UnitProblem(
                f"{shown(text)} is in {name}, and the scenario states no rate. "
                f"Add `exchange_rates: {{{name}: <USD per {name}>}}`, or convert it to USD."
            )
        factor *= rates[name]
        readable = re.sub(rf"\b([kMGT]?){name}\b", r"\1USD", readable)
    try:
        parsed = ureg.parse_units(readable)
        wanted = ureg.parse_units("dimensionless" if unit == "1" else unit)
        converted = ureg.Quantity(number * factor, parsed).to(wanted)
    except pint.DimensionalityError:
        found, expected = _dimension(parsed.dimensionality), _dimension(wanted.dimensionality)
        expected_unit = "" if unit == "1" else f" (in {unit})"
        raise UnitProblem(f"{shown(text)} is {found}, but this is {expected}{expected_unit}.") from None
    except Exception as error:  # pint raises its own errors, tokenizer errors and plain TypeErrors on odd text
        raise UnitProblem(f"{shown(text)} has no unit that is known ({suffix!r}). {_written(unit)}") from error
    return float(converted.magnitude)


def _dimension(dimensionality: Any) -> str:
    for unit, words in _DIMENSIONS.items():
        if registry().parse_units(unit).dimensionality == dimensionality:
            return words
    plain = str(dimensionality).replace("[", "").replace("]", "").replace(" ** ", "^")
    return f"a {plain}"
