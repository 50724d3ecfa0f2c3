"""Parsing a GGUF header: a reader that believes no number it has not checked.

    magic 'GGUF', version, tensor count, metadata count
    metadata      key, value type, value                             } a string is a 64-bit length
    tensor table  name, ndim, dims, type, offset from data_offset    } and that many bytes
    padding up to a multiple of general.alignment
    tensor data, from data_offset

Files come from strangers. Every count, length and product is held against the bytes that are really
there before anything of that size is made, in Python's integers, which do not wrap. What is wrong
is a `ModelFileError` that names the byte. Knows no file system: `gguf.py` opens and maps.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from octavo.errors import ModelFileError
from octavo.model.quants import BLOCK_LAYOUTS, GGMLType

if TYPE_CHECKING:
    import mmap
    from pathlib import Path

MetadataValue: TypeAlias = "bool | int | float | str | list[MetadataValue]"

MAX_HEADER_BYTES: Final = 64 << 20
"""The largest vocabularies (about 260,000 tokens) make headers of some 16 MiB. Python objects can
take twenty times their bytes in the file, so this bounds the memory that a header can ask for."""
MAX_ARRAY_DEPTH: Final = 4
MAX_KEY_BYTES: Final = 65_535
MAX_DIMS: Final = 4
DEFAULT_ALIGNMENT: Final = 32
MIN_ALIGNMENT: Final = 8
MAX_ALIGNMENT: Final = 65_536

MIN_FILE_BYTES: Final = 24
"""Magic number, version and the two counts."""

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
# The least that one entry can take: a count above (bytes left / least) is refused at once.
_LEAST_METADATA_BYTES: Final = 8 + 1 + 4 + 1  # key length, key, type, value
_LEAST_TENSOR_BYTES: Final = 8 + 1 + 4 + 8 + 4 + 8  # name length, name, ndim, dim, type, offset

_BOOL: Final = 7
_STRING: Final = 8
_ARRAY: Final = 9
_NUMBERS: Final[dict[int, np.dtype[np.generic]]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_LEAST_ELEMENT_BYTES: Final = {
    _BOOL: 1,
    _STRING: 8,
    _ARRAY: 12,
    **{kind: dtype.itemsize for kind, dtype in _NUMBERS.items()},
}
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One entry of the table of tensors, held against the file: it lies inside, and alone."""

    name: str
    type: GGMLType
    shape: tuple[int, ...]
    """Row-major, the contiguous dimension last: GGUF's own order (ne) reversed."""
    offset: int
    """Of the first byte, from the beginning of the file."""
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """All that stands before the weights."""

    version: int
    metadata: dict[str, MetadataValue]
    tensors: list[TensorInfo]
    alignment: int
    data_offset: int


def parse_header(data: mmap.mmap | bytes, path: Path) -> Header:
    """Parse the header of a whole GGUF file; `path` is for messages only.

    Raises `ModelFileError`.
    """
    cursor = _Cursor(data, path)
    version = _read_version(cursor)
    num_tensors = cursor.count("tensor count", _LEAST_TENSOR_BYTES)
    num_metadata = cursor.count("metadata count", _LEAST_METADATA_BYTES)
    metadata, alignment = _read_metadata(cursor, num_metadata)
    entries = [_read_entry(cursor) for _ in range(num_tensors)]
    data_offset = -(-cursor.pos // alignment) * alignment
    tensors = _locate(cursor, entries, alignment, data_offset)
    return Header(version, metadata, tensors, alignment, data_offset)


class _Cursor:
    """A place in the header that moves only over bytes that exist."""

    __slots__ = ("data", "limit", "path", "pos")

    def __init__(self, data: mmap.mmap | bytes, path: Path) -> None:
        self.data = data
        self.path = path
        self.pos = 0
        self.limit = min(len(data), MAX_HEADER_BYTES)

    def fault(self, message: str, offset: int) -> ModelFileError:
        """Return the error to raise for what stands at byte `offset`."""
        return ModelFileError(message, path=self.path, offset=offset)

    def missing(self, num_bytes: int, what: str, offset: int) -> ModelFileError:
        """Return the error to raise for something at byte `offset` that runs past the end."""
        owner = "the file" if self.limit == len(self.data) else "the largest header accepted"
        return self.fault(
            f"{what} needs {num_bytes} bytes, more than are left of {owner} ({self.limit} bytes)",
            offset,
        )

    def take(self, num_bytes: int, what: str) -> int:
        """Step over `num_bytes` and return where they begin."""
        start = self.pos
        if num_bytes > self.limit - start:
            raise self.missing(num_bytes, what, start)
        self.pos = start + num_bytes
        return start

    def u32(self, what: str) -> int:
        """Read an unsigned 32-bit integer."""
        value: int = _U32.unpack_from(self.data, self.take(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        """Read an unsigned 64-bit integer."""
        value: int = _U64.unpack_from(self.data, self.take(8, what))[0]
        return value

    def count(self, what: str, least_bytes: int) -> int:
        """Read a 64-bit count of things that take at least `least_bytes` each."""
        start = self.pos
        count = self.u64(what)
        if count * least_bytes > self.limit - self.pos:
            raise self.fault(
                f"{what} is {count}, but the {self.limit - self.pos} bytes that follow hold at "
                f"most {(self.limit - self.pos) // least_bytes}",
                start,
            )
        return count

    def name(self, what: str) -> str:
        """Read a string that identifies something: UTF-8, neither empty nor overlong."""
        start = self.pos
        length = self.u64(f"length of a {what}")
        if not 0 < length <= MAX_KEY_BYTES:
            raise self.fault(
                f"a {what} of {length} bytes (from 1 to {MAX_KEY_BYTES} are accepted)", start
            )
        begin = self.take(length, f"a {what}")
        try:
            return self.data[begin : self.pos].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fault(f"a {what} is not UTF-8", begin + error.start) from None

    def strings(self, count: int, what: str) -> list[MetadataValue]:
        """Read `count` strings. Vocabularies have 10^5 of them, so this one loop is kept bare."""
        data, limit, pos = self.data, self.limit, self.pos
        unpack = _U64.unpack_from
        values: list[MetadataValue] = []
        for _ in range(count):
            start = pos + 8
            length = unpack(data, pos)[0] if start <= limit else 0
            end = start + length
            if end > limit:
                raise self.missing(8 + length, f"a string in {what}", pos)
            values.append(data[start:end].decode("utf-8", "surrogateescape"))
            pos = end
        self.pos = pos
        return values


def _read_version(cursor: _Cursor) -> int:
    """Read the magic number and the version."""
    magic = bytes(cursor.data[cursor.take(4, "magic number") : cursor.pos])
    if magic != _MAGIC:
        raise cursor.fault(f"not a GGUF file: it begins with {magic!r}, not {_MAGIC!r}", 0)
    start = cursor.pos
    version = cursor.u32("version")
    if version and not version & 0xFFFF:
        raise cursor.fault("a big-endian GGUF file; only little-endian ones are supported", start)
    if version not in _VERSIONS:
        raise cursor.fault(
            f"GGUF version {version} is not supported (2 and 3 are); convert the model again",
            start,
        )
    return version


def _read_metadata(cursor: _Cursor, count: int) -> tuple[dict[str, MetadataValue], int]:
    """Read the key-value pairs; also return the alignment that they ask for, in bytes."""
    metadata: dict[str, MetadataValue] = {}
    alignment = DEFAULT_ALIGNMENT
    for _ in range(count):
        start = cursor.pos
        key = cursor.name("metadata key")
        if key in metadata:
            raise cursor.fault(f"metadata key {key!r} occurs twice", start)
        kind_at = cursor.pos
        kind = cursor.u32(f"type of {key!r}")
        value_at = cursor.pos
        metadata[key] = _read_value(cursor, kind, key, kind_at)
        if key == "general.alignment":
            alignment = _alignment(cursor, metadata[key], value_at)
    return metadata, alignment


def _read_value(cursor: _Cursor, kind: int, key: str, kind_at: int) -> MetadataValue:
    """Read one value of type `kind`, whose type number stands at byte `kind_at`."""
    if kind == _ARRAY:
        return _read_array(cursor, key, 1)
    if kind == _STRING:
        return cursor.strings(1, repr(key))[0]
    if kind not in _LEAST_ELEMENT_BYTES:
        raise cursor.fault(f"{key!r} has the unknown value type {kind}", kind_at)
    return _read_numbers(cursor, kind, 1, key)[0]


def _read_array(cursor: _Cursor, key: str, depth: int) -> list[MetadataValue]:
    """Read an array: its element type, its length, its elements."""
    start = cursor.pos
    if depth > MAX_ARRAY_DEPTH:
        raise cursor.fault(f"{key!r} nests arrays more than {MAX_ARRAY_DEPTH} deep", start)
    kind = cursor.u32(f"element type of {key!r}")
    if kind not in _LEAST_ELEMENT_BYTES:
        raise cursor.fault(f"{key!r} is an array of the unknown value type {kind}", start)
    count = cursor.count(f"length of {key!r}", _LEAST_ELEMENT_BYTES[kind])
    if kind == _STRING:
        return cursor.strings(count, repr(key))
    if kind == _ARRAY:
        return [_read_array(cursor, key, depth + 1) for _ in range(count)]
    return _read_numbers(cursor, kind, count, key)


def _read_numbers(cursor: _Cursor, kind: int, count: int, key: str) -> list[MetadataValue]:
    """Read `count` numbers or truth values of type `kind`."""
    dtype = np.dtype("u1") if kind == _BOOL else _NUMBERS[kind]
    start = cursor.take(count * dtype.itemsize, f"value of {key!r}")
    array = np.frombuffer(cursor.data, dtype=dtype, count=count, offset=start)
    if kind == _BOOL:
        if count and array.max() > 1:
            at = int(np.argmax(array > 1))
            raise cursor.fault(f"{key!r} has a truth value of {array[at]} (0 or 1)", start + at)
        array = array.astype(np.bool_)
    values: list[MetadataValue] = array.tolist()
    return values


def _alignment(cursor: _Cursor, value: MetadataValue, offset: int) -> int:
    """Return `value` if it can be the alignment of tensor data."""
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or not MIN_ALIGNMENT <= value <= MAX_ALIGNMENT
        or value & (value - 1)
    ):
        shown = f"of type {type(value).__name__}" if isinstance(value, str | list) else value
        raise cursor.fault(
            f"general.alignment is {shown}; it must be a power of two from {MIN_ALIGNMENT} to "
            f"{MAX_ALIGNMENT}",
            offset,
        )
    return value


class _Entry(NamedTuple):
    """One entry of the table as it stands: sized, but not yet held against the file."""

    info: TensorInfo  # its offset still counts from data_offset
    entry_at: int
    offset_at: int


def _read_entry(cursor: _Cursor) -> _Entry:
    """Read one entry of the table of tensors."""
    entry_at = cursor.pos
    name = cursor.name("tensor name")
    dims_at = cursor.pos
    num_dims = cursor.u32(f"number of dimensions of {name!r}")
    if not 1 <= num_dims <= MAX_DIMS:
        raise cursor.fault(f"tensor {name!r} has {num_dims} dimensions (1 to {MAX_DIMS})", dims_at)
    shape = tuple(cursor.u64(f"dimensions of {name!r}") for _ in range(num_dims))[::-1]
    if 0 in shape:
        raise cursor.fault(f"tensor {name!r} has a dimension of 0: shape {shape}", dims_at)
    kind = _read_type(cursor, name)
    elements, block_bytes = BLOCK_LAYOUTS[kind]
    if shape[-1] % elements:
        raise cursor.fault(
            f"tensor {name!r} has rows of {shape[-1]} values, not a multiple of the {elements} "
            f"that a block of {kind.name} holds",
            dims_at,
        )
    num_bytes = shape[-1] // elements * block_bytes
    for dim in shape[:-1]:
        num_bytes *= dim
    offset_at = cursor.pos
    offset = cursor.u64(f"offset of {name!r}")
    return _Entry(TensorInfo(name, kind, shape, offset, num_bytes), entry_at, offset_at)


def _read_type(cursor: _Cursor, name: str) -> GGMLType:
    """Read a tensor's type; refuse one whose size is not known, since nothing can be checked."""
    start = cursor.pos
    number = cursor.u32(f"type of {name!r}")
    try:
        kind = GGMLType(number)
    except ValueError:
        raise cursor.fault(f"tensor {name!r} has the unknown type {number}", start) from None
    if kind not in BLOCK_LAYOUTS:
        raise cursor.fault(
            f"tensor {name!r} has type {kind.name}, which GGML has withdrawn; convert the model "
            "again",
            start,
        )
    return kind


def _locate(
    cursor: _Cursor, entries: list[_Entry], alignment: int, data_offset: int
) -> list[TensorInfo]:
    """Place the tensors in the file: each inside, aligned, named once, sharing no byte."""
    size = len(cursor.data)
    tensors: dict[str, TensorInfo] = {}
    for info, entry_at, offset_at in entries:
        if info.name in tensors:
            raise cursor.fault(f"tensor {info.name!r} occurs twice", entry_at)
        if info.offset % alignment:
            raise cursor.fault(
                f"tensor {info.name!r} has offset {info.offset}, not a multiple of the alignment "
                f"{alignment}",
                offset_at,
            )
        start = data_offset + info.offset
        if start + info.num_bytes > size:
            raise cursor.fault(
                f"tensor {info.name!r} ({info.num_bytes} bytes from byte {start}) ends after the "
                f"file, which has {size} bytes; was its download interrupted?",
                offset_at,
            )
        tensors[info.name] = replace(info, offset=start)
    by_offset = sorted(tensors.values(), key=lambda info: info.offset)
    for first, second in pairwise(by_offset):
        if second.offset < first.offset + first.num_bytes:
            raise cursor.fault(
                f"tensors {first.name!r} and {second.name!r} overlap: the first ends at byte "
                f"{first.offset + first.num_bytes}",
                second.offset,
            )
    return list(tensors.values())
