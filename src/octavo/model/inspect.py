"""What a model says of itself, for `octavo inspect`; nothing is run or printed.

Any well-formed GGUF file or Hugging Face folder can be described, also one that cannot be run.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from octavo.errors import ModelFileError, OctavoError
from octavo.model.description import (
    ModelDescription,
    TensorDescription,
    TokenizerDescription,
    TypeDescription,
)
from octavo.model.files.gguf import GGUFFile
from octavo.model.files.json_file import read_json_object
from octavo.model.files.quants import SUPPORTED_TYPES
from octavo.model.files.safetensors import open_folder
from octavo.model.gguf_spec import spec_from_gguf
from octavo.model.hf_spec import spec_from_hf
from octavo.model.loader import load_model
from octavo.model.text.folder_config import FolderConfig, chat_template_source
from octavo.model.text.sentencepiece_file import read_sentencepiece
from octavo.model.weights import gguf_weights, hf_weights

if TYPE_CHECKING:
    import os
    from collections.abc import Set as AbstractSet

    from octavo.model.files.gguf import MetadataValue
    from octavo.model.files.safetensors import SafetensorsFolder
    from octavo.model.spec import ModelSpec

_MAX_VALUES_SHOWN: Final = 64
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_SPECIAL_TOKENS: Final = {
    "bos": "bos",
    "eos": "eos",
    "eot": "eot",
    "unk": "unknown",
    "sep": "seperator",  # the key is spelled so
    "pad": "padding",
    "mask": "mask",
}


def describe(path: str | os.PathLike[str]) -> ModelDescription:
    """Describe the GGUF file or the Hugging Face folder at `path`.

    Raises `ModelError` only where it cannot be read or is malformed.
    """
    return _describe_folder(Path(path)) if Path(path).is_dir() else _describe_gguf(Path(path))


def _describe_gguf(path: Path) -> ModelDescription:
    file = GGUFFile.open(path)
    spec, unsupported = _spec_or_reason(file)
    architecture = _text(file, "general.architecture")
    tensors = [
        TensorDescription(tensor.name, tensor.type.name, list(tensor.shape), tensor.num_bytes)
        for tensor in file.tensors.values()
    ]
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
        types=_types(tensors, {kind.name for kind in SUPPORTED_TYPES}),
        tensors=tensors,
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


def _describe_folder(path: Path) -> ModelDescription:
    folder = open_folder(path)
    config = folder.config
    spec, unsupported = _folder_spec_or_reason(folder)
    try:
        template = chat_template_source(path)
    except ModelFileError:
        template = None
    classes = config.get("architectures")
    tensors = [
        TensorDescription(tensor.name, tensor.dtype, list(tensor.shape), tensor.num_bytes)
        for tensor in folder.tensors.values()
    ]
    return ModelDescription(
        path=str(path),
        num_bytes=folder.size,
        format="safetensors folder",
        fingerprint=folder.fingerprint.hex(),
        name=_text_or_none(config.get("_name_or_path")),
        licence=None,  # it stands in no file that is read
        architecture=_text_or_none(classes[0]) if isinstance(classes, list) and classes else None,
        unsupported=unsupported,
        spec=spec,
        hyper_parameters={str(_plain(key)): _plain(value) for key, value in config.items()},
        num_params=sum(tensor.num_elements for tensor in folder.tensors.values()),
        types=_types(tensors, {t.dtype for t in folder.tensors.values() if t.supported}),
        tensors=tensors,
        tokenizer=_folder_tokenizer(path),
        chat_template=_text_or_none(template),
        kv_bytes_per_token_float16=None if spec is None else spec.kv_bytes_per_token(2),
        kv_bytes_per_token_float32=None if spec is None else spec.kv_bytes_per_token(4),
    )


def _folder_spec_or_reason(folder: SafetensorsFolder) -> tuple[ModelSpec | None, str | None]:
    """Return what `_spec_or_reason` does; the reason is the one that loading would give."""
    try:
        return load_model(folder.path).spec, None
    except OctavoError as error:
        reason = str(error)
    try:
        spec = spec_from_hf(folder.config, folder.path)
        hf_weights(folder.tensors, spec, folder.path)
    except ModelFileError:
        return None, reason
    return spec, reason


def _types(tensors: list[TensorDescription], supported: AbstractSet[str]) -> list[TypeDescription]:
    """Sum the tensors up by type."""
    types: list[TypeDescription] = []
    for kind in {tensor.type for tensor in tensors}:
        alike = [tensor for tensor in tensors if tensor.type == kind]
        types.append(
            TypeDescription(
                type=kind,
                supported=kind in supported,
                num_tensors=len(alike),
                num_params=sum(math.prod(tensor.shape) for tensor in alike),
                num_bytes=sum(tensor.num_bytes for tensor in alike),
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


def _folder_tokenizer(path: Path) -> TokenizerDescription:
    """Describe the vocabulary as far as its files can be read, also one of a kind not supported."""
    try:
        config = FolderConfig(path)
        kind, vocabulary, num_merges = _folder_vocabulary(path)
        vocabulary |= {token.content: token.token_id for token in config.added_tokens()}
        literals = {role: config.literal(role) for role in _SPECIAL_TOKENS}
        adds_bos, adds_eos = config.flag("add_bos_token"), config.flag("add_eos_token")
    except ModelFileError:
        return TokenizerDescription(None, None, 0, 0, {}, {}, None, None)
    found = {role: text for role, text in literals.items() if text in vocabulary}
    return TokenizerDescription(
        model=_text_or_none(kind),
        pre=None,
        num_tokens=len(vocabulary),
        num_merges=num_merges,
        special_ids={role: vocabulary[text] for role, text in found.items() if text is not None},
        special_tokens={role: str(_plain(text)) for role, text in found.items()},
        add_bos=adds_bos,
        add_eos=adds_eos,
    )


def _folder_vocabulary(path: Path) -> tuple[object, dict[str, int], int]:
    """Return the kind of a folder's vocabulary, its tokens' ids, and how many merges it has."""
    if not (path / "tokenizer.json").is_file():
        if not (path / "tokenizer.model").is_file():
            return None, {}, 0
        pieces = read_sentencepiece(path / "tokenizer.model").tokens
        return "SentencePiece", {piece: i for i, piece in enumerate(pieces)}, 0
    file = read_json_object(path / "tokenizer.json")
    model, added = file.get("model"), file.get("added_tokens")
    model = model if isinstance(model, dict) else {}
    tokens = model.get("vocab")
    pairs: list[tuple[object, object]]
    if isinstance(tokens, list):  # Unigram's pairs of a token and its score
        pairs = [(pair[0], i) for i, pair in enumerate(tokens) if isinstance(pair, list) and pair]
    else:
        pairs = list(tokens.items()) if isinstance(tokens, dict) else []
    for token in added if isinstance(added, list) else []:
        if isinstance(token, dict):
            pairs.append((token.get("content"), token.get("id")))
    merges = model.get("merges")
    return (
        model.get("type"),
        {text: i for text, i in pairs if isinstance(text, str) and type(i) is int},
        len(merges) if isinstance(merges, list) else 0,
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
    return _text_or_none(file.metadata.get(key))


def _text_or_none(value: object) -> str | None:
    return str(_plain(value)) if isinstance(value, str) else None


def _truth(file: GGUFFile, key: str) -> bool | None:
    """Return a truth value of the metadata, None if it is none."""
    value = file.metadata.get(key)
    return value if isinstance(value, bool) else None


def _list(file: GGUFFile, key: str) -> list[MetadataValue]:
    """Return an array of the metadata, empty if it is none."""
    value = file.metadata.get(key)
    return value if isinstance(value, list) else []


def _plain(value: object) -> object:
    """Return a value that JSON can hold and a terminal can print."""
    if isinstance(value, list | dict) and len(value) > _MAX_VALUES_SHOWN:
        return f"[{len(value)} values]"
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, str):  # a byte that was no UTF-8, or half of a pair, is replaced
        return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
