"""Lines of a trace file, plain or compressed, each with the place that an error names."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

from octavo.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    T = TypeVar("T")

_REQUIRED: Any = object()


MAX_RUN = 1 << 24
"""Keys that one line may stand for by a first and a count: what it costs must be bounded."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file, without its end."""

    path: Path
    number: int
    """From 1."""
    text: str

    def error(self, reason: str) -> TraceError:
        """Return an error that says where it is."""
        return TraceError(f"{self.path}, line {self.number}: {reason}")

    def json(self) -> Fields:
        """Return the JSON object that the line holds."""
        try:
            value = json.loads(self.text)
        except (ValueError, RecursionError) as error:
            raise self.error(f"this is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise self.error("this is not a JSON object")
        return Fields(self, value)

    def ints(self, least: int) -> list[int]:
        """Return the whole numbers that the line holds, ``least`` or more of them."""
        try:
            numbers = [int(word) for word in self.text.split()]
        except ValueError:
            raise self.error(f"not all of {self.text[:60]!r} are whole numbers") from None
        if len(numbers) < least:
            raise self.error(f"{least} numbers were expected, not {len(numbers)}")
        return numbers


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one JSON object, checked as they are read."""

    line: Line
    values: dict[str, Any]

    def get(self, name: str, kind: type[T], default: Any = _REQUIRED) -> T:
        """Return the field ``name``, which must be of ``kind``; an int passes for a float."""
        value = self.values.get(name, default)
        if value is _REQUIRED:
            raise self.line.error(f"there is no field {name!r}")
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.line.error(f"{name!r} is not of type {kind.__name__}")
        return value

    def count(self, name: str, default: Any = _REQUIRED) -> int:
        """Return the field ``name``, a whole number that is not negative."""
        value = self.get(name, int, default)
        if value < 0:
            raise self.line.error(f"{name!r} is {value}, less than nothing")
        return value


def stem_and_format(path: Path) -> tuple[str, str]:
    """Return a file's name without, and its last ending, compression aside: ("OLTP", ".lis")."""
    name = path.name
    for ending in (".gz", ".zst"):
        name = name.removesuffix(ending)
    bare = Path(name)
    return bare.stem, bare.suffix


def read_lines(path: Path) -> Iterator[Line]:
    """Iterate over the lines of a file that are not blank; ``.gz`` and ``.zst`` are unpacked."""
    number = 0
    try:
        with _open(path) as packed, io.TextIOWrapper(packed, encoding="utf-8") as file:
            for number, text in enumerate(file, 1):
                if not text.isspace():
                    yield Line(path, number, text.rstrip("\r\n"))
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}, after line {number}: this is not UTF-8: {error}") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(f"{path}, after line {number}: the file is damaged: {error}") from None
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from None


def _open(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return cast("BinaryIO", gzip.open(path, "rb"))
    if path.suffix == ".zst":
        return _open_zstd(path)
    return path.open("rb")


def _open_zstd(path: Path) -> BinaryIO:
    try:
        import zstandard
    except ImportError:
        raise TraceError(
            f"{path} is packed with zstd; to read it: pip install zstandard, or unpack it first"
        ) from None
    unpacker = zstandard.ZstdDecompressor().decompressobj()
    try:
        data = unpacker.decompress(path.read_bytes())  # at once: a reader hides a file cut short
    except zstandard.ZstdError as error:
        raise TraceError(f"{path}: the file is damaged: {error}") from None
    if not unpacker.eof:
        raise TraceError(f"{path}: the file is cut short")
    return io.BytesIO(data)
