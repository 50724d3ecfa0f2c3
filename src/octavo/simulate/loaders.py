"""Trace files, by format: what a line means, and how a format is recognised.

    mooncake   .jsonl  prompts as ids of chained blocks: timestamp, input_length, hash_ids
    sessions   .jsonl  one agent session a line, its prompts as runs of block ids (`sessions`)
    text       .jsonl  whole prompts as text: timestamp, input (`text`); needs a tokenizer
    lis        .lis    the ARC paper's: start, count, two more numbers a line; single keys
    lirs       .trace  one key a line, single keys; a line with a * is a mark
    lengths    .csv    arrival time and lengths: load, nothing to replay

Every one may be packed as ``.gz`` or ``.zst``. docs/policies.md has an example of each.
"""

from __future__ import annotations

import csv
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING

from octavo.errors import TraceError
from octavo.simulate.files import MAX_RUN, Line, read_lines, stem_and_format
from octavo.simulate.sessions import load_sessions
from octavo.simulate.text import load_text
from octavo.simulate.trace import KeyTrace, LengthTrace, PromptTrace, RequestLengths, TraceRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from pathlib import Path

    from octavo.simulate.trace import Trace

FORMATS = ("mooncake", "sessions", "text", "lis", "lirs", "lengths")
MOONCAKE_BLOCK_SIZE = 512
TEXT_BLOCK_SIZE = 16
USERS = 32
"""Who work on agent sessions at the same time."""


def load_trace(
    path: Path,
    *,
    format_name: str | None = None,
    limit: int | None = None,
    block_size: int | None = None,
    seed: int = 0,
    users: int = USERS,
    tokenize: Callable[[str], Sequence[int]] | None = None,
) -> Trace:
    """Load the first ``limit`` requests, or keys, of a file.

    ``block_size`` overrides the tokens of a block where the file does not say them; ``seed`` and
    ``users`` are of the mix of sessions. Raises `TraceError`, with file, line and reason.
    """
    format_name = format_name or find_format(path)
    name, _ = stem_and_format(path)
    if format_name == "mooncake":
        return _load_mooncake(path, name, limit, block_size or MOONCAKE_BLOCK_SIZE)
    if format_name == "sessions":
        return load_sessions(path, name, limit=limit, seed=seed, users=users)
    if format_name == "text":
        if tokenize is None:
            raise TraceError(f"{path} holds text; name a tokenizer's model with --tokenizer")
        size = block_size or TEXT_BLOCK_SIZE
        return load_text(path, name, tokenize, limit=limit, block_size=size)
    if format_name == "lis":
        return _load_lis(path, name, limit)
    if format_name == "lirs":
        return _load_lirs(path, name, limit)
    if format_name == "lengths":
        return _load_lengths(path, name, limit)
    raise TraceError(f"format is {format_name!r}; known are {', '.join(FORMATS)}")


def find_format(path: Path) -> str:
    """Return the format of a file, from its name, or from its first line."""
    _, ending = stem_and_format(path)
    by_name = {".lis": "lis", ".trace": "lirs", ".trc": "lirs", ".csv": "lengths"}.get(ending)
    if by_name:
        return by_name
    line = next(read_lines(path), None)
    if line is None:
        raise TraceError(f"{path} is empty")
    if line.text.lstrip().startswith("{"):
        fields = line.json().values
        for field, kind in (("hash_ids", "mooncake"), ("requests", "sessions"), ("input", "text")):
            if field in fields:
                return kind
    elif "," in line.text:
        return "lengths"
    else:
        numbers = len(line.text.split())
        if numbers in (1, 4):
            return "lirs" if numbers == 1 else "lis"
    raise line.error(f"no known format begins so; say --format {'|'.join(FORMATS)}")


def _load_mooncake(path: Path, name: str, limit: int | None, block_size: int) -> PromptTrace:
    """Mooncake, FAST '25: ``{"timestamp": ms, "input_length": tokens, "output_length": tokens,
    "hash_ids": [...]}``. An id stands for a block and its whole prefix; the last covers the
    partial tail. Order is that of the file, also where timestamps are equal."""
    requests = []
    parents: dict[Hashable, Hashable] = {}
    for line in islice(read_lines(path), limit):
        fields = line.json()
        blocks: list[Hashable] = fields.get("hash_ids", list)
        num_tokens = fields.count("input_length")
        if len(blocks) != -(-num_tokens // block_size):
            raise line.error(
                f"{num_tokens} tokens are not {len(blocks)} blocks of {block_size}; "
                "say --block-size if the trace has another"
            )
        parent: Hashable = None
        for block in blocks:
            if not isinstance(block, int):
                raise line.error(f"a hash id is {block!r}, not a whole number")
            if parents.setdefault(block, parent) != parent:
                raise line.error(
                    f"id {block} follows {parent} here and {parents[block]} before: "
                    "it does not stand for a whole prefix"
                )
            parent = block
        requests.append(
            TraceRequest(
                blocks,
                num_tokens,
                fields.count("output_length", 0),
                fields.get("timestamp", float) / 1000,
            )
        )
    return PromptTrace(name, block_size, requests)


def _load_lis(path: Path, name: str, limit: int | None) -> KeyTrace:
    """The ARC paper's: ``start count ignored ignored``; start, start + 1, ... are referred to."""
    keys: list[int] = []
    for line in read_lines(path):
        start, count, *_ = line.ints(2)
        if not 1 <= count <= MAX_RUN:
            raise line.error(f"the count is {count}; it must be from 1 to {MAX_RUN}")
        keys.extend(range(start, start + count))
        if limit is not None and len(keys) >= limit:
            break
    return KeyTrace(name, _some(keys[:limit], path))


def _load_lirs(path: Path, name: str, limit: int | None) -> KeyTrace:
    """The LIRS authors': one key a line; a * marks a place where their program prints."""
    lines = (line for line in read_lines(path) if "*" not in line.text)
    keys = []
    for line in islice(lines, limit):
        numbers = line.ints(1)
        if len(numbers) > 1:
            raise line.error(f"one number was expected, not {len(numbers)}")
        keys.append(numbers[0])
    return KeyTrace(name, _some(keys, path))


def _some(keys: list[int], path: Path) -> list[int]:
    """Return ``keys``; raises `TraceError` where there is none."""
    if not keys:
        raise TraceError(f"{path} is empty: it refers to no key")
    return keys


# Column names of the public traces, and what turns a cell of the first into seconds.
_COLUMNS: dict[tuple[str, str, str], Callable[[str], float]] = {
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"): lambda cell: datetime.fromisoformat(
        cell
    ).timestamp(),
    ("arrival_ns", "input_tokens", "output_tokens"): lambda cell: int(cell) / 1e9,
    ("Timestamp", "Request tokens", "Response tokens"): float,
}


def _load_lengths(path: Path, name: str, limit: int | None) -> LengthTrace:
    """A header and a line a request: Azure's, BurstGPT's, or arrival_ns and two lengths."""
    lines = read_lines(path)
    header = next(lines, None)
    if header is None:
        raise TraceError(f"{path} is empty")
    names = _cells(header)
    wanted = next((columns for columns in _COLUMNS if set(columns) <= set(names)), None)
    if wanted is None:
        known = "; ".join(",".join(columns) for columns in _COLUMNS)
        raise header.error(f"no known columns; known are {known}")
    to_seconds = _COLUMNS[wanted]
    places = [names.index(column) for column in wanted]
    requests: list[RequestLengths] = []
    start = None
    for line in islice(lines, limit):
        cells = _cells(line)
        try:
            arrival, num_tokens, num_output_tokens = (cells[place] for place in places)
            seconds = to_seconds(arrival)
            start = seconds if start is None else start
            requests.append(
                RequestLengths(int(num_tokens), int(num_output_tokens), seconds - start)
            )
        except (ValueError, IndexError) as error:
            raise line.error(f"this is not {', '.join(wanted)}: {error}") from None
    return LengthTrace(name, requests)


def _cells(line: Line) -> list[str]:
    return next(csv.reader([line.text]), [])
