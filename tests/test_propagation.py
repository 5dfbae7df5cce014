"""Propagation against closed forms, and the promises about seeds."""

import math

import jax
import numpy as np
import pytest
from scipy import stats

from gpustack_mc import compilation, sampling
from gpustack_mc.design import make_design
from gpustack_mc.errors import InputError
from gpustack_mc.propagation import simulate
from gpustack_mc.quantities import BY_NAME, INPUTS, OUTPUTS
from gpustack_mc.scenario import load_scenario
from gpustack_mc.shapes import Shape, blocks_of
from gpustack_mc.tallies import PROBABILITIES

# Every input fixed: tests then free the ones they are about.
FIXED = {
    "mfu": 0.4, "goodput": 0.9, "gpu_power_fraction": 0.85, "host_power": 400, "pue": 1.2, "electricity_price": 0.08,
    "grid_intensity": 380, "embodied_carbon": 900, "water_onsite": 0.3, "water_offsite": 3.0, "capex": 40000,
    "residual_share": 0.2, "lifetime": 5, "fleet_utilization": 0.8, "cost_of_capital": 0.09, "operations_rate": 0.05,
    "rental_price": 2.5, "serving_throughput": 1000, "programme_overhead": 3, "interruption_rate": 2e-5,
}  # fmt: skip
assert set(FIXED) == {name for name in INPUTS if not BY_NAME[name].part}
LOGNORMAL_PRICE = "rental_price={dist: lognormal, median: 2.5, sigma: 0.4}"
LOG_UNIFORM_MFU = "mfu={dist: log_uniform, low: 0.2, high: 0.5}"


@pytest.fixture
def problem(scenario_file):
    def built(*overrides: str, more: str = ""):
        inputs = "".join(f"  {name}: {value}\n" for name, value in FIXED.items())
        text = (
            "schema_version: 1\nname: Test\nworkload: {params: 70e9, tokens: 15e12}\n"
            f"cluster: {{accelerator: H100-SXM-80GB, count: 8192}}\ninputs:\n{inputs}{more}"
        )
        return load_scenario(scenario_file(text), overrides)

    return built


def output(simulation, name):
    return simulation.outputs[OUTPUTS.index(name)]


def statistic(simulation, name, what):
    value = getattr(simulation.output_statistics, what)
    return value[..., OUTPUTS.index(name)]


def test_a_lognormal_price_gives_a_lognormal_cost(problem):
    found = simulate(problem(LOGNORMAL_PRICE), make_design(2**14))
    hours = output(found, "accelerator_hours")[0]
    oracle = stats.lognorm(0.4, scale=2.5 * hours)
    # Errors of a scrambled net are far below those of plain Monte Carlo (1% at the 5% quantile here).
    np.testing.assert_allclose(statistic(found, "cost_rented_usd", "quantiles"), oracle.ppf(PROBABILITIES), rtol=2e-3)
    assert statistic(found, "cost_rented_usd", "mean") == pytest.approx(oracle.mean(), rel=1e-3)
    assert statistic(found, "cost_rented_usd", "sd") == pytest.approx(oracle.std(), rel=5e-3)


@pytest.mark.parametrize(("method", "tolerance"), [("sobol", 1e-3), ("lhs", 1e-3), ("random", 2e-2)])
def test_all_designs_find_the_mean(problem, method, tolerance):
    found = simulate(problem(LOGNORMAL_PRICE), make_design(2**14, method), with_sensitivity=False)
    # Plain Monte Carlo has a relative error of 0.4/sqrt(16384) = 0.3%; the tolerance is six of these.
    expected = output(found, "accelerator_hours")[0] * 2.5 * math.exp(0.08)
    assert statistic(found, "cost_rented_usd", "mean") == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize("method", ["sobol", "lhs", "random"])
def test_the_stated_monte_carlo_error_is_honest(problem, method):
    """Over seeds, the mean misses the truth by about its stated error."""
    ratios = []
    for seed in range(20):
        found = simulate(problem(LOGNORMAL_PRICE), make_design(2**10, method, seed), with_sensitivity=False)
        truth = output(found, "accelerator_hours")[0] * 2.5 * math.exp(0.08)
        miss = statistic(found, "cost_rented_usd", "mean") - truth
        ratios.append(miss / statistic(found, "cost_rented_usd", "mean_error"))
    # t-distributed with 15 degrees of freedom: their root mean square is 1.07, with a relative error of 16% from 20.
    assert 0.6 < np.sqrt(np.mean(np.square(ratios))) < 1.7


def test_indices_of_a_product_of_lognormals(problem):
    """Rented cost is price over MFU and goodput; on the log scale its indices are shares of the log variances."""
    found = simulate(problem(LOGNORMAL_PRICE, LOG_UNIFORM_MFU), make_design(2**14)).sensitivity
    column = OUTPUTS.index("cost_rented_usd")
    variances = np.array([math.log(0.5 / 0.2) ** 2 / 12, 0.4**2])
    shares = variances / variances.sum()
    assert found.blocks == ("mfu", "rental_price")
    np.testing.assert_allclose(found.log.first[:, column], shares, atol=2e-3)
    np.testing.assert_allclose(found.log.total[:, column], shares, atol=2e-3)
    # On the raw scale: S_i = (E[x_i^2]/E[x_i]^2 - 1) / (prod - 1), with x = 1/mfu and the price.
    reciprocal = [(5**k - 2**k) / (k * math.log(2.5)) for k in (1, 2)]
    squares = np.array([reciprocal[1] / reciprocal[0] ** 2, math.exp(0.16)])
    first = (squares - 1) / (squares.prod() - 1)
    np.testing.assert_allclose(found.raw.first[:, column], first, atol=5e-3)
    np.testing.assert_allclose(found.raw.total[:, column], 1 - first[::-1], atol=5e-3)


def test_outputs_that_do_not_vary_are_named(problem):
    found = simulate(problem(LOGNORMAL_PRICE), make_design(2**10)).sensitivity
    status = dict(zip(OUTPUTS, found.raw.status, strict=True))
    assert status["cost_rented_usd"] == "ok"
    assert status["cost_owned_usd"] == "constant"
    assert np.isnan(found.raw.first[0, OUTPUTS.index("cost_owned_usd")])


def test_outputs_whose_log_is_undefined_are_named(problem):
    found = simulate(problem("water_onsite={choice: [0, 0.5]}"), make_design(2**10)).sensitivity
    column = OUTPUTS.index("water_onsite_m3")
    assert found.raw.status[column] == "ok"
    assert found.log.status[column] == "non-finite"


def test_all_inputs_fixed(problem):
    found = simulate(problem(), make_design(2**10))
    assert found.sensitivity is None
    assert np.ptp(found.outputs, axis=1).max() == 0
    assert found.output_statistics.sd.max() == 0


# ---- seeds ----


def draws(problem, *overrides, seed=0, samples=2**10, **options):
    return simulate(problem(*overrides), make_design(samples, seed=seed), with_sensitivity=False, **options)


def test_same_seed_same_bytes_other_seed_other_draws(problem):
    first, again, other = (draws(problem, LOGNORMAL_PRICE, seed=seed) for seed in (0, 0, 1))
    assert first.outputs.tobytes() == again.outputs.tobytes()
    assert first.inputs.tobytes() != other.inputs.tobytes()


def test_adding_an_input_changes_no_other_draw(problem):
    alone = draws(problem, LOGNORMAL_PRICE)
    beside = draws(problem, LOGNORMAL_PRICE, LOG_UNIFORM_MFU, "pue={low: 1.1, high: 1.3}")
    row = beside.varying.index("rental_price")
    assert alone.inputs[0].tobytes() == beside.inputs[row].tobytes()


def test_sensitivity_does_not_change_the_draws(problem):
    with_indices = simulate(problem(LOGNORMAL_PRICE), make_design(2**10))
    assert with_indices.outputs.tobytes() == draws(problem, LOGNORMAL_PRICE).outputs.tobytes()


def test_correlated_inputs_have_their_rank_correlation(problem):
    found = simulate(
        problem(LOGNORMAL_PRICE, LOG_UNIFORM_MFU, more="correlations: [{between: [mfu, rental_price], rank: -0.6}]\n"),
        make_design(2**14),
    )
    assert stats.spearmanr(*found.inputs).statistic == pytest.approx(-0.6, abs=0.01)
    # Their margins are what they were.
    price = found.inputs[found.varying.index("rental_price")]
    np.testing.assert_allclose(np.median(price), 2.5, rtol=5e-3)
    assert found.sensitivity.blocks == ("mfu+rental_price",)
    # One block that holds everything explains everything.
    assert found.sensitivity.raw.first[0, OUTPUTS.index("cost_rented_usd")] == pytest.approx(1, abs=0.02)


def test_blocks_hold_what_correlations_connect():
    """c-a and a-e meet in one block, b-d is another, f is alone."""
    # Rows of the matrix are c, b, a, d, e.
    shape = Shape("", (), (), varying=tuple("abcdef"), phases=(), correlated=(2, 1, 0, 3, 4))
    matrix = np.eye(5)
    for i, j in ((0, 2), (2, 4), (1, 3)):
        matrix[i, j] = matrix[j, i] = 0.4
    assert blocks_of(shape, matrix) == [("a", "c", "e"), ("b", "d"), ("f",)]
    assert blocks_of(shape._replace(correlated=()), np.zeros((0, 0))) == [(k,) for k in "abcdef"]


# ---- large designs ----


def test_streamed_statistics_equal_exact_ones(problem, monkeypatch):
    exact = draws(problem, LOGNORMAL_PRICE, LOG_UNIFORM_MFU, samples=2**14)
    monkeypatch.setattr(sampling, "KEPT_DRAWS", 2**12)
    streamed = draws(problem, LOGNORMAL_PRICE, LOG_UNIFORM_MFU, samples=2**14)
    assert streamed.kept == 2**12
    for name in ("mean", "sd"):
        np.testing.assert_allclose(
            getattr(streamed.output_statistics, name), getattr(exact.output_statistics, name), rtol=1e-9, atol=1e-9
        )
    # A bin holds at most a few hundred of 16,384 points and is interpolated linearly.
    np.testing.assert_allclose(streamed.output_statistics.quantiles, exact.output_statistics.quantiles, rtol=2e-3)


def test_kept_draws_are_the_first_of_each_replicate(problem, monkeypatch):
    whole = draws(problem, LOGNORMAL_PRICE, samples=2**12)
    monkeypatch.setattr(sampling, "KEPT_DRAWS", 2**10)
    kept = draws(problem, LOGNORMAL_PRICE, samples=2**12)
    parts = np.split(whole.inputs[0], 16)
    assert kept.inputs[0].tobytes() == np.concatenate([part[:64] for part in parts]).tobytes()


def test_one_shape_compiles_once(problem):
    simulate(problem(LOGNORMAL_PRICE, "tdp=701"), make_design(2**10))
    before = compilation.compilations
    for tdp in (702, 703):
        simulate(
            problem(f"rental_price={{dist: lognormal, median: {tdp / 200}, sigma: 0.3}}", f"tdp={tdp}"),
            make_design(2**10),
        )
    assert compilation.compilations == before


def test_progress_ends_at_one(problem):
    shares = []
    draws(problem, LOGNORMAL_PRICE, progress=shares.append)
    assert shares[-1] == 1
    assert shares == sorted(shares)


def test_non_finite_outputs_are_refused(problem):
    with pytest.raises(InputError, match="is not finite for"):
        simulate(problem("capex={choice: [1, 1e7]}", "workload.tokens=1e19", "mfu=1e-300"), make_design(64))


def test_the_global_precision_is_untouched(problem):
    draws(problem, LOGNORMAL_PRICE)
    assert not jax.config.jax_enable_x64
