"""Compute every shipped scenario under other circumstances, and reproduce it from its file alone.

    python benchmarks/reproducibility.py              # some five minutes on two cores

The first process runs all scenarios and writes their results. Each of the others has one thing otherwise (one core,
hashes of Python, language and time zone, a cold compilation cache) and computes every result again
from its file alone, as ``gpustack-mc reproduce`` does. Writes ``reports/validation/reproducibility.json``; 3 when a
number differs by more than `gpustack_mc.reproduce.TOLERANCE`.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "reports" / "validation" / "reproducibility.json"
SAMPLES = 1024
SEEDS = (0, 1)
# What is otherwise: cores, and variables of the environment.
CIRCUMSTANCES: dict[str, tuple[int | None, dict[str, str]]] = {
    "one core": (1, {}),
    "two cores": (2, {}),
    "another hash seed": (None, {"PYTHONHASHSEED": "12345"}),
    "plain C locale, far time zone": (None, {"LC_ALL": "C", "LANG": "C", "TZ": "Pacific/Chatham"}),
    "a cold compilation cache": (1, {"GPUSTACK_MC_CACHE": ""}),
}

_RUN = """
import os, sys
from pathlib import Path
from gpustack_mc.compilation import use_cache
from gpustack_mc.run import run_scenario
use_cache()
folder, samples, seeds, names = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(","), sys.argv[4].split(",")
for number, name in enumerate(names):
    seed = seeds[number % len(seeds)]
    run_scenario(name, samples=samples, seed=int(seed), out=folder / name, pictures=())
"""
_REPRODUCE = """
import json, os, sys
from pathlib import Path
if cores := int(sys.argv[2]):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
from gpustack_mc.compilation import use_cache
from gpustack_mc.reproduce import reproduce
use_cache()
for path in sorted(Path(sys.argv[1]).rglob("result.nc")):
    print(json.dumps(reproduce(path).found))
"""


def compute(
    folder: Path, names: list[str], cache: Path, samples: int = SAMPLES, seeds: tuple[int, ...] = SEEDS
) -> None:
    """Write the results of some scenarios, with the seeds in turn."""
    command = [sys.executable, "-c", _RUN, str(folder), str(samples), ",".join(map(str, seeds)), ",".join(names)]
    subprocess.run(command, env=os.environ | {"GPUSTACK_MC_CACHE": str(cache)}, check=True)


def again(folder: Path, circumstance: str, cache: Path) -> dict[str, Any]:
    """Reproduce all results of a folder in a process of its own; count verdicts, and tell the largest deviation."""
    cores, variables = CIRCUMSTANCES[circumstance]
    environment = os.environ | {"GPUSTACK_MC_CACHE": str(cache)} | variables
    if environment["GPUSTACK_MC_CACHE"] == "":
        environment["GPUSTACK_MC_CACHE"] = str(folder.with_name("cold"))
    command = [sys.executable, "-c", _REPRODUCE, str(folder), str(cores or 0)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    verdicts = [one["verdict"] for one in found]
    worst = max((one["largest_relative_deviation"] for one in found), key=lambda value: value or 0.0)
    return {
        "results": len(found), **{verdict: verdicts.count(verdict) for verdict in ("identical", "equal", "different")},
        "largest_relative_deviation": worst, "variables": sum(one["variables"] for one in found),
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Compute, reproduce and write."""
    from gpustack_mc import catalog
    from gpustack_mc.reproduce import TOLERANCE

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scenarios", nargs="*", default=list(catalog.shipped_scenarios()))
    asked = parser.parse_args(arguments)
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder, cache = Path(name) / "results", Path(name) / "cache"
        compute(folder, asked.scenarios, cache)
        for circumstance in CIRCUMSTANCES:
            found[circumstance] = again(folder, circumstance, cache)
            sys.stdout.write(f"{circumstance}: {found[circumstance]}\n")
            sys.stdout.flush()
    kept = {
        "scenarios": len(asked.scenarios), "seeds": SEEDS, "samples": SAMPLES, "tolerance": TOLERANCE,
        "circumstances": found,
        "about": {"machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version(),
                  **{name: version(name) for name in ("gpustack-mc", "numpy", "jax")}},
    }  # fmt: skip
    if asked.scenarios == list(catalog.shipped_scenarios()):
        RESULT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8", newline="\n")
    return 3 if any(one["different"] for one in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
