"""What the package rests on: licences of its locked dependencies and of the data it ships, and known vulnerabilities.

    uv run --all-extras python benchmarks/supply_chain.py           # licences of everything, then pip-audit

Dependencies are those of ``uv.lock`` that a user gets, with all extras; their licence is what the installed package
states of itself. Rows of ``priors/`` carry the licence of their source. `pip-audit` asks the vulnerability services of
PyPI and of OSV; a service that cannot be reached, or does not know a package, is no clean bill and is said so. Exit
code 3 when something is not allowed or vulnerable, 4 when no service could audit.
"""

import csv
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
# Permissive, or copyleft by file (MPL), which does not reach programs that only import them.
ALLOWED = {"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-CMU", "MPL-2.0",
           "PSF-2.0", "Zlib"}  # fmt: skip
# How packages say it that do not use SPDX expressions yet.
SPOKEN = {
    "Apache 2.0": "Apache-2.0", "Apache Software License": "Apache-2.0", "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause", "ISC License (ISCL)": "ISC", "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0", "Python Software Foundation License": "PSF-2.0",
}  # fmt: skip
# What lets a row be shipped: single facts, which no licence covers, public works, and open licences.
SHIPPABLE = re.compile(
    r"\bfacts?\b|public (domain|filing|report)|US national laboratory|values computed|with attribution|CC[ -]BY\b"
    r"|\bCC0\b|Open Government Licence|ODbL|\bMIT\b|BSD-3-Clause|Apache-2\.0|MPL-2\.0",
    re.IGNORECASE,
)
FORBIDDEN = re.compile(r"-NC\b|\bNC\b|-ND\b|non-?commercial|no derivatives|all rights|confidential", re.IGNORECASE)
# Tables that name a page for each row but no licence: numbers of makers' data sheets and of papers, facts only.
FACTS = ("accelerators.csv", "scaling_laws.csv")
# Names and their kinship, without a number or a source.
NAMES = ("regions.csv",)


def locked(extras: bool = True) -> dict[str, bool]:
    """Return the packages of the lock that a user gets, and whether each comes with every installation here."""
    packages: dict[str, list[dict[str, Any]]] = {}
    for package in tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]:
        packages.setdefault(package["name"], []).append(package)
    found: dict[str, bool] = {}
    seen: set[tuple[str, tuple[str, ...], bool]] = set()

    def visit(name: str, own_extras: tuple[str, ...], always: bool) -> None:
        if (name, own_extras, always) in seen:
            return
        seen.add((name, own_extras, always))
        for package in packages[name]:
            optional = package.get("optional-dependencies", {})
            wanted = [(one, always) for one in package.get("dependencies", [])]
            # An extra that another package asks for is needed; our own are for those who ask.
            wanted += [
                (one, always and name != "gpustack-mc") for extra in own_extras for one in optional.get(extra, [])
            ]
            for one, each in wanted:
                # A marker, such as of another system, says that it may be missing.
                needed = each and "marker" not in one
                found[one["name"]] = needed or found.get(one["name"], False)
                visit(one["name"], tuple(one.get("extra", ())), needed)

    (own,) = packages["gpustack-mc"]
    visit("gpustack-mc", tuple(own.get("optional-dependencies", {})) if extras else (), True)
    return dict(sorted(found.items()))


def licence_of(name: str) -> str:
    """Return the licence that an installed package states, as an SPDX expression where it can be told.

    Raises
    ------
    importlib.metadata.PackageNotFoundError
        It is not installed.
    """
    about = metadata.metadata(name)
    if expression := about.get("License-Expression"):
        return expression
    classifiers = [text.rpartition(" :: ")[2] for text in about.get_all("Classifier", []) if text.startswith("License")]
    said = [text for text in classifiers if text != "OSI Approved"] or [(about.get("License") or "").strip()]
    return " AND ".join(SPOKEN.get(text, text[:60]) for text in said) or "none stated"


def is_allowed(expression: str) -> bool:
    """Whether all parts of an SPDX expression, or one of its alternatives, are allowed."""
    parts = expression.replace("(", " ").replace(")", " ")
    return any(all(one.strip() in ALLOWED for one in way.split(" AND ")) for way in parts.split(" OR "))


def dependencies(every: bool = False) -> Iterator[str]:
    """Yield what is wrong with the licences of dependencies; with `every`, also that an optional one is not here."""
    for name, needed in locked().items():
        try:
            licence = licence_of(name)
        except metadata.PackageNotFoundError:
            if needed or (every and name != "colorama"):  # of Windows
                yield f"{name} is in uv.lock and not installed"
            continue
        if not is_allowed(licence):
            yield f"{name}: {licence} is not in the list of what is allowed"


def may_be_shipped(licence: str) -> bool:
    """Whether a row under this licence may be in the package."""
    return bool(SHIPPABLE.search(licence)) and not FORBIDDEN.search(licence)


def data(folder: Path = ROOT / "priors") -> Iterator[str]:
    """Yield what is wrong with sources and licences of shipped rows."""
    for path in sorted(folder.glob("**/data.csv")):
        sources = YAML(typ="safe").load(path.with_name("prior.yaml").read_text(encoding="utf-8"))["sources"]
        for line, row in _rows(path):
            source = sources.get(row.get("source") or "", {})
            if not (row.get("source_title") and row.get("source_url")):
                yield f"{path}:{line}: no title and address of a source"
            if not may_be_shipped(source.get("licence", "")):
                yield f"{path}:{line}: {source.get('licence') or 'no licence'}"
    for path in sorted(folder.glob("*.csv")):
        for line, row in _rows(path) if path.name not in NAMES else ():
            if not row.get("source_url"):
                yield f"{path}:{line}: no address of a source"
            if path.name not in FACTS and not may_be_shipped(row.get("licence") or ""):
                yield f"{path}:{line}: {row.get('licence') or 'no licence'}"


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    with path.open(newline="", encoding="utf-8") as stream:
        reader = csv.DictReader(stream)
        for row in reader:
            yield reader.line_num, row


def audit(service: str) -> tuple[list[str], str]:
    """Ask one service about all locked packages; returns vulnerabilities, and why nothing is known where it is not."""
    with tempfile.TemporaryDirectory() as name:
        wanted = Path(name) / "locked.txt"
        export = ["uv", "export", "--locked", "--all-extras", "--no-dev", "--no-emit-project", "--no-hashes", "-q"]
        subprocess.run([*export, "-o", str(wanted)], cwd=ROOT, check=True)
        command = ["uv", "tool", "run", "-q", "pip-audit", "-s", service, "--no-deps", "--disable-pip", "-f", "json"]
        done = subprocess.run(
            [*command, "-r", str(wanted), "--progress-spinner", "off"], capture_output=True, text=True, check=False
        )  # fmt: skip
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (KeyError, ValueError):
        return [], (done.stderr.strip().splitlines() or ["no answer"])[-1][:200]
    found = [f"{one['name']} {one['version']}: {flaw['id']}, fixed in {', '.join(flaw['fix_versions']) or 'none'}"
             for one in packages for flaw in one.get("vulns", ())]  # fmt: skip
    unknown = [one["name"] for one in packages if "skip_reason" in one]
    # It exits with 0 then, as if all were well.
    return found, f"{len(unknown)} of {len(packages)} packages are not known there" if unknown else ""


def main() -> int:
    """Say all that is wrong."""
    wrong = [*dependencies(every=True), *data()]
    answers = {service: audit(service) for service in ("pypi", "osv")}
    for service, (found, unknown) in answers.items():
        wrong += found
        sys.stdout.write(f"pip-audit with {service}: {unknown or 'all packages audited'}\n")
    sys.stdout.writelines(f"{line}\n" for line in wrong)
    sys.stdout.write(f"{len(locked())} dependencies: {len(wrong)} findings\n")
    return 3 if wrong else 4 if all(unknown for _, unknown in answers.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
