"""Statistics of the draws of one scenario of a sweep: exact, in a few passes over memory that stays in the cache."""

import numpy as np

from gpustack_mc import sobol
from gpustack_mc.sampling import MOST
from gpustack_mc.tallies import PROBABILITIES, STATISTICS

_FIRST = STATISTICS.index(f"q{PROBABILITIES[0]:g}")
_SIGN = np.uint32(2**31)
# What a row of keys adds to place it after all keys of the row before.
_KEYS = 2**16


class Summarizer:
    """Makes the statistics of scenarios one after the other, in the same memory.

    Parameters
    ----------
    samples, replicates : int
        Of the design; replicates lie one after the other.
    """

    def __init__(self, samples: int, replicates: int):
        self.samples, self.replicates = samples, replicates
        self._scratch = np.empty((0, samples))

    def _deviation(self, rows: int) -> np.ndarray:
        if len(self._scratch) < rows:
            self._scratch = np.empty((rows, self.samples))
        return self._scratch[:rows]

    def finite(self, y: np.ndarray) -> bool:
        """Whether all draws, shape (outputs, samples), are numbers that can be worked with."""
        return bool(-MOST < y.min() and y.max() < MOST)

    def statistics(self, y: np.ndarray) -> np.ndarray:
        """Return the statistics of draws.

        Parameters
        ----------
        y : ndarray, shape (outputs, samples)
            Finite.

        Returns
        -------
        ndarray, shape (outputs, len(STATISTICS))
            The Monte Carlo error of a quantile is that of the share of draws below it, from the replicates, times the
            slope of the quantile function there.
        """
        # Deviations keep the digits of constants: the variance of equal numbers must be zero.
        deviation = np.subtract(y, y[:, :1], out=self._deviation(len(y)))
        by_replicate = deviation.reshape(len(y), self.replicates, -1).mean(axis=-1)
        shift = by_replicate.mean(axis=-1)
        variance = np.einsum("ij,ij->i", deviation, deviation) / self.samples - shift**2
        constant = ~deviation.any(axis=1) if (variance <= 0).any() else np.zeros(len(y), dtype=bool)
        found = np.empty((len(y), len(STATISTICS)))
        found[:, 0] = y[:, 0] + shift
        found[:, 1] = sobol.replicate_error(by_replicate.T)
        found[:, 2] = np.sqrt(np.maximum(variance, 0.0))
        if not constant.all():
            varying = slice(None) if not constant.any() else ~constant
            values, slopes, shares = self._quantiles(y[varying])
            doubt = sobol.replicate_error(np.moveaxis(shares, -1, 0))
            found[varying, _FIRST:] = np.concatenate([values, doubt * slopes], axis=1)
        found[constant, 1:] = 0.0
        found[constant, _FIRST : _FIRST + len(PROBABILITIES)] = found[constant, :1]
        return found

    def shares(self, holds: np.ndarray) -> np.ndarray:
        """Return the share of the draws of each replicate for which something holds: (..., samples) to replicates."""
        return counted(holds, self.replicates) / (self.samples // self.replicates)

    def _quantiles(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return quantiles, linear between ordered draws, how steep they are there, and shares of draws up to them.

        Only 16 bits of each draw are ordered, which takes a tenth of the time of ordering the draws: they tell which
        few draws lie around a quantile, and these are then ordered as they are.

        Returns
        -------
        values, slopes : ndarray, shape (rows, quantiles)
        shares : ndarray, shape (rows, quantiles, replicates)
        """
        count = self.samples
        # Single precision holds nothing above 3e38: larger numbers are put in order by their fractions of the largest.
        largest = max(float(y.max()), -float(y.min()))
        factor = 2.0 ** -int(np.frexp(largest)[1]) if largest > 1e30 else 1.0
        keys, low, shift = _keys(y if factor == 1.0 else y * factor)
        ordered = np.sort(keys, axis=-1, kind="stable")
        positions = np.array(PROBABILITIES) * (count - 1)
        below = np.minimum(positions.astype(int), count - 2)
        share = positions - below
        first, last = ordered[:, below], ordered[:, below + 1]
        # No key lies between these two, so that draws with either are all that can be around the quantile.
        near = np.zeros(keys.shape, dtype=bool)
        for edge in {*map(bytes, first.T), *map(bytes, last.T)}:
            near |= keys == np.frombuffer(edge, dtype=keys.dtype)[:, None]
        row, column = np.divmod(np.flatnonzero(near), count)
        order = np.lexsort((y[row, column], row))
        row, column = row[order], column[order]
        drawn = y[row, column]
        place = row * _KEYS + keys[row, column]
        wanted = np.arange(len(y))[:, None] * _KEYS + first
        starts = np.array([line.searchsorted(some) for line, some in zip(ordered, first, strict=True)])
        index = np.searchsorted(place, wanted) + below - starts
        values = drawn[index] + share * (drawn[index + 1] - drawn[index])
        # A window of about three standard errors of the share on both sides.
        reach = max(int(1.5 * np.sqrt(count)), 1)
        ends = [np.clip(below + step, 0, count - 1) for step in (-reach, reach)]
        start, stop = (_from_keys(ordered[:, end], low, shift) for end in ends)
        slopes = (stop - start) / factor * count / (ends[1] - ends[0])
        return values, slopes, self._shares_up_to(keys, first, (row, column, drawn), place, wanted, values)

    def _shares_up_to(
        self, keys: np.ndarray, first: np.ndarray, near: tuple[np.ndarray, np.ndarray, np.ndarray], place: np.ndarray,
        wanted: np.ndarray, values: np.ndarray,
    ) -> np.ndarray:  # fmt: skip
        """Return the share of the draws of each replicate up to each quantile, (rows, quantiles, replicates)."""
        row, column, drawn = near
        length = self.samples // self.replicates
        counts = np.stack([counted(keys < edge[:, None], self.replicates) for edge in first.T], axis=1)
        # Of those near a quantile, the ones that its key does not tell.
        for j in range(first.shape[1]):
            open_ = (place >= wanted[row, j]) & (drawn <= values[row, j])
            np.add.at(counts, (row[open_], j, column[open_] // length), 1)
        return counts / length


def counted(holds: np.ndarray, replicates: int) -> np.ndarray:
    """Count the draws of each replicate for which something holds: bool of shape (..., samples), to (..., replicates).

    Bits are counted, which takes a fifth of the time of adding up bytes.
    """
    samples = holds.shape[-1]
    if samples // replicates % 8:
        return holds.reshape(*holds.shape[:-1], replicates, -1).sum(axis=-1)
    bits = np.bitwise_count(np.packbits(holds, axis=-1))
    return bits.reshape(*holds.shape[:-1], replicates, -1).sum(axis=-1, dtype=int)


def _keys(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return 16-bit numbers in the order of the draws of each row, and the offset and step that they count in."""
    # What single precision cannot hold shares a key with its neighbours, which are ordered as they are.
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        bits = rows.astype(np.float32).view(np.uint32)
    # The bits of a float are in its order, once those of negative ones are turned over.
    bits ^= np.where(bits >= _SIGN, np.uint32(2**32 - 1), _SIGN) if (bits >= _SIGN).any() else _SIGN
    low, high = bits.min(axis=1), bits.max(axis=1)
    shift = np.array([max(int(span).bit_length() - 16, 0) for span in high - low], dtype=np.uint32)
    bits -= low[:, None]
    bits >>= shift[:, None]
    return bits.astype(np.uint16), low, shift


def _from_keys(keys: np.ndarray, low: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Return the draws that keys stand for, to within a step."""
    bits = (keys.astype(np.uint32) << shift[:, None]) + low[:, None]
    bits = np.where(bits >= _SIGN, bits ^ _SIGN, ~bits)
    draws: np.ndarray = bits.view(np.float32).astype(float)
    return draws
