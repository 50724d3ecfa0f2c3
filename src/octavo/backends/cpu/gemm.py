"""Matrix products: rows times packed matrices, shared out as tiles; any number of rows.

The tiles (`tiles.py`) do the arithmetic. A tile may compute rows past the last: their room is
there, and what comes out is never read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo.backends.cpu import plan as p
from octavo.backends.cpu import tiles as t
from octavo.backends.cpu.layout import BIG_ROWS, CHUNK, K_CHUNK, LANES, PANEL_ROWS
from octavo.backends.cpu.simd import (
    Floats,
    Ints,
    fetch_near,
    fetch_to_write,
    kernel,
    load_bf16,
    load_f16,
    load_f32,
    store_f32,
)
from octavo.backends.cpu.team import claim

if TYPE_CHECKING:
    from octavo.backends.cpu.arrays import Codes, Weights


def make_chunk(single: Any, big: Any, small: Any) -> Any:
    """Return the function for rows ``row`` to ``stop`` - 1 of four blocks of outputs.

    Between the tiles of several rows it fetches what lies ``ahead`` in the arena, as much as these
    four blocks have: computing would hide the memory's time, but the hardware does not see so far.
    """

    @kernel
    def chunk(
        out: Floats,
        out_at: int,
        stride: int,
        x: Codes,
        row: int,
        stop: int,
        arena: Ints,
        d: Ints,
        block: int,
        ahead: int,
    ) -> None:
        if stop - row == 1:  # the memory is busy with this one stream
            single(out, row * stride + out_at, stride, x, row, arena, d, block)
            return
        size = d[p.COLUMNS] // 32 * d[p.RECORD]
        num_tiles = (stop - row + BIG_ROWS - 1) // BIG_ROWS * (CHUNK // LANES // t.BIG_VECTORS)
        share = (size // num_tiles + 63) // 64 * 64
        for b in range(0, CHUNK // LANES, t.BIG_VECTORS):
            at = out_at + b * LANES
            m = row
            while m < stop:
                for line in range(ahead, ahead + share, 64):
                    fetch_near(arena, line)
                ahead += share
                for r in range(min(stop - m, BIG_ROWS)):
                    for v in range(t.BIG_VECTORS):
                        fetch_to_write(out, (m + r) * stride + at + v * LANES)
                if stop - m > t.SMALL_ROWS:
                    big(out, m * stride + at, stride, x, m, arena, d, block + b)
                else:
                    small(out, m * stride + at, stride, x, m, arena, d, block + b)
                m += BIG_ROWS

    return chunk


_chunk_u4 = make_chunk(t.tile_u4_single, t.tile_u4_big, t.tile_u4_small)
# A tile is a second of compiling: for so rare a format the large one serves few rows too.
_chunk_iq4 = make_chunk(t.tile_iq4_single, t.tile_iq4_big, t.tile_iq4_big)
_chunk_u8 = make_chunk(t.tile_u8_single, t.tile_u8_big, t.tile_u8_small)


@kernel
def _widen(panel: Floats, arena: Ints, d: Ints, block: int, first: int, count: int) -> None:
    """Four blocks' weights of some k's as float32: panel [4, K_CHUNK, 16]."""
    kind, columns = d[p.KIND], d[p.COLUMNS]
    record = d[p.PLACE] + (block // t.ABREAST * columns + first) * d[p.RECORD]
    for k in range(count):
        for v in range(t.ABREAST):
            if kind == p.F16:
                w = load_f16(arena, record + v * 32)
            elif kind == p.BF16:
                w = load_bf16(arena, record + v * 32)
            else:
                w = load_f32(arena, record + v * 64)
            store_f32(panel, (v * K_CHUNK + k) * 16, w)
        record += d[p.RECORD]


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
    """As `make_chunk`'s, of float32 rows."""
    columns = d[p.COLUMNS]
    for first in range(0, columns, K_CHUNK):
        count = min(K_CHUNK, columns - first)
        _widen(panel, arena, d, block, first, count)
        if stop - row == 1:
            at = row * stride + out_at
            t.tile_float_single(
                out, at, stride, x, row * x_stride, x_stride, panel, 0, first, count
            )
            continue
        for b in range(0, CHUNK // LANES, t.FLOAT_VECTORS):
            for m in range(row, stop, t.FLOAT_ROWS):
                at = m * stride + out_at + b * LANES
                panel_at = b * K_CHUNK * 16
                t.tile_float_big(
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
def multiply_chunk(
    out: Floats,
    out_at: int,
    stride: int,
    y: Floats,
    y_stride: int,
    x: Codes,
    row: int,
    stop: int,
    w: Weights,
    index: int,
    chunk: int,
    ahead: int,
    panel: Floats,
) -> None:
    """Multiply rows ``row`` to ``stop`` - 1 with 64 outputs of matrix ``index``.

    Row m's go to ``out`` from m * ``stride`` + ``out_at`` on. ``y`` [., y_stride] are the rows in
    float32, ``x`` the same rows quantised. ``ahead`` in the arena lies what
    this thread will read next, as far as one can know.
    """
    d = w.matrices[index]
    block = chunk * (CHUNK // LANES)
    if d[p.KIND] == p.U4:
        _chunk_u4(out, out_at, stride, x, row, stop, w.arena, d, block, ahead)
    elif d[p.KIND] == p.IQ4:
        _chunk_iq4(out, out_at, stride, x, row, stop, w.arena, d, block, ahead)
    elif d[p.KIND] == p.U8:
        _chunk_u8(out, out_at, stride, x, row, stop, w.arena, d, block, ahead)
    else:
        _chunk_float(out, out_at, stride, y, y_stride, row, stop, w.arena, d, block, panel)
    if d[p.BIAS] >= 0:
        _add_bias(out, out_at, stride, row, stop, w.floats, d[p.BIAS] + chunk * CHUNK)


@kernel
def chunk_place(d: Ints, chunk: int) -> Any:
    """Where a matrix's ``chunk``-th 64 outputs begin in the arena."""
    return d[p.PLACE] + chunk * (d[p.COLUMNS] // 32) * d[p.RECORD]


@kernel
def matmul(
    sync: Ints,
    num_threads: int,
    out: Floats,
    stride: int,
    y: Floats,
    y_stride: int,
    x: Codes,
    num_rows: int,
    w: Weights,
    first: int,
    count: int,
    panel: Floats,
) -> None:
    """Multiply rows with the matrices ``first`` to ``first + count`` - 1: this thread's part.

    An item is 64 outputs of up to 128 rows.
    """
    panels = (num_rows + PANEL_ROWS - 1) // PANEL_ROWS
    item = claim(sync)
    before = 0
    for index in range(first, first + count):
        d = w.matrices[index]
        chunks = d[p.PADDED_ROWS] // CHUNK
        while item < before + panels * chunks:
            row = (item - before) // chunks * PANEL_ROWS
            chunk = (item - before) % chunks
            stop = min(num_rows, row + PANEL_ROWS)
            out_at = d[p.OUT_AT] + chunk * CHUNK
            # The others take the chunks between.
            ahead = chunk_place(d, chunk + num_threads)
            multiply_chunk(
                out, out_at, stride, y, y_stride, x, row, stop, w, index, chunk, ahead, panel
            )
            item = claim(sync)
        before += panels * chunks
