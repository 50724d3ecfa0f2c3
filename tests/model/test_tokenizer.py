"""Text to ids and back: exact ids of the real model, and every way a file can be wrong."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import InvalidRequestError, ModelFileError
from octavo.model.files.gguf import GGUFFile
from octavo.model.text.tokenizer import Tokenizer

CASES_FILE = Path(__file__).parents[3] / "shared" / "cases" / "smollm2_token_ids.jsonl"

# (text, parse_special, ids)
INLINE_CASES: list[tuple[str, bool, list[int]]] = [
    ("", False, []),
    ("Hello, world!", False, [19556, 28, 905, 17]),
    ("The capital of France is", False, [504, 3575, 282, 4649, 314]),
    ("trailing space ", False, [4861, 4966, 1898, 216]),
    ("  two  spaces   three    four", False, [216, 827, 216, 5600, 256, 1296, 333, 1876]),
    ("0xFF 1,000", False, [32, 104, 10209, 216, 33, 28, 32, 32, 32]),
    ("한국어 텍스트", False,
     [33085, 246, 181, 130, 251, 183, 240, 129, 48138, 223, 231, 183, 228, 114, 184, 228, 133]),
    ("½ ¼", False, [16738, 216, 28151]),
    ("\x00\x01\x1b[31m", False, [190, 191, 212, 75, 35, 33, 93]),
    ("def f(x: int) -> int:\n    return x", False,
     [1604, 275, 24, 104, 42, 464, 25, 4722, 464, 42, 472, 1003, 1792]),
    ("<|im_end|>", False, [44, 108, 306, 79, 486, 108, 46]),
    ("<|im_end|>", True, [2]),
    ("a<|im_end|>b", True, [81, 2, 82]),
    ("<|im_start|>user\nhi<|im_end|>\n", True, [1, 4093, 198, 6004, 2, 198]),
    ("<|im_", True, [44, 108, 306, 79]),
    ("|im_end|>", True, [108, 306, 79, 486, 108, 46]),
]  # fmt: skip


def byte_alphabet() -> list[str]:
    """The byte-level characters of bytes 0 to 255, from tokens whose bytes everybody knows."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(b) if b in visible else chr(next(spare)) for b in range(256)]


CONTROL, USER_DEFINED = 3, 4


def metadata(**changes: Any) -> dict[str, object]:
    """A whole byte-level vocabulary with two merges, control and user-defined tokens."""
    tokens = [*byte_alphabet(), "he", "hel", "<s>", "</s>", "<|end|>", "<think>", "<s"]
    values: dict[str, object] = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tokens,
        "token_type": [1] * 258 + [CONTROL, CONTROL, CONTROL, USER_DEFINED, USER_DEFINED],
        "merges": ["h e", "he l"],
        "bos_token_id": 258,
        "eos_token_id": 259,
        "add_bos_token": True,
    }
    values.update(changes)
    return {f"tokenizer.ggml.{k}": v for k, v in values.items() if v is not None}


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    return Tokenizer.from_gguf(metadata())


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(GGUFFile.open(smollm2_path).metadata)


# -- the real model ----------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "parse_special", "ids"), INLINE_CASES)
def test_ids_are_the_reference_ones(
    smollm2: Tokenizer, text: str, parse_special: bool, ids: list[int]
) -> None:
    assert smollm2.encode(text, parse_special=parse_special) == ids
    assert smollm2.decode(ids, skip_special_tokens=False) == text


def test_every_line_of_the_cases_file(smollm2: Tokenizer) -> None:
    if not CASES_FILE.exists():
        pytest.skip(f"{CASES_FILE} is not here")
    lines = CASES_FILE.read_text(encoding="utf-8").splitlines()
    assert len(lines) > 90
    for line in lines:
        case = json.loads(line)
        ids = smollm2.encode(case["text"], parse_special=case["parse_special"])
        assert ids == case["ids"], case["text"]
        assert smollm2.decode(ids, skip_special_tokens=False) == case["text"]


def test_properties_of_the_real_model(smollm2: Tokenizer) -> None:
    assert smollm2.vocab_size == 49152
    assert smollm2.bos_id == 1
    assert smollm2.add_bos is False
    assert smollm2.special_ids == set(range(17))
    assert smollm2.eos_ids == {0, 2}  # <|im_end|> by key, <|endoftext|> by its name
    assert smollm2.named_tokens["eos_token"] == "<|im_end|>"
    assert smollm2.id_to_token(7042) == "ĠParis"
    assert smollm2.token_bytes(7042) == b" Paris"
    assert smollm2.encode_prompt("Hello, world!") == [19556, 28, 905, 17]


def test_every_control_literal_is_one_id_on_request_and_plain_text_otherwise(
    smollm2: Tokenizer,
) -> None:
    for literal, token_id in smollm2.control_literals.items():
        assert smollm2.encode(literal, parse_special=True) == [token_id]
        plain = smollm2.encode(literal)
        assert not smollm2.special_ids.intersection(plain)
        assert smollm2.decode(plain) == literal


# -- encode and decode -------------------------------------------------------------------------


@given(st.text())
def test_decode_undoes_encode(text: str) -> None:
    ids = TINY.encode(text)
    assert TINY.decode(ids) == text
    assert b"".join(map(TINY.token_bytes, ids)) == text.encode()


fragments = st.sampled_from(["<s>", "</s>", "<|end|>", "<s", ">", "<", "|", "h", "el", "\x00", "é"])


@given(st.lists(fragments).map("".join))
def test_plain_text_never_gives_a_control_token(text: str) -> None:
    assert not TINY.special_ids.intersection(TINY.encode(text))
    assert TINY.decode(TINY.encode(text, parse_special=True), skip_special_tokens=False) == text


@given(st.lists(st.integers(0, 262)))
def test_decode_is_the_joined_bytes_read_as_utf8(ids: list[int]) -> None:
    whole = b"".join(map(TINY.token_bytes, ids))
    assert TINY.decode(ids, skip_special_tokens=False) == whole.decode(errors="replace")


def test_merges_and_digits(tiny: Tokenizer) -> None:
    assert tiny.encode("hello") == [257, ord("l"), ord("o")]
    assert tiny.encode("12") == [ord("1"), ord("2")]


def test_user_defined_tokens_are_found_in_plain_text(tiny: Tokenizer) -> None:
    assert tiny.encode("a<think>b") == [ord("a"), 261, ord("b")]
    assert tiny.decode([261]) == "<think>"  # not special: it is not skipped


def test_control_tokens_go_before_user_defined_ones(tiny: Tokenizer) -> None:
    assert tiny.encode("<s>") == [262, ord(">")]
    assert tiny.encode("<s>", parse_special=True) == [258]


def test_special_tokens_are_skipped_on_request_only(tiny: Tokenizer) -> None:
    assert tiny.decode([258, ord("a"), 259]) == "a"
    assert tiny.decode([258, ord("a"), 259], skip_special_tokens=False) == "<s>a</s>"


def test_no_bos_is_added_by_encode_and_at_most_one_by_encode_prompt(tiny: Tokenizer) -> None:
    assert tiny.encode("a") == [ord("a")]
    assert tiny.encode_prompt("a") == [258, ord("a")]
    assert tiny.encode_prompt("<s>a", parse_special=True) == [258, ord("a")]
    assert tiny.encode_prompt("<s>a") == [258, 262, ord(">"), ord("a")]  # '<s>' is text here
    assert tiny.encode_prompt("") == [258]


def test_end_tokens_are_the_named_one_and_the_well_known_control_ones(tiny: Tokenizer) -> None:
    assert tiny.eos_ids == {259, 260}
    with_eot = Tokenizer.from_gguf(metadata(eot_token_id=5, eom_token_id=6))
    assert with_eot.eos_ids == {5, 6, 259, 260}
    plain = Tokenizer.from_gguf(metadata(token_type=[1] * 263, eos_token_id=None))
    assert plain.eos_ids == set()  # a literal that is not a control token ends nothing


def test_text_that_utf8_cannot_express_is_refused(tiny: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match=r"lone surrogate U\+D83D at character 1"):
        tiny.encode("a\ud83d")


@pytest.mark.parametrize("token_id", [-1, 263])
def test_ids_outside_the_vocabulary_are_refused(tiny: Tokenizer, token_id: int) -> None:
    for method in (tiny.token_bytes, tiny.id_to_token, lambda i: tiny.decode([i])):
        with pytest.raises(InvalidRequestError, match=f"{token_id} is not in the vocabulary"):
            method(token_id)


def test_bytes_without_a_token_contribute_nothing() -> None:
    tokens = byte_alphabet()
    changes = {"tokens": tokens[:4] + tokens[5:], "token_type": [1] * 255, "merges": []}
    lacking = Tokenizer.from_gguf(metadata(**changes, add_bos_token=None, bos_token_id=None,
                                           eos_token_id=None))  # fmt: skip
    assert lacking.decode(lacking.encode("a\x04b")) == "ab"


def test_threads_may_share_it(tiny: Tokenizer) -> None:
    texts = [f"hello {n} <think> é" * 50 for n in range(8)]
    expected = [tiny.encode(text) for text in texts]
    results: list[bool] = []

    def work(n: int) -> None:
        ids = [tiny.encode(texts[n]) for _ in range(20)]
        results.append(all(i == expected[n] and tiny.decode(i) == texts[n] for i in ids))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 8


def test_a_long_text_does_not_hold_up_other_threads(smollm2: Tokenizer) -> None:
    ran_at: list[float] = []
    is_done = threading.Event()

    def tick() -> None:
        while not is_done.wait(0.001):
            ran_at.append(time.perf_counter())

    thread = threading.Thread(target=tick)
    thread.start()
    began = time.perf_counter()
    smollm2.encode("The quick brown fox jumps over 13 lazy dogs. " * 8000)
    lasted = time.perf_counter() - began
    is_done.set()
    thread.join()
    # Two would run with the lock held: one before it was taken, one after.
    assert len([t for t in ran_at if 0.05 < (t - began) / lasted < 0.95]) > 2


def test_gpt2_keeps_digits_together() -> None:
    changes = {"merges": ["1 2"], "pre": "gpt-2"}
    tokens = [*byte_alphabet(), "12", "hel", "<s>", "</s>", "<|end|>", "<think>", "<s"]
    assert Tokenizer.from_gguf(metadata(tokens=tokens, **changes)).encode("12") == [256]
    changes["pre"] = "smollm"
    assert len(Tokenizer.from_gguf(metadata(tokens=tokens, **changes)).encode("12")) == 2


# -- malformed files ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "model is missing; it must be a string"),
        ({"model": "bert"}, "'bert', which is not supported"),
        ({"model": "llama"}, "'smollm', which is not supported with"),
        ({"pre": None}, "pre is missing"),
        (
            {"pre": "default"},
            "'default', a pre-tokenizer that is not supported; .*'qwen2', 'smaug-",
        ),
        ({"tokens": None}, "tokens is missing; it must be a list of str"),
        ({"tokens": "abc"}, "tokens is of type str"),
        ({"tokens": ["a", 7]}, "tokens holds a int; every element must be str"),
        ({"tokens": [], "token_type": []}, "tokens is empty"),
        ({"tokens": ["a", "b", "a"], "token_type": [1] * 3}, "has 'a' twice"),
        ({"tokens": ["a\udcff"], "token_type": [1]}, "not valid Unicode"),
        ({"token_type": None}, "token_type is missing"),
        ({"token_type": [1, 1]}, "token_type has 2 elements, but tokenizer.ggml.tokens has 263"),
        ({"token_type": [1] * 262 + [9]}, "token_type is 9 for token 262"),
        ({"token_type": [True] * 263}, "token_type holds a bool"),
        ({"merges": None}, "merges is missing"),
        ({"merges": ["he"]}, r"merges\[0\] is 'he'; it must be 'left right'"),
        ({"merges": ["h e", "a b c"]}, r"merges\[1\] is 'a b c'; it must be"),
        ({"merges": ["x y"]}, r"merges\[0\] is 'x y', but 'xy' is not a plain token"),
        ({"merges": ["< s>"]}, "'<s>' is not a plain token"),  # a merge that makes a control token
        ({"merges": ["h e", " hel"]}, r"merges\[1\] is .*not a plain token"),
        ({"bos_token_id": 263}, "bos_token_id is 263; it must be a token id from 0 to 262"),
        ({"eos_token_id": -1}, "eos_token_id is -1"),
        ({"eos_token_id": True}, "eos_token_id is True"),
        ({"eot_token_id": "2"}, "eot_token_id is '2'"),
        ({"add_bos_token": 1}, "add_bos_token is 1; it must be a boolean"),
        ({"bos_token_id": None}, "add_bos_token is true, but there is no bos_token_id"),
    ],
)
def test_a_malformed_file_is_refused_by_name(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        Tokenizer.from_gguf(metadata(**changes))


TINY = Tokenizer.from_gguf(metadata())  # for the property tests, which take no fixtures
