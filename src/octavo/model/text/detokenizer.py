"""Turns a request's generated ids into text as they come.

A token may hold a part of a character; its bytes are held back until the character is complete.
This module must not know of stop strings, nor of prompts: what is never added never comes out.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from octavo.model.text.tokenizer import Tokenizer

_Utf8Decoder: Final = getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one request's output, piece by piece.

    However the ids are divided among calls of ``add``, the pieces and the result of ``finish``
    joined equal ``tokenizer.decode`` of all of them, ``continuing``: an output goes on after its
    prompt, so a space that leads it is its own. At most three bytes are ever held back: no prefix
    of a UTF-8 character is longer.
    """

    __slots__ = ("_decoder", "_finished", "_skipped", "_token_bytes")

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._decoder = _Utf8Decoder(errors="replace")
        self._finished = False

    def add(self, ids: Iterable[int]) -> str:
        """The text that ``ids`` complete; empty where they only begin a character."""
        assert not self._finished, "add() after finish()"
        token_bytes, skipped = self._token_bytes, self._skipped
        return self._decoder.decode(b"".join([token_bytes(i) for i in ids if i not in skipped]))

    def finish(self) -> str:
        """The end of the output: an incomplete character still held back, as U+FFFD."""
        self._finished = True
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
