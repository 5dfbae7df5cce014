"""Interruption rates: conversions by hand, and what the fit says of known runs."""

import json

import numpy as np
import pytest
from scipy import stats

from gpustack_mc.fits import interruption_rate, refit


@pytest.fixture(scope="module")
def record():
    return json.loads((refit.priors_root() / "interruption_rate" / "fit.json").read_text(encoding="utf-8"))


def test_stored_fit_is_current():
    assert refit.stale("interruption_rate") is None


@pytest.mark.parametrize(
    ("name", "by_hand"),
    [
        ("fm0003", 419 / (16384 * 54 * 24)),  # 0.0197 per 1,000 accelerator-hours, as the paper's numbers give
        ("fm0018", 1 / (7.9 * 1024)),
        ("fm0016", 6.5e-3 / 192),
    ],
)
def test_rates_by_hand(name, by_hand):
    rows = {row["id"]: row for row in refit.read_rows("interruption_rate")}
    settings = {key: setting["value"] for key, setting in refit.read_prior("interruption_rate")["settings"].items()}
    assert interruption_rate.rate(rows[name], settings) == pytest.approx(by_hand, rel=1e-12)


def test_clusters_lie_inside_and_the_band_is_near_the_student_t_one(record):
    (population,) = record["populations"]
    mu, sigma = population["parameters"]["mu"], population["parameters"]["sigma"]
    low, high = np.exp(mu + sigma * stats.norm.ppf([0.05, 0.95]))
    assert low < 1 / (168 * 384) < high and low < 1 / (7.5 * 992) < high
    # Six clusters, Student-t by hand; the program knows a spread before it sees them and may be narrower by a fifth.
    rates = [419 / (16384 * 54 * 24), (1 / (7.9 * 1024) * 6.5e-3 / 192) ** 0.5, 2.34e-3 / 192, 4.2e-3 / 192,
             1 / (7.5 * 992), 1 / (168 * 384)]  # fmt: skip
    logs = np.log(rates)
    half = stats.t.ppf(0.95, 5) * logs.std(ddof=1) * np.sqrt(1 + 1 / 6)
    assert np.log([low, high]).mean() == pytest.approx(logs.mean(), abs=0.1)
    assert 0.8 * half < (np.log(high) - np.log(low)) / 2 < 1.05 * half
