"""The words beside vectors: arrays by address, lanes as bits, order keys, double sums.

`simd.py` has the rest and explains them. A *mask* is an int32 whose bit i speaks of lane i. An
*order key* is the int32 that orders as the float32 does (-0.0 counts as 0.0, NaN nowhere).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from octavo.backends.cpu.simd.arithmetic import tree_ir
from octavo.backends.cpu.simd.vectors import Vec, constant, emit, f32x16, splat_ir

_FLOAT, _I16, _I32 = ir.FloatType(), ir.IntType(16), ir.IntType(32)
_BITS = ir.VectorType(_I32, 16)

f64x16 = Vec("f64", 16)


def array_ir(context: Any, builder: Any, kind: Any, address: Any, shape: list[Any]) -> Any:
    """Return Numba's value for the array of this type that lies at an address."""
    data = context.get_data_type(kind.dtype)
    item = context.get_constant(types.intp, context.get_abi_sizeof(data))
    strides = [item]
    for size in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], size))
    array = context.make_array(kind)(context, builder)
    populate_array(
        array,
        data=builder.inttoptr(address, data.as_pointer()),
        shape=shape,
        strides=strides,
        itemsize=item,
        meminfo=None,
    )
    return array._getvalue()


def _array_at(element: Any) -> Any:
    """Return an intrinsic ``(address, size)``: the one-dimensional array that lies there."""
    kind = types.Array(element, 1, "C")

    @intrinsic
    def array_at(typingctx, address, size):  # noqa: ARG001
        def code(context, builder, _signature, values):
            return array_ir(context, builder, kind, values[0], [values[1]])

        return kind(types.intp, types.intp), code

    return array_at


floats_at, doubles_at = _array_at(types.float32), _array_at(types.float64)
longs_at, ints_at = _array_at(types.int64), _array_at(types.int32)

# -- lanes as bits --------------------------------------------------------------------------------


def _mask_ir(builder: Any, lanes: Any) -> Any:
    return builder.zext(builder.bitcast(lanes, _I16), _I32)


@emit(types.int32, f32x16, f32x16)
def lanes_at_least(builder, x, y):
    """The mask of x >= y."""
    return _mask_ir(builder, builder.fcmp_ordered(">=", x, y))


@emit(types.int32, f32x16, f32x16)
def lanes_above(builder, x, y):
    """The mask of x > y."""
    return _mask_ir(builder, builder.fcmp_ordered(">", x, y))


@emit(types.int32, types.int32)
def first_lane(builder, mask):
    """The number of the lowest bit of a mask that is not 0."""
    return builder.cttz(mask, ir.Constant(ir.IntType(1), 1))


@emit(types.int32, types.int32)
def count_lanes(builder, mask):
    """How many bits a mask has."""
    return builder.ctpop(mask)


@emit(f32x16, f32x16, f32x16, f32x16)
def keep_at_least(builder, x, y, bound):
    """``x`` in the lanes where ``y`` >= ``bound``, 0 in the rest."""
    kept = builder.fcmp_ordered(">=", y, bound)
    return builder.select(kept, x, constant(f32x16.ir, 0.0))


@emit(f32x16, f32x16, types.int32)
def only_lanes(builder, x, mask):
    """``x`` in the lanes of a mask, whose upper 16 bits do not matter, and -inf in the rest."""
    kept = builder.bitcast(builder.trunc(mask, _I16), ir.VectorType(ir.IntType(1), 16))
    return builder.select(kept, x, constant(f32x16.ir, float("-inf")))


# -- order keys -----------------------------------------------------------------------------------


def _key_ir(builder: Any, bits: Any, number: Any) -> Any:
    flipped = builder.and_(builder.ashr(bits, number(31)), number(0x7FFFFFFF))
    return builder.xor(bits, flipped)


@emit(types.int32, types.float32)
def order_key(builder, x):
    """The order key of x."""
    bits = builder.bitcast(builder.fadd(x, ir.Constant(_FLOAT, 0.0)), _I32)
    return _key_ir(builder, bits, lambda value: ir.Constant(_I32, value))


@emit(types.int32, f32x16, types.int32, types.int32)
def lanes_of_bin(builder, x, shift, prefix):
    """The mask of the lanes whose order keys, shifted right, are ``prefix``."""
    bits = builder.bitcast(builder.fadd(x, constant(f32x16.ir, 0.0)), _BITS)
    keys = _key_ir(builder, bits, lambda value: constant(_BITS, value))
    upper = builder.ashr(keys, splat_ir(builder, shift, _BITS))
    return _mask_ir(builder, builder.icmp_signed("==", upper, splat_ir(builder, prefix, _BITS)))


@emit(types.float32, types.int32)
def float_of_key(builder, key):
    """The float32 of an order key."""
    bits = _key_ir(builder, key, lambda value: ir.Constant(_I32, value))
    return builder.bitcast(bits, _FLOAT)


# -- sums and powers ------------------------------------------------------------------------------


@emit(f64x16)
def zero_f64(_builder):
    """Sixteen zeros."""
    return constant(f64x16.ir, 0.0)


@emit(f64x16, f32x16)
def widen(builder, x):
    """Sixteen float32 as float64."""
    return builder.fpext(x, f64x16.ir)


@emit(types.float64, f64x16)
def sum_lanes_f64(builder, x):
    """The sum of the lanes by one tree: upper half onto lower half, four times."""
    return tree_ir(builder, x, builder.fadd)


@emit(f32x16, f32x16)
def power_below(builder, k):
    """2^(k - 1) of whole numbers k within -126 .. 127, where -126 gives 0."""
    exponent = builder.add(builder.fptosi(k, _BITS), constant(_BITS, 126))
    return builder.bitcast(builder.shl(exponent, constant(_BITS, 23)), f32x16.ir)
