"""The pieces of a stream joined are the whole text, whatever the ids and however divided."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.model.files.gguf import GGUFFile
from octavo.model.text.detokenizer import Detokenizer
from octavo.model.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pathlib import Path

_VISIBLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_HIDDEN = [b for b in range(256) if b not in _VISIBLE]
_TOKENS = [chr(b) if b in _VISIBLE else chr(0x100 + _HIDDEN.index(b)) for b in range(256)]
END = 256  # a control token

TOKENIZER = Tokenizer.from_gguf(
    {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": [*_TOKENS, "<|end|>"],
        "tokenizer.ggml.token_type": [1] * 256 + [3],
        "tokenizer.ggml.merges": [],
    }
)


def stream(ids: list[int], *, skip_special_tokens: bool = True) -> list[str]:
    """The pieces for one id at a time, the flushed end last."""
    detokenizer = Detokenizer(TOKENIZER, skip_special_tokens=skip_special_tokens)
    return [*(detokenizer.add([i]) for i in ids), detokenizer.finish()]


# Valid text, single bytes of every kind, and the control token in between.
chunks = st.one_of(
    st.text(max_size=4).map(lambda text: list(text.encode())),
    st.lists(st.sampled_from([0x20, 0x41, 0x80, 0xBF, 0xC2, 0xE2, 0xED, 0xF0, 0xF4, 0xFF, END])),
)
some_ids = st.lists(chunks).map(lambda parts: [i for part in parts for i in part])


@given(some_ids, st.booleans(), st.lists(st.integers(0, 6)))
def test_pieces_joined_equal_the_whole_decode(
    ids: list[int], skip_special_tokens: bool, sizes: list[int]
) -> None:
    detokenizer = Detokenizer(TOKENIZER, skip_special_tokens=skip_special_tokens)
    pieces: list[str] = []
    start = 0
    for size in [*sizes, len(ids)]:
        pieces.append(detokenizer.add(ids[start : start + size]))
        start += size
    pieces.append(detokenizer.finish())
    assert "".join(pieces) == TOKENIZER.decode(ids, skip_special_tokens=skip_special_tokens)


def test_a_character_comes_whole_when_its_last_byte_does() -> None:
    assert stream(list("a👍é".encode())) == ["a", "", "", "", "👍", "", "é", ""]


def test_a_bad_byte_is_replaced_and_the_text_goes_on() -> None:
    assert stream([0xFF, *b" ok"]) == ["\ufffd", " ", "o", "k", ""]
    assert stream([0xE2, *b" ok"]) == ["", "\ufffd ", "o", "k", ""]


def test_an_incomplete_end_is_flushed_once() -> None:
    assert stream([*b"a", 0xF0, 0x9F, 0x91]) == ["a", "", "", "", "\ufffd"]
    detokenizer = Detokenizer(TOKENIZER)
    detokenizer.add([0xE2, 0x82])
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.finish() == ""


def test_at_most_three_bytes_are_held_back() -> None:
    for ids in ([0xF0] * 50, [0x80] * 50, [0xE2, 0x82] * 25):
        for n in range(1, len(ids)):
            detokenizer = Detokenizer(TOKENIZER)
            assert len(detokenizer.add(ids[:n])) >= n // 3 - 1


def test_special_tokens_are_skipped_or_written_out() -> None:
    assert stream([*b"a", END, *b"b"]) == ["a", "", "b", ""]
    assert stream([*b"a", END], skip_special_tokens=False) == ["a", "<|end|>", ""]
    # A skipped one does not break a character in two.
    assert stream([0xC3, END, 0xA9]) == ["", "", "é", ""]


def test_it_starts_empty_so_a_prompt_cannot_leak() -> None:
    # The prompt ended within a character; what is generated is all that is seen.
    assert stream([0xA9, *b"x"]) == ["\ufffd", "x", ""]


def test_adding_after_the_end_is_our_bug() -> None:
    detokenizer = Detokenizer(TOKENIZER)
    detokenizer.finish()
    with pytest.raises(AssertionError, match="after finish"):
        detokenizer.add([1])


def test_emoji_and_cjk_of_the_real_model(smollm2_path: Path) -> None:
    tokenizer = Tokenizer.from_gguf(GGUFFile.open(smollm2_path).metadata)
    text = "😀👩‍👩‍👧 日本語の漢字 — é"
    ids = tokenizer.encode(text)
    assert any(b"\xf0\x9f".startswith(tokenizer.token_bytes(i)[:1]) for i in ids)
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.add([i]) for i in ids]
    assert "\ufffd" not in "".join(pieces)
    assert "".join(pieces) + detokenizer.finish() == text == tokenizer.decode(ids)
