"""The choice of a token as kernels: a step's rows are shared out, a thread does a whole row.

NumPy's `NumpyRows` is the twin: the bits are equal. Everything is reached by the addresses in a
*task*, so that a step's arrays may lie anywhere; `rows.py` fills it in.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.backends.cpu import sampling_plan as s
from octavo.backends.cpu.logits import (
    MINUS_INFINITY,
    ONE,
    ZERO,
    Number,
    copy_tail,
    count_above,
    drop_below,
    first_at_least,
    keep_top,
    kth_largest,
    largest_of,
    nucleus,
    pick,
    vector,
    weigh,
)
from octavo.backends.cpu.simd import (
    INT_ZERO,
    Floats,
    Ints,
    inlined,
    kernel,
    load_f32,
    splat,
    store_f32,
)
from octavo.backends.cpu.team import barrier, claim
from octavo.backends.cpu.words import doubles_at, floats_at, ints_at, longs_at, only_lanes


@kernel
def _edit(
    x: Floats, at: int, n: int, tail: Floats, row: Ints, real: Floats, lists: Ints, amounts: Floats,
    values: Floats, counts: Ints,
) -> None:  # fmt: skip
    """Values: the logits with bias, masks and penalties, as `sampler._process` has them."""
    are_all_allowed = row[s.NUM_ALLOWED] == 0
    for i in range(0, n, 16):
        v = vector(x, at, i, n, tail)
        store_f32(values, i, v if are_all_allowed else splat(MINUS_INFINITY))
    for j in range(row[s.ALLOWED], row[s.ALLOWED] + row[s.NUM_ALLOWED]):
        values[lists[j]] = x[at + lists[j]]
    if row[s.MASK] != 0:
        _mask_others(values, n, row[s.MASK])
    for j in range(row[s.EDITS], row[s.EDITS] + row[s.NUM_EDITS]):
        values[lists[j]] += amounts[j]
    repetition = np.float32(real[s.REPETITION])
    frequency, presence = np.float32(real[s.FREQUENCY]), np.float32(real[s.PRESENCE])
    output, output_end = row[s.OUTPUT], row[s.OUTPUT] + row[s.NUM_OUTPUT]
    for j in range(output, output_end):
        counts[lists[j]] += np.int32(1)
    for j in range(row[s.PROMPT], row[s.PROMPT] + row[s.NUM_PROMPT]):
        if counts[lists[j]] == 0:
            values[lists[j]] = _repeated(values[lists[j]], repetition)
    for j in range(output, output_end):
        token = lists[j]
        if counts[token] > 0:
            value = _repeated(values[token], repetition)
            value = value - frequency * np.float32(counts[token])
            values[token] = value - presence
            counts[token] = 0


@kernel
def _mask_others(values: Floats, n: int, address: int) -> None:
    """-inf for what a grammar does not allow: `logits.mask_others`."""
    words = ints_at(address, (n + 31) // 32)
    for i in range(0, n, 16):
        word = words[i // 32]
        if word != -1:
            v = only_lanes(load_f32(values, i), np.int32(word >> (i % 32)))
            store_f32(values, i, v)


@inlined
def _repeated(value: Number, penalty: Number) -> Any:
    return value / penalty if value > ZERO else value * penalty


@kernel
def _choose(
    x: Floats, at: int, n: int, tail: Floats, top: Number, row: Ints, real: Floats, weights: Floats,
    maxima: Floats, bins: Floats, running: Floats,
) -> Any:  # fmt: skip
    """The token of a row whose largest value is ``top``."""
    if row[s.MODE] == s.GREEDY:
        return first_at_least(x, at, n, tail, top)
    least = MINUS_INFINITY
    if 0 < row[s.TOP_K] < n:
        least = kth_largest(x, at, n, tail, row[s.TOP_K], weights, maxima, bins)
    temperature = np.float32(real[s.TEMPERATURE])
    total = weigh(x, at, n, tail, top, temperature, least, weights, running)
    threshold = np.float32(real[s.MIN_P])
    if real[s.TOP_P] < 1.0:
        threshold = max(threshold, nucleus(weights, n, bins, real[s.TOP_P], total))
    if threshold > ZERO:
        drop_below(weights, n, threshold, running)
    return pick(weights, n, running, real[s.NUMBER])


@kernel
def _sample_row(
    x: Floats, at: int, n: int, row: Ints, real: Floats, lists: Ints, amounts: Floats,
    top_ids: Ints, top_values: Floats, out: int, room: int, floats: Floats, sums: Floats,
    counts: Ints,
) -> None:  # fmt: skip
    values, weights = floats[:room], floats[room : 2 * room]
    tail, maxima = floats[2 * room : 2 * room + 16], floats[2 * room + 16 :]
    bins, running = sums[: s.BINS], sums[s.BINS :]
    copy_tail(x, at, n, tail)
    largest = largest_of(x, at, n, tail)
    real[s.LARGEST] = largest
    if not abs(largest) < np.inf:
        row[s.TOKEN] = -1
        return
    if row[s.MODE] != s.SCORED:
        source, start, top = x, at, largest
        if row[s.IS_PLAIN] == 0:
            _edit(x, at, n, tail, row, real, lists, amounts, values, counts)
            source, start = values, INT_ZERO
            copy_tail(source, start, n, tail)
            top = largest_of(source, start, n, tail)
        row[s.TOKEN] = -1
        if abs(top) < np.inf:
            row[s.TOKEN] = _choose(
                source, start, n, tail, top, row, real, weights, maxima, bins, running
            )
        copy_tail(x, at, n, tail)
    if row[s.NUM_TOP] > 0 and row[s.TOKEN] >= 0:
        logit = x[at + row[s.TOKEN]]
        real[s.LOGIT] = logit
        real[s.TOTAL] = weigh(x, at, n, tail, largest, ONE, MINUS_INFINITY, weights, running)
        row[s.RANK] = 1 + count_above(x, at, n, tail, logit)
        keep_top(x, at, n, tail, min(row[s.NUM_TOP] - 1, n), top_ids, top_values, out)


@kernel
def sample(thread: int, num_threads: int, sync: Ints, address: int) -> None:
    """Take part in a task: rows are claimed one by one."""
    task = longs_at(address, s.TASK_SIZE)
    num_rows, n, room, most = task[s.NUM_ROWS], task[s.VOCAB_SIZE], task[s.ROOM], task[s.MOST]
    logits = floats_at(task[s.LOGITS], (num_rows - 1) * task[s.STRIDE] + n)
    rows = longs_at(task[s.ROWS], num_rows * s.ROW_SIZE)
    reals = doubles_at(task[s.REALS], num_rows * s.REAL_SIZE)
    lists = ints_at(task[s.LISTS], task[s.LISTS_SIZE])
    amounts = floats_at(task[s.AMOUNTS], task[s.LISTS_SIZE])
    top_ids = ints_at(task[s.TOP_IDS], num_rows * most)
    top_values = floats_at(task[s.TOP_VALUES], num_rows * most)
    size = 2 * room + room // 64 + 32  # values_size(room)
    floats = floats_at(task[s.VALUES] + thread * size * 4, size)
    size = s.BINS + room // s.CHUNK  # sums_size(room)
    sums = doubles_at(task[s.SUMS] + thread * size * 8, size)
    counts = ints_at(task[s.COUNTS] + thread * room * 4, room)
    r = claim(sync)
    while r < num_rows:
        _sample_row(
            logits, r * task[s.STRIDE], n, rows[r * s.ROW_SIZE : (r + 1) * s.ROW_SIZE],
            reals[r * s.REAL_SIZE : (r + 1) * s.REAL_SIZE], lists, amounts, top_ids, top_values,
            r * most, room, floats, sums, counts,
        )  # fmt: skip
        r = claim(sync)
    barrier(sync, num_threads)
