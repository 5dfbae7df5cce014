"""The refit machinery: refuses bad priors, writes stable files, notices when they are stale."""

import json

import numpy as np
import pytest
from scipy import stats

from gpustack_mc.fits import refit
from gpustack_mc.fits.populations import predictive_log_normal, regression, sixteen_bit_peak

PRIOR = """\
quantity: goodput
title: Test
description: >-
  Folded
  text.
ladder: [accelerator]
date: 2026-11-30
settings:
  lower_end: {value: 0.4, why: test, source: null}
  grid_mean: {value: [-3.0, 8.0], why: test, source: null}
  grid_sd: {value: [0.2, 5.0], why: test, source: null}
  grid_points: {value: 60, why: test, source: null}
sources:
  paper: {title: A paper, url: "https://example.org", licence: CC0, accessed: "2026-11"}
limits: [few rows]
"""
DATA = """\
id,goodput,bound,year,source,use
a,0.9,,2024,paper,yes
b,0.95,,2024,paper,yes
c,0.8,lower,2023,paper,yes
d,0.1,,2023,paper,no: not a job
"""


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "goodput"
    folder.mkdir()
    (folder / "prior.yaml").write_text(PRIOR)
    (folder / "data.csv").write_text(DATA)
    return tmp_path


def edit(root, name, old, new):
    path = root / "goodput" / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_refit_writes_what_it_returns_and_leaves_no_temporary_file(root):
    record = refit.refit("goodput", root)
    stored = json.loads((root / "goodput" / "fit.json").read_text())
    assert stored == record
    assert stored["description"] == "Folded text."
    assert stored["populations"][0]["rows"] == ["a", "b", "c"]
    assert sorted(path.name for path in (root / "goodput").iterdir()) == ["data.csv", "fit.json", "prior.yaml"]


def test_fit_json_has_sorted_keys_and_one_population_per_line(root):
    refit.refit("goodput", root)
    text = (root / "goodput" / "fit.json").read_text()
    stored = json.loads(text)
    assert list(stored) == sorted(stored)
    assert sum('"family"' in line for line in text.splitlines()) == len(stored["populations"])


def test_refit_is_deterministic(root):
    first = refit.as_text(refit.refit("goodput", root))
    assert refit.as_text(refit.refit("goodput", root)) == first


def test_fresh_fit_is_not_stale(root):
    refit.refit("goodput", root)
    assert refit.stale("goodput", root) is None


def test_missing_fit_is_stale(root):
    assert "missing" in refit.stale("goodput", root)


@pytest.mark.parametrize(
    ("name", "old", "new", "reason"),
    [
        ("data.csv", "a,0.9,", "a,0.91,", "data_sha256"),
        ("prior.yaml", "value: 60", "value: 61", "settings"),
        ("prior.yaml", "[few rows]", "[other]", "limits"),
        ("fit.json", '"mu": ', '"mu": 1', "populations"),
    ],
)
def test_changed_inputs_and_edited_fits_are_stale(root, name, old, new, reason):
    refit.refit("goodput", root)
    edit(root, name, old, new)
    assert reason in refit.stale("goodput", root)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("data.csv", "not a job", "not a job\na,0.9,,2024,paper,yes", "ids occur twice: a"),
        ("data.csv", "no: not a job", "maybe", "'yes' or 'no: reason'"),
        ("data.csv", "2024,paper,yes", "2024,nobody,yes", "unknown source 'nobody'"),
        ("prior.yaml", "ladder: [accelerator]", "ladder: [colour]", "unknown facts"),
        ("prior.yaml", "value: 60, why: test", "value: 60", "needs value and why"),
        ("prior.yaml", "why: test, source: null}\n  grid_points", "why: test, source: x}\n  grid_points", "source 'x'"),
        ("prior.yaml", "licence: CC0, ", "", "licence"),
        ("prior.yaml", "quantity: goodput", "quantity: mfu", "the folder is 'goodput'"),
        ("prior.yaml", "limits: [few rows]", "", "missing limits"),
    ],
)
def test_bad_priors_are_named_and_leave_the_old_fit(root, name, old, new, message):
    before = refit.as_text(refit.refit("goodput", root))
    edit(root, name, old, new)
    with pytest.raises(refit.PriorError, match=message.replace("(", r"\(")):
        refit.refit("goodput", root)
    assert (root / "goodput" / "fit.json").read_text() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"where": {"accelerator": "x"}}, "the last resort"),
        ({"where": {"region": "US"}}, "not in the ladder"),
        ({"rows": ["d"]}, "rows d are not"),
        ({"sources": ["blog"]}, "no source blog"),
        ({"rows": []}, "judged:"),
        ({"family": "normal", "parameters": {"mean": 0.9, "sd": 0.1}}, "draws reach"),
        ({"family": "cauchy", "parameters": {}}, "unknown family"),
        ({"parameters": {"regression": {"terms": ["phase_of_moon"]}}}, "no scenario supplies"),
        ({"family": "beta", "parameters": {"regression": {"terms": ["intercept"]}}}, "needs family"),
    ],
)
def test_bad_populations_are_refused(root, monkeypatch, change, message):
    from gpustack_mc.fits import goodput

    good = goodput.fit
    monkeypatch.setattr(goodput, "fit", lambda rows, settings: [p._replace(**change) for p in good(rows, settings)])
    with pytest.raises(refit.PriorError, match=message):
        refit.refit("goodput", root)


def test_unknown_quantity_is_refused(root):
    with pytest.raises(refit.PriorError, match="not an input"):
        refit.refit("cost_owned_usd", root)


def test_command_line_names_the_problem_and_fails(capsys):
    assert refit.main(["cost_owned_usd"]) == 1
    assert "cost_owned_usd" in capsys.readouterr().err


# ---- populations ----------------------------------------------------------------------------------------------------
def test_predictive_covers_a_new_member_nine_times_in_ten():
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(2000):
        *seen, new = np.exp(rng.normal(1.0, 0.5, size=6))
        fitted = predictive_log_normal(seen)
        inside += abs(np.log(new) - fitted.mu) < stats.norm.ppf(0.95) * fitted.sigma
    # Binomial sd of the share is 0.007; four of them.
    assert inside / 2000 == pytest.approx(0.90, abs=0.027)


def test_regression_recovers_known_coefficients():
    rng = np.random.default_rng(2)
    design = np.column_stack([np.ones(400), rng.normal(size=400)])
    fitted = regression(design, design @ [1.0, -2.0] + rng.normal(0, 0.3, 400), ["intercept", "log10_peak_tflops"])
    # Standard errors are 0.3 / sqrt(400) = 0.015; four of them.
    np.testing.assert_allclose(fitted["coefficients"], [1.0, -2.0], atol=0.06)
    assert fitted["residual_sd"] == pytest.approx(0.3, abs=0.05)


def test_sixteen_bit_peak_gives_fp8_scenarios_the_same_prediction():
    rng = np.random.default_rng(3)
    design = np.column_stack([np.ones(30), rng.normal(2.5, 0.5, 30)])
    plain = regression(design, design @ [1.0, 0.7] + rng.normal(0, 0.2, 30), ["intercept", "log10_peak_tflops"])
    both = sixteen_bit_peak(plain)
    in_bf16 = np.array([1.0, 3.0])
    in_fp8 = np.array([1.0, 3.0 + np.log10(2), 1.0])
    covariance, plain_covariance = np.array(both["covariance"]), np.array(plain["covariance"])
    assert both["terms"] == ["intercept", "log10_peak_tflops", "fp8"]
    assert in_fp8 @ both["coefficients"] == pytest.approx(in_bf16 @ plain["coefficients"])
    assert in_fp8 @ covariance @ in_fp8 == pytest.approx(in_bf16 @ plain_covariance @ in_bf16)
