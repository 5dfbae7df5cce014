"""Time this package beside hand-written NumPy, SALib, SciPy and OpenTURNS, at the same work, in one interleaved run.

Run ``uv run --group bench python benchmarks/peers.py`` (about two minutes on two cores; ``--full`` adds 10^7 samples
and SALib at 2^16, ``--billion`` 10^9 samples). The model has 12 uncertain inputs and 8 outputs of the cost model. Task
A propagates N samples to mean, standard deviation and five quantiles of each output; task B finds first and total
Sobol' indices with 90% intervals, base N. Every implementation must give the same answers within its error before its
time counts. With ``--write``, docs/performance.md and its picture are written from what is measured.

What is not alike is said in the column "differs". Our figures start from a problem that is already read, warm.
"""

import argparse
import functools
import json
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Several threads of a BLAS would fight with our own.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import numpy as np
from scipy import special, stats

from gpustack_mc import compilation
from gpustack_mc.design import make_design
from gpustack_mc.sampling import Sampler
from gpustack_mc.scenario import load_scenario

ROOT = Path(__file__).parents[1]
STORED = Path(__file__).with_suffix(".json")
COVERAGE = Path(__file__).with_name("sensitivity_coverage.json")
PAGE = ROOT / "docs" / "performance.md"
PICTURE = ROOT / "docs" / "images" / "performance.png"
PROBABILITIES = (0.05, 0.25, 0.5, 0.75, 0.95)
OUTPUTS = (
    "training_days", "accelerator_hours", "facility_power_mw", "energy_mwh", "co2e_t", "cost_owned_usd",
    "cost_rented_usd", "usd_per_million_training_tokens",
)  # fmt: skip
SCENARIO = """
schema_version: 1
name: Benchmark
workload: {params: 70e9, tokens: 15e12}
cluster: {accelerator: H100-SXM-80GB, count: 8192}
inputs:
  mfu: {dist: logit_normal, mu: -0.4, sigma: 0.25}
  goodput: {dist: logit_normal, mu: 2.5, sigma: 0.5}
  gpu_power_fraction: {dist: beta, a: 20, b: 5, low: 0, high: 1}
  host_power: {dist: lognormal, mu: 5.8, sigma: 0.25}
  pue: {low: 1.1, high: 1.3}
  electricity_price: {dist: lognormal, mu: -2.6, sigma: 0.3}
  grid_intensity: {dist: lognormal, mu: 5.9, sigma: 0.3}
  capex: {dist: lognormal, mu: 10.6, sigma: 0.2}
  residual_share: {dist: beta, a: 4, b: 16, low: 0, high: 1}
  lifetime: {dist: truncated_normal, mean: 5, sd: 1, low: 2, high: 10}
  fleet_utilization: {dist: logit_normal, mu: 1.4, sigma: 0.5}
  rental_price: {dist: lognormal, mu: 0.9, sigma: 0.35}
  embodied_carbon: 900
  water_onsite: 0.3
  water_offsite: 3.0
  cost_of_capital: 0.09
  operations_rate: 0.05
  serving_throughput: 1000
  programme_overhead: 3
  interruption_rate: 2e-5
"""
PEAK, TDP = 989.4e12, 700.0
# Share inputs: row, mean and standard deviation of the logit; then of the logarithm, PUE as its excess over 1.
LOGITS = ((0, -0.4, 0.25), (1, 2.5, 0.5), (10, 1.4, 0.5))
LOGS = ((3, 5.8, 0.25), (4, np.log(0.03) / 2, np.log(3) / (2 * special.ndtri(0.95))), (5, -2.6, 0.3), (6, 5.9, 0.3),
        (7, 10.6, 0.2), (11, 0.9, 0.35))  # fmt: skip


@functools.cache
def problem():
    """Read the scenario, as a user's file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.yaml"
        path.write_text(SCENARIO)
        return load_scenario(path)


# ---- the same model by hand --------------------------------------------------------------------------------------


def model(x):
    """Eight outputs from twelve inputs, (12, n) to (8, n), in plain NumPy."""
    mfu, goodput, power, host, pue, price, grid, capex, residual, life, fleet, rent = x
    hours = 6 * 70e9 * 15e12 / (PEAK * mfu * goodput) / 3600
    days = hours / 8192 / 24
    energy = hours * (TDP * power + host) * 1e-6 * pue
    busy = life * 8766 * fleet
    co2 = energy * grid * 1e-3 + hours * 900 / busy * 1e-3
    rate = 0.09 * life
    yearly = (1 - residual) * (rate / -np.expm1(-rate) - 1) / life + 0.09 * residual + 0.05
    owned = hours * capex * (1 - residual) / busy + energy * 1e3 * price + hours / (8766 * fleet) * capex * yearly
    return np.stack([days, hours, energy / (days * 24), energy, co2, owned, hours * rent, owned / 15e12 * 1e6])


def from_normal(z, beta_power, beta_residual, life):
    """Inputs from normal scores and from draws of the three that are not functions of them."""
    x = np.empty_like(z)
    for i, mu, sigma in LOGITS:
        x[i] = 1 / (1 + np.exp(-mu - sigma * z[i]))
    for i, mu, sigma in LOGS:
        x[i] = np.exp(mu + sigma * z[i])
    x[4] += 1
    x[2], x[8], x[9] = beta_power, beta_residual, life
    return x


def truncated(u):
    """Normal(5, 1) between 2 and 10 at probabilities."""
    low, high = special.ndtr(-3.0), special.ndtr(5.0)
    return 5 + special.ndtri(low + (high - low) * u)


def at_points(u):
    """Inputs at points of the cube, (12, n)."""
    return from_normal(
        special.ndtri(u), special.betaincinv(20, 5, u[2]), special.betaincinv(4, 16, u[8]), truncated(u[9])
    )


# ---- task A ------------------------------------------------------------------------------------------------------


def numpy_draw(n, seed):
    """Outputs of n plain Monte Carlo samples."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((12, n))
    return model(from_normal(z, rng.beta(20, 5, n), rng.beta(4, 16, n), truncated(rng.random(n))))


def numpy_a(n, threads):
    """Mean, standard deviation and quantiles by sorting, outputs on several threads."""
    block = 2**16
    starts = range(0, n, block)
    with ThreadPoolExecutor(threads) as pool:
        y = np.concatenate(list(pool.map(lambda s: numpy_draw(min(block, n - s), s), starts)), axis=1)

        def one(row):
            row = np.sort(row)
            return row.mean(), row.std(), *row[[int(p * (n - 1)) for p in PROBABILITIES]]

        return np.array(list(pool.map(one, y)))


def ours_a(n, precision):
    """Mean, standard deviation and quantiles, shape (8, 7)."""
    with jax.enable_x64(True):
        design = make_design(n, replicates=15 if n >= 2**29 else 10) if n > 2**20 else make_design(n)
        made = Sampler(problem(), design, False, precision=precision, outputs=OUTPUTS)
        made.extend()
        draws = made.draws()
        found = made.exact(draws) if made.kept == made.design.length else made.streamed(draws)
    first = len(made.names)
    return np.concatenate([[found.mean[first:], found.sd[first:]], found.quantiles[:, first:]]).T


# ---- task B ------------------------------------------------------------------------------------------------------


def sobol_pair(n, seed):
    """Two samples of inputs from scrambled Sobol' points, (12, n) each."""
    u = stats.qmc.Sobol(24, rng=seed).random(n).T
    u = np.clip(u, 1e-12, 1 - 1e-12)
    return at_points(u[:12]), at_points(u[12:])


def numpy_b(n, resamples=100):
    """Saltelli and Jansen with a row bootstrap, its resampling as a matrix product."""
    a, b = sobol_pair(n, 1)
    y_a, y_b = model(a), model(b)
    centre = np.concatenate([y_a, y_b], axis=1).mean(axis=1)[:, None]
    weights = np.random.default_rng(2).multinomial(n, np.full(n, 1 / n), size=resamples).astype(float)
    weights[0] = 1
    square = np.concatenate([(y_a - centre) ** 2 + (y_b - centre) ** 2]) @ weights.T / (2 * n)
    first, total = [], []
    for i in range(12):
        mixed = a.copy()
        mixed[i] = b[i]
        change = model(mixed) - y_a
        first.append(((y_b - centre) * change) @ weights.T / n / square)
        total.append(change**2 @ weights.T / (2 * n) / square)
    first, total = np.array(first), np.array(total)
    ends = [np.quantile(values[..., 1:], (0.05, 0.95), axis=-1) for values in (first, total)]
    return first[..., 0], total[..., 0], ends


def ours_b(n, precision, resamples=0):
    """Indices with intervals from 16 replicates or from resamples, (12, 8) each."""
    with jax.enable_x64(True):
        made = Sampler(
            problem(), make_design(n), True, precision=precision, outputs=OUTPUTS, logs=False, resamples=resamples
        )
        made.extend()
        (found,) = made.scales()
    return found.first, found.total, None


def salib_b(n):
    """Index by output, each with 100 resamples."""
    from SALib.analyze import sobol as analyze
    from SALib.sample import sobol as sample

    names = [f"x{i}" for i in range(12)]
    space = {"num_vars": 12, "names": names, "bounds": [[0, 1]] * 12}
    points = sample.sample(space, n, calc_second_order=False, seed=1)
    y = model(at_points(np.clip(points.T, 1e-12, 1 - 1e-12)))
    found = [analyze.analyze(space, row, calc_second_order=False, conf_level=0.9, seed=1) for row in y]
    return np.array([f["S1"] for f in found]).T, np.array([f["ST"] for f in found]).T, None


def scipy_b(n):
    """Indices of all outputs, with a bootstrap of 100 resamples."""

    class Uniform:
        ppf = staticmethod(lambda u: u)

    found = stats.sobol_indices(func=lambda u: model(at_points(np.clip(u, 1e-12, 1 - 1e-12))), n=n,
                                dists=[Uniform()] * 12, rng=1)  # fmt: skip
    found.bootstrap(confidence_level=0.9, n_resamples=100)
    return found.first_order.T, found.total_order.T, None


def openturns_b(n):
    """Index by output, asymptotic intervals."""
    import openturns as ot

    cube = ot.JointDistribution([ot.Uniform(0, 1)] * 12)
    ot.RandomGenerator.SetSeed(1)
    design = np.array(ot.SobolIndicesExperiment(cube, n, False).generate())
    y = model(at_points(np.clip(design.T, 1e-12, 1 - 1e-12)))
    first, total = [], []
    for row in y:
        found = ot.SaltelliSensitivityAlgorithm(ot.Sample(design), ot.Sample(row[:, None] - row.mean()), n)
        found.setUseAsymptoticDistribution(True)
        found.setConfidenceLevel(0.9)
        first.append(list(found.getFirstOrderIndices()))
        total.append(list(found.getTotalOrderIndices()))
        found.getFirstOrderIndicesInterval(), found.getTotalOrderIndicesInterval()
    return np.array(first).T, np.array(total).T, None


# ---- measuring ---------------------------------------------------------------------------------------------------

TASKS = {
    "A": {
        "ours, float32": (functools.partial(ours_a, precision="float32"), "Sobol' points, float32, histograms"),
        "ours": (functools.partial(ours_a, precision="float64"), "Sobol' points; histograms above 2^17"),
        "numpy": (functools.partial(numpy_a, threads=1), ""),
        "numpy, 2 threads": (functools.partial(numpy_a, threads=2), ""),
    },
    "B": {
        "ours, float32": (functools.partial(ours_b, precision="float32"), "intervals of 16 replicates, float32"),
        "ours": (functools.partial(ours_b, precision="float64"), "intervals of 16 replicates"),
        "ours, row bootstrap": (functools.partial(ours_b, precision="float64", resamples=100), "row bootstrap, 100"),
        "numpy": (numpy_b, "row bootstrap as a matrix product"),
        "salib": (salib_b, "row bootstrap"),
        "scipy": (scipy_b, "row bootstrap"),
        "openturns": (openturns_b, "asymptotic intervals, plain Monte Carlo"),
    },
}
REFERENCE = 2**18
SLOW = ("salib", "scipy", "openturns")
# A change that makes ours slower than so many times faster than NumPy, at the larger sizes, needs a reason.
GUARDS = {("B", 2**16, "numpy"): 5.0, ("A", 10 * 2**20, "numpy, 2 threads"): 1.5}


def near(task, found, reference, n):
    """Whether answers agree within what n samples of plain Monte Carlo can tell."""
    if task == "A":
        scale = reference[:, 1:2]
        return bool((np.abs(found - reference) < 8 * scale / np.sqrt(n) * np.array([1, 2, 3, 2, 2, 2, 6])).all())
    return all(bool((np.abs(f - r) < 16 / np.sqrt(n)).all()) for f, r in zip(found[:2], reference[:2], strict=True))


def measure(task, n, names, rounds):
    """Seconds of each implementation: median of interleaved rounds after one that warms up and is checked."""
    reference = (ours_a if task == "A" else ours_b)(REFERENCE, "float64")
    times = {}
    for name in names:
        begin = time.perf_counter()
        found = TASKS[task][name][0](n)
        if not near(task, found, reference, min(n, REFERENCE)):
            raise SystemExit(f"task {task} at {n}: {name} gives other answers")
        times[name] = [time.perf_counter() - begin] if _once(name, n) else []
    for _ in range(rounds):
        for name in names:
            if not _once(name, n):
                begin = time.perf_counter()
                TASKS[task][name][0](n)
                times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in times.items()}


def _once(name, n):
    """Whether one call is enough: what it takes to warm up does not matter beside it."""
    return name in SLOW or n >= 2**29


def plans(full, billion):
    """Task, number of samples, implementations and rounds."""
    mine, numpy = ["ours, float32", "ours"], ["numpy", "numpy, 2 threads"]
    yield "A", 2**16, mine + numpy, 5
    yield "A", 2**20, mine + numpy, 3
    if full:
        yield "A", 10 * 2**20, mine + numpy, 1
    if billion:
        yield "A", 15 * 2**26, mine[:1], 1
    both = [*mine, "ours, row bootstrap"]
    yield "B", 2**12, [*both, "numpy", *installed()], 5
    yield "B", 2**16, [*both, "numpy"] + ["salib"] * full, 5


def installed():
    """Packages of the group `bench` that are there."""
    from importlib.util import find_spec

    modules = {"salib": "SALib", "scipy": "scipy", "openturns": "openturns"}
    return [name for name, module in modules.items() if find_spec(module)]


def main() -> None:
    """Measure, print, and write the figures with ``--write``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="also 10^7 samples, and SALib at 2^16")
    parser.add_argument("--billion", action="store_true", help="also 10^9 samples")
    parser.add_argument("--write", action="store_true", help="write peers.json, docs/performance.md and its picture")
    options = parser.parse_args()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    rows = []
    for task, n, names, rounds in plans(options.full, options.billion):
        before = compilation.compilations
        times = measure(task, n, names, rounds)
        compiled = compilation.compilations - before
        for name, seconds in times.items():
            ratios = {"ratio": seconds / times["ours, float32"]}
            ratios |= {"ratio_float64": seconds / times["ours"]} if "ours" in times else {}
            about = {"task": task, "n": n, "who": name, "differs": TASKS[task][name][1]}
            rows.append(about | {"seconds": seconds} | ratios)
            sys.stdout.write(f"{task} {n:>13,} {name:18} {seconds:9.4f} s  {rows[-1]['ratio']:8.1f} x\n")
        sys.stdout.write(f"  compiled {compiled} kernels; peak memory "
                         f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB\n")  # fmt: skip
        sys.stdout.flush()
    slower = [
        f"{row['who']} takes {row['ratio_float64']:.1f} times as long as ours in task {row['task']}, less than {least}"
        for row in rows
        if (least := GUARDS.get((row["task"], row["n"], row["who"]))) and row["ratio_float64"] < least
    ]
    if slower:
        raise SystemExit("; ".join(slower))
    if options.write:
        versions = {"jax": jax.__version__, "numpy": np.__version__, "python": platform.python_version()}
        about = {"machine": platform.machine(), "cores": os.cpu_count(), "load": load, **versions}
        STORED.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
        from performance_page import write

        write(STORED, COVERAGE, PAGE, PICTURE)


if __name__ == "__main__":
    main()
