"""ARC: shares the cache between what was asked for once and what was asked for again."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from octavo.cache.eviction import EvictionPolicy

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from octavo.cache.eviction import CacheOwner


class ARC(EvictionPolicy):
    """Adaptive replacement (Megiddo and Modha, FAST '03), with the paper's names and real p.

    t1 has the blocks asked for once, t2 those asked for again; b1 and b2 are the ghosts of what was
    evicted from them. A miss on a ghost says which list was too short, and moves `target_t1`, the
    p of the paper, that way.

    What a prefix tree adds:

    - t1 and t2 list what nobody holds, in order of release; what is held is beside them, and is
      counted with its list.
    - Room is made when the pool is empty, not when the lists add up to c. If the list whose turn it
      is has nothing to give, the other gives.
    - The parent of a block in t2 is in t2. So the oldest of t1 is a leaf, and where the oldest of
      t2 is not, its children are in t1, and the oldest of t1 dies instead.
    """

    name = "arc"

    def __init__(self, capacity: int, owner: CacheOwner) -> None:
        super().__init__(capacity, owner)
        self.target_t1 = 0.0
        self._t1: OrderedDict[Hashable, None] = OrderedDict()
        self._t2: OrderedDict[Hashable, None] = OrderedDict()
        self._b1: OrderedDict[Hashable, None] = OrderedDict()
        self._b2: OrderedDict[Hashable, None] = OrderedDict()
        self._held: dict[Hashable, bool] = {}
        """What some request holds, and whether it is in t2."""
        self._pending: dict[Hashable, bool] = {}
        """Missed keys that will enter t2, and whether their ghost was in b2."""
        self._num_t1 = 0  # what is held is counted too
        self._num_t2 = 0

    @property
    def num_evictable(self) -> int:
        """How many keys `evict` could name, one after another."""
        return len(self._t1) + len(self._t2)

    def on_miss(self, keys: Sequence[Hashable]) -> None:
        """Learn from the ghosts among ``keys``; they, and their ancestors, will enter t2."""
        b1, b2, pending = self._b1, self._b2, self._pending
        if b1.keys().isdisjoint(keys) and b2.keys().isdisjoint(keys):
            return
        last = 0
        for i, key in enumerate(keys):
            if key in b1:
                step = max(1.0, len(b2) / len(b1))
                self.target_t1 = min(self.target_t1 + step, float(self.capacity))
                del b1[key]
                pending[key] = False
            elif key in b2:
                step = max(1.0, len(b1) / len(b2))
                self.target_t1 = max(self.target_t1 - step, 0.0)
                del b2[key]
                pending[key] = True
            else:
                continue
            last = i
        for key in keys[:last]:
            pending.setdefault(key, False)

    def on_insert(self, keys: Sequence[Hashable], parent: Hashable | None) -> None:
        """Note in which list each of ``keys`` is, and drop the ghosts that became too many."""
        pending, held = self._pending, self._held
        if not pending:
            held.update(dict.fromkeys(keys, False))
            self._num_t1 += len(keys)
        else:
            in_t2 = parent is None or held[parent]
            for key in keys:
                in_t2 = pending.pop(key, None) is not None and in_t2
                held[key] = in_t2
                self._num_t2 += in_t2
                self._num_t1 += not in_t2
        self._drop_ghosts(keys)

    def on_hit(self, keys: Sequence[Hashable], *, promote: bool) -> None:
        """Hold ``keys``, in t2 from now on if this is a sign of frequency."""
        t1, t2, held = self._t1, self._t2, self._held
        num_promoted = 0
        for key in keys:
            if key in t2:
                del t2[key]
                held[key] = True
            elif key in t1:
                del t1[key]
                held[key] = promote
                num_promoted += promote
            elif promote and not held[key]:
                held[key] = True
                num_promoted += 1
        self._num_t1 -= num_promoted
        self._num_t2 += num_promoted

    def on_evictable(self, keys: Sequence[Hashable]) -> None:
        """Append each key to its list as the most recent."""
        t1, t2, pop = self._t1, self._t2, self._held.pop
        for key in keys:
            if pop(key):
                t2[key] = None
            else:
                t1[key] = None

    def on_remove(self, keys: Sequence[Hashable]) -> None:
        """Forget where ``keys`` were to go."""
        for key in keys:
            self._pending.pop(key, None)

    def victim(self, incoming: Hashable | None) -> Hashable:
        """REPLACE of the paper: take from t1 while it exceeds its target, else from t2."""
        t1, t2, num_t1 = self._t1, self._t2, self._num_t1
        from_t1 = num_t1 > self.target_t1 or (
            num_t1 == self.target_t1 and num_t1 > 0 and self._pending.get(incoming, False)
        )
        if t1 and (from_t1 or not t2 or not self.owner.is_leaf(next(iter(t2)))):
            key, _ = t1.popitem(False)
            self._num_t1 -= 1
            self._b1[key] = None
        else:
            key, _ = t2.popitem(False)
            self._num_t2 -= 1
            self._b2[key] = None
        return key

    def victims(self, count: int, incoming: Hashable | None) -> list[Hashable]:
        """Name as many as t1 gives before its target is reached, else one."""
        above_target = self._num_t1 - int(self.target_t1)
        count = min(count, above_target, len(self._t1))
        if count < 1:
            return [self.victim(incoming)]
        pop = self._t1.popitem
        keys = [pop(False)[0] for _ in range(count)]
        self._num_t1 -= count
        b1 = self._b1
        for key in keys:
            b1[key] = None
        return keys

    def lists(self) -> dict[str, int]:
        """Return the sizes of the four lists, what is held included."""
        return {
            "t1": self._num_t1,
            "t2": self._num_t2,
            "b1": len(self._b1),
            "b2": len(self._b2),
        }

    def _drop_ghosts(self, inserted: Sequence[Hashable]) -> None:
        """Drop the ghosts of what is back, and the oldest where there is no room for them.

        A block comes back past its own ghost where a preempted request computes it again: that is
        no sign of anything, so the ghost goes and the target stays.
        """
        b1, b2, num_t1 = self._b1, self._b2, self._num_t1
        for ghosts in (b1, b2):
            if not ghosts.keys().isdisjoint(inserted):
                for key in inserted:
                    ghosts.pop(key, None)
        pop = b1.popitem
        for _ in range(min(num_t1 + len(b1) - self.capacity, len(b1))):
            pop(False)  # the oldest
        for _ in range(num_t1 + self._num_t2 + len(b1) + len(b2) - 2 * self.capacity):
            (b2 or b1).popitem(False)
