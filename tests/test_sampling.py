"""Taking a design further, precision, and where draws are too many to keep."""

import jax
import numpy as np
import pytest

from gpustack_mc import compilation, propagation, sampling, settling, sobol, tallies
from gpustack_mc.design import cells, make_design, points
from gpustack_mc.propagation import simulate
from gpustack_mc.scenario import load_scenario

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def problem():
    return load_scenario("llama-3-70b")


def column(problem, name):
    return problem.outputs.index(name)


# ---- cells and quantiles ----


@pytest.mark.parametrize("method", ["sobol", "lhs", "random"])
@pytest.mark.parametrize(("start", "stop"), [(0, 4096), (2048, 4096), (3, 77), (512, 640), (0, 1)])
def test_cells_are_those_of_the_points(method, start, stop):
    design = make_design(4096 * 16, method, 3)
    names, dimensions = list("abc"), [0, 5, 7]
    found = cells(design, names, dimensions, 2, start, stop, 1, chunk=512)
    numbers = (found.run[:, None, :] ^ found.bases[:, :, None]).reshape(3, -1)
    assert ((numbers + 0.5) * 2.0**-32 == points(design, names, dimensions, 2, start, stop, 1)).all()


MAKERS = {
    "lognormal": lambda r, n: RNG.lognormal(size=(4, n)),
    "ties": lambda r, n: RNG.integers(0, 3, size=(4, n)).astype(float),
    "constant": lambda r, n: np.full((4, n), 3.3),
    "replicates apart": lambda r, n: RNG.normal(size=(4, n)) + 10 * (r % 2),
}


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(("length", "replicates"), [(1024, 16), (63, 16), (3, 2), (1, 5), (1, 1), (16, 1)])
def test_pooled_quantiles_are_those_of_all_draws(make, length, replicates):
    draws = [MAKERS[make](r, length) for r in range(replicates)]
    whole = np.concatenate(draws, axis=1)
    parts = [tallies.Part(part, np.sort(part, axis=1)) for part in draws]
    # Both are linear between the same two values: only rounding differs.
    found = tallies.exact(whole, parts).quantiles
    np.testing.assert_allclose(found, np.quantile(whole, tallies.PROBABILITIES, axis=1), rtol=1e-14, atol=1e-14)


def test_sums_count_from_any_centre():
    y_a, y_b, y_ab = RNG.lognormal(size=(3, 2, 500))
    centre, scale, to = np.array([2.0, 3.0]), np.array([0.5, 4.0]), np.array([1.0, 1.5])
    scaled = [y / scale[:, None] for y in (y_a, y_b, y_ab)]
    sums = (
        sobol.variance_sums(*scaled[:2], centre / scale),
        sobol.swap_sums(scaled[0], scaled[1], scaled[2][None], centre / scale),
    )
    moved = sobol.recentred(*sums, centre, scale, to)
    direct = sobol.variance_sums(y_a, y_b, to), sobol.swap_sums(y_a, y_b, y_ab[None], to)
    for one, other in zip(moved, direct, strict=True):
        for got, wanted in zip(one, other, strict=True):
            # Rounding of 500 terms.
            np.testing.assert_allclose(got, wanted, rtol=1e-12)


# ---- precision ----


def test_float32_gives_the_same_answers(problem):
    design = make_design(2**12)
    exact, single = (simulate(problem, design, precision=precision) for precision in ("float64", "float32"))
    assert (exact.precision, single.precision) == ("float64", "float32")
    # A draw in float32 is off by some 1e-6 of itself: rounding of a few dozen operations.
    np.testing.assert_allclose(single.outputs, exact.outputs, rtol=1e-5)
    for index in ("first", "total", "total_high"):
        for scale in ("raw", "log"):
            found = (getattr(getattr(s.sensitivity, scale), index) for s in (single, exact))
            np.testing.assert_allclose(*found, atol=1e-4)
    assert single.sensitivity.raw.status == exact.sensitivity.raw.status


def test_float32_that_does_not_agree_is_not_used(problem, monkeypatch):
    monkeypatch.setattr(propagation, "NEAR_SPREAD", 1e-12)
    monkeypatch.setattr(propagation, "NEAR_SIZE", 1e-12)
    design = make_design(2**10)
    found = simulate(problem, design, precision="float32")
    assert found.precision == "float64"
    assert found.outputs.tobytes() == simulate(problem, design).outputs.tobytes()


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_streamed_summaries_of_the_whole_model(problem, monkeypatch, precision):
    design = make_design(2**15)
    exact = simulate(problem, design, with_sensitivity=False)
    monkeypatch.setattr(sampling, "KEPT_DRAWS", 2**13)
    streamed = simulate(problem, design, with_sensitivity=False, precision=precision)
    for part in ("input_statistics", "output_statistics"):
        found, wanted = getattr(streamed, part), getattr(exact, part)
        # Sums over all draws; float32 is off by some 1e-6 of a draw.
        np.testing.assert_allclose(found.mean, wanted.mean, rtol=1e-6)
        np.testing.assert_allclose(found.sd, wanted.sd, rtol=1e-5, atol=1e-12)
        # Of inputs the exact quantile against that of 32,768 Sobol' points, of outputs linear in a bin: 0.5% of a
        # standard deviation is several times both.
        near = 5e-3 * wanted.sd + 1e-6 * np.abs(wanted.quantiles)
        assert (np.abs(found.quantiles - wanted.quantiles) <= near).all()


def test_bins_of_an_output_that_is_mostly_zero():
    draws = np.where(RNG.random((1, 4096)) < 0.7, 0.0, RNG.lognormal(size=(1, 4096)))
    grid = tallies.grid_around(draws)
    tally = tallies.Tally(1, 1)
    place = np.log1p(draws / grid.scale[:, None])
    tally.add(
        np.zeros((1, 1)), np.ones((1, 1)), ((place - grid.low[:, None]) * grid.per_unit[:, None]).astype(np.int32)
    )
    found = tallies.from_tallies([tally], grid, np.zeros((5, 0))).quantiles[:, 0]
    wanted = np.quantile(draws[0], tallies.PROBABILITIES)
    # A bin is 1e-3 of a logarithm wide, and thousandths of the median around zero.
    np.testing.assert_allclose(found, wanted, rtol=5e-3, atol=1e-3)


# ---- tolerance ----


def test_doubling_ends_with_what_the_last_design_gives(problem):
    found, reached = settling.simulate_until(problem, make_design(2**10), 0.05, most=2**13)
    once = simulate(problem, make_design(found.design.samples))
    assert found.design.samples > 2**10
    assert found.design == once.design
    assert found.outputs.tobytes() == once.outputs.tobytes()
    # Sums are added up in another order.
    np.testing.assert_allclose(found.sensitivity.raw.total, once.sensitivity.raw.total, rtol=1e-9, atol=1e-12)
    assert reached.samples == found.design.samples


def test_doubling_streams_when_draws_are_too_many(problem, monkeypatch):
    monkeypatch.setattr(sampling, "KEPT_DRAWS", 2**11)
    found, _ = settling.simulate_until(problem, make_design(2**10), 1e-6, most=2**13)
    once = simulate(problem, make_design(2**13))
    assert found.kept == 2**11
    np.testing.assert_allclose(found.output_statistics.mean, once.output_statistics.mean, rtol=1e-12)
    np.testing.assert_allclose(found.output_statistics.quantiles, once.output_statistics.quantiles, rtol=1e-12)


def test_what_has_settled_is_below_the_tolerance(problem):
    found, reached = settling.simulate_until(problem, make_design(2**10), 0.5, most=2**14)
    assert reached.settled
    assert reached.reached == max(error for _, error in settling.errors(found)) <= 0.5
    assert "is reached" in reached.note()


def test_a_tolerance_that_is_not_reached_is_said(problem):
    found, reached = settling.simulate_until(problem, make_design(2**10), 1e-9, most=2**11)
    assert not reached.settled
    assert found.design.samples == 2**11
    assert "is not reached" in reached.note()
    assert reached.slowest in reached.note()


@pytest.mark.parametrize("design", [make_design(2**10, "lhs"), make_design(2**10, replicates=1)])
def test_designs_that_cannot_be_taken_further(problem, design):
    with pytest.raises(ValueError, match="can be taken further"):
        settling.simulate_until(problem, design, 0.1)


# ---- compilations ----


def test_a_sweep_over_values_compiles_nothing_again():
    before = compilation.compilations
    for price in (1.5, 2.5, 3.5):
        changed = load_scenario("llama-3-70b", [f"rental_price={{low: {price}, high: {2 * price}}}"])
        simulate(changed, make_design(2**10))
    # One shape, one kernel, whatever the values.
    assert compilation.compilations <= before + 1


def test_doubling_runs_in_pieces_of_one_length(problem):
    settling.simulate_until(problem, make_design(2**10), 1e-9, most=2**11)
    before = compilation.compilations
    found, _ = settling.simulate_until(problem, make_design(2**10), 1e-9, most=2**14)
    # Sixteen times as many points in pieces as long as the first ones: nothing to compile for them.
    assert found.design.samples == 2**14
    assert compilation.compilations == before


# ---- bootstrap ----


def with_bootstrap(problem, samples, method, resamples):
    with jax.enable_x64(True):
        made = sampling.Sampler(problem, make_design(samples, method), True, resamples=resamples)
        made.extend()
        return made.indices()


def test_a_bootstrap_leaves_the_estimates_alone_and_says_how_far_plain_monte_carlo_is_off(problem):
    plain, resampled = (with_bootstrap(problem, 2**12, "random", resamples) for resamples in (0, 100))
    assert (plain.resamples, resampled.resamples) == (0, 100)
    np.testing.assert_allclose(resampled.log.total, plain.log.total, rtol=1e-12, atol=1e-14)
    widths = [found.log.total_high - found.log.total_low for found in (plain, resampled)]
    # Of independent points both intervals are right; that of 16 replicates varies by 1/sqrt(2 * 15) = 18%, and the mean
    # over a hundred indices, which share their points, by less.
    large = plain.log.total > 0.01
    assert np.mean(widths[1][large] / widths[0][large]) == pytest.approx(1.0, abs=0.2)


def test_points_count_with_poisson_numbers_in_a_resample(problem):
    with jax.enable_x64(True):
        made = sampling.Sampler(problem, make_design(2**13), True, resamples=200)
        weights = made.weights(0, 0, made.cells(0, 0, 512))
    count = np.bincount(weights.ravel(), minlength=4)[:4] / weights.size
    # Of 102,400 numbers a share is known to 0.5/sqrt(102400) = 0.0016; four of these.
    np.testing.assert_allclose(count, np.exp(-1) / np.array([1, 1, 2, 6]), atol=0.0064)
