"""The whole forward pass as one compiled function, run by every thread of a team.

A layer is nine phases with a barrier after each, where its ticks are counted; within a phase the
threads take numbered items:

    rows      x += what came out of the last layer; norm; quantise
    matmul    q, k, v
    heads     norm and rotate q and k; store k and v
    attend    tiles of (tokens x heads); long contexts in segments, then merged
    rows      quantise
    matmul    attention's output
    rows      x += it; norm; quantise
    feed      gate and up, activated and quantised
    matmul    down

Nothing here knows which thread computes what: every item's result depends on its own inputs only.
The arrays are those of `workspace.py`; the columns' names are `plan.py`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.backends.cpu import plan as p
from octavo.backends.cpu.arrays import (
    Batch,
    Cache,
    Codes,
    Member,
    Plan,
    Room,
    Rows,
    Weights,
)
from octavo.backends.cpu.attention_phase import attend, merge_parts, plan_attention
from octavo.backends.cpu.feed_phase import feed
from octavo.backends.cpu.gemm import matmul
from octavo.backends.cpu.row_phases import (
    embed,
    norm_for_attention,
    norm_for_feed,
    norm_for_head,
    quantise_attended,
    turn_and_store_heads,
)
from octavo.backends.cpu.sampling import sample
from octavo.backends.cpu.simd import INT_ZERO, kernel
from octavo.backends.cpu.team import (
    begin_phases,
    end_phase,
    post_job,
    post_quit,
    restore_rounding_mode,
    take_rounding_mode,
    wait_for_job,
)

if TYPE_CHECKING:
    from octavo.backends.cpu.simd import Floats, Ints


@kernel
def _project(
    me: Member, phase: int, out: Floats, stride: int, w: Weights, y: Floats, y_stride: int,
    codes: Codes, num_rows: int, first: int, count: int, panel: Floats, after: int,
) -> None:  # fmt: skip
    """Multiply ``num_rows`` rows of ``y`` with some matrices; ``after`` lies the next product's."""
    matmul(
        me.sync, me.num_threads, out, stride, y, y_stride, codes, num_rows, w, first, count, panel
    )
    end_phase(me, phase, w.arena, after)


@kernel
def _attention_block(
    me: Member, plan: Plan, w: Weights, batch: Batch, cache: Cache, rows: Rows, codes: Codes,
    room: Room, at: int,
) -> None:  # fmt: skip
    """From ``x`` to ``h``: what layer ``at``'s attention adds."""
    model, layer, num_tokens = plan.model, plan.layers[at], batch.job[p.NUM_TOKENS]
    norm_for_attention(me.sync, plan, w, num_tokens, rows, codes, at)
    end_phase(me, p.NORM_PHASE, w.arena, w.matrices[layer[p.QKV], p.PLACE])
    after = w.matrices[layer[p.OUTPUT], p.PLACE]
    _project(
        me, p.QKV_PHASE, rows.wide, model[p.WIDE_STRIDE], w, rows.y, model[p.Y_STRIDE], codes,
        num_tokens, layer[p.QKV], layer[p.QKV_COUNT], room.panel, after,
    )  # fmt: skip
    turn_and_store_heads(
        me.sync, me.num_threads, plan, w.floats, batch, cache, rows.wide, room.scratch, at
    )
    end_phase(me, p.STORE_PHASE, w.arena, after)
    attend(me, plan, at, batch, cache, rows, room)
    end_phase(me, p.ATTENTION_PHASE, w.arena, after)
    if batch.job[p.IS_SPLIT] != 0:
        merge_parts(me.sync, plan, at, batch, rows, room)
        end_phase(me, p.MERGE_PHASE, w.arena, after)
    quantise_attended(me.sync, model, layer, w.matrices, num_tokens, rows.y, codes)
    end_phase(me, p.NORM_PHASE, w.arena, after)
    _project(
        me, p.OUTPUT_PHASE, rows.h, model[p.X_STRIDE], w, rows.y, model[p.Y_STRIDE], codes,
        num_tokens, layer[p.OUTPUT], layer[p.OUTPUT_COUNT], room.panel,
        w.matrices[layer[p.FEED], p.PLACE],
    )  # fmt: skip


@kernel
def _feed_forward_block(
    me: Member, plan: Plan, w: Weights, num_tokens: int, rows: Rows, codes: Codes, inner: Codes,
    room: Room, at: int,
) -> None:  # fmt: skip
    """x += h; from ``x`` to ``h``: what layer ``at``'s feed-forward adds."""
    model, layer = plan.model, plan.layers[at]
    is_last = at + 1 == model[p.NUM_LAYERS]
    following = model[p.HEAD] if is_last else plan.layers[at + 1, p.QKV]
    norm_for_feed(me.sync, plan, layer, w, num_tokens, rows, codes)
    end_phase(me, p.NORM_PHASE, w.arena, w.matrices[layer[p.FEED], p.PLACE])
    feed(me, plan, layer, w, num_tokens, rows, codes, inner, room)
    end_phase(me, p.FEED_PHASE, w.arena, w.matrices[layer[p.DOWN], p.PLACE])
    _project(
        me, p.DOWN_PHASE, rows.h, model[p.X_STRIDE], w, rows.wide, model[p.WIDE_STRIDE], inner,
        num_tokens, layer[p.DOWN], layer[p.DOWN_COUNT], room.panel, w.matrices[following, p.PLACE],
    )  # fmt: skip


@kernel
def forward(
    me: Member, plan: Plan, w: Weights, batch: Batch, cache: Cache, rows: Rows, codes: Codes,
    inner: Codes, room: Room, logits: Floats,
) -> None:  # fmt: skip
    """One step: from token ids to the wanted rows of logits; keys and values are stored."""
    model = plan.model
    begin_phases(me)
    if me.thread == 0:
        plan_attention(me.num_threads, model, batch, room.items)
    embed(me.sync, plan, w, batch, rows.x)
    end_phase(me, p.EMBED_PHASE, w.arena, w.matrices[plan.layers[0, p.QKV], p.PLACE])
    for at in range(model[p.NUM_LAYERS]):
        _attention_block(me, plan, w, batch, cache, rows, codes, room, at)
        _feed_forward_block(me, plan, w, batch.job[p.NUM_TOKENS], rows, codes, inner, room, at)
    norm_for_head(me.sync, plan, w, batch, rows, codes)
    head = w.matrices[model[p.HEAD], p.PLACE]
    end_phase(me, p.NORM_PHASE, w.arena, head)
    _project(
        me, p.HEAD_PHASE, logits, model[p.LOGITS_STRIDE], w, rows.y, model[p.Y_STRIDE], codes,
        batch.job[p.NUM_ROWS], model[p.HEAD], model[p.HEAD_COUNT], room.panel, head,
    )  # fmt: skip


def enter(
    thread: int, num_threads: int, sync: Ints, model: Ints, layers: Ints, matrices: Ints,
    arena: Ints, floats: Floats, reals: Floats, keys: Ints, values: Ints, job: Ints, ids: Ints,
    positions: Ints, slots: Ints, starts: Ints, lens: Ints, tables: Ints, wanted: Ints, x: Floats,
    h: Floats, wide: Floats, y: Floats, codes: Ints, scales: Floats, sums: Floats,
    half_sums: Floats, row_starts: Floats, inner_codes: Ints, inner_scales: Floats,
    inner_sums: Floats, inner_half_sums: Floats, inner_row_starts: Floats, logits: Floats,
    items: Ints, parts: Floats, scratches: Floats, panels: Floats, seens: Ints, spares: Ints,
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
    done = INT_ZERO
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
                Member(sync, thread, num_threads), Plan(model, layers, reals),
                Weights(matrices, arena, floats),
                Batch(job, ids, positions, slots, starts, lens, tables, wanted),
                Cache(keys, values),
                Rows(x, h, wide, y), Codes(codes, scales, sums, half_sums, row_starts),
                Codes(inner_codes, inner_scales, inner_sums, inner_half_sums, inner_row_starts),
                Room(
                    items, parts, scratches[thread], panels[thread], seens[thread], spares[thread]
                ),
                logits,
            )  # fmt: skip
        done += 1
        if thread == 0:
            break
    restore_rounding_mode(mode)
