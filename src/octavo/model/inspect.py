"""What a model file says of itself, as plain data for `octavo inspect`; nothing is run or printed.

A description is nested frozen dataclasses of JSON's own types, for `dataclasses.asdict` and `json`
to do the rest. Any well-formed GGUF file can be described, also one that Octavo cannot run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from octavo.errors import ModelFileError
from octavo.model.files.gguf import GGUFFile
from octavo.model.files.quants import SUPPORTED_TYPES
from octavo.model.gguf_spec import spec_from_gguf
from octavo.model.weights import gguf_weights

if TYPE_CHECKING:
    import os

    from octavo.model.files.gguf import MetadataValue
    from octavo.model.spec import ModelSpec

_MAX_VALUES_SHOWN: Final = 64
_SPECIAL_TOKENS: Final = {
    "bos": "bos",
    "eos": "eos",
    "eot": "eot",
    "unk": "unknown",
    "sep": "seperator",  # the key is spelled so
    "pad": "padding",
    "mask": "mask",
}


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
    pre: str | None
    """The name of the pre-tokenizer's rules."""
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
    """All that is worth telling about a model file."""

    path: str
    num_bytes: int
    format: str
    """The file format and its version."""
    fingerprint: str
    """Hexadecimal; see `GGUFFile.fingerprint`."""
    name: str | None
    licence: str | None
    architecture: str | None
    unsupported: str | None
    """Why Octavo cannot run the file; None if it can."""
    spec: ModelSpec | None
    """What the decoder is; None where the architecture or its tensors are not supported."""
    hyper_parameters: dict[str, object]
    """The architecture's own keys, its prefix removed; long lists are told by their length."""
    num_params: int
    types: list[TypeDescription]
    """By bytes, the largest first."""
    tensors: list[TensorDescription]
    """In the file's order."""
    tokenizer: TokenizerDescription
    chat_template: str | None
    kv_bytes_per_token_float16: int | None
    kv_bytes_per_token_float32: int | None


def describe(path: str | os.PathLike[str]) -> ModelDescription:
    """Describe the GGUF file at `path`.

    Raises `ModelError` only where the file cannot be read or is malformed.
    """
    file = GGUFFile.open(path)
    spec, unsupported = _spec_or_reason(file)
    architecture = _text(file, "general.architecture")
    return ModelDescription(
        path=str(file.path),
        num_bytes=file.size,
        format=f"GGUF v{file.version}",
        fingerprint=file.fingerprint.hex(),
        name=_text(file, "general.name"),
        licence=_text(file, "general.license"),
        architecture=architecture,
        unsupported=unsupported,
        spec=spec,
        hyper_parameters=_hyper_parameters(file, architecture),
        num_params=sum(tensor.num_elements for tensor in file.tensors.values()),
        types=_types(file),
        tensors=[
            TensorDescription(tensor.name, tensor.type.name, list(tensor.shape), tensor.num_bytes)
            for tensor in file.tensors.values()
        ],
        tokenizer=_tokenizer(file),
        chat_template=_text(file, "tokenizer.chat_template"),
        kv_bytes_per_token_float16=None if spec is None else spec.kv_bytes_per_token(2),
        kv_bytes_per_token_float32=None if spec is None else spec.kv_bytes_per_token(4),
    )


def _spec_or_reason(file: GGUFFile) -> tuple[ModelSpec | None, str | None]:
    """Return the spec where there is one, and why the file cannot be run where it cannot."""
    try:
        spec = spec_from_gguf(file)
        gguf_weights(file, spec)
    except ModelFileError as error:
        return None, str(error)
    try:
        file.require_supported()
    except ModelFileError as error:
        return spec, str(error)
    return spec, None


def _types(file: GGUFFile) -> list[TypeDescription]:
    """Sum the tensors up by type."""
    types: list[TypeDescription] = []
    for kind in {tensor.type for tensor in file.tensors.values()}:
        tensors = [tensor for tensor in file.tensors.values() if tensor.type is kind]
        types.append(
            TypeDescription(
                type=kind.name,
                supported=kind in SUPPORTED_TYPES,
                num_tensors=len(tensors),
                num_params=sum(tensor.num_elements for tensor in tensors),
                num_bytes=sum(tensor.num_bytes for tensor in tensors),
            )
        )
    return sorted(types, key=lambda described: (-described.num_bytes, described.type))


def _tokenizer(file: GGUFFile) -> TokenizerDescription:
    """Describe the vocabulary."""
    tokens = _list(file, "tokenizer.ggml.tokens")
    ids: dict[str, int] = {}
    texts: dict[str, str] = {}
    for short, long in _SPECIAL_TOKENS.items():
        value = file.metadata.get(f"tokenizer.ggml.{long}_token_id")
        if isinstance(value, int) and not isinstance(value, bool):
            ids[short] = value
            if 0 <= value < len(tokens):
                texts[short] = str(_plain(tokens[value]))
    return TokenizerDescription(
        model=_text(file, "tokenizer.ggml.model"),
        pre=_text(file, "tokenizer.ggml.pre"),
        num_tokens=len(tokens),
        num_merges=len(_list(file, "tokenizer.ggml.merges")),
        special_ids=ids,
        special_tokens=texts,
        add_bos=_truth(file, "tokenizer.ggml.add_bos_token"),
        add_eos=_truth(file, "tokenizer.ggml.add_eos_token"),
    )


def _hyper_parameters(file: GGUFFile, architecture: str | None) -> dict[str, object]:
    """Return the keys of the architecture without its prefix."""
    prefix = f"{architecture}."
    return {
        key.removeprefix(prefix): _plain(value)
        for key, value in file.metadata.items()
        if key.startswith(prefix)
    }


def _text(file: GGUFFile, key: str) -> str | None:
    """Return a string of the metadata in a form that can be printed, None if it is none."""
    value = file.metadata.get(key)
    return str(_plain(value)) if isinstance(value, str) else None


def _truth(file: GGUFFile, key: str) -> bool | None:
    """Return a truth value of the metadata, None if it is none."""
    value = file.metadata.get(key)
    return value if isinstance(value, bool) else None


def _list(file: GGUFFile, key: str) -> list[MetadataValue]:
    """Return an array of the metadata, empty if it is none."""
    value = file.metadata.get(key)
    return value if isinstance(value, list) else []


def _plain(value: MetadataValue) -> object:
    """Return a value that JSON can hold and a terminal can print."""
    if isinstance(value, list):
        if len(value) > _MAX_VALUES_SHOWN:
            return f"[{len(value)} values]"
        return [_plain(item) for item in value]
    if isinstance(value, str):  # bytes that were no UTF-8 become replacement characters
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
