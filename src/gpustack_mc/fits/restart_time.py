r"""Time from an interruption until work resumes: a lognormal population of teams for each way of recovering.

.. math:: \log R_k \sim N(\mu_k, \sigma_k^2), \qquad k \in \{\text{restart}, \text{in place}\}

Rows of one team are averaged on the log scale. Who does not say how the run recovers is taken to restart the job; the
three systems that recover in place borrow from the spread of the others.
"""

from typing import Any

import numpy as np

from gpustack_mc.fits.populations import LogFit, Population, evidence, log_means, predictive_log_normal

Row = dict[str, str]


def fit(rows: list[Row], settings: dict[str, Any]) -> list[Population]:
    """Return restarts of the job, which are also the last resort, and recovery in place."""
    restart, in_place = ([row for row in rows if row["kind"] == kind] for kind in ("restart", "in_place"))
    times = log_means(restart, "team", "value_min")
    fitted = predictive_log_normal(list(times.values()))
    how = "Student-t predictive of logs, one value per team"
    label = f"restarts of the whole job by {len(times)} teams"
    kept = log_means(in_place, "team", "value_min")
    spread = float(np.std(np.log(list(times.values())), ddof=1))
    weight = settings["prior_weight"]
    found = predictive_log_normal(list(kept.values()), prior_sd=spread, prior_weight=weight)
    also = f"{how}; the spread of restarts worth {weight} teams"
    return [
        _population({"recovery": "restart"}, label, restart, fitted, how),
        _population({"recovery": "in_place"}, f"recovery in place, {len(kept)} systems", in_place, found, also),
        _population({}, label, restart, fitted, how),
    ]


def _population(where: dict[str, str], label: str, rows: list[Row], fitted: LogFit, how: str) -> Population:
    parameters = {"mu": fitted.mu, "sigma": fitted.sigma}
    return Population(where, label, "lognormal", parameters, method=how, **evidence(rows))
