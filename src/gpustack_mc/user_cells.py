"""Single cells of a user's table: numbers inside their bounds, words out of a few."""

import math
from collections.abc import Mapping

from gpustack_mc.errors import did_you_mean
from gpustack_mc.quantities import BY_NAME, INPUTS
from gpustack_mc.run_columns import COLUMNS, Column
from gpustack_mc.run_table import UnusableError, positive

_NUMBERS = tuple(column.name for column in COLUMNS.values() if column.unit)
_WORDS = {
    "architecture": ("dense", "moe", "encoder", "ssm"),
    "precision": ("bf16", "fp16", "fp8"),
    "activation_recompute": ("none", "selective", "full"),
    "flash_attention": ("yes", "no"),
    "operator": ("hyperscaler", "colocation", "hpc", "enterprise"),
    "provider_kind": ("hyperscaler", "neocloud", "marketplace"),
    "term": ("on_demand", "1yr", "3yr", "spot"),
    "carbon_basis": ("direct", "lifecycle"),
    "tier": ("a", "b"),
    "mfu_convention": ("6N_only", "6N+attn_full", "6N+attn_causal", "6N+attn_unspecified", "hw_recompute", "unknown"),
}
_ONE = ("mfu_reported", "goodput")


def values(cells: Mapping[str, str], reasons: list[str]) -> dict[str, float]:
    """Return the numbers of a row, each inside its bounds.

    One that is wrong is left out and named in `reasons`: what needs it then says that it is missing, and the rest of
    the row stands.
    """
    found = {}
    for name in _NUMBERS:
        if cells.get(name):
            try:
                found[name] = _value(cells, COLUMNS[name])
            except UnusableError as error:
                reasons.append(str(error))
    return found


def _value(cells: Mapping[str, str], column: Column) -> float:
    if column.low >= 0 and column.name != "pue":
        value = positive(cells, column.name)
    else:
        value = _number(cells[column.name], column.name)
    if not column.low <= value <= column.high:
        raise UnusableError(_outside(column, cells[column.name]))
    return value


def _number(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or "_" in text:
        raise UnusableError(f"{name} is not a number: {text[:40]!r}; write 1.2.")
    return value


def _outside(column: Column, text: str) -> str:
    """Say what is wrong with a number beyond the bounds of its column."""
    value = float(text)
    if column.name.startswith("params") and value < column.low:
        return f"{column.name} is {text}: params in billions? write 7e9."
    if column.name == "tokens" and value < column.low:
        return f"tokens is {text}: tokens in billions? write 2e12."
    side, bound = ("below", column.low) if value < column.low else ("above", column.high)
    if column.name in _ONE:
        return f"{column.name} is {text}, {side} {bound:g}: a share; 38% is written 0.38."
    unit = "a plain number, without billions" if column.unit == "1" else f"in {column.unit}"
    reason = BY_NAME[column.name].reason if column.name in INPUTS else unit
    return f"{column.name} is {text}, {side} {bound:g}: {reason}."


# A row says less without these, and nothing else; without a region or a tier it would say something else.
_SHARPENING = ("activation_recompute", "flash_attention")


def words(cells: Mapping[str, str], reasons: list[str]) -> dict[str, str]:
    """Return the texts that must be one of a few.

    Raises
    ------
    UnusableError
        One of them is not, and without it the row would speak of something else.
    """
    found = {}
    for name, allowed in _WORDS.items():
        text = cells.get(name, "")
        if not text:
            continue
        by_lower = {word.lower(): word for word in allowed}
        if text.lower() not in by_lower:
            message = f"{name} is {text[:40]!r}; {did_you_mean(text, allowed)}"
            if name not in _SHARPENING:
                raise UnusableError(message)
            reasons.append(message)
            continue
        found[name] = by_lower[text.lower()]
    return found
