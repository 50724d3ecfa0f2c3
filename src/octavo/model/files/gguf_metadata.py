"""The key-value pairs of a GGUF header, read as Python values.

    key, value type, value         an array is its element type, its length, its elements

Knows no key but `general.alignment`, which says where tensors may begin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from octavo.model.files.gguf_cursor import Cursor

MetadataValue: TypeAlias = "bool | int | float | str | list[MetadataValue]"

# Bounds on the time that a header can ask for: at the limits it is read in about a second.
MAX_ARRAYS: Final = 65_536
MAX_VALUES: Final = 2 << 20
"""Elements of all arrays together. The largest vocabularies, merges included, have 1.3 million."""
MAX_ARRAY_DEPTH: Final = 4
DEFAULT_ALIGNMENT: Final = 32
MIN_ALIGNMENT: Final = 8
MAX_ALIGNMENT: Final = 65_536

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


def read_metadata(cursor: Cursor, count: int) -> tuple[dict[str, MetadataValue], int]:
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


def _read_value(cursor: Cursor, kind: int, key: str, kind_at: int) -> MetadataValue:
    """Read one value of type `kind`, whose type number stands at byte `kind_at`."""
    if kind == _ARRAY:
        return _read_array(cursor, key, 1)
    if kind == _STRING:
        return cursor.strings(1, repr(key))[0]
    if kind not in _LEAST_ELEMENT_BYTES:
        raise cursor.fault(f"{key!r} has the unknown value type {kind}", kind_at)
    return _read_numbers(cursor, kind, 1, key)[0]


def _read_array(cursor: Cursor, key: str, depth: int) -> list[MetadataValue]:
    """Read an array: its element type, its length, its elements."""
    start = cursor.pos
    if depth > MAX_ARRAY_DEPTH:
        raise cursor.fault(f"{key!r} nests arrays more than {MAX_ARRAY_DEPTH} deep", start)
    kind = cursor.u32(f"element type of {key!r}")
    if kind not in _LEAST_ELEMENT_BYTES:
        raise cursor.fault(f"{key!r} is an array of the unknown value type {kind}", start)
    cursor.num_arrays += 1
    if cursor.num_arrays > MAX_ARRAYS:
        raise cursor.fault(
            f"{key!r} holds the file's array number {MAX_ARRAYS + 1}, one more than is accepted",
            start,
        )
    left = MAX_VALUES - cursor.num_values
    count = cursor.count(f"length of {key!r}", _LEAST_ELEMENT_BYTES[kind], left)
    cursor.num_values += count
    if kind == _STRING:
        return cursor.strings(count, repr(key))
    if kind == _ARRAY:
        return [_read_array(cursor, key, depth + 1) for _ in range(count)]
    return _read_numbers(cursor, kind, count, key)


def _read_numbers(cursor: Cursor, kind: int, count: int, key: str) -> list[MetadataValue]:
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


def _alignment(cursor: Cursor, value: MetadataValue, offset: int) -> int:
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
