"""The feed-forward part's first half as a phase: gate, up, activation and quantisation in one go.

An item is 64 columns of up to 128 rows. What gate and up give lies in a thread's own scratch, so it
is activated and quantised while it is in the second-level cache, and never written to memory: of a
row of 1,536 columns one byte each leaves instead of eight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo.backends.cpu import plan as p
from octavo.backends.cpu.arrays import Codes
from octavo.backends.cpu.elementwise import gate_row, quantise_row
from octavo.backends.cpu.gemm import chunk_place, multiply_chunk
from octavo.backends.cpu.layout import (
    CHUNK,
    FEED_GROUPS,
    FEED_NUMBERS,
    FEED_NUMBERS_AT,
    GROUP_SIZE,
    PANEL_ROWS,
)
from octavo.backends.cpu.simd import INT_ZERO, inlined, kernel, load_f32, store_f32
from octavo.backends.cpu.team import claim
from octavo.backends.cpu.tiles import codes_stride, starts_at

if TYPE_CHECKING:
    from octavo.backends.cpu.arrays import Member, Plan, Room, Rows, Weights
    from octavo.backends.cpu.simd import Floats, Ints


@kernel
def feed(
    me: Member, plan: Plan, layer: Ints, w: Weights, num_tokens: int, rows: Rows, codes: Codes,
    inner: Codes, room: Room,
) -> None:  # fmt: skip
    """From the normalised rows to what the last product reads: ``inner``, or ``wide`` as floats."""
    columns = w.matrices[layer[p.DOWN], p.COLUMNS]
    chunks = (columns + CHUNK - 1) // CHUNK
    panels = (num_tokens + PANEL_ROWS - 1) // PANEL_ROWS
    item = claim(me.sync)
    while item < panels * chunks:
        row, chunk = item // chunks * PANEL_ROWS, item % chunks
        stop = min(num_tokens, row + PANEL_ROWS)
        _gate_and_up(plan, layer, w, row, stop, chunk, me.num_threads, rows, codes, room)
        scratch, gated = room.scratch, plan.model[p.GATED] != 0
        for r in range(stop - row):
            # To where earlier rows were: the columns of all rows lie one after another then.
            at = r * 2 * CHUNK
            gate_row(
                scratch, at if gated else -1, at + CHUNK, scratch, r * CHUNK, CHUNK,
                plan.model[p.ACTIVATION],
            )  # fmt: skip
        first, size = chunk * CHUNK, min(CHUNK, columns - chunk * CHUNK)
        if w.matrices[layer[p.DOWN], p.KIND] <= p.U8:
            down = w.matrices[layer[p.DOWN]]
            _quantise_columns(scratch, room.spare, row, stop, first, size, down, inner)
        else:
            for m in range(row, stop):
                for i in range(0, size, 16):
                    y = load_f32(scratch, (m - row) * CHUNK + i)
                    store_f32(rows.wide, m * plan.model[p.WIDE_STRIDE] + first + i, y)
        item = claim(me.sync)


@inlined
def _half(plan: Plan, layer: Ints, half: int, chunk: int) -> Any:
    """Return the matrix and its chunk that hold 64 columns of gate (half 0) or of up (half 1)."""
    if layer[p.FEED_COUNT] > 1:
        return layer[p.FEED] + half, chunk
    # One matrix holds both, gate first, if they are packed alike.
    return layer[p.FEED], chunk + half * plan.model[p.UP_AT] // CHUNK


@kernel
def _gate_and_up(
    plan: Plan, layer: Ints, w: Weights, row: int, stop: int, chunk: int, num_threads: int,
    rows: Rows, codes: Codes, room: Room,
) -> None:  # fmt: skip
    """Multiply rows with 64 columns of gate, if there is one, and of up, into scratch."""
    model = plan.model
    begin = 0 if model[p.GATED] != 0 else 1
    for half in range(begin, 2):
        index, at = _half(plan, layer, half, chunk)
        # Up follows gate; then comes the first chunk that the other threads do not take.
        next_half, next_chunk = 1, chunk
        if half == 1:
            next_half, next_chunk = begin, chunk + num_threads
        next_index, next_at = _half(plan, layer, next_half, next_chunk)
        ahead = chunk_place(w.matrices[next_index], next_at)
        out_at = half * CHUNK - row * 2 * CHUNK
        multiply_chunk(
            room.scratch, out_at, 2 * CHUNK, rows.y, model[p.Y_STRIDE], codes, row, stop, w, index,
            at, ahead, room.panel,
        )  # fmt: skip


@kernel
def _quantise_columns(
    scratch: Floats, spare: Ints, row: int, stop: int, first: int, size: int, down: Ints,
    inner: Codes,
) -> None:  # fmt: skip
    """Quantise columns ``first`` to ``first + size`` - 1 of all rows at once, for matrix ``down``.

    Only the numbers that it reads are moved: one by one, they take longer than to compute.
    """
    columns, parts = down[p.COLUMNS], down[p.PARTS]
    numbers = scratch[FEED_NUMBERS_AT:]
    here = Codes(
        spare, numbers, numbers[FEED_NUMBERS:], numbers[2 * FEED_NUMBERS :],
        numbers[4 * FEED_NUMBERS :],
    )  # fmt: skip
    quantise_row(scratch, INT_ZERO, (stop - row) * CHUNK, here, INT_ZERO, INT_ZERO)
    groups, groups_here = columns // GROUP_SIZE, (stop - row) * FEED_GROUPS
    count = size // GROUP_SIZE
    for m in range(row, stop):
        source = (m - row) * FEED_GROUPS
        target = m * groups + first // GROUP_SIZE
        place = m * codes_stride(columns) + first
        if size == CHUNK:
            # 64 bytes at once; what they mean is all the same to a load and a store.
            codes = load_f32(spare, source * GROUP_SIZE)
            store_f32(inner.codes, place, codes)
        else:
            for i in range(size):
                inner.codes[place + i] = spare[source * GROUP_SIZE + i]
        _move(here.scales, source, inner.scales, target, count)
        if down[p.MINIMA] == 0:
            at = m * groups * 4 + starts_at(down, groups) + first // GROUP_SIZE * parts
            at_here = starts_at(down, groups_here) + source * parts
            _move(here.starts, at_here, inner.starts, at, count * parts)
        elif parts == 1:
            _move(here.sums, source, inner.sums, target, count)
        else:
            _move(here.half_sums, 2 * source, inner.half_sums, 2 * target, 2 * count)


@inlined
def _move(source: Floats, at: int, target: Floats, target_at: int, count: int) -> None:
    for i in range(count):
        target[target_at + i] = source[at + i]
