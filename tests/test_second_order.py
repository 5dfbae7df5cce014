"""Second-order indices, and which of them stand out of their own noise."""

import tracemalloc

import numpy as np
import pytest
from problems import g_function, ishigami, linear

from gpustack_mc import cube
from gpustack_mc.cube import FunctionCube
from gpustack_mc.design import make_design
from gpustack_mc.group_indices import group_indices
from gpustack_mc.second_order import second_order

DESIGN = make_design(2**14, seed=2)


def pairs_of(problem, design=DESIGN):
    model = FunctionCube(lambda x: problem.function(x)[None], problem.names, quantile=problem.quantile)
    centre = np.array([problem.mean])
    _, sums = group_indices(model, design, {name: [name] for name in problem.names}, centre)
    return second_order(model, design, problem.names, sums.base, centre)


def test_ishigami_has_one_interaction():
    problem = ishigami()
    found = pairs_of(problem)
    assert [pair for pair, told in zip(found.names, found.above_noise[:, 0], strict=True) if told] == [("x0", "x2")]
    place = found.names.index(("x0", "x2"))
    half = (found.index.high - found.index.low)[place, 0] / 2
    # Three half widths: 0.03% of normal errors lie further away.
    assert found.index.value[place, 0] == pytest.approx(problem.total[2], abs=3 * half) and half < 0.05
    # Where the model adds up, double differences vanish point by point.
    others = np.delete(found.index.value[:, 0], place)
    assert others == pytest.approx(0, abs=1e-12)


def test_g_function():
    problem = g_function(0.0, 1.0, 4.5)
    parts = problem.first * problem.variance
    found = pairs_of(problem)
    exact = np.array([parts[0] * parts[1], parts[0] * parts[2], parts[1] * parts[2]]) / problem.variance
    half = (found.index.high - found.index.low)[:, 0] / 2
    assert (np.abs(found.index.value[:, 0] - exact) <= 3 * half).all()
    assert found.above_noise[:, 0].tolist()[:1] == [True] and exact[0] > 3 * half[0]


def test_a_sum_has_none():
    assert not pairs_of(linear(10.0, 4.0, 2.0, 1.0), make_design(2**10)).above_noise.any()


def test_pure_noise_seldom_stands_out():
    """A function without a second-order part, but with noise of third order: x0 x1 x2 of symmetric inputs."""
    cube = FunctionCube(lambda x: (2 * x - 1).prod(axis=0)[None], ["a", "b", "c"])
    told = []
    for seed in range(40):
        design = make_design(2**10, seed=seed)
        _, sums = group_indices(cube, design, {name: [name] for name in cube.names}, np.zeros(1))
        told.append(second_order(cube, design, cube.names, sums.base, np.zeros(1)).above_noise.any())
    # One side of 90% for all pairs: 5% of 40 are 2; 7 or more have a probability of 0.3%.
    assert sum(told) < 7


def test_chunks_give_the_sums_of_one_pass(monkeypatch):
    found = []
    for size in (2**12, 2**7):
        monkeypatch.setattr(cube, "CHUNK", size)
        found.append(pairs_of(ishigami(), make_design(2**13, replicates=4)))
    # One pass over 2,048 points of each replicate against sixteen: the same numbers but for the order of additions.
    for one, many in zip(found[0].index, found[1].index, strict=True):
        np.testing.assert_allclose(many, one, rtol=1e-12, atol=1e-14)


def test_memory_does_not_grow_with_the_samples():
    peaks = []
    for samples in (2**16, 2**18):
        tracemalloc.start()
        pairs_of(ishigami(), make_design(samples, replicates=2))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # Two threads hold a chunk each; their peaks may or may not coincide.
    assert peaks[1] < 2.5 * peaks[0]
