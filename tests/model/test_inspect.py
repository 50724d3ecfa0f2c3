"""A description tells the truth of any well-formed file, and is plain data."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest

from gguf_as_folder import as_folder
from octavo.errors import ModelFileError
from octavo.model.description import TypeDescription
from octavo.model.files.gguf import GGMLType, GGUFFile
from octavo.model.inspect import describe
from octavo.model.loader import load_model
from tiny_folder import entry, safetensors_bytes
from tiny_model import CHAT_TEMPLATE, RawTensor, gguf_bytes, tiny_model

if TYPE_CHECKING:
    from pathlib import Path


def test_the_real_model(smollm2_path: Path) -> None:
    found = describe(smollm2_path)
    assert (found.format, found.architecture, found.licence) == ("GGUF v3", "llama", "apache-2.0")
    assert found.unsupported is None
    assert (found.num_bytes, found.num_params) == (98_362_432, 134_515_008)
    assert found.types == [
        TypeDescription("Q4_1", True, 210, 106_168_320, 66_355_200),
        TypeDescription("Q8_0", True, 1, 28_311_552, 30_081_024),
        TypeDescription("F32", True, 61, 35_136, 140_544),
    ]
    assert found.hyper_parameters["attention.head_count_kv"] == 3
    assert (found.kv_bytes_per_token_float16, found.kv_bytes_per_token_float32) == (23_040, 46_080)
    tokenizer = found.tokenizer
    assert (tokenizer.model, tokenizer.pre) == ("gpt2", "smollm")
    assert (tokenizer.num_tokens, tokenizer.num_merges) == (49_152, 48_900)
    assert tokenizer.special_ids == {"bos": 1, "eos": 2, "unk": 0, "pad": 2}
    assert tokenizer.special_tokens["eos"] == "<|im_end|>"
    assert tokenizer.add_bos is False
    assert tokenizer.add_eos is None
    assert found.chat_template is not None
    assert "SmolLM, trained by Hugging Face" in found.chat_template


def test_a_tiny_model(tmp_path: Path) -> None:
    path = tiny_model(tmp_path / "m.gguf", tensor_type="Q4_0", tied=False)
    found = describe(path)
    assert found.unsupported is None
    assert found.chat_template == CHAT_TEMPLATE
    assert found.fingerprint == GGUFFile.open(path).fingerprint.hex()
    assert [kind.type for kind in found.types] == ["Q4_0", "F32"]
    assert found.tensors[0].name == "token_embd.weight"
    assert found.tensors[0].shape == [288, 64]
    assert found.tensors[0].num_bytes == 288 * 64 // 32 * 18
    assert found.num_params == sum(kind.num_params for kind in found.types)


def test_a_file_of_another_architecture_is_described(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    metadata = [
        ("general.architecture", "mamba2"),
        ("general.name", b"bad \xff bytes"),
        ("mamba2.block_count", 7),
        ("mamba2.sections", [1, 2]),
        ("mamba2.long", [0] * 1000),
        ("mamba2.limit", float("inf")),
        ("tokenizer.ggml.tokens", [b"\xff\xfe", "a"]),
        ("tokenizer.ggml.bos_token_id", 0),
        ("tokenizer.ggml.eos_token_id", 9),
        ("tokenizer.ggml.pre", 3),
        ("tokenizer.ggml.merges", "none"),
    ]
    weights = RawTensor("w", (256,), GGMLType.TQ2_0, bytes(66))
    path.write_bytes(gguf_bytes(metadata, [weights]))
    found = describe(path)
    assert found.unsupported is not None
    assert "mamba2" in found.unsupported
    assert found.spec is None
    assert found.kv_bytes_per_token_float16 is None
    assert found.name == "bad � bytes"
    assert found.hyper_parameters == {
        "block_count": 7,
        "sections": [1, 2],
        "long": "[1000 values]",
        "limit": "inf",
    }
    assert found.types == [TypeDescription("TQ2_0", False, 1, 256, 66)]
    assert found.tokenizer.special_ids == {"bos": 0, "eos": 9}
    assert found.tokenizer.special_tokens == {"bos": "��"}
    assert found.tokenizer.pre is None
    assert (found.tokenizer.num_tokens, found.tokenizer.num_merges) == (2, 0)
    json.dumps(asdict(found), allow_nan=False).encode()


def test_a_supported_architecture_with_other_types_is_described(tmp_path: Path) -> None:
    file = GGUFFile.open(tiny_model(tmp_path / "m.gguf", hidden_size=256))
    tensors = [
        RawTensor(tensor.name, tensor.shape[::-1], tensor.type, tensor.data.tobytes())
        for tensor in file.tensors.values()
    ]
    tensors[0] = RawTensor("token_embd.weight", (256, 288), GGMLType.TQ2_0, bytes(288 * 66))
    path = tmp_path / "n.gguf"
    path.write_bytes(gguf_bytes(list(file.metadata.items()), tensors))
    found = describe(path)
    assert found.spec is not None
    assert found.unsupported is not None
    assert "TQ2_0" in found.unsupported
    assert "token_embd.weight" in found.unsupported


def test_a_file_without_anything_is_described(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes([]))
    found = describe(path)
    assert found.architecture is None
    assert "general.architecture is missing" in str(found.unsupported)
    assert (found.num_params, found.types, found.tensors) == (0, [], [])


def test_a_malformed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"not a model at all, but long enough")
    with pytest.raises(ModelFileError, match="not a GGUF file"):
        describe(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return as_folder(tiny_model(tmp_path / "tiny.gguf", tensor_type="F32"), tmp_path / "folder")


def test_a_folder_is_described_as_the_gguf_file_of_the_same_weights(folder: Path) -> None:
    found, gguf = describe(folder), describe(folder.parent / "tiny.gguf")
    assert (found.format, found.architecture) == ("safetensors folder", "LlamaForCausalLM")
    assert found.unsupported is None
    assert found.fingerprint == load_model(folder).fingerprint.hex()
    assert (found.types, found.num_params) == (gguf.types, gguf.num_params)
    assert found.num_bytes == sum(tensor.num_bytes for tensor in found.tensors)
    assert "model.embed_tokens.weight" in {tensor.name for tensor in found.tensors}
    assert found.hyper_parameters["num_hidden_layers"] == len(gguf.spec.layers)
    assert found.chat_template == CHAT_TEMPLATE
    assert found.kv_bytes_per_token_float16 == gguf.kv_bytes_per_token_float16
    tokenizer = found.tokenizer
    assert (tokenizer.model, tokenizer.num_tokens) == ("BPE", gguf.tokenizer.num_tokens)
    assert tokenizer.num_merges == gguf.tokenizer.num_merges
    assert tokenizer.special_tokens == {"eos": "<|im_end|>"}
    assert tokenizer.special_ids == {"eos": gguf.tokenizer.special_ids["eos"]}


def test_a_folder_that_cannot_be_run_is_described(tmp_path: Path) -> None:
    config = {
        "architectures": ["MambaForCausalLM"],
        "limit": float("inf"),
        "id2label": {str(i): "x" for i in range(1000)},
        "rope": {"factors": [1, 2]},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    header = {"a": entry("F8_E4M3", [2, 3], 0, 6), "b": entry("BF16", [2], 6, 10)}
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(header, bytes(10)))
    (tmp_path / "tokenizer_config.json").write_text(
        '{"eos_token": "</s>", "chat_template": "\\ud800"}'
    )
    unigram = {"type": "Unigram", "vocab": [["<unk>", 0], ["</s>", 0], [[], 0]]}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": unigram}))
    found = describe(tmp_path)
    assert "MambaForCausalLM" in str(found.unsupported)
    assert found.architecture == "MambaForCausalLM"
    assert (found.spec, found.kv_bytes_per_token_float16) == (None, None)
    assert found.types == [
        TypeDescription("F8_E4M3", False, 1, 6, 6),
        TypeDescription("BF16", True, 1, 2, 4),
    ]
    assert found.hyper_parameters == {
        "architectures": ["MambaForCausalLM"],
        "limit": "inf",
        "id2label": "[1000 values]",
        "rope": {"factors": [1, 2]},
    }
    assert (found.tokenizer.model, found.tokenizer.num_tokens) == ("Unigram", 2)
    assert found.tokenizer.special_ids == {"eos": 1}
    assert found.chat_template == "\N{REPLACEMENT CHARACTER}"
    json.dumps(asdict(found), allow_nan=False).encode()


@pytest.mark.parametrize("content", ["{", "[]", '{"model": 3, "added_tokens": {}}', "[" * 100_000])
def test_a_folder_with_a_bad_tokenizer_is_described_with_the_reason(
    folder: Path, content: str
) -> None:
    (folder / "tokenizer.json").write_text(content)
    found = describe(folder)
    assert "tokenizer.json" in str(found.unsupported)
    assert found.tokenizer.num_tokens == 0
    assert found.kv_bytes_per_token_float16 is not None


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"neither model\.safetensors"):
        describe(folder)
