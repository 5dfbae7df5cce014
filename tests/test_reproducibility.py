"""The same bytes under other circumstances, and the figures for all shipped scenarios that are kept."""

import importlib.util
import json
import os
from pathlib import Path

import pytest

from gpustack_mc import catalog
from gpustack_mc.reproduce import TOLERANCE

_SPEC = importlib.util.spec_from_file_location(
    "reproducibility", Path(__file__).parents[1] / "benchmarks" / "reproducibility.py"
)
reproducibility = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(reproducibility)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproducibility")
    reproducibility.compute(folder / "results", ["nanochat"], folder / "cache", samples=1024, seeds=(1,))
    return folder / "results", folder / "cache"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system cannot bind a process to cores")
@pytest.mark.parametrize("circumstance", ["one core", "another hash seed"])
def test_other_circumstances_give_the_same_bytes(results, circumstance):
    found = reproducibility.again(results[0], circumstance, results[1])
    # A chunk is computed by one thread, so that cores change no sum.
    assert found["identical"] == found["results"] == 1 and found["variables"] > 50


def test_all_shipped_scenarios_were_reproduced():
    if not reproducibility.RESULT.exists():
        pytest.skip("not measured yet: python benchmarks/reproducibility.py")
    kept = json.loads(reproducibility.RESULT.read_text(encoding="utf-8"))
    assert kept["scenarios"] == len(list(catalog.shipped_scenarios())) and kept["tolerance"] == TOLERANCE
    assert set(kept["circumstances"]) == set(reproducibility.CIRCUMSTANCES)
    for found in kept["circumstances"].values():
        assert found["different"] == 0 and found["results"] == kept["scenarios"]
        assert (found["largest_relative_deviation"] or 0) <= TOLERANCE
