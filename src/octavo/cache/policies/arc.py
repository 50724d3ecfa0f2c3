"""ARC: shares the cache between what was asked for once and what was asked for again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.cache.eviction import EvictionPolicy
from octavo.cache.policies.key_queue import KeyQueue

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
        self.num_evicted = {"t1": 0, "t2": 0}
        self.target_t1 = 0.0
        self._t1 = KeyQueue()
        self._t2 = KeyQueue()
        self._b1 = KeyQueue()
        self._b2 = KeyQueue()
        self._held: dict[Hashable, bool] = {}
        """What some request holds, and whether it is in t2."""
        self._pending: dict[Hashable, bool] = {}
        """Missed keys that will enter t2, and whether their ghost was in b2."""
        self._num_t1 = 0  # what is held is counted too
        self._num_t2 = 0

    @property
    def num_evictable(self) -> int:
        """How many keys `evict` could name, one after another."""
        return len(self._t1.keys) + len(self._t2.keys)

    def on_miss(self, keys: Sequence[Hashable]) -> None:
        """Learn from the ghosts among ``keys``; they, and their ancestors, will enter t2."""
        b1, b2, pending = self._b1.keys, self._b2.keys, self._pending
        if b1.isdisjoint(keys) and b2.isdisjoint(keys):
            return
        num_b1, num_b2, target, last = len(b1), len(b2), self.target_t1, 0
        from_b1, from_b2 = [], []
        for i, key in enumerate(keys):
            if key in b1:
                target = min(target + max(1.0, num_b2 / num_b1), float(self.capacity))
                num_b1 -= 1
                from_b1.append(key)
                pending[key] = False
            elif key in b2:
                target = max(target - max(1.0, num_b1 / num_b2), 0.0)
                num_b2 -= 1
                from_b2.append(key)
                pending[key] = True
            else:
                continue
            last = i
        self.target_t1 = target
        self._b1.remove(from_b1)
        self._b2.remove(from_b2)
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
        t1, t2, held = self._t1.keys, self._t2.keys, self._held
        was_t1 = [key for key in keys if key in t1]
        was_t2 = [key for key in keys if key in t2]
        num_promoted = 0
        if promote:
            num_promoted = len(was_t1)
            if len(was_t1) + len(was_t2) < len(keys):
                num_promoted += sum(1 for key in keys if held.get(key) is False)
            held.update(dict.fromkeys(keys, True))
        else:
            held.update(dict.fromkeys(was_t1, False))
            held.update(dict.fromkeys(was_t2, True))
        if was_t1:
            self._t1.remove(was_t1)
        if was_t2:
            self._t2.remove(was_t2)
        self._num_t1 -= num_promoted
        self._num_t2 += num_promoted

    def on_evictable(self, keys: Sequence[Hashable]) -> None:
        """Append each key to its list as the most recent."""
        pop = self._held.pop
        was_t2 = [pop(key) for key in keys]
        if True not in was_t2:
            self._t1.extend(keys)
        elif False not in was_t2:
            self._t2.extend(keys)
        else:
            pairs = list(zip(keys, was_t2, strict=True))
            self._t1.extend([key for key, in_t2 in pairs if not in_t2])
            self._t2.extend([key for key, in_t2 in pairs if in_t2])

    def on_remove(self, keys: Sequence[Hashable]) -> None:
        """Forget where ``keys`` were to go."""
        for key in keys:
            self._pending.pop(key, None)

    def victim(self, incoming: Hashable | None) -> Hashable:
        """Name the next."""
        return self.victims(1, incoming)[0]

    def victims(self, count: int, incoming: Hashable | None) -> list[Hashable]:
        """REPLACE of the paper: take from t1 while it exceeds its target, else from t2."""
        t1, t2, num_t1, target = self._t1, self._t2, self._num_t1, self.target_t1
        num_from_t1 = min(num_t1 - int(target), count, len(t1.keys))
        if num_t1 == target > 0 and self._pending.get(incoming, False):
            num_from_t1 = min(1, len(t1.keys))
        if num_from_t1 < 1:
            num_from_t2 = self.owner.num_leaves(t2.oldest(count))
            if num_from_t2 > 0:
                keys = t2.pop_oldest(num_from_t2)
                self._num_t2 -= num_from_t2
                self.num_evicted["t2"] += num_from_t2
                self._b2.extend(keys)
                return keys
            num_from_t1 = 1
        keys = t1.pop_oldest(num_from_t1)
        self._num_t1 -= num_from_t1
        self.num_evicted["t1"] += num_from_t1
        self._b1.extend(keys)
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
        b1, b2 = self._b1, self._b2
        b1.discard(inserted)
        b2.discard(inserted)
        num_b1, num_b2 = len(b1.keys), len(b2.keys)
        excess = min(self._num_t1 + num_b1 - self.capacity, num_b1)
        if excess > 0:
            b1.pop_oldest(excess)
            num_b1 -= excess
        excess = self._num_t1 + self._num_t2 + num_b1 + num_b2 - 2 * self.capacity
        if excess > 0:
            b2.pop_oldest(min(excess, num_b2))
            b1.pop_oldest(max(excess - num_b2, 0))
