"""The rest of a run given its first days: against importance sampling, and what no and full information leave."""

import json

import numpy as np
import pytest
from scipy import stats

from gpustack_mc.fits import utilization_predict as predicting
from gpustack_mc.fits import utilization_running as running
from gpustack_mc.fits.draws_file import read_columns

RUN = {
    "kind": "training", "params_active": 70e9, "tokens": 2e12, "generation": "hopper", "peak_16bit_flop_per_s": 989e12,
    "n_accelerators": 1024, "architecture": "dense", "precision": "bf16", "publication_date": "2026",
    "sequence_length": 4096, "n_layers": 80, "d_model": 8192, "global_batch_tokens": 4e6,
    "activation_recompute": "none", "flash_attention": "yes",
}  # fmt: skip
RESOLUTION = 0.01
PROBABILITIES = (0.05, 0.5, 0.95)


@pytest.fixture(scope="module")
def fit(root):
    folder = root / "priors" / "utilization"
    record = json.loads((folder / "fit.json").read_text(encoding="utf-8"))
    return predicting.read_draws(read_columns((folder / "draws.csv").read_text(encoding="utf-8"))), record


def predicted(fit, evidence):
    draws, record = fit
    return predicting.predict(draws, [RUN], record["constants"], record["settings"], evidence=evidence)


def rest(fit, window, evidence=()):
    draws, record = fit
    return running.rest_of_run(
        draws, predicted(fit, evidence), window, predicting.CLEAN, settings=record["settings"], resolution=RESOLUTION
    )


def speed(log_utilization):
    return predicting.Evidence(RUN, "compute_only", log_utilization, same_run=True)


def weighted_quantiles(values, weights, probabilities=PROBABILITIES):
    order = np.argsort(values)
    cumulative = np.cumsum(weights[order]) - weights[order] / 2
    return np.interp(probabilities, cumulative / weights.sum(), values[order])


def quantiles_of_goodput(found):
    return weighted_quantiles(np.exp(found.log_goodput), found.loss_weights)


def quantiles_of_mfu(found, size=400_000):
    generator = np.random.default_rng(1)
    pick = generator.choice(len(found.weights), size, p=found.weights / found.weights.sum())
    return np.quantile(found.means[pick] + found.sds[pick] * generator.standard_normal(size), PROBABILITIES)


class Sampled:
    """Draws of the generative model itself, before any observation."""

    def __init__(self, fit, shape, size=1_500_000):
        draws, record = fit
        generator = np.random.default_rng(0)
        plain = predicted(fit, ())
        sd = record["settings"]["exact_record_sd"]
        s = generator.integers(len(draws.beta), size=size)
        means, sds = plain.log_mfu.means[0][s], plain.log_mfu.sds[0][s]
        self.efficiency = means + np.sqrt(sds**2 - sd**2) * generator.standard_normal(size)
        # numpy's Pareto is Lomax of scale 1.
        shape_of_loss = record["settings"]["loss_shape"]
        self.x = draws.scalar["loss_mean"][s] * (shape_of_loss - 1) * generator.pareto(shape_of_loss, size)
        self.loss = np.log1p(self.x)
        self.seen = self.x * generator.gamma(shape, 1 / shape, size)
        self.record = sd * generator.standard_normal(size)
        self.sd, self.shape = sd, shape

    def normal(self, gap):
        return np.exp(-0.5 * (gap / self.sd) ** 2)


@pytest.mark.parametrize("shape", [0.3, 1.5])
@pytest.mark.parametrize("loss", [0.02, 0.3])
def test_known_speed_and_loss_agree_with_importance_sampling(fit, shape, loss):
    sampled = Sampled(fit, shape)
    seen = np.expm1(loss) + RESOLUTION
    # The density of the gamma at what was seen, as a function of its mean.
    weights = sampled.normal(np.log(0.4) - sampled.efficiency) * sampled.x**-shape * np.exp(-shape * seen / sampled.x)
    found = rest(fit, running.Window(shape, loss=loss), [speed(np.log(0.4))])
    expected = weighted_quantiles(np.exp(-sampled.loss), weights)
    # About 1e5 effective samples give quantiles of goodput to 0.002; 64 nodes per draw add as much.
    np.testing.assert_allclose(quantiles_of_goodput(found), expected, atol=0.005)
    mfu = weighted_quantiles(sampled.efficiency + sampled.record, weights)
    np.testing.assert_allclose(quantiles_of_mfu(found), mfu, atol=0.005)


@pytest.mark.parametrize("shape", [0.3, 1.5])
@pytest.mark.parametrize("seen", [0.25, 0.40])
def test_tokens_and_days_alone_agree_with_importance_sampling(fit, shape, seen):
    sampled = Sampled(fit, shape)
    weights = sampled.normal(np.log(seen) - (sampled.efficiency - np.log1p(sampled.seen)))
    found = rest(fit, running.Window(shape, log_utilization=np.log(seen)))
    expected = weighted_quantiles(np.exp(-sampled.loss), weights)
    # 250 of the 1,000 draws, 32 x 12 nodes: a third of a per cent of a wide distribution at each quantile.
    np.testing.assert_allclose(quantiles_of_goodput(found), expected, atol=0.015)
    mfu = weighted_quantiles(sampled.efficiency + sampled.record, weights)
    np.testing.assert_allclose(quantiles_of_mfu(found), mfu, atol=0.03)


@pytest.mark.parametrize("shape", [0.3, 1.5])
def test_the_copula_keeps_what_the_bill_sees(fit, shape):
    """Tokens and days tell the product, so that MFU and goodput fall together; a copula must keep their product."""
    sampled = Sampled(fit, shape)
    weights = sampled.normal(np.log(0.3) - (sampled.efficiency - np.log1p(sampled.seen)))
    expected = weighted_quantiles(sampled.efficiency + sampled.record - sampled.loss, weights)
    found = rest(fit, running.Window(shape, log_utilization=np.log(0.3)))
    assert found.correlation < -0.1
    generator = np.random.default_rng(2)
    z = generator.multivariate_normal([0, 0], [[1, found.correlation], [found.correlation, 1]], size=400_000)
    order = np.argsort(found.log_goodput)
    cumulative = np.cumsum(found.loss_weights[order]) - found.loss_weights[order] / 2
    ranks = (np.argsort(np.argsort(z, axis=0), axis=0) + 0.5) / len(z)
    goodput = np.interp(ranks[:, 1], cumulative, found.log_goodput[order])
    pick = np.random.default_rng(1).choice(len(found.weights), len(z), p=found.weights / found.weights.sum())
    mfu = np.sort(found.means[pick] + found.sds[pick] * generator.standard_normal(len(z)))
    product = np.quantile(mfu[(ranks[:, 0] * len(z)).astype(int)] + goodput, PROBABILITIES)
    # A Gaussian copula is not the joint distribution: the ends differ by up to 3% of utilisation, the middle by 1%.
    np.testing.assert_allclose(product, expected, atol=0.035)
    assert product[1] == pytest.approx(expected[1], abs=0.015)


def test_without_an_interruption_to_expect_the_losses_say_nothing(fit):
    draws, record = fit
    found = rest(fit, running.Window(0.0, loss=0.5), [speed(np.log(0.4))])
    weights = predicted(fit, [speed(np.log(0.4))]).log_mfu.weights[0]
    u = (np.arange(400) + 0.5) / 400
    shape = record["settings"]["loss_shape"]
    lost = stats.lomax(shape, scale=(shape - 1) * draws.scalar["loss_mean"][:, None]).ppf(u)
    prior = weighted_quantiles(1 / (1 + lost).ravel(), np.repeat(weights, 400))
    np.testing.assert_allclose(quantiles_of_goodput(found), prior, atol=0.004)  # 64 nodes against 400
    np.testing.assert_allclose(found.weights, weights, rtol=1e-9)


def test_more_interruptions_say_more_and_never_all():
    change = 0.7
    shapes = [running.shape_of_window(n, n, change) for n in (0.0, 0.1, 1.0, 10.0, 1e6)]
    assert shapes[0] == 0
    assert np.all(np.diff(shapes) > 0)
    assert shapes[-1] == pytest.approx(1 / change**2, rel=1e-4)
    # The end of a run is short: what happens in it is left to chance, however long the days so far.
    assert running.shape_of_window(1e6, 0.1, change) < 0.06


def test_variance_of_the_window_is_that_of_the_interruptions():
    """The gamma has the mean and variance of a Poisson number of exponential losses."""
    generator = np.random.default_rng(3)
    interruptions, mean_loss = 4.0, 0.02
    number = generator.poisson(interruptions, 400_000)
    lost = np.where(number > 0, generator.gamma(np.maximum(number, 1), mean_loss), 0.0)
    squared = lost.var() / lost.mean() ** 2
    shape = running.shape_of_window(interruptions, 1e12, 0.0)
    assert 1 / shape == pytest.approx(squared, rel=0.02)  # four standard errors of a variance from 400,000 draws


@pytest.mark.slow
@pytest.mark.parametrize(("so_far", "left"), [(1.0, 4.0), (5.0, 20.0), (50.0, 200.0)])
def test_intervals_hold_runs_whose_losses_are_interruptions(fit, so_far, left):
    """The first days lose a Poisson number of exponential times, not a gamma: nine in ten intervals hold the rest."""
    draws, record = fit
    sd, change = record["settings"]["exact_record_sd"], 0.7
    generator = np.random.default_rng(5)
    plain = predicted(fit, ()).log_mfu
    inside = []
    for s in generator.integers(len(draws.beta), size=250):
        efficiency = plain.means[0][s] + np.sqrt(plain.sds[0][s] ** 2 - sd**2) * generator.standard_normal()
        loss = generator.exponential(draws.scalar["loss_mean"][s])
        spread = change**2 + 2 / left
        level = np.expm1(loss) * generator.gamma(1 / spread, spread)
        number = generator.poisson(so_far)
        lost = generator.gamma(number, level / so_far) if number else 0.0
        window = running.Window(running.shape_of_window(so_far, left, change), loss=np.log1p(lost))
        found = rest(fit, window, [speed(efficiency + sd * generator.standard_normal())])
        pick = generator.choice(len(found.weights), 4000, p=found.weights / found.weights.sum())
        goodput = generator.choice(found.log_goodput, 4000, p=found.loss_weights / found.loss_weights.sum())
        forecast = found.means[pick] + found.sds[pick] * generator.standard_normal(4000) + goodput
        low, high = np.quantile(forecast, [0.05, 0.95])
        inside.append(low <= efficiency + sd * generator.standard_normal() - loss <= high)
    # Three standard errors of a share of 0.9 among 250.
    assert np.mean(inside) == pytest.approx(0.9, abs=0.057)
