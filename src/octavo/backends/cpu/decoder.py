"""The whole forward pass as one compiled function, run by every thread of a team.

A layer is ten phases with a barrier after each; within a phase the threads take numbered items:

    rows      x += what came out of the last layer; norm; quantise
    matmul    q, k, v
    heads     norm and rotate q and k; store k and v
    attend    tiles of (tokens x heads); long contexts in segments, then merged
    rows      quantise
    matmul    attention's output
    rows      x += it; norm; quantise
    matmul    gate and up
    rows      activate; quantise
    matmul    down

Nothing here knows which thread computes what: every item's result depends on its own inputs only.
The arrays are those of `workspace.py`; the columns' names are `plan.py`'s.
"""

from __future__ import annotations

from octavo.backends.cpu import plan as p
from octavo.backends.cpu.attention import (
    BLOCK,
    CHUNK,
    MAX_ROWS,
    SEGMENT,
    attend_segment,
    attend_tile,
    merge,
    pack_queries,
    tile_rows,
    write_rows,
)
from octavo.backends.cpu.elementwise import (
    add_row,
    embed_row,
    gate_row,
    layer_norm_row,
    quantise_row,
    rms_norm_row,
    rotate_head,
    store_key,
    store_value,
)
from octavo.backends.cpu.gemm import COLUMNS, KIND, U8, matmul
from octavo.backends.cpu.sampling import sample
from octavo.backends.cpu.simd import Floats, Ints, kernel, load_f32, store_f32, zero_f32
from octavo.backends.cpu.team import (
    barrier,
    claim,
    post_job,
    post_quit,
    restore_rounding_mode,
    take_rounding_mode,
    wait_for_job,
)

ROWS_PER_ITEM = 4
STATE = MAX_ROWS * 32  # floats of a tile's state, but for its outputs [MAX_ROWS, head_dim]


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
        found = found or matrices[i, KIND] <= U8
    return found


@kernel
def _quantise(
    matrices: Ints, first: int, count: int, y: Floats, y_stride: int, m: int,
    codes: Ints, scales: Floats, sums: Floats, half_sums: Floats,
) -> None:  # fmt: skip
    """Quantise row ``m`` of ``y`` for these matrices, if any of them wants codes."""
    if _reads_codes(matrices, first, count):
        size = matrices[first, COLUMNS]
        groups = m * (size // 32)
        quantise_row(y, m * y_stride, size, codes, m * size, scales, sums, half_sums, groups)


@kernel
def _add(
    model: Ints, floats: Floats, reals: Floats, x: Floats, h: Floats, y: Floats,
    m: int, weight: int, bias: int,
) -> None:  # fmt: skip
    """x += h, where the model says so normalised first (in ``y``)."""
    x_stride, y_stride, hidden = model[p.X_STRIDE], model[p.Y_STRIDE], model[p.HIDDEN]
    if model[p.POST_NORMS] != 0:
        _norm_row(h, m * x_stride, floats, weight, bias, y, m * y_stride, hidden, reals[p.EPS])
        add_row(x, m * x_stride, y, m * y_stride, hidden)
    else:
        add_row(x, m * x_stride, h, m * x_stride, hidden)


@kernel
def _embed(
    sync: Ints, model: Ints, matrices: Ints, arena: Ints, floats: Floats, reals: Floats,
    job: Ints, ids: Ints, positions: Ints, x: Floats,
) -> None:  # fmt: skip
    hidden, x_stride = model[p.HIDDEN], model[p.X_STRIDE]
    m = claim(sync)
    while m < job[p.NUM_TOKENS]:
        embed_row(
            arena, matrices[model[p.EMBEDDING]], ids[m], reals[p.EMBEDDING_SCALE], x, m * x_stride
        )
        if model[p.POSITIONS] >= 0:
            place = model[p.POSITIONS] + positions[m] * ((hidden + 63) // 64 * 64)
            add_row(x, m * x_stride, floats, place, hidden)
        m = claim(sync)


@kernel
def _heads(
    sync: Ints, num_threads: int, model: Ints, layer: Ints, at: int, floats: Floats, reals: Floats,
    job: Ints, positions: Ints, slots: Ints, wide: Floats, keys: Ints, values: Ints, spare: Floats,
) -> None:  # fmt: skip
    """Normalise and rotate q and k, store k and v: an item is a few heads of a token."""
    heads, kv_heads, head_dim = model[p.HEADS], model[p.KV_HEADS], model[p.HEAD_DIM]
    size = head_dim * BLOCK
    per_token = heads + 2 * kv_heads
    total = job[p.NUM_TOKENS] * per_token
    grain = max(1, total // (num_threads * 16))
    first = claim(sync) * grain
    while first < total:
        for i in range(first, min(first + grain, total)):
            m, head = i // per_token, i % per_token
            row = m * model[p.WIDE_STRIDE]
            if head < heads:
                place, norm, bias = row + head * head_dim, layer[p.Q_NORM], layer[p.Q_NORM_BIAS]
            elif head < heads + kv_heads:
                place = row + model[p.K_AT] + (head - heads) * head_dim
                norm, bias = layer[p.K_NORM], layer[p.K_NORM_BIAS]
            else:
                place = row + model[p.V_AT] + (head - heads - kv_heads) * head_dim
                norm, bias = -1, -1
            if norm >= 0:
                _norm_row(wide, place, floats, norm, bias, spare, 0, head_dim, reals[p.EPS])
                for d in range(0, head_dim, 16):
                    store_f32(wide, place + d, load_f32(spare, d))
            if head < heads + kv_heads and layer[p.ROPE_DIM] > 0:
                turn = positions[m] * (layer[p.ROPE_DIM] // 2)
                rotate_head(
                    wide, place, floats, layer[p.ROPE_COS] + turn, layer[p.ROPE_SIN] + turn,
                    layer[p.ROPE_DIM], layer[p.ROPE_INTERLEAVED] != 0,
                )  # fmt: skip
            if head >= heads and slots[m] >= 0:
                kv_head = (head - heads) % kv_heads
                block = (at * kv_heads + kv_head) * model[p.NUM_BLOCKS] + slots[m] // BLOCK
                lane = slots[m] % BLOCK
                if head < heads + kv_heads:
                    store_key(sync, wide, place, head_dim, keys, block * size, lane)
                else:
                    store_value(sync, wide, place, head_dim, values, block * size, lane)
        first = claim(sync) * grain


@kernel
def _plan_attention(
    num_threads: int, model: Ints, job: Ints, starts: Ints, lens: Ints, items: Ints
) -> None:
    """List the step's attention items, the longest first; split segments if there are few."""
    group = model[p.HEADS] // model[p.KV_HEADS]
    num_tiles = 0
    for i in range(job[p.NUM_SEQS]):
        num_tiles += ((starts[i + 1] - starts[i]) * group + MAX_ROWS - 1) // MAX_ROWS
    is_split = num_threads > 1 and num_tiles * model[p.KV_HEADS] < 4 * num_threads
    count, parts = 0, 0
    for i in range(job[p.NUM_SEQS] - 1, -1, -1):
        rows = (starts[i + 1] - starts[i]) * group
        before = lens[i] - (starts[i + 1] - starts[i])
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
    job[p.NUM_ITEMS] = count
    job[p.IS_SPLIT] = 1 if parts > num_tiles else 0


@kernel
def _pack(
    model: Ints, layer: Ints, reals: Floats, starts: Ints, lens: Ints, wide: Floats, item: Ints,
    kv_head: int, q: Floats, limit: Ints, low: Ints,
) -> int:  # fmt: skip
    """Gather an item's queries and what they see; return the tile's rows."""
    group = model[p.HEADS] // model[p.KV_HEADS]
    i = item[p.ITEM_SEQ]
    start = starts[i]
    before = lens[i] - (starts[i + 1] - start)
    rows = tile_rows(item[p.ITEM_ROWS])
    pack_queries(
        rows, q, wide, model[p.WIDE_STRIDE], start, kv_head * group, item[p.ITEM_ROW],
        item[p.ITEM_ROWS], group, model[p.HEAD_DIM], reals[p.ATTENTION_SCALE], before,
        layer[p.WINDOW], limit, low,
    )  # fmt: skip
    return rows


@kernel
def _attend(
    sync: Ints, model: Ints, layer: Ints, at: int, reals: Floats, job: Ints, starts: Ints,
    lens: Ints, tables: Ints, wide: Floats, keys: Ints, values: Ints, y: Floats, items: Ints,
    parts: Floats, scratch: Floats, seen: Ints,
) -> None:  # fmt: skip
    kv_heads, head_dim = model[p.KV_HEADS], model[p.HEAD_DIM]
    group = model[p.HEADS] // kv_heads
    size = STATE + MAX_ROWS * head_dim
    q, s = scratch[: MAX_ROWS * head_dim], scratch[MAX_ROWS * head_dim :]
    total, part = s[MAX_ROWS * CHUNK :], s[MAX_ROWS * CHUNK + size :]
    limit, low = seen[:MAX_ROWS], seen[MAX_ROWS:]
    number = claim(sync)
    while number < job[p.NUM_ITEMS] * kv_heads:
        item, kv_head = items[number // kv_heads], number % kv_heads
        rows = _pack(model, layer, reals, starts, lens, wide, item, kv_head, q, limit, low)
        i = item[p.ITEM_SEQ]
        base = (at * kv_heads + kv_head) * model[p.NUM_BLOCKS] * head_dim * BLOCK
        table_at = i * job[p.TABLE_WIDTH]
        if item[p.ITEM_SEGMENT] >= 0:
            attend_segment(
                rows, q, head_dim, keys, values, base, tables, table_at,
                item[p.ITEM_SEGMENT] * SEGMENT, limit, low, s, parts,
                (item[p.ITEM_PART] * kv_heads + kv_head) * size,
            )  # fmt: skip
        else:
            attend_tile(
                rows, q, head_dim, keys, values, base, tables, table_at, limit, low, s, total, part
            )
            write_rows(
                total, 0, y, model[p.Y_STRIDE], starts[i], kv_head * group, item[p.ITEM_ROW],
                item[p.ITEM_ROWS], group, head_dim,
            )  # fmt: skip
        number = claim(sync)


@kernel
def _merge_parts(
    sync: Ints, model: Ints, layer: Ints, reals: Floats, job: Ints, starts: Ints, lens: Ints,
    wide: Floats, y: Floats, items: Ints, parts: Floats, scratch: Floats, seen: Ints,
) -> None:  # fmt: skip
    """Merge the segments of the tiles that were split, in ascending order."""
    kv_heads, head_dim = model[p.KV_HEADS], model[p.HEAD_DIM]
    group = model[p.HEADS] // kv_heads
    size = STATE + MAX_ROWS * head_dim
    q, total = scratch[: MAX_ROWS * head_dim], scratch[MAX_ROWS * (head_dim + CHUNK) :]
    limit, low = seen[:MAX_ROWS], seen[MAX_ROWS:]
    number = claim(sync)
    while number < job[p.NUM_ITEMS] * kv_heads:
        item, kv_head = items[number // kv_heads], number % kv_heads
        if item[p.ITEM_PARTS] > 0:
            rows = _pack(model, layer, reals, starts, lens, wide, item, kv_head, q, limit, low)
            for segment in range(item[p.ITEM_PARTS]):
                place = ((item[p.ITEM_PART] + segment) * kv_heads + kv_head) * size
                merge(rows, head_dim, segment * SEGMENT, limit, low, total, 0, parts, place)
            write_rows(
                total, 0, y, model[p.Y_STRIDE], starts[item[p.ITEM_SEQ]], kv_head * group,
                item[p.ITEM_ROW], item[p.ITEM_ROWS], group, head_dim,
            )  # fmt: skip
        number = claim(sync)


@kernel
def forward(
    thread: int, num_threads: int, sync: Ints, model: Ints, layers: Ints, matrices: Ints,
    arena: Ints, floats: Floats, reals: Floats, keys: Ints, values: Ints, job: Ints, ids: Ints,
    positions: Ints, slots: Ints, starts: Ints, lens: Ints, tables: Ints, wanted: Ints, x: Floats,
    h: Floats, wide: Floats, y: Floats, codes: Ints, scales: Floats, sums: Floats,
    half_sums: Floats, logits: Floats, items: Ints, parts: Floats, scratches: Floats,
    panels: Floats, seens: Ints,
) -> None:  # fmt: skip
    """One step: from token ids to the wanted rows of logits; keys and values are stored."""
    scratch, panel, seen = scratches[thread], panels[thread], seens[thread]
    num_tokens, hidden = job[p.NUM_TOKENS], model[p.HIDDEN]
    x_stride, y_stride, wide_stride = model[p.X_STRIDE], model[p.Y_STRIDE], model[p.WIDE_STRIDE]
    eps, width = reals[p.EPS], model[p.HEADS] * model[p.HEAD_DIM]
    if thread == 0:
        _plan_attention(num_threads, model, job, starts, lens, items)
    _embed(sync, model, matrices, arena, floats, reals, job, ids, positions, x)
    barrier(sync, num_threads)
    for at in range(model[p.NUM_LAYERS]):
        layer = layers[at]
        first = claim(sync) * ROWS_PER_ITEM
        while first < num_tokens:
            for m in range(first, min(first + ROWS_PER_ITEM, num_tokens)):
                if at > 0:
                    last = layers[at - 1]
                    _add(
                        model, floats, reals, x, h, y, m,
                        last[p.POST_FFN_NORM], last[p.POST_FFN_NORM_BIAS],
                    )  # fmt: skip
                _norm_row(
                    x, m * x_stride, floats, layer[p.ATTN_NORM], layer[p.ATTN_NORM_BIAS],
                    y, m * y_stride, hidden, eps,
                )  # fmt: skip
                _quantise(
                    matrices, layer[p.QKV], layer[p.QKV_COUNT], y, y_stride, m,
                    codes, scales, sums, half_sums,
                )  # fmt: skip
            first = claim(sync) * ROWS_PER_ITEM
        barrier(sync, num_threads)
        matmul(
            sync, wide, wide_stride, y, y_stride, codes, scales, sums, half_sums, num_tokens,
            arena, floats, matrices, layer[p.QKV], layer[p.QKV_COUNT], panel,
        )  # fmt: skip
        barrier(sync, num_threads)
        _heads(
            sync, num_threads, model, layer, at, floats, reals, job, positions, slots, wide,
            keys, values, scratch,
        )  # fmt: skip
        barrier(sync, num_threads)
        _attend(
            sync, model, layer, at, reals, job, starts, lens, tables, wide, keys, values, y, items,
            parts, scratch, seen,
        )  # fmt: skip
        barrier(sync, num_threads)
        if job[p.IS_SPLIT] != 0:
            _merge_parts(
                sync, model, layer, reals, job, starts, lens, wide, y, items, parts, scratch, seen
            )
            barrier(sync, num_threads)
        first = claim(sync) * ROWS_PER_ITEM
        while first < num_tokens:
            for m in range(first, min(first + ROWS_PER_ITEM, num_tokens)):
                if width % 32 != 0:
                    store_f32(y, m * y_stride + width, zero_f32())
                _quantise(
                    matrices, layer[p.OUTPUT], layer[p.OUTPUT_COUNT], y, y_stride, m,
                    codes, scales, sums, half_sums,
                )  # fmt: skip
            first = claim(sync) * ROWS_PER_ITEM
        barrier(sync, num_threads)
        matmul(
            sync, h, x_stride, y, y_stride, codes, scales, sums, half_sums, num_tokens,
            arena, floats, matrices, layer[p.OUTPUT], layer[p.OUTPUT_COUNT], panel,
        )  # fmt: skip
        barrier(sync, num_threads)
        first = claim(sync) * ROWS_PER_ITEM
        while first < num_tokens:
            for m in range(first, min(first + ROWS_PER_ITEM, num_tokens)):
                _add(
                    model, floats, reals, x, h, y, m,
                    layer[p.POST_ATTN_NORM], layer[p.POST_ATTN_NORM_BIAS],
                )  # fmt: skip
                _norm_row(
                    x, m * x_stride, floats, layer[p.FFN_NORM], layer[p.FFN_NORM_BIAS],
                    y, m * y_stride, hidden, eps,
                )  # fmt: skip
                _quantise(
                    matrices, layer[p.FEED], layer[p.FEED_COUNT], y, y_stride, m,
                    codes, scales, sums, half_sums,
                )  # fmt: skip
            first = claim(sync) * ROWS_PER_ITEM
        barrier(sync, num_threads)
        matmul(
            sync, wide, wide_stride, y, y_stride, codes, scales, sums, half_sums, num_tokens,
            arena, floats, matrices, layer[p.FEED], layer[p.FEED_COUNT], panel,
        )  # fmt: skip
        barrier(sync, num_threads)
        first = claim(sync) * ROWS_PER_ITEM
        while first < num_tokens:
            for m in range(first, min(first + ROWS_PER_ITEM, num_tokens)):
                row = m * wide_stride
                gate = row if model[p.GATED] != 0 else -1
                gate_row(
                    wide, gate, row + model[p.UP_AT], y, m * y_stride,
                    matrices[layer[p.DOWN], COLUMNS], model[p.ACTIVATION],
                )  # fmt: skip
                _quantise(
                    matrices, layer[p.DOWN], layer[p.DOWN_COUNT], y, y_stride, m,
                    codes, scales, sums, half_sums,
                )  # fmt: skip
            first = claim(sync) * ROWS_PER_ITEM
        barrier(sync, num_threads)
        matmul(
            sync, h, x_stride, y, y_stride, codes, scales, sums, half_sums, num_tokens,
            arena, floats, matrices, layer[p.DOWN], layer[p.DOWN_COUNT], panel,
        )  # fmt: skip
        barrier(sync, num_threads)
    last = layers[model[p.NUM_LAYERS] - 1]
    # The wanted rows move to the front; ``y`` serves _add before it holds the normalised row.
    m = claim(sync)
    while m < job[p.NUM_ROWS]:
        source = wanted[m]
        _finish_row(
            model, floats, reals, x, h, wide, y, source, m,
            last[p.POST_FFN_NORM], last[p.POST_FFN_NORM_BIAS],
        )  # fmt: skip
        _quantise(
            matrices, model[p.HEAD], model[p.HEAD_COUNT], y, y_stride, m,
            codes, scales, sums, half_sums,
        )  # fmt: skip
        m = claim(sync)
    barrier(sync, num_threads)
    matmul(
        sync, logits, model[p.LOGITS_STRIDE], y, y_stride, codes, scales, sums, half_sums,
        job[p.NUM_ROWS], arena, floats, matrices, model[p.HEAD], model[p.HEAD_COUNT], panel,
    )  # fmt: skip
    barrier(sync, num_threads)


@kernel
def _finish_row(
    model: Ints, floats: Floats, reals: Floats, x: Floats, h: Floats, wide: Floats, y: Floats,
    source: int, m: int, weight: int, bias: int,
) -> None:  # fmt: skip
    """y[m] = norm(x[source] + what the last layer gave), leaving x as it is: rows may repeat."""
    x_stride, hidden, eps = model[p.X_STRIDE], model[p.HIDDEN], reals[p.EPS]
    at, spare = source * x_stride, m * model[p.WIDE_STRIDE]
    if model[p.POST_NORMS] != 0:
        _norm_row(h, at, floats, weight, bias, wide, spare, hidden, eps)
    else:
        for i in range(0, hidden, 16):
            store_f32(wide, spare + i, load_f32(h, at + i))
    for i in range(0, hidden, 16):
        store_f32(wide, spare + i, load_f32(x, at + i) + load_f32(wide, spare + i))
    _norm_row(
        wide, spare, floats, model[p.OUT_NORM], model[p.OUT_NORM_BIAS],
        y, m * model[p.Y_STRIDE], hidden, eps,
    )  # fmt: skip


def enter(
    thread: int, num_threads: int, sync: Ints, model: Ints, layers: Ints, matrices: Ints,
    arena: Ints, floats: Floats, reals: Floats, keys: Ints, values: Ints, job: Ints, ids: Ints,
    positions: Ints, slots: Ints, starts: Ints, lens: Ints, tables: Ints, wanted: Ints, x: Floats,
    h: Floats, wide: Floats, y: Floats, codes: Ints, scales: Floats, sums: Floats,
    half_sums: Floats, logits: Floats, items: Ints, parts: Floats, scratches: Floats,
    panels: Floats, seens: Ints,
) -> None:  # fmt: skip
    """Take part in a team: thread 0 does one job, the others all jobs until they are sent home.

    A job is a step, `forward`, or the choice of tokens after it, `sampling.sample`.

    Thread -1 sends them home. Thread 0 may do a job alone, as if it were one of one, while the
    others wait. Compiled once for every model (`compiled.py`).
    """
    if thread < 0:
        post_quit(sync)
        return
    mode = take_rounding_mode()
    done = 0
    while True:
        if thread == 0:
            if num_threads > 1:
                post_job(sync)
        elif not wait_for_job(sync, done):
            break
        if job[p.SAMPLING] != 0:
            sample(thread, num_threads, sync, job[p.SAMPLING])
        else:
            forward(
                thread, num_threads, sync, model, layers, matrices, arena, floats, reals, keys,
                values, job, ids, positions, slots, starts, lens, tables, wanted, x, h, wide, y,
                codes, scales, sums, half_sums, logits, items, parts, scratches, panels, seens,
            )  # fmt: skip
        done += 1
        if thread == 0:
            break
    restore_rounding_mode(mode)
