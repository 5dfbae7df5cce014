"""The page with sliders computes what Python computes, and says it in the same words."""

import base64
import hashlib
import json
import re

import numpy as np
import pytest
from test_javascript import needs_node, run_node

from gpustack_mc import formatting, interactive, load_scenario, priors, report, simulate, summarizing
from gpustack_mc.cli import main
from gpustack_mc.errors import InputError
from gpustack_mc.result import write

# Single precision of the inputs is the only difference; the steps of the model do not amplify it by more than 100.
ROUNDING = 1e-5


def shown(tree):
    """What the page holds of a result."""
    found = summarizing.summarise(tree)
    return interactive.values(tree, found, [str(i) for i in range(len(found["questions"]))])


def evaluate(tree, moves, wanted):
    """Move inputs as the page does, and return its outputs by name; a move is (key, value, width)."""
    page = shown(tree)
    program = f"""{page["script"]}
    const data = {page["data"]};
    const x = inputsOf(data);
    for (const [key, value, width] of {json.dumps(moves)}) {{
      const control = data.controls.find((each) => each.key === key);
      control.least = control.least ?? -Infinity;
      control.most = control.most ?? Infinity;
      x[control.input] = move(x[control.input], control, value, width);
    }}
    const y = evaluate(x, data);
    console.log(JSON.stringify({json.dumps(wanted)}.map((i) => Array.from(y[i]))));"""
    return np.array(run_node(program))


@needs_node
@pytest.mark.parametrize(
    "scenario", ["llama-3-70b", "deepseek-v3", "bloom-176b-running", "llama-3.1-405b-checkpoints", "worked-7b"]
)
def test_the_page_computes_the_outputs_of_the_result(scenario):
    """One phase, several, a job that runs, failures with the best checkpoints, and no spread."""
    tree = simulate(scenario, samples=512)
    outputs = tree["prior_predictive"].data_vars
    found = evaluate(tree, [], list(range(len(outputs))))
    stored = np.stack([variable.values[0, interactive.places(tree)] for variable in outputs.values()])
    np.testing.assert_allclose(found, stored, rtol=ROUNDING)


@needs_node
def test_a_stated_checkpoint_interval(scenario_file, root):
    text = (root / "scenarios" / "llama-3.1-405b-checkpoints.yaml").read_text(encoding="utf-8")
    tree = simulate(load_scenario(scenario_file(text), ["reliability.checkpoint_interval=20 min"]), samples=256)
    names = list(tree["prior_predictive"].data_vars)
    found = evaluate(tree, [], [names.index("expected_goodput")])[0]
    np.testing.assert_allclose(found, tree["prior_predictive"]["expected_goodput"].values[0], rtol=ROUNDING)


@needs_node
def test_fixing_an_input_is_running_the_scenario_with_its_value(llama):
    """The other inputs keep their draws in both, so that the outputs agree draw by draw."""
    tree = llama[0]
    again = simulate(load_scenario("llama-3-70b", ["rental_price=3", "pue=1.3"]), samples=4096)
    names = list(tree["prior_predictive"].data_vars)
    wanted = ["cost_rented_usd", "energy_mwh", "cost_owned_usd"]
    moves = [["rental_price", 3.0, 0], ["pue", 1.3, 0]]
    found = evaluate(tree, moves, [names.index(name) for name in wanted])
    for name, row in zip(wanted, found, strict=True):
        np.testing.assert_allclose(row, again["prior_predictive"][name].values[0], rtol=ROUNDING)


def logit(x):
    return np.log(x / (1 - x))


@needs_node
@pytest.mark.parametrize(
    ("scale", "forward", "draws", "value"),
    [
        ("log", np.log, np.array([0.5, 1.0, 2.0, 8.0, 20.0]), 3.0),
        ("log_above_one", lambda x: np.log(x - 1), np.array([1.01, 1.1, 1.2, 1.4, 2.0]), 1.5),
        ("logit", logit, np.array([0.1, 0.4, 0.5, 0.7, 0.9]), 0.8),
        ("linear", lambda x: x, np.array([-1.0, 0.0, 1.0, 2.0, 5.0]), -2.0),
    ],
)
@pytest.mark.parametrize("width", [1.0, 0.5, 1.5, 0.0])
def test_moving_shifts_and_scales_on_the_scale_of_the_prior(llama, scale, forward, draws, value, width):
    control = {"scale": scale, "middle": float(np.median(draws)), "least": -1e9, "most": 1e9}
    program = f"move(Float64Array.from({draws.tolist()}), {json.dumps(control)}, {value}, {width})"
    found = run_node(f"{shown(llama[0])['script']}console.log(JSON.stringify(Array.from({program})));")
    wanted = forward(value) + width * (forward(draws) - forward(np.median(draws)))
    np.testing.assert_allclose(forward(np.array(found)), wanted, rtol=1e-12, atol=1e-12)


@needs_node
def test_a_share_of_one_stays_one_and_bounds_hold(llama):
    control = {"scale": "logit", "middle": 0.5, "least": 0, "most": 0.95}
    program = f"move(Float64Array.from([0, 0.5, 1]), {json.dumps(control)}, 0.6, WIDTH)"
    script = shown(llama[0])["script"]
    for width, wanted in ((1, [0, 0.6, 0.95]), (0, [0.6, 0.6, 0.6])):
        text = f"console.log(JSON.stringify(Array.from({program.replace('WIDTH', str(width))})));"
        assert run_node(script + text) == pytest.approx(wanted)


@needs_node
def test_sliders_begin_at_the_median_and_rise(llama):
    page = shown(llama[0])
    text = "data.controls.map((c) => [home(c), c.middle, ...Array.from({length: 201}, (_, i) => valueAt(c, i))])"
    found = run_node(f"{page['script']}const data = {page['data']};console.log(JSON.stringify({text}));")
    assert len(found) == len(json.loads(page["data"])["controls"]) > 10
    for home, middle, *values in found:
        assert values[home] == middle
        assert np.all(np.diff(values) > 0)


@needs_node
def test_numbers_are_written_as_python_writes_them(llama):
    units = ["1", "USD", "MWh", "day", "tCO2e", "USD/h", "W", "1/year"]
    steps = {unit: [list(step) for step in formatting.steps(unit)] for unit in units}
    # No value half way between two: Python rounds those to even.
    values = [0.0, 3e-5, 0.0123, 0.4567, 0.996, 1.0312, 9.96, 34.6, 99.7, 999.9, 1234.6, 54_321.0, 9.9e5, 1.5e7, 2.3e13]
    rows = [[v * f for f in (0.5, 0.8, 1.0, 1.3, 2.4)] for v in values] + [[v] * 5 for v in values]
    rows += [[-2.0, -1.5, -1.0, 0.5, 1.0], [10.0, 10.01, 10.02, 10.03, 10.04]]
    program = f"""{shown(llama[0])["script"]}
    const steps = {json.dumps(steps)};
    const rows = {json.dumps(rows)};
    const every = (unit) => rows.map((row) => written(row, unit, steps[unit]));
    console.log(JSON.stringify({json.dumps(units)}.map(every)));"""
    for unit, found in zip(units, run_node(program), strict=True):
        for (low, _, middle, _, high), (text, ends) in zip(rows, found, strict=True):
            step = formatting.step_for(middle, unit)
            digits = [formatting.digits_for(value, low, high, 0.0, unit) for value in (low, middle, high)]
            assert text == formatting.with_unit(middle, unit, digits[1], step, exact=low == high)
            between = formatting.interval(low, high, unit, (digits[0], digits[2]), step)
            assert ends == ("" if low == high else between.replace("$-", "-$"))


@needs_node
def test_questions_are_answered_as_in_the_result(llama):
    tree = llama[0]
    page = shown(tree)
    program = f"{page['script']}const data = {page['data']}; const y = evaluate(inputsOf(data), data);"
    program += "console.log(JSON.stringify(data.questions.map((q) => probability(q, y, data.draws))));"
    wanted = [answer["probability"] for answer in summarizing.summarise(tree)["questions"].values()]
    # All draws of so small a result are in the page; rounding may move one of 4,096 over a limit.
    assert len(wanted) >= 5 and run_node(program) == pytest.approx(wanted, abs=1.5 / 4096)


@needs_node
def test_what_was_moved_can_be_stated(llama):
    """The lines that the page gives make the priors that it shows."""
    page = shown(llama[0])
    moves = {"mfu": (0.4, 0.5), "pue": (1.2, 0.5), "rental_price": (3.0, 0), "capex": (4e4, 0.5)}
    program = f"""{page["script"]}
    const data = {page["data"]};
    const x = inputsOf(data);
    console.log(JSON.stringify(Object.entries({json.dumps(moves)}).map(([key, [value, width]]) => {{
      const control = data.controls.find((each) => each.key === key);
      const draws = move(x[control.input], {{...control, least: -1e9, most: 1e9}}, value, width);
      return [statement(control, value, width, draws), ...quantiles(draws)];
    }})));"""
    for line, low, _, middle, _, high in run_node(program):
        key, _, value = line.partition(": ")
        stated = load_scenario("llama-3-70b", [f"inputs.{key}={value}"]).inputs[key].marginal
        # Four digits are written, and the ends of a prior of another shape are kept, its middle nearly.
        assert priors.quantiles(stated, [0.05, 0.95]) == pytest.approx([low, high], rel=2e-3)
        assert float(priors.quantiles(stated, [0.5])[0]) == pytest.approx(middle, rel=0.1)


# ---- the page ----------------------------------------------------------------------------------------------------


def test_the_page_runs_one_script_and_names_its_hash(llama):
    text = report.page(llama[0], with_sliders=True)
    assert len(text.encode()) < 2_000_000
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert len(scripts) == 1 and text.count("<script") == 2
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    assert f"script-src 'sha256-{digest}'" in policy and "default-src 'none'" in policy
    assert "runs no script." not in text and "https://" not in scripts[0]
    assert "interactive" not in report.page(llama[0])


def test_a_page_stays_small_with_many_draws_and_inputs(llama):
    """What a result of 65,536 draws would take."""
    tree = llama[0]
    numbers = json.loads(shown(tree)["data"])["inputs"]
    each = max(len(row) for row in numbers if isinstance(row, str))
    varying = sum(isinstance(row, str) for row in numbers)
    assert varying * each * interactive.DRAWS / 4096 < 1_000_000


def test_draws_come_from_the_beginnings_of_replicates(llama):
    many = llama[0].copy()
    many.attrs |= {"replicates": 16}
    many["prior_predictive"] = many["prior_predictive"].to_dataset().isel(draw=np.arange(65_536) % 4096)
    places = interactive.places(many)
    assert len(places) == len(set(places)) == interactive.DRAWS
    assert set(places // 4096) == set(range(8)) and (places % 4096).max() == 1023
    assert len(interactive.places(llama[0])) == 4096


def test_hostile_names_stay_text(llama):
    tree = llama[0].copy(deep=True)
    tree.attrs["name"] = "</script><script>alert(1)</script>"
    tree.attrs["asked"] = json.dumps(
        [["</script>", [{"output": "energy_mwh", "op": "<", "limit": 1.0, "name": "</script>"}]]]
    )
    tree["prior"]["mfu"].attrs["long_name"] = "</script><b>"
    text = report.page(tree, with_sliders=True)
    assert text.count("</script>") == 2 and "<b>" not in text


def test_phases_of_any_name_are_no_code(scenario_file):
    phases = "[{name: first one, tokens: 1e12}, {name: alert-1, tokens: 1e11}]"
    text = f"schema_version: 1\nname: x\nworkload: {{params: 7e9, phases: {phases}}}\n"
    text += "cluster: {accelerator: H100-SXM-80GB, count: 64}\n"
    script = shown(simulate(scenario_file(text), samples=256))["script"]
    assert "alert" not in script and "first one" not in script


def test_facts_and_correlated_inputs_cannot_be_moved(scenario_file):
    path = scenario_file(
        """\
schema_version: 1
name: Correlated
workload: {params: 7e9, tokens: {low: 1e12, high: 3e12}}
cluster: {accelerator: H100-SXM-80GB, count: 512}
correlations: [{between: [mfu, goodput], rank: 0.5}]
inputs: {pue: 1.2, carbon_price: 50}
"""
    )
    page = shown(simulate(path, samples=512))
    keys = [control["key"] for control in page["main"] + page["further"]]
    assert not {"tokens", "params", "mfu", "goodput", "accelerator_count", "tdp"} & set(keys)
    assert {"pue", "carbon_price", "rental_price"} <= set(keys)
    assert page["correlated"] == ["mfu, goodput"]
    prices = [control for control in json.loads(page["data"])["controls"] if control["key"] == "carbon_price"]
    assert prices[0]["low"] == 0 and prices[0]["high"] == 300 and not prices[0]["varies"]


def test_a_result_of_other_equations_is_refused(llama, tmp_path, capsys):
    tree = llama[0].copy(deep=True)
    tree["prior_predictive"]["energy_mwh"][:] = 1.01 * tree["prior_predictive"]["energy_mwh"]
    with pytest.raises(InputError, match="energy_mwh does not follow from its inputs"):
        report.page(tree, with_sliders=True)
    del tree["constant_data"]["tdp"]
    write(tree, tmp_path / "result.nc")
    with pytest.raises(SystemExit) as stop:
        main(["report", str(tmp_path / "result.nc"), "--interactive"])
    assert stop.value.code == 2 and "with other equations" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


def test_the_command(llama, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["report", str(llama[1]), "--interactive", "-o", str(tmp_path / "page.html")])
    assert not stop.value.code
    assert 'id="try-data"' in (tmp_path / "page.html").read_text(encoding="utf-8")
