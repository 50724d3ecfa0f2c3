"""Prompts as text, cut into blocks by a tokenizer, with the keys that the engine would give them.

One line is one call: ``{"timestamp": us, "input": the whole prompt, "output": the answer, ...}``.
Only full blocks have keys; a partial tail is counted in tokens and is no block.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from octavo.cache.keys import block_key, root_key
from octavo.simulate.files import read_lines
from octavo.simulate.trace import PromptTrace, TraceRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from pathlib import Path


def load_text(
    path: Path,
    name: str,
    tokenize: Callable[[str], Sequence[int]],
    *,
    limit: int | None,
    block_size: int,
) -> PromptTrace:
    """Load a file of prompts, in its own order."""
    root = root_key(model=b"trace", block_size=block_size)
    requests = []
    for line in islice(read_lines(path), limit):
        fields = line.json()
        tokens = tokenize(fields.get("input", str))
        key = root
        blocks: list[Hashable] = []
        for start in range(0, len(tokens) - block_size + 1, block_size):
            key = block_key(key, tokens[start : start + block_size])
            blocks.append(key)
        requests.append(
            TraceRequest(
                blocks,
                len(tokens),
                len(tokenize(fields.get("output", str, ""))),
                fields.get("timestamp", float) / 1e6,
            )
        )
    return PromptTrace(name, block_size, requests)
