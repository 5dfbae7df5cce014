"""Measure how often the 90% intervals of Sobol' indices and of quantiles hold the exact value.

Run ``python benchmarks/sensitivity_coverage.py [scrambles]`` (default 200, a few minutes on two cores). For three
models with closed forms, three sample sizes and the ways to make an interval from 16 replicates, the table gives the
coverage of the worst, average and best input (or probability), and the root-mean-square error and mean half width of
the one with the largest error. With 200 scrambles an interval of exact coverage 0.90 measures 0.86 to 0.94 (two
standard errors). With the default it is written to ``sensitivity_coverage.json`` beside this file as well.

``python benchmarks/sensitivity_coverage.py quantiles`` repeats the quantiles with a thousand other scrambles at the two
smaller sizes, where 200 left one in doubt (two standard errors: 0.02), and adds them to the file as ``repeated``.

jackknife: delete-one jackknife of the ratio of pooled sums, which the package uses for indices.
replicates: Student's t interval of the mean of the estimates of the replicates.
pooled: the quantile of all points with the standard error of those of the replicates, which the package uses.
"""

import json
import sys
from pathlib import Path

import numpy as np

from gpustack_mc.design import make_design, points
from gpustack_mc.sobol import indices, replicate_error, replicate_interval, replicate_sums, t_quantile

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from problems import PROBLEMS

MODELS = ("ishigami", "g, usual", "lognormal product")
LOG_SAMPLES = (12, 14, 16)
PROBABILITIES = (0.05, 0.25, 0.5, 0.75, 0.95)
# Points of the reference for quantiles: their error is far below that of any design measured here.
LOG_REFERENCE = 22
SCRAMBLES = 200
# Of the repetition: other seeds than those of the table, and a reference that takes less memory.
REPEATED, FIRST_SEED, REPEATED_REFERENCE = 1000, 1000, 20
STORED = Path(__file__).with_suffix(".json")


def intervals(base, swap):
    """Estimate, low and high, each (inputs,), of first order and total, by each way to make an interval."""
    pooled = indices(base, swap)
    alone = [
        indices(*(type(sums)(*(part[r : r + 1] for part in sums)) for sums in (base, swap)))
        for r in range(len(base.count))
    ]
    result = {
        ("first", "jackknife"): (pooled.first, pooled.first_low, pooled.first_high),
        ("total", "jackknife"): (pooled.total, pooled.total_low, pooled.total_high),
    }
    for index in ("first", "total"):
        values = np.array([getattr(one, index) for one in alone])
        result[index, "replicates"] = (values.mean(axis=0), *replicate_interval(values))
    return {key: [part[:, 0] for part in parts] for key, parts in result.items()}


def study(problem, samples, scrambles):
    """Estimates, lows and highs, shape (3, scrambles, inputs), by index and way."""
    runs = {}
    for seed in range(scrambles):
        design = make_design(samples, seed=seed)
        sums = replicate_sums(problem.on_cube, problem.names, design, np.array([problem.mean]))
        for key, parts in intervals(*sums).items():
            runs.setdefault(key, []).append(parts)
    return {key: np.array(parts).swapaxes(0, 1) for key, parts in runs.items()}


def outputs(problem, samples, seed):
    """Output on the points of each replicate, shape (16, n)."""
    design = make_design(samples, seed=seed)
    dimensions = range(len(problem.names))
    return np.stack(
        [
            problem.on_cube(points(design, problem.names, dimensions, r, 0, design.length))[0]
            for r in range(design.replicates)
        ]
    )


def study_quantiles(problem, samples, scrambles, first=0):
    """Estimates, lows and highs of quantiles, shape (3, scrambles, probabilities)."""
    runs = []
    for seed in range(first, first + scrambles):
        y = outputs(problem, samples, seed)
        pooled = np.quantile(y, PROBABILITIES)
        half = t_quantile(len(y), 0.90) * replicate_error(np.quantile(y, PROBABILITIES, axis=1).T)
        runs.append((pooled, pooled - half, pooled + half))
    return np.array(runs).swapaxes(0, 1)


def summary(estimate, low, high, exact):
    """Coverage (lowest, mean, highest over inputs), and error and half width of the input of largest error."""
    # An input with no effect has estimate and interval exactly 0, up to rounding.
    covered = ((low <= exact + 1e-12) & (exact - 1e-12 <= high)).mean(axis=0)
    error = np.sqrt(((estimate - exact) ** 2).mean(axis=0))
    worst = error.argmax()
    return {
        "lowest": round(float(covered.min()), 4),
        "mean": round(float(covered.mean()), 4),
        "highest": round(float(covered.max()), 4),
        "error": float(f"{error[worst]:.4g}"),
        "half_width": float(f"{(high - low).mean(axis=0)[worst] / 2:.4g}"),
    }


def rows(name, problem, log_samples, scrambles):
    """Yield what identifies a line of the table, and its numbers."""
    key = {"model": name, "log2_samples": log_samples}
    for (index, way), parts in study(problem, 2**log_samples, scrambles).items():
        yield key | {"of": index, "interval": way}, summary(*parts, getattr(problem, index))
    reference = np.quantile(outputs(problem, 2**LOG_REFERENCE, 10**6), PROBABILITIES)
    found = study_quantiles(problem, 2**log_samples, scrambles)
    yield key | {"of": "quantile", "interval": "pooled"}, summary(*found, reference)


def repeat() -> None:
    """Measure the quantiles again with more scrambles, and add them to the file."""
    stored, lines = json.loads(STORED.read_text()), []
    for name in MODELS:
        reference = np.quantile(outputs(PROBLEMS[name], 2**REPEATED_REFERENCE, 10**6), PROBABILITIES)
        for log_samples in LOG_SAMPLES[:2]:
            found = study_quantiles(PROBLEMS[name], 2**log_samples, REPEATED, FIRST_SEED)
            lines.append({"model": name, "log2_samples": log_samples} | summary(*found, reference))
            sys.stdout.write(f"{lines[-1]}\n")
    STORED.write_text(json.dumps(stored | {"repeated": {"scrambles": REPEATED, "rows": lines}}, indent=1) + "\n")


def main(scrambles: int) -> None:
    """Write the table to standard output, and with the default number of scrambles to a file."""
    sys.stdout.write(f"{scrambles} scrambles of 16 replicates\n")
    sys.stdout.write(f"{'model':18} samples of       interval   lowest mean  highest error     half width\n")
    lines = []
    for name in MODELS:
        for log_samples in LOG_SAMPLES:
            for key, numbers in rows(name, PROBLEMS[name], log_samples, scrambles):
                lines.append(key | numbers)
                shown = "{lowest:.3f}  {mean:.3f} {highest:.3f}   {error:.3g}  {half_width:.3g}".format(**numbers)
                sys.stdout.write(f"{name:18} 2^{log_samples}    {key['of']:8} {key['interval']:10} {shown}\n")
                sys.stdout.flush()
    if scrambles == SCRAMBLES:
        STORED.write_text(json.dumps({"scrambles": scrambles, "replicates": 16, "rows": lines}, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["quantiles"]:
        repeat()
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else SCRAMBLES)
