"""Drives a KVCacheManager as the scheduler would, beside a fake KV that knows what was written.

A slot of the fake holds the hash of all tokens up to its position. So whatever block a request is
given, by whatever way, what it reads there must be the hash of its own tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from octavo.cache.manager import KVCacheManager
from octavo.cache.policies.lru import LRU
from octavo.engine.request import Request
from octavo.sampling.params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from octavo.cache.eviction import EvictionPolicy


def make_request(name: str, tokens: Sequence[int], *, salt: str = "", **params: object) -> Request:
    return Request(name, list(tokens), SamplingParams(**params), cache_salt=salt)


class ShadowKV:
    """What each slot holds, in place of keys and values."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.slots: dict[int, int] = {}

    def copy_blocks(self, copies: Iterable[tuple[int, int]]) -> None:
        size = self.block_size
        for source, target in copies:
            for offset in range(size):
                self.slots[target * size + offset] = self.slots.get(source * size + offset, 0)

    def write(self, request: Request, count: int, ref_counts: Sequence[int]) -> None:
        """Store the next ``count`` tokens, but for those that lie in a shared block."""
        size, table = self.block_size, request.block_table
        contents = history(request)
        first = request.num_computed_tokens
        for position in range(first, first + count):
            block_id = table[position // size]
            if position // size >= request.num_published_blocks:
                assert ref_counts[block_id] == 1, f"{request!r} writes block {block_id} of others"
                self.slots[block_id * size + position % size] = contents[position]

    def check(self, request: Request, stop: int) -> None:
        """Fail unless the first ``stop`` positions hold what ``request`` would have written."""
        size, table = self.block_size, request.block_table
        contents = history(request)
        for position in range(request.num_dropped_blocks * size, stop):
            slot = table[position // size] * size + position % size
            assert self.slots.get(slot) == contents[position], (
                f"{request!r} reads a foreign or stale slot {slot} at position {position}"
            )


def history(request: Request) -> list[int]:
    """Return, for each position, the hash of everything up to it."""
    state = crc32(request.cache_salt.encode())  # unlike hash(), the same in every process
    states = []
    for token in (*request.prompt_token_ids, *request.output_token_ids):
        state = hash((state, token))
        states.append(state)
    return states


class CacheDriver:
    """A cache, its fake content, and the requests that hold blocks; checks after every verb."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 4,
        *,
        enable_prefix_caching: bool = True,
        window: int | None = None,
        policy: type[EvictionPolicy] = LRU,
    ) -> None:
        self.cache = KVCacheManager(
            num_blocks,
            block_size,
            policy,
            enable_prefix_caching=enable_prefix_caching,
            model=b"m",
            window=window,
        )
        self.kv = ShadowKV(block_size)
        self.requests: list[Request] = []

    @property
    def free_list(self) -> list[int]:
        """The free blocks, in the order in which they would be handed out."""
        return self.cache.pool._free[::-1]

    @property
    def eviction_order(self) -> list[int]:
        """The block ids of the idle cached blocks, the next victim first."""
        cache = self.cache
        return [cache.tree.get(key).block_id for key in cache.policy._idle]

    def snapshot(self) -> object:
        """Everything that an operation could change, as a comparable value."""
        cache = self.cache
        return (
            list(cache.pool.ref_counts),
            list(cache.pool._free),
            cache.pool.num_allocated,
            [(n.key, n.block_id, n.parent and n.parent.key, n.num_children) for n in cache.tree],
            list(getattr(cache.policy, "_idle", ())),
            set(cache._in_flight),
            list(cache._block_copies),
            (cache.stats.prefix_queries, cache.stats.prefix_hits, cache.stats.evictions),
            [
                (
                    list(r.block_table),
                    r.num_published_blocks,
                    r.num_missed_blocks,
                    r.num_computed_tokens,
                    r.num_cached_tokens,
                )
                for r in self.requests
            ],
        )

    def admit(self, request: Request, count: int | None = None) -> bool:
        """Match and allocate, for ``count`` tokens or all; compute nothing yet."""
        match = self.cache.match_prefix(request)
        if count is None:
            count = request.num_tokens - match.num_tokens
        before = self.snapshot()
        if not self.cache.allocate(request, count, match):
            assert self.snapshot() == before
            return False
        self.requests.append(request)
        self.check()
        return True

    def grow(self, request: Request, count: int) -> bool:
        """Allocate for the next ``count`` tokens of a request that holds blocks."""
        before = self.snapshot()
        if not self.cache.allocate(request, count):
            assert self.snapshot() == before
            return False
        self.check()
        return True

    def compute(self, request: Request, count: int | None = None) -> None:
        """Compute the next ``count`` tokens (or all), for which blocks were allocated."""
        if count is None:
            count = request.num_uncomputed_tokens
        self.kv.copy_blocks(self.cache.take_block_copies())
        self.kv.write(request, count, self.cache.pool.ref_counts)
        self.kv.check(request, request.num_computed_tokens + count)
        request.num_computed_tokens += count
        self.cache.publish(request)
        self.cache.leave_window(request)
        self.check()

    def serve(self, request: Request) -> Request:
        """Admit, compute and free a request."""
        assert self.admit(request)
        self.compute(request)
        self.free(request)
        return request

    def free(self, request: Request) -> None:
        self.requests.remove(request)
        self.cache.free(request)
        self.check()

    def check(self) -> None:
        cache = self.cache
        cache.check_invariants(self.requests)
        if not cache._block_copies:  # a copy on write has its content once the copy is made
            for request in self.requests:
                self.kv.check(request, request.num_computed_tokens)
        check_flights(cache, self.requests)


def check_flights(cache: KVCacheManager, requests: Iterable[Request]) -> None:
    """Fail if a key is said to be in flight that no request is about to publish.

    Whoever waits for it would wait for ever.
    """
    flights = {
        key
        for request in requests
        for key in request.block_keys[request.num_published_blocks : request.num_awaited_blocks]
    }
    assert cache._in_flight <= flights
