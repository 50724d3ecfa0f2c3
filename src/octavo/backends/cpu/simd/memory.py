"""Between arrays and vectors: loads, stores, and small matrices of vectors that stay in registers.

An index counts the array's own elements, whatever is read there.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin

from octavo.backends.cpu.simd.vectors import (
    BYTES,
    HALVES,
    I16,
    I32,
    I64,
    WORDS,
    Regs,
    Vec,
    call,
    constant,
    f32x16,
    i16x32,
    i32x16,
    splat_ir,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# -- loads and stores -----------------------------------------------------------------------------


def _pointer(context: Any, builder: Any, kind: Any, array: Any, index: Any, target: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), target.as_pointer())


def _loader(result: Any, memory: Any, align: int, finish: Callable[[Any, Any], Any]) -> Any:
    """Return an intrinsic ``(array, index)`` that reads ``memory`` there and finishes it."""

    @intrinsic
    def load(typingctx, array, index):  # noqa: ARG001
        def code(context, builder, signature, values):
            pointer = _pointer(context, builder, signature.args[0], values[0], values[1], memory)
            return finish(builder, builder.load(pointer, align=align))

        return result(array, types.intp), code

    return load


def _storer(align: int, memory: Any, prepare: Callable[[Any, Any], Any]) -> Any:
    """Return an intrinsic ``(array, index, vector)`` that writes there."""

    @intrinsic
    def store(typingctx, array, index, vector):  # noqa: ARG001
        def code(context, builder, signature, values):
            pointer = _pointer(context, builder, signature.args[0], values[0], values[1], memory)
            builder.store(prepare(builder, values[2]), pointer, align=align)
            return context.get_dummy_value()

        return types.void(array, types.intp, vector), code

    return store


load_f32 = _loader(f32x16, f32x16.ir, 4, lambda _, v: v)
load_codes = _loader(i32x16, i32x16.ir, 32, lambda _, v: v)
"""64 bytes of weights; their address is a multiple of 32."""
load_f16 = _loader(f32x16, HALVES, 2, lambda b, v: b.fpext(v, f32x16.ir))
load_bf16 = _loader(
    f32x16,
    WORDS,
    2,
    lambda b, v: b.bitcast(b.shl(b.zext(v, i32x16.ir), constant(i32x16.ir, 16)), f32x16.ir),
)
splat_f32 = _loader(f32x16, ir.FloatType(), 4, lambda b, v: splat_ir(b, v, f32x16.ir))
"""One float of an array, in every lane."""
splat_bytes = _loader(i32x16, I32, 4, lambda b, v: splat_ir(b, v, i32x16.ir))
"""Four consecutive bytes of an int8 array, in every lane."""

scalar_f16 = _loader(types.float32, ir.HalfType(), 2, lambda b, v: b.fpext(v, ir.FloatType()))
"""One float16 at a byte offset of a uint8 array, or an index of a uint16 array."""
scalar_f32 = _loader(types.float32, ir.FloatType(), 4, lambda _, v: v)
scalar_bf16 = _loader(
    types.float32,
    I16,
    2,
    lambda b, v: b.bitcast(b.shl(b.zext(v, I32), ir.Constant(I32, 16)), ir.FloatType()),
)

store_f32 = _storer(4, f32x16.ir, lambda _, v: v)
store_f16 = _storer(2, HALVES, lambda b, v: b.fptrunc(v, HALVES))
"""Rounded to nearest, ties to even; clamp first (`clamp_stored`)."""
store_codes = _storer(1, BYTES, lambda b, v: b.trunc(v, BYTES))
"""Sixteen int32 within -128 .. 127 (or 0 .. 255) as bytes."""


@intrinsic
def prefetch(typingctx, array, index):  # noqa: ARG001
    """Ask for the cache line of ``array[index]``, which may lie past the array's end."""

    def code(context, builder, signature, values):
        kind, (data, place) = signature.args[0], values
        pointer = _pointer(context, builder, kind, data, place, ir.IntType(8))
        numbers = [ir.Constant(I32, n) for n in (0, 3, 1)]  # to read, into every cache, data
        call(builder, "llvm.prefetch.p0", ir.VoidType(), pointer, *numbers)
        return context.get_dummy_value()

    return types.void(array, types.intp), code


# -- registers ------------------------------------------------------------------------------------


def make_regs(vec: Vec) -> Any:
    """Return ``regs(rows, columns)``, literal numbers: that many vectors, all zero."""

    @intrinsic(prefer_literal=True)
    def regs(typingctx, rows, columns):  # noqa: ARG001
        kind = Regs(vec, rows.literal_value, columns.literal_value)

        def code(_context, builder, _signature, _values):
            count = kind.rows * kind.columns
            with builder.goto_entry_block():
                pointer = builder.alloca(vec.ir, size=ir.Constant(I32, count))
            zero = constant(vec.ir, 0.0 if vec.element == "f32" else 0)
            for i in range(count):
                builder.store(zero, builder.gep(pointer, [ir.Constant(I64, i)]))
            return pointer

        return kind(rows, columns), code

    return regs


regs_f32, regs_i32, regs_i16 = (make_regs(vec) for vec in (f32x16, i32x16, i16x32))


def _place(context: Any, builder: Any, kind: Regs, index_type: Any, pointer: Any, at: Any) -> Any:
    row, column = (
        context.cast(builder, value, source, types.intp)
        for value, source in zip(cgutils.unpack_tuple(builder, at), index_type, strict=True)
    )
    index = builder.add(builder.mul(row, ir.Constant(I64, kind.columns)), column)
    return builder.gep(pointer, [index])


@infer_global(operator.getitem)
class _GetTemplate(AbstractTemplate):
    def generic(self, args: Any, _kws: Any) -> Any:
        regs, index = args
        return signature(regs.vec, regs, index) if isinstance(regs, Regs) else None


@infer_global(operator.setitem)
class _SetTemplate(AbstractTemplate):
    def generic(self, args: Any, _kws: Any) -> Any:
        regs, index, _ = args
        return signature(types.void, regs, index, regs.vec) if isinstance(regs, Regs) else None


@lower_builtin(operator.getitem, Regs, types.BaseTuple)
def _get(context, builder, kind, values):
    return builder.load(_place(context, builder, *kind.args[:2], *values[:2]))


@lower_builtin(operator.setitem, Regs, types.BaseTuple, Vec)
def _set(context, builder, kind, values):
    builder.store(values[2], _place(context, builder, *kind.args[:2], *values[:2]))
    return context.get_dummy_value()
