r"""A team's measurements of one input, and the forecast of its next one.

The shipped prior says what a new member of a population has; it does not say how much of that spread lies between
teams. On the normal-score scale of the prior, :math:`z = \Phi^{-1}(F(x))`, measurement :math:`j` of the user's team is

.. math::
    \rho &\sim \mathrm{Beta}(a, b), \\
    \vartheta &\sim N(0, \rho), \\
    z_j \mid \vartheta &\sim N(\vartheta, 1 - \rho),

so that any one measurement has the shipped prior, :math:`z_j \sim N(0, 1)`, and :math:`\rho` is the share of its
variance that lies between teams. Where :math:`F` is lognormal or logit-normal with :math:`\mu, \sigma` this is
:math:`y_j \sim N(\theta, s^2)`, :math:`\theta \sim N(\mu, \tau^2)` on the working scale with
:math:`\tau^2 + s^2 = \sigma^2` and :math:`\tau^2 = \rho \sigma^2`.

Given :math:`\rho` all is normal. With :math:`n` measurements of mean :math:`\bar z` and sum of squares around it
:math:`Q`,

.. math::
    \log p(z \mid \rho) &= -\tfrac12 \left[(n - 1) \log(1 - \rho) + \log(1 - \rho + n \rho)
        + \frac{Q}{1 - \rho} + \frac{n \bar z^2}{1 - \rho + n \rho}\right] + \mathrm{const}, \\
    z_{n+1} \mid z, \rho &\sim N\!\left(\frac{n \rho \bar z}{1 - \rho + n \rho},\;
        1 - \rho + \frac{\rho (1 - \rho)}{1 - \rho + n \rho}\right),

and :math:`\rho` is integrated over strata of its prior. `model` is the same as a NumPyro program, which a test samples.

References
----------
Gelman et al., Bayesian Data Analysis, 3rd ed., sections 5.4 and 2.5 (normal model with partial pooling).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpustack_mc.scoring import Mixture


def share_nodes(prior: tuple[float, float], count: int) -> np.ndarray:
    """Midpoints of equally likely strata of the share's beta prior, shape (count,)."""
    from scipy.special import betaincinv

    return betaincinv(*prior, (np.arange(count) + 0.5) / count)


class Scored(NamedTuple):
    """Normal scores of a team's measurements, reduced to what the program needs.

    Attributes
    ----------
    n : int
        Distinct values: one that is stated again is the same fact, a price or a PUE that every row repeats.
    mean : float
        Over all measurements.
    around : float
        Sum of squares around the mean, of `n` values as spread as all measurements are.
    """

    n: int
    mean: float
    around: float


def scored(scores: Sequence[float] | np.ndarray, counts: Sequence[int] | np.ndarray | None = None) -> Scored:
    """Reduce distinct scores, each of which was stated `counts` times (once when omitted)."""
    z = np.asarray(scores, dtype=float)
    if not len(z):
        return Scored(0, 0.0, 0.0)
    weight = np.ones(len(z)) if counts is None else np.asarray(counts, dtype=float)
    weight = weight / weight.sum()
    mean = float(weight @ z)
    return Scored(len(z), mean, float(len(z) * weight @ (z - mean) ** 2))


def next_score(found: Scored, shares: np.ndarray) -> Mixture:
    """Predict the normal score of the team's next measurement.

    Parameters
    ----------
    found : Scored
        Of the team's measurements under the shipped prior; none gives the standard normal.
    shares : ndarray, shape (k,)
        From `share_nodes`.

    Returns
    -------
    Mixture
        One row with a component per share.
    """
    n, mean, around = found
    within, whole = 1 - shares, 1 - shares + n * shares
    log_density = -0.5 * ((n - 1) * np.log(within) + np.log(whole) + around / within + n * mean**2 / whole)
    weight = np.exp(log_density - log_density.max()) if n else np.ones_like(shares)
    centre = n * shares * mean / whole
    variance = within + shares * within / whole
    return Mixture((weight / weight.sum())[None], centre[None], np.sqrt(variance)[None])


def joint_tail(found: Scored, share: float) -> float:
    r"""Probability under the prior that all measurements together lie farther out than these.

    .. math:: P\!\left(\chi^2_n > z^\top \left[(1 - \rho) I + \rho\, \mathbf 1 \mathbf 1^\top\right]^{-1} z\right)

    Parameters
    ----------
    found : Scored
    share : float
        :math:`\rho`.
    """
    from scipy.special import chdtrc

    distance = found.around / (1 - share) + found.n * found.mean**2 / (1 - share + found.n * share)
    return float(chdtrc(found.n, distance))


def model(scores: np.ndarray, prior: tuple[float, float]) -> None:
    """Generate scores and the next one, as in the docstring of the module."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    share = numpyro.sample("share", dist.Beta(*prior))
    level = numpyro.sample("level_z", dist.Normal(0.0, 1.0)) * jnp.sqrt(share)
    with numpyro.plate("measurements", len(scores)):
        numpyro.sample("scores", dist.Normal(level, jnp.sqrt(1 - share)), obs=scores)
    numpyro.sample("next_score", dist.Normal(level, jnp.sqrt(1 - share)))
