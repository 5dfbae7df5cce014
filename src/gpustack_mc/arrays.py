"""Names of types of arrays that many modules share; nothing is computed here."""

from typing import TYPE_CHECKING

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
