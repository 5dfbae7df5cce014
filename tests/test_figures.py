import functools
import json
import math
import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustack_mc import figures, forest, pages
from gpustack_mc.design import make_design
from gpustack_mc.propagation import simulate
from gpustack_mc.result import to_datatree
from gpustack_mc.scenario import load_scenario

SCENARIO = "scenarios/worked-70b.yaml"
INTERVALS = (
    "mfu={low: 0.3, high: 0.5}",
    "goodput={low: 0.8, high: 0.97}",
    "gpu_power_fraction={low: 0.7, high: 0.95}",
    "host_power={low: 300, high: 900}",
    "pue={low: 1.08, high: 1.5}",
    "electricity_price={low: 0.04, high: 0.16}",
    "grid_intensity={low: 200, high: 600}",
    "embodied_carbon={low: 150, high: 2500}",
    "water_onsite={low: 0.05, high: 1.5}",
    "water_offsite={low: 1, high: 8}",
    "capex={low: 25000, high: 50000}",
    "residual_share={low: 0.02, high: 0.3}",
    "lifetime={low: 3, high: 6}",
    "fleet_utilization={low: 0.5, high: 0.9}",
    "cost_of_capital={low: 0.04, high: 0.14}",
    "operations_rate={low: 0.02, high: 0.1}",
    "rental_price={low: 1.5, high: 5}",
    "serving_throughput={low: 500, high: 4000}",
    "programme_overhead={low: 1.2, high: 4}",
)
PHASES = (
    "{name: pre-training on the general web mixture with annealing and all the rest of it,"
    " tokens: {low: 13e12, high: 15e12}, mfu: {low: 0.3, high: 0.5}}, {name: long context, tokens: 1e12}"
)
ODD_NAME = "Ünï <b>70B</b> & $x_1$ for $14M {braces} \\alpha^2 訓練 🚀 字\t" + "endlessword" * 10
CASES = {
    "many": (
        *INTERVALS,
        "published.training_days={value: 30 day, source: x}",
        "published.co2e_t={value: 5000 t, source: x}",
        "published.energy_mwh={value: 900 GWh, source: x}",
        "published.programme_energy_mwh={value: 10 GWh, source: x}",
    ),
    "one": INTERVALS[:1],
    "none": ("published.training_days={value: 26 day, source: x}",),
    "below zero": (
        *INTERVALS[:2],
        "electricity_price={dist: normal, mean: 0.03, sd: 0.03}",
        "residual_share={choice: [0, 0.2]}",
        "correlations=[{between: [mfu, goodput], rank: 0.5}]",
        "ownership=own",
        f"name={json.dumps(ODD_NAME, ensure_ascii=False)}",
    ),
    "narrow": ("pue={low: 1.19, high: 1.21}", "published.energy_mwh={value: 6830 MWh, source: x}"),
    "wide": ("capex={dist: log_uniform, low: 100, high: 1e6}", "water_onsite={dist: log_uniform, low: 1e-4, high: 9}"),
    "phases": (f"workload={{params: 70e9, phases: [{PHASES}]}}", *INTERVALS[1:3], "ownership=rent"),
}
PLOTS = {
    "outputs": figures.interval_plot,
    "inputs": figures.input_plot,
    "sensitivity": figures.sensitivity_plot,
    "log sensitivity": functools.partial(figures.sensitivity_plot, scale="log"),
}


@functools.cache
def tree(case):
    return to_datatree(simulate(load_scenario(SCENARIO, ["published={}", *CASES[case]]), make_design(2048)))


@functools.cache
def drawn(case, plot):
    figure = PLOTS[plot](tree(case))
    figure.canvas.draw()
    return figure


def texts(figure):
    """Every text that is seen, with its box in pixels."""
    found = figure.findobj(lambda artist: isinstance(artist, matplotlib.text.Text))
    return [(text, text.get_window_extent()) for text in found if text.get_text().strip() and is_seen(text)]


def is_seen(text):
    axes = text.axes
    if not text.get_visible():
        return False
    ticks = [] if axes is None else [*axes.get_yticklabels(), *axes.get_xticklabels(minor=True)]
    return text not in ticks


def contents(figure):
    return [text.get_text() for text, _ in texts(figure)]


def forest_axes(figure):
    return figure.axes[1]


def lines_of_width(axes, width):
    return sorted((line for line in axes.lines if line.get_linewidth() == width and len(line.get_xdata()) == 2
                   and line.get_xdata()[0] != line.get_xdata()[1]), key=lambda line: line.get_ydata()[0])  # fmt: skip


# ---- layout ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plot", PLOTS)
@pytest.mark.parametrize("case", CASES)
def test_no_text_is_cut_or_overlaps_another(case, plot):
    figure = drawn(case, plot)
    page = figure.bbox
    boxes = texts(figure)
    assert boxes
    for text, box in boxes:
        inside = page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1
        assert inside, f"{text.get_text()!r} at {box} leaves the page {page}"
    for i, (text, box) in enumerate(boxes):
        for other, other_box in boxes[:i]:
            # Boxes hold the font's full line height, so that letters of touching boxes are apart still.
            width = min(box.x1, other_box.x1) - max(box.x0, other_box.x0)
            height = min(box.y1, other_box.y1) - max(box.y0, other_box.y0)
            assert width <= 0.5 or height <= 2, f"{text.get_text()!r} lies on {other.get_text()!r}"


@pytest.mark.parametrize("case", ["many", "narrow", "below zero"])
def test_marks_do_not_lie_on_values(case):
    axes = forest_axes(drawn(case, "outputs"))
    marks = [line for line in axes.lines if line.get_marker() in "D<>" and line.get_gid()]
    values = [text for text in axes.texts if not text.get_text().startswith("published")]
    for mark in marks:
        x, y = axes.transData.transform((mark.get_xdata()[0], mark.get_ydata()[0]))
        for text in values:
            box = text.get_window_extent()
            assert not (box.x0 - 3 < x < box.x1 + 3 and box.y0 < y < box.y1), text.get_text()


@pytest.mark.parametrize(("low", "high"), [(-0.004, 0.004), (-0.2, 0.3), (-0.9, 0.6), (-2, 5), (-8, 9), (-20, 1)])
def test_ratio_ticks_are_few_apart_and_reach_both_sides(low, high):
    ticks = forest._ratio_ticks((low, high), 6.0)
    assert 1.0 in ticks
    assert 3 <= len(ticks) <= 11
    logs = np.log(ticks)
    assert (low <= logs).all() and (logs <= high).all()
    assert (np.diff(logs) * 6.0 / (high - low) >= 0.6).all()


def test_ratio_labels_read_as_factors():
    assert [forest._ratio_label(tick) for tick in (0.5, 1.0, 1.05, 1e4)] == ["÷2", "median", "×1.05", "×10,000"]


@given(st.text(min_size=1, max_size=120), st.integers(1, 4))
def test_wrapped_text_fits(text, count):
    lines = pages.wrap(text, 1.5, 8, count)
    assert len(lines) <= count
    assert all(pages.measure(8, "normal")(line) <= 1.5 for line in lines)


# ---- intervals ---------------------------------------------------------------------------------------------------


def test_lines_and_dots_are_the_quantiles_of_the_draws():
    axes = forest_axes(drawn("many", "outputs"))
    names = list(figures.OUTPUT_ROWS)
    names.insert(names.index("facility_power_mw") + 1, "programme_energy_mwh")
    thin, thick = lines_of_width(axes, 1.3), lines_of_width(axes, 5.5)
    dots = sorted(
        (tuple(c.get_offsets()[0]) for c in axes.collections if len(c.get_offsets()) == 1), key=lambda p: p[1]
    )
    assert len(thin) == len(thick) == len(dots) == len(names)
    for i, name in enumerate(names):
        draws = tree("many")["prior_predictive"][name].values.ravel()
        ratios = np.quantile(draws, [0.05, 0.25, 0.75, 0.95]) / np.median(draws)
        np.testing.assert_allclose(thin[i].get_xdata(), ratios[[0, 3]])
        np.testing.assert_allclose(thick[i].get_xdata(), ratios[[1, 2]])
        assert thin[i].get_ydata()[0] == thick[i].get_ydata()[0] == dots[i][1] == i
        assert dots[i][0] == pytest.approx(1)


def test_published_value_is_marked_at_its_ratio():
    axes = forest_axes(drawn("many", "outputs"))
    marks = {line.get_gid(): line for line in axes.lines if line.get_gid()}
    median = float(np.median(tree("many")["prior_predictive"]["training_days"]))
    assert marks["published:training_days"].get_xdata()[0] == pytest.approx(30 / median)
    assert marks["published:training_days"].get_marker() == "D"
    assert "published 30 d" in contents(drawn("many", "outputs"))
    assert "published value" in contents(drawn("many", "outputs"))
    assert "published value" not in contents(drawn("one", "outputs"))


def test_published_value_far_away_does_not_squeeze_the_intervals():
    figure = drawn("many", "outputs")
    mark = next(line for line in forest_axes(figure).lines if line.get_gid() == "published:energy_mwh")
    assert mark.get_marker() == ">"
    assert forest_axes(figure).get_xlim()[1] < 50
    assert any("A triangle" in text for text in contents(figure))
    assert not any("A triangle" in text for text in contents(drawn("narrow", "outputs")))


def test_ends_and_medians_are_written_with_scaled_units():
    shown = contents(drawn("one", "outputs"))
    statistics = tree("one")["statistics"]["value"].sel(variable="cost_rented_usd")
    for name in ("q0.05", "q0.5", "q0.95"):
        value = float(statistics.sel(statistic=name)) / 1e6
        assert any(text.startswith("$") and text.endswith("M") and float(text[1:-1]) == pytest.approx(value, rel=0.05)
                   for text in shown)  # fmt: skip
    assert "ratio to the row's median (no unit, log scale)" in shown


def test_constant_outputs_are_named_with_their_value_instead_of_drawn():
    assert any("Without spread: facility_power_mw 11.26 MW." in text for text in contents(drawn("one", "outputs")))


def test_nothing_varies():
    shown = " ".join(contents(drawn("none", "outputs")))
    assert "No output varies" in shown
    assert "training_days 25.00 d (published 26 d)" in shown
    assert "No input varies" in " ".join(contents(drawn("none", "inputs")))
    assert "No sensitivity indices" in " ".join(contents(drawn("none", "sensitivity")))


@pytest.mark.parametrize(("case", "absent"), [("below zero", "cost_rented_usd"), ("phases", "cost_owned_usd")])
def test_only_the_cost_that_is_asked_for_is_drawn(case, absent):
    for plot in ("outputs", "sensitivity"):
        assert absent not in " ".join(contents(drawn(case, plot)))
    assert absent in " ".join(contents(drawn("many", "outputs")))


def test_inputs_carry_unit_and_origin_widest_first():
    shown = contents(drawn("many", "inputs"))
    notes = [text for text in shown if " · " in text]
    assert len(notes) == len(INTERVALS)
    assert "electricity_price · USD/kWh · entered" in notes
    assert notes[0].startswith("water_onsite")
    assert notes[-1].startswith("goodput")


def test_interval_that_reaches_zero_ends_in_an_arrow_with_its_true_value():
    figure = drawn("below zero", "inputs")
    assert sum(line.get_marker() == "<" for line in forest_axes(figure).lines) == 2
    shown = contents(figure)
    assert any(text.startswith("-$0.0") for text in shown)
    assert any("An arrow" in text for text in shown)


def test_median_below_zero_is_written_not_drawn():
    overrides = ("electricity_price={dist: normal, mean: -0.03, sd: 0.03}", "mfu={low: 0.3, high: 0.5}")
    found = to_datatree(simulate(load_scenario(SCENARIO, overrides), make_design(1024)))
    figure = figures.input_plot(found)
    assert len(lines_of_width(forest_axes(figure), 1.3)) == 1
    assert any("has no ratios: electricity_price -$0.03" in text for text in contents(figure))


# ---- sensitivity -------------------------------------------------------------------------------------------------


def bars(axes):
    return {
        (container.get_label(), round(patch.get_y() + patch.get_height() / 2)): patch.get_width()
        for container in axes.containers
        if container.get_label() in ("S1", "ST")
        for patch in container.patches
    }


def test_bars_are_the_indices_sorted_by_the_largest_total():
    found = tree("many")["sensitivity"].sel(scale="raw")
    total = found["ST"].sel(output=list(figures.SENSITIVITY_PANELS))
    order = [str(name) for name in total["input"].values[np.argsort(-total.max("output").values)]]
    shown = order[: figures.SENSITIVITY_ROWS]
    figure = drawn("many", "sensitivity")
    keys = [text.partition(" · ")[0] for text in contents(figure) if text.endswith(" · entered")]
    assert keys == shown
    for output, axes in zip(figures.SENSITIVITY_PANELS, figure.axes[1:], strict=True):
        assert axes.get_xlim() == (0, 1)
        widths = bars(axes)
        for row, name in enumerate(shown):
            for index in ("S1", "ST"):
                value = float(np.clip(found[index].sel(output=output, input=name), 0, 1))
                assert widths.get((index, row), 0) == pytest.approx(value if value >= 0.005 else 0)
    caption = " ".join(contents(figure))
    assert f"Not drawn: {len(order) - len(shown)} inputs" in caption
    assert all(name in caption for name in order)


def test_whiskers_are_the_intervals():
    found = tree("many")["sensitivity"].sel(scale="raw", output="cost_rented_usd", input="rental_price")
    axes = drawn("many", "sensitivity").axes[-1]
    whiskers = [segment[:, 0] for collection in axes.collections for segment in collection.get_segments()]
    for index in ("S1", "ST"):
        ends = np.clip([float(found[f"{index}_lower"]), float(found[f"{index}_upper"])], 0, 1)
        assert any(np.allclose(segment, ends) for segment in whiskers)


def test_constant_and_undefined_outputs_are_empty_panels_with_a_note():
    found = to_datatree(simulate(load_scenario(SCENARIO, ["embodied_carbon={low: 300, high: 700}"]), make_design(1024)))
    output = figures.SENSITIVITY_PANELS.index("energy_mwh")
    found["sensitivity"]["status"].loc[{"output": "energy_mwh", "scale": "log"}] = "non-finite"
    figure = figures.sensitivity_plot(found, scale="log")
    notes = [[text.get_text() for text in axes.texts] for axes in figure.axes[1:]]
    assert notes[0] == ["does not vary"]
    assert notes[output] == ["no index:\nnot finite"]
    assert notes[2] == []
    assert not bars(figure.axes[1])
    assert bars(figure.axes[3])


def test_correlated_inputs_are_one_row():
    shown = contents(drawn("below zero", "sensitivity"))
    assert "mfu + goodput" in shown
    assert "correlated inputs · taken together" in shown


def test_one_replicate_has_bars_without_whiskers():
    found = tree("one").copy(deep=True)
    for index in ("S1_lower", "S1_upper", "ST_lower", "ST_upper"):
        found["sensitivity"][index] = found["sensitivity"][index] * np.nan
    axes = figures.sensitivity_plot(found).axes[1]
    assert bars(axes)
    assert not any(len(collection.get_segments()) for collection in axes.collections)


# ---- text and files ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["outputs", "inputs", "sensitivity"])
@pytest.mark.parametrize("case", CASES)
def test_alt_text_is_one_sentence(case, which):
    said = figures.alt_text(tree(case), which)
    assert said.endswith(".")
    assert "\n" not in said
    assert len(said) < 1000


def test_alt_text_says_the_numbers():
    assert "training_days 25 d (20 d to 3" in figures.alt_text(tree("one"), "outputs")
    assert "mfu 0.40 (0.30 to 0.50)" in figures.alt_text(tree("one"), "inputs")
    assert "training_days depends most on mfu (total index 1.00)" in figures.alt_text(tree("one"), "sensitivity")
    assert "and 10 more" in figures.alt_text(tree("many"), "inputs")


def test_odd_names_are_drawn_literally():
    title = " ".join(text.get_text() for text in drawn("below zero", "outputs").texts)
    for part in ("Ünï", "<b>70B</b> &", "$x_1$ for $14M {braces} \\alpha^2", "□□ □"):
        assert part in title


def test_equal_pictures_are_equal_files_whatever_the_users_style(tmp_path):
    first, second = tmp_path / "first.png", tmp_path / "second.png"
    pages.save(figures.interval_plot(tree("one")), first)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "font.family": "serif", "savefig.dpi": 20,
                                "savefig.bbox": "tight", "axes.grid": True, "lines.linewidth": 9}):  # fmt: skip
        pages.save(figures.interval_plot(tree("one")), second)
    assert first.read_bytes() == second.read_bytes()
    assert b"matplotlib" not in first.read_bytes().lower()


def test_nothing_global_is_changed():
    from matplotlib import pyplot

    before = dict(matplotlib.rcParams)
    for plot in PLOTS.values():
        plot(tree("one"))
    assert dict(matplotlib.rcParams) == before
    assert pyplot.get_fignums() == []


def test_importing_draws_nothing_in():
    code = "import sys, gpustack_mc.figures; print([m for m in ('matplotlib', 'arviz', 'jax') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_colours_stay_apart_in_grey():
    def luminance(colour):
        channels = np.array(matplotlib.colors.to_rgb(colour))
        linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    def contrast(one, other):
        high, low = sorted((luminance(one), luminance(other)), reverse=True)
        return (high + 0.05) / (low + 0.05)

    assert contrast(pages.BLUE, pages.TINT) > 3
    assert contrast(pages.BLUE, "white") > 3
    assert contrast(pages.GREY, pages.BAND) > 4.5
    assert math.isclose(contrast("white", "black"), 21)
