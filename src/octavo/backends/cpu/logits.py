"""Kernels that pass over one row of logits: largest, weights, sums, likeliest, thresholds, a draw.

`octavo.sampling` defines the arithmetic in NumPy; the bits are equal, so there is no fma. No row is
sorted. A row is only read; what lies past its last whole vector is copied to ``tail``, filled up
with -inf. Constants are repeated here, for the compiled cache knows the files of backends alone.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from octavo.backends.cpu.sampling_plan import BINS, CHUNK
from octavo.backends.cpu.simd import (
    INT_ZERO,
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
from octavo.backends.cpu.words import (
    count_lanes,
    first_lane,
    float_of_key,
    keep_at_least,
    lanes_above,
    lanes_at_least,
    lanes_of_bin,
    order_key,
    power_below,
    sum_lanes_f64,
    widen,
    zero_f64,
)

Number: TypeAlias = Any
"""In annotations: a number of NumPy's or Python's."""

MINUS_INFINITY, ONE, ZERO = np.float32(-np.inf), np.float32(1), np.float32(0)
_INFINITY_BITS = 0x7F800000
_EXP_FLOOR, _LOG2_E = np.float32(-87.5), np.float32(1.4426950408889634)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.121944400546905827679e-4)
_C7, _C6, _C5, _C4, _C3, _C2, _C1, _C0 = (
    np.float32(2.0 / math.factorial(k)) for k in range(7, -1, -1)
)

# -- passes over a row ----------------------------------------------------------------------------


@inlined
def vector(x: Floats, at: int, i: int, n: int, tail: Floats) -> Any:
    """The vector of a row's ids ``i`` to ``i`` + 15; past the last id it holds -inf."""
    if i + 16 <= n:
        return load_f32(x, at + i)
    return load_f32(tail, 0)


@kernel
def copy_tail(x: Floats, at: int, n: int, tail: Floats) -> None:
    """Copy what lies past a row's last whole vector to ``tail``."""
    store_f32(tail, 0, splat(MINUS_INFINITY))
    for i in range(n // 16 * 16, n):
        tail[i % 16] = x[at + i]


@kernel
def largest_of(x: Floats, at: int, n: int, tail: Floats) -> Any:
    """The largest of a row, never -0.0; NaN if there is one."""
    a, b = splat(MINUS_INFINITY), splat(MINUS_INFINITY)
    bits = magnitude_bits(a)
    last = (n - 1) // 16 * 16
    for i in range(0, n, 32):
        v, w = vector(x, at, i, n, tail), vector(x, at, min(i + 16, last), n, tail)
        a, b = larger(v, a), larger(w, b)
        bits = larger_i32(larger_i32(magnitude_bits(v), magnitude_bits(w)), bits)
    if max_lanes_i32(bits) > _INFINITY_BITS:
        return np.float32(np.nan)
    return max_lanes(larger(a, b)) + ZERO


@kernel
def first_at_least(x: Floats, at: int, n: int, tail: Floats, value: Number) -> Any:
    """The lowest id whose value is at least ``value``; there is one."""
    bound = splat(value)
    for i in range(0, n, 16):
        mask = lanes_at_least(vector(x, at, i, n, tail), bound)
        if mask != 0:
            return np.int64(i + first_lane(mask))
    return np.int64(-1)


@kernel
def count_above(x: Floats, at: int, n: int, tail: Floats, value: Number) -> Any:
    """How many of a row are more than ``value``."""
    bound, count = splat(value), 0
    for i in range(0, n, 16):
        count += count_lanes(lanes_above(vector(x, at, i, n, tail), bound))
    return count


@kernel
def keep_top(
    x: Floats, at: int, n: int, tail: Floats, count: int, ids: Ints, values: Floats, out: int
) -> None:
    """The ``count`` likeliest of a row, falling, ties by rising id; ``count`` <= n.

    They are kept in order while passing over the row: few get in.
    """
    held = 0
    for i in range(0, n if count > 0 else 0, 16):
        mask = np.int32(65535)
        if held == count:
            mask = lanes_above(vector(x, at, i, n, tail), splat(values[out + count - 1]))
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
def weigh(
    x: Floats, at: int, n: int, tail: Floats, largest: Number, temperature: Number, least: Number,
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
            v = vector(x, at, i, n, tail)
            w = zero_f32()
            if lanes_at_least(v, bound) != 0:
                shifted = v - top
                if temperature != ONE:
                    shifted = shifted / divisor
                w = keep_at_least(_exp(shifted), v, bound)
            store_f32(weights, i, w)
            lanes = lanes + widen(w)
        total += sum_lanes_f64(lanes)
        running[c // CHUNK] = total
    return total


@kernel
def drop_below(weights: Floats, n: int, threshold: Number, running: Floats) -> None:
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
def pick(weights: Floats, n: int, running: Floats, number: Number) -> Any:
    """The id at which the running sum passes ``number`` * total: `sampler._draw`."""
    last = (n - 1) // CHUNK
    goal = number * running[last]
    chunk = 0
    while chunk < last and not running[chunk] > goal:
        chunk += 1
    total = running[chunk - 1] if chunk > 0 else 0.0
    found = -1
    for i in range(chunk * CHUNK, min(chunk * CHUNK + CHUNK, n)):
        if weights[i] > ZERO:
            found = i
            total += np.float64(weights[i])
            if total > goal:
                break
    return found


# -- radix select ---------------------------------------------------------------------------------


@kernel
def _bin_up(
    x: Floats, n: int, bins: Floats, shift: Number, prefix: Number, floor: Number, by_value: Number
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
            bins[part] += np.float64(value) if by_value != 0 else 1.0


@kernel
def _select(
    x: Floats, n: int, bins: Floats, goal: Number, by_value: Number, floor: Number
) -> Any:  # fmt: skip
    """The smallest of the largest values that together reach ``goal``, as an order key.

    They count by value (`nucleus_threshold`) or one each (the goal-th largest). ``n`` is a multiple
    of 16. Values below ``floor`` are not looked at first; returns -1 if the others do not reach it.
    """
    above, prefix = 0.0, INT_ZERO
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
def kth_largest(
    x: Floats, at: int, n: int, tail: Floats, k: Number, room: Floats, maxima: Floats, bins: Floats
) -> Any:  # fmt: skip
    """The k-th largest of a row, k < n.

    At least k values reach the k-th largest of the blocks' maxima: smaller ones need no look.
    """
    num_blocks = (n + 63) // 64
    cut, one_each = MINUS_INFINITY, n - n
    if k <= num_blocks:
        store_f32(maxima, num_blocks // 16 * 16, splat(MINUS_INFINITY))
        for block in range(num_blocks):
            most = splat(MINUS_INFINITY)
            for i in range(block * 64, min(block * 64 + 64, n), 16):
                most = larger(vector(x, at, i, n, tail), most)
            maxima[block] = max_lanes(most)
        size = (num_blocks + 15) // 16 * 16
        cut = float_of_key(
            np.int32(_select(maxima, size, bins, np.float64(k), one_each, MINUS_INFINITY))
        )
    count, bound = 0, splat(cut)
    for i in range(0, n, 16):
        mask = lanes_at_least(vector(x, at, i, n, tail), bound)
        while mask != 0:
            token = i + np.int64(first_lane(mask))
            mask &= mask - np.int32(1)
            if token < n:
                room[count] = x[at + token]
                count += 1
    size = (count + 15) // 16 * 16
    for i in range(count, size):
        room[i] = MINUS_INFINITY
    key = _select(room, size, bins, np.float64(k), one_each, MINUS_INFINITY)
    return float_of_key(np.int32(key))


@kernel
def nucleus(weights: Floats, n: int, bins: Floats, top_p: Number, total: Number) -> Any:
    """`nucleus_threshold` for the goal top_p * total.

    Weights under half of (1 - top_p) of the mean cannot be it: together they hold less than that
    part of the total. Should rounding spoil that, all are looked at.
    """
    size, goal = (n + 15) // 16 * 16, top_p * total
    floor = order_key(np.float32(0.5 * (1.0 - top_p) * total / n))
    # A whole bin is below the floor, or none of it.
    by_value = np.int64(1)
    key = _select(weights, size, bins, goal, by_value, float_of_key(np.int32(floor >> 20 << 20)))
    if key < 0:
        key = _select(weights, size, bins, goal, by_value, ZERO)
    return float_of_key(np.int32(max(key, 0)))
