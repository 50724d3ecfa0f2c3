"""LFU: the block that was asked for least often dies first; of equals, the one let go first."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from octavo.cache.eviction import EvictionPolicy

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from octavo.cache.eviction import CacheOwner

MAX_COUNT = 1023
"""Counts stop here: nothing that was hit so often is a candidate, and one integer of 1024 bits
says which counts occur."""


class LFU(EvictionPolicy):
    """Least frequently used: one list for each count, each in order of release.

    Whoever hits a block hits its ancestors, so no count exceeds the parent's, and the oldest entry
    of the lowest list is a leaf. Counts die with their block. After Shah, Mitra and Matani, "An
    O(1) algorithm for implementing the LFU cache eviction scheme" (2010), with a bit for each count
    in place of their list of lists, because a block comes back to its list when it is let go and
    not only one count higher.
    """

    name = "lfu"

    def __init__(self, capacity: int, owner: CacheOwner) -> None:
        super().__init__(capacity, owner)
        self._counts: dict[Hashable, int] = {}
        self._idle: dict[int, OrderedDict[Hashable, None]] = {}
        self._occupied = 0  # bit n: the list of count n is not empty
        self._num_idle = 0

    @property
    def num_evictable(self) -> int:
        """How many keys `evict` could name, one after another."""
        return self._num_idle

    def on_insert(self, keys: Sequence[Hashable], parent: Hashable | None) -> None:  # noqa: ARG002
        """Begin to count."""
        self._counts.update(dict.fromkeys(keys, 1))

    def on_hit(self, keys: Sequence[Hashable], *, promote: bool) -> None:
        """Take ``keys`` out of their lists and count the hit."""
        counts = self._counts
        for key in keys:
            count = counts[key]
            idle = self._idle.get(count)
            if idle is not None and key in idle:
                del idle[key]
                self._num_idle -= 1
                if not idle:
                    self._drop(count)
            if promote and count < MAX_COUNT:
                counts[key] = count + 1

    def on_evictable(self, keys: Sequence[Hashable]) -> None:
        """Append each key to the list of its count."""
        counts = self._counts
        for key in keys:
            count = counts[key]
            idle = self._idle.get(count)
            if idle is None:
                idle = self._idle[count] = OrderedDict()
                self._occupied ^= 1 << count
            idle[key] = None
        self._num_idle += len(keys)

    def victim(self, incoming: Hashable | None) -> Hashable:  # noqa: ARG002
        """Name the oldest of the lowest count."""
        lowest = (self._occupied & -self._occupied).bit_length() - 1
        idle = self._idle[lowest]
        key, _ = idle.popitem(last=False)
        if not idle:
            self._drop(lowest)
        self._num_idle -= 1
        del self._counts[key]
        return key

    def _drop(self, count: int) -> None:
        """Drop the list of ``count``, which has become empty."""
        del self._idle[count]
        self._occupied ^= 1 << count
