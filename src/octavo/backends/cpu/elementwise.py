"""What happens to a row between two matrix products: norms, rotation, activation, quantisation.

Each function works on one row and reads nothing else, so a row's bits depend on that row alone.
Rows are float32 arrays at an offset; the room of a row is a multiple of 32, and what lies past its
last value is zero, so every loop runs over whole vectors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.backends.cpu import plan as p
from octavo.backends.cpu.dots import IQ4_VALUES
from octavo.backends.cpu.layout import CHUNK, CLAMPED, GROUP_SIZE
from octavo.backends.cpu.simd import (
    F32x16,
    Floats,
    Ints,
    absolute,
    alternate_high,
    alternate_low,
    even_lanes,
    fetch,
    first_sums,
    floats_of_bits,
    fma,
    gelu_tanh,
    inlined,
    keep_below,
    kernel,
    larger,
    larger_i32,
    largest_across,
    load_f32,
    magnitude_bits,
    max_lanes_i32,
    minus_8_times,
    minus_128_times,
    nearest,
    odd_lanes,
    paired,
    regs_f32,
    regs_i32,
    scalar_bf16,
    scalar_f16,
    scalar_f32,
    second_sums,
    silu,
    smaller,
    splat,
    splat_lane,
    store_codes,
    store_f16,
    store_f16_apart,
    store_f32,
    store_first,
    sum_lanes,
    sums_across,
    to_f32,
    where_less,
    zero_f32,
)
from octavo.backends.cpu.team import atomic_add
from octavo.backends.cpu.tiles import record_of

if TYPE_CHECKING:
    from octavo.backends.cpu.arrays import Codes

_ZERO, _ONE, _MOST = np.float32(0), np.float32(1), np.float32(127)
_INFINITY, _INFINITY_BITS, _NAN = np.float32(np.inf), 0x7F800000, np.float32(np.nan)
_SMALLEST_SCALED = np.float32(2.0**-100)
MAX_STORED = np.float32(65504)
"""The largest finite float16."""
_MAX_STORED_BITS = 0x477FE000

AHEAD = 512
"""How many floats ahead memory is asked for: rows follow each other, and a core reads them faster
than the next cache finds out by itself."""


@kernel
def quantise_row(
    x: Floats,
    at: int,
    size: int,
    codes: Codes,
    codes_at: int,
    group_at: int,
) -> None:
    """Quantise ``size`` values (a multiple of 32) to int8 by groups of 32.

    scale = max |x| / 127, code = round(x * (127 / max |x|)). ``sums`` get scale * sum of a group's
    codes, ``half_sums`` the same for each half of it; ``starts``, where a weight's code counts from
    an offset, -offset * sum: for offset 8 of all groups, for 128 of all groups, for 128 of all
    halves. A group with NaN or infinity gets a scale of
    NaN, which spoils the whole row and no other; one with nothing above 2^-100 is all zero.

    Sixteen groups at a time: what is one number a group is then one vector.
    """
    lanes, inverses = regs_i32(16, 1), regs_f32(1, 1)
    for first in range(0, size // GROUP_SIZE, 16):
        count = min(16, size // GROUP_SIZE - first)
        row, code = at + first * GROUP_SIZE, codes_at + first * GROUP_SIZE
        for g in range(count):
            x0, x1 = load_f32(x, row + g * GROUP_SIZE), load_f32(x, row + g * GROUP_SIZE + 16)
            lanes[g, 0] = larger_i32(magnitude_bits(x0), magnitude_bits(x1))
        bits = largest_across(lanes)
        most = floats_of_bits(bits)
        inverses[0, 0] = where_less(most, splat(_SMALLEST_SCALED), zero_f32(), splat(_MOST) / most)
        for g in range(count):
            inverse = splat_lane(inverses, g)
            q0 = nearest(load_f32(x, row + g * GROUP_SIZE) * inverse)
            q1 = nearest(load_f32(x, row + g * GROUP_SIZE + 16) * inverse)
            store_codes(codes.codes, code + g * GROUP_SIZE, q0, q1)
            lanes[g, 0] = paired(q0, q1)
        scale = where_less(most, splat(_SMALLEST_SCALED), zero_f32(), most / splat(_MOST))
        scale = where_less(most, splat(_INFINITY), scale, splat(_NAN))
        total = sums_across(lanes)
        low, high = first_sums(total), second_sums(total)
        group = group_at + first
        store_first(codes.scales, group, scale, count)
        store_first(codes.sums, group, scale * to_f32(low + high), count)
        _store_halves(codes.half_sums, 2 * group, scale * to_f32(low), scale * to_f32(high), count)
        # From here on as many as there are groups, then as many again, then twice as many.
        starts, start, groups = codes.starts, 4 * group_at + first, size // GROUP_SIZE
        store_first(starts, start, floats_of_bits(minus_8_times(low + high)), count)
        store_first(starts, start + groups, floats_of_bits(minus_128_times(low + high)), count)
        low, high = minus_128_times(low), minus_128_times(high)
        start += 2 * groups + first
        _store_halves(starts, start, floats_of_bits(low), floats_of_bits(high), count)
        if max_lanes_i32(bits) >= _INFINITY_BITS:
            for g in range(count):
                if np.isnan(codes.scales[group + g]):
                    for i in range(GROUP_SIZE):
                        codes.codes[code + g * GROUP_SIZE + i] = 0


@inlined
def _store_halves(target: Any, at: int, low: Any, high: Any, count: int) -> None:
    """Write the first ``count`` numbers of ``low`` and of ``high`` in turn."""
    store_first(target, at, alternate_low(low, high), 2 * count)
    store_first(target, at + 16, alternate_high(low, high), 2 * count - 16)


@inlined
def _mean(total: float, size: int) -> Any:
    return np.float32(total) / np.float32(size)


@kernel
def _inverse_root(x: Floats, at: int, size: int, eps: float) -> Any:
    """1 / sqrt(mean of squares + eps): two chains of sixteen lanes, then the tree."""
    a, b = zero_f32(), zero_f32()
    for i in range(0, size, 32):
        x0 = keep_below(load_f32(x, at + i), size - i, _ZERO)
        x1 = keep_below(load_f32(x, at + i + 16), size - i - 16, _ZERO)
        a, b = fma(x0, x0, a), fma(x1, x1, b)
    mean = _mean(sum_lanes(a + b), size)
    return _ONE / np.float32(np.sqrt(mean + np.float32(eps)))


@kernel
def rms_norm_row(
    x: Floats,
    at: int,
    weights: Floats,
    weight: int,
    out: Floats,
    out_at: int,
    size: int,
    eps: float,
) -> None:
    """x / sqrt(mean(x^2) + eps) * weight; what lies past ``size`` in the last 32 becomes 0."""
    root = splat(_inverse_root(x, at, size, eps))
    for i in range(0, size, 16):
        y = load_f32(x, at + i) * root * load_f32(weights, weight + i)
        store_f32(out, out_at + i, keep_below(y, size - i, _ZERO))
    if (size + 15) // 16 % 2 == 1:
        store_f32(out, out_at + (size + 15) // 16 * 16, zero_f32())


@kernel
def layer_norm_row(
    x: Floats,
    at: int,
    weights: Floats,
    weight: int,
    bias: int,
    out: Floats,
    out_at: int,
    size: int,
    eps: float,
) -> None:
    """(x - mean) / sqrt(var + eps) * weight + bias; past ``size`` as in `rms_norm_row`."""
    a, b = zero_f32(), zero_f32()
    for i in range(0, size, 32):
        a = a + keep_below(load_f32(x, at + i), size - i, _ZERO)
        b = b + keep_below(load_f32(x, at + i + 16), size - i - 16, _ZERO)
    mean = splat(_mean(sum_lanes(a + b), size))
    for i in range(0, size, 16):
        store_f32(out, out_at + i, load_f32(x, at + i) - mean)
    root = splat(_inverse_root(out, out_at, size, eps))
    for i in range(0, size, 16):
        scaled = load_f32(out, out_at + i) * root
        y = fma(scaled, load_f32(weights, weight + i), load_f32(weights, bias + i))
        store_f32(out, out_at + i, keep_below(y, size - i, _ZERO))
    if (size + 15) // 16 % 2 == 1:
        store_f32(out, out_at + (size + 15) // 16 * 16, zero_f32())


@kernel
def add_row(x: Floats, at: int, y: Floats, y_at: int, size: int) -> None:
    """x += y."""
    for i in range(0, size, 16):
        fetch(x, at + i + AHEAD)
        fetch(y, y_at + i + AHEAD)
        store_f32(x, at + i, load_f32(x, at + i) + load_f32(y, y_at + i))


@kernel
def gate_row(x: Floats, gate: int, up: int, out: Floats, out_at: int, size: int, kind: int) -> None:
    """out = activation(x[gate:]) * x[up:], or without a gate (-1) activation(x[up:])."""
    for i in range(0, size, 16):
        u = load_f32(x, up + i)
        g = load_f32(x, gate + i) if gate >= 0 else u
        y = silu(g) if kind == p.SILU else gelu_tanh(g)
        store_f32(out, out_at + i, y * u if gate >= 0 else y)


@kernel
def rotate_head(
    x: Floats, at: int, tables: Floats, cos: int, sin: int, dim: int, interleaved: bool
) -> None:
    """Turn each pair (a, b) of a head: (a cos - b sin, a sin + b cos), each product rounded.

    Pairs are (2i, 2i + 1), or (i, i + dim / 2); dimensions past ``dim`` stay.
    """
    half = dim // 2
    whole = half - half % 16
    for i in range(0, whole, 16):
        c, s = load_f32(tables, cos + i), load_f32(tables, sin + i)
        if interleaved:
            x0, x1 = load_f32(x, at + 2 * i), load_f32(x, at + 2 * i + 16)
            a, b = even_lanes(x0, x1), odd_lanes(x0, x1)
            y0, y1 = a * c - b * s, a * s + b * c
            store_f32(x, at + 2 * i, alternate_low(y0, y1))
            store_f32(x, at + 2 * i + 16, alternate_high(y0, y1))
        else:
            a, b = load_f32(x, at + i), load_f32(x, at + half + i)
            store_f32(x, at + i, a * c - b * s)
            store_f32(x, at + half + i, a * s + b * c)
    step, apart = (2, 1) if interleaved else (1, half)
    for i in range(whole, half):
        a, b = x[at + i * step], x[at + i * step + apart]
        c, s = tables[cos + i], tables[sin + i]
        x[at + i * step] = a * c - b * s
        x[at + i * step + apart] = a * s + b * c


@inlined
def clamp_stored(x: F32x16) -> F32x16:
    """Hold x within the finite float16 (a NaN stays)."""
    return smaller(splat(MAX_STORED), larger(splat(-MAX_STORED), x))


@kernel
def store_head(
    sync: Ints, x: Floats, at: int, head_dim: int, blocks: Ints, block_at: int, lane: int,
    is_key: bool,
) -> None:  # fmt: skip
    """Store a head as float16: a key in its lane of a block [head_dim, 16], a value in its row.

    A block of values is [16, head_dim]. What `clamp_stored` changes is counted.
    """
    most = zero_f32()
    for d in range(0, head_dim, 16):
        y = load_f32(x, at + d)
        most = larger(absolute(y), most)
        if is_key:
            store_f16_apart(blocks, block_at + d * 16 + lane, clamp_stored(y))
        else:
            store_f16(blocks, block_at + lane * head_dim + d, clamp_stored(y))
    if max_lanes_i32(magnitude_bits(most)) > _MAX_STORED_BITS:
        count = 0
        for d in range(head_dim):
            if abs(x[at + d]) > MAX_STORED:
                count += 1
        atomic_add(sync, CLAMPED, count)


@kernel
def embed_row(arena: Ints, d: Ints, token: int, factor: float, out: Floats, at: int) -> None:
    """out = row ``token`` of a packed matrix, as its file's dequantisation gives it, * factor."""
    columns, kind = d[p.COLUMNS], d[p.KIND]
    lane = token % CHUNK
    if kind <= p.U8:
        record = record_of(d, token // 16)
        for k in range(columns):
            value = _coded_value(arena, d, record + k // 32 * d[p.RECORD], lane, k % 32)
            out[at + k] = value * np.float32(factor)
        return
    first = d[p.PLACE] + token // CHUNK * columns * d[p.RECORD]
    for k in range(columns):
        record = first + k * d[p.RECORD]
        if kind == p.F32:
            value = scalar_f32(arena, record + lane * 4)
        elif kind == p.F16:
            value = scalar_f16(arena, record + lane * 2)
        else:
            value = scalar_bf16(arena, record + lane * 2)
        out[at + k] = value * np.float32(factor)


@inlined
def _coded_value(arena: Ints, d: Ints, record: int, lane: int, k: int) -> Any:
    """scale * code + minimum, each operation rounded, as the file's type defines it."""
    if d[p.KIND] == p.U4 or d[p.KIND] == p.IQ4:
        pair = arena[record + d[p.CODES] + (k % 16 // 4 * CHUNK + lane) * 4 + k % 4]
        code = np.int64(pair >> 4 if k >= 16 else pair & 15)
        if d[p.KIND] == p.IQ4:
            code = np.int64(IQ4_VALUES[code])
    else:
        code = np.int64(arena[record + d[p.CODES] + (k // 4 * CHUNK + lane) * 4 + k % 4])
    place = k * d[p.PARTS] // 32 * CHUNK + lane
    if d[p.WIDE] != 0:
        scale = scalar_f32(arena, record + place * 4)
        minimum = scalar_f32(arena, record + d[p.MINIMA] + place * 4)
    else:
        scale = scalar_f16(arena, record + place * 2)
        minimum = scalar_f16(arena, record + d[p.MINIMA] + place * 2)
    if d[p.MINIMA] == 0:
        return np.float32(code - d[p.OFFSET]) * scale
    return np.float32(code) * scale + minimum
