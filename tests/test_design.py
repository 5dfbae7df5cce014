import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from scipy.stats import qmc

from gpustack_mc import design as module
from gpustack_mc.design import Design, make_design, points, sobol_tables

NAMES = ["price", "mfu", "life", "pue"]
DIMENSIONS = [0, 1, 5, 17]
METHODS = ["sobol", "lhs", "random"]


def whole(design, names=NAMES, dimensions=DIMENSIONS, replicate=0, block=0):
    return points(design, names, dimensions, replicate, 0, design.length, block)


def test_unscrambled_directions_are_those_of_scipy():
    n = 512
    theirs = qmc.Sobol(2 * module.DIMENSION_LIMIT, scramble=False, bits=32).random(n)
    number = np.arange(n)
    gray = number ^ number >> 1  # SciPy's order
    directions = np.array([module._directions(j) for j in range(2 * module.DIMENSION_LIMIT)], dtype=np.uint32)
    ours = module._sobol_points(directions, np.zeros(len(directions), dtype=np.uint32), 0, n) - module.HALF_CELL
    np.testing.assert_array_equal(ours[:, gray].T, theirs)


def test_shipped_table_is_that_of_scipy_and_needs_no_pickle():
    polynomial, initial = module._joe_kuo()
    with np.load(Path(scipy.stats.__file__).parent / "_sobol_direction_numbers.npz") as theirs:
        np.testing.assert_array_equal(polynomial, theirs["poly"][:1111])
        np.testing.assert_array_equal(initial, theirs["vinit"][:1111, :13])


def test_scipy_is_not_imported():
    code = "import sys, gpustack_mc.design, gpustack_mc.sobol; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("samples", [1, 2, 3, 15, 16, 17, 100, 4096, 5000])
def test_at_least_the_samples_asked_for(method, samples):
    design = make_design(samples, method)
    assert samples <= design.samples < 2 * samples + 16
    assert design.replicates == min(16, samples)
    assert design.samples == design.replicates * design.length
    u = whole(design, replicate=design.replicates - 1)
    assert u.shape == (4, design.length)
    assert (u > 0).all() and (u < 1).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": 0}, "between 1 and 2\\^40"),
        ({"samples": 2**40 + 1}, "between 1 and 2\\^40"),
        ({"method": "halton"}, "sobol, lhs, random"),
        ({"seed": -1}, "0 or more"),
        ({"replicates": 0}, "at least 1"),
    ],
)
def test_bad_design(change, message):
    with pytest.raises(ValueError, match=message):
        make_design(**{"samples": 10} | change)


def test_fractional_counts_are_refused():
    with pytest.raises(TypeError):
        make_design(1e4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"names": ["a"]}, "1 names but 2 dimension"),
        ({"names": ["a", "a"]}, "share a name"),
        ({"dimensions": [3, 3]}, "share a name or a dimension"),
        ({"dimensions": [0, 512]}, "between 0 and 511"),
        ({"replicate": 16}, "replicate 16 does not exist"),
        ({"stop": 65}, "a replicate has 64"),
        ({"start": 5, "stop": 4}, "5 to 4 do not exist"),
        ({"block": 2}, "0 or 1"),
    ],
)
@pytest.mark.parametrize("method", METHODS)
def test_bad_points(method, change, message):
    good = {"names": ["a", "b"], "dimensions": [0, 1], "replicate": 0, "start": 0, "stop": 64}
    with pytest.raises(ValueError, match=message):
        points(make_design(1024, method), **good | change)


@pytest.mark.parametrize("method", METHODS)
def test_seeds(method):
    draws = {seed: whole(make_design(1024, method, seed)) for seed in (0, 1, 2**32, 2**80)}
    assert draws[0].tobytes() == whole(make_design(1024, method, 0)).tobytes()
    assert len({u.tobytes() for u in draws.values()}) == 4


@pytest.mark.parametrize("method", METHODS)
def test_replicates_blocks_names_and_dimensions_have_streams_of_their_own(method):
    design = make_design(1024, method)
    streams = [
        whole(design, ["a"], [0], replicate, block) for replicate in range(design.replicates) for block in (0, 1)
    ]
    streams += [whole(design, ["b"], [0]), whole(design, ["a"], [1])]
    assert len({u.tobytes() for u in streams}) == len(streams)


@pytest.mark.parametrize("method", METHODS)
def test_other_inputs_do_not_matter(method):
    design = make_design(1024, method)
    u = whole(design)
    more = whole(design, ["new", *NAMES[::-1]], [7, *DIMENSIONS[::-1]])
    assert more[:0:-1].tobytes() == u.tobytes()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [1, 7, 1000, 4096, 5000, 10_000])
def test_any_chunk_alone_equals_the_slice(method, size):
    design = make_design(2**17, method, replicates=8)
    u = whole(design)
    step = max(size, 611)  # single points need not all be tried
    for start in range(0, design.length, step):
        stop = min(start + size, design.length)
        assert points(design, NAMES, DIMENSIONS, 0, start, stop).tobytes() == u[:, start:stop].tobytes()
    assert points(design, NAMES, DIMENSIONS, 0, 5, 5).shape == (4, 0)


@pytest.mark.parametrize("method", METHODS)
def test_far_end_of_the_longest_replicate(method):
    design = make_design(2**40, method, replicates=1)
    end = points(design, NAMES, DIMENSIONS, 0, 2**40 - 9, 2**40)
    assert (end > 0).all() and (end < 1).all()
    np.testing.assert_array_equal(end[:, 4:5], points(design, NAMES, DIMENSIONS, 0, 2**40 - 5, 2**40 - 4))


@pytest.mark.parametrize("method", METHODS)
def test_points_are_midpoints_of_cells(method):
    cells = whole(make_design(2**12, method)) * 2.0**32 - 0.5
    np.testing.assert_array_equal(cells, np.floor(cells))


@pytest.mark.parametrize("method", ["sobol", "lhs"])
@pytest.mark.parametrize("samples", [16, 32, 2**8, 2**14])
def test_one_point_in_each_stratum(method, samples):
    design = make_design(samples, method)
    for replicate in (0, 15):
        for block in (0, 1):
            strata = np.sort(whole(design, replicate=replicate, block=block) * design.length // 1, axis=1)
            np.testing.assert_array_equal(strata, np.tile(np.arange(design.length), (4, 1)))


@pytest.mark.parametrize("replicate", [0, 3])
def test_elementary_intervals_of_two_dimensions_are_filled_evenly(replicate):
    # The first two Sobol' dimensions (both matrices of input 0) are a (0, m, 2)-net in base 2, and the scramble keeps
    # that: each box of area 2^-10 holds exactly one of the 2^10 points.
    design = make_design(2**14)
    x, y = (whole(design, ["a"], [0], replicate, block)[0] for block in (0, 1))
    for digits in range(11):
        box = (x * 2**digits).astype(int) * 2 ** (10 - digits) + (y * 2 ** (10 - digits)).astype(int)
        np.testing.assert_array_equal(np.sort(box), np.arange(1024))


def test_tables_give_the_points():
    design = make_design(2**14, seed=3)
    directions, shift = sobol_tables(design, NAMES, DIMENSIONS, 2, 1)
    number = 677
    cell = shift.copy()
    for digit in range(module.INDEX_BITS):
        if number >> digit & 1:
            cell ^= directions[:, digit]
    point = points(design, NAMES, DIMENSIONS, 2, number, number + 1, 1)[:, 0]
    np.testing.assert_array_equal(point, (cell + 0.5) / 2**32)
    with pytest.raises(ValueError, match="only a sobol design"):
        sobol_tables(make_design(10, "lhs"), NAMES, DIMENSIONS, 0)


def test_tables_cannot_be_changed_through_the_cache():
    with pytest.raises(ValueError, match="read-only"):
        module._scrambled(0, "a", 0, 0)[0][0] = 0


def test_scramble_is_unbiased():
    # Mean of u0 * u1 over 2000 replicates of 4 points; expectation 1/4. Tolerance: 5 standard errors.
    design = make_design(8000, replicates=2000)
    means = [whole(design, ["a", "b"], [0, 1], r).prod(axis=0).mean() for r in range(2000)]
    assert abs(np.mean(means) - 0.25) < 5 * np.std(means) / np.sqrt(2000)


@pytest.mark.parametrize("length", [2, 4, 16, 64])
def test_latin_order_is_as_random_as_a_permutation(length):
    # The mean of 12 (u - 1/2)(v - 1/2) over a Latin hypercube of independent uniform orders has variance
    # (1 - 1/n^2)^2/(n - 1) from the strata plus (2(1 - 1/n^2) + 1/n^2)/n^3 from the jitter. The sample variance of
    # 3000 replicates has a relative standard error of at most sqrt(2/3000) = 2.6% (its kurtosis is at most about
    # that of a normal); tolerance 5 of them.
    design = make_design(3000 * length, "lhs", replicates=3000)
    u = np.array([whole(design, ["a", "b"], [0, 1], r) for r in range(3000)]) - 0.5
    means = 12 * u.prod(axis=1).mean(axis=1)
    within = 1 / length**2
    exact = (1 - within) ** 2 / (length - 1) + (2 * within * (1 - within) + within**2) / length
    assert np.var(means) == pytest.approx(exact, rel=0.13)


def test_every_stratum_is_equally_likely_for_a_point():
    # 4000 replicates of 16 strata. Chi-square of 15 degrees of freedom: mean 15, variance 30; 5 standard deviations.
    design = make_design(4_000 * 16, "lhs", replicates=4_000)
    strata = [int(points(design, ["a"], [0], r, 0, 1)[0, 0] * 16) for r in range(4_000)]
    counts = np.bincount(strata, minlength=16)
    assert ((counts - 250) ** 2).sum() / 250 < 15 + 5 * np.sqrt(30)


def test_random_points_are_independent():
    # Correlation of 2^16 independent pairs has standard error 1/256; 5 of them.
    u = whole(make_design(2**16, "random", replicates=1))
    correlations = np.corrcoef(u)[np.triu_indices(4, 1)]
    assert np.abs(correlations).max() < 5 / 256


def test_design_is_a_value():
    assert make_design(1000) == Design("sobol", 1024, 16, 0)
    assert make_design(1000, "random") == Design("random", 1008, 16, 0)


@pytest.mark.parametrize("method", METHODS)
def test_numpy_integers_are_integers(method):
    design = make_design(np.int64(1024), method, np.uint8(200), np.int32(16))
    theirs = points(design, ["a"], np.array([200], dtype=np.uint8), np.int64(3), np.int64(2), np.int64(9))
    assert theirs.tobytes() == points(make_design(1024, method, 200), ["a"], [200], 3, 2, 9).tobytes()
