r"""Rental prices of a day after the newest ones: the prior of the price, carried on by the drift of past years.

With the yearly drift :math:`D \sim N(m, \sigma^2)` of log prices, whose mean is known to :math:`\sigma_m` and whose
years are independent, a price that is :math:`T` years ahead is

.. math:: \log p_T = \log p_0 + m T + \varepsilon, \qquad \varepsilon \sim N(0, \sigma_m^2 T^2 + \sigma^2 T).

The spread between providers stays what it is. Over a lease of :math:`T` years the mean rate is :math:`m` with variance
:math:`\sigma_m^2 + \sigma^2 / T`. Numbers: ``priors/price_drift.yaml``, made by `gpustack_mc.fits.price_drift`.
"""

import datetime
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpustack_mc import catalog, constants, formatting, priors
from gpustack_mc.priors import TABLE_SIZE, TABLE_Z, Marginal
from gpustack_mc.problem import Input, Source

_DAYS_PER_YEAR = constants.HOURS_PER_YEAR / constants.HOURS_PER_DAY
# A month ahead is within the spread of days on which prices were read.
_LEAST_YEARS = 1 / 12
_Z95 = statistics.NormalDist().inv_cdf(0.95)
_NODES = 521


def years_ahead(start: datetime.date | None, year: int | None, settings: Mapping[str, Any] | None = None) -> float:
    """Return the years from the newest prices to a run; 0 for one that is not later, or does not say when it is.

    Parameters
    ----------
    start : datetime.date or None
        Day on which the run starts.
    year : int or None
        Year of the run; its middle counts where there is no day. The year of the newest prices is today's.
    settings : mapping, optional
        Values of ``priors/price_drift.yaml``.
    """
    newest = (settings or catalog.price_drift_settings())["reference"]
    reference = datetime.date.fromisoformat(f"{newest}-15")
    if start is None:
        if year is None or year <= reference.year:
            return 0.0
        start = datetime.date(year, 7, 1)
    ahead = (start - reference).days / _DAYS_PER_YEAR
    return ahead if ahead > _LEAST_YEARS else 0.0


def growth(years: float) -> tuple[float, float]:
    """Return mean and standard deviation of the change of log price after some years."""
    known = catalog.price_drift_settings()
    return known["mean"] * years, float(np.hypot(known["mean_sd"] * years, known["year_sd"] * np.sqrt(years)))


def rate(years: float) -> tuple[float, float]:
    """Return the 90% interval of the mean yearly change of price over some years, as shares."""
    mean, sd = (part / years for part in growth(years))
    low, high = np.expm1([mean - _Z95 * sd, mean + _Z95 * sd])
    return float(low), float(high)


def carried(item: Input, years: float) -> Input:
    """Return the rental price as it is some years after the newest ones were read; it says so."""
    known = catalog.price_drift_settings()
    newest = known["reference"]
    # Prices of an earlier year, which a scenario with a date asked for, are not those that are carried.
    if years <= 0 or item.where.get("year", newest[:4]) != newest[:4]:
        return item
    mean, sd = growth(years)
    low, high = np.expm1([mean - _Z95 * sd, mean + _Z95 * sd])
    words = (
        f"{item.prior}, carried {formatting.number(years, 2)} years beyond {newest} by {low:+.0%} to {high:+.0%} "
        "(priors/price_drift.yaml)"
    )
    title = f"Drift of posted prices, {known['period']}, see priors/price_drift.yaml"
    source = Source(title, "priors/price_drift.yaml")
    marginal = _moved(item.marginal, mean, sd)
    return item._replace(marginal=marginal, prior=words, sources=(*item.sources, source), epistemic=None,
                         carried=years)  # fmt: skip


def correlation(items: Sequence[Input]) -> np.ndarray | None:
    r"""Correlation of the log price of one provider on several days, as the drift between them leaves it.

    Prices of :math:`T_i` and :math:`T_j` years ahead share the provider, the mean drift and the years up to the
    earlier day:

    .. math:: \mathrm{Cov} = \sigma_p^2 + \sigma_m^2 T_i T_j + \sigma^2 \min(T_i, T_j).

    Parameters
    ----------
    items : sequence of Input
        Rental prices.

    Returns
    -------
    ndarray, shape (items, items), or None
        Positive definite, ones on the diagonal; None where they are not one price on several days.
    """
    first = items[0]
    alike = all(item.origin == first.origin and item.where == first.where and item.missed == first.missed for item in
                items)  # fmt: skip
    years = np.array([item.carried for item in items])
    if not alike or first.origin not in ("fitted", "calibrated") or not years.any():
        return None
    known = catalog.price_drift_settings()
    own = known["mean_sd"] ** 2 * years**2 + known["year_sd"] ** 2 * years
    low, high = np.log(np.array([priors.quantiles(item.marginal, [0.05, 0.95]) for item in items])).T
    of_provider = float(np.mean(((high - low) / (2 * _Z95)) ** 2 - own))
    both = np.minimum(years[:, None], years[None, :])
    covariance = of_provider + known["mean_sd"] ** 2 * np.outer(years, years) + known["year_sd"] ** 2 * both
    variance = of_provider + own
    found: np.ndarray = covariance / np.sqrt(np.outer(variance, variance))
    # Two starts a day apart are one price to any digits.
    return found * (1 - 1e-9) + 1e-9 * np.eye(len(items))


def _moved(marginal: Marginal, mean: float, sd: float) -> Marginal:
    """Distribution of a price times the exponential of a normal number."""
    if marginal.family == "lognormal" and set(marginal.parameters) == {"mu", "sigma"}:
        mu, sigma = marginal.parameters["mu"], marginal.parameters["sigma"]
        return Marginal("lognormal", {"mu": mu + mean, "sigma": float(np.hypot(sigma, sd))})
    from scipy.special import ndtr

    z = np.linspace(-TABLE_Z, TABLE_Z, TABLE_SIZE)
    # The convolution is smooth on the scale of sd, which is some steps of each.
    nodes = np.linspace(-TABLE_Z, TABLE_Z, _NODES)
    weight = np.exp(-0.5 * nodes**2)
    points = np.log(priors.at_scores(marginal, nodes)) + mean
    grid = np.linspace(points[0] - 8 * sd, points[-1] + 8 * sd, 2 * _NODES)
    at = weight / weight.sum() @ ndtr((grid - points[:, None]) / sd)
    return Marginal("tabulated", {"values": np.exp(np.interp(ndtr(z), at, grid)).tolist()})
