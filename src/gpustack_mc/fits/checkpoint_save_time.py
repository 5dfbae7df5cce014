r"""Time for which training stands still to save a checkpoint: a lognormal population of teams for each way of saving.

.. math:: \log \delta_k \sim N(\mu_k, \sigma_k^2), \qquad k \in \{\text{synchronous}, \text{asynchronous}\}

Rows of one team are averaged on the log scale; the few asynchronous teams borrow from the spread of the others. The two
together are spread evenly over three orders of magnitude: where the kind is not known, the time is log-uniform, with
the 5-95% band of both kinds in equal parts.
"""

from typing import Any

import numpy as np
from scipy import stats

from gpustack_mc.fits.populations import LogFit, Population, evidence, log_means, predictive_log_normal

Row = dict[str, str]


def fit(rows: list[Row], settings: dict[str, Any]) -> list[Population]:
    """Return the two ways of saving, and a scenario that states none."""
    waiting, going_on = ([row for row in rows if row["kind"] == kind] for kind in ("synchronous", "asynchronous"))
    slow, fast = (log_means(held, "team", "value_s") for held in (waiting, going_on))
    weight = settings["prior_weight"]
    spread = float(np.std(np.log(list(slow.values())), ddof=1))
    synchronous = predictive_log_normal(list(slow.values()))
    asynchronous = predictive_log_normal(list(fast.values()), prior_sd=spread, prior_weight=weight)
    how = "Student-t predictive of logs, one value per team"
    also = f"{how}; the spread of synchronous saving worth {weight} teams"
    both = "log-uniform with the 5-95% band of both kinds in equal parts"
    label = f"saving by {len({*slow, *fast})} teams, synchronous or not"
    return [
        _population("synchronous", f"synchronous saving by {len(slow)} teams", waiting, synchronous, how),
        _population("asynchronous", f"asynchronous saving by {len(fast)} teams", going_on, asynchronous, also),
        Population({}, label, "log_uniform", _either(synchronous, asynchronous), method=both, **evidence(rows)),
    ]


def _either(first: LogFit, second: LogFit) -> dict[str, float]:
    """Ends of the log-uniform distribution with the 5% and the 95% quantile of an equal mixture."""
    grid = np.linspace(-20, 20, 40_001)
    cdf = (stats.norm.cdf(grid, first.mu, first.sigma) + stats.norm.cdf(grid, second.mu, second.sigma)) / 2
    low, high = np.interp([0.05, 0.95], cdf, grid)
    beyond = (high - low) / 18
    return {"low": float(np.exp(low - beyond)), "high": float(np.exp(high + beyond))}


def _population(kind: str, label: str, rows: list[Row], fitted: LogFit, how: str) -> Population:
    parameters = {"mu": fitted.mu, "sigma": fitted.sigma}
    return Population({"checkpointing": kind}, label, "lognormal", parameters, method=how, **evidence(rows))
