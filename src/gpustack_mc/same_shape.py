"""Hundreds of problems of one shape that differ in a few inputs, in the time that a few take alone.

For pairs and sites, whose problems may each have points of their own; `gpustack_mc.sweep_model` runs scenarios of
whatever shapes, all on the same points.
"""

from collections.abc import Sequence

import jax
import numpy as np

from gpustack_mc import compilation, kernels
from gpustack_mc.propagation import Propagation, require_finite

# Problems in one call. Another number would be compiled again, so a shorter batch is filled up.
SIZE = 16


class Batch:
    """Problems of one shape that are propagated in one call.

    Parameters
    ----------
    models : sequence of Propagation
        At most `SIZE`, all of the same shape.
    own : sequence of int
        Inputs, as places in ``varying``, that are not the same quantity or not at the same points in all.
    """

    def __init__(self, models: Sequence[Propagation], own: Sequence[int]):
        self.models, self.own = models, tuple(own)
        filled = [*models, *[models[-1]] * (SIZE - len(models))]
        with jax.enable_x64(True):
            stacked = jax.tree.map(lambda *parts: np.stack(parts), *(model.numbers for model in filled))
            self.arrays = jax.device_put(stacked)

    @staticmethod
    def fits(model: Propagation, own: Sequence[int]) -> bool:
        """Whether problems like this one can be propagated so: what correlates must be the same in all."""
        return not set(own) & set(model.shape.correlated)

    def outputs(self, u: np.ndarray, u_own: np.ndarray, rows: Sequence[int]) -> np.ndarray:
        """Return some outputs.

        Parameters
        ----------
        u : ndarray, shape (varying, n)
            Points of the cube of the first problem.
        u_own : ndarray, shape (problems, len(own), n)
            Points of the inputs that each problem has of its own.
        rows : sequence of int
            Which outputs.

        Returns
        -------
        ndarray, shape (problems, len(rows), n)

        Raises
        ------
        InputError
            An output is not finite.
        """
        shape, count = self.models[0].shape, len(self.models)
        filled = np.concatenate([u_own, np.repeat(u_own[-1:], SIZE - count, axis=0)])
        with jax.enable_x64(True):
            given = (self.arrays, self.models[0].cholesky, u, filled)
            static = (shape, tuple(rows), self.own)
            found = np.asarray(compilation.run(kernels.related, static, *given))[:count]
        for one, outputs in zip(self.models, found, strict=True):
            require_finite(outputs, one.problem, [shape.outputs[row] for row in rows])
        return found
