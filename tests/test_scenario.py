"""Reading scenarios: every form of a statement, where each input comes from, and every way of being wrong."""

import json

import numpy as np
import pytest

from gpustack_mc import priors
from gpustack_mc.errors import InputError, InputErrors
from gpustack_mc.scenario import load_scenario

BASE = """\
schema_version: 1
name: Test
workload: {params: 7e9, tokens: 2e12}
cluster: {accelerator: H100-SXM-80GB, count: 1024}
site: {region: US}
"""


@pytest.fixture
def load(scenario_file):
    def loaded(more: str = "", *overrides: str, base: str = BASE):
        return load_scenario(scenario_file(base + more), overrides)

    return loaded


def inputs(text: str) -> str:
    return "inputs:\n" + "".join(f"  {line}\n" for line in text.splitlines())


# ---- forms ----


@pytest.mark.parametrize(
    ("statement", "probabilities", "values"),
    [
        ("mfu: 0.4", [0.1, 0.9], [0.4, 0.4]),
        ("mfu: 40%", [0.5], [0.4]),
        ("mfu: {low: 0.32, high: 0.45}", [0.05, 0.95], [0.32, 0.45]),
        ("mfu: {low: 0.32, high: 0.45, mass: 0.5}", [0.25, 0.75], [0.32, 0.45]),
        ("capex: {median: 40000, p90: 60 kUSD}", [0.5, 0.9], [40e3, 60e3]),
        ("electricity_price: {low: 50 USD/MWh, high: 0.09 USD/kWh}", [0.05, 0.95], [0.05, 0.09]),
        ("pue: {dist: uniform, low: 1, high: 1.5}", [0.2], [1.1]),
        ("lifetime: {dist: triangular, low: 2, mode: 4, high: 8}", [1 / 3], [4]),
        ("lifetime: {dist: truncated_normal, mean: 4 years, sd: 1, low: 24 months, high: 6}", [0.5], [4]),
        ("capex: {dist: lognormal, median: 40000, sigma: 0.2}", [0.5], [40e3]),
        ("mfu: {dist: beta, a: 2, b: 2}", [0.5], [0.5]),
        ("rental_price: {choice: [1.7 USD/h, 2.4 USD/h], weights: [1, 3]}", [0.2, 0.3], [1.7, 2.4]),
        ("mfu: {sample: [0.3, 0.4, 0.5]}", [0.1, 0.5, 0.9], [0.3, 0.4, 0.5]),
        ("grid_intensity: 380 g/kWh", [0.5], [380]),
        ("host_power: {dist: normal, mean: 400 W, sd: 20}", [0.5], [400]),
    ],
)
def test_forms(load, statement, probabilities, values):
    problem = load(inputs(statement))
    item = problem.inputs[statement.partition(":")[0]]
    assert item.origin == "entered"
    # The quantile table of a beta interpolates to 2e-5; the other families are exact.
    np.testing.assert_allclose(priors.quantiles(item.marginal, probabilities), values, rtol=2e-5)


def test_exchange_rate(load):
    problem = load("exchange_rates: {EUR: 1.08}\n" + inputs("electricity_price: 85 EUR/MWh"))
    assert problem.inputs["electricity_price"].marginal.parameters["value"] == pytest.approx(0.0918)


def test_another_population_of_a_fitted_prior(load):
    ours = load().inputs["rental_price"]
    other = load(inputs("rental_price: {prior: rental_price, where: {provider_kind: marketplace, year: 2026}}"))
    chosen = other.inputs["rental_price"]
    assert chosen.origin == "fitted"
    assert chosen.where["provider_kind"] == "marketplace"
    assert chosen.marginal != ours.marginal


def test_unstated_inputs_come_from_the_nearest_population(load):
    found = load().inputs
    assert found["electricity_price"].where == {"region": "US"}
    assert found["grid_intensity"].where == {"region": "US", "carbon_basis": "direct"}
    assert all(item.sources for item in found.values() if item.origin in ("fitted", "assumed", "cited"))


def test_a_region_without_its_own_data_says_so(load):
    item = load("", "site.region=Nunavut").inputs["electricity_price"]
    assert item.where == {"region": "CA"}
    assert item.missed == ("region=CA-NU",)


@pytest.mark.parametrize("word", ["US-CA", "us-ca", "California"])
def test_regions_by_id_or_name(load, word):
    assert load("", f"site.region={word}").inputs["electricity_price"].where == {"region": "US-CA"}


def test_carbon_basis_is_a_switch(load):
    direct, lifecycle = (load("", f"site.carbon_basis={basis}") for basis in ("direct", "lifecycle"))
    assert direct.basis["carbon_basis"] == "direct"
    assert lifecycle.inputs["grid_intensity"].where == {"region": "US", "carbon_basis": "lifecycle"}
    # France has life-cycle figures only: without a stated basis they are used, and named.
    assert load("", "site.region=FR").basis["carbon_basis"] == "lifecycle"


def test_moe_and_precision_inform_the_prior(load):
    dense = load("", "workload.params=671e9")
    moe = load("", "workload.params=671e9", "workload.active_params=37e9", "cluster.precision=fp8")
    assert moe.inputs["peak_flop_per_s"].marginal.parameters["value"] == 1979e12
    middle = [float(priors.quantiles(p.inputs["mfu"].marginal, [0.5])[0]) for p in (dense, moe)]
    assert middle[1] < middle[0]


PHASES = """\
schema_version: 1
name: Test
workload:
  params: 405e9
  n_layers: 126
  d_model: 16384
  phases:
    - {name: main, tokens: 15e12}
    - {name: long context, tokens: 0.8e12, sequence_length: 131072, mfu: {low: 0.3, high: 0.4}, count: 8192}
cluster: {accelerator: H100-SXM-80GB, count: 16384}
"""


def test_phases(load):
    problem = load(base=PHASES)
    main, long = problem.phases
    assert main.keys["mfu"] == "mfu"
    assert long.keys["mfu"] == "mfu@long context"
    assert problem.inputs["accelerator_count@long context"].marginal.parameters["value"] == 8192
    attention = 6 * 126 * 16384
    expected = (6 * 405e9 + attention * 131072) / (6 * 405e9 + attention * 2048)
    assert problem.inputs["context_flop_factor@long context"].marginal.parameters["value"] == pytest.approx(expected)


def test_correlations_are_rank_correlations(load):
    problem = load("correlations: [{between: [mfu, goodput], rank: 0.5}]\n")
    assert problem.correlated == ("mfu", "goodput")
    assert problem.correlation[0, 1] == pytest.approx(2 * np.sin(np.pi * 0.5 / 6))


def test_overrides_win_and_are_part_of_the_digest(load):
    plain, changed = load(), load("", "mfu=0.41", "cluster.count=512")
    assert changed.inputs["mfu"].marginal.parameters["value"] == 0.41
    assert changed.inputs["accelerator_count"].marginal.parameters["value"] == 512
    assert plain.digest != changed.digest
    assert "--set mfu=0.41" in changed.text


# ---- every way of being wrong: one line, with the place, the value and the remedy ----

BAD_INPUTS = [
    ("mfu: 38", "7:8", "inputs.mfu: 38 is above 1. MFU is a share of peak FLOP/s: 38% is written 0.38."),
    ("pue: 0.9", "7:8", "inputs.pue: 0.9 is below 1. PUE is facility energy over IT energy"),
    ("mfu: {low: 0.5, high: 0.3}", "7:8", "low (0.5) must be below high (0.3)"),
    ("mfu: {low: 0.3, high: 0.5, mass: 0}", "7:36", "inputs.mfu.mass: 0 is not between 0.01 and 0.999999"),
    ("mfu: {low: 0.3, high: 0.5, mass: 1}", "7:36", "inputs.mfu.mass: 1 is not between 0.01 and 0.999999"),
    ("mfu: {low: 0.3, high: 0.5, mass: 1e-300}", "7:36", "inputs.mfu.mass: 1e-300 is not between"),
    ("capex: {dist: lognormal, mu: 900, sigma: 1}", "7:10", "this lognormal reaches"),
    ("tdp: {prior: tdp}", "7:8", "fitted priors describe inputs"),
    ("mfu: {low: 0, high: 0.5}", "7:14", "inputs.mfu.low: 0 is not possible"),
    (
        "pue: {low: 1, high: 1.5}",
        "7:8",
        "pue never reaches it. State a value inside, or a distribution that ends there",
    ),
    ("mfu: {low: 0.3}", "7:8", "inputs.mfu.high: is missing"),
    ("mfu: {low: 0.3, hihg: 0.5}", "7:8", "inputs.mfu.high: is missing"),
    ("mfu: {median: 0.3}", "7:8", "exactly two quantiles"),
    ("mfu: {median: 0.3, p90: 0.4, p10: 0.2}", "7:8", "exactly two quantiles"),
    ("mfu: {dist: norml, mean: 0.3, sd: 0.1}", "7:15", "'norml' is not one of"),
    ("mfu: {dist: normal, mean: 0.3, sd: 0.1}", "7:8", "below 0; MFU is a share"),
    ("mfu: {dist: normal, mean: 0.3, sd: 0}", "7:8", "sd is 0 and must be above 0"),
    ("mfu: {dist: normal, mean: 0.3}", "7:8", "sd is missing"),
    ("mfu: {dist: uniform, low: 0.3, high: 0.4, sd: 1}", "7:8", "uniform has no parameter sd"),
    ("mfu: {choice: [0.3, 0.4], weights: [1]}", "7:8", "1 weights for 2 values"),
    ("mfu: {choice: [0.3, 0.4], weights: [-1, 2]}", "7:8", "weights must be 0 or above"),
    ("mfu: {sample: [0.3, 4]}", "7:23", "inputs.mfu.sample.1: 4 is above 1"),
    ("mfu: 0", "7:8", "0 is not possible"),
    ("mfu: .nan", "7:8", "is not a finite number"),
    ("mfu: .inf", "7:8", "is not a finite number"),
    ("mfu:", "7:3", "has no value"),
    ("mfu: true", "7:8", "True is not a number"),
    ("mfu: [0.3, 0.4]", "7:8", "is not a number"),
    ("mfu: 38%%", "7:8", "no unit that is known. Write a plain number"),
    ("mfu: 0.36-0.44", "7:8", "Write a plain number, such as 0.4 or 7e9, or {low: ..., high: ...}"),
    ("capex: 4 M USD", "7:10", "Write it in USD, such as 4e6 USD or 4 MUSD"),
    ("lifetime: 1 h**9**9**9", "7:13", "no unit that is known"),
    ("mfu: {dist: truncated_normal, mean: 0.9, sd: 0.001, low: 0.1, high: 0.5}", "7:8", "has no mass between"),
    ("mfu: {dist: beta, a: 2, b: 1e200}", "7:8", "use a value between 0.001 and 1e6"),
    ("mfu: about 40", "7:8", "'about 40' is not a number"),
    ("electricity_price: 85 EUR/MWh", "7:22", "the scenario states no rate"),
    ("electricity_price: 0.08 USD/kW", "7:22", "is a price of power, but this is a price of energy"),
    ("host_power: 5 kWh", "7:15", "is an energy, but this is a power"),
    ("mfuu: 0.4", "7:3", "unknown key 'mfuu' in inputs. Did you mean mfu?"),
    ("rental_price: {prior: rentalprice}", "7:25", "there is no prior 'rentalprice'. Did you mean rental_price"),
    ("rental_price: {prior: mfu}", "7:25", "mfu is predicted from the whole scenario"),
    ("rental_price: {prior: pue}", "7:25", "the prior of pue is in 1, not in USD/h"),
    ("mfu: {prior: programme_overhead}", "7:8", "the prior of programme_overhead reaches"),
    ("rental_price: {prior: rental_price, where: {colour: red}}", "7:", "this prior does not depend on it"),
    ("rental_price: {prior: rental_price, where: {term: forever}}", "7:", "'forever' has no data"),
]


@pytest.mark.parametrize(("statement", "place", "message"), BAD_INPUTS, ids=[case[0] for case in BAD_INPUTS])
def test_bad_inputs(load, tmp_path, statement, place, message):
    with pytest.raises(InputError) as caught:
        load(inputs(statement))
    text = str(caught.value)
    assert text.startswith(f"{tmp_path}/plan.yaml:{place}")
    assert message in text
    assert "\n" not in text
    assert caught.value.exit_code == 2


BAD_SETS = [
    ("workload.params=-7e9", "is below 1"),
    ("workload.params=0", "is below 1"),
    ("workload.params=1e30", "is above 1e+16. No model has"),
    ("workload.params=7 billion", "mixes a number and a word. Write 7e+09"),
    ("workload.tokens=-1", "is below 1"),
    ("workload.active_params=8e9", "is more than all 7e+09 parameters"),
    ("cluster.count=0", "is below 1. A run needs at least 1"),
    ("cluster.count=10.5", "is not a whole number"),
    ("cluster.count=many", "'many' is not a number"),
    ("cluster.accelerator=H1000", "not a known accelerator. Did you mean H100"),
    ("cluster.accelerator=A100-SXM-80GB", None),
    ("cluster.precision=fp4", "'fp4' is not one of"),
    ("site.region=Atlantis", "is not a known region"),
    ("site.regoin=US", "unknown key 'regoin' in site. Did you mean region?"),
    ("nonsense=1", "unknown key 'nonsense'"),
    ("schema_version=2", "2 is not one of 1"),
    ("date=yesterday", "is not a date"),
    ("date=1066", "is not a date"),
    ("date=2024-99-99", "is not a date"),
    ("name='a\u202eb'", "name: holds control characters"),
    ("clustr.count=4", "unknown key 'clustr'. Did you mean cluster"),
    ("²=1", "unknown key '²'"),
    (".".join("a" * 3000) + "=1", "nested too deep"),
    ("workload.params=13", "is below 10000. No model has"),
    ("workload.params={prior: mfu}", "fitted priors describe inputs"),
    ("exchange_rates={EUR: 1" + "0" * 350 + "}", "is not a rate"),
    ("questions.budget=15", "15 has no unit. Write it with one, such as 15 USD"),
    ("questions.deadline=30 kWh", "is an energy, but this is a time"),
    ("questions.budget=0 USD", "a limit of 0 is never kept"),
    ("site.carbon_accounting=market", "State inputs.grid_intensity"),
    ("exchange_rates={EUR: -1}", "is not a rate"),
    ("published={energy_mwh: {value: 3 kW, source: x}}", "is a power, but this is an energy"),
    ("published={enrgy_mwh: {value: 3, source: x}}", "Did you mean energy_mwh"),
    ("correlations=[{between: [mfu, goodput], rank: 2}]", "correlations.0.rank"),
    ("correlations=[{between: [mfu, nothing], rank: 0.2}]", "there is no input 'nothing'"),
    ("correlations=[{between: [mfu, tdp], rank: 0.2}]", "tdp is fixed"),
    ("correlations=[{between: [mfu, mfu], rank: 0.2}]", "must be two inputs"),
    ("mfu", "not of the form key=value"),
    ("workload.params.x=1", "there is no workload.params.x to set"),
]


@pytest.mark.parametrize(("override", "message"), BAD_SETS, ids=[case[0] for case in BAD_SETS])
def test_bad_overrides_name_themselves(load, override, message):
    if message is None:
        load("", override)
        return
    with pytest.raises(InputError) as caught:
        load("", override)
    shown = "".join(c if c.isprintable() else "?" for c in override)
    cut = shown if len(shown) <= 80 else f"{shown[:77]}..."
    assert str(caught.value).startswith(f"--set {cut}")
    assert len(str(caught.value)) < 500
    assert message in str(caught.value)


def test_correlations_must_be_possible(load):
    pairs = [("mfu", "goodput", 0.9), ("mfu", "pue", 0.9), ("goodput", "pue", -0.9)]
    rows = "".join(f"  - {{between: [{a}, {b}], rank: {r}}}\n" for a, b, r in pairs)
    with pytest.raises(InputError, match="not positive definite"):
        load("correlations:\n" + rows)


def test_a_missing_peak_and_a_missing_tdp(load):
    with pytest.raises(InputError, match="no dense fp8 peak is known for A100"):
        load("", "cluster.accelerator=A100-SXM-80GB", "cluster.precision=fp8")
    with pytest.raises(InputError, match="no TDP for TPUv5p"):
        load("", "cluster.accelerator=TPUv5p")
    assert load("", "cluster.accelerator=TPUv5p", "tdp=450 W").inputs["tdp"].origin == "entered"


def test_an_accelerator_of_ones_own(load):
    with pytest.raises(InputErrors) as caught:
        load("", "cluster.accelerator=other")
    assert {error.code for error in caught.value.errors} == {"unknown-peak", "unknown-tdp"}
    stated = ["peak_flop_per_s=500 TFLOP/s", "tdp=400 W"]
    with pytest.raises(InputErrors, match=r"the fitted prior needs .* State a value"):
        load("", "cluster.accelerator=other", *stated)
    stated += ["capex=20000", "rental_price=1.5", "serving_throughput=300", "host_power=200"]
    assert load("", "cluster.accelerator=other", *stated).inputs["mfu"].where == {}


def test_several_errors_are_counted_and_all_are_kept(load):
    with pytest.raises(InputErrors) as caught:
        load(inputs("pue: 0.9\nmfu: 38"))
    assert str(caught.value).endswith("(1 more: see `gpustack-mc check`)")
    assert [error.place.line for error in caught.value.errors] == [7, 8]
    document = json.loads(json.dumps(caught.value.as_dict()))
    assert document["error"]["where"]["line"] == 7
    assert len(document["errors"]) == 2


@pytest.mark.parametrize("text", ["- a\n- b\n", "just words\n", "42\n"])
def test_not_a_mapping(scenario_file, text):
    with pytest.raises(InputError, match="not a mapping"):
        load_scenario(scenario_file(text))


@pytest.mark.parametrize("key", ["schema_version", "name", "workload", "cluster"])
def test_missing_sections(load, key):
    text = "".join(line + "\n" for line in BASE.splitlines() if not line.startswith(key))
    with pytest.raises(InputError, match=rf"{key}: is missing\. Add"):
        load(base=text)


def test_tokens_or_phases(load):
    with pytest.raises(InputError, match=r"workload\.tokens: is missing"):
        load(base=BASE.replace(", tokens: 2e12", ""))
    both = PHASES.replace("params: 405e9", "params: 405e9\n  tokens: 1e12")
    with pytest.raises(InputError, match="is stated beside phases"):
        load(base=both)
    shapeless = PHASES.replace("  n_layers: 126\n", "")
    with pytest.raises(InputError, match=r"State workload\.n_layers and workload\.d_model"):
        load(base=shapeless)
    twice = PHASES.replace("long context", "main")
    with pytest.raises(InputError, match="must be unique"):
        load(base=twice)
