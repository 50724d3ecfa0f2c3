"""Tiny random models as real GGUF files, and a writer plain enough to write hostile ones.

`tiny_model` makes a whole model with a byte-level tokenizer that any part of Octavo can load;
`gguf_bytes` writes whatever header it is told to, right or wrong. Needs NumPy only.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tiny_quants import FORMATS, quantize

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt

    from tiny_quants import TensorType

TYPE_NUMBERS = {kind: form.number for kind, form in FORMATS.items()}

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = range(10)
UINT64, INT64, FLOAT64 = 10, 11, 12

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# fmt: off
MERGES = (
    "Ġ t", "Ġ a", "h e", "i n", "r e", "o n", "Ġt he", "e r", "Ġ s", "a t",
    "o u", "n d", "i s", "o r", "e n", "a n", "Ġa nd", "i t", "Ġ w", "e s",
    "Ġ o", "Ġo f", "l l", "Ġ i", "Ġi n", "e d", "in g", "Ġt o", "ou r",
)
# fmt: on
MIN_VOCAB_SIZE = len(CONTROL_TOKENS) + 256 + len(MERGES)

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Raw(NamedTuple):
    """A metadata value as its type number and its exact bytes."""

    type: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor as the file will have it. Every field may lie."""

    name: str | bytes
    dims: Sequence[int]
    """In GGUF's order: the contiguous dimension first."""
    type: int
    data: bytes
    offset: int | None = None
    """From the data's beginning; None for the next aligned place."""


def gguf_bytes(
    metadata: Sequence[tuple[str | bytes, object]],
    tensors: Sequence[RawTensor] = (),
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    alignment: int = 32,
    num_metadata: int | None = None,
    num_tensors: int | None = None,
) -> bytes:
    """Return a file of this content. The two counts are told truly unless they are given."""
    header = bytearray(magic)
    header += struct.pack("<I", version)
    header += struct.pack("<Q", len(tensors) if num_tensors is None else num_tensors)
    header += struct.pack("<Q", len(metadata) if num_metadata is None else num_metadata)
    for key, value in metadata:
        raw = value if isinstance(value, Raw) else raw_value(value)
        header += packed_string(key) + struct.pack("<I", raw.type) + raw.payload
    data = bytearray()
    for tensor in tensors:
        data += bytes(-len(data) % alignment)
        offset = len(data) if tensor.offset is None else tensor.offset
        data += tensor.data
        header += packed_string(tensor.name) + struct.pack("<I", len(tensor.dims))
        header += struct.pack(f"<{len(tensor.dims)}Q", *tensor.dims)
        header += struct.pack("<IQ", tensor.type, offset)
    header += bytes(-len(header) % alignment)
    return bytes(header + data)


def packed_string(text: str | bytes) -> bytes:
    """Return a GGUF string: a 64-bit length and the bytes."""
    content = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(content)) + content


def packed_array(kind: int, payload: bytes, count: int) -> bytes:
    """Return a GGUF array's element type, length and elements."""
    return struct.pack("<IQ", kind, count) + payload


def raw_value(value: object) -> Raw:
    """Return an ordinary Python value with the GGUF type that converters give it."""
    match value:
        case bool():
            return Raw(BOOL, struct.pack("<?", value))
        case int():
            return Raw(UINT32, struct.pack("<I", value))
        case float():
            return Raw(FLOAT32, struct.pack("<f", value))
        case str() | bytes():
            return Raw(STRING, packed_string(value))
        case [bool(), *_]:
            payload = struct.pack(f"<{len(value)}?", *value)
            return Raw(ARRAY, packed_array(BOOL, payload, len(value)))
        case [int(), *_]:
            payload = struct.pack(f"<{len(value)}i", *value)
            return Raw(ARRAY, packed_array(INT32, payload, len(value)))
        case list():
            return Raw(ARRAY, packed_array(STRING, b"".join(map(packed_string, value)), len(value)))
    raise TypeError(f"no GGUF type for {value!r}")


def tiny_model(
    path: Path,
    *,
    seed: int = 0,
    num_layers: int = 2,
    hidden_size: int = 64,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int | None = None,
    intermediate_size: int = 128,
    vocab_size: int = MIN_VOCAB_SIZE,
    context_length: int = 512,
    tied: bool = True,
    attention_bias: bool = False,
    qk_norm: bool = False,
    tensor_type: TensorType = "F32",
    rms_norm_eps: float = 1e-5,
    rope_theta: float = 10_000.0,
    rope_dim: int | None = None,
    chat_template: str | None = CHAT_TEMPLATE,
    extra_metadata: Sequence[tuple[str, object]] = (),
) -> Path:
    """Write a Llama with random weights to `path`, and return `path`.

    Matrices have `tensor_type`, vectors F32. Weights are scaled so that the logits have a standard
    deviation of about 3: greedy choices are clear, and sampled ones vary. Ids 0 to 2 are the
    control tokens, 3 to 258 the bytes, then the merges, then unused ones up to `vocab_size`.
    """
    assert vocab_size >= MIN_VOCAB_SIZE, f"vocab_size must be at least {MIN_VOCAB_SIZE}"
    head_dim = hidden_size // num_heads if head_dim is None else head_dim
    metadata: list[tuple[str, object]] = [
        ("general.architecture", "llama"),
        ("general.name", "tiny"),
        ("llama.block_count", num_layers),
        ("llama.context_length", context_length),
        ("llama.embedding_length", hidden_size),
        ("llama.feed_forward_length", intermediate_size),
        ("llama.attention.head_count", num_heads),
        ("llama.attention.head_count_kv", num_kv_heads),
        ("llama.attention.key_length", head_dim),
        ("llama.attention.value_length", head_dim),
        ("llama.rope.freq_base", float(rope_theta)),
        ("llama.rope.dimension_count", head_dim if rope_dim is None else rope_dim),
        ("llama.attention.layer_norm_rms_epsilon", float(rms_norm_eps)),
        ("llama.vocab_size", vocab_size),
        *_tokenizer_metadata(vocab_size),
    ]
    if chat_template is not None:
        metadata.append(("tokenizer.chat_template", chat_template))
    weights = _weights(
        np.random.default_rng(seed),
        num_layers=num_layers,
        hidden=hidden_size,
        inner=intermediate_size,
        q_size=num_heads * head_dim,
        kv_size=num_kv_heads * head_dim,
        head_dim=head_dim,
        vocab_size=vocab_size,
        tied=tied,
        attention_bias=attention_bias,
        qk_norm=qk_norm,
    )
    tensors = []
    for name, values in weights.items():
        kind: TensorType = "F32" if values.ndim == 1 else tensor_type
        dims = values.shape[::-1]
        tensors.append(RawTensor(name, dims, TYPE_NUMBERS[kind], quantize(values, kind)))
    path.write_bytes(gguf_bytes([*metadata, *extra_metadata], tensors))
    return path


def byte_tokens() -> list[str]:
    """Return GPT-2's printable character for each byte, by byte value.

    Printable Latin-1 bytes stand for themselves; the others, in order, for U+0100 and on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _tokenizer_metadata(vocab_size: int) -> list[tuple[str, object]]:
    """Return the keys of a byte-level BPE tokenizer of exactly `vocab_size` tokens."""
    tokens = [*CONTROL_TOKENS, *byte_tokens(), *(merge.replace(" ", "") for merge in MERGES)]
    num_normal = len(tokens) - len(CONTROL_TOKENS)
    unused = [f"<|unused_{index}|>" for index in range(vocab_size - len(tokens))]
    normal_type, control_type, unused_type = 1, 3, 5
    token_types = [control_type] * len(CONTROL_TOKENS) + [normal_type] * num_normal
    return [
        ("tokenizer.ggml.model", "gpt2"),
        ("tokenizer.ggml.pre", "smollm"),
        ("tokenizer.ggml.tokens", tokens + unused),
        ("tokenizer.ggml.token_type", token_types + [unused_type] * len(unused)),
        ("tokenizer.ggml.merges", list(MERGES)),
        ("tokenizer.ggml.bos_token_id", 1),
        ("tokenizer.ggml.eos_token_id", 2),
        ("tokenizer.ggml.unknown_token_id", 0),
        ("tokenizer.ggml.padding_token_id", 2),
        ("tokenizer.ggml.add_space_prefix", False),
        ("tokenizer.ggml.add_bos_token", False),
    ]


def _weights(
    rng: np.random.Generator,
    *,
    num_layers: int,
    hidden: int,
    inner: int,
    q_size: int,
    kv_size: int,
    head_dim: int,
    vocab_size: int,
    tied: bool,
    attention_bias: bool,
    qk_norm: bool,
) -> dict[str, npt.NDArray[np.float32]]:
    """Return random weights by name, in row-major shapes."""

    def matrix(rows: int, columns: int, gain: float) -> npt.NDArray[np.float32]:
        """A projection that multiplies a vector's root mean square by about `gain`."""
        return rng.normal(0, gain / columns**0.5, (rows, columns)).astype(np.float32)

    def vector(size: int, mean: float) -> npt.NDArray[np.float32]:
        return rng.normal(mean, 0.1, size).astype(np.float32)

    # The final norm gives unit values, so the head's gain is the logits' deviation. The embedding
    # shares it when tied; the layers' gains keep it a small part of what reaches the head, or each
    # token would predict itself.
    weights = {"token_embd.weight": matrix(vocab_size, hidden, 3.0)}
    for index in range(num_layers):
        layer = {
            "attn_norm.weight": vector(hidden, 1.0),
            "attn_q.weight": matrix(q_size, hidden, 1.5),
            "attn_k.weight": matrix(kv_size, hidden, 1.5),
            "attn_v.weight": matrix(kv_size, hidden, 1.5),
            "attn_output.weight": matrix(hidden, q_size, 1.5),
            "ffn_norm.weight": vector(hidden, 1.0),
            "ffn_gate.weight": matrix(inner, hidden, 1.5),
            "ffn_up.weight": matrix(inner, hidden, 1.5),
            "ffn_down.weight": matrix(hidden, inner, 1.0),
        }
        if attention_bias:
            layer |= {"attn_q.bias": vector(q_size, 0.0), "attn_k.bias": vector(kv_size, 0.0)}
            layer |= {"attn_v.bias": vector(kv_size, 0.0)}
        if qk_norm:
            layer |= {"attn_q_norm.weight": vector(head_dim, 1.0)}
            layer |= {"attn_k_norm.weight": vector(head_dim, 1.0)}
        weights |= {f"blk.{index}.{name}": values for name, values in layer.items()}
    weights["output_norm.weight"] = vector(hidden, 1.0)
    if not tied:
        weights["output.weight"] = matrix(vocab_size, hidden, 3.0)
    return weights
