"""From a GGUF file's metadata and tensor table to a `ModelSpec`, or a refusal that says why.

Whatever would change the answer and is not honoured (rope scaling, experts, sliding windows,
unknown tensors) is refused. Reads no weights. Tensor names inside Octavo are GGUF's:

    token_embd.weight   output_norm.weight   output.weight (absent where the embedding is tied)
    blk.N.{attn_norm,attn_q,attn_k,attn_v,attn_output,ffn_norm,ffn_gate,ffn_up,ffn_down}.weight
    blk.N.attn_{q,k,v}.bias (attention_bias)   blk.N.attn_{q,k}_norm.weight (qk_norm)
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from octavo.errors import ModelFileError
from octavo.model.spec import LayerSpec, ModelSpec, RopeSpec

if TYPE_CHECKING:
    from octavo.model.gguf import GGUFFile

SUPPORTED_ARCHITECTURES: Final = ("llama",)

_MAX_INT: Final = 2**31 - 1
_TENSORS_PER_LAYER: Final = 9
_MAX_FAULTS_SHOWN: Final = 8
_DEFAULT_ROPE_THETA: Final = 10_000.0  # GGUF's own, where the key is absent


def spec_from_gguf(file: GGUFFile) -> ModelSpec:
    """Return what decoder `file` holds, every tensor it needs being there in its exact shape.

    Raises `ModelFileError` for another architecture, a missing or impossible hyper-parameter, a
    feature that is not supported, and a tensor that is missing, superfluous or mis-shaped. The
    tensors' types are `GGUFFile.require_supported`'s affair.
    """
    architecture = _Keys(file, "").string("general.architecture")
    if architecture not in SUPPORTED_ARCHITECTURES:
        raise ModelFileError(
            f"architecture {architecture!r} is not supported "
            f"({', '.join(SUPPORTED_ARCHITECTURES)} is)",
            path=file.path,
        )
    keys = _Keys(file, f"{architecture}.")
    _refuse_features(keys, file)
    spec = _read_spec(keys, file, architecture)
    _check_tensors(file, tensor_shapes(spec))
    return spec


def tensor_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Return the row-major shape of every tensor that a decoder of this spec reads, by name."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    q_size = spec.num_heads * spec.head_dim
    kv_size = spec.num_kv_heads * spec.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (hidden,),
        "attn_q.weight": (q_size, hidden),
        "attn_k.weight": (kv_size, hidden),
        "attn_v.weight": (kv_size, hidden),
        "attn_output.weight": (hidden, q_size),
        "ffn_norm.weight": (hidden,),
        "ffn_gate.weight": (inner, hidden),
        "ffn_up.weight": (inner, hidden),
        "ffn_down.weight": (hidden, inner),
    }
    if spec.attention_bias:
        layer |= {"attn_q.bias": (q_size,), "attn_k.bias": (kv_size,), "attn_v.bias": (kv_size,)}
    if spec.qk_norm:
        layer |= {"attn_q_norm.weight": (spec.head_dim,), "attn_k_norm.weight": (spec.head_dim,)}
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (spec.vocab_size, hidden),
        "output_norm.weight": (hidden,),
    }
    if not spec.tied_embeddings:
        shapes["output.weight"] = (spec.vocab_size, hidden)
    for index in range(spec.num_layers):
        shapes |= {f"blk.{index}.{name}": shape for name, shape in layer.items()}
    return shapes


class _Keys:
    """The metadata under one prefix, each value taken only with its type and range checked."""

    __slots__ = ("file", "prefix")

    def __init__(self, file: GGUFFile, prefix: str) -> None:
        self.file = file
        self.prefix = prefix

    def fault(self, key: str, message: str) -> ModelFileError:
        """Return the error to raise about `key`."""
        return ModelFileError(f"{self.prefix}{key} {message}", path=self.file.path)

    def has(self, key: str) -> bool:
        """Whether the file has the key."""
        return self.prefix + key in self.file.metadata

    def string(self, key: str, default: str | None = None) -> str:
        """Return a string; required where there is no default."""
        value = self.file.metadata.get(self.prefix + key, default)
        if value is None:
            raise self.fault(key, "is missing")
        if not isinstance(value, str):
            raise self.fault(key, f"must be a string, and is a {type(value).__name__}")
        return value

    def integer(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """Return an integer of at least `least`; required where there is no default."""
        value = self.file.metadata.get(self.prefix + key, default)
        if value is None:
            raise self.fault(key, "is missing")
        if isinstance(value, list):
            raise self.fault(key, "differs from layer to layer, which is not supported")
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.fault(key, f"must be an integer, and is a {type(value).__name__}")
        if not least <= value <= _MAX_INT:
            raise self.fault(key, f"is {value}; it must lie from {least} to {_MAX_INT}")
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        """Return a positive finite number; required where there is no default."""
        value = self.file.metadata.get(self.prefix + key, default)
        if value is None:
            raise self.fault(key, "is missing")
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.fault(key, f"must be a number, and is a {type(value).__name__}")
        if not (math.isfinite(value) and value > 0):
            raise self.fault(key, f"is {value}; it must be positive and finite")
        return float(value)


def _read_spec(keys: _Keys, file: GGUFFile, architecture: str) -> ModelSpec:
    """Read the hyper-parameters, each in range and consistent with the others."""
    num_layers = keys.integer("block_count")
    if num_layers * _TENSORS_PER_LAYER > len(file.tensors):
        raise keys.fault(
            "block_count",
            f"is {num_layers}, and {_TENSORS_PER_LAYER} tensors a layer are needed where the file "
            f"has {len(file.tensors)} tensors in all",
        )
    hidden_size = keys.integer("embedding_length")
    num_heads = keys.integer("attention.head_count")
    num_kv_heads = keys.integer("attention.head_count_kv", num_heads)
    if num_heads % num_kv_heads:
        raise keys.fault(
            "attention.head_count",
            f"is {num_heads}, not a multiple of attention.head_count_kv, {num_kv_heads}",
        )
    head_dim = _head_dim(keys, hidden_size, num_heads)
    rope_dim = keys.integer("rope.dimension_count", head_dim)
    if rope_dim % 2 or rope_dim > head_dim:
        raise keys.fault(
            "rope.dimension_count",
            f"is {rope_dim}; it must be even and at most the head's {head_dim} dimensions",
        )
    # Converters to GGUF permute llama's q and k rows so that a pair lies side by side.
    theta = keys.positive("rope.freq_base", _DEFAULT_ROPE_THETA)
    rope = RopeSpec(theta, rope_dim, "interleaved")
    return ModelSpec(
        architecture=architecture,
        layers=(LayerSpec(rope),) * num_layers,
        hidden_size=hidden_size,
        intermediate_size=keys.integer("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=_vocab_size(keys, file),
        context_length=keys.integer("context_length"),
        norm_eps=keys.positive("attention.layer_norm_rms_epsilon"),
        tied_embeddings="output.weight" not in file.tensors,
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
    )


def _head_dim(keys: _Keys, hidden_size: int, num_heads: int) -> int:
    """Return the dimensions of one head."""
    if keys.has("attention.key_length"):
        head_dim = keys.integer("attention.key_length")
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


def _vocab_size(keys: _Keys, file: GGUFFile) -> int:
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


def _refuse_features(keys: _Keys, file: GGUFFile) -> None:
    """Refuse what would change the answer and is not honoured."""
    # Old files have only a linear factor, and no type.
    old_factor = keys.positive("rope.scale_linear", 1.0)
    scaling = keys.string("rope.scaling.type", "none" if old_factor == 1.0 else "linear")
    trivial = scaling == "none" or (
        scaling == "linear" and keys.positive("rope.scaling.factor", old_factor) == 1.0
    )
    if not trivial:
        raise keys.fault(
            "rope.scaling.type", f"is {scaling!r}: rope scaling is not supported in this release"
        )
    if "rope_freqs.weight" in file.tensors:
        raise ModelFileError(
            "the file scales rope frequencies by its tensor rope_freqs.weight, which is not "
            "supported in this release",
            path=file.path,
        )
    if keys.integer("expert_count", 0, least=0):
        raise keys.fault("expert_count", "is not 0: mixtures of experts are not supported")
    window = keys.integer("attention.sliding_window", 0, least=0)
    if 0 < window < keys.integer("context_length"):
        raise keys.fault(
            "attention.sliding_window", f"is {window}: sliding windows are not supported"
        )
    if file.metadata.get(f"{keys.prefix}attention.causal", True) is not True:
        raise keys.fault("attention.causal", "is not true: only causal decoders are supported")


def _check_tensors(file: GGUFFile, shapes: dict[str, tuple[int, ...]]) -> None:
    """Hold the file's tensors against what the decoder reads, and name all that differ."""
    faults: list[str] = []
    for name, shape in shapes.items():
        tensor = file.tensors.get(name)
        if tensor is None:
            faults.append(f"{name} {shape} is missing")
        elif tensor.shape != shape:
            faults.append(f"{name} must have shape {shape}, and has {tensor.shape}")
    faults += [f"{name} is not known" for name in file.tensors if name not in shapes]
    if faults:
        shown = "; ".join(faults[:_MAX_FAULTS_SHOWN])
        more = len(faults) - _MAX_FAULTS_SHOWN
        tail = f"; and {more} more" if more > 0 else ""
        raise ModelFileError(f"the tensors do not fit the model: {shown}{tail}", path=file.path)
