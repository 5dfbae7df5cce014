"""Points of the unit cube, in independent replicates, as a pure function of (seed, input, replicate, point number).

Three designs share one interface: scrambled Sobol' points, Latin hypercubes and plain Monte Carlo. Each consists of
``replicates`` independent randomisations of equal length, because the spread between replicates is an honest Monte
Carlo error for all three, whereas the points inside a Sobol' or Latin replicate depend on each other.

The stream of an input is set by the seed, its own name and its own fixed dimension number and by nothing else, so
adding, removing or reordering inputs never changes the draws of the others. Every value is a cell number k of 32 bits,
which becomes the midpoint (k + 0.5)/2^32: no point is ever 0 or 1, where a quantile function is infinite.

Sources
-------
Direction numbers: S. Joe and F. Y. Kuo, "Constructing Sobol sequences with better two-dimensional projections", SIAM
J. Sci. Comput. 30 (2008) 2635-2654, the set ``new-joe-kuo-6`` (https://web.maths.unsw.edu.au/~fkuo/sobol/), of which
``data/joe_kuo_d6.npz`` holds the first 1,111 dimensions under ``data/joe_kuo_d6.LICENSE.txt``. Random linear scramble:
J. Matousek, "On the L2-discrepancy for anchored boxes", J. Complexity 14 (1998) 527-556. Latin hypercube: M. D. McKay,
R. J. Beckman and W. J. Conover, Technometrics 21 (1979) 239-245.
"""

import operator
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple, get_args
from zlib import crc32

import numpy as np

Method = Literal["sobol", "lhs", "random"]
Block = Literal[0, 1]

REPLICATES = 16
"""Independent scrambles of a design, from whose spread Monte Carlo errors follow."""

DIMENSION_LIMIT = 512
"""Inputs have dimension numbers below this.

Input number k owns the dimensions 2k (matrix A) and 2k + 1 (matrix B) of the Sobol' sequence. Neighbouring dimensions
fill their common plane more evenly than distant ones; with B at k + 512 the error of total indices of the g-function
was 4 times larger at 2^14 samples and 20 times at 2^16.
"""

SAMPLE_LIMIT = 2**40
"""Largest total number of samples."""

BITS = 32
"""Binary digits of a point."""

INDEX_BITS = 40
"""Binary digits of a point number: one replicate may hold all of `SAMPLE_LIMIT`."""

HALF_CELL = 2.0 ** -(BITS + 1)
"""Distance of a point from the lower end of its cell."""

RUN_BITS = 12
"""Sobol' points are made in runs of this many binary digits: 18 inputs take 0.3 MB."""

LATIN_ROUNDS = 4
"""Rounds of the bijection that shuffles the strata of a Latin hypercube."""

_TABLE = Path(__file__).parent / "data" / "joe_kuo_d6.npz"


class Design(NamedTuple):
    """How many points of which kind; build it with `make_design`.

    Attributes
    ----------
    method : {"sobol", "lhs", "random"}
        Scrambled Sobol' points, Latin hypercubes, or independent uniform draws.
    samples : int
        Total number of points, ``replicates`` times `length`.
    replicates : int
        Number of independent randomisations.
    seed : int
        Non-negative; 0 is a seed like any other.
    """

    method: Method
    samples: int
    replicates: int
    seed: int

    @property
    def length(self) -> int:
        """Number of points of one replicate."""
        return self.samples // self.replicates


def make_design(samples: int, method: Method = "sobol", seed: int = 0, replicates: int = REPLICATES) -> Design:
    """Choose the number of points and replicates.

    Fewer samples than ``replicates`` make as many replicates as samples, of one point each: that is plain Monte Carlo,
    which is all that so few points can be. The points per replicate are then rounded up, to a power of two for
    ``sobol`` and ``lhs``, so `Design.samples` is at least what was asked for and less than twice that
    (plus ``replicates``).

    Parameters
    ----------
    samples : int
        Total number of points wanted, 1 to 2^40.
    method : {"sobol", "lhs", "random"}
        Kind of design.
    seed : int
        Non-negative.
    replicates : int
        Number of independent randomisations, at least 1. One replicate has no Monte Carlo error.

    Returns
    -------
    Design

    Raises
    ------
    ValueError
        When an argument is out of range.
    TypeError
        When a count or the seed is not an integer.
    """
    samples, seed, replicates = operator.index(samples), operator.index(seed), operator.index(replicates)
    if method not in get_args(Method):
        raise ValueError(f"the method must be one of {', '.join(get_args(Method))}, not {method!r}")
    if not 1 <= samples <= SAMPLE_LIMIT:
        raise ValueError(f"the number of samples must be between 1 and 2^40, not {samples}")
    if replicates < 1:
        raise ValueError(f"the number of replicates must be at least 1, not {replicates}")
    if seed < 0:
        raise ValueError(f"the seed must be 0 or more, not {seed}")
    replicates = min(replicates, samples)
    length = -(-samples // replicates)
    if method != "random":
        length = 1 << (length - 1).bit_length()
    return Design(method, length * replicates, replicates, seed)


def points(
    design: Design,
    names: Sequence[str],
    dimensions: Sequence[int],
    replicate: int,
    start: int,
    stop: int,
    block: Block = 0,
) -> np.ndarray:
    """Points ``start`` to ``stop - 1`` of one replicate, the same numbers as slicing the whole replicate.

    Parameters
    ----------
    design : Design
        From `make_design`.
    names : sequence of str
        Names of the inputs, all different.
    dimensions : sequence of int
        Dimension number of each input, all different, 0 to 511.
    replicate : int
        0 to ``design.replicates - 1``.
    start, stop : int
        ``0 <= start <= stop <= design.length``. Memory grows with ``stop - start`` only.
    block : {0, 1}
        0 for the sample itself (matrix A of pick-freeze), 1 for the independent second sample (matrix B).

    Returns
    -------
    numpy.ndarray of float64, shape (len(names), stop - start)
        In the open interval (0, 1).

    Raises
    ------
    ValueError
        When an argument is out of range, or when two inputs share a name or a dimension number.
    """
    start, stop = operator.index(start), operator.index(stop)
    _check(design, names, dimensions, replicate, start, stop, block)
    if design.method == "sobol":
        return _sobol_points(*sobol_tables(design, names, dimensions, replicate, block), start, stop)
    cells = _latin_cells if design.method == "lhs" else _random_cells
    result = np.empty((len(names), stop - start))
    for row, name, dimension in zip(result, names, dimensions, strict=True):
        entropy = _entropy(design.seed, name, 2 * int(dimension) + block, replicate)
        np.multiply(cells(entropy, design.length, start, stop), 2.0**-BITS, out=row)
    result += HALF_CELL
    return result


def sobol_tables(
    design: Design, names: Sequence[str], dimensions: Sequence[int], replicate: int, block: Block = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Scrambled direction numbers, for callers that make the points of a ``sobol`` design on their own device.

    Cell number of point i = shift XOR the direction numbers of the binary digits of i that are one; the point is
    (cell + 0.5)/2^32. `points` gives the same numbers.

    Parameters
    ----------
    design, names, dimensions, replicate, block
        As for `points`.

    Returns
    -------
    directions : numpy.ndarray of uint32, shape (len(names), 40)
        Column j belongs to binary digit j of the point number, least significant first.
    shift : numpy.ndarray of uint32, shape (len(names),)

    Raises
    ------
    ValueError
        As for `points`, and when the design is not ``sobol``.
    """
    if design.method != "sobol":
        raise ValueError(f"only a sobol design has direction numbers, this one is {design.method}")
    _check(design, names, dimensions, replicate, 0, 0, block)
    streams = [
        _scrambled(design.seed, name, 2 * int(dimension) + block, replicate)
        for name, dimension in zip(names, dimensions, strict=True)
    ]
    directions = np.array([stream[0] for stream in streams], dtype=np.uint32).reshape(-1, INDEX_BITS)
    return directions, np.array([stream[1] for stream in streams], dtype=np.uint32)


class Cells(NamedTuple):
    """Cell numbers of consecutive points; those of chunk c are ``run ^ bases[:, c, None]``.

    Point = (cell + 0.5)/2^32.

    Attributes
    ----------
    run : numpy.ndarray of uint32, shape (inputs, points of a chunk)
    bases : numpy.ndarray of uint32, shape (inputs, chunks)
    """

    run: np.ndarray
    bases: np.ndarray


def cells(
    design: Design,
    names: Sequence[str],
    dimensions: Sequence[int],
    replicate: int,
    start: int,
    stop: int,
    block: Block = 0,
    chunk: int = 1 << RUN_BITS,
) -> Cells:
    """Cell numbers of the points that `points` gives, in a form that needs little memory for Sobol' points.

    Parameters
    ----------
    design, names, dimensions, replicate, start, stop, block
        As for `points`.
    chunk : int
        Points of a chunk, a power of two. Sobol' points whose number is a power of two, and that start at a multiple
        of it, come in chunks of so many; all others are one chunk.

    Returns
    -------
    Cells
    """
    count = stop - start
    if design.method != "sobol" or count < 1 or count & (count - 1) or start % count:
        # The midpoint of a cell is exact in float64.
        numbers = np.floor(points(design, names, dimensions, replicate, start, stop, block) * 2.0**BITS)
        return Cells(numbers.astype(np.uint32), np.zeros((len(names), 1), np.uint32))
    directions, shift = sobol_tables(design, names, dimensions, replicate, block)
    low, digits = (min(count, chunk) - 1).bit_length(), (count - 1).bit_length()
    ones = [j for j in range(digits, INDEX_BITS) if start >> j & 1]
    origin = np.bitwise_xor.reduce(directions[:, ones], axis=1)
    return Cells(_doubled(shift, directions[:, :low]), _doubled(origin, directions[:, low:digits]))


def _doubled(first: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """XOR ``first`` with each combination of directions, (inputs, k): shape (inputs, 2^k), in binary order."""
    table = np.empty((len(first), 1 << directions.shape[1]), dtype=np.uint32)
    table[:, 0] = first
    for j in range(directions.shape[1]):
        np.bitwise_xor(table[:, : 1 << j], directions[:, j, None], out=table[:, 1 << j : 2 << j])
    return table


def _check(
    design: Design,
    names: Sequence[str],
    dimensions: Sequence[int],
    replicate: int,
    start: int,
    stop: int,
    block: int,
) -> None:
    """Raise ValueError in plain text for what `points` does not accept."""
    if len(names) != len(dimensions):
        raise ValueError(f"{len(names)} names but {len(dimensions)} dimension numbers")
    if len(set(names)) < len(names) or len(set(dimensions)) < len(dimensions):
        raise ValueError("two inputs share a name or a dimension number, so their draws would not be independent")
    if any(not 0 <= dimension < DIMENSION_LIMIT for dimension in dimensions):
        raise ValueError(f"dimension numbers must be between 0 and {DIMENSION_LIMIT - 1}")
    if not 0 <= replicate < design.replicates:
        raise ValueError(f"replicate {replicate} does not exist, there are {design.replicates}")
    if not 0 <= start <= stop <= design.length:
        raise ValueError(f"points {start} to {stop} do not exist, a replicate has {design.length}")
    if block not in get_args(Block):
        raise ValueError(f"the block must be 0 or 1, not {block}")


def _entropy(seed: int, name: str, dimension: int, replicate: int) -> np.random.SeedSequence:
    """Seed of one stream. The dimension is part of it because two names may have the same CRC-32."""
    return np.random.SeedSequence([seed, crc32(name.encode()), dimension, replicate])


@lru_cache(maxsize=1)
def _joe_kuo() -> tuple[np.ndarray, np.ndarray]:
    """Primitive polynomials, shape (1111,), all coefficients as binary digits, and initial m_i, shape (1111, 13)."""
    with np.load(_TABLE, allow_pickle=False) as table:
        return table["polynomial"], table["initial"]


def _directions(dimension: int) -> list[int]:
    """Unscrambled direction numbers of one dimension: 40 integers of 32 bits (Joe and Kuo 2008, equation 2).

    A direction number past the 32nd loses the digits that do not fit, so that points past the 2^32nd repeat values
    within one dimension.
    """
    polynomials, initial = _joe_kuo()
    polynomial = int(polynomials[dimension])
    degree = polynomial.bit_length() - 1
    if degree == 0:  # the first dimension is the van der Corput sequence
        return [1 << (BITS - 1) >> j for j in range(INDEX_BITS)]
    numbers = [int(m) << (BITS - 1 - j) for j, m in enumerate(initial[dimension][:degree])]
    for j in range(degree, INDEX_BITS):
        number = numbers[j - degree] ^ (numbers[j - degree] >> degree)
        for back in range(1, degree):
            if polynomial >> (degree - back) & 1:
                number ^= numbers[j - back]
        numbers.append(number)
    return numbers


@lru_cache(maxsize=4096)
def _scrambled(seed: int, name: str, dimension: int, replicate: int) -> tuple[np.ndarray, np.uint32]:
    """Direction numbers (40,) times a random matrix, and a random shift.

    The matrix over GF(2) is lower triangular with ones on the diagonal: each digit is XORed with a random subset of
    the more significant ones, which keeps every elementary interval equally filled. Cached because a caller that
    streams chunks asks for the same few hundred tables again and again, and one costs 0.1 ms.
    """
    words = np.random.PCG64(_entropy(seed, name, dimension, replicate)).random_raw(BITS + 1) >> np.uint64(BITS)
    diagonal = np.uint64(1) << np.arange(BITS - 1, -1, -1, dtype=np.uint64)
    matrix = words[:BITS] & ~(2 * diagonal - 1) & np.uint64(2**BITS - 1) | diagonal
    numbers = np.array(_directions(dimension), dtype=np.uint64)
    digits = np.bitwise_count(matrix & numbers[:, None]) & 1
    scrambled = (digits * diagonal).sum(axis=1).astype(np.uint32)
    scrambled.flags.writeable = False
    return scrambled, np.uint32(words[BITS])


def _sobol_points(directions: np.ndarray, shift: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Points ``start`` to ``stop - 1`` in the natural binary order of the point number, shape (inputs, stop - start).

    Point numbers are taken in aligned runs of 2^low. All runs share their low digits, whose XORs are made once by
    doubling, so a point costs one XOR. Runs are short enough to stay in the processor's cache.
    """
    low = min((stop - start).bit_length(), RUN_BITS)
    run = _doubled(shift, directions[:, :low])
    result = np.empty((len(shift), stop - start))
    for origin in range(start >> low << low, stop, 1 << low):
        first, last = max(start, origin), min(stop, origin + (1 << low))
        ones = [j for j in range(low, INDEX_BITS) if origin >> j & 1]
        base = np.bitwise_xor.reduce(directions[:, ones], axis=1)[:, None]
        chunk = result[:, first - start : last - start]
        np.multiply(run[:, first - origin : last - origin] ^ base, 2.0**-BITS, out=chunk)
        chunk += HALF_CELL
    return result


def _latin_cells(entropy: np.random.SeedSequence, length: int, start: int, stop: int) -> np.ndarray:
    """One point in each of ``length`` (a power of 2) equal strata, in random order, shape (stop - start,), uint64.

    The order is a keyed bijection of the point number (rounds of XOR, odd multiplication and shift, all invertible on
    the digits of ``length``), so that a chunk needs no table of the whole permutation. At most 2^32 strata can be told
    apart: in a longer replicate each of these holds the same number of points.
    """
    bits = (length - 1).bit_length()
    mask, half = np.uint64(length - 1), np.uint64((bits + 1) // 2)
    # Another generator than that of the jitter, else the keys would be the jitter of the first points.
    rotate, *keys = np.random.Philox(entropy).random_raw(2 * LATIN_ROUNDS + 1)
    stratum = np.arange(start, stop, dtype=np.uint64)
    for add, multiply in zip(keys[::2], keys[1::2], strict=True):
        stratum ^= add
        stratum *= multiply | np.uint64(1)
        stratum &= mask
        stratum ^= stratum >> half
    stratum += rotate  # makes every stratum exactly as likely for every point, which few digits alone do not
    stratum &= mask
    if bits >= BITS:
        return stratum >> np.uint64(bits - BITS)
    return stratum << np.uint64(BITS - bits) | _random_cells(entropy, length, start, stop) >> np.uint64(bits)


def _random_cells(entropy: np.random.SeedSequence, length: int, start: int, stop: int) -> np.ndarray:
    """Independent uniform integers of 32 bits, shape (stop - start,), uint64; one step of PCG64 for each."""
    del length  # no stratum depends on it
    return np.random.PCG64(entropy).advance(start).random_raw(stop - start) >> np.uint64(BITS)
