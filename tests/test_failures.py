"""Goodput from failures: against a simulation of events, Lambert's function, published optima and limits."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, special

from gpustack_mc import failures

SHARES = ("expected_goodput", "checkpoint_loss_share", "lost_work_share", "restart_loss_share")


def shares(count, rate, interval, saving, restart, other=0.0):
    """Return the four shares of time for times in min, s, min."""
    with jax.enable_x64(True):
        times = (count, rate, interval, saving, restart, other)
        found = [np.asarray(getattr(failures, name)(*times)) for name in SHARES[:3]]
        return [*found, np.asarray(failures.restart_loss_share(count, rate, restart, other))]


def best(count, rate, saving):
    with jax.enable_x64(True):
        return np.asarray(failures.best_checkpoint_interval(count, rate, saving))


def simulate(rng, count, rate, interval, saving, restart, segments):
    """Time to get `segments` intervals saved, event by event, in hours; returns working, saving, lost, restarting time.

    Every accelerator has its own clock. A failure ends what is going on, also a restart or a save.
    """
    hours = {"work": interval / 60, "save": saving / 3600, "restart": restart / 60}

    def next_failure(size):
        return rng.exponential(1 / rate, size=(size, count)).min(axis=1)

    worked, saved = np.full(segments, hours["work"]), np.full(segments, hours["save"])
    lost, restarting = np.zeros(segments), np.zeros(segments)
    open_segments = np.arange(segments)
    while len(open_segments):
        clock = next_failure(len(open_segments))
        failed = clock < hours["work"] + hours["save"]
        open_segments, clock = open_segments[failed], clock[failed]
        lost[open_segments] += clock
        waiting = open_segments
        while len(waiting):
            clock = next_failure(len(waiting))
            restarting[waiting] += np.minimum(clock, hours["restart"])
            waiting = waiting[clock < hours["restart"]]
    return np.stack([worked, saved, lost, restarting])


# (accelerators, interruptions per accelerator-hour, interval min, save s, restart min): rare failures; Llama 3's time
# between them; saving as long as working; an interval longer than that time; restarts that often fail.
REGIMES = [
    (16, 1 / (16 * 24), 117, 300, 10),
    (64, 1 / (64 * 3.09), 30, 40, 10),
    (32, 1 / (32 * 2.0), 10, 600, 5),
    (16, 1 / (16 * 0.5), 90, 60, 3),
    (16, 1 / (16 * 0.25), 9.1, 300, 20),
]


@pytest.mark.parametrize("regime", REGIMES)
def test_shares_of_a_simulation_of_events(regime):
    time = simulate(np.random.default_rng(0), *regime, segments=20_000)
    total = time.sum(axis=0)
    for found, part in zip(shares(*regime), time, strict=True):
        estimate = part.sum() / total.sum()
        # Standard error of a ratio of means; a right formula is within 4 of them in all but 1 of 16,000 comparisons.
        error = np.std(part - estimate * total, ddof=1) / np.sqrt(len(total)) / total.mean()
        assert float(found) == pytest.approx(estimate, abs=4 * error + 1e-12)


def test_a_wrong_formula_would_be_seen():
    """First order, as Young gives it, misses the simulation by more than its error where failures are frequent."""
    count, rate, interval, saving, restart = regime = REGIMES[3]
    time = simulate(np.random.default_rng(0), *regime, segments=20_000)
    failing = count * rate
    first_order = 1 - saving / 60 / interval - failing * (interval / 120 + restart / 60)
    assert abs(first_order - time[0].sum() / time.sum()) > 0.05


# Daly (2006), captions of figures 3 to 5: mean time between failures, saving 5 min, and the optimum of his series.
@pytest.mark.parametrize(("hours", "minutes", "digit"), [(24, 117, 0), (6, 57, 0), (0.25, 9.1, 1)])
def test_best_interval_of_daly(hours, minutes, digit):
    mean, saving = 60 * hours, 5.0
    ratio = np.sqrt(saving / (2 * mean))
    series = np.sqrt(2 * saving * mean) * (1 + ratio / 3 + ratio**2 / 9) - saving
    assert round(series, digit) == minutes
    # The first term that the series leaves out is a thirtieth of ratio cubed.
    assert float(best(1, 1 / hours, 60 * saving)) == pytest.approx(series, rel=ratio**3 / 20)


@given(st.floats(1e-9, 30))
def test_best_interval_is_lambert_w(saving_over_failure):
    """Exact for saving times from far below to far above the time between failures (here one hour)."""
    exact = 1 + special.lambertw(-np.exp(-1 - saving_over_failure)).real
    # SciPy's own value loses digits at the branch point, where 1 + W is the difference of nearly equal numbers.
    assert float(best(1, 1.0, 3600 * saving_over_failure)) / 60 == pytest.approx(exact, rel=1e-6)


def test_best_interval_is_young_for_short_saving():
    # The next term of Daly's series is a third of sqrt(save / 2 m), here 1e-4.
    assert float(best(1, 0.1, 1e-7 * 36_000)) == pytest.approx(60 * np.sqrt(2 * 1e-6 * 10), rel=1e-3)


@pytest.mark.parametrize("regime", REGIMES)
def test_best_interval_gives_most_goodput(regime):
    count, rate, _, saving, restart = regime
    found = optimize.minimize_scalar(
        lambda log: -float(shares(count, rate, np.exp(log), saving, restart)[0]), bounds=(-3, 7), method="bounded",
        options={"xatol": 1e-9},
    )  # fmt: skip
    # At a maximum a goodput known to 1e-16 fixes its place to about 1e-8.
    assert float(best(count, rate, saving)) == pytest.approx(np.exp(found.x), rel=1e-5)


@given(
    st.floats(1, 1e5), st.floats(1e-7, 1e-2), st.floats(0.1, 1e3), st.floats(0.01, 3e3), st.floats(0, 1e2),
    st.floats(0, 0.9),
)  # fmt: skip
def test_shares_add_up_to_all_time(count, rate, interval, saving, restart, other):
    found = shares(count, rate, interval, saving, restart, other)
    assert all(0 <= share <= 1 for share in found)
    assert sum(found) + other == pytest.approx(1, abs=1e-12)


def test_goodput_never_reaches_zero():
    assert float(shares(1e6, 1.0, 1e4, 1e4, 1e4)[0]) == failures.LEAST_GOODPUT


def test_goodput_is_first_order_where_failures_are_rare():
    count, rate, interval, saving, restart = 8, 1e-8, 30.0, 40.0, 10.0
    overhead = saving / 60 / (interval + saving / 60)
    lost = count * rate * ((interval + saving / 60) / 120 + restart / 60)
    # The second order is the square of 1e-7.
    assert 1 - float(shares(count, rate, interval, saving, restart)[0]) == pytest.approx(
        overhead + (1 - overhead) * lost, abs=1e-12
    )


@pytest.mark.parametrize("interval", [30.0, None])
def test_past_some_count_more_accelerators_take_longer(interval):
    """Time is proportional to 1 / (n g(n)): its minimum lies inside, and with the best interval at a larger count."""
    counts = np.geomspace(1e3, 1e7, 400)
    rate, saving, restart = 2e-5, 40.0, 10.0
    intervals = best(counts, rate, saving) if interval is None else interval
    with np.errstate(divide="ignore"):
        time = 1 / (counts * shares(counts, rate, intervals, saving, restart)[0])
    fastest = int(time.argmin())
    assert 0 < fastest < len(counts) - 1
    assert np.all(np.diff(time[: fastest + 1]) < 0)
    assert np.all(np.diff(time[fastest:][np.isfinite(time[fastest:])]) > 0)
    if interval is not None:
        # d/dn of n g(n) = 0 with x = rate n (tau + delta): 2 - rate n R = x / (1 - exp(-x)).
        def slope(n):
            x = rate * n * (interval / 60 + saving / 3600)
            return 2 - rate * n * restart / 60 + x / np.expm1(-x)

        assert counts[fastest] == pytest.approx(optimize.brentq(slope, 1e3, 1e7), rel=0.03)  # the spacing of counts
