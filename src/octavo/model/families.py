"""The families of decoders that Octavo runs: one row for each, and both formats' readers use it.

What differs between families is data: `Traits` are fields of `ModelSpec`, the rest says how files
write them. To add a family is to add a row; `docs/models.md` says how. Knows no file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypedDict

from octavo.model.spec import LayerSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from octavo.model.spec import RopeSpec

GGUF_ROPE_THETA: Final = 10_000.0
"""GGUF's own default, and that of most families in transformers."""


class Traits(TypedDict, total=False):
    """The fields of `ModelSpec` that a family fixes, where they are not the spec's defaults."""

    norm: Literal["rms", "layer"]
    gated: bool
    attention_bias: bool
    projection_bias: bool
    qk_norm: bool
    post_norms: bool
    learned_positions: bool


_QKV: Final = ("attn_q", "attn_k", "attn_v")
_HF_NAMES: Final[Mapping[str, str]] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk": "model.layers",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""The parts of a tensor's name, GGUF's to transformers'; most families share these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What is special about a family, in both formats; the defaults are Llama's."""

    architecture: str
    """As GGUF's ``general.architecture`` and `ModelSpec.architecture` write it."""
    hf_class: str
    """As ``architectures`` in config.json writes it."""
    traits: Traits = field(default_factory=lambda: Traits())
    activation: Literal["silu", "gelu_tanh"] = "silu"
    """In GGUF, which has no key for it; config.json says it."""
    scaled_embedding: bool = False
    """Whether token embeddings are multiplied by sqrt(hidden_size)."""
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """In both formats: which tensors lie above one another in one tensor, in order."""

    local_theta: float | None = None
    """The RoPE base of windowed layers, unscaled, where it is not that of the others."""
    unrotated_step: int | None = None
    """The last of every so many layers has no RoPE; None: all have."""

    gguf_rope_layout: Literal["interleaved", "half"] = "half"
    """Converters to GGUF permute some families' q and k so that a pair lies side by side."""
    gguf_window_pattern: int | None = None
    """Where the file does not say: the last of every so many layers sees everything, the others
    are windowed; 0: all are windowed; None: a file with a window must say."""
    gguf_wide_scale_layers: int | None = None
    """With so many layers q k^T is scaled by 1 / sqrt(hidden_size / num_heads), unsaid."""

    hf_names: Mapping[str, str] = field(default_factory=lambda: _HF_NAMES)
    hf_keys: Mapping[str, str] = field(default_factory=dict)
    """config.json's own names of the usual keys."""
    hf_inner_ratio: int | None = None
    """intermediate_size / hidden_size, where config.json does not say the former."""
    hf_tied: bool = False
    """Whether the head is the embedding where ``tie_word_embeddings`` is absent."""
    hf_theta: float = GGUF_ROPE_THETA
    """The RoPE base where config.json has none."""
    hf_windows: Literal["none", "all", "upper", "pattern", "unrotated"] = "none"
    """Which layers are windowed: all; those from ``max_window_layers`` up; all but the last of
    every ``sliding_window_pattern``; those without RoPE."""
    hf_partial_rope: bool = False
    """Whether the class reads ``partial_rotary_factor``."""
    hf_query_scalar: bool = False
    """Whether q k^T is scaled by 1 / sqrt(``query_pre_attn_scalar``)."""
    hf_norm_plus_one: bool = False
    """Whether the weights of norms are stored less one."""
    hf_transposed: bool = False
    """Whether the projections of a layer are stored ``[in, out]``."""

    def hf_key(self, key: str) -> str:
        """Return config.json's name of a key."""
        return self.hf_keys.get(key, key)

    def is_rotated(self, layer: int) -> bool:
        """Whether a layer has RoPE, as far as the family knows."""
        if self.traits.get("learned_positions"):
            return False
        return self.unrotated_step is None or (layer + 1) % self.unrotated_step != 0


FAMILIES: Final = (
    Family(
        architecture="llama",
        hf_class="LlamaForCausalLM",
        gguf_rope_layout="interleaved",
        gguf_window_pattern=0,
    ),
    Family(  # in GGUF a Mistral is a Llama
        architecture="llama",
        hf_class="MistralForCausalLM",
        gguf_rope_layout="interleaved",
        gguf_window_pattern=0,
        hf_windows="all",
    ),
    Family(
        architecture="qwen2",
        hf_class="Qwen2ForCausalLM",
        traits={"attention_bias": True},
        hf_windows="upper",
    ),
    Family(
        architecture="qwen3",
        hf_class="Qwen3ForCausalLM",
        traits={"qk_norm": True},
        hf_windows="upper",
    ),
    Family(
        architecture="gemma3",
        hf_class="Gemma3ForCausalLM",
        traits={"qk_norm": True, "post_norms": True},
        activation="gelu_tanh",
        scaled_embedding=True,
        local_theta=10_000.0,
        gguf_window_pattern=6,
        gguf_wide_scale_layers=62,  # of the sizes there are, the 27B alone
        hf_names={
            **_HF_NAMES,
            "post_attention_norm": "post_attention_layernorm",
            "ffn_norm": "pre_feedforward_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        },
        hf_keys={"hidden_act": "hidden_activation"},
        hf_tied=True,
        hf_theta=1_000_000.0,
        hf_windows="pattern",
        hf_query_scalar=True,
        hf_norm_plus_one=True,
    ),
    Family(
        architecture="phi3",
        hf_class="Phi3ForCausalLM",
        fused={"attn_qkv": _QKV, "ffn_up": ("ffn_gate", "ffn_up")},
        gguf_window_pattern=0,
        hf_names={**_HF_NAMES, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
        hf_windows="all",
        hf_partial_rope=True,
    ),
    Family(
        architecture="smollm3",
        hf_class="SmolLM3ForCausalLM",
        unrotated_step=4,
        gguf_rope_layout="interleaved",
        hf_tied=True,
        hf_theta=2_000_000.0,
        hf_windows="unrotated",
    ),
    Family(
        architecture="gpt2",
        hf_class="GPT2LMHeadModel",
        traits={
            "norm": "layer",
            "gated": False,
            "attention_bias": True,
            "projection_bias": True,
            "learned_positions": True,
        },
        activation="gelu_tanh",
        fused={"attn_qkv": _QKV},
        hf_names={
            "token_embd": "transformer.wte",
            "position_embd": "transformer.wpe",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
            "blk": "transformer.h",
            "attn_norm": "ln_1",
            "attn_qkv": "attn.c_attn",
            "attn_output": "attn.c_proj",
            "ffn_norm": "ln_2",
            "ffn_up": "mlp.c_fc",
            "ffn_down": "mlp.c_proj",
        },
        hf_keys={
            "hidden_size": "n_embd",
            "intermediate_size": "n_inner",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "max_position_embeddings": "n_positions",
            "rms_norm_eps": "layer_norm_epsilon",
            "hidden_act": "activation_function",
        },
        hf_inner_ratio=4,
        hf_tied=True,
        hf_transposed=True,
    ),
)

# Where two rows share an architecture, GGUF's is the first.
BY_ARCHITECTURE: Final[Mapping[str, Family]] = {
    family.architecture: family for family in reversed(FAMILIES)
}
BY_HF_CLASS: Final[Mapping[str, Family]] = {family.hf_class: family for family in FAMILIES}


def build_layers(
    rotated: Sequence[bool],
    windowed: Sequence[bool],
    window: int | None,
    global_rope: RopeSpec | None,
    local_rope: RopeSpec | None,
) -> tuple[LayerSpec, ...]:
    """Return the layers, given which of them have RoPE and which are windowed.

    A windowed layer has the local RoPE, also where the window is longer than the context, None.
    """
    return tuple(
        LayerSpec(
            rope=(local_rope if is_windowed else global_rope) if is_rotated else None,
            window=window if is_windowed else None,
        )
        for is_rotated, is_windowed in zip(rotated, windowed, strict=True)
    )
