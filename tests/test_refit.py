"""The refit machinery: refuses bad priors, writes stable files, notices when they are stale."""

import json

import numpy as np
import pytest
from scipy import stats

from gpustack_mc.fits import chain_checks, freshness, hierarchy, refit
from gpustack_mc.fits.populations import predictive_log_normal, sixteen_bit_peak

PRIOR = """\
quantity: interruption_rate
title: Test
description: >-
  Folded
  text.
ladder: [accelerator]
date: 2026-11-30
settings:
  accelerators_per_node: {value: 8, why: test, source: null}
  cluster_sd: {value: 1.0, why: test, source: null}
  cluster_weight: {value: 1, why: test, source: null}
  count_sd: {value: 0.5, why: test, source: null}
  count_weight: {value: 2, why: test, source: null}
  hours_per_day: {value: 24, why: test, source: null}
sources:
  paper: {title: A paper, url: "https://example.org", licence: CC0, accessed: "2026-11"}
limits: [few rows]
"""
DATA = """\
id,system,accelerators,kind,value,period_days,source,use
a,one,1024,hours_between,9.0,,paper,yes
b,two,384,hours_between,100,,paper,yes
c,three,16384,count,400,54,paper,yes
d,four,16,count,0,,paper,no: not a job
"""


HEALTHY = {"diagnostics": {"divergences": 0, "r_hat": 1.0, "ess_bulk": 900.0, "ess_tail": 900.0}}


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A folder of priors whose spreads are known to be one, so that nothing is sampled; chains are tested elsewhere."""

    def known(problem, seed=0):
        data = hierarchy.arrays(problem)
        return hierarchy.posterior_of(problem, data, np.ones((3, len(problem.spreads))), {}, 0)

    monkeypatch.setattr(hierarchy, "sample", known)
    monkeypatch.setattr(chain_checks, "checks", lambda problem, posterior: HEALTHY)
    folder = tmp_path / "interruption_rate"
    folder.mkdir()
    (folder / "prior.yaml").write_text(PRIOR)
    (folder / "data.csv").write_text(DATA)
    return tmp_path


def edit(root, name, old, new):
    path = root / "interruption_rate" / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_refit_writes_what_it_returns_and_leaves_no_temporary_file(root):
    record = refit.refit("interruption_rate", root)
    stored = json.loads((root / "interruption_rate" / "fit.json").read_text())
    assert stored == record
    assert stored["description"] == "Folded text."
    assert stored["populations"][0]["rows"] == ["a", "b", "c"]
    names = sorted(path.name for path in (root / "interruption_rate").iterdir())
    assert names == ["data.csv", "fit.json", "prior.yaml"]


def test_fit_json_has_sorted_keys_and_one_population_per_line(root):
    refit.refit("interruption_rate", root)
    text = (root / "interruption_rate" / "fit.json").read_text()
    stored = json.loads(text)
    assert list(stored) == sorted(stored)
    assert sum('"family"' in line for line in text.splitlines()) == len(stored["populations"])


def test_refit_is_deterministic(root):
    first = refit.as_text(refit.refit("interruption_rate", root))
    assert refit.as_text(refit.refit("interruption_rate", root)) == first


def test_fresh_fit_is_not_stale(root):
    refit.refit("interruption_rate", root)
    assert refit.stale("interruption_rate", root) is None


def test_missing_fit_is_stale(root):
    assert "missing" in refit.stale("interruption_rate", root)


@pytest.mark.parametrize(
    ("name", "old", "new", "reason"),
    [
        ("data.csv", "1024,hours_between,9.0", "1024,hours_between,9.1", "data_sha256"),
        ("prior.yaml", "value: 24", "value: 25", "settings"),
        ("prior.yaml", "[few rows]", "[other]", "limits"),
        ("fit.json", '"n": 3', '"n": 4', "populations"),
        ("fit.json", '"program_sha256": "', '"program_sha256": "0', "program_sha256"),
    ],
)
def test_changed_inputs_and_edited_fits_are_stale(root, name, old, new, reason):
    refit.refit("interruption_rate", root)
    edit(root, name, old, new)
    assert reason in refit.stale("interruption_rate", root)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("data.csv", "not a job", "not a job\na,one,1024,hours_between,9.0,,paper,yes", "ids occur twice: a"),
        ("data.csv", "no: not a job", "maybe", "'yes' or 'no: reason'"),
        ("data.csv", "54,paper,yes", "54,nobody,yes", "unknown source 'nobody'"),
        ("prior.yaml", "ladder: [accelerator]", "ladder: [colour]", "unknown facts"),
        ("prior.yaml", "value: 8, why: test", "value: 8", "needs value and why"),
        ("prior.yaml", "source: null}\n  hours", "source: x}\n  hours", "source 'x'"),
        ("prior.yaml", "licence: CC0, ", "", "licence"),
        ("prior.yaml", "quantity: interruption_rate", "quantity: mfu", "the folder is 'interruption_rate'"),
        ("prior.yaml", "limits: [few rows]", "", "missing limits"),
    ],
)
def test_bad_priors_are_named_and_leave_the_old_fit(root, name, old, new, message):
    before = refit.as_text(refit.refit("interruption_rate", root))
    edit(root, name, old, new)
    with pytest.raises(refit.PriorError, match=message.replace("(", r"\(")):
        refit.refit("interruption_rate", root)
    assert (root / "interruption_rate" / "fit.json").read_text() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"where": {"accelerator": "x"}}, "the last resort"),
        ({"where": {"region": "US"}}, "not in the ladder"),
        ({"rows": ["d"]}, "rows d are not"),
        ({"sources": ["blog"]}, "no source blog"),
        ({"rows": []}, "judged:"),
        ({"family": "normal", "parameters": {"mean": 0.1, "sd": 0.1}}, "draws reach"),
        ({"family": "cauchy", "parameters": {}}, "unknown family"),
        ({"parameters": {"regression": {"terms": ["phase_of_moon"]}}}, "no scenario supplies"),
        ({"family": "beta", "parameters": {"regression": {"terms": ["intercept"]}}}, "needs family"),
    ],
)
def test_bad_populations_are_refused(root, monkeypatch, change, message):
    from gpustack_mc.fits import interruption_rate as program

    good = program.fit

    def bad(rows, settings):
        found = good(rows, settings)
        return found._replace(populations=[population._replace(**change) for population in found.populations])

    monkeypatch.setattr(program, "fit", bad)
    with pytest.raises(refit.PriorError, match=message):
        refit.refit("interruption_rate", root)


def test_nothing_is_sampled_to_see_that_a_fit_is_fresh(root, monkeypatch):
    refit.refit("interruption_rate", root)
    monkeypatch.setattr(hierarchy, "sample", None)
    assert refit.stale("interruption_rate", root) is None


def test_better_words_do_not_make_a_fit_stale(tmp_path):
    path = tmp_path / "program.py"
    path.write_text('"""Old."""\nX = 1  # why\ndef f():\n    """Says."""\n')
    before = freshness.statements(path)
    path.write_text('"""New."""\nX = 1\n\n\ndef f():\n    """Says more."""\n')
    assert freshness.statements(path) == before
    path.write_text('"""New."""\nX = 2\n\n\ndef f():\n    """Says more."""\n')
    assert freshness.statements(path) != before


WITHOUT_TYPES = """
from typing import NamedTuple
X = [1]
class Row(NamedTuple):
    a: float
    b: float = 2.0
class Kept:
    c: float = 3.0
@cache
def decorated(x: int): return x
def f(x, *more, y=1):
    z = x + y
    return z
"""


def _statements(tmp_path, text):
    path = tmp_path / "program.py"
    path.write_text(text)
    return freshness.statements(path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("def f(x, *more, y=1):", "def f(x: float, *more: int, y: float = 1) -> float:"),
        ("    z = x + y", "    z: float = x + y"),
        ("X = [1]", "X: list[int] = [1]"),
        ("    a: float\n", "    a: int\n"),
        ("from typing import NamedTuple", "from collections.abc import Mapping\nfrom typing import Any, NamedTuple"),
        ("from typing import NamedTuple", "import numpy.typing as npt\nfrom typing import NamedTuple"),
    ],
)
def test_better_types_do_not_make_a_fit_stale(tmp_path, old, new):
    assert old in WITHOUT_TYPES
    assert _statements(tmp_path, WITHOUT_TYPES.replace(old, new)) == _statements(tmp_path, WITHOUT_TYPES)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    a: float\n    b: float = 2.0", "    b: float\n    a: float = 2.0"),
        ("    b: float = 2.0", "    b: float = 2.5"),
        ("    b: float = 2.0", "    b: float = 2.0\n    d: float = 2.0"),
        ("    c: float", "    c: int"),
        ("decorated(x: int)", "decorated(x: float)"),
        ("y=1", "y=2"),
        ("z = x + y", "z: float = x - y"),
        ("from typing import NamedTuple", "from mine import NamedTuple"),
        ("from typing import NamedTuple", "import numpy as np\nfrom typing import NamedTuple"),
    ],
)
def test_what_types_may_decide_makes_a_fit_stale(tmp_path, old, new):
    """Names, order and defaults of fields, and types that a base class or a decorator may read."""
    assert old in WITHOUT_TYPES
    assert _statements(tmp_path, WITHOUT_TYPES.replace(old, new)) != _statements(tmp_path, WITHOUT_TYPES)


@pytest.mark.parametrize(
    ("bad", "message"),
    [({"divergences": 2}, "TARGET_ACCEPT"), ({"r_hat": 1.2}, "R-hat 1.200"), ({"ess_tail": 20.0}, "raise SAMPLES")],
)
def test_chains_that_did_not_converge_are_not_written(root, monkeypatch, capsys, bad, message):
    before = refit.as_text(refit.refit("interruption_rate", root))
    found = {"diagnostics": HEALTHY["diagnostics"] | bad}
    monkeypatch.setattr(chain_checks, "checks", lambda problem, posterior: found)
    monkeypatch.setattr(refit, "priors_root", lambda given=None: root)
    assert refit.main(["interruption_rate"]) == 3
    assert message in capsys.readouterr().err
    assert (root / "interruption_rate" / "fit.json").read_text() == before


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


def test_sixteen_bit_peak_gives_fp8_scenarios_the_same_prediction():
    plain = {
        "terms": ["intercept", "log10_peak_tflops"], "coefficients": [1.0, 0.7],
        "covariance": [[0.4, -0.1], [-0.1, 0.05]], "residual_sd": 0.2,
    }  # fmt: skip
    both = sixteen_bit_peak(plain)
    in_bf16 = np.array([1.0, 3.0])
    in_fp8 = np.array([1.0, 3.0 + np.log10(2), 1.0])
    covariance, plain_covariance = np.array(both["covariance"]), np.array(plain["covariance"])
    assert both["terms"] == ["intercept", "log10_peak_tflops", "fp8"]
    assert in_fp8 @ both["coefficients"] == pytest.approx(in_bf16 @ plain["coefficients"])
    assert in_fp8 @ covariance @ in_fp8 == pytest.approx(in_bf16 @ plain_covariance @ in_bf16)
