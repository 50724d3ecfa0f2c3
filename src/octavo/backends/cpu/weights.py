"""From a spec and its tensors to a packed model: which matrices a layer multiplies, in which order.

The only place that knows the tensors' names and which of them a spec asks for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from octavo.backends.cpu import plan as p
from octavo.backends.cpu.packing import Tensor, WeightPlan, padded
from octavo.backends.reference import rope_tables
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from octavo.model.spec import ModelSpec, RopeSpec

_UNIT: Final = 64  # floats; rows of every buffer are multiples of it


def _apart(size: int) -> int:
    """Return an odd multiple of 256 bytes: rows 4 KiB apart would share one set of the cache."""
    return size if size // _UNIT % 2 else size + _UNIT


@dataclass(frozen=True, slots=True)
class PackedModel:
    """What the compiled step reads of a model: see `plan.py` for the columns."""

    model: NDArray[np.int64]
    layers: NDArray[np.int64]  # [num_layers, LAYER_SIZE]
    matrices: NDArray[np.int64]  # [num_matrices, MATRIX_FIELDS]
    arena: NDArray[np.uint8]
    floats: NDArray[np.float32]
    reals: NDArray[np.float32]


def pack_model(
    spec: ModelSpec, tensors: Mapping[str, Tensor], num_blocks: int, *, is_rounded: bool = False
) -> PackedModel:
    """Pack every weight that ``spec`` asks for; ``is_rounded`` as `WeightPlan` has it.

    Raises `ConfigError` if it is set and there is nothing to round.
    """
    packer = _Packer(spec, tensors, WeightPlan(is_rounded=is_rounded))
    model = packer.model(num_blocks)
    layers = np.array([packer.layer(i) for i in range(spec.num_layers)], np.int64)
    if is_rounded and not packer.plan.rounds_any:
        raise ConfigError(
            "quantization is 'int8', which rounds 16-bit and float32 matrices, and this model has "
            "none: they are quantised already; leave it out",
            param="quantization",
        )
    arena, matrices, floats = packer.plan.pack()
    scale = spec.head_dim**-0.5 if spec.attention_scale is None else spec.attention_scale
    reals = np.array([spec.norm_eps, scale, spec.embedding_scale], np.float32)
    return PackedModel(model, layers, matrices, arena, floats, reals)


class _Packer:
    def __init__(self, spec: ModelSpec, tensors: Mapping[str, Tensor], plan: WeightPlan) -> None:
        self.spec = spec
        self.plan = plan
        self._tensors = tensors
        self._ropes: dict[RopeSpec, tuple[int, int]] = {}

    def model(self, num_blocks: int) -> NDArray[np.int64]:
        """Plan what lies outside the layers; return the model's integers."""
        spec = self.spec
        row = np.zeros(p.MODEL_SIZE, np.int64)
        q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        hidden, inner = padded(spec.hidden_size, _UNIT), padded(spec.intermediate_size, _UNIT)
        row[p.NUM_LAYERS] = spec.num_layers
        row[p.HIDDEN] = spec.hidden_size
        row[p.INNER] = spec.intermediate_size
        row[p.HEADS] = spec.num_heads
        row[p.KV_HEADS] = spec.num_kv_heads
        row[p.HEAD_DIM] = spec.head_dim
        row[p.NUM_BLOCKS] = num_blocks
        row[p.K_AT] = padded(q_size, _UNIT)
        row[p.V_AT] = row[p.K_AT] + padded(kv_size, _UNIT)
        row[p.UP_AT] = inner if spec.gated else 0
        row[p.GATED] = spec.gated
        row[p.ACTIVATION] = {"silu": p.SILU, "gelu_tanh": p.GELU_TANH}[spec.activation]
        row[p.POST_NORMS] = spec.post_norms
        row[p.X_STRIDE] = _apart(hidden)
        row[p.Y_STRIDE] = _apart(max(hidden, padded(q_size, _UNIT)))
        qkv_size = int(row[p.V_AT]) + padded(kv_size, _UNIT)
        row[p.WIDE_STRIDE] = _apart(max(qkv_size, inner, hidden))
        row[p.LOGITS_STRIDE] = _apart(padded(spec.vocab_size, _UNIT))
        row[p.EMBEDDING], _ = self._matrices([("token_embd", False)])
        row[p.HEAD], row[p.HEAD_COUNT] = row[p.EMBEDDING], 1
        if not spec.tied_embeddings:
            row[p.HEAD], row[p.HEAD_COUNT] = self._matrices([("output", False)])
        row[p.POSITIONS] = -1
        if spec.learned_positions:
            table = self._tensors["position_embd.weight"].dequantize()
            room = np.zeros((len(table), hidden), np.float32)
            room[:, : spec.hidden_size] = table
            row[p.POSITIONS] = self.plan.add_vector((room, room.size))
        row[p.OUT_NORM], row[p.OUT_NORM_BIAS] = self._norm("output_norm", spec.hidden_size)
        return row

    def layer(self, index: int) -> NDArray[np.int64]:
        """Plan one layer; return its integers."""
        spec, at = self.spec, f"blk.{index}."
        row = np.zeros(p.LAYER_SIZE, np.int64)
        attention, projection = spec.attention_bias, spec.projection_bias
        feed = ["ffn_gate", "ffn_up"] if spec.gated else ["ffn_up"]
        for column, group in (
            (p.QKV, [(f"{at}attn_{name}", attention) for name in "qkv"]),
            (p.OUTPUT, [(f"{at}attn_output", projection)]),
            (p.FEED, [(f"{at}{name}", projection) for name in feed]),
            (p.DOWN, [(f"{at}ffn_down", projection)]),
        ):
            row[column], row[column + 1] = self._matrices(group)
        size = spec.hidden_size
        row[p.ATTN_NORM], row[p.ATTN_NORM_BIAS] = self._norm(f"{at}attn_norm", size)
        row[p.FFN_NORM], row[p.FFN_NORM_BIAS] = self._norm(f"{at}ffn_norm", size)
        post_attention, post_feed = (-1, -1), (-1, -1)
        if spec.post_norms:
            post_attention = self._norm(f"{at}post_attention_norm", size)
            post_feed = self._norm(f"{at}post_ffw_norm", size)
        row[p.POST_ATTN_NORM], row[p.POST_ATTN_NORM_BIAS] = post_attention
        row[p.POST_FFN_NORM], row[p.POST_FFN_NORM_BIAS] = post_feed
        query, key = (-1, -1), (-1, -1)
        if spec.qk_norm:
            query = self._norm(f"{at}attn_q_norm", spec.head_dim)
            key = self._norm(f"{at}attn_k_norm", spec.head_dim)
        row[p.Q_NORM], row[p.Q_NORM_BIAS] = query
        row[p.K_NORM], row[p.K_NORM_BIAS] = key
        layer = spec.layers[index]
        row[p.WINDOW] = layer.window or 0
        if layer.rope is not None:
            row[p.ROPE_DIM] = layer.rope.dim
            row[p.ROPE_COS], row[p.ROPE_SIN] = self._rope(layer.rope)
            row[p.ROPE_INTERLEAVED] = layer.rope.layout == "interleaved"
        return row

    def _matrices(self, names: Sequence[tuple[str, bool]]) -> tuple[int, int]:
        tensors = [self._tensors[f"{name}.weight"] for name, _ in names]
        biases = [self._bias(name) if may_have else None for name, may_have in names]
        return self.plan.add_matrices(tensors, biases)

    def _bias(self, name: str) -> NDArray[np.float32] | None:
        tensor = self._tensors.get(f"{name}.bias")
        return None if tensor is None else tensor.dequantize()

    def _norm(self, name: str, size: int) -> tuple[int, int]:
        """Keep a norm's weight, and its bias where it is a LayerNorm; return their places."""
        weight = self.plan.add_vector((self._tensors[f"{name}.weight"].dequantize(), size))
        if self.spec.norm == "rms":
            return weight, -1
        return weight, self.plan.add_vector((self._tensors[f"{name}.bias"].dequantize(), size))

    def _rope(self, rope: RopeSpec) -> tuple[int, int]:
        if rope not in self._ropes:
            cos, sin = rope_tables(rope, self.spec.context_length)
            self._ropes[rope] = (
                self.plan.add_vector((cos, cos.size)),
                self.plan.add_vector((sin, sin.size)),
            )
        return self._ropes[rope]
