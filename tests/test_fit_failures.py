"""Save time, restart time and unexplained loss: rows by hand, and the mechanism against the published goodputs."""

import functools

import numpy as np
import pytest
from scipy import stats

from gpustack_mc.fits import refit, unexplained_loss
from gpustack_mc.priors import Marginal, quantiles

QUANTITIES = ("checkpoint_save_time", "restart_time", "unexplained_loss")


@functools.cache
def populations(quantity):
    return {tuple(p["where"].items()): p for p in refit.compute(quantity)["populations"]}


@functools.cache
def settings(quantity):
    return {key: setting["value"] for key, setting in refit.read_prior(quantity)["settings"].items()}


@functools.cache
def jobs(by_hand):
    rows = [row for row in refit.read_rows("unexplained_loss") if row["use"] == "yes"]
    return [row for row in rows if (row["recovery"] == "manual") == by_hand]


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_stored_fit_is_current(quantity):
    assert refit.stale(quantity) is None


def band(quantity, **where):
    found = populations(quantity)[tuple(where.items())]
    return quantiles(Marginal(found["family"], found["parameters"]), [0.05, 0.5, 0.95])


def by_hand(seconds):
    """5, 50 and 95% of the Student-t predictive of logs."""
    logs = np.log(seconds)
    half = stats.t.ppf(0.95, len(logs) - 1) * logs.std(ddof=1) * np.sqrt(1 + 1 / len(logs))
    return np.exp([logs.mean() - half, logs.mean(), logs.mean() + half])


@pytest.mark.parametrize(
    ("quantity", "where", "values"),
    [
        # Seven teams; the rows of IBM are averaged.
        (
            "checkpoint_save_time",
            {"checkpointing": "synchronous"},
            [40, 120, (148.8 * 180) ** 0.5, 300, 200, 27.34, 600],
        ),
        (
            "checkpoint_save_time",
            {"checkpointing": "asynchronous"},
            [0.3162, (6.3 * 14) ** 0.5, (0.59 * 0.34) ** 0.5, 0.54],
        ),
        ("restart_time", {"recovery": "restart"}, [10, 10, 21.2, 4]),
        ("restart_time", {"recovery": "in_place"}, [2.5, 0.3333, 2]),
    ],
)
def test_each_way_is_near_its_own_teams(quantity, where, values):
    """The program pools spreads and means of two ways; alone, each would be a Student-t predictive."""
    low, middle, high = np.log(by_hand(values))
    found = np.log(band(quantity, **where))
    # The mean moves by no more than its standard error, and the 5-95% band by at most a third where there are four
    # teams: spreads are pooled, which tames the t of two and three degrees of freedom (6.3 and 2.9 times their spread).
    assert abs(found[1] - middle) < np.std(np.log(values), ddof=1) / np.sqrt(len(values))
    assert 0.5 < (found[2] - found[0]) / (high - low) < 1.33


def test_who_states_nothing_restarts_the_job():
    np.testing.assert_array_equal(band("restart_time"), band("restart_time", recovery="restart"))


def test_faster_ways_are_faster():
    assert band("checkpoint_save_time", checkpointing="asynchronous")[1] < 5
    assert band("restart_time", recovery="in_place")[1] < band("restart_time", recovery="restart")[1]


def test_a_way_of_saving_that_is_not_known_is_either():
    points = np.exp(np.linspace(-8, np.log(7199), 20_001))
    logit = np.log(points) - np.log(7200 - points)
    both = [populations("checkpoint_save_time")[("checkpointing", kind),] for kind in ("synchronous", "asynchronous")]
    cdf = np.mean([stats.norm.cdf(logit, p["parameters"]["mu"], p["parameters"]["sigma"]) for p in both], axis=0)
    low, middle, high = band("checkpoint_save_time")
    expected = np.log(np.interp([0.05, 0.5, 0.95], cdf, points))
    # Each way is stored as the nearest logit-normal, to 0.05 of the width of its band, which is 4.6 and 5.8.
    np.testing.assert_allclose(np.log([low, high]), expected[[0, 2]], atol=0.3)
    assert middle == pytest.approx(np.exp(expected[1]), rel=0.3)


def test_nobody_waits_longer_for_a_checkpoint_than_the_ceiling():
    for population in populations("checkpoint_save_time").values():
        ends = quantiles(Marginal(population["family"], population["parameters"]), [1e-9, 1 - 1e-9])
        assert 0 < ends[0] < ends[1] <= settings("checkpoint_save_time")["ceiling"]


# ---- the residual of the published goodputs ----


def test_posterior_of_rows_without_failures_is_that_of_exponentials():
    """Losses of 0 from failures leave an exponential sample, whose posterior has a closed form."""
    limits = {"rounding": 1e-4, "smallest_mean_loss": 1e-3, "largest_mean_loss": 10.0}
    losses = np.array([0.02, 0.05, 0.11])
    rows = [
        {"accelerators": "1", "goodput": str(np.exp(-loss)), "bound": "", "interruptions_per_hour": "1e-12",
         "checkpoint_interval_min": "", "checkpoint_save_time_s": "1e-6", "restart_time_min": "0",
         "checkpointing": "", "recovery": ""}
        for loss in losses
    ]  # fmt: skip
    weights, means = unexplained_loss.posterior(rows, limits), unexplained_loss.grid(limits)
    # Log-uniform prior: 1 / theta is Gamma(3) with rate sum(losses), so that theta is inverse gamma.
    exact = stats.invgamma(3, scale=losses.sum())
    cdf = np.cumsum(weights) - weights / 2
    # A rounding of 1e-4 blurs a loss of 0.02 by half a percent.
    np.testing.assert_allclose(np.interp([0.1, 0.5, 0.9], cdf, means), exact.ppf([0.1, 0.5, 0.9]), rtol=0.01)


def test_published_goodputs_are_consistent_with_the_mechanism():
    """Each of eight jobs is predicted by failures, its own facts and a residual fitted to the others."""
    left = unexplained_loss.leave_one_out([*jobs(False), *jobs(True)], settings("unexplained_loss"))
    exact = [found.below for found in left if not found.row["bound"]]
    assert len(exact) == 6
    # A calibrated prediction has one of six outside its 90% interval half of the time, three or more in 3 of 100 cases.
    assert sum(not 0.05 <= p <= 0.95 for p in exact) <= 2
    assert all(0.01 <= p <= 0.99 for p in exact)
    # Bounds: the share of predictions that keep "above 90%".
    assert all(1 - found.below > 0.2 for found in left if found.row["bound"])


def test_without_the_residual_they_are_not():
    """Runs restarted by hand lost far more than failures explain: the residual is needed."""
    (bloom,) = (row for row in jobs(True) if row["id"] == "goodput-bloom-176b")
    assert np.exp(-unexplained_loss.loss_of_failures(bloom)).min() > float(bloom["goodput"]) + 0.01
    alone, by_hand = (band("unexplained_loss", recovery=kind) for kind in ("restart", "manual"))
    assert alone[1] < 0.01 < 0.05 < by_hand[1] and alone[2] < 0.1


def test_all_jobs_mix_both_ways():
    either = band("unexplained_loss")
    assert band("unexplained_loss", recovery="restart")[1] < either[1] < band("unexplained_loss", recovery="manual")[1]
