"""What will be assumed for a scenario, told without computing anything."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpustack_mc import formatting, priors
from gpustack_mc.scenario import load_scenario


def assumptions(source: str | Path, overrides: Iterable[str] = (), calibration: Path | None = None) -> dict[str, Any]:
    """Return every input with its median, 90% interval, origin and source; with a prior pack when one is given.

    Raises
    ------
    InputError
        The scenario is wrong.
    """
    problem = load_scenario(source, overrides, calibration)
    inputs = {}
    for key, item in problem.inputs.items():
        low, middle, high = (float(value) for value in priors.quantiles(item.marginal, [0.05, 0.5, 0.95]))
        inputs[key] = {
            "unit": item.quantity.unit,
            "median": middle,
            "interval_90": [low, high],
            "origin": item.origin,
            "prior": item.prior,
            "sources": [source._asdict() for source in item.sources],
            "fell_back_from": list(item.missed),
        }
    return {
        "schema_version": 1,
        "name": problem.name,
        "basis": problem.basis,
        "notes": list(problem.notes),
        "conditioned_on": list(problem.running.words) if problem.running else [],
        "inputs": inputs,
    }


def text(found: dict[str, Any]) -> str:
    """Return the lines that ``gpustack-mc check`` prints."""
    rows = [(key, _value(entry), f"{entry['origin']}{_about(entry)}") for key, entry in found["inputs"].items()]
    names, values = (max(len(row[i]) for row in rows) for i in (0, 1))
    lines = [f"{found['name']}: the scenario is sound. What will be assumed (median and 90% interval):"]
    lines += [f"  {key.ljust(names)}  {value.ljust(values)}  {about}" for key, value, about in rows]
    if found["conditioned_on"]:
        lines += ["  The job runs; the rest of it is forecast from what was observed:"]
        lines += [f"    {line}" for line in found["conditioned_on"]]
    lines += [f"  note: {note}" for note in found["notes"]]
    return "\n".join(lines)


def _about(entry: dict[str, Any]) -> str:
    prior = f": {entry['prior']}" if entry["prior"] else ""
    missed = f" [no data for {', '.join(entry['fell_back_from'])}]" if entry["fell_back_from"] else ""
    titles = "; ".join(source["title"] for source in entry["sources"])
    return prior + missed + (f"; {titles}" if titles else "")


def _value(entry: dict[str, Any]) -> str:
    low, high = entry["interval_90"]
    return formatting.median_and_interval(entry["median"], low, high, entry["unit"])
