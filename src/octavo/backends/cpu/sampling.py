"""The choice of a token as kernels: a step's rows are shared out, a thread does a whole row.

`octavo.sampling` defines the arithmetic, and NumPy's `NumpyRows` is the twin: the bits are equal.
No row is sorted. A row of logits is only read; what lies past its last whole vector is copied to
``tail``, filled up with -inf. Everything is reached by the addresses in a *task*, so that a step's
arrays may lie anywhere. `rows.py` fills it in.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from octavo.backends.cpu.simd import (
    F32x16,
    Floats,
    Ints,
    inlined,
    kernel,
    larger,
    larger_i32,
    load_f32,
    magnitude_bits,
    max_lanes,
    max_lanes_i32,
    round_even,
    splat,
    store_f32,
    zero_f32,
)
from octavo.backends.cpu.team import barrier, claim
from octavo.backends.cpu.words import (
    count_lanes,
    doubles_at,
    first_lane,
    float_of_key,
    floats_at,
    ints_at,
    keep_at_least,
    lanes_above,
    lanes_at_least,
    lanes_of_bin,
    longs_at,
    order_key,
    power_below,
    sum_lanes_f64,
    widen,
    zero_f64,
)

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

CHUNK = 256
BINS = 4096
_MINUS_INFINITY, _ONE, _ZERO = np.float32(-np.inf), np.float32(1), np.float32(0)
_INFINITY_BITS = 0x7F800000
_EXP_FLOOR, _LOG2_E = np.float32(-87.5), np.float32(1.4426950408889634)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.121944400546905827679e-4)
_C7, _C6, _C5, _C4, _C3, _C2, _C1, _C0 = (
    np.float32(2.0 / math.factorial(k)) for k in range(7, -1, -1)
)


def values_size(room: int) -> int:
    """Floats of a thread: values and weights of a row, maxima of its blocks of 64, a tail."""
    return 2 * room + room // 64 + 32


def sums_size(room: int) -> int:
    """Doubles of a thread: bins, and the running sums of a row's chunks."""
    return BINS + room // CHUNK


# -- passes over a row ----------------------------------------------------------------------------


@inlined
def _vector(x: Floats, at: int, i: int, n: int, tail: Floats) -> Any:
    if i + 16 <= n:
        return load_f32(x, at + i)
    return load_f32(tail, 0)


@kernel
def _copy_tail(x: Floats, at: int, n: int, tail: Floats) -> None:
    store_f32(tail, 0, splat(_MINUS_INFINITY))
    for i in range(n // 16 * 16, n):
        tail[i % 16] = x[at + i]


@kernel
def _largest(x: Floats, at: int, n: int, tail: Floats) -> Any:
    """The largest of a row, never -0.0; NaN if there is one."""
    a, b = splat(_MINUS_INFINITY), splat(_MINUS_INFINITY)
    bits = magnitude_bits(a)
    last = (n - 1) // 16 * 16
    for i in range(0, n, 32):
        v, w = _vector(x, at, i, n, tail), _vector(x, at, min(i + 16, last), n, tail)
        a, b = larger(v, a), larger(w, b)
        bits = larger_i32(larger_i32(magnitude_bits(v), magnitude_bits(w)), bits)
    if max_lanes_i32(bits) > _INFINITY_BITS:
        return np.float32(np.nan)
    return max_lanes(larger(a, b)) + _ZERO


@kernel
def _first(x: Floats, at: int, n: int, tail: Floats, value: float) -> Any:
    """The lowest id whose value is at least ``value``; there is one."""
    bound = splat(value)
    for i in range(0, n, 16):
        mask = lanes_at_least(_vector(x, at, i, n, tail), bound)
        if mask != 0:
            return np.int64(i + first_lane(mask))
    return np.int64(-1)


@kernel
def _count_above(x: Floats, at: int, n: int, tail: Floats, value: float) -> Any:
    bound, count = splat(value), 0
    for i in range(0, n, 16):
        count += count_lanes(lanes_above(_vector(x, at, i, n, tail), bound))
    return count


@kernel
def _top(
    x: Floats, at: int, n: int, tail: Floats, count: int, ids: Ints, values: Floats, out: int
) -> None:
    """Keep the ``count`` likeliest in order while passing over a row: few get in."""
    held = 0
    for i in range(0, n if count > 0 else 0, 16):
        mask = np.int32(65535)
        if held == count:
            mask = lanes_above(_vector(x, at, i, n, tail), splat(values[out + count - 1]))
        while mask != 0:
            token = i + np.int64(first_lane(mask))
            mask &= mask - np.int32(1)
            if token < n and (held < count or x[at + token] > values[out + count - 1]):
                value = x[at + token]
                place = min(held, count - 1)
                held = place + 1
                while place > 0 and values[out + place - 1] < value:
                    values[out + place] = values[out + place - 1]
                    ids[out + place] = ids[out + place - 1]
                    place -= 1
                values[out + place] = value
                ids[out + place] = token


@inlined
def _exp(x: F32x16) -> F32x16:
    """`octavo.sampling.logits.exp`: no fma, for NumPy has none."""
    r = larger(x, splat(_EXP_FLOOR))
    k = round_even(r * splat(_LOG2_E))
    r = r - k * splat(_LN2_HIGH)
    r = r - k * splat(_LN2_LOW)
    power = r * splat(_C7)
    power = (power + splat(_C6)) * r
    power = (power + splat(_C5)) * r
    power = (power + splat(_C4)) * r
    power = (power + splat(_C3)) * r
    power = (power + splat(_C2)) * r
    power = (power + splat(_C1)) * r
    return (power + splat(_C0)) * power_below(k)


@kernel
def _weigh(
    x: Floats, at: int, n: int, tail: Floats, largest: float, temperature: float, least: float,
    weights: Floats, running: Floats,
) -> Any:  # fmt: skip
    """Weights exp((x - largest) / temperature) of what is at least ``least``, 0 for the rest.

    ``running`` gets their sums up to the end of each chunk; returns the last, their total.
    """
    top, divisor, bound = splat(largest), splat(temperature), splat(least)
    total = 0.0
    for c in range(0, n, CHUNK):
        lanes = zero_f64()
        for i in range(c, min(c + CHUNK, n), 16):
            v = _vector(x, at, i, n, tail)
            w = zero_f32()
            if lanes_at_least(v, bound) != 0:
                shifted = v - top
                if temperature != _ONE:
                    shifted = shifted / divisor
                w = keep_at_least(_exp(shifted), v, bound)
            store_f32(weights, i, w)
            lanes = lanes + widen(w)
        total += sum_lanes_f64(lanes)
        running[c // CHUNK] = total
    return total


@kernel
def _drop_below(weights: Floats, n: int, threshold: float, running: Floats) -> None:
    """Set smaller weights to 0, and the running sums to those of the rest."""
    bound, total = splat(threshold), 0.0
    for c in range(0, n, CHUNK):
        lanes = zero_f64()
        for i in range(c, min(c + CHUNK, n), 16):
            w = load_f32(weights, i)
            w = keep_at_least(w, w, bound)
            store_f32(weights, i, w)
            lanes = lanes + widen(w)
        total += sum_lanes_f64(lanes)
        running[c // CHUNK] = total


@kernel
def _pick(weights: Floats, n: int, running: Floats, number: float) -> Any:
    """The id at which the running sum passes ``number`` * total: `sampler._draw`."""
    last = (n - 1) // CHUNK
    goal = number * running[last]
    chunk = 0
    while chunk < last and not running[chunk] > goal:
        chunk += 1
    total = running[chunk - 1] if chunk > 0 else 0.0
    found = -1
    for i in range(chunk * CHUNK, min(chunk * CHUNK + CHUNK, n)):
        if weights[i] > _ZERO:
            found = i
            total += np.float64(weights[i])
            if total > goal:
                break
    return found


# -- radix select ---------------------------------------------------------------------------------


@kernel
def _bin_up(
    x: Floats, n: int, bins: Floats, shift: int, prefix: int, floor: float, by_value: bool
) -> None:
    """Add up, by ten bits of their order keys (12 at first), the values or how many they are."""
    is_first = shift == 20
    for b in range(BINS if is_first else 1024):
        bins[b] = 0.0
    for i in range(0, n, 16):
        v = load_f32(x, i)
        if is_first:
            mask = lanes_at_least(v, splat(floor))
        else:
            mask = lanes_of_bin(v, np.int32(shift + 10), np.int32(prefix))
        while mask != 0:
            value = x[i + np.int64(first_lane(mask))]
            mask &= mask - np.int32(1)
            part = np.int64(order_key(value)) >> shift
            part = part + BINS // 2 if is_first else part & 1023
            bins[part] += np.float64(value) if by_value else 1.0


@kernel
def _select(
    x: Floats, n: int, bins: Floats, goal: float, by_value: bool, floor: float
) -> Any:  # fmt: skip
    """The smallest of the largest values that together reach ``goal``, as an order key.

    They count by value (`nucleus_threshold`) or one each (the goal-th largest). ``n`` is a multiple
    of 16. Values below ``floor`` are not looked at first; returns -1 if the others do not reach it.
    """
    above, prefix = 0.0, 0
    for shift in range(20, -1, -10):
        _bin_up(x, n, bins, shift, prefix, floor, by_value)
        found, before, reached = -1, above, False
        for b in range(BINS - 1 if shift == 20 else 1023, -1, -1):
            if bins[b] > 0.0:
                found, before = b, above
                above += bins[b]
                if above >= goal:
                    reached = True
                    break
        if shift == 20 and not reached:
            return np.int64(-1)
        above = before
        prefix = found - BINS // 2 if shift == 20 else (prefix << 10) | found
    return np.int64(prefix)


@kernel
def _kth_largest(
    x: Floats, at: int, n: int, tail: Floats, k: int, room: Floats, maxima: Floats, bins: Floats
) -> Any:  # fmt: skip
    """The k-th largest of a row, k < n.

    At least k values reach the k-th largest of the blocks' maxima: smaller ones need no look.
    """
    num_blocks = (n + 63) // 64
    cut = _MINUS_INFINITY
    if k <= num_blocks:
        store_f32(maxima, num_blocks // 16 * 16, splat(_MINUS_INFINITY))
        for block in range(num_blocks):
            most = splat(_MINUS_INFINITY)
            for i in range(block * 64, min(block * 64 + 64, n), 16):
                most = larger(_vector(x, at, i, n, tail), most)
            maxima[block] = max_lanes(most)
        size = (num_blocks + 15) // 16 * 16
        cut = float_of_key(
            np.int32(_select(maxima, size, bins, np.float64(k), False, _MINUS_INFINITY))
        )
    count, bound = 0, splat(cut)
    for i in range(0, n, 16):
        mask = lanes_at_least(_vector(x, at, i, n, tail), bound)
        while mask != 0:
            token = i + np.int64(first_lane(mask))
            mask &= mask - np.int32(1)
            if token < n:
                room[count] = x[at + token]
                count += 1
    size = (count + 15) // 16 * 16
    for i in range(count, size):
        room[i] = _MINUS_INFINITY
    key = _select(room, size, bins, np.float64(k), False, _MINUS_INFINITY)
    return float_of_key(np.int32(key))


@kernel
def _nucleus(weights: Floats, n: int, bins: Floats, top_p: float, total: float) -> Any:
    """`nucleus_threshold`. Weights under half of (1 - top_p) of the mean cannot be it: they hold
    less than that part of the total. Should rounding spoil that, all are looked at."""
    size, goal = (n + 15) // 16 * 16, top_p * total
    floor = order_key(np.float32(0.5 * (1.0 - top_p) * total / n))
    # A whole bin is below the floor, or none of it.
    key = _select(weights, size, bins, goal, True, float_of_key(np.int32(floor >> 20 << 20)))
    if key < 0:
        key = _select(weights, size, bins, goal, True, _ZERO)
    return float_of_key(np.int32(max(key, 0)))


# -- rows -----------------------------------------------------------------------------------------


@kernel
def _edit(
    x: Floats, at: int, n: int, row: Ints, real: Floats, lists: Ints, amounts: Floats,
    values: Floats, counts: Ints,
) -> None:  # fmt: skip
    """Values: the logits with bias, masks and penalties, as `sampler._process` has them."""
    if row[NUM_ALLOWED] > 0:
        for i in range(n):
            values[i] = _MINUS_INFINITY
        for j in range(row[ALLOWED], row[ALLOWED] + row[NUM_ALLOWED]):
            values[lists[j]] = x[at + lists[j]]
    else:
        for i in range(n):
            values[i] = x[at + i]
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
def _repeated(value: float, penalty: float) -> Any:
    return value / penalty if value > _ZERO else value * penalty


@kernel
def _choose(
    x: Floats, at: int, n: int, tail: Floats, top: float, row: Ints, real: Floats, weights: Floats,
    maxima: Floats, bins: Floats, running: Floats,
) -> Any:  # fmt: skip
    """The token of a row whose largest value is ``top``."""
    if row[MODE] == GREEDY:
        return _first(x, at, n, tail, top)
    least = _MINUS_INFINITY
    if 0 < row[TOP_K] < n:
        least = _kth_largest(x, at, n, tail, row[TOP_K], weights, maxima, bins)
    temperature = np.float32(real[TEMPERATURE])
    total = _weigh(x, at, n, tail, top, temperature, least, weights, running)
    threshold = np.float32(real[MIN_P])
    if real[TOP_P] < 1.0:
        threshold = max(threshold, _nucleus(weights, n, bins, real[TOP_P], total))
    if threshold > _ZERO:
        _drop_below(weights, n, threshold, running)
    return _pick(weights, n, running, real[NUMBER])


@kernel
def _sample_row(
    x: Floats, at: int, n: int, row: Ints, real: Floats, lists: Ints, amounts: Floats,
    top_ids: Ints, top_values: Floats, out: int, room: int, floats: Floats, sums: Floats,
    counts: Ints,
) -> None:  # fmt: skip
    values, weights = floats[:room], floats[room : 2 * room]
    tail, maxima = floats[2 * room : 2 * room + 16], floats[2 * room + 16 :]
    bins, running = sums[:BINS], sums[BINS:]
    _copy_tail(x, at, n, tail)
    largest = _largest(x, at, n, tail)
    real[LARGEST] = largest
    if not abs(largest) < np.inf:
        row[TOKEN] = -1
        return
    if row[MODE] != SCORED:
        if row[IS_PLAIN] != 0:
            row[TOKEN] = _choose(
                x, at, n, tail, largest, row, real, weights, maxima, bins, running
            )
        else:
            _edit(x, at, n, row, real, lists, amounts, values, counts)
            _copy_tail(values, 0, n, tail)
            top = _largest(values, 0, n, tail)
            row[TOKEN] = -1
            if abs(top) < np.inf:
                row[TOKEN] = _choose(
                    values, 0, n, tail, top, row, real, weights, maxima, bins, running
                )
            _copy_tail(x, at, n, tail)
    if row[NUM_TOP] > 0 and row[TOKEN] >= 0:
        logit = x[at + row[TOKEN]]
        real[LOGIT] = logit
        real[TOTAL] = _weigh(
            x, at, n, tail, largest, _ONE, _MINUS_INFINITY, weights, running
        )  # fmt: skip
        row[RANK] = 1 + _count_above(x, at, n, tail, logit)
        _top(x, at, n, tail, min(row[NUM_TOP] - 1, n), top_ids, top_values, out)


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
    size = 2 * room + room // 64 + 32
    floats = floats_at(task[VALUES] + thread * size * 4, size)
    size = BINS + room // CHUNK
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
