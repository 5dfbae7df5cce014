"""Numbers as people say them: scaled units, and no more digits than the Monte Carlo error and the spread support."""

import math
from typing import NamedTuple


class Step(NamedTuple):
    """One display unit: used from `start` (in the quantity's unit) up; `factor` display units are one unit."""

    start: float
    factor: float
    prefix: str
    suffix: str


# From large to small; the last one takes everything below.
_STEPS: dict[str, tuple[Step, ...]] = {
    "day": (Step(1, 1, "", " d"), Step(1 / 24, 24, "", " h"), Step(0, 1440, "", " min")),
    "MWh": (Step(1e6, 1e-6, "", " TWh"), Step(1e3, 1e-3, "", " GWh"), Step(1, 1, "", " MWh"), Step(0, 1e3, "", " kWh")),
    "MW": (Step(1e3, 1e-3, "", " GW"), Step(1, 1, "", " MW"), Step(1e-3, 1e3, "", " kW"), Step(0, 1e6, "", " W")),
    "tCO2e": (Step(1e6, 1e-6, "", " Mt"), Step(1, 1, "", " t"), Step(0, 1e3, "", " kg")),
    "kgCO2e": (Step(1e3, 1e-3, "", " t"), Step(1, 1, "", " kg"), Step(0, 1e3, "", " g")),
    "USD": (
        Step(1e12, 1e-12, "$", "T"),
        Step(1e9, 1e-9, "$", "B"),
        Step(1e6, 1e-6, "$", "M"),
        Step(1e4, 1e-3, "$", "k"),
        Step(0, 1, "$", ""),
    ),
    "h": (Step(1e9, 1e-9, "", " G h"), Step(1e6, 1e-6, "", " M h"), Step(0, 1, "", " h")),
    "m^3": (Step(1e6, 1e-6, "", " GL"), Step(1, 1, "", " m³"), Step(0, 1e3, "", " L")),
    "year": (Step(0, 1, "", " years"),),
    "USD/h": (Step(0, 1, "$", "/h"),),
    "USD/kWh": (Step(0, 1, "$", "/kWh"),),
    "gCO2e/kWh": (Step(0, 1, "", " g/kWh"),),
    "FLOP": (Step(0, 1, "", " FLOP"),),
    "1": (Step(0, 1, "", ""),),
    "1/year": (Step(0, 100, "", "% a year"),),
}


def steps(unit: str) -> tuple[Step, ...]:
    """Return the display units of a unit, from large to small; the last one takes everything below."""
    return _STEPS.get(unit, (Step(0, 1, "", f" {unit}"),))


def step_for(value: float, unit: str) -> Step:
    """Return the display unit for a value."""
    known = steps(unit)
    # 999.9 MWh would print as 1,000 MWh: choose the unit as the rounded value would.
    return next((step for step in known if abs(value) * 1.0005 >= step.start), known[-1])


def number(value: float, digits: int) -> str:
    """Write a number with significant digits, thousands separators, and powers of ten only where nothing else fits."""
    if math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    rounded = round(value, digits - 1 - magnitude)
    # Rounding 9.96 to two digits gives 10, which has one digit before the point more.
    magnitude = math.floor(math.log10(abs(rounded))) if rounded else magnitude
    if magnitude >= 7 or magnitude < -4:
        mantissa, _, exponent = f"{rounded:.{digits - 1}e}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{rounded:,.{max(digits - 1 - magnitude, 0)}f}"


def with_unit(value: float, unit: str, digits: int, step: Step | None = None, *, exact: bool = False) -> str:
    """Write a value with its scaled unit, e.g. ``$14M`` or ``9.8 GWh``; an exact one without trailing zeros."""
    step = step or step_for(value, unit)
    if exact:
        # People check exact dollars against a bill, to the dollar.
        step = _STEPS["USD"][-1] if unit == "USD" and abs(value) < 1e6 else step
        # Rounding the digits before the point would turn 16,384 accelerators into 16,380.
        whole = math.floor(math.log10(abs(value * step.factor))) + 1 if value else 0
        digits = max(digits, whole if whole <= 7 else 0)
    text = number(value * step.factor, digits)
    if exact and "." in text:
        mantissa, e, exponent = text.partition("e")
        text = mantissa.rstrip("0").rstrip(".") + e + exponent
    if text.startswith("-"):
        return f"-{step.prefix}{text[1:]}{step.suffix}"
    return f"{step.prefix}{text}{step.suffix}"


def digits_for(value: float, low: float, high: float, error: float, unit: str = "") -> int:
    """Return how many significant digits a summary deserves.

    Two for a wide interval, more for a narrow one (four when there is no spread), at least two decimals for shares and
    ratios, whose distance from 1 matters, and never so many that the Monte Carlo error would show in the last one.

    Parameters
    ----------
    value : float
        The number to print.
    low, high : float
        The 90% interval it belongs to.
    error : float
        Monte Carlo standard error of the number.
    unit : str
        Unit of the quantity.
    """
    width = abs(high - low) / abs(value) if value else math.inf
    wanted = 2 if width > 0.1 else 3 if width > 0.005 else 4
    if unit == "1" and 0.1 <= abs(value) < 10:
        wanted = max(wanted, 2 if abs(value) < 0.995 else 3)
    if not error or not value:
        return wanted
    # Half a unit of the last digit must be above the error.
    supported = math.floor(math.log10(abs(value))) - math.ceil(math.log10(2 * error)) + 1
    return max(1, min(wanted, supported))


def interval(low: float, high: float, unit: str, digits: tuple[int, int], step: Step) -> str:
    """Write an interval in one display unit, e.g. ``26 – 61``."""
    ends = [number(end * step.factor, d) for end, d in zip((low, high), digits, strict=True)]
    if step.prefix:
        ends = [f"{step.prefix}{end}{step.suffix}" for end in ends]
    return " – ".join(ends)


def count(value: float, digits: int = 3) -> str:
    """Write a large count as people say it: 70B, 15T, 8,192."""
    for start, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if value >= start:
            return f"{value / start:.{digits}g}{suffix}" if value < start * 1e3 else f"{value / start:,.0f}{suffix}"
    return f"{value:,.0f}"


def median_and_interval(middle: float, low: float, high: float, unit: str) -> str:
    """Write a median with its 90% interval in one display unit, e.g. ``0.33 (0.21 – 0.52)``; a fixed value alone."""
    step = step_for(middle, unit)
    digits = [digits_for(value, low, high, 0.0, unit) for value in (low, middle, high)]
    text = with_unit(middle, unit, digits[1], step, exact=low == high)
    return text if low == high else f"{text} ({interval(low, high, unit, (digits[0], digits[2]), step)})"


def plural(number_of: int, noun: str) -> str:
    """Write a count with its noun: 1 run, 2 runs."""
    return f"{number_of:,} {noun}{'' if number_of == 1 else 's'}"
