r"""Normal scores and logarithms in forms that compile to vector instructions on a CPU, in float64 and float32.

`jax.scipy.special.ndtri` and the logarithm of float64 cost four times as much there. Besides, a score computed from a
probability p near 1 has lost the digits of 1 - p: here it is computed from the 32-bit cell itself, in the nearer tail,
so that float32 reaches the same tails as float64.

References
----------
Wichura (1988), Algorithm AS 241: the percentage points of the normal distribution, Applied Statistics 37(3), 477-484
(PPND16 for float64, PPND7 for float32). Logarithm: FreeBSD msun e_log.c (argument reduction and minimax polynomial of
Sun Microsystems, 1993).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

CELL = 2.0**-32


class _Rationals(NamedTuple):
    """Numerator and denominator, highest power first, near the middle, in the tails and far out."""

    middle: tuple[Sequence[float], Sequence[float]]
    tail: tuple[Sequence[float], Sequence[float]]
    far: tuple[Sequence[float], Sequence[float]]


_PPND16 = _Rationals(
    (
        (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
         13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.3871328727963666080),
        (5226.4952788528545610, 28729.085735721942674, 39307.895800092710610, 21213.794301586595867,
         5394.1960214247511077, 687.18700749205790830, 42.313330701600911252, 1.0),
    ),
    (
        (7.74545014278341407640e-4, 2.27238449892691845833e-2, 0.241780725177450611770, 1.27045825245236838258,
         3.64784832476320460504, 5.76949722146069140550, 4.63033784615654529590, 1.42343711074968357734),
        (1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 0.148103976427480074590,
         0.689767334985100004550, 1.67638483018380384940, 2.05319162663775882187, 1.0),
    ),
    (
        (2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3, 2.65321895265761230930e-2,
         0.296560571828504891230, 1.78482653991729133580, 5.46378491116411436990, 6.65790464350110377720),
        (2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5,
         7.86869131145613259100e-4, 1.48753612908506148525e-2, 0.136929880922735805310, 0.599832206555887937690, 1.0),
    ),
)  # fmt: skip
_PPND7 = _Rationals(
    ((59.109374720, 159.29113202, 50.434271938, 3.3871327179), (67.187563600, 78.757757664, 17.895169469, 1.0)),
    ((0.17023821103, 1.3067284816, 2.7568153900, 1.4234372777), (0.12021132975, 0.73700164250, 1.0)),
    ((0.017337203997, 0.42868294337, 3.0812263860, 6.6579051150), (0.012258202635, 0.24197894225, 1.0)),
)
_LOG = (0.1479819860511658591, 0.1531383769920937332, 0.1818357216161805012, 0.2222219843214978396,
        0.2857142874366239149, 0.3999999999940941908, 0.6666666666666735130)  # fmt: skip
# The upper half of the bits of the square root of 1/2: mantissas are reduced to between it and twice it.
_HALF_ROOT = 0x3FE6A09E


def _horner(coefficients: Sequence[float], x: Any) -> Any:
    result = coefficients[0]
    for coefficient in coefficients[1:]:
        result = result * x + coefficient
    return result


def log(x: Any) -> Any:
    """Natural logarithm, within 2 units of the last digit; NaN below the smallest normal number and at infinity."""
    if x.dtype == jnp.float32:
        # XLA's own is vectorised in float32.
        return jnp.where(x > 0, jnp.log(x), jnp.nan)
    bits = lax.bitcast_convert_type(x, jnp.uint64)
    exponent = ((bits >> 32).astype(jnp.uint32).astype(jnp.int32) - _HALF_ROOT) >> 20
    mantissa = lax.bitcast_convert_type(bits - (exponent.astype(jnp.int64) << 52).astype(jnp.uint64), jnp.float64)
    s = (mantissa - 1) / (mantissa + 1)
    square = s * s
    found = exponent.astype(jnp.float64) * float(np.log(2)) + (2 * s + s * square * _horner(_LOG, square))
    return jnp.where((x >= np.finfo(float).tiny) & (x < jnp.inf), found, jnp.nan)


def scores(cells: Any, dtype: Any) -> Any:
    """Standard normal scores of the midpoints of cells of 32 bits; uint32 to `dtype`, any shape."""
    rationals = _PPND7 if dtype == jnp.float32 else _PPND16
    mirrored = jnp.minimum(cells, ~cells).astype(jnp.int32)
    # Integers are exact in float64; in float32 the distance from the middle is rounded once, not its difference.
    p = (mirrored.astype(dtype) + 0.5) * CELL
    q = ((np.int32(2**31 - 1) - mirrored).astype(dtype) + 0.5) * CELL
    middle, tail, _ = (_horner(r[0], x) / _horner(r[1], x) for r, x in zip(rationals, _arguments(p, q), strict=True))
    z = jnp.where(q <= 0.425, q * middle, tail)
    return jnp.where(cells >= jnp.uint32(2**31), z, -z)


def ndtri(p: Any) -> Any:
    """Standard normal quantile function of probabilities between 0 and 1; finite up to the ends."""
    information = jnp.finfo(p.dtype)
    rationals = _PPND7 if p.dtype == jnp.float32 else _PPND16
    q = p - 0.5
    nearer = jnp.clip(jnp.minimum(p, 1 - p), information.tiny, 0.5)
    arguments = _arguments(nearer, jnp.abs(q))
    middle, tail, far = (_horner(r[0], x) / _horner(r[1], x) for r, x in zip(rationals, arguments, strict=True))
    z = jnp.where(jnp.abs(q) <= 0.425, jnp.abs(q) * middle, jnp.where(arguments[1] <= 5 - 1.6, tail, far))
    return jnp.where(q < 0, -z, z)


def _arguments(p: Any, q: Any) -> tuple[Any, Any, Any]:
    """Arguments of the three rationals at the nearer tail probability and the distance from the middle."""
    root = jnp.sqrt(-log(p))
    return 0.180625 - q * q, root - 1.6, root - 5.0
