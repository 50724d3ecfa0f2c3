"""Keys in the order in which they came: append a run, take any out, take the oldest.

An `OrderedDict` does this with a linked list, 180 bytes a key. Here a set says what is in, and a
deque in which order it came, 60 to 100 bytes; runs go in and out at the speed of C. What is taken
out stays behind in the deque, counted as stale, until its turn comes or a quarter is stale.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence


class KeyQueue:
    """A queue of different keys. Everything is O(1) a key, amortised."""

    __slots__ = ("_order", "_stale", "keys")

    def __init__(self) -> None:
        self.keys: set[Hashable] = set()
        """What is in, in no order. To be read only."""
        self._order: deque[Hashable] = deque()
        self._stale: dict[Hashable, int] = {}
        """How many times a key stands in the order, ahead of its true place, for nothing."""

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Hashable]:
        """Iterate from the oldest to the newest."""
        stale = dict(self._stale)
        for key in self._order:
            if stale.get(key, 0):
                stale[key] -= 1
            else:
                yield key

    def extend(self, keys: Sequence[Hashable]) -> None:
        """Append ``keys``, none of which is in the queue, as the newest, in their order."""
        self.keys.update(keys)
        self._order.extend(keys)

    def remove(self, keys: Collection[Hashable]) -> None:
        """Take out ``keys``, all of which are in the queue."""
        self.keys.difference_update(keys)
        stale = self._stale
        for key in keys:
            stale[key] = stale.get(key, 0) + 1
        if len(self._order) - len(self.keys) > 64 + len(self.keys) // 4:
            self._drop_stale()

    def discard(self, keys: Iterable[Hashable]) -> None:
        """Take out those of ``keys`` that are in the queue."""
        present = self.keys.intersection(keys)
        if present:
            self.remove(present)

    def pop_oldest(self, count: int) -> list[Hashable]:
        """Take out the ``count`` that came first, in their order; there are so many."""
        keys = self._next(count)
        self.keys.difference_update(keys)
        return keys

    def oldest(self, count: int) -> list[Hashable]:
        """Return the ``count`` that came first, or all if there are less."""
        keys = self._next(min(count, len(self.keys)))
        self._order.extendleft(reversed(keys))
        return keys

    def _next(self, count: int) -> list[Hashable]:
        pop, stale = self._order.popleft, self._stale
        keys = [pop() for _ in range(count)]
        while stale and not stale.keys().isdisjoint(keys):
            keys = [key for key in keys if key not in stale or not self._is_stale(key)]
            keys += [pop() for _ in range(count - len(keys))]
        return keys

    def _is_stale(self, key: Hashable) -> bool:
        """Return whether the next place of ``key`` is stale, and count it as gone."""
        count = self._stale.pop(key, 0)
        if count > 1:
            self._stale[key] = count - 1
        return count > 0

    def _drop_stale(self) -> None:
        order, stale = self._order, self._stale
        self._order = deque(key for key in order if key not in stale or not self._is_stale(key))
