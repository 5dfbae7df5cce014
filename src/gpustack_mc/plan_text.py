"""What a plan says, in plain words: the same on the terminal, in Markdown and on the page."""

import shutil
import textwrap
from typing import Any

from gpustack_mc import answering, formatting, measure_text, reliability, summarizing
from gpustack_mc.quantities import BY_NAME

Found = dict[str, Any]
_SHARDING = {
    "replicated": "nothing sharded: each accelerator holds all",
    "optimizer sharded": "optimizer state sharded (ZeRO-1, distributed optimizer)",
    "optimizer and gradients sharded": "optimizer state and gradients sharded (ZeRO-2)",
    "all sharded": "all sharded (ZeRO-3, FSDP)",
}


# ---- the run -----------------------------------------------------------------------------------------------------


def run_rows(found: Found) -> list[tuple[str, str]]:
    """Return what is trained, on what and where."""
    work = found["workload"]
    active = ""
    if work["active_params"] != work["params"]:
        active = f", of which {formatting.count(work['active_params'])} are used for each token"
    of = "active parameter" if active else "parameter"
    flop = found["summary"]["outputs"]["training_flop"]
    rows = [
        ("model", f"{formatting.count(work['params'])} parameters{active}"),
        ("training tokens", f"{formatting.count(work['tokens'])}, {work['tokens_per_param']:,.3g} per {of}"),
        ("compute", f"{summarizing.with_interval(flop)}: 6 FLOP per active parameter and token"),
        ("accelerators", f"{work['count']:,.0f} {work['accelerator']}, {work['precision']}"),
        ("place", work["region"]),
        ("paid as", {"own": "owned", "rent": "rented", "either": "owned or rented, not decided"}[found["ownership"]]),
    ]
    finish = found["summary"].get("finish")
    if finish:
        low, high = finish["interval_90"]
        rows.append(("dates", f"starts {finish['start']}, ends {finish['median']} (90%: {low} to {high})"))
    return rows


# ---- memory ------------------------------------------------------------------------------------------------------


def memory_sentence(found: Found) -> str:
    """Say whether the state of the model fits, and with how much sharding."""
    held = found["memory"]
    if held is None:
        return "The memory of the accelerator is not known: state it with --memory, e.g. --memory '80 GB'."
    state, count = held["state_gb"]["total"], held["count"]
    first = next((way for way in held["ways"] if way["fits"]), None)
    said = (
        f"Weights, gradients and optimizer state take {_size(state)} "
        f"({held['bytes_per_param']['total']:g} bytes per parameter); "
    )
    if first is None:
        return said + (
            f"sharded over all {count:,.0f} accelerators that leaves {_size(held['memory_gb'] - state / count)} of "
            f"{_size(held['memory_gb'])} on each, less than the {_size(held['activations_gb'])} of activations: split "
            f"the model itself, or recompute them."
        )
    way = {
        "replicated": "they fit on each accelerator without sharding",
        "optimizer sharded": "they fit when the optimizer state is sharded",
        "optimizer and gradients sharded": "they fit when optimizer state and gradients are sharded",
        "all sharded": "they fit when all of it is sharded",
    }[first["sharding"]]
    degree = held["model_parallel"]
    if first["sharding"] == "all sharded" and degree:
        way = f"they fit when all of it is sharded, or when the model itself is split {degree:,} ways"
    kept = "" if held["activations_gb"] is None else f"beside {_size(held['activations_gb'])} of activations "
    least = formatting.plural(held["least_count"], "such accelerator")
    return f"{said}{kept}{way}. No fewer than {least} could hold them."


def memory_rows(found: Found) -> list[tuple[str, str, str, str]]:
    """Return one row per way of sharding: what it is, what an accelerator holds, what is left, whether it fits."""
    return [
        (_SHARDING[way["sharding"]], _size(way["state_gb"]), _size(way["left_gb"]), "yes" if way["fits"] else "no")
        for way in (found["memory"] or {"ways": []})["ways"]
    ]


def memory_notes(found: Found) -> list[str]:
    """Return what the fit rests on."""
    held = found["memory"]
    if held is None:
        return []
    parts = held["bytes_per_param"]
    whose = "as stated" if held["state"] == "stated" else "Adam in mixed precision with fp32 gradients"
    notes = [
        f"Per parameter: {parts['weights']:g} bytes of weights, {parts['gradients']:g} of gradients, "
        f"{parts['optimizer']:g} of optimizer state ({whose}; --bytes-per-param changes it)."
    ]
    if held["per_site"]:
        notes.append(f"Each site holds the model: the smallest has {held['count']:,.0f} accelerators.")
    if held["activations"] == "unknown":
        notes.append(
            "Activations are not counted, because n_layers, d_model or sequence_length is not stated under workload; "
            "--activations '20 GB' states them."
        )
    elif held["activations"] == "computed":
        full = held["recompute"] == "full"
        how = "with full recomputation" if full else "kept, without the attention scores"
        notes.append(
            f"Activations are those of one sequence of {held['sequence_length']:,} tokens per accelerator, {how}; "
            f"tensor, sequence and pipeline parallelism divide them further."
        )
    degree = held["model_parallel"]
    if degree is not None and degree > 1:
        notes.append(
            f"Split {degree:,} ways: by tensor and pipeline parallelism, with the optimizer state sharded over all "
            f"accelerators; the least power of two that fits."
        )
    notes.append(
        f"A checkpoint of weights and optimizer state holds {_size(held['checkpoint_gb'])}. Not counted: buffers of "
        f"communication, fragmentation, the driver. {_size(held['memory_gb'])} is the accelerator's data sheet, 1 GB = "
        f"1e9 bytes."
    )
    return notes


def _size(gigabytes: float) -> str:
    value, unit = (gigabytes / 1e3, "TB") if abs(gigabytes) >= 999.5 else (gigabytes, "GB")
    return f"{formatting.number(value, 3 if abs(value) >= 100 else 2)} {unit}"


# ---- checkpoints -------------------------------------------------------------------------------------------------


def checkpoint_sentence(found: Found) -> str:
    """Say how often to save, and what goodput to expect."""
    part = found["reliability"]
    if part is None:
        return "No interruption is expected at the stated rate, so that no checkpoint interval follows from it."
    interval, goodput = part["outputs"]["best_checkpoint_interval"], part["outputs"]["expected_goodput"]
    stated = part["inputs"].get("checkpoint_interval")
    what = f"The interval with most goodput is {_spread(interval)}"
    if stated:
        what = f"The scenario saves every {_spread(stated)}; the interval with most goodput is {_spread(interval)}"
    return f"{what}. Expected goodput: {_spread(goodput)}. Interruptions to expect: {_spread(part['interruptions'])}."


def checkpoint_rows(found: Found) -> list[tuple[str, str]]:
    """Return where the time goes, and from what that follows."""
    part = found["reliability"]
    if part is None:
        return []
    rows = [(BY_NAME[name].short, _spread(part["outputs"][name])) for name in reliability.ROWS]
    return rows + [(entry["description"], f"{_spread(entry)}; {_origin(entry)}") for entry in part["inputs"].values()]


def checkpoint_notes(found: Found) -> list[str]:
    """Return what the reader must not overlook."""
    part = found["reliability"]
    if part is None or part["stated"]:
        return []
    notes = [
        "The scenario does not state reliability: this follows from the shipped priors of failures, saving and "
        "restarting, and from the best interval at each rate."
    ]
    if part["goodput"] is not None:
        notes.append(
            f"The key numbers rest on another goodput, {_spread(part['goodput'])} ({_origin(part['goodput'])}); state "
            f"reliability to let them follow from this one."
        )
    if part["never_ends"]:
        share = answering.percent(part["never_ends"])
        notes.append(f"In {share} of the draws failures come so fast that the run would never end.")
    return notes


def _origin(entry: dict[str, Any]) -> str:
    return f"{entry['origin']}: {entry['prior']}" if entry["prior"] else str(entry["origin"])


def _spread(entry: dict[str, Any]) -> str:
    if entry["unit"] in ("min", "s"):
        per_day = {"min": 1440.0, "s": 86400.0}[entry["unit"]]
        low, high = (end / per_day for end in entry["interval_90"])
        return formatting.median_and_interval(entry["median"] / per_day, low, high, "day")
    return summarizing.with_interval(entry)


# ---- risks -------------------------------------------------------------------------------------------------------


def risk_rows(found: Found) -> list[tuple[str, list[tuple[str, str, str, str]]]]:
    """Return the main risks by output: input, what it is, its share of the variance, when it shows."""
    named = found["summary"]["inputs"]

    def row(risk: dict[str, Any]) -> tuple[str, str, str, str]:
        keys = risk["input"].split("+")
        what = "; ".join(named[key]["description"] for key in keys if key in named)
        index = {"ST": risk["share"], "ST_interval_90": risk["share_interval_90"]}
        return " + ".join(keys), what, summarizing.index_text(index), risk["shows"] or "not in the first days"

    return [(BY_NAME[output].short, [row(risk) for risk in risks]) for output, risks in found["risks"].items()]


# ---- first days --------------------------------------------------------------------------------------------------


def first_sentence(found: Found) -> str:
    """Say what to measure first."""
    part = found["first_days"]
    if part is None:
        return "Every input is fixed: there is nothing to measure, and nothing that could overturn this plan."
    days = "day" if part["days"] == 1 else f"{part['days']:g} days"
    said = f"The first {days} are {part['share_of_run']:.0%} of the run"
    if part["share_of_run"] >= 1:
        said = f"The run is over within the first {days}, so that only a trial tells in time"
    return f"{measure_text.sentence(part['measure'])} {said}."


def tests(found: Found) -> list[tuple[str, list[str]]]:
    """Return, for each limit of the scenario, its chance now and the readings that would turn it over."""
    part = found["first_days"]
    if part is None:
        return []
    lines = []
    for test in part["tests"]:
        now = f"{test['words'][:1].upper()}{test['words'][1:]}: {answering.percent(test['probability'])} as of now"
        said = [_test_line(row, found) for row in test["rows"]]
        lines.append((now, said or ["No single reading of the first days would turn this over."]))
    return lines


def _test_line(row: dict[str, Any], found: Found) -> str:
    key = row["input"]
    parts = []
    for each in row["crossings"]:
        value = _reading(each["value"], found["summary"]["inputs"][key]["unit"], each["error"])
        side, other = ("above", "below") if each["above"] else ("below", "above")
        if each["level"] == 0.5:
            chance = answering.percent(1 - each["chance"])
            parts.append(f"missed more likely than kept if it reads {other} {value} (chance {chance})")
        else:
            chance = answering.percent(each["chance"])
            parts.append(f"kept with {each['level']:.0%} if it reads {side} {value} (chance {chance})")
    return f"{key}, read to {100 * row['accuracy']:.3g}%: {'; '.join(parts)}."


def _reading(value: float, unit: str, error: float | None) -> str:
    digits = min(formatting.digits_for(value, value, value, error or 0.0, unit), 3)
    return formatting.with_unit(value, unit, digits)


def after_rows(found: Found) -> list[tuple[str, str, str, str]]:
    """Return what run time and cost become after a low and a high reading: input, reading, run time, cost."""
    part, rows = found["first_days"], []
    for each in (part or {"after": []})["after"]:
        for reading in each["readings"]:
            cells = [
                formatting.median_and_interval(
                    entry["median"], entry["interval_90"][0], entry["interval_90"][1], BY_NAME[name].unit
                )
                for name, entry in reading["outputs"].items()
            ]
            rows.append((each["input"], formatting.with_unit(reading["reading"], each["unit"], 2), *cells))
    return rows


def worth_sentence(found: Found) -> str:
    """Say what knowing everything would be worth for the decision that the scenario leaves open; empty without one."""
    decision = (found["first_days"] or {"measure": {"decision": None}})["measure"]["decision"]
    if decision is None:
        return ""
    return (
        f"Decision: {decision['words']}. Best on what is known: {decision['best_now']}, right with probability "
        f"{decision['probability_best']:.2f}; knowing everything would be worth "
        f"{formatting.with_unit(decision['perfect_information_usd']['value'], 'USD', 2)}, so that no study should cost "
        f"more."
    )


# ---- terminal ----------------------------------------------------------------------------------------------------


def text(found: Found, width: int | None = None) -> str:
    """Return the terminal report."""
    width = max(width or shutil.get_terminal_size((100, 24)).columns, 40)

    def wrapped(line: str, indent: int = 0) -> str:
        return textwrap.fill(
            line, width, initial_indent=" " * indent, subsequent_indent=" " * (indent + 2), break_long_words=False
        )

    summary, ownership = found["summary"], found["ownership"]
    lines = [wrapped(summarizing.sentence(summary, ownership)), ""]
    lines += [wrapped(f"memory       {memory_sentence(found)}")]
    lines += [wrapped(f"checkpoints  {checkpoint_sentence(found)}")]
    lines += [wrapped(f"first days   {first_sentence(found)}")]
    for asked, said in tests(found):
        lines += ["", wrapped(asked)] + [wrapped(line, 2) for line in said]
    lines += ["", wrapped("  ".join(found["files"]))] if found["files"] else []
    return "\n".join(lines)
