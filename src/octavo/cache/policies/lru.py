"""LRU: the block that was let go longest ago dies first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.cache.eviction import EvictionPolicy
from octavo.cache.policies.key_queue import KeyQueue

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from octavo.cache.eviction import CacheOwner


class LRU(EvictionPolicy):
    """Least recently used. The list holds only what may die, the oldest release first."""

    name = "lru"

    def __init__(self, capacity: int, owner: CacheOwner) -> None:
        super().__init__(capacity, owner)
        self._idle = KeyQueue()

    @property
    def num_evictable(self) -> int:
        """How many keys `evict` could name, one after another."""
        return len(self._idle.keys)

    def on_insert(self, keys: Sequence[Hashable], parent: Hashable | None) -> None:
        """Nothing to note: a new block is held, and what is held is in no list."""

    def on_hit(self, keys: Sequence[Hashable], *, promote: bool) -> None:  # noqa: ARG002
        """Take ``keys`` out of the list: they are held now."""
        self._idle.discard(keys)

    def on_evictable(self, keys: Sequence[Hashable]) -> None:
        """Append ``keys``: the tail of a prompt is older than its head, and dies first."""
        self._idle.extend(keys)

    def victim(self, incoming: Hashable | None) -> Hashable:  # noqa: ARG002
        """Name the oldest."""
        return self._idle.pop_oldest(1)[0]

    def victims(self, count: int, incoming: Hashable | None) -> list[Hashable]:  # noqa: ARG002
        """Name the oldest ``count``."""
        return self._idle.pop_oldest(count)
