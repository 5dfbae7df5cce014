r"""Board power over TDP: a logit-normal population of sites.

Rows of one site count once, as their mean. With :math:`y_s = \mathrm{logit}\,\phi_s`,

.. math::
    s^2 = \frac{(n-1) s_y^2 + \nu_0 \sigma_0^2}{n - 1 + \nu_0}, \qquad
    \mathrm{logit}\,\phi \sim N\!\left(\bar y,\; s^2 (1 + 1/n)\, \frac{t_{0.95}^2}{z_{0.95}^2}\right),

the predictive of `gpustack_mc.fits.populations.predictive_log_normal` for the odds of :math:`\phi`. The mean over a
run cannot exceed the board limit, so that the support ends at 1, or at the measured maximum where that is far below
the listed TDP; :math:`\phi` is then taken relative to that maximum.
"""

from collections import defaultdict
from typing import Any

import numpy as np

from gpustack_mc.fits.populations import Population, evidence, predictive_log_normal


def site_fractions(rows: list[dict[str, str]]) -> list[float]:
    """Mean board power over TDP of each site."""
    by_site = defaultdict(list)
    for row in rows:
        by_site[row["site"]].append(float(row["board_power_w"]) / float(row["tdp_w"]))
    return [float(np.mean(values)) for values in by_site.values()]


def _population(where: dict[str, str], label: str, rows: list[dict[str, str]], settings: dict[str, Any]) -> Population:
    highest = settings["highest"].get(where.get("accelerator"), 1.0)
    fractions = np.array(site_fractions(rows)) / highest
    odds = predictive_log_normal(
        fractions / (1 - fractions), prior_sd=settings["prior_sd"], prior_weight=settings["prior_weight"]
    )
    return Population(
        where=where,
        label=label,
        family="logit_normal",
        parameters={"mu": odds.mu, "sigma": odds.sigma, "low": 0.0, "high": highest},
        method="one mean per site; Student-t predictive on the logit scale, spread pooled with prior_sd",
        **evidence(rows),
    )


def fit(rows: list[dict[str, str]], settings: dict[str, Any]) -> list[Population]:
    """Any accelerator from the GPU sites, and the TPUs whose listed TDP means something else."""
    apart = settings["own_population"]
    populations = [
        _population({"accelerator": name}, f"{name}: measured mean chip power over the listed TDP",
                    [row for row in rows if row["accelerator"] == name], settings)
        for name in apart
    ]  # fmt: skip
    rest = [row for row in rows if row["accelerator"] not in apart]
    return [*populations, _population({}, "Measured board power of A100 and H100 in training", rest, settings)]
