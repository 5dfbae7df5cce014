"""Memory of model state: closed forms, published totals, and the refusal with the least count that would do."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustack_mc import memory
from gpustack_mc.errors import InputError, Place

PLACE = Place("plan.yaml", 5, 3)
GB = memory.GIGABYTE


def fit(params, count, gigabytes, state=None, activations=None):
    return memory.fit(params, count, gigabytes * GB, state or memory.usual_state(), activations, PLACE)


def ways(found):
    return {way["sharding"]: way for way in found["ways"]}


def test_bytes_per_parameter_are_those_of_the_megatron_guide():
    # "float16 param, fp32 grads: 18", and 6 + 12/d with the optimizer distributed over d.
    state = memory.usual_state()
    assert state.total == 18
    found = ways(fit(1e9, 64, 80, state))
    assert found["replicated"]["state_gb"] == pytest.approx(18, rel=1e-12)
    assert found["optimizer sharded"]["state_gb"] == pytest.approx(6 + 12 / 64, rel=1e-12)


def test_zero_stages_are_those_of_the_zero_paper():
    # Rajbhandari et al. (2020), figure 1: 7.5B parameters, 64 accelerators, K = 12: 120, 31.4, 16.6 and 1.9 GB.
    found = ways(fit(7.5e9, 64, 200, memory.State(2, 2, 12)))
    held = [found[way]["state_gb"] for way in
            ("replicated", "optimizer sharded", "optimizer and gradients sharded", "all sharded")]  # fmt: skip
    # Printed to a tenth.
    assert held == pytest.approx([120, 31.4, 16.6, 1.9], abs=0.05)


def test_activations_count_what_is_kept():
    shape = memory.Shape(n_layers=10, d_model=100, sequence_length=1000, recompute=None)
    assert memory.activation_bytes(shape) == 34 * 10 * 100 * 1000
    assert memory.activation_bytes(shape._replace(recompute="full")) == (2 * 10 + 34) * 100 * 1000
    assert memory.activation_bytes(shape._replace(d_model=None)) is None


@given(
    params=st.floats(1e4, 1e15),
    gigabytes=st.floats(1, 1000),
    state=st.tuples(*[st.integers(1, 16)] * 3).map(lambda parts: memory.State(*parts)),
)
def test_the_least_count_is_least(params, gigabytes, state):
    least = memory.least_count(params, state, gigabytes * GB)
    assert params * state.total <= least * gigabytes * GB * (1 + 1e-9)
    assert least == 1 or params * state.total > (least - 1) * gigabytes * GB * (1 - 1e-9)
    # The count that the refusal names is accepted, and one less is refused.
    fit(params, least, gigabytes, state)
    if least > 1:
        with pytest.raises(InputError, match=f"At least {least:,} such"):
            fit(params, least - 1, gigabytes, state)


def test_a_model_that_cannot_fit_is_refused_at_its_place():
    with pytest.raises(InputError) as refused:
        fit(70e9, 8, 80)
    assert refused.value.place == PLACE
    assert refused.value.exit_code == 2
    # 70e9 parameters x 18 bytes over 80 GB.
    assert str(refused.value).endswith(f"At least {math.ceil(70 * 18 / 80)} such accelerators hold it.")


def test_the_split_of_the_model_is_the_least_power_of_two():
    found = fit(70e9, 1024, 80, activations=10 * GB)
    degree = found["model_parallel"]
    rest = 70 - 12 * 70 / 1024
    assert degree == 2 ** math.ceil(math.log2(6 * 70 / rest))
    assert 6 * 70 / degree <= rest < 6 * 70 / (degree / 2)


def test_activations_that_leave_no_room_are_said_and_not_refused():
    found = fit(1e9, 4, 80, activations=100 * GB)
    assert not any(way["fits"] for way in found["ways"])
    assert found["least_count_with_activations"] is None
    assert found["model_parallel"] is None


def test_every_row_of_the_table_has_a_source():
    for row in memory.table().values():
        assert float(row["value"]) > 0
        assert row["source_title"] and row["source_url"].startswith("https://") and row["licence"] and row["unit"]
