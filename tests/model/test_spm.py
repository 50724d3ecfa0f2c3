"""SentencePiece's BPE: the merging itself, its rules of spaces and bytes, and its file."""

from __future__ import annotations

import random
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import ModelFileError
from octavo.model.text.sentencepiece_file import read_sentencepiece
from octavo.model.text.tokenizer import Tokenizer
from tokenizer_files import (
    BYTE_PIECES,
    field,
    gguf_from_pieces,
    sentencepiece_model,
    small_pieces,
    varint,
)

if TYPE_CHECKING:
    from pathlib import Path

WORDS = small_pieces(
    ("\u2581", -10.0), *((c, -11.0) for c in "abehlot"), ("he", -1.0), ("ll", -2.0),
    ("hell", -3.0), ("\u2581hell", -4.0), ("\u2581\u2581", -5.0), ("\u2581a", -6.0),
)  # fmt: skip
FIRST = 259  # the id of the first normal piece


def tokenizer(pieces: list[tuple[str, float, int]] = WORDS, **more: object) -> Tokenizer:
    return Tokenizer.from_gguf(gguf_from_pieces(pieces, **more))


def spelled(tok: Tokenizer, text: str, **options: bool) -> list[str]:
    return [tok.id_to_token(i) for i in tok.encode(text, **options)]


# -- merging ---------------------------------------------------------------------------------------


def merged(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's rule in its plainest form: the best pair first, the leftmost of equals."""
    parts = list(text)
    while True:
        joined = [
            (scores[a + b], -i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in scores
        ]
        if not joined:
            return parts
        i = -max(joined)[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


@given(seed=st.integers(0, 2**32), letters=st.sampled_from(["a", "ab", "abc"]))
def test_merging_is_sentencepieces(seed: int, letters: str) -> None:
    """Over vocabularies as a trainer makes them: each piece joins two that were there before."""
    rng = random.Random(seed)
    known, scores = list(letters), dict[str, float]()
    for n in range(rng.randint(3, 14)):
        piece = rng.choice(known) + rng.choice(known)
        if piece not in scores:
            known.append(piece)
            scores[piece] = -float(n)
    pieces = small_pieces(*((c, -100.0) for c in letters), *scores.items())
    tok = tokenizer(pieces, add_space_prefix=False)
    for _ in range(20):
        text = "".join(rng.choice(letters) for _ in range(rng.randint(1, 30)))
        assert spelled(tok, text) == merged(text, scores)


def test_runs_of_spaces_with_one_score_merge_as_in_sentencepiece() -> None:
    """Mistral's runs of spaces, their lengths by id, as if all had one score."""
    runs = ["\u2581" * n for n in (2, 4, 8, 5, 16, 6, 12, 13, 10, 14, 3, 9, 7, 11)]
    scores = dict.fromkeys(runs, -1e9)
    tok = tokenizer(small_pieces(("\u2581", -1.0), *scores.items()), add_space_prefix=False)
    for n in range(1, 100):
        assert spelled(tok, " " * n) == merged("\u2581" * n, scores)


def test_a_character_without_a_piece_becomes_its_bytes() -> None:
    tok = tokenizer()
    assert spelled(tok, "aé") == ["\u2581a", "<0xC3>", "<0xA9>"]
    assert tok.decode(tok.encode("aé😀\n")) == "aé😀\n"
    assert tok.token_bytes(3 + 0xC3) == b"\xc3"


# -- spaces ----------------------------------------------------------------------------------------


def test_a_space_is_put_before_a_text_and_after_a_control_token() -> None:
    tok = tokenizer()
    assert spelled(tok, "hello") == ["\u2581hell", "o"]
    assert spelled(tok, " a") == ["\u2581\u2581", "a"]  # the pair of spaces has the better score
    assert spelled(tok, "") == []
    assert spelled(tok, "a</s>a", parse_special=True) == ["\u2581a", "</s>", "\u2581a"]
    assert spelled(tok, "hello", continuing=True) == ["hell", "o"]
    assert tok.decode(tok.encode("  a ")) == "  a "


def test_no_space_where_the_file_says_so() -> None:
    tok = tokenizer(add_space_prefix=False)
    assert spelled(tok, "hello") == ["hell", "o"]
    assert spelled(tok, " hello") == ["\u2581hell", "o"]
    assert tok.decode(tok.encode(" hello")) == " hello"


def test_the_mark_of_a_space_is_a_space() -> None:
    """As in SentencePiece, U+2581 in a text cannot be told from a space."""
    tok = tokenizer()
    assert tok.encode("a\u2581a") == tok.encode("a a")


def test_phi_3s_tokens_swallow_the_white_space_after_them() -> None:
    pieces = [*WORDS, ("<|endoftext|>", 0.0, 3), ("<|user|>", 0.0, 3), ("<|end|>", 0.0, 3)]
    text = "<s> a<|user|>\n\u00a0a <|end|>\n<|endoftext|> a"
    phi = Tokenizer.from_gguf({**gguf_from_pieces(pieces), "general.architecture": "phi3"})
    assert spelled(phi, text, parse_special=True) == [
        "<s>", "\u2581\u2581", "a", "<|user|>", "\u2581a", "\u2581", "<|end|>", "<|endoftext|>",
        "\u2581\u2581", "a",
    ]  # fmt: skip
    other = tokenizer(pieces)
    assert "<0x0A>" in spelled(other, text, parse_special=True)


# -- kinds of piece --------------------------------------------------------------------------------


def test_user_defined_pieces_are_literals_with_or_without_the_mark() -> None:
    for run in ("\u2581" * 3, "   "):  # converters write one or the other
        tok = tokenizer([*WORDS, (run, -1.0, 4), ("<h1>", -1.0, 4)], add_space_prefix=False)
        ids = tok.encode("a   a<h1>he")
        assert [tok.token_bytes(i) for i in ids] == [b"a", b"   ", b"a", b"<h1>", b"he"]
        assert tok.decode(ids) == "a   a<h1>he"


def test_unused_and_control_pieces_are_not_reached_by_text() -> None:
    pieces = [*WORDS, ("hello", 5.0, 5), ("hel", 9.0, 3)]
    assert spelled(tokenizer(pieces), "hello") == ["\u2581hell", "o"]


# -- GGUF's keys -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre": "gpt-2"}, "pre is 'gpt-2', which is not supported with .*'llama'"),
        ({"scores": None}, "scores is missing; it must be a list of float"),
        ({"scores": [0.0]}, r"scores has 1 elements, but tokenizer.ggml.tokens has 273"),
        ({"scores": [0.0] * 272 + [float("nan")]}, "scores has no number for token 272"),
        ({"add_space_prefix": 1}, "add_space_prefix is 1; it must be a boolean"),
        ({"remove_extra_whitespaces": True}, "remove_extra_whitespaces is true"),
        ({"add_eos_token": True, "eos_token_id": None}, "there is no eos_token_id"),
        ({"token_type": [1] * 273}, r"no byte token <0x00> \(256 of 256 are missing\)"),
    ],
)
def test_a_malformed_file_is_refused_by_name(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        tokenizer(**changes)


def test_bos_is_added_unless_refused() -> None:
    assert tokenizer().encode_prompt("a") == [1, *tokenizer().encode("a")]
    assert tokenizer().encode_prompt("") == [1]
    assert tokenizer(add_bos_token=False).encode_prompt("a") == tokenizer().encode("a")
    assert tokenizer(bos_token_id=None).encode_prompt("a") == tokenizer().encode("a")
    both = tokenizer(add_eos_token=True)
    assert both.encode_prompt("a") == [1, *both.encode("a"), 2]
    assert both.encode_prompt("<s>a</s>", parse_special=True) == [1, *both.encode("a"), 2]


# -- SentencePiece's file --------------------------------------------------------------------------


def read(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "tokenizer.model").write_bytes(data)
    read_sentencepiece(tmp_path / "tokenizer.model")


def test_the_file_says_what_the_tokenizer_does(tmp_path: Path) -> None:
    extra = field(9, b"x") + varint(10 << 3 | 1) + bytes(8) + field(11, -5)
    data = extra + sentencepiece_model(WORDS, {41: 2, 42: -1}, {3: 0}) + extra
    (tmp_path / "tokenizer.model").write_bytes(data)
    tok = Tokenizer.from_folder(tmp_path)
    assert spelled(tok, "hello") == ["hell", "o"]
    assert tok.named_tokens == {"bos_token": "</s>", "unk_token": "<unk>"}


def test_a_file_cut_at_any_byte_is_refused_or_has_lost_pieces_only(tmp_path: Path) -> None:
    data = sentencepiece_model(WORDS[:3] + WORDS[FIRST:])
    for n in range(len(data)):
        with pytest.raises(ModelFileError, match=r"tokenizer\.model: "):
            read(tmp_path, data[:n])


@given(data=st.binary(max_size=60), position=st.integers(0, 400))
def test_a_hostile_file_is_refused_at_worst(
    data: bytes, position: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = sentencepiece_model(WORDS[:3] + WORDS[FIRST:])
    path = tmp_path_factory.getbasetemp() / "hostile.model"
    path.write_bytes(whole[:position] + data + whole[position + len(data) :])
    with suppress(ModelFileError):
        read_sentencepiece(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "a model of kind 1 is not supported; only BPE"),
        (sentencepiece_model(WORDS, {3: 1}), "a model of kind 1"),
        (sentencepiece_model([]), "it has no pieces"),
        (sentencepiece_model(WORDS, {24: 1}), "with treat_whitespace_as_suffix"),
        (sentencepiece_model(WORDS, None, {2: b"map"}), "with precompiled_charsmap"),
        (sentencepiece_model(WORDS, None, {4: 1}), "with remove_extra_whitespaces"),
        (sentencepiece_model(WORDS, None, {5: 0}), "with escape_whitespaces false"),
        (sentencepiece_model([*WORDS, ("a", 0.0, 1)]), "has 'a' twice"),
        (sentencepiece_model([("a", 0.0, 7)]), "piece 0 is of type 7"),
        (sentencepiece_model([("a", float("nan"), 1)]), "score is not a number"),
        (field(1, field(1, b"\xff")), "is not UTF-8"),
        (field(1, field(2, b"abc")), "a score has 3 bytes"),
        (field(1, field(3, b"abc")), "bytes where a number must be"),
        (field(1, field(1, 7)), "a number where bytes must be"),
        (b"\x0b", "wire type 3"),
        (b"\xff" * 11, "more than 10 bytes"),
    ],
)
def test_an_unsupported_file_is_refused_by_name(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=message):
        read(tmp_path, data)


def test_a_file_without_every_byte_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(
        sentencepiece_model([p for p in WORDS if p != BYTE_PIECES[65]])
    )
    with pytest.raises(ModelFileError, match=r"no byte token <0x41> \(1 of 256 are missing\)"):
        Tokenizer.from_folder(tmp_path)
