"""Rooms and arrows: what may import what, and what must stay cheap to import."""

import ast
import subprocess
import sys

import pytest

# Each room may import these of our own modules, directly. Arrows never turn back.
ROOMS = {
    "quantities": set(),
    "constants": set(),
    "equations": {"constants"},
    "model": {"equations"},
    "errors": set(),
    "catalog": {"errors"},
    "yamlfile": {"errors", "catalog"},
    "units": set(),
    "schema": {"quantities"},
    "priors": {"quantities"},
    "efficiency": {"catalog", "fits", "priors", "schema"},
    "facts": {"catalog", "priors", "problem", "schema"},
    "problem": {"errors", "priors", "quantities", "schema"},
    "statements": {"priors", "schema", "units", "errors", "quantities", "yamlfile"},
    "reading": {"schema", "units", "yamlfile", "errors", "statements"},
    "scenario": {
        "constants",
        "equations",
        "formatting",
        "efficiency",
        "reading",
        "catalog",
        "priors",
        "schema",
        "units",
        "yamlfile",
        "errors",
        "facts",
        "problem",
        "quantities",
        "statements",
    },
    "design": set(),
    "sensitivity": {"design"},
    "simulate": {"model", "priors", "sensitivity", "design", "errors", "quantities", "problem"},
    "result": {"catalog", "problem", "quantities", "simulate"},
    "reopening": {"compilation", "errors", "problem", "quantities", "result", "run", "simulate"},
    "formatting": set(),
    "summary": {"formatting", "problem", "quantities", "sensitivity"},
    "figures": {"formatting", "quantities", "summary"},
    "strips": set(),
    "notation": set(),
    "chain": {"notation", "quantities"},
    "explain": {"chain", "errors", "notation", "quantities", "summary"},
    "chain_picture": {"notation", "quantities", "summary"},
    "cite": {"formatting", "summary"},
    "report": {
        "chain_picture",
        "explain",
        "figures",
        "formatting",
        "notation",
        "quantities",
        "strips",
        "summary",
    },
    "starter": {"errors", "storage"},
    "api": {"design", "problem", "reopening", "result", "scenario", "simulate"},
    "storage": {"errors"},
    "scoring": set(),
    "run_table": {"catalog", "constants", "errors"},
    "validation": {"catalog", "efficiency", "errors", "fits", "run_table", "scoring", "storage", "validation_figures"},
    "validation_figures": {"formatting", "scoring", "figures"},
    "compilation": set(),
    "run": {"storage", "design", "problem", "errors", "result", "scenario", "simulate", "summary", "figures", "report"},
    "checking": {"formatting", "priors", "scenario"},
    "listing": {"catalog", "priors", "errors", "quantities", "yamlfile"},
}


def modules(root):
    return {
        path.stem: path
        for path in (root / "src" / "gpustack_mc").glob("*.py")
        if path.stem not in ("__init__", "__main__", "cli")
    }


def own_imports(path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gpustack_mc"):
            inside = (node.module or "").split(".")[1:]
            found |= {inside[0]} if inside else {alias.name for alias in node.names}
    return found - {"__version__"}


def test_every_module_has_its_room(root):
    assert set(modules(root)) == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_imports_follow_the_arrows(root, room):
    assert own_imports(modules(root)[room]) <= ROOMS[room]


def test_only_simulate_compiles(root):
    users = {
        name
        for name, path in modules(root).items()
        if any(
            isinstance(node, ast.Attribute) and node.attr == "jit"
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        )
    }
    assert users == {"simulate"}


def loaded_after(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["schema"], ["check", "worked-70b"], ["quantities"]])
def test_light_commands_load_neither_jax_nor_arviz(arguments):
    code = f"""
from gpustack_mc.cli import main
try:
    main({arguments!r})
except SystemExit as stop:
    assert not stop.code, stop.code
"""
    assert not {"jax", "arviz", "matplotlib", "numpyro", "xarray"} & loaded_after(code)


def test_import_changes_nothing_in_jax():
    code = (
        "import jax; x64 = jax.config.jax_enable_x64; import gpustack_mc.run; assert jax.config.jax_enable_x64 == x64"
    )
    assert "jax" in loaded_after(code)
