"""What there is to say of a model, as plain data: nested frozen dataclasses of JSON's own types.

`inspect.describe` fills them in; `dataclasses.asdict` and `json` do the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.model.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class TensorDescription:
    """One tensor."""

    name: str
    type: str
    shape: list[int]
    """Row-major."""
    num_bytes: int


@dataclass(frozen=True, slots=True)
class TypeDescription:
    """All tensors of one type together."""

    type: str
    supported: bool
    num_tensors: int
    num_params: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class TokenizerDescription:
    """The vocabulary; None for what the file does not say, or says in a form without sense."""

    model: str | None
    """The kind, in the file's own word: gpt2, llama; BPE, Unigram; SentencePiece."""
    pre: str | None
    """The name of the pre-tokenizer's rules; a folder has the rules themselves."""
    num_tokens: int
    num_merges: int
    special_ids: dict[str, int]
    """bos, eos, ... to the token's id."""
    special_tokens: dict[str, str]
    """bos, eos, ... to the token's text, for ids inside the vocabulary."""
    add_bos: bool | None
    add_eos: bool | None


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """All that is worth telling about a model, whatever its format."""

    path: str
    num_bytes: int
    """Of the file, or of all tensors in the folder."""
    format: str
    """The file format and its version, or that it is a folder of safetensors."""
    fingerprint: str
    """Hexadecimal; see `GGUFFile.fingerprint` and `SafetensorsFolder.fingerprint`."""
    name: str | None
    licence: str | None
    architecture: str | None
    """As GGUF names it, or the class that config.json names."""
    unsupported: str | None
    """Why Octavo cannot run the model; None if it can."""
    spec: ModelSpec | None
    """What the decoder is; None where the architecture or its tensors are not supported."""
    hyper_parameters: dict[str, object]
    """The architecture's own keys, its prefix removed, or config.json; long values are told by
    their length."""
    num_params: int
    types: list[TypeDescription]
    """By bytes, the largest first."""
    tensors: list[TensorDescription]
    """In the file's order."""
    tokenizer: TokenizerDescription
    chat_template: str | None
    kv_bytes_per_token_float16: int | None
    kv_bytes_per_token_float32: int | None
