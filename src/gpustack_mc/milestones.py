r"""What first measurements would mean for a plan: the reading from which a limit is missed, or safe.

For a limit that a draw keeps or misses and a reading :math:`m` of one input, :math:`P(\text{kept} \mid m)` is the
isotonic regression of what each draw does on its reading: monotone, because more of an input only helps or only hurts,
and free of any other shape. The reading at which it crosses 1/2 turns the answer over.

References
----------
Barlow, Bartholomew, Bremner & Brunk (1972), Statistical Inference under Order Restrictions, chapter 1.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import isotonic_regression

# More likely than not, and safe enough to promise.
LEVELS = (0.5, 0.9)
# The lowest and the highest reading of twenty, and how many draws about them are taken.
ENDS = (0.05, 0.95)
_HALF_WINDOW = 0.02
# A share of draws below this says nothing about the others.
_FEWEST = 0.002


class Crossing(NamedTuple):
    """The reading from which a limit is kept with a probability.

    Attributes
    ----------
    level : float
        The probability.
    value, error : float
        The reading and its Monte Carlo standard error.
    above : bool
        Whether the limit is kept above it, or below it.
    chance : float
        How likely a reading on the side is on which the limit is kept.
    """

    level: float
    value: float
    error: float
    above: bool
    chance: float


def crossing(reading: np.ndarray, kept: np.ndarray, level: float, replicates: int) -> Crossing | None:
    """Find the reading from which a limit is kept with probability `level`.

    Parameters
    ----------
    reading : ndarray, shape (n,)
        What a measurement would read in each draw.
    kept : ndarray of bool, shape (n,)
        Whether the draw keeps the limit.
    level : float
    replicates : int
        Equal parts, one after the other, that are independent.

    Returns
    -------
    Crossing or None
        None where no reading, or every one, has that probability.
    """
    above = bool(_rises(reading, kept))
    value = _cross(reading, kept, level, above)
    if value is None:
        return None
    parts = [_cross(x, y, level, above) for x, y in zip(np.split(reading, replicates), np.split(kept, replicates),
                                                          strict=True)]  # fmt: skip
    known = [part for part in parts if part is not None]
    # Isotonic estimates converge with the cube root of the draws (Brunk 1970), not with the square root.
    error = float(np.std(known, ddof=1) / len(known) ** (1 / 3)) if len(known) > 2 else float("nan")
    chance = float(np.mean(reading >= value if above else reading <= value))
    return Crossing(level, value, error, above, chance)


def _rises(reading: np.ndarray, kept: np.ndarray) -> bool:
    """Whether higher readings keep the limit more often, by the mean rank of those that keep it."""
    ranks = np.argsort(np.argsort(reading, kind="stable"), kind="stable")
    return bool(kept.any() and ranks[kept].mean() >= (len(ranks) - 1) / 2)


def _cross(reading: np.ndarray, kept: np.ndarray, level: float, above: bool) -> float | None:
    order = np.argsort(reading, kind="stable")
    ordered = order if above else order[::-1]
    fitted = isotonic_regression(kept[ordered].astype(float)).x
    place = int(np.searchsorted(fitted, level))
    fewest = max(_FEWEST * len(fitted), 1)
    if not fewest <= place <= len(fitted) - fewest:
        return None
    return float((reading[ordered[place - 1]] + reading[ordered[place]]) / 2)


def after_reading(reading: np.ndarray, outputs: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return what outputs become after a low and after a high reading.

    Returns
    -------
    list of dict
        Two: ``reading``, its median within the window of draws about the 5% or 95% quantile; ``outputs``, the median
        and the 90% equal-tailed interval of each output within that window.
    """
    order = np.argsort(reading, kind="stable")
    found = []
    for end in ENDS:
        low, high = (int(len(order) * (end + side * _HALF_WINDOW)) for side in (-1, 1))
        window = order[low:high]
        quantiles = {name: np.quantile(values[window], [0.05, 0.5, 0.95]) for name, values in outputs.items()}
        found.append(
            {
                "reading": float(np.median(reading[window])),
                "outputs": {
                    name: {"median": float(middle), "interval_90": [float(least), float(most)]}
                    for name, (least, middle, most) in quantiles.items()
                },
            }
        )
    return found


# When an input can be measured, by quantity; what is not named shows later than in the first days.
MEASURED = {
    "mfu": "throughput log of the first hours",
    "goodput": "productive share of the first days",
    "interruption_rate": "count of interruptions in the first days",
    "checkpoint_save_time": "first checkpoints",
    "restart_time": "first restarts",
    "gpu_power_fraction": "board sensors in the first hours",
    "host_power": "meter of one server in the first hours",
    "pue": "meter of the facility in the first days",
    "electricity_price": "contract, before the start",
    "rental_price": "quote, before the start",
    "capex": "quote, before the start",
    "serving_throughput": "benchmark of the trained model",
}
BEFORE = ("electricity_price", "rental_price", "capex")


def first_days(key: str) -> bool:
    """Whether an input shows before the run is far on: in a quote, or in its first days."""
    return key.partition("@")[0] in MEASURED and not key.startswith("serving")
