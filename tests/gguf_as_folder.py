"""A tiny Llama GGUF written anew as a Hugging Face folder: the same weights, another format."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from octavo.model.files.gguf import GGUFFile
from tiny_folder import tiny_folder

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
