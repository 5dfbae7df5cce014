"""Licences of what the package depends on and ships; that the checks can fail is tested as well."""

import importlib.util
import shutil
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location(
    "supply_chain", Path(__file__).parents[1] / "benchmarks" / "supply_chain.py"
)
supply_chain = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(supply_chain)


def test_licences_of_dependencies_are_allowed():
    assert list(supply_chain.dependencies()) == []


def test_dependencies_are_those_of_the_lock_with_what_they_need():
    found = supply_chain.locked()
    assert all(found[name] for name in ("jax", "jaxlib", "xarray", "h5netcdf", "matplotlib", "pillow"))
    # Of extras, of other systems, and of developers.
    assert not found["distributed"] and not found["pyarrow"] and not found.get("colorama")
    assert not {"pytest", "ruff", "gpustack-mc"} & set(found)
    assert "distributed" not in supply_chain.locked(extras=False)


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("BSD-3-Clause AND 0BSD AND MIT AND Zlib AND CC0-1.0", True),
        ("Apache-2.0 OR GPL-3.0-only", True),
        ("MIT AND GPL-3.0-only", False),
        ("GPL-3.0-only", False),
        ("Proprietary", False),
        ("none stated", False),
        ("", False),
    ],
)
def test_expressions(expression, allowed):
    assert supply_chain.is_allowed(expression) == allowed


def test_a_dependency_with_another_licence_is_found(monkeypatch):
    monkeypatch.setattr(supply_chain, "licence_of", lambda name: "GPL-3.0-only" if name == "pint" else "MIT")
    assert list(supply_chain.dependencies()) == ["pint: GPL-3.0-only is not in the list of what is allowed"]


def test_every_shipped_row_has_a_source_and_a_licence_that_lets_it_be_shipped():
    assert list(supply_chain.data()) == []


@pytest.mark.parametrize(
    ("licence", "ships"),
    [
        ("CC-BY-4.0 (recalled); facts only", True),
        ("copyright; facts only", True),
        ("MLCommons terms; results quoted as facts", True),
        ("CC BY-NC 4.0", False),
        ("CC BY-ND 4.0", False),
        ("CC BY 4.0, non-commercial", False),
        ("copyright", False),
        ("", False),
    ],
)
def test_what_may_be_shipped(licence, ships):
    assert supply_chain.may_be_shipped(licence) == ships


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("pue/prior.yaml", 'licence: "facts only"', 'licence: "CC BY-NC 4.0"', "CC BY-NC 4.0"),
        ("pue/data.csv", "google-dc-efficiency,", "another-page,", "no licence"),
        ("pue/data.csv", "https://datacenters.google/efficiency/", "", "no title and address"),
        ("observed.csv", "copyright; facts only", "copyright", "copyright"),
        ("accelerators.csv", "https://www.techpowerup.com/gpu-specs/tesla-v100-sxm2-32-gb.c3185", "", "no address"),
    ],
)
def test_a_row_without_them_is_found(root, tmp_path, file, old, new, said):
    for name in {"pue/prior.yaml", "pue/data.csv", file}:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(root / "priors" / name, tmp_path / name)
    assert list(supply_chain.data(tmp_path)) == []
    text = (tmp_path / file).read_text(encoding="utf-8")
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new), encoding="utf-8")
    found = list(supply_chain.data(tmp_path))
    assert found and all(said in line for line in found)
