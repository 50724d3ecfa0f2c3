"""The tensors of a decoder under one set of names, whatever the file calls and packs them.

Names are GGUF's, unfused:

    token_embd.weight   output_norm.weight   output.weight (absent where the embedding is tied)
    position_embd.weight (learned_positions)
    blk.N.{attn_norm,attn_q,attn_k,attn_v,attn_output,ffn_norm,ffn_up,ffn_down}.weight
    blk.N.ffn_gate.weight (gated)                blk.N.attn_{q,k}_norm.weight (qk_norm)
    blk.N.{post_attention_norm,post_ffw_norm}.weight (post_norms)
    blk.N.attn_{q,k,v}.bias (attention_bias)     blk.N.{attn_output,ffn_*}.bias (projection_bias)
    *norm.bias (norm is "layer")

A file's tensor serves as it is where it can; else a view of it does. Presence and exact shapes are
checked, each fault named.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import numpy as np

from octavo.errors import ModelFileError
from octavo.model.families import BY_ARCHITECTURE
from octavo.model.files.quants import BLOCK_LAYOUTS
from octavo.model.gguf_spec import ROPE_TENSORS
from octavo.model.views import PlusOne, RowSlice, Transposed

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    from octavo.model.families import Family
    from octavo.model.files.gguf import GGUFFile
    from octavo.model.files.tensor import Tensor
    from octavo.model.spec import ModelSpec

_MAX_FAULTS_SHOWN: Final = 8
_HF_BUFFERS: Final = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")
"""How the names of what old checkpoints saved end though it is no weight: masks, frequencies."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a weight lies in a file."""

    name: str
    """The file's tensor."""
    shape: tuple[int, ...]
    """That tensor's, as it must be."""
    rows: tuple[int, int] | None = None
    """First and stop; None is all."""
    transposed: bool = False
    plus_one: bool = False

    def view(self, tensor: Tensor) -> Tensor:
        """Return the weight, given the file's tensor."""
        if self.transposed:
            tensor = Transposed(tensor)
        if self.rows is not None:
            tensor = RowSlice(tensor, *self.rows)
        if self.plus_one:
            tensor = PlusOne(tensor)
        return tensor


def gguf_weights(file: GGUFFile, spec: ModelSpec) -> dict[str, Tensor]:
    """Return the weights of a GGUF file whose spec is `spec`.

    Raises `ModelFileError` where a tensor is missing, superfluous or mis-shaped. Their types are
    `GGUFFile.require_supported`'s affair.
    """
    places = _places(spec, BY_ARCHITECTURE[spec.architecture])
    return _find(places, file.tensors, [*ROPE_TENSORS], file.path)


def hf_weights(
    tensors: Mapping[str, Tensor], spec: ModelSpec, path: str | os.PathLike[str]
) -> dict[str, Tensor]:
    """Return the weights among the tensors of a Hugging Face folder whose spec is `spec`.

    ``path`` is for messages. Raises `ModelFileError` as `gguf_weights` does.
    """
    family = BY_ARCHITECTURE[spec.architecture]
    prefix = family.hf_names["blk"].split(".")[0] + "."
    bare = not any(name.startswith(prefix) for name in tensors)  # saved without its head
    places = {}
    for name, place in _places(spec, family).items():
        hf_name = _hf_name(place.name, family)
        transposed = family.hf_transposed and name.startswith("blk.") and len(place.shape) == 2
        places[name] = replace(
            place,
            name=hf_name.removeprefix(prefix) if bare else hf_name,
            shape=place.shape[::-1] if transposed else place.shape,
            transposed=transposed,
            plus_one=family.hf_norm_plus_one and name.endswith("norm.weight"),
        )
    unused = [name for name in tensors if name.endswith(_HF_BUFFERS)]
    head = f"{family.hf_names['output']}.weight"
    if spec.tied_embeddings:  # some files repeat the embedding
        unused.append(head)
    found = _find(places, tensors, unused, path)
    if spec.tied_embeddings and head in tensors:
        _require_equal(tensors[head], found["token_embd.weight"], path)
    return found


def tensor_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Return the row-major shape of every weight that a decoder of this spec reads, by name."""
    hidden = spec.hidden_size
    tops: dict[str, tuple[int, ...]] = {"token_embd.weight": (spec.vocab_size, hidden)}
    if spec.learned_positions:
        tops["position_embd.weight"] = (spec.context_length, hidden)
    if not spec.tied_embeddings:
        tops["output.weight"] = (spec.vocab_size, hidden)
    tops |= _norm_shapes(spec, "output_norm", hidden)
    layer = _layer_shapes(spec)
    for index in range(spec.num_layers):
        tops |= {f"blk.{index}.{name}": shape for name, shape in layer.items()}
    return tops


def _layer_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Return the shapes of one layer's weights."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes = _norm_shapes(spec, "attn_norm", hidden) | _norm_shapes(spec, "ffn_norm", hidden)
    if spec.post_norms:
        shapes |= _norm_shapes(spec, "post_attention_norm", hidden)
        shapes |= _norm_shapes(spec, "post_ffw_norm", hidden)
    if spec.qk_norm:
        shapes |= _norm_shapes(spec, "attn_q_norm", spec.head_dim)
        shapes |= _norm_shapes(spec, "attn_k_norm", spec.head_dim)
    inputs = {"attn_q": (q_size, hidden), "attn_k": (kv_size, hidden), "attn_v": (kv_size, hidden)}
    others = {"attn_output": (hidden, q_size), "ffn_up": (inner, hidden)}
    if spec.gated:
        others["ffn_gate"] = (inner, hidden)
    others["ffn_down"] = (hidden, inner)
    for projections, has_bias in (
        (inputs, spec.attention_bias),
        (others, spec.projection_bias),
    ):
        for name, shape in projections.items():
            shapes[f"{name}.weight"] = shape
            if has_bias:
                shapes[f"{name}.bias"] = shape[:1]
    return shapes


def _norm_shapes(spec: ModelSpec, name: str, size: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of one norm's weights."""
    suffixes = ("weight", "bias") if spec.norm == "layer" else ("weight",)
    return {f"{name}.{suffix}": (size,) for suffix in suffixes}


def _places(spec: ModelSpec, family: Family) -> dict[str, _Place]:
    """Return where each weight lies in a GGUF file: alone, or as rows of a fused tensor."""
    shapes = tensor_shapes(spec)
    places = {name: _Place(name, shape) for name, shape in shapes.items()}
    for layer in range(spec.num_layers):
        for whole, parts in family.fused.items():
            for suffix in ("weight", "bias"):
                names = [f"blk.{layer}.{part}.{suffix}" for part in parts]
                if names[0] not in shapes:
                    continue  # no biases
                stops = list(accumulate(shapes[name][0] for name in names))
                shape = (stops[-1], *shapes[names[0]][1:])
                for name, first, stop in zip(names, [0, *stops], stops, strict=False):
                    places[name] = _Place(f"blk.{layer}.{whole}.{suffix}", shape, (first, stop))
    return places


def _hf_name(name: str, family: Family) -> str:
    """Return transformers' name of what GGUF calls `name`."""
    *layer, part, suffix = name.split(".")
    prefix = f"{family.hf_names['blk']}.{layer[1]}." if layer else ""
    return f"{prefix}{family.hf_names[part]}.{suffix}"


def _find(
    places: Mapping[str, _Place],
    tensors: Mapping[str, Tensor],
    unused: Iterable[str],
    path: str | os.PathLike[str],
) -> dict[str, Tensor]:
    """Hold the file's tensors against what the decoder reads, name all that differ, make views."""
    wanted = {place.name: place for place in places.values()}
    faults = [
        fault
        for name, place in wanted.items()
        if (fault := _fault(place, tensors.get(name))) is not None
    ]
    known = wanted.keys() | set(unused)
    faults += [f"{name} is not known" for name in tensors if name not in known]
    if faults:
        shown = "; ".join(faults[:_MAX_FAULTS_SHOWN])
        more = len(faults) - _MAX_FAULTS_SHOWN
        tail = f"; and {more} more" if more > 0 else ""
        raise ModelFileError(f"the tensors do not fit the model: {shown}{tail}", path=path)
    return {name: place.view(tensors[place.name]) for name, place in places.items()}


def _require_equal(head: Tensor, embedding: Tensor, path: str | os.PathLike[str]) -> None:
    """Refuse a head that is not the embedding it is said to be: readers differ in which wins."""
    if head.type is embedding.type:
        equal = np.array_equal(head.data, embedding.data)
    else:
        equal = np.array_equal(head.dequantize(), embedding.dequantize())
    if not equal or head.shape != embedding.shape:
        raise ModelFileError(
            f"tie_word_embeddings is true, given or by default, but {head.name} differs from "
            f"{embedding.name}; set it to false in config.json, or leave out the tensor",
            path=path,
        )


def _fault(place: _Place, tensor: Tensor | None) -> str | None:
    """Return what is wrong with a tensor, None where nothing is."""
    if tensor is None:
        return f"{place.name} {place.shape} is missing"
    if tensor.shape != place.shape:
        return f"{place.name} must have shape {place.shape}, and has {tensor.shape}"
    is_vector = place.rows is not None and len(place.shape) == 1
    if is_vector and BLOCK_LAYOUTS[tensor.type].elements > 1:
        return f"{place.name} has type {tensor.type.name}, whose blocks cannot be cut"
    return None
