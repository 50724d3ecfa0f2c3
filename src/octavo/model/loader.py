"""Open a model by name or path: its spec, its weights on disk, its tokenizer, its chat template."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.model.chat import ChatTemplate
from octavo.model.gguf import GGUFFile
from octavo.model.gguf_spec import spec_from_gguf
from octavo.model.store import ensure_model
from octavo.model.tokenizer import Tokenizer
from octavo.model.weights import gguf_weights

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from pathlib import Path

    from octavo.model.spec import ModelSpec
    from octavo.model.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Model:
    """Everything that a model file holds, the weights still on disk."""

    path: Path
    spec: ModelSpec
    tensors: Mapping[str, Tensor]
    """Under the names that `weights.py` lists."""
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    """None where the file has none: no template is invented."""
    fingerprint: bytes
    """The identity of the weights, the same on every machine."""


def load_model(name_or_path: str | os.PathLike[str]) -> Model:
    """Open a model, pulling it first if it is a known one that is not here yet.

    Raises `ModelError` if it cannot be had, or its file is malformed or not supported.
    """
    path = ensure_model(name_or_path)
    file = GGUFFile.open(path)
    spec = spec_from_gguf(file)
    tensors = gguf_weights(file, spec)
    file.require_supported()
    tokenizer = Tokenizer.from_gguf(file.metadata)
    source = file.metadata.get("tokenizer.chat_template")
    template = ChatTemplate(source, tokenizer) if isinstance(source, str) else None
    return Model(path, spec, tensors, tokenizer, template, file.fingerprint)
