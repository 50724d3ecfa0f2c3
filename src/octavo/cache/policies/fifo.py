"""FIFO: the block that was computed longest ago dies first, however often it was hit."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from octavo.cache.eviction import EvictionPolicy

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from octavo.cache.eviction import CacheOwner


class FIFO(EvictionPolicy):
    """First in, first out.

    A parent is older than its children, so what comes to the front of the queue often cannot die
    yet. It is set aside and comes back to the front when it can: nothing is looked at twice
    without an event in between. Children's releases come first, so a chain that comes back as a
    whole stands in the order in which it was inserted.
    """

    name = "fifo"

    def __init__(self, capacity: int, owner: CacheOwner) -> None:
        super().__init__(capacity, owner)
        self._queue: deque[Hashable] = deque()
        self._set_aside: set[Hashable] = set()
        self._idle: set[Hashable] = set()

    @property
    def num_evictable(self) -> int:
        """How many keys `evict` could name, one after another."""
        return len(self._idle)

    def on_insert(self, keys: Sequence[Hashable], parent: Hashable | None) -> None:  # noqa: ARG002
        """Queue ``keys`` up."""
        self._queue.extend(keys)

    def on_hit(self, keys: Sequence[Hashable], *, promote: bool) -> None:  # noqa: ARG002
        """Note that ``keys`` are held; a hit does not change the order."""
        self._idle.difference_update(keys)

    def on_evictable(self, keys: Sequence[Hashable]) -> None:
        """Let those come back to the front that were set aside."""
        self._idle.update(keys)
        if not self._set_aside.isdisjoint(keys):
            for key in keys:
                self._come_back(key)

    def _come_back(self, key: Hashable | None) -> None:
        """Put ``key`` back to the front if it was set aside."""
        if key in self._set_aside:
            self._set_aside.remove(key)
            self._queue.appendleft(key)

    def victim(self, incoming: Hashable | None) -> Hashable:  # noqa: ARG002
        """Name the oldest that may die, and set aside what stands before it."""
        idle, is_leaf = self._idle, self.owner.is_leaf
        while True:
            key = self._queue.popleft()
            if key in idle and is_leaf(key):
                idle.remove(key)
                self._come_back(self.owner.parent(key))  # it may be a leaf now
                return key
            self._set_aside.add(key)

    def lists(self) -> dict[str, int]:
        """Return how many keys wait in the queue and how many are set aside."""
        return {"queue": len(self._queue), "set_aside": len(self._set_aside)}
