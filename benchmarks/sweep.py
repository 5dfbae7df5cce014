"""What a scenario costs in a sweep and alone, and how time and memory grow with the number of scenarios.

    python benchmarks/sweep.py loop grid table                      # one scenario: alone, of a grid, of a table
    python benchmarks/sweep.py 10000x16384 1000x4096 100000x4096    # whole sweeps

Each is measured in a process of its own and kept in ``sweep.json``, which `docs/how-to/sweep.md` quotes. Alone is what
Python code does in a loop, ``summary(simulate(load_scenario(...)))``, warm: also without Sobol' indices, which a sweep
computes only on request. A sweep is all that the command does but pictures: reading, compiling, computing, writing.
"""

import argparse
import csv
import json
import math
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RECORD = Path(__file__).with_name("sweep.json")
BASE = "llama-3-70b"
SAMPLES = 16_384
ALONE = 24
# Enough that compiling, 3 s, is little of the whole.
MANY = 5_000
SCENARIOS = {"loop": ALONE, "grid": MANY, "table": MANY}
ACCELERATORS = ("A100-SXM-80GB", "H100-SXM-80GB", "H200-SXM", "B200-SXM", "V100-SXM2-32GB")
REGIONS = ("US", "US-TX", "US-CA", "CA-QC", "FR", "SE", "DE", "CN", "NO", "PL")


def grid(count: int) -> str:
    """A grid of sizes, tokens, counts and sites, all sharing most of their priors."""
    tokens, numbers, sites = 5, 10, 2
    sizes = math.ceil(count / (tokens * numbers * sites))
    return f"""schema_version: 1
name: Grid
base: {BASE}
axes:
  workload.params: {{from: 1e9, to: 1e12, points: {sizes}, scale: log}}
  workload.tokens: {{from: 1e11, to: 2e13, points: {tokens}, scale: log}}
  cluster.count: {[256 * 2**i for i in range(numbers)]}
  site.region: [US, FR]
"""


def write_table(path: Path, count: int) -> None:
    """A table of runs that share no prior of the chip, the site or the year."""
    import numpy as np

    rng = np.random.default_rng(1)
    with path.open("w", newline="") as stream:
        write = csv.writer(stream).writerow
        write(["name", "params", "tokens", "accelerator", "count", "region", "date"])
        for i in range(count):
            date = f"{rng.integers(2019, 2026)}-{rng.integers(1, 13):02d}-{rng.integers(1, 29):02d}"
            size, tokens = 10 ** rng.uniform(8.5, 12), 10 ** rng.uniform(11, 13.3)
            chip, region = ACCELERATORS[rng.integers(5)], REGIONS[rng.integers(10)]
            write([f"run {i}", f"{size:.4g}", f"{tokens:.4g}", chip, 2 ** rng.integers(5, 14), region, date])


def clocked(task: Callable[[], Any]) -> dict[str, float]:
    """Time of a task, and of all its threads on the processor, in s."""
    wall, processor = time.perf_counter(), time.process_time()
    task()
    return {"seconds": time.perf_counter() - wall, "processor_seconds": time.process_time() - processor}


def alone() -> dict[str, Any]:
    """Single runs in a loop."""
    import gpustack_mc as mc
    from gpustack_mc.design import make_design
    from gpustack_mc.propagation import simulate
    from gpustack_mc.result import to_datatree

    design = make_design(SAMPLES)

    def load(i: int) -> Any:
        return mc.load_scenario(BASE, [f"workload.params={1e9 * 1.3**i:.6g}", f"workload.tokens={1e12 * (i + 1):g}"])

    def whole(i: int) -> None:
        mc.summary(mc.simulate(load(i), samples=SAMPLES))

    def without_indices(i: int) -> None:
        mc.summary(to_datatree(simulate(load(i), design, with_sensitivity=False)))

    found = {}
    for name, run in (("with_indices", whole), ("without_indices", without_indices)):
        run(0)
        found[name] = clocked(lambda run=run: [run(i) for i in range(ALONE)])
    return found


def sweep(kind: str, count: int, samples: int) -> dict[str, Any]:
    """One sweep from reading to files."""
    from gpustack_mc import sweep_model
    from gpustack_mc.sweep import run_sweep

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / ("table.csv" if kind == "table" else "grid.yaml")
        if kind == "table":
            write_table(source, count)
        else:
            source.write_text(grid(count), encoding="utf-8")
        done: list[Any] = []
        times = clocked(lambda: done.append(
            run_sweep(source, samples=samples, out=Path(folder) / "out", with_plots=False)))  # fmt: skip
        size = sum(file.stat().st_size for file in (Path(folder) / "out").iterdir())
    if done[0].summary["ran"] != count:
        raise SystemExit(f"{done[0].summary['ran']} of {count} scenarios ran")
    return times | {
        "compilations": sweep_model._propagate._cache_size(),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "files_mib": size / 2**20,
    }


def measure(what: str) -> dict[str, Any]:
    """Measure in this process."""
    if what == "loop":
        return {"scenarios": ALONE, "samples": SAMPLES} | alone()
    kind = what if what in SCENARIOS else "grid"
    count, samples = (MANY, SAMPLES) if what in SCENARIOS else map(int, what.split("x"))
    return {"scenarios": count, "samples": samples} | sweep(kind, count, samples)


def main() -> None:
    """Measure what is asked for and keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", help="loop, grid, table, or SCENARIOSxSAMPLES")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measure(options.what[0])))  # noqa: T201
        return
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    for what in options.what:
        child = subprocess.run([sys.executable, __file__, what, "--here"], capture_output=True, text=True, check=True)
        record[what] = json.loads(child.stdout.splitlines()[-1])
        print(what, json.dumps(record[what]))  # noqa: T201
        import jax
        import numpy

        record["machine"] = {"cores": os.cpu_count(), "processor": platform.machine(), "jax": jax.__version__,
                             "numpy": numpy.__version__, "python": platform.python_version()}  # fmt: skip
        RECORD.write_text(json.dumps(dict(sorted(record.items())), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
