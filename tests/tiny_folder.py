"""Tiny Hugging Face folders, and a writer of safetensors plain enough to write hostile ones.

`tiny_folder` writes tensors and a config; `safetensors_bytes` any header before any data. Needs
NumPy only.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

from tiny_quants import quantize

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

CONFIG = {"model_type": "llama", "hidden_size": 8, "rms_norm_eps": 1e-05, "rope_scaling": None}


def safetensors_bytes(
    header: object, data: bytes = b"", *, length: int | None = None, padding: int = 0
) -> bytes:
    """Return a file of this header (bytes, or what JSON makes of it), told truly unless given."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * padding
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: str, shape: object, first: int, end: int) -> dict[str, object]:
    """Return one tensor's entry of the header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, end]}


def packed_tensors(tensors: Mapping[str, tuple[str, Floats]], **kwargs: int) -> bytes:
    """Return a sound file of these tensors, each of the dtype named beside its values."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, values) in tensors.items():
        content = quantize(values, dtype)
        header[name] = entry(dtype, values.shape, len(data), len(data) + len(content))
        data += content
    return safetensors_bytes(header, data, **kwargs)


def tiny_folder(
    path: Path,
    tensors: Mapping[str, tuple[str, Floats]],
    *,
    config: Mapping[str, object] | None = None,
    num_shards: int = 0,
) -> Path:
    """Write a model to the new folder `path`, in shards and with an index if any are asked for."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    if not num_shards:
        (path / "model.safetensors").write_bytes(packed_tensors(tensors))
        return path
    weight_map = {}
    for index in range(num_shards):
        shard = f"model-{index + 1:05}-of-{num_shards:05}.safetensors"
        names = list(tensors)[index::num_shards]
        (path / shard).write_bytes(packed_tensors({name: tensors[name] for name in names}))
        weight_map |= dict.fromkeys(names, shard)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path
