"""The hierarchical program: density, effects, predictive of new members, checks, and calibration."""

import jax
import numpy as np
import pytest
from numpyro.handlers import seed, substitute, trace
from scipy import stats

from gpustack_mc.fits import chain_checks, hierarchy, members
from gpustack_mc.fits.hierarchy import Effect, Problem, Row
from gpustack_mc.fits.members import Member, Mixture, Scale
from gpustack_mc.fits.populations import predictive_log_normal


def two_levels(seed_=0, sizes=(6, 5, 4, 2)):
    """Members with one or two rows in groups, one of them down-weighted, one shifted; spreads of all three kinds."""
    rng = np.random.default_rng(seed_)
    rows = []
    for group, size in enumerate(sizes):
        for member in range(size):
            name = f"{group}{member}"
            rows.append(Row(rng.normal(group, 0.5), {"mean": 1.0, f"g{group}": 1.0}, {f"s{group}": 1.0}, name, (name,)))
    shared = {"mean": 1.0, "g0": 1.0, "twice": 1.0}
    rows += [Row(rng.normal(), shared, {"noise": 1.0}, "twice"), Row(rng.normal(), shared, {"noise": 2.0}, "twice")]
    rows.append(
        Row(
            -1.0,
            {"mean": 1.0, "g1": 1.0, "once": 2.0},
            {"noise": 1.0},
            "shifted",
            variance=0.01,
            shift={"spread": -1.5},
        )
    )
    groups = range(len(sizes))
    return Problem(
        rows,
        {
            "mean": Effect(3.0, 0.5),
            "twice": Effect("spread"),
            "once": Effect("spread"),
            **{f"g{i}": Effect("between") for i in groups},
        },
        {
            "between": hierarchy.half_normal(1.0),
            "spread": hierarchy.expected(0.5, 4),
            "noise": hierarchy.expected(0.3, 4),
            **{f"s{i}": hierarchy.pooled("spread", 0.3) for i in groups},
        },
    )


def dense(data, s):
    """Mean and covariance of rows and effects together, by matrices of full size."""
    prior = np.diag((data.fixed_sd + data.own_sd @ s) ** 2)
    mean = data.design @ data.mean + data.shift @ s
    return prior, mean, data.design @ prior @ data.design.T + np.diag(data.variance + data.noise @ s**2)


# ---- density and effects --------------------------------------------------------------------------------------------
def test_density_of_rows_is_the_multivariate_normal():
    problem = two_levels()
    data = hierarchy.arrays(problem)
    given = hierarchy.priors(problem.spreads)
    with jax.enable_x64(True):
        sites = trace(seed(lambda: hierarchy.model(data, given), jax.random.key(3))).get_trace()
        found = float(sites["y"]["fn"].log_prob(data.y))
        s = np.asarray(sites["s"]["value"])
        fewer = hierarchy.reduced(data)
        again = seed(lambda: hierarchy.model(fewer, given), jax.random.key(3))  # the same spreads
        same = float(trace(again).get_trace()["y"]["fn"].log_prob(data.y))
        wide, wide_given, _ = hierarchy.padded(problem)
        spare = wide.y.size - data.y.size
        values = {name: sites[name]["value"] for name in ("half", "variance", "omega", "z")}
        values = {
            name: np.pad(value, (0, getattr(wide_given, at).size - value.size), constant_values=1.0)
            for (name, value), at in zip(values.items(), ("half", "rate", "omega", "parent"), strict=True)
        }
        more = trace(substitute(lambda: hierarchy.model(wide, wide_given), values)).get_trace()
        padded = float(more["y"]["fn"].log_prob(wide.y))
    _, mean, covariance = dense(data, s)
    assert found == pytest.approx(stats.multivariate_normal.logpdf(data.y, mean, covariance), rel=1e-9)
    assert same == pytest.approx(found, rel=1e-9)
    assert padded + spare * np.log(2 * np.pi) / 2 == pytest.approx(found, rel=1e-9)
    assert fewer.design.shape[1] < data.design.shape[1]


def test_spreads_have_the_priors_they_claim():
    spreads = {
        "a": hierarchy.half_normal(2.0), "b": hierarchy.expected(0.5, 4), "c": hierarchy.pooled("b", 0.3),
    }  # fmt: skip
    with jax.enable_x64(True):
        drawn = jax.vmap(lambda key: seed(lambda: hierarchy._spreads(hierarchy.priors(spreads)), key)())(
            jax.random.split(jax.random.key(0), 20_000)
        )
    a, b, c = np.asarray(drawn).T
    # Kolmogorov-Smirnov at 20,000 draws: chance alone passes 1e-4 but once in 10,000.
    assert stats.kstest(a, stats.halfnorm(scale=2.0).cdf).pvalue > 1e-4
    assert stats.kstest(4 * 0.5**2 / b**2, stats.chi2(4).cdf).pvalue > 1e-4
    # log(c/b) = omega z: variance E[omega^2] = 0.09, fourth moment 9 * 0.09^2; four standard errors
    assert np.var(np.log(c / b)) == pytest.approx(0.09, abs=4 * 0.09 * np.sqrt(8 / 20_000))


def test_effects_are_conditioned_exactly():
    problem = two_levels()
    data = hierarchy.arrays(problem)
    s = np.array([[0.7, 0.5, 0.3, 0.4, 0.5, 0.6, 0.2], [0.0, 0.5, 0.3, 0.4, 0.5, 0.6, 0.2]])  # no spread between groups
    mean, root = hierarchy.condition(data, s)
    for i, values in enumerate(s):
        prior, expected, covariance = dense(data, values)
        gain = prior @ data.design.T @ np.linalg.inv(covariance)
        np.testing.assert_allclose(mean[i], data.mean + gain @ (data.y - expected), atol=1e-10)
        np.testing.assert_allclose(root[i] @ root[i].T, prior - gain @ data.design @ prior, atol=1e-10)


def test_a_thin_population_borrows_from_the_others():
    problem = two_levels()
    data = hierarchy.arrays(problem)
    tight, loose = hierarchy.condition(data, np.array([[between, 0.5, 0.3, *[0.5] * 4] for between in (0.05, 50.0)]))[0]
    at = list(problem.effects)
    own = np.mean([row.y for row in problem.rows if "g3" in row.effects])
    mean, last = at.index("mean"), at.index("g3")
    assert loose[mean] + loose[last] == pytest.approx(own, abs=1e-3)  # nothing in common: its own mean
    assert abs(tight[last]) < 0.1  # all alike: the general mean


def test_unknown_names_are_refused():
    problem = two_levels()
    with pytest.raises(KeyError, match="nobody"):
        hierarchy.arrays(problem._replace(rows=[Row(0.0, {"nobody": 1.0}, {"noise": 1.0})]))


# ---- sampling against a closed form ---------------------------------------------------------------------------------
def population_of(y):
    return Problem(
        [Row(value, {"mean": 1.0}, {"members": 1.0}, str(i)) for i, value in enumerate(y)],
        {"mean": Effect(hierarchy.WIDE)}, {"members": hierarchy.expected(0.4, 3)},
    )  # fmt: skip


@pytest.fixture(scope="module")
def one_population():
    y = np.random.default_rng(5).normal(1.0, 0.5, 5)
    problem = population_of(y)
    return y, problem, hierarchy.sample(problem)


def test_one_population_is_the_student_t_of_the_textbook(one_population):
    """Gelman et al., Bayesian Data Analysis, section 3.2, with an informative spread."""
    y, _, posterior = one_population
    found = members.mixture(posterior, Member({"mean": 1.0}, {"members": 1.0}))
    freedom = len(y) - 1 + 3
    scale = np.sqrt((np.sum((y - y.mean()) ** 2) + 3 * 0.4**2) / freedom * (1 + 1 / len(y)))
    points = [0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99]
    exact = y.mean() + scale * stats.t.ppf(points, freedom)
    # 1000 draws of about half that effective size know the spread to 1/sqrt(2 * 7 * 500), i.e. 1.2%; four of them,
    # of half the width of the 5-95% band. Beyond it the largest spreads among the draws decide, which few draws know:
    # twice that. The general mean's own prior is 25 times wider than the data.
    half = (exact[-2] - exact[1]) / 2
    np.testing.assert_allclose(found.quantile(points)[1:-1], exact[1:-1], atol=0.05 * half)
    np.testing.assert_allclose(found.quantile(points)[[0, -1]], exact[[0, -1]], atol=0.10 * half)
    closed = predictive_log_normal(np.exp(y), prior_sd=0.4, prior_weight=3)
    assert members.match(found).sigma == pytest.approx(closed.sigma, rel=0.05)
    # the variance of the mean is a fifth of that of a member, up to its own wide prior
    assert found.epistemic_share() == pytest.approx(1 / 6, abs=0.001)


def test_chains_of_one_population_are_healthy_and_checked(one_population):
    _, problem, posterior = one_population
    found = chain_checks.checks(problem, posterior)
    assert chain_checks.unhealthy(found["diagnostics"]) is None
    # five normal rows: no statistic in the far tails
    assert all(0.01 < value < 0.99 for value in found["posterior_predictive"].values())


def test_prior_and_data_both_matter_where_they_weigh_alike():
    """Prior worth three, data seven degrees of freedom; 0.05 is the threshold of Kallioinen et al."""
    problem = population_of(np.random.default_rng(5).normal(1.0, 0.5, 8))
    sensitivity = chain_checks.checks(problem, hierarchy.sample(problem))["sensitivity"]["members"]
    assert sensitivity["prior"] > 0.05 and sensitivity["likelihood"] > 0.05


def test_rows_that_the_program_cannot_make_are_seen(one_population):
    _, problem, posterior = one_population
    data = hierarchy.arrays(problem)
    strange = data._replace(y=data.y + np.array([0, 0, 0, 0, 8.0]))
    assert chain_checks.predictive(strange, posterior)["largest"] < 0.01


@pytest.mark.parametrize(
    ("bad", "message"),
    [({"divergences": 1}, "TARGET_ACCEPT"), ({"r_hat": 1.05}, "R-hat"), ({"ess_bulk": 100.0}, "effective sample size")],
)
def test_bad_chains_say_what_to_do(bad, message):
    good = {"divergences": 0, "r_hat": 1.001, "ess_bulk": 900.0, "ess_tail": 900.0}
    assert chain_checks.unhealthy(good) is None
    assert message in chain_checks.unhealthy(good | bad)


def test_chains_that_disagree_have_a_large_r_hat():
    rng = np.random.default_rng(0)
    chains = rng.normal(size=(4, 500)) + np.arange(4)[:, None]
    assert chain_checks.convergence({"x": chains})["r_hat"] > 1.3


# ---- predictive -----------------------------------------------------------------------------------------------------
def mixture_of(mean, sd, weight):
    mean, sd, weight = (np.asarray(value, dtype=float) for value in (mean, sd, weight))
    return Mixture(mean, np.zeros_like(mean), sd**2, weight / weight.sum())


def test_one_normal_is_matched_exactly():
    found = members.match(mixture_of([1.0], [0.5], [1.0]))
    assert (found.mu, found.sigma) == pytest.approx((1.0, 0.5), rel=1e-6)
    assert found.tails < 1e-6


def test_quantiles_and_density_of_a_mixture():
    found = mixture_of([0.0, 3.0], [1.0, 0.5], [3.0, 1.0])
    p = np.array([0.05, 0.4, 0.9])
    at = found.quantile(p)
    by_hand = 0.75 * stats.norm.cdf(at) + 0.25 * stats.norm.cdf(at, 3.0, 0.5)
    np.testing.assert_allclose(by_hand, p, atol=1e-9)
    density = 0.75 * stats.norm.pdf(2.0) + 0.25 * stats.norm.pdf(2.0, 3.0, 0.5)
    assert found.log_density(2.0) == pytest.approx(np.log(density))
    # variance within 0.75 + 0.25/4 = 0.8125, between 0.75 * 0.25 * 9 = 1.6875
    assert found.epistemic_share() == pytest.approx(1.6875 / 2.5)


def test_two_kinds_of_member_are_stored_as_a_table():
    found = mixture_of([-2.0, 2.0], [0.3, 0.3], [1.0, 1.0])
    kept = members.stored(found, Scale(0.0, 1.0))
    assert kept["family"] == "tabulated"
    values = np.array(kept["parameters"]["values"])
    assert np.all(np.diff(values) >= 0) and 0 < values[0] and values[-1] < 1
    quarter = 1 / (1 + np.exp(-found.quantile([0.25])[0]))
    z = np.linspace(-members.TABLE_Z, members.TABLE_Z, members.TABLE_SIZE)
    assert np.interp(stats.norm.ppf(0.25), z, values) == pytest.approx(quarter, abs=0.002)  # linear between 129 points


@pytest.mark.parametrize(("scale", "value"), [(Scale(), 3.0), (Scale(1.0), 1.2), (Scale(0.0, 4.0), 0.3)])
def test_scales_invert_and_name_their_family(scale, value):
    y = scale.forward(value)
    assert float(scale.back(y)) == pytest.approx(value)
    family, parameters = scale.marginal(y, 0.1)
    from gpustack_mc.priors import Marginal, quantiles

    assert quantiles(Marginal(family, parameters), [0.5])[0] == pytest.approx(value)


# ---- calibration ----------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_ranks_of_the_truth_are_uniform():
    """Simulation-based calibration of spreads, effects and a new member, inside simultaneous bands."""
    from gpustack_mc.fits import calibration_check

    member = Member({"mean": 1.0, "g3": 1.0}, {"s3": 1.0})
    found = calibration_check.ranks(two_levels(), member, replications=200)
    outside = [name for name, line in calibration_check.bands(found).items() if not line["inside"]]
    # 15 quantities, each outside its 99% band once in a hundred: two or more together are one in a hundred.
    assert len(outside) <= 1, outside


def test_ranks_that_are_not_uniform_leave_the_band():
    from gpustack_mc.fits import calibration_check

    rng = np.random.default_rng(0)
    narrow, right = rng.beta(0.6, 0.6, 200), rng.uniform(size=200)  # posteriors too narrow give ranks at the ends
    found = calibration_check.bands({"narrow": narrow, "right": right})
    assert not found["narrow"]["inside"]
    assert found["right"]["inside"]
