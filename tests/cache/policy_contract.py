"""What every eviction policy owes the cache. A policy's test class inherits `PolicyContract`."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, ClassVar

import pytest

from cache.fake_engine import FakeEngine, Key
from octavo.cache.manager import KVCacheManager
from octavo.engine.request import Request
from octavo.sampling.params import SamplingParams

if TYPE_CHECKING:
    from octavo.cache.eviction import EvictionPolicy

NUM_KEYS = 1_000_000
"""Keys told to each policy, over all events, in the long random run: events tell of several."""


class PolicyContract:
    """Inherit, and say which ``policy``."""

    policy: ClassVar[type[EvictionPolicy]]

    def test_it_has_the_name_by_which_a_user_asks_for_it(self):
        assert self.policy.name
        assert self.policy.name == self.policy.name.lower()

    def test_it_has_nothing_to_give_at_first(self):
        policy = FakeEngine(self.policy, 4, seed=0).policy
        assert policy.num_evictable == 0
        assert policy.evict(1) is None
        assert policy.evict(0) == []

    def test_a_million_keys_in_random_events(self):
        """Victims are checked one by one as they die, the accounts every thousand keys."""
        due = 0
        for capacity, max_length in ((12, 10), (60, 10), (400, 40)):
            engine = FakeEngine(self.policy, capacity, seed=capacity, max_length=max_length)
            while engine.num_keys_told < NUM_KEYS / 3:
                engine.step()
                if engine.num_keys_told >= due:
                    engine.check()
                    due = engine.num_keys_told + 1000
            assert len(engine.victims) > 10_000
            due = 0

    @pytest.mark.parametrize("seed", range(5))
    def test_the_accounts_add_up_after_every_event(self, seed):
        engine = FakeEngine(self.policy, 25, seed=seed)
        for _ in range(1000):
            engine.step()
            engine.check()

    def test_the_same_events_lead_to_the_same_decisions(self):
        """... whatever the keys hash to."""
        engines = [FakeEngine(self.policy, 40, seed=7, make_key=make) for make in (int, Key)]
        for engine in engines:
            for _ in range(3000):
                engine.step()
        assert engines[0].victims == engines[1].victims
        assert len(engines[0].victims) > 1000

    def test_an_eviction_that_cannot_be_done_changes_nothing(self):
        plain, asked_too_much = (FakeEngine(self.policy, 40, seed=3) for _ in range(2))
        for _ in range(2000):
            plain.step()
            asked_too_much.step()
            too_many = asked_too_much.policy.num_evictable + 1
            before = asked_too_much.policy.lists()
            assert asked_too_much.policy.evict(too_many, asked_too_much.key(1)) is None
            assert asked_too_much.policy.lists() == before
        assert plain.victims == asked_too_much.victims

    def test_all_that_nobody_holds_can_be_evicted_at_once(self):
        engine = FakeEngine(self.policy, 60, seed=5)
        for _ in range(500):
            engine.step()
        idle = {key for key, count in engine.references.items() if count == 0}
        assert idle
        assert set(engine.policy.evict(len(idle))) == idle
        assert engine.policy.num_evictable == 0

    def test_a_released_chain_dies_tail_first(self):
        engine = FakeEngine(self.policy, 8, seed=0)
        policy = engine.policy
        keys = [engine.key(value) for value in range(5)]
        engine.references = dict.fromkeys(keys, 0)
        engine.children = dict(zip(keys, (1, 1, 1, 1, 0), strict=True))
        engine.parents = dict(zip(keys, (None, *keys[:4]), strict=True))
        policy.on_insert(keys, None)
        policy.on_evictable(keys[::-1])
        for key in reversed(keys):
            assert policy.evict(1) == [key]

    def test_an_aborted_request_leaves_what_it_published(self):
        engine = FakeEngine(self.policy, 8, seed=0)
        policy = engine.policy
        keys = [engine.key(value) for value in range(3)]
        policy.on_miss(keys)
        engine.references = {keys[0]: 0}
        engine.children = {keys[0]: 0}
        engine.parents = {keys[0]: None}
        policy.on_insert(keys[:1], None)
        policy.on_evictable(keys[:1])
        policy.on_remove(keys[1:])
        assert policy.num_evictable == 1
        assert policy.evict(1) == keys[:1]

    @pytest.mark.parametrize("seed", range(2))
    def test_through_the_production_cache(self, seed):
        """Random prompts through `KVCacheManager`, its invariants checked after each operation."""
        rng = random.Random(seed)
        cache = KVCacheManager(20, 2, self.policy)
        running: list[Request] = []
        for _ in range(400):
            if running and rng.random() < 0.5:
                request = running.pop(rng.randrange(len(running)))
                if rng.random() < 0.7:
                    request.num_computed_tokens = request.num_tokens
                    cache.publish(request)
                cache.free(request)
            else:
                tokens = [rng.randrange(2) for _ in range(rng.randint(1, 15))]
                request = Request("", tokens, SamplingParams())
                match = cache.match_prefix(request)
                if cache.awaited_key(request, match) is None and cache.allocate(
                    request, request.num_tokens - match.num_tokens, match
                ):
                    running.append(request)
            cache.check_invariants(running)
        assert cache.stats.evictions > 100
        by_list = cache.policy.num_evicted
        assert not by_list or sum(by_list.values()) == cache.stats.evictions
        for request in running:
            cache.free(request)
        cache.clear()
        assert len(cache.tree) == 0
        assert cache.pool.num_free == 20
