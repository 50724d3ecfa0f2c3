"""What `hf:` names mean, and what they select from a list of files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from octavo.errors import ModelNotFoundError
from octavo.model.remote.hub_name import (
    Choice,
    HubFile,
    HubName,
    choices_text,
    folder_files,
    matching,
    parse_hub_name,
)

if TYPE_CHECKING:
    from pathlib import Path

NAME = HubName("org/repo")


def files(*paths: str) -> list[HubFile]:
    """Each file a megabyte larger than the one before."""
    return [HubFile(path, (index + 1) * 1_000_000) for index, path in enumerate(paths)]


def no_reading(file: HubFile) -> Path:
    raise AssertionError(f"read {file}")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("hf:org/repo", HubName("org/repo")),
        ("hf:Org-1/re.po_2", HubName("Org-1/re.po_2")),
        ("hf:org/repo:Q4_K_M", HubName("org/repo", None, "Q4_K_M")),
        ("hf:org/repo:a b/c.gguf", HubName("org/repo", None, "a b/c.gguf")),
        ("hf:org/repo@v1.0", HubName("org/repo", "v1.0")),
        ("hf:org/repo@refs/pr/7:q8_0", HubName("org/repo", "refs/pr/7", "q8_0")),
    ],
)
def test_names_are_taken_apart_and_put_together(text: str, name: HubName) -> None:
    assert parse_hub_name(text) == name
    assert str(name) == text


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("hf:", "no repository"),
        ("hf:gpt2", "no repository"),
        ("hf:a/b/c", "no repository"),
        ("hf://org/repo", "no repository"),
        ("hf:org/", "no repository"),
        ("hf:../repo", "no repository"),
        ("hf:org/..", "no repository"),
        ("hf:org/a--b", "no repository"),
        ("hf:org/.git", "no repository"),
        ("hf:org/re po", "no repository"),
        ("hf:org/repo\n", "no repository"),
        ("hf:org/" + "x" * 97, "no repository"),
        ("hf:org/repo:", "file or quant"),
        ("hf:org/repo:\x1b[2J.gguf", "file or quant"),
        ("hf:org/repo@", "revision"),
        ("hf:org/repo@../../x", "revision"),
        ("hf:org/repo@a//b", "revision"),
        ("hf:org/repo@/etc", "revision"),
        ("hf:org/repo@a\0b", "revision"),
        ("hf:org/repo@a@b", "revision"),
    ],
)
def test_a_malformed_name_says_the_form(text: str, fault: str) -> None:
    with pytest.raises(ModelNotFoundError, match=fault) as caught:
        parse_hub_name(text)
    assert "write hf:org/repo" in str(caught.value)


@pytest.mark.parametrize(
    ("path", "quant"),
    [
        ("SmolLM2-135M-Instruct-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-0.5b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("tinyllama-1.1b-chat-v1.0.Q8_0.gguf", "Q8_0"),
        ("gemma-3-1b-it-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("phi-3-mini-4k-instruct-q4.gguf", "Q4"),
        ("model-IQ2_XXS.gguf", "IQ2_XXS"),
        ("x-BF16.gguf", "BF16"),
        ("ggml-model-f16.GGUF", "F16"),
        ("Q6_K.gguf", "Q6_K"),
        ("Q4_0/model.gguf", "Q4_0"),
        ("Q4_0/model-Q5_1.gguf", "Q5_1"),
        ("m-Q4_K_M-00001-of-00003.gguf", "Q4_K_M"),
        ("gpt-oss-20b-MXFP4.gguf", "MXFP4"),
        ("q.gguf", None),
        ("faq4you.gguf", None),
    ],
)
def test_the_quant_is_read_from_the_name(path: str, quant: str | None) -> None:
    assert Choice(path, 1, 1).quant == quant


def paths(choice: str | None, *names: str) -> list[str]:
    return [found.path for found in matching(NAME.choosing(choice), files(*names))]


def test_a_choice_selects_by_quant_in_any_case_or_by_path() -> None:
    names = ("m-Q8_0.gguf", "sub/m-Q4_K_M.gguf", "m-UD-Q5_K_XL.gguf", "README.md")
    assert paths(None, *names) == ["m-Q8_0.gguf", "sub/m-Q4_K_M.gguf", "m-UD-Q5_K_XL.gguf"]
    assert paths("q4_k_m", *names) == ["sub/m-Q4_K_M.gguf"]
    assert paths("Q5_K_XL", *names) == paths("ud-q5_k_xl", *names) == ["m-UD-Q5_K_XL.gguf"]
    assert paths("sub/m-Q4_K_M.gguf", *names) == paths("m-Q4_K_M.gguf", *names)
    for absent in ("Q4_K", "Q4", "other.gguf", "README.md", "safetensors"):
        assert paths(absent, *names) == []
    assert paths("Q5_K_XL", *names, "m-Q5_K_XL.gguf") == ["m-Q5_K_XL.gguf"]


def test_image_encoders_and_calibration_data_are_no_models_unless_named() -> None:
    names = ("mmproj-F16.gguf", "imatrix.gguf", "m-F16.gguf")
    assert paths(None, *names) == paths("F16", *names) == ["m-F16.gguf"]
    assert paths("mmproj-F16.gguf", *names) == ["mmproj-F16.gguf"]


def test_the_parts_of_a_split_file_are_one_choice() -> None:
    names = [f"F16/m-F16-0000{part}-of-00002.gguf" for part in (2, 1)]
    (whole, split) = matching(NAME, files("m-00001-of-00001.gguf", *names))
    assert (whole.path, whole.num_parts) == ("m-00001-of-00001.gguf", 1)
    assert (split.path, split.num_parts, split.num_bytes) == (names[1], 2, 5_000_000)


def test_the_table_is_sorted_and_names_what_can_be_typed() -> None:
    listed = [
        HubFile("m-Q8_0.gguf", 1_500_000_000),
        HubFile("m-Q4_0.gguf", 750_000_000),
        HubFile("other one-Q8_0.gguf", 2_000_000_000),
        HubFile("m-F16-00001-of-00002.gguf", 1000),
        HubFile("m-F16-00002-of-00002.gguf", 1000),
    ]
    text = choices_text(HubName("org/repo", "v1", "Q2_K"), listed)
    assert [" ".join(line.split()) for line in text.splitlines()] == [
        "2.0 KiB F16 hf:org/repo@v1:F16 (in 2 parts: not supported yet)",
        "715.3 MiB Q4_0 hf:org/repo@v1:Q4_0",
        "1.4 GiB Q8_0 hf:org/repo@v1:m-Q8_0.gguf",
        "1.9 GiB Q8_0 hf:org/repo@v1:other one-Q8_0.gguf",
        "To take one: octavo pull hf:org/repo@v1:Q4_0",
    ]


WHOLE = ("config.json", "tokenizer.json", "model.safetensors")


def test_a_folder_is_what_is_needed_and_no_more() -> None:
    extra = ("pytorch_model.bin", "tf_model.h5", "README.md", "onnx/config.json", "flax.msgpack")
    useful = ("chat_template.jinja", "generation_config.json", "merges.txt", "vocab.json")
    found = folder_files(NAME, files(*WHOLE, *extra, *useful), no_reading)
    assert sorted(file.path for file in found) == sorted((*WHOLE, *useful))


def test_the_shards_are_those_of_the_index(tmp_path: Path) -> None:
    index = tmp_path / "index"
    shards = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    listed = files(
        "config.json",
        "tokenizer.model",
        "model.safetensors.index.json",
        *shards,
        "consolidated.safetensors",
    )
    index.write_text(json.dumps({"weight_map": {"a": shards[0], "b": shards[1], "c": shards[0]}}))
    found = folder_files(NAME, listed, lambda file: index)
    assert [file.path for file in found] == [
        "model.safetensors.index.json",
        *shards,
        "config.json",
        "tokenizer.model",
    ]
    index.write_text(json.dumps({"weight_map": {"a": "../../x.safetensors"}}))
    with pytest.raises(ModelNotFoundError, match=r"lacks \.\./\.\./x"):
        folder_files(NAME, listed, lambda file: index)
    for text in ("", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', "[" * 100_000):
        index.write_text(text)
        with pytest.raises(ModelNotFoundError, match="cannot be read"):
            folder_files(NAME, listed, lambda file: index)
    for value in ("1", "[1]", "null"):
        index.write_text(f'{{"weight_map": {{"a": {value}}}}}')
        with pytest.raises(ModelNotFoundError, match="cannot be read"):
            folder_files(NAME, listed, lambda file: index)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("config.json", "pytorch_model.bin"), "only as pytorch_model.bin"),
        (("README.md",), "no .gguf and no .safetensors"),
        (("model.safetensors",), "no config.json"),
        (("config.json", "model.safetensors"), "no tokenizer"),
        (("config.json", "tokenizer.json", "adapter_model.safetensors"), "adapter"),
    ],
)
def test_what_is_no_model_says_why(names: tuple[str, ...], words: str) -> None:
    with pytest.raises(ModelNotFoundError, match=words):
        folder_files(NAME, files(*names), no_reading)
