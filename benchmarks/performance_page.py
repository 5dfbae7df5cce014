"""Write docs/performance.md and its picture from what peers.py and sensitivity_coverage.py stored."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TASKS = {
    "A": "Propagation to mean, standard deviation and five quantiles of 8 outputs",
    "B": "First and total Sobol' indices of 8 outputs to 12 inputs, with 90% intervals",
}
SHORT = {"A": "Propagation", "B": "Sobol' indices"}
TEXT = """# Speed, and how far intervals can be trusted

Both tables are measured, not promised. `benchmarks/peers.py` runs everything on the same machine, interleaved, and
accepts a time only if the answers agree; `uv run --group bench python benchmarks/peers.py --write` writes this page
again. Ratios carry over to other machines, seconds do not.

The model has 12 uncertain inputs and 8 outputs. Our times are warm: the problem is read and compiled.
{about}

{speed}

![Times over those of float32](images/performance.png)

"times" is how many times as long as ours in float32 it takes, and in brackets as ours in float64, which is the default.
Not all is alike:

{differs}

For one run of a few thousand samples what counts is starting Python and JAX. `gpustack-mc run --json --no-files` keeps
compiled models in your cache folder, imports neither xarray nor pandas, and so is done in about a second.

## Coverage of the 90% intervals

Of {scrambles} scrambles, the share whose interval holds the exact value: lowest and highest over inputs or
probabilities. `benchmarks/sensitivity_coverage.py` writes it. An exact interval would show 0.86 to 0.94.

{coverage}
"""


def _seconds(value: float) -> str:
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"


def _ratio(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows)]
    return "\n".join(lines)


def _speed(rows: Sequence[Mapping[str, Any]]) -> str:
    parts = []
    for task, title in TASKS.items():
        cells = []
        for row in rows:
            if row["task"] == task:
                times = _ratio(row["ratio"])
                if "ratio_float64" in row:
                    times += f" ({_ratio(row['ratio_float64'])})"
                cells.append((f"{row['n']:,}", row["who"], _seconds(row["seconds"]), times))
        parts.append(f"**{task}. {title}**\n\n" + _table(["samples", "", "time", "times"], cells))
    return "\n\n".join(parts)


def _coverage(rows: Sequence[Mapping[str, Any]]) -> str:
    used = [row for row in rows if row["interval"] in ("jackknife", "pooled")]
    cells = [
        (row["model"], f"2^{row['log2_samples']}", {"first": "S1", "total": "ST"}.get(row["of"], "quantiles"),
         f"{row['lowest']:.2f} – {row['highest']:.2f}", f"{row['mean']:.2f}")
        for row in used
    ]  # fmt: skip
    return _table(["model", "samples", "of", "coverage", "mean"], cells)


def _repeated(found: Mapping[str, Any] | None) -> str:
    """Say what more scrambles gave for the quantiles."""
    if found is None:
        return ""
    told = "; ".join(
        f"{row['model']} 2^{row['log2_samples']} {row['lowest']:.2f} – {row['highest']:.2f}" for row in found["rows"]
    )
    return f"\n\nThe quantiles again, with {found['scrambles']:,} other scrambles: {told}."


def _draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    largest = {task: max(row["n"] for row in rows if row["task"] == task and row["who"] == "numpy") for task in TASKS}
    # All packages run at the smaller base of task B only.
    largest["B"] = max((row["n"] for row in rows if row["who"] == "openturns"), default=largest["B"])
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    for axes, task in zip(figure.subplots(2, 1), TASKS, strict=True):
        chosen = [row for row in rows if row["task"] == task and row["n"] == largest[task]][::-1]
        names, ratios = [row["who"] for row in chosen], [row["ratio"] for row in chosen]
        colours = ["#1f6f8b" if name.startswith("ours") else "#9aa5b1" for name in names]
        bars = axes.barh(names, ratios, color=colours)
        axes.bar_label(bars, [_ratio(ratio) for ratio in ratios], padding=3, fontsize=8)
        axes.set_xscale("log")
        axes.set_xlim(0.8, max(ratios) * 3)
        axes.set_title(f"{SHORT[task]}, {largest[task]:,} samples", fontsize=9, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    axes.set_xlabel("time over that of ours in float32", fontsize=8)
    figure.savefig(path, dpi=150)


def write(speed: Path, coverage: Path, page: Path, picture: Path) -> None:
    """Write the page and its picture from two stored files."""
    found, covered = (json.loads(path.read_text()) for path in (speed, coverage))
    rows = found["rows"]
    differs = "\n".join(
        dict.fromkeys(f"- {row['task']}, {row['who']}: {row['differs']}" for row in rows if row["differs"])
    )
    about = (
        "{cores} cores ({machine}), of which other programs wanted {load:.0f}, jax {jax}, numpy {numpy}, Python "
        "{python}."
    ).format(**found["about"])
    page.write_text(
        TEXT.format(
            about=about,
            speed=_speed(rows),
            differs=differs,
            scrambles=covered["scrambles"],
            coverage=_coverage(covered["rows"]) + _repeated(covered.get("repeated")),
        )
    )
    _draw(rows, picture)


if __name__ == "__main__":
    here = Path(__file__).parent
    docs = here.parent / "docs"
    stored = (here / "peers.json", here / "sensitivity_coverage.json")
    write(*stored, docs / "performance.md", docs / "images" / "performance.png")
