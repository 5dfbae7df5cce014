"""Metered power: the conjugate update where there is one, importance sampling where there is none."""

import numpy as np
import pytest

from gpustack_mc import metering, priors
from gpustack_mc.priors import Marginal

TDP = 700.0
PRIORS = {
    "gpu_power_fraction": Marginal("logit_normal", {"mu": 1.7, "sigma": 0.75, "low": 0.0, "high": 1.0}),
    "host_power": Marginal("lognormal", {"mu": 6.0, "sigma": 0.22, "shift": 0.0}),
    "pue": Marginal("lognormal", {"mu": -2.2, "sigma": 0.62, "shift": 1.0}),
}
SDS = {"board": 0.05, "it": 0.03, "facility": 0.04}
ENDS = (0.05, 0.5, 0.95)


def sampled(size=2_000_000):
    generator = np.random.default_rng(0)
    return {name: priors.quantiles(marginal, generator.random(size)) for name, marginal in PRIORS.items()}


@pytest.fixture(scope="module")
def draws():
    return sampled(400_000)


def weights(draws, metered):
    expected = metering.watts(TDP, *(draws[name] for name in metering.POWER))
    gaps = [(np.log(expected[scope]) - np.log(value)) / SDS[scope] for scope, value in metered.items()]
    return np.exp(-0.5 * np.sum(np.square(gaps), axis=0))


def weighted(values, weight, probabilities=ENDS):
    order = np.argsort(values)
    return np.interp(probabilities, (np.cumsum(weight[order]) - weight[order] / 2) / weight.sum(), values[order])


@pytest.mark.parametrize("error", [0.01, 0.05, 0.5])
def test_a_lognormal_board_share_is_the_conjugate_update(error):
    prior = PRIORS | {"gpu_power_fraction": Marginal("lognormal", {"mu": np.log(0.8), "sigma": 0.1, "shift": 0.0})}
    found = metering.condition(prior, TDP, {"board": 600.0}, {"board": error})
    precision = 1 / 0.1**2 + 1 / error**2
    mean = (np.log(0.8) / 0.1**2 + np.log(600 / TDP) / error**2) / precision
    z = np.array([-1.6448536, 0.0, 1.6448536])
    expected = np.exp(mean + z / np.sqrt(precision))
    # Linear interpolation between scores: the step is at most an eighth of the narrowest posterior.
    np.testing.assert_allclose(priors.quantiles(found.marginals["gpu_power_fraction"], ENDS), expected, rtol=2e-4)
    assert found.correlations == {}
    assert set(found.marginals) == {"gpu_power_fraction"}


@pytest.mark.parametrize(
    "metered", [{"board": 560.0}, {"it": 900.0}, {"facility": 1100.0}, {"board": 600.0, "facility": 1150.0}]
)
def test_any_meter_agrees_with_importance_sampling(draws, metered):
    found = metering.condition(PRIORS, TDP, metered, SDS)
    weight = weights(draws, metered)
    for name, marginal in found.marginals.items():
        spread = np.diff(weighted(draws[name], weight))[0]
        # Some 50,000 effective samples place an end of an interval to 2% of its half-width.
        np.testing.assert_allclose(
            priors.quantiles(marginal, ENDS), weighted(draws[name], weight), atol=0.06 * spread, err_msg=name
        )


@pytest.mark.parametrize("metered", [{"it": 900.0}, {"facility": 1100.0}])
def test_the_copula_keeps_the_sum_that_was_metered(draws, metered):
    found = metering.condition(PRIORS, TDP, metered, SDS)
    names = list(found.marginals)
    matrix = np.eye(len(names))
    for (first, second), value in found.correlations.items():
        i, j = names.index(first), names.index(second)
        matrix[i, j] = matrix[j, i] = value
    z = np.random.default_rng(4).multivariate_normal(np.zeros(len(names)), matrix, size=200_000)
    u = metering._cdf(z.ravel()).reshape(z.shape)
    values = {name: priors.quantiles(found.marginals[name], u[:, i]) for i, name in enumerate(names)}
    values = {name: values.get(name, float(priors.quantiles(PRIORS[name], [0.5])[0])) for name in metering.POWER}
    scope = next(iter(metered))
    power = metering.watts(TDP, *(values[name] for name in metering.POWER))[scope]
    expected = metering.watts(TDP, *(draws[name] for name in metering.POWER))[scope]
    # A Gaussian copula is not the joint distribution: 1% at the ends, where the meter allows 5% and 7%.
    np.testing.assert_allclose(np.quantile(power, ENDS), weighted(expected, weights(draws, metered)), rtol=0.015)


def test_what_is_fixed_stays_fixed():
    fixed = PRIORS | {"pue": Marginal("fixed", {"value": 1.2}), "host_power": Marginal("fixed", {"value": 400.0})}
    found = metering.condition(fixed, TDP, {"facility": 1200.0}, SDS)
    assert set(found.marginals) == {"gpu_power_fraction"}
    middle = priors.quantiles(found.marginals["gpu_power_fraction"], [0.5])[0]
    # 1200 / 1.2 - 400 W leave 600 W for the board; the prior, at 0.85, pulls by less than the meter's error.
    assert middle == pytest.approx(600 / TDP, rel=0.03)
    everything = fixed | {"gpu_power_fraction": Marginal("fixed", {"value": 0.8})}
    assert metering.condition(everything, TDP, {"facility": 1200.0}, SDS).marginals == {}


@pytest.mark.parametrize(
    "metered",
    [{"board": 560.0}, {"it": 900.0}, {"facility": 1100.0}, {"board": 600.0, "facility": 1150.0},
     {"board": 600.0, "it": 950.0}, {"board": 600.0, "it": 950.0, "facility": 1040.0},
     {"it": 950.0, "facility": 1040.0}],
)  # fmt: skip
def test_the_spent_energy_is_what_the_meters_read(metered):
    middle = {"gpu_power_fraction": 0.85, "host_power": 400.0, "pue": 1.15}
    found = metering.split(metered, TDP, middle)
    power = metering.watts(TDP, *({**middle, **found}[name] for name in metering.POWER))
    for scope, value in metered.items():
        assert power[scope] == pytest.approx(value, rel=1e-12)
    # A meter fixes all that is inside its scope.
    widest = metering.SCOPES.index(max(metered, key=metering.SCOPES.index))
    assert set(found) == set(metering.POWER[: widest + 1])
