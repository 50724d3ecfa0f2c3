"""S3-FIFO: most blocks are asked for once, so a small queue filters who enters the main one."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING

from octavo.cache.eviction import EvictionPolicy

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from octavo.cache.eviction import CacheOwner

SMALL_SHARE = 0.1
"""How much of the cache the small queue has before it is the one that gives."""
MAX_COUNT = 3
"""Two bits count the hits, as in the paper."""
MIN_COUNT_FOR_MAIN = 2
"""Hits in the small queue that carry a block over to the main one."""


class S3FIFO(EvictionPolicy):
    """Three static queues (Yang, Zhang, Qiu, Yue and Rashmi, "FIFO queues are all you need for
    cache eviction", SOSP '23): small, main and the ghosts of what fell out of small.

    A hit only counts. What comes to the front of small goes over to main if it was hit twice, else
    it dies and leaves a ghost. What comes to the front of main goes round once more for each hit it
    has left. A miss on a ghost enters main. As in `FIFO`, what ought to die and cannot (it is held,
    or has children) is set aside until it can.

    The parameters are those of the authors' simulator, libCacheSim. Its warm-up is not taken over:
    there, until the first eviction, what finds small full enters main, and what comes once stays.
    """

    name = "s3fifo"

    def __init__(self, capacity: int, owner: CacheOwner) -> None:
        super().__init__(capacity, owner)
        self.num_evicted = {"small": 0, "main": 0}
        self._small: deque[Hashable] = deque()
        self._main: deque[Hashable] = deque()
        self._ghosts: OrderedDict[Hashable, None] = OrderedDict()
        self._set_aside: dict[Hashable, deque[Hashable]] = {}
        """What could not die, and the queue to whose front it comes back."""
        self._counts: dict[Hashable, int] = {}
        """Hits of every cached key since it entered its queue."""
        self._idle: set[Hashable] = set()
        self._pending: set[Hashable] = set()
        """Missed keys whose ghost was there: they will enter main."""
        self._num_small = 0  # what is set aside is counted too
        self._max_small = max(1, int(capacity * SMALL_SHARE))
        self._max_ghosts = capacity - self._max_small

    @property
    def num_evictable(self) -> int:
        """How many keys `evict` could name, one after another."""
        return len(self._idle)

    def on_miss(self, keys: Sequence[Hashable]) -> None:
        """Remember which of ``keys`` left a ghost."""
        if self._ghosts.keys().isdisjoint(keys):
            return
        for key in keys:
            if key in self._ghosts:
                del self._ghosts[key]
                self._pending.add(key)

    def on_insert(self, keys: Sequence[Hashable], parent: Hashable | None) -> None:  # noqa: ARG002
        """Queue ``keys`` up: in main those whose ghost was missed, in small the others."""
        for key in keys:
            if self._enters_main(key):
                self._main.append(key)
            else:
                self._small.append(key)
                self._num_small += 1
        self._counts.update(dict.fromkeys(keys, 0))

    def on_hit(self, keys: Sequence[Hashable], *, promote: bool) -> None:
        """Count the hit."""
        self._idle.difference_update(keys)
        if promote:
            counts = self._counts
            for key in keys:
                if counts[key] < MAX_COUNT:
                    counts[key] += 1

    def on_evictable(self, keys: Sequence[Hashable]) -> None:
        """Let those come back to the front that were set aside."""
        self._idle.update(keys)
        if not self._set_aside.keys().isdisjoint(keys):
            for key in keys:
                self._come_back(key)

    def on_remove(self, keys: Sequence[Hashable]) -> None:
        """Forget that their ghosts were there."""
        self._pending.difference_update(keys)

    def victim(self, incoming: Hashable | None) -> Hashable:  # noqa: ARG002
        """Name the first that neither moves on nor is held, and let the others before it do so."""
        key: Hashable | None = None
        while key is None:
            if self._small and (self._num_small >= self._max_small or not self._main):
                key = self._next_of_small()
            else:
                key = self._next_of_main()
        del self._counts[key]
        return key

    def lists(self) -> dict[str, int]:
        """Return the sizes of the three queues, what is set aside included."""
        return {
            "small": self._num_small,
            "main": len(self._counts) - self._num_small,
            "ghosts": len(self._ghosts),
        }

    def _enters_main(self, key: Hashable) -> bool:
        """Return whether ``key`` was missed while its ghost was there, and forget both."""
        if key in self._pending:
            self._pending.remove(key)
            return True
        # Its ghost may still be there where a preempted request comes back: no second chance.
        self._ghosts.pop(key, None)
        return False

    def _next_of_small(self) -> Hashable | None:
        """Move on from the front of small until one dies; return it, None if none does."""
        while self._small:
            key = self._small.popleft()
            if self._counts[key] >= MIN_COUNT_FOR_MAIN:
                self._counts[key] = 0
                self._main.append(key)
                self._num_small -= 1
            elif self._dies(key):
                self.num_evicted["small"] += 1
                self._num_small -= 1
                self._ghosts[key] = None
                if len(self._ghosts) > self._max_ghosts:
                    self._ghosts.popitem(last=False)
                return key
            else:
                self._set_aside[key] = self._small
        return None

    def _next_of_main(self) -> Hashable | None:
        """Take the front of main; return it if it dies, else None."""
        key = self._main.popleft()
        if self._counts[key]:
            self._counts[key] -= 1
            self._main.append(key)
        elif self._dies(key):
            self.num_evicted["main"] += 1
            return key
        else:
            self._set_aside[key] = self._main
        return None

    def _dies(self, key: Hashable) -> bool:
        """Note the death of ``key`` and return True, unless it is held or has children."""
        if key not in self._idle or not self.owner.is_leaf(key):
            return False
        self._idle.remove(key)
        self._come_back(self.owner.parent(key))  # it may be a leaf now
        return True

    def _come_back(self, key: Hashable | None) -> None:
        """Put ``key`` back to the front of its queue if it was set aside."""
        queue = self._set_aside.pop(key, None)
        if queue is not None:
            queue.appendleft(key)
