"""Who owns a block: the free list and the reference counts. Knows nothing of prefixes.

A block is in one of three states:

    free          on the free list, content meaningless
    referenced    in at least one request's block table (count >= 1)
    idle          count 0 and not on the free list: somebody (the prefix tree) keeps its content
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.errors import InvariantError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class BlockPool:
    """A fixed number of blocks, handed out by id."""

    __slots__ = ("_free", "num_allocated", "num_blocks", "ref_counts")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.ref_counts: list[int] = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack; the lowest id on top
        self.num_allocated = 0
        """Blocks handed out since the start: a counter for the user, never an account."""

    @property
    def num_free(self) -> int:
        """How many blocks can be allocated without evicting anything."""
        return len(self._free)

    @property
    def num_referenced(self) -> int:
        """How many blocks requests hold. O(num_blocks), at the speed of C: for who watches."""
        return self.num_blocks - self.ref_counts.count(0)

    @property
    def num_references(self) -> int:
        """How many blocks requests hold, a shared one counted for each. O(num_blocks), as above."""
        return sum(self.ref_counts)

    def allocate(self, count: int) -> list[int]:
        """Hand out ``count`` free blocks, each referenced once.

        The caller has made sure that so many are free.
        """
        free = self._free
        assert count <= len(free), f"{count} blocks asked for, {len(free)} free"
        if count == 0:
            return []
        block_ids = free[: -count - 1 : -1]
        del free[-count:]
        counts = self.ref_counts
        for block_id in block_ids:
            counts[block_id] = 1
        self.num_allocated += count
        return block_ids

    def share(self, block_ids: Iterable[int]) -> None:
        """Reference each of ``block_ids`` once more; they are referenced or idle now."""
        counts = self.ref_counts
        for block_id in block_ids:
            counts[block_id] += 1

    def release(self, block_ids: Sequence[int]) -> list[int]:
        """Give back one reference to each of ``block_ids``, all different; return how many each
        has left.

        A block whose last reference goes is idle: the caller either keeps its content or frees it.
        """
        counts = self.ref_counts
        left = [counts[block_id] - 1 for block_id in block_ids]
        assert min(left, default=0) >= 0, "a block was released more often than referenced"
        for block_id, count in zip(block_ids, left, strict=True):
            counts[block_id] = count
        return left

    def free(self, block_ids: Iterable[int]) -> None:
        """Put idle blocks on the free list, the last on top: their content is given up."""
        self._free.extend(block_ids)

    def check_invariants(self, *, idle: int) -> None:
        """Raise `InvariantError` unless free + referenced + ``idle`` blocks make the pool."""
        free = set(self._free)
        if len(free) != len(self._free):
            raise InvariantError("a block is on the free list twice")
        if any(not 0 <= block_id < self.num_blocks for block_id in free):
            raise InvariantError("the free list holds an id outside the pool")
        if min(self.ref_counts, default=0) < 0:
            raise InvariantError("a reference count is negative")
        if any(self.ref_counts[block_id] for block_id in free):
            raise InvariantError("a block on the free list is referenced")
        referenced = sum(1 for count in self.ref_counts if count)
        if len(free) + referenced + idle != self.num_blocks:
            raise InvariantError(
                f"{len(free)} free + {referenced} referenced + {idle} idle blocks "
                f"are not the pool's {self.num_blocks}"
            )
