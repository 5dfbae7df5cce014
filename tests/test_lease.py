"""Rent over the life of owned hardware with an uncertain drift, what the shipped prices did, and the shared life."""

import csv
import itertools
from collections import defaultdict

import numpy as np
import pytest

from gpustack_mc import catalog, lease
from gpustack_mc.design import make_design
from gpustack_mc.errors import InputError
from gpustack_mc.propagation import propagate
from gpustack_mc.scenario import load_scenario
from gpustack_mc.solving import run_solve

FREE = ["cost_of_capital=0.08", "lifetime=5"]


def test_an_uncertain_drift_has_the_stated_interval():
    design = make_design(2**14)
    rates = lease.Drift(-0.25, 0.02).draws(design)
    # Spacing of 16,384 Sobol' points.
    assert np.quantile(rates, [0.05, 0.95]) == pytest.approx([-0.25, 0.02], abs=2e-3)
    assert np.median(rates) == pytest.approx(np.sqrt(0.75 * 1.02) - 1, abs=2e-3)
    parts = [lease.Drift(-0.25, 0.02).draws(design, [r]) for r in range(design.replicates)]
    assert (np.concatenate(parts) == rates).all()


def test_the_drift_is_independent_of_every_input():
    design = make_design(2**14)
    draws, rates = propagate(load_scenario("llama-3-70b"), design), lease.Drift(-0.25, 0.02).draws(design)
    for key, values in zip(draws.varying, draws.inputs, strict=True):
        # Four standard errors of a correlation of 16,384 plain draws.
        assert abs(np.corrcoef(rates, np.argsort(np.argsort(values)))[0, 1]) < 4 / 2**7, key


def test_the_break_even_is_that_of_a_brute_force():
    """Own against rent at a utilisation: the same chance from plain draws with the price path summed year by year."""
    found = run_solve("llama-3-70b", FREE, variable="fleet-utilization", probability="0.5",
                      price_drift="-25% to 2%", samples=2**14)  # fmt: skip
    at = found["solutions"][0]["value"]
    draws = propagate(load_scenario("llama-3-70b", [*FREE, f"fleet_utilization={at!r}"]), make_design(2**15, seed=9))
    rng = np.random.default_rng(9)
    rates = np.exp(rng.normal(np.log(0.75 * 1.02) / 2, np.log(1.02 / 0.75) / 2 / 1.6449, draws.outputs.shape[1]))
    months = (np.arange(600) + 0.5) / 120
    discount = np.exp(-0.08 * months)
    path = np.zeros(len(rates))
    for month, weight in zip(months, discount / discount.sum(), strict=True):
        path += weight * rates**month
    kept = draws.output("cost_owned_usd") <= draws.output("cost_rented_usd") * path
    # Four standard errors of 32,768 plain draws.
    assert kept.mean() == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(len(kept)))
    assert found["price_drift"] == [-0.25, 0.02] and "-25% to +2% (90%)" in found["notes"][-1]


def test_a_known_drift_is_the_interval_of_no_width():
    options = {"variable": "fleet-utilization", "probability": "0.5", "samples": 4096}
    one = run_solve("llama-3-70b", FREE, price_drift="-18%", **options)
    two = run_solve("llama-3-70b", FREE, price_drift="-18% to -18%", **options)
    assert one == two and one["price_drift"] == -0.18


@pytest.mark.parametrize("text", ["0% to -25%", "-25% to 0% to 3%", "-95% to 0%", "fast to slow", "to"])
def test_no_interval_is_refused(text):
    with pytest.raises(InputError) as refused:
        run_solve("llama-3-70b", variable="capex", price_drift=text, samples=1024)
    assert refused.value.place.file == "--price-drift"


def test_what_the_shipped_prices_did():
    """The figures of the how-to page: no prior, because six years of posts are one history."""
    with catalog.fit_path("rental_price").with_name("data.csv").open(encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["use"].startswith("yes") and row["term"] == "on_demand"]
    cells = defaultdict(list)
    for row in rows:
        cells[row["group"], row["provider"], int(row["year_month"][:4])].append(float(row["usd_per_hour"]))
    medians = {cell: np.median(prices) for cell, prices in cells.items()}

    def market(group, year):
        return np.median([price for (g, _, y), price in medians.items() if (g, y) == (group, year)])

    for group, first, years, fall in (("A100", 2022, 4, -0.15), ("H100", 2023, 3, -0.15)):
        # About 15%, as the page tells.
        assert (market(group, 2026) / market(group, first)) ** (1 / years) - 1 == pytest.approx(fall, abs=0.01)
    changes = []
    for group, provider in {cell[:2] for cell in medians}:
        years = sorted(year for g, p, year in medians if (g, p) == (group, provider))
        changes += [
            (medians[group, provider, b] / medians[group, provider, a]) ** (1 / (b - a)) - 1
            for a, b in itertools.pairwise(years)
        ]
    low, middle, high = np.quantile(changes, [0.05, 0.5, 0.95])
    assert len(changes) == 56
    assert (low, middle, high) == pytest.approx((-0.33, 0.0, 0.15), abs=0.01)


def test_life_and_utilisation_are_one_draw_in_dollars_and_in_carbon():
    draws = propagate(load_scenario("llama-3-70b"), make_design(2048))
    inputs = dict(zip(draws.varying, draws.inputs, strict=True))
    dollars = draws.output("hardware_cost_usd") / (inputs["capex"] * (1 - inputs["residual_share"]))
    carbon = draws.output("co2e_embodied_t") * 1000 / inputs["embodied_carbon"]
    # Both are accelerator-hours over the busy hours of the same life.
    np.testing.assert_allclose(dollars, carbon, rtol=1e-12)
    busy = inputs["lifetime"] * 8766 * inputs["fleet_utilization"]
    np.testing.assert_allclose(dollars, draws.output("accelerator_hours") / busy, rtol=1e-12)
