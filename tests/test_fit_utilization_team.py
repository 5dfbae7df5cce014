"""The utilisation program told of a team's runs: its losses, weights, refits."""

import numpy as np
import pytest
from scipy import stats

from gpustack_mc import catalog, efficiency, pack
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
def wide(fit, options):
    return utilization_team.expand(efficiency.draws(), fit["settings"], options, np.random.default_rng(0))


def tell(fit, options, evidence, losses=(), **how):
    return utilization_team.tell(
        efficiency.draws(), evidence, losses, fit["constants"], fit["settings"], options, **how
    )


def quantiles(prediction, part="log_utilization"):
    return np.array([float(getattr(prediction, part).quantile(p)[0]) for p in (0.05, 0.5, 0.95)])


def test_strata_keep_the_distribution_of_the_loss(wide, fit):
    """Within each draw, and so over all: the probability of each stratum's loss is uniform."""
    shape = fit["settings"]["loss_shape"]
    lost = stats.lomax(shape, scale=(shape - 1) * wide.scalar["loss_mean"]).cdf(np.expm1(wide.scalar["loss"]))
    assert stats.kstest(lost, "uniform").pvalue > 0.5  # stratified, so nearer to uniform than chance


def test_a_known_goodput_is_its_teams_loss(fit, options):
    loss = 0.15
    told = tell(fit, options, [], [loss] * 4)
    # Four goodputs with 0.03 between them leave half of that; the prior is flat over so short a range.
    assert told.draws.scalar["loss"].mean() == pytest.approx(loss, abs=0.01)
    assert told.draws.scalar["loss"].std() == pytest.approx(options["goodput_between_runs_sd"] / 2, rel=0.15)


def test_told_draws_predict_as_weighted_ones_do(fit, options):
    """Resampled draws with a team, as a pack holds them, against the weights of the shipped draws."""
    evidence = [
        Evidence(PLAN, "total", np.log(0.4), run="a"),
        Evidence(PLAN | {"params_active": 1e9}, "compute_only", np.log(0.3), run="b"),
    ]
    told = tell(fit, options, evidence)
    packed = predict(told.draws, [PLAN], fit["constants"], fit["settings"], team=told.team)
    direct = predict(efficiency.draws(), [PLAN], fit["constants"], fit["settings"], evidence=evidence)
    np.testing.assert_allclose(quantiles(packed), quantiles(direct), atol=0.02)  # losses of other strata


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
    sd = [np.sqrt(tell(fit, options, evidence).team.covariance[:, 0, 0].mean()) for evidence in (one[:1], one, two)]
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


def test_k_hat_is_the_shape_of_the_tail_of_the_weights():
    """Weights of a Pareto distribution of shape k, whose inverses are bounded."""
    random = np.random.default_rng(0)
    for shape in (0.2, 0.5, 1.0):
        weights = random.pareto(1 / shape, 4000) + 1
        _, k_hat = utilization_team.quality(np.log(weights))
        # The tail holds 190 weights: standard error (1 + k) / sqrt(190) = 0.15, with a prior worth 10 at 0.5.
        assert k_hat == pytest.approx(shape, abs=0.3)
        _, of_inverses = utilization_team.quality(-np.log(weights))
        assert of_inverses < 0.1  # bounded by one


@pytest.mark.slow
def test_weights_and_a_new_sampling_say_the_same(fit, options, root):
    """Bayes' rule with the shipped draws as prior, and NUTS with the runs among the rows of the program."""
    from gpustack_mc.fits import utilization_start
    from gpustack_mc.fits.utilization_fit import read_prior, unhealthy
    from gpustack_mc.fits.utilization_predict import read_draws

    folder = root / "priors" / "utilization"
    evidence = [Evidence(PLAN | {"params_active": n}, "total", np.log(0.45), run=str(n)) for n in (3e9, 7e9, 3e10)]
    weighted = tell(fit, options, evidence)
    assert weighted.k_hat < options["maximal_k_hat"]
    used = [row for row in read_prior(folder)[1] if row["use"] == "yes"]
    found = utilization_team.refit(used, evidence, fit["settings"], options, utilization_start.read(folder))
    assert unhealthy(found.diagnostics) is None
    sampled = utilization_team.tell(
        read_draws(found.columns), evidence, [], found.constants, fit["settings"], options, weigh=False
    )
    ends = [
        quantiles(predict(each.draws, [PLAN], fit["constants"], fit["settings"], team=each.team))
        for each in (weighted, sampled)
    ]
    sd = (ends[1][2] - ends[1][0]) / 3.29
    # A few hundred effective draws: 0.06 of a standard deviation at the median, twice that at the ends; three times.
    np.testing.assert_allclose(ends[0], ends[1], atol=0.3 * sd)
