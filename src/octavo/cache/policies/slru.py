"""SLRU: a block must be hit once before it may push out others that were."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from octavo.cache.eviction import EvictionPolicy

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from octavo.cache.eviction import CacheOwner

PROTECTED_SHARE = 0.8
"""How much of the cache the protected segment may fill."""


class SLRU(EvictionPolicy):
    """Segmented LRU (Karedla, Love and Wherry, IEEE Computer 27(3), 1994), two segments.

    New blocks are on probation. A hit protects; where the protected exceed their share the oldest
    of them goes back to probation as its newest. The oldest on probation dies.

    Both lists hold what nobody holds, in order of release. Whoever protects a block protects its
    ancestors, and the oldest protected has no protected child: so the parent of a protected block
    is protected, and whichever list is taken, its oldest entry is a leaf.
    """

    name = "slru"

    def __init__(self, capacity: int, owner: CacheOwner) -> None:
        super().__init__(capacity, owner)
        self.num_evicted = {"probation": 0, "protected": 0}
        self._probation: OrderedDict[Hashable, None] = OrderedDict()
        self._protected: OrderedDict[Hashable, None] = OrderedDict()
        self._held: dict[Hashable, bool] = {}
        """What some request holds, and whether it is protected."""
        self._num_protected = 0
        self._max_protected = int(capacity * PROTECTED_SHARE)

    @property
    def num_evictable(self) -> int:
        """How many keys `evict` could name, one after another."""
        return len(self._probation) + len(self._protected)

    def on_insert(self, keys: Sequence[Hashable], parent: Hashable | None) -> None:  # noqa: ARG002
        """Put ``keys`` on probation."""
        self._held.update(dict.fromkeys(keys, False))

    def on_hit(self, keys: Sequence[Hashable], *, promote: bool) -> None:
        """Take ``keys`` out of their lists, and protect them."""
        probation, protected, held = self._probation, self._protected, self._held
        for key in keys:
            if key in probation:
                del probation[key]
                held[key] = False
            elif key in protected:
                del protected[key]
                held[key] = True
            if promote and not held[key]:
                held[key] = True
                self._num_protected += 1
        self._demote()

    def on_evictable(self, keys: Sequence[Hashable]) -> None:
        """Append each key to the list of its segment."""
        for key in keys:
            (self._protected if self._held.pop(key) else self._probation)[key] = None
        self._demote()

    def victim(self, incoming: Hashable | None) -> Hashable:  # noqa: ARG002
        """Name the oldest on probation, or the oldest protected where none is."""
        if self._probation:
            self.num_evicted["probation"] += 1
            return self._probation.popitem(last=False)[0]
        self.num_evicted["protected"] += 1
        self._num_protected -= 1
        return self._protected.popitem(last=False)[0]

    def lists(self) -> dict[str, int]:
        """Return the sizes of the segments, what is held included."""
        num_cached = self.num_evictable + len(self._held)
        return {
            "probation": num_cached - self._num_protected,
            "protected": self._num_protected,
        }

    def _demote(self) -> None:
        """Put the oldest protected back on probation while they exceed their share."""
        while self._num_protected > self._max_protected and self._protected:
            key, _ = self._protected.popitem(last=False)
            self._probation[key] = None
            self._num_protected -= 1
