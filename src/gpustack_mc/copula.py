r"""Redrawing some inputs while others are kept, under the Gaussian copula of a scenario.

Normal scores :math:`z = L z_0` of correlated inputs come from independent ones through the Cholesky factor of their
correlation matrix :math:`C = L L^\top`. With the kept inputs :math:`K` put first, the factor :math:`L_K` of the
reordered matrix gives scores :math:`z = L_K e` whose first :math:`|K|` components of :math:`e` are those of the kept
inputs alone. Keeping these and exchanging the others is an exact draw from the conditional distribution, without
nested loops (Mara and Tarantola 2012); for independent inputs it exchanges columns.

References
----------
T. A. Mara and S. Tarantola (2012), Variance-based sensitivity indices for models with dependent inputs, Reliability
Engineering & System Safety 107, 115-121.
"""

from collections.abc import Sequence

import numpy as np

from gpustack_mc.problem import Problem

# The open interval of points: a normal score beyond these is rounding.
EDGE = 2.0**-53


class Copula:
    """Which inputs are correlated, and how.

    Parameters
    ----------
    inputs : int
        Number of all inputs.
    correlated : sequence of int
        Places of those with correlations.
    correlation : ndarray, shape (k, k)
        Correlation of their normal scores, positive definite.
    """

    def __init__(self, inputs: int, correlated: Sequence[int] = (), correlation: np.ndarray | None = None):
        self.inputs = inputs
        self.correlated = np.array(correlated, dtype=int)
        self.correlation = np.eye(len(self.correlated)) if correlation is None else np.asarray(correlation, dtype=float)
        self.cholesky = np.linalg.cholesky(self.correlation) if len(self.correlated) else np.zeros((0, 0))
        self._maps: dict[bytes, np.ndarray] = {}

    @classmethod
    def of(cls, problem: Problem, names: Sequence[str]) -> "Copula":
        """Return the copula of a scenario, for the inputs that vary in the order of `names`."""
        places = [list(names).index(key) for key in problem.correlated]
        return cls(len(names), places, problem.correlation if places else None)

    def matrix(self) -> np.ndarray:
        """Correlation of the normal scores of all inputs, shape (inputs, inputs)."""
        whole = np.eye(self.inputs)
        whole[np.ix_(self.correlated, self.correlated)] = self.correlation
        return whole

    def divides(self, members: np.ndarray) -> bool:
        """Whether a set of inputs, shape (inputs,) of bool, is correlated with inputs outside it."""
        inside = np.asarray(members, dtype=bool)[self.correlated]
        return bool((self.correlation[inside][:, ~inside] != 0).any())

    def to_scores(self, u: np.ndarray) -> np.ndarray:
        """Map independent points of the cube, shape (inputs, n), to correlated normal scores of the same shape."""
        from scipy.special import ndtri

        z = ndtri(u)
        z[self.correlated] = self.cholesky @ z[self.correlated]
        return z

    def to_cube(self, z: np.ndarray) -> np.ndarray:
        """Undo `to_scores`."""
        from scipy.special import ndtr

        z = np.array(z, dtype=float)
        z[self.correlated] = np.linalg.solve(self.cholesky, z[self.correlated])
        return np.clip(ndtr(z), EDGE, 1 - EDGE)

    def keep(self, u_kept: np.ndarray, u_new: np.ndarray, kept: np.ndarray) -> np.ndarray:
        """Keep some inputs of one sample and redraw the others given them.

        Parameters
        ----------
        u_kept, u_new : ndarray, shape (inputs, n)
            Independent points of the cube: those whose inputs are kept, and those that supply the new randomness.
        kept : ndarray of bool, shape (inputs,) or (inputs, n)
            Inputs to keep, for all points alike or for each its own.

        Returns
        -------
        ndarray, shape (inputs, n)
            Independent points of the cube, which `to_scores` maps to the redrawn inputs.
        """
        columns = kept if kept.ndim == 2 else kept[:, None]
        result = np.where(columns, u_kept, u_new)
        if not len(self.correlated):
            return result
        from scipy.special import ndtr, ndtri

        own, new = ndtri(u_kept[self.correlated]), ndtri(u_new[self.correlated])
        if kept.ndim == 1:
            first = self.map(kept[self.correlated])
            z = first[0] @ own + first[1] @ new
        else:
            z = self._each(kept[self.correlated], own, new)
        # Inputs that keep their score would lose its last digits on the way; whole sets keep them all.
        whole = kept[self.correlated].all(axis=0) | ~kept[self.correlated].any(axis=0)
        result[self.correlated] = np.where(whole, result[self.correlated], np.clip(ndtr(z), EDGE, 1 - EDGE))
        return result

    def map(self, kept: np.ndarray) -> np.ndarray:
        """Matrices that make independent scores of a redraw from those kept and those new, shape (2, k, k)."""
        code = np.packbits(kept).tobytes()
        if code not in self._maps:
            order = np.concatenate([np.flatnonzero(kept), np.flatnonzero(~kept)])
            factor = np.linalg.cholesky(self.correlation[np.ix_(order, order)])
            place = np.zeros_like(self.correlation)
            place[order, np.arange(len(order))] = 1.0
            into = np.linalg.solve(self.cholesky, place @ factor)
            outof = np.linalg.solve(factor, place.T @ self.cholesky)
            first = np.arange(len(order)) < kept.sum()
            self._maps[code] = np.stack([into @ (side[:, None] * outof) for side in (first, ~first)])
        return self._maps[code]

    def _each(self, kept: np.ndarray, own: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Apply the map of each point's own set, shape (k, n)."""
        sets, which = np.unique(np.packbits(kept, axis=0), axis=1, return_inverse=True)
        count = len(self.correlated)
        z = np.empty_like(own)
        order = np.argsort(which, kind="stable")
        ends = np.cumsum(np.bincount(which.ravel(), minlength=sets.shape[1]))
        for number, stop in enumerate(ends):
            points = order.ravel()[(ends[number - 1] if number else 0) : stop]
            first, second = self.map(np.unpackbits(sets[:, number], count=count).astype(bool))
            z[:, points] = first @ own[:, points] + second @ new[:, points]
        return z
