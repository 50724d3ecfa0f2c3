"""What a step has to move and to compute, against numbers worked out by hand and by brute force."""

from __future__ import annotations

from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.cpu.models import spec, weights
from octavo.backends.cpu.backend import CpuBackend
from octavo.bench.counts import ModelWork, Work


def counted(s, kind="Q4_0", **more) -> ModelWork:
    return ModelWork(CpuBackend(s, weights(s, kind, **more), num_blocks=1, num_threads=1))


# Two layers, 64 wide, 128 inside, 4 heads and 2 KV heads of 16, a vocabulary of 288. Q4_0: 16 bytes
# and a scale of 2 for each 32 weights; rows are padded to 64, so k and v to twice their size.
PRODUCTS = {
    "qkv": (2 * 192 * 64 * 18 // 32, 2 * 2 * (64 + 64 + 32) * 64),
    "output": (2 * 64 * 64 * 18 // 32, 2 * 2 * 64 * 64),
    "feed": (2 * 256 * 64 * 18 // 32, 2 * 2 * 256 * 64),
    "down": (2 * 64 * 128 * 18 // 32, 2 * 2 * 64 * 128),
    "head": (320 * 64 * 18 // 32, 2 * 288 * 64),
}
KV_BYTES = 2 * 2 * 2 * 16 * 2  # of a token: two layers, keys and values, two heads, float16


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_of_4_bit_weights(name):
    num_bytes, ops = PRODUCTS[name]
    work = counted(spec())
    assert work.phase(name, 1) == Work(num_bytes, ops, 0)
    assert work.phase(name, 512) == Work(num_bytes, 512 * ops, 0)


def test_float_weights_are_float_operations():
    work = counted(spec(), kinds={"ffn_down": "F16", "attn_v": "F32"})
    assert work.phase("down", 3) == Work(2 * 64 * 128 * 2, 0, 3 * 2 * 2 * 64 * 128)
    assert work.phase("qkv", 1) == Work(
        2 * (128 * 64 * 18 // 32 + 64 * 64 * 4), 2 * 2 * (64 + 32) * 64, 2 * 2 * 32 * 64
    )


def test_shapes_are_outputs_and_inputs():
    work = counted(spec())
    assert [work.shape(name) for name in ("output", "feed", "down", "head")] == [
        (64, 64),
        (256, 64),
        (64, 128),
        (288, 64),
    ]


def test_attention_of_one_token_reads_all_before_it_and_stores_itself():
    assert counted(spec()).attention(1, 100) == Work(101 * KV_BYTES, 0, 2 * 4 * 4 * 16 * 100)


def test_a_step_reads_each_weight_once():
    work = counted(spec())
    found = work.step([(3, 3), (1, 100)], 2)
    layers = [PRODUCTS[name] for name in ("qkv", "output", "feed", "down")]
    head = PRODUCTS["head"]
    assert astuple(found) == (
        sum(num_bytes for num_bytes, _ in layers) + head[0] + (6 + 101) * KV_BYTES,
        4 * sum(ops for _, ops in layers) + 2 * head[1],
        2 * 4 * 4 * 16 * (1 + 2 + 3 + 100),
    )


WINDOWED = spec(windows=(24, None))
WINDOWED_WORK = counted(WINDOWED)


@given(st.integers(1, 80), st.integers(0, 80))
def test_windows_are_what_each_token_sees(num_tokens, before):
    context = before + num_tokens
    num_bytes = float_ops = 0
    for window in (24, context):
        seen = [range(max(0, i + 1 - window), i + 1) for i in range(before, context)]
        float_ops += sum(4 * 4 * 16 * len(tokens) for tokens in seen)
        read = {token for tokens in seen for token in tokens}
        num_bytes += (len(read) + num_tokens) * KV_BYTES // 2
    assert WINDOWED_WORK.attention(num_tokens, context) == Work(num_bytes, 0, float_ops)
