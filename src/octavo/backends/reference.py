"""The semantics: a forward pass in plain NumPy float32, with a docstring for every formula.

It is the oracle that other backends are judged by, so it is written to be read, not to be fast.
Weights are dequantised once, when the backend is made; keys and values are stored as float16 or
float32 and read back as stored, the step's own tokens included.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

import numpy as np
from threadpoolctl import ThreadpoolController

from octavo.backends.base import NO_SLOT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import DTypeLike, NDArray

    from octavo.backends.base import InputBatch
    from octavo.model.spec import ModelSpec, RopeSpec

    Array = NDArray[np.float32]

SMALL_BATCH = 64
"""With so few tokens a matrix product is too short to be worth a second thread of BLAS."""

MAX_STORED = 65504.0
"""The largest finite float16: keys and values are clamped to it, whatever they are stored as."""


class WeightTensor(Protocol):
    """A weight as its file holds it."""

    def dequantize(self) -> Array:
        """Return the weight as float32, in its row-major shape."""


class ReferenceBackend:
    """Plain NumPy over a paged KV cache of ``num_blocks`` blocks of any size.

    ``tensors`` are named as in GGUF. ``kv_dtype`` is float16 or float32. ``num_threads`` bounds
    what BLAS takes for a large batch; None leaves it to BLAS.
    """

    def __init__(
        self,
        spec: ModelSpec,
        tensors: Mapping[str, WeightTensor],
        *,
        num_blocks: int,
        block_size: int = 16,
        kv_dtype: DTypeLike = np.float16,
        num_threads: int | None = None,
    ) -> None:
        self.spec = spec
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.num_clamped = 0
        with ThreadPoolExecutor(num_threads) as pool:  # NumPy lets go of the interpreter's lock
            weights = pool.map(lambda tensor: tensor.dequantize(), tensors.values())
            self._weights: dict[str, Array] = dict(zip(tensors, weights, strict=True))
        shape = (spec.num_layers, num_blocks * block_size, spec.num_kv_heads, spec.head_dim)
        self.keys = np.zeros(shape, kv_dtype)  # by slot; untouched pages cost no memory
        self.values = np.zeros(shape, kv_dtype)
        ropes = {layer.rope for layer in spec.layers if layer.rope is not None}
        self._ropes = {rope: rope_tables(rope, spec.context_length) for rope in ropes}
        self._num_threads = num_threads
        self._blas = ThreadpoolController()

    def execute(self, batch: InputBatch) -> Array:
        """Compute ``batch``; see `Backend.execute`."""
        num_threads = 1 if batch.num_tokens <= SMALL_BATCH else self._num_threads
        with self._blas.limit(limits=num_threads, user_api="blas"):
            return self._forward(batch)

    def _forward(self, batch: InputBatch) -> Array:
        x = self._embed(batch)  # [num_tokens, hidden_size]
        for layer in range(self.spec.num_layers):
            attended = self._attention(layer, self._norm(x, f"blk.{layer}.attn_norm"), batch)
            x = x + self._post_norm(attended, f"blk.{layer}.post_attention_norm")
            fed = self._feed_forward(layer, self._norm(x, f"blk.{layer}.ffn_norm"))
            x = x + self._post_norm(fed, f"blk.{layer}.post_ffw_norm")
        x = self._norm(x[batch.logits_indices], "output_norm")
        head = "token_embd" if self.spec.tied_embeddings else "output"
        logits: Array = x @ self._weights[f"{head}.weight"].T
        return logits

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (source, target), one after another."""
        size = self.block_size
        for source, target in copies:
            for store in (self.keys, self.values):
                blocks = store.reshape(store.shape[0], self.num_blocks, size, *store.shape[2:])
                blocks[:, target] = blocks[:, source]

    # -- the parts of a layer -----------------------------------------------------------------

    def _embed(self, batch: InputBatch) -> Array:
        """Look up the tokens, scaled, plus their positions where those are learned."""
        x = self._weights["token_embd.weight"][batch.input_ids]
        x = x * np.float32(self.spec.embedding_scale)
        if self.spec.learned_positions:
            x = x + self._weights["position_embd.weight"][batch.positions]
        return x

    def _norm(self, x: Array, name: str) -> Array:
        weight = self._weights[f"{name}.weight"]
        if self.spec.norm == "layer":
            return layer_norm(x, weight, self._weights[f"{name}.bias"], self.spec.norm_eps)
        return rms_norm(x, weight, self.spec.norm_eps)

    def _post_norm(self, x: Array, name: str) -> Array:
        return self._norm(x, name) if self.spec.post_norms else x

    def _project(self, layer: int, name: str, x: Array) -> Array:
        """x W^T, plus a bias where the model has one. Weights are [out, in]."""
        y: Array = x @ self._weights[f"blk.{layer}.{name}.weight"].T
        bias = self._weights.get(f"blk.{layer}.{name}.bias")
        return y if bias is None else y + bias

    def _feed_forward(self, layer: int, x: Array) -> Array:
        """W_down f(W_up x), or gated (Shazeer, 2020): W_down (f(W_gate x) * W_up x)."""
        activation = {"silu": silu, "gelu_tanh": gelu_tanh}[self.spec.activation]
        up = self._project(layer, "ffn_up", x)
        if self.spec.gated:
            hidden = activation(self._project(layer, "ffn_gate", x)) * up
        else:
            hidden = activation(up)
        return self._project(layer, "ffn_down", hidden)

    def _attention(self, layer: int, x: Array, batch: InputBatch) -> Array:
        """Project to q, k, v; rotate q and k; store k and v; attend over the stored ones."""
        spec = self.spec
        rope_spec, window = spec.layers[layer].rope, spec.layers[layer].window
        q = self._project(layer, "attn_q", x).reshape(-1, spec.num_heads, spec.head_dim)
        k = self._project(layer, "attn_k", x).reshape(-1, spec.num_kv_heads, spec.head_dim)
        v = self._project(layer, "attn_v", x).reshape(-1, spec.num_kv_heads, spec.head_dim)
        if spec.qk_norm:
            q = self._norm(q, f"blk.{layer}.attn_q_norm")
            k = self._norm(k, f"blk.{layer}.attn_k_norm")
        if rope_spec is not None:
            cos, sin = (table[batch.positions] for table in self._ropes[rope_spec])
            q, k = rope(q, cos, sin, rope_spec), rope(k, cos, sin, rope_spec)
        self._store(layer, k, v, batch.slot_mapping)
        scale = spec.head_dim**-0.5 if spec.attention_scale is None else spec.attention_scale
        out = np.empty_like(q)
        for i in range(batch.num_seqs):
            start, stop = int(batch.query_start_loc[i]), int(batch.query_start_loc[i + 1])
            seq_len = int(batch.seq_lens[i])
            # What no query of this step sees may have been given up: it is not even read.
            first = 0 if window is None else max(0, seq_len - (stop - start) - window + 1)
            slots = self._slots(batch.block_tables[i], first, seq_len)
            out[start:stop] = attend(
                q[start:stop],
                self.keys[layer, slots].astype(np.float32, copy=False),
                self.values[layer, slots].astype(np.float32, copy=False),
                scale=scale,
                window=window,
            )
        return self._project(layer, "attn_output", out.reshape(len(x), -1))

    def _store(self, layer: int, k: Array, v: Array, slot_mapping: NDArray[np.int32]) -> None:
        """Write keys and values to their slots, clamped to what a float16 holds, and count that."""
        stored = slot_mapping != NO_SLOT
        slots = slot_mapping[stored]
        for store, rows in ((self.keys, k[stored]), (self.values, v[stored])):
            self.num_clamped += int(np.count_nonzero(np.abs(rows) > MAX_STORED))
            store[layer, slots] = np.clip(rows, -MAX_STORED, MAX_STORED)

    def _slots(self, block_table: NDArray[np.int32], first: int, stop: int) -> NDArray[np.intp]:
        """Return the slots of a sequence's tokens at the positions ``first`` to ``stop`` - 1."""
        position = np.arange(first, stop)
        return block_table[position // self.block_size] * self.block_size + (
            position % self.block_size
        )


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis (Zhang and Sennrich, 2019)."""
    mean = np.mean(np.square(x), axis=-1, keepdims=True)  # float32, as x is
    normed: Array = x / np.sqrt(mean + np.float32(eps))
    return normed * weight


def layer_norm(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last axis (Ba et al., 2016)."""
    centred = x - np.mean(x, axis=-1, keepdims=True)
    return rms_norm(centred, weight, eps) + bias


def silu(x: Array) -> Array:
    """x * sigmoid(x); the exponential is taken of -|x|, so it cannot overflow."""
    e: Array = np.exp(-np.abs(x))
    numerator = np.where(x >= 0, np.float32(1), e)
    return x * numerator / (1 + e)


def gelu_tanh(x: Array) -> Array:
    """x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks and Gimpel, 2016)."""
    inner = np.float32((2 / np.pi) ** 0.5) * (x + np.float32(0.044715) * x * x * x)
    out: Array = np.float32(0.5) * x * (1 + np.tanh(inner))
    return out


def rope_tables(spec: RopeSpec, num_positions: int) -> tuple[Array, Array]:
    """Return cos and sin of every position's angles, ``[num_positions, dim / 2]``, scaled.

    Computed in float64 and rounded once.
    """
    frequency = spec.theta ** -(np.arange(0, spec.dim, 2, dtype=np.float64) / spec.dim)
    if spec.factors is not None:
        frequency /= np.array(spec.factors, dtype=np.float64)
    angle = np.arange(num_positions, dtype=np.float64)[:, None] * frequency
    cos, sin = np.cos(angle) * spec.magnitude, np.sin(angle) * spec.magnitude
    return cos.astype(np.float32), sin.astype(np.float32)


def rope(x: Array, cos: Array, sin: Array, spec: RopeSpec) -> Array:
    """Rotate each pair (a, b) of a head by its position's angle: (a cos - b sin, a sin + b cos).

    ``x`` is ``[num_tokens, num_heads, head_dim]``, ``cos`` and ``sin`` ``[num_tokens, dim / 2]``.
    The layout says which two dimensions make a pair; those past `RopeSpec.dim` stay.
    """
    dim = spec.dim
    if spec.layout == "interleaved":
        first, second = slice(0, dim, 2), slice(1, dim, 2)
    else:
        first, second = slice(0, dim // 2), slice(dim // 2, dim)
    a, b = x[..., first], x[..., second]
    cos, sin = cos[:, None, :], sin[:, None, :]
    out = x.copy()
    out[..., first] = a * cos - b * sin
    out[..., second] = a * sin + b * cos
    return out


def attend(q: Array, k: Array, v: Array, *, scale: float, window: int | None = None) -> Array:
    """Causal softmax(q k^T scale) v of one sequence's last tokens.

    ``q`` is ``[num_queries, num_heads, head_dim]``, ``k`` and ``v`` ``[num_keys, num_kv_heads,
    head_dim]``, both ending at the same position; a query sees up to itself, and with ``window``
    no more than so many tokens. Consecutive query heads share a KV head (grouped-query attention,
    Ainslie et al., 2023).
    """
    num_queries, num_heads, head_dim = q.shape
    num_keys, num_kv_heads, _ = k.shape
    group = num_heads // num_kv_heads
    # [num_kv_heads, group * num_queries, head_dim]: one matrix product a KV head
    grouped = q.reshape(num_queries, num_kv_heads, group, head_dim).transpose(1, 2, 0, 3)
    rows = grouped.reshape(num_kv_heads, group * num_queries, head_dim)
    scores: Array = rows @ k.transpose(1, 2, 0) * np.float32(scale)
    scores = scores.reshape(num_kv_heads, group, num_queries, num_keys)
    if num_queries > 1:
        query = np.arange(num_keys - num_queries, num_keys)[:, None]
        key = np.arange(num_keys)
        seen = key <= query
        if window is not None:
            seen &= key > query - window
        scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    out: Array = weights.reshape(num_kv_heads, group * num_queries, num_keys) @ v.transpose(1, 0, 2)
    out = out.reshape(num_kv_heads, group, num_queries, head_dim)
    return out.transpose(2, 0, 1, 3).reshape(num_queries, num_heads, head_dim)
