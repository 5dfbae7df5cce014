"""Rules that tell runs beyond a limit from the others, on models whose regions are known."""

import numpy as np
import pytest

from gpustack_mc.regional import EDGES, fulfils, region

REPLICATES = 16
NAMES = ["a", "b", "c"]


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(8).random((3, 2**16))


def test_one_cut_that_explains_everything(x):
    found = region(x[1], x, NAMES, 0.75, REPLICATES)
    (rule,) = found.rules
    (cut,) = rule.cuts
    assert (cut.name, cut.side) == ("b", "above")
    assert cut.value == pytest.approx(0.75, abs=1 / EDGES)  # edges lie this far apart
    assert found.side == "over" and found.share.value == pytest.approx(0.25, abs=0.01)
    assert rule.caught.value > 0.93 and rule.others.value < 0.03 and rule.inside.value > 0.93
    # The distance of two distributions that do not overlap is 1; of unrelated inputs nothing is told.
    assert list(found.distances) == ["b"] and found.distances["b"] > 0.97


def test_a_corner_needs_two_cuts(x):
    y = ((x[0] < 0.3) & (x[2] > 0.5)).astype(float)
    found = region(y, x, NAMES, 0.5, REPLICATES)
    one, two = found.rules
    # Alone, a < 0.3 catches all of the region and half as many others: J = 1 - 0.15 / 0.85.
    assert (one.cuts[0].name, one.cuts[0].side) == ("a", "below")
    assert found.distances["a"] == pytest.approx(1 - 0.15 / 0.85, abs=0.03)
    assert {(cut.name, cut.side) for cut in two.cuts} == {("a", "below"), ("c", "above")}
    assert one.inside.value == pytest.approx(0.5, abs=0.05) and two.inside.value > 0.9
    assert {cut.name: cut.value for cut in two.cuts} == pytest.approx({"a": 0.3, "c": 0.5}, abs=1.5 / EDGES)


def test_the_rarer_side_is_described(x):
    found = region(x[0], x, NAMES, 0.2, REPLICATES)
    assert found.side == "within" and found.share.value == pytest.approx(0.2, abs=0.01)
    (rule,) = found.rules
    assert rule.cuts[0].side == "below" and rule.inside.value > 0.9


def test_shares_are_those_of_a_count_on_the_other_half(x):
    y = x[0] + x[1] + 0.2 * x[2]
    found = region(y, x, NAMES, 1.5, REPLICATES)
    tested = np.repeat(np.arange(REPLICATES) % 2 == 1, x.shape[1] // REPLICATES)
    for rule in found.rules:
        held = fulfils(rule.cuts, x, NAMES)
        over = y > 1.5
        assert rule.caught.value == pytest.approx(held[tested & over].mean(), abs=1e-12)
        assert rule.others.value == pytest.approx(held[tested & ~over].mean(), abs=1e-12)
        assert rule.inside.value == pytest.approx(over[tested & held].mean(), abs=1e-12)
        assert rule.caught.low < rule.caught.value < rule.caught.high
    # Youden's index of the rule is what the distance promised, on draws that the search has not seen.
    first = found.rules[0]
    gain = abs(first.caught.value - first.others.value)
    assert gain == pytest.approx(found.distances[first.cuts[0].name], abs=0.03)


def test_unrelated_inputs_have_no_rule(x):
    noise = np.random.default_rng(3).random(x.shape[1])
    found = region(noise, x, NAMES, 0.9, REPLICATES)
    # Each of three inputs exceeds its critical value by chance in one of a hundred cases; far below what makes a rule.
    assert found.rules == ()


def test_a_region_too_small_to_describe_is_only_counted(x):
    found = region(x[0], x, NAMES, 0.9999, REPLICATES)
    assert found.rules == () and found.distances == {} and 0 < found.share.value < 0.001
    assert region(x[0], x, NAMES, 2.0, REPLICATES).share.value == 0.0


def test_discrete_inputs(x):
    few = np.floor(x * 3)
    found = region(few[0] + 0.1 * x[1], few, NAMES, 1.9, REPLICATES)
    (rule,) = found.rules
    assert (rule.cuts[0].name, rule.cuts[0].value) == ("a", 2.0) and rule.inside.value == 1.0
