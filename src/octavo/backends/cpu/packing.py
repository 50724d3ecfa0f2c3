"""Weights as the kernels read them: one arena of bytes, a table of matrices, one array of floats.

Sixteen rows of a matrix (outputs) are the sixteen lanes; per group of 32 k's (`g`) they lie

    4-bit   [rows / 16][g][4][16][4]   byte b of chunk j: code 4j + b low, code 16 + 4j + b high
    8-bit   [rows / 16][g][8][16][4]   byte b of chunk j: code 4j + b
    scales  [rows / 16][K / group][16] float16 or float32; minima likewise
    floats  [rows / 16][K][16]         F16, BF16, F32 as they are

so four k's of sixteen outputs are one vector, and no sum ever runs across lanes. Matrices that
read the same rows (q, k, v; gate, up) and are packed alike become one. Rows are padded to a
multiple of 64 and K to one of 32, with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from octavo.backends.cpu import plan as p
from octavo.backends.cpu.formats import FORMATS, ROUNDED, Coded, Format, blocks_of
from octavo.backends.cpu.gemm import BLOCK, CHUNK
from octavo.model.files.quants import GGMLType, dequantize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import DTypeLike, NDArray

_ROWS_AT_ONCE: Final = 512  # a multiple of 64; their codes stay in the cache between two passes
_FLOAT_KINDS: Final[dict[GGMLType, tuple[int, np.dtype[Any]]]] = {
    GGMLType.F16: (p.F16, np.dtype("<u2")),
    GGMLType.BF16: (p.BF16, np.dtype("<u2")),
    GGMLType.F32: (p.F32, np.dtype("<u4")),
}


class Tensor(Protocol):
    """A weight as its file holds it."""

    @property
    def type(self) -> GGMLType:
        """How its numbers are stored."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Row-major."""

    @property
    def data(self) -> NDArray[np.uint8]:
        """The bytes, flat."""

    def dequantize(self) -> NDArray[np.float32]:
        """Return its values."""


def aligned(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array of zeros on a cache line's boundary; untouched pages cost no memory."""
    kind = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    room = np.zeros(size + 64, np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + size].view(kind).reshape(shape)


def padded(size: int, unit: int) -> int:
    """Return the least multiple of ``unit`` that is at least ``size``."""
    return -(-size // unit) * unit


@dataclass(slots=True)
class _Planned:
    """A matrix to be: where it will lie, and the tensors that are its rows, with their places."""

    fields: dict[int, int]
    format: Format | None
    """None: the numbers stay floats."""
    tensors: list[tuple[Tensor, int]] = field(default_factory=list)


class WeightPlan:
    """Collects matrices and vectors, then packs them all at once.

    ``is_rounded``: 16-bit and float32 matrices become 8-bit codes, instead of what they are.
    """

    def __init__(self, *, is_rounded: bool = False) -> None:
        self._is_rounded = is_rounded
        self._planned: list[_Planned] = []
        self._vectors: list[tuple[NDArray[np.float32], int]] = []
        self._num_bytes = 0
        self._num_floats = 0

    @property
    def rounds_any(self) -> bool:
        """Whether `pack` will round a matrix of 16-bit or float32 weights."""
        return any(
            planned.format is ROUNDED and tensor.type in _FLOAT_KINDS
            for planned in self._planned
            for tensor, _ in planned.tensors
        )

    def add_vector(self, *parts: tuple[NDArray[np.float32], int]) -> int:
        """Keep vectors one after another, each in room for a given size; return the place."""
        place = self._num_floats
        for values, room in parts:
            self._vectors.append((values.reshape(-1), self._num_floats))
            self._num_floats += padded(room, 64)
        return place

    def add_matrices(
        self, tensors: Sequence[Tensor], biases: Sequence[NDArray[np.float32] | None]
    ) -> tuple[int, int]:
        """Plan tensors that read the same rows; return the first matrix and how many they are.

        Their outputs lie one after another, each padded to a multiple of 64.
        """
        first, out_at = len(self._planned), 0
        for tensor, bias in zip(tensors, biases, strict=True):
            room = padded(tensor.shape[0], CHUNK)
            last = self._planned[-1] if len(self._planned) > first else None
            if last is None or not self._alike(last, tensor, bias):
                last = self._new_matrix(tensor, out_at, bias)
            last.tensors.append((tensor, last.fields[p.PADDED_ROWS]))
            last.fields[p.ROWS] = last.fields[p.PADDED_ROWS] + tensor.shape[0]
            last.fields[p.PADDED_ROWS] += room
            if bias is not None:
                self.add_vector((bias, room))
            out_at += room
        for planned in self._planned[first:]:
            self._place(planned)
        return first, len(self._planned) - first

    def pack(self) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.float32]]:
        """Return the arena, the table of matrices and the floats."""
        arena = aligned(self._num_bytes, np.uint8)
        table = np.zeros((len(self._planned), p.MATRIX_SIZE), np.int64)
        floats = aligned(self._num_floats + 64, np.float32)
        for i, planned in enumerate(self._planned):
            for column, value in planned.fields.items():
                table[i, column] = value
            for tensor, row in planned.tensors:
                if planned.format is None:
                    _pack_floats(arena, planned.fields, tensor, row)
                else:
                    _pack_codes(arena, planned.fields, planned.format, tensor, row)
        for values, place in self._vectors:
            floats[place : place + values.size] = values
        return arena, table, floats

    def _new_matrix(
        self, tensor: Tensor, out_at: int, bias: NDArray[np.float32] | None
    ) -> _Planned:
        kind, form = self._kind_of(tensor)
        fields = {
            p.KIND: kind,
            p.ROWS: 0,
            p.PADDED_ROWS: 0,
            p.COLUMNS: padded(tensor.shape[1], 32),
            p.WIDE: int(form is not None and form.wide),
            p.OFFSET: 0 if form is None else form.offset,
            p.GROUP: 32 if form is None else form.group,
            p.MINIMA: -1,
            p.BIAS: -1 if bias is None else self._num_floats,
            p.OUT_AT: out_at,
        }
        self._planned.append(_Planned(fields, form))
        return self._planned[-1]

    def _place(self, planned: _Planned) -> None:
        """Give a matrix its room in the arena."""
        fields, form = planned.fields, planned.format
        size = fields[p.PADDED_ROWS] * fields[p.COLUMNS]
        fields[p.CODES] = self._num_bytes
        if form is None:
            self._num_bytes += size * (4 if fields[p.KIND] == p.F32 else 2)
            return
        self._num_bytes += size * form.bits // 8
        scale_bytes = size // form.group * (4 if form.wide else 2)
        fields[p.SCALES] = self._num_bytes
        self._num_bytes += scale_bytes
        if form.has_minima:
            fields[p.MINIMA] = self._num_bytes
            self._num_bytes += scale_bytes
        self._num_bytes = padded(self._num_bytes, 64)

    def _kind_of(self, tensor: Tensor) -> tuple[int, Format | None]:
        if tensor.type in _FLOAT_KINDS and not self._is_rounded:
            return _FLOAT_KINDS[tensor.type][0], None
        form = FORMATS.get(tensor.type, ROUNDED)
        return form.kind, form

    def _alike(self, planned: _Planned, tensor: Tensor, bias: NDArray[np.float32] | None) -> bool:
        return self._kind_of(tensor) == (planned.fields[p.KIND], planned.format) and (
            planned.fields[p.BIAS] >= 0
        ) == (bias is not None)


# -- filling the arena ----------------------------------------------------------------------------


def _pack_codes(
    arena: NDArray[np.uint8], fields: dict[int, int], form: Format, tensor: Tensor, row: int
) -> None:
    K = fields[p.COLUMNS]  # noqa: N806
    words = K // 32 * form.bits  # 32-bit words of a row's codes
    rows, scale = fields[p.PADDED_ROWS], np.dtype("<f4" if form.wide else "<f2")
    codes = _view(arena, fields[p.CODES], np.dtype("<u4"), rows, words)
    scales = _view(arena, fields[p.SCALES], scale, rows, K // form.group)
    minima = None
    if form.has_minima:
        minima = _view(arena, fields[p.MINIMA], scale, rows, K // form.group)
    for first, coded in _coded_rows(form, tensor):
        place = row + first
        _transpose(codes, place, coded.codes.view("<u4"))
        _transpose(scales, place, coded.scales)
        if minima is not None:
            assert coded.minima is not None
            _transpose(minima, place, coded.minima)


def _coded_rows(form: Format, tensor: Tensor) -> Iterator[tuple[int, Coded]]:
    num_rows, columns = tensor.shape
    source = blocks_of(tensor.type, tensor.data, num_rows)
    for first in range(0, num_rows, _ROWS_AT_ONCE):
        rows: NDArray[Any] = source[first : first + _ROWS_AT_ONCE]
        if form is ROUNDED:
            rows = dequantize(tensor.type, rows.reshape(-1), (len(rows), columns))
        yield first, form.read(rows)


def _pack_floats(
    arena: NDArray[np.uint8], fields: dict[int, int], tensor: Tensor, row: int
) -> None:
    dtype = _FLOAT_KINDS[tensor.type][1]
    target = _view(arena, fields[p.CODES], dtype, fields[p.PADDED_ROWS], fields[p.COLUMNS])
    values = tensor.data.view(dtype).reshape(tensor.shape)
    for first in range(0, len(values), _ROWS_AT_ONCE):
        _transpose(target, row + first, values[first : first + _ROWS_AT_ONCE])


def _view(
    arena: NDArray[np.uint8], place: int, dtype: np.dtype[Any], rows: int, items: int
) -> NDArray[Any]:
    """Return a part of the arena as [rows / 16, items, 16]."""
    flat = arena[place : place + rows * items * dtype.itemsize].view(dtype)
    return flat.reshape(rows // BLOCK, items, BLOCK)


def _transpose(target: NDArray[Any], row: int, values: NDArray[Any]) -> None:
    """Write rows [n, items] into blocks of sixteen lanes, from ``row`` (a multiple of 16) on."""
    whole = len(values) // BLOCK
    items = values.shape[1]  # of float rows K may be padded
    block = row // BLOCK
    blocks = values[: whole * BLOCK].reshape(whole, BLOCK, items)
    target[block : block + whole, :items] = blocks.transpose(0, 2, 1)
    rest = len(values) - whole * BLOCK
    if rest:
        target[block + whole, :items, :rest] = values[whole * BLOCK :].T
