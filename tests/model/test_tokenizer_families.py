"""Every family's ids are those of the library that defines them; small vocabularies, any machine.

The expected ids were computed by `scripts/make_tokenizer_goldens.py`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.model.text.detokenizer import Detokenizer
from octavo.model.text.sentencepiece_file import read_sentencepiece
from octavo.model.text.tokenizer import Tokenizer
from octavo.model.text.vocabulary import SPACE_MARK
from tokenizer_files import DATA, gguf_from_pieces, gguf_metadata, golden, write_json

if TYPE_CHECKING:
    from pathlib import Path

BYTE_LEVEL = golden("byte_level.json")
SPM = {name: golden(f"{name}.json") for name in ("spm_prefix", "spm_plain")}
CONTROL: list[str] = BYTE_LEVEL["control"]
NORMALS: list[str] = BYTE_LEVEL["tokens"]
PIECES: dict[str, list[tuple[str, float, int]]] = {
    name: [(text, score, kind) for text, score, kind in file["pieces"]]
    for name, file in SPM.items()
}
SPLIT = {"llama-bpe": r"\p{N}{1,3}", "smaug-bpe": r"\p{N}{1,3}", "qwen2": r"\p{N}"}


def byte_level(pre: str) -> Tokenizer:
    return Tokenizer.from_gguf(
        gguf_metadata(
            model="gpt2",
            pre=pre,
            tokens=[*NORMALS, *CONTROL],
            token_type=[1] * len(NORMALS) + [3] * len(CONTROL),
            merges=BYTE_LEVEL["merges"],
        )
    )


def spm(name: str) -> Tokenizer:
    return Tokenizer.from_gguf(
        gguf_from_pieces(PIECES[name], pre="default", add_space_prefix=name == "spm_prefix")
    )


TOKENIZERS = {
    **{pre: byte_level(pre) for pre in BYTE_LEVEL["ids"]},
    **{name: spm(name) for name in SPM},
}


def cases(name: str) -> list[tuple[str, list[int]]]:
    file = SPM.get(name)
    ids = file["ids"] if file else BYTE_LEVEL["ids"][name]
    return list(zip(BYTE_LEVEL["texts"], ids, strict=True))


# -- GGUF ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TOKENIZERS)
def test_ids_are_those_of_the_reference(name: str) -> None:
    for text, ids in cases(name):
        assert TOKENIZERS[name].encode(text) == ids, text


@pytest.mark.parametrize("name", [*BYTE_LEVEL["ids"], "spm_prefix", "spm_plain"])
def test_decode_undoes_encode(name: str) -> None:
    for text, ids in cases(name):
        expected = text
        if name == "qwen2":  # its text is brought to NFC
            expected = TOKENIZERS["gpt-2"].decode(TOKENIZERS["gpt-2"].encode(_nfc(text)))
        assert TOKENIZERS[name].decode(ids) == expected


def _nfc(text: str) -> str:
    import unicodedata

    return unicodedata.normalize("NFC", text)


@pytest.mark.parametrize("name", SPM)
def test_decode_is_sentencepieces(name: str) -> None:
    for ids, text in zip(SPM[name]["ids"], SPM[name]["decoded"], strict=True):
        assert TOKENIZERS[name].decode(ids) == text


def test_the_families_differ_on_purpose() -> None:
    """The goldens would show it if one rule stood in for another."""
    by_family = [json.dumps(ids) for ids in BYTE_LEVEL["ids"].values()]
    assert len(set(by_family)) == len(by_family)


def test_a_word_that_is_a_token_is_taken_whole_by_llama_3_only() -> None:
    word = NORMALS.index("zyxwzyxw")
    assert TOKENIZERS["llama-bpe"].encode("zyxwzyxw") == [word]
    assert word not in TOKENIZERS["smaug-bpe"].encode("zyxwzyxw")
    assert word not in TOKENIZERS["qwen2"].encode("zyxwzyxw")


@pytest.mark.parametrize("alias", ["llama3", "llama-v3", "dbrx"])
def test_other_names_of_the_same_rule(alias: str) -> None:
    same = "smaug-bpe" if alias == "dbrx" else "llama-bpe"
    for text, ids in cases(same):
        assert byte_level(alias).encode(text) == ids


# -- no plain text becomes a control token ---------------------------------------------------------

hostile = st.lists(
    st.one_of(
        st.sampled_from([*CONTROL, "<unk>", "<start_of_turn>", "<0x41>", "[INST]", "<<SYS>>"]),
        st.sampled_from([*(c[:n] for c in CONTROL for n in (1, 2, 3)), "|>", ">", SPACE_MARK]),
        st.text(max_size=3),
    ),
    max_size=5,
).map("".join)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=40)
@given(text=hostile)
def test_plain_text_never_gives_a_control_token(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    for continuing in (False, True):
        assert not tokenizer.special_ids.intersection(tokenizer.encode(text, continuing=continuing))


@pytest.mark.parametrize("name", TOKENIZERS)
def test_every_control_literal_is_one_id_on_request(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    assert len(tokenizer.control_literals) >= 3
    for literal, token_id in tokenizer.control_literals.items():
        assert tokenizer.encode(literal, parse_special=True) == [token_id]


def test_a_byte_token_is_not_reached_by_its_spelling() -> None:
    byte = TOKENIZERS["spm_prefix"].encode("\x01", continuing=True)[0]
    assert TOKENIZERS["spm_prefix"].id_to_token(byte) == "<0x01>"
    assert byte not in TOKENIZERS["spm_prefix"].encode("<0x01>")


# -- round trips and streams -----------------------------------------------------------------------


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=40)
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters=SPACE_MARK)))
def test_any_text_survives_the_round_trip(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    for continuing in (False, True):
        ids = tokenizer.encode(text, continuing=continuing)
        shown = tokenizer.decode(ids, continuing=continuing)
        assert shown == (_nfc(text) if name == "qwen2" else text)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=40)
@given(data=st.data())
def test_pieces_of_a_stream_joined_equal_the_whole(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=12))
    skip = data.draw(st.booleans())
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
    pieces = [detokenizer.add([i]) for i in ids] + [detokenizer.finish()]
    whole = tokenizer.decode(ids, skip_special_tokens=skip, continuing=True)
    assert "".join(pieces) == whole
    prefixed = name == "spm_prefix" and whole.startswith(" ")
    assert tokenizer.decode(ids, skip_special_tokens=skip) == whole[1 if prefixed else 0 :]


def test_an_outputs_leading_space_is_its_own() -> None:
    tokenizer = TOKENIZERS["spm_prefix"]
    prompt, output = tokenizer.encode("the cache"), tokenizer.encode(" of blocks", continuing=True)
    assert prompt + output == tokenizer.encode("the cache of blocks")
    detokenizer = Detokenizer(tokenizer)
    shown = "".join(detokenizer.add([i]) for i in output)
    assert tokenizer.decode(prompt) + shown == "the cache of blocks"


# -- Hugging Face folders --------------------------------------------------------------------------


def byte_level_json(pre: str) -> dict[str, Any]:
    words = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    space = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    before: list[dict[str, Any]] = []
    if pre in SPLIT:
        regex = {"Regex": words % SPLIT[pre]}
        before = [{"type": "Split", "pattern": regex, "behavior": "Isolated", "invert": False}]
    if pre == "smollm":
        before = [{"type": "Digits", "individual_digits": True}]
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": len(NORMALS) + n, "content": literal, "special": True, "normalized": False}
            for n, literal in enumerate(CONTROL)
        ],
        "normalizer": {"type": "NFC"} if pre == "qwen2" else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [*before, {**space, "use_regex": pre not in SPLIT}],
        },
        "model": {
            "type": "BPE",
            "ignore_merges": pre == "llama-bpe",
            "vocab": {t: i for i, t in enumerate(NORMALS)},
            "merges": BYTE_LEVEL["merges"],
        },
    }


@pytest.mark.parametrize("pre", BYTE_LEVEL["ids"])
def test_a_folders_ids_are_those_of_the_reference(pre: str, tmp_path: Path) -> None:
    write_json(tmp_path / "tokenizer.json", byte_level_json(pre))
    tokenizer = Tokenizer.from_folder(tmp_path)
    for text, ids in cases(pre):
        assert tokenizer.encode(text) == ids, text
    assert tokenizer.special_ids == TOKENIZERS[pre].special_ids


@pytest.mark.parametrize("name", SPM)
def test_sentencepieces_own_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes((DATA / f"{name}.model").read_bytes())
    tokenizer = Tokenizer.from_folder(tmp_path)
    for text, ids in cases(name):
        assert tokenizer.encode(text) == ids, text
    assert tokenizer.encode_prompt("a") == [1, *tokenizer.encode("a")]
    assert tokenizer.named_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    assert tokenizer.eos_ids == ({2, 4} if name == "spm_plain" else {2})
    read = read_sentencepiece(tmp_path / "tokenizer.model")
    found = list(zip(read.tokens, read.scores, read.types, strict=True))
    assert found == PIECES[name]
