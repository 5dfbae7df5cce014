"""The shipped scenarios: each is sound, says what it is, and holds its public figures against its intervals."""

import functools

import numpy as np
import pytest

from gpustack_mc import catalog
from gpustack_mc.design import make_design
from gpustack_mc.propagation import simulate
from gpustack_mc.quantities import OUTPUTS
from gpustack_mc.scenario import load_scenario
from gpustack_mc.tallies import PROBABILITIES

NAMES = tuple(catalog.shipped_scenarios())
MODELINE = "# yaml-language-server: $schema=../schema/scenario-v1.json"
SAMPLES = 4096
# Ends of an interval move by about this much with so few samples; a figure so near to one may lie on either side.
EDGE = 0.01
# Public figures are rounded; a fixed output agrees with them to their printed digits.
ROUNDING = 5e-3


@functools.cache
def problem(name):
    return load_scenario(catalog.shipped_scenarios()[name])


@functools.cache
def simulation(name):
    return simulate(problem(name), make_design(SAMPLES, "sobol", 0), with_sensitivity=False)


def all_fixed(name):
    return all(item.marginal.is_fixed for item in problem(name).inputs.values())


def interval(name, output):
    low, high = (PROBABILITIES.index(probability) for probability in (0.05, 0.95))
    ends = simulation(name).output_statistics.quantiles[:, problem(name).outputs.index(output)]
    return float(ends[low]), float(ends[high])


FIGURES = [(name, output) for name in NAMES for output in problem(name).published]


@pytest.mark.parametrize("name", NAMES)
def test_modeline_names_the_schema(name):
    assert catalog.shipped_scenarios()[name].read_text(encoding="utf-8").splitlines()[0] == MODELINE


@pytest.mark.parametrize("name", NAMES)
def test_scenario_is_described(name):
    assert len(problem(name).file.description.split()) >= 8
    assert name == name.lower()
    assert "_" not in name


def test_names_differ():
    assert len({problem(name).name for name in NAMES}) == len(NAMES)


@pytest.mark.parametrize(("name", "output"), FIGURES)
def test_published_figures_have_sources(name, output):
    source = problem(name).published[output].source
    assert source.title
    assert source.url.startswith("https://") or all_fixed(name)


@pytest.mark.parametrize(("name", "output"), FIGURES)
def test_published_figures_lie_inside_or_are_explained(name, output):
    figure, (low, high) = problem(name).published[output], interval(name, output)
    if np.isclose(low, high, rtol=1e-9):
        assert figure.value == pytest.approx(low, rel=ROUNDING)
        assert not figure.outside
        return
    if min(abs(figure.value / low - 1), abs(figure.value / high - 1)) < EDGE:
        return
    inside = low < figure.value < high
    assert inside == (not figure.outside), f"{figure.value:g} against {low:g} to {high:g}: {figure.outside!r}"


def test_quebec_emits_a_tenth_of_alberta_in_every_likely_case():
    output = OUTPUTS.index("co2e_operational_t")
    quebec, alberta = (simulation(f"llama-3-70b-{place}").outputs[output] for place in ("quebec", "alberta"))
    saved = 1 - quebec / alberta
    assert np.median(saved) > 0.90
    assert np.quantile(saved, 0.05) > 0.90


@pytest.mark.parametrize("output", ["accelerator_hours", "energy_mwh", "training_days"])
def test_places_differ_in_price_grid_and_water_alone(output):
    i = OUTPUTS.index(output)
    quebec, alberta = (simulation(f"llama-3-70b-{place}").outputs[i] for place in ("quebec", "alberta"))
    np.testing.assert_array_equal(quebec, alberta)


def test_worked_examples_have_no_interval():
    assert all_fixed("worked-7b")
    assert all_fixed("worked-70b")


def test_electricity_is_7_4_percent_of_the_cost_of_the_second_worked_example():
    low, high = interval("worked-7b", "electricity_share")
    assert f"{low:.1%}" == f"{high:.1%}" == "7.4%"


@pytest.mark.parametrize(("intensity", "printed"), [(30, "203"), (380, "2566"), (800, "5403")])
def test_first_worked_example_on_three_grids(intensity, printed):
    path = catalog.shipped_scenarios()["worked-70b"]
    found = simulate(load_scenario(path, [f"grid_intensity={intensity}"]), make_design(1, "sobol", 0),
                     with_sensitivity=False)  # fmt: skip
    assert f"{found.outputs[OUTPUTS.index('co2e_operational_t'), 0]:.0f}" == printed


def test_context_extension_adds_little_to_llama_3_1_405b():
    inputs = problem("llama-3.1-405b").inputs
    factor = inputs["context_flop_factor@long-context"].marginal.parameters["value"]
    share = 0.8 / 15.6
    assert 1.5 < factor < 2
    assert share * (factor - 1) == pytest.approx(0.03, abs=0.01)


def test_deepseek_v3_is_a_forecast_of_a_run_that_the_prior_has_not_seen():
    table = (catalog.folder("priors") / "utilization" / "data.csv").read_text(encoding="utf-8")
    assert "deepseek-v3" not in table
    assert "llama3-70b" in table
