"""Scores of predicted hours: known answers, the JSON, what a planner knows, and the published scores."""

import json
import statistics

import numpy as np
import pytest
from matplotlib.text import Text

from gpustack_mc import (
    efficiency,
    published_runs,
    scoring,
    validation,
    validation_energy,
    validation_figures,
    validation_known,
    validation_scores,
    validation_text,
)
from gpustack_mc.errors import GpustackError, InputError
from gpustack_mc.fits import refit
from gpustack_mc.fits.utilization_data import log_hours_at_full_use, log_utilization
from gpustack_mc.run_table import Skipped

METRICS = {
    "mdape", "mean_abs_log_error", "coverage", "median_p95_over_p5", "crps_log", "log_score", "standard_errors",
}  # fmt: skip
ROW = {
    "run_id", "family", "reported", "median", "interval_50", "interval_80", "interval_90", "crps_log", "log_score",
    "pit",
}  # fmt: skip
KEYS = {
    "schema_version", "n", "families", "metrics", "baselines", "groups", "rows", "skipped", "method", "versions",
}  # fmt: skip


def run(name, family, hours, **more):
    return {
        "run_id": name, "family": family, "accelerator_hours": hours, "params_active": 7e9, "tokens": 1e12,
        "peak_16bit_flop_per_s": 312e12, "generation": "ampere", "architecture": "dense", **more,
    }  # fmt: skip


@pytest.fixture(scope="module")
def tiny():
    return [run("a1", "a", 1e5), run("a2", "a", 2e5, batch="1"), run("b1", "b", 4e5), run("c1", "c", 1e5, seed27="1")]


@pytest.fixture(scope="module")
def scored(tiny):
    found = scoring.normal(np.log([1e5, 1e5, 1e5, 2e5]), np.full(4, 0.5))
    return validation_scores.score(tiny, found, skipped=[Skipped(7, "no hours")])


@pytest.fixture(scope="module")
def shipped(root):
    return validation.validate_file(root / "priors" / "utilization" / "data.csv")


# ---- scores ---------------------------------------------------------------------------------------------------------
def test_scores_of_a_table_with_known_answers(scored):
    found = scored["metrics"]
    # Relative errors of the medians are 0, 1/2, 3/4 and 1.
    assert found["mdape"] == pytest.approx(0.625)
    assert found["mean_abs_log_error"] == pytest.approx(np.log(2) * (0 + 1 + 2 + 1) / 4)
    # In standard deviations the rows lie at 0, 1.39, 2.77 and -1.39; the intervals end at 0.67, 1.28 and 1.64.
    assert found["coverage"] == {"0.5": 0.25, "0.8": 0.25, "0.9": 0.75}
    assert found["median_p95_over_p5"] == pytest.approx(np.exp(2 * 1.6448536 * 0.5))
    z = np.log([1, 2, 4, 0.5]) / 0.5
    assert found["log_score"] == pytest.approx(np.mean(-0.5 * z**2 - 0.5 * np.log(2 * np.pi * 0.25)))
    first = scored["rows"][0]
    assert first["pit"] == pytest.approx(0.5)
    assert first["crps_log"] == pytest.approx(0.5 * (np.sqrt(2) - 1) / np.sqrt(np.pi))  # at the centre of a normal
    assert first["interval_90"] == pytest.approx(list(1e5 * np.exp([-0.82242682, 0.82242682])))


def test_baselines_of_the_tiny_table(tiny, scored):
    rule = scored["baselines"]["rule_6nd_40"]
    hours = 6 * 7e9 * 1e12 / (312e12 * 3600 * 0.4)
    assert rule["mdape"] == pytest.approx(np.median(np.abs(hours / np.array([1e5, 2e5, 4e5, 1e5]) - 1)))
    median = scored["baselines"]["median_of_other_families"]
    expected = np.array([np.log([4e5, 1e5]).mean()] * 2 + [np.log(1e5)] + [np.log(2e5)])  # medians of the others' hours
    error = np.abs(expected - np.log([1e5, 2e5, 4e5, 1e5])).mean()
    assert median["mean_abs_log_error"] == pytest.approx(error)


def test_other_families_are_all_rows_but_those_of_the_family():
    rows = published_runs.training_rows()
    y = log_hours_at_full_use(rows) - published_runs.log_hours(rows)
    others = [[value for value, other in zip(y, rows, strict=True) if other["family"] != row["family"]] for row in rows]
    found = validation_scores._other_families(rows, rows)
    np.testing.assert_allclose(found.means[:, 0], [statistics.median(values) for values in others])
    np.testing.assert_allclose(found.sds[:, 0], [statistics.stdev(values) for values in others])


def test_pieces_score_as_the_whole(tiny, scored):
    pieces = [scoring.normal(np.log([1e5, 1e5, 1e5]), np.full(3, 0.5)), scoring.normal(np.log([2e5]), np.array([0.5]))]
    assert validation_scores.score(tiny, pieces)["rows"] == scored["rows"]
    with pytest.raises(ValueError, match="3 predictions for 4 rows"):
        validation_scores.score(tiny, pieces[:1])


def test_many_families_are_merged_for_the_bootstrap():
    names = np.array([f"f{i}" for i in range(1000)] * 2)
    found = validation_scores._clusters(names)
    assert len(np.unique(found)) == published_runs.settings()["bootstrap_clusters"]
    assert (found[:1000] == found[1000:]).all()


def test_one_row(root, tiny):
    found = scoring.normal(np.log([1e5]), np.array([0.5]))
    result = validation_scores.score(tiny[:1], found, reference=published_runs.training_rows())
    assert result["n"] == 1
    assert result["metrics"]["standard_errors"]["mdape"] is None
    assert validation_text.text(result).startswith("Of 1 run ")
    json.loads(validation.to_json(result))


# ---- contract -------------------------------------------------------------------------------------------------------
def test_keys_are_the_contract(scored, shipped):
    for result in (scored, shipped):
        assert set(result) == KEYS
        assert set(result["metrics"]) == METRICS
        assert set(result["metrics"]["coverage"]) == {"0.5", "0.8", "0.9"}
        assert set(result["baselines"]) == {"rule_6nd_40", "median_of_other_families"}
        assert all(set(found) == METRICS for found in result["baselines"].values())
        assert set(result["groups"]) == {"batch", "generation", "architecture", "subset"}
        assert all(set(row) == ROW for row in result["rows"])
        assert result["schema_version"] == 1
    assert scored["skipped"] == [{"line": 7, "reason": "no hours"}]
    assert set(scored["groups"]["batch"]) == {"not stated", "1"}
    assert set(scored["groups"]["subset"]) == {"seed27"}


def test_json_reads_back(scored):
    assert set(json.loads(validation.to_json(scored))) == KEYS


# ---- what a planner knows -------------------------------------------------------------------------------------------
def test_planner_ignores_how_the_record_was_made_and_what_came_out():
    rows = published_runs.training_rows()[:20]
    record = efficiency.published_record(published_runs.shipped().constants)
    other = {
        "tier": "B", "hours_basis": "upper_bound", "hours_cover": "compute-only", "mfu_reported": "0.9",
        "goodput": "0.1", "accelerator_hours": "1", "family": "other", "kind": "throughput", "note": "x",
    }  # fmt: skip
    found = published_runs.predict_hours(rows, efficiency.draws(), record)
    changed = published_runs.predict_hours([{**row, **other} for row in rows], efficiency.draws(), record)
    for one, two in zip(found, changed, strict=True):
        np.testing.assert_array_equal(one, two)
    assert not set(other) & set(published_runs.planner(rows[0]))


def test_planner_uses_what_is_stated():
    (row,) = published_runs.training_rows()[:1]
    record = efficiency.published_record(published_runs.shipped().constants)
    longer = {**row, "sequence_length": "65536"}
    short, long = (
        published_runs.predict_hours([one], efficiency.draws(), record).quantile(0.5)[0] for one in (row, longer)
    )
    assert long > short  # attention costs time that 6ND does not count


# ---- shipped data ---------------------------------------------------------------------------------------------------
def test_the_shipped_table_is_scored_and_every_row_accounted_for(root, shipped):
    assert (shipped["n"], shipped["families"]) == (118, 71)
    assert shipped["method"] == "prediction from the shipped fit"
    lines = (root / "priors" / "utilization" / "data.csv").read_text(encoding="utf-8").splitlines()
    assert shipped["n"] + len(shipped["skipped"]) == len(lines) - 1
    said = validation_text.text(shipped)
    assert "118 were in the data that it was fitted to" in said
    assert "more): kind is 'throughput', not a training run." in said


def test_rule_of_thumb_on_the_seed_set(shipped):
    # 24 of the 27 rows are training runs, the other three are benchmarks; on all 27 the rule's error is 0.2195.
    found = shipped["groups"]["subset"]["seed27"]
    assert found["n"] == 24
    assert found["baselines"]["rule_6nd_40"]["mdape"] == pytest.approx(0.2044, abs=5e-5)


@pytest.mark.parametrize("count", [1, 118, 100_000])
def test_large_tables_use_fewer_draws(count):
    draws = efficiency.draws()
    kept = validation._thinned(draws, count)
    assert len(kept.beta) == len(kept.scalar["loss"]) == (100 if count == 100_000 else len(draws.beta))


# ---- the command ----------------------------------------------------------------------------------------------------
@pytest.fixture
def small_table(tmp_path):
    path = tmp_path / "mine.csv"
    lines = [
        "run_id,family,params_active,tokens,accelerator,accelerator_hours",
        "a,us,7e9,1e12,A100,1e5",
        "b,us,1e9,1e12,H100,0",
        "c,us,1e9,1e12,H100-SXM5,9e3",
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_files_are_written_only_when_asked(tmp_path, small_table):
    said = validation.run_validation(small_table, False, None, False)
    assert "2 of 3 rows were used; 1 was not:" in said
    assert "line 3: accelerator_hours is 0" in said
    assert [path.name for path in tmp_path.iterdir()] == ["mine.csv"]
    out = tmp_path / "out"
    printed = json.loads(validation.run_validation(small_table, False, out, True))
    assert sorted(path.name for path in out.iterdir()) == sorted(validation.FILES)
    assert json.loads((out / "validation.json").read_text(encoding="utf-8")) == printed
    assert (out / "predicted.png").read_bytes().startswith(b"\x89PNG")
    assert validation_text.summary(printed) in (out / "validation.md").read_text(encoding="utf-8")


def test_options_that_exclude_each_other(small_table):
    with pytest.raises(InputError, match="exclude each other"):
        validation.run_validation(small_table, True, None, False)


def test_a_folder_that_cannot_be_written_is_said_before_the_work(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(GpustackError):
        validation.run_validation(None, True, tmp_path / "file", False)


def test_a_wheel_without_published_scores_says_how_to_make_them(tmp_path, monkeypatch):
    monkeypatch.setattr(validation.catalog, "folder", lambda name: tmp_path / name)
    with pytest.raises(InputError, match="--refit"):
        validation.published()


# ---- published ------------------------------------------------------------------------------------------------------
def test_published_scores_follow_from_the_shipped_data(root):
    result = validation.published()
    rows = published_runs.training_rows()
    assert set(result) == KEYS | {"known", "energy"}
    assert (result["n"], result["method"]) == (len(rows), "leave-one-family-out")
    assert [row["run_id"] for row in result["rows"]] == [row["id"] for row in rows]
    assert [row["reported"] for row in result["rows"]] == pytest.approx(
        [float(row["accelerator_hours"]) for row in rows], rel=1e-5
    )
    for key in ("data_sha256", "settings_sha256", "program_sha256"):
        assert result["versions"][f"utilization_{key}"] == published_runs.shipped().record[key], "run validate --refit"
    page = (root / "reports" / "validation" / "validation.md").read_text(encoding="utf-8")
    assert page == validation_text.markdown(result)


def test_published_metrics_follow_from_the_published_rows():
    result = validation.published()
    reported, median = (np.array([row[key] for row in result["rows"]]) for key in ("reported", "median"))
    assert result["metrics"]["mdape"] == pytest.approx(np.median(np.abs(median / reported - 1)), rel=1e-4)
    assert result["metrics"]["crps_log"] == pytest.approx(
        np.mean([row["crps_log"] for row in result["rows"]]), rel=1e-4
    )
    low, high = np.array([row["interval_90"] for row in result["rows"]]).T
    assert result["metrics"]["coverage"]["0.9"] == pytest.approx(np.mean((reported >= low) & (reported <= high)))


# ---- when more is known ---------------------------------------------------------------------------------------------
def test_an_earlier_run_is_told_and_never_the_run_itself():
    rows = published_runs.training_rows()
    cases = list(validation_known.one_earlier_run(rows))
    families = [row["family"] for row in rows]
    assert len(cases) == len(rows) - len(set(families))
    for row, (told,) in cases:
        (earlier,) = [r for r in rows if r["family"] == row["family"] and r["id"] != row["id"] and is_told(r, told)][:1]
        assert earlier["publication_date"] <= row["publication_date"]
        assert not told.same_run


def is_told(row, told):
    return told.value == pytest.approx(float(log_utilization([row])[0]), abs=1e-12)


def test_reported_mfus_are_told_against_the_peak_of_16_bit():
    row = {**published_runs.training_rows()[0], "mfu_reported": "0.3", "mfu_kind": "reported", "mfu_convention": ""}
    row |= {"peak_flop_per_s": "2000e12", "peak_16bit_flop_per_s": "1000e12"}
    ((_, (plain,)),) = validation_known.reported_mfu([{**row, "mfu_peak_basis": "bf16"}])
    ((_, (eight_bit,)),) = validation_known.reported_mfu([{**row, "mfu_peak_basis": "fp8"}])
    assert (plain.value, eight_bit.value) == pytest.approx((np.log(0.3), np.log(0.6)))
    assert plain.same_run
    assert not list(validation_known.reported_mfu([{**row, "mfu_kind": "peak_benchmark"}]))


def test_more_knowledge_predicts_better():
    """With the shipped draws in place of refits: each thing known beats not knowing it on the same runs."""
    cases = list(validation_known.one_earlier_run(published_runs.training_rows()))
    folds = {row["family"]: efficiency.draws() for row, _ in cases}
    told = validation_known._scored(cases, folds)
    blind = validation_known._scored([(row, ()) for row, _ in cases], folds)
    assert told["n"] == blind["n"] == 47
    assert told["crps_log"] < blind["crps_log"]
    assert told["median_p95_over_p5"] < blind["median_p95_over_p5"]


# ---- energy given hours ---------------------------------------------------------------------------------------------
def test_each_measured_run_and_machine_is_left_out_once():
    rows = [row for row in refit.read_rows("host_power") if row["use"] == "yes"]
    found = list(validation_energy.units(rows))
    assert sorted(row["id"] for unit in found for row in unit.rows) == sorted(row["id"] for row in rows)
    names = [unit.name for unit in found]
    assert "patterson-t5" in names and "BNL 8xH100 HGX node" in names
    published = validation.published()["energy"]
    assert [row["unit"] for row in published["rows"]] == names


def test_measured_power_holds_the_share_of_the_network():
    rows = {row["id"]: row for row in refit.read_rows("host_power")}
    one = validation_energy.Unit("a", [rows["bnl-h100-typical"]])
    other = validation_energy.Unit("b", [rows["patterson-t5"]])
    assert validation_energy.measured(one, 0.06) == pytest.approx(969 * 1.06)
    assert validation_energy.measured(other, 0.06) == pytest.approx(310)


def test_published_energy_scores_follow_from_their_rows():
    found = validation.published()["energy"]
    errors = [np.log(row["median_w"] / row["measured_w"]) for row in found["rows"]]
    assert found["mean_abs_log_error"] == pytest.approx(np.abs(errors).mean(), rel=1e-4)
    inside = [row["interval_90"][0] <= row["measured_w"] <= row["interval_90"][1] for row in found["rows"]]
    assert found["coverage"]["0.9"] == pytest.approx(np.mean(inside))


# ---- pictures -------------------------------------------------------------------------------------------------------
def test_band_holds_as_often_as_it_says():
    n, points = 60, np.arange(1, 61) / 61
    low, high = validation_figures.simultaneous_band(n, points, 0.9).T
    samples = np.random.default_rng(3).uniform(size=(4000, n))
    ecdf = (samples[:, :, None] <= points).mean(axis=1)
    inside = ((ecdf >= low) & (ecdf <= high)).all(axis=1).mean()
    # gamma is an estimate of 4000 samples and the counts are discrete
    assert inside == pytest.approx(0.9, abs=0.025)


def test_labels_of_misses_do_not_overlap(shipped):
    figure = validation_figures.predicted_against_reported(shipped)
    figure.canvas.draw()
    (axes,) = figure.axes
    boxes = [Text.get_window_extent(text) for text in axes.texts]  # without the line to the point
    assert 0 < len(boxes) <= validation_figures.NAMED
    assert not any(one.overlaps(two) for i, one in enumerate(boxes) for two in boxes[:i])


def test_labels_of_many_misses_at_one_place_do_not_overlap():
    rows = [
        {"run_id": f"run-{i}", "reported": 1e5 * 1.001**i, "median": 1e3, "interval_90": [5e2, 2e3], "pit": 1.0}
        for i in range(30)
    ]
    result = {"rows": rows, "n": 30, "method": validation_scores.PLAIN, "metrics": {"coverage": {"0.9": 0.0}}}
    figure = validation_figures.predicted_against_reported(result)
    heights = sorted(text.xyann[1] for text in figure.axes[0].texts)
    assert len(heights) == validation_figures.NAMED
    assert np.diff(heights).min() > 0.03
    assert 0 < heights[0] and heights[-1] < 1


def test_calibration_is_drawn(shipped):
    left, right = validation_figures.calibration(shipped).axes
    assert left.get_xlabel() == "PIT value (no unit)"
    labels = [label.get_text() for label in right.get_yticklabels()]
    assert labels[0] == "all runs  n = 118"
