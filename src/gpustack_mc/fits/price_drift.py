r"""How posted rental prices drift from year to year, from the rows of ``priors/rental_price``.

With :math:`\bar y_{gky}` the mean log price on demand of the providers of kind :math:`k` that offer accelerator
:math:`g` in year :math:`y`, one median each, the change to the next year is

.. math::
    \Delta_{gky} = \bar y_{gk,y+1} - \bar y_{gky}, \qquad
    \mathrm{Var}(\Delta_{gky}) = \sigma_p^2 \left(\frac{1}{n} + \frac{1}{n'} - \frac{2 b}{n n'}\right)
        + \sigma_c^2 \frac{b}{n n'},

where :math:`b` of the :math:`n` and :math:`n'` providers are in both years, :math:`\sigma_p` is the spread between
providers that the prior of the price expects and :math:`\sigma_c` that of the changes of one provider. Markets move
together within a year, so that the years are what was drawn: each is the mean of its changes weighted by their
variances, and a further year is

.. math:: D \sim N(m, s^2 t^2 / z^2), \qquad m \text{ known to } s\,t / (z \sqrt{n}),

with the Student factor :math:`t_{0.95, n-1} / z_{0.95}` for the few years that there are.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from gpustack_mc.fits.rental_price import ON_DEMAND, Row


class YearlyDrift(NamedTuple):
    """Change of log price in a year.

    Attributes
    ----------
    mean, mean_sd, year_sd : float
        Of all years, how well it is known, and how a single year differs from it.
    years : dict of int to float
        Change from each year to the next.
    changes : int
        Markets (accelerator, kind of provider) that were followed from one year to the next, in all years.
    newest : str
        Median month of the newest year's rows: the date of the newest prices.
    """

    mean: float
    mean_sd: float
    year_sd: float
    years: dict[int, float]
    changes: int
    newest: str


def drift(rows: Sequence[Row], provider_sd: float) -> YearlyDrift:
    """Estimate the yearly drift.

    Parameters
    ----------
    rows : sequence of dict
        Of ``priors/rental_price/data.csv``; those in use, on demand, count.
    provider_sd : float
        Spread of log prices between providers of one kind.
    """
    used = [row for row in rows if row["use"] == "yes" and row["term"] == ON_DEMAND]
    offers: dict[tuple[str, str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in used:
        market = (row["group"], row["provider_kind"], int(row["year_month"][:4]))
        offers[market][row["provider"]].append(np.log(float(row["usd_per_hour"])))
    markets = {market: {name: float(np.median(v)) for name, v in held.items()} for market, held in offers.items()}
    pairs = [(year, held, markets[group, kind, year + 1]) for (group, kind, year), held in sorted(markets.items())
             if (group, kind, year + 1) in markets]  # fmt: skip
    own = [later[name] - held[name] for _, held, later in pairs for name in sorted(held.keys() & later.keys())]
    change_variance = float(np.var(own, ddof=1))
    by_year: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for year, held, later in pairs:
        n, after, both = len(held), len(later), len(held.keys() & later.keys())
        variance = provider_sd**2 * (1 / n + 1 / after - 2 * both / (n * after))
        change = float(np.mean(list(later.values())) - np.mean(list(held.values())))
        by_year[year].append((change, variance + change_variance * both / (n * after)))
    years = {year: _weighted(changes) for year, changes in sorted(by_year.items())}
    values, count = np.array(list(years.values())), len(years)
    wide = float(stats.t.ppf(0.95, count - 1) / stats.norm.ppf(0.95) * values.std(ddof=1))
    last = max(row["year_month"][:4] for row in used)
    months = sorted(row["year_month"] for row in used if row["year_month"].startswith(last))
    return YearlyDrift(float(values.mean()), wide / count**0.5, wide, years, len(pairs), months[len(months) // 2])


def _weighted(changes: Sequence[tuple[float, float]]) -> float:
    values, variances = np.array(changes).T
    return float((values / variances).sum() / (1 / variances).sum())
