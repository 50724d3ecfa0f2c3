"""From `StructuredOutputs` to a compiled grammar: bounded in size and time, and cached.

What does not compile is refused here, with the place of the fault, and never reaches an engine.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from octavo.errors import InvalidRequestError
from octavo.grammar.faults import fault_of, regex_fault
from octavo.grammar.matcher import Matcher, told
from octavo.grammar.vocabulary import Vocabulary
from octavo.sampling.structured import PARAM

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from octavo.model.text.tokenizer import Tokenizer
    from octavo.sampling.structured import StructuredOutputs

CACHE_SIZE: Final = 128
"""Compiled grammars that are kept; what is largest of them has megabytes."""
LIMITS: Final = {
    "initial_lexer_fuel": 1_000_000,  # about 20 ms
    "step_lexer_fuel": 200_000,  # about 15 ms
    "step_max_items": 50_000,
    "max_lexer_states": 50_000,  # 1-2 kB each
    "max_grammar_size": 200_000,
    "verbose_errors": False,  # a message must not repeat what a user sent
}
_WHITE_SPACE: Final = r"[\x20\x0A\x0D\x09]"
_MOST_TOLD: Final = 500
NO_ANSWER: Final = "no answer at all has this shape"


class CompiledGrammar:
    """A grammar that compiled, at its beginning; shared by all requests that ask for it."""

    def __init__(
        self, pristine: Any, first_mask: NDArray[np.int32], ends: NDArray[np.int32]
    ) -> None:
        self._pristine = pristine  # a mask was made from it: copies find its lexer's states made
        self._first_mask, self._ends = first_mask, ends

    def begin(self) -> Matcher:
        """Return the state of a new answer; its mask is known."""
        return Matcher(self._pristine.deep_copy(), self._first_mask, self._ends)


class GrammarCompiler:
    """Compiles for one model, whose vocabulary is read when the first grammar comes.

    Any thread may call it. A compiled grammar is found again by the equality of what was asked.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._vocabulary: Vocabulary | None = None
        self._compiled: OrderedDict[StructuredOutputs, CompiledGrammar] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, shape: StructuredOutputs) -> CompiledGrammar:
        """Return the grammar of ``shape``.

        Raises `InvalidRequestError`, whose message has the place of the fault, where there is
        none, where it is too large, and where llguidance is not installed.
        """
        with self._lock:
            known = self._compiled.get(shape)
            if known is not None:
                self._compiled.move_to_end(shape)
                return known
            if self._vocabulary is None:
                self._vocabulary = Vocabulary(self._tokenizer, self._vocab_size)
            compiled = _compile(shape, self._vocabulary)
            self._compiled[shape] = compiled
            if len(self._compiled) > CACHE_SIZE:
                self._compiled.popitem(last=False)
            return compiled


def _compile(shape: StructuredOutputs, vocabulary: Vocabulary) -> CompiledGrammar:
    """Compile, and make the first mask. Raises as `GrammarCompiler.compile`."""
    if shape.json == "false":
        raise _refused(shape, NO_ANSWER)
    pristine, error = _build(shape, vocabulary)
    if error is not None:
        where = ""
        if shape.kind == "json":
            assert isinstance(shape.json, str), "normalised"
            where = fault_of(
                shape.json,
                error,
                lambda text: _build(dataclasses.replace(shape, json=text), vocabulary)[1],
            )
        raise _refused(shape, where + error)
    mask = np.empty(vocabulary.num_words, np.int32)
    pristine.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
    if pristine.is_error():
        error = told(pristine.get_error())
        raise _refused(shape, NO_ANSWER if error.startswith("NoExtension") else error)
    if (words := mask.nonzero()[0]).size:
        # Some patterns are too large for the first token only: that one is tried here, too.
        word = int(mask[words[0]]) & 0xFFFFFFFF
        probe = pristine.deep_copy()
        probe.consume_token(32 * int(words[0]) + (word & -word).bit_length() - 1)
        if probe.is_error():
            raise _refused(shape, told(probe.get_error()))
    return CompiledGrammar(pristine, mask, vocabulary.ends)


def _build(shape: StructuredOutputs, vocabulary: Vocabulary) -> tuple[Any, str | None]:
    """Return llguidance's state at the beginning, and what is wrong, None as a rule."""
    lib = vocabulary.lib
    try:
        grammar = _grammar(shape, lib)
        limits = lib.LLParserLimits(**LIMITS)
        state = lib.LLMatcher(vocabulary.tokens, grammar, log_level=0, limits=limits)
    except InvalidRequestError:
        raise
    except Exception as error:  # llguidance says ValueError; a bug of its own must end nothing
        return None, told(str(error))
    return state, told(regex_fault(state.get_error())) if state.is_error() else None


def _grammar(shape: StructuredOutputs, lib: Any) -> str:
    """Return what `LLMatcher` takes."""
    made: str
    if shape.regex is not None:
        made = lib.LLMatcher.grammar_from_regex(shape.regex)
    elif shape.choice is not None:
        made = lib.LLMatcher.grammar_from_regex("|".join(map(_literal, shape.choice)))
    elif shape.grammar is not None:
        made = lib.LLMatcher.grammar_from_lark(_lark(shape))
    else:
        schema = '{"type":"object"}' if shape.json is None else shape.json
        made = lib.LLMatcher.grammar_from_json_schema(
            schema, overrides=_json_options(shape.whitespace)
        )
    return made


def _literal(text: str) -> str:
    """Return the pattern of one string; Lark's own strings do not take every character."""
    return "".join(
        char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}" for char in text
    )


def _json_options(whitespace: int) -> dict[str, object]:
    if whitespace == 0:
        return {"whitespace_flexible": False}
    return {"whitespace_flexible": True, "whitespace_pattern": f"{_WHITE_SPACE}{{1,{whitespace}}}"}


def _lark(shape: StructuredOutputs) -> str:
    """Return a grammar as Lark; GBNF is known by its rules' sign, ``::=``."""
    from llguidance.gbnf_to_lark import gbnf_to_lark

    text = shape.grammar
    assert text is not None
    if "::=" not in text:
        return text
    try:
        return gbnf_to_lark(text)
    except RecursionError:
        raise _refused(shape, "it is nested too deeply") from None
    except Exception as error:
        raise _refused(shape, f"as GBNF: {error}") from None


def _refused(shape: StructuredOutputs, why: str) -> InvalidRequestError:
    if len(why) > _MOST_TOLD:
        why = why[: _MOST_TOLD - 3] + "..."
    return InvalidRequestError(
        f"structured_outputs: the {shape.kind} does not compile: {why}", param=PARAM
    )
