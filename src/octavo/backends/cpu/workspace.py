"""The arrays of a step: the batch as the team reads it, and the room it works in.

A workspace holds batches up to a size; a larger batch gets a larger workspace, and a new team with
it, for the threads hold on to the arrays they were started with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.backends.cpu import plan as p
from octavo.backends.cpu.layout import (
    BIG_ROWS,
    CHUNK,
    FEED_SCRATCH_SIZE,
    FEED_SPARE_SIZE,
    K_CHUNK,
    MAX_ROWS,
    SEGMENT,
    new_sync,
    scratch_size,
    state_size,
)
from octavo.backends.cpu.packing import aligned, padded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from octavo.backends.base import InputBatch
    from octavo.backends.cpu.weights import PackedModel

    Ints64 = NDArray[np.int64]
    Ints32 = NDArray[np.int32]
    Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Size:
    """What a batch needs room for."""

    tokens: int
    seqs: int
    rows: int
    """Of logits."""
    table: int
    """Entries of all block tables."""
    segments: int
    """Of the longest sequence."""

    @classmethod
    def of(cls, batch: InputBatch | None) -> _Size:
        if batch is None:
            return cls(0, 0, 0, 0, 0)
        longest = int(batch.seq_lens.max())
        return cls(
            max(batch.num_tokens, len(batch.logits_indices)),
            batch.num_seqs,
            len(batch.logits_indices),
            batch.block_tables.size,
            -(-longest // SEGMENT),
        )

    def within(self, other: _Size) -> bool:
        return (
            self.tokens <= other.tokens
            and self.seqs <= other.seqs
            and self.rows <= other.rows
            and self.table <= other.table
            and self.segments <= other.segments
        )

    def grown(self, before: _Size | None) -> _Size:
        """Return this size rounded up, and nowhere less than ``before``."""
        least = before or _Size(0, 0, 0, 0, 0)
        return _Size(
            max(1 << (max(self.tokens, 16) - 1).bit_length(), least.tokens),
            max(1 << (max(self.seqs, 8) - 1).bit_length(), least.seqs),
            max(1 << (max(self.rows, 8) - 1).bit_length(), least.rows),
            max(1 << (max(self.table, 256) - 1).bit_length(), least.table),
            max(1 << (max(self.segments, 4) - 1).bit_length(), least.segments),
        )


@dataclass(slots=True)
class Workspace:
    """See `arrays.py` for what each array is to the step."""

    size: _Size
    sync: Ints64
    job: Ints64
    ids: Ints32
    positions: Ints32
    slots: Ints32
    starts: Ints32
    lens: Ints32
    tables: Ints32
    wanted: Ints32
    x: Array  # [tokens, X_STRIDE]
    h: Array
    wide: Array  # [tokens, WIDE_STRIDE]
    y: Array  # [tokens, Y_STRIDE]
    codes: NDArray[np.int8]  # [tokens, codes_stride(K)] of whichever matrix is next
    scales: Array  # [tokens, K / 32]
    sums: Array  # [tokens, K / 32]
    half_sums: Array  # [tokens, K / 16]
    row_starts: Array  # [tokens, 4 * K / 32]
    inner_codes: NDArray[np.int8]  # the same of what the last product of a layer reads
    inner_scales: Array
    inner_sums: Array
    inner_half_sums: Array
    inner_row_starts: Array
    logits: Array  # [rows, LOGITS_STRIDE]
    items: Ints64  # [items, ITEM_SIZE]
    parts: Array
    scratches: Array  # [num_threads, .]
    panels: Array  # [num_threads, 4 * K_CHUNK * 16]
    seens: Ints64  # [num_threads, 2 * MAX_ROWS]
    spares: NDArray[np.int8]  # [num_threads, FEED_SPARE_SIZE]
    stride: int
    """Of a row of logits."""

    @classmethod
    def for_batch(
        cls,
        packed: PackedModel,
        batch: InputBatch | None,
        num_threads: int,
        before: Workspace | None,
    ) -> Workspace:
        """Return a workspace for ``batch``, if any, and for all that ``before`` was made for."""
        size = _Size.of(batch).grown(None if before is None else before.size)
        model = packed.model
        # A tile may compute up to seven rows past the last.
        tokens = padded(size.tokens, 8) + BIG_ROWS
        rows = padded(size.rows, 8) + BIG_ROWS
        y_stride, head_dim = int(model[p.Y_STRIDE]), int(model[p.HEAD_DIM])
        inner = padded(int(model[p.INNER]), 64)
        scratch = padded(max(scratch_size(head_dim), FEED_SCRATCH_SIZE), 64)
        group = int(model[p.HEADS] // model[p.KV_HEADS])
        # Segments become items of their own only while there are few tiles (`_plan_attention`).
        num_parts = (4 * num_threads + 1) * size.segments
        num_items = size.tokens * group // MAX_ROWS + size.seqs + num_parts

        def room(count: int, stride: int) -> Array:
            return aligned(count * int(stride), np.float32)

        def ints(count: int) -> Ints32:
            return np.zeros(count, np.int32)

        return cls(
            size=size,
            sync=new_sync(),
            job=np.zeros(p.JOB_SIZE, np.int64),
            ids=ints(size.tokens),
            positions=ints(size.tokens),
            slots=ints(size.tokens),
            starts=ints(size.seqs + 1),
            lens=ints(size.seqs),
            tables=ints(size.table),
            wanted=ints(size.rows),
            x=room(tokens, model[p.X_STRIDE]),
            h=room(tokens, model[p.X_STRIDE]),
            wide=room(tokens, model[p.WIDE_STRIDE]),
            y=room(tokens, y_stride),
            codes=aligned(tokens * (y_stride + 64), np.int8),
            scales=room(tokens, y_stride // 32),
            sums=room(tokens, y_stride // 32),
            half_sums=room(tokens, y_stride // 16),
            row_starts=room(tokens, y_stride // 8),
            inner_codes=aligned(tokens * (inner + 64), np.int8),
            inner_scales=room(tokens, inner // 32),
            inner_sums=room(tokens, inner // 32),
            inner_half_sums=room(tokens, inner // 16),
            inner_row_starts=room(tokens, inner // 8),
            logits=room(rows, model[p.LOGITS_STRIDE]),
            items=np.zeros((num_items, p.ITEM_SIZE), np.int64),
            parts=room(num_parts * int(model[p.KV_HEADS]), state_size(head_dim)),
            scratches=aligned((num_threads, scratch), np.float32),
            panels=aligned((num_threads, CHUNK * K_CHUNK), np.float32),
            seens=np.zeros((num_threads, 2 * MAX_ROWS + 8), np.int64),
            spares=aligned((num_threads, FEED_SPARE_SIZE), np.int8),
            stride=int(model[p.LOGITS_STRIDE]),
        )

    def holds(self, batch: InputBatch) -> bool:
        """Whether there is room for ``batch``."""
        return _Size.of(batch).within(self.size)

    def load(self, batch: InputBatch) -> None:
        """Copy a batch to where the team reads it."""
        self.job[p.NUM_TOKENS] = batch.num_tokens
        self.job[p.NUM_SEQS] = batch.num_seqs
        self.job[p.NUM_ROWS] = len(batch.logits_indices)
        self.job[p.TABLE_WIDTH] = batch.block_tables.shape[1]
        for target, source in (
            (self.ids, batch.input_ids),
            (self.positions, batch.positions),
            (self.slots, batch.slot_mapping),
            (self.starts, batch.query_start_loc),
            (self.lens, batch.seq_lens),
            (self.tables, batch.block_tables),
            (self.wanted, batch.logits_indices),
        ):
            _fill(target, source)

    def wanted_logits(self, num_rows: int, vocab_size: int) -> Array:
        """Return the step's logits, [num_rows, vocab_size], where they are."""
        rows = self.logits[: num_rows * self.stride].reshape(num_rows, self.stride)
        return rows[:, :vocab_size]


def _fill(target: NDArray[Any], source: NDArray[Any]) -> None:
    target[: source.size] = source.reshape(-1)
