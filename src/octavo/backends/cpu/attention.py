"""Paged attention: one arithmetic for prefill, decode and verification.

A tile is a few rows of one sequence and one KV head; a row is (query token, query head), the heads
of a token side by side, so that heads which share keys read them once. For each row, by itself:

    segments of 512 tokens, chunks of 64 in a segment, blocks of 16 in a chunk, at absolute places

    scores    s[t] = sum over d, ascending, of q[d] k[d, t]             sixteen t's are the lanes
    softmax   new = max(m, s); p = exp(s - new); l, o scaled by exp(m - new) where new > m
    values    o += p[t] v[t], t ascending
    merge     segments in ascending order, by the same rescaling: on one thread too

Scores a row may not see (later tokens, those before its window, stale slots) are selected out and
never multiplied, so whatever they hold changes nothing. Blocks before the first query's window
are not read: their place in the block table may be -1.

Keys lie [layer, kv_head, block, head_dim, 16], values [layer, kv_head, block, 16, head_dim], both
float16: a block's scores are one vector, and a head's blocks lie side by side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from octavo.backends.cpu.machine import HAS_AVX512
from octavo.backends.cpu.simd import (
    exp,
    fma,
    keep_below,
    keep_from,
    kernel,
    larger,
    load_f16,
    load_f32,
    max_lanes,
    regs_f32,
    splat,
    splat_f32,
    store_f32,
    zero_f32,
)

if TYPE_CHECKING:
    from octavo.backends.cpu.simd import Floats, Ints

SEGMENT, CHUNK, BLOCK = 512, 64, 16

TILE_ROWS = (1, 4, 8, 12) if HAS_AVX512 else (1, 2, 4, 6)
"""The numbers of rows for which there is a tile; a tile with fewer repeats its last row."""
MAX_ROWS = TILE_ROWS[-1]

_NOTHING, _ZERO, _ONE = np.float32(-1e30), np.float32(0), np.float32(1)


def state_size(head_dim: int) -> int:
    """Return the floats of a tile's running state: per row m, 16 partial sums of l, and o."""
    return MAX_ROWS * (16 + 16 + head_dim)


def scratch_size(head_dim: int) -> int:
    """Return the floats one thread needs: queries, scores, and two states."""
    return MAX_ROWS * (head_dim + CHUNK) + 2 * state_size(head_dim)


# A state: m [MAX_ROWS * 16, the first MAX_ROWS used], l [MAX_ROWS, 16], o [MAX_ROWS, head_dim].
L_AT, O_AT = MAX_ROWS * 16, MAX_ROWS * 32


class Blocks(NamedTuple):
    """Where one sequence's tokens lie, of one layer and KV head."""

    keys: Ints
    values: Ints
    base: int  # the head's first place in both
    tables: Ints
    table_at: int


class Tile(NamedTuple):
    """A thread's room for a tile."""

    q: Floats  # [head_dim, rows]
    s: Floats  # [rows, 64]
    limit: Ints  # row r sees the tokens low[r] .. limit[r] - 1
    low: Ints
    total: Floats  # two states
    part: Floats


def make_segment(rows: int) -> Any:
    """Return the function that attends ``rows`` rows over a part of one segment."""

    @kernel
    def segment(
        tile: Tile, blocks: Blocks, head_dim: int, first: int, stop: int, state: Floats, at: int
    ) -> None:
        q, s, limit, low = tile.q, tile.s, tile.limit, tile.low
        size = head_dim * BLOCK
        end = min(stop, limit[rows - 1])
        begin = max(first, low[0] // CHUNK * CHUNK)
        for r in range(rows):
            state[at + r] = _NOTHING
            store_f32(state, at + L_AT + r * 16, zero_f32())
            for d in range(0, head_dim, 16):
                store_f32(state, at + O_AT + r * head_dim + d, zero_f32())
        for chunk in range(begin, end, CHUNK):
            block0 = max(low[0] - chunk, 0) // BLOCK
            block1 = min(CHUNK // BLOCK, (end - chunk + BLOCK - 1) // BLOCK)
            for b in range(block0, block1):
                place = blocks.base + blocks.tables[blocks.table_at + chunk // BLOCK + b] * size
                acc = regs_f32(rows, 1)
                for d in range(head_dim):
                    k = load_f16(blocks.keys, place + d * 16)
                    for r in range(rows):
                        acc[r, 0] = fma(splat_f32(q, d * rows + r), k, acc[r, 0])
                for r in range(rows):
                    store_f32(s, r * CHUNK + b * BLOCK, acc[r, 0])
            for r in range(rows):
                if chunk < limit[r] and low[r] < chunk + CHUNK:
                    _soften(s, r * CHUNK, limit[r] - chunk, low[r] - chunk, state, at, r, head_dim)
            for d in range(0, head_dim, 16):
                total = regs_f32(rows, 1)
                for r in range(rows):
                    total[r, 0] = load_f32(state, at + O_AT + r * head_dim + d)
                for b in range(block0, block1):
                    place = (
                        blocks.base + blocks.tables[blocks.table_at + chunk // BLOCK + b] * size + d
                    )
                    t0 = chunk + b * BLOCK
                    if low[rows - 1] <= t0 and t0 + BLOCK <= limit[0]:
                        for t in range(BLOCK):
                            v = load_f16(blocks.values, place + t * head_dim)
                            for r in range(rows):
                                p = splat_f32(s, r * CHUNK + b * BLOCK + t)
                                total[r, 0] = fma(p, v, total[r, 0])
                    else:
                        for t in range(max(low[0] - t0, 0), min(BLOCK, end - t0)):
                            v = load_f16(blocks.values, place + t * head_dim)
                            for r in range(rows):
                                if low[r] <= t0 + t and t0 + t < limit[r]:
                                    p = splat_f32(s, r * CHUNK + b * BLOCK + t)
                                    total[r, 0] = fma(p, v, total[r, 0])
                for r in range(rows):
                    store_f32(state, at + O_AT + r * head_dim + d, total[r, 0])

    return segment


@kernel
def _soften(
    s: Floats, s_at: int, limit: int, low: int, state: Floats, at: int, r: int, head_dim: int
) -> None:
    """Turn a row's 64 scores into weights, and rescale its state to the new maximum.

    Scores from ``low`` to ``limit`` - 1 count; the others' weights are 0, whatever they hold.
    """
    scores = regs_f32(1, 4)
    for c in range(4):
        seen = keep_below(load_f32(s, s_at + c * 16), limit - c * 16, _NOTHING)
        scores[0, c] = keep_from(seen, low - c * 16, _NOTHING)
    most = larger(larger(scores[0, 0], scores[0, 1]), larger(scores[0, 2], scores[0, 3]))
    old = state[at + r]
    new = max(old, max_lanes(most))
    state[at + r] = new
    for c in range(4):
        p = keep_below(exp(scores[0, c] - splat(new)), limit - c * 16, _ZERO)
        scores[0, c] = keep_from(p, low - c * 16, _ZERO)
        store_f32(s, s_at + c * 16, scores[0, c])
    total = (scores[0, 0] + scores[0, 1]) + (scores[0, 2] + scores[0, 3])
    sums, outs = at + L_AT + r * 16, at + O_AT + r * head_dim
    if new != old:
        shrink = exp(splat(old - new))
        store_f32(state, sums, fma(load_f32(state, sums), shrink, total))
        for d in range(0, head_dim, 16):
            store_f32(state, outs + d, load_f32(state, outs + d) * shrink)
    else:
        store_f32(state, sums, load_f32(state, sums) + total)


segment_a = make_segment(TILE_ROWS[0])
segment_b = make_segment(TILE_ROWS[1])
segment_c = make_segment(TILE_ROWS[2])
segment_d = make_segment(TILE_ROWS[3])
ROWS_A, ROWS_B, ROWS_C, ROWS_D = TILE_ROWS


@kernel
def tile_rows(count: int) -> int:
    """Return the smallest tile for ``count`` rows."""
    if count <= ROWS_A:
        return ROWS_A
    if count <= ROWS_B:
        return ROWS_B
    return ROWS_C if count <= ROWS_C else ROWS_D


@kernel
def attend_segment(
    rows: int, tile: Tile, blocks: Blocks, head_dim: int, first: int, state: Floats, at: int
) -> None:
    """Attend a tile over the segment that begins at ``first``, into a fresh state."""
    stop = first + SEGMENT
    if rows == ROWS_A:
        segment_a(tile, blocks, head_dim, first, stop, state, at)
    elif rows == ROWS_B:
        segment_b(tile, blocks, head_dim, first, stop, state, at)
    elif rows == ROWS_C:
        segment_c(tile, blocks, head_dim, first, stop, state, at)
    else:
        segment_d(tile, blocks, head_dim, first, stop, state, at)


@kernel
def merge(rows: int, tile: Tile, head_dim: int, first: int, part: Floats, part_at: int) -> None:
    """Fold the state of the segment at ``first`` into the running total, row by row.

    A segment that a row sees nothing of changes nothing; the first that it sees is taken over.
    """
    limit, low, total = tile.limit, tile.low, tile.total
    for r in range(rows):
        if limit[r] <= first or low[r] >= first + SEGMENT:
            continue
        sums, outs = L_AT + r * 16, O_AT + r * head_dim
        if low[r] >= first:
            total[r] = part[part_at + r]
            store_f32(total, sums, load_f32(part, part_at + sums))
            for d in range(outs, outs + head_dim, 16):
                store_f32(total, d, load_f32(part, part_at + d))
            continue
        old, other = total[r], part[part_at + r]
        new = max(old, other)
        a, b = exp(splat(old - new)), exp(splat(other - new))
        total[r] = new
        both = fma(load_f32(total, sums), a, load_f32(part, part_at + sums) * b)
        store_f32(total, sums, both)
        for d in range(outs, outs + head_dim, 16):
            both = fma(load_f32(total, d), a, load_f32(part, part_at + d) * b)
            store_f32(total, d, both)


@kernel
def attend_tile(rows: int, tile: Tile, blocks: Blocks, head_dim: int) -> None:
    """Attend a tile over all that it sees: its segments in ascending order, into its ``total``."""
    begin = tile.low[0] // SEGMENT * SEGMENT
    for first in range(begin, tile.limit[rows - 1], SEGMENT):
        attend_segment(rows, tile, blocks, head_dim, first, tile.part, 0)
        merge(rows, tile, head_dim, first, tile.part, 0)
