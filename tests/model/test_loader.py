"""Opening a model whatever it lies in: a GGUF file, or a folder of the same weights."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from gguf_as_folder import as_folder
from octavo import LLM, SamplingParams
from octavo.errors import ModelFileError
from octavo.model.loader import load_model
from tiny_model import tiny_model

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("num_shards", [0, 3])
@pytest.mark.parametrize("tied", [True, False])
def test_a_folder_answers_as_the_gguf_file_of_the_same_weights(
    tmp_path: Path, tied: bool, num_shards: int
) -> None:
    gguf = tiny_model(tmp_path / "tiny.gguf", tied=tied, tensor_type="F32")
    folder = as_folder(gguf, tmp_path / "folder", num_shards=num_shards)
    exact = {"backend": "reference", "kv_cache_dtype": "float32"}
    one, other = (LLM(str(p), num_kv_blocks=32, **exact) for p in (gguf, folder))
    params = SamplingParams(temperature=0, max_tokens=24, logprobs=3)
    messages = [{"role": "user", "content": "Hello <|im_end|> 123"}]
    assert one.chat_prompt(messages) == other.chat_prompt(messages)
    for prompt in ("Once upon a time 42", one.chat_prompt(messages)):
        first, second = (llm.generate(prompt, params)[0] for llm in (one, other))
        assert first.prompt_token_ids == second.prompt_token_ids
        assert first.outputs[0].token_ids == second.outputs[0].token_ids
        assert first.outputs[0].text == second.outputs[0].text
        for a, b in zip(first.outputs[0].logprobs, second.outputs[0].logprobs, strict=True):
            assert a.keys() == b.keys()
            for token in a:
                assert a[token].logprob == pytest.approx(b[token].logprob, abs=1e-4)
    assert load_model(gguf).fingerprint != load_model(folder).fingerprint


def test_a_folder_without_a_template_has_none(tmp_path: Path) -> None:
    folder = as_folder(tiny_model(tmp_path / "tiny.gguf", tensor_type="F32"), tmp_path / "folder")
    (folder / "tokenizer_config.json").write_text("{}")
    assert load_model(folder).chat_template is None


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = as_folder(tiny_model(tmp_path / "tiny.gguf", tensor_type="F32"), tmp_path / "folder")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
        load_model(folder)


def test_more_tokens_than_embeddings_are_refused(tmp_path: Path) -> None:
    folder = as_folder(tiny_model(tmp_path / "tiny.gguf", tensor_type="F32"), tmp_path / "folder")
    file = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = file["model"]["vocab"]
    first = max(vocabulary.values()) + 1
    vocabulary |= {f"more{i}": first + i for i in range(3)}
    (folder / "tokenizer.json").write_text(json.dumps(file))
    with pytest.raises(ModelFileError, match="embeddings"):
        load_model(folder)
