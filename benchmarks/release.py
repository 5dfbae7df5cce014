"""Everything that takes too long for every change, in order, before a release: what failed is said at the end.

    uv run --all-extras --all-groups python benchmarks/release.py            # some four hours on two cores
    uv run --all-extras --all-groups python benchmarks/release.py load coverage
    uv run python benchmarks/release.py --list

Each step is a command of its own that ends with a code other than 0 when it fails, and most write what they measured
into ``reports/validation/``; the documentation shows it. A step that fails does not keep the next from running.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Step(NamedTuple):
    """One command: its arguments to Python, what it is for, minutes on two cores, and codes that are no failure.

    Attributes
    ----------
    arguments : tuple of str
    what : str
    minutes : float
    explained : mapping of int to str
        Exit codes that leave something open, with what that is.
    """

    arguments: tuple[str, ...]
    what: str
    minutes: float
    explained: Mapping[int, str] = MappingProxyType({})


UNREACHED = {4: "no vulnerability service could be asked from here: run it again where one can be reached"}
# The cheap ones first; what later ones rest on before them.
STEPS = {
    "supply chain": Step(("benchmarks/supply_chain.py",), "licences, sources, known vulnerabilities", 1, UNREACHED),
    "slow tests": Step(("-m", "pytest", "-m", "slow"), "tests that take minutes", 20),
    "validation": Step(
        ("-m", "gpustack_mc", "validate", "--refit", "--out", "reports/validation"), "published runs, held out", 7
    ),
    "brute force": Step(("benchmarks/brute_force.py",), "every kind of answer against plain Monte Carlo", 2),
    "reproducibility": Step(("benchmarks/reproducibility.py",), "the same numbers under other circumstances", 8),
    "coverage": Step(("benchmarks/interval_coverage.py",), "every kind of interval that is printed", 20),
    "coverage of indices": Step(("benchmarks/sensitivity_coverage.py",), "Sobol' indices against closed forms", 5),
    "load": Step(("benchmarks/load.py",), "many runs, scenarios, samples; large results", 40),
    "faults": Step(("benchmarks/faults.py",), "kills, full disks, rivals, broken caches", 10),
    "calibration": Step(("benchmarks/calibration_ranks.py",), "simulation-based calibration of the fits", 25),
    "mutation": Step(("benchmarks/mutation.py",), "whether the tests of the core notice a change", 60),
    "fuzz": Step(("benchmarks/fuzz.py",), "hostile and careless input", 60),
}


def run(chosen: list[str]) -> dict[str, str]:
    """Run steps in order; returns what became of each."""
    became = {}
    for name in chosen:
        step = STEPS[name]
        sys.stdout.write(f"==== {name}: {step.what}\n")
        sys.stdout.flush()
        began = time.monotonic()
        code = subprocess.run([sys.executable, *step.arguments], cwd=ROOT, check=False).returncode
        took = f"{(time.monotonic() - began) / 60:.1f} min"
        said = (
            "passed" if code == 0 else f"OPEN, {step.explained[code]}" if code in step.explained else f"FAILED ({code})"
        )
        became[name] = f"{said}, {took}"
    return became


def main(arguments: list[str] | None = None) -> int:
    """Run the named steps, or all, and say what became of them; 1 when one failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("steps", nargs="*", metavar="STEP", help=", ".join(STEPS))
    parser.add_argument("--list", action="store_true", help="say what there is")
    asked = parser.parse_args(arguments)
    for name in asked.steps:
        if name not in STEPS:
            parser.error(f"there is no step {name!r}")
    if asked.list:
        sys.stdout.writelines(f"{name:20} {step.minutes:4.0f} min  {step.what}\n" for name, step in STEPS.items())
        return 0
    became = run(asked.steps or list(STEPS))
    sys.stdout.write("\n==== what became of it\n")
    sys.stdout.writelines(f"{name:20} {said}\n" for name, said in became.items())
    return 1 if any("FAILED" in said for said in became.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
