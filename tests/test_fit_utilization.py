"""The utilisation program: its density, covariates, conditioning, recovery of a known truth, and the stored fit."""

import json
import time

import jax
import numpy as np
import pytest
from numpyro.handlers import seed, trace
from numpyro.infer.util import log_density
from scipy import stats

from gpustack_mc.fits import utilization as program
from gpustack_mc.fits import utilization_calibration as calibrating
from gpustack_mc.fits import utilization_checks as checking
from gpustack_mc.fits import utilization_data as table
from gpustack_mc.fits import utilization_fit as fitting
from gpustack_mc.fits import utilization_predict as predicting
from gpustack_mc.fits import utilization_start as starting


@pytest.fixture(scope="module")
def folder(root):
    return root / "priors" / "utilization"


@pytest.fixture(scope="module")
def shipped(folder):
    prior, rows = fitting.read_prior(folder)
    return fitting.plain(prior), [row for row in rows if row["use"] == "yes"]


@pytest.fixture(scope="module")
def settings(shipped):
    return shipped[0]


@pytest.fixture(scope="module")
def runs(shipped):
    return fitting.training_rows(shipped[1])


@pytest.fixture(scope="module")
def stored(folder):
    record = json.loads((folder / "fit.json").read_text(encoding="utf-8"))
    draws = predicting.read_draws(fitting.read_columns((folder / "draws.csv").read_text(encoding="utf-8")))
    return draws, record["constants"], record["settings"]


PLAN = {
    "params_active": 7e9, "tokens": 2e12, "generation": "hopper", "peak_16bit_flop_per_s": 989e12,
    "n_accelerators": 512, "architecture": "dense", "precision": "bf16", "publication_date": "2026-01",
}  # fmt: skip


# ---- density --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mean", [0.05, 0.17, 1.0])
def test_loss_has_a_pareto_tail_of_the_stated_mean(mean):
    expected = stats.lomax(4, scale=3 * mean)
    with jax.enable_x64(True):
        found = program.loss_distribution(mean, 4)
        for x in (0.01, 0.3, 5.0):
            assert float(found.log_prob(x)) == pytest.approx(expected.logpdf(x), rel=1e-9)
        draws = np.asarray(found.sample(jax.random.key(0), (40000,)))
    # four standard errors of a mean of 40000
    assert draws.mean() == pytest.approx(mean, abs=4 * expected.std() / 200)


# ---- covariates -----------------------------------------------------------------------------------------------------
def test_attention_is_exact_where_the_shape_is_known(settings):
    rows = [{"params_active": 1e9, "n_layers": 24, "d_model": 2048, "sequence_length": 4096}, {"params_active": 1e9}]
    exact, guessed = table.attention_ratio(rows, settings)
    assert exact == pytest.approx(12 * 24 * 2048 * 4096 / 6e9)
    width = (settings["typical_width_over_layers"] * 1e9 / 12) ** (1 / 3)
    assert guessed == pytest.approx(settings["typical_sequence_length"] / (6 * width))


def test_utilisation_counts_six_flop_per_parameter_and_token():
    row = {"params_active": 1e9, "tokens": 1e12, "accelerator_hours": 1e4, "peak_16bit_flop_per_s": 1e15}
    assert float(np.exp(table.log_utilization([row])[0])) == pytest.approx(6e21 / (1e4 * 3600 * 1e15))
    assert table.log_hours_at_full_use([row])[0] - table.log_utilization([row])[0] == pytest.approx(np.log(1e4))


def test_stated_covariates_have_no_variance_and_unknown_ones_their_share(runs, settings):
    constants = table.imputation(runs, settings)
    stated = PLAN | {"activation_recompute": "full", "flash_attention": "yes", "global_batch_tokens": 4e6}
    known, unknown = (table.features([row], constants, settings) for row in (stated, PLAN))
    at = table.TERMS.index
    assert known.variance.sum() == 0
    assert known.mean[0, at("full_recompute")] == 1
    assert known.mean[0, at("no_flash_attention")] == 0
    share = constants["share_full_recompute"]
    assert unknown.mean[0, at("full_recompute")] == pytest.approx(share)
    assert unknown.variance[0, at("full_recompute")] == pytest.approx(share * (1 - share))
    assert unknown.variance[0, at("log10_count")] == 0  # the count is stated


def test_before_flash_attention_no_run_has_it(runs, settings):
    constants = table.imputation(runs, settings)
    early = table.features([PLAN | {"publication_date": "2021-05"}], constants, settings)
    assert early.mean[0, table.TERMS.index("no_flash_attention")] == 1
    assert early.variance[0, table.TERMS.index("no_flash_attention")] == 0


def test_tokens_per_step_matter_below_the_limit_only(runs, settings):
    constants = table.imputation(runs, settings)
    term = table.TERMS.index("log_tokens_per_step")
    small = PLAN | {"params_active": 1e9, "global_batch_tokens": 512 * 65536}
    large = small | {"params_active": 7e9}
    found = table.features([small, large], constants, settings)
    assert found.mean[:, term] == pytest.approx([np.log(65536 / settings["reference_tokens_per_step"]), 0.0])


def test_imputation_reads_no_hours(runs, settings):
    blind = [
        {key: "" if key in ("accelerator_hours", "mfu_reported") else value for key, value in row.items()}
        for row in runs
    ]
    assert table.imputation(blind, settings) == table.imputation(runs, settings)


def test_a_planner_sees_no_record_quality(stored, runs):
    """Tier, basis and cover of hours, and reported MFU, change no prediction."""
    draws, constants, settings = stored
    hidden = (
        "tier",
        "hours_basis",
        "hours_cover",
        "mfu_reported",
        "mfu_convention",
        "accelerator_hours",
        "family",
        "model",
    )
    blind = [{key: value for key, value in row.items() if key not in hidden} for row in runs[:20]]
    seen = predicting.predict(draws, runs[:20], constants, settings).log_utilization
    np.testing.assert_array_equal(
        predicting.predict(draws, blind, constants, settings).log_utilization.means, seen.means
    )


# ---- conditioning ---------------------------------------------------------------------------------------------------
def direct(draws, evidence, run_variance, constants, settings, s):
    """Gaussian conditioning of one draw on all observations at once, by matrices."""
    p = {name: value[s] for name, value in draws.scalar.items()}
    prior = np.diag([p["family_sd"] ** 2, p["family_slope_sd"] ** 2, run_variance[s]])
    expected, noise, unknown = (part[:, s] for part in predicting.observations(draws, evidence, constants, settings))
    h = np.array([[1.0, min(np.log10(item.row["params_active"] / 1e10), 0), item.same_run] for item in evidence])
    # Observations of one earlier run share its effect and its unknown covariates.
    own = [item.run or ("predicted" if item.same_run else i) for i, item in enumerate(evidence)]
    shared = np.array([[float(a == b != "predicted") for a in own] for b in own])
    noise = np.diag(noise) + shared * (p["run_sd"] ** 2 + unknown[:, None])
    gap = np.array([item.value for item in evidence]) - expected
    total = h @ prior @ h.T + noise
    gain = prior @ h.T @ np.linalg.inv(total)
    return gain @ gap, prior - gain @ h @ prior, stats.multivariate_normal.logpdf(gap, np.zeros(len(gap)), total)


def test_sequential_updates_equal_conditioning_at_once(stored):
    draws, constants, settings = stored
    evidence = [
        predicting.Evidence(PLAN, "total", np.log(0.25)),
        predicting.Evidence(PLAN | {"params_active": 1e9}, "compute_only", np.log(0.3), loose=True),
        predicting.Evidence(PLAN | {"params_active": 3e9}, "total", np.log(0.28), run="b"),
        predicting.Evidence(PLAN | {"params_active": 3e9, "mfu_convention": "6N_only"}, "mfu", np.log(0.33), run="b"),
        predicting.Evidence(PLAN | {"mfu_convention": "6N+attn_full"}, "mfu", np.log(0.35), same_run=True),
    ]
    run_variance = draws.scalar["run_sd"] ** 2
    found = predicting.update(draws, evidence, run_variance, constants, settings)
    for s in (0, 7, 99):
        mean, covariance, log_weight = direct(draws, evidence, run_variance, constants, settings, s)
        np.testing.assert_allclose(found.mean[s], mean, rtol=1e-9)
        np.testing.assert_allclose(found.covariance[s], covariance, atol=1e-12)
        assert found.log_weight[s] == pytest.approx(log_weight, rel=1e-9)


def width(prediction):
    part = prediction.log_utilization
    return float(np.exp(part.quantile(0.95) - part.quantile(0.05))[0])


def test_knowing_more_narrows_and_moves(stored):
    draws, constants, settings = stored
    shares = predicting.Record(constants["share_loose_record"], constants["share_compute_only"])
    published = predicting.predict(draws, [PLAN], constants, settings, record=shares)
    clean = predicting.predict(draws, [PLAN], constants, settings)
    high = predicting.predict(
        draws, [PLAN], constants, settings, evidence=[predicting.Evidence(PLAN, "total", np.log(0.45))]
    )
    mfu = predicting.Evidence(PLAN | {"mfu_convention": "6N_only"}, "mfu", np.log(0.45), same_run=True)
    told = predicting.predict(draws, [PLAN], constants, settings, evidence=[mfu])
    assert width(told) < width(high) < width(clean) < width(published)
    center = clean.log_utilization.quantile(0.5)[0]
    assert center < high.log_utilization.quantile(0.5)[0] < np.log(0.45)
    # goodput below one: hours imply less than the reported MFU
    assert told.log_utilization.quantile(0.5)[0] < told.log_mfu.quantile(0.5)[0]


def test_a_new_generation_is_wider_than_a_known_one(stored):
    draws, constants, settings = stored
    rows = [PLAN, PLAN | {"generation": "something later"}]
    found = predicting.predict(draws, rows, constants, settings).log_utilization
    spread = found.quantile(0.95) - found.quantile(0.05)
    assert spread[1] > 1.02 * spread[0]
    assert abs(np.diff(found.quantile(0.5))[0]) < 0.2


def test_mfu_and_goodput_multiply_to_utilisation(stored):
    draws, constants, settings = stored
    found = predicting.predict(draws, [PLAN], constants, settings)
    np.testing.assert_allclose(found.log_utilization.means, found.log_mfu.means + found.log_goodput)
    assert np.all(found.log_goodput < 0)


def test_a_teams_small_models_tell_of_its_small_models(stored):
    """Both stacks reach the same at 10B; the one whose 0.5B model lags by half is expected to lag there again."""
    draws, constants, settings = stored
    small, large = PLAN | {"params_active": 5e8}, PLAN | {"params_active": 1e10}

    def median(row, *evidence):
        items = [predicting.Evidence(seen, "compute_only", np.log(value)) for seen, value in evidence]
        found = predicting.predict(draws, [row], constants, settings, evidence=items)
        return found.log_mfu.quantile(0.5)[0]

    lag = median(small, (large, 0.4), (small, 0.15)) - median(small, (large, 0.4), (small, 0.3))
    at_large = median(large, (large, 0.4), (small, 0.15)) - median(large, (large, 0.4), (small, 0.3))
    assert lag < 0.5 * np.log(0.15 / 0.3)  # one run tells more than half of what the next will be
    assert at_large > 0.3 * lag


def test_a_team_that_loses_much_is_expected_to_lose_much_again(stored):
    draws, constants, settings = stored
    stated = PLAN | {"activation_recompute": "none", "flash_attention": "yes"}
    throughput = predicting.Evidence(stated, "compute_only", np.log(0.4))
    bill = predicting.Evidence(stated, "total", np.log(0.25))
    known = predicting.predict(draws, [stated], constants, settings, evidence=[throughput, bill])
    alone = predicting.predict(draws, [stated], constants, settings, evidence=[throughput])
    loss = [float(part.log_mfu.weights[0] @ part.log_goodput) for part in (known, alone)]
    assert loss[0] < loss[1] - 0.1


def test_many_runs_of_ones_own_dominate(stored):
    draws, constants, settings = stored
    evidence = [predicting.Evidence(PLAN, "compute_only", np.log(0.6)) for _ in range(30)]
    found = predicting.predict(draws, [PLAN], constants, settings, evidence=evidence)
    mean = float((found.log_mfu.weights * found.log_mfu.means).sum())
    assert mean == pytest.approx(np.log(0.6), abs=0.03)  # 30 runs of sd 0.1 leave 0.02
    plain = predicting.predict(draws, [PLAN], constants, settings)
    # The evidence weighs the draws too.
    assert np.ptp(plain.log_mfu.weights) == 0
    assert np.ptp(found.log_mfu.weights) > 0


def test_evidence_of_the_same_run_needs_one_row(stored):
    draws, constants, settings = stored
    item = predicting.Evidence(PLAN, "mfu", -1.0, same_run=True)
    with pytest.raises(ValueError, match="exactly one row"):
        predicting.predict(draws, [PLAN, PLAN], constants, settings, evidence=[item])


def test_calibration_on_ten_runs_takes_milliseconds(stored):
    draws, constants, settings = stored
    evidence = [predicting.Evidence(PLAN, "total", np.log(0.3)) for _ in range(10)]
    start = time.perf_counter()
    predicting.predict(draws, [PLAN], constants, settings, evidence=evidence)
    assert time.perf_counter() - start < 2  # measured 0.02 s; the margin is for a busy machine


# ---- the stored fit -------------------------------------------------------------------------------------------------
def test_the_stored_fit_is_fresh_and_healthy(folder):
    assert fitting.stale(folder) is None
    record = json.loads((folder / "fit.json").read_text(encoding="utf-8"))
    assert record["problem"] is None
    assert fitting.unhealthy(record["diagnostics"]) is None


def test_stale_fits_are_noticed(folder, tmp_path):
    for name in ("prior.yaml", "data.csv", "fit.json", "draws.csv"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    assert fitting.stale(tmp_path) is None
    data = tmp_path / "data.csv"
    data.write_text(data.read_text(encoding="utf-8").replace("82432", "82433", 1), encoding="utf-8")
    assert "data_sha256" in fitting.stale(tmp_path)
    data.write_bytes((folder / "data.csv").read_bytes())
    (tmp_path / "draws.csv").write_text("a\n1\n", encoding="utf-8")
    assert "draws.csv" in fitting.stale(tmp_path)


def test_bad_diagnostics_say_what_to_do():
    good = {"divergences": 0, "r_hat": 1.001, "ess_bulk": 900, "ess_tail": 900}
    assert fitting.unhealthy(good) is None
    assert "target_accept" in fitting.unhealthy(good | {"divergences": 3})
    assert "R-hat" in fitting.unhealthy(good | {"r_hat": 1.2})
    assert "raise samples" in fitting.unhealthy(good | {"ess_tail": 50})


def test_every_source_and_kind_is_known(folder, settings):
    prior, rows = fitting.read_prior(folder)
    assert {row["source"] for row in rows} <= set(prior["sources"]) | {""}
    assert all(row["source"] for row in rows if row["use"] == "yes")
    assert len({row["id"] for row in rows}) == len(rows)
    assert all(row["use"] == "yes" or row["use"].startswith("no: ") for row in rows)
    assert set(settings["terms"]) == set(table.TERMS)
    assert {row["mfu_convention"] or "unknown" for row in rows} <= set(settings["attention_counted"])


def test_all_118_runs_of_71_families_are_used(shipped):
    data = program.prepare(shipped[1], shipped[0])
    assert sum(len(data.rows[name]) for name in ("total", "bound", "compute_only")) == 118
    assert data.families == 71


# ---- recovery of a known truth --------------------------------------------------------------------------------------
def test_a_known_truth_is_recovered(shipped):
    settings, rows = shipped
    data = program.prepare(rows, settings)
    value, drawn = calibrating.simulated(data, settings, jax.random.key(11))
    with jax.enable_x64(True):
        run = calibrating.sampler(data, settings, 300, 200)
        found = run(jax.random.key(0), (drawn.log_u, drawn.log_mfu, drawn.loss), None)
        found = {name: np.asarray(sampled) for name, sampled in found.items()}
    for name in (*calibrating.SCALARS, "beta"):
        z = (value[name] - found[name].mean(axis=0)) / found[name].std(axis=0)
        # 27 values; beyond 4.5 posterior sds is one in 10^4 even with the noise of 200 draws and some skewness
        assert np.all(np.abs(z) < 4.5), name
    # The data say something: without them the posterior would be the prior, twice as wide or more.
    assert found["run_sd"].std() < 0.5 * settings["prior_run_sd"]
    assert found["beta"][:, table.TERMS.index("fp8")].std() < 0.5 * settings["terms"]["fp8"][1]


@pytest.mark.slow
def test_ranks_of_the_truth_are_uniform(shipped, folder):
    """Simulation-based calibration (Talts et al. 2018), fewer replications than reports/validation has."""
    settings, rows = shipped
    found = calibrating.ranks(rows, settings, starting.read(folder), range(1000, 1030))
    for name, ranks in found.items():
        # 28 tests: one in 3000 each keeps the family-wise error at one percent.
        assert stats.kstest(ranks, "uniform").pvalue > 3e-4, name


def test_published_ranks_stay_inside_their_bands(root):
    from gpustack_mc.fits import calibration_check

    record = json.loads((root / "reports" / "validation" / "sbc_utilization.json").read_text(encoding="utf-8"))
    found = calibration_check.bands({name: np.array(ranks) for name, ranks in record["ranks"].items()})
    assert {name: line["inside"] for name, line in found.items()} == record["inside"]
    outside = sum(not inside for inside in record["inside"].values())
    assert calibration_check.by_chance(outside, len(found)) > calibration_check.UNLIKELY


def test_more_quantities_outside_their_bands_than_chance_explains():
    from gpustack_mc.fits import calibration_check

    assert calibration_check.by_chance(0, 28) == 1
    # 1 - 0.99^28 - 28 * 0.01 * 0.99^27
    assert calibration_check.by_chance(2, 28) == pytest.approx(1 - 0.99**28 - 0.28 * 0.99**27)
    # Two of 28 are no news, three are; of 14 two are.
    assert calibration_check.by_chance(2, 28) > calibration_check.UNLIKELY > calibration_check.by_chance(3, 28)
    assert calibration_check.by_chance(2, 14) < calibration_check.UNLIKELY


# ---- checks and starts ----------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def prior_chains(shipped):
    """Draws from the prior in place of chains: of the right shapes, and far from the data."""
    settings, rows = shipped
    data = program.prepare(rows, settings)

    def one(key):
        sites = trace(seed(program.model, key)).get_trace(data, settings)
        return {
            name: site["value"] for name, site in sites.items() if site["type"] == "sample" and not site["is_observed"]
        }

    with jax.enable_x64(True):
        drawn = jax.vmap(one)(jax.random.split(jax.random.key(0), 40))
    return data, {name: np.asarray(value).reshape(2, 20, *value.shape[1:]) for name, value in drawn.items()}


def test_densities_are_those_of_priors_and_rows(shipped, prior_chains):
    """By hand for one draw: the density of everything, less that of the effects."""
    settings, _ = shipped
    data, chains = prior_chains
    tree = checking.densities(data, settings, chains)
    draw = {name: value[1, 3] for name, value in chains.items()}
    with jax.enable_x64(True):
        whole, _ = log_density(program.model, (data, settings), {}, draw)
    effects = sum(stats.norm.logpdf(draw[name]).sum() for name in checking.EFFECTS)
    found = tree["log_prior"]["prior"].values[1, 3] + tree["log_likelihood"]["y"].values[1, 3]
    assert found == pytest.approx(float(whole) - effects, rel=1e-9)


def test_rows_far_from_the_program_have_extreme_p_values(shipped, prior_chains):
    settings, _ = shipped
    data, chains = prior_chains
    found = checking.predictive(data, settings, chains)
    assert set(found) == {*checking.NORMAL_ROWS, "goodput"}
    assert found["total"]["spread"] < 0.05  # spreads drawn from their priors are mostly too narrow for 118 totals


def test_the_stored_fit_was_checked(folder):
    record = json.loads((folder / "fit.json").read_text(encoding="utf-8"))["checks"]
    for name, found in record["posterior_predictive"].items():
        assert all(0.005 < value < 0.995 for value in found.values()), name
    assert set(record["sensitivity"]) >= {"family_sd", "run_sd", "loss_mean", "beta:moe"}


def test_a_new_sampling_starts_where_names_are_known(shipped, prior_chains):
    settings, rows = shipped
    data, chains = prior_chains
    kept = starting.record(data, settings, chains)
    own = {**next(row for row in rows if row["kind"] == "training"), "id": "mine", "family": "mine"}
    more = program.prepare([*rows, own], settings)
    inverse_mass, starts = starting.resume(kept, more)
    at = more.labels["family_z"].index("mine")
    assert starts["family_z"].shape == (2, data.families + 1)
    np.testing.assert_array_equal(starts["family_z"][:, at], 0.0)
    old = np.delete(starts["family_z"], at, axis=1)
    np.testing.assert_allclose(old, chains["family_z"][:, -1], rtol=1e-4)  # five digits are kept
    np.testing.assert_allclose(starts["run_sd"], np.log(chains["run_sd"][:, -1]), rtol=1e-3)
    diagonal = next(value for key, value in inverse_mass.items() if "run_sd" in key)
    assert len(diagonal) + len(kept["covariance"]) == sum(np.size(value[0]) for value in starts.values())
