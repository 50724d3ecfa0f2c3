"""The choice of a token as kernels: a step's rows are shared out, a thread does a whole row.

NumPy's `NumpyRows` is the twin: the bits are equal. Everything is reached by the addresses in a
*task*, so that a step's arrays may lie anywhere; `rows.py` fills it in.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.backends.cpu.logits import (
    BINS,
    CHUNK,
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
from octavo.backends.cpu.simd import INT_ZERO, Floats, Ints, inlined, kernel, splat, store_f32
from octavo.backends.cpu.team import barrier, claim
from octavo.backends.cpu.words import doubles_at, floats_at, ints_at, longs_at

(
    NUM_ROWS,
    VOCAB_SIZE,
    STRIDE,  # floats from a row of logits to the next
    LOGITS,  # address of float32
    ROWS,  # address of int64 [rows, ROW_SIZE]
    REALS,  # address of float64 [rows, REAL_SIZE]
    LISTS,  # address of int32: the token ids that rows name
    LISTS_SIZE,
    AMOUNTS,  # address of float32, beside LISTS: what is added to a logit
    MOST,  # room for likeliest tokens of a row
    TOP_IDS,  # address of int32 [rows, MOST]
    TOP_VALUES,  # address of float32 [rows, MOST]
    ROOM,  # VOCAB_SIZE, rounded up to CHUNK
    VALUES,  # addresses of the threads' own room: float32 [threads, values_size(ROOM)],
    SUMS,  # float64 [threads, sums_size(ROOM)],
    COUNTS,  # int32 [threads, ROOM], all 0
) = range(16)
TASK_SIZE = 16

(
    MODE,
    IS_PLAIN,  # the raw logits go to the choice as they are
    TOP_K,  # 0: off
    NUM_TOP,  # 0: no logprobs; 1 + how many of the likeliest
    ALLOWED,  # first of LISTS, and how many; none: all are allowed
    NUM_ALLOWED,
    EDITS,  # what gets AMOUNTS, in this order
    NUM_EDITS,
    PROMPT,  # for penalties
    NUM_PROMPT,
    OUTPUT,
    NUM_OUTPUT,
    TOKEN,  # the choice, -1 if there is none; given where the row is only SCORED
    RANK,
) = range(14)
ROW_SIZE = 14
GREEDY, DRAWN, SCORED = range(3)

(
    TEMPERATURE,
    TOP_P,
    MIN_P,
    NUMBER,
    REPETITION,
    FREQUENCY,
    PRESENCE,
    LARGEST,  # found: of the raw logits, NaN if any is,
    TOTAL,  # the sum of their exponentials,
    LOGIT,  # and the chosen token's
) = range(10)
REAL_SIZE = 10


def values_size(room: int) -> int:
    """Floats of a thread: values and weights of a row, maxima of its blocks of 64, a tail."""
    return 2 * room + room // 64 + 32


def sums_size(room: int) -> int:
    """Doubles of a thread: bins, and the running sums of a row's chunks."""
    return BINS + room // CHUNK


@kernel
def _edit(
    x: Floats, at: int, n: int, tail: Floats, row: Ints, real: Floats, lists: Ints, amounts: Floats,
    values: Floats, counts: Ints,
) -> None:  # fmt: skip
    """Values: the logits with bias, masks and penalties, as `sampler._process` has them."""
    are_all_allowed = row[NUM_ALLOWED] == 0
    for i in range(0, n, 16):
        v = vector(x, at, i, n, tail)
        store_f32(values, i, v if are_all_allowed else splat(MINUS_INFINITY))
    for j in range(row[ALLOWED], row[ALLOWED] + row[NUM_ALLOWED]):
        values[lists[j]] = x[at + lists[j]]
    for j in range(row[EDITS], row[EDITS] + row[NUM_EDITS]):
        values[lists[j]] += amounts[j]
    repetition = np.float32(real[REPETITION])
    frequency, presence = np.float32(real[FREQUENCY]), np.float32(real[PRESENCE])
    output, output_end = row[OUTPUT], row[OUTPUT] + row[NUM_OUTPUT]
    for j in range(output, output_end):
        counts[lists[j]] += np.int32(1)
    for j in range(row[PROMPT], row[PROMPT] + row[NUM_PROMPT]):
        if counts[lists[j]] == 0:
            values[lists[j]] = _repeated(values[lists[j]], repetition)
    for j in range(output, output_end):
        token = lists[j]
        if counts[token] > 0:
            value = _repeated(values[token], repetition)
            value = value - frequency * np.float32(counts[token])
            values[token] = value - presence
            counts[token] = 0


@inlined
def _repeated(value: Number, penalty: Number) -> Any:
    return value / penalty if value > ZERO else value * penalty


@kernel
def _choose(
    x: Floats, at: int, n: int, tail: Floats, top: Number, row: Ints, real: Floats, weights: Floats,
    maxima: Floats, bins: Floats, running: Floats,
) -> Any:  # fmt: skip
    """The token of a row whose largest value is ``top``."""
    if row[MODE] == GREEDY:
        return first_at_least(x, at, n, tail, top)
    least = MINUS_INFINITY
    if 0 < row[TOP_K] < n:
        least = kth_largest(x, at, n, tail, row[TOP_K], weights, maxima, bins)
    temperature = np.float32(real[TEMPERATURE])
    total = weigh(x, at, n, tail, top, temperature, least, weights, running)
    threshold = np.float32(real[MIN_P])
    if real[TOP_P] < 1.0:
        threshold = max(threshold, nucleus(weights, n, bins, real[TOP_P], total))
    if threshold > ZERO:
        drop_below(weights, n, threshold, running)
    return pick(weights, n, running, real[NUMBER])


@kernel
def _sample_row(
    x: Floats, at: int, n: int, row: Ints, real: Floats, lists: Ints, amounts: Floats,
    top_ids: Ints, top_values: Floats, out: int, room: int, floats: Floats, sums: Floats,
    counts: Ints,
) -> None:  # fmt: skip
    values, weights = floats[:room], floats[room : 2 * room]
    tail, maxima = floats[2 * room : 2 * room + 16], floats[2 * room + 16 :]
    bins, running = sums[:BINS], sums[BINS:]
    copy_tail(x, at, n, tail)
    largest = largest_of(x, at, n, tail)
    real[LARGEST] = largest
    if not abs(largest) < np.inf:
        row[TOKEN] = -1
        return
    if row[MODE] != SCORED:
        source, start, top = x, at, largest
        if row[IS_PLAIN] == 0:
            _edit(x, at, n, tail, row, real, lists, amounts, values, counts)
            source, start = values, INT_ZERO
            copy_tail(source, start, n, tail)
            top = largest_of(source, start, n, tail)
        row[TOKEN] = -1
        if abs(top) < np.inf:
            row[TOKEN] = _choose(
                source, start, n, tail, top, row, real, weights, maxima, bins, running
            )
        copy_tail(x, at, n, tail)
    if row[NUM_TOP] > 0 and row[TOKEN] >= 0:
        logit = x[at + row[TOKEN]]
        real[LOGIT] = logit
        real[TOTAL] = weigh(x, at, n, tail, largest, ONE, MINUS_INFINITY, weights, running)
        row[RANK] = 1 + count_above(x, at, n, tail, logit)
        keep_top(x, at, n, tail, min(row[NUM_TOP] - 1, n), top_ids, top_values, out)


@kernel
def sample(thread: int, num_threads: int, sync: Ints, address: int) -> None:
    """Take part in a task: rows are claimed one by one."""
    task = longs_at(address, TASK_SIZE)
    num_rows, n, room, most = task[NUM_ROWS], task[VOCAB_SIZE], task[ROOM], task[MOST]
    logits = floats_at(task[LOGITS], (num_rows - 1) * task[STRIDE] + n)
    rows = longs_at(task[ROWS], num_rows * ROW_SIZE)
    reals = doubles_at(task[REALS], num_rows * REAL_SIZE)
    lists = ints_at(task[LISTS], task[LISTS_SIZE])
    amounts = floats_at(task[AMOUNTS], task[LISTS_SIZE])
    top_ids = ints_at(task[TOP_IDS], num_rows * most)
    top_values = floats_at(task[TOP_VALUES], num_rows * most)
    size = 2 * room + room // 64 + 32  # values_size(room)
    floats = floats_at(task[VALUES] + thread * size * 4, size)
    size = BINS + room // CHUNK  # sums_size(room)
    sums = doubles_at(task[SUMS] + thread * size * 8, size)
    counts = ints_at(task[COUNTS] + thread * room * 4, room)
    r = claim(sync)
    while r < num_rows:
        _sample_row(
            logits, r * task[STRIDE], n, rows[r * ROW_SIZE : (r + 1) * ROW_SIZE],
            reals[r * REAL_SIZE : (r + 1) * REAL_SIZE], lists, amounts, top_ids, top_values,
            r * most, room, floats, sums, counts,
        )  # fmt: skip
        r = claim(sync)
    barrier(sync, num_threads)
