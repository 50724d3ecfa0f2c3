"""A policy without a tree: single references to single keys, as the caching literature counts them.

The policy is the production one and hears the same events as from `KVCacheManager`; only the owner
is simpler: every key is a leaf, and none is held beyond its own reference. So what is known of an
algorithm from its paper can be checked on the very code that the engine runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.cache.policy_guard import make_policy
from octavo.errors import InvariantError, shown

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from octavo.cache.eviction import EvictionPolicy


class PlainCache:
    """``capacity`` keys under one policy."""

    __slots__ = ("_cached", "capacity", "num_evictions", "policy")

    def __init__(self, capacity: int, policy: type[EvictionPolicy]) -> None:
        self.capacity = capacity
        self.policy = make_policy(policy, capacity, self)
        self.num_evictions = 0
        self._cached: set[Hashable] = set()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._cached

    def __len__(self) -> int:
        return len(self._cached)

    def reference(self, key: Hashable) -> bool:
        """Ask for ``key``, computing it if it is missing; return whether it was a hit."""
        return self.replay((key,)) == 1

    def replay(self, keys: Iterable[Hashable]) -> int:
        """Ask for one key after another; return the number of hits."""
        cached, policy, capacity = self._cached, self.policy, self.capacity
        on_hit, on_evictable = policy.on_hit, policy.on_evictable
        on_miss, evict, on_insert = policy.on_miss, policy.evict, policy.on_insert
        num_hits = 0
        for key in keys:
            run = (key,)
            if key in cached:
                num_hits += 1
                on_hit(run, promote=True)
            else:
                on_miss(run)
                if len(cached) == capacity and evict(1, key) is None:
                    raise InvariantError(f"{policy.name}: no victim among {capacity} keys")
                cached.add(key)
                on_insert(run, None)
            on_evictable(run)
        return num_hits

    # -- what a policy may ask (CacheOwner) ---------------------------------------------------

    def is_leaf(self, key: Hashable) -> bool:  # noqa: ARG002
        """Return True: no key continues another."""
        return True

    def num_leaves(self, keys: Sequence[Hashable]) -> int:
        """Return how many there are: no key continues another."""
        return len(keys)

    def parent(self, key: Hashable) -> None:
        """Return None: no key continues another."""

    def bury(self, keys: Sequence[Hashable]) -> None:
        """Forget ``keys``, which are cached and all different."""
        num_left = len(self._cached) - len(keys)
        self._cached.difference_update(keys)
        if len(self._cached) != num_left:
            raise InvariantError(f"{self.policy.name}: not all of {shown(keys)} were cached")
        self.num_evictions += len(keys)
