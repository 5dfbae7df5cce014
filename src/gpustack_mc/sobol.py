"""Sobol' sensitivity indices from streaming sums, with intervals from independent replicates.

Pick-freeze: the model runs on two independent samples A and B and, for each input i, on A with the column of i taken
from B (``ab_i``). The first-order index is the share of the variance of an output that input i explains alone, the
total index the share that would remain if all inputs but i were known; they differ by the interactions of i.

- first order: Saltelli et al. (2010), Comput. Phys. Commun. 181, 259-270, table 2 (b):
  mean of (y_b - mean)(y_ab - y_a), divided by the variance. Taking the mean off the first factor leaves the
  expectation alone and lowers the error several times when the mean is large against the spread.
- total: Jansen (1999), Comput. Phys. Commun. 117, 35-43: half the mean of (y_a - y_ab)^2, divided by the variance.
- variance: of A and B pooled.

A caller that wants the index of a group of inputs swaps all their columns at once, and one that wants indices of the
logarithm of an output passes logarithms. Only sums are kept, so memory does not grow with the number of samples.

First-order estimates of unimportant inputs may come out slightly negative: their expectation is 0, and nothing clips
them.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import numpy as np

from gpustack_mc.arrays import Array, Floats
from gpustack_mc.design import Design, points

PILOT = 256
"""Points of the pilot run that finds the centre of each output."""

CHUNK = 2**14
"""Points per call of the model in `sobol_indices`."""

_LANES = 16


class VarianceSums(NamedTuple):
    """Sums over the two samples A and B of one replicate; those of two chunks may be added.

    Attributes
    ----------
    linear, square : array, shape (..., outputs)
        Sums of y - centre and of its square, over A and B together; unit of the output, and its square.
    nonfinite : array of int, shape (..., outputs)
        Number of values of A and B that are infinite or not a number. They are left out of the sums.
    count : int or array of int, shape (...)
        Number of points of A (as many as of B).
    """

    linear: Any
    square: Any
    nonfinite: Any
    count: Any


class SwapSums(NamedTuple):
    """Sums over A, B and A with one input (or group) from B; those of two chunks may be added.

    Attributes
    ----------
    product, difference, jansen : array, shape (..., inputs, outputs)
        Sums of (y_b - centre)(y_ab - y_a), of y_ab - y_a, and of (y_ab - y_a)^2.
    nonfinite : array of int, shape (..., inputs, outputs)
        Number of values of ``y_ab`` that are infinite or not a number.
    """

    product: Any
    difference: Any
    jansen: Any
    nonfinite: Any


class Indices(NamedTuple):
    """Sensitivity indices of every output to every input.

    Attributes
    ----------
    first, first_low, first_high : numpy.ndarray, shape (inputs, outputs)
        First-order index and its credible interval for the Monte Carlo error; pure numbers.
    total, total_low, total_high : numpy.ndarray, shape (inputs, outputs)
        Total index and its interval.
    variance : numpy.ndarray, shape (outputs,)
        Variance of each output, square of its unit.
    status : tuple of str, length outputs
        ``"ok"``; ``"one replicate"``: no interval, its ends are NaN; ``"constant"``: the output does not vary beyond
        rounding, its indices are NaN; ``"non-finite"``: the output has values that are infinite or not a number, its
        indices and variance are NaN.
    nonfinite : numpy.ndarray of int, shape (outputs,)
        Number of infinite or not-a-number values among all model runs.
    """

    first: np.ndarray
    first_low: np.ndarray
    first_high: np.ndarray
    total: np.ndarray
    total_low: np.ndarray
    total_high: np.ndarray
    variance: np.ndarray
    status: tuple[str, ...]
    nonfinite: np.ndarray


def deviations(y: Array, centre: Array) -> tuple[Array, Array]:
    """Return y - centre with 0 where y is not finite, and how many of each row are not.

    Parameters
    ----------
    y : NumPy or JAX array, shape (..., outputs, n)
    centre : array, shape (outputs,)

    Returns
    -------
    array, shape (..., outputs, n); array, shape (..., outputs)
    """
    xp = y.__array_namespace__()
    finite = xp.isfinite(y)
    centre = centre[:, None]
    return xp.where(finite, y, centre) - centre, total(xp.where(finite, 0.0, 1.0).astype(y.dtype))


def total(x: Array) -> Array:
    """Sum over the last axis.

    XLA adds up a row term by term, each addition waiting for the one before; 16 partial sums do not wait, and lose
    fewer digits. NumPy has its own pairwise sum.
    """
    if isinstance(x, np.ndarray) or x.shape[-1] % _LANES:
        return x.sum(-1)
    return x.reshape(*x.shape[:-1], -1, _LANES).sum(-2).sum(-1)


def variance_sums(y_a: Array, y_b: Array, centre: Array) -> VarianceSums:
    """Add up what does not depend on an input, over one chunk.

    Parameters
    ----------
    y_a, y_b : NumPy or JAX array, shape (outputs, n)
        Outputs on samples A and B.
    centre : array, shape (outputs,)
        Any value near the mean of each output, the same for all chunks and replicates. It does not change the
        indices; the nearer it is, the less precision is lost in the sums.

    Returns
    -------
    VarianceSums
        Without leading axes. Traceable by JAX.
    """
    (a, bad_a), (b, bad_b) = deviations(y_a, centre), deviations(y_b, centre)
    return variance_sums_of(a, b, bad_a + bad_b)


def variance_sums_of(a: Array, b: Array, nonfinite: Array | int) -> VarianceSums:
    """`variance_sums` of `deviations`, shape (outputs, n), and the number of values that are not finite."""
    return VarianceSums(total(a + b), total(a * a + b * b), nonfinite, a.shape[-1])


def swap_sums(y_a: Array, y_b: Array, y_ab: Array, centre: Array) -> SwapSums:
    """Add up what one swapped input contributes, or several at once, over one chunk.

    Parameters
    ----------
    y_a, y_b, centre
        As for `variance_sums`.
    y_ab : NumPy or JAX array, shape (outputs, n) or (inputs, outputs, n)
        Outputs on A with one input from B. Passing one input at a time, as a ``lax.scan`` over inputs does, needs no
        more memory than one run of the model.

    Returns
    -------
    SwapSums
        Each of shape (outputs,) or (inputs, outputs). Traceable by JAX.
    """
    (a, _), (b, _), (ab, bad) = deviations(y_a, centre), deviations(y_b, centre), deviations(y_ab, centre)
    return swap_sums_of(b, ab - a, bad)


def swap_sums_of(b: Array, change: Array, nonfinite: Array | int) -> SwapSums:
    """`swap_sums` of the `deviations` of B, the change from A to AB, and the number of values of AB not finite."""
    return SwapSums(total(b * change), total(change), total(change * change), nonfinite)


def recentred(
    base: VarianceSums, swap: SwapSums, centre: np.ndarray, scale: np.ndarray, to: Floats
) -> tuple[VarianceSums, SwapSums]:
    """Turn sums of scaled deviations from one centre into sums of deviations from another one, in float64.

    Chunks may so be centred and scaled by their own values, which keeps the digits of float32.

    Parameters
    ----------
    base, swap
        Sums of (y - centre) / scale.
    centre, scale : numpy.ndarray, shape (..., outputs)
        Those of the sums.
    to : numpy.ndarray, shape (outputs,)
        The centre of the result.
    """
    base, swap = _in_float64(base), _in_float64(swap)
    shift, values = centre - to, 2.0 * base.count[..., None]
    linear = base.linear * scale
    moved = VarianceSums(
        linear + values * shift,
        base.square * scale**2 + (2 * linear + values * shift) * shift,
        base.nonfinite,
        base.count,
    )
    scale, shift = scale[..., None, :], shift[..., None, :]
    difference = swap.difference * scale
    product = swap.product * scale**2 + shift * difference
    return moved, SwapSums(product, difference, swap.jansen * scale**2, swap.nonfinite)


def _in_float64[Sums: (VarianceSums, SwapSums)](sums: Sums) -> Sums:
    return type(sums)(*(np.asarray(part, dtype=float) for part in sums))


def add_sums[Sums: (VarianceSums, SwapSums)](left: Sums, right: Sums) -> Sums:
    """Join the sums of two chunks of the same replicate, or of two replicates."""
    return type(left)(*(a + b for a, b in zip(left, right, strict=True)))


def added_up[Sums: (VarianceSums, SwapSums)](sums: Sequence[Sums]) -> Sums:
    """Join sums that hold chunks along their leading axis; one or more."""
    return type(sums[0])(*(sum(part.sum(axis=0) for part in parts) for parts in zip(*sums, strict=True)))


def stack_sums[Sums: (VarianceSums, SwapSums)](sums: Sequence[Sums]) -> Sums:
    """Join the sums of several replicates, or of several inputs, along a new leading axis; at least one."""
    return type(sums[0])(*(np.stack([np.asarray(part) for part in parts]) for parts in zip(*sums, strict=True)))


def _estimates(base: VarianceSums, swap: SwapSums) -> tuple[Floats, Floats, Floats]:
    """First-order and total index, each (..., inputs, outputs), and variance (..., outputs)."""
    values = 2.0 * base.count[..., None]
    mean = base.linear / values
    variance = (base.square / values - mean**2) * values / (values - 1.0)
    scale = base.count[..., None, None] * variance[..., None, :]
    first = (swap.product - mean[..., None, :] * swap.difference) / scale
    return first, swap.jansen / (2.0 * scale), variance


def _together[Sums: (VarianceSums, SwapSums)](sums: Sums) -> Sums:
    """Sum over the leading axis (replicates)."""
    return type(sums)(*(part.sum(axis=0) for part in sums))


def _all_but_one[Sums: (VarianceSums, SwapSums)](sums: Sums, together: Sums) -> Sums:
    """Leave out each replicate in turn; leading axis: which one."""
    return type(sums)(*(whole - part for whole, part in zip(together, sums, strict=True)))


def indices(
    base: VarianceSums,
    swap: SwapSums,
    mass: float = 0.90,
    floor: float | np.ndarray = 0.0,
    precision: float = float(np.finfo(float).eps),
) -> Indices:
    """Compute indices pooled over replicates, with delete-one-replicate jackknife intervals.

    The estimate is the ratio of the sums over all replicates, and its error comes from leaving out one replicate at a
    time, with Student's t of R - 1 degrees of freedom. The pooled ratio has less bias than the mean of the replicates'
    own ratios; ``benchmarks/sensitivity_coverage.py`` measures the coverage of both intervals.

    Parameters
    ----------
    base : VarianceSums
        Leading axis: replicate, shape (R, outputs). From `stack_sums`.
    swap : SwapSums
        Shape (R, inputs, outputs).
    mass : float
        Probability of the intervals, between 0 and 1.
    floor : float or numpy.ndarray, shape (outputs,)
        Variance, in the square of the output's unit, at or below which an output counts as constant, for example
        because its digits end there.
    precision : float
        Relative spacing of the numbers that were added up.

    Returns
    -------
    Indices

    Raises
    ------
    ValueError
        When ``mass`` is not between 0 and 1.
    """
    base, swap = _in_float64(base), _in_float64(swap)
    whole_base, whole_swap = _together(base), _together(swap)
    nonfinite = (whole_base.nonfinite + whole_swap.nonfinite.sum(axis=0)).astype(np.int64)
    replicates = len(base.count)
    # Constant outputs divide by zero here, and one replicate leaves nothing when left out; both are NaN by the status.
    with np.errstate(divide="ignore", invalid="ignore"):
        first, total, variance = _estimates(whole_base, whole_swap)
        left_first, left_total, _ = _estimates(_all_but_one(base, whole_base), _all_but_one(swap, whole_swap))
    rounding = 8.0 * precision * whole_base.square / whole_base.count
    constant = variance <= np.maximum(rounding, floor)
    unusable = constant | (nonfinite > 0)
    first, total = (np.where(unusable, np.nan, index) for index in (first, total))
    first_half, total_half = (_jackknife_half_width(left, mass) for left in (left_first, left_total))
    status = [
        "non-finite" if bad else "constant" if same else "ok" if replicates > 1 else "one replicate"
        for bad, same in zip(nonfinite, constant, strict=True)
    ]
    return Indices(
        first=first,
        first_low=first - first_half,
        first_high=first + first_half,
        total=total,
        total_low=total - total_half,
        total_high=total + total_half,
        variance=np.where(nonfinite > 0, np.nan, variance),
        status=tuple(status),
        nonfinite=nonfinite,
    )


def bootstrapped(base: VarianceSums, swap: SwapSums, mass: float = 0.90, **limits: Any) -> Indices:
    """Compute indices as `indices` does, with percentile intervals of a bootstrap over points.

    Other packages have these intervals. A resample loses what makes Sobol' points even: where an output is smooth they
    are several times too wide. In the sums resamples are the axis after that of the replicates, and the first one is
    the sample itself.
    """
    base, swap = VarianceSums(*map(np.asarray, base)), SwapSums(*map(np.asarray, swap))
    sample = VarianceSums(*(part[:, 0] for part in base)), SwapSums(*(part[:, 0] for part in swap))
    found = indices(*sample, mass, **limits)
    with np.errstate(divide="ignore", invalid="ignore"):
        first, total, _ = _estimates(_together(base), _together(swap))
    tails = (0.5 - mass / 2, 0.5 + mass / 2)
    lows, highs = np.where(np.isnan(found.first), np.nan, np.quantile([first[1:], total[1:]], tails, axis=1))
    status = tuple("ok" if known == "one replicate" else known for known in found.status)
    return found._replace(first_low=lows[0], first_high=highs[0], total_low=lows[1], total_high=highs[1], status=status)


def _jackknife_half_width(left: np.ndarray, mass: float) -> np.ndarray:
    """Half width of the interval from estimates that leave out one replicate each (leading axis)."""
    # A deletion moves the pooled estimate R - 1 times less than a replicate's own estimate lies from it.
    return t_quantile(len(left), mass) * (len(left) - 1) * replicate_error(left)


def replicate_error(values: np.ndarray) -> Floats:
    """Compute the standard error of the mean of independent replicates.

    Also, to first order, the standard error of the same statistic of all replicates pooled: of a quantile, say.

    Parameters
    ----------
    values : numpy.ndarray, shape (R, ...)
        One estimate from each replicate.

    Returns
    -------
    numpy.ndarray, shape (...)
        In the unit of ``values``; NaN for a single replicate.
    """
    values = np.asarray(values, dtype=float)
    if len(values) == 1:
        return np.full(values.shape[1:], np.nan)
    error: Floats = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    return error


def replicate_interval(values: np.ndarray, mass: float = 0.90) -> tuple[np.ndarray, np.ndarray]:
    """Student's t interval for the expectation of a statistic, from its values in independent replicates.

    Parameters
    ----------
    values : numpy.ndarray, shape (R, ...)
        One estimate from each replicate.
    mass : float
        Probability of the interval, between 0 and 1.

    Returns
    -------
    low, high : numpy.ndarray, shape (...)
        In the unit of ``values``; NaN for a single replicate.

    Raises
    ------
    ValueError
        When ``mass`` is not between 0 and 1.
    """
    values = np.asarray(values, dtype=float)
    half = t_quantile(len(values), mass) * replicate_error(values)
    return values.mean(axis=0) - half, values.mean(axis=0) + half


@lru_cache
def t_quantile(replicates: int, mass: float) -> float:
    r"""Half width of the central interval of Student's t with one degree of freedom less than replicates.

    With :math:`\nu` such degrees, the probability within :math:`\pm t` is a finite sum of sines and cosines of
    :math:`\theta = \arctan(t / \sqrt\nu)`. It is solved by bisection, because the library function takes 0.3 s to
    import. NaN for one replicate.

    References
    ----------
    Abramowitz and Stegun (1964), Handbook of Mathematical Functions, equations 26.7.3 and 26.7.4.
    """
    if not 0.0 < mass < 1.0:
        raise ValueError(f"the mass of an interval must be between 0 and 1, not {mass}")
    freedom = replicates - 1
    if freedom == 0:
        return math.nan
    low, high = 0.0, math.pi / 2
    while high - low > 1e-15:
        middle = (low + high) / 2
        low, high = (middle, high) if _t_mass(middle, freedom) < mass else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _t_mass(angle: float, freedom: int) -> float:
    """Probability that Student's t lies within the square root of its degrees of freedom times tan(angle)."""
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= math.cos(angle) ** 2 * (k - 1) / k
        total += term
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def sobol_indices(
    function: Callable[[np.ndarray], np.ndarray], names: Sequence[str], design: Design, mass: float = 0.90
) -> Indices:
    """Compute the indices of any vectorised function of independent uniform inputs.

    Parameters
    ----------
    function : callable
        Takes points of the unit cube, shape (inputs, n), and returns outputs, shape (outputs, n). Apply the quantile
        functions of the inputs inside it.
    names : sequence of str
        Names of the inputs; input i uses dimension number i.
    design : Design
        From `make_design`; the function is evaluated ``design.samples * (len(names) + 2)`` times.
    mass : float
        Probability of the intervals.

    Returns
    -------
    Indices

    Raises
    ------
    ValueError
        When ``mass`` is not between 0 and 1.
    """
    centre = pilot_centre(function(points(design, names, range(len(names)), 0, 0, min(PILOT, design.length))))
    # Below this an output differs from its centre by rounding in double precision only.
    floor = (4.0 * np.finfo(float).eps * centre) ** 2
    return indices(*replicate_sums(function, names, design, centre), mass, floor)


def pilot_centre(y: Floats) -> Floats:
    """Average the finite values of each output, 0 where there are none; (outputs, n) to (outputs,), same unit."""
    finite = np.isfinite(y)
    centre: Floats = np.where(finite, y, 0.0).sum(axis=1) / np.maximum(finite.sum(axis=1), 1)
    return centre


def replicate_sums(
    function: Callable[[np.ndarray], np.ndarray], names: Sequence[str], design: Design, centre: np.ndarray
) -> tuple[VarianceSums, SwapSums]:
    """Run the model on a design and add up every replicate.

    Parameters
    ----------
    function, names, design
        As for `sobol_indices`.
    centre : numpy.ndarray, shape (outputs,)
        As for `variance_sums`.

    Returns
    -------
    VarianceSums, SwapSums
        What `indices` takes.
    """
    base, swap = [], []
    for replicate in range(design.replicates):
        starts = range(0, design.length, CHUNK)
        chunks = [_chunk_sums(function, names, design, centre, replicate, start) for start in starts]
        base.append(reduce(add_sums, (chunk[0] for chunk in chunks)))
        swap.append(reduce(add_sums, (chunk[1] for chunk in chunks)))
    return stack_sums(base), stack_sums(swap)


def _chunk_sums(
    function: Callable[[np.ndarray], np.ndarray],
    names: Sequence[str],
    design: Design,
    centre: np.ndarray,
    replicate: int,
    start: int,
) -> tuple[VarianceSums, SwapSums]:
    """Run the model on one chunk of A, of B and of A with each input from B in turn."""
    stop = min(start + CHUNK, design.length)
    a, b = (points(design, names, range(len(names)), replicate, start, stop, block) for block in (0, 1))
    y_a, y_b = function(a), function(b)
    swaps = []
    for i in range(len(names)):
        swapped = a.copy()
        swapped[i] = b[i]
        swaps.append(swap_sums(y_a, y_b, function(swapped), centre))
    return variance_sums(y_a, y_b, centre), stack_sums(swaps)
