"""The team program: closed forms, a published textbook case, and NUTS on the same model."""

import numpy as np
import pytest
from scipy import integrate, stats

from gpustack_mc import pack
from gpustack_mc.fits import team
from gpustack_mc.priors import Marginal, quantiles, scores

PRIOR = (3.9, 1.1)
SHARES = team.share_nodes(PRIOR, 256)


def moments(mixture):
    w, m, s = (part[0] for part in mixture)
    mean = w @ m
    return mean, np.sqrt(w @ (s**2 + (m - mean) ** 2))


def test_strata_of_the_share_have_the_moments_of_their_prior():
    # midpoints of 256 strata: the error of the mean is that of the midpoint rule, below 1e-4
    assert SHARES.mean() == pytest.approx(stats.beta.mean(*PRIOR), abs=1e-4)
    assert SHARES.var() == pytest.approx(stats.beta.var(*PRIOR), rel=0.01)


def test_without_measurements_the_prior_stays():
    found = team.next_score(team.scored([]), SHARES)
    assert moments(found) == pytest.approx((0, 1), abs=1e-12)


@pytest.mark.parametrize("share", [0.2, 0.78, 0.99])
def test_with_a_known_share_it_is_the_conjugate_normal(share):
    """Textbook posterior of a normal mean: precisions add; the next value adds the spread within the team."""
    z = np.array([0.8, 1.1, 0.4])
    precision = 1 / share + len(z) / (1 - share)
    mean = z.sum() / (1 - share) / precision
    found = team.next_score(team.scored(z), np.array([share]))
    assert found.means[0, 0] == pytest.approx(mean)
    assert found.sds[0, 0] ** 2 == pytest.approx(1 / precision + 1 - share)


def test_weights_of_shares_are_the_density_of_the_measurements():
    z = np.array([0.8, 1.1, 0.4, -0.3])
    shares = np.array([0.1, 0.5, 0.9])
    density = [stats.multivariate_normal.pdf(z, np.zeros(4), (1 - share) * np.eye(4) + share) for share in shares]
    found = team.next_score(team.scored(z), shares)
    np.testing.assert_allclose(found.weights[0], density / np.sum(density), rtol=1e-10)


def test_agreeing_measurements_narrow_and_disagreeing_ones_do_not():
    alike = moments(team.next_score(team.scored([1.0, 1.02, 0.98, 1.01]), SHARES))
    apart = moments(team.next_score(team.scored([2.5, -0.5, 1.9, 0.1]), SHARES))
    assert alike[0] == pytest.approx(1.0, abs=0.05)  # little is left of the prior's pull towards 0
    assert alike[1] < 0.25 < apart[1]
    many = moments(team.next_score(team.scored(np.random.default_rng(0).normal(1.0, 0.2, 500)), SHARES))
    # With many measurements the next one is as spread as they are: standard error of a sample sd is 3%.
    assert many == pytest.approx((1.0, 0.2), abs=0.03)


def test_quadrature_agrees_with_nuts():
    import jax
    from numpyro.infer import MCMC, NUTS

    z = np.array([1.2, 0.7, 1.0])
    with jax.enable_x64(True):
        chain = MCMC(
            NUTS(team.model), num_warmup=500, num_samples=2500, num_chains=2, chain_method="vectorized",
            progress_bar=False,
        )  # fmt: skip
        chain.run(jax.random.key(0), z, PRIOR)
        draws = {name: np.asarray(value) for name, value in chain.get_samples().items()}
    mean, sd = moments(team.next_score(team.scored(z), SHARES))
    # 5,000 nearly independent draws: four standard errors of a mean are 0.06 sd, of a quantile about 0.1 sd
    assert draws["next_score"].mean() == pytest.approx(mean, abs=0.06 * sd)
    assert draws["next_score"].std() == pytest.approx(sd, rel=0.06)
    for level in (0.05, 0.95):
        expected = team.next_score(team.scored(z), SHARES).quantile(level)[0]
        assert np.quantile(draws["next_score"], level) == pytest.approx(expected, abs=0.12 * sd)


def test_joint_tail_is_that_of_the_correlated_normal():
    z, share = np.array([1.5, -0.2, 2.0]), 0.6
    covariance = (1 - share) * np.eye(3) + share
    expected = stats.chi2.sf(z @ np.linalg.solve(covariance, z), 3)
    assert team.joint_tail(team.scored(z), share) == pytest.approx(expected, rel=1e-10)
    # One measurement: the two-sided normal tail.
    assert team.joint_tail(team.scored([2.0]), share) == pytest.approx(2 * stats.norm.sf(2.0), rel=1e-10)


# ---- on the scale of the input --------------------------------------------------------------------------------------
def test_a_lognormal_prior_becomes_the_conjugate_lognormal(monkeypatch):
    share, mu, sigma = 0.7, np.log(400), 0.3
    monkeypatch.setattr(pack, "_shares", lambda: np.array([share]))
    prior = Marginal("lognormal", {"mu": mu, "sigma": sigma})
    watts = np.array([450.0, 470.0])
    found = pack.updated(prior, team.scored(scores(prior, watts)))
    tau2, s2 = share * sigma**2, (1 - share) * sigma**2
    precision = 1 / tau2 + 2 / s2
    mean = (mu / tau2 + np.log(watts).sum() / s2) / precision
    sd = np.sqrt(1 / precision + s2)
    levels = np.array([0.001, 0.05, 0.5, 0.95, 0.999])
    expected = np.exp(mean + sd * stats.norm.ppf(levels))
    # both tables are interpolated linearly between 2,049 points of spacing 0.006 in normal scores
    np.testing.assert_allclose(quantiles(found, levels), expected, rtol=2e-4)


@pytest.mark.parametrize(
    "prior",
    [
        Marginal("logit_normal", {"mu": 1.7, "sigma": 0.75, "low": 0.0, "high": 1.0}),
        Marginal("lognormal", {"mu": -1.9, "sigma": 0.6, "shift": 1.0}),
        Marginal("tabulated", {"values": np.exp(np.linspace(-6.5, 6.5, 2049)).tolist()}),
    ],
)
def test_scores_invert_quantiles_and_no_news_changes_nothing(prior):
    z = np.array([-2.0, 0.0, 1.3])
    x = quantiles(prior, stats.norm.cdf(z))
    np.testing.assert_allclose(scores(prior, x), z, atol=1e-4)
    same = pack.updated(prior, team.scored([]))
    np.testing.assert_allclose(quantiles(same, [0.01, 0.5, 0.99]), quantiles(prior, [0.01, 0.5, 0.99]), rtol=1e-3)


def test_values_beyond_the_prior_have_no_finite_score():
    prior = Marginal("logit_normal", {"mu": 0.0, "sigma": 1.0, "low": 1.0, "high": 2.0})
    assert np.isinf(scores(prior, [0.9, 2.1])).all()


def test_the_forecast_is_calibrated_under_its_own_prior():
    """Measurements drawn from the program: the forecast's distribution function at the next one is uniform."""
    generator = np.random.default_rng(3)
    size = 400
    share = generator.beta(*PRIOR, size)
    level = generator.normal(0, np.sqrt(share))
    z = level[:, None] + np.sqrt(1 - share)[:, None] * generator.normal(size=(size, 4))
    u = [float(team.next_score(team.scored(row[:3]), SHARES).cdf(row[3:])[0]) for row in z]
    assert stats.kstest(u, "uniform").pvalue > 0.01  # fails once in a hundred seeds if all is right


def test_density_integrates_to_one():
    found = team.next_score(team.scored([0.5, 0.9]), SHARES)
    total = integrate.quad(lambda y: float(np.exp(found.log_density(np.array([y]))[0])), -8, 8)[0]
    assert total == pytest.approx(1, abs=1e-6)


def test_a_value_that_is_stated_again_weighs_in_the_mean_and_counts_once():
    assert team.scored([0.5], [100]) == team.scored([0.5])
    found = team.scored([1.0, 0.0], [3, 1])
    assert (found.n, found.mean) == (2, 0.75)
    assert found.around == pytest.approx(2 * 0.1875)
    # Readings that repeat because they are rounded keep their spread.
    z = np.random.default_rng(0).normal(0.5, 0.2, 20000)
    values, counts = np.unique(z.round(2), return_counts=True)
    assert moments(team.next_score(team.scored(values, counts), SHARES)) == pytest.approx((0.5, 0.2), abs=0.02)
