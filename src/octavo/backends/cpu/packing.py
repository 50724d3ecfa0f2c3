"""Weights as the kernels read them: one arena of bytes, a table of matrices, one array of floats.

Sixteen rows of a matrix (outputs) are the sixteen lanes, 64 rows are a chunk. What a chunk needs of
a group of 32 k's lies together as a record, and the records of a chunk, [K / 32], lie one after
another, so that a product reads one stream:

    scales  [32 / group][64]   float16 or float32
    minima  likewise, where the format has any
    codes   4-bit [4][64][4]   byte b of word j: code 4j + b low, code 16 + 4j + b high
            8-bit [8][64][4]   byte b of word j: code 4j + b

so four k's of sixteen outputs are one vector, and no sum ever runs across lanes. F16, BF16 and F32
weights stay as they are; there a record is one k's 64 numbers. Matrices that read the same rows
(q, k, v; gate, up) and are packed alike become one. Rows are padded to a multiple of 64 and K to
one of 32, with zeros.
"""

from __future__ import annotations

import contextlib
import mmap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from octavo.backends.cpu import plan as p
from octavo.backends.cpu.formats import FORMATS, ROUNDED, Coded, Format, blocks_of
from octavo.backends.cpu.layout import CHUNK
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


def in_small_pages(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array of zeros that takes memory 4 KiB at a time, as it is touched.

    For what is touched here and there, as keys and values are: NumPy asks for pages of 2 MiB, and
    the first token would have one zeroed for each layer and head. Raises `MemoryError`.
    """
    kind = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    try:
        room = mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no room for {size} bytes: {error.strerror}") from None
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with contextlib.suppress(OSError):  # a system that has no others
            room.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(room, np.uint8, size).view(kind).reshape(shape)


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
        record = _record(kind, form)
        starts = {name: place for name, (_, place, *_) in (record.fields or {}).items()}
        fields = {
            p.KIND: kind,
            p.ROWS: 0,
            p.PADDED_ROWS: 0,
            p.COLUMNS: padded(tensor.shape[1], 32),
            p.RECORD: record.itemsize,
            p.MINIMA: starts.get("minima", 0),
            p.CODES: starts.get("codes", 0),
            p.OFFSET: 0 if form is None else form.offset,
            p.WIDE: int(form is not None and form.wide),
            p.PARTS: 1 if form is None else 32 // form.group,
            p.BIAS: -1 if bias is None else self._num_floats,
            p.OUT_AT: out_at,
        }
        self._planned.append(_Planned(fields, form))
        return self._planned[-1]

    def _place(self, planned: _Planned) -> None:
        """Give a matrix its room in the arena."""
        fields = planned.fields
        items = fields[p.COLUMNS] // (1 if planned.format is None else 32)
        fields[p.PLACE] = self._num_bytes
        self._num_bytes += fields[p.PADDED_ROWS] // CHUNK * items * fields[p.RECORD]

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


def _record(kind: int, form: Format | None) -> np.dtype[Any]:
    """Return what of 64 outputs lies together: scales, minima and codes; or one k's floats."""
    if form is None:
        return np.dtype(("<u4" if kind == p.F32 else "<u2", (CHUNK,)))
    numbers = ("<f4" if form.wide else "<f2", (32 // form.group, CHUNK))
    fields = [("scales", *numbers)]
    if form.has_minima:
        fields.append(("minima", *numbers))
    fields.append(("codes", "<u4", (form.bits, CHUNK)))
    return np.dtype(fields)


def _pack_codes(
    arena: NDArray[np.uint8], fields: dict[int, int], form: Format, tensor: Tensor, row: int
) -> None:
    groups = fields[p.COLUMNS] // 32
    record = _record(fields[p.KIND], form)
    chunks = fields[p.PADDED_ROWS] // CHUNK
    end = fields[p.PLACE] + chunks * groups * record.itemsize
    records = arena[fields[p.PLACE] : end].view(record).reshape(chunks, groups)
    for first, coded in _coded_rows(form, tensor):
        place = row + first
        _transpose(records["codes"], place, coded.codes.view("<u4"))
        _transpose(records["scales"], place, coded.scales)
        if form.has_minima:
            assert coded.minima is not None
            _transpose(records["minima"], place, coded.minima)


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
    columns = fields[p.COLUMNS]
    end = fields[p.PLACE] + fields[p.PADDED_ROWS] * columns * dtype.itemsize
    target = arena[fields[p.PLACE] : end].view(dtype).reshape(-1, columns, 1, CHUNK)
    values = tensor.data.view(dtype).reshape(tensor.shape)
    for first in range(0, len(values), _ROWS_AT_ONCE):
        rows = values[first : first + _ROWS_AT_ONCE]
        _transpose(target[:, : tensor.shape[1]], row + first, rows)


def _transpose(target: NDArray[Any], row: int, values: NDArray[Any]) -> None:
    """Write rows [n, groups * items] into ``target`` [rows / 64, groups, items, 64].

    ``row``, where the first one goes, is a multiple of 64.
    """
    _, groups, items, _ = target.shape
    whole, rest = divmod(len(values), CHUNK)
    at = row // CHUNK
    chunks = values[: whole * CHUNK].reshape(whole, CHUNK, groups, items)
    target[at : at + whole] = chunks.transpose(0, 2, 3, 1)
    if rest:
        last = values[whole * CHUNK :].reshape(rest, groups, items)
        target[at + whole, :, :, :rest] = last.transpose(1, 2, 0)
