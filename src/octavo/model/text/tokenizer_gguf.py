"""Reads a tokenizer out of the key-value section of a GGUF file.

Two kinds are supported (``tokenizer.ggml.model``): ``gpt2``, byte-level BPE, and ``llama``,
SentencePiece's BPE. Whatever is missing, malformed or unknown is refused by name.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from octavo.errors import ModelFileError
from octavo.model.text.byte_level import byte_level_encoders, rule_named
from octavo.model.text.spm import spm_encoders
from octavo.model.text.vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    TokenizerParts,
    byte_level_bytes,
    check_unicode,
    check_unique,
    spm_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_KEY: Final = "tokenizer.ggml."
_ROLES: Final = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "eot": "eot_token_id",
    "eom": "eom_token_id",
    "unk": "unknown_token_id",
    "pad": "padding_token_id",
}
# Phi-3's tokens swallow the white space after them, but for these. GGUF has no key for it.
_PHI3_KEEPS_SPACE: Final = frozenset({"<unk>", "<s>", "<|endoftext|>"})


def parts_from_gguf(metadata: Mapping[str, object]) -> TokenizerParts:
    """The parts of the tokenizer that the file describes; raises ModelFileError."""
    model = _string(metadata, "model")
    if model not in ("gpt2", "llama"):
        raise ModelFileError(
            f"{_KEY}model is {model!r}, which is not supported; supported are 'gpt2' (byte-level "
            "BPE) and 'llama' (SentencePiece BPE)"
        )
    tokens = _list(metadata, "tokens", str)
    types = _list(metadata, "token_type", int)
    _check_tokens(tokens, types)
    return (_spm if model == "llama" else _byte_level)(metadata, tokens, types)


def _byte_level(
    metadata: Mapping[str, object], tokens: list[str], types: list[int]
) -> TokenizerParts:
    rule = rule_named(_string(metadata, "pre"), f"{_KEY}pre")
    merges = _list(metadata, "merges", str)
    named_ids = _named_ids(metadata, len(tokens))
    return TokenizerParts(
        tokens,
        types,
        byte_level_encoders(tokens, types, merges, rule, f"{_KEY}merges"),
        byte_level_bytes,
        named_ids,
        frozenset(),
        add_bos=_adds(metadata, "bos", named_ids, default=rule.add_bos),
        add_eos=_adds(metadata, "eos", named_ids, default=False),
        space_prefix=False,
    )


def _spm(metadata: Mapping[str, object], tokens: list[str], types: list[int]) -> TokenizerParts:
    pre = metadata.get(f"{_KEY}pre", "default")
    if pre != "default":
        raise ModelFileError(
            f"{_KEY}pre is {pre!r}, which is not supported with {_KEY}model 'llama'; only "
            "'default' is"
        )
    if _truth(metadata, "remove_extra_whitespaces", default=False):
        raise ModelFileError(f"{_KEY}remove_extra_whitespaces is true, which is not supported")
    scores = _list(metadata, "scores", float)
    if len(scores) != len(tokens):
        raise ModelFileError(
            f"{_KEY}scores has {len(scores)} elements, but {_KEY}tokens has {len(tokens)}"
        )
    if any(map(math.isnan, scores)):
        raise ModelFileError(f"{_KEY}scores has no number for token {_first_nan(scores)}")
    named_ids = _named_ids(metadata, len(tokens))
    space_prefix = _truth(metadata, "add_space_prefix", default=True)
    rstrip_ids: frozenset[int] = frozenset()
    if metadata.get("general.architecture") == "phi3":
        literal = (CONTROL, UNKNOWN, USER_DEFINED)
        rstrip_ids = frozenset(
            i for i, t in enumerate(tokens) if types[i] in literal and t not in _PHI3_KEEPS_SPACE
        )
    return TokenizerParts(
        tokens,
        types,
        spm_encoders(tokens, types, scores, space_prefix=space_prefix, rstrip_ids=rstrip_ids),
        spm_bytes,
        named_ids,
        frozenset(),
        add_bos=_adds(metadata, "bos", named_ids, default=True),
        add_eos=_adds(metadata, "eos", named_ids, default=False),
        space_prefix=space_prefix,
        rstrip_ids=rstrip_ids,
    )


def _first_nan(scores: list[float]) -> int:
    return next(i for i, score in enumerate(scores) if math.isnan(score))


def _adds(
    metadata: Mapping[str, object], role: str, named_ids: Mapping[str, int], *, default: bool
) -> bool:
    """Whether a text gets that token; a default does not hold where the file has no such token."""
    added = _truth(metadata, f"add_{role}_token", default=default and role in named_ids)
    if added and role not in named_ids:
        raise ModelFileError(f"{_KEY}add_{role}_token is true, but there is no {role}_token_id")
    return added


def _truth(metadata: Mapping[str, object], name: str, *, default: bool) -> bool:
    value = metadata.get(_KEY + name, default)
    if not isinstance(value, bool):
        raise ModelFileError(f"{_KEY}{name} is {value!r}; it must be a boolean")
    return value


def _string(metadata: Mapping[str, object], name: str) -> str:
    value = metadata.get(_KEY + name)
    if not isinstance(value, str):
        found = "missing" if value is None else f"of type {type(value).__name__}"
        raise ModelFileError(f"{_KEY}{name} is {found}; it must be a string")
    return value


def _list(metadata: Mapping[str, object], name: str, kind: type) -> list[Any]:
    value = metadata.get(_KEY + name)
    if not isinstance(value, list):
        found = "missing" if value is None else f"of type {type(value).__name__}"
        raise ModelFileError(f"{_KEY}{name} is {found}; it must be a list of {kind.__name__}")
    for wrong in set(map(type, value)) - {kind}:  # bool is not int here, on purpose
        raise ModelFileError(
            f"{_KEY}{name} holds a {wrong.__name__}; every element must be {kind.__name__}"
        )
    return value


def _check_tokens(tokens: list[str], types: list[int]) -> None:
    if not tokens:
        raise ModelFileError(f"{_KEY}tokens is empty")
    if len(types) != len(tokens):
        raise ModelFileError(
            f"{_KEY}token_type has {len(types)} elements, but {_KEY}tokens has {len(tokens)}"
        )
    for kind in sorted(set(types) - set(range(NORMAL, BYTE + 1))):
        raise ModelFileError(
            f"{_KEY}token_type is {kind} for token {types.index(kind)}; "
            f"it must be from {NORMAL} to {BYTE}"
        )
    check_unique(tokens, f"{_KEY}tokens")
    check_unicode(tokens, f"{_KEY}tokens")


def _named_ids(metadata: Mapping[str, object], vocab_size: int) -> dict[str, int]:
    """The ids that the file gives by role; a role that it lacks is absent."""
    ids: dict[str, int] = {}
    for role, key in _ROLES.items():
        value = metadata.get(_KEY + key)
        if value is None:
            continue
        if type(value) is not int or not 0 <= value < vocab_size:
            raise ModelFileError(
                f"{_KEY}{key} is {value!r}; it must be a token id from 0 to {vocab_size - 1}"
            )
        ids[role] = value
    return ids
