"""Comparisons against closed forms and brute force: what is shared cancels, what differs does not."""

import json
import math
from statistics import NormalDist

import numpy as np
import pytest
import xarray as xr
from scipy.special import ndtr

from gpustack_mc import comparison_text, coupling, efficiency
from gpustack_mc.comparing import load_cases, rows_of, run_comparison, variants_of
from gpustack_mc.comparison import lower, lowest
from gpustack_mc.coupling import couple
from gpustack_mc.design import DIMENSION_LIMIT, make_design
from gpustack_mc.errors import InputError
from gpustack_mc.fits import utilization_data, utilization_predict
from gpustack_mc.paired import Pairing
from gpustack_mc.priors import quantiles
from gpustack_mc.propagation import simulate
from gpustack_mc.quantities import OUTPUTS
from gpustack_mc.scenario import load_scenario

FIXED = {
    "goodput": 0.9, "gpu_power_fraction": 0.85, "host_power": 400, "pue": 1.2, "electricity_price": 0.08,
    "grid_intensity": 380, "embodied_carbon": 900, "water_onsite": 0.3, "water_offsite": 3.0, "capex": 40000,
    "residual_share": 0.2, "lifetime": 5, "fleet_utilization": 0.8, "cost_of_capital": 0.09, "operations_rate": 0.05,
    "serving_throughput": 1000, "programme_overhead": 3, "interruption_rate": 2e-5,
    "mfu": "{dist: log_uniform, low: 0.2, high: 0.5}",
}  # fmt: skip
CHEAP = "{dist: lognormal, median: 2.0, sigma: 0.3}"
DEAR = "{dist: lognormal, median: 2.5, sigma: 0.5}"
COST = OUTPUTS.index("cost_rented_usd")
NORMAL = NormalDist()


@pytest.fixture
def file(scenario_file):
    def written(price: str, name: str = "plan.yaml", more: str = ""):
        inputs = "".join(f"  {key}: {value}\n" for key, value in FIXED.items()) + f"  rental_price: {price}\n"
        return scenario_file(
            "schema_version: 1\nname: Test\nworkload: {params: 70e9, tokens: 15e12}\n"
            f"cluster: {{accelerator: H100-SXM-80GB, count: 8192}}\ninputs:\n{inputs}{more}",
            name,
        )

    return written


@pytest.fixture
def two(file):
    return [load_scenario(file(CHEAP)), load_scenario(file(DEAR))]


# ---- ties that evidence brings ----


def tied(problem, correlation):
    """A problem whose MFU and goodput evidence ties together."""
    return problem._replace(
        correlated=("mfu", "goodput"), correlation=np.array([[1.0, correlation], [correlation, 1.0]])
    )


def test_scenarios_that_evidence_ties_differently_are_paired(file):
    """Each has its own copula, and the draws of its own run; what is shared is the same score in both."""
    problems = [load_scenario(file(CHEAP), ["goodput={low: 0.8, high: 0.95}"])] * 2
    problems = [tied(problem, correlation) for problem, correlation in zip(problems, (-0.3, -0.6), strict=True)]
    design = make_design(4096)
    paired = Pairing(problems, design).draws()
    for problem, inputs, outputs, varying in zip(problems, paired.inputs, paired.outputs, paired.varying, strict=True):
        alone = simulate(problem, design, with_sensitivity=False)
        assert alone.varying == varying
        np.testing.assert_array_equal(inputs, alone.inputs)
        np.testing.assert_array_equal(outputs, alone.outputs[: len(outputs)])
    row = paired.varying[0].index("mfu")
    np.testing.assert_array_equal(paired.inputs[0][row], paired.inputs[1][row])
    # log B/A of hours is that of goodput, whose scores are L z with the same z: rho z1 + sqrt(1 - rho^2) z2.
    z = np.random.default_rng(0).standard_normal((2, 2**18))
    marginal = problems[0].inputs["goodput"].marginal
    other = [quantiles(marginal, ndtr(rho * z[0] + math.sqrt(1 - rho**2) * z[1])) for rho in (-0.3, -0.6)]
    exact = np.log(other[0] / other[1])
    hours = OUTPUTS.index("accelerator_hours")
    found = np.log(paired.outputs[1][hours] / paired.outputs[0][hours])
    # 4,096 Sobol' points against 2^18 plain draws: each below 1% of the spread.
    np.testing.assert_allclose(np.quantile(found, [0.05, 0.5, 0.95]), np.quantile(exact, [0.05, 0.5, 0.95]),
                               atol=0.02 * np.ptp(np.quantile(exact, [0.05, 0.95])))  # fmt: skip


def test_a_tie_of_one_scenario_alone_makes_one_block(file):
    plain = load_scenario(file(CHEAP), ["goodput={low: 0.8, high: 0.95}"])
    pairing = Pairing([plain, tied(plain, -0.5)], make_design(2048))
    assert "mfu+goodput" in pairing.coupling.blocks
    indices = pairing.indices([(COST, COST)])

    # All of the ratio is between two goodputs of one pair of scores, which the block holds: 1 within Monte Carlo error.
    block = indices.blocks.index("mfu+goodput")
    assert indices.log_ratio[0].total_low[block, 0] < 1 < indices.log_ratio[0].total_high[block, 0]
    assert indices.log_ratio[0].total[block, 0] == pytest.approx(1, abs=0.03)


def test_related_scenarios_with_ties_of_their_own_are_not_run_as_one(file):
    plain = load_scenario(file(CHEAP), ["goodput={low: 0.8, high: 0.95}"])
    problems = [tied(plain, -0.1 * k) for k in range(1, 4)]
    pairing = Pairing(problems, make_design(1024))
    np.testing.assert_allclose(
        pairing.outputs(["training_days"])[:, 0], pairing.draws().outputs[:, OUTPUTS.index("training_days")], rtol=1e-12
    )


# ---- closed forms ----


@pytest.mark.parametrize(("choice", "sigma"), [("common", 0.2), ("independent", math.hypot(0.3, 0.5))])
def test_the_ratio_of_two_lognormal_prices_is_lognormal(two, choice, sigma):
    """MFU is shared and cancels: log B/A is normal with median log(2.5/2) and sd |s2 - s1|, or their hypotenuse."""
    found = Pairing(two, make_design(2**15), choice).draws().outputs[:, COST]
    oracle = NormalDist(math.log(2.5 / 2.0), sigma)
    probabilities = [0.05, 0.25, 0.5, 0.75, 0.95]
    expected = [oracle.inv_cdf(p) for p in probabilities]
    # Three standard errors of plain Monte Carlo for the 5% quantile of 32,768 draws with sd 0.58.
    np.testing.assert_allclose(np.quantile(np.log(found[1] / found[0]), probabilities), expected, atol=0.02)
    # Plain Monte Carlo has a standard error of 0.0026 here.
    assert lower(found[0], found[1]).mean() == pytest.approx(oracle.cdf(0), abs=0.006)


def test_sensitivity_of_the_log_ratio_is_the_share_of_the_variances(two):
    found = Pairing(two, make_design(2**14), "independent").indices([(OUTPUTS.index("cost_rented_usd"),) * 2])
    names, total = found.blocks, found.log_ratio[0].total[:, 0]
    share = 0.3**2 / (0.3**2 + 0.5**2)
    # Indices from 16,384 base samples: a standard error of 0.005 for a share of a quarter.
    expected = {"rental_price of A": share, "rental_price of B": 1 - share, "mfu": 0.0}
    assert dict(zip(names, total, strict=True)) == pytest.approx(expected, abs=0.02)


def test_sensitivity_of_the_difference_against_brute_force(two):
    """D = h(mfu) (p2 - p1): first-order index of each factor from its own variances, in closed form."""
    found = Pairing(two, make_design(2**15), "independent").indices([(OUTPUTS.index("cost_rented_usd"),) * 2])
    first = dict(zip(found.blocks, found.difference[0].first[:, 0], strict=True))
    total = dict(zip(found.blocks, found.difference[0].total[:, 0], strict=True))

    def moments(median, sigma):
        mean = median * math.exp(sigma**2 / 2)
        return mean, mean**2 * math.expm1(sigma**2)

    (m1, v1), (m2, v2) = moments(2.0, 0.3), moments(2.5, 0.5)
    # 1/mfu of a log-uniform: E = (1/a - 1/b) / log(b/a), E2 = (1/a^2 - 1/b^2) / (2 log(b/a)); constants cancel.
    a, b = 0.2, 0.5
    mean = (1 / a - 1 / b) / math.log(b / a)
    second = (1 / a**2 - 1 / b**2) / (2 * math.log(b / a))
    variance = second * (v1 + v2 + (m2 - m1) ** 2) - (mean * (m2 - m1)) ** 2
    expected_first = {
        "rental_price of A": mean**2 * v1 / variance,
        "rental_price of B": mean**2 * v2 / variance,
        "mfu": (second - mean**2) * (m2 - m1) ** 2 / variance,
    }
    # Heavy lognormal tails: the standard error is near 0.01.
    assert first == pytest.approx(expected_first, abs=0.04)
    assert total["mfu"] == pytest.approx((second - mean**2) * (v1 + v2 + (m2 - m1) ** 2) / variance, abs=0.04)


def test_a_whole_comparison_against_brute_force():
    """Two grids and two electricity prices of one run, by NumPy alone: no design, no JAX, no coupling."""
    cases = list(load_cases(["llama-3-70b-quebec", "llama-3-70b-alberta"], (), ()))
    problems = [case.problem for case in cases]
    found = Pairing(problems, make_design(2**15), "independent").draws().outputs[:, OUTPUTS.index("cost_owned_usd")]
    rng = np.random.default_rng(1)
    n = 200_000
    shared = {key: rng.uniform(1e-9, 1 - 1e-9, n) for key in problems[0].inputs}
    costs = []
    for problem in problems:
        own = {key: rng.uniform(1e-9, 1 - 1e-9, n) for key in ("electricity_price", "grid_intensity", "water_offsite")}
        x = {key: quantiles(item.marginal, (shared | own)[key]) for key, item in problem.inputs.items()
             if not item.marginal.is_fixed}  # fmt: skip
        x |= {key: item.marginal.parameters["value"] for key, item in problem.inputs.items() if item.marginal.is_fixed}
        flop = 6 * x["params"] * x["tokens"]
        hours = flop / (x["peak_flop_per_s"] * x["mfu"] * x["goodput"]) / 3600
        energy = hours * (x["tdp"] * x["gpu_power_fraction"] + x["host_power"]) * x["pue"] / 1000
        rate, life, left = x["cost_of_capital"], x["lifetime"], x["residual_share"]
        annuity = (1 - left * np.exp(-rate * life)) * rate / (1 - np.exp(-rate * life))
        busy = 8766 * x["fleet_utilization"]
        # The model's straight-line loss plus capital cost: an annuity on the loss, interest on the rest.
        per_year = (1 - left) * rate / (1 - np.exp(-rate * life)) + rate * left + x["operations_rate"]
        assert np.all(per_year > annuity)  # sanity of the oracle
        costs.append(hours / busy * x["capex"] * per_year + energy * x["electricity_price"])
    # Errors of the oracle: 0.1% of a chance at 200,000 draws; of its quantiles 0.3%.
    assert (found[1] < found[0]).mean() == pytest.approx((costs[1] < costs[0]).mean(), abs=0.005)
    probabilities = [0.05, 0.5, 0.95]
    np.testing.assert_allclose(
        np.quantile(found[1] / found[0], probabilities), np.quantile(costs[1] / costs[0], probabilities), rtol=0.003
    )


# ---- coupling ----


def test_the_first_scenario_has_the_draws_of_run():
    problem = load_scenario("llama-3-70b-us")
    design = make_design(4096, seed=5)
    other = load_scenario("llama-3-70b-us", ["site.region=CA-QC"])
    found = Pairing([problem, other], design).draws()
    alone = simulate(problem, design, with_sensitivity=False)
    np.testing.assert_array_equal(found.outputs[0], alone.outputs)
    # And the other one too: what differs is at the same quantile, from the stream of the same name.
    np.testing.assert_array_equal(found.outputs[1], simulate(other, design, with_sensitivity=False).outputs)


def test_shared_inputs_have_equal_draws_and_identical_scenarios_do_not_differ():
    found = run_comparison(["llama-3-70b-us", "llama-3-70b-us"], samples=1024, with_files=False).summary
    assert all(entry["same"] for entry in found["comparisons"][0]["outputs"].values())
    assert found["differences"] == []
    assert all(answer["probability"] == 0.5 for answer in found["lowest"]["cost_owned_usd"].values())


def test_regions_that_fall_back_on_the_same_data_are_not_the_same_region():
    """Quebec and Alberta have Canada's water figures; under independence each has its own value of them."""
    problems = [load_scenario("llama-3-70b-quebec"), load_scenario("llama-3-70b-alberta")]
    how = {difference.key: difference.how for difference in couple(problems, "independent").differences}
    assert how == dict.fromkeys(("electricity_price", "grid_intensity", "water_offsite"), "independent")
    found = Pairing(problems, make_design(1024), "independent").draws()
    water = [x[names.index("water_offsite")] for x, names in zip(found.inputs, found.varying, strict=True)]
    assert abs(np.corrcoef(np.log(water))[0, 1]) < 0.1  # 3 standard errors of 1,024 independent pairs


def test_mfu_of_two_accelerators_has_the_correlation_of_the_hierarchical_model():
    """Brute force: team, run and record effects drawn for each posterior draw, unknown covariates at random."""
    problems = [load_scenario("llama-3-70b", o) for o in ((), ["cluster.accelerator=A100-SXM-80GB"])]
    rows = [coupling.planned_run(p.file, coupling.catalog.find_accelerator(p.file.cluster.accelerator),
                                 coupling.medians(p.inputs), p.year) for p in problems]  # fmt: skip
    fit = efficiency.catalog.fit_record("utilization")
    posterior, features = efficiency.draws(), utilization_data.features(rows, fit["constants"], fit["settings"])
    rng = np.random.default_rng(0)
    size, repeats = len(posterior.beta), 400
    s = np.repeat(np.arange(size), repeats)
    team = rng.normal(size=len(s)) * posterior.scalar["family_sd"][s]
    unknown = rng.normal(size=(len(s), features.mean.shape[1]))
    values = []
    record = efficiency.published_record(fit["constants"])
    loose = posterior.scalar["loose_uniform"][s] < record.loose
    for i in range(2):
        covariates = features.mean[i] + unknown * np.sqrt(features.variance[i])
        generation = posterior.generation.get(
            features.generation[i], posterior.generation[utilization_predict.NEW_GENERATION]
        )[s]
        noise = rng.normal(size=len(s)) * np.sqrt(
            posterior.scalar["run_sd"][s] ** 2
            + fit["settings"]["exact_record_sd"] ** 2
            + loose * posterior.scalar["record_sd"][s] ** 2
        )
        values.append((posterior.beta[s] * covariates).sum(axis=1) + generation + team + noise)
    # Both runs leave the same covariates open here, so that one normal stands for each in both.
    np.testing.assert_allclose(features.variance[0], features.variance[1], rtol=0.2, atol=1e-3)
    found = efficiency.mfu_correlation(rows)
    assert found[0, 1] == pytest.approx(np.corrcoef(values)[0, 1], abs=0.01)
    realised = Pairing(problems, make_design(2**13), "common").draws()
    mfu = [np.log(x[names.index("mfu")]) for x, names in zip(realised.inputs, realised.varying, strict=True)]
    # The copula couples normal scores; MFU is nearly lognormal, so that its logarithm has nearly their correlation.
    assert np.corrcoef(mfu)[0, 1] == pytest.approx(found[0, 1], abs=0.02)


def test_stated_correlations_stay(file):
    more = "correlations: [{between: [mfu, rental_price], rank: 0.6}]\n"
    problems = [load_scenario(file(CHEAP, "a.yaml", more)), load_scenario(file(DEAR, "b.yaml", more))]
    pairing = Pairing(problems, make_design(2**13), "independent")
    found = pairing.draws()
    for x in found.inputs:
        ranks = np.argsort(np.argsort(x, axis=1), axis=1)
        assert np.corrcoef(ranks)[0, 1] == pytest.approx(0.6, abs=0.02)  # 2 standard errors of 8,192 pairs
    assert list(pairing.coupling.blocks) == ["mfu+rental_price"]
    with pytest.raises(InputError, match="different correlations"):
        couple([problems[0], load_scenario(file(DEAR, "c.yaml"))], "common")


def test_many_independent_groups_have_independent_streams():
    prices = [f"rental_price={{dist: lognormal, median: {2 + i / 10}, sigma: 0.3}}" for i in range(6)]
    problems = [load_scenario("worked-7b", [price]) for price in prices]
    pairing = Pairing(problems, make_design(2**15), "independent")
    assert [stream.dimension is None for stream in pairing.coupling.streams] == [False] + [True] * 5
    u = pairing.streams(0, 0, 2**11)
    # Four standard errors of the correlation of 2,048 independent pairs.
    np.testing.assert_allclose(np.corrcoef(u), np.eye(6), atol=4 / math.sqrt(2**11))


# ---- what is counted ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["llama-3-70b"], (), ["site.region=US-CA,FR"]), "A direct, B lifecycle. Count it alike: --set site"),
        ((["llama-3-70b"], (), ["accounting=published,clean"]), "A published, B clean"),
        ((["llama-3-70b"], ["grid_intensity=300"], ["site.carbon_accounting=location,market"]),
         "A location-based, B market-based"),
        ((["llama-3-70b"], (), ["ownership=own,rent,either"]), "State `ownership: own` or `rent` in each"),
        ((["llama-3-70b"], (), ()), "there is nothing to compare with"),
        ((["llama-3-70b"], (), ["site.region"]), "not of the form key=value,value"),
        ((["llama-3-70b"], (), ["site.region=US,"]), "a value is empty"),
        ((["llama-3-70b"], (), ["site.region=US,Atlantis"]), "'Atlantis' is not a known region"),
        ((["llama-3-70b", "llama-3-70b-us"], (), ["mfu=0.3,0.4"]), "--vary makes variants of one scenario"),
        ((["llama-3-70b"], (), ["mfu=" + ",".join(["0.4"] * 13)]), "there are 13 scenarios to compare"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_said(arguments, message):
    sources, overrides, vary = arguments
    with pytest.raises(InputError) as error:
        run_comparison(sources, overrides, vary, with_files=False, samples=256)
    assert message in str(error.value)


def test_a_scenario_with_checkpoints_is_compared_with_one_without():
    """The one has outputs that the other lacks; those of both are compared, and goodput is where they differ."""
    problems = [load_scenario("llama-3.1-405b"), load_scenario("llama-3.1-405b-checkpoints")]
    pairing = Pairing(problems, make_design(256))
    assert pairing.draws().outputs.shape[:2] == (2, len(OUTPUTS))
    assert problems[1].outputs[: len(OUTPUTS)] == OUTPUTS
    for way in (problems, problems[::-1]):
        found = Pairing(way, make_design(256)).draws()
        place = OUTPUTS.index("energy_mwh")
        assert not np.array_equal(found.outputs[0, place], found.outputs[1, place])


def test_more_streams_than_a_sequence_has_dimensions():
    """Of several hundred variants the streams are drawn in parts; numbers within a part differ, and so do the draws."""
    capex = "capex={{dist: lognormal, median: {}, sigma: 0.2}}"
    problems = [load_scenario("worked-7b", [capex.format(median)]) for median in (3e4, 4e4)]
    pairing = Pairing(problems, make_design(256), "independent")
    own, other = pairing.coupling.streams
    # The one with a dimension of its own stands first, so that those of Latin hypercubes do not start at 0.
    many = [own, *(other._replace(name=f"capex~{i}") for i in range(DIMENSION_LIMIT + 3))]
    pairing.coupling = pairing.coupling._replace(streams=many)
    u = pairing.streams(0, 0, 16)
    assert u.shape == (len(many), 16)
    assert len(np.unique(u[:, 0])) == len(many)


def test_carbon_on_two_bases_is_no_obstacle_for_other_outputs():
    found = run_comparison(["llama-3-70b"], (), ["site.region=US-CA,FR"], outputs="cost_owned_usd",
                           with_files=False, samples=1024).summary  # fmt: skip
    assert set(found["comparisons"][0]["outputs"]) == {"cost_owned_usd"} and found["basis"] == {}


def test_own_or_rent_compares_the_two_costs_and_says_so():
    done = run_comparison(["llama-3-70b"], (), ["ownership=own,rent"], with_files=False, samples=4096)
    cost = done.summary["comparisons"][0]["outputs"]["cost_usd"]
    simulation = simulate(load_scenario("llama-3-70b"), make_design(4096), with_sensitivity=False)
    own, rent = (simulation.outputs[OUTPUTS.index(f"cost_{kind}_usd")] for kind in ("owned", "rented"))
    assert cost["other_lower"]["probability"] == pytest.approx((rent < own).mean(), abs=1e-12)
    assert "A owned, B rented" in done.text
    assert "other_lower_if_independent" not in cost  # nothing differs whose coupling would be a choice


def test_values_with_commas_inside_brackets():
    assert variants_of("mfu={low: 0.3, high: 0.4}, 0.5") == ["mfu={low: 0.3, high: 0.4}", "mfu=0.5"]
    assert variants_of("inputs.mfu='a,b'") == ["inputs.mfu='a,b'"]


def test_rows_of_outputs_are_checked():
    problem = load_scenario("llama-3-70b")
    with pytest.raises(InputError, match=r"the scenario has no output 'cost_owned'\. Did you mean cost_owned_usd"):
        rows_of([problem, problem], "cost_owned")


# ---- pieces ----


def test_ties_are_divided():
    values = np.array([[1.0, 2.0, 3.0], [1.0, 1.0, 3.0 + 1e-15], [2.0, 2.0, 3.0]])
    np.testing.assert_allclose(lowest(values), [[0.5, 0, 1 / 3], [0.5, 1, 1 / 3], [0, 0, 1 / 3]])
    np.testing.assert_allclose(lower(values[0], values[1]), [0.5, 1, 0.5])


def test_files_are_whole_and_hold_the_pairs(tmp_path):
    done = run_comparison(["llama-3-70b-us"], (), ["site.region=CA-QC,CA-AB"], samples=1024, out=tmp_path)
    stored = json.loads((tmp_path / "comparison.json").read_text())
    assert stored == json.loads(json.dumps(done.summary))
    assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")
    with xr.open_datatree(tmp_path / "paired.nc") as tree:
        cost = tree["prior_predictive"]["cost_owned_usd"]
        assert cost.dims == ("chain", "draw", "scenario")
        chance = float((cost[0, :, 1] < cost[0, :, 0]).mean())
        shared = tree["prior"]["mfu"].values[0]
        assert float(tree["prior"]["tdp"][0, 0, 1]) == 700
    assert chance == pytest.approx(stored["comparisons"][0]["outputs"]["cost_owned_usd"]["other_lower"]["probability"])
    np.testing.assert_array_equal(shared[:, 0], shared[:, 1])


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others():
    def found(seed):
        done = run_comparison(["llama-3-70b"], (), ["cluster.accelerator=B200-SXM"], samples=512, seed=seed,
                              with_files=False)  # fmt: skip
        return json.dumps(done.summary["comparisons"])

    assert found(0) == found(0) != found(1)


def test_drivers_are_told_by_the_rule_of_a_run():
    def index(total, half=0.05):
        return {"S1": total, "S1_interval_90": [total - half, total + half], "ST": total,
                "ST_interval_90": [total - half, total + half]}  # fmt: skip

    sound, wild, log = {"a": index(0.7), "b": index(0.5)}, {"a": index(4.8, 3.0)}, {"a": index(0.2), "b": index(0.9)}
    told = comparison_text.drivers_of({"sensitivity_difference": sound, "sensitivity_log_ratio": log})
    assert told == ("raw", [("a", sound["a"]), ("b", sound["b"])])
    told = comparison_text.drivers_of({"sensitivity_difference": wild, "sensitivity_log_ratio": log})
    assert told == ("log", [("b", log["b"]), ("a", log["a"])])
    constant = {"status": "constant"}
    assert comparison_text.drivers_of({"sensitivity_difference": constant, "sensitivity_log_ratio": constant})[1] == []
