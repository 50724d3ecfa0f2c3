"""The phases of a step that go row by row, between two matrix products: an item is a few rows.

Each thread takes numbered items until there are none; the caller sets the barrier. What is done to
a row is `elementwise.py`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo.backends.cpu import plan as p
from octavo.backends.cpu.elementwise import (
    add_row,
    embed_row,
    layer_norm_row,
    quantise_row,
    rms_norm_row,
    rotate_head,
    store_head,
)
from octavo.backends.cpu.layout import BLOCK
from octavo.backends.cpu.simd import INT_ZERO, fetch, inlined, kernel, load_f32, store_f32, zero_f32
from octavo.backends.cpu.team import claim
from octavo.backends.cpu.tiles import codes_stride

if TYPE_CHECKING:
    from octavo.backends.cpu.arrays import Batch, Cache, Codes, Plan, Rows, Weights
    from octavo.backends.cpu.simd import Floats, Ints

ROWS_PER_ITEM = 4


@kernel
def _norm_row(
    x: Floats, at: int, floats: Floats, weight: int, bias: int, y: Floats, y_at: int,
    size: int, eps: float,
) -> None:  # fmt: skip
    if bias >= 0:
        layer_norm_row(x, at, floats, weight, bias, y, y_at, size, eps)
    else:
        rms_norm_row(x, at, floats, weight, y, y_at, size, eps)


@kernel
def _reads_codes(matrices: Ints, first: int, count: int) -> bool:
    """Whether any of these matrices multiplies quantised rows."""
    found = False
    for i in range(first, first + count):
        found = found or matrices[i, p.KIND] <= p.U8
    return found


@kernel
def _float_row(matrices: Ints, first: int, count: int, m: int, first_of_item: int) -> Any:
    """Which row of ``y`` is to hold row ``m`` on its way to these matrices.

    Its own if any of them multiplies floats. If not, all rows of an item take turns in the first
    one's place: nobody reads them after they are quantised, and that place stays in the cache.
    """
    row = first_of_item
    for i in range(first, first + count):
        if matrices[i, p.KIND] > p.U8:
            row = m
    return row


@kernel
def _quantise(
    matrices: Ints, first: int, count: int, y: Floats, y_at: int, m: int, codes: Codes
) -> None:
    """Quantise row ``m``, which lies in ``y``, for these matrices, if any of them wants codes."""
    if _reads_codes(matrices, first, count):
        size = matrices[first, p.COLUMNS]
        quantise_row(
            y, y_at, size, codes, m * codes_stride(size), m * (size // 32),
        )  # fmt: skip


@inlined
def _add(plan: Plan, floats: Floats, rows: Rows, m: int, weight: int, bias: int) -> None:
    """x += h, where the model says so normalised first (in ``y``)."""
    model = plan.model
    x_at, y_at, hidden = m * model[p.X_STRIDE], m * model[p.Y_STRIDE], model[p.HIDDEN]
    if model[p.POST_NORMS] != 0:
        _norm_row(rows.h, x_at, floats, weight, bias, rows.y, y_at, hidden, plan.reals[p.EPS])
        add_row(rows.x, x_at, rows.y, y_at, hidden)
    else:
        add_row(rows.x, x_at, rows.h, x_at, hidden)


@inlined
def _norm_and_quantise(
    plan: Plan, w: Weights, rows: Rows, codes: Codes, m: int, first_of_item: int, weight: int,
    bias: int, first: int, count: int,
) -> None:  # fmt: skip
    """Normalise row ``m`` of ``x`` for these matrices."""
    model = plan.model
    y_at = _float_row(w.matrices, first, count, m, first_of_item) * model[p.Y_STRIDE]
    _norm_row(
        rows.x, m * model[p.X_STRIDE], w.floats, weight, bias, rows.y, y_at, model[p.HIDDEN],
        plan.reals[p.EPS],
    )  # fmt: skip
    _quantise(w.matrices, first, count, rows.y, y_at, m, codes)


@kernel
def embed(sync: Ints, plan: Plan, w: Weights, batch: Batch, x: Floats) -> None:
    """Tokens' embeddings, and their learned positions where the model has such."""
    model = plan.model
    hidden, matrix = model[p.HIDDEN], w.matrices[model[p.EMBEDDING]]
    m = claim(sync)
    while m < batch.job[p.NUM_TOKENS]:
        at = m * model[p.X_STRIDE]
        embed_row(w.arena, matrix, batch.ids[m], plan.reals[p.EMBEDDING_SCALE], x, at)
        if model[p.POSITIONS] >= 0:
            place = model[p.POSITIONS] + batch.positions[m] * ((hidden + 63) // 64 * 64)
            add_row(x, at, w.floats, place, hidden)
        m = claim(sync)


@kernel
def norm_for_attention(
    sync: Ints, plan: Plan, w: Weights, num_tokens: int, rows: Rows, codes: Codes, at: int
) -> None:
    """x += what came out of the last layer; normalise; quantise."""
    layer = plan.layers[at]
    first = claim(sync) * ROWS_PER_ITEM
    while first < num_tokens:
        for m in range(first, min(first + ROWS_PER_ITEM, num_tokens)):
            if at > 0:
                last = plan.layers[at - 1]
                _add(plan, w.floats, rows, m, last[p.POST_FFN_NORM], last[p.POST_FFN_NORM_BIAS])
            _norm_and_quantise(
                plan, w, rows, codes, m, first, layer[p.ATTN_NORM], layer[p.ATTN_NORM_BIAS],
                layer[p.QKV], layer[p.QKV_COUNT],
            )  # fmt: skip
        first = claim(sync) * ROWS_PER_ITEM


@kernel
def turn_and_store_heads(
    sync: Ints, num_threads: int, plan: Plan, floats: Floats, batch: Batch, cache: Cache,
    wide: Floats, spare: Floats, at: int,
) -> None:  # fmt: skip
    """Normalise and rotate q and k, store k and v: an item is a few heads of a token."""
    model, layer = plan.model, plan.layers[at]
    per_token = model[p.HEADS] + 2 * model[p.KV_HEADS]
    total = batch.job[p.NUM_TOKENS] * per_token
    grain = max(1, total // (num_threads * 16))
    first = claim(sync) * grain
    while first < total:
        m, head = first // per_token, first % per_token
        for _ in range(first, min(first + grain, total)):
            _head(sync, plan, layer, floats, batch, cache, wide, spare, at, m, head)
            head += 1
            if head == per_token:
                m, head = m + 1, 0
        first = claim(sync) * grain


@inlined
def _head(
    sync: Ints, plan: Plan, layer: Ints, floats: Floats, batch: Batch, cache: Cache,
    wide: Floats, spare: Floats, at: int, m: int, head: int,
) -> None:  # fmt: skip
    """One head of token ``m``: the query heads come first, then the keys', then the values'."""
    model = plan.model
    heads, kv_heads, head_dim = model[p.HEADS], model[p.KV_HEADS], model[p.HEAD_DIM]
    place = m * model[p.WIDE_STRIDE]
    norm, bias = -1, -1
    if head < heads:
        place += head * head_dim
        norm, bias = layer[p.Q_NORM], layer[p.Q_NORM_BIAS]
    elif head < heads + kv_heads:
        place += model[p.K_AT] + (head - heads) * head_dim
        norm, bias = layer[p.K_NORM], layer[p.K_NORM_BIAS]
    else:
        place += model[p.V_AT] + (head - heads - kv_heads) * head_dim
    for d in range(0, head_dim, 16):
        fetch(wide, place + model[p.WIDE_STRIDE] + d)  # the next token's
    if norm >= 0:
        _norm_row(wide, place, floats, norm, bias, spare, INT_ZERO, head_dim, plan.reals[p.EPS])
        for d in range(0, head_dim, 16):
            store_f32(wide, place + d, load_f32(spare, d))
    if head < heads + kv_heads and layer[p.ROPE_DIM] > 0:
        turn = batch.positions[m] * (layer[p.ROPE_DIM] // 2)
        rotate_head(
            wide, place, floats, layer[p.ROPE_COS] + turn, layer[p.ROPE_SIN] + turn,
            layer[p.ROPE_DIM], layer[p.ROPE_INTERLEAVED] != 0,
        )  # fmt: skip
    slot = batch.slots[m]
    if head >= heads and slot >= 0:
        is_key = head < heads + kv_heads
        kv_head = head - heads if is_key else head - heads - kv_heads
        block = (at * kv_heads + kv_head) * model[p.NUM_BLOCKS] + slot // BLOCK
        block_at = block * head_dim * BLOCK
        blocks = cache.keys if is_key else cache.values
        store_head(sync, wide, place, head_dim, blocks, block_at, slot % BLOCK, is_key)


@kernel
def quantise_attended(
    sync: Ints, model: Ints, layer: Ints, matrices: Ints, num_tokens: int, y: Floats, codes: Codes
) -> None:
    """Quantise what attention gave."""
    width, stride = model[p.HEADS] * model[p.HEAD_DIM], model[p.Y_STRIDE]
    first = claim(sync) * ROWS_PER_ITEM
    while first < num_tokens:
        for m in range(first, min(first + ROWS_PER_ITEM, num_tokens)):
            for i in range(0, width, 16):
                fetch(y, (m + 1) * stride + i)  # the next row's
            if width % 32 != 0:
                store_f32(y, m * stride + width, zero_f32())
            _quantise(matrices, layer[p.OUTPUT], layer[p.OUTPUT_COUNT], y, m * stride, m, codes)
        first = claim(sync) * ROWS_PER_ITEM


@kernel
def norm_for_feed(
    sync: Ints, plan: Plan, layer: Ints, w: Weights, num_tokens: int, rows: Rows, codes: Codes
) -> None:
    """x += what came out of attention; normalise; quantise."""
    first = claim(sync) * ROWS_PER_ITEM
    while first < num_tokens:
        for m in range(first, min(first + ROWS_PER_ITEM, num_tokens)):
            _add(plan, w.floats, rows, m, layer[p.POST_ATTN_NORM], layer[p.POST_ATTN_NORM_BIAS])
            _norm_and_quantise(
                plan, w, rows, codes, m, first, layer[p.FFN_NORM], layer[p.FFN_NORM_BIAS],
                layer[p.FEED], layer[p.FEED_COUNT],
            )  # fmt: skip
        first = claim(sync) * ROWS_PER_ITEM


@kernel
def norm_for_head(
    sync: Ints, plan: Plan, w: Weights, batch: Batch, rows: Rows, codes: Codes
) -> None:
    """The wanted rows, finished, move to the front of ``y``; quantise."""
    model = plan.model
    m = claim(sync)
    while m < batch.job[p.NUM_ROWS]:
        _finish_row(plan, w.floats, rows, batch.wanted[m], m)
        y_at = m * model[p.Y_STRIDE]
        _quantise(w.matrices, model[p.HEAD], model[p.HEAD_COUNT], rows.y, y_at, m, codes)
        m = claim(sync)


@kernel
def _finish_row(plan: Plan, floats: Floats, rows: Rows, source: int, m: int) -> None:
    """y[m] = norm(x[source] + what the last layer gave), leaving x as it is: rows may repeat."""
    model, hidden, eps = plan.model, plan.model[p.HIDDEN], plan.reals[p.EPS]
    last = plan.layers[model[p.NUM_LAYERS] - 1]
    at, spare = source * model[p.X_STRIDE], m * model[p.WIDE_STRIDE]
    wide = rows.wide
    if model[p.POST_NORMS] != 0:
        weight, bias = last[p.POST_FFN_NORM], last[p.POST_FFN_NORM_BIAS]
        _norm_row(rows.h, at, floats, weight, bias, wide, spare, hidden, eps)
    else:
        for i in range(0, hidden, 16):
            store_f32(wide, spare + i, load_f32(rows.h, at + i))
    for i in range(0, hidden, 16):
        store_f32(wide, spare + i, load_f32(rows.x, at + i) + load_f32(wide, spare + i))
    _norm_row(
        wide, spare, floats, model[p.OUT_NORM], model[p.OUT_NORM_BIAS],
        rows.y, m * model[p.Y_STRIDE], hidden, eps,
    )  # fmt: skip
