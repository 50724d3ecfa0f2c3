"""A policy from outside, checked at each of its answers: what goes wrong is told as its own fault.

Our own policies are tested and are called directly. One of a user's is asked through a guard that
knows what may die, since it hears the same events. So a wrong victim is refused before its block is
given to anybody, and whatever the policy raises becomes a `PolicyError` that names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo.cache.eviction import EvictionPolicy
from octavo.errors import PolicyError, in_one_line, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from octavo.cache.eviction import CacheOwner


def make_policy(policy: type[EvictionPolicy], capacity: int, owner: CacheOwner) -> EvictionPolicy:
    """Return a ``policy`` for ``owner``, under guard unless it is one of ours.

    Raises `PolicyError` if one from outside cannot be made.
    """
    if policy.__module__.partition(".")[0] == "octavo":
        return policy(capacity, owner)
    return GuardedPolicy(policy, capacity, owner)


class GuardedPolicy(EvictionPolicy):
    """Stands between a policy and the cache: the policy to the one, the owner to the other.

    After the first fault the policy is told nothing more, and whoever needs it gets the same error:
    its accounts, and perhaps the cache's, are no longer to be trusted. Requests can still let go.
    """

    def __init__(self, policy: type[EvictionPolicy], capacity: int, owner: CacheOwner) -> None:
        super().__init__(capacity, owner)
        self.name = getattr(policy, "name", policy.__name__)
        self._who = f"{shown(self.name)} of {policy.__module__}"
        self._fault: str | None = None
        self._idle: set[Hashable] = set()
        """What nobody holds: exactly this may die."""
        self._policy: EvictionPolicy = self._ask(policy, capacity, self)

    @property
    def num_evictable(self) -> int:
        """How many keys `evict` could name; refused if the policy counts anything else."""
        count = self._ask(getattr, self._policy, "num_evictable")
        if not isinstance(count, int) or count != len(self._idle):
            raise self._blame(
                f"says that num_evictable is {shown(count)}; {len(self._idle)} cached keys are "
                "held by nobody, and it must be that number"
            )
        return len(self._idle)

    def on_miss(self, keys: Sequence[Hashable]) -> None:
        """Pass it on."""
        self._ask(self._policy.on_miss, keys)

    def on_insert(self, keys: Sequence[Hashable], parent: Hashable | None) -> None:
        """Pass it on."""
        self._ask(self._policy.on_insert, keys, parent)

    def on_hit(self, keys: Sequence[Hashable], *, promote: bool) -> None:
        """Note that ``keys`` are held, and pass it on."""
        self._idle.difference_update(keys)
        self._ask(self._policy.on_hit, keys, promote=promote)

    def on_evictable(self, keys: Sequence[Hashable]) -> None:
        """Note that nobody holds ``keys``, and pass it on."""
        self._idle.update(keys)
        if self._fault is None:
            self._ask(self._policy.on_evictable, keys)

    def on_remove(self, keys: Sequence[Hashable]) -> None:
        """Pass it on."""
        if self._fault is None:
            self._ask(self._policy.on_remove, keys)

    def victim(self, incoming: Hashable | None) -> Hashable:
        """Return the policy's next victim, checked."""
        return self.victims(1, incoming)[0]

    def victims(self, count: int, incoming: Hashable | None) -> list[Hashable]:
        """Return the policy's next victims, each of which may die."""
        run = self._ask(self._policy.victims, count, incoming)
        if not isinstance(run, list | tuple) or not 0 < len(run) <= count:
            raise self._blame(
                f"answered victims({count}, ...) with {shown(run)}; it must be a list of at least "
                f"one and at most {count} keys"
            )
        for key in run:
            if not self._is_idle(key):
                raise self._blame(
                    f"named {shown(key)} as a victim, which may not die: it is not cached, or a "
                    "request holds it"
                )
            self._idle.remove(key)
        num_leaves = self.owner.num_leaves(run)
        if num_leaves < len(run):
            raise self._blame(
                f"named {shown(run[num_leaves])} as a victim, which may not die before the cached "
                "keys that continue it"
            )
        return list(run)

    def lists(self) -> dict[str, int]:
        """Return what the policy says of its lists."""
        found: dict[str, int] = self._ask(self._policy.lists)
        return found

    # -- what the policy may ask (CacheOwner) -------------------------------------------------

    def is_leaf(self, key: Hashable) -> bool:
        """Ask the cache."""
        return self.owner.is_leaf(key)

    def num_leaves(self, keys: Sequence[Hashable]) -> int:
        """Ask the cache."""
        return self.owner.num_leaves(keys)

    def parent(self, key: Hashable) -> Hashable | None:
        """Ask the cache."""
        return self.owner.parent(key)

    def bury(self, keys: Sequence[Hashable]) -> None:
        """Refuse: `evict` buries what `victims` names."""
        raise self._blame(f"called owner.bury({shown(keys)}); it may only name victims")

    # -- details ------------------------------------------------------------------------------

    def _is_idle(self, key: Any) -> bool:
        try:
            return key in self._idle
        except TypeError:  # it cannot be hashed, so it is no key
            return False

    def _ask(self, ask: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """Call into the policy; what it raises is its fault, but not a user's Ctrl-C."""
        if self._fault is not None:
            raise PolicyError(self._fault)
        try:
            return ask(*args, **more)
        except PolicyError:  # told already, on the way out of a call back
            raise
        except (Exception, SystemExit) as error:
            raise self._blame(f"failed with {in_one_line(error)}") from error

    def _blame(self, what: str) -> PolicyError:
        """Return the error for what the policy did, and remember it."""
        if self._fault is None:
            self._fault = (
                f"the policy {self._who} {what}; docs/write-a-policy.md has the contract, and a "
                "test class that finds what breaks it"
            )
        return PolicyError(self._fault)
