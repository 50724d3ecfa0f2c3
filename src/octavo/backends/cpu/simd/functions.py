"""exp and the activations that need it, sixteen lanes at a time, to the same bits everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from octavo.backends.cpu.compiler import inlined
from octavo.backends.cpu.simd.arithmetic import fma, larger, power_of_two, smaller, splat

if TYPE_CHECKING:
    from octavo.backends.cpu.simd.vectors import F32x16

_LOG2_E = np.float32(1.44269504)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_EXP_LOW, _EXP_HIGH = np.float32(-87.33654), np.float32(88.0)
_MAGIC = np.float32(1.5 * 2**23)
_C6, _C5, _C4 = (
    np.float32(1.9875691500e-4),
    np.float32(1.3981999507e-3),
    np.float32(8.3334519073e-3),
)
_C3, _C2, _C1 = (
    np.float32(4.1665795894e-2),
    np.float32(1.6666665459e-1),
    np.float32(5.0000001201e-1),
)
_ONE, _ZERO = np.float32(1), np.float32(0)


@inlined
def exp(x: F32x16) -> F32x16:
    """e^x within 1.01 ulp; exp(0) = 1 exactly; NaN stays NaN.

    x is held within [-87.34, 88]; n = round(x / ln 2); r = x - n ln 2 in two steps; a polynomial
    of degree 7 (Cephes' coefficients) for e^r; times 2^n.
    """
    x = smaller(splat(_EXP_HIGH), larger(splat(_EXP_LOW), x))
    shifted = fma(x, splat(_LOG2_E), splat(_MAGIC))
    n = shifted - splat(_MAGIC)
    r = fma(n, splat(-_LN2_LOW), fma(n, splat(-_LN2_HIGH), x))
    p = fma(splat(_C6), r, splat(_C5))
    p = fma(p, r, splat(_C4))
    p = fma(p, r, splat(_C3))
    p = fma(p, r, splat(_C2))
    p = fma(p, r, splat(_C1))
    return (fma(p, r * r, r) + splat(_ONE)) * power_of_two(shifted)


@inlined
def silu(x: F32x16) -> F32x16:
    """x / (1 + e^-x)."""
    return x / (splat(_ONE) + exp(splat(_ZERO) - x))


_GELU_INNER, _GELU_CUBE = np.float32(2 * (2 / np.pi) ** 0.5), np.float32(0.044715)


@inlined
def gelu_tanh(x: F32x16) -> F32x16:
    """x/2 (1 + tanh u) = x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3)."""
    u = fma(x * x * x, splat(_GELU_CUBE), x) * splat(_GELU_INNER)
    return x / (splat(_ONE) + exp(splat(_ZERO) - u))
