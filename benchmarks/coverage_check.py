"""Share of the lines and branches of the program that the tests run, also in the processes that they start.

    uv run --all-extras python benchmarks/coverage_check.py    # twice as long as the tests alone

Fails below 95% of the lines or 90% of the branches, or when a test fails; otherwise writes
``reports/validation/coverage.json``: both shares of the whole and of every file that is below one of them. Arguments
go to pytest.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "reports" / "validation" / "coverage.json"
LOWEST = {"statements": 95.0, "branches": 90.0}


def shares(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return percentages by kind; a file without branches has all of them."""
    return {kind: round(summary[f"percent_{kind}_covered"], 1) for kind in LOWEST}


def low(found: Mapping[str, float]) -> bool:
    """Whether a share is below what is asked."""
    return any(found[kind] < least for kind, least in LOWEST.items())


def measure(arguments: list[str]) -> tuple[int, dict[str, Any]]:
    """Run the tests; return the exit code of pytest and the report of coverage."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "coverage.json"
        options = ["--cov=gpustack_mc", "--cov-branch", f"--cov-report=json:{path}", *arguments]
        code = subprocess.run([sys.executable, "-m", "pytest", *options], cwd=ROOT, check=False).returncode
        return code, json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def main() -> int:
    """Measure, print and write; return an exit code."""
    code, report = measure(sys.argv[1:])
    if not report:
        return code or 1
    source = "src/gpustack_mc/"
    files = {name.removeprefix(source): shares(file["summary"]) for name, file in sorted(report["files"].items())}
    found = {"least": LOWEST, "whole": shares(report["totals"]),
             "files below": {name: each for name, each in files.items() if low(each)}}  # fmt: skip
    text = json.dumps(found, indent=1) + "\n"
    sys.stdout.write(text)
    if code or low(found["whole"]):
        return code or 1
    RESULT.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
