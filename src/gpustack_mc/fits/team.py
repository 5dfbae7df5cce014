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

import numpy as np

from gpustack_mc.scoring import Mixture


def share_nodes(prior: tuple[float, float], count: int) -> np.ndarray:
    """Midpoints of equally likely strata of the share's beta prior, shape (count,)."""
    from scipy.special import betaincinv

    return betaincinv(*prior, (np.arange(count) + 0.5) / count)


def next_score(scores: Sequence[float] | np.ndarray, shares: np.ndarray) -> Mixture:
    """Predict the normal score of the team's next measurement.

    Parameters
    ----------
    scores : array_like, shape (n,)
        Normal scores of the team's measurements under the shipped prior; none gives the standard normal.
    shares : ndarray, shape (k,)
        From `share_nodes`.

    Returns
    -------
    Mixture
        One row with a component per share.
    """
    z = np.asarray(scores, dtype=float)
    n = len(z)
    mean = z.mean() if n else 0.0
    around = float(((z - mean) ** 2).sum())
    within, whole = 1 - shares, 1 - shares + n * shares
    log_density = -0.5 * ((n - 1) * np.log(within) + np.log(whole) + around / within + n * mean**2 / whole)
    weight = np.exp(log_density - log_density.max()) if n else np.ones_like(shares)
    centre = n * shares * mean / whole
    variance = within + shares * within / whole
    return Mixture((weight / weight.sum())[None], centre[None], np.sqrt(variance)[None])


def joint_tail(scores: Sequence[float] | np.ndarray, share: float) -> float:
    r"""Probability under the prior that all measurements together lie farther out than these.

    .. math:: P\!\left(\chi^2_n > z^\top \left[(1 - \rho) I + \rho\, \mathbf 1 \mathbf 1^\top\right]^{-1} z\right)

    Parameters
    ----------
    scores : array_like, shape (n,)
    share : float
        :math:`\rho`.
    """
    from scipy.special import chdtrc

    z = np.asarray(scores, dtype=float)
    n = len(z)
    distance = (z @ z - share * z.sum() ** 2 / (1 - share + n * share)) / (1 - share)
    return float(chdtrc(n, distance))


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
