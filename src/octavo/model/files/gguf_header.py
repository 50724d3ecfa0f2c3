"""Parsing a GGUF header: the whole of it, and its table of tensors.

    magic 'GGUF', version, tensor count, metadata count
    metadata      key, value type, value                             } a string is a 64-bit length
    tensor table  name, ndim, dims, type, offset from data_offset    } and that many bytes
    padding up to a multiple of general.alignment
    tensor data, from data_offset

Files come from strangers. Every number is held against the file, and against a limit where it costs
time or memory; what is wrong is a `ModelFileError` that names the byte. Knows no file system:
`gguf.py` opens and maps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from octavo.model.files.gguf_cursor import Cursor
from octavo.model.files.gguf_metadata import MetadataValue, read_metadata
from octavo.model.files.quants import BLOCK_LAYOUTS, GGMLType

if TYPE_CHECKING:
    import mmap
    from pathlib import Path


MAX_METADATA: Final = 65_536
MAX_TENSORS: Final = 32_768
"""The largest mixtures of experts have some thousands."""
MAX_DIMS: Final = 4

MIN_FILE_BYTES: Final = 24
"""Magic number, version and the two counts."""

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
# The least that one entry can take: a count above (bytes left / least) is refused at once.
_LEAST_METADATA_BYTES: Final = 8 + 1 + 4 + 1  # key length, key, type, value
_LEAST_TENSOR_BYTES: Final = 8 + 1 + 4 + 8 + 4 + 8  # name length, name, ndim, dim, type, offset


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
    cursor = Cursor(data, path)
    version = _read_version(cursor)
    num_tensors = cursor.count("tensor count", _LEAST_TENSOR_BYTES, MAX_TENSORS)
    num_metadata = cursor.count("metadata count", _LEAST_METADATA_BYTES, MAX_METADATA)
    metadata, alignment = read_metadata(cursor, num_metadata)
    entries = [_read_entry(cursor) for _ in range(num_tensors)]
    data_offset = -(-cursor.pos // alignment) * alignment
    tensors = _locate(cursor, entries, alignment, data_offset)
    return Header(version, metadata, tensors, alignment, data_offset)


def _read_version(cursor: Cursor) -> int:
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


class _Entry(NamedTuple):
    """One entry of the table as it stands: sized, but not yet held against the file."""

    info: TensorInfo  # its offset still counts from data_offset
    entry_at: int
    offset_at: int


def _read_entry(cursor: Cursor) -> _Entry:
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


def _read_type(cursor: Cursor, name: str) -> GGMLType:
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
    cursor: Cursor, entries: list[_Entry], alignment: int, data_offset: int
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
