"""How well the priors of single inputs predict what their fits did not see: the hierarchical programs, one by one.

Every row is predicted twice: by all rows but itself, which asks for a new member of populations that are known; and
without its whole unit (a market, a chip, an operator, a country), which asks for a new population. The comparison is
with what needs no program: median and standard deviation of the other rows that speak of the same. Scores are on the
working scale of the program, the log of the quantity or a logit.
"""

import importlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from gpustack_mc import pack, scoring, storage
from gpustack_mc.fits import held_out, hierarchy, refit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILES = ("priors.json", "priors.md", "priors.png")
SCHEMES = {"row": "a new member", "unit": "a new population"}
_FEWEST = 3  # rows of a kind that a median and a standard deviation need
_SURE = 0.99  # of each coverage; three of them per line

Progress = Callable[[str], None]


def quantities() -> list[str]:
    """Inputs whose fit is a hierarchical program."""
    found = []
    for quantity in refit.quantities_with_prior():
        if quantity in ("mfu", "goodput"):
            continue
        if hasattr(importlib.import_module(f"gpustack_mc.fits.{quantity}"), "problem"):
            found.append(quantity)
    return found


def scores(names: Sequence[str] | None = None, progress: Progress = lambda line: None) -> dict[str, Any]:
    """Score the programs of the named inputs, or of all.

    Returns
    -------
    dict
        ``priors``: by input and scheme (`SCHEMES`) ``n``, ``units``, ``coverage``, ``expected_coverage`` (what chance
        leaves of it), ``crps``, ``baseline``, and ``pit`` of every row; ``versions``.
    """
    found = {}
    for quantity in names or quantities():
        progress(f"Predicting {quantity} without each of its rows.")
        rows = [row for row in refit.read_rows(quantity) if row["use"] == "yes"]
        options = {name: entry["value"] for name, entry in refit.read_prior(quantity)["settings"].items()}
        found[quantity] = of_problem(importlib.import_module(f"gpustack_mc.fits.{quantity}").problem(rows, options))
    libraries = ("numpy", "scipy", "jax", "numpyro", "arviz")
    return {"schema_version": 1, "priors": found, "versions": {name: version(name) for name in libraries}}


def of_problem(posed: hierarchy.Problem) -> dict[str, Any]:
    """Scores of one program, by scheme; without units of several rows the second is not there."""
    posterior = hierarchy.sample(posed)
    units = held_out.units(posed)
    schemes = {"row": [[i] for i in range(len(posed.rows))]}
    if 1 < len(units) < len(posed.rows):
        schemes["unit"] = units
    return {name: _of_scheme(posed, folds, units, posterior) for name, folds in schemes.items()}


def _of_scheme(
    posed: hierarchy.Problem, folds: list[list[int]], units: list[list[int]], posterior: hierarchy.Posterior
) -> dict[str, Any]:
    limit = pack.options()["maximal_k_hat"]
    found = held_out.predict(posed, folds, posterior, maximal_k_hat=limit)
    y = np.array([row.y for row in posed.rows])
    scored = scoring.score_rows(found.mixture, y)
    cluster = np.empty(len(y), dtype=int)
    for number, unit in enumerate(units):
        cluster[unit] = number
    metrics = scoring.metrics(scored)
    # Rows of a unit that is left out whole miss together, so that chance is that of so many units.
    independent = len(units) if len(folds) == len(units) else len(y)
    return {
        "n": len(y),
        "units": len(units),
        "refitted": found.refitted,
        "coverage": metrics["coverage"],
        "expected_coverage": {str(level): _by_chance(level, independent) for level in scoring.LEVELS},
        "crps": metrics["crps_log"],
        "baseline": _baseline(posed, folds, scored, cluster),
        "pit": [round(float(value), 4) for value in scored.pit],
    }


def _by_chance(level: float, n: int) -> list[float]:
    """Coverages that a calibrated prediction of `n` independent values has, but once in a hundred."""
    low, high = stats.binom.interval(_SURE, n, level)
    return [float(low / n), float(high / n)]


def _baseline(
    posed: hierarchy.Problem, folds: list[list[int]], scored: scoring.RowScores, cluster: np.ndarray
) -> dict[str, Any] | None:
    """Scores of the median of the other rows of one kind, where there are enough, beside those of the program there."""
    kinds, y = np.array(held_out.kinds(posed)), scored.observed
    means, sds = np.full(len(y), np.nan), np.full(len(y), np.nan)
    for fold in folds:
        outside = np.ones(len(y), dtype=bool)
        outside[fold] = False
        for i in fold:
            others = y[outside & (kinds == kinds[i])]
            if len(others) >= _FEWEST and np.ptp(others) > 0:
                means[i], sds[i] = np.median(others), np.std(others, ddof=1)
    known = np.isfinite(means)
    if not known.any():
        return None
    plain = scoring.score_rows(scoring.normal(means[known], sds[known]), y[known])
    gain = plain.crps - scored.crps[known]
    several = len(np.unique(cluster[known])) > 1
    return {
        "n": int(known.sum()),
        "crps": float(plain.crps.mean()),
        "crps_of_the_program": float(scored.crps[known].mean()),
        "crps_difference_error": scoring.cluster_bootstrap(gain, cluster[known]) if several else None,
        "coverage": scoring.metrics(plain)["coverage"],
    }


# ---- words ----------------------------------------------------------------------------------------------------------
_COLUMNS = ("input", "left out", "rows", "units", "cover 50/80/90%", "beyond chance", "CRPS", "of the median's")


def misses(entry: Mapping[str, Any]) -> list[str]:
    """Levels whose coverage is not what chance explains, with too little or too much."""
    found = []
    for level, value in entry["coverage"].items():
        low, high = entry["expected_coverage"][level]
        if not low <= value <= high:
            found.append(f"{float(level):.0%} {'low' if value < low else 'high'}")
    return found


def _lines(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for quantity, by_scheme in result["priors"].items():
        for scheme, entry in by_scheme.items():
            plain = entry["baseline"]
            ratio = "-" if plain is None else f"{plain['crps_of_the_program'] / plain['crps']:.0%}"
            if plain and plain["crps_difference_error"] is not None:
                ratio += f" ± {plain['crps_difference_error'] / plain['crps']:.0%}"
            cover = " / ".join(f"{value:.2f}" for value in entry["coverage"].values())
            lines.append((
                quantity, scheme, f"{entry['n']}", f"{entry['units']}", cover, ", ".join(misses(entry)) or "no",
                f"{entry['crps']:.3f}", ratio,
            ))  # fmt: skip
    return lines


def text(result: Mapping[str, Any]) -> str:
    """Return the table for a terminal."""
    lines = [_COLUMNS, *_lines(result)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_COLUMNS))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
                     for line in lines)  # fmt: skip


def markdown(result: Mapping[str, Any]) -> str:
    """Return the page ``priors.md``."""
    marks = ["---", "---", *["---:"] * 3, "---", "---:", "---:"]
    table = "\n".join("| " + " | ".join(line) + " |" for line in (_COLUMNS, tuple(marks), *_lines(result)))
    versions = ", ".join(f"{name} {value}" for name, value in result["versions"].items())
    left = [name for name in quantities() if name not in result["priors"]]
    parts = [
        "# Priors of single inputs against rows that their fits did not see",
        " ".join(__doc__.partition("\n\n")[2].split()),
        table,
        "'row' leaves out one row, 'unit' all rows of its unit, where units have several. Beyond chance: levels whose "
        f"coverage is outside the {_SURE:.0%} range of the binomial distribution, of rows or of units. Of the "
        "median's: CRPS relative to that of the median of other rows that speak of the same, where there are at least "
        f"{_FEWEST}, ± one standard error of the difference by a bootstrap over units; below 100% is better.",
        f"Not scored here: {', '.join(left)}." if left else "",
        "![Coverage of held-out rows](priors.png)",
        "Made by `gpustack-mc validate --priors --out DIR`. Rows are predicted exactly, from draws of the spreads that "
        "are weighted by what leaving out does to them, or sampled anew where weights are unreliable "
        f"(`gpustack_mc.fits.held_out`). Versions: {versions}.",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def picture(result: Mapping[str, Any]) -> "Figure":
    """Coverage of each level with the range that chance explains, one panel per level."""
    from matplotlib.figure import Figure

    from gpustack_mc import pages

    lines = [(quantity, scheme, entry) for quantity, found in result["priors"].items()
             for scheme, entry in found.items()]  # fmt: skip
    with pages.own_style():
        figure = Figure(figsize=(10, 1.2 + 0.24 * len(lines)), layout="constrained")
        axes = figure.subplots(1, len(scoring.LEVELS), sharey=True)
        for axis, level in zip(axes, scoring.LEVELS, strict=True):
            for at, (_, _, entry) in enumerate(lines):
                low, high = entry["expected_coverage"][str(level)]
                value = entry["coverage"][str(level)]
                axis.plot([low, high], [at, at], color="#BBD3E6", lw=6, solid_capstyle="butt")
                inside = low <= value <= high
                axis.plot(value, at, "o" if inside else "X", color="#0072B2" if inside else "#D55E00", ms=5)
            axis.axvline(level, color="#595959", lw=0.8)
            axis.set(xlim=(0, 1.03), xlabel=f"inside the {level:.0%} interval")
        axes[0].set_yticks(range(len(lines)), [f"{quantity}, {SCHEMES[scheme]} ({entry['n']})"
                                               for quantity, scheme, entry in lines], fontsize=8)  # fmt: skip
        axes[0].invert_yaxis()
        figure.suptitle("Share of held-out rows inside the interval; band: 99% of what chance leaves", fontsize=10)
    return figure


# ---- the command ----------------------------------------------------------------------------------------------------
def command(out: Path | None, as_json: bool, progress: Progress) -> str:
    """Do what ``gpustack-mc validate --priors`` is asked for, and return what it prints."""
    if out is not None:
        storage.require_folder(out)
    result = json.loads(json.dumps(scores(progress=progress), allow_nan=False))
    if out is not None:
        write(result, out)
    return json.dumps(result, indent=1) if as_json else text(result)


def write(result: Mapping[str, Any], out: Path) -> None:
    """Write `FILES` into a folder, all or none."""
    from gpustack_mc import validation_figures

    stream = io.BytesIO()
    validation_figures.save(picture(result), stream)
    content = (json.dumps(result, indent=1).encode() + b"\n", markdown(result).encode(), stream.getvalue())
    with storage.replacing_all([out / name for name in FILES]) as temporary:
        for path, data in zip(temporary, content, strict=True):
            path.write_bytes(data)
