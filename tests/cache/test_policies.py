"""The eviction policies: the common contract, and what each promises beyond it."""

from __future__ import annotations

import pytest

from cache.fake_engine import FakeEngine
from cache.policy_contract import PolicyContract
from octavo.cache.policies import POLICIES, find_policy
from octavo.cache.policies.arc import ARC
from octavo.cache.policies.fifo import FIFO
from octavo.cache.policies.lfu import LFU
from octavo.cache.policies.lru import LRU
from octavo.cache.policies.s3fifo import S3FIFO
from octavo.cache.policies.slru import SLRU
from octavo.errors import ConfigError


class Flat:
    """An owner whose keys are all leaves."""

    def is_leaf(self, key):
        return True

    def num_leaves(self, keys):
        return len(keys)

    def parent(self, key):
        return None

    def bury(self, keys):
        pass


def flat(policy, capacity):
    return policy(capacity, Flat())


def touch(policy, keys, *, promote=True):
    """Hold and release cached ``keys``, head to tail."""
    policy.on_hit(keys, promote=promote)
    policy.on_evictable(keys[::-1])


def add(policy, keys, parent=None):
    policy.on_miss(keys)
    policy.on_insert(keys, parent)
    policy.on_evictable(keys[::-1])


def drain(policy):
    return policy.evict(policy.num_evictable)


def test_every_policy_is_found_by_its_name():
    assert sorted(POLICIES) == ["arc", "fifo", "lfu", "lru", "s3fifo", "slru"]
    assert find_policy("arc") is ARC


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="'mru'; known are arc, fifo, lfu, lru, s3fifo, slru,"):
        find_policy("mru")


def test_a_policy_of_ones_own_is_found_by_its_module():
    assert find_policy("octavo.cache.policies.arc:ARC") is ARC
    for name, reason in (
        ("no_such_module:X", "No module named .*PYTHONPATH"),
        ("octavo.cache.policies.arc:MRU", "it cannot be imported: .*MRU"),
        (":X", "it cannot be imported"),
        ("collections:OrderedDict", "it is not a class derived from"),
    ):
        with pytest.raises(ConfigError, match=reason):
            find_policy(name)


class Nameless(LRU):
    """It would be reported as LRU."""


class Impostor(LRU):
    name = "arc"


class Blank(LRU):
    name = " "


class Unasked(LRU):
    """LRU names several victims at a time, and never asks for one."""

    name = "unasked"

    def victim(self, incoming):
        raise AssertionError


class Asked(SLRU):
    name = "asked"

    def victim(self, incoming):
        return super().victim(incoming)


def test_a_policy_that_would_not_be_what_it_seems_is_refused():
    for kind, reason in (
        (Nameless, "it has no name of its own"),
        (Blank, "it has no name of its own"),
        (Impostor, "its name is 'arc', which is another policy's"),
        (Unasked, r"its victim\(\) would never be asked: LRU decides in victims\(\)"),
    ):
        with pytest.raises(ConfigError, match=reason):
            find_policy(f"{__name__}:{kind.__name__}")
    assert find_policy(f"{__name__}:Asked") is Asked


class TestFIFO(PolicyContract):
    policy = FIFO

    def test_a_hit_does_not_help(self):
        policy = flat(FIFO, 4)
        for key in "abc":
            add(policy, key)
        touch(policy, "a")
        assert drain(policy) == ["a", "b", "c"]

    def test_what_is_held_at_the_front_keeps_its_place(self):
        policy = flat(FIFO, 4)
        for key in "abc":
            add(policy, key)
        policy.on_hit("a", promote=True)
        assert policy.evict(1) == ["b"]
        assert policy.lists() == {"queue": 1, "set_aside": 1}
        policy.on_evictable("a")
        assert drain(policy) == ["a", "c"]


class TestLRU(PolicyContract):
    policy = LRU

    def test_the_oldest_release_dies_first(self):
        policy = flat(LRU, 4)
        for key in "abc":
            add(policy, key)
        touch(policy, "a")
        assert drain(policy) == ["b", "c", "a"]


class TestLFU(PolicyContract):
    policy = LFU

    def test_the_rarest_dies_first_and_of_equals_the_oldest_release(self):
        policy = flat(LFU, 8)
        for key in "abcd":
            add(policy, key)
        for key in "aacb":
            touch(policy, key)
        assert drain(policy) == ["d", "c", "b", "a"]

    def test_a_second_touch_of_the_same_request_is_not_counted(self):
        policy = flat(LFU, 8)
        add(policy, "ab")
        touch(policy, "a", promote=False)
        touch(policy, "b")
        assert drain(policy) == ["a", "b"]

    def test_a_count_dies_with_its_block(self):
        policy = flat(LFU, 8)
        add(policy, "a")
        touch(policy, "a")
        drain(policy)
        add(policy, "b")
        add(policy, "a")
        assert drain(policy) == ["b", "a"]

    def test_counts_stop_at_their_limit(self):
        policy = flat(LFU, 8)
        add(policy, "a")
        add(policy, "b")
        for _ in range(3000):
            touch(policy, "a")
        for _ in range(2000):
            touch(policy, "b")
        assert drain(policy) == ["a", "b"]


class TestSLRU(PolicyContract):
    policy = SLRU

    def test_what_was_hit_outlives_what_was_not(self):
        policy = flat(SLRU, 10)
        for key in "abcd":
            add(policy, key)
        touch(policy, "a")
        assert policy.lists() == {"probation": 3, "protected": 1}
        assert drain(policy) == ["b", "c", "d", "a"]
        assert policy.num_evicted == {"probation": 3, "protected": 1}

    def test_the_oldest_protected_goes_back_on_probation(self):
        policy = flat(SLRU, 5)  # 4 may be protected
        add(policy, "abcde")
        for key in "abcde":
            touch(policy, key)
        assert policy.lists() == {"probation": 1, "protected": 4}
        assert drain(policy) == ["a", "b", "c", "d", "e"]

    def test_a_second_touch_of_the_same_request_protects_nothing(self):
        policy = flat(SLRU, 5)
        add(policy, "a")
        touch(policy, "a", promote=False)
        assert policy.lists()["protected"] == 0


class TestS3FIFO(PolicyContract):
    policy = S3FIFO

    def test_one_hit_is_not_enough_to_leave_the_small_queue_and_two_are(self):
        policy = flat(S3FIFO, 40)
        for key in "abc":
            add(policy, key)
        touch(policy, "a")
        for _ in range(2):
            touch(policy, "b")
        assert policy.evict(2) == ["a", "c"]
        assert policy.lists() == {"small": 0, "main": 1, "ghosts": 2}
        assert policy.num_evicted == {"small": 2, "main": 0}

    def test_a_miss_on_a_ghost_enters_main(self):
        policy = flat(S3FIFO, 10)
        add(policy, "a")
        drain(policy)
        add(policy, "a")
        assert policy.lists() == {"small": 0, "main": 1, "ghosts": 0}

    def test_a_resumed_request_does_not_profit_from_its_own_ghosts(self):
        policy = flat(S3FIFO, 10)
        add(policy, "a")
        drain(policy)
        policy.on_insert("a", None)
        assert policy.lists() == {"small": 1, "main": 0, "ghosts": 0}

    def test_an_aborted_request_leaves_nothing_pending(self):
        policy = flat(S3FIFO, 10)
        add(policy, "a")
        drain(policy)
        policy.on_miss("a")
        policy.on_remove("a")
        policy.on_insert("a", None)
        assert policy.lists() == {"small": 1, "main": 0, "ghosts": 0}

    def test_main_goes_round_once_for_each_hit(self):
        policy = flat(S3FIFO, 10)
        for key in "ab":
            add(policy, key)
        drain(policy)
        for key in "ab":
            add(policy, key)
        touch(policy, "a")
        assert policy.evict(1) == ["b"]
        assert policy.num_evicted == {"small": 2, "main": 1}


class TestARC(PolicyContract):
    policy = ARC

    def test_a_hit_moves_to_t2_and_t1_gives_while_it_exceeds_its_target(self):
        policy = flat(ARC, 4)
        for key in "abcd":
            add(policy, key)
        touch(policy, "a")
        assert policy.lists() == {"t1": 3, "t2": 1, "b1": 0, "b2": 0}
        assert policy.evict(2) == ["b", "c"]
        assert policy.lists() == {"t1": 1, "t2": 1, "b1": 2, "b2": 0}
        assert policy.num_evicted == {"t1": 2, "t2": 0}

    def test_a_ghost_in_b1_raises_the_target_and_one_in_b2_lowers_it(self):
        policy = flat(ARC, 4)
        for key in "abcd":
            add(policy, key)
        for key in "abc":
            touch(policy, key)
        assert policy.evict(3) == ["d", "a", "b"]
        assert policy.lists() == {"t1": 0, "t2": 1, "b1": 1, "b2": 2}
        policy.on_miss("d")
        assert policy.target_t1 == 2.0  # |b2| / |b1|
        policy.on_insert("d", None)
        policy.on_evictable("d")
        policy.on_miss("a")
        assert policy.target_t1 == 1.0  # at least 1
        assert policy.lists() == {"t1": 0, "t2": 2, "b1": 0, "b2": 1}

    def test_the_tie_of_replace_goes_to_t1_for_a_ghost_of_b2_only(self):
        def at_a_tie():
            policy = flat(ARC, 3)
            policy.target_t1 = 1.0
            for key in "abc":
                add(policy, key)
            touch(policy, "b")
            touch(policy, "c")
            assert policy.lists() == {"t1": 1, "t2": 2, "b1": 0, "b2": 0}
            return policy

        policy = at_a_tie()
        assert policy.evict(1, "x") == ["b"]
        policy = at_a_tie()
        policy._b2.extend("x")
        policy.on_miss("x")
        policy.target_t1 = 1.0
        assert policy.evict(1, "x") == ["a"]

    def test_the_target_stays_between_nothing_and_the_capacity(self):
        policy = flat(ARC, 2)
        policy._b1.extend("abcdef")
        for key in "abcdef":
            policy.on_miss(key)
        assert policy.target_t1 == 2.0
        policy._b2.extend("uvwxyz")
        for key in "uvwxyz":
            policy.on_miss(key)
        assert policy.target_t1 == 0.0

    def test_the_ancestors_of_a_ghost_enter_t2_with_it(self):
        policy = flat(ARC, 8)
        policy._b1.extend("c")
        add(policy, "abcd")
        assert list(policy._t2) == ["c", "b", "a"]
        assert list(policy._t1) == ["d"]

    def test_a_key_behind_a_parent_in_t1_stays_in_t1(self):
        policy = flat(ARC, 8)
        add(policy, "a")
        policy.on_hit("a", promote=False)
        policy._b1.extend("b")
        policy.on_miss("b")
        policy.on_insert("b", "a")
        assert policy.lists() == {"t1": 2, "t2": 0, "b1": 0, "b2": 0}

    def test_a_second_touch_of_the_same_request_keeps_the_list(self):
        policy = flat(ARC, 8)
        add(policy, "ab")
        touch(policy, "a")
        touch(policy, "ab", promote=False)
        assert list(policy._t1) == ["b"]
        assert list(policy._t2) == ["a"]

    def test_a_resumed_request_does_not_learn_from_its_own_ghosts(self):
        policy = flat(ARC, 4)
        add(policy, "a")
        drain(policy)
        policy.on_insert("a", None)
        assert policy.lists() == {"t1": 1, "t2": 0, "b1": 0, "b2": 0}
        assert policy.target_t1 == 0.0

    def test_an_aborted_request_leaves_nothing_pending(self):
        policy = flat(ARC, 4)
        add(policy, "ab")
        drain(policy)
        policy.on_miss("ab")
        policy.on_remove("ab")
        assert not policy._pending
        policy.on_insert("a", None)
        assert policy.lists()["t2"] == 0

    @pytest.mark.parametrize("capacity", [10, 40, 200])
    def test_the_parent_of_what_is_in_t2_is_in_t2(self, capacity):
        engine = FakeEngine(ARC, capacity, seed=capacity)
        policy = engine.policy
        seen = 0
        for _ in range(3000):
            engine.step()
            in_t2 = set(policy._t2) | {key for key, is_t2 in policy._held.items() if is_t2}
            parents = {engine.parents[key] for key in in_t2} - {None}
            assert parents <= in_t2
            seen += len(parents)
            lists = policy.lists()
            assert lists["t2"] == len(in_t2)
            assert lists["t1"] + lists["t2"] == len(engine.references)
            assert lists["t1"] + lists["b1"] <= capacity
            assert 0.0 <= policy.target_t1 <= capacity
        assert seen > 1000

    def test_nothing_is_pending_once_every_request_has_ended(self):
        engine = FakeEngine(ARC, 30, seed=1)
        for _ in range(2000):
            engine.step()
        for job in list(engine.running):
            engine.release(job)
        assert not engine.policy._pending
        assert not engine.policy._held

    def test_the_oldest_of_t1_dies_where_the_oldest_of_t2_has_a_child(self):
        engine = FakeEngine(ARC, 4, seed=0)
        policy = engine.policy
        head, tail = engine.key(1), engine.key(2)
        engine.references = {head: 0, tail: 0}
        engine.children = {head: 1, tail: 0}
        engine.parents = {head: None, tail: head}
        add(policy, [head, tail])
        touch(policy, [head])
        policy.target_t1 = 4.0  # t2's turn
        assert policy.evict(2) == [tail, head]
