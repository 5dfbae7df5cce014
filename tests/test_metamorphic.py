"""What must follow when a whole scenario is changed in a known way: from the file to the draws of the result."""

import functools

import numpy as np
import pytest

from gpustack_mc import load_scenario, simulate

# Stated: what the priors would otherwise tell from tokens and count.
PLAN = """\
schema_version: 1
name: metamorphic
workload: {params: 7e9, tokens: 1e12}
cluster: {accelerator: H100-SXM-80GB, count: 512}
site: {region: US-TX}
exchange_rates: {EUR: 2}
inputs:
  mfu: {low: 0.32, high: 0.45}
  goodput: {low: 0.85, high: 0.97}
  gpu_power_fraction: {low: 0.7, high: 0.9}
  electricity_price: {low: 0.05 USD/kWh, high: 0.09 USD/kWh}
  capex: {low: 30 kUSD, high: 50 kUSD}
  rental_price: {low: 1.5 USD/h, high: 3 USD/h}
"""
WORK = ("training_flop", "training_days", "accelerator_hours", "energy_mwh", "co2e_t", "water_onsite_m3",
        "cost_owned_usd", "cost_rented_usd")  # fmt: skip
MONEY = ("electricity_cost_usd", "cost_rented_usd")
# The same draws go through the same operations in float64 on other numbers: a few roundings apart.
EXACT = 1e-12


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    path = tmp_path_factory.mktemp("metamorphic") / "plan.yaml"

    @functools.cache
    def of(*overrides, text=PLAN):
        path.write_text(text, encoding="utf-8")
        tree = simulate(load_scenario(path, overrides), samples=1024, seed=3)
        return {str(name): values.values[0] for name, values in tree["prior_predictive"].data_vars.items()}

    return of


@pytest.mark.parametrize("output", WORK)
def test_twice_the_tokens_take_twice_of_all(outputs, output):
    # A power of two, so that doubling is exact wherever it enters.
    assert outputs("workload.tokens=2e12")[output] == pytest.approx(2 * outputs()[output], rel=EXACT)


@pytest.mark.parametrize("output", WORK)
def test_the_count_shortens_the_run_and_changes_nothing_else(outputs, output):
    factor = 0.5 if output == "training_days" else 1.0
    assert outputs("cluster.count=1024")[output] == pytest.approx(factor * outputs()[output], rel=EXACT)


@pytest.mark.parametrize("output", MONEY)
def test_prices_in_another_currency_are_converted_once(outputs, output):
    """One EUR is two USD here: half the number is the same money, and the same number twice of it."""
    prices = {"electricity_price": (0.05, 0.09, "kWh"), "rental_price": (1.5, 3, "h")}
    same, twice = (
        tuple(f"{name}={{low: {low * scale} EUR/{per}, high: {high * scale} EUR/{per}}}"
              for name, (low, high, per) in prices.items())
        for scale in (0.5, 1.0)
    )  # fmt: skip
    assert outputs(*same)[output] == pytest.approx(outputs()[output], rel=EXACT)
    assert outputs(*twice)[output] == pytest.approx(2 * outputs()[output], rel=EXACT)


def test_the_order_of_keys_and_inputs_changes_no_draw(outputs):
    head, inputs = PLAN.split("inputs:\n")
    turned = "inputs:\n" + "".join(f"{line}\n" for line in reversed(inputs.splitlines()))
    turned += "".join(f"{line}\n" for line in reversed(head.splitlines()))
    for name, values in outputs().items():
        np.testing.assert_array_equal(outputs(text=turned)[name], values, err_msg=name)


def test_units_of_one_amount_are_the_same_amount(outputs):
    rent = "rental_price={low: 36 USD/day, high: 72 USD/day}"
    stated = (rent, "electricity_price={low: 50 USD/MWh, high: 90 USD/MWh}")
    for name, values in outputs(*stated).items():
        assert values == pytest.approx(outputs()[name], rel=EXACT), name


def test_money_is_at_least_the_electricity_and_energy_that_of_the_boards(outputs):
    found = outputs()
    assert (found["cost_owned_usd"] >= found["electricity_cost_usd"] + found["hardware_cost_usd"]).all()
    assert (found["energy_mwh"] >= found["it_energy_mwh"]).all()
    board = found["accelerator_hours"] * 700 * 0.5 / 1e6  # half of an H100's TDP: below all that is stated above
    assert (found["it_energy_mwh"] >= board).all()
