"""The paged KV cache: the only module that gives a request its blocks, publishes or frees one.

A request's block table, in the order of its tokens:

    |<--- num_published_blocks --->|<---- its own, not shared yet ---->|
    [ hit ][ hit ][ published here ][ full, being computed ][ the tail ]
      shared through the tree         become published once computed     never published

Published blocks stay in the tree when the last request lets them go, until the eviction policy
names them. The rest goes straight to the free list and never enters the policy's order.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from octavo.cache.block_pool import BlockPool
from octavo.cache.keys import block_key, root_key
from octavo.cache.radix_tree import Node, RadixTree
from octavo.errors import InvariantError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from octavo.cache.eviction import EvictionPolicy
    from octavo.engine.request import Request


@dataclass(slots=True)
class CacheStats:
    """What happened since the start. Tokens and blocks; every request is counted once."""

    prefix_queries: int = 0
    """Prompt tokens of the requests that were admitted."""
    prefix_hits: int = 0
    """Those of them that were found in the cache."""
    recomputed_tokens: int = 0
    """Tokens computed again because of preemption."""
    evictions: int = 0
    """Blocks that the policy gave up."""


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The longest cached prefix of a request, found without changing anything."""

    nodes: list[Node]
    num_tokens: int
    """Tokens that need not be computed; at least one token of a request always is."""


class KVCacheManager:
    """Gives requests their blocks out of one pool, and shares the full ones by prefix.

    ``model`` is the fingerprint of whatever the keys and values depend on besides the tokens.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        policy: type[EvictionPolicy],
        *,
        enable_prefix_caching: bool = True,
        model: bytes = b"",
    ) -> None:
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.pool = BlockPool(num_blocks)
        self.tree = RadixTree(num_blocks)
        self.policy = policy(num_blocks, self)
        self.stats = CacheStats()
        self._model = model
        self._roots: dict[str, bytes] = {}
        self._in_flight: set[Hashable] = set()
        self._block_copies: list[tuple[int, int]] = []

    # -- what there is ------------------------------------------------------------------------

    @property
    def num_available_blocks(self) -> int:
        """Blocks that are free or could be freed by eviction."""
        return self.pool.num_free + self.policy.num_evictable

    def num_idle(self, match: PrefixMatch) -> int:
        """Return how many of the matched blocks nobody holds: they count as available too."""
        counts = self.pool.ref_counts
        return sum(1 for node in match.nodes if counts[node.block_id] == 0)

    def num_freed_by(self, requests: Sequence[Request], match: PrefixMatch) -> int:
        """Return how many blocks become available if ``requests`` let go of theirs.

        Blocks of ``match`` are not counted: whoever is admitted with it needs them.
        """
        held = Counter(chain.from_iterable(request.block_table for request in requests))
        for node in match.nodes:
            held.pop(node.block_id, None)
        counts = self.pool.ref_counts
        return sum(1 for block_id, count in held.items() if counts[block_id] == count)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks hold ``num_tokens`` tokens."""
        return -(-num_tokens // self.block_size)

    def match_prefix(self, request: Request) -> PrefixMatch:
        """Return what of ``request``, which holds no block yet, is cached. Changes no account."""
        if not self.enable_prefix_caching or request.skips_prefix_reads:
            return PrefixMatch([], 0)
        self._extend_keys(request, request.num_tokens)
        nodes = self.tree.match_prefix(request.block_keys)
        return PrefixMatch(nodes, min(len(nodes) * self.block_size, request.num_tokens - 1))

    def is_blocked(self, request: Request) -> bool:
        """Return whether the block that ``request`` was passed over for is still being computed."""
        return request.blocked_on is not None and request.blocked_on in self._in_flight

    def awaited_key(self, request: Request, match: PrefixMatch) -> Hashable | None:
        """Return the next key that ``request`` misses if another request is computing it now."""
        keys = request.block_keys
        num_matched = len(match.nodes)
        if num_matched == len(keys) or request.skips_prefix_reads:
            return None
        key = keys[num_matched]
        return key if key in self._in_flight else None

    # -- giving and taking --------------------------------------------------------------------

    def allocate(
        self, request: Request, num_new_tokens: int, match: PrefixMatch | None = None
    ) -> bool:
        """Give ``request`` the blocks for its next ``num_new_tokens`` tokens.

        ``match`` is given exactly at an admission, when the request holds no block. Returns False,
        and nothing is changed, if not enough blocks are free or can be freed.
        """
        nodes = match.nodes if match is not None else []
        table = request.block_table
        computed = match.num_tokens if match is not None else request.num_computed_tokens
        num_held = len(table) + len(nodes)
        num_needed = self.num_blocks_for(computed + num_new_tokens) - num_held
        copied = self._shared_tail(request)
        if copied is not None:
            num_needed += 1
        shortage = num_needed - self.pool.num_free
        if shortage > 0:
            held_back = self.num_idle(match) if match is not None else 0
            if shortage > self.policy.num_evictable - held_back:
                return False
        if match is not None:
            self._admit(request, match)
        if shortage > 0:
            keys = request.block_keys
            self._evict(shortage, keys[num_held] if num_held < len(keys) else None)
        if num_needed > 0:
            fresh = self.pool.allocate(num_needed)
            if copied is not None:
                self._copy_on_write(request, copied, fresh.pop())
            table.extend(fresh)
        return True

    def publish(self, request: Request) -> None:
        """Share every block of ``request`` that is full and computed."""
        if not self.enable_prefix_caching:
            return
        first = request.num_published_blocks
        stop = request.num_computed_tokens // self.block_size
        if stop <= first:
            return
        self._extend_keys(request, request.num_computed_tokens)
        keys, table = request.block_keys, request.block_table
        parent = self.tree.get(keys[first - 1]) if first else None
        self._in_flight.difference_update(keys[first:stop])
        # What another request published meanwhile comes first: nothing hangs below a missing key.
        for i in range(first, stop):
            node = self.tree.get(keys[i])
            if node is None:
                run = keys[i:stop]
                self.tree.insert(run, table[i:stop], parent)
                self.policy.on_insert(run, None if parent is None else parent.key)
                break
            self._adopt(request, i, node)
            parent = node
        request.num_published_blocks = stop

    def free(self, request: Request) -> None:
        """Take everything from ``request``: it is preempted, or it has ended."""
        keys, table = request.block_keys, request.block_table
        published = request.num_published_blocks
        own, shared = table[published:], table[:published]
        own.reverse()
        shared.reverse()  # tail first
        left = self.pool.release(own)
        self.pool.free(block_id for block_id, count in zip(own, left, strict=True) if not count)
        left = self.pool.release(shared)
        idle = keys[:published]
        idle.reverse()
        if any(left):
            idle = [key for key, count in zip(idle, left, strict=True) if not count]
        if idle:
            self.policy.on_evictable(idle)
        self._in_flight.difference_update(keys[published : request.num_awaited_blocks])
        if request.num_missed_blocks > published:
            self.policy.on_remove(keys[published : request.num_missed_blocks])
        request.num_awaited_blocks = 0
        request.num_missed_blocks = 0
        request.num_published_blocks = 0
        request.blocked_on = None
        table.clear()

    def fork(self, parent: Request, child: Request) -> None:
        """Let ``child`` hold every block of ``parent``; the first to write the tail copies it."""
        assert not child.block_table, "a fork starts with no block of its own"
        self.pool.share(parent.block_table)
        child.block_table = list(parent.block_table)
        child.num_published_blocks = parent.num_published_blocks

    def take_block_copies(self) -> list[tuple[int, int]]:
        """Return, and forget, the (source, target) copies due before the next forward pass."""
        copies, self._block_copies = self._block_copies, []
        return copies

    def clear(self) -> None:
        """Forget every cached block that no request holds."""
        self._evict(self.policy.num_evictable, None)

    # -- what a policy may ask (CacheOwner) ---------------------------------------------------

    def is_leaf(self, key: Hashable) -> bool:
        """Return whether no cached block continues the block of ``key``."""
        return self.tree.is_leaf(key)

    def parent(self, key: Hashable) -> Hashable | None:
        """Return the key of the block before that of ``key``, None at the start of a prompt."""
        return self.tree.parent(key)

    def bury(self, keys: Sequence[Hashable]) -> None:
        """Give up the blocks of ``keys``, children before their parents."""
        self.pool.free(self.tree.remove(keys))

    # -- checks -------------------------------------------------------------------------------

    def check_invariants(self, requests: Iterable[Request] | None = None) -> None:
        """Raise `InvariantError` unless the accounts add up, recomputed from scratch.

        With ``requests``, every request that may hold a block, the reference counts are checked
        against their block tables too.
        """
        counts = self.pool.ref_counts
        idle = sum(1 for node in self.tree if counts[node.block_id] == 0)
        self.pool.check_invariants(idle=idle)
        self.tree.check_invariants(self.pool)
        if idle != self.policy.num_evictable:
            raise InvariantError(
                f"{idle} cached blocks are held by nobody, the policy counts "
                f"{self.policy.num_evictable}"
            )
        if requests is None:
            return
        held = [0] * self.pool.num_blocks
        for request in requests:
            for i, block_id in enumerate(request.block_table):
                held[block_id] += 1
                if i < request.num_published_blocks:
                    node = self.tree.get(request.block_keys[i])
                    if node is None or node.block_id != block_id:
                        raise InvariantError(f"{request!r} holds a block that its key does not")
        if held != counts:
            raise InvariantError("the reference counts are not what the block tables hold")

    # -- details ------------------------------------------------------------------------------

    def _extend_keys(self, request: Request, num_tokens: int) -> None:
        """Compute the keys of the blocks that ``num_tokens`` tokens fill, where still unknown."""
        keys = request.block_keys
        size = self.block_size
        stop = num_tokens // size
        if len(keys) >= stop:
            return
        key = keys[-1] if keys else self._root(request.cache_salt)
        assert isinstance(key, bytes)
        for i in range(len(keys), stop):
            key = block_key(key, request.tokens(i * size, (i + 1) * size))
            keys.append(key)

    def _root(self, salt: str) -> bytes:
        root = self._roots.get(salt)
        if root is None:
            root = root_key(model=self._model, salt=salt, block_size=self.block_size)
            if len(self._roots) < 1024:  # salts come from users: remember, but not without end
                self._roots[salt] = root
        return root

    def _shared_tail(self, request: Request) -> int | None:
        """Return the index of the block that the next token is written to if others hold it too."""
        index = request.num_computed_tokens // self.block_size
        table = request.block_table
        if request.num_published_blocks <= index < len(table):
            return index if self.pool.ref_counts[table[index]] > 1 else None
        return None

    def _copy_on_write(self, request: Request, index: int, target: int) -> None:
        source = request.block_table[index]
        self._block_copies.append((source, target))
        self.pool.release((source,))
        request.block_table[index] = target

    def _admit(self, request: Request, match: PrefixMatch) -> None:
        """Hold the matched blocks, tell the policy, and count the request's first admission."""
        nodes, keys = match.nodes, request.block_keys
        num_matched = len(nodes)
        first_time = request.num_cached_tokens is None
        table = [node.block_id for node in nodes]
        self.pool.share(table)
        request.block_table.extend(table)
        request.num_published_blocks = num_matched
        request.num_computed_tokens = match.num_tokens
        request.blocked_on = None
        if first_time:
            request.num_cached_tokens = match.num_tokens
            self.stats.prefix_queries += request.num_prompt_tokens
            self.stats.prefix_hits += match.num_tokens
        if nodes:
            self.policy.on_hit(keys[:num_matched], promote=first_time)
        missed = keys[num_matched:]
        if missed and not request.skips_prefix_reads:
            self._in_flight.update(missed)
            request.num_awaited_blocks = len(keys)
            if first_time:
                self.policy.on_miss(missed)
                request.num_missed_blocks = len(keys)

    def _evict(self, count: int, incoming: Hashable | None) -> None:
        if self.policy.evict(count, incoming) is None:
            raise InvariantError(f"the policy cannot evict {count} blocks that it counted")
        self.stats.evictions += count

    def _adopt(self, request: Request, index: int, node: Node) -> None:
        """Hold the tree's block in place of the request's own copy, and free the copy."""
        self.pool.share((node.block_id,))
        self.policy.on_hit((node.key,), promote=False)
        copy = request.block_table[index]
        left = self.pool.release((copy,))
        assert left == [0], "a copy that is about to be published has one holder"
        self.pool.free((copy,))
        request.block_table[index] = node.block_id
