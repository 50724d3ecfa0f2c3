"""Hugging Face folders: added tokens, BOS, names, ends and templates, and every way to be wrong."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from octavo.errors import InvalidRequestError, ModelFileError
from octavo.model.text.chat import ChatTemplate
from octavo.model.text.folder_config import chat_template_source
from octavo.model.text.tokenizer import Tokenizer
from tokenizer_files import BYTE_PIECES, sentencepiece_model, small_pieces, write_json

if TYPE_CHECKING:
    from pathlib import Path

_VISIBLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_HIDDEN = [b for b in range(256) if b not in _VISIBLE]
BYTES = [chr(b) if b in _VISIBLE else chr(0x100 + _HIDDEN.index(b)) for b in range(256)]
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
PREPEND = {"type": "Prepend", "prepend": "\u2581"}
ESCAPE = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}


def added(token_id: int, content: str, **flags: bool) -> dict[str, Any]:
    return {"id": token_id, "content": content, "special": True, **flags}


def bos_template(*sequence: str) -> dict[str, Any]:
    single = [
        {"Sequence": {"id": "A", "type_id": 0}} if name == "A" else {"SpecialToken": {"id": name}}
        for name in sequence
    ]
    return {"type": "TemplateProcessing", "single": single}


def byte_level(folder: Path, *, model: Any = None, config: Any = None, **changes: Any) -> None:
    """A folder: the bytes, two merges, and control tokens from 258 on."""
    vocab = {t: i for i, t in enumerate([*BYTES, "he", "hel"])}
    tokens = [added(258, "<s>"), added(259, "</s>"), added(260, "<think>", special=False)]
    values = {
        "added_tokens": tokens,
        "pre_tokenizer": BYTE_LEVEL,
        "model": {"type": "BPE", "vocab": vocab, "merges": ["h e", ["he", "l"]][:1]}
        | (model or {}),
    }
    write_json(folder / "tokenizer.json", values | changes)
    if config is not None:
        write_json(folder / "tokenizer_config.json", config)


def spm_json(folder: Path, normalizer: Any = None, pre_tokenizer: Any = None, **more: Any) -> None:
    pieces = small_pieces(("\u2581", -9.0), ("a", -9.0), ("b", -9.0), ("\u2581a", -1.0))
    tokens = [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")]
    values = {
        "added_tokens": tokens,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "model": {
            "type": "BPE",
            "byte_fallback": True,
            "unk_token": "<unk>",
            "vocab": {p[0]: i for i, p in enumerate(pieces)},
            "merges": [["\u2581", "a"]],
        },
    }
    write_json(folder / "tokenizer.json", values | more)


def spelled(tokenizer: Tokenizer, text: str, **options: bool) -> list[str]:
    return [tokenizer.id_to_token(i) for i in tokenizer.encode(text, **options)]


# -- added tokens ----------------------------------------------------------------------------------


def test_special_tokens_are_control_and_others_are_literals(tmp_path: Path) -> None:
    byte_level(tmp_path)
    tok = Tokenizer.from_folder(tmp_path)
    assert tok.special_ids == {258, 259}
    assert tok.encode("<s><think>he") == [*b"<s>", 260, 256]
    assert tok.encode("<s><think>he", parse_special=True) == [258, 260, 256]
    assert tok.decode([258, 260, 256]) == "<think>he"


def test_what_looks_like_a_control_token_is_one(tmp_path: Path) -> None:
    """Qwen marks `<|fim_prefix|>` as not special; a converter to GGUF makes it control."""
    byte_level(tmp_path, added_tokens=[added(258, "<|fim_prefix|>", special=False)])
    tok = Tokenizer.from_folder(tmp_path)
    assert tok.special_ids == {258}
    assert tok.encode("<|fim_prefix|>") == list(b"<|fim_prefix|>")


def test_a_special_token_inside_the_vocabulary_is_out_of_reach_of_merges(tmp_path: Path) -> None:
    byte_level(tmp_path, added_tokens=[added(256, "he")])
    tok = Tokenizer.from_folder(tmp_path)
    assert tok.encode("he") == list(b"he")
    assert tok.encode("he", parse_special=True) == [256]


def test_the_configuration_may_add_tokens_and_leave_gaps(tmp_path: Path) -> None:
    decoder = {"258": {"content": "<s>", "special": True}, "262": {"content": "<x>"}}
    byte_level(tmp_path, config={"added_tokens_decoder": decoder})
    write_json(tmp_path / "added_tokens.json", {"<y>": 263})
    write_json(tmp_path / "config.json", {"vocab_size": 270})
    tok = Tokenizer.from_folder(tmp_path)
    assert tok.vocab_size == 270
    assert tok.encode("<x><y>") == [262, 263]
    assert tok.decode([*b"a", 261, 269, *b"b"]) == "ab"  # ids without a token
    with pytest.raises(InvalidRequestError, match="270 is not in the vocabulary"):
        tok.token_bytes(270)


def test_tokens_that_strip_swallow_white_space(tmp_path: Path) -> None:
    tokens = [
        added(258, "<l>", lstrip=True),
        added(259, "<r>", rstrip=True),
        added(260, "<u>", special=False, rstrip=True, normalized=False),
    ]
    byte_level(tmp_path, added_tokens=tokens)
    tok = Tokenizer.from_folder(tmp_path)
    text = "a \n<l> b<r>\u2003 c <u> d"
    expected = [*b"a", 258, *b" b", 259, *b"c ", 260, *b"d"]
    assert tok.encode(text, parse_special=True) == expected
    assert tok.encode("<r>  ", parse_special=True) == [259]
    assert tok.encode("  <l>", parse_special=True) == [258]


# -- the space before a text -----------------------------------------------------------------------

METASPACE = {"type": "Metaspace", "replacement": "\u2581", "split": False}


@pytest.mark.parametrize(
    ("normalizer", "pre_tokenizer", "start", "after"),
    [
        ({"type": "Sequence", "normalizers": [PREPEND, ESCAPE]}, None, True, True),
        (None, METASPACE | {"prepend_scheme": "always"}, True, True),
        (None, METASPACE | {"prepend_scheme": "first"}, True, False),
        (None, METASPACE | {"prepend_scheme": "never"}, False, False),
        (ESCAPE, None, False, False),
    ],
)
def test_where_a_space_is_put(
    normalizer: Any, pre_tokenizer: Any, start: bool, after: bool, tmp_path: Path
) -> None:
    spm_json(tmp_path, normalizer, pre_tokenizer)
    tok = Tokenizer.from_folder(tmp_path)
    first, second = ("\u2581a" if start else "a"), ("\u2581a" if after else "a")
    assert spelled(tok, "a</s>a", parse_special=True) == [first, "</s>", second]
    assert spelled(tok, "a", continuing=True) == ["a"]
    assert spelled(tok, " a", continuing=True) == ["\u2581a"]
    texts = ["a", " a", "  ", "é\n b", "<s>"]
    if pre_tokenizer is not None and start:
        texts = ["a", "é\n b", "<s>"]  # a Metaspace puts no space before one: it is lost, as there
        assert tok.encode(" a") == tok.encode("a")
    for text in texts:
        assert tok.decode(tok.encode(text)) == text
        ids = tok.encode(text, continuing=True)
        assert tok.decode(ids, continuing=True) == text
    assert not tok.special_ids.intersection(tok.encode("<s></s><unk>"))


# -- names, BOS, ends ------------------------------------------------------------------------------

NAMES = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": None}


@pytest.mark.parametrize(
    ("post_processor", "config", "ids"),
    [
        (None, NAMES, []),
        (BYTE_LEVEL, NAMES, []),
        (bos_template("<s>", "A"), NAMES, [258]),
        ({"type": "Sequence", "processors": [BYTE_LEVEL, bos_template("<s>", "A")]}, NAMES, [258]),
        (bos_template("A", "</s>"), NAMES, [259]),
        (bos_template("<s>", "A"), {}, []),  # nothing says that it is the BOS
        (bos_template("A"), NAMES | {"add_bos_token": True}, [258]),
        (bos_template("<s>", "A"), NAMES | {"add_bos_token": False}, []),
        (None, NAMES | {"add_bos_token": True, "add_eos_token": True}, [258, 259]),
        (None, {"add_bos_token": True}, []),
    ],
)
def test_bos_and_eos_of_a_plain_prompt(
    post_processor: Any, config: Any, ids: list[int], tmp_path: Path
) -> None:
    byte_level(tmp_path, config=config, post_processor=post_processor)
    assert Tokenizer.from_folder(tmp_path).encode_prompt("") == ids


def test_exactly_one_bos_whether_the_template_or_the_prompt_brings_it(tmp_path: Path) -> None:
    config = NAMES | {
        "add_bos_token": True,
        "chat_template": "{{ bos_token }}{{ messages[0].content }}",
    }
    byte_level(tmp_path, config=config)
    tok = Tokenizer.from_folder(tmp_path)
    source = chat_template_source(tmp_path)
    assert source is not None
    ids = ChatTemplate(source, tok).render_ids([{"role": "user", "content": "<s>a"}])
    assert ids == [258, *b"<s>a"]
    assert tok.encode_prompt("<s>a", parse_special=True) == [258, *b"a"]


def test_names_come_from_either_file(tmp_path: Path) -> None:
    byte_level(tmp_path)
    write_json(tmp_path / "special_tokens_map.json", {"bos_token": "<s>", "unk_token": "</s>"})
    tok = Tokenizer.from_folder(tmp_path)
    assert tok.named_tokens == {"bos_token": "<s>", "unk_token": "</s>"}


def test_ends_come_from_every_file_that_names_one(tmp_path: Path) -> None:
    byte_level(tmp_path, config={"eos_token": "<s>"})
    write_json(tmp_path / "config.json", {"eos_token_id": 5, "vocab_size": 261})
    write_json(tmp_path / "generation_config.json", {"eos_token_id": [6, 7]})
    # </s> by its well-known name
    assert Tokenizer.from_folder(tmp_path).eos_ids == {5, 6, 7, 258, 259}


# -- tokenizer.model with the files beside it ------------------------------------------------------


def test_a_sentencepiece_folder_with_added_tokens(tmp_path: Path) -> None:
    pieces = small_pieces(("\u2581", -9.0), ("a", -9.0), ("\u2581a", -1.0))
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model(pieces))
    size = len(pieces)
    decoder = {
        "1": {"content": "<s>", "special": True},
        str(size): {"content": "<|end|>", "special": True, "rstrip": True},
        str(size + 2): {"content": "<h1>", "special": False},
    }
    config = {"added_tokens_decoder": decoder, "eos_token": "<|end|>", "add_bos_token": False}
    write_json(tmp_path / "tokenizer_config.json", config)
    tok = Tokenizer.from_folder(tmp_path)
    assert tok.vocab_size == size + 3
    text = "a<|end|>\n<h1>a"
    assert spelled(tok, text, parse_special=True) == ["\u2581a", "<|end|>", "<h1>", "\u2581a"]
    assert "<|end|>" not in spelled(tok, text)
    assert tok.eos_ids == {2, size}
    assert tok.encode_prompt("a") == tok.encode("a")
    decoder["2"] = {"content": "<other>", "special": True}
    write_json(tmp_path / "tokenizer_config.json", config)
    with pytest.raises(ModelFileError, match=r"'<other>' has the id 2, which in .* is '</s>'"):
        Tokenizer.from_folder(tmp_path)
    decoder["2"] = {"content": "a", "special": True}
    decoder.pop("2")
    decoder[str(size + 3)] = {"content": "a"}
    write_json(tmp_path / "tokenizer_config.json", config)
    with pytest.raises(ModelFileError, match="'a' is there twice"):
        Tokenizer.from_folder(tmp_path)


# -- the chat template -----------------------------------------------------------------------------


def test_the_template_is_found_in_the_order_of_transformers(tmp_path: Path) -> None:
    assert chat_template_source(tmp_path) is None
    write_json(tmp_path / "tokenizer_config.json", {"chat_template": None})
    assert chat_template_source(tmp_path) is None
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "of config"}]
    write_json(tmp_path / "tokenizer_config.json", {"chat_template": named})
    assert chat_template_source(tmp_path) == "of config"
    write_json(tmp_path / "chat_template.json", {"chat_template": "of json"})
    assert chat_template_source(tmp_path) == "of json"
    (tmp_path / "chat_template.jinja").write_text("of jinja é\n", encoding="utf-8")
    assert chat_template_source(tmp_path) == "of jinja é\n"


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (
            [{"name": "rag", "template": "x"}, {"name": "tool_use", "template": "x"}],
            "'rag', 'tool_use'",
        ),
        ([], "none"),
        (7, "none"),
        ([{"name": "default", "template": 7}], "'default'"),
        (["x"], "none"),
    ],
)
def test_templates_without_a_default_are_refused(value: Any, names: str, tmp_path: Path) -> None:
    write_json(tmp_path / "tokenizer_config.json", {"chat_template": value})
    with pytest.raises(ModelFileError, match=f"tokenizer_config.json: chat_template .* {names}"):
        chat_template_source(tmp_path)


def test_a_template_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelFileError, match=r"chat_template\.jinja cannot be read"):
        chat_template_source(tmp_path)


# -- malformed folders -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"type": "Unigram"}}, "type 'Unigram' is not supported; only 'BPE' is"),
        ({"model": {"dropout": 0.1}}, "dropout is 0.1"),
        ({"model": {"end_of_word_suffix": "</w>"}}, "end_of_word_suffix is '</w>'"),
        ({"model": {"vocab": []}}, "vocab is of type list; it must be dict"),
        ({"model": {"vocab": {"a": "b"}}}, "an id that is not a number"),
        ({"model": {"vocab": {}, "merges": []}}, r"tokenizer\.json: the model has no vocabulary"),
        (
            {"model": {"vocab": {"a": 0, "b": 0}, "merges": []}},
            "the id 0 belongs to 'a' and to 'b'",
        ),
        ({"model": {"vocab": {"a": -1}, "merges": []}}, "have ids from -1"),
        ({"model": {"vocab": {"a": 10**9}, "merges": []}}, "have ids from 258 to 1000000000"),
        ({"model": {"vocab": {"\ud800": 0}, "merges": []}}, "not valid Unicode"),
        ({"model": {"merges": ["h e", "he"]}}, r"merges\[1\] is 'he'; it must be 'left right'"),
        ({"model": {"merges": ["h e", ["h", 1]]}}, r"merges\[1\] is \['h', 1\]"),
        ({"model": {"merges": [["h", 1]]}}, r"merges\[0\] is \['h', 1\]"),
        ({"model": {"merges": [7]}}, r"merges\[0\] is 7"),
        ({"model": {"merges": ["h e", ["he", "l"]]}}, "merges of both forms"),
        (
            {"model": {"merges": ["h e", "xyz h"], "vocab": {"xyzh": 0, "h": 1, "e": 2, "he": 3}}},
            r"merges\[1\] is 'xyz h', but 'xyz' is not a plain token",
        ),
        (
            {"model": {"merges": ["h e", "h o"]}},
            r"merges\[1\] is 'h o', but 'ho' is not a plain token",
        ),
        ({"model": {"byte_fallback": True}}, "no byte token <0x00>"),
        ({"pre_tokenizer": None}, "neither byte-level nor has it byte_fallback"),
        ({"pre_tokenizer": "x"}, "neither byte-level"),
        ({"normalizer": {"type": "Nonsense"}}, "the library cannot read it"),
        ({"added_tokens": {}}, "added_tokens is of type dict"),
        ({"added_tokens": ["x"]}, "an added token is not an object: 'x'"),
        ({"added_tokens": [{"content": "x"}]}, "has the id None"),
        ({"added_tokens": [added(1 << 40, "x")]}, "has the id 1099511627776"),
        ({"added_tokens": [added(258, "")]}, "the added token 258 has no content"),
        ({"added_tokens": [added(258, "x", special="y")]}, "special is of type str"),  # type: ignore[arg-type]
        ({"added_tokens": [added(258, "he")]}, "'he' has the id 258, which contradicts"),
        ({"added_tokens": [added(258, "xx"), added(258, "yy")]}, "'yy' has the id 258"),
        ({"added_tokens": [added(258, "xx"), added(259, "xx")]}, "'xx' has the id 259"),
        ({"config": {"bos_token": "<b>"}}, "bos_token is '<b>', which is not in the vocabulary"),
        ({"config": {"bos_token": 7}}, "bos_token is 7; it must be a string"),
        (
            {"config": {"bos_token": "<s>", "add_bos_token": 1}},
            "add_bos_token is of type int; it must be bool",
        ),
        ({"config": {"added_tokens_decoder": {"x": {}}}}, "has the id 'x'"),
        ({"config": []}, "tokenizer_config.json holds a list; it must hold an object"),
    ],
)
def test_a_malformed_folder_is_refused_by_name(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    byte_level(tmp_path, **changes)
    with pytest.raises(ModelFileError, match=message):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("config", {"vocab_size": 1 << 30}, "vocab_size is 1073741824; at most"),
        ("config", {"vocab_size": "x"}, "vocab_size is of type str"),
        ("config", {"eos_token_id": 261}, "eos_token_id has 261; it must be a token id from 0"),
        ("generation_config", {"eos_token_id": [True]}, "eos_token_id has True"),
        ("added_tokens", {"x": "y"}, "added_tokens.json: an added token has the id 'y'"),
    ],
)
def test_a_malformed_file_beside_it_is_refused_by_name(
    name: str, value: Any, message: str, tmp_path: Path
) -> None:
    byte_level(tmp_path)
    write_json(tmp_path / f"{name}.json", value)
    with pytest.raises(ModelFileError, match=message):
        Tokenizer.from_folder(tmp_path)


def test_what_is_no_json_or_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"neither a tokenizer\.json nor a tokenizer\.model"):
        Tokenizer.from_folder(tmp_path / "nowhere")
    for data in (b"{", b"\xff\xfe", b"[" * 100_000, b"NaN"):
        (tmp_path / "tokenizer.json").write_bytes(data)
        with pytest.raises(ModelFileError, match=r"tokenizer\.json (is not valid JSON|holds a)"):
            Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ModelFileError, match=r"config\.json cannot be read"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("file", [{}, {"model": None}, {"model": {}}, {"model": {"type": "BPE"}}])
def test_a_file_without_a_model_is_refused(file: dict[str, Any], tmp_path: Path) -> None:
    byte_level(tmp_path)
    values = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    del values["model"]
    write_json(tmp_path / "tokenizer.json", values | file)
    with pytest.raises(ModelFileError, match=r"tokenizer\.json: the model has no vocabulary"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("depth", [100, 200, 300, 400, 450])
def test_deep_nesting_is_refused(depth: int, tmp_path: Path) -> None:
    tree: Any = BYTE_LEVEL
    for _ in range(depth):
        tree = {"type": "Sequence", "pretokenizers": [tree]}
    byte_level(tmp_path, pre_tokenizer=tree)
    with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)


def test_a_metaspace_of_another_character_is_refused(tmp_path: Path) -> None:
    spm_json(tmp_path, None, METASPACE | {"replacement": "_"})
    with pytest.raises(ModelFileError, match="a Metaspace of '_'"):
        Tokenizer.from_folder(tmp_path)


def test_a_vocabulary_without_every_byte_is_refused(tmp_path: Path) -> None:
    spm_json(tmp_path)
    file = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    del file["model"]["vocab"][BYTE_PIECES[10][0]]
    write_json(tmp_path / "tokenizer.json", file)
    with pytest.raises(ModelFileError, match="no byte token <0x0A>"):
        Tokenizer.from_folder(tmp_path)
