"""Plain NumPy twins of the kernels: the same operations in the same order, to the same bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from octavo.backends.cpu import plan
from tiny_quants import IQ4_NL_LEVELS

if TYPE_CHECKING:
    from octavo.backends.cpu.formats import Coded, Format

F = np.float32


def fma(x, y, z):
    """x * y + z in float32, rounded once: float64 rounded to odd, then to float32."""
    with np.errstate(all="ignore"):
        product = np.asarray(x, np.float64) * np.asarray(y, np.float64)  # exact
        z = np.asarray(z, np.float64)
        total = product + z
        # What the addition lost (Knuth's two-sum)
        part = total - product
        lost = (product - (total - part)) + (z - part)
        even = (total.view(np.int64) & 1) == 0
        nudge = (lost != 0) & even & np.isfinite(total)
        towards = np.where(lost > 0, np.inf, -np.inf)
        total = np.where(nudge, np.nextafter(total, towards), total)
        return total.astype(F)


def tree_sum(v):
    """Sum the last axis, 16 lanes, by the kernels' tree."""
    while v.shape[-1] > 1:
        half = v.shape[-1] // 2
        v = v[..., :half] + v[..., half:]
    return v[..., 0]


def exp(x):
    x = np.asarray(x, F)
    with np.errstate(all="ignore"):
        x = np.where(F(-87.33654) > x, F(-87.33654), x)
        x = np.where(F(88.0) < x, F(88.0), x)
        magic = F(1.5 * 2**23)
        shifted = fma(x, F(1.44269504), magic)
        n = shifted - magic
        r = fma(n, F(2.12194440e-4), fma(n, F(-0.693359375), x))
        p = fma(F(1.9875691500e-4), r, F(1.3981999507e-3))
        for c in (8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
            p = fma(p, r, F(c))
        power = ((shifted.view(np.int32) + np.int32(127)) << 23).view(F)
        return (fma(p, r * r, r) + F(1)) * power


def silu(x):
    return x / (F(1) + exp(F(0) - x))


def gelu_tanh(x):
    u = fma(x * x * x, F(0.044715), x) * F(2 * (2 / np.pi) ** 0.5)
    return x / (F(1) + exp(F(0) - u))


def quantise(x):
    """Rows [M, K] to codes, scales [M, K / 32], sums, half sums [M, K / 16], starts [M, K / 8]."""
    groups = x.reshape(len(x), -1, 32)
    bad = ~np.isfinite(groups).all(axis=2)
    with np.errstate(all="ignore"):
        most = np.where(bad, F(0), np.abs(groups).max(axis=2)).astype(F)
        small = most < F(2.0**-100)
        scale = np.where(small, F(0), most / F(127)).astype(F)
        inverse = np.where(small, F(0), F(127) / most).astype(F)
        codes = np.rint(np.where(bad[..., None], F(0), groups) * inverse[..., None])
    scale = np.where(bad, F(np.nan), scale)
    codes = codes.astype(np.int8)
    halves = codes.astype(np.int32).reshape(len(x), -1, 2, 16).sum(axis=3)
    sums = scale * halves.sum(axis=2).astype(F)
    half_sums = scale[..., None] * halves.astype(F)
    total = halves.sum(axis=2)
    parts = (-8 * total, -128 * total, -128 * halves.reshape(len(x), -1))
    starts = np.concatenate(parts, axis=1).astype(np.int32)
    return codes.reshape(x.shape), scale, sums, half_sums.reshape(len(x), -1), starts


def padded_rows(x, unit=32):
    room = -(-x.shape[1] // unit) * unit
    return np.pad(x, ((0, 0), (0, room - x.shape[1])))


def inverse_root(x, size, eps):
    rows = padded_rows(x).reshape(len(x), -1, 2, 16)
    chains = np.zeros((len(x), 2, 16), F)
    for i in range(rows.shape[1]):
        chains = fma(rows[:, i], rows[:, i], chains)
    mean = tree_sum(chains[:, 0] + chains[:, 1]) / F(size)
    return F(1) / np.sqrt(mean + F(eps))


def rms_norm(x, weight, eps):
    return x * inverse_root(x, x.shape[1], eps)[:, None] * weight


def layer_norm(x, weight, bias, eps):
    rows = padded_rows(x).reshape(len(x), -1, 2, 16)
    chains = np.zeros((len(x), 2, 16), F)
    for i in range(rows.shape[1]):
        chains = chains + rows[:, i]
    mean = tree_sum(chains[:, 0] + chains[:, 1]) / F(x.shape[1])
    centred = x - mean[:, None]
    scaled = centred * inverse_root(centred, x.shape[1], eps)[:, None]
    return fma(scaled, weight, bias)


def rotate(x, cos, sin, dim, interleaved):
    """Heads [M, head_dim] by tables [M, dim / 2]."""
    out = x.copy()
    half = dim // 2
    first, second = (
        (slice(0, dim, 2), slice(1, dim, 2)) if interleaved else (slice(0, half), slice(half, dim))
    )
    a, b = x[:, first], x[:, second]
    out[:, first] = a * cos - b * sin
    out[:, second] = a * sin + b * cos
    return out


def codes_of(coded: Coded, form: Format):
    """The codes [N, K] of packed rows, 4-bit ones spread, IQ4_NL's looked up."""
    if form.bits == 8:
        return coded.codes.astype(np.int32)
    pairs = coded.codes.reshape(len(coded.codes), -1, 16)
    codes = np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(len(pairs), -1)
    if form.kind == plan.IQ4:
        return np.array(IQ4_NL_LEVELS, np.int32)[codes] + form.offset
    return codes.astype(np.int32)


def matmul_codes(x, coded: Coded, form: Format):
    """Quantise rows [M, K] and multiply them with coded rows [N, K]: [M, N]."""
    codes, scales, sums, half_sums, _ = quantise(x)
    weights = codes_of(coded, form)
    acc = np.zeros((len(x), len(weights)), F)
    row_sums = sums if form.group == 32 else half_sums
    for g in range(x.shape[1] // form.group):
        part = slice(g * form.group, (g + 1) * form.group)
        dot = codes[:, part].astype(np.int32) @ (weights[:, part] - form.offset).T
        row_scale = scales[:, g * form.group // 32, None]
        acc = fma(dot.astype(F), coded.scales[:, g].astype(F) * row_scale, acc)
        if coded.minima is not None:
            acc = fma(coded.minima[:, g].astype(F), row_sums[:, g, None], acc)
    return acc


def matmul_floats(x, weights):
    acc = np.zeros((len(x), len(weights)), F)
    for k in range(x.shape[1]):
        acc = fma(weights[None, :, k], x[:, k, None], acc)
    return acc


def attend_row(q, keys, values, first, scale):
    """One query [head_dim] over tokens ``first`` to the end of keys and values [., head_dim]."""
    q = q * F(scale)
    end, hd = keys.shape
    nothing = F(-1e30)
    total = None
    for segment in range(first // 512 * 512, end, 512):
        m, sums, out = nothing, np.zeros(16, F), np.zeros(hd, F)
        for chunk in range(max(segment, first // 64 * 64), min(segment + 512, end), 64):
            low, high = max(first - chunk, 0), min(end - chunk, 64)
            s = np.full(64, nothing, F)
            score = np.zeros(high - low, F)
            for d in range(hd):
                score = fma(q[d], keys[chunk + low : chunk + high, d], score)
            s[low:high] = score
            new = max(m, s.max())
            p = np.zeros(64, F)
            p[low:high] = exp(s[low:high] - new)
            four = p.reshape(4, 16)
            chunk_sum = (four[0] + four[1]) + (four[2] + four[3])
            if new != m:
                shrink = exp(F(m - new))
                sums, out = fma(sums, shrink, chunk_sum), out * shrink
            else:
                sums = sums + chunk_sum
            m = new
            for t in range(low, high):
                out = fma(p[t], values[chunk + t], out)
        if total is None:
            total = (m, sums, out)
            continue
        old, old_sums, old_out = total
        new = max(old, m)
        a, b = exp(F(old - new)), exp(F(m - new))
        total = (new, fma(old_sums, a, sums * b), fma(old_out, a, out * b))
    _, sums, out = total
    return out * (F(1) / tree_sum(sums))
