r"""Embodied carbon: module plus an eighth of the server.

Module :math:`m` and server :math:`h` (without accelerators) have Student-t predictives on the log scale, their spread
pooled with a judged one, because methods disagree more than objects. With :math:`k` accelerators per server,

.. math:: E = m + h / k .

The sum of two lognormals is stored as the lognormal with its median and the width of its 5-95% band.
"""

from collections import defaultdict
from typing import Any

import numpy as np
from scipy import stats

from gpustack_mc.fits.populations import LogFit, Population, evidence, predictive_log_normal

_POINTS = 400  # equal-probability points per part; the quantiles no longer change in the third digit


def _by_author(rows: list[dict[str, str]]) -> list[float]:
    """One value per author and accelerator: the mean of their rows."""
    grouped = defaultdict(list)
    for row in rows:
        grouped[row["author"], row["accelerator"]].append(float(row["kgco2e"]))
    return [float(np.mean(values)) for values in grouped.values()]


def lognormal_of_sum(first: LogFit, second: LogFit, factor: float) -> tuple[float, float]:
    """Location and scale of the lognormal that stands for ``first + factor * second``."""
    z = stats.norm.ppf((np.arange(_POINTS) + 0.5) / _POINTS)
    total = np.exp(first.mu + first.sigma * z)[:, None] + factor * np.exp(second.mu + second.sigma * z)[None, :]
    low, median, high = np.log(np.quantile(total, [0.05, 0.5, 0.95]))
    return float(median), float((high - low) / (2 * stats.norm.ppf(0.95)))


def fit(rows: list[dict[str, str]], settings: dict[str, Any]) -> list[Population]:
    """One population per generation with module values, and one over all modules."""
    weight, per_server = settings["prior_weight"], settings["accelerators_per_server"]
    host_rows = [row for row in rows if row["part"] == "host"]
    host = predictive_log_normal(_by_author(host_rows), prior_sd=settings["host_prior_sd"], prior_weight=weight)
    modules = [row for row in rows if row["part"] == "card"]
    groups: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in modules:
        if row["generation"]:  # blank for modules of no accelerator in the table; they count in the general population
            groups[row["generation"]].append(row)

    populations = []
    for name, members in [*groups.items(), ("", modules)]:
        values = _by_author(members)
        card = predictive_log_normal(values, prior_sd=settings["card_prior_sd"], prior_weight=weight)
        mu, sigma = lognormal_of_sum(card, host, 1 / per_server)
        populations.append(
            Population(
                where={"accelerator": name} if name else {},
                label=f"{name or 'All'} modules plus the share of the server",
                family="lognormal",
                parameters={"mu": mu, "sigma": sigma},
                method=f"{len(values)} module value(s) by author plus server over {per_server}; Student-t predictives",
                **evidence([*members, *host_rows]),
            )
        )
    return populations
