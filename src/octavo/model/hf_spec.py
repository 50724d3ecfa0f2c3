"""From a Hugging Face folder's config.json to a `ModelSpec`, or a refusal that says why.

Reads what transformers 4 and 5 write. What counts is what transformers' own class of the family
reads: a field that it does not read changes nothing there either; one that it reads and that is
not honoured here is refused by name.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

from octavo.model.families import BY_HF_CLASS, Family, build_layers
from octavo.model.fields import MAX_LAYERS, MAX_WIDTH, Fields
from octavo.model.hf_rope import ropes_from_hf
from octavo.model.spec import ModelSpec

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from octavo.model.spec import LayerSpec

_ACTIVATIONS: Final[Mapping[str, Literal["silu", "gelu_tanh"]]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}
_MUST_BE_OFF: Final = (
    "add_cross_attention",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "is_encoder_decoder",
    "mlp_bias",
    "num_experts",
    "num_local_experts",
    "quantization_config",
    "scale_attn_by_inverse_layer_idx",
    "use_bidirectional_attention",
)
"""What some class reads and Octavo does not honour; null, false and 0 all mean off."""


def spec_from_hf(config: Mapping[str, object], path: str | os.PathLike[str]) -> ModelSpec:
    """Return what decoder a config.json describes; ``path`` is for messages.

    Raises `ModelFileError` for another class, a missing or impossible hyper-parameter and a
    feature that is not supported. Whether the tensors fit is `weights.hf_weights`'s affair.
    """
    fields = Fields(config, "", path)
    family = _family(fields)
    _refuse_features(fields, family)
    hidden_size = fields.integer(family.hf_key("hidden_size"), most=MAX_WIDTH)
    num_heads = fields.integer(family.hf_key("num_attention_heads"))
    num_kv_heads = fields.integer("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise fields.fault(
            family.hf_key("num_attention_heads"),
            f"is {num_heads}, not a multiple of num_key_value_heads, {num_kv_heads}",
        )
    head_dim = _head_dim(fields, family, hidden_size, num_heads)
    context_length = fields.integer(family.hf_key("max_position_embeddings"))
    return ModelSpec(
        architecture=family.architecture,
        layers=_layers(fields, family, head_dim, context_length),
        hidden_size=hidden_size,
        intermediate_size=fields.integer(
            family.hf_key("intermediate_size"),
            hidden_size * family.hf_inner_ratio if family.hf_inner_ratio else None,
        ),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=fields.integer("vocab_size"),
        context_length=context_length,
        norm_eps=fields.positive(family.hf_key("rms_norm_eps")),
        tied_embeddings=fields.flag("tie_word_embeddings", family.hf_tied),
        activation=_activation(fields, family),
        embedding_scale=hidden_size**0.5 if family.scaled_embedding else 1.0,
        attention_scale=(
            fields.positive("query_pre_attn_scalar") ** -0.5 if family.hf_query_scalar else None
        ),
        **family.traits,
    )


def _family(fields: Fields) -> Family:
    """Return the family of the class that config.json names."""
    (name,) = fields.items("architectures", 1)
    family = BY_HF_CLASS.get(str(name))
    if family is None:
        known = ", ".join(BY_HF_CLASS)
        raise fields.fault("architectures", f"is {name!r}, which is not supported ({known} are)")
    return family


def _refuse_features(fields: Fields, family: Family) -> None:
    """Refuse what would change the answer and is not honoured."""
    for key in _MUST_BE_OFF:
        if fields.get(key):
            remedy = "; use an unquantised folder or a GGUF file" if "quantization" in key else ""
            raise fields.fault(key, f"is {fields.get(key)!r}, which is not supported{remedy}")
    if fields.get("attention_bias") and not family.traits.get("attention_bias"):
        raise fields.fault("attention_bias", "is true, which is not supported in this family")
    if not fields.flag("scale_attn_weights", True):
        raise fields.fault("scale_attn_weights", "is false, which is not supported")


def _head_dim(fields: Fields, family: Family, hidden_size: int, num_heads: int) -> int:
    """Return the dimensions of one head."""
    if not fields.has("head_dim") and hidden_size % num_heads:
        raise fields.fault(
            family.hf_key("hidden_size"), f"is {hidden_size}, not a multiple of {num_heads} heads"
        )
    return fields.integer("head_dim", hidden_size // num_heads, most=MAX_WIDTH)


def _activation(fields: Fields, family: Family) -> Literal["silu", "gelu_tanh"]:
    """Return the activation of the feed-forward part."""
    key = family.hf_key("hidden_act")
    name = fields.string(key)
    if name not in _ACTIVATIONS:
        raise fields.fault(key, f"is {name!r}, which is not supported ({list(_ACTIVATIONS)} are)")
    return _ACTIVATIONS[name]


def _layers(
    fields: Fields, family: Family, head_dim: int, context_length: int
) -> tuple[LayerSpec, ...]:
    """Read what differs from layer to layer."""
    num_layers = fields.integer(family.hf_key("num_hidden_layers"), most=MAX_LAYERS)
    rotated = _rotated(fields, family, num_layers)
    windowed = _windowed(fields, family, rotated)
    window = None
    if any(windowed):
        window = fields.integer("sliding_window")
    global_rope = local_rope = None
    if any(rotated):
        global_rope, local_rope = ropes_from_hf(fields, family, head_dim, context_length)
    if window is not None and window >= context_length:
        window = None
    return build_layers(rotated, windowed, window, global_rope, local_rope)


def _rotated(fields: Fields, family: Family, num_layers: int) -> list[bool]:
    """Return which layers have RoPE."""
    if family.unrotated_step is not None:
        if fields.has("no_rope_layers"):  # a 1 is: it has
            return [bool(value) for value in fields.items("no_rope_layers", num_layers)]
        step = fields.integer("no_rope_layer_interval", family.unrotated_step)
        family = replace(family, unrotated_step=step)
    return [family.is_rotated(layer) for layer in range(num_layers)]


def _windowed(fields: Fields, family: Family, rotated: list[bool]) -> list[bool]:
    """Return which layers are windowed; see `Family.hf_windows`."""
    num_layers = len(rotated)
    nothing = [False] * num_layers
    match family.hf_windows:
        case "none":
            return nothing
        case "all":
            if "sliding_window" not in fields:
                raise fields.fault("sliding_window", "is missing; null is none")
            return [fields.has("sliding_window")] * num_layers
        case "upper" | "unrotated":
            if not fields.flag("use_sliding_window", False) or not fields.has("sliding_window"):
                return nothing
    if fields.has("layer_types"):
        return [_is_windowed(fields, kind) for kind in fields.items("layer_types", num_layers)]
    if family.hf_windows == "unrotated":
        return [not is_rotated for is_rotated in rotated]
    if family.hf_windows == "upper":
        lowest = fields.integer("max_window_layers", least=0)
        return [layer >= lowest for layer in range(num_layers)]
    pattern = fields.integer("sliding_window_pattern", 6)
    return [(layer + 1) % pattern != 0 for layer in range(num_layers)]


def _is_windowed(fields: Fields, kind: object) -> bool:
    if kind not in ("full_attention", "sliding_attention"):
        raise fields.fault(
            "layer_types",
            f"has {kind!r}; only full_attention and sliding_attention are supported",
        )
    return kind == "sliding_attention"
