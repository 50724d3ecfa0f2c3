"""Writes the blocks of every type that Octavo reads: by plain rounding, or random ones.

Good enough for tiny models; no search for the best scale. Needs NumPy only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]
    Floats = npt.NDArray[np.float32]

TensorType = Literal[
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL",
    "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
]  # fmt: skip


class BlockFormat(NamedTuple):
    """What a writer must know of a type."""

    number: int
    elements: int
    num_bytes: int
    halves: tuple[int, ...] = ()
    """Where a block's float16 scales stand; every other byte may have any value."""


FORMATS: dict[str, BlockFormat] = {
    "F32": BlockFormat(0, 1, 4),
    "F16": BlockFormat(1, 1, 2),
    "BF16": BlockFormat(30, 1, 2),
    "Q4_0": BlockFormat(2, 32, 18, (0,)),
    "Q4_1": BlockFormat(3, 32, 20, (0, 2)),
    "Q5_0": BlockFormat(6, 32, 22, (0,)),
    "Q5_1": BlockFormat(7, 32, 24, (0, 2)),
    "Q8_0": BlockFormat(8, 32, 34, (0,)),
    "IQ4_NL": BlockFormat(20, 32, 18, (0,)),
    "Q2_K": BlockFormat(10, 256, 84, (80, 82)),
    "Q3_K": BlockFormat(11, 256, 110, (108,)),
    "Q4_K": BlockFormat(12, 256, 144, (0, 2)),
    "Q5_K": BlockFormat(13, 256, 176, (0, 2)),
    "Q6_K": BlockFormat(14, 256, 210, (208,)),
}

IQ4_NL_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def random_blocks(rng: np.random.Generator, kind: str, num_blocks: int) -> Bytes:
    """Return blocks of random bytes whose scales are ordinary: [num_blocks, block bytes]."""
    form = FORMATS[kind]
    if form.elements == 1:
        return rng.normal(size=(num_blocks, 1)).astype("<f4").view(np.uint8)[:, -form.num_bytes :]
    blocks = rng.integers(0, 256, (num_blocks, form.num_bytes), dtype=np.uint8)
    for at in form.halves:
        blocks[:, at : at + 2] = _half_bytes(rng.normal(0, 0.1, (num_blocks, 1)))
    return blocks


def quantize(values: Floats, kind: TensorType) -> bytes:
    """Return the bytes of `values`, whose rows must be whole blocks, by plain rounding."""
    if kind == "F32":
        return values.astype("<f4").tobytes()
    if kind == "F16":
        return values.astype("<f2").tobytes()
    if kind == "BF16":
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    elements = FORMATS[kind].elements
    assert values.shape[-1] % elements == 0, f"{kind} needs rows of a multiple of {elements}"
    writer = _WRITERS[kind]
    return writer(values.reshape(-1, elements)).tobytes()


def _q8_0(blocks: Floats) -> Bytes:
    scale = np.abs(blocks).max(axis=1, keepdims=True) / 127
    return np.hstack([_half_bytes(scale), _codes(blocks, _stored(scale), -127, 127, 0)])


def _q4_0(blocks: Floats) -> Bytes:
    scale = np.abs(blocks).max(axis=1, keepdims=True) / 7
    return np.hstack([_half_bytes(scale), _nibbles(_codes(blocks, _stored(scale), 0, 15, 8))])


def _q5_0(blocks: Floats) -> Bytes:
    scale = np.abs(blocks).max(axis=1, keepdims=True) / 15
    codes = _codes(blocks, _stored(scale), 0, 31, 16)
    return np.hstack([_half_bytes(scale), _fifth_bits(codes), _nibbles(codes & 15)])


def _q4_1(blocks: Floats) -> Bytes:
    low = blocks.min(axis=1, keepdims=True)
    scale = (blocks.max(axis=1, keepdims=True) - low) / 15
    codes = _codes(blocks - low, _stored(scale), 0, 15, 0)
    return np.hstack([_half_bytes(scale), _half_bytes(low), _nibbles(codes)])


def _q5_1(blocks: Floats) -> Bytes:
    low = blocks.min(axis=1, keepdims=True)
    scale = (blocks.max(axis=1, keepdims=True) - low) / 31
    codes = _codes(blocks - low, _stored(scale), 0, 31, 0)
    head = [_half_bytes(scale), _half_bytes(low)]
    return np.hstack([*head, _fifth_bits(codes), _nibbles(codes & 15)])


def _iq4_nl(blocks: Floats) -> Bytes:
    scale = np.abs(blocks).max(axis=1, keepdims=True) / 113
    units = blocks / _divisor(_stored(scale))
    codes = np.abs(units[:, :, None] - np.array(IQ4_NL_LEVELS)).argmin(axis=2).astype(np.uint8)
    return np.hstack([_half_bytes(scale), _nibbles(codes)])


def _q2_k(blocks: Floats) -> Bytes:
    d, scales, dmin, minima, codes = _shifted(blocks, groups=16, most=3, most_scale=15)
    packed = _pack(codes, 2, 32)
    return np.hstack([scales | minima << 4, packed, _half_bytes(d), _half_bytes(dmin)])


def _q4_k(blocks: Floats) -> Bytes:
    d, scales, dmin, minima, codes = _shifted(blocks, groups=8, most=15, most_scale=63)
    head = [_half_bytes(d), _half_bytes(dmin), _six_bit_pairs(scales, minima)]
    return np.hstack([*head, _pack(codes, 4, 32)])


def _q5_k(blocks: Floats) -> Bytes:
    d, scales, dmin, minima, codes = _shifted(blocks, groups=8, most=31, most_scale=63)
    head = [_half_bytes(d), _half_bytes(dmin), _six_bit_pairs(scales, minima)]
    return np.hstack([*head, _pack(codes >> 4, 1, 32), _pack(codes & 15, 4, 32)])


def _q3_k(blocks: Floats) -> Bytes:
    d, scales, codes = _centred(blocks, zero=4, most_scale=31)
    scales = (scales + 32).astype(np.uint8)
    low = scales[:, :8] & 15 | (scales[:, 8:] & 15) << 4
    high = _pack(scales >> 4, 2, 4)
    bits = [_pack(codes >> 2, 1, 32), _pack(codes & 3, 2, 32)]
    return np.hstack([*bits, low, high, _half_bytes(d)])


def _q6_k(blocks: Floats) -> Bytes:
    d, scales, codes = _centred(blocks, zero=32, most_scale=127)
    bits = [_pack(codes & 15, 4, 64), _pack(codes >> 4, 2, 32)]
    return np.hstack([*bits, scales.astype(np.int8).view(np.uint8), _half_bytes(d)])


_WRITERS = {
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0, "IQ4_NL": _iq4_nl,
    "Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k,
}  # fmt: skip


def _shifted(
    blocks: Floats, *, groups: int, most: int, most_scale: int
) -> tuple[Floats, Bytes, Floats, Bytes, Bytes]:
    """Return d, scales, dmin, minima and codes of ``x = d * scale * q - dmin * min``."""
    grouped = blocks.reshape(len(blocks), groups, -1)
    depth = np.maximum(-grouped.min(axis=2), 0)
    dmin = depth.max(axis=1, keepdims=True) / most_scale
    minima = _codes(depth, _stored(dmin), 0, most_scale, 0)
    shifted = grouped + (_stored(dmin) * minima)[:, :, None]
    wanted = np.maximum(shifted.max(axis=2), 0) / most
    d = wanted.max(axis=1, keepdims=True) / most_scale
    scales = _codes(wanted, _stored(d), 0, most_scale, 0)
    codes = _codes(shifted, (_stored(d) * scales)[:, :, None], 0, most, 0)
    return d, scales, dmin, minima, codes.reshape(len(blocks), -1)


def _centred(blocks: Floats, *, zero: int, most_scale: int) -> tuple[Floats, Floats, Bytes]:
    """Return d, scales and codes of ``x = d * scale * (q - zero)`` in groups of 16."""
    grouped = blocks.reshape(len(blocks), 16, 16)
    wanted = np.abs(grouped).max(axis=2) / (zero - 1)
    d = wanted.max(axis=1, keepdims=True) / most_scale
    scales = np.rint(wanted / _divisor(_stored(d))).clip(0, most_scale)
    codes = _codes(grouped, (_stored(d) * scales)[:, :, None], 0, 2 * zero - 1, zero)
    return d, scales, codes.reshape(len(blocks), -1)


def _six_bit_pairs(scales: Bytes, minima: Bytes) -> Bytes:
    """Pack 8 scales and 8 minima of 6 bits into the 12 bytes of Q4_K."""
    first = scales[:, :4] | scales[:, 4:] >> 4 << 6
    second = minima[:, :4] | minima[:, 4:] >> 4 << 6
    return np.hstack([first, second, scales[:, 4:] & 15 | (minima[:, 4:] & 15) << 4])


def _pack(codes: Bytes, num_bits: int, run: int) -> Bytes:
    """Pack [num_blocks, num_codes] so that a byte holds codes that lie `run` apart."""
    parts = codes.reshape(len(codes), -1, 8 // num_bits, run)
    shifts = np.arange(0, 8, num_bits, dtype=np.uint8)[:, None]
    return np.bitwise_or.reduce(parts << shifts, axis=2).reshape(len(codes), -1)


def _codes(blocks: Floats, scale: Floats, low: int, high: int, zero: int) -> Bytes:
    """Return `blocks` in units of `scale`, rounded, counted from `zero` and clipped, as bytes."""
    codes = np.clip(np.rint(blocks / _divisor(scale)) + zero, low, high)
    return codes.astype(np.int16).astype(np.uint8)


def _divisor(scale: Floats) -> Floats:
    """Return `scale` with 1 for 0: what it divides is 0 too."""
    return np.where(scale == 0, np.float32(1), scale)


def _stored(column: Floats) -> Floats:
    """Return the values that a file's float16 will give back."""
    return column.astype(np.float16).astype(np.float32)


def _half_bytes(column: Floats) -> Bytes:
    """Return [num_blocks, 1] floats as [num_blocks, 2] bytes of float16."""
    return column.astype("<f2").view(np.uint8)


def _nibbles(codes: Bytes) -> Bytes:
    """Return [num_blocks, 32] 4-bit codes as [num_blocks, 16] bytes, i beside i + 16."""
    return _pack(codes, 4, 16)


def _fifth_bits(codes: Bytes) -> Bytes:
    """Return the bits of weight 16 of [num_blocks, 32] codes as [num_blocks, 4] bytes."""
    return np.packbits(codes >> 4, axis=1, bitorder="little")
