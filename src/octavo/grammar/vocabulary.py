"""A model's vocabulary as llguidance reads it: the exact bytes of every token, and what ends.

llguidance is imported here and in `matcher`, when it is first needed. It belongs to the extra
``grammar``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.errors import InvalidRequestError
from octavo.sampling.structured import PARAM

if TYPE_CHECKING:
    from octavo.model.text.tokenizer import Tokenizer


def llguidance() -> Any:
    """Return the library. Raises `InvalidRequestError` where it is not installed."""
    try:
        return importlib.import_module("llguidance")
    except ImportError:
        raise InvalidRequestError(
            "structured_outputs need llguidance, which is not installed: "
            "pip install 'octavo[grammar]' (octavo[serve] has it too)",
            param=PARAM,
        ) from None


class Vocabulary:
    """A model's tokens for grammars: `lib` is llguidance, `tokens` its tokenizer.

    Control tokens are no text: no grammar allows them but by name. Rows of the model beyond its
    tokenizer's tokens have no bytes, and are never allowed. ``vocab_size`` is the model's.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.lib = llguidance()
        known = min(tokenizer.vocab_size, vocab_size)
        tokens = [tokenizer.token_bytes(i) for i in range(known)] + [b""] * (vocab_size - known)
        ends = sorted(i for i in tokenizer.eos_ids if i < vocab_size)
        if not ends:  # llguidance needs an end; one that no logit belongs to is never drawn
            ends = [len(tokens)]
            tokens.append(b"")
        specials = sorted({*(i for i in tokenizer.special_ids if i < vocab_size), *ends})
        wrapped = self.lib.TokenizerWrapper(_Tokens(tokenizer, tokens, specials, ends[0]))
        self.tokens = self.lib.LLTokenizer(wrapped, n_vocab=len(tokens), eos_token=ends)
        self.num_words = -(-len(tokens) // 32)
        """Words of 32 bits that a mask has: bit i % 32 of word i // 32 is token i."""
        self.ends = np.zeros(self.num_words, np.int32)
        """The mask of the end tokens."""
        for i in ends:
            self.ends.view(np.uint32)[i // 32] |= np.uint32(1 << i % 32)


class _Tokens:
    """What llguidance asks of a tokenizer."""

    def __init__(
        self, tokenizer: Tokenizer, tokens: list[bytes], specials: list[int], eos: int
    ) -> None:
        self.tokens = tokens
        self.special_token_ids = specials
        self.eos_token_id = eos
        self.bos_token_id = None
        self._tokenizer = tokenizer

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenizer.encode(text.decode("utf-8", "replace"), continuing=True)
