"""Each file type's blocks as codes, scales and minima: value = scale * code + minimum.

Nothing is rounded unless asked for: the codes are the file's own, made unsigned. A symmetric type
has no stored minimum: its codes count from 8 (four bits) or, moved there, from 128. `packing.py`
lays the result out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from octavo.backends.cpu import plan as p
from octavo.errors import ConfigError
from octavo.model.files.quants import BLOCK_LAYOUTS, GGMLType

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]


class Coded(NamedTuple):
    """Some rows of a weight, as their file has them."""

    codes: NDArray[np.uint8]
    """``[num_rows, K]``, or of 4-bit codes ``[num_rows, K / 2]``: byte i of a group of 32 holds
    the codes i (low) and i + 16 (high)."""
    scales: NDArray[np.generic]
    """``[num_rows, K / group]``, float16 or float32."""
    minima: NDArray[np.generic] | None


@dataclass(frozen=True, slots=True)
class Format:
    """How the blocks of one file type are packed."""

    kind: int
    """`plan.U4`, `plan.IQ4` or `plan.U8`."""
    group: int
    """Weights that share a scale: 32 or 16."""
    wide: bool
    """Whether scales are float32: a product of two of the file's numbers needs it."""
    has_minima: bool
    """Where it has none, value = scale * (code - offset): 8 for 4-bit codes, else 128."""
    read: Callable[[NDArray[Any]], Coded]
    """From blocks ``[num_rows, blocks, bytes]``, or of `ROUNDED` values ``[num_rows, K]``."""

    @property
    def offset(self) -> int:
        """What is taken off a code, or off what IQ4_NL's table has for it."""
        if self.has_minima:
            return 0
        return 8 if self.kind == p.U4 else 128

    @property
    def bits(self) -> int:
        """Of a code: 8 or 4."""
        return 8 if self.kind == p.U8 else 4


def _halves(blocks: Bytes, start: int) -> NDArray[np.float16]:
    """Return the float16 at byte ``start`` of each block: [num_rows, blocks]."""
    return np.ascontiguousarray(blocks[:, :, start : start + 2]).view("<f2")[:, :, 0]


def _singles(blocks: Bytes, start: int) -> NDArray[np.float32]:
    return _halves(blocks, start).astype(np.float32)


def _rows(codes: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Return codes [num_rows, blocks, ...] as [num_rows, K] bytes."""
    return np.ascontiguousarray(codes, dtype=np.uint8).reshape(len(codes), -1)


def _q4_0(blocks: Bytes) -> Coded:
    return Coded(_rows(blocks[:, :, 2:]), _halves(blocks, 0), None)


def _q4_1(blocks: Bytes) -> Coded:
    return Coded(_rows(blocks[:, :, 4:]), _halves(blocks, 0), _halves(blocks, 2))


def _spread(nibbles: Bytes) -> Bytes:
    """Return [..., n] bytes of two codes as [..., 2n] codes, the low ones first."""
    return np.concatenate([nibbles & 15, nibbles >> 4], axis=-1)


def _fifth_bits(bits: Bytes) -> Bytes:
    """Return [..., 4] bytes, a bit each of 32 codes, as [..., 32] bytes of 0 or 16."""
    spread = np.unpackbits(np.ascontiguousarray(bits), axis=-1, bitorder="little")
    return spread << np.uint8(4)


def _q5_0(blocks: Bytes) -> Coded:
    codes = _spread(blocks[:, :, 6:]) | _fifth_bits(blocks[:, :, 2:6])
    return Coded(_rows(codes + np.uint8(112)), _halves(blocks, 0), None)


def _q5_1(blocks: Bytes) -> Coded:
    codes = _spread(blocks[:, :, 8:]) | _fifth_bits(blocks[:, :, 4:8])
    return Coded(_rows(codes), _halves(blocks, 0), _halves(blocks, 2))


def _q8_0(blocks: Bytes) -> Coded:
    return Coded(_rows(blocks[:, :, 2:] ^ 0x80), _halves(blocks, 0), None)


def _scales_and_minima(blocks: Bytes, start: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the eight 6-bit scales and minima in 12 bytes of Q4_K and Q5_K."""
    low, middle, high = (blocks[:, :, start + 4 * i : start + 4 * i + 4] for i in range(3))
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], axis=-1)
    minima = np.concatenate([middle & 63, (high >> 4) | (middle >> 6 << 4)], axis=-1)
    return scales, minima


def _products(factor: NDArray[np.float32], numbers: NDArray[np.generic]) -> NDArray[np.float32]:
    """Return factor [num_rows, blocks] times numbers [num_rows, blocks, n], as [num_rows, .]."""
    products: NDArray[np.float32] = factor[:, :, None] * numbers.astype(np.float32)
    return products.reshape(len(factor), -1)


def _q4_k(blocks: Bytes) -> Coded:
    # 32 bytes hold 64 codes: the low nibbles are a group of 32, the high ones the next
    scales, minima = _scales_and_minima(blocks, 4)
    pairs = blocks[:, :, 16:].reshape(*blocks.shape[:2], 4, 32)
    groups = np.stack([pairs & 15, pairs >> 4], axis=3)  # [num_rows, blocks, 4, 2, 32]
    codes = groups[..., :16] | groups[..., 16:] << 4
    return Coded(
        _rows(codes),
        _products(_singles(blocks, 0), scales),
        -_products(_singles(blocks, 2), minima),
    )


def _q5_k(blocks: Bytes) -> Coded:
    scales, minima = _scales_and_minima(blocks, 4)
    pairs = blocks[:, :, 48:].reshape(*blocks.shape[:2], 4, 32)
    low = np.stack([pairs & 15, pairs >> 4], axis=3).reshape(*blocks.shape[:2], 8, 32)
    group = np.arange(8, dtype=np.uint8)[:, None]
    fifth = (blocks[:, :, None, 16:48] >> group & 1) << 4
    return Coded(
        _rows(low | fifth),
        _products(_singles(blocks, 0), scales),
        -_products(_singles(blocks, 2), minima),
    )


def _q6_k(blocks: Bytes) -> Coded:
    low = blocks[:, :, :128].reshape(*blocks.shape[:2], 2, 64)
    low = np.concatenate([low & 15, low >> 4], axis=-1)  # [num_rows, blocks, 2, 128]
    high = blocks[:, :, 128:192].reshape(*blocks.shape[:2], 2, 1, 32)
    shift = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    codes = low | ((high >> shift & 3) << 4).reshape(low.shape)
    scales = blocks[:, :, 192:208].view(np.int8)
    return Coded(_rows(codes + np.uint8(96)), _products(_singles(blocks, 208), scales), None)


def _quarters(blocks: Bytes) -> Bytes:
    """Return 64 bytes of four 2-bit codes as [num_rows, blocks, 8, 32] codes."""
    pairs = blocks.reshape(*blocks.shape[:2], 2, 1, 32)
    shift = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    codes: Bytes = (pairs >> shift & np.uint8(3)).reshape(*blocks.shape[:2], 8, 32)
    return codes


def _q2_k(blocks: Bytes) -> Coded:
    both = blocks[:, :, :16]
    return Coded(
        _rows(_quarters(blocks[:, :, 16:80])),
        _products(_singles(blocks, 80), both & 15),
        -_products(_singles(blocks, 82), both >> 4),
    )


def _q3_k(blocks: Bytes) -> Coded:
    group = np.arange(8, dtype=np.uint8)[:, None]
    third = (blocks[:, :, None, :32] >> group & 1) << 2
    low, high = blocks[:, :, 96:104], blocks[:, :, 104:108]
    shift = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    upper = (high[:, :, None, :] >> shift & 3).reshape(*blocks.shape[:2], 16) << 4
    scales = (np.concatenate([low & 15, low >> 4], axis=-1) | upper).astype(np.int16) - 32
    codes = _quarters(blocks[:, :, 32:96]) | third
    return Coded(_rows(codes + np.uint8(124)), _products(_singles(blocks, 108), scales), None)


FORMATS: Final[dict[GGMLType, Format]] = {
    GGMLType.Q4_0: Format(p.U4, 32, False, False, _q4_0),
    GGMLType.Q4_1: Format(p.U4, 32, False, True, _q4_1),
    GGMLType.Q4_K: Format(p.U4, 32, True, True, _q4_k),
    GGMLType.IQ4_NL: Format(p.IQ4, 32, False, False, _q4_0),
    GGMLType.Q5_0: Format(p.U8, 32, False, False, _q5_0),
    GGMLType.Q5_1: Format(p.U8, 32, False, True, _q5_1),
    GGMLType.Q5_K: Format(p.U8, 32, True, True, _q5_k),
    GGMLType.Q8_0: Format(p.U8, 32, False, False, _q8_0),
    GGMLType.Q6_K: Format(p.U8, 16, True, False, _q6_k),
    GGMLType.Q3_K: Format(p.U8, 16, True, False, _q3_k),
    GGMLType.Q2_K: Format(p.U8, 16, True, True, _q2_k),
}
"""The types whose codes are kept. 16-bit and float32 rows are kept by `packing.py`, as a rule."""

_MOST = 65504
"""The largest finite float16."""


def rounded(values: NDArray[np.float32]) -> Coded:
    """Round rows [num_rows, K] to 8-bit codes between each group's least and greatest value.

    Scales and minima are float16, and the codes count from them as they are stored. K may be any
    number: the last group is filled up with its last value. Raises `ConfigError` beyond float16.
    """
    most = np.abs(values).max(initial=0)
    if not most <= _MOST:
        raise ConfigError(
            f"a weight of the model is {most:g}; quantization='int8' rounds values up to {_MOST}: "
            "load the model without it",
            param="quantization",
        )
    groups = np.pad(values, ((0, 0), (0, -values.shape[1] % 32)), mode="edge")
    groups = groups.reshape(len(values), -1, 32)
    minima = groups.min(axis=2).astype(np.float16)
    shifted = groups - minima.astype(np.float32)[:, :, None]
    scales = (shifted.max(axis=2) / np.float32(255)).astype(np.float16)
    units = np.where(scales == 0, np.float32(1), scales.astype(np.float32))
    codes = np.rint(shifted / units[:, :, None])
    return Coded(_rows(np.clip(codes, 0, 255)), scales, minima)


ROUNDED: Final = Format(p.U8, 32, False, True, rounded)
"""16-bit and float32 rows, where int8 is asked for; any type that is not in `FORMATS`."""


def blocks_of(kind: GGMLType, data: Bytes, num_rows: int) -> Bytes:
    """Return a tensor's bytes as [num_rows, blocks, bytes]."""
    return data.reshape(num_rows, -1, BLOCK_LAYOUTS[kind].num_bytes)
