"""SentencePiece's BPE, from the scores of its pieces: the tokenizers of Llama 2, Mistral, Gemma.

SentencePiece merges, again and again, the two neighbours whose joined text is the piece with the
highest score. The library merges by a list of pairs, most urgent first. So every way to cut a piece
into two pieces becomes a pair, in the order of the scores of what they make. (Where two pieces
have the same score, SentencePiece takes the leftmost and a list must rank them: the one with the
lower id, as the published conversions do.)

A character without a piece is written as the pieces of its UTF-8 bytes, ``<0x00>`` to ``<0xFF>``.
Spaces are written as U+2581, and a text may get one put before it.

This module must not know where the pieces come from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import tokenizers
from tokenizers import normalizers

from octavo.errors import ModelFileError
from octavo.model.text.vocabulary import (
    BYTE,
    NORMAL,
    SPACE_MARK,
    USER_DEFINED,
    Encoders,
    byte_pair_model,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BYTE_TOKENS: Final = tuple(f"<0x{byte:02X}>" for byte in range(256))


def spm_encoders(
    tokens: Sequence[str],
    types: Sequence[int],
    scores: Sequence[float],
    *,
    space_prefix: bool,
    rstrip_ids: frozenset[int] = frozenset(),
) -> Encoders:
    """The encoders of a SentencePiece vocabulary of the BPE kind.

    A text gets a space put before it, if ``space_prefix``, at its beginning and after each token
    that is matched literally. Raises ModelFileError where a byte has no token.
    """
    normal = {t: i for i, t in enumerate(tokens) if types[i] == NORMAL and t}
    user_defined = [i for i, kind in enumerate(types) if kind == USER_DEFINED and tokens[i]]
    literals = {i: tokens[i].replace(SPACE_MARK, " ") for i in user_defined}
    vocabulary = {t: i for i, t in enumerate(tokens) if types[i] == BYTE}
    check_bytes(vocabulary)
    vocabulary |= normal
    vocabulary |= {literal: i for i, literal in literals.items()}
    pairs = _pairs(normal, scores)
    model = byte_pair_model(vocabulary, pairs, "the merges", byte_fallback=True)

    def encoder(prefix: bool) -> tokenizers.Tokenizer:
        made = tokenizers.Tokenizer(model)
        escape = normalizers.Replace(" ", SPACE_MARK)
        made.normalizer = (  # type: ignore[assignment, unused-ignore]
            normalizers.Sequence([normalizers.Prepend(SPACE_MARK), escape]) if prefix else escape
        )
        made.add_tokens(
            [
                tokenizers.AddedToken(literal, normalized=False, rstrip=i in rstrip_ids)
                for i, literal in literals.items()
            ]
        )
        return made

    continuing = encoder(prefix=False)
    start = encoder(prefix=True) if space_prefix else continuing
    return Encoders(start, start, continuing)


def check_bytes(vocabulary: Mapping[str, int]) -> None:
    """Raise ModelFileError where a byte has no token: its characters would be lost."""
    missing = [token for token in BYTE_TOKENS if token not in vocabulary]
    if missing:
        raise ModelFileError(
            f"the vocabulary has no byte token {missing[0]} ({len(missing)} of 256 are missing); "
            "a vocabulary that cannot express every byte is not supported"
        )


def _pairs(normal: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to make a piece of two pieces, the highest score first, then the lowest id."""
    by_score = sorted(normal, key=lambda piece: -scores[normal[piece]])
    pairs: list[tuple[str, str]] = []
    for piece in by_score:
        ways = [
            (piece[:n], piece[n:])
            for n in range(1, len(piece))
            if piece[:n] in normal and piece[n:] in normal
        ]
        if len(ways) > 1:
            ways.sort(key=lambda way: normal[way[0]])
        pairs += ways
    return pairs
