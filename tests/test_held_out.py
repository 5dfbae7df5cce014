"""Held-out predictions of the hierarchical programs: against conditioning by hand, new samplings, and a known truth."""

import json

import numpy as np
import pytest
from scipy import stats
from test_hierarchy import two_levels

from gpustack_mc import cli, scoring, validation_priors
from gpustack_mc.fits import held_out, hierarchy
from gpustack_mc.fits.hierarchy import Effect, Posterior, Problem, Row


def posterior_of(problem, s):
    data = hierarchy.arrays(problem)
    mean, root = hierarchy.condition(data, s)
    return Posterior({}, s, mean, root, tuple(problem.effects), tuple(problem.spreads), 0)


def spreads(problem, draws, seed_=0):
    return np.exp(np.random.default_rng(seed_).normal(-0.5, 0.2, (draws, len(problem.spreads))))


def test_rows_given_all_others_are_those_of_effects_without_them():
    """For one draw of the spreads: conditioning the effects on the other rows and adding noise is the same."""
    problem = two_levels()
    s = spreads(problem, 1)
    fold = [0, 1, 2]
    found = held_out.predict(problem, [fold], posterior_of(problem, s), maximal_k_hat=0.7)
    rest = problem._replace(rows=problem.rows[3:])
    without = posterior_of(rest, s)
    data = hierarchy.arrays(problem)
    for i in fold:
        a = data.design[i]
        mean = without.mean[0] @ a + data.shift[i] @ s[0]
        variance = np.square(a @ without.root[0]).sum() + data.noise[i] @ s[0] ** 2 + data.variance[i]
        assert found.mixture.means[i] == pytest.approx(mean)
        assert found.mixture.sds[i] == pytest.approx(np.sqrt(variance))
    assert found.refitted == 0


def test_weights_are_those_of_bayes_rule():
    """Two equally likely draws that saw a row: without it, each is as likely as its density there is small."""
    problem = Problem(
        [Row(0.0, {}, {"a": 1.0}, "x"), Row(2.0, {}, {"a": 1.0}, "y")], {"m": Effect(1.0)},
        {"a": hierarchy.half_normal(1.0)},
    )  # fmt: skip
    s = np.array([[1.0], [2.0]])
    found = held_out.predict(problem, [[1]], posterior_of(problem, s), maximal_k_hat=0.7).mixture
    inverse = 1 / stats.norm.pdf(2.0, scale=s[:, 0])
    # Two weights have no tail that could be smoothed.
    np.testing.assert_allclose(found.weights[1], inverse / inverse.sum())


def test_without_rows_is_a_program_whose_rows_say_nothing():
    problem = two_levels()
    s = spreads(problem, 3)
    gone = posterior_of(problem._replace(rows=problem.rows[3:]), s)
    mute = posterior_of(held_out._without(problem, [0, 1, 2]), s)
    np.testing.assert_allclose(mute.mean, gone.mean, atol=1e-6)  # variances of one over 1e8


def test_units_and_kinds():
    rows = [
        Row(0.0, {"mean": 1.0, "g:a": 1.0}, {}, "u"),
        Row(0.0, {"mean": 1.0, "g:b": 1.0}, {}),
        Row(0.0, {}, {}, "u"),
    ]
    problem = Problem(rows, {}, {})
    assert held_out.units(problem) == [[0, 2], [1]]
    assert held_out.kinds(problem) == ["g mean", "g mean", ""]


@pytest.fixture(scope="module")
def scored():
    """Sixty members in twelve groups, drawn from the program that predicts them."""
    rng = np.random.default_rng(3)
    rows = []
    for group in range(12):
        level = 1.0 * rng.standard_normal()
        rows += [
            Row(level + 0.3 * rng.standard_normal(), {"mean": 1.0, f"g:{group}": 1.0}, {"members": 1.0}, str(group))
            for _ in range(5)
        ]
    effects = {"mean": Effect(10.0)} | {f"g:{group}": Effect("groups") for group in range(12)}
    problem = Problem(rows, effects, {"groups": hierarchy.half_normal(1.0), "members": hierarchy.half_normal(0.5)})
    return validation_priors.of_problem(problem)


def test_a_program_that_is_right_covers_what_it_says(scored):
    assert not validation_priors.misses(scored["row"])
    assert not validation_priors.misses(scored["unit"])
    assert scored["row"]["n"] == 60 and scored["unit"]["units"] == 12


def test_known_groups_are_predicted_better_than_by_the_median_of_all(scored):
    plain = scored["row"]["baseline"]
    # Spreads are 0.3 within and 1 between groups, so that the median's CRPS is three times as large but for its luck.
    assert plain["crps_of_the_program"] < 0.5 * plain["crps"]
    # A group that is left out is as unknown to the program as to the median.
    assert scored["unit"]["crps"] == pytest.approx(scored["unit"]["baseline"]["crps"], rel=0.2)


def test_too_narrow_and_too_wide_are_told_from_chance():
    expected = {"0.9": validation_priors._by_chance(0.9, 40)}
    low, high = expected["0.9"]
    # scipy's binomial: 40 trials at 0.9
    assert (low, high) == (stats.binom.ppf(0.005, 40, 0.9) / 40, stats.binom.ppf(0.995, 40, 0.9) / 40)
    for value, words in ((0.7, ["90% low"]), (0.9, []), (1.0, ["90% high"] if high < 1 else [])):
        assert validation_priors.misses({"coverage": {"0.9": value}, "expected_coverage": expected}) == words


def test_words_and_picture(scored, tmp_path):
    result = json.loads(json.dumps({"schema_version": 1, "priors": {"pue": scored}, "versions": {"numpy": "2"}}))
    assert "pue" in validation_priors.text(result)
    validation_priors.write(result, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(validation_priors.FILES)
    assert "| pue | unit | 60 | 12 |" in (tmp_path / "priors.md").read_text(encoding="utf-8")


def test_published_scores_follow_from_their_rows(root):
    path = root / "reports" / "validation" / "priors.json"
    found = json.loads(path.read_text(encoding="utf-8"))["priors"]
    assert set(found) <= set(validation_priors.quantities())
    for quantity, by_scheme in found.items():
        for entry in by_scheme.values():
            assert len(entry["pit"]) == entry["n"], quantity
            inside = np.abs(np.array(entry["pit"]) - 0.5)
            for level in scoring.LEVELS:
                # PITs are stored to four digits.
                assert np.mean(inside <= level / 2) == pytest.approx(entry["coverage"][str(level)], abs=2 / entry["n"])


def test_options_exclude_each_other(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["validate", "--priors", "--refit"])
    assert stop.value.code == 2
    assert "--priors goes with neither" in capsys.readouterr().err
