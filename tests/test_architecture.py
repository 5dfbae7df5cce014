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
    "failures": {"constants"},
    "model": {"equations", "failures"},
    "errors": set(),
    "catalog": {"errors"},
    "yamlfile": {"errors", "catalog"},
    "units": set(),
    "schema": {"quantities"},
    "priors": {"quantities"},
    "loading": set(),
    "conditions": {"errors", "formatting", "problem", "quantities", "units"},
    "answering": {"conditions", "formatting", "problem", "quantities", "sobol"},
    "asking": {"conditions", "errors", "problem", "quantities", "reading", "schema", "units"},
    "efficiency": {"catalog", "fits", "priors", "schema"},
    "facts": {"catalog", "priors", "problem", "schema"},
    "metering": {"priors"},
    "observed": {
        "catalog",
        "constants",
        "fits",
        "formatting",
        "metering",
        "priors",
        "problem",
        "quantities",
        "schema",
        "statements",
    },
    "running": {
        "catalog",
        "constants",
        "efficiency",
        "fits",
        "formatting",
        "metering",
        "observed",
        "priors",
        "problem",
        "quantities",
        "schema",
        "statements",
    },
    "problem": {"errors", "priors", "quantities", "schema"},
    "statements": {"priors", "schema", "units", "errors", "quantities", "yamlfile"},
    "reading": {"schema", "units", "yamlfile", "errors", "statements"},
    "reliability": {
        "constants",
        "errors",
        "formatting",
        "priors",
        "problem",
        "quantities",
        "schema",
        "units",
        "yamlfile",
    },
    "run_columns": {"quantities"},
    "user_cells": {"errors", "quantities", "run_columns", "run_table"},
    "user_table": {"catalog", "constants", "errors", "quantities", "run_columns", "run_table", "user_cells"},
    "pack": {"catalog", "efficiency", "errors", "facts", "fits", "priors", "quantities", "storage", "user_table"},
    "surprise": {"fits"},
    "calibration": {
        "calibration_figures",
        "calibration_text",
        "catalog",
        "efficiency",
        "errors",
        "facts",
        "fits",
        "formatting",
        "pack",
        "priors",
        "quantities",
        "refitting",
        "storage",
        "surprise",
        "user_table",
    },
    "calibration_text": {"formatting", "quantities"},
    "calibration_figures": {"pages", "formatting", "quantities"},
    "refitting": {"catalog", "errors", "fits"},
    "prior_inputs": {
        "asking",
        "catalog",
        "efficiency",
        "errors",
        "formatting",
        "pack",
        "priors",
        "problem",
        "quantities",
        "reliability",
        "schema",
        "statements",
        "units",
        "yamlfile",
    },
    "scenario": {
        "prior_inputs",
        "constants",
        "equations",
        "formatting",
        "efficiency",
        "reading",
        "reliability",
        "catalog",
        "priors",
        "schema",
        "units",
        "yamlfile",
        "errors",
        "facts",
        "pack",
        "problem",
        "quantities",
        "statements",
        "running",
    },
    "design": set(),
    "sobol": {"design"},
    "tallies": {"sobol"},
    "shapes": {"priors", "problem", "quantities"},
    "propagation": {"model", "priors", "sobol", "design", "errors", "problem", "shapes", "tallies"},
    "spent": {"model", "shapes", "propagation"},
    "variance_split": {"design", "problem", "quantities", "sobol", "shapes", "propagation"},
    "result": {"catalog", "problem", "quantities", "propagation", "tallies", "spent"},
    "reopening": {"compilation", "errors", "problem", "quantities", "result", "run", "tallies"},
    "formatting": set(),
    "drivers": set(),
    "spent_summary": {"sobol"},
    "summarizing": {"answering", "drivers", "formatting", "quantities", "reliability", "spent_summary"},
    "pages": set(),
    "forest": {"formatting", "pages"},
    "panels": {"pages"},
    "figures": {"forest", "pages", "panels", "quantities", "summarizing"},
    "checkpoint_figures": {"constants", "failures", "pages", "formatting"},
    "strips": set(),
    "notation": set(),
    "chain": {"notation", "quantities"},
    "explain": {"chain", "errors", "notation", "quantities", "summarizing"},
    "chain_picture": {"notation", "quantities", "summarizing"},
    "cite": {"formatting", "summarizing"},
    "report": {
        "answering",
        "chain_picture",
        "explain",
        "figures",
        "pages",
        "formatting",
        "notation",
        "quantities",
        "strips",
        "summarizing",
    },
    "starter": {"errors", "storage"},
    "api": {"design", "problem", "reopening", "result", "scenario", "propagation"},
    "storage": {"errors"},
    "scoring": set(),
    "run_table": {"catalog", "constants", "errors"},
    "published_runs": {"catalog", "fits", "scoring"},
    "validation_scores": {"fits", "published_runs", "run_table", "scoring"},
    "validation_known": {"fits", "published_runs", "scoring", "validation_scores"},
    "validation_energy": {"fits", "published_runs", "scoring"},
    "validation_text": {"published_runs", "scoring", "validation_known", "validation_scores"},
    "validation": {
        "catalog",
        "efficiency",
        "errors",
        "fits",
        "published_runs",
        "run_table",
        "scoring",
        "storage",
        "validation_energy",
        "validation_figures",
        "validation_known",
        "validation_scores",
        "validation_text",
    },
    "speed_scoring": {"catalog", "constants", "fits", "published_runs", "scoring", "storage", "validation_scores"},
    "validation_figures": {"scoring", "pages"},
    "compilation": set(),
    "coupling": {"catalog", "efficiency", "errors", "facts", "problem", "propagation"},
    "batches": {"propagation"},
    "paired": {"batches", "coupling", "design", "problem", "quantities", "sobol", "propagation"},
    "comparison": {"paired", "priors", "problem", "quantities", "result", "sobol", "tallies"},
    "comparing": {
        "comparison",
        "comparison_text",
        "conditions",
        "coupling",
        "decision_figures",
        "design",
        "errors",
        "loading",
        "pages",
        "paired",
        "problem",
        "quantities",
        "result",
        "scenario",
        "storage",
        "summarizing",
        "yamlfile",
    },
    "decision_figures": {
        "answering",
        "comparison_text",
        "figures",
        "forest",
        "pages",
        "formatting",
        "quantities",
        "sites_text",
    },
    "comparison_text": {"answering", "formatting", "quantities"},
    "sites_text": {"answering", "formatting"},
    "sites": {
        "yamlfile",
        "sites_text",
        "catalog",
        "comparison",
        "coupling",
        "decision_figures",
        "design",
        "errors",
        "pages",
        "paired",
        "problem",
        "quantities",
        "result",
        "scenario",
        "storage",
    },
    "run": {
        "loading",
        "variance_split",
        "drivers",
        "reliability",
        "answering",
        "conditions",
        "storage",
        "design",
        "problem",
        "errors",
        "result",
        "scenario",
        "propagation",
        "summarizing",
        "pages",
        "report",
    },
    "checking": {"formatting", "priors", "scenario"},
    "listing": {"catalog", "priors", "run_columns", "errors", "quantities", "yamlfile"},
    "targets": {"conditions", "errors", "problem"},
    "knobs": {"errors", "facts", "formatting", "priors", "problem", "quantities", "scenario", "yamlfile"},
    "solve": {
        "catalog",
        "conditions",
        "targets",
        "design",
        "errors",
        "knobs",
        "lease",
        "problem",
        "quantities",
        "sobol",
        "propagation",
    },
    "equal_loss": {
        "catalog",
        "constants",
        "design",
        "errors",
        "facts",
        "formatting",
        "problem",
        "scenario",
        "propagation",
        "yamlfile",
    },
    "lease": {"problem", "propagation"},
    "served": {"constants", "design", "problem", "sobol", "propagation"},
    "solving": {
        "conditions",
        "targets",
        "design",
        "equal_loss",
        "errors",
        "pages",
        "knobs",
        "lease",
        "problem",
        "quantities",
        "scenario",
        "served",
        "propagation",
        "solve",
        "solve_figure",
        "storage",
        "units",
        "yamlfile",
    },
    "information": set(),
    "decisions": {
        "catalog",
        "conditions",
        "design",
        "errors",
        "formatting",
        "problem",
        "quantities",
        "scenario",
        "propagation",
        "units",
        "yamlfile",
    },
    "measure": {
        "decisions",
        "design",
        "errors",
        "pages",
        "information",
        "measure_figure",
        "problem",
        "quantities",
        "scenario",
        "propagation",
        "storage",
        "units",
    },
    "measure_text": {"formatting", "quantities"},
    "measure_figure": {"pages", "measure_text", "quantities"},
    "solve_text": {"conditions", "formatting", "problem", "quantities"},
    "solve_figure": {"pages", "solve_text"},
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


def test_only_propagation_compiles(root):
    users = {
        name
        for name, path in modules(root).items()
        if any(
            isinstance(node, ast.Attribute) and node.attr == "jit"
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        )
    }
    assert users == {"propagation"}


def loaded_after(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["schema"], ["check", "worked-70b"], ["check", "bloom-176b-running"], ["quantities"]],
)
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
