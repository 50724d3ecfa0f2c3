"""What a tokenizer is made of, whichever file it came from; the checks that all files share.

``TokenizerParts`` is what the readers of files (``tokenizer_gguf``, ``tokenizer_folder``) hand to
``Tokenizer``. This module must not know of any file format.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, compress, count, repeat
from operator import not_
from typing import TYPE_CHECKING, Any, Final

from tokenizers import models

from octavo.errors import ModelFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    import tokenizers

# The kinds of token, by the numbers that GGUF and SentencePiece both write.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

SPACE_MARK: Final = "\u2581"  # what SentencePiece writes for a space


@dataclass(frozen=True, slots=True)
class Encoders:
    """The same vocabulary for the places where a text may stand.

    They differ only in a vocabulary that prefixes texts with a space. Where it does not, the
    three are one object.
    """

    start: tokenizers.Tokenizer
    """For what begins a text."""
    after_control: tokenizers.Tokenizer
    """For what comes after a control token."""
    continuing: tokenizers.Tokenizer
    """For what goes on in the middle of a text: never a space prefix."""


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """All that makes a tokenizer."""

    tokens: list[str]
    """By id, as the file spells them; an id without a token has the empty string."""
    types: list[int]
    """By id: NORMAL to BYTE."""
    encoders: Encoders
    """They know no control token, so that no plain text can give one."""
    bytes_of: Callable[[str, int], bytes]
    """The bytes that a token of that spelling and type stands for."""
    named_ids: Mapping[str, int]
    """By role: bos, eos, eot, eom, unk, pad; a role that the file lacks is absent."""
    end_ids: frozenset[int]
    """More ids that end a text, besides eos, eot, eom and the well-known literals."""
    add_bos: bool
    add_eos: bool
    space_prefix: bool
    """A text gets a space put before it, which decoding takes away."""
    lstrip_ids: frozenset[int] = frozenset()
    """The control tokens that swallow the white space to their left."""
    rstrip_ids: frozenset[int] = frozenset()
    """The control tokens that swallow the white space to their right."""


def _byte_of_character() -> dict[str, int]:
    """The byte-level alphabet: one printable character for each of the 256 bytes.

    A byte that is a visible Latin-1 character stands for itself; the others take the characters
    from U+0100 on, in order.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(b): b for b in visible} | {chr(0x100 + n): b for n, b in enumerate(hidden)}


_BYTE_OF: Final = _byte_of_character()


def byte_level_bytes(token: str, kind: int) -> bytes:
    """The bytes of a byte-level vocabulary's token; a literal stands for itself."""
    if kind == NORMAL and all(c in _BYTE_OF for c in token):
        return bytes(_BYTE_OF[c] for c in token)
    return token.encode()


def spm_bytes(token: str, kind: int) -> bytes:
    """The bytes of a SentencePiece vocabulary's token."""
    if kind == BYTE:
        return bytes.fromhex(token[3:5])  # <0x41>
    if kind in (NORMAL, USER_DEFINED):
        return token.replace(SPACE_MARK, " ").encode()
    return token.encode()


def merge_pairs(merges: list[Any], where: str) -> list[tuple[str, str]]:
    """The pairs of merges that are written as 'left right' or as a list of two.

    Raises ModelFileError where one is neither; ``where`` names the merges.
    """
    kinds = set(map(type, merges))
    split = map(str.split, merges, repeat(" ")) if kinds == {str} else iter(merges)
    if kinds <= {str} or kinds == {list}:  # whole lists at once: there may be 300 thousand
        pairs = list(map(tuple, split))
        if set(map(len, pairs)) <= {2} and set(map(type, chain.from_iterable(pairs))) <= {str}:
            return pairs
    for n, merge in enumerate(merges):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(type(p) is str for p in pair):
            raise ModelFileError(f"{where}[{n}] is {merge!r}; it must be 'left right'")
    raise ModelFileError(f"{where} has merges of both forms")


def byte_pair_model(
    vocabulary: dict[str, int],
    pairs: list[tuple[str, str]],
    where: str,
    *,
    left_out: Collection[str] = (),
    byte_fallback: bool = False,
    ignore_merges: bool = False,
) -> models.BPE:
    """The merging of ``pairs``, most urgent first, over ``vocabulary``.

    Raises ModelFileError where a merge's part or result is not in the vocabulary; ``where`` names
    the merges. The result is looked up here, the parts by the library, which is quicker at it but
    panics where a result is missing. Of ``left_out``, the tokens that were taken out of the
    vocabulary, a merge that makes one is left out with it.
    """
    results = list(map("".join, pairs))
    known = list(map(vocabulary.__contains__, results))
    for n in compress(count(), map(not_, known)):
        if results[n] not in left_out:
            raise _not_a_token(n, pairs, results[n], where)
    kept = pairs if all(known) else list(compress(pairs, known))
    try:
        return models.BPE(
            vocabulary, kept, byte_fallback=byte_fallback, ignore_merges=ignore_merges
        )
    except Exception as error:  # the library has no narrower class
        for n in compress(count(), known):
            for part in pairs[n]:
                if part not in vocabulary:
                    raise _not_a_token(n, pairs, part, where) from None
        raise ModelFileError(f"{where} cannot be used: {error}") from error


def _not_a_token(n: int, pairs: list[tuple[str, str]], token: str, where: str) -> ModelFileError:
    return ModelFileError(
        f"{where}[{n}] is {' '.join(pairs[n])!r}, but {token!r} is not a plain token"
    )


def check_unicode(tokens: Iterable[str], where: str) -> None:
    """Raise ModelFileError where a token has no UTF-8 form."""
    try:
        "".join(tokens).encode()
    except UnicodeEncodeError:
        raise ModelFileError(f"{where} holds text that is not valid Unicode") from None


def check_unique(tokens: Sequence[str], where: str) -> None:
    """Raise ModelFileError where a token is there twice, so that its id is ambiguous."""
    if len(set(tokens)) != len(tokens):
        seen: set[str] = set()
        twice = next(t for t in tokens if t in seen or seen.add(t))  # type: ignore[func-returns-value]
        raise ModelFileError(f"{where} has {twice!r} twice, so that its id is ambiguous")
