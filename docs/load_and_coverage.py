"""The page of load, reproducibility and coverage, from what benchmarks wrote into ``reports/validation``."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPORTS = Path(__file__).parents[1] / "reports" / "validation"
TOP = """
# Load and coverage

What the program does under load, whether its numbers can be had again, and how often each kind of interval holds what
it is about. Everything here is measured by scripts in `benchmarks/`, which `benchmarks/release.py` runs before a
release; this page is made of the files that they have written into `reports/validation/`.
"""
LOAD = """
## Load

`benchmarks/load.py`, on {cores} cores ({machine}), Python {python}, jax {jax}. Other programs ran beside it.
"""
CACHE = """
The cache then held {entries} compiled models, {broken} of them broken; {left_behind} files of unfinished writes were
left behind, and a run after it compiled {compiled_by_a_run_afterwards}.
"""
LOOP = """
{scenarios:,} scenarios of {shapes} shapes in one process, through the Python API: {compiled_at_last} models were
compiled, {later} of them after the first {first:,} scenarios. Memory grew by {growth_mb_per_10000_scenarios:.1f} MB per
10,000 scenarios once it had settled, at {last:,} MB.

`run` keeps the first 131,072 draws and counts the others, so that neither its memory nor its file grows:
"""
LARGE = "What would be larger is refused before anything is computed or read:"
SAME = """
## The same numbers again

`benchmarks/reproducibility.py`: the {scenarios} shipped scenarios, with the seeds {seeds_said} in turn, are computed
again from their `result.nc` alone, as [`gpustack-mc reproduce`](../how-to/reproduce.md) does. Identical: every draw,
statistic and index has the same bytes. Equal: within {tolerance:g} of each other.
"""
CREDIBLE = """
## Coverage of intervals

Two kinds of 90% interval are printed. A **credible interval** says where the quantity itself lies, as far as the priors
know. Whether it holds can only be told by runs that the fits have not seen, or by simulation:
"""
MONTE_CARLO = """
A **Monte Carlo interval**, printed as ± or in brackets, says how far the finite number of draws may have moved an
estimate. It comes from the 16 replicates of the design. Each command was run again and again on other scrambles, with
few samples, and its intervals held against the answer of many times as many. Given are the mean over all quantities of
a kind, and the lowest and highest; on 40 scrambles a single quantity of exactly 90% shows 81% to 99%, on 100 it shows
84% to 96%. A mean outside {low:.0%} to {high:.0%} fails the release.
"""
BOTTOM = """
[Speed, and how far intervals can be trusted](../performance.md) has Sobol' indices of models with closed forms at other
numbers of samples. Tornado bars and expected widths are printed without an interval. A chance below 0.1% or above 99.9%
is printed as a bound.
"""

Table = Callable[[list[str], list[list[str]]], list[str]]


def read(name: str) -> dict[str, Any]:
    """Return what a benchmark measured."""
    return json.loads((REPORTS / f"{name}.json").read_text(encoding="utf-8"))


def page(table: Table) -> list[str]:
    """Return the lines of the page.

    Parameters
    ----------
    table : callable
        From a header and rows of Markdown cells to lines.
    """
    parts = {"load": load, "reproducibility": reproducibility, "interval_coverage": coverage}
    measured = {name: part for name, part in parts.items() if (REPORTS / f"{name}.json").exists()}
    return [TOP.strip(), "", *(line for name, part in measured.items() for line in part(table, read(name)))]


def load(table: Table, found: dict[str, Any]) -> list[str]:
    """Return how it fares with many runs, scenarios and samples."""
    loop, memory = found["loop"], found["loop"]["memory_mb"]
    later = loop["compiled_at_last"] - loop["compiled_at_first"]
    said = loop | {"later": later, "first": loop["scenarios"] // len(memory), "last": memory[-1]}
    ways = {"eight_at_a_time": "one cold cache, with files", "all_at_once": "the same cache, without files"}
    runs = [_runs(found["concurrent"][key], how) for key, how in ways.items()]
    header = ["processes", "exit codes", "results other than a lone run's", "memory of all together"]
    samples = [
        [f"{one['samples']:,}", one["precision"], f"{one['draws_kept']:,}", f"{one['result_mb']:.0f} MB",
         f"{one['peak_memory_mb']:,} MB"]
        for one in found["samples"]
    ]  # fmt: skip
    refused = [[what, f"`{one['said']}`"] for what, one in found["large"].items()]
    return [
        LOAD.format(**found["about"]), *table(header, runs), CACHE.format(**found["concurrent"]["cache"]),
        LOOP.format(**said), *table(["samples", "precision", "draws kept", "result.nc", "peak memory"], samples),
        LARGE, "", *table(["asked for", "answer"], refused),
    ]  # fmt: skip


def _runs(one: dict[str, Any], how: str) -> list[str]:
    codes = ", ".join(map(str, one["exit_codes"]))
    return [f"{one['runs']}, {one['at_once']} at once; {how}", codes, f"{one['different_results']}",
            f"{one['peak_own_memory_mb']:,} MB"]  # fmt: skip


def reproducibility(table: Table, found: dict[str, Any]) -> list[str]:
    """Return whether the numbers are the same under other circumstances."""
    rows = [
        [what, *(f"{one[key]}" for key in ("results", "identical", "equal", "different")),
         f"{one['largest_relative_deviation'] or 0:.1g}"]
        for what, one in found["circumstances"].items()
    ]  # fmt: skip
    header = ["computed again in", "results", "identical", "equal", "different", "largest relative deviation"]
    said = SAME.format(**found, seeds_said=" and ".join(map(str, found["seeds"])))
    return [said, *table(header, rows)]


def coverage(table: Table, found: dict[str, Any]) -> list[str]:
    """Return the coverage of credible intervals and of those of the Monte Carlo error."""
    world = [[one["kind"], f"`{one['study']}`", f"{one['n']}", f"{one['inside_90']:.0%}"] for one in credible()]
    monte_carlo = [
        [one["kind"], f"`{one['command']}`", f"{one['samples']:,}" if one["samples"] else "", f"{one['scrambles']}",
         f"{one['quantities']}", f"{one['mean']:.1%}", f"{one['lowest']:.0%} – {one['highest']:.0%}"]
        for one in found["monte_carlo"]
    ]  # fmt: skip
    low, high = found["allowed_mean"]
    header = ["interval of", "command", "samples", "scrambles", "quantities", "mean", "lowest – highest"]
    return [
        CREDIBLE, *table(["credible interval of", "measured by", "n", "inside 90%"], world),
        MONTE_CARLO.format(low=low, high=high), *table(header, monte_carlo), BOTTOM,
    ]  # fmt: skip


def credible() -> list[dict[str, Any]]:
    """Coverage of the intervals that are about the world, from the files of the studies that measured it."""
    scored = read("validation")
    rows = [
        {
            "kind": "accelerator-hours of a run by a team that the fit has not seen",
            "study": "gpustack-mc validate --refit",
            "n": scored["n"], "inside_90": scored["metrics"]["coverage"]["0.9"],
        }
    ]  # fmt: skip
    for name, entry in scored["known"].items():
        rows.append({
            "kind": f"accelerator-hours when more is known: {name.replace('_', ' ')}",
            "study": "gpustack-mc validate --refit",
            "n": entry["n"], "inside_90": entry["coverage"]["0.9"],
        })  # fmt: skip
    energy = scored["energy"]
    rows.append({"kind": "energy of a run whose hours are known", "study": "gpustack-mc validate --refit",
                 "n": energy["n"], "inside_90": energy["coverage"]["0.9"]})  # fmt: skip
    for stem, what in (("sbc", "inputs fitted by the hierarchical program"), ("sbc_utilization", "utilisation")):
        ranks = read(stem)
        inside = [sum(0.05 <= r <= 0.95 for r in values) / len(values) for values in ranks["ranks"].values()]
        rows.append({"kind": f"{what}: parameters and predictions, truth drawn from the program",
                     "study": "benchmarks/calibration_ranks.py", "n": ranks["replications"],
                     "inside_90": sum(inside) / len(inside)})  # fmt: skip
    return rows
