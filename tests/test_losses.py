"""A job that runs and states reliability: its interruptions and losses move what goodput follows from."""

import jax
import numpy as np
import pytest
from scipy.stats import gamma, norm

from gpustack_mc import failures, losses, metering, priors
from gpustack_mc.design import make_design
from gpustack_mc.errors import InputError
from gpustack_mc.priors import Marginal
from gpustack_mc.propagation import simulate
from gpustack_mc.scenario import load_scenario
from gpustack_mc.spent import ADDITIVE, parts

BASE = """\
schema_version: 1
name: Running
workload: {params: 70e9, tokens: 2e12, n_layers: 80, d_model: 8192, sequence_length: 4096, global_batch_tokens: 4e6}
cluster: {accelerator: H100-SXM-80GB, count: 1024}
observed: {days: 10, tokens: 8e11, tokens_per_second: 1e6}
reliability: {checkpoint_interval: 30 min}
"""
COUNT, HOURS = 1024.0, 245_760.0
PROBABILITIES = np.array([0.05, 0.25, 0.5, 0.75, 0.95])


def lognormal(median, spread):
    return Marginal("lognormal", {"mu": float(np.log(median)), "sigma": spread})


PRIOR = {
    "interruption_rate": lognormal(3e-5, 1.0),
    "checkpoint_interval": Marginal("fixed", {"value": 60.0}),
    "checkpoint_save_time": lognormal(60.0, 0.8),
    "restart_time": lognormal(20.0, 1.0),
    "unexplained_loss": lognormal(0.03, 0.8),
}


@pytest.fixture
def load(scenario_file):
    return lambda *overrides, base=BASE: load_scenario(scenario_file(base), overrides)


def band(marginal):
    return priors.quantiles(marginal, [0.05, 0.5, 0.95])


def weighted_quantiles(values, weight):
    order = np.argsort(values)
    return np.interp(PROBABILITIES, np.cumsum(weight[order]) / weight.sum(), values[order])


def follows(values):
    """Goodput, hours lost per productive hour, and those that failures cause."""
    given = [values[name] for name in losses.NAMES]
    with jax.enable_x64(True):
        goodput = np.asarray(failures.expected_goodput(COUNT, *given))
        undone = np.asarray(failures.lost_work_share(COUNT, *given))
        restarts = np.asarray(failures.restart_loss_share(COUNT, given[0], given[3], given[4]))
    return goodput, 1 / goodput - 1, (undone + restarts) / goodput


def drawn(marginals, draws, correlations=None, seed=0):
    """Draws of the inputs, and of MFU where it is among them, with correlated normal scores."""
    names = list(marginals)
    z = np.random.default_rng(seed).standard_normal((len(names), draws))
    if correlations:
        matrix = np.eye(len(names))
        for (first, second), value in correlations.items():
            i, j = names.index(first), names.index(second)
            matrix[i, j] = matrix[j, i] = value
        z = np.linalg.cholesky(matrix) @ z
    return {name: priors.at_scores(marginals[name], row) for name, row in zip(names, z, strict=True)}


# ---- the count of interruptions -------------------------------------------------------------------------------------
@pytest.mark.parametrize("count", [0, 3, 400])
def test_a_poisson_count_and_a_flat_prior_make_a_gamma(count):
    """Conjugate: a flat prior far wider than the posterior, and a rate that does not change."""
    prior = Marginal("uniform", {"low": 0.0, "high": (count + 10 * np.sqrt(count + 1) + 20) / HOURS})
    found = losses.rate_given(prior, count, HOURS, 0.0).marginal
    exact = gamma(count + 1).ppf(PROBABILITIES) / HOURS
    # Between the nodes of the quantile table, steps of 9/9000 of a score.
    np.testing.assert_allclose(priors.quantiles(found, PROBABILITIES), exact, rtol=0.004)


def test_a_rate_is_never_known_better_than_it_stays():
    """With ever more interruptions the log of the rate keeps the spread of its change, a gamma of shape 1/sd^2."""
    count, change = 1e6, 0.3
    found = losses.rate_given(lognormal(count / HOURS, 4.0), count, HOURS, change).marginal
    # Posterior of log rate: likelihood (mean/shape)^count (1 + mean/shape)^-(shape + count); as count grows its
    # reciprocal is gamma of this shape.
    exact = count / HOURS / gamma(1 / change**2, scale=change**2).ppf(1 - PROBABILITIES)
    np.testing.assert_allclose(priors.quantiles(found, PROBABILITIES), exact, rtol=0.01)  # the prior's pull: 0.3/4


def test_a_rate_that_is_stated_is_not_moved():
    fixed = Marginal("fixed", {"value": 1e-5})
    assert losses.rate_given(fixed, 40, HOURS, 0.3) == (fixed, 0.0)


# ---- the losses -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("goodput", "wider"), [(0.98, 0.01), (0.9, 0.015), (0.8, 0.03), (0.6, 0.12)])
def test_losses_so_far_move_what_they_follow_from_as_bayes_rule_does(goodput, wider):
    """Against importance weights of half a million draws of the prior."""
    prior = losses.prior_points(PRIOR, COUNT)
    told = losses.Progress(HOURS, -np.log(goodput), np.log(0.4 * goodput))
    rest = losses.rest_of_run(
        prior, PRIOR | {"mfu": lognormal(0.4, 0.1)}, told, change_sd=0.7, resolution=0.01, record_sd=0.05
    )
    assert rest.possible and set(rest.marginals) == set(PRIOR) - {"checkpoint_interval"}
    values = drawn(PRIOR, 2**19)
    before, lost, failing = follows(values)
    variance = np.median((failing / lost) ** 2 * 2 / (values["interruption_rate"] * HOURS)) + 0.7**2
    weight = gamma(1 / variance, scale=lost * variance).pdf(1 / goodput - 1 + 0.01)
    for name, marginal in rest.marginals.items():
        # 16,384 Sobol' points; half a million draws are 1% uncertain in the tails of a weighted sample.
        exact = weighted_quantiles(values[name], weight)
        np.testing.assert_allclose(priors.quantiles(marginal, PROBABILITIES), exact, rtol=0.05)
    after, _, _ = follows(drawn(PRIOR | rest.marginals, 2**17, rest.correlations))
    # Causes that explain each other away are no Gaussian copula: the further the losses are from what was expected
    # (0.83 at 5%), the wider the interval becomes; it never becomes narrower (by more than 0.005 of Monte Carlo error).
    exact, found = weighted_quantiles(before, weight), np.quantile(after, PROBABILITIES)
    np.testing.assert_allclose(found[2], exact[2], atol=0.01)
    assert exact[0] - wider < found[0] < exact[0] + 0.005
    assert exact[-1] - 0.005 < found[-1] < exact[-1] + wider


@pytest.mark.parametrize("utilization", [0.37, 0.3])
def test_progress_alone_moves_mfu_and_losses_together(utilization):
    marginals = PRIOR | {"mfu": lognormal(0.4, 0.2)}
    told = losses.Progress(HOURS, None, np.log(utilization))
    rest = losses.rest_of_run(
        losses.prior_points(PRIOR, COUNT), marginals, told, change_sd=0.7, resolution=0.01, record_sd=0.05
    )
    values = drawn(marginals, 2**18, seed=1)
    before, lost, failing = follows(values)
    variance = np.median((failing / lost) ** 2 * 2 / (values["interruption_rate"] * HOURS)) + 0.7**2
    so_far = gamma(1 / variance, scale=lost * variance).rvs(random_state=2)
    weight = norm(np.log(values["mfu"]) - np.log1p(so_far), np.sqrt(2) * 0.05).pdf(np.log(utilization))
    exact = weighted_quantiles(values["mfu"], weight)
    np.testing.assert_allclose(priors.quantiles(rest.marginals["mfu"], PROBABILITIES), exact, rtol=0.015)
    together = drawn(marginals | rest.marginals, 2**17, rest.correlations, seed=3)
    after = follows(together)[0] * together["mfu"]
    # The product is what the rest's time hangs on.
    np.testing.assert_allclose(
        np.quantile(after, PROBABILITIES), weighted_quantiles(before * values["mfu"], weight), rtol=0.05
    )
    assert all(rest.correlations["mfu", name] > 0 for name in ("restart_time", "unexplained_loss"))


def test_a_moment_says_little_and_the_prior_stays():
    """In a thousandth of an hour nothing is to be expected, and a level may change without limit."""
    prior = losses.prior_points(PRIOR, COUNT)
    told = losses.Progress(1e-3, -np.log(0.95), np.log(0.38))
    rest = losses.rest_of_run(
        prior, PRIOR | {"mfu": lognormal(0.4, 0.1)}, told, change_sd=100.0, resolution=0.01, record_sd=0.05
    )
    for name, marginal in rest.marginals.items():
        # The least shape of 0.001, and what 361 bins of a score leave.
        np.testing.assert_allclose(priors.quantiles(marginal, PROBABILITIES),
                                   priors.quantiles(PRIOR[name], PROBABILITIES), rtol=0.01)  # fmt: skip


def test_what_is_known_stays(load):
    told = ["interruption_rate=3e-5 1/h", "checkpoint_save_time=60 s", "restart_time=20 min", "unexplained_loss=0.03"]
    problem = load(*told)
    assert problem.correlated == ()
    assert all(problem.inputs[name].marginal.is_fixed for name in losses.NAMES)


# ---- from scenario to result ----------------------------------------------------------------------------------------
def test_what_is_spent_is_fixed_and_the_shares_are_of_the_rest(load):
    problem = load()
    simulation = simulate(problem, make_design(4096), with_sensitivity=False)
    so_far, remaining = parts(simulation)
    np.testing.assert_allclose(so_far["training_days"], 10, rtol=1e-12)
    np.testing.assert_allclose(so_far["accelerator_hours"], HOURS, rtol=1e-12)
    value = dict(zip(problem.outputs, simulation.outputs, strict=True))
    drawn_inputs = dict(zip(simulation.varying, simulation.inputs, strict=True))
    names = ("expected_goodput", "checkpoint_loss_share", "lost_work_share", "restart_loss_share")
    np.testing.assert_allclose(sum(value[n] for n in names) + drawn_inputs["unexplained_loss"], 1, rtol=1e-12)
    rest = 6 * 70e9 * 1.2e12 / 3600 / (989.4e12 * drawn_inputs["mfu"] * value["expected_goodput"])
    np.testing.assert_allclose(remaining["accelerator_hours"], rest, rtol=1e-3)  # the peak to four digits
    assert all(remaining[name].min() > 0 for name in ADDITIVE)


def test_telemetry_moves_both_efficiency_and_goodput(load):
    plain = load(base=BASE.replace("observed:", "# "))
    good, bad = load("observed.tokens=8.55e11"), load("observed.tokens=6.05e11")
    draws = {}
    for name, problem in (("plain", plain), ("good", good), ("bad", bad)):
        found = simulate(problem, make_design(4096), with_sensitivity=False).outputs
        draws[name] = np.quantile(found[problem.outputs.index("expected_goodput")], [0.05, 0.5, 0.95])
    assert draws["bad"][1] < draws["good"][1] - 0.05
    assert draws["bad"][1] > 0.7  # a week of bad luck is no rule
    assert np.ptp(draws["good"]) < np.ptp(draws["plain"])
    assert np.ptp(np.log(band(good.inputs["mfu"].marginal))) < 0.5 * np.ptp(np.log(band(plain.inputs["mfu"].marginal)))
    assert {"mfu"}.isdisjoint(good.correlated) and len(good.correlated) == 4


def test_the_count_moves_the_rate_with_and_without_reliability(load):
    expected = float(priors.quantiles(load().inputs["interruption_rate"].marginal, [0.5])[0])
    for base in (BASE, BASE.replace("reliability:", "# ")):
        few, many = (load(f"observed.interruptions={n}", base=base) for n in (1, 40))
        low, high = (float(band(problem.inputs["interruption_rate"].marginal)[1]) for problem in (few, many))
        assert low < expected < high
        assert high == pytest.approx(40 / HOURS, rel=0.3)
        assert "40 happened" in " ".join(many.running.words)


def test_progress_alone_ties_mfu_and_the_causes(load):
    problem = load(base=BASE.replace(", tokens_per_second: 1e6", ""))
    assert "mfu" in problem.correlated
    found = simulate(problem, make_design(4096), with_sensitivity=False)
    rest = parts(found).remaining["training_days"]
    # 1.2e12 tokens at 8e10 a day.
    assert np.median(rest) == pytest.approx(15, rel=0.06)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["observed.interruptions=3.5"], "3.5 is not a whole number of interruptions"),
        (["observed.interruptions=-1"], "observed.interruptions: -1 is below 0"),
        (["observed.interruptions=9000"], "but the interruption_rate leads to expect"),
        (["interruption_rate=0"], "interruption_rate: 0 leaves nothing to follow"),
        (["goodput=0.9"], "goodput follows from reliability"),
        (
            ["observed.tokens=1e11", "restart_time=1 min", "unexplained_loss={low: 0.01, high: 0.02}",
             "checkpoint_save_time=10 s"],
            "is not what the failures and checkpoints of reliability can make",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told_where_it_is(load, overrides, told):
    with pytest.raises(InputError) as caught:
        load(*overrides)
    assert told in str(caught.value)
    assert caught.value.fix and caught.value.place is not None


def test_quantile_tables_of_weights_are_those_of_the_prior_where_nothing_is_told():
    scores = np.linspace(-4.5, 4.5, 361)
    weight = np.exp(-0.5 * scores**2)
    found = metering.moved(weight / weight.sum(), scores, PRIOR["restart_time"])
    np.testing.assert_allclose(band(found), band(PRIOR["restart_time"]), rtol=1e-3)
