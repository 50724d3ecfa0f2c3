"""The contract of an eviction policy: what it is told, and the one question it answers.

A policy decides who dies when the pool has no free block. It sees keys, never tensors, and it
needs events, not priorities: an adaptive policy learns from misses, and from keys that it evicted
long ago. Events carry the run of keys they concern, always in the order of the prompt (head to
tail) but for `on_evictable`, which comes tail first.

The life of a key:

    on_miss      asked for at an admission and not there; it will be computed
    on_insert    published: its content exists, and its request still holds it
    on_hit       asked for and there; the request that asked holds it from now on
    on_evictable the last request that held it let it go: it may die
    evict        ... and does, when the policy names it
    on_remove    it will not come after all (the request was aborted), or is gone without eviction

Two rules bind every policy. A key that some request holds is never named, and a parent is never
named before its children: whoever holds a block holds its ancestors, and a chain is let go tail
first, so that in any one list ordered by time of release the oldest entry is a leaf. A policy that
orders otherwise asks `CacheOwner.is_leaf`. (Where every layer has a sliding window the second rule
is off: requests let go of their beginnings first, and any block that nobody holds may die.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol, final

from octavo.errors import InvariantError

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence


class CacheOwner(Protocol):
    """What a policy may ask of the cache it serves."""

    def is_leaf(self, key: Hashable) -> bool:
        """Return whether no cached block continues the block of ``key``."""

    def num_leaves(self, keys: Sequence[Hashable]) -> int:
        """Return how many of ``keys``, from the first on, are leaves once those before are gone."""

    def parent(self, key: Hashable) -> Hashable | None:
        """Return the key before ``key``, None if it starts a prompt."""

    def bury(self, keys: Sequence[Hashable]) -> None:
        """Give up the blocks of ``keys``, unreferenced; each is a leaf once those before it go."""


class EvictionPolicy(ABC):
    """Decides which unreferenced block dies. Every event is O(1), amortised, for each key."""

    name: str
    """What reports call it, and users, if it is one of ours; each class has its own."""

    def __init__(self, capacity: int, owner: CacheOwner) -> None:
        self.capacity = capacity
        """How many blocks the cache has, referenced ones included."""
        self.owner = owner
        self.num_evicted: dict[str, int] = {}
        """How many keys died, by the list that gave them, where a policy has several."""

    @property
    @abstractmethod
    def num_evictable(self) -> int:
        """How many keys `evict` could name, one after another: all that nobody holds."""

    def on_miss(self, keys: Sequence[Hashable]) -> None:
        """``keys`` were asked for and are not cached; they follow the keys just hit."""

    @abstractmethod
    def on_insert(self, keys: Sequence[Hashable], parent: Hashable | None) -> None:
        """``keys``, a run behind ``parent``, are cached from now on; a request holds them."""

    @abstractmethod
    def on_hit(self, keys: Sequence[Hashable], *, promote: bool) -> None:
        """A request holds ``keys`` from now on; they were cached.

        ``promote`` is False where the request had touched them before (it was preempted, or it
        computed what another published first): that is no sign of frequency.
        """

    @abstractmethod
    def on_evictable(self, keys: Sequence[Hashable]) -> None:
        """Nobody holds ``keys`` any more; tail first."""

    def on_remove(self, keys: Sequence[Hashable]) -> None:
        """``keys`` were announced by `on_miss` and will not be inserted."""

    @abstractmethod
    def victim(self, incoming: Hashable | None) -> Hashable:
        """Name the key that dies next and forget that it is cached.

        ``incoming`` is the missing key for which room is made, None where it has no key yet.
        Called only while `num_evictable` > 0.
        """

    def victims(self, count: int, incoming: Hashable | None) -> list[Hashable]:  # noqa: ARG002
        """Name up to ``count`` keys, at least one, that die next, children before their parents.

        To be overridden where several can be named without asking `CacheOwner.is_leaf` in between;
        then this alone decides, and `victim` is not asked.
        """
        return [self.victim(incoming)]

    @final
    def evict(self, count: int, incoming: Hashable | None = None) -> list[Hashable] | None:
        """Evict ``count`` keys and return them, or None, and nothing is changed, if that many
        cannot be."""
        if count > self.num_evictable:
            return None
        victims: list[Hashable] = []
        while len(victims) < count:
            run = self.victims(count - len(victims), incoming)
            if not 0 < len(run) <= count - len(victims):
                raise InvariantError(
                    f"{self.name}: victims({count - len(victims)}, ...) named {len(run)} keys"
                )
            self.owner.bury(run)
            victims += run
        return victims

    def lists(self) -> dict[str, int]:
        """Return the sizes of the policy's own lists, by name, for metrics and reports."""
        return {"evictable": self.num_evictable}
