"""What `gpustack-mc sensitivity` says: shares of the variance, a tornado in units, and rules that were found."""

import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpustack_mc import formatting, variance_split
from gpustack_mc.quantities import BY_NAME

Found = Mapping[str, Any]
# Shares below this are not told apart from none.
SMALL = 0.01
SHOWN = 10
_LIMITS = {"budget": "the budget", "deadline": "the deadline", "carbon_cap": "the carbon cap",
           "energy_cap": "the energy cap", "power_cap": "the power cap"}  # fmt: skip


def text(found: Found, width: int | None = None) -> str:
    """Return the terminal report: the first output in full, the others in one table; all in full where few."""
    width = max(width or shutil.get_terminal_size((100, 24)).columns, 40)

    def wrapped(line: str, indent: int = 2) -> str:
        return textwrap.fill(line, width, subsequent_indent=" " * indent, break_long_words=False)

    names = list(found["outputs"])
    first, others = (names, []) if len(names) <= 2 else (names[:1], names[1:])
    lines = [wrapped(sentence(found), 0)]
    for name in first:
        lines += _section(found, name, wrapped)
    if others:
        lines += ["", *_matrix(found, others)]
        said = [wrapped(f"  {line}", 4) for name in others for line in regions(found["outputs"][name], name)]
        lines += ["", *said] if said else []
    lines += variance_split.lines({name: found["outputs"][name]["variance_split"] for name in names})
    lines += ["", *(wrapped(f"  note: {note}", 4) for note in found["notes"])] if found["notes"] else []
    lines += ["", wrapped(f"  {_closing(found)}")]
    lines += [wrapped("  " + "  ".join(found["files"]))] if found["files"] else []
    return "\n".join(lines)


def main_share(found: Found) -> str:
    """Return the name of the share by which inputs are ranked."""
    entry = next(iter(found["outputs"].values()))
    return "shapley" if any("shapley" in index for index in entry["inputs"].values()) else "ST"


def ranked(indices: Mapping[str, Any], share: str) -> list[str]:
    """Inputs or groups with a share worth telling, largest first."""
    known = {name: index[share] for name, index in indices.items() if index[share] is not None}
    return sorted((name for name, value in known.items() if value >= SMALL), key=lambda name: -known[name])


def called(output: str) -> str:
    """Return an output's name for a sentence."""
    return BY_NAME[output].short.replace(",", "")


def sentence(found: Found) -> str:
    """Say what the first output depends on most."""
    name, entry = next(iter(found["outputs"].items()))
    share = main_share(found)
    groups = ranked(entry["groups"], share)[:2]
    inputs = ranked(entry["inputs"], share)[:3]
    log = "the logarithm of the " if entry["scale"] == "log" else "the "
    measure = {"ST": "total index", "shapley": "Shapley effect"}[share]
    if not inputs:
        return f"{found['name']}: no single input explains the {called(name)}."
    best = f"{inputs[0]} ({measure} {_plain(entry['inputs'][inputs[0]][share])})"
    rest = f", then {' and '.join(inputs[1:])}" if inputs[1:] else ""
    by_group = ""
    if groups:
        parts = [f"{group} {_plain(entry['groups'][group][share])}" for group in groups]
        by_group = f" By group: {', '.join(parts)}."
    return f"{found['name']}: {log}{called(name)} is most uncertain because of {best}{rest}.{by_group}"


# ---- one output --------------------------------------------------------------------------------------------------


def _section(found: Found, name: str, wrapped: Callable[..., str]) -> list[str]:
    entry = found["outputs"][name]
    low, high = entry["interval_90"]
    span = formatting.median_and_interval(entry["median"], low, high, entry["unit"])
    what = " of its logarithm" if entry["scale"] == "log" else ""
    lines = ["", f"  {BY_NAME[name].short}: {span}, {entry['scope']}; shares of the variance{what} (90% interval)"]
    lines += _table(entry, main_share(found))
    lines += [wrapped(f"  {line}", 4) for line in _afterwards(entry)]
    lines += [wrapped(f"  {line}", 4) for line in regions(entry, name)]
    return lines


def _table(entry: Mapping[str, Any], share: str) -> list[str]:
    columns = (["shapley"] if share == "shapley" else []) + ["S1", "ST"]
    heads = {"shapley": "Shapley", "S1": "first-order S1", "ST": "total ST"}
    held = "tornado" in entry
    rows = [["", *(heads[column] for column in columns), *(["at its 5%", "at its 95%"] if held else [])]]
    for title, key in (("group", "groups"), ("input", "inputs")):
        names = ranked(entry[key], share)
        if not names:
            continue
        rows.append([title] + [""] * (len(rows[0]) - 1))
        for name in names[:SHOWN]:
            cells = [_cell(entry[key][name], column) for column in columns]
            ends = _ends(entry, name) if key == "inputs" and held else [""] * (2 * held)
            rows.append([f"  {name}", *cells, *ends])
        left = [name for name in entry[key] if name not in names[:SHOWN]]
        if left:
            most = max(max(entry[key][name][share] or 0.0, 0.0) for name in left)
            counted = formatting.plural(len(left), "other")
            rows.append([f"  {counted}, at most {max(most, 0.001):.3f} each"] + [""] * (len(rows[0]) - 1))
    sizes = [max(len(row[i]) for row in rows if i == 0 or row[i]) for i in range(len(rows[0]))]
    return ["  " + "   ".join(cell.ljust(size) for cell, size in zip(row, sizes, strict=True)).rstrip()
            for row in rows]  # fmt: skip


def _cell(index: Mapping[str, Any], name: str) -> str:
    value, (low, high) = index[name], index[f"{name}_interval_90"]
    if value is None:
        return "unknown"
    # An estimate of nothing falls on either side of 0 by its noise.
    if abs(value) < SMALL / 2 or (low is not None and low <= 0):
        return "≈0" if low is None or high < SMALL else f"≈0 (at most {high:.2f})"
    digits = 2 if low is None or high - low < 0.2 else 1
    ends = f" ({low:.{digits}f} – {high:.{digits}f})" if low is not None else ""
    return f"{value:.{digits}f}{ends}"


def _plain(value: float) -> str:
    return f"{value:.2f}"


def _ends(entry: Mapping[str, Any], name: str) -> list[str]:
    """Write the medians of the output with an input at its ends, in one display unit."""
    bar, unit = entry["tornado"][name], entry["unit"]
    values = [bar[end]["median"] for end in ("at_5", "at_95")]
    step = formatting.step_for(entry["median"], unit)
    # A third digit where two would not tell the ends of a short bar apart.
    digits = 2 if abs(values[1] - values[0]) > 0.2 * abs(entry["median"]) else 3
    return [formatting.with_unit(value, unit, digits, step) for value in values]


def _afterwards(entry: Mapping[str, Any]) -> list[str]:
    """Say how much is due to interactions, and between which inputs."""
    lines = []
    if "tornado" in entry:
        lines.append("At its 5% and 95%: the median of the output when that input is held there and all others vary.")
    together = entry.get("sum_of_S1")
    if together and together["S1"] is not None:
        high = together["S1_interval_90"][1]
        alone = f"Alone the inputs explain {min(together['S1'], 1.0):.0%} of the variance"
        if high is not None and high < 1 - SMALL / 2:
            lines.append(f"{alone}; the other {1 - together['S1']:.0%} is what they do together.")
        elif together["S1"] > 1 - 5 * SMALL:
            lines.append(f"{alone}: they hardly interact.")
        else:
            lines.append(f"{alone}; these draws are too few to say what they do together.")
    if "second_order" in entry:
        pairs = [f"{' x '.join(pair['inputs'])} {_cell(pair, 'S2') if pair['S2'] >= SMALL else _small(pair)}"
                 for pair in entry["second_order"][:SHOWN]]  # fmt: skip
        more = len(entry["second_order"]) - len(pairs)
        said = f"; and {more} smaller" if more > 0 else ""
        counted = formatting.plural(entry["pairs_examined"], "pair")
        if entry["pairs_examined"]:
            lines.append(f"Second order (S2), above the noise of {counted}: {', '.join(pairs) or 'none'}{said}.")
        else:
            lines.append("Second order (S2): no two independent inputs interact.")
    return lines


def _small(pair: Mapping[str, Any]) -> str:
    return f"{pair['S2']:.3f}"


# ---- regions -----------------------------------------------------------------------------------------------------


def regions(entry: Mapping[str, Any], name: str) -> list[str]:
    """Say what the runs beyond a limit have in common."""
    lines = []
    if "asked_region" in entry:
        lines.append(_seldom(entry["asked_region"], entry, name))
    if "region" in entry:
        lines.append(region_sentence(entry["region"], entry, name))
    return lines


def _limit(found: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    exact = bool(found["question"])
    return formatting.with_unit(found["limit"], entry["unit"], 4 if exact else 2, exact=exact)


def _seldom(found: Mapping[str, Any], entry: Mapping[str, Any], name: str) -> str:
    share = found["share_of_runs"]
    many = "No run has" if share == 0 else f"{max(share, 1e-4):.2%} of all runs have"
    return (f"{many} {called(name)} {found['side']} {_limit(found, entry)} ({_LIMITS[found['question']]}): "
            "nothing tells them apart reliably.")  # fmt: skip


def region_sentence(found: Mapping[str, Any], entry: Mapping[str, Any], name: str) -> str:
    """Say in one or two sentences which inputs put runs beyond a limit, and how much of the region that explains."""
    asked = f"{_LIMITS[found['question']]}; " if found["question"] else ""
    head = f"Runs with {called(name)} {found['side']} {_limit(found, entry)}"
    head += f" ({asked}{_percent(found['share_of_runs'])} of all)"
    if not found["rules"]:
        return f"{head} have no single input in common."
    first, condition = found["rules"][0], _cuts(found["rules"][0]["cuts"])
    caught, low = _share(first, "share_of_region"), first["share_of_region_interval_90"][0]
    others = f"against {_percent(first['share_of_others'])} of the others"
    if low is not None and low > 0.5:
        said = f"{head} mostly have {condition}: {caught} of them, {others}."
    else:
        said = f"{head} have {condition} in {caught} of cases, {others}."
    best = found["rules"][-1]
    said += f" Of all runs with {_cuts(best['cuts'])}, {_share(best, 'probability_inside')} are {found['side']} it"
    if len(found["rules"]) > 1:
        said += f"; they are {_percent(best['share_of_region'])} of all that are"
    return f"{said}."


def _cuts(cuts: Sequence[Mapping[str, Any]]) -> str:
    return " and ".join(f"{cut['name']} {cut['side']} {amount(cut['name'], cut['value'])}" for cut in cuts)


def amount(key: str, value: float, near: float | None = None) -> str:
    """Write a value of an input with its unit; in the display unit of a value near it, where one is given."""
    unit = BY_NAME[key.partition("@")[0]].unit
    digits = formatting.digits_for(value, value / 2, value * 2, 0.0, unit)
    return formatting.with_unit(value, unit, digits, formatting.step_for(value if near is None else near, unit))


def _percent(value: float | None) -> str:
    if value is None:
        return "unknown"
    return "<1%" if 0 < value < 0.01 else f"{value:.0%}"


def _share(rule: Mapping[str, Any], name: str) -> str:
    """Write a share with the half width of its 90% Monte Carlo interval."""
    low, high = rule[f"{name}_interval_90"]
    return _percent(rule[name]) + (f" ± {max((high - low) / 2, 0.0005):.1%}" if low is not None else "")


# ---- the other outputs -------------------------------------------------------------------------------------------


def _matrix(found: Found, names: Sequence[str]) -> list[str]:
    share = main_share(found)
    title = {"ST": "total index ST", "shapley": "Shapley effect"}[share]
    lines = [f"  {title} of other outputs"]
    rows = [["", *(called(name) for name in names)]]
    for key, head in (("groups", "group"), ("inputs", "input")):
        entries = [found["outputs"][name][key] for name in names]
        sizes = {row: max((entry[row][share] or 0.0) for entry in entries) for row in entries[0]}
        shown = [row for row in sorted(sizes, key=lambda row: -sizes[row]) if sizes[row] >= SMALL]
        if not shown:
            continue
        rows.append([head] + [""] * len(names))
        rows += [[f"  {row}", *(_short(entry[row][share]) for entry in entries)] for row in shown[:SHOWN]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(size) for cell, size in zip(row[1:], widths[1:], strict=True))]
        lines.append("  " + "   ".join(cells).rstrip())
    return lines


def _short(value: float | None) -> str:
    if value is None:
        return "unknown"
    return "·" if value < SMALL else _plain(value)


def _closing(found: Found) -> str:
    return (
        "S1: share of the variance that would go if the input were known; ST: share that would stay if only it were "
        f"unknown. Intervals are of the Monte Carlo error. Seed {found['seed']}, {found['samples']:,} samples."
    )
