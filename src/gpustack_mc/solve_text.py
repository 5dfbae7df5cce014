"""What `gpustack-mc solve` says: one plain sentence, the chances, what follows from the solution."""

import math
import shutil
import textwrap
from collections.abc import Mapping
from typing import Any

from gpustack_mc import conditions, formatting
from gpustack_mc.problem import Term
from gpustack_mc.quantities import BY_NAME

Found = Mapping[str, Any]


def said(found: Found, value: float, digits: int = 3) -> str:
    """Write a value of what was solved for as people say it."""
    if found["whole"]:
        return f"{value:,.0f}"
    if found["quantity"] in ("params", "tokens", "served_tokens"):
        return formatting.count(value, max(digits, 3))
    return formatting.with_unit(value, found["unit"], digits)


def terms(found: Found) -> str:
    """Write the condition without its probability."""
    return " and ".join(
        conditions.spoken(Term(term["output"], term["relation"], term["limit"])) for term in found["condition"]
    )


def percent(share: float) -> str:
    """Write a probability; nearly 0 and nearly 1 are not 0 and 1."""
    if share < 0.001:
        return "<0.1%" if share > 0 else "0%"
    return ">99.9%" if 0.999 < share < 1 else f"{100 * share:.3g}%"


def sentence(found: Found) -> str:
    """Return the answer in one plain sentence."""
    chance = f"a {percent(found['probability'])} chance of {terms(found)}"
    if found["status"] == "always":
        low, high = (said(found, end) for end in found["searched"])
        return f"Any {found['for']} from {low} to {high} gives {chance}."
    values = [said(found, _holding(each), _digits(each)) for each in found["solutions"]]
    holds = [each["holds"] for each in found["solutions"]]
    counted = found["what"]
    if holds == ["at least", "at most"]:
        middle = f"{values[0]} to {values[1]}"
    else:
        middle = ", or ".join(f"{side} {value}" for side, value in zip(holds, values, strict=True))
    if counted:
        return f"{middle[0].upper()}{middle[1:]} {counted} give {chance}."
    return f"{found['for']} of {middle} gives {chance}."


def _holding(solution: Mapping[str, Any]) -> float:
    """Round a solution to the digits it is said with, towards the side on which the condition holds."""
    value: float = solution["value"]
    if not value or value == round(value):
        return value
    step = 10.0 ** (math.floor(math.log10(abs(value))) - _digits(solution) + 1)
    # A value that needs no rounding must not be moved by its last binary digit.
    places = value / step
    rounded = math.ceil(places - 1e-6) if solution["holds"] == "at least" else math.floor(places + 1e-6)
    return rounded * step


def _digits(solution: Mapping[str, Any]) -> int:
    low, high = solution["monte_carlo_interval_90"]
    value, error = solution["value"], abs(high - low) / 3.5
    return max(min(formatting.digits_for(value, value, value, error), 3), 2)


def text(found: Found, width: int | None = None) -> str:
    """Return the terminal report."""
    width = max(width or shutil.get_terminal_size((100, 24)).columns, 40)

    def wrapped(line: str, indent: int = 2) -> str:
        return textwrap.fill(line, width, subsequent_indent=" " * indent, break_long_words=False)

    if "instead" in found:
        return "\n".join(wrapped(line, 4 if line.startswith("  note") else 2) for line in _instead(found))
    if found["for"] == "served_tokens":
        return "\n".join(wrapped(line, 4 if line.startswith("  note") else 2) for line in _served(found))
    lines = [wrapped(sentence(found), 0), ""]
    for each in found["solutions"]:
        low, high = (said(found, end, _digits(each) + 1) for end in each["monte_carlo_interval_90"])
        value = said(found, each["value"], _digits(each) + 1)
        lines.append(f"  solution {value}; its 90% Monte Carlo interval {low} – {high}")
    own = said(found, found["scenario"]["value"])
    lines.append(f"  at the scenario's own {own} the chance is {percent(found['scenario']['probability'])}")
    lines += _break_even(found)
    lines += _chances(found)
    at = found["solutions"][0]["value"] if found["solutions"] else found["scenario"]["value"]
    lines += ["", f"  at {said(found, at)} (median and 90% interval)"]
    labels = {name: BY_NAME[name].short for name in found["outputs"]}
    longest = max(map(len, labels.values()))
    lines += [f"  {labels[name].ljust(longest)}   {interval(entry)}" for name, entry in found["outputs"].items()]
    return "\n".join([*lines, *_ending(found, wrapped)])


def _ending(found: Found, wrapped: Any) -> list[str]:
    notes = [wrapped(f"  note: {note}.", 4) for note in found["notes"]]
    lines = ["", *notes] if notes else []
    lines += ["", wrapped(f"  Seed {found['seed']}, {found['samples']:,} samples, the same draws for every value.")]
    return lines + ([wrapped("  " + "  ".join(found["files"]))] if found["files"] else [])


def _chances(found: Found) -> list[str]:
    if not any(each["value"] is not None for each in found["chances"]):
        return []
    cells = [
        (percent(each["probability"]), "none" if each["value"] is None else said(found, each["value"]))
        for each in found["chances"]
    ]
    widths = [max(len(part) for part in pair) for pair in cells]
    longest = max(len(found["for"]), 6)
    rows = ["   ".join(pair[i].rjust(size) for pair, size in zip(cells, widths, strict=True)) for i in (0, 1)]
    labels = ("chance", found["for"])
    return ["", *(f"  {label.ljust(longest)}   {row}" for label, row in zip(labels, rows, strict=True))]


def _break_even(found: Found) -> list[str]:
    """Say where single draws break even, when two outputs are compared: the chances are its distribution."""
    if not any(isinstance(term["limit"], str) for term in found["condition"]):
        return []
    by_chance = {each["probability"]: each["value"] for each in found["chances"]}
    low, middle, high = (by_chance.get(chance) for chance in (0.05, 0.5, 0.95))
    if middle is None:
        return []
    if low is not None and high is not None and high < low:
        low, high = high, low
    ends = [f"beyond {said(found, found['searched'][i])}" if end is None else said(found, end)
            for i, end in ((0, low), (1, high))]  # fmt: skip
    return [f"  break-even of single draws: median {said(found, middle)}, 90% interval {ends[0]} – {ends[1]}"]


def interval(entry: Mapping[str, Any]) -> str:
    """Write the median and the 90% interval of an output."""
    unit, (low, high) = entry["unit"], entry["interval_90"]
    step = formatting.step_for(entry["median"], unit)
    digits = [formatting.digits_for(value, low, high, 0.0, unit) for value in (low, entry["median"], high)]
    middle = formatting.with_unit(entry["median"], unit, digits[1], step)
    return f"{middle} ({formatting.interval(low, high, unit, (digits[0], digits[2]), step)})"


def _served(found: Found) -> list[str]:
    first = next(iter(found["break_even"].values()))
    low, high = (formatting.count(end) for end in _two(first["interval_90"]))
    middle = formatting.count(_two([first["median"]])[0])
    alike = all(entry["interval_90"] == first["interval_90"] for entry in found["break_even"].values())
    ratio_low, ratio_high = (formatting.number(end, 2) for end in found["per_training_token"]["interval_90"])
    lines = [
        f"Serving outweighs training after {low} to {high} output tokens (90% interval), median {middle}: "
        f"{ratio_low} to {ratio_high} for each training token.",
        "",
    ]
    if alike:
        words = " and ".join(", ".join(found["break_even"]).rsplit(", ", 1))
        lines.append(f"  The same number for {words}: an hour of serving is charged as an hour of training.")
    else:
        lines += [
            f"  {name.ljust(8)} {formatting.count(_two([entry['median']])[0])} "
            f"({' – '.join(formatting.count(end) for end in _two(entry['interval_90']))})"
            for name, entry in found["break_even"].items()
        ]
    lines += ["", *(f"  note: {note}." for note in found["notes"])]
    return [*lines, "", f"  Seed {found['seed']}, {found['samples']:,} samples."] + (
        ["  " + "  ".join(found["files"])] if found["files"] else []
    )


def _instead(found: Found) -> list[str]:
    two, ratio = found["instead"], found["training_ratio"]
    small, large = (f"{formatting.count(two[of + 'params'])} parameters" for of in ("", "of_"))
    tokens = [formatting.count(two[of + "tokens"]) for of in ("", "of_")]
    lines = [
        f"{small} on {tokens[0]} tokens reach the loss of {large} on {tokens[1]}: training takes "
        f"{formatting.number(ratio['median'], 2)} times as much energy, serving less.",
        "",
        "  served tokens after which the smaller model has taken less in total (median and 90% interval)",
    ]
    for name, entry in found["break_even"].items():
        middle, low, high = (
            "never" if end is None else formatting.count(_two([end])[0])
            for end in (entry["median"], *entry["interval_90"])
        )
        never = entry["probability_never"]
        lines.append(f"  {name.ljust(6)}   {middle} ({low} – {high})" + (f", never in {percent(never)}" * (never > 0)))
    others = [(name, value) for name, value in found["tokens_by_law"].items() if name != found["law"]["name"]]
    said_of = [
        f"{'no number of' if value is None else formatting.count(value)} tokens by the coefficients of {name}"
        for name, value in others
    ]
    lines += ["", *(f"  note: {note}." for note in [*found["notes"], *said_of])]
    lines += ["", f"  Seed {found['seed']}, {found['samples']:,} samples."]
    return lines + (["  " + "  ".join(found["files"])] if found["files"] else [])


def _two(values: list[float]) -> list[float]:
    return [float(f"{value:.2g}") for value in values]
