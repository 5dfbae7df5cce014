"""Targets: conditions with their probability, and how draws are held against them."""

import numpy as np
import pytest

from gpustack_mc import targets
from gpustack_mc.conditions import Subject
from gpustack_mc.errors import InputError, Place
from gpustack_mc.problem import Term
from gpustack_mc.quantities import OUTPUTS
from gpustack_mc.targets import Target

PLACE = Place("--such-that")


def about(ownership):
    return Subject(OUTPUTS, {"budget": 5e6, "deadline": 30.0, "carbon_cap": 9.0}, ownership, {})


def test_a_condition_is_read_with_its_units():
    found = targets.read("P(training_days <= 4 week and cost <= 5 MUSD) >= 90%", about("rent"), PLACE)
    assert found == Target((Term("training_days", "<=", 28.0), Term("cost_rented_usd", "<=", 5e6)), 0.9)
    assert str(found) == "P(run time at most 28 d and cost rented at most $5M) ≥ 0.9"


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("training_days <= 30 d", "bad-condition", "is not a condition with a probability"),
        ("P(training_days <= 30 d) <= 0.9", "bad-condition", "is not a condition with a probability"),
        ("P(training_days) >= 0.9", "bad-question", "has no limit"),
        ("P(training_days <= 30) >= 0.9", "bad-unit", "has no unit"),
        ("P(training_days <= 30 d) >= 1", "bad-probability", "nothing is certain"),
        ("P(training_days <= 30 d) >= 0", "bad-probability", "between 0 and 1"),
        ("P(training_days <= 30 d) >= 90", "bad-probability", "between 0 and 1"),
        ("P(training_days <= 30 d) >= often", "bad-probability", "not a probability"),
        ("P(cost <= 5 MUSD) >= 0.9", "which-cost", "ownership=own or rent"),
    ],
)
def test_what_is_no_target_says_why(text, code, says):
    with pytest.raises(InputError, match=says) as caught:
        targets.read(text, about("either"), PLACE)
    assert caught.value.code == code
    assert caught.value.exit_code == 2


def test_questions_are_all_kept():
    found = targets.from_questions(about("own"), ["budget", "deadline"], 0.8, PLACE)
    assert found == Target((Term("cost_owned_usd", "<=", 5e6), Term("training_days", "<=", 30.0)), 0.8)
    assert targets.from_questions(about("either"), ["deadline"], 0.8, PLACE).terms == (
        Term("training_days", "<=", 30.0),
    )
    with pytest.raises(InputError, match="whether the accelerators are owned or rented"):
        targets.from_questions(about("either"), ["budget"], 0.8, PLACE)


def test_the_margin_is_at_most_zero_exactly_where_all_terms_hold():
    rng = np.random.default_rng(0)
    outputs = {"training_days": rng.lognormal(3, 1, 500), "cost_owned_usd": rng.normal(1e6, 2e6, 500),
               "cost_rented_usd": rng.lognormal(14, 1, 500)}  # fmt: skip
    terms = (Term("training_days", "<=", 20.0), Term("cost_owned_usd", "<=", "cost_rented_usd"),
             Term("training_days", ">=", 2.0))  # fmt: skip
    held = (outputs["training_days"] <= 20) & (outputs["cost_owned_usd"] <= outputs["cost_rented_usd"])
    held &= outputs["training_days"] >= 2
    assert 0 < held.mean() < 1
    np.testing.assert_array_equal(Target(terms, 0.5).margin(outputs) <= 0, held)
