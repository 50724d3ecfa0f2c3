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

from octavo.backends.cpu.layout import BLOCK, MAX_ROWS, SEGMENT, SEGMENT_CHUNK, TILE_ROWS
from octavo.backends.cpu.machine import HAS_AVX512
from octavo.backends.cpu.simd import (
    INT_ZERO,
    exp,
    fetch,
    fma,
    inlined,
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

ABREAST = (4, 2) if HAS_AVX512 else (2, 1)
"""What `make_segment` is told for each of them: all sums lie in registers."""

_NOTHING, _ZERO, _ONE = np.float32(-1e30), np.float32(0), np.float32(1)


# A state: m [MAX_ROWS * 16, the first MAX_ROWS used], l [MAX_ROWS, 16], o [MAX_ROWS, head_dim].
L_AT, O_AT = MAX_ROWS * 16, MAX_ROWS * 32


class Blocks(NamedTuple):
    """Where one sequence's tokens lie, of one layer and KV head."""

    keys: Ints
    values: Ints
    base: int  # the head's first place in both
    tables: Ints
    table_at: int


@inlined
def place_of(blocks: Blocks, number: int, head_dim: int) -> Any:
    """Where the keys, and the values, of a sequence's ``number``-th block begin."""
    return blocks.base + blocks.tables[blocks.table_at + number] * head_dim * BLOCK


class Tile(NamedTuple):
    """A thread's room for a tile."""

    q: Floats  # [head_dim, rows]
    s: Floats  # [rows, 64]
    limit: Ints  # row r sees the tokens low[r] .. limit[r] - 1
    low: Ints
    total: Floats  # two states
    part: Floats


def make_segment(rows: int, abreast: int) -> Any:
    """Return the function that attends ``rows`` rows over a part of one segment.

    ``abreast``: so many blocks' scores, and vectors of a value, are in registers at a time.
    """
    fetches = rows == TILE_ROWS[0]

    @kernel
    def segment(
        tile: Tile, blocks: Blocks, head_dim: int, first: int, stop: int, state: Floats, at: int
    ) -> None:
        limit, low = tile.limit, tile.low
        end = min(stop, limit[rows - 1])
        begin = max(first, low[0] // SEGMENT_CHUNK * SEGMENT_CHUNK)
        for r in range(rows):
            state[at + r] = _NOTHING
            store_f32(state, at + L_AT + r * 16, zero_f32())
            for d in range(0, head_dim, 16):
                store_f32(state, at + O_AT + r * head_dim + d, zero_f32())
        for chunk in range(begin, end, SEGMENT_CHUNK):
            block0 = max(low[0] - chunk, 0) // BLOCK
            block1 = min(SEGMENT_CHUNK // BLOCK, (end - chunk + BLOCK - 1) // BLOCK)
            score(tile, blocks, head_dim, chunk, block0, block1)
            for r in range(rows):
                if chunk < limit[r] and low[r] < chunk + SEGMENT_CHUNK:
                    _soften(
                        tile.s, r * SEGMENT_CHUNK, limit[r] - chunk, low[r] - chunk, state, at, r,
                        head_dim,
                    )  # fmt: skip
            # Blocks that every row sees whole lie in the middle.
            whole0 = min(block1, max(block0, (low[rows - 1] - chunk + BLOCK - 1) // BLOCK))
            whole1 = max(whole0, min(block1, (limit[0] - chunk) // BLOCK))
            for b in range(block0, whole0):
                _add_values_seen(rows, tile, blocks, head_dim, chunk, b, state, at)
            if whole0 < whole1:
                add_values(tile, blocks, head_dim, chunk, whole0, whole1, end, state, at)
            for b in range(whole1, block1):
                _add_values_seen(rows, tile, blocks, head_dim, chunk, b, state, at)

    @kernel
    def score(
        tile: Tile, blocks: Blocks, head_dim: int, chunk: int, block0: int, block1: int
    ) -> None:
        # What is past block1 - 1 is computed again, and masked for every row.
        for b in range(block0, block1, abreast):
            acc = regs_f32(rows, abreast)
            for d in range(head_dim):
                k = regs_f32(1, abreast)
                for n in range(abreast):
                    number = chunk // BLOCK + min(b + n, block1 - 1)
                    place = place_of(blocks, number, head_dim) + d * 16
                    k[0, n] = load_f16(blocks.keys, place)
                    if fetches:
                        fetch(blocks.values, place)
                for r in range(rows):
                    q = splat_f32(tile.q, d * rows + r)
                    for n in range(abreast):
                        acc[r, n] = fma(q, k[0, n], acc[r, n])
            for r in range(rows):
                for n in range(abreast):
                    store_f32(tile.s, r * SEGMENT_CHUNK + (b + n) * BLOCK, acc[r, n])

    @kernel
    def add_values(
        tile: Tile, blocks: Blocks, head_dim: int, chunk: int, block0: int, block1: int, end: int,
        state: Floats, at: int,
    ) -> None:  # fmt: skip
        # A head's last vectors may be computed twice, to the same bits.
        last = head_dim - 16
        for d in range(0, head_dim, abreast * 16):
            total = regs_f32(rows, abreast)
            for r in range(rows):
                for n in range(abreast):
                    place = at + O_AT + r * head_dim + min(d + n * 16, last)
                    total[r, n] = load_f32(state, place)
            for b in range(block0, block1):
                place = after = place_of(blocks, chunk // BLOCK + b, head_dim)
                if fetches:
                    number = min(chunk + SEGMENT_CHUNK + b * BLOCK, end - 1) // BLOCK
                    after = place_of(blocks, number, head_dim)
                for t in range(BLOCK):
                    v = regs_f32(1, abreast)
                    for n in range(abreast):
                        column = t * head_dim + min(d + n * 16, last)
                        v[0, n] = load_f16(blocks.values, place + column)
                        if fetches:
                            fetch(blocks.keys, after + column)
                    for r in range(rows):
                        p = splat_f32(tile.s, r * SEGMENT_CHUNK + b * BLOCK + t)
                        for n in range(abreast):
                            total[r, n] = fma(p, v[0, n], total[r, n])
            for r in range(rows):
                for n in range(abreast):
                    place = at + O_AT + r * head_dim + min(d + n * 16, last)
                    store_f32(state, place, total[r, n])

    return segment


@kernel
def _add_values_seen(
    rows: int, tile: Tile, blocks: Blocks, head_dim: int, chunk: int, b: int, state: Floats, at: int
) -> None:
    """Add a block's values that each row sees to its state."""
    place = place_of(blocks, chunk // BLOCK + b, head_dim)
    t0 = chunk + b * BLOCK
    for r in range(rows):
        first, stop = max(tile.low[r] - t0, 0), min(BLOCK, tile.limit[r] - t0)
        for d in range(0, head_dim, 16):
            total = load_f32(state, at + O_AT + r * head_dim + d)
            for t in range(first, stop):
                p = splat_f32(tile.s, r * SEGMENT_CHUNK + b * BLOCK + t)
                total = fma(p, load_f16(blocks.values, place + t * head_dim + d), total)
            store_f32(state, at + O_AT + r * head_dim + d, total)


@kernel
def _soften(
    s: Floats, s_at: int, limit: int, low: int, state: Floats, at: int, r: int, head_dim: int
) -> None:
    """Turn a row's 64 scores into weights, and rescale its state to the new maximum.

    Scores from ``low`` to ``limit`` - 1 count; the others' weights are 0, whatever they hold.
    """
    scores = regs_f32(1, 4)
    sees_all = low <= 0 and limit >= SEGMENT_CHUNK
    for c in range(4):
        scores[0, c] = load_f32(s, s_at + c * 16)
    if not sees_all:
        for c in range(4):
            seen = keep_below(scores[0, c], limit - c * 16, _NOTHING)
            scores[0, c] = keep_from(seen, low - c * 16, _NOTHING)
    most = larger(larger(scores[0, 0], scores[0, 1]), larger(scores[0, 2], scores[0, 3]))
    old = state[at + r]
    new = max(old, max_lanes(most))
    state[at + r] = new
    for c in range(4):
        scores[0, c] = exp(scores[0, c] - splat(new))
    if not sees_all:
        for c in range(4):
            p = keep_below(scores[0, c], limit - c * 16, _ZERO)
            scores[0, c] = keep_from(p, low - c * 16, _ZERO)
    for c in range(4):
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


segment_few = make_segment(TILE_ROWS[0], ABREAST[0])
segment_many = make_segment(TILE_ROWS[1], ABREAST[1])
FEW_ROWS = TILE_ROWS[0]


@kernel
def tile_rows(count: int) -> int:
    """Return the smallest tile for ``count`` rows."""
    return FEW_ROWS if count <= FEW_ROWS else MAX_ROWS


@kernel
def attend_segment(
    rows: int, tile: Tile, blocks: Blocks, head_dim: int, first: int, state: Floats, at: int
) -> None:
    """Attend a tile over the segment that begins at ``first``, into a fresh state."""
    stop = first + SEGMENT
    if rows == FEW_ROWS:
        segment_few(tile, blocks, head_dim, first, stop, state, at)
    else:
        segment_many(tile, blocks, head_dim, first, stop, state, at)


@kernel
def fetch_keys(blocks: Blocks, head_dim: int, first: int, stop: int) -> None:
    """Ask for the first chunk of keys of the segment from ``first`` on, tokens below ``stop``."""
    for number in range(first // BLOCK, min(first + SEGMENT_CHUNK, stop + BLOCK - 1) // BLOCK):
        place = place_of(blocks, number, head_dim)
        for i in range(0, head_dim * BLOCK, 32):  # 64 bytes
            fetch(blocks.keys, place + i)


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
        attend_segment(rows, tile, blocks, head_dim, first, tile.part, INT_ZERO)
        merge(rows, tile, head_dim, first, tile.part, INT_ZERO)
