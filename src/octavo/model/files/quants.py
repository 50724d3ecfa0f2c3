"""How tensor bytes become float32: GGML's block layouts and their exact dequantisation in NumPy.

GGML stores a row as consecutive blocks of a fixed number of elements. All numbers are
little-endian. Knows nothing of files; `gguf.py` says where a tensor's bytes lie. The formulas of
blocks of 256 are in `k_quants.py`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from octavo.model.files.k_quants import halves, q2_k, q3_k, q4_k, q5_k, q6_k

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]
    Floats = npt.NDArray[np.float32]


class GGMLType(IntEnum):
    """The element types of GGML, by the number that files carry."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q4_2 = 4
    Q4_3 = 5
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    Q4_0_4_4 = 31
    Q4_0_4_8 = 32
    Q4_0_8_8 = 33
    TQ1_0 = 34
    TQ2_0 = 35
    IQ4_NL_4_4 = 36
    IQ4_NL_4_8 = 37
    IQ4_NL_8_8 = 38
    MXFP4 = 39
    NVFP4 = 40
    Q1_0 = 41


class BlockLayout(NamedTuple):
    """The size of one block of a type."""

    elements: int
    num_bytes: int


BLOCK_LAYOUTS: Final[dict[GGMLType, BlockLayout]] = {
    GGMLType.F32: BlockLayout(1, 4),
    GGMLType.F16: BlockLayout(1, 2),
    GGMLType.Q4_0: BlockLayout(32, 18),
    GGMLType.Q4_1: BlockLayout(32, 20),
    GGMLType.Q5_0: BlockLayout(32, 22),
    GGMLType.Q5_1: BlockLayout(32, 24),
    GGMLType.Q8_0: BlockLayout(32, 34),
    GGMLType.Q8_1: BlockLayout(32, 40),
    GGMLType.Q2_K: BlockLayout(256, 84),
    GGMLType.Q3_K: BlockLayout(256, 110),
    GGMLType.Q4_K: BlockLayout(256, 144),
    GGMLType.Q5_K: BlockLayout(256, 176),
    GGMLType.Q6_K: BlockLayout(256, 210),
    GGMLType.Q8_K: BlockLayout(256, 292),
    GGMLType.IQ2_XXS: BlockLayout(256, 66),
    GGMLType.IQ2_XS: BlockLayout(256, 74),
    GGMLType.IQ3_XXS: BlockLayout(256, 98),
    GGMLType.IQ1_S: BlockLayout(256, 50),
    GGMLType.IQ4_NL: BlockLayout(32, 18),
    GGMLType.IQ3_S: BlockLayout(256, 110),
    GGMLType.IQ2_S: BlockLayout(256, 82),
    GGMLType.IQ4_XS: BlockLayout(256, 136),
    GGMLType.I8: BlockLayout(1, 1),
    GGMLType.I16: BlockLayout(1, 2),
    GGMLType.I32: BlockLayout(1, 4),
    GGMLType.I64: BlockLayout(1, 8),
    GGMLType.F64: BlockLayout(1, 8),
    GGMLType.IQ1_M: BlockLayout(256, 56),
    GGMLType.BF16: BlockLayout(1, 2),
    GGMLType.TQ1_0: BlockLayout(256, 54),
    GGMLType.TQ2_0: BlockLayout(256, 66),
    GGMLType.MXFP4: BlockLayout(32, 17),
    GGMLType.NVFP4: BlockLayout(64, 36),
    GGMLType.Q1_0: BlockLayout(128, 18),
}
"""The types whose size is known; those missing were withdrawn from GGML."""

# A chunk's float32 output (1 MiB) and its input stay within an ordinary L2 cache between the
# passes of one formula; larger chunks go through memory once a pass, smaller ones pay NumPy's call.
_CHUNK_BYTES: Final = 1 << 20


def dequantize(kind: GGMLType, data: Bytes, shape: tuple[int, ...]) -> Floats:
    """Return the float32 values of a tensor: a new, writable array of `shape` (row-major).

    `data` is the tensor's bytes, flat; `kind` is one of `SUPPORTED_TYPES`. The values are exact:
    bit for bit what GGML's own scalar formulas give in float32.
    """
    elements, num_bytes = BLOCK_LAYOUTS[kind]
    formula = _FORMULAS[kind]
    assert data.dtype == np.uint8
    assert data.ndim == 1
    blocks = data.reshape(-1, num_bytes)
    values = np.empty((len(blocks), elements), dtype=np.float32)
    step = _CHUNK_BYTES // (4 * elements)
    # Infinite scales are data, not faults of the arithmetic: inf * 0 is NaN here as everywhere.
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, len(blocks), step):
            formula(blocks[start : start + step], values[start : start + step])
    return values.reshape(shape)


def _f32(blocks: Bytes, out: Floats) -> None:
    """F32, 4 bytes: the value itself."""
    out[:] = blocks.view("<f4")


def _f16(blocks: Bytes, out: Floats) -> None:
    """F16, 2 bytes: an IEEE half, widened."""
    out[:] = blocks.view("<f2")


def _bf16(blocks: Bytes, out: Floats) -> None:
    """BF16, 2 bytes: the upper half of a float32 whose lower half is zero."""
    bits = out.view(np.uint32)
    bits[:] = blocks.view("<u2")
    bits <<= np.uint32(16)


def _q4_0(blocks: Bytes, out: Floats) -> None:
    """Q4_0, 18 bytes for 32 elements: ``x = d * (q - 8)``.

    Bytes 0-1 are d (float16); byte 2 + i holds q[i] in its low nibble and q[i + 16] in its high.
    """
    _nibbles(blocks[:, 2:], out)
    out -= np.float32(8)
    out *= halves(blocks, 0)


def _q4_1(blocks: Bytes, out: Floats) -> None:
    """Q4_1, 20 bytes for 32 elements: ``x = d * q + m``, rounded after each operation.

    Bytes 0-1 are d, 2-3 are m (float16); byte 4 + i holds q[i] in its low nibble and q[i + 16] in
    its high.
    """
    _nibbles(blocks[:, 4:], out)
    out *= halves(blocks, 0)
    out += halves(blocks, 2)


def _q5_0(blocks: Bytes, out: Floats) -> None:
    """Q5_0, 22 bytes for 32 elements: ``x = d * (q - 16)``.

    Bytes 0-1 are d (float16); bit i of the four bytes from 2 on, counted from the lowest, is the
    high bit of q[i]; byte 6 + i holds the low four bits of q[i], and above them those of q[i + 16].
    """
    _nibbles(blocks[:, 6:], out)
    out += _fifth_bits(blocks[:, 2:6])
    out -= np.float32(16)
    out *= halves(blocks, 0)


def _q5_1(blocks: Bytes, out: Floats) -> None:
    """Q5_1, 24 bytes for 32 elements: ``x = d * q + m``, rounded after each operation.

    Bytes 0-1 are d, 2-3 are m (float16); q lies from byte 4 on as in Q5_0 from byte 2 on.
    """
    _nibbles(blocks[:, 8:], out)
    out += _fifth_bits(blocks[:, 4:8])
    out *= halves(blocks, 0)
    out += halves(blocks, 2)


def _q8_0(blocks: Bytes, out: Floats) -> None:
    """Q8_0, 34 bytes for 32 elements: ``x = d * q``.

    Bytes 0-1 are d (float16); byte 2 + i is q[i], signed.
    """
    out[:] = blocks[:, 2:].view(np.int8)
    out *= halves(blocks, 0)


def _iq4_nl(blocks: Bytes, out: Floats) -> None:
    """IQ4_NL, 18 bytes for 32 elements: ``x = d * table[q]``, with d and q as in Q4_0."""
    out[:, :16] = _IQ4_NL_LOW[blocks[:, 2:]]
    out[:, 16:] = _IQ4_NL_HIGH[blocks[:, 2:]]
    out *= halves(blocks, 0)


def _nibbles(codes: Bytes, out: Floats) -> None:
    """Spread [num_blocks, 16] bytes of two 4-bit codes over [num_blocks, 32] floats."""
    out[:, :16] = codes & 15
    out[:, 16:] = codes >> 4


def _fifth_bits(packed: Bytes) -> Bytes:
    """Return 16 where a bit of [num_blocks, 4] bytes is set, 0 elsewhere: [num_blocks, 32]."""
    bits = np.unpackbits(packed, axis=1, bitorder="little")
    bits <<= 4
    return bits


# IQ4_NL's sixteen levels, denser around zero, looked up by a whole byte: by its low or high nibble.
_IQ4_NL_LEVELS: Final = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32
)
_IQ4_NL_LOW: Final = np.tile(_IQ4_NL_LEVELS, 16)
_IQ4_NL_HIGH: Final = np.repeat(_IQ4_NL_LEVELS, 16)

_FORMULAS: Final[dict[GGMLType, Callable[[Bytes, Floats], None]]] = {
    GGMLType.F32: _f32,
    GGMLType.F16: _f16,
    GGMLType.BF16: _bf16,
    GGMLType.Q4_0: _q4_0,
    GGMLType.Q4_1: _q4_1,
    GGMLType.Q5_0: _q5_0,
    GGMLType.Q5_1: _q5_1,
    GGMLType.Q8_0: _q8_0,
    GGMLType.IQ4_NL: _iq4_nl,
    GGMLType.Q2_K: q2_k,
    GGMLType.Q3_K: q3_k,
    GGMLType.Q4_K: q4_k,
    GGMLType.Q5_K: q5_k,
    GGMLType.Q6_K: q6_k,
}

SUPPORTED_TYPES: Final[frozenset[GGMLType]] = frozenset(_FORMULAS)
"""The types that can be dequantised, hence run."""
