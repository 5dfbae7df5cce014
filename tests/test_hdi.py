"""Highest-density intervals against ArviZ, closed forms, and what a command says of them."""

import json
import math

import arviz as az
import numpy as np
import pytest
import xarray as xr
from scipy import special, stats

import gpustack_mc as mc
from gpustack_mc import figures, hdi, tallies
from gpustack_mc.cli import main

# Lower and upper end of 50% and 90% of distributions whose narrowest interval is known: a decreasing density begins at
# its lower end, a symmetric one has equal tails.
CLOSED = {
    "exponential": (stats.expon.ppf, [0, math.log(2), 0, math.log(10)]),
    "normal": (stats.norm.ppf, [*(stats.norm.ppf(p) for p in (0.25, 0.75, 0.05, 0.95))]),
}


@pytest.mark.parametrize("name", ["lognormal", "gamma", "normal"])
def test_draws_have_the_interval_that_arviz_gives(name):
    draws = getattr(np.random.default_rng(1), name)(*((2.0,) if name == "gamma" else ()), size=(3, 5000))
    found = hdi.of_sorted(np.sort(draws, axis=1))
    for row, of_row in zip(draws, found.T, strict=True):
        for mass, ends in zip(hdi.MASSES, of_row.reshape(2, 2), strict=True):
            np.testing.assert_array_equal(ends, az.hdi(row, prob=mass))


@pytest.mark.parametrize("name", CLOSED)
def test_quantile_functions_have_the_known_interval(name):
    quantile, known = CLOSED[name]
    # The width is flat around its minimum: ends are known to the square root of 16 digits.
    np.testing.assert_allclose(hdi.of_quantile_function(quantile), known, atol=1e-5)


def test_the_interval_of_a_uniform_distribution_is_the_central_one():
    np.testing.assert_allclose(hdi.of_quantile_function(lambda u: 3 * u), [0.75, 2.25, 0.15, 2.85], atol=1e-3)


@pytest.mark.parametrize("name", CLOSED)
def test_counters_have_the_known_interval(name):
    quantile, known = CLOSED[name]
    draws = quantile((np.arange(2**20) + 0.5) / 2**20)
    grid = tallies.grid_around(draws[None, ::8])
    parts = []
    for own in draws.reshape(-1, 4).T:
        place = np.sign(own) * np.log1p(np.abs(own) / grid.scale[0])
        bins = np.clip((place - grid.low[0]) * grid.per_unit[0], 0, tallies.BINS - 1).astype(np.int32)
        deviation = (own - grid.centre[0]) / grid.spread[0]
        parts.append(tallies.Tally(1, 1))
        parts[-1].add(np.array([[deviation.sum()]]), np.array([[(deviation**2).sum()]]), bins[None])
    found = tallies.from_tallies(parts, grid, np.zeros((5, 0)), np.zeros((4, 0)))
    # A count is whole: within a bin the density is known to 1 in 30, which moves the minimum by so much of a spread.
    np.testing.assert_allclose(found.densest[:, 0], known, atol=0.03)
    # The probability between the ends is what was asked for, to a fraction of a bin's.
    cdf = stats.expon.cdf if name == "exponential" else special.ndtr
    for mass, (low, high) in zip(hdi.MASSES, found.densest[:, 0].reshape(2, 2), strict=True):
        assert cdf(high) - cdf(low) == pytest.approx(mass, abs=1e-4)


def test_two_peaks_lose_the_gap_between_them():
    edges = np.arange(7.0)
    # 45% in the first bin, 55% in the last two: the narrowest half lies in these, although equal tails span the gap.
    low, high = hdi.of_counts(np.array([45, 0, 0, 0, 30, 25]), edges)[:2]
    assert (low, high) == pytest.approx((4.0, 5.0 + 20 / 25))


def test_the_monte_carlo_error_is_that_of_many_repetitions():
    rng = np.random.default_rng(3)
    draws = np.sort(rng.standard_normal((300, 16, 256)), axis=2)
    pooled = hdi.of_sorted(np.sort(draws.reshape(300, -1), axis=1))
    stated = np.array([hdi.error(hdi.of_sorted(one).T) for one in draws])
    ratio = np.sqrt((stated**2).mean(axis=0)) / pooled.std(axis=1)
    # The cube root is the rate in the limit; with square roots the ratio would be 16^(1/6) = 1.6 times lower.
    assert np.all((ratio > 0.8) & (ratio < 1.35)), ratio


@pytest.fixture
def run(capsys):
    def call(*options):
        with pytest.raises(SystemExit):
            main(["run", "llama-3-70b", "--no-files", "--samples", "4096", *options])
        return capsys.readouterr().out

    return call


def test_a_run_says_which_intervals_it_tells(run):
    text = run("--interval", "hdi")
    assert "50% HDI" in text and "90% HDI" in text
    # What remains is the Monte Carlo error of the indices, which is no highest-density interval.
    assert [line.strip()[:12] for line in text.splitlines() if "90% interval" in line] == ["what drives "]


def test_the_summary_holds_both_kinds_and_names_what_is_told(run):
    found = json.loads(run("--interval", "hdi", "--json"))
    plain = json.loads(run("--json"))
    assert (found["interval"], plain["interval"]) == ("hdi", "equal-tailed")
    for name, entry in found["outputs"].items():
        assert entry["equal_tailed_90"] == plain["outputs"][name]["interval_90"]
        assert "equal_tailed_90" not in plain["outputs"][name]
        (low, high), (least, most) = entry["interval_90"], entry["equal_tailed_90"]
        assert high - low <= (most - least) * (1 + 1e-12)


@pytest.fixture(scope="module")
def tree():
    return mc.simulate("llama-3-70b", samples=4096, interval="hdi")


def test_the_dataset_holds_what_arviz_finds_in_the_draws(tree):
    summary = mc.summary(tree)
    assert summary.attrs["interval"] == "hdi"
    for group in ("prior", "prior_predictive"):
        for name in tree[group].data_vars:
            draws = tree[group][name].values.ravel()
            for mass in hdi.MASSES:
                ends = [float(summary[name].sel(statistic=f"hdi{mass:g}_{end}")) for end in ("low", "high")]
                assert ends == list(az.hdi(draws, prob=mass)), name
                errors = [float(summary[name].sel(statistic=f"hdi{mass:g}_{end}_error")) for end in ("low", "high")]
                assert all(math.isfinite(error) for error in errors)


def test_pictures_say_which_intervals_they_show(tree):
    for draw in (figures.interval_plot, figures.input_plot):
        texts = [text.get_text() for text in draw(tree).findobj(lambda artist: hasattr(artist, "get_text"))]
        assert any("highest-density intervals (HDI)" in text for text in texts)
        assert "90% HDI" in texts and not any("equal-tailed" in text for text in texts)


def test_a_table_says_which_intervals_it_shows(tree):
    assert list(mc.table(tree).columns) == ["median", "50% HDI", "90% HDI"]


def test_a_streamed_run_agrees_with_one_that_keeps_its_draws():
    kept, streamed = (mc.simulate("llama-3-70b", samples=2**n, interval="hdi") for n in (17, 18))
    assert streamed["prior_predictive"].sizes["draw"] < streamed.attrs["samples"]
    few, many = (mc.summary(each) for each in (kept, streamed))
    far = {}
    for name in few.data_vars:
        spread = float(few[name].sel(statistic="sd"))
        for end in hdi.STATISTICS if spread > 0 else ():
            both = [float(each[name].sel(statistic=end)) for each in (few, many)]
            far[name, end] = abs(both[0] - both[1]) / spread
    # The ends of a narrowest interval move where the density is flat: a tenth of a spread is a thousandth of its width.
    assert max(far.values()) < 0.1, max(far, key=far.get)


def test_a_result_that_lacks_the_intervals_it_names_is_refused(tree, tmp_path):
    from gpustack_mc.errors import InputError
    from gpustack_mc.result import write

    lacking = tree.copy()
    keep = [str(name) for name in lacking["statistics"]["statistic"].values if "hdi" not in str(name)]
    lacking["statistics"] = xr.DataTree(lacking["statistics"].to_dataset().sel(statistic=keep))
    write(lacking, tmp_path / "result.nc")
    with pytest.raises(InputError, match="its statistics"):
        mc.open_result(tmp_path / "result.nc")
