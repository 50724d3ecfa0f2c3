"""Reads SentencePiece's own file, ``tokenizer.model``: its pieces and how it treats text.

The file is a protocol buffer of a published, frozen form, and a handful of its fields are all that
matters; reading them takes less than a dependency would. Fields that are not known are skipped.
This module must not know how pieces are merged.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from octavo.errors import ModelFileError
from octavo.model.text.vocabulary import BYTE, NORMAL, check_unicode, check_unique

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MAX_BYTES: Final = 64 << 20
_BPE: Final = 2  # the number of that kind of model; 1 is Unigram
# Numbers of fields, as the format's description gives them.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_TEXT, _SCORE, _TYPE = 1, 2, 3
_MODEL_TYPE, _SPACE_AS_SUFFIX = 3, 24
_ROLE_IDS: Final = {"unk": (40, 0), "bos": (41, 1), "eos": (42, 2), "pad": (43, -1)}  # and defaults
_CHARACTER_MAP, _ADD_PREFIX, _REMOVE_SPACES, _ESCAPE_SPACES = 2, 3, 4, 5


@dataclass(frozen=True, slots=True)
class SentencePieceFile:
    """What the file says."""

    tokens: list[str]
    types: list[int]
    scores: list[float]
    named_ids: dict[str, int]
    space_prefix: bool


def read_sentencepiece(path: Path) -> SentencePieceFile:
    """Read the file; raises ModelFileError where it is malformed or of an unsupported kind."""
    if path.stat().st_size > _MAX_BYTES:
        raise ModelFileError(f"{path} has {path.stat().st_size} bytes; at most {_MAX_BYTES} may be")
    try:
        return _parse(path.read_bytes())
    except ModelFileError as error:
        raise ModelFileError(f"{path}: {error}") from error


def _parse(data: bytes) -> SentencePieceFile:
    tokens: list[str] = []
    types: list[int] = []
    scores: list[float] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for field, value in _fields(data):
        if field == _PIECES:
            piece = dict(_fields(_bytes(value)))
            tokens.append(_text(piece.get(_TEXT, b"")))
            scores.append(_float(piece.get(_SCORE, bytes(4))))
            types.append(_int(piece.get(_TYPE, NORMAL)))
        elif field == _TRAINER:
            trainer = dict(_fields(_bytes(value)))
        elif field == _NORMALIZER:
            normalizer = dict(_fields(_bytes(value)))
    _check_supported(trainer, normalizer)
    _check_pieces(tokens, types, scores)
    named_ids = {
        role: _int(trainer.get(field, default)) for role, (field, default) in _ROLE_IDS.items()
    }
    return SentencePieceFile(
        tokens,
        types,
        scores,
        {role: i for role, i in named_ids.items() if 0 <= i < len(tokens)},
        space_prefix=bool(_int(normalizer.get(_ADD_PREFIX, 1))),
    )


def _check_supported(trainer: dict[int, int | bytes], normalizer: dict[int, int | bytes]) -> None:
    kind = _int(trainer.get(_MODEL_TYPE, 1))
    if kind != _BPE:
        raise ModelFileError(f"a model of kind {kind} is not supported; only BPE ({_BPE}) is")
    wrong = {
        "treat_whitespace_as_suffix": bool(trainer.get(_SPACE_AS_SUFFIX, 0)),
        "precompiled_charsmap": bool(normalizer.get(_CHARACTER_MAP, b"")),
        "remove_extra_whitespaces": bool(normalizer.get(_REMOVE_SPACES, 1)),
        "escape_whitespaces false": not normalizer.get(_ESCAPE_SPACES, 1),
    }
    for what, found in wrong.items():
        if found:
            raise ModelFileError(f"a model with {what} is not supported")


def _check_pieces(tokens: list[str], types: list[int], scores: list[float]) -> None:
    if not tokens:
        raise ModelFileError("it has no pieces")
    for i, kind in enumerate(types):
        if not NORMAL <= kind <= BYTE:
            raise ModelFileError(f"piece {i} is of type {kind}; it must be from {NORMAL} to {BYTE}")
    if any(map(math.isnan, scores)):
        raise ModelFileError("a piece's score is not a number")
    check_unique(tokens, "its list of pieces")
    check_unicode(tokens, "its list of pieces")


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message, in order: a number for a varint, bytes for anything else."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        kind = tag & 7
        if kind == 0:
            value, position = _varint(data, position)
            yield tag >> 3, value
            continue
        if kind == 2:
            length, position = _varint(data, position)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ModelFileError(f"it is no SentencePiece model: wire type {kind}")
        if length > len(data) - position:
            raise ModelFileError(f"it ends {length - len(data) + position} bytes too early")
        yield tag >> 3, data[position : position + length]
        position += length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise ModelFileError("it ends within a number")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            # A negative int32 is written as 64 bits.
            return (value - (1 << 64) if value >> 63 else value), position
    raise ModelFileError("it has a number of more than 10 bytes")


def _int(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ModelFileError("it has bytes where a number must be")
    return value


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ModelFileError("it has a number where bytes must be")
    return value


def _text(value: int | bytes) -> str:
    try:
        return _bytes(value).decode()
    except UnicodeDecodeError:
        raise ModelFileError(f"the piece {value!r} is not UTF-8") from None


def _float(value: int | bytes) -> float:
    data = _bytes(value)
    if len(data) != 4:
        raise ModelFileError(f"a score has {len(data)} bytes; it must have 4")
    return float(struct.unpack("<f", data)[0])
