"""The chain of equations: it is that of the model, its shares are right, its notation says what the LaTeX says."""

import json
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from gpustack_mc import chain, chain_picture, equations, explain, failures, model, notation, outages, summarizing
from gpustack_mc.cli import main
from gpustack_mc.errors import InputError
from gpustack_mc.problem import PHASE_KEYS
from gpustack_mc.quantities import BY_NAME, INPUTS, OUTPUTS, SCENARIO

# Some point inside of all bounds, in the units of the table.
POINT = dict.fromkeys((name for name in (*SCENARIO, *INPUTS) if not BY_NAME[name].part), 0.5) | {
    "pue": 1.2, "lifetime": 5.0, "accelerator_count": 8.0, "tdp": 700.0, "host_power": 400.0, "capex": 40_000.0,
    "grid_intensity": 400.0, "embodied_carbon": 900.0, "electricity_price": 0.1, "carbon_price": 10_000.0,
    "cost_of_capital": 0.08,
}  # fmt: skip


def outputs_at(point):
    phase = {name: point[name] for name in PHASE_KEYS}
    rest = {name: value for name, value in point.items() if name not in (*PHASE_KEYS, "params")}
    return {name: float(value) for name, value in model.run([phase], **rest).items()}


def test_the_chain_holds_what_the_model_depends_on():
    """Brute force: an input moves an output exactly when the chain of the output starts from it."""
    before = outputs_at(POINT)
    moved = {output: set() for output in OUTPUTS}
    for name in POINT:
        after = outputs_at(POINT | {name: POINT[name] * 1.01})
        for output in OUTPUTS:
            # What cancels leaves rounding of single precision, 1e-7; a hundredth moves what depends on it by far more.
            if not np.isclose(after[output], before[output], rtol=1e-5, atol=0):
                moved[output].add(name)
    # These cancel in a quotient although the chain names them.
    cancels = {
        "effective_utilization": {"active_params", "tokens", "peak_flop_per_s"},
        "hours_between_interruptions": set(POINT) - {"accelerator_count", "interruption_rate"},
        "facility_power_mw": {"active_params", "tokens", "context_flop_factor", "peak_flop_per_s", "mfu", "goodput"},
        "owned_usd_per_accelerator_hour": set(chain.inputs_of("accelerator_hours")),
        "electricity_share": set(chain.inputs_of("accelerator_hours")),
        "usd_per_million_training_tokens": {"tokens"},
    }
    for output in OUTPUTS:
        named = set(chain.inputs_of(output))
        assert moved[output] <= named, output
        assert named - moved[output] <= cancels.get(output, set()), output


def test_every_output_has_an_equation_and_every_equation_a_meaning():
    assert set(OUTPUTS) <= set(chain.steps())
    for step in chain.steps().values():
        assert step.meaning.endswith(".") and step.latex and step.name in BY_NAME
        assert ":math:" not in step.assumes + step.references
        assert any(hasattr(module, step.name) for module in (equations, failures, outages))
        # The left-hand side is the symbol of the table.
        assert notation.plain(step.latex).partition(" = ")[0] == notation.plain(BY_NAME[step.name].symbol)


def test_steps_come_after_what_they_need():
    names = [step.name for step in chain.steps_to("cost_owned_usd")]
    for i, name in enumerate(names):
        assert {used for used in chain.steps()[name].uses if BY_NAME[used].role == "output"} <= set(names[:i])
    assert names[-1] == "cost_owned_usd"


@pytest.mark.parametrize(
    ("latex", "text"),
    [
        (r"F = 6 N_\mathrm{a} D", "F = 6 N_a D"),
        (r"Q_\mathrm{IT} = 10^{-6}\, h\, (W_\mathrm{tdp} \phi + W_\mathrm{host})", "Q_IT = 10⁻⁶ h (W_tdp ϕ + W_host)"),
        (r"h = \frac{\chi F}{3600\, P \mu g}", "h = (χ F) / (3600 P μ g)"),
        (r"K_{\mathrm{own},\kappa} = \kappa K", "K_(own,κ) = κ K"),
        (r"\frac{a + b}{c}", "(a + b) / c"),
        (r"\varphi(x) - 1", "φ(x) - 1"),
        (r"C (1 - \rho)", "C (1 - ρ)"),
    ],
)
def test_plain_notation(latex, text):
    assert notation.plain(latex) == text


def test_what_is_not_understood_is_refused():
    with pytest.raises(notation.NotationError, match="integral"):
        notation.plain(r"\integral f")


@pytest.mark.parametrize("name", [*chain.steps()])
def test_mathml_is_sound_and_says_the_same_letters(name):
    latex = chain.steps()[name].latex
    letters = "".join(ElementTree.fromstring(notation.mathml(latex)).itertext())
    assert sorted(c for c in letters if c.isalpha()) == sorted(c for c in notation.plain(latex) if c.isalpha())


def test_first_order_of_a_product_of_lognormals():
    """Closed form: for y = exp(a z1 + b z2), S1 = (exp(a²) - 1) / (exp(a² + b²) - 1)."""
    a, b = 0.6, 0.4
    z1, z2 = np.random.default_rng(0).standard_normal((2, 65_536))
    y = np.exp(a * z1 + b * z2)
    whole = np.exp(a**2 + b**2) - 1
    # The standard error of such an estimate is below 0.01 at this size; three of them.
    assert explain.first_order(z1, y) == pytest.approx((np.exp(a**2) - 1) / whole, abs=0.03)
    assert explain.first_order(z2, y) == pytest.approx((np.exp(b**2) - 1) / whole, abs=0.03)
    noise = np.random.default_rng(1).standard_normal(65_536)
    assert explain.first_order(noise, y) == pytest.approx(0, abs=0.03)


def test_first_order_at_its_edges():
    z = np.random.default_rng(0).standard_normal(4096)
    assert explain.first_order(z, z) == pytest.approx(1, abs=0.01)
    assert explain.first_order(np.ones(4096), z) == 0
    assert explain.first_order(z, np.ones(4096)) is None
    assert explain.first_order(z[:100], z[:100]) is None


def test_an_explanation_agrees_with_the_result(llama):
    tree, _ = llama
    found = explain.explain(tree, "co2e_t")
    entry = summarizing.summarise(tree)
    assert [step["name"] for step in found["steps"]][-1] == "co2e_t"
    assert found["steps"][-1]["share"] == 1
    assert found["steps"][-1]["interval_90"] == entry["outputs"]["co2e_t"]["interval_90"]
    for item in found["inputs"]:
        assert item["origin"] in ("entered", "fitted", "cited", "assumed", "derived")
        if item["name"] in entry["sensitivity"]["co2e_t"]:
            index = entry["sensitivity"]["co2e_t"][item["name"]]
            assert (item["share"], item["total"]) == (index["S1"], index["ST"])
    # A dense model has all parameters active.
    assert "params" in [item["name"] for item in found["inputs"]]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_the_picture_has_a_box_for_each_quantity_and_none_overlap(llama):
    tree, _ = llama
    for output in OUTPUTS:
        found = explain.explain(tree, output)
        boxes = chain_picture._placed(found)
        assert set(boxes) == {entry["name"] for entry in found["steps"] + found["inputs"]}
        places = [(box.column, box.row) for box in boxes.values()]
        for i, (column, row) in enumerate(places):
            assert all(column != c or abs(row - r) >= 1 for c, r in places[:i]), output
        for name, used in chain_picture._arrows(found):
            assert boxes[used].column < boxes[name].column
    root = ElementTree.fromstring(chain_picture.svg_file(found))
    assert root.find("{http://www.w3.org/2000/svg}title").text


def test_phases_are_explained(scenario_file, llama):
    from gpustack_mc.api import simulate

    found = explain.explain(simulate("deepseek-v3", samples=256), "energy_mwh")
    names = [item["name"] for item in found["inputs"]]
    assert "tokens@pre-training" in names and "active_params" in names and "params" not in names
    assert "tokens@pre-training" in explain.text(found, 100)


def test_the_command(llama, tmp_path, capsys):
    picture = tmp_path / "chain.svg"
    with pytest.raises(SystemExit):
        main(["explain", str(llama[1]), "energy_mwh", "--svg", str(picture)])
    out, err = capsys.readouterr()
    assert err == "" and "Q = Q_IT PUE" in out and "fitted" in out and "entered" in out
    ElementTree.parse(picture)
    with pytest.raises(SystemExit) as stop:
        main(["explain", "llama-3-70b", "energy_mhw"])
    out, err = capsys.readouterr()
    assert stop.value.code == 2 and "there is no output 'energy_mhw'. Did you mean energy_mwh" in err
    with pytest.raises(InputError, match="there is no output"):
        explain.explain(llama[0], "nonsense")
