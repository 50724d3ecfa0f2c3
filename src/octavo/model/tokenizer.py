"""Turns text into token ids and back, with the vocabulary that a GGUF file carries.

Three kinds of token matter (``tokenizer.ggml.token_type``):

- *normal*: reached by byte-level BPE only;
- *user-defined* (type 4): a literal that is matched in any text before BPE, as the original
  tokenizers do with tokens that are added but not special;
- *control* (type 3, and *unknown*, type 2): a literal that is matched only where the caller asks
  for it with ``parse_special``. These tokens are left out of the vocabulary that BPE is given,
  so that no plain text can produce one, whatever the merges say.

This module must not know what a chat is, nor how text is streamed.
"""

from __future__ import annotations

import re
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import tokenizers
from tokenizers import models, pre_tokenizers

from octavo.errors import InvalidRequestError, ModelFileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_KEY: Final = "tokenizer.ggml."
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)

# Control tokens that end a turn or a text in the model families that have them. A file names one
# of them as its eos; a model that was also trained with another must stop there too.
_END_LITERALS: Final = (
    "<|endoftext|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<end_of_turn>",
    "</s>",
)


def _byte_of_character() -> dict[str, int]:
    """The byte-level alphabet: one printable character for each of the 256 bytes.

    A byte that is a visible Latin-1 character stands for itself; the others take the characters
    from U+0100 on, in order.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(b): b for b in visible} | {chr(0x100 + n): b for n, b in enumerate(hidden)}


_BYTE_OF: Final = _byte_of_character()


class Tokenizer:
    """A byte-level BPE tokenizer; immutable once built, and safe to share between threads.

    A character whose bytes have no token of their own (SmolLM2 lacks 21 bytes, among them a few
    ASCII control codes) contributes nothing for those bytes, as in the reference tokenizers.

    ``named_tokens`` are the literals that chat templates know by name: ``bos_token``,
    ``eos_token``, ``unk_token`` and ``pad_token``, those that the file has.
    """

    def __init__(
        self,
        tokens: list[str],
        token_types: list[int],
        merges: list[str],
        pre_tokenizer: pre_tokenizers.PreTokenizer,
        *,
        named_ids: Mapping[str, int],
        add_bos: bool,
    ) -> None:
        """Build from checked lists; ``from_gguf`` is the way in."""
        self.vocab_size = len(tokens)
        self.add_bos = add_bos
        self.bos_id = named_ids.get("bos")
        self._tokens = tokens
        self._types = token_types
        self._bytes: list[bytes | None] = [None] * len(tokens)
        others = [i for i, kind in enumerate(token_types) if kind != _NORMAL]  # one pass: few
        self.special_ids = frozenset(i for i in others if token_types[i] in (_CONTROL, _UNKNOWN))
        self.control_literals = {tokens[i]: i for i in self.special_ids if tokens[i]}
        self.named_tokens = {
            f"{name}_token": tokens[named_ids[name]]
            for name in ("bos", "eos", "unk", "pad")
            if name in named_ids
        }
        self.eos_ids = frozenset(
            [named_ids[name] for name in ("eos", "eot", "eom") if name in named_ids]
            + [self.control_literals[t] for t in _END_LITERALS if t in self.control_literals]
        )
        # Longest first: an alternation takes its first match, so this is leftmost-longest.
        by_length = sorted(self.control_literals, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, by_length))) if by_length else None
        self._bpe = tokenizers.Tokenizer(_byte_pair_model(tokens, self.special_ids, merges))
        self._bpe.pre_tokenizer = pre_tokenizer  # type: ignore[assignment, unused-ignore]
        # Each keeps the id that it has in the vocabulary.
        self._bpe.add_tokens(
            [
                tokenizers.AddedToken(tokens[i], normalized=False)
                for i in others
                if token_types[i] == _USER_DEFINED and tokens[i]
            ]
        )

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> Tokenizer:
        """Build the tokenizer that a GGUF file's key-value section describes.

        Raises ModelFileError where a key is missing, malformed or names a kind of tokenizer that
        is not supported.
        """
        model = _string(metadata, "model")
        if model != "gpt2":
            raise ModelFileError(
                f"{_KEY}model is {model!r}, which is not supported; only 'gpt2' (byte-level BPE) is"
            )
        pre_tokenizer = _pre_tokenizer(_string(metadata, "pre"))
        tokens = _list(metadata, "tokens", str)
        token_types = _list(metadata, "token_type", int)
        merges = _list(metadata, "merges", str)
        _check_tokens(tokens, token_types)
        named_ids = _named_ids(metadata, len(tokens))
        add_bos = metadata.get(f"{_KEY}add_bos_token", False)
        if not isinstance(add_bos, bool):
            raise ModelFileError(f"{_KEY}add_bos_token is {add_bos!r}; it must be a boolean")
        if add_bos and "bos" not in named_ids:
            raise ModelFileError(f"{_KEY}add_bos_token is true, but there is no bos_token_id")
        return cls(tokens, token_types, merges, pre_tokenizer, named_ids=named_ids, add_bos=add_bos)

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """The ids of ``text``; no BOS is added.

        The literals of control tokens are plain text unless ``parse_special``.
        Raises InvalidRequestError where the text has no UTF-8 form (a lone surrogate).
        """
        if not parse_special:
            return self._encode_plain(text)
        ids: list[int] = []
        for piece in self.split_control(text):
            if isinstance(piece, int):
                ids.append(piece)
            else:
                ids += self._encode_plain(piece)
        return ids

    def encode_prompt(self, text: str, *, parse_special: bool = False) -> list[int]:
        """The ids of a raw completion's prompt: at most one BOS leads them.

        BOS is prepended iff the model wants one and the text does not begin with it already.
        """
        ids = self.encode(text, parse_special=parse_special)
        if not self.add_bos or ids[:1] == [self.bos_id]:
            return ids
        assert self.bos_id is not None, "from_gguf checks that add_bos comes with a bos_id"
        return [self.bos_id, *ids]

    def split_control(self, text: str) -> Iterator[str | int]:
        """Cut ``text`` at the literals of control tokens: plain runs as str, the tokens as ids."""
        start = 0
        if self._control is not None:
            for match in self._control.finditer(text):
                if match.start() > start:
                    yield text[start : match.start()]
                yield self.control_literals[match.group()]
                start = match.end()
        if start < len(text):
            yield text[start:]

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ``ids``: their bytes joined, read as UTF-8, bad sequences as U+FFFD."""
        skipped = self.special_ids if skip_special_tokens else frozenset[int]()
        joined = b"".join(self.token_bytes(i) for i in ids if i not in skipped)
        return joined.decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The raw bytes of a token: those of its text, or for a special one those of its literal.

        Raises InvalidRequestError where there is no such token.
        """
        self._check_id(token_id)
        data = self._bytes[token_id]
        if data is None:
            # Filled on first use: doing all of them would double the time to build. Two threads
            # may both do so, with the same result.
            data = self._bytes[token_id] = self._compute_bytes(token_id)
        return data

    def id_to_token(self, token_id: int) -> str:
        """A token as the file spells it (byte-level characters); raises as ``token_bytes``."""
        self._check_id(token_id)
        return self._tokens[token_id]

    def _check_id(self, token_id: int) -> None:
        if not 0 <= token_id < self.vocab_size:
            raise InvalidRequestError(
                f"token id {token_id} is not in the vocabulary; ids go from 0 to "
                f"{self.vocab_size - 1}"
            )

    def _compute_bytes(self, token_id: int) -> bytes:
        token = self._tokens[token_id]
        if self._types[token_id] == _NORMAL and all(c in _BYTE_OF for c in token):
            return bytes(_BYTE_OF[c] for c in token)
        return token.encode()

    def _encode_plain(self, text: str) -> list[int]:
        check_utf8(text)
        ids: list[int] = self._bpe.encode(text, add_special_tokens=False).ids
        return ids


def check_utf8(text: str, *, param: str | None = None) -> None:
    """Raise InvalidRequestError where ``text`` has no UTF-8 form (a lone surrogate)."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"the text has a lone surrogate U+{ord(text[error.start]):04X} at character "
            f"{error.start}, which UTF-8 cannot express; remove it",
            param=param,
        ) from None


def _byte_pair_model(
    tokens: Sequence[str], special_ids: frozenset[int], merges: list[str]
) -> models.BPE:
    """The BPE of all tokens but the special ones.

    Raises ModelFileError where a merge is malformed or one of its parts or its result is not a
    token of that vocabulary. The result is looked up here, the parts by the library, which is
    quicker at it but panics where a result is missing.
    """
    vocabulary = dict(zip(tokens, range(len(tokens)), strict=True))
    for token_id in special_ids:
        del vocabulary[tokens[token_id]]
    pairs: list[Any] = list(map(tuple, map(str.split, merges, repeat(" "))))
    if set(map(len, pairs)) - {2}:
        n = next(n for n, pair in enumerate(pairs) if len(pair) != 2)
        raise ModelFileError(f"{_KEY}merges[{n}] is {merges[n]!r}; it must be 'left right'")
    results = list(map(str.replace, merges, repeat(" "), repeat("")))
    if not all(map(vocabulary.__contains__, results)):
        n = next(n for n, result in enumerate(results) if result not in vocabulary)
        raise ModelFileError(
            f"{_KEY}merges[{n}] is {merges[n]!r}, but {results[n]!r} is not a plain token"
        )
    try:
        return models.BPE(vocabulary, pairs)
    except Exception as error:  # the library has no narrower class
        raise ModelFileError(f"{_KEY}merges cannot be used: {error}") from error


def _pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    """The rule that cuts text into words before BPE, by its name in GGUF."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name == "gpt-2":
        return byte_level
    if name == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, byte_level])
    raise ModelFileError(
        f"{_KEY}pre is {name!r}, a pre-tokenizer that is not supported; "
        "supported are 'smollm' and 'gpt-2'"
    )


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


def _check_tokens(tokens: list[str], token_types: list[int]) -> None:
    if not tokens:
        raise ModelFileError(f"{_KEY}tokens is empty")
    if len(token_types) != len(tokens):
        raise ModelFileError(
            f"{_KEY}token_type has {len(token_types)} elements, but {_KEY}tokens has {len(tokens)}"
        )
    for kind in sorted(set(token_types) - set(range(_NORMAL, _BYTE + 1))):
        raise ModelFileError(
            f"{_KEY}token_type is {kind} for token {token_types.index(kind)}; "
            f"it must be from {_NORMAL} to {_BYTE}"
        )
    if len(set(tokens)) != len(tokens):
        seen: set[str] = set()
        twice = next(t for t in tokens if t in seen or seen.add(t))  # type: ignore[func-returns-value]
        raise ModelFileError(f"{_KEY}tokens has {twice!r} twice, so that its id is ambiguous")
    try:
        "".join(tokens).encode()
    except UnicodeEncodeError:
        raise ModelFileError(f"{_KEY}tokens holds text that is not valid Unicode") from None


def _named_ids(metadata: Mapping[str, object], vocab_size: int) -> dict[str, int]:
    """The ids that the file gives by role; a role that it lacks is absent."""
    keys = {
        "bos": "bos_token_id",
        "eos": "eos_token_id",
        "eot": "eot_token_id",
        "eom": "eom_token_id",
        "unk": "unknown_token_id",
        "pad": "padding_token_id",
    }
    ids: dict[str, int] = {}
    for role, key in keys.items():
        value = metadata.get(_KEY + key)
        if value is None:
            continue
        if type(value) is not int or not 0 <= value < vocab_size:
            raise ModelFileError(
                f"{_KEY}{key} is {value!r}; it must be a token id from 0 to {vocab_size - 1}"
            )
        ids[role] = value
    return ids
