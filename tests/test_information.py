"""Expected widths and values of information against closed forms and nested Monte Carlo."""

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtri

from gpustack_mc import information
from gpustack_mc.design import make_design, points

Q = stats.norm.ppf(0.95)
SIGMA = np.array([0.6, 0.4, 0.3, 0.1])
SLOPES, MEAN = np.array([1.0, 0.5, 0.2]), -0.3


@pytest.fixture(scope="module")
def z():
    """Five independent standard normals in 16 replicates of 2,048."""
    design = make_design(2**15)
    names = [f"z{i}" for i in range(5)]
    return ndtri(np.concatenate([points(design, names, range(5), r, 0, design.length) for r in range(16)], axis=1))


def lost(sd: float) -> float:
    """Expected value of perfect information about N(MEAN, sd^2) when the alternative is 0."""
    return sd * stats.norm.pdf(MEAN / sd) + MEAN * stats.norm.cdf(MEAN / sd) - max(MEAN, 0)


def benefits(z):
    return np.stack([np.zeros(z.shape[1]), MEAN + SLOPES @ z[:3]])


def agrees(found, exact, floor=0.0):
    # Four standard errors, and what a regression with few knots cannot follow.
    assert found.value == pytest.approx(exact, abs=4 * found.error + floor)


# ---- widths: product of lognormals -------------------------------------------------------------------------------


def test_the_width_now(z):
    (found,) = information.width(np.exp(SIGMA @ z[:4])[None], 16)
    agrees(found, 2 * np.sinh(Q * np.sqrt((SIGMA**2).sum())))


@pytest.mark.parametrize("i", range(4))
def test_expected_width_once_a_factor_is_known(z, i):
    known = information.basis(np.exp(z[i]))
    (found,) = information.expected_width(np.exp(SIGMA @ z[:4])[None], known, 16)
    rest = np.sqrt((SIGMA**2).sum() - SIGMA[i] ** 2)
    exact = np.exp(SIGMA[i] ** 2 / 2) * 2 * np.sinh(Q * rest)
    agrees(found, exact)
    # The error itself is small enough to tell inputs apart.
    assert found.error < 0.01 * exact


@pytest.mark.parametrize("accuracy", [0.05, 0.2, 1.0])
def test_expected_width_once_a_factor_is_measured(z, accuracy):
    reading = information.measured(np.exp(SIGMA[0] * z[0]), accuracy, z[4])
    (found,) = information.expected_width(np.exp(SIGMA @ z[:4])[None], information.basis(reading), 16)
    # Normal prior and normal error of the logarithm: Bayes' rule in closed form.
    left = 1 / (1 / SIGMA[0] ** 2 + 1 / accuracy**2)
    rest = np.sqrt((SIGMA[1:] ** 2).sum() + left)
    agrees(found, np.exp((SIGMA[0] ** 2 - left) / 2) * 2 * np.sinh(Q * rest))


def test_outputs_that_change_sign_are_compared_on_their_own_scale(z):
    (found,) = information.expected_width((z[0] + 0.5 * z[1])[None], information.basis(z[0]), 16)
    agrees(found, 2 * Q * 0.5)


def test_a_spread_that_depends_on_the_input_is_seen(z):
    # Not a product: the spread is exp(z0 / 2), which a regression of the mean alone would miss.
    (found,) = information.expected_width((np.exp(z[0] / 2) * z[1])[None], information.basis(z[0]), 16)
    # Inside a bin the spread still varies: 32 bins leave 1%.
    agrees(found, 2 * Q * np.exp(1 / 8), floor=0.02 * 2 * Q)


def test_an_input_of_few_values_is_a_list_of_alternatives(z):
    kind = (z[0] > 0.5) * 1.0 + (z[0] > 1.0)
    (found,) = information.expected_width(np.exp(kind + 0.3 * z[1])[None], information.basis(kind), 16)
    share = np.diff([0, *stats.norm.cdf([0.5, 1.0]), 1])
    exact = (share * np.exp([0, 1, 2])).sum() * 2 * np.sinh(Q * 0.3)
    # At most two of 32 bins hold two values.
    agrees(found, exact, floor=0.01 * exact)


def test_an_input_without_effect_narrows_nothing(z):
    outputs = np.exp(SIGMA @ z[:4])[None]
    (now,), (then,) = information.width(outputs, 16), information.expected_width(outputs, information.basis(z[4]), 16)
    assert then.value == pytest.approx(now.value, rel=0.01)


# ---- decisions: normal net benefits ------------------------------------------------------------------------------


def test_value_of_perfect_information(z):
    agrees(information.perfect_value(benefits(z), 16), lost(np.sqrt((SLOPES**2).sum())), floor=1e-4)


@pytest.mark.parametrize("i", range(3))
def test_value_of_one_input(z, i):
    agrees(information.partial_value(benefits(z), information.basis(z[i]), 16), lost(SLOPES[i]), floor=3e-4)


@pytest.mark.parametrize("accuracy", [0.1, 0.5, 2.0])
def test_value_of_a_measurement(z, accuracy):
    reading = z[0] + accuracy * z[4]
    found = information.partial_value(benefits(z), information.basis(reading), 16)
    agrees(found, lost(SLOPES[0] / np.sqrt(1 + accuracy**2)), floor=3e-4)


def test_value_of_sets_is_that_of_the_closed_form_and_monotone(z):
    values = [
        information.partial_value(benefits(z), information.joint_basis(z[:k]), 16)
        for k in (1, 2, 3)
    ]  # fmt: skip
    for k, found in zip((1, 2, 3), values, strict=True):
        agrees(found, lost(np.sqrt((SLOPES[:k] ** 2).sum())), floor=3e-4)
    everything = information.perfect_value(benefits(z), 16)
    assert values[0].value <= values[1].value <= values[2].value <= everything.value + 4 * everything.error


def test_interactions_of_a_set_are_worth_what_they_are(z):
    # Neither input alone says anything about the sign of their product.
    gain = np.stack([np.zeros(z.shape[1]), z[0] * z[1]])
    for i in (0, 1):
        alone = information.partial_value(gain, information.basis(z[i]), 16)
        # The maximum of 0 and noise is above 0: that of a fit with 10 terms to 32,768 draws.
        assert alone.value < 0.01
    both = information.partial_value(gain, information.joint_basis(z[:2]), 16)
    # E max(0, z0 z1) = 1/pi.
    agrees(both, 1 / np.pi, floor=1e-3)


def test_more_than_two_decisions_against_nested_monte_carlo(z):
    def value(a, b):
        return np.stack([0 * a * b, a + b**2 - 1.2, 0.5 * np.exp(0.5 * a) - 0.6 + 0.3 * b])

    found = information.partial_value(value(z[0], z[1]), information.basis(z[0]), 16)
    outer = ndtri((np.arange(400) + 0.5) / 400)
    inner = ndtri((np.arange(4000) + 0.5) / 4000)
    means = value(outer[:, None], inner[None]).mean(axis=2)
    nested = means.max(axis=0).mean() - means.mean(axis=1).max()
    agrees(found, nested, floor=2e-3)


def test_what_cannot_change_the_decision_is_worth_nothing(z):
    gain = np.stack([np.zeros(z.shape[1]), 50 + z[0]])
    assert information.partial_value(gain, information.basis(z[0]), 16).value == 0
    assert information.perfect_value(gain, 16).value == 0


def test_one_replicate_has_no_error(z):
    assert np.isnan(information.partial_value(benefits(z), information.basis(z[0]), 1).error)
    assert np.isnan(information.perfect_value(benefits(z), 1).error)


def test_errors_are_those_of_repetition():
    values, errors = [], []
    for seed in range(12):
        design = make_design(4096, seed=seed)
        names = ["z0", "z1", "z2"]
        draws = ndtri(np.concatenate([points(design, names, range(3), r, 0, design.length) for r in range(16)], axis=1))
        found = information.partial_value(benefits(draws), information.basis(draws[1]), 16)
        values.append(found.value)
        errors.append(found.error)
    # The ratio of two standard deviations of 12: within a factor of 2 with probability 97%.
    assert 0.5 < np.std(values) / np.mean(errors) < 2
