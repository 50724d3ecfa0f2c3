"""Small model files to damage, and what must hold of a damaged one: only `ModelError` escapes.

A case is the bytes of one file of a kind; a folder's other files are sound.
`scripts/fuzz_model_files.py` makes cases, and `tests/data/fuzz` keeps those that took a path of
their own, each named after its content and its kind.
"""

from __future__ import annotations

import hashlib
import json
import struct
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from octavo.errors import ModelError
from octavo.model.files.gguf import GGUFFile
from octavo.model.files.safetensors import open_folder
from octavo.model.gguf_spec import spec_from_gguf
from octavo.model.inspect import describe
from tiny_folder import CONFIG, tiny_folder
from tiny_model import (
    ARRAY,
    BOOL,
    FLOAT64,
    INT64,
    STRING,
    UINT16,
    Raw,
    RawTensor,
    gguf_bytes,
    packed_array,
    packed_string,
)
from tiny_quants import FORMATS, quantize, random_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from octavo.model.files.tensor import Tensor

CORPUS = Path(__file__).parent / "data" / "fuzz"

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
GGUF = "model.gguf"
KINDS = (GGUF, SINGLE, SHARDS[0], INDEX, "config.json")

MAX_ELEMENTS = 1 << 16
"""Of a tensor that is dequantised here; larger ones would only take time."""


def sound_cases() -> list[tuple[str, bytes]]:
    """Return sound files of every kind, as (kind, content)."""
    folder_cases = [(kind, folder_files(kind)[kind]) for kind in KINDS[1:]]
    return [(GGUF, llama_gguf()), (GGUF, mixed_gguf()), *folder_cases]


def corpus() -> list[tuple[str, bytes]]:
    """Return the cases that were kept, as (kind, content)."""
    paths = sorted(CORPUS.iterdir()) if CORPUS.is_dir() else []
    return [(path.name.partition(".")[2], path.read_bytes()) for path in paths]


def keep(kind: str, content: bytes) -> Path:
    """Add a case to the corpus."""
    CORPUS.mkdir(parents=True, exist_ok=True)
    path = CORPUS / f"{hashlib.sha256(content).hexdigest()[:12]}.{kind}"
    path.write_bytes(content)
    return path


def exercise(kind: str, content: bytes, folder: Path) -> list[ModelError]:
    """Open a case in the scratch `folder` and use all of it; return the refusals on the way.

    Whatever else is raised is a bug.
    """
    home = folder / kind
    if not home.exists():
        home.mkdir(parents=True)
        for name, sound in folder_files(kind).items():
            (home / name).write_bytes(sound)
    path = home / kind
    path.unlink(missing_ok=True)  # an earlier case may still be mapped
    path.write_bytes(content)
    refusals: list[ModelError] = []
    for step in _gguf_steps(path) if kind == GGUF else _folder_steps(home):
        try:
            step()
        except ModelError as error:
            refusals.append(error)
    return refusals


def _gguf_steps(path: Path) -> Iterator[Callable[[], object]]:
    """Yield what is done with a GGUF file."""
    yield lambda: describe(path)
    try:
        file = GGUFFile.open(path)
    except ModelError:  # `describe` has reported it
        return
    yield lambda: file.fingerprint
    yield lambda: spec_from_gguf(file)
    yield from _tensor_steps(list(file.tensors.values()))


def _folder_steps(path: Path) -> Iterator[Callable[[], object]]:
    """Yield what is done with a folder."""
    yield lambda: open_folder(path)
    try:
        folder = open_folder(path)
    except ModelError:
        return
    yield lambda: folder.fingerprint
    yield folder.require_supported
    yield from _tensor_steps(list(folder.tensors.values()))


def _tensor_steps(tensors: list[Tensor]) -> Iterator[Callable[[], object]]:
    """Yield the use of every small tensor."""
    for tensor in tensors:
        if tensor.num_elements <= MAX_ELEMENTS:
            yield tensor.dequantize


def folder_files(kind: str) -> dict[str, bytes]:
    """Return the sound folder in which a case of `kind` lies (none for GGUF), by file name."""
    if kind == GGUF:
        return {}
    return _folder(num_shards=0 if kind == SINGLE else 2)


def _folder(num_shards: int) -> dict[str, bytes]:
    """Return a folder of tensors of every dtype that is supported."""
    rng = np.random.default_rng(0)
    tensors = {
        f"model.layers.0.{dtype}.weight": (dtype, rng.normal(size=(3, 4)).astype(np.float32))
        for dtype in ("F32", "F16", "BF16")
    }
    config = CONFIG | {"architectures": ["LlamaForCausalLM"], "rope_scaling": {"factor": 8.0}}
    with tempfile.TemporaryDirectory() as scratch:
        path = tiny_folder(Path(scratch) / "m", tensors, config=config, num_shards=num_shards)
        return {file.name: file.read_bytes() for file in path.iterdir()}


def llama_gguf() -> bytes:
    """Return a Llama so small that its header is most of it."""
    rng = np.random.default_rng(0)
    hidden, inner, kv_size, vocab_size = 8, 8, 4, 4
    shapes = {
        "token_embd.weight": (vocab_size, hidden),
        "output_norm.weight": (hidden,),
        "blk.0.attn_norm.weight": (hidden,),
        "blk.0.attn_q.weight": (hidden, hidden),
        "blk.0.attn_k.weight": (kv_size, hidden),
        "blk.0.attn_v.weight": (kv_size, hidden),
        "blk.0.attn_output.weight": (hidden, hidden),
        "blk.0.ffn_norm.weight": (hidden,),
        "blk.0.ffn_gate.weight": (inner, hidden),
        "blk.0.ffn_up.weight": (inner, hidden),
        "blk.0.ffn_down.weight": (hidden, inner),
    }
    metadata = [
        ("general.architecture", "llama"),
        ("llama.block_count", 1),
        ("llama.context_length", 16),
        ("llama.embedding_length", hidden),
        ("llama.feed_forward_length", inner),
        ("llama.attention.head_count", 2),
        ("llama.attention.head_count_kv", 1),
        ("llama.attention.layer_norm_rms_epsilon", 1e-5),
        ("llama.rope.freq_base", 10_000.0),
        ("tokenizer.ggml.tokens", ["a", "b", "ab", b"\xff"]),
        ("tokenizer.ggml.bos_token_id", 1),
    ]
    tensors = [
        RawTensor(name, shape[::-1], 1, quantize(rng.normal(size=shape).astype(np.float32), "F16"))
        for name, shape in shapes.items()
    ]
    return gguf_bytes(metadata, tensors)


def mixed_gguf() -> bytes:
    """Return a file with a value of most types and a tensor of every type that is supported."""
    rng = np.random.default_rng(0)
    nested = packed_array(ARRAY, packed_array(STRING, packed_string("x"), 1) * 2, 2)
    metadata: list[tuple[str | bytes, object]] = [
        ("general.alignment", 8),
        ("truths", Raw(ARRAY, packed_array(BOOL, b"\0\1", 2))),
        ("nested", Raw(ARRAY, nested)),
        ("wide", Raw(INT64, struct.pack("<q", -1))),
        ("double", Raw(FLOAT64, struct.pack("<d", float("nan")))),
        ("short", Raw(ARRAY, packed_array(UINT16, b"\1\0\2\0", 2))),
    ]
    tensors = [
        RawTensor(kind, (form.elements,), form.number, random_blocks(rng, kind, 1).tobytes())
        for kind, form in FORMATS.items()
    ]
    return gguf_bytes(metadata, tensors, alignment=8)


def json_text(content: bytes) -> object:
    """Return the JSON of a header or a config, None if it is none."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None
