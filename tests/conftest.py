"""Shared fixtures and settings."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# Timings are never a test gate, and a failure must come back when the suite is run again.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")

# Text is laid out alike whatever the terminal that the tests are run from, and in the workers of xdist.
os.environ["COLUMNS"] = "100"

ROOT = Path(__file__).parents[1]
# Each worker runs whole files, as fixtures are made once a file; long ones first, so that all workers end together.
LONGEST = ("test_readme.py", "test_calibration.py", "test_sweep.py", "test_validation.py")


def pytest_xdist_auto_num_workers(config):
    """All cores for the whole suite; one process for named files, which would end before a second one has started."""
    return 0 if any(".py" in name for name in config.args) else None


def pytest_collection_modifyitems(items):
    """Bring the longest files to the front."""
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


@pytest.fixture(autouse=True)
def no_figure_left():
    """A figure that pyplot keeps fills memory, and opens a window with the next `show` of the caller."""
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        left = pyplot.get_fignums()
        pyplot.close("all")
        assert left == []


@pytest.fixture
def drawing():
    """For examples that leave their picture to the reader, to show or to close."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    yield
    pyplot.close("all")


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture
def scenario_file(tmp_path):
    """Write scenario text to a file and return its path."""

    def write(text: str, name: str = "plan.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    """Run a shipped scenario once for all tests that only read a result; returns (tree, path of its result.nc)."""
    from gpustack_mc.design import make_design
    from gpustack_mc.propagation import simulate
    from gpustack_mc.result import to_datatree, write
    from gpustack_mc.scenario import load_scenario

    tree = to_datatree(simulate(load_scenario("llama-3-70b"), make_design(4096, seed=0)))
    path = tmp_path_factory.mktemp("llama") / "result.nc"
    write(tree, path)
    return tree, path
