"""Open a model by name or path: its spec, its weights on disk, its tokenizer, its chat template."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.errors import ModelFileError
from octavo.model.files.gguf import GGUFFile
from octavo.model.files.safetensors import open_folder
from octavo.model.gguf_spec import spec_from_gguf
from octavo.model.hf_spec import spec_from_hf
from octavo.model.store import ensure_model
from octavo.model.text.chat import ChatTemplate
from octavo.model.text.folder_config import chat_template_source
from octavo.model.text.tokenizer import Tokenizer
from octavo.model.weights import gguf_weights, hf_weights

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from pathlib import Path

    from octavo.model.files.tensor import Tensor
    from octavo.model.spec import ModelSpec


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
    """Open a GGUF file or a Hugging Face folder, pulling it first if it is not here yet.

    Raises `ModelError` if it cannot be had, is malformed, or holds what is not supported.
    """
    path = ensure_model(name_or_path)
    return _open_folder(path) if path.is_dir() else _open_gguf(path)


def _open_gguf(path: Path) -> Model:
    file = GGUFFile.open(path)
    spec = spec_from_gguf(file)
    tensors = gguf_weights(file, spec)
    file.require_supported()
    tokenizer = Tokenizer.from_gguf(file.metadata)
    source = file.metadata.get("tokenizer.chat_template")
    template = ChatTemplate(source, tokenizer) if isinstance(source, str) else None
    return _checked(Model(path, spec, tensors, tokenizer, template, file.fingerprint))


def _open_folder(path: Path) -> Model:
    folder = open_folder(path)
    spec = spec_from_hf(folder.config, path)
    tensors = hf_weights(folder.tensors, spec, path)
    for tensor in tensors.values():
        _ = tensor.type  # raises for one that is not supported; tensors not used may be anything
    tokenizer = Tokenizer.from_folder(path)
    source = chat_template_source(path)
    template = None if source is None else ChatTemplate(source, tokenizer)
    return _checked(Model(path, spec, tensors, tokenizer, template, folder.fingerprint))


def _checked(model: Model) -> Model:
    """Raise `ModelFileError` unless tokens and embeddings are as many."""
    if model.tokenizer.vocab_size != model.spec.vocab_size:
        raise ModelFileError(
            f"the tokenizer has {model.tokenizer.vocab_size} tokens and the model "
            f"{model.spec.vocab_size} embeddings; there must be as many",
            path=model.path,
        )
    return model
