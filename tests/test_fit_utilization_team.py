"""The utilisation program told of a team's runs: shared losses, weights, refits, and what siblings are worth."""

import numpy as np
import pytest
from scipy import integrate, stats

from gpustack_mc import catalog, efficiency, pack, siblings, validation
from gpustack_mc.fits import utilization_data, utilization_team
from gpustack_mc.fits.utilization_predict import Evidence, predict

PLAN = {
    "kind": "training", "params_active": 7e9, "tokens": 2e12, "generation": "hopper", "peak_16bit_flop_per_s": 989e12,
    "n_accelerators": 512, "architecture": "dense", "precision": "bf16", "publication_date": "2026-01",
}  # fmt: skip


@pytest.fixture(scope="module")
def fit():
    return catalog.fit_record("utilization")


@pytest.fixture(scope="module")
def options():
    return pack.options()


@pytest.fixture(scope="module")
def wide(options):
    return utilization_team.expand(efficiency.draws(), options, np.random.default_rng(0))


def tell(fit, options, evidence, losses=(), **how):
    return utilization_team.tell(
        efficiency.draws(), evidence, losses, fit["constants"], fit["settings"], options, **how
    )


def quantiles(prediction, part="log_utilization"):
    return np.array([float(getattr(prediction, part).quantile(p)[0]) for p in (0.05, 0.5, 0.95)])


def test_each_loss_keeps_its_exponential_distribution(wide):
    """Over the strata the expected loss and its variance are those of the exponential."""
    p = wide.scalar
    ratio, spread = p["loss_expected"] / p["loss_mean"], p["loss_variance"] / p["loss_mean"] ** 2
    # 4,000 strata: four standard errors of the mean of an exponential's part
    assert ratio.mean() == pytest.approx(1, abs=4 / np.sqrt(len(ratio)))
    assert (spread + ratio**2).mean() == pytest.approx(2, abs=0.3)  # second moment; heavy-tailed, hence wide


def test_density_of_a_known_loss_integrates_to_one_and_averages_to_the_exponential(wide):
    losses = np.geomspace(1e-3, 8, 4000)
    p = {name: value[:40] for name, value in wide.scalar.items()}
    density = np.exp([utilization_team.loss_log_density(wide, [loss])[:40] for loss in losses])
    start = stats.norm.ppf(-np.expm1(-losses[0] / p["loss_mean"]))
    below = stats.norm.cdf((start - np.sqrt(p["loss_share"]) * p["loss_score"]) / np.sqrt(1 - p["loss_share"]))
    np.testing.assert_allclose(integrate.trapezoid(density, losses, axis=0) + below, 1, atol=0.01)
    loss = 0.1
    found = np.exp(utilization_team.loss_log_density(wide, [loss])).mean()
    expected = stats.expon.pdf(loss, scale=wide.scalar["loss_mean"]).mean()
    assert found == pytest.approx(expected, rel=0.1)  # 4,000 draws of a density that varies threefold


def test_without_runs_the_shipped_forecast_stays(fit, options):
    told = tell(fit, options, [])
    assert told.effective_draws == pytest.approx(len(efficiency.draws().beta))
    plain = predict(efficiency.draws(), [PLAN], fit["constants"], fit["settings"])
    again = predict(told.draws, [PLAN], fit["constants"], fit["settings"], team=told.team)
    # Losses are drawn anew: a thousand draws leave some percent of a standard deviation.
    np.testing.assert_allclose(quantiles(again), quantiles(plain), atol=0.06)


def test_a_known_goodput_moves_goodput_and_not_mfu(fit, options):
    told = tell(fit, options, [], [0.03, 0.04, 0.03])
    plain = tell(fit, options, [])
    with_it, without = (
        predict(each.draws, [PLAN], fit["constants"], fit["settings"], team=each.team) for each in (told, plain)
    )
    assert np.median(np.exp(with_it.log_goodput)) > np.median(np.exp(without.log_goodput)) + 0.03
    assert np.quantile(np.exp(with_it.log_goodput), 0.05) > np.quantile(np.exp(without.log_goodput), 0.05) + 0.1
    np.testing.assert_allclose(quantiles(with_it, "log_mfu"), quantiles(without, "log_mfu"), atol=0.06)


def test_hours_and_mfu_of_one_run_count_once(fit, options):
    """Both share the run's own effect: told twice as one run they narrow less than as two runs."""
    mfu = PLAN | {"mfu_convention": "6N_only"}
    one = [Evidence(PLAN, "compute_only", np.log(0.45), run="a"), Evidence(mfu, "mfu", np.log(0.45), run="a")]
    two = [one[0], one[1]._replace(run="b")]
    sd = [np.sqrt(tell(fit, options, evidence).team.variance.mean()) for evidence in (one[:1], one, two)]
    assert sd[2] < sd[1] <= sd[0]
    assert sd[0] - sd[1] < 0.5 * (sd[0] - sd[2])


def test_same_seed_same_draws_and_files(fit, options):
    evidence = [Evidence(PLAN, "total", np.log(0.4), run="a")]
    texts = [pack.draws_text(tell(fit, options, evidence)) for _ in range(2)]
    assert texts[0] == texts[1]
    other = pack.draws_text(tell(fit, options | {"seed": 1}, evidence))
    assert other != texts[0]


def test_draws_survive_their_file(fit, options):
    from gpustack_mc.fits.draws_file import read_columns

    told = tell(fit, options, [Evidence(PLAN, "total", np.log(0.4), run="a")])
    draws, team = utilization_team.read(read_columns(pack.draws_text(told)))
    before = predict(told.draws, [PLAN], fit["constants"], fit["settings"], team=told.team)
    after = predict(draws, [PLAN], fit["constants"], fit["settings"], team=team)
    np.testing.assert_allclose(quantiles(after), quantiles(before), atol=1e-3)  # five digits are kept


def test_runs_far_from_all_others_leave_few_draws(fit, options):
    far = [Evidence(PLAN | {"params_active": n}, "total", np.log(0.9), run=str(n)) for n in (1e8, 1e9, 1e10, 1e11)]
    near = [Evidence(PLAN, "total", np.log(0.3), run="a")]
    assert tell(fit, options, far).effective_draws < options["minimal_effective_draws"]
    assert tell(fit, options, near).effective_draws > options["minimal_effective_draws"]


def test_rows_for_a_refit_give_back_the_utilisation(fit):
    mfu = PLAN | {"mfu_convention": "6N_only"}
    evidence = [
        Evidence(PLAN, "total", np.log(0.4), run="a"), Evidence(mfu, "mfu", np.log(0.45), run="a"),
        Evidence(mfu, "mfu", np.log(0.5), run="b"), Evidence(PLAN, "compute_only", np.log(0.42), run="c", loose=True),
    ]  # fmt: skip
    rows = utilization_team.rows_for_refit(evidence)
    assert [row["family"] for row in rows] == [utilization_team.USERS_FAMILY] * 3
    np.testing.assert_allclose(np.exp(utilization_data.log_utilization(rows)), [0.4, 0.5, 0.42])
    assert utilization_data.compute_only(rows).tolist() == [False, True, True]
    assert utilization_data.loose_record(rows).tolist() == [False, False, True]
    assert [row["mfu_reported"] for row in rows] == ["0.45", "", ""]


# ---- what siblings are worth ----------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def sibling_scores():
    """With the shipped draws, which saw all runs; `benchmarks/calibrated_siblings.py` refits without each family.

    The population's parameters are common to both forecasts, and the family effects are not in the draws, so that the
    difference between them is what is told of the siblings.
    """
    names = siblings.families(validation.training_rows())
    folds = dict.fromkeys(names, efficiency.draws())
    return {way: siblings.score(folds, way) for way in ("none", "all")}


def test_siblings_improve_the_forecast_of_a_held_out_run(sibling_scores):
    none, told = sibling_scores["none"], sibling_scores["all"]
    assert len(np.unique(told.run)) == 68
    difference, error = siblings.gain(none, told)
    assert difference < -1.64 * error  # one-sided 5%; paired, families drawn with replacement
    before, after = siblings.metrics(none), siblings.metrics(told)
    assert after["median_p95_over_p5"] < before["median_p95_over_p5"]
    # 68 runs in 21 families: two standard errors of a coverage of 0.9 are 0.1
    assert 0.8 <= after["coverage"]["0.9"] <= 1
