"""Quantile functions against SciPy, two-quantile statements against their own quantiles, choice of populations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import ndtri
from scipy import stats

from gpustack_mc import priors
from gpustack_mc.priors import Facts, Marginal, StatementError, from_quantiles, kernel, quantile, quantiles, select
from gpustack_mc.quantities import BY_NAME

P = np.array([1e-6, 0.01, 0.05, 0.3, 0.5, 0.8, 0.95, 0.999, 1 - 1e-6])
ORACLES = {
    "normal": ({"mean": 3.0, "sd": 2.0}, stats.norm(3, 2)),
    "truncated_normal": ({"mean": 0.3, "sd": 0.4, "low": 0.1, "high": 0.9},
                         stats.truncnorm((0.1 - 0.3) / 0.4, (0.9 - 0.3) / 0.4, 0.3, 0.4)),
    "lognormal": ({"mu": 1.0, "sigma": 0.5, "shift": 1.0}, stats.lognorm(0.5, 1, np.e)),
    "uniform": ({"low": 2.0, "high": 5.0}, stats.uniform(2, 3)),
    "log_uniform": ({"low": 2.0, "high": 50.0}, stats.loguniform(2, 50)),
    "triangular": ({"low": 1.0, "mode": 2.0, "high": 6.0}, stats.triang(0.2, 1, 5)),
    "pert": ({"low": 1.0, "mode": 2.0, "high": 6.0}, stats.beta(1.8, 4.2, 1, 5)),
    "beta": ({"a": 2.0, "b": 5.0}, stats.beta(2, 5)),
    "gamma": ({"shape": 3.0, "scale": 2.0}, stats.gamma(3, scale=2)),
    "student_t": ({"df": 4.0, "loc": 1.0, "scale": 0.5}, stats.t(4, 1, 0.5)),
}  # fmt: skip
# Linear interpolation on a grid of z with step h errs by h^2/8 times the second derivative: 5e-6 in these units;
# closed forms agree to rounding.
TOLERANCE = {"pert": 2e-5, "beta": 2e-5, "gamma": 2e-5, "student_t": 1e-4}


@pytest.mark.parametrize("family", ORACLES)
def test_quantiles_agree_with_scipy(family):
    parameters, oracle = ORACLES[family]
    got = quantiles(Marginal(family, parameters), P)
    np.testing.assert_allclose(got, oracle.ppf(P), rtol=TOLERANCE.get(family, 1e-9), atol=1e-9)


def test_logit_normal_is_the_logistic_of_a_normal():
    got = quantiles(Marginal("logit_normal", {"mu": -1.0, "sigma": 0.7, "low": 0.2, "high": 0.9}), P)
    np.testing.assert_allclose((got - 0.2) / 0.7, 1 / (1 + np.exp(1 - 0.7 * stats.norm.ppf(P))), rtol=1e-9)


def test_zero_inflated_lognormal():
    got = quantiles(Marginal("zero_inflated_lognormal", {"zero": 0.25, "mu": 0.0, "sigma": 1.0}), P)
    expected = np.where(P < 0.25, 0, stats.lognorm(1).ppf(np.clip((P - 0.25) / 0.75, 1e-300, 1)))
    np.testing.assert_allclose(got, expected, rtol=1e-9)


@pytest.mark.parametrize("family", [*ORACLES, "choice", "sample", "fixed", "zero_inflated_lognormal", "logit_normal"])
def test_numpy_and_jax_agree(family):
    more = {
        "choice": {"values": [3.0, 1.0, 2.0], "weights": [1.0, 2.0, 1.0]}, "sample": {"values": [5.0, 1.0, 9.0]},
        "fixed": {"value": 4.0}, "zero_inflated_lognormal": {"zero": 0.25, "mu": 0.0, "sigma": 1.0},
        "logit_normal": {"mu": 0.3, "sigma": 0.7},
    }  # fmt: skip
    marginal = Marginal(family, more[family] if family in more else ORACLES[family][0])
    form, arrays = kernel(marginal)
    with jax.enable_x64(True):
        u = jnp.asarray(P)
        got = np.asarray(quantile(form, [jnp.asarray(a) for a in arrays], u, ndtri(u), jnp, ndtri))
    # Two implementations of the normal quantile differ by a few units in the last place, which the tails magnify.
    np.testing.assert_allclose(got, quantiles(marginal, P), rtol=1e-9)


def test_choice_has_its_weights():
    marginal = Marginal("choice", {"values": [3.0, 1.0, 2.0], "weights": [1.0, 2.0, 1.0]})
    n = 4000
    values, counts = np.unique(quantiles(marginal, (np.arange(n) + 0.5) / n), return_counts=True)
    assert list(values) == [1, 2, 3]
    assert list(counts) == [2000, 1000, 1000]


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("mfu", 0.32, 0.45), ("pue", 1.05, 1.4), ("capex", 30e3, 60e3), ("programme_overhead", 2, 9)],
)
@pytest.mark.parametrize("mass", [0.5, 0.9, 0.99])
def test_an_interval_has_its_ends_as_quantiles(name, low, high, mass):
    tail = (1 - mass) / 2
    marginal = from_quantiles(BY_NAME[name], (tail, low), (1 - tail, high))
    np.testing.assert_allclose(quantiles(marginal, [tail, 1 - tail]), [low, high], rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "low", "high", "message"),
    [("mfu", 0.0, 0.4, "never reaches it"), ("mfu", 0.3, 1.0, "never reaches it"),
     ("pue", 1.0, 1.3, "never reaches it"),
     ("capex", 5.0, 5.0, "must be below")],
)  # fmt: skip
def test_impossible_intervals(name, low, high, message):
    with pytest.raises(StatementError, match=message):
        from_quantiles(BY_NAME[name], (0.05, low), (0.95, high))


FIT = {
    "quantity": "rental_price",
    "ladder": ["region", "year", "kind"],
    "populations": [
        {"where": where, "family": "fixed", "parameters": {"value": float(i)}}
        for i, where in enumerate([
            {}, {"region": "US"}, {"region": "US-CA"}, {"region": "US", "kind": "cloud"}, {"year": "2022"},
            {"year": "2024"}, {"region": "US-CA", "year": "2023"},
        ])
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("ladders", "year", "chosen", "missed"),
    [
        ({}, None, 5, ()),  # the newest year
        ({}, 2023, 4, ()),  # the newest that is not after the run
        ({}, 2020, 4, ()),  # before all data: the nearest
        ({"region": ("US-CA", "US")}, 2026, 6, ()),  # the region comes before the year
        ({"region": ("US-NV", "US")}, None, 1, ("region=US-NV",)),
        ({"region": ("US-NV", "US"), "kind": ("cloud",)}, None, 3, ("region=US-NV",)),
        ({"region": ("FR",)}, 2024, 5, ("region=FR",)),
    ],
)
def test_selection(ladders, year, chosen, missed):
    selection = select(FIT, Facts(ladders, {}, year))
    assert selection.marginal.parameters["value"] == chosen
    assert selection.missed == missed


def test_no_population():
    fit = {"quantity": "grid_intensity", "ladder": ["basis"], "populations": [
        {"where": {"basis": "direct"}, "family": "fixed", "parameters": {"value": 1.0}}]}  # fmt: skip
    with pytest.raises(StatementError, match="no data for basis=lifecycle"):
        select(fit, Facts({"basis": ("lifecycle",)}, {}))


def test_regression_predicts_mean_and_spread():
    population = {"family": "lognormal", "parameters": {"regression": {
        "terms": ["intercept", "moe", "generation=hopper"], "coefficients": [1.0, -0.5, 0.25],
        "covariance": [[0.04, 0.0, 0.0], [0.0, 0.01, 0.0], [0.0, 0.0, 0.09]],
        "residual_sd": 0.3, "residual_df": 40.0}}}  # fmt: skip
    marginal = priors.predict(population, {"moe": 1.0, "generation=ampere": 1.0})
    assert marginal.parameters["mu"] == pytest.approx(0.5)
    assert marginal.parameters["sigma"] == pytest.approx(np.sqrt(0.05 + 0.09))
    with pytest.raises(StatementError, match=r"needs moe, which is not known here\. State a value"):
        priors.predict(population, {})
