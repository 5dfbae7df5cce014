"""Bayesian linear regression in closed form, for priors that are not sampled."""

from collections.abc import Sequence

import numpy as np


def regression(design: np.ndarray, response: np.ndarray, terms: Sequence[str], *, weights: np.ndarray | None = None,
               prior_sd: Sequence[float] | None = None) -> dict:  # fmt: skip
    r"""Bayesian linear regression on the working scale, ready for ``Population.parameters["regression"]``.

    .. math::
        y \sim N(X\beta,\; \sigma^2 W^{-1}), \qquad \beta_j \sim N(0, \tau_j^2), \qquad
        V = (X^\top W X / \sigma^2 + T^{-1})^{-1}

    :math:`\sigma` is iterated with :math:`\beta`. A new case has mean :math:`x^\top\beta` and variance
    :math:`x^\top V x + \sigma^2`.

    Parameters
    ----------
    design : ndarray, shape (n, k)
    response : ndarray, shape (n,)
        Log or logit of the quantity.
    terms : sequence of str
        Names of the k covariates, as known to `gpustack_mc.priors.COVARIATES`.
    weights : ndarray, shape (n,), optional
    prior_sd : sequence of float, optional
        One per term; infinite when omitted.

    Returns
    -------
    dict
        ``terms``, ``coefficients``, ``covariance``, ``residual_sd``, ``residual_df``.
    """
    w = np.ones(len(response)) if weights is None else np.asarray(weights, dtype=float)
    precision = np.zeros(design.shape[1]) if prior_sd is None else 1 / np.square(np.asarray(prior_sd, dtype=float))
    effective = w.sum() ** 2 / (w**2).sum()
    variance = float(np.var(response))
    for _ in range(200):
        normal = design.T @ (design * w[:, None])
        covariance = np.linalg.inv(normal / variance + np.diag(precision))
        beta = covariance @ (design.T @ (w * response)) / variance
        used = float(np.trace(normal @ covariance) / variance)
        freedom = max(effective - used, 1.0)
        updated = float(np.average((response - design @ beta) ** 2, weights=w) * effective / freedom)
        if abs(updated - variance) < 1e-12 * variance:
            break
        variance = updated
    return {
        "terms": list(terms),
        "coefficients": [float(value) for value in beta],
        "covariance": [[float(value) for value in row] for row in covariance],
        "residual_sd": float(np.sqrt(variance)),
        "residual_df": float(freedom),
    }
