"""The release check: the published validation follows from the shipped data, and a change of any of it is noticed."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gpustack_mc import validation_energy, validation_text
from gpustack_mc.fits import refit
from gpustack_mc.fits import utilization_fit as fitting

POWER = ("host_power", "gpu_power_fraction")


def reasons(root: Path) -> Iterator[str]:
    """Yield why the published tables of a checkout no longer follow from its data."""
    reports = root / "reports" / "validation"
    published = json.loads((reports / "validation.json").read_text(encoding="utf-8"))
    utilization = root / "priors" / "utilization"
    record = json.loads((utilization / "fit.json").read_text(encoding="utf-8"))
    stale = {"utilization": fitting.stale(utilization)} | {name: refit.stale(name, root / "priors") for name in POWER}
    yield from (f"the fit of {name} is stale" for name, why in stale.items() if why)
    for key in ("data_sha256", "settings_sha256", "program_sha256"):
        if published["versions"][f"utilization_{key}"] != record[key]:
            yield f"{key} is not that of the scored fit"
    if (reports / "validation.md").read_text(encoding="utf-8") != validation_text.markdown(published):
        yield "the page is not that of its figures"
    reported, low, high = np.array([[row["reported"], *row["interval_90"]] for row in published["rows"]]).T
    if not np.isclose(published["metrics"]["coverage"]["0.9"], np.mean((low <= reported) & (reported <= high))):
        yield "the coverage is not that of its rows"
    share = refit.read_prior("host_power", root / "priors")["settings"]["network_share"]["value"]
    rows = [row for row in refit.read_rows("host_power", root / "priors") if row["use"] == "yes"]
    units = [(unit.name, validation_energy.measured(unit, share)) for unit in validation_energy.units(rows)]
    told = [(row["unit"], row["measured_w"]) for row in published["energy"]["rows"]]
    if [name for name, _ in units] != [name for name, _ in told]:
        yield "other machines were measured than are scored"
    elif not np.allclose([watts for _, watts in units], [watts for _, watts in told], rtol=1e-5):
        yield "measured powers are not those that are scored"


def test_the_published_tables_follow_from_the_shipped_data(root):
    assert list(reasons(root)) == []


@pytest.fixture
def checkout(root, tmp_path):
    for name in ("utilization", *POWER):
        shutil.copytree(root / "priors" / name, tmp_path / "priors" / name)
    shutil.copytree(root / "reports" / "validation", tmp_path / "reports" / "validation")
    return tmp_path


def test_a_copy_follows_too(checkout):
    assert list(reasons(checkout)) == []


def refitted(checkout):
    """Data that were fitted again, and not validated again."""
    path = checkout / "priors" / "utilization" / "fit.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(record | {"data_sha256": "0" * 64}), encoding="utf-8")


@pytest.mark.parametrize(
    ("file", "old", "new", "reason"),
    [
        ("priors/utilization/data.csv", "82432", "82433", "the fit of utilization is stale"),
        ("priors/utilization/draws.csv", "0", "1", "the fit of utilization is stale"),
        ("priors/host_power/data.csv", "894.375", "894.376", "the fit of host_power is stale"),
        ("priors/gpu_power_fraction/data.csv", ",595,", ",596,", "the fit of gpu_power_fraction is stale"),
        ("reports/validation/validation.md", "9", "8", "the page is not that of its figures"),
    ],
)
def test_a_change_is_noticed(checkout, file, old, new, reason):
    path = checkout / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    assert reason in list(reasons(checkout))


def test_a_fit_that_was_not_scored_is_noticed(checkout):
    refitted(checkout)
    assert "data_sha256 is not that of the scored fit" in list(reasons(checkout))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda found: found["metrics"]["coverage"].update({"0.9": 0.97}), "the coverage is not that of its rows"),
        (lambda found: found["energy"]["rows"].pop(), "other machines were measured than are scored"),
        (
            lambda found: found["energy"]["rows"][0].update(measured_w=931.0),
            "measured powers are not those that are scored",
        ),
    ],
)
def test_edited_figures_are_noticed(checkout, change, reason):
    path = checkout / "reports" / "validation" / "validation.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    change(found)
    path.write_text(json.dumps(found), encoding="utf-8")
    assert reason in list(reasons(checkout))


@pytest.mark.slow
def test_scores_of_energy_are_found_again(root):
    """Their fits, without each machine in turn, are made again: no hash of theirs is published."""
    published = json.loads((root / "reports" / "validation" / "validation.json").read_text(encoding="utf-8"))
    again = validation_energy.scores()
    for old, new in zip(published["energy"]["rows"], again["rows"], strict=True):
        # The chains are the same on one machine; on another they differ by their Monte Carlo error.
        assert new["median_w"] == pytest.approx(old["median_w"], rel=0.02), old["unit"]
