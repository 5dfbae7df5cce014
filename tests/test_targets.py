"""Targets: what is read, what is refused, and how draws are held against them."""

import numpy as np
import pytest

from gpustack_mc import targets
from gpustack_mc.errors import InputError
from gpustack_mc.targets import Target, Term


def test_a_condition_is_read_with_its_units():
    found = targets.read("P(training_days <= 4 week and cost <= 5 MUSD) >= 90%", "rent", {})
    assert found == Target((Term("training_days", True, 28.0), Term("cost_rented_usd", True, 5e6)), 0.9)


def test_outputs_are_compared_with_each_other_and_other_signs_are_read():
    found = targets.read("p( cost_owned_usd < cost_rented_usd & energy_mwh >= 2 GWh ) ≥ 0.25", "either", {})
    assert found.terms == (Term("cost_owned_usd", True, "cost_rented_usd"), Term("energy_mwh", False, 2000.0))
    assert str(found) == "P(cost owned at most cost rented and energy at least 2 GWh) ≥ 0.25"


def test_currencies_need_and_use_their_rate():
    assert targets.limit("2 MEUR", "USD", {"EUR": 1.1}, "--budget") == pytest.approx(2.2e6)
    with pytest.raises(InputError, match="exchange_rates"):
        targets.limit("2 MEUR", "USD", {}, "--budget")


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("training_days <= 30 d", "bad-condition", "is not a condition"),
        ("P(training_days) >= 0.9", "bad-condition", "is not a comparison"),
        ("P(training_dayz <= 30 d) >= 0.9", "unknown-output", "Did you mean training_days"),
        ("P(training_days <= 30) >= 0.9", "bad-unit", "has no unit"),
        ("P(training_days <= 30 kg) >= 0.9", "bad-unit", "a mass"),
        ("P(training_days <= energy_mwh) >= 0.9", "bad-unit", "Compare outputs of one unit"),
        ("P(training_days <= 30 d) >= 1", "bad-probability", "tails without end"),
        ("P(training_days <= 30 d) >= 0", "bad-probability", "more than 0"),
        ("P(training_days <= 30 d) >= 90", "bad-probability", "between 0 and 1"),
        ("P(training_days <= 30 d) >= often", "bad-value", "not a probability"),
        ("P(training_days <= -3 d) >= 0.9", "bad-value", "not a limit"),
        ("P(cost <= 5 MUSD) >= 0.9", "which-cost", "ownership=own or rent"),
    ],
)
def test_what_is_no_condition_says_why(text, code, says):
    with pytest.raises(InputError, match=says) as caught:
        targets.read(text, "either", {})
    assert caught.value.code == code
    assert caught.value.exit_code == 2


def test_limits_by_question_are_all_kept():
    found = targets.from_limits({"budget": "5MUSD", "deadline": "30d"}, 0.8, "own", {})
    assert found == Target((Term("cost_owned_usd", True, 5e6), Term("training_days", True, 30.0)), 0.8)
    assert targets.from_limits({}, 0.8, "own", {}) is None
    assert targets.from_questions({"deadline": 30.0}, 0.8, "either").terms == (Term("training_days", True, 30.0),)


def test_the_margin_is_at_most_zero_exactly_where_all_terms_hold():
    rng = np.random.default_rng(0)
    outputs = {"training_days": rng.lognormal(3, 1, 500), "cost_owned_usd": rng.normal(1e6, 2e6, 500),
               "cost_rented_usd": rng.lognormal(14, 1, 500)}  # fmt: skip
    terms = (Term("training_days", True, 20.0), Term("cost_owned_usd", True, "cost_rented_usd"),
             Term("training_days", False, 2.0))  # fmt: skip
    held = (outputs["training_days"] <= 20) & (outputs["cost_owned_usd"] <= outputs["cost_rented_usd"])
    held &= outputs["training_days"] >= 2
    assert 0 < held.mean() < 1
    np.testing.assert_array_equal(Target(terms, 0.5).margin(outputs) <= 0, held)
