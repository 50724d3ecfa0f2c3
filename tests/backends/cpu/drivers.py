"""Entry points that let tests call one kernel with arrays, compiled once and kept on disk."""

from __future__ import annotations

from octavo.backends.cpu import attention, elementwise, gemm
from octavo.backends.cpu.arrays import Codes, Weights
from octavo.backends.cpu.attention_phase import Queries, pack_queries, write_rows
from octavo.backends.cpu.compiled import Compiled
from octavo.backends.cpu.simd import exp, gelu_tanh, load_f32, silu, store_f32


def functions(x, a, b, c):
    """exp, silu and gelu_tanh of every element."""
    for i in range(0, x.size, 16):
        v = load_f32(x, i)
        store_f32(a, i, exp(v))
        store_f32(b, i, silu(v))
        store_f32(c, i, gelu_tanh(v))


def quantise(x, size, codes, scales, sums, half_sums, starts):
    """Rows [., size]."""
    for m in range(x.size // size):
        rows = Codes(codes, scales, sums, half_sums, starts)
        elementwise.quantise_row(x, m * size, size, rows, m * size, m * (size // 32))


def rows(x, size, stride, floats, out, kind, eps):
    """A norm or an activation of every row: 0 rms, 1 layer, 2 and 3 gated, 4 and 5 plain."""
    for m in range(x.size // stride):
        at = m * stride
        if kind == 0:
            elementwise.rms_norm_row(x, at, floats, 0, out, at, size, eps)
        elif kind == 1:
            elementwise.layer_norm_row(x, at, floats, 0, size + 64, out, at, size, eps)
        elif kind < 4:
            elementwise.gate_row(x, at, at + stride // 2, out, at, size, kind - 2)
        else:
            elementwise.gate_row(x, -1, at, out, at, size, kind - 4)


def rotate(x, head_dim, floats, dim, interleaved):
    """Heads [., head_dim], tables cos then sin [., dim / 2] in ``floats``."""
    count = x.size // head_dim
    for m in range(count):
        cos = m * (dim // 2)
        elementwise.rotate_head(
            x, m * head_dim, floats, cos, (count + m) * (dim // 2), dim, interleaved != 0
        )


def store(sync, x, head_dim, keys, values, slots):
    """Rows [., head_dim] as keys and as values."""
    for m in range(slots.size):
        block = slots[m] // 16 * 16 * head_dim
        elementwise.store_head(sync, x, m * head_dim, head_dim, keys, block, slots[m] % 16, True)
        elementwise.store_head(sync, x, m * head_dim, head_dim, values, block, slots[m] % 16, False)


def embed(arena, matrices, tokens, out, stride):
    """Rows of the first matrix."""
    for m in range(tokens.size):
        elementwise.embed_row(arena, matrices[0], tokens[m], 1.0, out, m * stride)


def matmul(
    sync, out, stride, x, x_stride, codes, scales, sums, half_sums, starts, num_rows, arena,
    floats, matrices, panel,
):  # fmt: skip
    """All matrices, by one thread."""
    sync[:] = 0
    gemm.matmul(
        sync, 1, out, stride, x, x_stride, Codes(codes, scales, sums, half_sums, starts), num_rows,
        Weights(matrices, arena, floats), 0, matrices.shape[0], panel,
    )  # fmt: skip


def attend(
    x, stride, group, head_dim, num_kv_heads, keys, values, num_blocks, tables, before, window,
    scale, most, out, scratch, limit, low, split,
):  # fmt: skip
    """One sequence's last tokens, in tiles of at most ``most`` rows; ``split``: parts, merged."""
    tokens = x.size // stride
    size = attention.MAX_ROWS * (32 + head_dim)
    parts = scratch[8192 + size :]
    tile = attention.Tile(scratch, scratch[4096:], limit, low, scratch[8192:], parts)
    for kv_head in range(num_kv_heads):
        base = kv_head * num_blocks * head_dim * 16
        blocks = attention.Blocks(keys, values, base, tables, 0)
        for first in range(0, tokens * group, most):
            count = min(most, tokens * group - first)
            queries = Queries(0, kv_head * group, first, count, group)
            n = attention.tile_rows(count)
            pack_queries(n, tile, queries, x, stride, head_dim, scale, before, window)
            if split != 0:
                segments = (limit[n - 1] + 511) // 512
                for i in range(segments):
                    attention.attend_segment(n, tile, blocks, head_dim, i * 512, parts, i * size)
                for i in range(segments):
                    attention.merge(n, tile, head_dim, i * 512, parts, i * size)
            else:
                attention.attend_tile(n, tile, blocks, head_dim)
            write_rows(tile, queries, out, stride, head_dim)


_COMPILED = {
    function: Compiled(__name__, function.__name__, what="a kernel's test")
    for function in (functions, quantise, rows, rotate, store, embed, matmul, attend)
}


def call(driver, *args):
    """Call a driver; everything it is given keeps its type from call to call."""
    _COMPILED[driver].get(args, lambda _: None)(*args)
