"""The chat template and a small tokenizer of each family in tests/data/chat_templates."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from octavo.model.text.chat import ChatTemplate
from octavo.model.text.tokenizer import Tokenizer
from tokenizer_files import gguf_from_pieces, gguf_metadata, small_pieces

DATA = Path(__file__).parent / "data" / "chat_templates"
FAMILIES = sorted(path.stem for path in DATA.glob("*.jinja"))
SPM = {"llama2", "mistral", "gemma2", "gemma3", "phi3"}

_VISIBLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_HIDDEN = [b for b in range(256) if b not in _VISIBLE]
_BYTES = [chr(b) if b in _VISIBLE else chr(0x100 + _HIDDEN.index(b)) for b in range(256)]


@cache
def golden(family: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((DATA / f"{family}.json").read_text(encoding="utf-8"))
    return value


@cache
def tokenizer(family: str) -> Tokenizer:
    """A small tokenizer of the family's kind with the family's control tokens."""
    file = golden(family)
    control: list[str] = file["control"]
    if family not in SPM:
        tokens = [*_BYTES, *control]
        names = {"bos_token_id": tokens.index(file["bos"]) if file["bos"] else None}
        return Tokenizer.from_gguf(
            gguf_metadata(
                model="gpt2", pre="llama-bpe", tokens=tokens, merges=[],
                token_type=[1] * 256 + [3] * len(control),
                eos_token_id=tokens.index(file["eos"]), add_bos_token=False, **names,
            )
        )  # fmt: skip
    pieces = small_pieces(("\u2581", -1.0), ("H", -2.0), ("i", -3.0), ("Hi", -4.0))
    pieces += [(t, 0.0, 3) for t in control if t not in {p[0] for p in pieces}]
    spelled = [p[0] for p in pieces]
    metadata = gguf_from_pieces(
        pieces,
        bos_token_id=spelled.index(file["bos"]),
        eos_token_id=spelled.index(file["eos"]),
        add_space_prefix=not family.startswith("gemma"),
    )
    if family == "phi3":
        metadata["general.architecture"] = "phi3"
    return Tokenizer.from_gguf(metadata)


@cache
def template(family: str) -> ChatTemplate:
    # newline="" keeps the file's own line ends.
    with (DATA / f"{family}.jinja").open(encoding="utf-8", newline="") as file:
        return ChatTemplate(file.read(), tokenizer(family))
