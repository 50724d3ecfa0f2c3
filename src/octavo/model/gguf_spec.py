"""From a GGUF file's metadata to a `ModelSpec`, or a refusal that says why.

Whatever would change the answer and is not honoured (unknown rope scaling, experts, soft caps,
any unknown key of the architecture) is refused by its key's name. The keys are those of llama.cpp
(``gguf.constants`` lists them). Reads no weights but RoPE's factors; `weights.py` checks the rest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from octavo.errors import ModelFileError
from octavo.model.families import BY_ARCHITECTURE, GGUF_ROPE_THETA, Family, build_layers
from octavo.model.fields import MAX_WIDTH, Fields
from octavo.model.spec import ModelSpec, RopeSpec

if TYPE_CHECKING:
    from octavo.model.files.gguf import GGUFFile
    from octavo.model.spec import LayerSpec

ROPE_TENSORS: Final = (
    "rope_freqs.weight",
    "rope_factors_short.weight",
    "rope_factors_long.weight",
)
"""What divides frequencies: a part of the spec, not weights. The first for every context."""

_HARMLESS: Final = (
    "attention.layer_norm_epsilon",  # the norm's own was read; some files have both
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window_pattern",  # without a window it says nothing
    "rope.scaling.factor",  # of a scaling that is off
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "tensor_data_layout",
)


def spec_from_gguf(file: GGUFFile) -> ModelSpec:
    """Return what decoder `file` says it holds.

    Raises `ModelFileError` for another architecture, a missing or impossible hyper-parameter and
    a feature that is not supported. Whether the tensors fit is `weights.gguf_weights`'s affair.
    """
    architecture = Fields(file.metadata, "", file.path).string("general.architecture")
    family = BY_ARCHITECTURE.get(architecture)
    if family is None:
        raise ModelFileError(
            f"architecture {architecture!r} is not supported ({', '.join(BY_ARCHITECTURE)} are)",
            path=file.path,
        )
    keys = Fields(file.metadata, f"{architecture}.", file.path)
    _refuse_features(keys)
    spec = _read_spec(keys, file, family)
    keys.refuse_unread(_HARMLESS)
    return spec


def _refuse_features(keys: Fields) -> None:
    """Refuse what deserves more words than an unknown key."""
    if keys.integer("expert_count", 0, least=0):
        raise keys.fault("expert_count", "is not 0: mixtures of experts are not supported")
    if not keys.flag("attention.causal", True):
        raise keys.fault("attention.causal", "is not true: only causal decoders are supported")


def _read_spec(keys: Fields, file: GGUFFile, family: Family) -> ModelSpec:
    """Read the hyper-parameters, each in range and consistent with the others."""
    hidden_size = keys.integer("embedding_length", most=MAX_WIDTH)
    num_heads = keys.integer("attention.head_count")
    num_kv_heads = keys.integer("attention.head_count_kv", num_heads)
    if num_heads % num_kv_heads:
        raise keys.fault(
            "attention.head_count",
            f"is {num_heads}, not a multiple of attention.head_count_kv, {num_kv_heads}",
        )
    head_dim = _head_dim(keys, hidden_size, num_heads)
    norm = family.traits.get("norm", "rms")
    layers = _layers(keys, file, family, head_dim)
    attention_scale = keys.positive("attention.scale") if keys.has("attention.scale") else None
    if attention_scale is None and len(layers) == family.gguf_wide_scale_layers:
        attention_scale = float(hidden_size / num_heads) ** -0.5
    traits = family.traits.copy()
    if "blk.0.attn_q.bias" in file.tensors:  # some families have both kinds
        traits["attention_bias"] = True
    if "blk.0.attn_q_norm.weight" in file.tensors:
        traits["qk_norm"] = True
    return ModelSpec(
        architecture=family.architecture,
        layers=layers,
        hidden_size=hidden_size,
        intermediate_size=keys.integer("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=_vocab_size(keys, file),
        context_length=keys.integer("context_length"),
        norm_eps=keys.positive(
            "attention.layer_norm_rms_epsilon" if norm == "rms" else "attention.layer_norm_epsilon"
        ),
        tied_embeddings="output.weight" not in file.tensors,
        activation=family.activation,
        embedding_scale=hidden_size**0.5 if family.scaled_embedding else 1.0,
        attention_scale=attention_scale,
        **traits,
    )


def _layers(keys: Fields, file: GGUFFile, family: Family, head_dim: int) -> tuple[LayerSpec, ...]:
    """Read what differs from layer to layer."""
    num_layers = keys.integer("block_count")
    if num_layers > len(file.tensors):  # before anything of that length is made
        raise keys.fault(
            "block_count", f"is {num_layers}, and the file has {len(file.tensors)} tensors in all"
        )
    window = keys.integer("attention.sliding_window", 0, least=0)
    windowed = _windowed(keys, family, num_layers) if window else [False] * num_layers
    rotated = [family.is_rotated(layer) for layer in range(num_layers)]
    global_rope = local_rope = None
    if any(rotated):
        global_rope = _global_rope(keys, file, family, head_dim)
        local_rope = _local_rope(keys, family, global_rope)
    if window >= keys.integer("context_length"):
        window = 0
    return build_layers(rotated, windowed, window or None, global_rope, local_rope)


def _windowed(keys: Fields, family: Family, num_layers: int) -> list[bool]:
    """Return which layers are windowed: a list of the file's, or all but every so manyeth."""
    key = "attention.sliding_window_pattern"
    if isinstance(keys.get(key), list):
        return [bool(value) for value in keys.items(key, num_layers)]
    pattern = keys.integer(key, family.gguf_window_pattern, least=0)
    return [pattern == 0 or (layer + 1) % pattern != 0 for layer in range(num_layers)]


def _global_rope(keys: Fields, file: GGUFFile, family: Family, head_dim: int) -> RopeSpec:
    """Read the rope of the layers that see everything."""
    dim = keys.integer("rope.dimension_count", head_dim)
    if dim % 2 or dim > head_dim:
        raise keys.fault(
            "rope.dimension_count",
            f"is {dim}; it must be even and at most the head's {head_dim} dimensions",
        )
    rope = RopeSpec(
        theta=keys.positive("rope.freq_base", GGUF_ROPE_THETA),
        dim=dim,
        layout=family.gguf_rope_layout,
        magnitude=keys.positive("rope.scaling.attn_factor", 1.0),
    )
    every, short, long = (_rope_factors(file, name, dim // 2) for name in ROPE_TENSORS)
    linear = _linear_factor(keys, has_factors=long is not None)
    if (short is None) != (long is None) or sum(f is not None for f in (every, long, linear)) > 1:
        raise ModelFileError(
            f"RoPE is scaled in more than one way, or by one of {' and '.join(ROPE_TENSORS[1:])} "
            "without the other; that is not supported",
            path=file.path,
        )
    if long is not None:
        keys.positive("rope.scaling.attn_factor")  # LongRoPE's; a file without it is incomplete
        original = keys.integer("rope.scaling.original_context_length")
        return replace(rope, factors=short, long_factors=long, original_context=original)
    if linear is not None:
        every = (linear,) * (dim // 2)
    return replace(rope, factors=every)


def _linear_factor(keys: Fields, has_factors: bool) -> float | None:
    """Return what all frequencies are divided by, None for nothing; refuse other scalings."""
    old_factor = keys.positive("rope.scale_linear", 1.0)  # old files have only this, and no type
    kind = keys.string("rope.scaling.type", "longrope" if has_factors else "linear")
    if kind == "none" or (kind == "longrope" and has_factors):
        return None
    if kind != "linear":
        raise keys.fault(
            "rope.scaling.type", f"is {kind!r}: only none, linear and longrope are supported"
        )
    factor = keys.positive("rope.scaling.factor", old_factor)
    return None if factor == 1.0 else factor


def _rope_factors(file: GGUFFile, name: str, length: int) -> tuple[float, ...] | None:
    """Read one of `ROPE_TENSORS`, None if it is absent."""
    tensor = file.tensors.get(name)
    if tensor is None:
        return None
    if tensor.shape != (length,):
        raise ModelFileError(
            f"{name} must have shape {(length,)}, and has {tensor.shape}", path=file.path
        )
    factors = tensor.dequantize()
    if not (np.isfinite(factors).all() and (factors > 0).all()):
        raise ModelFileError(f"{name} must hold positive finite numbers", path=file.path)
    return tuple(factors.tolist())


def _local_rope(keys: Fields, family: Family, global_rope: RopeSpec) -> RopeSpec:
    """Return the rope of the windowed layers; a base of its own is never scaled."""
    if family.local_theta is None and not keys.has("rope.freq_base_swa"):
        return global_rope
    return RopeSpec(
        theta=keys.positive("rope.freq_base_swa", family.local_theta),
        dim=global_rope.dim,
        layout=global_rope.layout,
    )


def _head_dim(keys: Fields, hidden_size: int, num_heads: int) -> int:
    """Return the dimensions of one head."""
    if keys.has("attention.key_length"):
        head_dim = keys.integer("attention.key_length", most=MAX_WIDTH)
    elif hidden_size % num_heads:
        raise keys.fault(
            "embedding_length",
            f"is {hidden_size}, not a multiple of attention.head_count, {num_heads}",
        )
    else:
        head_dim = hidden_size // num_heads
    value_dim = keys.integer("attention.value_length", head_dim)
    if value_dim != head_dim:
        raise keys.fault(
            "attention.value_length",
            f"is {value_dim}, and keys have {head_dim} dimensions; they must be equal",
        )
    return head_dim


def _vocab_size(keys: Fields, file: GGUFFile) -> int:
    """Return the rows of the embedding, which may be more than the tokenizer's tokens."""
    embedding = file.tensors.get("token_embd.weight")
    vocab_size = keys.integer("vocab_size", embedding.shape[0] if embedding is not None else None)
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) > vocab_size:
        raise ModelFileError(
            f"the tokenizer has {len(tokens)} tokens and the model {vocab_size} embeddings",
            path=file.path,
        )
    return vocab_size
