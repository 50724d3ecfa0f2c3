"""The tiles of a matrix product: rows x vectors of 16 outputs in registers, one for each format.

    out[m, n] = sum over groups g of 32 k's, in ascending order:
                    acc = fma(float(dot of codes), weight scale * row scale, acc)
                    acc = fma(weight minimum, row scale * sum of row codes, acc)

Where weights have no minima, code - offset stands for code: the dot begins with -offset * sum of
row codes, and the second line, an eleventh of a tile's work, is not there.

A tile's accumulators never leave registers and no sum runs across lanes, so an output's bits depend
on its row and its weights alone: one row computed alone equals the same row among any others. K is
never split. 16-bit and float32 weights are multiplied with the float32 row, k by k, in ascending
order. `packing.py` describes the layout; ``d`` is a matrix's integers (`plan.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo.backends.cpu import plan as p
from octavo.backends.cpu.dots import (
    DOT_U4,
    DOT_U8,
    Dot,
    high_nibbles,
    high_values,
    low_nibbles,
    low_values,
)
from octavo.backends.cpu.layout import BIG_ROWS, CHUNK, K_CHUNK, LANES
from octavo.backends.cpu.machine import HAS_AVX512
from octavo.backends.cpu.simd import (
    Floats,
    Ints,
    fma,
    inlined,
    kernel,
    load_codes,
    load_f16,
    load_f32,
    regs_f32,
    regs_i32,
    splat_bytes,
    splat_f32,
    store_f32,
    to_f32,
    zero_i32,
)

if TYPE_CHECKING:
    from octavo.backends.cpu.arrays import Codes

ABREAST = CHUNK // LANES

BIG_VECTORS = 2 if HAS_AVX512 else 1
SMALL_ROWS, SMALL_VECTORS = (4, 2) if HAS_AVX512 else (4, 1)
SINGLE_VECTORS = 4
FLOAT_ROWS, FLOAT_VECTORS = (8, 2) if HAS_AVX512 else (4, 1)

regs_u8, begin_u8, step_u8, finish_u8 = DOT_U8


@inlined
def codes_stride(columns: int) -> int:
    """Bytes from a row's codes to the next one's: an odd multiple of 64 where K is one of 64.

    The rows of a tile are read side by side, and 4 KiB apart they would share one set of the cache.
    """
    return columns if columns // 64 % 2 == 1 else columns + 64


@inlined
def starts_at(d: Ints, groups: int) -> Any:
    """Where in a row's `Codes.starts` those for this matrix begin: one for each of its scales."""
    if d[p.KIND] == p.U4:
        return 0
    return groups if d[p.PARTS] == 1 else 2 * groups


@inlined
def record_of(d: Ints, block: int) -> Any:
    """Where the first record of a block's chunk lies in the arena."""
    return d[p.PLACE] + block // ABREAST * (d[p.COLUMNS] // 32) * d[p.RECORD]


def make_tile_4bit(rows: int, vectors: int, low: Any, high: Any, dot_of: Dot) -> Any:
    """Return the tile for 4-bit codes, groups of 32.

    ``low`` and ``high`` take the unsigned bytes that ``dot_of`` multiplies out of 64 bytes.
    """
    regs, begin, step, finish = dot_of

    @kernel
    def tile(
        out: Floats,
        at: int,
        stride: int,
        x: Codes,
        row: int,
        arena: Ints,
        d: Ints,
        block: int,
    ) -> None:
        # out[at + r * stride + v * 16]
        codes_row, groups = codes_stride(d[p.COLUMNS]), d[p.COLUMNS] // 32
        wide = d[p.WIDE] != 0
        has_minima, first_start = d[p.MINIMA] != 0, starts_at(d, groups)
        none = zero_i32()
        record, lane = record_of(d, block), block % ABREAST
        acc = regs_f32(rows, vectors)
        for g in range(groups):
            scale, minimum = regs_f32(1, vectors), regs_f32(1, vectors)
            if rows == 1:
                load_scales(scale, minimum, arena, record, d, lane, wide)
            dot = regs(rows, vectors)
            if not has_minima:
                for r in range(rows):
                    start = splat_bytes(x.starts, (row + r) * groups * 4 + first_start + g)
                    for v in range(vectors):
                        dot[r, v] = begin(start)
            for j in range(4):  # 64 bytes: k's 4j .. 4j + 3 low, 16 + 4j .. 16 + 4j + 3 high
                packed = regs_i32(1, vectors)
                for v in range(vectors):
                    packed[0, v] = load_codes(
                        arena, record + d[p.CODES] + (j * ABREAST + lane + v) * 64
                    )
                for r in range(rows):
                    four = splat_bytes(x.codes, (row + r) * codes_row + g * 32 + j * 4)
                    for v in range(vectors):
                        dot[r, v] = step(dot[r, v], low(packed[0, v]), four)
                for r in range(rows):
                    four = splat_bytes(x.codes, (row + r) * codes_row + g * 32 + j * 4 + 16)
                    for v in range(vectors):
                        dot[r, v] = step(dot[r, v], high(packed[0, v]), four)
            if rows > 1:  # there are not enough registers to have them earlier
                load_scales(scale, minimum, arena, record, d, lane, wide)
            if has_minima:
                for v in range(vectors):
                    for r in range(rows):
                        row_scale = splat_f32(x.scales, (row + r) * groups + g)
                        row_sum = splat_f32(x.sums, (row + r) * groups + g)
                        scaled = scale[0, v] * row_scale
                        total = fma(to_f32(finish(dot[r, v], none)), scaled, acc[r, v])
                        acc[r, v] = fma(minimum[0, v], row_sum, total)
            else:
                for v in range(vectors):
                    for r in range(rows):
                        row_scale = splat_f32(x.scales, (row + r) * groups + g)
                        start = splat_bytes(x.starts, (row + r) * groups * 4 + first_start + g)
                        scaled = scale[0, v] * row_scale
                        acc[r, v] = fma(to_f32(finish(dot[r, v], start)), scaled, acc[r, v])
            record += d[p.RECORD]
        for r in range(rows):
            for v in range(vectors):
                store_f32(out, at + r * stride + v * 16, acc[r, v])

    load_scales = _make_load_scales(vectors)
    return tile


def _make_load_scales(vectors: int) -> Any:
    @inlined
    def load_scales(
        scale: Any, minimum: Any, arena: Ints, record: int, d: Ints, lane: int, wide: bool
    ) -> None:
        if wide:
            for v in range(vectors):
                scale[0, v] = load_f32(arena, record + (lane + v) * 64)
                minimum[0, v] = load_f32(arena, record + d[p.MINIMA] + (lane + v) * 64)
        else:
            for v in range(vectors):
                scale[0, v] = load_f16(arena, record + (lane + v) * 32)
                minimum[0, v] = load_f16(arena, record + d[p.MINIMA] + (lane + v) * 32)

    return load_scales


def make_tile_u8(rows: int, vectors: int) -> Any:
    """Return the tile for 8-bit codes, groups of 32 or of 16."""

    @kernel
    def tile(
        out: Floats,
        at: int,
        stride: int,
        x: Codes,
        row: int,
        arena: Ints,
        d: Ints,
        block: int,
    ) -> None:
        codes_row, groups = codes_stride(d[p.COLUMNS]), d[p.COLUMNS] // 32
        parts = d[p.PARTS]
        words = 8 // parts
        wide = d[p.WIDE] != 0
        has_minima, first_start = d[p.MINIMA] != 0, starts_at(d, groups)
        none = zero_i32()
        record, lane = record_of(d, block), block % ABREAST
        acc = regs_f32(rows, vectors)
        for g in range(groups):
            for part in range(parts):
                scale, minimum = regs_f32(1, vectors), regs_f32(1, vectors)
                if rows == 1:
                    load_scales(scale, minimum, arena, record, d, part * ABREAST + lane, wide)
                dot = regs_u8(rows, vectors)
                if not has_minima:
                    for r in range(rows):
                        start = splat_bytes(
                            x.starts, (row + r) * groups * 4 + first_start + g * parts + part
                        )
                        for v in range(vectors):
                            dot[r, v] = begin_u8(start)
                for first in range(part * words, part * words + words, 4):
                    for j in range(first, first + 4):  # so many that LLVM unrolls them
                        packed = regs_i32(1, vectors)
                        for v in range(vectors):
                            place = record + d[p.CODES] + (j * ABREAST + lane + v) * 64
                            packed[0, v] = load_codes(arena, place)
                        for r in range(rows):
                            four = splat_bytes(x.codes, (row + r) * codes_row + g * 32 + j * 4)
                            for v in range(vectors):
                                dot[r, v] = step_u8(dot[r, v], packed[0, v], four)
                if rows > 1:
                    load_scales(scale, minimum, arena, record, d, part * ABREAST + lane, wide)
                if has_minima:
                    for v in range(vectors):
                        for r in range(rows):
                            row_scale = splat_f32(x.scales, (row + r) * groups + g)
                            if parts == 1:
                                row_sum = splat_f32(x.sums, (row + r) * groups + g)
                            else:
                                half = ((row + r) * groups + g) * 2 + part
                                row_sum = splat_f32(x.half_sums, half)
                            scaled = scale[0, v] * row_scale
                            total = fma(to_f32(finish_u8(dot[r, v], none)), scaled, acc[r, v])
                            acc[r, v] = fma(minimum[0, v], row_sum, total)
                else:
                    for v in range(vectors):
                        for r in range(rows):
                            row_scale = splat_f32(x.scales, (row + r) * groups + g)
                            start = splat_bytes(
                                x.starts, (row + r) * groups * 4 + first_start + g * parts + part
                            )
                            scaled = scale[0, v] * row_scale
                            acc[r, v] = fma(to_f32(finish_u8(dot[r, v], start)), scaled, acc[r, v])
            record += d[p.RECORD]
        for r in range(rows):
            for v in range(vectors):
                store_f32(out, at + r * stride + v * 16, acc[r, v])

    load_scales = _make_load_scales(vectors)
    return tile


def make_tile_float(rows: int, vectors: int) -> Any:
    """Return the tile for weights widened to float32: k's ``first`` to ``first + count`` - 1.

    The accumulators wait in ``out`` between two runs of k's.
    """

    @kernel
    def tile(
        out: Floats,
        at: int,
        stride: int,
        x: Floats,
        x_at: int,
        x_stride: int,
        panel: Floats,
        panel_at: int,
        first: int,
        count: int,
    ) -> None:
        # panel [vectors, K_CHUNK, 16]
        acc = regs_f32(rows, vectors)
        if first > 0:
            for r in range(rows):
                for v in range(vectors):
                    acc[r, v] = load_f32(out, at + r * stride + v * 16)
        for k in range(count):
            w = regs_f32(1, vectors)
            for v in range(vectors):
                w[0, v] = load_f32(panel, panel_at + (v * K_CHUNK + k) * 16)
            for r in range(rows):
                value = splat_f32(x, x_at + r * x_stride + first + k)
                for v in range(vectors):
                    acc[r, v] = fma(w[0, v], value, acc[r, v])
        for r in range(rows):
            for v in range(vectors):
                store_f32(out, at + r * stride + v * 16, acc[r, v])

    return tile


_U4 = (low_nibbles, high_nibbles, DOT_U4)
_IQ4 = (low_values, high_values, DOT_U8)
tile_u4_big = make_tile_4bit(BIG_ROWS, BIG_VECTORS, *_U4)
tile_u4_small = make_tile_4bit(SMALL_ROWS, SMALL_VECTORS, *_U4)
tile_u4_single = make_tile_4bit(1, SINGLE_VECTORS, *_U4)
tile_iq4_big = make_tile_4bit(BIG_ROWS, BIG_VECTORS, *_IQ4)
tile_iq4_single = make_tile_4bit(1, SINGLE_VECTORS, *_IQ4)
tile_u8_big = make_tile_u8(BIG_ROWS, BIG_VECTORS)
tile_u8_small = make_tile_u8(SMALL_ROWS, SMALL_VECTORS)
tile_u8_single = make_tile_u8(1, SINGLE_VECTORS)
tile_float_big = make_tile_float(FLOAT_ROWS, FLOAT_VECTORS)
tile_float_single = make_tile_float(1, SINGLE_VECTORS)
