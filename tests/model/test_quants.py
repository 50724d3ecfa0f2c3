"""Dequantisation equals the gguf package's, bit for bit, and the formulas as written out."""

from __future__ import annotations

import struct

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES

from octavo.model.gguf import GGUFFile
from octavo.model.quants import BLOCK_LAYOUTS, SUPPORTED_TYPES, GGMLType, dequantize
from tiny_model import quantize

KINDS = sorted(SUPPORTED_TYPES)
# Zeros, subnormals, one, the largest, infinities: every kind of float16 but NaN.
SPECIAL_HALVES = (0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0x7C00, 0xFC00)


def oracle(kind: GGMLType, data: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(data, gguf.GGMLQuantizationType(kind))


def bits(values: np.ndarray) -> np.ndarray:
    """Bits, so that -0 and 0 differ; every NaN counts as the same."""
    return np.where(np.isnan(values), np.float32(np.nan), values).view(np.uint32)


def random_blocks(kind: GGMLType, num_blocks: int, seed: int) -> np.ndarray:
    """Random bytes with ordinary or special scales: [num_blocks, block bytes]."""
    rng = np.random.default_rng(seed)
    elements, num_bytes = BLOCK_LAYOUTS[kind]
    blocks = rng.integers(0, 256, (num_blocks, num_bytes), dtype=np.uint8)
    if elements == 1:
        return blocks
    num_halves = 2 if kind is GGMLType.Q4_1 else 1
    halves = rng.normal(0, 0.1, (num_blocks, num_halves)).astype("<f2")
    special = rng.random((num_blocks, num_halves)) < 0.2
    halves[special] = rng.choice(SPECIAL_HALVES, special.sum()).astype("<u2").view("<f2")
    blocks[:, : 2 * num_halves] = halves.view(np.uint8)
    return blocks


def test_the_table_of_sizes_is_ggml_s() -> None:
    assert {kind.name: tuple(layout) for kind, layout in BLOCK_LAYOUTS.items()} == {
        kind.name: sizes for kind, sizes in GGML_QUANT_SIZES.items()
    }
    assert all(GGMLType[kind.name] == kind.value for kind in gguf.GGMLQuantizationType)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_blocks", [1, 7, 20_000])  # the last spans several chunks
def test_random_bytes_equal_the_oracle_bit_for_bit(kind: GGMLType, num_blocks: int) -> None:
    blocks = random_blocks(kind, num_blocks, seed=num_blocks)
    values = dequantize(kind, blocks.reshape(-1), (num_blocks, BLOCK_LAYOUTS[kind].elements))
    assert values.dtype == np.float32
    np.testing.assert_array_equal(bits(values), bits(oracle(kind, blocks)))


@pytest.mark.parametrize("kind", [GGMLType.F16, GGMLType.BF16])
def test_every_16_bit_pattern_is_widened_exactly(kind: GGMLType) -> None:
    patterns = np.arange(65_536, dtype="<u2")
    values = dequantize(kind, patterns.view(np.uint8), (256, 256)).reshape(-1)
    np.testing.assert_array_equal(bits(values), bits(oracle(kind, patterns.view(np.uint8))))


@pytest.mark.parametrize(
    ("kind", "block", "expected"),
    [
        (
            GGMLType.Q4_0,
            struct.pack("<e16B", 0.5, *(0x10 * (15 - i) + i for i in range(16))),
            [0.5 * (i - 8) for i in range(16)] + [0.5 * (7 - i) for i in range(16)],
        ),
        (
            GGMLType.Q4_1,
            struct.pack("<ee16B", 0.25, -3.0, *(0x10 * (15 - i) + i for i in range(16))),
            [0.25 * i - 3 for i in range(16)] + [0.25 * (15 - i) - 3 for i in range(16)],
        ),
        (
            GGMLType.Q8_0,
            struct.pack("<e32b", -2.0, *range(-128, 128, 8)),
            [-2.0 * i for i in range(-128, 128, 8)],
        ),
        (GGMLType.BF16, bytes.fromhex("803f 00c0 0100"), [1.0, -2.0, 2.0**-133]),
    ],
)
def test_a_block_written_out_by_hand(kind: GGMLType, block: bytes, expected: list[float]) -> None:
    values = dequantize(kind, np.frombuffer(block, np.uint8), (len(expected),))
    assert values.tolist() == expected


@pytest.mark.parametrize("kind", KINDS)
def test_the_result_is_new_and_writable_and_its_source_unchanged(kind: GGMLType) -> None:
    data = random_blocks(kind, 64, seed=1).reshape(-1)
    before = data.copy()
    data.flags.writeable = False
    values = dequantize(kind, data, (2, 32 * BLOCK_LAYOUTS[kind].elements))
    values[:] = 1
    np.testing.assert_array_equal(data, before)


@pytest.mark.parametrize("kind", KINDS)
def test_quantised_values_come_back_close(kind: GGMLType) -> None:
    values = np.random.default_rng(3).normal(size=(8, 64)).astype(np.float32)
    data = np.frombuffer(quantize(values, kind.name), np.uint8)
    error = np.linalg.norm(dequantize(kind, data, (8, 64)) - values) / np.linalg.norm(values)
    limits = {GGMLType.F32: 0.0, GGMLType.F16: 1e-3, GGMLType.Q8_0: 1e-2, GGMLType.BF16: 1e-2}
    assert error <= limits.get(kind, 0.12)


def test_the_real_model_equals_the_oracle(smollm2_path) -> None:
    tensors = GGUFFile.open(smollm2_path).tensors
    for name in ("token_embd.weight", "blk.0.attn_q.weight", "blk.29.ffn_down.weight"):
        tensor = tensors[name]
        rows = slice(0, 512)  # the oracle is slow
        data = tensor.data.reshape(tensor.shape[0], -1)[rows]
        np.testing.assert_array_equal(
            bits(tensor.dequantize()[rows]), bits(oracle(tensor.type, data))
        )
