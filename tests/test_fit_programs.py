"""Fit programs whose spreads are sampled, against importance sampling: no chains, no JAX, a dense covariance.

Spreads are drawn from their priors and weighted by the density of the rows, a multivariate normal. What follows is
the record that the program makes of them, which must agree with the stored one, which NUTS made. Left out are the
programs with so many rows that one or two draws from the priors would carry all weight: electricity price, grid
intensity and rental price.
"""

import json

import numpy as np
import pytest

from gpustack_mc.fits import chain_checks, hierarchy, refit
from gpustack_mc.priors import Marginal, quantiles

QUANTITIES = (
    "capex", "cost_of_capital", "embodied_carbon", "fleet_utilization", "gpu_power_fraction", "host_power",
    "interruption_rate", "lifetime", "operations_rate", "programme_overhead", "pue", "residual_share",
    "serving_throughput", "water_offsite", "water_onsite",
)  # fmt: skip
HEALTHY = {"diagnostics": {"divergences": 0, "r_hat": 1.0, "ess_bulk": 900.0, "ess_tail": 900.0}}
DRAWN, KEPT = 600, 100


def from_priors(spreads, rng):
    """Standard deviations from their priors, shape (DRAWN, spreads)."""
    found, omega = {}, {}
    for name, spread in sorted(spreads.items(), key=lambda item: item[1].kind == "pooled"):
        if spread.kind == "half_normal":
            found[name] = spread.scale * np.abs(rng.standard_normal(DRAWN))
        elif spread.kind == "inverse_chi2":
            found[name] = spread.scale * np.sqrt(spread.weight / rng.chisquare(spread.weight, DRAWN))
        else:
            scale = omega.setdefault(spread.parent, spread.scale * np.abs(rng.standard_normal(DRAWN)))
            found[name] = found[spread.parent] * np.exp(scale * rng.standard_normal(DRAWN))
    return np.column_stack([found[name] for name in spreads])


def log_density(data, s):
    """Log density of the rows, up to a constant, by their dense covariance."""
    sd = data.fixed_sd + data.own_sd @ s
    covariance = (data.design * sd**2) @ data.design.T + np.diag(data.variance + data.noise @ s**2)
    gap = data.y - data.design @ data.mean - data.shift @ s
    lower = np.linalg.cholesky(covariance)
    white = np.linalg.solve(lower, gap)
    return -0.5 * white @ white - np.log(np.diagonal(lower)).sum()


def by_importance(problem, seed=0, **options):
    rng = np.random.default_rng(5)
    data = hierarchy.arrays(problem)
    drawn = from_priors(problem.spreads, rng)
    weight = np.array([log_density(data, s) for s in drawn])
    weight = np.exp(weight - weight.max())
    weight /= weight.sum()
    assert 1 / np.sum(weight**2) > 10  # below, weights say little (measured: 11 for capex, 18 to 530 for the others)
    pick = rng.choice(DRAWN, KEPT, p=weight)
    return hierarchy.posterior_of(problem, data, drawn[pick], {}, 0)


@pytest.fixture
def stubbed(monkeypatch):
    monkeypatch.setattr(hierarchy, "sample", by_importance)
    monkeypatch.setattr(chain_checks, "checks", lambda problem, posterior: HEALTHY)


def bands(populations):
    """5%, 50% and 95% quantiles of each population on the log scale; regressions are compared by their parts."""
    probabilities = [0.05, 0.5, 0.95]
    return [
        np.log(np.maximum(quantiles(Marginal(item["family"], item["parameters"]), probabilities), 1e-12))
        for item in populations
        if "regression" not in item["parameters"]
    ]


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_a_program_makes_of_its_rows_what_is_stored(stubbed, root, quantity):
    stored = json.loads((root / "priors" / quantity / "fit.json").read_text(encoding="utf-8"))
    found = refit.compute(quantity)
    assert found["data_sha256"] == stored["data_sha256"]
    told = ("where", "label", "method", "family", "n", "rows", "sources")
    assert [{key: each[key] for key in told} for each in found["populations"]] == [
        {key: each[key] for key in told} for each in stored["populations"]
    ]
    ours, theirs = bands(found["populations"]), bands(stored["populations"])
    for our, their in zip(ours, theirs, strict=True):
        width = their[2] - their[0]
        # Spreads of 10 to 100 effective draws move a median by a few hundredths of the band, and the band by a tenth; a
        # program that read a wrong column, unit or weight would be off by much more.
        assert abs(our[1] - their[1]) < 0.05 * width
        assert 0.9 < (our[2] - our[0]) / width < 1.12
