"""Write a Llama with random Q4_0 weights as a GGUF file: by default the shapes of a 1B.

    python benchmarks/make_random_model.py random-1b.gguf

Speed does not depend on what the weights say, so shapes of which no free model is at hand can be
measured. The tokenizer is copied from another GGUF (SmolLM2's), whose number of tokens is the
vocabulary. The weights' deviation is 1 / sqrt(columns), so that activations stay near 1.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np

from octavo.model.store import ensure_model

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

GROUP = 32
"""Weights of a row that share a scale in Q4_0."""
BLOCK_BYTES = 18
"""A group's bytes: a float16 scale and 32 codes of 4 bits; weight = scale * (code - 8)."""
CODE_DEVIATION = (255 / 12 + 0.25) ** 0.5
"""Root mean square of code - 8, for codes that are uniform in 0 .. 15."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a Llama with tied embeddings; the defaults are those of a 1B."""

    layers: int = 16
    hidden: int = 2048
    ffn: int = 8192
    heads: int = 32
    kv_heads: int = 8
    context: int = 8192

    @property
    def head_dim(self) -> int:
        """Numbers in one head."""
        return self.hidden // self.heads

    def check(self) -> None:
        """Raise ValueError for sizes that Q4_0 or the heads cannot divide."""
        for name in ("hidden", "ffn"):
            if getattr(self, name) % GROUP:
                raise ValueError(f"{name} is {getattr(self, name)}; give a multiple of {GROUP}")
        if self.hidden % (2 * self.heads) or self.heads % self.kv_heads:
            raise ValueError(
                f"hidden {self.hidden}, heads {self.heads}, kv_heads {self.kv_heads}: heads must "
                "divide hidden into even parts, and kv_heads must divide heads"
            )

    def tensors(self, vocab_size: int) -> Iterator[tuple[str, int, int]]:
        """Yield each tensor's name, rows and columns; a vector has 0 rows."""
        kv = self.kv_heads * self.head_dim
        yield "token_embd.weight", vocab_size, self.hidden
        for layer in range(self.layers):
            for name, rows, columns in (
                ("attn_norm", 0, self.hidden),
                ("attn_q", self.hidden, self.hidden),
                ("attn_k", kv, self.hidden),
                ("attn_v", kv, self.hidden),
                ("attn_output", self.hidden, self.hidden),
                ("ffn_norm", 0, self.hidden),
                ("ffn_gate", self.ffn, self.hidden),
                ("ffn_up", self.ffn, self.hidden),
                ("ffn_down", self.hidden, self.ffn),
            ):
                yield f"blk.{layer}.{name}.weight", rows, columns
        yield "output_norm.weight", 0, self.hidden


def random_q4_0(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray[Any, Any]:
    """Return uint8 [rows, bytes of a row]: weights of mean 0, deviation 1 / sqrt(columns).

    Codes lie around -0.5, so the scales have random signs, as those of real files do.
    """
    shape = (rows, columns // GROUP)
    blocks = rng.integers(0, 256, (*shape, BLOCK_BYTES), dtype=np.uint8)
    size = rng.uniform(0.5, 1.5, shape) / (CODE_DEVIATION * columns**0.5)
    scales = np.where(rng.integers(0, 2, shape), size, -size).astype("<f2")
    blocks[:, :, :2] = scales[:, :, None].view(np.uint8)
    return blocks.reshape(rows, -1)


def write_random_model(path: Path, tokenizer: Path, shape: Shape, *, seed: int = 0) -> None:
    """Write the model to `path`, with the tokenizer of the GGUF file `tokenizer`.

    A file is only ever there whole. Raises ValueError for sizes that do not fit each other.
    """
    shape.check()
    partial = path.with_name(f"{path.name}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(partial, "llama")
    vocab_size = _copy_tokenizer(gguf.GGUFReader(tokenizer), writer)
    _write_sizes(writer, shape, vocab_size)
    tensors = list(shape.tensors(vocab_size))
    for name, rows, columns in tensors:
        if rows:
            row_bytes = columns // GROUP * BLOCK_BYTES
            writer.add_tensor_info(
                name,
                (rows, row_bytes),
                np.dtype(np.uint8),
                rows * row_bytes,
                gguf.GGMLQuantizationType.Q4_0,
            )
        else:
            writer.add_tensor_info(name, (columns,), np.dtype(np.float32), columns * 4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(seed)
    for _, rows, columns in tensors:  # one at a time: the file may be larger than the memory
        vector = np.ones(columns, dtype=np.float32)
        writer.write_tensor_data(random_q4_0(rng, rows, columns) if rows else vector)
    writer.close()
    partial.replace(path)


def _copy_tokenizer(source: gguf.GGUFReader, writer: gguf.GGUFWriter) -> int:
    """Copy every key of the tokenizer but its chat template; return the number of tokens."""
    for key, field in source.fields.items():
        if key.startswith("tokenizer.ggml."):
            inner = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], inner)
    return len(source.fields["tokenizer.ggml.tokens"].data)


def _write_sizes(writer: gguf.GGUFWriter, shape: Shape, vocab_size: int) -> None:
    writer.add_name("random weights")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(500_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab_size)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the file that the command line asks for."""
    parser = argparse.ArgumentParser(description="Write a Llama with random Q4_0 weights.")
    parser.add_argument("path", type=Path, help="the .gguf file to write")
    parser.add_argument("--tokenizer", default="smollm2", help="a model whose tokenizer to copy")
    parser.add_argument("--seed", type=int, default=0)
    for name in Shape.__dataclass_fields__:
        default = getattr(Shape(), name)
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=int, default=default, help=f"[default: {default}]")
    args = parser.parse_args(arguments)
    shape = Shape(**{name: getattr(args, name) for name in Shape.__dataclass_fields__})
    try:
        write_random_model(args.path, ensure_model(args.tokenizer), shape, seed=args.seed)
    except ValueError as error:
        parser.error(str(error))
    print(f"{args.path}: {args.path.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
