"""Shared fixtures and settings."""

from pathlib import Path

import pytest
from hypothesis import settings

# Timings are never a test gate, and a failure must come back when the suite is run again.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")

ROOT = Path(__file__).parents[1]


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
