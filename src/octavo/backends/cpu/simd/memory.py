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
    HALVES,
    I8,
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
    pick_ir,
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
"""Four consecutive bytes of an int8 array, or an element's 32 bits, in every lane."""

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


@intrinsic
def store_codes(typingctx, array, index, x, y):  # noqa: ARG001
    """Write the lowest byte of each int32 of two vectors: 32 bytes, those of ``x`` first."""

    def code(context, builder, signature, values):
        array, index, x, y = values
        pointer = _pointer(context, builder, signature.args[0], array, index, ir.VectorType(I8, 32))
        low, high = (builder.bitcast(v, ir.VectorType(I8, 64)) for v in (x, y))
        builder.store(pick_ir(builder, low, high, list(range(0, 128, 4))), pointer, align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, i32x16, i32x16), code


def _fetcher(nearness: int, *, to_write: bool = False) -> Any:
    """Return an intrinsic ``(array, index)`` that asks for a cache line, which may lie anywhere."""

    @intrinsic
    def fetch(typingctx, array, index):  # noqa: ARG001
        def code(context, builder, signature, values):
            pointer = _pointer(context, builder, signature.args[0], values[0], values[1], I8)
            hints = [ir.Constant(I32, hint) for hint in (int(to_write), nearness, 1)]  # 1: data
            call(builder, "llvm.prefetch.p0", ir.VoidType(), pointer, *hints)
            return context.get_dummy_value()

        return types.void(array, types.intp), code

    return fetch


fetch = _fetcher(3)
"""Ask for the cache line of an element, for the first-level cache; nothing is read."""
fetch_near = _fetcher(2)
"""The same for the second-level cache: what is needed soon, but is too much for the first."""
fetch_to_write = _fetcher(3, to_write=True)
"""As `fetch`, taking the line away from the other cores."""


@intrinsic
def store_first(typingctx, array, index, vector, count):  # noqa: ARG001
    """Write the first ``count`` lanes of sixteen floats, at most all; what lies behind stays."""

    def code(context, builder, signature, values):
        array, index, vector, count = values
        pointer = _pointer(context, builder, signature.args[0], array, index, f32x16.ir)
        kept = builder.icmp_signed(
            "<", ir.Constant(i32x16.ir, list(range(16))), splat_ir(builder, count, i32x16.ir)
        )
        call(
            builder, "llvm.masked.store.v16f32.p0", ir.VoidType(), vector, pointer,
            ir.Constant(I32, 4), kept,
        )  # fmt: skip
        return context.get_dummy_value()

    return types.void(array, types.intp, f32x16, types.int32), code


@intrinsic
def store_f16_apart(typingctx, array, index, vector):  # noqa: ARG001
    """Write sixteen floats as float16, 16 elements apart, rounded as `store_f16` does."""

    def code(context, builder, signature, values):
        array, index, vector = values
        pointer = _pointer(context, builder, signature.args[0], array, index, I16)
        halves = builder.bitcast(builder.fptrunc(vector, HALVES), WORDS)
        for lane in range(16):
            one = builder.extract_element(halves, ir.Constant(I32, lane))
            builder.store(one, builder.gep(pointer, [ir.Constant(I64, lane * 16)]), align=2)
        return context.get_dummy_value()

    return types.void(array, types.intp, f32x16), code


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


# -- sixteen vectors at once ----------------------------------------------------------------------


def _four_rows(low: list[int]) -> list[int]:
    """The same picks in each quarter of a vector."""
    return [4 * quarter + lane for quarter in range(4) for lane in low]


_LEVELS = (
    (_four_rows([0, 16, 1, 17]), _four_rows([2, 18, 3, 19])),
    (_four_rows([0, 1, 16, 17]), _four_rows([2, 3, 18, 19])),
    ([*range(8), *range(16, 24)], [*range(8, 16), *range(24, 32)]),
    (
        [*range(4), *range(8, 12), *range(16, 20), *range(24, 28)],
        [*range(4, 8), *range(12, 16), *range(20, 24), *range(28, 32)],
    ),
)
"""Which lanes of two vectors meet: after four levels lane i of one vector is all of vector i.

The first two stay within quarters and the others move whole quarters: one instruction each, and
fewer where a vector is several registers.
"""


def _across(join: Callable[[Any, Any, Any], Any]) -> Any:
    """Return an intrinsic of a `regs_i32(16, 1)`: lane i is the lanes of its vector i, joined."""

    @intrinsic
    def across(typingctx, regs):  # noqa: ARG001
        def code(_context, builder, _signature, values):
            rows = [builder.load(builder.gep(values[0], [ir.Constant(I64, i)])) for i in range(16)]
            for low, high in _LEVELS:
                rows = [
                    join(builder, pick_ir(builder, x, y, low), pick_ir(builder, x, y, high))
                    for x, y in zip(rows[::2], rows[1::2], strict=True)
                ]
            return rows[0]

        return i32x16(regs), code

    return across


sums_across = _across(lambda b, x, y: b.add(x, y))
"""The sum of the lanes of each of sixteen vectors, whose order does not matter: integers."""
largest_across = _across(lambda b, x, y: b.select(b.icmp_signed(">", x, y), x, y))


@intrinsic
def splat_lane(typingctx, regs, lane):  # noqa: ARG001
    """One lane of the first vector of a `regs_f32`, in every lane; the number need not be known."""

    def code(_context, builder, _signature, values):
        first = builder.bitcast(values[0], ir.FloatType().as_pointer())
        return splat_ir(builder, builder.load(builder.gep(first, [values[1]])), f32x16.ir)

    return f32x16(regs, types.intp), code
