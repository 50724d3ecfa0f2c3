"""Arithmetic on vectors: every operation rounded as IEEE says, sums over lanes by one fixed tree.

Nothing here lets the compiler reorder or contract anything.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin

from octavo.backends.cpu.compiler import inlined
from octavo.backends.cpu.simd.vectors import (
    I32,
    F32x16,
    Vec,
    call,
    constant,
    emit,
    f32x16,
    half_ir,
    i32x16,
    pick_ir,
    splat_ir,
)

if TYPE_CHECKING:
    from collections.abc import Callable


@emit(f32x16, types.float32)
def splat(builder, x):
    """``x`` in every lane."""
    return splat_ir(builder, x, f32x16.ir)


@emit(f32x16)
def zero_f32(_builder):
    """Sixteen zeros."""
    return constant(f32x16.ir, 0.0)


@emit(i32x16)
def zero_i32(_builder):
    """Sixteen integer zeros."""
    return constant(i32x16.ir, 0)


@emit(f32x16, f32x16, f32x16, f32x16)
def fma(builder, x, y, z):
    """x * y + z, rounded once."""
    return call(builder, "llvm.fma.v16f32", f32x16.ir, x, y, z)


@emit(f32x16, f32x16)
def absolute(builder, x):
    """|x|."""
    return call(builder, "llvm.fabs.v16f32", f32x16.ir, x)


@emit(f32x16, f32x16)
def round_even(builder, x):
    """The nearest whole number, ties to even."""
    return call(builder, "llvm.roundeven.v16f32", f32x16.ir, x)


@emit(f32x16, f32x16, f32x16)
def larger(builder, x, y):
    """x where x > y, else y: a NaN in x gives y, a NaN in y stays."""
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)


@emit(f32x16, f32x16, f32x16)
def smaller(builder, x, y):
    """x where x < y, else y: a NaN in x gives y, a NaN in y stays."""
    return builder.select(builder.fcmp_ordered("<", x, y), x, y)


@emit(f32x16, i32x16)
def to_f32(builder, x):
    """Rounded to nearest."""
    return builder.sitofp(x, f32x16.ir)


@emit(i32x16, f32x16)
def magnitude_bits(builder, x):
    """The bit pattern of |x| as an integer: it orders as |x| does, Inf above all, NaN above Inf."""
    bits = builder.bitcast(x, i32x16.ir)
    return builder.and_(bits, constant(i32x16.ir, 0x7FFFFFFF))


@emit(i32x16, i32x16, i32x16)
def larger_i32(builder, x, y):
    """The larger of two integers."""
    return builder.select(builder.icmp_signed(">", x, y), x, y)


@emit(f32x16, i32x16)
def floats_of_bits(builder, bits):
    """The floats of these bit patterns."""
    return builder.bitcast(bits, f32x16.ir)


_MAGIC, _MAGIC_BITS = 1.5 * 2.0**23, 0x4B400000


@emit(i32x16, f32x16)
def nearest(builder, x):
    """The nearest whole number, ties to even, + 0x4B400000: |x| < 2^22.

    The bits of x + 1.5 * 2^23, whose lower 16 are the number's own.
    """
    return builder.bitcast(builder.fadd(x, constant(f32x16.ir, _MAGIC)), i32x16.ir)


@emit(i32x16, i32x16, i32x16)
def paired(builder, x, y):
    """Two results of `nearest` in one number, to be added up sixteen at a time."""
    return builder.add(x, builder.shl(y, constant(i32x16.ir, 16)))


@emit(i32x16, i32x16)
def first_sums(builder, total):
    """Of a sum of sixteen `paired`, the sum of the first numbers, within -2^15 .. 2^15 - 1."""
    sixteen = constant(i32x16.ir, 16)
    return builder.ashr(builder.shl(total, sixteen), sixteen)


@emit(i32x16, i32x16)
def second_sums(builder, total):
    """Of a sum of sixteen `paired`, the sum of the second numbers, within -2^15 .. 2^15 - 1."""
    sixteen = constant(i32x16.ir, 16)
    first = builder.ashr(builder.shl(total, sixteen), sixteen)
    rest = builder.sub(builder.sub(total, first), constant(i32x16.ir, 16 * _MAGIC_BITS % 2**32))
    return builder.ashr(rest, sixteen)


@emit(i32x16, i32x16)
def minus_8_times(builder, x):
    """-8 x."""
    return builder.neg(builder.shl(x, constant(i32x16.ir, 3)))


@emit(i32x16, i32x16)
def minus_128_times(builder, x):
    """-128 x."""
    return builder.neg(builder.shl(x, constant(i32x16.ir, 7)))


@emit(f32x16, f32x16, f32x16, f32x16, f32x16)
def where_less(builder, x, y, yes, no):
    """``yes`` where x < y, else ``no``, as where x or y is NaN."""
    return builder.select(builder.fcmp_ordered("<", x, y), yes, no)


@emit(f32x16, f32x16, f32x16)
def even_lanes(builder, x, y):
    """Lanes 0, 2, 4 and so on of x and y laid end to end."""
    return pick_ir(builder, x, y, list(range(0, 32, 2)))


@emit(f32x16, f32x16, f32x16)
def odd_lanes(builder, x, y):
    """Lanes 1, 3, 5 and so on of x and y laid end to end."""
    return pick_ir(builder, x, y, list(range(1, 32, 2)))


@emit(f32x16, f32x16, f32x16)
def alternate_low(builder, x, y):
    """x0, y0, x1, y1 and so on to y7: what `even_lanes` and `odd_lanes` take apart."""
    return pick_ir(builder, x, y, [i // 2 + i % 2 * 16 for i in range(16)])


@emit(f32x16, f32x16, f32x16)
def alternate_high(builder, x, y):
    """x8, y8, x9, y9 and so on to y15."""
    return pick_ir(builder, x, y, [8 + i // 2 + i % 2 * 16 for i in range(16)])


@emit(f32x16, f32x16)
def power_of_two(builder, n_plus_magic):
    """2^n from n + 1.5 * 2^23, whose low bits are n; n within -126 .. 127 (NaN: any number)."""
    bits = builder.bitcast(n_plus_magic, i32x16.ir)
    exponent = builder.add(bits, constant(i32x16.ir, 127))
    return builder.bitcast(builder.shl(exponent, constant(i32x16.ir, 23)), f32x16.ir)


@emit(f32x16, f32x16, types.int32, types.float32)
def _keep_below(builder, v, count, other):
    lanes = ir.Constant(i32x16.ir, list(range(16)))
    kept = builder.icmp_signed("<", lanes, splat_ir(builder, count, i32x16.ir))
    return builder.select(kept, v, splat_ir(builder, other, f32x16.ir))


@emit(f32x16, f32x16, types.int32, types.float32)
def _keep_from(builder, v, first, other):
    lanes = ir.Constant(i32x16.ir, list(range(16)))
    kept = builder.icmp_signed(">=", lanes, splat_ir(builder, first, i32x16.ir))
    return builder.select(kept, v, splat_ir(builder, other, f32x16.ir))


@inlined
def keep_below(v: F32x16, count: int, other: np.float32) -> F32x16:
    """``v`` in the lanes below ``count``, ``other`` in the rest, whatever ``v`` holds there."""
    return _keep_below(v, np.int32(count), other)


@inlined
def keep_from(v: F32x16, first: int, other: np.float32) -> F32x16:
    """``v`` in the lanes from ``first`` on, ``other`` in the rest, whatever ``v`` holds there."""
    return _keep_from(v, np.int32(first), other)


def tree_ir(builder: Any, vector: Any, join: Callable[[Any, Any], Any]) -> Any:
    """Return the lanes joined into one number: upper half onto lower half until one is left."""
    """Join the upper half with the lower one until one lane is left."""
    while vector.type.count > 1:
        vector = join(half_ir(builder, vector, 0), half_ir(builder, vector, 1))
    return builder.extract_element(vector, ir.Constant(I32, 0))


@emit(types.float32, f32x16)
def sum_lanes(builder, v):
    """The sum of the lanes by one tree: upper half onto lower half, four times."""
    return tree_ir(builder, v, builder.fadd)


@emit(types.float32, f32x16)
def max_lanes(builder, v):
    """The largest lane."""
    return tree_ir(builder, v, lambda x, y: builder.select(builder.fcmp_ordered(">", x, y), x, y))


@emit(types.int32, i32x16)
def max_lanes_i32(builder, v):
    """The largest lane."""
    return tree_ir(builder, v, lambda x, y: builder.select(builder.icmp_signed(">", x, y), x, y))


def _operator(python: Any, float_name: str, int_name: str | None) -> None:
    """Let two vectors of one type be combined by a Python operator.

    A template and a lowering, not an overload: Numba compiles an overload as a function of its own.
    """

    @infer_global(python)
    class _Template(AbstractTemplate):
        def generic(self, args: Any, _kws: Any) -> Any:
            if len(args) == 2 and isinstance(args[0], Vec) and args[0] == args[1]:
                return signature(args[0], *args)
            return None

    @lower_builtin(python, Vec, Vec)
    def _lower(_context, builder, kind, values):
        name = int_name if kind.return_type.element[0] == "i" and int_name else float_name
        return getattr(builder, name)(*values)


_operator(operator.add, "fadd", "add")
_operator(operator.sub, "fsub", "sub")
_operator(operator.mul, "fmul", "mul")
_operator(operator.truediv, "fdiv", None)
