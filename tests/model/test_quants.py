"""Dequantisation equals the gguf package's, bit for bit, and the formulas as written out."""

from __future__ import annotations

import struct

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES

from octavo.model.files.gguf import GGUFFile
from octavo.model.files.quants import BLOCK_LAYOUTS, SUPPORTED_TYPES, GGMLType, dequantize
from tiny_quants import FORMATS, IQ4_NL_LEVELS, quantize, random_blocks

KINDS = sorted(SUPPORTED_TYPES)
# Zeros, subnormals, one, the largest, infinities: every kind of float16 but NaN.
SPECIAL_HALVES = (0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0x7C00, 0xFC00)

# Of plain rounding, for normal values: about the most that any sound layout would show.
MAX_ERRORS = {
    "F32": 0.0, "F16": 1e-3, "BF16": 1e-2, "Q8_0": 1e-2, "Q6_K": 0.02, "Q5_K": 0.05, "Q5_1": 0.05,
    "Q5_0": 0.05, "Q4_K": 0.1, "Q4_1": 0.1, "Q4_0": 0.1, "IQ4_NL": 0.1, "Q3_K": 0.22, "Q2_K": 0.35,
}  # fmt: skip


def oracle(kind: GGMLType, data: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(data, gguf.GGMLQuantizationType(kind))


def bits(values: np.ndarray) -> np.ndarray:
    """Bits, so that -0 and 0 differ; every NaN counts as the same."""
    return np.where(np.isnan(values), np.float32(np.nan), values).view(np.uint32)


def hard_blocks(kind: GGMLType, num_blocks: int, seed: int) -> np.ndarray:
    """Random bytes with ordinary and special scales: [num_blocks, block bytes]."""
    rng = np.random.default_rng(seed)
    blocks = random_blocks(rng, kind.name, num_blocks)
    if not FORMATS[kind.name].halves:
        return rng.integers(0, 256, blocks.shape, dtype=np.uint8)
    for at in FORMATS[kind.name].halves:
        special = rng.random(num_blocks) < 0.2
        halves = rng.choice(SPECIAL_HALVES, special.sum()).astype("<u2")
        blocks[special, at : at + 2] = halves.view(np.uint8).reshape(-1, 2)
    return blocks


def test_the_table_of_sizes_is_ggml_s() -> None:
    assert {kind.name: tuple(layout) for kind, layout in BLOCK_LAYOUTS.items()} == {
        kind.name: sizes for kind, sizes in GGML_QUANT_SIZES.items()
    }
    assert all(GGMLType[kind.name] == kind.value for kind in gguf.GGMLQuantizationType)


def test_the_writer_knows_every_supported_type() -> None:
    assert {name: form[:3] for name, form in FORMATS.items()} == {
        kind.name: (kind.value, *BLOCK_LAYOUTS[kind]) for kind in SUPPORTED_TYPES
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_blocks", [1, 7, 2500])  # K-quants' chunks are of 1024 blocks
def test_random_bytes_equal_the_oracle_bit_for_bit(kind: GGMLType, num_blocks: int) -> None:
    blocks = hard_blocks(kind, num_blocks, seed=num_blocks)
    values = dequantize(kind, blocks.reshape(-1), (num_blocks, BLOCK_LAYOUTS[kind].elements))
    assert values.dtype == np.float32
    np.testing.assert_array_equal(bits(values), bits(oracle(kind, blocks)))


@pytest.mark.parametrize("kind", [GGMLType.F32, GGMLType.Q4_1])
def test_tensors_of_several_chunks_equal_the_oracle(kind: GGMLType) -> None:
    num_values = 600_000
    blocks = hard_blocks(kind, num_values // BLOCK_LAYOUTS[kind].elements, seed=2)
    values = dequantize(kind, blocks.reshape(-1), (num_values,))
    np.testing.assert_array_equal(bits(values), bits(oracle(kind, blocks.reshape(-1))))


@pytest.mark.parametrize("half", SPECIAL_HALVES)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if FORMATS[kind.name].halves])
def test_every_special_scale_equals_the_oracle(kind: GGMLType, half: int) -> None:
    blocks = random_blocks(np.random.default_rng(half), kind.name, 8)
    for at in FORMATS[kind.name].halves:
        blocks[:, at : at + 2] = np.array([half], "<u2").view(np.uint8)
    values = dequantize(kind, blocks.reshape(-1), (8, BLOCK_LAYOUTS[kind].elements))
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
        (
            GGMLType.Q5_0,  # the high bits of elements 1 and 16 are set
            struct.pack("<eI16B", 2.0, 1 << 1 | 1 << 16, *(16 * 3 + i for i in range(16))),
            [-32, 2.0, *(2.0 * (i - 16) for i in range(2, 16)), 6.0, *[-26.0] * 15],
        ),
        (
            GGMLType.Q5_1,
            struct.pack("<eeI16B", 0.5, 1.0, 1 << 31, *[0x21] * 16),
            [*[1.5] * 16, *[2.0] * 15, 10.0],
        ),
        (
            GGMLType.IQ4_NL,
            struct.pack("<e16B", 0.5, *(0x10 * (15 - i) + i for i in range(16))),
            [0.5 * level for level in IQ4_NL_LEVELS + IQ4_NL_LEVELS[::-1]],
        ),
        (
            GGMLType.Q2_K,  # group 0: scale 3, min 1; group 15: scale 2, min 4; the others 0
            bytes([0x13, *[0] * 14, 0x42]) + bytes([0b11_00_00_10] * 64) + struct.pack("<ee", 2, 1),
            [*[2.0 * 3 * 2 - 1] * 16, *[0.0] * 224, *[2.0 * 2 * 3 - 4] * 16],
        ),
        (
            GGMLType.Q3_K,  # group 0's scale is 33, group 15's 0, the others' 32, which is nothing
            bytes([1] * 32)
            + bytes([0b10_00_00_01] * 64)
            + bytes([1, *[0] * 7, *[0b10_10_10_10] * 3, 0b00_10_10_10])
            + struct.pack("<e", 0.5),
            [*[0.5 * 1] * 16, *[0.0] * 224, *[0.5 * -32 * (2 - 4)] * 16],
        ),
        (
            GGMLType.Q4_K,  # scale 0 is 63, min 0 is 1; scale 7 is 0b10_0011, min 7 0b01_0101
            struct.pack("<ee", 2.0, 0.5)
            + bytes([63, 0, 0, 0b10 << 6, 1, 0, 0, 0b01 << 6, 0, 0, 0, 0x53])
            + bytes([0x72] * 128),
            [*[2.0 * 63 * 2 - 0.5] * 32, *[0.0] * 192, *[2.0 * 35 * 7 - 0.5 * 21] * 32],
        ),
        (
            GGMLType.Q5_K,
            struct.pack("<ee", 2.0, 0.5)
            + bytes([63, 0, 0, 0b10 << 6, 1, 0, 0, 0b01 << 6, 0, 0, 0, 0x53])
            + bytes([0b1000_0000] * 32)
            + bytes([0x72] * 128),
            [*[2.0 * 63 * 2 - 0.5] * 32, *[0.0] * 192, *[2.0 * 35 * 23 - 0.5 * 21] * 32],
        ),
        (
            GGMLType.Q6_K,
            bytes([0x52] * 128)
            + bytes([0b11_00_00_01] * 64)
            + struct.pack("<16b", 3, *[0] * 14, -2)
            + struct.pack("<e", 0.5),
            [*[0.5 * 3 * (18 - 32)] * 16, *[0.0] * 224, *[0.5 * -2 * (53 - 32)] * 16],
        ),
        (GGMLType.BF16, bytes.fromhex("803f 00c0 0100"), [1.0, -2.0, 2.0**-133]),
    ],
)
def test_a_block_written_out_by_hand(kind: GGMLType, block: bytes, expected: list[float]) -> None:
    values = dequantize(kind, np.frombuffer(block, np.uint8), (len(expected),))
    assert values.tolist() == expected


@pytest.mark.parametrize("kind", KINDS)
def test_the_result_is_new_and_writable_and_its_source_unchanged(kind: GGMLType) -> None:
    data = hard_blocks(kind, 64, seed=1).reshape(-1)
    before = data.copy()
    data.flags.writeable = False
    values = dequantize(kind, data, (2, 32 * BLOCK_LAYOUTS[kind].elements))
    values[:] = 1
    np.testing.assert_array_equal(data, before)


@pytest.mark.parametrize("kind", KINDS)
def test_quantised_values_come_back_close(kind: GGMLType) -> None:
    values = np.random.default_rng(3).normal(size=(8, 512)).astype(np.float32)
    data = np.frombuffer(quantize(values, kind.name), np.uint8)
    error = np.linalg.norm(dequantize(kind, data, (8, 512)) - values) / np.linalg.norm(values)
    assert error <= MAX_ERRORS[kind.name]


def test_the_real_model_equals_the_oracle(smollm2_path) -> None:
    tensors = GGUFFile.open(smollm2_path).tensors
    for name in ("token_embd.weight", "blk.0.attn_q.weight", "blk.29.ffn_down.weight"):
        tensor = tensors[name]
        rows = slice(0, 512)  # the oracle is slow
        data = tensor.data.reshape(tensor.shape[0], -1)[rows]
        np.testing.assert_array_equal(
            bits(tensor.dequantize()[rows]), bits(oracle(tensor.type, data))
        )
