r"""Predicted MFU of many planned runs at once, as quantile tables.

`gpustack_mc.efficiency` orders 121,000 points for one run, which takes 6 ms. The distribution is a mixture of normals
of nearly the same place and width, so that its normal score :math:`z(y) = \Phi^{-1}(F(y))` is nearly a straight line in
log MFU :math:`y`: here :math:`F` is computed at a few dozen places, and the line between them is a cubic.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpustack_mc import catalog
from gpustack_mc.arrays import Floats
from gpustack_mc.efficiency import draws, published_record
from gpustack_mc.fits import utilization_predict as program
from gpustack_mc.priors import TABLE_SIZE, TABLE_Z

PLACES = 41
REACH = 7.0
# Components of about the same width are put in groups, and so many neighbours of a group at a time are joined.
JOINED = 4
ALIKE = 8
_Z = np.linspace(-TABLE_Z, TABLE_Z, TABLE_SIZE)


def mfu_tables(rows: Sequence[Mapping[str, Any]], peaks: Sequence[float], clean: bool) -> Floats:
    """Predict the MFU of planned runs of a new team.

    Parameters
    ----------
    rows : sequence of mapping
        From `gpustack_mc.efficiency.planned_run`.
    peaks : sequence of float
        Peaks that MFU is counted against, FLOP/s.
    clean : bool
        Whether hours are counted exactly, not as published records count them.

    Returns
    -------
    ndarray, shape (rows, TABLE_SIZE)
        MFU at the normal scores of `gpustack_mc.priors`; the same distribution as `efficiency` gives one run.
    """
    fit = catalog.fit_record("utilization")
    record = program.CLEAN if clean else published_record(fit["constants"])
    found = program.predict(draws(), rows, fit["constants"], fit["settings"], record=record).log_mfu
    shift = np.log([row["peak_16bit_flop_per_s"] / peak for row, peak in zip(rows, peaks, strict=True)])
    tables = [
        quantile_table(weights, means + move, sds)
        for weights, means, sds, move in zip(found.weights, found.means, found.sds, shift, strict=True)
    ]
    return np.array(tables)


def quantile_table(weights: Floats, means: Floats, sds: Floats) -> Floats:
    """Return quantiles of exp(y), at most 1, with y a mixture of normals, at the normal scores of a table.

    Parameters
    ----------
    weights, means, sds : ndarray, shape (components,)

    Returns
    -------
    ndarray, shape (TABLE_SIZE,)
    """
    from scipy.special import ndtr, ndtri

    w, m, s = _joined(weights, means, sds)
    # So many standard deviations out no component has more mass than the last entries of the table stand for.
    low, high = float((m - REACH * s).min()), float((m + REACH * s).max())
    y = np.linspace(low, high, PLACES)
    if high > 0:
        # A share above one does not exist: scores rise steeply towards it, so that places are denser there.
        y = -((np.linspace(np.sqrt(-low), 0.0, PLACES)[:-1]) ** 2)
    below = ndtr((np.append(y, 0.0)[:, None] - m) / s) @ w
    below, inside = below[:-1], below[-1]
    # Above eight standard deviations float64 knows no more of 1 - F than that it is small.
    use = below / inside < 1 - 1e-14
    z, y = ndtri(below[use] / inside), y[use]
    log_mfu = _cubic(z, y)
    if high > 0:
        # So near to one the density is flat.
        log_mfu = np.where(z[-1] < _Z, y[-1] * ndtr(-_Z) / ndtr(-z[-1]), log_mfu)
    return np.exp(np.minimum(log_mfu, 0.0))


def _joined(weights: Floats, means: Floats, sds: Floats) -> tuple[Floats, Floats, Floats]:
    """Join components of about the same width and place."""
    width = np.argsort(np.argsort(sds, kind="stable"), kind="stable") // (JOINED * ALIKE)
    order = np.lexsort((means, width))
    first = np.arange(0, len(order), JOINED)
    w, m, s = weights[order], means[order], sds[order]
    total = np.add.reduceat(w, first)
    mean = np.add.reduceat(w * m, first) / total
    square = np.add.reduceat(w * (s**2 + m**2), first) / total - mean**2
    return total, mean, np.sqrt(square)


def _cubic(x: Floats, y: Floats) -> Floats:
    """Interpolate y(x) at the scores of a table by cubic Hermite polynomials."""
    slope = np.gradient(y, x)
    i = np.clip(np.searchsorted(x, _Z) - 1, 0, len(x) - 2)
    width = x[i + 1] - x[i]
    t = (_Z - x[i]) / width
    low = (1 + 2 * t) * (1 - t) ** 2 * y[i] + t * (1 - t) ** 2 * width * slope[i]
    return low + t**2 * (3 - 2 * t) * y[i + 1] + t**2 * (t - 1) * width * slope[i + 1]
