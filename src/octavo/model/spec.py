"""What a decoder is: every number and every switch that the forward pass needs, and no weights.

A model variant is a field here, never a copy of a file. Knows no file format.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One decoder-only transformer of the Llama family."""

    architecture: str
    """The family's name, as its file gives it (``llama``)."""
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    """The most tokens the model was trained to see."""
    rms_norm_eps: float
    rope_theta: float
    rope_dim: int
    """How many leading dimensions of a head are rotated; even, and at most `head_dim`."""
    rope_layout: Literal["interleaved", "half"]
    """Which two dimensions form a pair: (2i, 2i + 1), or (i, i + rope_dim / 2)."""
    tied_embeddings: bool
    """Whether the token embedding serves as the output head."""
    attention_bias: bool = False
    """Whether the q, k and v projections add a bias."""
    qk_norm: bool = False
    """Whether q and k are normalised per head (RMSNorm) before the rotation."""

    @property
    def gqa_group(self) -> int:
        """How many query heads share one KV head."""
        return self.num_heads // self.num_kv_heads

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Return the bytes of keys and values that one token costs over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * bytes_per_value
