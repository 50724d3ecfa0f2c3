"""BlockPool: exact ids and order, the states of a block, and a model of it under random use."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from octavo.cache.block_pool import BlockPool
from octavo.errors import InvariantError


def test_a_fresh_pool_hands_out_neighbouring_ids_from_the_lowest() -> None:
    pool = BlockPool(6)
    assert pool.allocate(2) == [0, 1]
    assert pool.allocate(0) == []
    assert pool.allocate(3) == [2, 3, 4]
    assert pool.ref_counts == [1, 1, 1, 1, 1, 0]
    assert pool.num_free == 1
    assert pool.num_allocated == 5


def test_the_last_freed_is_handed_out_first() -> None:
    pool = BlockPool(4)
    pool.allocate(4)
    assert pool.release([2, 0, 3]) == [0, 0, 0]
    pool.free([2, 0])
    pool.free([3])
    assert pool.allocate(3) == [3, 0, 2]


def test_a_block_is_held_until_its_last_reference_goes() -> None:
    pool = BlockPool(2)
    block_ids = pool.allocate(1)
    pool.share(block_ids)
    pool.share(block_ids)
    assert (pool.num_referenced, pool.num_references) == (1, 3)
    assert [pool.release([0]), pool.release([0]), pool.release([0])] == [[2], [1], [0]]
    assert (pool.num_referenced, pool.num_references) == (0, 0)
    pool.check_invariants(idle=1)  # not freed yet: somebody keeps its content
    with pytest.raises(InvariantError, match="1 free \\+ 0 referenced \\+ 0 idle"):
        pool.check_invariants(idle=0)
    pool.share(block_ids)  # an idle block can be held again
    assert pool.ref_counts == [1, 0]


@pytest.mark.parametrize(
    "misuse",
    [lambda pool: pool.allocate(3), lambda pool: [pool.release([1]) for _ in range(2)]],
    ids=["allocate too many", "release too often"],
)
def test_misuse_is_caught(misuse) -> None:
    pool = BlockPool(4)
    pool.allocate(2)
    with pytest.raises(AssertionError):
        misuse(pool)


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda pool: pool._free.append(pool._free[0]), "free list twice"),
        (lambda pool: pool._free.append(4), "outside the pool"),
        (lambda pool: pool.ref_counts.__setitem__(0, -1), "negative"),
        (lambda pool: pool.ref_counts.__setitem__(3, 1), "is referenced"),
        (lambda pool: pool._free.pop(), "are not the pool's 4"),
    ],
)
def test_every_broken_account_is_found(break_it, message: str) -> None:
    pool = BlockPool(4)
    pool.allocate(2)
    pool.check_invariants(idle=0)
    break_it(pool)
    with pytest.raises(InvariantError, match=message):
        pool.check_invariants(idle=0)


class PoolMachine(RuleBasedStateMachine):
    """The pool beside the plainest model: a stack and a dict of counts."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(7)
        self.stack = [6, 5, 4, 3, 2, 1, 0]
        self.counts: dict[int, int] = {}

    @rule(count=st.integers(0, 7))
    def allocate(self, count: int) -> None:
        if count > len(self.stack):
            with pytest.raises(AssertionError):
                self.pool.allocate(count)
            return
        expected = [self.stack.pop() for _ in range(count)]
        assert self.pool.allocate(count) == expected
        self.counts |= dict.fromkeys(expected, 1)

    @precondition(lambda self: self.counts)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(sorted(self.counts)))
        self.pool.share((block_id,))
        self.counts[block_id] += 1

    @precondition(lambda self: any(self.counts.values()))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(sorted(b for b, c in self.counts.items() if c)))
        self.counts[block_id] -= 1
        assert self.pool.release([block_id]) == [self.counts[block_id]]

    @precondition(lambda self: 0 in self.counts.values())
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(sorted(b for b, c in self.counts.items() if not c)))
        self.pool.free([block_id])
        del self.counts[block_id]
        self.stack.append(block_id)

    @invariant()
    def agrees(self) -> None:
        assert self.pool.num_free == len(self.stack)
        assert self.pool.ref_counts == [self.counts.get(block_id, 0) for block_id in range(7)]
        self.pool.check_invariants(idle=sum(1 for count in self.counts.values() if not count))


PoolMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestPoolMachine = PoolMachine.TestCase
