"""Parsing a safetensors header: a JSON object that is believed only where the file bears it out.

    length of the header, 64 bits    {"name": {"dtype", "shape", "data_offsets"}, ...}    data

`data_offsets` are the first byte and the one after the last, from the beginning of the data. The
tensors cover the data from end to end: no byte is shared, and none is unaccounted for. What is
wrong is a `ModelFileError` that names the byte. Knows no file system: `safetensors.py` opens and
maps.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final

from octavo.errors import ModelFileError
from octavo.model.files.json_file import parse_json

if TYPE_CHECKING:
    import mmap
    from pathlib import Path

MAX_HEADER_BYTES: Final = 16 << 20
"""A tensor takes some 120 bytes, and the largest files hold some thousands of tensors."""
MAX_DIMS: Final = 8
MIN_FILE_BYTES: Final = 10
"""The length, and an empty object."""

BITS: Final[dict[str, int]] = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
}  # fmt: skip
"""The format's element types, by the bits of one element."""

_PREFIX: Final = struct.Struct("<Q")
_METADATA_KEY: Final = "__metadata__"
_ENTRY_KEYS: Final = frozenset({"dtype", "shape", "data_offsets"})


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One entry of the header, held against the file: it lies inside, and alone."""

    name: str
    dtype: str
    """One of `BITS`."""
    shape: tuple[int, ...]
    """Row-major, the contiguous dimension last; empty for a single number."""
    offset: int
    """Of the first byte, from the beginning of the file."""
    num_bytes: int


def parse_header(data: mmap.mmap | bytes, path: Path) -> list[TensorInfo]:
    """Return the tensors of a whole safetensors file, in the header's order.

    `path` is for messages only. Raises `ModelFileError`.
    """
    if len(data) < MIN_FILE_BYTES:
        raise ModelFileError(f"the file has only {len(data)} bytes", path=path, offset=0)
    length: int = _PREFIX.unpack_from(data)[0]
    limit = min(len(data) - _PREFIX.size, MAX_HEADER_BYTES)
    if length > limit:
        raise ModelFileError(
            f"the header's length is {length}, and at most {limit} bytes can be its; is this a "
            "safetensors file, and was its download interrupted?",
            path=path,
            offset=0,
        )
    data_at = _PREFIX.size + length
    header = _Header(data[_PREFIX.size : data_at], path)
    infos = [
        header.entry(name, entry, data_at, len(data))
        for name, entry in header.value.items()
        if name != _METADATA_KEY
    ]
    _check_cover(header, infos, data_at, len(data))
    return infos


class _Header:
    """The header's text and value, and the faults that its entries may have."""

    __slots__ = ("path", "text", "value")

    def __init__(self, text: bytes, path: Path) -> None:
        self.text = text
        self.path = path
        self.value = parse_json(text, path, offset=_PREFIX.size)

    def fault(self, name: str, message: str) -> ModelFileError:
        """Return the error to raise about the tensor `name`, at the place that names it first."""
        at = self.text.find(json.dumps(name, ensure_ascii=False).encode("utf-8"))
        return ModelFileError(
            f"tensor {name!r} {message}", path=self.path, offset=_PREFIX.size + max(at, 0)
        )

    def entry(self, name: str, entry: object, data_at: int, size: int) -> TensorInfo:
        """Return the tensor that `entry` describes, inside a file of `size` bytes."""
        if not name:
            raise self.fault(name, "has no name")
        if not isinstance(entry, dict) or entry.keys() != _ENTRY_KEYS:
            raise self.fault(name, f"must be an object of {', '.join(sorted(_ENTRY_KEYS))}")
        dtype = entry["dtype"]
        if not isinstance(dtype, str) or dtype not in BITS:
            raise self.fault(name, f"has the unknown dtype {_shown(dtype)}")
        shape = entry["shape"]
        if not isinstance(shape, list) or len(shape) > MAX_DIMS or not all(map(_is_size, shape)):
            raise self.fault(
                name,
                f"has the shape {_shown(shape)}; it must be a list of at most {MAX_DIMS} integers "
                "from 1 to 2**63 - 1",
            )
        first, end = self._offsets(name, entry["data_offsets"], size - data_at)
        num_bits = prod(shape) * BITS[dtype]
        if num_bits != 8 * (end - first):
            raise self.fault(
                name,
                f"is said to take {end - first} bytes, and {tuple(shape)} of {dtype} take "
                f"{num_bits / 8:.16g}",
            )
        return TensorInfo(name, dtype, tuple(shape), data_at + first, end - first)

    def _offsets(self, name: str, offsets: object, num_bytes: int) -> tuple[int, int]:
        """Return where a tensor begins and ends in data of `num_bytes`."""
        match offsets:
            case [int(first), int(end)] if type(first) is int and type(end) is int:
                if 0 <= first <= end <= num_bytes:
                    return first, end
        raise self.fault(
            name,
            f"has the data_offsets {_shown(offsets)}; they must be a beginning and an end from 0 "
            f"to {num_bytes}, the bytes of data that the file has (was its download interrupted?)",
        )


def _check_cover(header: _Header, infos: list[TensorInfo], data_at: int, size: int) -> None:
    """Require that the tensors cover the file's data from end to end, each byte once."""
    end = data_at
    for info in sorted(infos, key=lambda info: info.offset):
        if info.offset < end:
            raise header.fault(info.name, f"begins {end - info.offset} bytes before another's end")
        if info.offset > end:
            raise header.fault(
                info.name, f"leaves {info.offset - end} bytes before it that belong to no tensor"
            )
        end += info.num_bytes
    if end != size:
        raise ModelFileError(
            f"the file has {size - end} bytes after its last tensor", path=header.path, offset=end
        )


def _is_size(value: object) -> bool:
    """Whether `value` can be a dimension (JSON's true and false would pass for integers)."""
    return type(value) is int and 0 < value < 2**63


def _shown(value: Any) -> str:
    """Return `value` for a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
