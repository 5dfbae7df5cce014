"""Rental prices of a later day: the drift of past years, and what it makes of a prior."""

import datetime

import numpy as np
import pytest
from scipy.stats import norm

from gpustack_mc import catalog, price_drift, priors, solving
from gpustack_mc.coupling import couple
from gpustack_mc.design import make_design
from gpustack_mc.fits import refit
from gpustack_mc.fits.price_drift import drift
from gpustack_mc.paired import Pairing
from gpustack_mc.priors import Marginal
from gpustack_mc.scenario import load_scenario

BASE = """\
schema_version: 1
name: Later
workload: {params: 70e9, tokens: 2e12}
cluster: {accelerator: H100-SXM-80GB, count: 1024}
ownership: rent
"""
BAND = [0.05, 0.5, 0.95]


@pytest.fixture
def load(scenario_file):
    return lambda *overrides: load_scenario(scenario_file(BASE), overrides)


def rent(problem):
    return priors.quantiles(problem.inputs["rental_price"].marginal, BAND)


# ---- where the numbers come from ------------------------------------------------------------------------------------
def test_the_numbers_are_those_of_the_rows():
    found = drift(refit.read_rows("rental_price"), refit.read_prior("rental_price")["settings"]["prior_sd"]["value"])
    known = catalog.price_drift_settings()
    for name in ("mean", "mean_sd", "year_sd"):
        assert known[name] == pytest.approx(getattr(found, name), abs=0.0006)  # written to three digits
    assert known["reference"] == found.newest


def row(provider, month, price, group="G", kind="k", term="on_demand"):
    return {"group": group, "provider_kind": kind, "provider": provider, "year_month": month, "term": term,
            "usd_per_hour": str(price), "use": "yes"}  # fmt: skip


def test_drift_is_the_mean_over_years_of_changes_within_markets():
    """One market, the same two providers: changes of -10% and -30% a year, and a dear newcomer that counts little."""
    prices = {2022: (1.0, 3.0), 2023: (0.9, 2.7), 2024: (0.63, 1.89)}
    rows = [row(f"p{i}", f"{year}-06", price) for year, pair in prices.items() for i, price in enumerate(pair)]
    # Changes of one provider that differ give the spread of changes; here within a year they do not.
    found = drift(rows, 0.4)
    assert list(found.years) == [2022, 2023]
    np.testing.assert_allclose(list(found.years.values()), np.log([0.9, 0.7]), atol=1e-12)
    assert found.mean == pytest.approx(np.log([0.9, 0.7]).mean())
    sd = np.log([0.9, 0.7]).std(ddof=1) * 6.3137515 / 1.6448536  # Student's 95% quantile, one degree of freedom
    assert found.year_sd == pytest.approx(sd, rel=1e-6)
    assert found.mean_sd == pytest.approx(sd / 2**0.5, rel=1e-6)


def test_terms_and_rows_that_are_left_out_do_not_count():
    rows = [row("p", "2022-01", 1.0), row("p", "2023-01", 0.8), row("q", "2022-01", 1.0), row("q", "2023-01", 0.9),
            row("p", "2024-01", 0.7), row("q", "2024-01", 0.6)]  # fmt: skip
    more = [row("p", "2024-01", 99.0, term="3yr"), row("p", "2022-01", 50.0) | {"use": "no: wrong"}]
    assert drift(rows, 0.4) == drift([*rows, *more], 0.4)


# ---- what they make of a price ---------------------------------------------------------------------------------------
def test_a_lognormal_price_stays_one():
    prior = Marginal("lognormal", {"mu": 1.0, "sigma": 0.4})
    found = price_drift._moved(prior, -0.15, 0.3)
    assert found.parameters == {"mu": 0.85, "sigma": pytest.approx(0.5)}


def test_any_other_price_is_convolved():
    """A table of a lognormal gives what the lognormal does; 5e-4 is a hundredth of a step of the table's nodes."""
    plain = Marginal("lognormal", {"mu": 1.0, "sigma": 0.4})
    z = np.linspace(-priors.TABLE_Z, priors.TABLE_Z, priors.TABLE_SIZE)
    table = Marginal("tabulated", {"values": priors.at_scores(plain, z).tolist()})
    points = [0.001, 0.05, 0.5, 0.95, 0.999]
    moved, exact = (price_drift._moved(marginal, -0.15, 0.3) for marginal in (table, plain))
    np.testing.assert_allclose(priors.quantiles(moved, points), priors.quantiles(exact, points), rtol=5e-4)


def test_years_ahead_count_from_the_newest_prices():
    settings = {"reference": "2026-04"}
    assert price_drift.years_ahead(datetime.date(2027, 4, 15), 2027, settings) == pytest.approx(1, abs=0.001)
    assert price_drift.years_ahead(None, 2028, settings) == pytest.approx(2.21, abs=0.01)
    for start, year in ((None, None), (None, 2024), (None, 2026), (datetime.date(2026, 5, 1), 2026)):
        assert price_drift.years_ahead(start, year, settings) == 0


def test_a_later_start_is_cheaper_and_less_certain(load):
    """Closed form: the log of the price moves by m T and its variance by (s_m T)^2 + s^2 T."""
    known = catalog.price_drift_settings()
    now = load()
    for start in ("2027-09-01", "2030-01-15"):
        later = load(f"start={start}")
        years = (datetime.date.fromisoformat(start) - datetime.date(2026, 4, 15)).days / 365.25
        sd = np.hypot(known["mean_sd"] * years, known["year_sd"] * years**0.5)
        marginal = now.inputs["rental_price"].marginal
        if marginal.family == "lognormal":
            wide = np.hypot(marginal.parameters["sigma"], sd)
            exact = np.exp(marginal.parameters["mu"] + known["mean"] * years + wide * norm.ppf(BAND))
            np.testing.assert_allclose(rent(later), exact, rtol=1e-6)
        assert rent(later)[1] < rent(now)[1]
        assert np.log(rent(later)[2] / rent(later)[0]) > np.log(rent(now)[2] / rent(now)[0])
        assert "beyond 2026-04" in later.inputs["rental_price"].prior
        assert later.inputs["rental_price"].sources[-1].url == "priors/price_drift.yaml"


def test_what_starts_today_or_ran_before_has_its_prior(load):
    assert "carried" not in load().inputs["rental_price"].prior
    assert "carried" not in load("date=2024").inputs["rental_price"].prior


def test_prices_of_an_earlier_date_are_not_carried(load):
    assert rent(load("date=2024", "start=2028-01-01")).tolist() == rent(load("date=2024")).tolist()


def test_a_price_of_your_own_is_not_carried(load):
    assert load("start=2029-01-01", "rental_price=2 USD/h").inputs["rental_price"].marginal.is_fixed


def test_now_and_later_share_all_but_the_drift_between_them(load):
    """The ratio of the prices is lognormal with the drift's own mean and variance: the provider cancels."""
    problems = [load(f"start={day}") for day in ("2026-12-15", "2028-06-15")]
    paired = Pairing(problems, make_design(2**14), "common").draws()
    names = [varying.index("rental_price") for varying in paired.varying]
    ratio = np.log(paired.inputs[1][names[1]] / paired.inputs[0][names[0]])
    known = catalog.price_drift_settings()
    first, second = (problem.inputs["rental_price"].carried for problem in problems)
    mean, variance = known["mean"] * (second - first), known["year_sd"] ** 2 * (second - first)
    variance += known["mean_sd"] ** 2 * (second - first) ** 2
    # 16,384 points; a population that is a table is lognormal to a few hundredths of its spread.
    np.testing.assert_allclose(np.quantile(ratio, BAND), mean + variance**0.5 * norm.ppf(BAND), atol=0.02)
    [difference] = paired.coupling.differences
    assert (difference.key, difference.how) == ("rental_price", "estimated")


def test_prices_of_two_terms_are_not_one_price(load):
    problems = [load("start=2028-01-01"), load("start=2028-01-01", "market.term=3yr")]
    assert couple(problems, "common").differences[0].how == "common"


# ---- the years of a lease --------------------------------------------------------------------------------------------
def test_the_rate_of_a_lease_is_the_mean_of_its_years():
    known = catalog.price_drift_settings()
    low, high = price_drift.rate(4.0)
    sd = np.hypot(known["mean_sd"], known["year_sd"] / 2)
    np.testing.assert_allclose(np.log1p([low, high]), known["mean"] + sd * norm.ppf([0.05, 0.95]), rtol=1e-6)


def test_solve_takes_the_fitted_drift(scenario_file):
    path = scenario_file(BASE)
    options = {"variable": "fleet_utilization", "probability": "0.5", "samples": 4096}
    plain = solving.run_solve(path, **options)
    found = solving.run_solve(path, price_drift="fitted", **options)
    low, high = found["price_drift"]
    stated = solving.run_solve(path, price_drift=f"{low} to {high}", **options)
    assert found["solutions"] == stated["solutions"]
    # Rent falls at the median, so that owning has to be busier.
    assert found["solutions"][0]["value"] > plain["solutions"][0]["value"]
    assert "as posted prices did" in found["notes"][-1] and "as posted" not in stated["notes"][-1]
