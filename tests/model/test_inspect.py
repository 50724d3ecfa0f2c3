"""A description tells the truth of any well-formed file, and is plain data."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest

from octavo.errors import ModelFileError
from octavo.model.files.gguf import GGMLType, GGUFFile
from octavo.model.inspect import TypeDescription, describe
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
