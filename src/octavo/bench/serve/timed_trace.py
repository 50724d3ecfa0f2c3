"""A recorded trace as requests: its lengths, its times and who shares with whom; random content."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from octavo.bench.serve.datasets import BenchRequest
from octavo.errors import TraceError
from octavo.simulate.loaders import load_trace
from octavo.simulate.trace import KeyTrace, PromptTrace, TraceRequest

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from numpy.typing import NDArray

    from octavo.bench.serve.datasets import Vocabulary
    from octavo.bench.serve.settings import DatasetSettings
    from octavo.model.text.tokenizer import Tokenizer
    from octavo.simulate.trace import RequestLengths


_BLOCK_SIZE = 64  # where a trace shares nothing, and any will do


def load_timed_trace(
    settings: DatasetSettings, vocabulary: Vocabulary, *, seed: int, tokenizer: Tokenizer | None
) -> list[BenchRequest]:
    """Return the first requests of a trace, the first at 0 seconds.

    Equal blocks become equal tokens, so prompts share what they shared when they were recorded;
    what no block covers is the request's own. Raises `TraceError`, also for one of single keys.
    """
    assert settings.dataset_path is not None
    trace = load_trace(
        Path(settings.dataset_path),
        format_name=settings.trace_format,
        limit=None if settings.max_total_len else settings.num_prompts,
        seed=seed,
        tokenize=None if tokenizer is None else tokenizer.encode,
    )
    if isinstance(trace, KeyTrace):
        raise TraceError(f"{settings.dataset_path} has single keys, no prompts: nothing to send")
    block_size = trace.block_size if isinstance(trace, PromptTrace) else _BLOCK_SIZE
    content = _Content(vocabulary, seed, block_size)
    recorded: Iterable[TraceRequest | RequestLengths] = trace.requests
    fitting = (
        request
        for request in recorded
        if settings.max_total_len is None
        or request.num_tokens + _output_len(request, settings) <= settings.max_total_len
    )
    found: list[BenchRequest] = []
    start = None
    for request in islice(fitting, settings.num_prompts):
        start = request.arrival if start is None else start
        blocks = request.blocks if isinstance(request, TraceRequest) else []
        num_tokens = max(1, request.num_tokens)
        found.append(
            BenchRequest(
                content.prompt(blocks, num_tokens), num_tokens, _output_len(request, settings),
                settings.time_scale * (request.arrival - start),
            )
        )  # fmt: skip
    return found


def _output_len(request: TraceRequest | RequestLengths, settings: DatasetSettings) -> int:
    return settings.output_len or max(1, request.num_output_tokens)


class _Content:
    """Tokens for blocks: a hash of the seed, the block's number and the place in it."""

    def __init__(self, vocabulary: Vocabulary, seed: int, block_size: int) -> None:
        self._vocabulary = vocabulary
        self._seed = seed
        self._block_size = block_size
        self._numbers: dict[Hashable, int] = {}

    def prompt(self, blocks: list[Hashable], num_tokens: int) -> list[int]:
        """Return ``num_tokens`` ids: the blocks' (the last may be cut), then new ones."""
        size = self._block_size
        numbers = [self._numbers.setdefault(block, len(self._numbers)) for block in blocks]
        while len(numbers) * size < num_tokens:
            numbers.append(self._numbers.setdefault(object(), len(self._numbers)))
        starts = np.array(numbers, np.uint64) * np.uint64(size)
        places = np.add.outer(starts, np.arange(size, dtype=np.uint64)).reshape(-1)[:num_tokens]
        return self._vocabulary.pick(_mixed(places, self._seed))


def _mixed(places: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Return a hash of each place: the finaliser of SplitMix64 (Steele et al., 2014)."""
    offset = (seed * 0xBF58476D1CE4E5B9 + 0x9E3779B97F4A7C15) & ((1 << 64) - 1)
    mixed: NDArray[np.uint64] = places + np.uint64(offset)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = np.multiply(mixed ^ (mixed >> np.uint64(shift)), np.uint64(factor))
    return mixed ^ (mixed >> np.uint64(31))
