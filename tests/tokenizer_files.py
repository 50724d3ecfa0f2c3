"""Tokenizer files for tests: the goldens, the real ones where they are here, and writers."""

from __future__ import annotations

import json
import os
import re
import struct
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parent / "data" / "tokenizers"
CASES_FILE = Path(__file__).parents[2] / "shared" / "cases" / "smollm2_token_ids.jsonl"
PRE_NAMES = {"llama3": "llama-bpe", "qwen3": "qwen2", "gpt2": "gpt-2"}


def golden(name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((DATA / name).read_text(encoding="utf-8"))
    return value


def real_folder(name: str) -> Path:
    """A folder of real files; the test is skipped where `scripts/fetch_tokenizers` was not run."""
    cache = Path.home() / ".cache" / "octavo" / "test-tokenizers"
    folder = Path(os.environ.get("OCTAVO_TOKENIZERS", cache)) / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is not here; run scripts/fetch_tokenizers")
    return folder


def real_texts() -> list[str]:
    """Texts for the real vocabularies: those of the goldens, and of the cases file if here."""
    texts: list[str] = golden("byte_level.json")["texts"]
    if CASES_FILE.exists():
        lines = CASES_FILE.read_text(encoding="utf-8").splitlines()
        texts = texts + [json.loads(line)["text"] for line in lines]
    return texts


def gguf_metadata(**values: Any) -> dict[str, object]:
    return {f"tokenizer.ggml.{k}": v for k, v in values.items() if v is not None}


def gguf_from_json(file: dict[str, Any], pre: str) -> dict[str, object]:
    """The GGUF keys that a converter would write for a byte-level tokenizer.json."""
    model, added = file["model"], file["added_tokens"]
    ids = {**model["vocab"], **{t["content"]: t["id"] for t in added}}
    tokens = sorted(ids, key=ids.__getitem__)
    assert [ids[t] for t in tokens] == list(range(len(tokens)))
    types = [1] * len(tokens)
    for token in added:
        looks_special = re.fullmatch(r"<\|.*\|>", token["content"]) is not None
        types[token["id"]] = 3 if token["special"] or looks_special else 4
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    return gguf_metadata(model="gpt2", pre=pre, tokens=tokens, token_type=types, merges=merges)


def gguf_from_spm_json(file: dict[str, Any]) -> dict[str, object]:
    """The GGUF keys for a tokenizer.json that was made from SentencePiece's file.

    The scores are not in it; they are made up anew from the order of the merges. The runs of
    spaces come last there, by falling id: they have one score.
    """
    vocab: dict[str, int] = file["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.__getitem__)
    scores = [-1e6] * len(tokens)
    for n, merge in enumerate(reversed(file["model"]["merges"])):
        made = merge.replace(" ", "")
        scores[vocab[made]] = -1e9 if set(made) == {"\u2581"} else float(n - 500_000)
    types = [6 if re.fullmatch("<0x..>", t) else 1 for t in tokens]
    types[:3] = [2, 3, 3]
    return gguf_metadata(
        model="llama", pre="default", tokens=tokens, token_type=types, scores=scores,
        bos_token_id=1, eos_token_id=2, unknown_token_id=0, add_bos_token=True,
        add_eos_token=False,
    )  # fmt: skip


def gguf_from_pieces(pieces: list[tuple[str, float, int]], **more: Any) -> dict[str, object]:
    values: dict[str, Any] = {
        "model": "llama",
        "tokens": [p[0] for p in pieces],
        "scores": [p[1] for p in pieces],
        "token_type": [p[2] for p in pieces],
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return gguf_metadata(**values | more)


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: int | float | bytes) -> bytes:
    """A field of a protocol buffer."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value)


def sentencepiece_model(
    pieces: list[tuple[str, float, int]],
    trainer: dict[int, int] | None = None,
    normalizer: dict[int, int | bytes] | None = None,
) -> bytes:
    """SentencePiece's file: BPE, no white space removed, unless told otherwise."""
    spell = b"".join(
        field(1, field(1, text.encode()) + field(2, score) + field(3, kind))
        for text, score, kind in pieces
    )
    trainer = {3: 2} | (trainer or {})
    normalizer = {4: 0} | (normalizer or {})
    return (
        spell
        + field(2, b"".join(field(n, v) for n, v in trainer.items()))
        + field(3, b"".join(field(n, v) for n, v in normalizer.items()))
    )


BYTE_PIECES: list[tuple[str, float, int]] = [(f"<0x{b:02X}>", 0.0, 6) for b in range(256)]


def small_pieces(*normal: tuple[str, float]) -> list[tuple[str, float, int]]:
    """A vocabulary of the three usual tokens, the bytes, and these."""
    head: list[tuple[str, float, int]] = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    return [*head, *BYTE_PIECES, *((text, score, 1) for text, score in normal)]
