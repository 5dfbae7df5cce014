"""What a sweep says of its scenarios taken together."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gpustack_mc.errors import InputError, did_you_mean
from gpustack_mc.problem import QUESTIONS

# Limits that add up over runs; a deadline and a power cap do not.
TOTALS = ("budget", "carbon_cap", "energy_cap")


class PortfolioSpec(NamedTuple):
    """Limits of the totals, as written, and how inputs that differ are coupled."""

    limits: Mapping[str, Any]
    independent: bool


def read_portfolio(stated: Any, fail: Callable[..., InputError]) -> PortfolioSpec:
    """Read the part ``portfolio`` of a sweep.

    Raises
    ------
    InputError
        A key is unknown.
    """
    stated = {} if stated is None else stated
    if not isinstance(stated, dict):
        raise fail(("portfolio",), "is not a mapping of keys to values.", "Write e.g. `portfolio: {budget: 90 MUSD}`.")
    known = (*TOTALS, "independent")
    for key in stated:
        if key not in known:
            raise fail(("portfolio", key), "is not known.", did_you_mean(key, known), "unknown-key")
    independent = stated.get("independent", False)
    if not isinstance(independent, bool):
        raise fail(("portfolio", "independent"), "is neither true nor false.")
    limits = {key: stated[key] for key in TOTALS if stated.get(key) is not None}
    for key, value in limits.items():
        if not isinstance(value, str):
            fix = f"Write it with one, such as {value} {QUESTIONS[key][1]}."
            raise fail(("portfolio", key), f"{value} has no unit.", fix, "bad-unit")
    return PortfolioSpec(limits, independent)
