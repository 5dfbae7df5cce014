"""Totals over scenarios against closed forms."""

import numpy as np
import pytest

from gpustack_mc import portfolio
from gpustack_mc.design import make_design
from gpustack_mc.errors import InputError
from gpustack_mc.portfolio_spec import PortfolioSpec
from gpustack_mc.propagation import propagate
from gpustack_mc.quantities import INPUTS
from gpustack_mc.scenario import load_scenario

DESIGN = make_design(4096, seed=2)
# Whatever is not stated below is fixed, so that a total has a closed form.
FIXED = {
    "mfu": 0.4,
    "goodput": 0.9,
    "gpu_power_fraction": 0.8,
    "host_power": 300,
    "pue": 1.2,
    "electricity_price": 0.08,
    "grid_intensity": 400,
    "embodied_carbon": 100,
    "water_onsite": 1,
    "water_offsite": 2,
    "capex": 40000,
    "residual_share": 0.1,
    "lifetime": 5,
    "fleet_utilization": 0.8,
    "cost_of_capital": 0.1,
    "operations_rate": 0.05,
    "rental_price": 2,
    "serving_throughput": 1000,
    "programme_overhead": 1.5,
    "interruption_rate": 0.01,
}


def problem(**inputs):
    stated = {f"inputs.{name}": value for name, value in (FIXED | inputs).items() if name in INPUTS}
    return load_scenario("llama-3-70b", [f"{key}={value}" for key, value in stated.items()])


def totals(problems, independent=False, **limits):
    return portfolio.totals(problems, DESIGN, PortfolioSpec({}, independent), limits)


def test_a_shared_number_does_not_average_out():
    price = "{dist: lognormal, mu: 0.7, sigma: 0.4}"
    one = problem(rental_price=price)
    found = totals([one, one, one], budget=2e7)
    cost = propagate(one, DESIGN).output("cost_rented_usd")
    total = found["totals"]["cost_rented_usd"]
    np.testing.assert_allclose(total["median"], 3 * np.median(cost), rtol=1e-12)
    np.testing.assert_allclose(total["sd"], 3 * cost.std(), rtol=1e-9)
    np.testing.assert_allclose(total["sd_if_nothing_were_shared"], np.sqrt(3) * cost.std(), rtol=1e-9)
    assert found["chances"]["budget_rented"]["probability"] == (3 * cost <= 2e7).mean()
    assert "rental_price" in found["shared"]["same_number_in_all"]


@pytest.mark.parametrize(("independent", "sd"), [(False, 0.08), (True, np.hypot(0.03, 0.05))])
def test_prices_that_differ_are_together_or_independent(independent, sd):
    """Energy is fixed, so that the total cost of electricity is a sum of two normal prices."""
    prices = ["{dist: normal, mean: 0.4, sd: 0.03}", "{dist: normal, mean: 0.4, sd: 0.05}"]
    problems = [problem(electricity_price=price) for price in prices]
    found = totals(problems, independent)["totals"]
    energy = found["energy_mwh"]["median"] / 2
    # 4,096 Latin or Sobol' points give the sd of a normal to about 1%.
    np.testing.assert_allclose(found["cost_owned_usd"]["sd"], sd * energy * 1000, rtol=0.02)


def test_what_drives_the_total():
    """Two shared inputs: the total is proportional to their product, whose indices are known for lognormals."""
    stated = {
        "rental_price": "{dist: lognormal, mu: 0.7, sigma: 0.3}",
        "mfu": "{dist: lognormal, median: 0.3, sigma: 0.2}",
    }
    one = problem(**stated)
    rented = one._replace(file=one.file.model_copy(update={"ownership": "rent"}))
    found = totals([rented, rented])["drivers"]
    assert found["output"] == "cost_rented_usd" and list(found["inputs"]) == ["rental_price", "mfu"]
    # For a product of lognormals: S_T = (1 - exp(-s_i^2)) / (1 - exp(-(s_1^2 + s_2^2))).
    for name, sigma in (("mfu", 0.2), ("rental_price", 0.3)):
        expected = (1 - np.exp(-(sigma**2))) / (1 - np.exp(-(0.2**2 + 0.3**2)))
        low, high = found["inputs"][name]["interval_90"]
        # The 90% interval is one of ten that may miss; twice its half width misses once in a thousand.
        assert abs(found["inputs"][name]["total"] - expected) < high - low


def test_runs_of_one_team_share_part_of_their_mfu():
    problems = [load_scenario("llama-3-70b", [f"workload.params={size}"]) for size in (7e9, 70e9)]
    found = totals(problems)
    assert found["shared"]["differ"]["mfu"] == "estimated"
    total = found["totals"]["accelerator_hours"]
    assert total["sd"] > 1.02 * total["sd_if_nothing_were_shared"]


def test_limits_need_their_unit():
    assert portfolio.limits_of(PortfolioSpec({"budget": "3 MUSD", "energy_cap": "2 GWh"}, False)) == {
        "budget": 3e6, "energy_cap": 2000.0,
    }  # fmt: skip
    with pytest.raises(InputError, match="energy"):
        portfolio.limits_of(PortfolioSpec({"budget": "3 MWh"}, False))
