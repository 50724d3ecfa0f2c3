"""The replay of prompts: through the production cache, or reference by reference without a tree.

Computing takes no time here, and nothing is decoded: only the order of admissions matters.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from octavo.cache.manager import KVCacheManager
from octavo.engine.request import Request
from octavo.sampling.params import SamplingParams
from octavo.simulate.plain import PlainCache

if TYPE_CHECKING:
    from collections.abc import Container, Hashable, Iterable

    from octavo.cache.eviction import EvictionPolicy
    from octavo.simulate.trace import TraceRequest


@dataclass(slots=True)
class ReplayCounts:
    """What a replay saw. A block, or token, is a hit if it and all before it were cached."""

    requests: int = 0
    refused: int = 0
    """Requests with more blocks than the cache has; all their blocks are misses."""
    references: int = 0
    """Prompt blocks asked for."""
    hits: int = 0
    tokens: int = 0
    token_hits: int = 0
    evictions: int = 0
    let_go_early: int = 0
    """Requests that gave up their blocks before ``concurrency`` others came, for want of room."""

    def add(self, request: TraceRequest, num_hits: int, block_size: int) -> None:
        """Count one request, ``num_hits`` of whose blocks were found."""
        self.requests += 1
        self.references += len(request.blocks)
        self.hits += num_hits
        self.tokens += request.num_tokens
        self.token_hits += min(num_hits * block_size, request.num_tokens)


class Replay(Protocol):
    """One cache, and what it has seen so far."""

    counts: ReplayCounts

    def admit(self, request: TraceRequest) -> None:
        """Let one request in, and count it."""


class EngineReplay:
    """The production cache, and the last ``concurrency`` requests that hold their blocks in it.

    The cache counts in blocks: to it a block is one token, whose key comes from the trace. That
    changes nothing that a policy can see, and spares building prompts of a hundred thousand tokens.
    """

    def __init__(
        self,
        capacity: int,
        policy: type[EvictionPolicy],
        *,
        block_size: int,
        concurrency: int = 1,
    ) -> None:
        self.cache = KVCacheManager(capacity, 1, policy)
        self.counts = ReplayCounts()
        self._block_size = block_size
        self._concurrency = concurrency
        self._holding: deque[Request] = deque()
        self._params = SamplingParams()

    def admit(self, request: TraceRequest) -> None:
        """Let one request in, after the oldest have gone: one too many, or for want of room."""
        cache, holding, blocks = self.cache, self._holding, request.blocks
        if len(blocks) > cache.pool.num_blocks:
            self.counts.add(request, 0, self._block_size)
            self.counts.refused += 1
            return
        while len(holding) >= self._concurrency:
            cache.free(holding.popleft())
        # The ids stand for tokens and for keys at once: nothing reads a token whose key is known.
        job = Request("", blocks, self._params, block_keys=blocks)  # type: ignore[arg-type]
        match = cache.match_prefix(job)
        num_hits = len(match.nodes)
        if blocks:
            while not cache.allocate(job, len(blocks) - match.num_tokens, match):
                cache.free(holding.popleft())
                self.counts.let_go_early += 1
            job.num_computed_tokens = len(blocks)
            cache.publish(job)
            holding.append(job)
        self.counts.add(request, num_hits, self._block_size)
        self.counts.evictions = cache.stats.evictions


class PlainReplay:
    """A prompt's blocks as so many single references: no tree, nothing is held.

    Head to tail, or in ``reverse``, tail first, so that the head is the most recent. Hits are
    prefix-contiguous all the same: a cached block behind a missing one is of no use.
    """

    def __init__(
        self, capacity: int, policy: type[EvictionPolicy], *, block_size: int, reverse: bool
    ) -> None:
        self.cache = PlainCache(capacity, policy)
        self.counts = ReplayCounts()
        self._block_size = block_size
        self._reverse = reverse

    def admit(self, request: TraceRequest) -> None:
        """Count what is there, then refer to every block."""
        blocks = request.blocks
        self.counts.add(request, num_leading(blocks, self.cache), self._block_size)
        self.cache.replay(reversed(blocks) if self._reverse else blocks)
        self.counts.evictions = self.cache.num_evictions


class InfiniteReplay:
    """A cache that forgets nothing: what no policy can exceed at any capacity."""

    def __init__(self, *, block_size: int) -> None:
        self.counts = ReplayCounts()
        self._block_size = block_size
        self._seen: set[Hashable] = set()

    def admit(self, request: TraceRequest) -> None:
        """Count what is there, and remember the rest."""
        num_hits = num_leading(request.blocks, self._seen)
        self.counts.add(request, num_hits, self._block_size)
        self._seen.update(request.blocks)


def num_leading(keys: Iterable[Hashable], cached: Container[Hashable]) -> int:
    """Return how many of ``keys`` are there before the first that is missing."""
    count = 0
    for key in keys:
        if key not in cached:
            break
        count += 1
    return count
