"""MIN: what a cache could do that knew the future. A bound, not a policy that anybody can run."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence


def min_hits(keys: Sequence[Hashable], capacity: int, *, may_bypass: bool = False) -> int:
    """Return the most hits that ``capacity`` keys allow (Belady, IBM Systems Journal 5(2), 1966).

    Every missing key enters, and the one whose next reference lies farthest ahead leaves. With
    ``may_bypass`` a missing key stays out if its own lies farther still.

    Over the blocks of prompts, one prompt after another and each from head to tail, this keeps
    parents: a parent's next reference always comes before its child's. So the cached blocks of a
    prompt are a prefix of it, and the hits are prefix-contiguous.
    """
    num_hits = 0
    cached: set[int] = set()  # the cached keys, each as the position of its next reference
    farthest: list[int] = []  # a heap of those, negated; what was passed lies below all others
    for position, next_use in enumerate(_next_uses(keys)):
        if position in cached:
            cached.remove(position)
            num_hits += 1
        elif len(cached) == capacity:
            if may_bypass and next_use > -farthest[0]:
                continue
            cached.remove(-heappop(farthest))
        cached.add(next_use)
        heappush(farthest, -next_use)
    return num_hits


def _next_uses(keys: Sequence[Hashable]) -> list[int]:
    """Return where each reference's key comes again: a place behind the end, its own, if never."""
    end = len(keys)
    next_uses = [0] * end
    seen: dict[Hashable, int] = {}
    for position in range(end - 1, -1, -1):
        key = keys[position]
        next_uses[position] = seen.get(key, end + position)
        seen[key] = position
    return next_uses
