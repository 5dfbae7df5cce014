r"""Resale value at the life that a scenario states, from the prior of one age.

The prior of `residual_share` is fitted at one age :math:`a` (``settings.age`` of ``priors/residual_share``). An
accelerator that loses value at a constant rate keeps

.. math:: \rho_L = \rho_a^{L / a}

of its price after a life of :math:`L` years. Only the median of the stated life counts; within a scenario life and
resale value are drawn independently. A life from its own prior is that age already.
"""

import numpy as np

from gpustack_mc import catalog, formatting, metering, priors
from gpustack_mc.priors import Marginal
from gpustack_mc.problem import Input


def fitted_age() -> float:
    """Return the age that the prior of the resale value is of, in years."""
    return float(catalog.fit_record("residual_share")["settings"]["age"])


def at_end_of_life(item: Input, life: Input) -> Input:
    """Return a fitted resale value at the end of a stated life; anything else as it is.

    Parameters
    ----------
    item : Input
        ``residual_share``.
    life : Input
        ``lifetime``.
    """
    if item.origin != "fitted" or life.origin not in ("entered", "calibrated"):
        return item
    now = item.carried or fitted_age()
    then = float(priors.quantiles(life.marginal, [0.5])[0])
    if not then > 0 or abs(then - now) < 1e-9:
        return item
    values = np.clip(metering.table(item.marginal), 0.0, 1.0) ** (then / now)
    told = item.prior.partition(", at ")[0]
    return item._replace(
        marginal=Marginal("tabulated", {"values": values.tolist()}),
        prior=f"{told}, at {formatting.number(then, 3)} years by a constant rate of loss",
        epistemic=None,
        carried=then,
    )
