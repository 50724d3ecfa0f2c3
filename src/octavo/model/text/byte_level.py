"""Byte-level BPE: the tokenizers of GPT-2, Llama 3, Qwen and SmolLM, by their names in GGUF.

They differ in how a text is cut into words before merging, in whether a word that is itself a
token is taken whole, and in whether the text is normalised. A name that is not in the table is
refused: a guess would give other ids than the model was trained on, and worse answers unseen.

This module must not know where the vocabulary comes from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

from octavo.errors import ModelFileError
from octavo.model.text.vocabulary import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    Encoders,
    byte_pair_model,
    merge_pairs,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class Rule:
    """How a family cuts and merges."""

    words: str | None = None
    """The pattern of a word; None for GPT-2's own."""
    single_digits: bool = False
    """Each digit is a word, before anything else."""
    nfc: bool = False
    """The text is brought to Unicode's form NFC first."""
    ignore_merges: bool = False
    """A word that is itself a token is that token, whatever the merges give."""
    add_bos: bool = False
    """Whether a text begins with BOS where the file does not say."""

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """The rule's cutting, as the library has it."""
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.words is None)
        if self.single_digits:
            digits = pre_tokenizers.Digits(individual_digits=True)
            return pre_tokenizers.Sequence([digits, byte_level])
        if self.words is not None:
            split = pre_tokenizers.Split(Regex(self.words), behavior="isolated")
            return pre_tokenizers.Sequence([split, byte_level])
        return byte_level


_LLAMA3: Final = Rule(words=_WORDS % r"\p{N}{1,3}", ignore_merges=True, add_bos=True)
_LLAMA3_MERGING: Final = Rule(words=_WORDS % r"\p{N}{1,3}")
RULES: Final = {
    "gpt-2": Rule(),
    "smollm": Rule(single_digits=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "smaug-bpe": _LLAMA3_MERGING,  # SmolLM3 among others
    "dbrx": _LLAMA3_MERGING,  # Phi-4 among others
    "qwen2": Rule(words=_WORDS % r"\p{N}", nfc=True),
}


def rule_named(name: str, key: str) -> Rule:
    """The rule of that name in GGUF; raises ModelFileError where it is not known."""
    if name not in RULES:
        known = ", ".join(map(repr, sorted(RULES)))
        raise ModelFileError(
            f"{key} is {name!r}, a pre-tokenizer that is not supported; supported are {known}"
        )
    return RULES[name]


def byte_level_encoders(
    tokens: Sequence[str], types: Sequence[int], merges: list[str], rule: Rule, where: str
) -> Encoders:
    """The encoders of a byte-level vocabulary, without its control tokens.

    Raises ModelFileError where a merge is malformed, or makes what is not a plain token;
    ``where`` names the merges.
    """
    vocabulary = dict(zip(tokens, range(len(tokens)), strict=True))
    others = [i for i, kind in enumerate(types) if kind != NORMAL]  # one pass: they are few
    for i in others:
        if types[i] in (CONTROL, UNKNOWN):
            del vocabulary[tokens[i]]
    user_defined = [tokens[i] for i in others if types[i] == USER_DEFINED and tokens[i]]
    pairs = merge_pairs(merges, where)
    model = byte_pair_model(vocabulary, pairs, where, ignore_merges=rule.ignore_merges)
    encoder = tokenizers.Tokenizer(model)
    if rule.nfc:
        encoder.normalizer = normalizers.NFC()  # type: ignore[assignment, unused-ignore]
    encoder.pre_tokenizer = rule.pre_tokenizer()  # type: ignore[assignment, unused-ignore]
    # Each keeps the id that it has in the vocabulary.
    encoder.add_tokens([tokenizers.AddedToken(t, normalized=False) for t in user_defined])
    return Encoders(encoder, encoder, encoder)
