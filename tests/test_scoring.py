"""Scores against closed forms, and the published baselines against the shipped runs."""

import csv

import numpy as np
import pytest
from scipy import integrate, stats

from gpustack_mc import scoring

GENERATOR = np.random.default_rng(5)
MEANS, SDS = np.array([0.0, 1.0, -2.0]), np.array([1.0, 0.3, 2.0])
OBSERVED = np.array([0.4, 1.9, -2.0])
MIXTURE = scoring.Mixture(
    np.array([[0.2, 0.8], [0.5, 0.5]]), np.array([[0.0, 1.0], [-1.0, 2.0]]), np.array([[1.0, 0.3], [0.2, 0.7]])
)


def normal_crps(mean, sd, y):
    """Gneiting & Raftery (2007), equation 21."""
    z = (y - mean) / sd
    return sd * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi))


def test_a_single_normal_has_its_closed_forms():
    one = scoring.normal(MEANS, SDS)
    np.testing.assert_allclose(scoring.crps_mixture(one, OBSERVED), normal_crps(MEANS, SDS, OBSERVED), rtol=1e-12)
    np.testing.assert_allclose(one.log_density(OBSERVED), stats.norm.logpdf(OBSERVED, MEANS, SDS), rtol=1e-12)
    np.testing.assert_allclose(one.cdf(OBSERVED), stats.norm.cdf(OBSERVED, MEANS, SDS), rtol=1e-12)
    for p in (0.05, 0.5, 0.95):
        np.testing.assert_allclose(one.quantile(p), stats.norm.ppf(p, MEANS, SDS), atol=1e-12)


def test_crps_of_a_mixture_is_its_integral():
    y = np.array([0.5, 0.5])
    for row in range(2):
        part = MIXTURE.take(np.array([row]))
        below = integrate.quad(lambda x, part=part: part.cdf(np.array([x]))[0] ** 2, -20, 0.5)[0]
        above = integrate.quad(lambda x, part=part: (1 - part.cdf(np.array([x]))[0]) ** 2, 0.5, 20)[0]
        assert scoring.crps_mixture(part, y[:1])[0] == pytest.approx(below + above, abs=1e-6)


def test_density_and_quantile_belong_to_the_distribution_function():
    step = 1e-6
    y = np.array([0.3, 1.1])
    slope = (MIXTURE.cdf(y + step) - MIXTURE.cdf(y - step)) / (2 * step)
    np.testing.assert_allclose(np.exp(MIXTURE.log_density(y)), slope, rtol=1e-6)
    np.testing.assert_allclose(MIXTURE.cdf(MIXTURE.quantile(0.9)), 0.9, atol=1e-9)


def test_a_component_without_weight_changes_nothing():
    padded = scoring.Mixture(np.array([[1.0, 0.0]]), np.array([[0.0, 5.0]]), np.array([[1.0, 0.1]]))
    assert padded.log_density(np.array([0.2]))[0] == pytest.approx(stats.norm.logpdf(0.2))


def test_crps_of_draws_is_exact_and_nears_the_normal():
    draws = GENERATOR.normal(size=(3, 40))
    pairs = np.abs(draws[:, :, None] - draws[:, None, :]).mean(axis=(1, 2))
    expected = np.abs(draws - OBSERVED[:, None]).mean(axis=1) - 0.5 * pairs
    np.testing.assert_allclose(scoring.crps_draws(draws, OBSERVED), expected, rtol=1e-12)
    many = MEANS[:, None] + SDS[:, None] * stats.norm.ppf((np.arange(4000) + 0.5) / 4000)
    # Draws at the mid-quantiles differ from the normal by the mass of one draw.
    np.testing.assert_allclose(
        scoring.crps_draws(many, OBSERVED), normal_crps(MEANS, SDS, OBSERVED), rtol=1e-3, atol=1e-4
    )


def test_reflection_turns_utilisation_into_hours():
    hours = scoring.reflected(MIXTURE, np.array([10.0, 20.0]))
    np.testing.assert_allclose(hours.quantile(0.25), np.array([10.0, 20.0]) - MIXTURE.quantile(0.75), atol=1e-9)


def test_interval_score_counts_width_and_misses():
    np.testing.assert_allclose(
        scoring.interval_score(np.zeros(3), np.ones(3), np.array([0.5, 1.1, -0.2]), 0.9), [1.0, 3.0, 5.0]
    )


def test_calibrated_forecasts_cover_what_they_say():
    size = 4000
    means, sds = GENERATOR.normal(size=size), GENERATOR.uniform(0.1, 2, size)
    scores = scoring.score_rows(scoring.normal(means, sds), GENERATOR.normal(means, sds))
    found = scoring.metrics(scores)
    for level in scoring.LEVELS:  # four standard errors of a share of 4000
        assert found["coverage"][str(level)] == pytest.approx(level, abs=4 * np.sqrt(level * (1 - level) / size))
    assert stats.kstest(scores.pit, "uniform").pvalue > 0.001
    too_narrow = scoring.metrics(scoring.score_rows(scoring.normal(means, sds / 2), scores.observed))
    assert too_narrow["coverage"]["0.9"] < 0.75
    assert too_narrow["crps_log"] > found["crps_log"]
    assert too_narrow["log_score"] < found["log_score"]


def test_metrics_of_a_pick_and_of_nothing():
    scores = scoring.score_rows(scoring.normal(MEANS, SDS), OBSERVED)
    one = scoring.metrics(scores, np.array([False, True, False]))
    assert one["n"] == 1
    assert one["mdape"] == pytest.approx(abs(np.exp(1.0 - 1.9) - 1))
    with pytest.raises(ValueError, match="no rows"):
        scoring.metrics(scores, np.zeros(3, dtype=bool))


def test_bootstrap_draws_families_not_rows():
    families = np.repeat(np.arange(30), 5)
    values = np.repeat(GENERATOR.normal(size=30), 5)
    # Copies carry no information: the error is that of 30 values. 15 percent is four errors of a bootstrap of 1000.
    assert scoring.cluster_bootstrap(values, families) == pytest.approx(np.std(values[::5]) / np.sqrt(30), rel=0.15)


def test_leaving_out_uses_no_value_of_the_own_family():
    y, families = np.array([0.0, 1.0, 2.0, 50.0, 60.0]), ["a", "a", "a", "b", "c"]
    left = scoring.median_of_other_families(families, y, families)
    assert left.means[:, 0].tolist() == [55.0, 55.0, 55.0, 1.5, 1.5]
    with pytest.raises(ValueError, match="two rows of other families"):
        scoring.median_of_other_families(["a"] * 5, y, ["a"] * 5)


@pytest.fixture(scope="module")
def runs(root):
    with (root / "priors" / "utilization" / "data.csv").open(encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["use"] == "yes" and row["accelerator_hours"]]
    for row in rows:
        flop = 6 * float(row["params_active"]) * float(row["tokens"])
        seconds = 3600 * float(row["accelerator_hours"])
        row["log_u"] = np.log(flop / (seconds * float(row["peak_16bit_flop_per_s"])))
    return rows


def baseline(rows, mixture):
    y = np.array([row["log_u"] for row in rows])
    return scoring.metrics(scoring.score_rows(scoring.reflected(mixture, np.zeros(len(y))), -y))


def test_rule_of_thumb_on_the_27_runs(runs):
    rows = [row for row in runs if row["seed27"] == "1"]
    assert len(rows) == 27
    found = baseline(rows, scoring.rule_of_thumb(27, 0.4, 0.42))
    assert found["mdape"] == pytest.approx(0.2195, abs=5e-4)  # published to four digits


def test_baselines_on_the_75_runs(runs):
    """The study rounds to two or three digits; 0.01 allows for its median of an even number of rows."""
    rows = [row for row in runs if row["kind"] == "training" and row["batch"] == "1"]
    assert len(rows) == 75
    rule = baseline(rows, scoring.rule_of_thumb(75, 0.4, 0.42))
    families = [row["family"] for row in rows]
    left = baseline(rows, scoring.median_of_other_families(families, [row["log_u"] for row in rows], families))
    keys = ("mdape", "mean_abs_log_error", "crps_log", "log_score")
    assert [rule[key] for key in keys] == pytest.approx([0.342, 0.471, 0.342, -1.06], abs=0.01)
    assert [left[key] for key in keys] == pytest.approx([0.277, 0.341, 0.244, -0.60], abs=0.01)
