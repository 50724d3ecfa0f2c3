"""Open GGUF files: metadata in memory, tensors as views of a memory map.

Knows no architecture and no tokenizer: `gguf_spec.py` and the tokenizer read the metadata.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from octavo.errors import ModelFileError
from octavo.model.files.gguf_header import MIN_FILE_BYTES, parse_header
from octavo.model.files.gguf_metadata import MetadataValue
from octavo.model.files.mapped_file import map_file
from octavo.model.files.quants import SUPPORTED_TYPES, GGMLType, dequantize

if TYPE_CHECKING:
    import mmap
    import os

    import numpy.typing as npt

__all__ = ["GGMLType", "GGUFFile", "GGUFTensor", "MetadataValue"]

_FINGERPRINT_BYTES_PER_TENSOR: Final = 4096


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor of a file: where it lies and what it is. Its bytes are read when asked for."""

    name: str
    type: GGMLType
    shape: tuple[int, ...]
    """Row-major, the contiguous dimension last."""
    offset: int
    """Of the first byte, from the beginning of the file."""
    num_bytes: int
    path: Path = field(repr=False)
    source: npt.NDArray[np.uint8] = field(repr=False, compare=False)
    """The whole mapped file, which this keeps open."""

    @property
    def num_elements(self) -> int:
        """The number of values."""
        count = 1
        for dim in self.shape:
            count *= dim
        return count

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The bytes as stored: a flat, read-only view of the map, nothing copied."""
        return self.source[self.offset : self.offset + self.num_bytes]

    def dequantize(self) -> npt.NDArray[np.float32]:
        """Return the values as a new float32 array of `shape`.

        Raises `ModelFileError` where the type is not one that Octavo reads.
        """
        if self.type not in SUPPORTED_TYPES:
            raise ModelFileError(
                f"tensor {self.name!r} has type {self.type.name}, which is not supported "
                f"({_supported_names()} are)",
                path=self.path,
                offset=self.offset,
            )
        return dequantize(self.type, self.data, self.shape)


class GGUFFile:
    """An open GGUF file: its metadata parsed, its tensors located, its weights left on disk.

    The map stays open as long as the file object or any view of a tensor lives.
    """

    __slots__ = (
        "_fingerprint",
        "_source",
        "alignment",
        "data_offset",
        "metadata",
        "path",
        "size",
        "tensors",
        "version",
    )

    path: Path
    size: int
    """Of the file, in bytes."""
    version: int
    metadata: dict[str, MetadataValue]
    """In the file's order. Strings that are not UTF-8 keep their bytes as surrogate escapes, since
    vocabularies hold arbitrary bytes: `value.encode("utf-8", "surrogateescape")` returns them."""
    tensors: dict[str, GGUFTensor]
    """By name, in the file's order."""
    alignment: int
    data_offset: int
    """Where the header and its padding end."""

    def __init__(self, path: Path, source: mmap.mmap) -> None:
        self.path = path
        self.size = len(source)
        self._source = np.frombuffer(source, dtype=np.uint8)
        self._fingerprint: bytes | None = None
        header = parse_header(source, path)
        self.version = header.version
        self.metadata = header.metadata
        self.alignment = header.alignment
        self.data_offset = header.data_offset
        self.tensors = {
            info.name: GGUFTensor(
                info.name, info.type, info.shape, info.offset, info.num_bytes, path, self._source
            )
            for info in header.tensors
        }

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GGUFFile:
        """Map the file at `path` and parse its header.

        Tensor types that Octavo cannot run are accepted here, so that any file can be listed;
        whoever loads weights calls `require_supported` first. Raises `ModelNotFoundError` where
        there is no file, `ModelFileError` where it cannot be read or is malformed.
        """
        path = Path(path)
        source = map_file(path, kind="GGUF", least_bytes=MIN_FILE_BYTES)
        return cls(path, source)

    @property
    def fingerprint(self) -> bytes:
        """16 bytes that tell this file's content from another's, the same on every machine.

        BLAKE2b over the header, the file's size and the first 4 KiB of every tensor, so that it
        costs milliseconds, not a pass over the weights: it tells models apart, and does not prove
        that a file is undamaged.
        """
        if self._fingerprint is None:
            digest = hashlib.blake2b(digest_size=16, person=b"octavo-gguf-1")
            digest.update(self._source[: self.data_offset].tobytes())
            digest.update(self.size.to_bytes(8, "little"))
            for tensor in self.tensors.values():
                digest.update(tensor.data[:_FINGERPRINT_BYTES_PER_TENSOR].tobytes())
            self._fingerprint = digest.digest()
        return self._fingerprint

    def require_supported(self) -> None:
        """Raise `ModelFileError` if any tensor has a type that cannot be dequantised."""
        refused = [t for t in self.tensors.values() if t.type not in SUPPORTED_TYPES]
        if refused:
            kinds = ", ".join(sorted({tensor.type.name for tensor in refused}))
            raise ModelFileError(
                f"{len(refused)} of {len(self.tensors)} tensors have types that are not supported: "
                f"{kinds} (the first is {refused[0].name!r}); use a file in "
                f"{_supported_names()}",
                path=self.path,
                offset=refused[0].offset,
            )


def _supported_names() -> str:
    """Return the types that can be run, for a message."""
    return ", ".join(kind.name for kind in sorted(SUPPORTED_TYPES))
