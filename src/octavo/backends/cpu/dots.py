"""The byte dot: per lane, add four products of an unsigned byte (weight) and a signed (activation).

Three paths, one result, exact in every one (integers; nothing saturates):

    vnni     one vpdpbusd: sixteen lanes, four products each
    avx2     4-bit codes: vpmaddubsw; the eight steps of a group of 32 are added as 16-bit numbers
             (at most 8 * 2 * 15 * 127 = 30,480 < 32,768) and widened once a group.
             8-bit codes: 2 * 255 * 127 would saturate there, so both sides are spread to 16 bits
             (even bytes, odd bytes) for vpmaddwd
    generic  the same spreading in plain LLVM, on any CPU; on NEON it becomes smull and addp

A tile takes ``regs`` for its sums, which are 0 or ``begin`` with a number, ``step`` once for four
k's and ``finish`` once a group, which is told the number again: a `Dot`, of 4-bit codes and of
8-bit ones. 4-bit codes are taken out of their bytes first (`low_nibbles`) and IQ4_NL's looked up
besides (`low_values`): a byte shuffle, or where there is none fifteen selects.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from llvmlite import ir

from octavo.backends.cpu.compiler import inlined
from octavo.backends.cpu.machine import DOT_PATH
from octavo.backends.cpu.simd.memory import regs_i16, regs_i32
from octavo.backends.cpu.simd.vectors import (
    call,
    constant,
    emit,
    half_ir,
    i16x32,
    i32x16,
    join_ir,
    lanes_ir,
)

if TYPE_CHECKING:
    from octavo.backends.cpu.machine import DotPath
    from octavo.backends.cpu.simd.vectors import I32x16

_I32X8 = ir.VectorType(ir.IntType(32), 8)
_I32X32 = ir.VectorType(ir.IntType(32), 32)
_I16X16 = ir.VectorType(ir.IntType(16), 16)
_I16X32 = i16x32.ir
_I8X32 = ir.VectorType(ir.IntType(8), 32)
_I8X64 = ir.VectorType(ir.IntType(8), 64)

IQ4_VALUES: Final = np.array(
    [1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241], np.uint8
)
"""IQ4_NL's sixteen levels, -127 to 113, with 128 added: as a `U8` code means them."""


class Dot(NamedTuple):
    """A byte dot, as a tile uses it."""

    regs: Any
    begin: Any
    step: Any
    finish: Any


# -- codes ----------------------------------------------------------------------------------------


@emit(i32x16, i32x16)
def low_nibbles(builder, codes):
    """The lower four bits of each of 64 bytes."""
    return builder.and_(codes, constant(i32x16.ir, 0x0F0F0F0F))


@emit(i32x16, i32x16)
def high_nibbles(builder, codes):
    """The upper four bits of each of 64 bytes."""
    return builder.and_(
        builder.lshr(codes, constant(i32x16.ir, 4)), constant(i32x16.ir, 0x0F0F0F0F)
    )


def _table_ir(kind: Any) -> Any:
    """Return IQ4_NL's values in each sixteen bytes of a vector."""
    return ir.Constant(kind, [int(IQ4_VALUES[i % 16]) for i in range(kind.count)])


@emit(i32x16, i32x16)
def _look_up_vnni(builder, codes):
    name = "llvm.x86.avx512.pshuf.b.512"
    values = call(builder, name, _I8X64, _table_ir(_I8X64), builder.bitcast(codes, _I8X64))
    return builder.bitcast(values, i32x16.ir)


@emit(i32x16, i32x16)
def _look_up_avx2(builder, codes):
    name, table = "llvm.x86.avx2.pshuf.b", _table_ir(_I8X32)
    halves = [half_ir(builder, builder.bitcast(codes, _I8X64), i) for i in (0, 1)]
    values = [call(builder, name, _I8X32, table, half) for half in halves]
    return builder.bitcast(join_ir(builder, *values), i32x16.ir)


@emit(i32x16, i32x16)
def _look_up_generic(builder, codes):
    codes = builder.bitcast(codes, _I8X64)
    values = [constant(_I8X64, int(value)) for value in IQ4_VALUES]
    for bit in (1, 2, 4, 8):
        is_set = builder.icmp_unsigned(
            "!=", builder.and_(codes, constant(_I8X64, bit)), constant(_I8X64, 0)
        )
        pairs = zip(values[::2], values[1::2], strict=True)
        values = [builder.select(is_set, odd, even) for even, odd in pairs]
    return builder.bitcast(values[0], i32x16.ir)


# -- AVX-512 VNNI ---------------------------------------------------------------------------------


@emit(i32x16, i32x16, i32x16, i32x16)
def _step_vnni(builder, total, codes, x):
    return call(builder, "llvm.x86.avx512.vpdpbusd.512", i32x16.ir, total, codes, x)


# -- AVX2 -----------------------------------------------------------------------------------------


def _madd_ir(builder: Any, x: Any, y: Any) -> Any:
    """vpmaddwd on both halves of two <32 x i16>: <16 x i32>."""
    return join_ir(
        builder,
        *(
            call(
                builder,
                "llvm.x86.avx2.pmadd.wd",
                _I32X8,
                half_ir(builder, x, i),
                half_ir(builder, y, i),
            )
            for i in (0, 1)
        ),
    )


@emit(i16x32, i16x32, i32x16, i32x16)
def _step_u4_avx2(builder, total, codes, x):
    products = [
        call(
            builder,
            "llvm.x86.avx2.pmadd.ub.sw",
            _I16X16,
            builder.bitcast(half_ir(builder, codes, i), _I8X32),
            builder.bitcast(half_ir(builder, x, i), _I8X32),
        )
        for i in (0, 1)
    ]
    return builder.add(total, join_ir(builder, *products))


@emit(i16x32, i32x16)
def _begin_u4_avx2(_builder, _start):
    return constant(_I16X32, 0)  # sixteen bits do not hold it


@emit(i32x16, i16x32, i32x16)
def _finish_u4_avx2(builder, total, start):
    return builder.add(_madd_ir(builder, total, constant(_I16X32, 1)), start)


def _even_odd_ir(builder: Any, codes: Any, *, signed: bool) -> tuple[Any, Any]:
    """Return bytes 0 and 2, and bytes 1 and 3, of every lane as 16-bit numbers."""
    words, eight = builder.bitcast(codes, _I16X32), constant(_I16X32, 8)
    if signed:
        return builder.ashr(builder.shl(words, eight), eight), builder.ashr(words, eight)
    return builder.and_(words, constant(_I16X32, 255)), builder.lshr(words, eight)


@emit(i32x16, i32x16, i32x16, i32x16)
def _step_u8_avx2(builder, total, codes, x):
    pairs = zip(
        _even_odd_ir(builder, codes, signed=False),
        _even_odd_ir(builder, x, signed=True),
        strict=True,
    )
    for weight, activation in pairs:
        total = builder.add(total, _madd_ir(builder, weight, activation))
    return total


# -- any CPU --------------------------------------------------------------------------------------


@emit(i32x16, i32x16, i32x16, i32x16)
def _step_generic(builder, total, codes, x):
    pairs = zip(
        _even_odd_ir(builder, codes, signed=False),
        _even_odd_ir(builder, x, signed=True),
        strict=True,
    )
    for weight, activation in pairs:
        products = builder.mul(builder.sext(weight, _I32X32), builder.sext(activation, _I32X32))
        even = lanes_ir(builder, products, list(range(0, 32, 2)))
        odd = lanes_ir(builder, products, list(range(1, 32, 2)))
        total = builder.add(total, builder.add(even, odd))
    return total


@emit(i32x16, i32x16)
def _begin_as_it_is(_builder, start):
    return start


@emit(i32x16, i32x16, i32x16)
def _as_it_is(_builder, total, _start):
    return total


# -- the choice -----------------------------------------------------------------------------------

_VNNI = Dot(regs_i32, _begin_as_it_is, _step_vnni, _as_it_is)
_GENERIC = Dot(regs_i32, _begin_as_it_is, _step_generic, _as_it_is)
_PATHS: dict[DotPath, tuple[Dot, Dot, Any]] = {
    "vnni": (_VNNI, _VNNI, _look_up_vnni),
    "avx2": (
        Dot(regs_i16, _begin_u4_avx2, _step_u4_avx2, _finish_u4_avx2),
        Dot(regs_i32, _begin_as_it_is, _step_u8_avx2, _as_it_is),
        _look_up_avx2,
    ),
    "generic": (_GENERIC, _GENERIC, _look_up_generic),
}

DOT_U4, DOT_U8, _look_up = _PATHS[DOT_PATH]


@inlined
def low_values(codes: I32x16) -> I32x16:
    """What IQ4_NL's table has for the lower four bits of each of 64 bytes."""
    return _look_up(low_nibbles(codes))


@inlined
def high_values(codes: I32x16) -> I32x16:
    """What IQ4_NL's table has for the upper four bits of each of 64 bytes."""
    return _look_up(high_nibbles(codes))
