"""What earlier runs of the same team are worth to a forecast, on published families that no fit saw.

Run ``python benchmarks/calibrated_siblings.py``: about two minutes on 2 cores, most of it refits
without each family.
"""

import sys

import numpy as np

from gpustack_mc import siblings, validation
from gpustack_mc.fits.utilization_fit import leave_families_out


def main() -> None:
    """Print one line per way and set of runs."""
    rows = validation.training_rows()
    names = siblings.families(rows)
    shipped = validation.shipped()
    folds = leave_families_out(shipped.rows, shipped.settings, names, seed=shipped.record["seed"])
    found = {way: siblings.score(folds, way) for way in siblings.WAYS}
    for batch in ("", "1", "2"):
        sys.stdout.write(f"runs of batch {batch}\n" if batch else "all runs\n")
        for way, scored in found.items():
            chosen = scored if not batch else _only(scored, rows, batch)
            m = siblings.metrics(chosen)
            cover = "/".join(f"{value:.2f}" for value in m["coverage"].values())
            sys.stdout.write(
                f"  {way:5s} n {m['n']:3d} in {m['families']:2d} families: MdAPE {m['mdape']:.3f}, mean abs log error "
                f"{m['mean_abs_log_error']:.3f}, CRPS {m['crps_log']:.3f}, log score {m['log_score']:.2f}, coverage "
                f"{cover}, p95/p5 {m['median_p95_over_p5']:.2f}\n"
            )
    for way in siblings.WAYS[1:]:
        difference, error = siblings.gain(found["none"], found[way])
        sys.stdout.write(f"CRPS with {way} against none: {difference:+.3f} ± {error:.3f}\n")


def _only(scored: siblings.Siblings, rows: list, batch: str) -> siblings.Siblings:
    pick = np.array([rows[run]["batch"] == batch for run in scored.run])
    s = scored.scores
    part = s._replace(
        **{name: getattr(s, name)[pick] for name in s._fields if name != "intervals"},
        intervals={level: ends[pick] for level, ends in s.intervals.items()},
    )
    weight = scored.weight[pick]
    return siblings.Siblings(scored.run[pick], scored.family[pick], weight / weight.sum(), part)


if __name__ == "__main__":
    main()
