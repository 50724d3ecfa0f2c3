"""Sliding windows: what left every window is let go, and what is shared is still right."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from cache.cache_driver import CacheDriver, make_request
from octavo.cache.policies import POLICIES
from octavo.cache.window import NO_BLOCK, first_needed_block, usable_prefix

SIZE = 4


class _Node:
    def __init__(self, block_id: int) -> None:
        self.block_id = block_id


@pytest.mark.parametrize(
    ("position", "num_full", "window", "needed"),
    [
        (0, 0, 8, 0),
        (7, 1, 8, 0),  # sees 0 to 7
        (8, 2, 8, 0),  # sees 1 to 8: block 0 still
        (11, 2, 8, 1),  # sees 4 to 11
        (40, 10, 8, 8),  # sees 33 to 40
        (40, 10, 1, 9),  # sees itself; the last full block is held all the same
        (40, 10, 100, 0),
    ],
)
def test_the_first_block_that_is_needed(position, num_full, window, needed) -> None:
    assert first_needed_block(position, num_full, window, SIZE) == needed


@pytest.mark.parametrize("window", [1, 3, 4, 5, 8, 9, 30])
@pytest.mark.parametrize("hollow", [(), (0,), (1,), (0, 1), (2,), (4,), (0, 3)])
def test_a_prefix_is_usable_if_its_end_sees_no_hollow_block(window, hollow) -> None:
    nodes = [_Node(NO_BLOCK if i in hollow else i) for i in range(5)]
    for num_tokens in (20, 21, 23):
        found = usable_prefix(nodes, num_tokens, window, SIZE)
        fits = []
        for blocks in range(6):
            position = min(blocks * SIZE, num_tokens - 1)
            seen = {p // SIZE for p in range(max(0, position - window + 1), position)}
            seen |= {blocks - 1}  # held for its place in the tree
            if not (seen & set(hollow) & set(range(blocks))):
                fits.append(blocks)
        assert found == max(fits)


def test_a_long_request_holds_no_more_than_its_window() -> None:
    driver = CacheDriver(16, SIZE, window=8)
    request = make_request("r", range(6))
    driver.admit(request)
    driver.compute(request)
    for token in range(60):
        request.output_token_ids.append(token)
        assert driver.grow(request, 1)
        driver.compute(request)
        held = [block for block in request.block_table if block != NO_BLOCK]
        assert len(held) <= 3
    assert driver.cache.stats.evictions > 0  # 66 tokens went through a pool of 64
    assert sum(driver.cache.pool.ref_counts) <= 3
    driver.free(request)


def test_without_prefix_caching_what_leaves_the_window_is_free_at_once() -> None:
    driver = CacheDriver(8, SIZE, window=8, enable_prefix_caching=False)
    request = make_request("r", range(20))
    driver.admit(request)
    driver.compute(request)
    assert request.block_table[:3] == [NO_BLOCK] * 3
    assert driver.cache.pool.num_free == 8 - 2
    driver.free(request)
    assert driver.cache.pool.num_free == 8


def test_a_shared_beginning_survives_the_one_who_left_it_behind() -> None:
    driver = CacheDriver(16, SIZE, window=8)
    long = make_request("long", range(24))
    driver.admit(long)
    driver.compute(long)
    assert long.num_dropped_blocks == 4
    other = make_request("other", [*range(8), 99, 98])
    assert driver.cache.match_prefix(other).num_tokens == 8
    driver.serve(other)
    driver.free(long)


def test_a_hollow_block_is_filled_again_and_no_match_reads_over_it() -> None:
    driver = CacheDriver(6, SIZE, window=8)
    long = make_request("long", range(24))
    driver.admit(long)
    driver.compute(long)  # holds its last two blocks of six; four may die
    driver.serve(make_request("filler", range(100, 112)))
    tree, keys = driver.cache.tree, long.block_keys
    hollow = [tree.get(key).block_id == NO_BLOCK for key in keys]
    assert any(hollow[:4])
    assert not any(hollow[4:])
    again = make_request("again", range(24))
    match = driver.cache.match_prefix(again)
    assert match.num_tokens == 23  # its end sees held blocks only
    assert match.first == 4
    short = make_request("short", range(9))
    assert driver.cache.match_prefix(short).num_tokens < 8
    driver.free(long)
    driver.serve(short)  # fills what was hollow
    assert tree.get(keys[0]) is None or tree.get(keys[0]).block_id != NO_BLOCK


class WindowMachine(RuleBasedStateMachine):
    """Requests of all kinds under windows of all sizes; what is read is checked in the driver."""

    policy = POLICIES["lru"]
    window = 5
    num_blocks, size = 12, 2

    def __init__(self) -> None:
        super().__init__()
        self.driver = CacheDriver(
            self.num_blocks, self.size, window=self.window, policy=self.policy
        )
        self.waiting: list = []
        self.names = count()

    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=20),
        chunk=st.integers(1, 20),
        scored=st.sampled_from([None, None, 0]),
    )
    def arrive(self, tokens, chunk, scored) -> None:
        self.start(make_request(f"r{next(self.names)}", tokens, prompt_logprobs=scored), chunk)

    @precondition(lambda self: self.waiting)
    @rule(chunk=st.integers(1, 20))
    def resume(self, chunk) -> None:
        self.start(self.waiting.pop(0), chunk)

    @precondition(lambda self: self.driver.requests)
    @rule(data=st.data(), chunk=st.integers(1, 6), token=st.integers(0, 1))
    def advance(self, data, chunk, token) -> None:
        request = data.draw(st.sampled_from(self.driver.requests))
        if not request.num_uncomputed_tokens:
            request.output_token_ids.append(token)
        chunk = min(chunk, request.num_uncomputed_tokens)
        if self.driver.grow(request, chunk):
            self.driver.compute(request, chunk)

    @precondition(lambda self: any(not r.num_uncomputed_tokens for r in self.driver.requests))
    @rule(data=st.data())
    def fork(self, data) -> None:
        ready = [r for r in self.driver.requests if not r.num_uncomputed_tokens]
        parent = data.draw(st.sampled_from(ready))
        child = parent.new_choice(1)
        child.output_token_ids += parent.output_token_ids
        self.driver.cache.fork(parent, child)
        child.num_computed_tokens = parent.num_computed_tokens
        self.driver.requests.append(child)
        self.driver.check()

    @precondition(lambda self: self.driver.requests)
    @rule(data=st.data(), ends=st.booleans())
    def leave(self, data, ends) -> None:
        request = data.draw(st.sampled_from(self.driver.requests))
        self.driver.free(request)
        if not ends:
            request.num_computed_tokens = 0
            self.waiting.append(request)

    @rule()
    def clear(self) -> None:
        self.driver.cache.clear()
        self.driver.check()

    def start(self, request, chunk) -> None:
        match = self.driver.cache.match_prefix(request)
        chunk = min(chunk, request.num_tokens - match.num_tokens)
        if self.driver.admit(request, chunk):
            self.driver.compute(request, chunk)
        else:
            self.waiting.append(request)

    def teardown(self) -> None:
        for request in list(self.driver.requests):
            self.driver.free(request)
        self.driver.cache.clear()
        assert self.driver.cache.pool.num_free == self.num_blocks
        assert len(self.driver.cache.tree) == 0


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("window", [1, 2, 5, 9])
def test_random_requests_read_only_their_own(policy: str, window: int) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    machine = type("M", (WindowMachine,), {"policy": POLICIES[policy], "window": window})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=15, stateful_step_count=40, deadline=None)
    )
