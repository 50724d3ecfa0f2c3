"""What a decoder is: every number and every switch that the forward pass needs, and no weights.

A model variant is a field here, never a copy of a file. Knows no file format.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """How positions rotate queries and keys (Su et al., RoFormer, 2021).

    Pair i of a head turns by position * theta^(-2i / dim) / factor_i.
    """

    theta: float
    dim: int
    """How many leading dimensions of a head are rotated; even, and at most `head_dim`."""
    layout: Literal["interleaved", "half"]
    """Which two dimensions form a pair: (2i, 2i + 1), or (i, i + dim / 2)."""
    factors: tuple[float, ...] | None = None
    """What each pair's frequency is divided by, ``dim / 2`` numbers; None divides by nothing."""
    long_factors: tuple[float, ...] | None = None
    """The same for contexts longer than `original_context` (LongRoPE, Ding et al., 2024)."""
    original_context: int | None = None
    """Given with `long_factors`."""
    magnitude: float = 1.0
    """What the rotated queries and keys are both multiplied by."""

    def for_context(self, context_length: int) -> RopeSpec:
        """Return the rope of an engine whose requests have up to ``context_length`` tokens.

        The choice between short and long factors is made once for an engine, not by a request's
        length: keys that are in the cache stay right when a request grows.
        """
        choice = self.choice_for(context_length)
        if choice is None:
            return self
        factors = self.long_factors if choice == "long" else self.factors
        return replace(self, factors=factors, long_factors=None, original_context=None)

    def choice_for(self, context_length: int) -> Literal["short", "long"] | None:
        """Return which factors such an engine uses; None where there is nothing to choose."""
        if self.long_factors is None:
            return None
        assert self.original_context is not None
        return "long" if context_length > self.original_context else "short"


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What differs from layer to layer."""

    rope: RopeSpec | None
    """None: the layer knows no positions, or they were added to the embeddings."""
    window: int | None = None
    """How many tokens, the query's own included, a query sees; None sees all before it."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One decoder-only transformer."""

    architecture: str
    """The family's name, as GGUF writes it (``llama``, ``qwen3``)."""
    layers: tuple[LayerSpec, ...]
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    """The most tokens the model was made to see."""
    norm_eps: float
    tied_embeddings: bool
    """Whether the token embedding serves as the output head."""
    norm: Literal["rms", "layer"] = "rms"
    """RMSNorm, or LayerNorm with a bias."""
    activation: Literal["silu", "gelu_tanh"] = "silu"
    gated: bool = True
    """Whether the feed-forward part multiplies an activated gate with a second projection."""
    attention_bias: bool = False
    """Whether the q, k and v projections add a bias."""
    projection_bias: bool = False
    """Whether the attention's output and the feed-forward projections add a bias."""
    qk_norm: bool = False
    """Whether q and k are normalised per head before the rotation."""
    post_norms: bool = False
    """Whether attention and feed-forward outputs are normalised before they are added."""
    learned_positions: bool = False
    """Whether a position's embedding is added to the token's."""
    embedding_scale: float = 1.0
    """What token embeddings are multiplied by."""
    attention_scale: float | None = None
    """What q k^T is multiplied by; None is 1 / sqrt(head_dim)."""

    @property
    def num_layers(self) -> int:
        """How many layers there are."""
        return len(self.layers)

    @property
    def gqa_group(self) -> int:
        """How many query heads share one KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def cache_window(self) -> int | None:
        """After how many tokens keys and values are of no use to any layer; None is never."""
        windows = [layer.window for layer in self.layers]
        if None in windows:
            return None
        return max(window for window in windows if window is not None)

    def for_context(self, context_length: int) -> ModelSpec:
        """Return the spec of an engine whose requests have up to ``context_length`` tokens."""
        layers = tuple(
            layer
            if layer.rope is None
            else replace(layer, rope=layer.rope.for_context(context_length))
            for layer in self.layers
        )
        return replace(self, layers=layers, context_length=context_length)

    def rope_choice_for(self, context_length: int) -> Literal["short", "long"] | None:
        """Return what `for_context` chooses: with each, other keys come of the same tokens."""
        for layer in self.layers:
            if layer.rope is not None and layer.rope.long_factors is not None:
                return layer.rope.choice_for(context_length)
        return None

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Return the bytes of keys and values that one token costs over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * bytes_per_value
