"""Tiny random decoders of any family, a spec and tensors in memory, and batches to run on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.backends.base import InputBatch
from octavo.model.files.quants import GGMLType, dequantize
from octavo.model.spec import LayerSpec, ModelSpec, RopeSpec
from tiny_model import quantize

if TYPE_CHECKING:
    from collections.abc import Sequence


ROPE = RopeSpec(10_000.0, 16, "interleaved")


@dataclass(frozen=True)
class MemoryTensor:
    """A weight held in memory as a file would hold it."""

    name: str
    type: GGMLType
    shape: tuple[int, ...]
    data: np.ndarray[Any, np.dtype[np.uint8]]

    def dequantize(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        return dequantize(self.type, self.data, self.shape)


def tensor(name: str, values: np.ndarray, kind: str) -> MemoryTensor:
    data = np.frombuffer(quantize(values.astype(np.float32), kind), np.uint8)
    return MemoryTensor(name, GGMLType[kind], values.shape, data)


def spec(
    *,
    num_layers: int = 2,
    hidden: int = 64,
    inner: int = 128,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    vocab: int = 288,
    context: int = 2048,
    rope: RopeSpec | None = ROPE,
    windows: Sequence[int | None] = (None,),
    **more: Any,
) -> ModelSpec:
    layers = tuple(LayerSpec(rope, windows[i % len(windows)]) for i in range(num_layers))
    return ModelSpec(
        architecture="tiny",
        layers=layers,
        hidden_size=hidden,
        intermediate_size=inner,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=vocab,
        context_length=context,
        norm_eps=1e-5,
        tied_embeddings=more.pop("tied", True),
        **more,
    )


def weights(
    s: ModelSpec, kind: str = "Q4_0", *, seed: int = 0, kinds: dict[str, str] | None = None
) -> dict[str, MemoryTensor]:
    """Random tensors for a spec; matrices are of type ``kind``, or as ``kinds`` says by name."""
    rng = np.random.default_rng(seed)
    q, kv = s.num_heads * s.head_dim, s.num_kv_heads * s.head_dim
    found: dict[str, MemoryTensor] = {}

    def add(name: str, shape: tuple[int, ...], mean: float, spread: float) -> None:
        values = rng.normal(mean, spread, shape).astype(np.float32)
        base = name.split(".")[-2]
        form = (kinds or {}).get(base, kind) if len(shape) == 2 else "F32"
        found[name] = tensor(name, values, form)

    def norm(name: str, size: int) -> None:
        add(f"{name}.weight", (size,), 1.0, 0.1)
        if s.norm == "layer":
            add(f"{name}.bias", (size,), 0.0, 0.1)

    def matrix(name: str, rows: int, columns: int, gain: float, bias: bool) -> None:
        add(f"{name}.weight", (rows, columns), 0.0, gain / columns**0.5)
        if bias:
            add(f"{name}.bias", (rows,), 0.0, 0.1)

    matrix("token_embd", s.vocab_size, s.hidden_size, 3.0, False)
    if not s.tied_embeddings:
        matrix("output", s.vocab_size, s.hidden_size, 3.0, False)
    if s.learned_positions:
        add("position_embd.weight", (s.context_length, s.hidden_size), 0.0, 0.1)
        found["position_embd.weight"] = tensor(
            "position_embd.weight", found["position_embd.weight"].dequantize(), "F32"
        )
    norm("output_norm", s.hidden_size)
    for i in range(s.num_layers):
        at = f"blk.{i}."
        norm(at + "attn_norm", s.hidden_size)
        norm(at + "ffn_norm", s.hidden_size)
        if s.post_norms:
            norm(at + "post_attention_norm", s.hidden_size)
            norm(at + "post_ffw_norm", s.hidden_size)
        if s.qk_norm:
            norm(at + "attn_q_norm", s.head_dim)
            norm(at + "attn_k_norm", s.head_dim)
        matrix(at + "attn_q", q, s.hidden_size, 1.5, s.attention_bias)
        matrix(at + "attn_k", kv, s.hidden_size, 1.5, s.attention_bias)
        matrix(at + "attn_v", kv, s.hidden_size, 1.5, s.attention_bias)
        matrix(at + "attn_output", s.hidden_size, q, 1.5, s.projection_bias)
        if s.gated:
            matrix(at + "ffn_gate", s.intermediate_size, s.hidden_size, 1.5, s.projection_bias)
        matrix(at + "ffn_up", s.intermediate_size, s.hidden_size, 1.5, s.projection_bias)
        matrix(at + "ffn_down", s.hidden_size, s.intermediate_size, 1.0, s.projection_bias)
    return found


def batch(
    sequences: Sequence[tuple[Sequence[int], int, Sequence[int]]],
    wanted: Sequence[int] | None = None,
    *,
    stored: bool = True,
) -> InputBatch:
    """A step: for each sequence its new tokens, how many came before, and its block table.

    ``wanted`` are the tokens whose logits are asked for; None asks for all.
    """
    ids, positions, slots, starts, lens = [], [], [], [0], []
    width = max(len(table) for _, _, table in sequences)
    tables = np.zeros((len(sequences), width), np.int32)
    for i, (tokens, before, table) in enumerate(sequences):
        tables[i, : len(table)] = table
        for j, token in enumerate(tokens):
            position = before + j
            ids.append(token)
            positions.append(position)
            slots.append(table[position // 16] * 16 + position % 16 if stored else -1)
        starts.append(len(ids))
        lens.append(before + len(tokens))
    wanted = range(len(ids)) if wanted is None else wanted
    return InputBatch(
        *(np.array(values, np.int32) for values in (ids, positions, slots, starts, lens)),
        block_tables=tables,
        logits_indices=np.array(wanted, np.int32),
    )
