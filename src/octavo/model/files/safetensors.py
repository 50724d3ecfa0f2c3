"""Open Hugging Face folders: config.json as it is, weights as views of mapped safetensors files.

    config.json
    model.safetensors                    or, where it is sharded,
    model.safetensors.index.json         {"weight_map": {tensor: shard, ...}}
    model-00001-of-00002.safetensors     ...

Knows no architecture and no tokenizer: names and shapes are as the files have them. Why our own
reader: the `safetensors` package gives NumPy no BF16, the type of nearly every model.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from octavo.errors import ModelFileError, ModelNotFoundError
from octavo.model.files.json_file import read_json
from octavo.model.files.mapped_file import map_file
from octavo.model.files.quants import GGMLType, dequantize
from octavo.model.files.safetensors_header import MIN_FILE_BYTES, parse_header

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

CONFIG_NAME: Final = "config.json"
SINGLE_NAME: Final = "model.safetensors"
INDEX_NAME: Final = "model.safetensors.index.json"
MAX_CONFIG_BYTES: Final = 4 << 20
MAX_INDEX_BYTES: Final = 16 << 20

# The dtypes that can be run. GGML's formulas for them are the same, bit for bit.
_TYPES: Final = {"F32": GGMLType.F32, "F16": GGMLType.F16, "BF16": GGMLType.BF16}
_FINGERPRINT_BYTES_PER_TENSOR: Final = 4096


@dataclass(frozen=True, slots=True)
class SafeTensor:
    """One tensor of a file: where it lies and what it is. Its bytes are read when asked for."""

    name: str
    dtype: str
    """The format's own name for the element type, also where Octavo cannot run it."""
    shape: tuple[int, ...]
    """Row-major, the contiguous dimension last."""
    offset: int
    """Of the first byte, from the beginning of the file."""
    num_bytes: int
    path: Path = field(repr=False)
    source: npt.NDArray[np.uint8] = field(repr=False, compare=False)
    """The whole mapped file, which this keeps open."""

    @property
    def supported(self) -> bool:
        """Whether the values can be had."""
        return self.dtype in _TYPES

    @property
    def type(self) -> GGMLType:
        """How `data` is encoded. Raises `ModelFileError` for a dtype that is not supported."""
        if not self.supported:
            raise ModelFileError(
                f"tensor {self.name!r} has dtype {self.dtype}, which is not supported "
                f"({', '.join(_TYPES)} are)",
                path=self.path,
                offset=self.offset,
            )
        return _TYPES[self.dtype]

    @property
    def num_elements(self) -> int:
        """The number of values."""
        return prod(self.shape)

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The bytes as stored: a flat, read-only view of the map, nothing copied."""
        return self.source[self.offset : self.offset + self.num_bytes]

    def dequantize(self) -> npt.NDArray[np.float32]:
        """Return the values as a new float32 array of `shape`.

        Raises `ModelFileError` where the dtype is not one that Octavo reads.
        """
        return dequantize(self.type, self.data, self.shape)


class SafetensorsFolder:
    """An open folder: its config parsed, its tensors located, its weights left on disk.

    The maps stay open as long as the folder object or any view of a tensor lives.
    """

    __slots__ = ("_config_text", "_fingerprint", "config", "path", "tensors")

    path: Path
    config: dict[str, Any]
    """config.json, its types and ranges unchecked."""
    tensors: Mapping[str, SafeTensor]
    """By name, in the files' order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fingerprint: bytes | None = None
        if not os.path.isdir(path):  # Path.is_dir would raise where access is denied
            raise ModelNotFoundError(f"{path}: there is no such folder")
        self.config, self._config_text = _read_json(path, CONFIG_NAME, MAX_CONFIG_BYTES)
        self.tensors = _read_tensors(path)

    @property
    def size(self) -> int:
        """Of all tensors, in bytes."""
        return sum(tensor.num_bytes for tensor in self.tensors.values())

    @property
    def fingerprint(self) -> bytes:
        """16 bytes that tell this model from another, the same on every machine.

        BLAKE2b over config.json and, in the order of their names, every tensor's name, dtype, shape
        and first 4 KiB: however the tensors are spread over files. It costs milliseconds, not a
        pass over the weights, and does not prove that a file is undamaged.
        """
        if self._fingerprint is None:
            digest = hashlib.blake2b(digest_size=16, person=b"octavo-safet-1")
            _update(digest, self._config_text)
            for name in sorted(self.tensors):
                tensor = self.tensors[name]
                _update(digest, json.dumps([name, tensor.dtype, tensor.shape]).encode())
                _update(digest, tensor.data[:_FINGERPRINT_BYTES_PER_TENSOR].tobytes())
            self._fingerprint = digest.digest()
        return self._fingerprint

    def require_supported(self) -> None:
        """Raise `ModelFileError` if any tensor has a dtype that cannot be dequantised."""
        refused = [tensor for tensor in self.tensors.values() if not tensor.supported]
        if refused:
            dtypes = ", ".join(sorted({tensor.dtype for tensor in refused}))
            raise ModelFileError(
                f"{len(refused)} of {len(self.tensors)} tensors have dtypes that are not "
                f"supported: {dtypes} (the first is {refused[0].name!r}); use weights in "
                f"{', '.join(_TYPES)}",
                path=refused[0].path,
                offset=refused[0].offset,
            )


def open_folder(path: str | os.PathLike[str]) -> SafetensorsFolder:
    """Open the Hugging Face folder at `path`: map its weights, parse its headers and its config.

    Tensors of any known dtype are listed; whoever loads weights calls `require_supported` first.
    Raises `ModelNotFoundError` where there is no such folder, `ModelFileError` where a file of it
    is missing or malformed.
    """
    return SafetensorsFolder(Path(path))


def _update(digest: hashlib.blake2b, content: bytes) -> None:
    """Digest `content` after its length, so that neighbours cannot run into each other."""
    digest.update(len(content).to_bytes(8, "little"))
    digest.update(content)


def _read_json(folder: Path, name: str, max_bytes: int) -> tuple[dict[str, Any], bytes]:
    """Return a JSON file of the folder, which must be there."""
    try:
        return read_json(folder / name, max_bytes=max_bytes)
    except ModelNotFoundError:
        raise ModelFileError(
            f"the folder has no {name}; download the whole model, or name a .gguf file", path=folder
        ) from None


def _read_tensors(folder: Path) -> dict[str, SafeTensor]:
    """Return the tensors of the one file, or of all shards that the index names."""
    if os.path.exists(folder / SINGLE_NAME):  # first, as transformers does where there are both
        return _open_file(folder / SINGLE_NAME)
    if not os.path.exists(folder / INDEX_NAME):
        found = sorted(path.name for path in folder.glob("*.bin"))[:1]
        instead = f", but {found[0]}: convert it to safetensors" if found else ""
        raise ModelFileError(
            f"the folder has neither {SINGLE_NAME} nor {INDEX_NAME}{instead}", path=folder
        )
    weight_map = _read_index(folder)
    tensors: dict[str, SafeTensor] = {}
    for shard in sorted(set(weight_map.values())):
        for name, tensor in _open_shard(folder, shard).items():
            if weight_map.get(name) != shard:
                raise ModelFileError(
                    f"holds tensor {name!r}, which {INDEX_NAME} does not place there",
                    path=folder / shard,
                    offset=tensor.offset,
                )
            tensors[name] = tensor
    for name, shard in weight_map.items():
        if name not in tensors:
            raise ModelFileError(
                f"has no tensor {name!r}, which {INDEX_NAME} places there", path=folder / shard
            )
    return tensors


def _read_index(folder: Path) -> dict[str, str]:
    """Return the shard of every tensor, each the plain name of a file in the folder."""
    path = folder / INDEX_NAME
    weight_map = read_json(path, max_bytes=MAX_INDEX_BYTES)[0].get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError("has no weight_map of tensors to files", path=path)
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not shard.endswith(".safetensors"):
            raise ModelFileError(f"places tensor {name!r} in no .safetensors file", path=path)
        # A model's files lie beside its index: whatever could lead elsewhere is refused.
        if shard.startswith(".") or any(char in shard for char in "/\\:\0"):
            raise ModelFileError(
                f"places tensor {name!r} in {shard!r}, which is no plain file name", path=path
            )
    return weight_map


def _open_shard(folder: Path, shard: str) -> dict[str, SafeTensor]:
    """Return the tensors of one shard, which must be there."""
    try:
        return _open_file(folder / shard)
    except ModelNotFoundError:
        raise ModelFileError(
            f"the folder has no {shard}, which {INDEX_NAME} names; download it too", path=folder
        ) from None


def _open_file(path: Path) -> dict[str, SafeTensor]:
    """Map one safetensors file and locate its tensors."""
    data = map_file(path, kind="safetensors", least_bytes=MIN_FILE_BYTES)
    source = np.frombuffer(data, dtype=np.uint8)
    return {
        info.name: SafeTensor(
            info.name, info.dtype, info.shape, info.offset, info.num_bytes, path, source
        )
        for info in parse_header(data, path)
    }
