"""A cursor over a GGUF header that believes no number it has not checked.

Every count and length is held against the bytes that are really there before anything of that size
is made, in Python's integers, which do not wrap. Knows numbers and strings, not what they are for.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from octavo.errors import ModelFileError

if TYPE_CHECKING:
    import mmap
    from pathlib import Path

    from octavo.model.files.gguf_metadata import MetadataValue

MAX_HEADER_BYTES: Final = 64 << 20
"""The largest vocabularies (about 260,000 tokens) make headers of some 16 MiB. Python objects can
take twenty times their bytes in the file, so this bounds the memory that a header can ask for."""
MAX_KEY_BYTES: Final = 65_535

_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")


class Cursor:
    """A place in the header that moves only over bytes that exist."""

    __slots__ = ("data", "limit", "num_arrays", "num_values", "path", "pos")

    num_arrays: int
    """Arrays read so far."""
    num_values: int
    """Elements of arrays read or announced so far."""

    def __init__(self, data: mmap.mmap | bytes, path: Path) -> None:
        self.data = data
        self.path = path
        self.pos = 0
        self.limit = min(len(data), MAX_HEADER_BYTES)
        self.num_arrays = 0
        self.num_values = 0

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

    def count(self, what: str, least_bytes: int, most: int) -> int:
        """Read a 64-bit count of at most `most` things that take at least `least_bytes` each."""
        start = self.pos
        count = self.u64(what)
        if count * least_bytes > self.limit - self.pos:
            raise self.fault(
                f"{what} is {count}, but the {self.limit - self.pos} bytes that follow hold at "
                f"most {(self.limit - self.pos) // least_bytes}",
                start,
            )
        if count > most:
            raise self.fault(f"{what} is {count}, and at most {most} are accepted", start)
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
