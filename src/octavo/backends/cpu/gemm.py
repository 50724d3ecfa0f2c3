"""Matrix products: one tile generator for every number of rows and every packed format.

    out[m, n] = sum over groups g of 32 k's, in ascending order:
                    acc = fma(float(dot of codes), weight scale * row scale, acc)
                    acc = fma(weight minimum, row scale * sum of row codes, acc)

A tile computes `rows` x `vectors` of 16 outputs. Its accumulators never leave registers and no sum
runs across lanes, so an output's bits depend on its row and its weights alone: one row computed
alone equals the same row among any others. K is never split. 16-bit and float32 weights are
multiplied with the float32 row, k by k, in ascending order.

`packing.py` describes the layout; a matrix is a row of the int64 table whose columns stand here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.backends.cpu import dots
from octavo.backends.cpu.dots import high_nibbles, low_nibbles
from octavo.backends.cpu.machine import HAS_AVX512
from octavo.backends.cpu.simd import (
    Floats,
    Ints,
    fma,
    kernel,
    load_bf16,
    load_codes,
    load_f16,
    load_f32,
    regs_f32,
    regs_i32,
    splat,
    splat_bytes,
    splat_f32,
    store_f32,
    to_f32,
)
from octavo.backends.cpu.team import claim

# Columns of the table of matrices. Places are bytes into the arena of weights.
KIND, ROWS, PADDED_ROWS, COLUMNS, CODES, SCALES, MINIMA, WIDE, OFFSET, GROUP, BIAS, OUT_AT = range(
    12
)
MATRIX_FIELDS = 12
U4, U8, F16, BF16, F32 = range(5)
"""What KIND may be. WIDE: scales are float32, not float16. MINIMA -1: minimum = -OFFSET * scale.
BIAS: index into the arena of floats, -1 for none. OUT_AT: first column of the output."""

BLOCK = 16
"""Output rows of a matrix that lie side by side, one a lane."""
CHUNK = 64
"""Output rows of one work item: four blocks."""
PANEL_ROWS = 128
"""Rows of activations of one work item: their codes stay in the second-level cache."""
K_CHUNK = 256
"""How many k's of 16-bit weights are widened at once."""

BIG_ROWS, BIG_VECTORS = (8, 2) if HAS_AVX512 else (8, 1)
SMALL_ROWS, SMALL_VECTORS = (4, 2) if HAS_AVX512 else (4, 1)
SINGLE_VECTORS = 4
FLOAT_ROWS, FLOAT_VECTORS = (8, 2) if HAS_AVX512 else (4, 1)

regs_u4, step_u4, finish_u4 = dots.regs_u4, dots.step_u4, dots.finish_u4
regs_u8, step_u8, finish_u8 = dots.regs_u8, dots.step_u8, dots.finish_u8


def make_tile_u4(rows: int, vectors: int) -> Any:
    """Return the tile for 4-bit codes: groups of 32, 256 bytes for a block's group."""

    @kernel
    def tile(
        out: Floats,
        at: int,
        stride: int,
        codes: Ints,
        scales: Floats,
        sums: Floats,
        row: int,
        arena: Ints,
        d: Ints,
        block: int,
    ) -> None:
        # out[at + r * stride + v * 16]; codes [., K], scales [., K / 32], sums [., K / 32]
        columns = d[COLUMNS]
        groups = columns // 32
        wide = d[WIDE] != 0
        scale_bytes = 4 if wide else 2
        has_minima = d[MINIMA] >= 0
        offset = splat(np.float32(-d[OFFSET]))
        acc = regs_f32(rows, vectors)
        for g in range(groups):
            dot = regs_u4(rows, vectors)
            for j in range(4):  # 64 bytes: k's 4j .. 4j + 3 low, 16 + 4j .. 16 + 4j + 3 high
                packed = regs_i32(1, vectors)
                for v in range(vectors):
                    packed[0, v] = load_codes(
                        arena, d[CODES] + ((block + v) * groups + g) * 256 + j * 64
                    )
                for r in range(rows):
                    x = splat_bytes(codes, (row + r) * columns + g * 32 + j * 4)
                    for v in range(vectors):
                        dot[r, v] = step_u4(dot[r, v], low_nibbles(packed[0, v]), x)
                for r in range(rows):
                    x = splat_bytes(codes, (row + r) * columns + g * 32 + j * 4 + 16)
                    for v in range(vectors):
                        dot[r, v] = step_u4(dot[r, v], high_nibbles(packed[0, v]), x)
            for v in range(vectors):
                place = ((block + v) * groups + g) * 16 * scale_bytes
                if wide:
                    scale = load_f32(arena, d[SCALES] + place)
                else:
                    scale = load_f16(arena, d[SCALES] + place)
                if not has_minima:
                    minimum = scale * offset
                elif wide:
                    minimum = load_f32(arena, d[MINIMA] + place)
                else:
                    minimum = load_f16(arena, d[MINIMA] + place)
                for r in range(rows):
                    row_scale = splat_f32(scales, (row + r) * groups + g)
                    row_sum = splat_f32(sums, (row + r) * groups + g)
                    total = fma(to_f32(finish_u4(dot[r, v])), scale * row_scale, acc[r, v])
                    acc[r, v] = fma(minimum, row_sum, total)
        for r in range(rows):
            for v in range(vectors):
                store_f32(out, at + r * stride + v * 16, acc[r, v])

    return tile


def make_tile_u8(rows: int, vectors: int) -> Any:
    """Return the tile for 8-bit codes: groups of 32 or 16, 512 bytes for a block's 32 k's."""

    @kernel
    def tile(
        out: Floats,
        at: int,
        stride: int,
        codes: Ints,
        scales: Floats,
        sums: Floats,
        half_sums: Floats,
        row: int,
        arena: Ints,
        d: Ints,
        block: int,
    ) -> None:
        columns = d[COLUMNS]
        groups = columns // 32
        parts = 32 // d[GROUP]  # 1, or 2 where each half of the 32 has its own scale
        wide = d[WIDE] != 0
        scale_bytes = 4 if wide else 2
        has_minima = d[MINIMA] >= 0
        offset = splat(np.float32(-d[OFFSET]))
        acc = regs_f32(rows, vectors)
        for g in range(groups):
            for part in range(parts):
                dot = regs_u8(rows, vectors)
                for j in range(part * 4, 8 if parts == 1 else part * 4 + 4):
                    packed = regs_i32(1, vectors)
                    for v in range(vectors):
                        packed[0, v] = load_codes(
                            arena, d[CODES] + ((block + v) * groups + g) * 512 + j * 64
                        )
                    for r in range(rows):
                        x = splat_bytes(codes, (row + r) * columns + g * 32 + j * 4)
                        for v in range(vectors):
                            dot[r, v] = step_u8(dot[r, v], packed[0, v], x)
                for v in range(vectors):
                    place = (((block + v) * groups + g) * parts + part) * 16 * scale_bytes
                    if wide:
                        scale = load_f32(arena, d[SCALES] + place)
                    else:
                        scale = load_f16(arena, d[SCALES] + place)
                    if not has_minima:
                        minimum = scale * offset
                    elif wide:
                        minimum = load_f32(arena, d[MINIMA] + place)
                    else:
                        minimum = load_f16(arena, d[MINIMA] + place)
                    for r in range(rows):
                        row_scale = splat_f32(scales, (row + r) * groups + g)
                        if parts == 1:
                            row_sum = splat_f32(sums, (row + r) * groups + g)
                        else:
                            row_sum = splat_f32(half_sums, ((row + r) * groups + g) * 2 + part)
                        total = fma(to_f32(finish_u8(dot[r, v])), scale * row_scale, acc[r, v])
                        acc[r, v] = fma(minimum, row_sum, total)
        for r in range(rows):
            for v in range(vectors):
                store_f32(out, at + r * stride + v * 16, acc[r, v])

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


tile_u4_big = make_tile_u4(BIG_ROWS, BIG_VECTORS)
tile_u4_small = make_tile_u4(SMALL_ROWS, SMALL_VECTORS)
tile_u4_single = make_tile_u4(1, SINGLE_VECTORS)
tile_u8_big = make_tile_u8(BIG_ROWS, BIG_VECTORS)
tile_u8_small = make_tile_u8(SMALL_ROWS, SMALL_VECTORS)
tile_u8_single = make_tile_u8(1, SINGLE_VECTORS)
tile_float_big = make_tile_float(FLOAT_ROWS, FLOAT_VECTORS)
tile_float_single = make_tile_float(1, SINGLE_VECTORS)


@kernel
def _chunk_u4(
    out: Floats,
    out_at: int,
    stride: int,
    codes: Ints,
    scales: Floats,
    sums: Floats,
    row: int,
    stop: int,
    arena: Ints,
    d: Ints,
    block: int,
) -> None:
    """Rows ``row`` to ``stop`` - 1 of four blocks of outputs; rows past the last are scratch."""
    if stop - row == 1:
        at = row * stride + out_at
        tile_u4_single(out, at, stride, codes, scales, sums, row, arena, d, block)
        return
    for b in range(0, CHUNK // BLOCK, BIG_VECTORS):
        m = row
        while stop - m > SMALL_ROWS:
            at = m * stride + out_at + b * BLOCK
            tile_u4_big(out, at, stride, codes, scales, sums, m, arena, d, block + b)
            m += BIG_ROWS
        if m < stop:
            at = m * stride + out_at + b * BLOCK
            tile_u4_small(out, at, stride, codes, scales, sums, m, arena, d, block + b)


@kernel
def _chunk_u8(
    out: Floats,
    out_at: int,
    stride: int,
    codes: Ints,
    scales: Floats,
    sums: Floats,
    half_sums: Floats,
    row: int,
    stop: int,
    arena: Ints,
    d: Ints,
    block: int,
) -> None:
    """As `_chunk_u4`."""
    if stop - row == 1:
        at = row * stride + out_at
        tile_u8_single(out, at, stride, codes, scales, sums, half_sums, row, arena, d, block)
        return
    for b in range(0, CHUNK // BLOCK, BIG_VECTORS):
        m = row
        while stop - m > SMALL_ROWS:
            at = m * stride + out_at + b * BLOCK
            tile_u8_big(out, at, stride, codes, scales, sums, half_sums, m, arena, d, block + b)
            m += BIG_ROWS
        if m < stop:
            at = m * stride + out_at + b * BLOCK
            tile_u8_small(out, at, stride, codes, scales, sums, half_sums, m, arena, d, block + b)


@kernel
def _widen(panel: Floats, arena: Ints, d: Ints, block: int, first: int, count: int) -> None:
    """Four blocks' weights of some k's as float32: panel [4, K_CHUNK, 16]."""
    kind, columns = d[KIND], d[COLUMNS]
    for v in range(CHUNK // BLOCK):
        source = ((block + v) * columns + first) * 16
        for k in range(count):
            place = source + k * 16
            if kind == F16:
                w = load_f16(arena, d[CODES] + place * 2)
            elif kind == BF16:
                w = load_bf16(arena, d[CODES] + place * 2)
            else:
                w = load_f32(arena, d[CODES] + place * 4)
            store_f32(panel, (v * K_CHUNK + k) * 16, w)


@kernel
def _chunk_float(
    out: Floats,
    out_at: int,
    stride: int,
    x: Floats,
    x_stride: int,
    row: int,
    stop: int,
    arena: Ints,
    d: Ints,
    block: int,
    panel: Floats,
) -> None:
    """As `_chunk_u4`, of float32 rows."""
    columns = d[COLUMNS]
    for first in range(0, columns, K_CHUNK):
        count = min(K_CHUNK, columns - first)
        _widen(panel, arena, d, block, first, count)
        if stop - row == 1:
            at = row * stride + out_at
            tile_float_single(out, at, stride, x, row * x_stride, x_stride, panel, 0, first, count)
            continue
        for b in range(0, CHUNK // BLOCK, FLOAT_VECTORS):
            for m in range(row, stop, FLOAT_ROWS):
                at = m * stride + out_at + b * BLOCK
                panel_at = b * K_CHUNK * 16
                tile_float_big(
                    out, at, stride, x, m * x_stride, x_stride, panel, panel_at, first, count
                )


@kernel
def _add_bias(
    out: Floats, out_at: int, stride: int, row: int, stop: int, biases: Floats, bias: int
) -> None:
    for m in range(row, stop):
        for v in range(0, CHUNK, 16):
            at = m * stride + out_at + v
            store_f32(out, at, load_f32(out, at) + load_f32(biases, bias + v))


@kernel
def matmul(
    sync: Ints,
    out: Floats,
    stride: int,
    x: Floats,
    x_stride: int,
    codes: Ints,
    scales: Floats,
    sums: Floats,
    half_sums: Floats,
    num_rows: int,
    arena: Ints,
    biases: Floats,
    matrices: Ints,
    first: int,
    count: int,
    panel: Floats,
) -> None:
    """Multiply rows with the matrices ``first`` to ``first + count`` - 1: this thread's part.

    An item is 64 outputs of up to 128 rows. ``x`` [., x_stride] are the rows in float32; codes,
    scales and sums are the same rows quantised (`elementwise.quantise_row`).
    """
    panels = (num_rows + PANEL_ROWS - 1) // PANEL_ROWS
    item = claim(sync)
    before = 0
    for index in range(first, first + count):
        d = matrices[index]
        chunks = d[PADDED_ROWS] // CHUNK
        while item < before + panels * chunks:
            row = (item - before) // chunks * PANEL_ROWS
            chunk = (item - before) % chunks
            stop = min(num_rows, row + PANEL_ROWS)
            block = chunk * (CHUNK // BLOCK)
            out_at = d[OUT_AT] + chunk * CHUNK
            if d[KIND] == U4:
                _chunk_u4(out, out_at, stride, codes, scales, sums, row, stop, arena, d, block)
            elif d[KIND] == U8:
                _chunk_u8(
                    out, out_at, stride, codes, scales, sums, half_sums, row, stop, arena, d, block
                )
            else:
                _chunk_float(out, out_at, stride, x, x_stride, row, stop, arena, d, block, panel)
            if d[BIAS] >= 0:
                _add_bias(out, out_at, stride, row, stop, biases, d[BIAS] + chunk * CHUNK)
            item = claim(sync)
        before += panels * chunks
