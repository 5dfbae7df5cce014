"""What `gpustack-mc measure` says: what to measure first and why, widths, and the value of knowing."""

import shutil
import textwrap
from collections.abc import Mapping
from typing import Any

from gpustack_mc import formatting
from gpustack_mc.answering import WITHIN
from gpustack_mc.quantities import BY_NAME

Found = Mapping[str, Any]
# A saving below this share of the width is not told from none.
SMALL = 0.005
SHOWN = 10
_OTHER = {"own": "cost_rented_usd", "rent": "cost_owned_usd"}
_HEADS = {
    "training_days": "run time", "energy_mwh": "energy", "facility_power_mw": "power", "co2e_t": "CO2e",
    "cost_owned_usd": "owned", "cost_rented_usd": "rented",
}  # fmt: skip


def columns(found: Found) -> list[str]:
    """Outputs that are shown: those that vary, without the cost that was not asked for."""
    skip = _OTHER.get(found["ownership"])
    return [name for name in _HEADS if name != skip and found["width_90"][name]["value"] > 0]


def narrowing(found: Found, key: str, output: str, how: str = "perfect") -> float:
    """Share by which the expected width of an output's 90% interval falls when an input is known."""
    now: float = found["width_90"][output]["value"]
    known: float = found["expected_width_90"][key][how][output]["value"]
    return 1 - known / now


def main_output(found: Found) -> str:
    """Output by which inputs are ranked: the cost."""
    return "cost_rented_usd" if found["ownership"] == "rent" else "cost_owned_usd"


def ranked(found: Found) -> list[str]:
    """Inputs, first those that narrow the cost most, then those that narrow any output."""
    outputs, main = columns(found), main_output(found)

    def rank(key: str) -> tuple[float, float]:
        cost = narrowing(found, key, main)
        return (-cost if cost > SMALL else 0.0, -max(narrowing(found, key, name) for name in outputs))

    return sorted(found["expected_width_90"], key=rank)


def text(found: Found, width: int | None = None) -> str:
    """Return the terminal report."""
    width = max(width or shutil.get_terminal_size((100, 24)).columns, 40)

    def wrapped(line: str, indent: int = 2) -> str:
        return textwrap.fill(line, width, subsequent_indent=" " * indent, break_long_words=False)

    lines = [wrapped(sentence(found), 0), ""]
    lines += _table(found)
    lines += _decision_lines(found, wrapped)
    lines += ["", wrapped(f"  {_closing(found)}")]
    lines += [wrapped("  " + "  ".join(found["files"]))] if found["files"] else []
    return "\n".join(lines)


def sentence(found: Found) -> str:
    """Say what to measure first, and why."""
    main, first = main_output(found), ranked(found)[0]
    exact, stated = narrowing(found, first, main), narrowing(found, first, main, "measured")
    accuracy = found["expected_width_90"][first]["accuracy"]
    what = BY_NAME[first.partition("@")[0]].description
    what = what if what[:2].isupper() else what[0].lower() + what[1:]
    if exact <= SMALL:
        return f"No single measurement narrows the {BY_NAME[main].short.replace(',', '')}."
    return (
        f"Measure {first} first ({what}): known exactly, it narrows the 90% interval of the "
        f"{BY_NAME[main].short.replace(',', '')} by {exact:.0%} in expectation, measured to {_percent(accuracy)} "
        f"(relative standard uncertainty) by {max(stated, 0):.0%}."
    )


def _percent(value: float) -> str:
    return f"{100 * value:.3g}%"


def _share(value: float) -> str:
    return "·" if value <= SMALL else f"-{value:.0%}"


def _table(found: Found) -> list[str]:
    outputs = columns(found)
    rows = [
        ["", "accuracy", *(_HEADS[name] for name in outputs)],
        ["width now", "", *(_width(found, name) for name in outputs)],
    ]
    shown = [key for key in ranked(found) if any(narrowing(found, key, name) > SMALL for name in outputs)]
    for key in shown[:SHOWN]:
        accuracy = f"to {_percent(found['expected_width_90'][key]['accuracy'])}"
        rows.append([key, "exact", *(_share(narrowing(found, key, name)) for name in outputs)])
        rows.append(["", accuracy, *(_share(narrowing(found, key, name, "measured")) for name in outputs)])
    sizes = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  expected change of the width of the 90% interval"]
    for row in rows:
        left = [cell.ljust(size) for cell, size in zip(row[:2], sizes[:2], strict=True)]
        right = [cell.rjust(size) for cell, size in zip(row[2:], sizes[2:], strict=True)]
        lines.append("  " + "   ".join(left + right).rstrip())
    if len(shown) > SHOWN:
        lines.append(f"  and {len(shown) - SHOWN} inputs with less effect, see --json")
    return lines


def _width(found: Found, name: str) -> str:
    entry = found["width_90"][name]
    return formatting.with_unit(entry["value"], entry["unit"], 2)


def _decision_lines(found: Found, wrapped: Any) -> list[str]:
    decision = found["decision"]
    if decision is None:
        return []
    best, chance = decision["best_now"], decision["probability_best"]
    all_known = decision["perfect_information_usd"]
    lines = [
        "",
        wrapped(
            f"  decision: {decision['words']}. Best on what is known: {best}, which is right with probability "
            f"{chance:.2f}. Knowing everything would be worth {_money(all_known)}; no study is worth more."
        ),
    ]
    inputs = decision["inputs"]
    worth = sorted(inputs, key=lambda key: -inputs[key]["perfect"]["value"])
    rows = []
    for key in worth:
        entry = inputs[key]
        if entry["perfect"]["value"] > max(SMALL * all_known["value"], _noise_of(entry["perfect"])):
            measured = f"{_money(entry['measured'])} to {_percent(entry['accuracy'])}"
            rows.append((key, _money(entry["perfect"]), measured))
    rows += [(" + ".join(each["inputs"]), _money(each["value_usd"]), "") for each in decision["together"]]
    if not rows:
        return [*lines, wrapped("  No single input is worth measuring for it: none could change the decision.")]
    sizes = [max(len(row[i]) for row in rows) for i in range(3)]
    lines.append("  value of knowing one input: exactly, and measured (90% Monte Carlo interval)")
    lines += [
        "  " + "   ".join(cell.ljust(size) for cell, size in zip(row, sizes, strict=True)).rstrip() for row in rows
    ]
    return lines


def _noise_of(entry: Mapping[str, Any]) -> float:
    return WITHIN * (entry["monte_carlo_error"] or 0.0)


def _money(entry: Mapping[str, Any]) -> str:
    value, half = entry["value"], WITHIN * (entry["monte_carlo_error"] or 0.0)
    step = formatting.step_for(value, "USD")
    digits = formatting.digits_for(value, value, value, half / WITHIN, "USD")
    digits = min(digits, 3)
    return f"{formatting.with_unit(value, 'USD', digits, step)} ± {formatting.with_unit(half, 'USD', 1, step)}"


def _closing(found: Found) -> str:
    return (
        f"Widths are expected before the measurement; a single one may widen the interval. Accuracy is the relative "
        f"standard uncertainty of the measurement. Seed {found['seed']}, {found['samples']:,} samples."
    )
