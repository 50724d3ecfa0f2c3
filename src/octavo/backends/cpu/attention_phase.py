"""Attention as a phase of the step: which tiles there are, who takes them, how parts are merged.

The longest tiles come first, so that no thread begins a long one when the others are done. Where
there are fewer tiles than threads could use, the segments of a tile are items of their own, and a
second phase merges them: in ascending order, by the formula that one thread uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from octavo.backends.cpu import plan as p
from octavo.backends.cpu.attention import (
    L_AT,
    O_AT,
    Blocks,
    Tile,
    attend_segment,
    attend_tile,
    fetch_keys,
    merge,
    tile_rows,
)
from octavo.backends.cpu.layout import BLOCK, MAX_ROWS, SEGMENT, SEGMENT_CHUNK
from octavo.backends.cpu.simd import kernel, load_f32, splat, store_f32, sum_lanes
from octavo.backends.cpu.team import claim

if TYPE_CHECKING:
    from octavo.backends.cpu.arrays import Batch, Cache, Member, Plan, Room, Rows
    from octavo.backends.cpu.simd import Floats, Ints

_ONE = np.float32(1)


class Queries(NamedTuple):
    """The rows of a tile: row r of it is number i = first_row + r of a sequence and KV head.

    Number i is head ``head + i % group`` of the batch's token ``token + i // group``.
    """

    token: int
    head: int
    first_row: int
    num_rows: int
    group: int


@kernel
def pack_queries(
    rows: int, tile: Tile, queries: Queries, x: Floats, x_stride: int, head_dim: int,
    scale: float, position: int, window: int,
) -> None:  # fmt: skip
    """Gather a tile's queries, scaled, and what each row may see: the last one is repeated.

    ``position`` is that of the sequence's first token in the batch.
    """
    factor = np.float32(scale)
    for r in range(rows):
        i = queries.first_row + min(r, queries.num_rows - 1)
        token, head = i // queries.group, i % queries.group
        place = (queries.token + token) * x_stride + (queries.head + head) * head_dim
        for d in range(head_dim):
            tile.q[d * rows + r] = x[place + d] * factor
        tile.limit[r] = position + token + 1
        tile.low[r] = max(0, tile.limit[r] - window) if window > 0 else 0


@kernel
def write_rows(tile: Tile, queries: Queries, out: Floats, out_stride: int, head_dim: int) -> None:
    """Write o / l of a tile's rows where their heads lie in the rows of ``out``."""
    for r in range(queries.num_rows):
        i = queries.first_row + r
        token, head = i // queries.group, i % queries.group
        place = (queries.token + token) * out_stride + (queries.head + head) * head_dim
        inverse = splat(_ONE / sum_lanes(load_f32(tile.total, L_AT + r * 16)))
        for d in range(0, head_dim, 16):
            o = load_f32(tile.total, O_AT + r * head_dim + d)
            store_f32(out, place + d, o * inverse)


@kernel
def plan_attention(num_threads: int, model: Ints, batch: Batch, items: Ints) -> None:
    """List the step's attention items, the longest first; split segments if there are few."""
    group = model[p.HEADS] // model[p.KV_HEADS]
    num_seqs, starts = batch.job[p.NUM_SEQS], batch.starts
    num_tiles = 0
    for i in range(num_seqs):
        num_tiles += ((starts[i + 1] - starts[i]) * group + MAX_ROWS - 1) // MAX_ROWS
    is_split = num_threads > 1 and num_tiles * model[p.KV_HEADS] < 4 * num_threads
    count, parts = 0, 0
    for i in range(num_seqs - 1, -1, -1):
        rows = (starts[i + 1] - starts[i]) * group
        before = batch.lens[i] - (starts[i + 1] - starts[i])
        for tile in range((rows + MAX_ROWS - 1) // MAX_ROWS - 1, -1, -1):
            row = tile * MAX_ROWS
            num_rows = min(MAX_ROWS, rows - row)
            seen = before + (row + num_rows - 1) // group + 1
            segments = (seen + SEGMENT - 1) // SEGMENT if is_split else 1
            for segment in range(segments):
                items[count, p.ITEM_SEQ] = i
                items[count, p.ITEM_ROW] = row
                items[count, p.ITEM_ROWS] = num_rows
                items[count, p.ITEM_SEGMENT] = segment if segments > 1 else -1
                items[count, p.ITEM_PART] = parts
                items[count, p.ITEM_PARTS] = segments if segment == 0 and segments > 1 else 0
                count += 1
                parts += 1
    batch.job[p.NUM_ITEMS] = count
    batch.job[p.IS_SPLIT] = 1 if parts > num_tiles else 0


@kernel
def _tile_of(room: Room, head_dim: int) -> Tile:
    """A thread's scratch as a tile."""
    size = O_AT + MAX_ROWS * head_dim  # of a state
    s = room.scratch[MAX_ROWS * head_dim :]
    total = s[MAX_ROWS * SEGMENT_CHUNK :]
    return Tile(room.scratch, s, room.seen, room.seen[MAX_ROWS:], total, total[size:])


@kernel
def _queries_of(model: Ints, batch: Batch, item: Ints, kv_head: int) -> Queries:
    """The rows of an item."""
    group = model[p.HEADS] // model[p.KV_HEADS]
    start = batch.starts[item[p.ITEM_SEQ]]
    return Queries(start, kv_head * group, item[p.ITEM_ROW], item[p.ITEM_ROWS], group)


@kernel
def _pack(
    plan: Plan, layer: Ints, batch: Batch, wide: Floats, item: Ints, queries: Queries, tile: Tile
) -> int:
    """Gather an item's queries and what they see; return the tile's rows."""
    model, i = plan.model, item[p.ITEM_SEQ]
    before = batch.lens[i] - (batch.starts[i + 1] - batch.starts[i])
    rows = tile_rows(item[p.ITEM_ROWS])
    pack_queries(
        rows, tile, queries, wide, model[p.WIDE_STRIDE], model[p.HEAD_DIM],
        plan.reals[p.ATTENTION_SCALE], before, layer[p.WINDOW],
    )  # fmt: skip
    return rows


@kernel
def _blocks_of(plan: Plan, at: int, batch: Batch, cache: Cache, item: Ints, kv_head: int) -> Blocks:
    """Where an item's keys and values lie."""
    model = plan.model
    base = (at * model[p.KV_HEADS] + kv_head) * model[p.NUM_BLOCKS] * model[p.HEAD_DIM] * BLOCK
    table_at = item[p.ITEM_SEQ] * batch.job[p.TABLE_WIDTH]
    return Blocks(cache.keys, cache.values, base, batch.tables, table_at)


@kernel
def _fetch_item(plan: Plan, at: int, batch: Batch, cache: Cache, room: Room, number: int) -> None:
    """Ask for the first keys of an item that this thread may well take next."""
    model = plan.model
    if number >= batch.job[p.NUM_ITEMS] * model[p.KV_HEADS]:
        return
    item, kv_head = room.items[number // model[p.KV_HEADS]], number % model[p.KV_HEADS]
    blocks = _blocks_of(plan, at, batch, cache, item, kv_head)
    stop = batch.lens[item[p.ITEM_SEQ]]
    first = max(item[p.ITEM_SEGMENT], 0) * SEGMENT
    if plan.layers[at, p.WINDOW] == 0:  # where there is a window, its first block is another one
        fetch_keys(blocks, model[p.HEAD_DIM], first, stop)


@kernel
def attend(
    me: Member, plan: Plan, at: int, batch: Batch, cache: Cache, rows: Rows, room: Room
) -> None:
    """Attend layer ``at``'s items: from q in ``wide`` and the cache to ``y``, or a part's state."""
    model = plan.model
    kv_heads, head_dim, stride = model[p.KV_HEADS], model[p.HEAD_DIM], model[p.Y_STRIDE]
    size = O_AT + MAX_ROWS * head_dim  # of a state
    tile = _tile_of(room, head_dim)
    number = claim(me.sync)
    while number < batch.job[p.NUM_ITEMS] * kv_heads:
        item, kv_head = room.items[number // kv_heads], number % kv_heads
        queries = _queries_of(model, batch, item, kv_head)
        n = _pack(plan, plan.layers[at], batch, rows.wide, item, queries, tile)
        if n < MAX_ROWS:
            _fetch_item(plan, at, batch, cache, room, number + me.num_threads)
        blocks = _blocks_of(plan, at, batch, cache, item, kv_head)
        if item[p.ITEM_SEGMENT] >= 0:
            place = (item[p.ITEM_PART] * kv_heads + kv_head) * size
            first = item[p.ITEM_SEGMENT] * SEGMENT
            attend_segment(n, tile, blocks, head_dim, first, room.parts, place)
        else:
            attend_tile(n, tile, blocks, head_dim)
            write_rows(tile, queries, rows.y, stride, head_dim)
        number = claim(me.sync)


@kernel
def merge_parts(sync: Ints, plan: Plan, at: int, batch: Batch, rows: Rows, room: Room) -> None:
    """Merge the segments of the tiles that were split, in ascending order."""
    model = plan.model
    kv_heads, head_dim, stride = model[p.KV_HEADS], model[p.HEAD_DIM], model[p.Y_STRIDE]
    size = O_AT + MAX_ROWS * head_dim  # of a state
    tile = _tile_of(room, head_dim)
    number = claim(sync)
    while number < batch.job[p.NUM_ITEMS] * kv_heads:
        item, kv_head = room.items[number // kv_heads], number % kv_heads
        if item[p.ITEM_PARTS] > 0:
            queries = _queries_of(model, batch, item, kv_head)
            n = _pack(plan, plan.layers[at], batch, rows.wide, item, queries, tile)
            for segment in range(item[p.ITEM_PARTS]):
                place = ((item[p.ITEM_PART] + segment) * kv_heads + kv_head) * size
                merge(n, tile, head_dim, segment * SEGMENT, room.parts, place)
            write_rows(tile, queries, rows.y, stride, head_dim)
        number = claim(sync)
