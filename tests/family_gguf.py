"""A converter of tiny Hugging Face models to GGUF, by what llama.cpp's own converters do.

Written from the format's facts and not from Octavo's tables, which it is there to check.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tiny_model import RawTensor, gguf_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    Array = npt.NDArray[np.float32]

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma3ForCausalLM": "gemma3",
    "Phi3ForCausalLM": "phi3",
    "SmolLM3ForCausalLM": "smollm3",
    "GPT2LMHeadModel": "gpt2",
}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "ln_1": "attn_norm",
    "ln_2": "ffn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
_GEMMA_NAMES = {
    **_LAYER_NAMES,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_TOP_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "transformer.wte.weight": "token_embd.weight",
    "transformer.wpe.weight": "position_embd.weight",
    "transformer.ln_f.weight": "output_norm.weight",
    "transformer.ln_f.bias": "output_norm.bias",
}


def to_gguf(config: dict[str, Any], weights: Mapping[str, Array]) -> bytes:
    """Return the model as an F32 GGUF file without a tokenizer."""
    architecture = ARCHITECTURES[config["architectures"][0]]
    tensors = {}
    for name, values in weights.items():
        tensors[_gguf_name(name, architecture)] = _gguf_values(name, values, config, architecture)
    if architecture == "gpt2":
        keys = _gpt2_keys(config)
    else:
        keys = _keys(config, architecture)
        keys |= _rope_keys(config, tensors)
    metadata = [("general.architecture", architecture)]
    metadata += [(f"{architecture}.{key}", value) for key, value in keys.items()]
    return gguf_bytes(
        metadata,
        [
            RawTensor(name, values.shape[::-1], 0, values.astype("<f4").tobytes())
            for name, values in tensors.items()
        ],
    )


def _gguf_name(name: str, architecture: str) -> str:
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    part, suffix = rest.rsplit(".", 1)
    names = _GEMMA_NAMES if architecture == "gemma3" else _LAYER_NAMES
    return f"blk.{layer}.{names[part]}.{suffix}"


def _gguf_values(name: str, values: Array, config: dict[str, Any], architecture: str) -> Array:
    """Permute, transpose or shift what converters do."""
    if architecture in ("llama", "smollm3") and name.endswith(("q_proj.weight", "k_proj.weight")):
        key = "num_attention_heads" if "q_proj" in name else "num_key_value_heads"
        halves = values.reshape(config[key], 2, -1, values.shape[1])
        return halves.swapaxes(1, 2).reshape(values.shape)
    if architecture == "gpt2" and ".h." in name and values.ndim == 2:
        return values.T
    if architecture == "gemma3" and name.endswith("norm.weight"):
        return values + np.float32(1)
    return values


def _gpt2_keys(config: dict[str, Any]) -> dict[str, object]:
    return {
        "block_count": config["n_layer"],
        "context_length": config["n_positions"],
        "embedding_length": config["n_embd"],
        "feed_forward_length": 4 * config["n_embd"],
        "attention.head_count": config["n_head"],
        "attention.layer_norm_epsilon": config["layer_norm_epsilon"],
    }


def _keys(config: dict[str, Any], architecture: str) -> dict[str, object]:
    keys: dict[str, object] = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
    }
    if head_dim := config.get("head_dim"):
        keys |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    if architecture == "llama":
        keys["vocab_size"] = config["vocab_size"]
    if config.get("sliding_window"):
        keys["attention.sliding_window"] = config["sliding_window"]
    if architecture == "qwen2":  # llama.cpp reads such a list for any architecture
        kinds = config["layer_types"]
        keys["attention.sliding_window_pattern"] = [k == "sliding_attention" for k in kinds]
    scalar = config.get("query_pre_attn_scalar")
    if scalar is not None and scalar != head_dim:  # real files have it by the 27B rule alone
        keys["attention.scale"] = scalar**-0.5
    return keys


def _rope_keys(config: dict[str, Any], tensors: dict[str, Array]) -> dict[str, object]:
    """Return RoPE's keys, and put its tensors among ``tensors``."""
    parameters = config["rope_parameters"]
    keys: dict[str, object] = {}
    if "full_attention" in parameters:
        keys["rope.freq_base_swa"] = parameters["sliding_attention"]["rope_theta"]
        parameters = parameters["full_attention"]
    theta, kind = parameters["rope_theta"], parameters["rope_type"]
    keys["rope.freq_base"] = theta
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    dim = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
    keys["rope.dimension_count"] = dim
    if kind == "linear":
        keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": parameters["factor"]}
    elif kind == "llama3":
        tensors["rope_freqs.weight"] = _llama3_factors(parameters, theta, dim)
    elif kind == "longrope":
        original = parameters["original_max_position_embeddings"]
        scale = config["max_position_embeddings"] / original
        keys |= {
            "rope.scaling.type": "longrope",
            "rope.scaling.original_context_length": original,
            "rope.scaling.attn_factor": math.sqrt(1 + math.log(scale) / math.log(original)),
        }
        for which in ("short", "long"):
            factors = np.array(parameters[f"{which}_factor"], np.float32)
            tensors[f"rope_factors_{which}.weight"] = factors
    return keys


def _llama3_factors(parameters: dict[str, Any], theta: float, dim: int) -> Array:
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    original = parameters["original_max_position_embeddings"]
    factors = []
    for pair in range(dim // 2):
        wavelength = 2 * math.pi * theta ** (2 * pair / dim)
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(parameters["factor"])
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / parameters["factor"] + smooth))
    return np.array(factors, np.float32)
