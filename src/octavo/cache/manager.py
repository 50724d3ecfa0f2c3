"""The paged KV cache: the only module that gives a request its blocks, publishes or frees one.

A request's block table, in the order of its tokens:

    |<--- num_published_blocks --->|<---- its own, not shared yet ---->|
    [ hit ][ hit ][ published here ][ full, being computed ][ the tail ]
      shared through the tree         become published once computed     never published

Published blocks stay in the tree when the last request lets them go, until the eviction policy
names them. The rest goes straight to the free list and never enters the policy's order. Where every
layer has a sliding window, leading blocks are let go on the way (`window.py`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from octavo.cache.block_pool import BlockPool
from octavo.cache.invariants import check_cache
from octavo.cache.keys import block_key, root_key
from octavo.cache.policy_guard import make_policy
from octavo.cache.radix_tree import Node, RadixTree
from octavo.cache.window import NO_BLOCK, first_needed_block, usable_prefix
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
    block_queries: int = 0
    """Full blocks of the prompts of the requests that were admitted."""
    block_hits: int = 0
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
    first: int = 0
    """The first node whose block is needed: those before it have left every window."""

    @property
    def block_ids(self) -> list[int]:
        """The blocks that the request will hold."""
        return [node.block_id for node in self.nodes[self.first :]]


class KVCacheManager:
    """Gives requests their blocks out of one pool, and shares the full ones by prefix.

    ``model`` is the fingerprint of whatever the keys and values depend on besides the tokens.
    ``window`` is how many tokens, its own included, a query sees at most in any layer; None is all.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        policy: type[EvictionPolicy],
        *,
        enable_prefix_caching: bool = True,
        model: bytes = b"",
        window: int | None = None,
    ) -> None:
        self.block_size = block_size
        self.window = window
        self.enable_prefix_caching = enable_prefix_caching
        self.pool = BlockPool(num_blocks)
        self.tree = RadixTree(num_blocks)
        self.policy = make_policy(policy, num_blocks, self)
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
        return sum(1 for block_id in match.block_ids if counts[block_id] == 0)

    def num_freed_by(self, requests: Sequence[Request], match: PrefixMatch) -> int:
        """Return how many blocks become available if ``requests`` let go of theirs.

        Blocks of ``match`` are not counted: whoever is admitted with it needs them.
        """
        held = Counter(chain.from_iterable(request.block_table for request in requests))
        for block_id in (NO_BLOCK, *match.block_ids):
            held.pop(block_id, None)
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
        size, num_tokens = self.block_size, request.num_tokens
        if self.window is None:
            return PrefixMatch(nodes, min(len(nodes) * size, num_tokens - 1))
        del nodes[usable_prefix(nodes, num_tokens, self.window, size) :]
        computed = min(len(nodes) * size, num_tokens - 1)
        first = first_needed_block(computed, len(nodes), self.window, size)
        return PrefixMatch(nodes, computed, first)

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
            parent_key = None if parent is None else parent.key
            if node is None:
                run = keys[i:stop]
                self.tree.insert(run, table[i:stop], parent)
                self.policy.on_insert(run, parent_key)
                break
            if node.block_id == NO_BLOCK:
                self.tree.fill(node, table[i])
                self.policy.on_insert((node.key,), parent_key)
            else:
                self._adopt(request, i, node)
            parent = node
        request.num_published_blocks = stop

    def leave_window(self, request: Request) -> None:
        """Let go of the blocks of ``request`` that none of its later tokens will see."""
        if self.window is None:
            return
        first, table = request.num_dropped_blocks, request.block_table
        full = request.num_published_blocks if self.enable_prefix_caching else len(table)
        stop = first_needed_block(request.num_computed_tokens, full, self.window, self.block_size)
        if stop > first:
            self._let_go(request, first, stop)
            table[first:stop] = [NO_BLOCK] * (stop - first)
            request.num_dropped_blocks = stop

    def free(self, request: Request) -> None:
        """Take everything from ``request``: it is preempted, or it has ended."""
        keys, published = request.block_keys, request.num_published_blocks
        self._let_go(request, request.num_dropped_blocks, len(request.block_table))
        self._in_flight.difference_update(keys[published : request.num_awaited_blocks])
        if request.num_missed_blocks > published:
            self.policy.on_remove(self._missing(keys[published : request.num_missed_blocks]))
        request.num_awaited_blocks = 0
        request.num_missed_blocks = 0
        request.num_published_blocks = 0
        request.num_dropped_blocks = 0
        request.blocked_on = None
        request.block_table.clear()

    def fork(self, parent: Request, child: Request) -> None:
        """Let ``child`` hold every block of ``parent``; the first to write the tail copies it."""
        assert not child.block_table, "a fork starts with no block of its own"
        self.pool.share(parent.block_table[parent.num_dropped_blocks :])
        child.block_table = list(parent.block_table)
        child.num_dropped_blocks = parent.num_dropped_blocks
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
        """Return whether the block of ``key`` may be given up before any other.

        Without windows that is: no cached block continues it.
        """
        return self.window is not None or self.tree.is_leaf(key)

    def num_leaves(self, keys: Sequence[Hashable]) -> int:
        """Return how many of ``keys``, from the first on, may be given up one after another."""
        return self.tree.num_leaves(keys) if self.window is None else len(keys)

    def parent(self, key: Hashable) -> Hashable | None:
        """Return the key of the block before that of ``key``, None at the start of a prompt."""
        return self.tree.parent(key)

    def bury(self, keys: Sequence[Hashable]) -> None:
        """Give up the blocks of ``keys``: children before their parents, or with windows, any.

        Raises `InvariantError`, before any is given out, if somebody holds one.
        """
        if self.window is None:
            gone = self.tree.remove(keys)
        else:
            gone = []
            for key in keys:
                leaf = self.tree.is_leaf(key)
                gone += self.tree.remove((key,)) if leaf else [self.tree.hollow(key)]
        if any(map(self.pool.ref_counts.__getitem__, gone)):
            raise InvariantError("a block that a request holds was to be evicted")
        self.pool.free(gone)

    # -- checks -------------------------------------------------------------------------------

    def check_invariants(self, requests: Iterable[Request] | None = None) -> None:
        """Raise `InvariantError` unless the accounts add up, recomputed from scratch.

        With ``requests``, every request that may hold a block, the reference counts are checked
        against their block tables too.
        """
        check_cache(self, requests)

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
        block_ids = match.block_ids
        self.pool.share(block_ids)
        request.block_table.extend([NO_BLOCK] * match.first)
        request.block_table.extend(block_ids)
        request.num_dropped_blocks = match.first
        request.num_published_blocks = num_matched
        request.num_computed_tokens = match.num_tokens
        request.blocked_on = None
        if first_time:
            request.num_cached_tokens = match.num_tokens
            self.stats.prefix_queries += request.num_prompt_tokens
            self.stats.prefix_hits += match.num_tokens
            self.stats.block_queries += request.num_prompt_tokens // self.block_size
            self.stats.block_hits += num_matched
        if nodes:
            self.policy.on_hit(keys[match.first : num_matched], promote=first_time)
        missed = keys[num_matched:]
        if missed and not request.skips_prefix_reads:
            self._in_flight.update(missed)
            request.num_awaited_blocks = len(keys)
            if first_time:
                self.policy.on_miss(self._missing(missed))
                request.num_missed_blocks = len(keys)

    def _missing(self, keys: Sequence[Hashable]) -> Sequence[Hashable]:
        """Return those of ``keys`` that are not cached: all, but where windows leave gaps."""
        if self.window is None:
            return keys
        nodes = ((key, self.tree.get(key)) for key in keys)
        return [key for key, node in nodes if node is None or node.block_id == NO_BLOCK]

    def _let_go(self, request: Request, first: int, stop: int) -> None:
        """Give back the blocks ``first`` to ``stop`` - 1 of ``request``, tail first."""
        shared_stop = min(max(request.num_published_blocks, first), stop)
        own = request.block_table[shared_stop:stop]
        own.reverse()
        left = self.pool.release(own)
        self.pool.free(block_id for block_id, count in zip(own, left, strict=True) if not count)
        shared = request.block_table[first:shared_stop]
        shared.reverse()
        left = self.pool.release(shared)
        idle = request.block_keys[first:shared_stop]
        idle.reverse()
        if any(left):
            idle = [key for key, count in zip(idle, left, strict=True) if not count]
        if idle:
            self.policy.on_evictable(idle)

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
