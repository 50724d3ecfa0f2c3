"""Opening a model whatever it lies in: a GGUF file, or a folder of the same weights."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from octavo import LLM, SamplingParams
from octavo.errors import ModelFileError
from octavo.model.files.gguf import GGUFFile
from octavo.model.loader import load_model
from tiny_folder import tiny_folder
from tiny_model import tiny_model

if TYPE_CHECKING:
    from pathlib import Path

NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def hf_name(name: str) -> str:
    parts = name.removesuffix(".weight").split(".")
    if parts[0] != "blk":
        return f"{WHOLE[parts[0]]}.weight"
    return f"model.layers.{parts[1]}.{NAMES[parts[2]]}.weight"


def as_folder(gguf: Path, folder: Path, *, num_shards: int = 0) -> Path:
    """Write the model of a tiny Llama GGUF as a Hugging Face folder."""
    file = GGUFFile.open(gguf)
    meta = file.metadata
    heads, kv_heads = meta["llama.attention.head_count"], meta["llama.attention.head_count_kv"]
    tensors = {}
    for name, tensor in file.tensors.items():
        values = tensor.dequantize()
        for part, count in (("attn_q", heads), ("attn_k", kv_heads)):
            if f".{part}." in name:  # GGUF pairs (2i, 2i + 1), transformers (i, i + half)
                split = values.reshape(count, -1, 2, values.shape[1]).swapaxes(1, 2)
                values = split.reshape(values.shape)
        tensors[hf_name(name)] = ("F32", np.ascontiguousarray(values))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": meta["llama.embedding_length"],
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": meta["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": meta["llama.rope.freq_base"],
        "max_position_embeddings": meta["llama.context_length"],
        "vocab_size": len(meta["tokenizer.ggml.tokens"]),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
    }
    tiny_folder(folder, tensors, config=config, num_shards=num_shards)
    write_tokenizer(meta, folder)
    return folder


def write_tokenizer(meta: dict, folder: Path) -> None:
    tokens = meta["tokenizer.ggml.tokens"]
    special = [i for i, kind in enumerate(meta["tokenizer.ggml.token_type"]) if kind == 3]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    digits = {"type": "Digits", "individual_digits": True}
    pattern = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    (folder / "tokenizer.json").write_text(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": [
                    {"id": i, "content": tokens[i], "special": True, **flags} for i in special
                ],
                "normalizer": None,
                "pre_tokenizer": {
                    "type": "Sequence",
                    "pretokenizers": [digits, {**pattern, "use_regex": True}],
                },
                "post_processor": None,
                "decoder": {**pattern, "use_regex": True},
                "model": {
                    "type": "BPE",
                    "vocab": {t: i for i, t in enumerate(tokens) if i not in special},
                    "merges": meta["tokenizer.ggml.merges"],
                },
            }
        )
    )
    config = {"chat_template": meta["tokenizer.chat_template"], "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("num_shards", [0, 3])
@pytest.mark.parametrize("tied", [True, False])
def test_a_folder_answers_as_the_gguf_file_of_the_same_weights(
    tmp_path: Path, tied: bool, num_shards: int
) -> None:
    gguf = tiny_model(tmp_path / "tiny.gguf", tied=tied, tensor_type="F32")
    folder = as_folder(gguf, tmp_path / "folder", num_shards=num_shards)
    one, other = (LLM(str(p), num_kv_blocks=32, kv_cache_dtype="float32") for p in (gguf, folder))
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
