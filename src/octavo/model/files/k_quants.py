"""The formulas of GGML's K-quants: blocks of 256 elements with scales of their own inside.

Each block is cut into groups of 16 or 32; a group's small integer scale (and minimum) multiplies
the block's float16 d (and dmin). `quants.py` knows the types and calls these. Every formula takes
the bytes of whole blocks, [num_blocks, block bytes], and fills [num_blocks, 256] floats; it rounds
after each operation, in the order written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]
    Floats = npt.NDArray[np.float32]


def q2_k(blocks: Bytes, out: Floats) -> None:
    """Q2_K, 84 bytes, 16 groups of 16: ``x = (d * scale) * q - (dmin * min)``.

    Byte g of 0-15 holds group g's scale in its low nibble and its min in its high. Bytes 16-79 are
    q in 2 bits (`_spread` over two runs of 32 bytes); 80-81 are d, 82-83 are dmin.
    """
    packed = blocks[:, :16]
    scales = halves(blocks, 80) * (packed & 15)
    minima = halves(blocks, 82) * (packed >> 4)
    out[:] = _spread(blocks[:, 16:80], 2, 32)
    grouped = out.reshape(-1, 16, 16)
    grouped *= scales[:, :, None]
    grouped -= minima[:, :, None]


def q3_k(blocks: Bytes, out: Floats) -> None:
    """Q3_K, 110 bytes, 16 groups of 16: ``x = (d * (scale - 32)) * (q - 4)``.

    Bytes 0-31 are the high bits of q (`_spread`), 32-95 its two low bits (`_spread` over two runs
    of 32 bytes), 96-107 the 6-bit scales, 108-109 d. Byte 96 + g % 8 holds the low four bits of
    group g's scale in its nibble g // 8; byte 104 + g % 4 the high two at bit 2 * (g // 4).
    """
    scales = _joined(_spread(blocks[:, 96:104], 4, 8), _spread(blocks[:, 104:108], 2, 4), 4)
    codes = _joined(_spread(blocks[:, 32:96], 2, 32), _spread(blocks[:, :32], 1, 32), 2)
    _scale_signed(out, codes, 4, halves(blocks, 108) * _signed(scales, 32))


def q4_k(blocks: Bytes, out: Floats) -> None:
    """Q4_K, 144 bytes, 8 groups of 32: ``x = (d * scale) * q - (dmin * min)``.

    Bytes 0-1 are d, 2-3 dmin, 4-15 the scales and minima (`_scales_and_minima`), 16-143 q in 4 bits
    (`_spread` over four runs of 32 bytes).
    """
    _scale_shifted(out, _spread(blocks[:, 16:], 4, 32), blocks)


def q5_k(blocks: Bytes, out: Floats) -> None:
    """Q5_K, 176 bytes, 8 groups of 32: ``x = (d * scale) * q - (dmin * min)``.

    As Q4_K, with the high bits of q in bytes 16-47 (`_spread`) and the low four from byte 48 on.
    """
    codes = _joined(_spread(blocks[:, 48:], 4, 32), _spread(blocks[:, 16:48], 1, 32), 4)
    _scale_shifted(out, codes, blocks)


def q6_k(blocks: Bytes, out: Floats) -> None:
    """Q6_K, 210 bytes, 16 groups of 16: ``x = (d * scale) * (q - 32)``.

    Bytes 0-127 are the low four bits of q (`_spread` over two runs of 64 bytes), 128-191 the high
    two (two runs of 32), 192-207 the scales, signed bytes; 208-209 are d.
    """
    codes = _joined(_spread(blocks[:, :128], 4, 64), _spread(blocks[:, 128:192], 2, 32), 4)
    _scale_signed(out, codes, 32, halves(blocks, 208) * blocks[:, 192:208].view(np.int8))


def halves(blocks: Bytes, start: int) -> Floats:
    """Return the float16 at byte `start` of each block as float32: [num_blocks, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)


def _spread(packed: Bytes, num_bits: int, run: int) -> Bytes:
    """Unpack codes of `num_bits` from runs of `run` bytes: [num_blocks, num_codes].

    A run's lowest bits are `run` successive codes, its next bits the `run` codes after those, and
    so on up to its highest bits; then comes the next run.
    """
    num_blocks, num_bytes = packed.shape
    shifts = np.arange(0, 8, num_bits, dtype=np.uint8)[:, None]
    codes = packed.reshape(num_blocks, num_bytes // run, 1, run) >> shifts
    codes &= (1 << num_bits) - 1
    return codes.reshape(num_blocks, -1)


def _joined(low: Bytes, high: Bytes, num_low_bits: int) -> Bytes:
    """Return codes of which `high` are the bits above the lowest `num_low_bits`; overwrites it."""
    high <<= num_low_bits
    high |= low
    return high


def _scales_and_minima(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Unpack the 8 scales and 8 minima, 6 bits each, of Q4_K and Q5_K: [num_blocks, 8] both.

    Bytes 0-3 hold scales 0-3 in their low six bits, bytes 4-7 minima 0-3 likewise. Byte 8 + i
    holds the low four bits of scale 4 + i and, above them, those of minimum 4 + i; their high two
    are the high two of bytes i and 4 + i.
    """
    scales, minima, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    return (
        np.hstack([scales & 63, rest & 15 | scales >> 6 << 4]),
        np.hstack([minima & 63, rest >> 4 | minima >> 6 << 4]),
    )


def _scale_shifted(out: Floats, codes: Bytes, blocks: Bytes) -> None:
    """Fill `out` from unsigned codes with the scales and minima of Q4_K's layout."""
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    out[:] = codes
    grouped = out.reshape(-1, 8, 32)
    grouped *= (halves(blocks, 0) * scales)[:, :, None]
    grouped -= (halves(blocks, 2) * minima)[:, :, None]


def _scale_signed(out: Floats, codes: Bytes, zero: int, scales: Floats) -> None:
    """Fill `out` from codes that mean 0 at `zero`, with one scale for each group of 16."""
    out[:] = _signed(codes, zero)
    grouped = out.reshape(-1, 16, 16)
    grouped *= scales[:, :, None]


def _signed(codes: Bytes, zero: int) -> npt.NDArray[np.int8]:
    """Return codes below 128 as their distance from `zero`; overwrites them."""
    signed = codes.view(np.int8)
    signed -= np.int8(zero)
    return signed
