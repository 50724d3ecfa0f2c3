"""KVCacheManager: exact block ids, free lists and reference counts of every way a block can go."""

from __future__ import annotations

import pytest

from cache.cache_driver import CacheDriver, make_request
from octavo.cache.manager import KVCacheManager, PrefixMatch
from octavo.cache.policies.lru import LRU
from octavo.errors import InvariantError


def prompt(start: int, length: int) -> list[int]:
    return list(range(start, start + length))


# -- who gets which block ---------------------------------------------------------------------


def test_a_table_grows_by_a_block_whenever_one_is_full() -> None:
    driver = CacheDriver(8)
    request = make_request("r", prompt(0, 6))
    driver.admit(request)
    assert request.block_table == [0, 1]
    driver.compute(request)
    tables = []
    for token in range(7):
        request.output_token_ids.append(100 + token)
        assert driver.grow(request, 1)
        driver.compute(request)
        tables.append(list(request.block_table))
    # Tokens 6 and 7 fill block 1; tokens 8 to 11 lie in block 2; token 12 opens block 3.
    assert tables == [[0, 1]] * 2 + [[0, 1, 2]] * 4 + [[0, 1, 2, 3]]
    assert request.num_published_blocks == 3


def test_requests_that_share_a_prefix_use_fewer_blocks_than_their_tables_hold() -> None:
    driver = CacheDriver(20)
    shared = prompt(0, 12)
    requests = [make_request(f"r{i}", [*shared, 50 + i, 60 + i]) for i in range(4)]
    for request in requests:
        assert driver.admit(request)
        driver.compute(request)
    assert [r.block_table for r in requests] == [[0, 1, 2, 3 + i] for i in range(4)]
    assert [r.num_cached_tokens for r in requests] == [0, 12, 12, 12]
    assert driver.cache.pool.ref_counts[:8] == [4, 4, 4, 1, 1, 1, 1, 0]
    assert driver.cache.pool.num_allocated == 7 < sum(len(r.block_table) for r in requests) == 16
    for request in requests:
        driver.free(request)
    assert driver.eviction_order == [2, 1, 0]
    assert driver.cache.num_available_blocks == 20


def test_nothing_is_shared_before_it_is_computed() -> None:
    driver = CacheDriver(8)
    first, second = (make_request(name, prompt(0, 8)) for name in "ab")
    driver.admit(first)
    assert len(driver.cache.tree) == 0
    assert driver.cache.match_prefix(second) == PrefixMatch([], 0)
    driver.compute(first, 5)  # one block and a token of the next
    match = driver.cache.match_prefix(second)
    assert ([node.block_id for node in match.nodes], match.num_tokens) == ([0], 4)


def test_partial_blocks_go_to_the_free_list_and_never_into_the_policys_order() -> None:
    driver = CacheDriver(4)
    request = make_request("r", prompt(0, 6))
    driver.admit(request)
    driver.compute(request)
    driver.free(request)
    assert driver.free_list == [1, 2, 3]
    assert driver.eviction_order == [0]
    unfinished = make_request("u", prompt(50, 8))
    driver.admit(unfinished)
    driver.compute(unfinished, 3)  # full blocks, but not computed in full
    driver.free(unfinished)
    assert driver.free_list == [1, 2, 3]
    assert driver.eviction_order == [0]


def test_alternating_prompts_in_a_tight_pool_keep_their_full_blocks() -> None:
    """vllm#42656: a freed partial block pushed a valid cached one out."""
    driver = CacheDriver(5)
    hits = []
    for _ in range(4):
        for start in (0, 100):
            request = driver.serve(make_request("r", prompt(start, 9)))  # 2 full blocks, 1 partial
            hits.append(request.num_cached_tokens)
    assert hits == [0, 0, 8, 8, 8, 8, 8, 8]
    assert driver.cache.stats.evictions == 0


def test_blocks_are_looked_up_once_at_the_first_admission() -> None:
    driver = CacheDriver(16)
    driver.serve(make_request("a", prompt(0, 10)))
    again = make_request("b", prompt(0, 10))
    driver.admit(again)
    driver.free(again)
    driver.admit(again)  # as if it had been preempted
    stats = driver.cache.stats
    assert (stats.block_queries, stats.block_hits) == (4, 2)


def test_a_freed_chain_dies_from_its_tail() -> None:
    driver = CacheDriver(4)
    driver.serve(make_request("r", prompt(0, 16)))
    assert driver.free_list == []
    assert driver.eviction_order == [3, 2, 1, 0]
    other = make_request("o", prompt(50, 7))
    assert driver.admit(other)
    assert other.block_table == [2, 3]  # evicted 3, then 2; the last on the free list goes first
    match = driver.cache.match_prefix(make_request("again", prompt(0, 16)))
    assert [node.block_id for node in match.nodes] == [0, 1]
    assert driver.cache.stats.evictions == 2


def test_what_was_let_go_longest_ago_dies_first_and_a_hit_makes_it_young_again() -> None:
    driver = CacheDriver(3)
    for start in (0, 100, 200):
        driver.serve(make_request("r", prompt(start, 4)))
    assert driver.eviction_order == [0, 1, 2]
    driver.serve(make_request("hit", [*prompt(0, 4), 9]))  # takes block 1, and frees it again
    assert driver.eviction_order == [2, 0]
    assert driver.free_list == [1]


def test_eviction_spares_the_blocks_that_the_same_admission_has_matched() -> None:
    driver = CacheDriver(4)
    driver.serve(make_request("old", prompt(0, 8)))
    driver.serve(make_request("young", prompt(100, 8)))
    # The oldest idle blocks are the very ones that are matched.
    request = make_request("r", [*prompt(0, 8), *prompt(50, 8)])
    assert driver.admit(request)
    assert request.block_table[:2] == [0, 1]
    assert set(request.block_table[2:]) == {2, 3}
    driver.compute(request)


def test_a_request_that_needs_its_own_matched_blocks_gone_is_refused_and_nothing_changes() -> None:
    driver = CacheDriver(4)
    driver.serve(make_request("old", prompt(0, 12)))
    holder = make_request("holder", prompt(100, 4))
    driver.admit(holder)
    # 3 matched idle blocks, 1 held, none free: a fourth block could only be one of the matched.
    request = make_request("r", [*prompt(0, 12), 77])
    assert driver.cache.num_available_blocks == 3
    assert not driver.admit(request)  # compares a snapshot of everything
    assert request.block_table == []
    assert request.num_cached_tokens is None
    assert not driver.grow(holder, 17)


def test_a_reused_block_is_no_longer_found_by_its_old_key() -> None:
    """nano-vllm#163: the stale entry returned another prompt's keys and values."""
    driver = CacheDriver(3)
    first = driver.serve(make_request("first", prompt(0, 12)))
    driver.serve(make_request("second", prompt(100, 12)))  # takes every block
    again = make_request("again", prompt(0, 12))
    assert driver.cache.match_prefix(again).nodes == []
    assert all(driver.cache.tree.get(key) is None for key in first.block_keys)
    driver.serve(again)  # the driver compares the content of every block it reads
    assert again.num_cached_tokens == 0


def test_salts_share_nothing() -> None:
    driver = CacheDriver(8)
    tokens = prompt(0, 8)
    cached = [
        driver.serve(make_request("r", tokens, salt=salt)).num_cached_tokens
        for salt in ("", "X", "Y", "X", "")
    ]
    assert cached == [0, 0, 0, 7, 7]


def test_a_fully_cached_prompt_leaves_one_token_to_compute_and_takes_no_block() -> None:
    driver = CacheDriver(4)
    driver.serve(make_request("first", prompt(0, 8)))
    allocated = driver.cache.pool.num_allocated
    content = dict(driver.kv.slots)
    again = make_request("again", prompt(0, 8))
    assert driver.admit(again)
    assert (again.block_table, again.num_computed_tokens) == ([0, 1], 7)
    driver.compute(again)
    assert again.num_cached_tokens == 7
    assert driver.cache.pool.num_allocated == allocated
    assert driver.kv.slots == content
    driver.free(again)
    assert driver.eviction_order == [1, 0]


@pytest.mark.parametrize("length", [1, 3, 4])
def test_a_prompt_of_one_block_or_less(length: int) -> None:
    driver = CacheDriver(2)
    driver.serve(make_request("first", prompt(0, length)))
    again = driver.serve(make_request("again", prompt(0, length)))
    assert again.num_cached_tokens == (3 if length == 4 else 0)


def test_without_prefix_caching_nothing_is_kept_or_shared() -> None:
    driver = CacheDriver(4, enable_prefix_caching=False)
    for _ in range(2):
        request = driver.serve(make_request("r", prompt(0, 8)))
        assert request.num_cached_tokens == 0
        assert driver.free_list == [0, 1, 2, 3]
    assert request.block_keys == []


# -- the same content computed twice ----------------------------------------------------------


def test_publishing_an_existing_key_repoints_and_frees_the_copy_at_once() -> None:
    driver = CacheDriver(8)
    one, two = (make_request(name, prompt(0, 9)) for name in "ab")
    driver.admit(one)
    driver.admit(two)
    assert (one.block_table, two.block_table) == ([0, 1, 2], [3, 4, 5])
    driver.compute(one)
    driver.compute(two)
    assert two.block_table == [0, 1, 5]
    assert driver.cache.pool.ref_counts == [2, 2, 1, 0, 0, 1, 0, 0]
    assert driver.free_list == [4, 3, 6, 7]
    driver.free(one)
    assert driver.eviction_order == []  # `two` holds them
    driver.free(two)
    assert driver.eviction_order == [1, 0]


def test_a_copy_replaced_by_an_idle_block_takes_it_out_of_the_policys_order() -> None:
    driver = CacheDriver(8)
    one, two = (make_request(name, prompt(0, 8)) for name in "ab")
    driver.admit(one)
    driver.admit(two)
    driver.compute(one)
    driver.free(one)
    assert driver.eviction_order == [1, 0]
    driver.compute(two)
    assert driver.eviction_order == []
    assert two.block_table == [0, 1]


def test_publishing_goes_on_behind_an_adopted_block() -> None:
    driver = CacheDriver(8)
    one = make_request("a", prompt(0, 4))
    two = make_request("b", prompt(0, 8))
    driver.admit(one)
    driver.admit(two)
    driver.compute(one)
    driver.compute(two)
    assert two.block_table == [0, 2]
    head, tail = (driver.cache.tree.get(key) for key in two.block_keys)
    assert tail.parent is head
    assert (head.num_children, tail.num_children) == (1, 0)


# -- forks ------------------------------------------------------------------------------------


def fork(driver: CacheDriver, parent, choice: int, token: int):
    child = parent.new_choice(choice)
    driver.cache.fork(parent, child)
    child.num_computed_tokens = parent.num_computed_tokens
    child.output_token_ids.append(token)
    driver.requests.append(child)
    driver.check()
    return child


def test_a_fork_shares_all_blocks_and_the_first_writers_copy_the_tail() -> None:
    driver = CacheDriver(8)
    parent = make_request("p", prompt(0, 6), n=3)
    driver.admit(parent)
    driver.compute(parent)
    children = [fork(driver, parent, i, 70 + i) for i in (1, 2)]
    parent.output_token_ids.append(70)
    assert driver.cache.pool.ref_counts == [3, 3, 0, 0, 0, 0, 0, 0]

    assert driver.grow(parent, 1)
    assert parent.block_table == [0, 2]
    assert driver.cache._block_copies == [(1, 2)]
    assert driver.grow(children[0], 1)
    assert driver.cache.take_block_copies() == [(1, 2), (1, 3)]
    assert driver.cache.take_block_copies() == []
    driver.kv.copy_blocks([(1, 2), (1, 3)])
    assert driver.grow(children[1], 1)  # the last holder writes in place
    assert [c.block_table for c in children] == [[0, 3], [0, 1]]
    assert driver.cache.pool.ref_counts == [3, 1, 1, 1, 0, 0, 0, 0]
    for request in (parent, *children):
        driver.compute(request)
    for request in (parent, *children):
        driver.free(request)
    assert driver.free_list[:3] == [1, 3, 2]
    assert driver.eviction_order == [0]


def test_a_fork_at_a_blocks_end_copies_nothing() -> None:
    driver = CacheDriver(8)
    parent = make_request("p", prompt(0, 8), n=2)
    driver.admit(parent)
    driver.compute(parent)
    child = fork(driver, parent, 1, 71)
    parent.output_token_ids.append(70)
    assert driver.grow(parent, 1)
    assert driver.grow(child, 1)
    assert driver.cache._block_copies == []
    assert (parent.block_table, child.block_table) == ([0, 1, 2], [0, 1, 3])


def test_a_fork_of_a_fully_cached_prompt_writes_into_no_shared_block() -> None:
    driver = CacheDriver(8)
    driver.serve(make_request("first", prompt(0, 8)))
    parent = make_request("p", prompt(0, 8), n=2)
    driver.admit(parent)
    driver.compute(parent)
    child = fork(driver, parent, 1, 70)
    parent.output_token_ids.append(70)
    for request in (parent, child):
        assert driver.grow(request, 1)
        driver.compute(request)
    assert driver.cache.pool.ref_counts[:2] == [2, 2]


def test_a_copy_on_write_that_finds_no_block_changes_nothing() -> None:
    driver = CacheDriver(2)
    parent = make_request("p", prompt(0, 6), n=2)
    driver.admit(parent)
    driver.compute(parent)
    fork(driver, parent, 1, 71)
    parent.output_token_ids.append(70)
    assert not driver.grow(parent, 1)


def test_equal_forks_come_together_again() -> None:
    driver = CacheDriver(8)
    parent = make_request("p", prompt(0, 6), n=2)
    driver.admit(parent)
    driver.compute(parent)
    child = fork(driver, parent, 1, 70)
    child.output_token_ids.append(71)
    parent.output_token_ids += [70, 71]
    for request in (parent, child):
        assert driver.grow(request, 2)
    for request in (parent, child):
        driver.compute(request)
    assert parent.block_table == child.block_table
    assert driver.cache.pool.ref_counts == [2, 0, 2, 0, 0, 0, 0, 0]
    assert driver.cache.pool.num_free == 6


# -- what is being computed just now ----------------------------------------------------------


def test_a_block_in_flight_is_awaited_until_it_is_published() -> None:
    driver = CacheDriver(8)
    first, second = (make_request(name, prompt(0, 10)) for name in "ab")
    driver.admit(first, 5)
    match = driver.cache.match_prefix(second)
    second.blocked_on = driver.cache.awaited_key(second, match)
    assert second.blocked_on == first.block_keys[0]
    assert driver.cache.is_blocked(second)
    driver.compute(first, 5)
    assert not driver.cache.is_blocked(second)
    match = driver.cache.match_prefix(second)
    assert driver.cache.awaited_key(second, match) == first.block_keys[1]
    driver.grow(first, 5)
    driver.compute(first, 5)
    match = driver.cache.match_prefix(second)
    assert driver.cache.awaited_key(second, match) is None
    assert match.num_tokens == 8
    other = make_request("other", prompt(50, 10))
    assert driver.cache.awaited_key(other, driver.cache.match_prefix(other)) is None


def test_the_table_of_flights_is_cleared_when_its_request_goes() -> None:
    driver = CacheDriver(8)
    first, second = (make_request(name, prompt(0, 8)) for name in "ab")
    driver.admit(first)
    second.blocked_on = driver.cache.awaited_key(second, driver.cache.match_prefix(second))
    assert driver.cache.is_blocked(second)
    driver.free(first)  # aborted or preempted, the manager cannot tell
    assert not driver.cache.is_blocked(second)
    assert driver.cache._in_flight == set()


def test_a_request_that_reads_no_prefix_neither_waits_nor_makes_others_wait() -> None:
    driver = CacheDriver(8)
    plain = make_request("a", prompt(0, 8))
    scored = make_request("b", prompt(0, 8), prompt_logprobs=0)
    driver.admit(plain)
    assert driver.cache.awaited_key(scored, driver.cache.match_prefix(scored)) is None
    driver.compute(plain)
    assert driver.cache.match_prefix(scored) == PrefixMatch([], 0)
    driver.admit(scored)
    assert driver.cache._in_flight == set()
    driver.compute(scored)
    assert scored.block_table == plain.block_table


# -- counting and telling ---------------------------------------------------------------------


def test_a_request_is_counted_once_at_its_first_admission() -> None:
    """vllm#43736: every step of waiting and every resumption counted as a query and a hit."""
    driver = CacheDriver(8)
    driver.serve(make_request("first", prompt(0, 8)))
    request = make_request("r", [*prompt(0, 8), 90])
    for _ in range(50):
        driver.cache.match_prefix(request)  # while it waits
    stats = driver.cache.stats
    assert (stats.prefix_queries, stats.prefix_hits) == (8, 0)
    driver.admit(request)
    assert (stats.prefix_queries, stats.prefix_hits) == (17, 8)
    driver.compute(request)
    driver.free(request)  # preempted ...
    request.num_computed_tokens = 0
    driver.admit(request)  # ... and resumed
    assert (stats.prefix_queries, stats.prefix_hits) == (17, 8)
    assert request.num_cached_tokens == 8


class Spy(LRU):
    """LRU that writes down what it is told."""

    def __init__(self, capacity: int, owner: object) -> None:
        super().__init__(capacity, owner)
        self.events: list[tuple[object, ...]] = []

    def on_miss(self, keys):
        self.events.append(("miss", *keys))

    def on_insert(self, keys, parent):
        self.events.append(("insert", parent, *keys))
        super().on_insert(keys, parent)

    def on_hit(self, keys, *, promote):
        self.events.append(("hit", promote, *keys))
        super().on_hit(keys, promote=promote)

    def on_evictable(self, keys):
        self.events.append(("evictable", *keys))
        super().on_evictable(keys)

    def on_remove(self, keys):
        self.events.append(("remove", *keys))

    def take(self) -> list[tuple[object, ...]]:
        events, self.events = self.events, []
        return events


def spied(num_blocks: int) -> tuple[CacheDriver, Spy]:
    driver = CacheDriver(num_blocks)
    driver.cache.policy = Spy(num_blocks, driver.cache)
    return driver, driver.cache.policy


def test_the_policy_is_told_a_keys_life_in_the_prompts_order() -> None:
    driver, spy = spied(3)
    request = make_request("r", prompt(0, 9))
    driver.admit(request)
    a, b = request.block_keys
    driver.compute(request, 5)
    driver.compute(request, 4)
    driver.free(request)
    assert spy.take() == [
        ("miss", a, b),
        ("insert", None, a),
        ("insert", a, b),
        ("evictable", b, a),
    ]
    again = make_request("again", prompt(0, 12))
    driver.admit(again)
    c = again.block_keys[2]
    driver.compute(again)
    driver.free(again)
    assert spy.take() == [
        ("hit", True, a, b),
        ("miss", c),
        ("insert", b, c),
        ("evictable", c, b, a),
    ]
    other = make_request("other", prompt(50, 8))
    driver.admit(other)
    assert spy.take() == [("miss", *other.block_keys)]


def test_a_resumed_requests_hit_is_no_sign_of_frequency() -> None:
    driver, spy = spied(8)
    request = make_request("r", prompt(0, 9))
    driver.admit(request)
    driver.compute(request)
    driver.free(request)
    request.num_computed_tokens = 0
    spy.take()
    driver.admit(request)
    assert spy.take() == [("hit", False, *request.block_keys)]


def test_adopting_anothers_block_is_no_sign_of_frequency() -> None:
    driver, spy = spied(8)
    one, two = (make_request(name, prompt(0, 8)) for name in "ab")
    driver.admit(one)
    driver.admit(two)
    driver.compute(one)
    spy.take()
    driver.compute(two)
    a, b = one.block_keys
    assert spy.take() == [("hit", False, a), ("hit", False, b)]


def test_only_what_was_announced_is_called_off() -> None:
    """`on_remove`: keys "announced by `on_miss`" that will not be inserted after all."""
    driver, spy = spied(8)
    request = make_request("r", prompt(0, 8))
    announced: list[object] = []
    for _ in range(3):  # preempted again and again before it has computed a block
        driver.admit(request)
        driver.compute(request, 2)
        driver.free(request)
        request.num_computed_tokens = 0
        for kind, *keys in spy.take():
            for key in keys:
                if kind == "miss":
                    announced.append(key)
                elif kind == "remove":
                    announced.remove(key)  # fails where it was not announced, or called off before


def test_the_policy_must_be_able_to_do_what_it_counts() -> None:
    driver = CacheDriver(4)
    driver.serve(make_request("r", prompt(0, 8)))
    driver.cache.policy.evict = lambda count, incoming=None: None
    with pytest.raises(InvariantError, match="cannot evict"):
        driver.cache.clear()


def test_clear_forgets_what_nobody_holds_and_nothing_else() -> None:
    driver = CacheDriver(8)
    driver.serve(make_request("old", prompt(100, 8)))
    held = make_request("held", prompt(0, 9))
    driver.admit(held)
    driver.compute(held)
    driver.cache.clear()
    driver.check()
    assert len(driver.cache.tree) == 2
    assert driver.cache.num_available_blocks == driver.cache.pool.num_free == 5
    assert driver.cache.match_prefix(make_request("o", prompt(100, 8))).nodes == []


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda c, r: c.policy._idle.keys.clear(), "the policy counts 0"),
        (lambda c, r: r.block_table.reverse(), "holds a block that its key does not"),
        (lambda c, r: r.block_table.pop(), "reference counts are not"),
        (lambda c, r: c.tree.get(r.block_keys[0]).__setattr__("num_children", 5), "children"),
        (lambda c, r: c.tree.get(r.block_keys[1]).__setattr__("block_id", 2), "in the tree twice"),
        (lambda c, r: c.tree._nodes.pop(r.block_keys[0]), "parent is not in the tree"),
    ],
)
def test_every_broken_account_is_found(break_it, message: str) -> None:
    driver = CacheDriver(8)
    driver.serve(make_request("idle", prompt(100, 8)))
    request = make_request("r", prompt(0, 9))
    driver.admit(request)
    driver.compute(request)
    break_it(driver.cache, request)
    with pytest.raises(InvariantError, match=message):
        driver.cache.check_invariants([request])


def test_a_key_is_a_whole_prefix_and_no_block_alone() -> None:
    """The same tokens behind another head are another block."""
    driver = CacheDriver(8)
    driver.serve(make_request("r", [*prompt(0, 4), *prompt(50, 4)]))
    other = driver.serve(make_request("o", [*prompt(20, 4), *prompt(50, 4)]))
    assert other.num_cached_tokens == 0
    manager = KVCacheManager(8, 4, LRU, model=b"m")
    assert manager.match_prefix(make_request("x", prompt(0, 8))).nodes == []
