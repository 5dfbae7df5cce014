"""Scores of runs with a known speed: which runs are scored, and that the published page is what the scores say."""

import csv
import json

import numpy as np
import pytest

from gpustack_mc import efficiency, published_runs, speed_scoring
from gpustack_mc.fits.utilization_data import compute_only, log_utilization


@pytest.fixture(scope="module")
def rows():
    return {row["id"]: row for row in published_runs.training_rows()}


@pytest.fixture(scope="module")
def found():
    return speed_scoring.score(
        dict.fromkeys({row["family"] for row in published_runs.training_rows()}, efficiency.draws())
    )


def test_scored_runs_have_hours_of_their_own(rows):
    """Hours that are tokens over speed would score the arithmetic of their authors."""
    scored = [rows[name] for name in speed_scoring.speeds()]
    assert not compute_only(scored).any()
    assert not any(row["hours_basis"] in ("upper_bound", "plan") for row in scored)
    assert len({row["family"] for row in scored}) == len(scored)


def test_speeds_are_near_what_the_hours_imply(rows):
    for name, speed in speed_scoring.speeds().items():
        row = rows[name]
        flop = 6 * float(row["params_active"]) * float(speed["tokens_per_second"])
        reached = flop / (float(row["peak_16bit_flop_per_s"]) * float(speed["accelerators"]))
        # Losses make the hours longer, never much shorter; half again is the largest published loss of these runs.
        assert -0.02 < np.log(reached) - log_utilization([row])[0] < 0.45, name


def test_every_candidate_has_a_source_and_a_reason(root):
    with (root / "priors" / "observed.csv").open(encoding="utf-8", newline="") as stream:
        table = list(csv.DictReader(stream))
    for row in table:
        assert row["source_title"]
        assert row["source_url"].startswith("http")
        assert row["licence"]
        assert (row["use"] == "yes" and row["tokens_per_second"]) or row["use"].startswith("no: ")


def test_a_known_speed_is_worth_something(found):
    assert found["n"] == len(speed_scoring.speeds())
    assert found["metrics"]["crps_log"] < found["without_speed"]["crps_log"]
    assert found["metrics"]["median_p95_over_p5"] < found["without_speed"]["median_p95_over_p5"]


def test_the_published_page_is_what_the_scores_say(root, found):
    folder = root / "reports" / "validation"
    published = json.loads((folder / "observed.json").read_text(encoding="utf-8"))
    assert (folder / "observed.md").read_text(encoding="utf-8") == speed_scoring.markdown(published)
    assert [row["run_id"] for row in published["rows"]] == [row["run_id"] for row in found["rows"]]
    for mine, theirs in zip(found["rows"], published["rows"], strict=True):
        assert mine["reported"] == theirs["reported"]
        # A speed outweighs what the fit knew of the run; 240 draws per family place a median to 2%.
        assert np.log(mine["median"] / theirs["median"]) == pytest.approx(0, abs=0.04)
