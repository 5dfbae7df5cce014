"""Simulation-based calibration of the program behind the fitted priors: ``reports/validation/sbc.json`` and ``.png``.

Run ``python benchmarks/calibration_ranks.py`` (minutes). Needs no data: rows are drawn from the program itself.
"""

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from gpustack_mc.fits import calibration_check, hierarchy
from gpustack_mc.fits.hierarchy import Effect, Problem, Row
from gpustack_mc.fits.members import Member

REPORTS = Path(__file__).resolve().parents[1] / "reports" / "validation"
REPLICATIONS = 200


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


def main() -> int:
    """Write the record and the picture; 3 when a quantity leaves its band."""
    start = time.perf_counter()
    problem, member = small()
    found = calibration_check.ranks(problem, member, replications=REPLICATIONS)
    bands = calibration_check.bands(found)
    record = {
        "program": "gpustack_mc.fits.hierarchy",
        "replications": REPLICATIONS,
        "seed": 0,
        "band": calibration_check.BAND,
        "versions": {name: version(name) for name in ("numpy", "jax", "numpyro", "arviz")},
        "seconds": round(time.perf_counter() - start),
        "inside": {name: line["inside"] for name, line in bands.items()},
        "ranks": {name: [round(float(value), 4) for value in values] for name, values in found.items()},
    }
    text = json.dumps(record, indent=1, ensure_ascii=False)
    (REPORTS / "sbc.json").write_text(text + "\n", encoding="utf-8", newline="\n")
    picture(bands, REPORTS / "sbc.png")
    outside = [name for name, line in bands.items() if not line["inside"]]
    sys.stdout.write(f"{len(bands)} quantities, outside their band: {', '.join(outside) or 'none'}\n")
    return 3 if outside else 0


def picture(bands: dict, path: Path) -> None:
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
        f"Simulation-based calibration, {REPLICATIONS} replications; grey: {calibration_check.BAND:.0%} band",
        fontsize=10,
    )
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    sys.exit(main())
