"""Tiny random models in memory: a spec, and weights that need no file."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from octavo.backends.reference import ReferenceBackend
from octavo.model.spec import LayerSpec, ModelSpec, RopeSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class Weight:
    """What a backend asks of a tensor."""

    def __init__(self, values: NDArray[np.float32]) -> None:
        self.values = values

    def dequantize(self) -> NDArray[np.float32]:
        return self.values


ROPE = RopeSpec(theta=10_000.0, dim=8, layout="interleaved")
HALF = replace(ROPE, layout="half")


def random_spec(
    *,
    num_layers: int = 2,
    rope: RopeSpec = ROPE,
    windows: Sequence[int | None] = (None,),
    **changes: object,
) -> ModelSpec:
    """Return a small spec; the layers take turns with ``windows``."""
    layers = tuple(LayerSpec(rope, windows[i % len(windows)]) for i in range(num_layers))
    fields: dict[str, object] = {
        "architecture": "llama",
        "layers": layers,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "vocab_size": 61,
        "context_length": 256,
        "norm_eps": 1e-5,
        "tied_embeddings": True,
    }
    return ModelSpec(**{**fields, **changes})


VARIANTS = {
    "group 1": random_spec(num_kv_heads=4),
    "group 2": random_spec(),
    "group 3, half": random_spec(num_heads=6, rope=HALF),
    "separate head": random_spec(tied_embeddings=False),
    "bias": random_spec(attention_bias=True, rope=HALF),
    "q/k norm": random_spec(qk_norm=True, rope=HALF, num_heads=2, num_kv_heads=1),
    "part of a head rotated": random_spec(rope=replace(ROPE, dim=4)),
    "part, half": random_spec(rope=replace(HALF, dim=6, theta=500.0)),
    "window of one size": random_spec(windows=(20,)),
    "windows of two sizes": random_spec(windows=(9, 21)),
    "window beside a whole layer": random_spec(windows=(13, None)),
}


def random_tensors(spec: ModelSpec, seed: int = 0) -> dict[str, Weight]:
    """Return weights under which logits deviate by about 3 and attention is far from uniform."""
    rng = np.random.default_rng(seed)
    hidden, inner = spec.hidden_size, spec.intermediate_size
    q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    matrices = {
        "attn_q": (q_size, hidden, 1.5),
        "attn_k": (kv_size, hidden, 1.5),
        "attn_v": (kv_size, hidden, 1.5),
        "attn_output": (hidden, q_size, 1.5),
        "ffn_gate": (inner, hidden, 1.5),
        "ffn_up": (inner, hidden, 1.5),
        "ffn_down": (hidden, inner, 1.0),
    }
    vectors = {"attn_norm.weight": (hidden, 1.0), "ffn_norm.weight": (hidden, 1.0)}
    if spec.attention_bias:
        vectors |= {"attn_q.bias": (q_size, 0.0), "attn_k.bias": (kv_size, 0.0)}
        vectors |= {"attn_v.bias": (kv_size, 0.0)}
    if spec.qk_norm:
        vectors |= {"attn_q_norm.weight": (spec.head_dim, 1.0)}
        vectors |= {"attn_k_norm.weight": (spec.head_dim, 1.0)}

    def matrix(rows: int, columns: int, gain: float) -> Weight:
        return Weight(rng.normal(0, gain / columns**0.5, (rows, columns)).astype(np.float32))

    def vector(size: int, mean: float) -> Weight:
        return Weight(rng.normal(mean, 0.2, size).astype(np.float32))

    tensors = {"token_embd.weight": matrix(spec.vocab_size, hidden, 3.0)}
    for layer in range(spec.num_layers):
        for name, shape in matrices.items():
            tensors[f"blk.{layer}.{name}.weight"] = matrix(*shape)
        for name, size in vectors.items():
            tensors[f"blk.{layer}.{name}"] = vector(*size)
    tensors["output_norm.weight"] = vector(hidden, 1.0)
    if not spec.tied_embeddings:
        tensors["output.weight"] = matrix(spec.vocab_size, hidden, 3.0)
    return tensors


def random_backend(
    spec: ModelSpec,
    *,
    num_blocks: int = 64,
    block_size: int = 16,
    kv_dtype: object = np.float32,
    seed: int = 0,
) -> ReferenceBackend:
    return ReferenceBackend(
        spec,
        random_tensors(spec, seed),
        num_blocks=num_blocks,
        block_size=block_size,
        kv_dtype=kv_dtype,
        num_threads=1,
    )
