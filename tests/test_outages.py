"""Several sites that fail: closed forms, limits, units, and a simulation of single outages."""

import inspect
import itertools

import jax
import numpy as np
import pytest

from gpustack_mc import chain, constants, model, notation, outages
from gpustack_mc.quantities import BY_NAME, outputs_of

FUNCTIONS = {
    name: f
    for name, f in inspect.getmembers(outages, inspect.isfunction)
    if f.__module__ == outages.__name__ and not name.startswith("_")
}
COUNT = np.array([512.0, 256.0, 128.0])
AVAILABILITY = np.array([0.95, 0.8, 0.9])
OUTAGE = np.array([6.0, 2.0, 24.0])


def work(mode, rejoin=0.0, count=COUNT, availability=AVAILABILITY, outage=OUTAGE):
    with jax.enable_x64(True):
        return float(outages.site_work_share(count, availability, outage, rejoin, mode=mode))


def test_every_output_has_its_equation():
    parts = set(outputs_of(["distributed", "links"])) - set(outputs_of([]))
    assert set(FUNCTIONS) == parts
    for name, function in FUNCTIONS.items():
        assert set(inspect.signature(function).parameters) - {"mode"} <= set(BY_NAME)
        notation.mathml(chain.steps()[name].latex)


# ---- closed forms ----


def test_independent_sites_without_rejoining():
    assert work("lockstep") == pytest.approx(np.prod(AVAILABILITY), rel=1e-12)
    mean = COUNT @ AVAILABILITY / COUNT.sum()
    assert work("survivors") == pytest.approx(mean, rel=1e-12)
    assert work("local_steps") == pytest.approx(mean, rel=1e-12)


def test_the_shares_of_all_held_time_add_up():
    waiting = float(outages.site_waiting_share(COUNT, AVAILABILITY, mode="lockstep"))
    down = float(outages.site_down_share(COUNT, AVAILABILITY))
    # float32 outside of the propagation.
    assert work("lockstep") + waiting + down == pytest.approx(1, abs=1e-6)
    assert float(outages.site_waiting_share(COUNT, AVAILABILITY, mode="survivors")) == 0


@pytest.mark.parametrize("mode", outages.MODES)
def test_sites_that_never_fail_lose_nothing(mode):
    assert work(mode, 30.0, availability=np.ones(3)) == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("mode", outages.MODES)
def test_one_site_is_the_same_in_every_mode(mode):
    one = {"count": COUNT[:1], "availability": AVAILABILITY[:1], "outage": OUTAGE[:1]}
    failing = (1 - 0.95) / (0.95 * 6)
    assert work(mode, 30.0, **one) == pytest.approx(0.95 * np.exp(-failing * 0.5), rel=1e-12)


def test_survivors_are_the_sum_over_all_states():
    """The product form against its definition: a pause of R at the start of each stay in each of the 2^3 states."""
    failing, returning, rejoin = (1 - AVAILABILITY) / (AVAILABILITY * OUTAGE), 1 / OUTAGE, 0.7
    total = 0.0
    for state in itertools.product([0, 1], repeat=3):
        up = np.array(state)
        chance = np.prod(np.where(up, AVAILABILITY, 1 - AVAILABILITY))
        leaving = np.where(up, failing, returning).sum()
        total += chance * (COUNT @ up) / COUNT.sum() * np.exp(-leaving * rejoin)
    assert work("survivors", 60 * rejoin) == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("rejoin", [0.0, 5.0, 60.0])
def test_local_work_is_most_and_lockstep_least(rejoin):
    lockstep, survivors, local = (work(mode, rejoin) for mode in outages.MODES)
    assert lockstep < survivors <= local


# ---- simulation ----


def simulated(mode, rejoin_hours, seed, horizon=60_000.0):
    """Share of held time that single outages leave, over a horizon in hours; sites start up."""
    rng = np.random.default_rng(seed)
    up_means = OUTAGE * AVAILABILITY / (1 - AVAILABILITY)
    changes, ups = [], []
    for up_mean, down_mean in zip(up_means, OUTAGE, strict=True):
        cycles = int(1.3 * horizon / (up_mean + down_mean)) + 50
        lengths = np.stack([rng.exponential(up_mean, cycles), rng.exponential(down_mean, cycles)], axis=1).ravel()
        times = np.concatenate([[0.0], np.cumsum(lengths)])
        assert times[-1] > horizon
        changes.append(times[times < horizon])
        ups.append(times)
    if mode == "local_steps":
        done = 0.0
        for share, times in zip(COUNT / COUNT.sum(), ups, strict=True):
            start, end = times[0:-1:2], np.minimum(times[1::2], horizon)
            done += share * np.maximum(end - start - rejoin_hours, 0)[start < horizon].sum()
        return done / horizon
    moments = np.unique(np.concatenate([*changes, [horizon]]))
    middle = (moments[1:] + moments[:-1]) / 2
    # An even number of changes so far means up.
    state = np.stack([np.searchsorted(times, middle) % 2 for times in ups])
    worked = np.maximum(np.diff(moments) - rejoin_hours, 0)
    speed = state.all(axis=0) if mode == "lockstep" else COUNT @ state / COUNT.sum()
    return float((speed * worked).sum() / horizon)


@pytest.mark.parametrize("mode", outages.MODES)
@pytest.mark.parametrize("rejoin_minutes", [0.0, 20.0])
def test_single_outages_lead_to_the_shares(mode, rejoin_minutes):
    found = np.array([simulated(mode, rejoin_minutes / 60, seed) for seed in range(24)])
    error = found.std(ddof=1) / np.sqrt(len(found))
    # The error is small enough for a wrong formula to show: 20 minutes cost several per cent.
    assert error < 2e-3
    # Four standard errors of 24 repetitions; the start with all sites up is gone after some of 60,000 hours.
    assert work(mode, rejoin_minutes) == pytest.approx(found.mean(), abs=4 * error + 2e-4)


# ---- power and exchanges ----


def test_idle_accelerators_draw_idle_power():
    # A quarter of the held time idle, half of it waiting and half down.
    assert outages.held_power_fraction(0.8, 0.16, 0.125, 0.125) == pytest.approx(0.75 * 0.8 + 0.25 * 0.16)


def test_an_exchange_takes_bytes_over_speed():
    link = np.array([100.0, 10.0, 400.0])
    # 7e9 parameters of 2 bytes, 2 x 2/3 of them over the slowest link of 1.25e9 bytes/s.
    assert float(outages.exchange_time(7e9, 2.0, link)) == pytest.approx(7e9 * 2 * 4 / 3 / 1.25e9, rel=1e-6)


def test_exchanges_every_step_and_every_hundred():
    # A step of 10 s: 6 x 1e9 x 1e6 FLOP on 1 accelerator of 6e14 FLOP/s at full use.
    common = {"global_batch_tokens": 1e6, "active_params": 1e9, "context_flop_factor": 1.0,
              "accelerator_count": 1.0, "peak_flop_per_s": 6e14, "mfu": 1.0}  # fmt: skip
    assert outages.exchange_share(5.0, 1.0, **common) == pytest.approx(5 / 15)
    assert outages.exchange_share(5.0, 100.0, **common) == pytest.approx(5 / 1005)


def test_the_constants_are_those_of_the_units():
    assert constants.BITS_PER_GIGABIT / constants.BITS_PER_BYTE == 1.25e8


def test_exchanges_name_what_they_need():
    site = {"site_count": 8.0, "availability": 0.99, "mean_outage": 2.0, "link_speed": 10.0}
    given = {"rejoin_time": 5.0, "idle_power_fraction": 0.1, "extra_tokens": 0.0, "gpu_power_fraction": 0.7}
    with pytest.raises(TypeError, match="exchanges need params, averaging_steps"):
        model.run_on_sites("run", [{}], [site, site], "local_steps", **given, params=7e9)
