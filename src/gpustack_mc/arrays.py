"""Names of types that many modules share; nothing is computed here."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import jax

Floats = NDArray[np.float64]
"""Double precision, any shape."""

Integers = NDArray[np.integer]
"""Whole numbers: indices and counts."""

Bools = NDArray[np.bool]
"""Which points or rows are meant."""

type Array = jax.Array | NDArray[np.floating]
"""What compiled code and tests of it by NumPy both work on, in single or double precision."""

type Real = jax.Array | Floats | float
"""What the equations take and return: JAX arrays when they are compiled, NumPy arrays and numbers otherwise."""


class Chance(TypedDict):
    """A probability over the draws with its Monte Carlo standard error, which one replicate does not tell."""

    probability: float
    monte_carlo_error: float | None


class Result(Protocol):
    """A result as far as summaries, texts and pictures read it: a `gpustack_mc.tables.Tree` or `xarray.DataTree`.

    A group holds variables; xarray does not tell the two apart by type.
    """

    @property
    def attrs(self) -> Mapping[Any, Any]:
        """Attributes of the whole."""

    def __contains__(self, group: object, /) -> bool: ...

    def __getitem__(self, group: str, /) -> Any: ...
