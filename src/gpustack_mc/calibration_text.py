"""What ``gpustack-mc calibrate`` says of a calibration."""

import math
import shutil
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gpustack_mc import formatting
from gpustack_mc.quantities import BY_NAME

PICTURE = "before-after.png"
UTILIZATION = "effective_utilization"
_LINES = 5  # lines that are named for one reason
_STILL = 0.005  # a change that would be printed as 0%


def text(about: Mapping[str, Any], out: Path | None, width: int | None = None) -> str:
    """Return what the command prints, from `record`; `width` are the columns of the terminal."""
    width = max(width or shutil.get_terminal_size((100, 24)).columns, 60)
    lines = [_counts(about)]
    lines += [f"  {line}" for line in _reasons(about["rows_not_used"])]
    lines += [f"  not used: {line}" for line in _reasons(about["cells_not_used"])]
    lines += [f"  note: {note}" for note in about["notes"]]
    lines += ["", *_lead(about), ""]
    table = [*_moved_lines(about["inputs"]), ""] if about["inputs"] else []
    said = [f"  {sentence(key, entry)}" for key, entry in about["inputs"].items()]
    after = [f"  surprising: {surprise['text']}" for surprise in about["surprising"]]
    after += ["", *_closing(about, out)]
    return "\n".join([*_wrapped(lines, width), *table, *_wrapped([*said, *after], width)])


def _wrapped(lines: Iterable[str], width: int) -> list[str]:
    return [textwrap.fill(line, width, subsequent_indent="    ", break_long_words=False) for line in lines]


def _counts(about: Mapping[str, Any]) -> str:
    lost, cells = len(about["rows_not_used"]), len(about["cells_not_used"])
    parts = [f"{formatting.plural(about['rows_used'], 'run')} used"]
    parts += [f"{lost:,} not"] if lost else []
    parts += [f"{cells:,} of their measurements not"] if cells else []
    return ", ".join(parts) + (":" if lost or cells else ".")


def _reasons(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """One line per reason, with the lines of the file that it concerns."""
    lines: dict[str, list[int]] = {}
    for entry in entries:
        lines.setdefault(entry["reason"], []).append(entry["line"])
    found = []
    for reason, numbers in lines.items():
        more = f" and {len(numbers) - _LINES:,} more" if len(numbers) > _LINES else ""
        named = ", ".join(str(number) for number in numbers[:_LINES])
        found.append(f"line{'s' if len(numbers) > 1 else ''} {named}{more}: {reason}")
    if len(found) > _LINES * 2:
        rest = len(found) - _LINES * 2
        return [*found[: _LINES * 2], f"{rest:,} other reasons: --json and pack.json name all."]
    return found


def _lead(about: Mapping[str, Any]) -> list[str]:
    """Say the forecast of utilisation as a sentence."""
    if UTILIZATION not in about["inputs"]:
        return []
    entry = about["inputs"][UTILIZATION]
    before, after = (formatting.number(entry[part]["median"], 2) for part in ("before", "after"))
    return [f"For {entry['for']} expect {after} of peak over all its hours, where the published runs say {before}."]


def _amount(entry: Mapping[str, Any], part: str) -> str:
    low, high = entry[part]["interval_90"]
    return formatting.median_and_interval(entry[part]["median"], low, high, entry["unit"])


def _moved_lines(inputs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One line per input: before, after, and how far it moved."""
    rows = [("", "shipped prior", "with your runs", "median", "width", "rows")]
    for key, entry in inputs.items():
        rows.append((_name(key), _amount(entry, "before"), _amount(entry, "after"), *_distance(entry)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  " + "  ".join([*(c.ljust(w) for c, w in zip(row[:3], widths[:3], strict=True)),
                          *(c.rjust(w) for c, w in zip(row[3:], widths[3:], strict=True))])
        for row in rows
    ]  # fmt: skip


def _name(key: str) -> str:
    return BY_NAME[key].short if key == UTILIZATION else key


def _distance(entry: Mapping[str, Any]) -> tuple[str, str, str]:
    """Ratio of the medians, of the widths of the intervals on a log scale, and how many rows speak."""
    before, after = entry["before"], entry["after"]
    ratio = after["median"] / before["median"]
    return f"x{ratio:.2f}", f"{_log_width(after) / _log_width(before):.0%}", f"{entry['measurements']:,}"


def sentence(key: str, entry: Mapping[str, Any]) -> str:
    """Say how far the user's rows moved one input, and what they did to its interval.

    Parameters
    ----------
    key : str
    entry : mapping
        Of ``inputs`` in the record, with ``before``, ``after`` and ``measurements``.
    """
    before, after, rows = entry["before"], entry["after"], entry["measurements"]
    change = after["median"] / before["median"] - 1
    ending = "s" if rows == 1 else ""
    direction = "up" if change > 0 else "down"
    moved = f"move{ending} its median {direction} by {abs(change):.0%}"
    if abs(change) < _STILL:
        moved = f"leave{ending} its median where it was"
    low, high = before["interval_90"]
    where = "inside" if low <= after["median"] <= high else "outside"
    width = _log_width(after) / _log_width(before)
    size = "as wide as before" if abs(width - 1) < _STILL else f"{width:.0%} as wide"
    return (
        f"{_name(key)}: {formatting.plural(rows, 'row')} of yours {moved}, {where} the shipped 90% interval; "
        f"the new one is {size}."
    )


def _log_width(part: Mapping[str, Any]) -> float:
    return math.log(part["interval_90"][1] / part["interval_90"][0])


def _closing(about: Mapping[str, Any], out: Path | None) -> list[str]:
    lines = ["Inputs that are not named keep their shipped priors."]
    if about["inputs"]:
        lines = [
            "Medians and 90% intervals for your next run; median and width (of the interval, on a log scale) against "
            "the shipped prior. Inputs that are not named keep theirs."
        ]
    found = about["utilization"]
    if found is not None and found["diagnostics"]:
        d = found["diagnostics"]
        smallest = min(d["ess_bulk"], d["ess_tail"])
        lines.append(
            f"Utilisation was sampled anew: R-hat {d['r_hat']:.3f}, effective sample size {smallest:,.0f}, "
            f"{d['divergences'] or 'no'} divergences."
        )
    elif found is not None:
        k_hat = f", k-hat {found['k_hat']:.2f}" if found["k_hat"] is not None else ""
        lines.append(f"Utilisation by weighting the shipped draws: {found['effective_draws']:,.0f} effective{k_hat}.")
    if out is not None:
        shown = f"; {PICTURE} shows what moved." if about["inputs"] else "."
        lines.append(f"{out}/: use it with `gpustack-mc run SCENARIO --priors {out}`{shown}")
    return lines
