"""Turns text into token ids and back, with the vocabulary that came with a model.

Three kinds of token matter:

- *normal*: reached by byte-level BPE or SentencePiece's BPE only;
- *user-defined*: a literal that is matched in any text before that, as the original tokenizers do
  with tokens that are added but not special;
- *control* (and *unknown*): a literal that is matched only where the caller asks for it with
  ``parse_special``. These tokens are left out of the vocabulary that BPE is given, so that no
  plain text can produce one, whatever the merges say.

A SentencePiece vocabulary may put a space before each text; ``decode`` takes it away. Where ids go
on after others, as a model's output does after its prompt, a leading space is the text's own:
``continuing`` says so, in both directions.

This module must not know what a chat is, nor how text is streamed, nor of any file format.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from octavo.errors import InvalidRequestError
from octavo.model.text.tokenizer_folder import parts_from_folder
from octavo.model.text.tokenizer_gguf import parts_from_gguf
from octavo.model.text.vocabulary import CONTROL, NORMAL, UNKNOWN, TokenizerParts

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping

# Control tokens that end a turn or a text in the model families that have them. A file names one
# of them as its eos; a model that was also trained with another must stop there too.
_END_LITERALS: Final = (
    "<|endoftext|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<end_of_turn>",
    "</s>",
)
# What a token that strips takes from its neighbours: Unicode's White_Space, which is not quite
# what Python's str.isspace says.
_WHITE_SPACE: Final = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
_LEADING_SPACE: Final = re.compile(f"[{_WHITE_SPACE}]*")


class Tokenizer:
    """A model's tokenizer; immutable once built, and safe to share between threads.

    A character whose bytes have no token of their own (SmolLM2 lacks 21 bytes, among them a few
    ASCII control codes) contributes nothing for those bytes, as in the reference tokenizers.

    ``named_tokens`` are the literals that chat templates know by name: ``bos_token``,
    ``eos_token``, ``unk_token`` and ``pad_token``, those that the file has.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        """Build from checked parts; ``from_gguf`` and ``from_folder`` are the ways in."""
        tokens, types, named_ids = parts.tokens, parts.types, parts.named_ids
        self.vocab_size = len(tokens)
        self.add_bos = parts.add_bos
        self.add_eos = parts.add_eos
        self.bos_id = named_ids.get("bos")
        self._eos_id = named_ids.get("eos")
        self._tokens = tokens
        self._types = types
        self._bytes_of = parts.bytes_of
        self._encoders = parts.encoders
        self._space_prefix = parts.space_prefix
        self._lstrip_ids = parts.lstrip_ids
        self._rstrip_ids = parts.rstrip_ids
        self._bytes: list[bytes | None] = [None] * len(tokens)
        others = [i for i, kind in enumerate(types) if kind != NORMAL]  # one pass: they are few
        self.special_ids = frozenset(i for i in others if types[i] in (CONTROL, UNKNOWN))
        self.control_literals = {tokens[i]: i for i in self.special_ids if tokens[i]}
        self.named_tokens = {
            f"{name}_token": tokens[named_ids[name]]
            for name in ("bos", "eos", "unk", "pad")
            if name in named_ids
        }
        self.eos_ids = parts.end_ids | frozenset(
            [named_ids[name] for name in ("eos", "eot", "eom") if name in named_ids]
            + [self.control_literals[t] for t in _END_LITERALS if t in self.control_literals]
        )
        # Longest first: an alternation takes its first match, so this is leftmost-longest.
        by_length = sorted(self.control_literals, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, by_length))) if by_length else None

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> Tokenizer:
        """Build the tokenizer that a GGUF file's key-value section describes.

        Raises ModelFileError where a key is missing, malformed or names a kind of tokenizer that
        is not supported.
        """
        return cls(parts_from_gguf(metadata))

    @classmethod
    def from_folder(cls, folder: str | os.PathLike[str]) -> Tokenizer:
        """Build the tokenizer of a Hugging Face model folder.

        It is read from ``tokenizer.json``, or from ``tokenizer.model`` where that is all there is,
        with what ``tokenizer_config.json`` and the files beside it add. Raises ModelFileError
        where they are missing, malformed or of a kind that is not supported.
        """
        return cls(parts_from_folder(folder))

    def encode(
        self, text: str, *, parse_special: bool = False, continuing: bool = False
    ) -> list[int]:
        """The ids of ``text``; no BOS is added.

        The literals of control tokens are plain text unless ``parse_special``. ``continuing``:
        the text goes on after other text, so no space is put before it.
        Raises InvalidRequestError where the text has no UTF-8 form (a lone surrogate).
        """
        pieces = self.split_control(text) if parse_special else [text]
        return self.encode_pieces(pieces, continuing=continuing)

    def encode_pieces(self, pieces: Iterable[str | int], *, continuing: bool = False) -> list[int]:
        """The ids of a text that is cut at its control tokens: plain runs as str, tokens as ids."""
        ids: list[int] = []
        encoder = self._encoders.continuing if continuing else self._encoders.start
        for piece in pieces:
            if isinstance(piece, int):
                ids.append(piece)
            else:
                check_utf8(piece)
                # A batch of one: `encode` would hold the interpreter's lock, and with it the step.
                ids += encoder.encode_batch_fast([piece], add_special_tokens=False)[0].ids
            encoder = self._encoders.after_control
        return ids

    def encode_prompt(self, text: str, *, parse_special: bool = False) -> list[int]:
        """The ids of a raw completion's prompt: at most one BOS leads them.

        BOS is prepended iff the model wants one and the text does not begin with it already; an
        EOS is appended by the same rule.
        """
        ids = self.encode(text, parse_special=parse_special)
        if self.add_bos and ids[:1] != [self.bos_id]:
            assert self.bos_id is not None, "the readers check that add_bos comes with a bos"
            ids.insert(0, self.bos_id)
        if self.add_eos and ids[-1:] != [self._eos_id]:
            assert self._eos_id is not None, "the readers check that add_eos comes with an eos"
            ids.append(self._eos_id)
        return ids

    def split_control(self, text: str) -> Iterator[str | int]:
        """Cut ``text`` at the literals of control tokens: plain runs as str, the tokens as ids.

        White space that a control token swallows is left out (Phi-3's do so).
        """
        start = 0
        if self._control is not None:
            for match in self._control.finditer(text):
                token_id = self.control_literals[match.group()]
                before = text[start : match.start()]
                if token_id in self._lstrip_ids:
                    before = before.rstrip(_WHITE_SPACE)
                if before:
                    yield before
                yield token_id
                start = match.end()
                if token_id in self._rstrip_ids:
                    space = _LEADING_SPACE.match(text, start)
                    assert space is not None, "the pattern matches an empty text too"
                    start = space.end()
        if start < len(text):
            yield text[start:]

    def decode(
        self, ids: Iterable[int], *, skip_special_tokens: bool = True, continuing: bool = False
    ) -> str:
        """The text of ``ids``: their bytes joined, read as UTF-8, bad sequences as U+FFFD.

        Without ``continuing`` the ids are a whole text: the space that ``encode`` put before it is
        taken away.
        """
        skipped = self.special_ids if skip_special_tokens else frozenset[int]()
        joined = b"".join(self.token_bytes(i) for i in ids if i not in skipped)
        if self._space_prefix and not continuing:
            joined = joined.removeprefix(b" ")
        return joined.decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The raw bytes of a token: those of its text, or for a special one those of its literal.

        An id that has no token (a model may have more rows than its vocabulary has tokens) has no
        bytes. Raises InvalidRequestError where there is no such id.
        """
        self._check_id(token_id)
        data = self._bytes[token_id]
        if data is None:
            # Filled on first use: doing all of them would double the time to build. Two threads
            # may both do so, with the same result.
            data = self._bytes[token_id] = self._bytes_of(
                self._tokens[token_id], self._types[token_id]
            )
        return data

    def id_to_token(self, token_id: int) -> str:
        """A token as the file spells it; raises as ``token_bytes``."""
        self._check_id(token_id)
        return self._tokens[token_id]

    def _check_id(self, token_id: int) -> None:
        if not 0 <= token_id < self.vocab_size:
            raise InvalidRequestError(
                f"token id {token_id} is not in the vocabulary; ids go from 0 to "
                f"{self.vocab_size - 1}"
            )


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
