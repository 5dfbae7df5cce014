"""Simulation-based calibration of the programs behind the priors: records and pictures in ``reports/validation``.

Run ``python benchmarks/calibration_ranks.py`` (minutes), or name ``hierarchy`` or ``utilization``. Rows are drawn from
the programs themselves; the utilisation program needs the covariates of its data.
"""

import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from gpustack_mc.fits import calibration_check, hierarchy, utilization_calibration, utilization_fit, utilization_start
from gpustack_mc.fits.hierarchy import Effect, Problem, Row
from gpustack_mc.fits.members import Member

ROOT = Path(__file__).resolve().parents[1]
REPORTS = ROOT / "reports" / "validation"
REPLICATIONS = {"hierarchy": 200, "utilization": 100}


def small() -> tuple[Problem, Member]:
    """Four groups of 2 to 6 members, one of them with two rows; all three kinds of prior of a spread."""
    sizes = (6, 5, 4, 2)
    rows = [
        Row(0.0, {"mean": 1.0, f"group {group}": 1.0}, {f"members of group {group}": 1.0})
        for group, size in enumerate(sizes)
        for _ in range(size)
    ]
    shared = {"mean": 1.0, "group 0": 1.0, "a member with two rows": 1.0}
    rows += [Row(0.0, shared, {"rows": 1.0}), Row(0.0, shared, {"rows": 2.0})]
    rows.append(Row(0.0, {"mean": 1.0, "group 1": 1.0}, {"rows": 1.0}, variance=0.01, shift={"members": -1.5}))
    groups = range(len(sizes))
    problem = Problem(
        rows,
        {
            "mean": Effect(1.0),
            "a member with two rows": Effect("members"),
            **{f"group {group}": Effect("groups") for group in groups},
        },
        {
            "groups": hierarchy.half_normal(1.0),
            "members": hierarchy.expected(0.5, 4),
            "rows": hierarchy.expected(0.3, 4),
            **{f"members of group {group}": hierarchy.pooled("members", 0.3) for group in groups},
        },
    )
    return problem, Member({"mean": 1.0, "group 3": 1.0}, {"members of group 3": 1.0})


def of_hierarchy() -> dict[str, np.ndarray]:
    """Ranks of the hierarchical program."""
    return calibration_check.ranks(*small(), replications=REPLICATIONS["hierarchy"])


def of_utilization() -> dict[str, np.ndarray]:
    """Ranks of the utilisation program, on the design of its data."""
    folder = ROOT / "priors" / "utilization"
    prior, rows = utilization_fit.read_prior(folder)
    used = [row for row in rows if row["use"] == "yes"]
    start = utilization_start.read(folder)
    count = REPLICATIONS["utilization"]
    return utilization_calibration.ranks(used, utilization_fit.plain(prior), start, range(count))


PROGRAMS: dict[str, tuple[str, Callable[[], dict[str, np.ndarray]]]] = {
    "hierarchy": ("sbc", of_hierarchy),
    "utilization": ("sbc_utilization", of_utilization),
}


def publish(program: str) -> dict[str, bool]:
    """Write the record and the picture of one program; returns whether each quantity stays inside its band."""
    start = time.perf_counter()
    found = PROGRAMS[program][1]()
    return record(program, found, round(time.perf_counter() - start))


def record(program: str, found: dict[str, np.ndarray], seconds: int) -> dict[str, bool]:
    """Write ranks that were found; returns whether each quantity stays inside its band."""
    stem = PROGRAMS[program][0]
    bands = calibration_check.bands(found)
    kept = {
        "program": f"gpustack_mc.fits.{program}",
        "replications": len(next(iter(found.values()))),
        "seed": 0,
        "band": calibration_check.BAND,
        "versions": {name: version(name) for name in ("numpy", "jax", "numpyro", "arviz")},
        "seconds": seconds,
        "inside": {name: line["inside"] for name, line in bands.items()},
        "ranks": {name: [round(float(value), 4) for value in values] for name, values in found.items()},
    }
    text = json.dumps(kept, indent=1, ensure_ascii=False)
    (REPORTS / f"{stem}.json").write_text(text + "\n", encoding="utf-8", newline="\n")
    picture(bands, REPORTS / f"{stem}.png", program, kept["replications"])
    return kept["inside"]


def main(programs: list[str]) -> int:
    """Publish the named programs, or all; 3 when more quantities leave their band than chance explains."""
    bad = False
    for program in programs or list(PROGRAMS):
        inside = publish(program)
        outside = [name for name, yes in inside.items() if not yes]
        chance = calibration_check.by_chance(len(outside), len(inside))
        sys.stdout.write(f"{program}: outside their band: {', '.join(outside) or 'none'} (by chance: {chance:.2g})\n")
        bad |= chance < calibration_check.UNLIKELY
    return 3 if bad else 0


def picture(bands: dict, path: Path, program: str, replications: int) -> None:
    """ECDF of ranks less uniform, one panel per quantity, with simultaneous bands."""
    columns = 4
    lines = -(-len(bands) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(11, 2.1 * lines), sharex=True, sharey=True, squeeze=False)
    for axis, (name, line) in zip(axes.flat, bands.items(), strict=False):
        x = np.asarray(line["x"])
        axis.fill_between(x, line["low"] - x, line["high"] - x, color="0.88")
        axis.step(x, line["ecdf"] - x, where="post", color="#1f5fa8", lw=1.2)
        axis.axhline(0, color="0.5", lw=0.6)
        axis.set_title(name, fontsize=9)
    for axis in axes.flat[len(bands) :]:
        axis.set_visible(False)
    figure.supxlabel("rank of the truth among posterior draws", fontsize=9)
    figure.supylabel("ECDF less uniform", fontsize=9)
    figure.suptitle(
        f"Simulation-based calibration of the program {program}, {replications} replications; "
        f"grey: {calibration_check.BAND:.0%} band",
        fontsize=10,
    )
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
