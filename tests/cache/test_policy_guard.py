"""A policy from outside: each way to break the contract is refused at its first wrong answer."""

from __future__ import annotations

from collections import OrderedDict

import pytest

from cache.cache_driver import CacheDriver, make_request
from octavo.cache.eviction import EvictionPolicy
from octavo.cache.manager import KVCacheManager
from octavo.cache.policies import POLICIES, find_policy
from octavo.cache.policies.lru import LRU
from octavo.cache.policy_guard import GuardedPolicy, make_policy
from octavo.errors import ConfigError, InvariantError, PolicyError
from octavo.simulate.plain import PlainCache


class Mine(EvictionPolicy):
    """LRU, as a user writes it; what follows does one thing wrong each."""

    name = "mine"

    def __init__(self, capacity, owner):
        super().__init__(capacity, owner)
        self.idle = OrderedDict()

    @property
    def num_evictable(self):
        return len(self.idle)

    def on_insert(self, keys, parent):
        pass

    def on_hit(self, keys, *, promote):
        for key in keys:
            self.idle.pop(key, None)

    def on_evictable(self, keys):
        self.idle.update(dict.fromkeys(keys))

    def victim(self, incoming):
        return self.idle.popitem(last=False)[0]


def doing(**methods):
    return type("Broken", (Mine,), {"__module__": __name__, "name": "broken", **methods})


def raising(error):
    def method(self, *_, **__):
        raise error

    return method


def the_same_again(self, incoming):
    self.first = getattr(self, "first", None) or self.idle.popitem(last=False)[0]
    return self.first


def bury(self, incoming):
    self.owner.bury(["a"])


BROKEN = [
    ({"victim": lambda *_: "nonsense"}, "named 'nonsense' as a victim"),
    ({"victim": lambda *_: None}, "named None as a victim"),
    ({"victim": lambda *_: ["a"]}, r"named \['a'\] as a victim"),
    ({"victim": the_same_again}, "named 'b' as a victim"),
    ({"victim": bury}, r"called owner\.bury\(\['a'\]\)"),
    ({"victim": raising(KeyError("lost"))}, "failed with KeyError: 'lost';"),
    ({"victim": raising(RuntimeError("one\ntwo"))}, "failed with RuntimeError: one two;"),
    ({"victim": raising(AssertionError())}, r"failed with AssertionError\(\);"),
    ({"victim": raising(ConfigError("not mine"))}, "failed with ConfigError: not mine;"),
    ({"on_miss": raising(SystemExit(0))}, "failed with SystemExit: 0;"),
    ({"on_hit": lambda self, keys: None}, "failed with TypeError: .*promote"),
    ({"victims": lambda *_: []}, r"answered victims\(1, \.\.\.\) with \[\]"),
    ({"victims": lambda *_: None}, r"answered victims\(1, \.\.\.\) with None"),
    ({"victims": lambda *_: ["a", "b"]}, r"answered victims\(1, \.\.\.\) with \['a', 'b'\]"),
    ({"num_evictable": property(lambda _: 0)}, "num_evictable is 0; 3 cached keys are held"),
    ({"num_evictable": property(lambda _: 10**9)}, "num_evictable is 1000000000; 3 cached"),
    ({"num_evictable": property(lambda _: 3.0)}, r"num_evictable is 3\.0; 3 cached"),
    ({"on_evictable": lambda *_: None}, "num_evictable is 0; 3 cached"),
]


@pytest.mark.parametrize(("methods", "reason"), BROKEN)
def test_without_a_tree_the_first_wrong_answer_is_refused(methods, reason):
    cache = PlainCache(3, doing(**methods))
    with pytest.raises(
        PolicyError, match=rf"the policy 'broken' of .*test_policy_guard .*{reason}"
    ):
        cache.replay("abcadebf")


def test_a_sound_policy_is_left_alone():
    keys = "abacbdaeacbbdafeabac"
    assert PlainCache(3, Mine).replay(keys) == PlainCache(3, LRU).replay(keys) > 0


def test_ours_are_asked_directly():
    for policy in POLICIES.values():
        assert type(PlainCache(3, policy).policy) is policy
        assert type(KVCacheManager(3, 4, policy).policy) is policy
    assert type(make_policy(Mine, 3, PlainCache(3, LRU))) is GuardedPolicy


def test_a_policy_that_cannot_be_made_is_refused_at_once():
    with pytest.raises(PolicyError, match="failed with ValueError: no;") as caught:
        KVCacheManager(4, 4, doing(__init__=raising(ValueError("no"))))
    assert isinstance(caught.value, ConfigError)
    assert caught.value.param == "eviction_policy"


def test_ctrl_c_is_nobodys_fault():
    with pytest.raises(KeyboardInterrupt):
        PlainCache(1, doing(victim=raising(KeyboardInterrupt()))).replay("ab")


# -- in the engine's cache ------------------------------------------------------------------------


def full_cache(policy):
    """Return a cache of 4 blocks, 2 of which a request holds and 2 of which may die."""
    driver = CacheDriver(4, policy=policy)
    held, gone = (make_request(name, range(at, at + 8)) for name, at in (("h", 0), ("g", 50)))
    for request in (held, gone):
        assert driver.admit(request)
        driver.compute(request)
    driver.free(gone)
    return driver, held, gone


def test_a_held_leaf_is_refused_before_its_block_is_given_to_anybody():
    named = []
    driver, held, _ = full_cache(doing(victim=lambda *_: named[0]))
    named.append(held.block_keys[1])
    with pytest.raises(PolicyError, match="may not die: it is not cached, or a request holds it"):
        driver.admit(make_request("n", range(90, 98)))
    assert len(driver.cache.tree) == 4
    assert driver.cache.pool.num_free == 0


def test_a_parent_is_refused_before_its_children():
    driver, *_ = full_cache(doing(victim=lambda self, _: self.idle.popitem(last=True)[0]))
    with pytest.raises(PolicyError, match="may not die before the cached keys that continue it"):
        driver.admit(make_request("n", range(90, 98)))
    assert len(driver.cache.tree) == 4


def test_after_a_fault_requests_let_go_and_nobody_is_let_in():
    driver, held, gone = full_cache(doing(victim=raising(KeyError("lost"))))
    fresh = make_request("n", range(90, 98))
    for _ in range(2):
        with pytest.raises(PolicyError, match="KeyError: 'lost'"):
            driver.admit(fresh)
    driver.cache.free(fresh)
    driver.cache.free(held)
    assert driver.cache.pool.ref_counts == [0] * 4
    with pytest.raises(PolicyError, match="KeyError: 'lost'"):  # not even to what is cached
        driver.admit(make_request("again", range(50, 58)))
    assert gone.block_table == []


@pytest.mark.parametrize("window", [None, 4])
def test_what_is_held_is_never_buried(window):
    """For our own policies, which no guard watches: it would be our bug."""
    cache = KVCacheManager(4, 4, LRU, window=window)
    request = make_request("r", range(8))
    assert cache.allocate(request, 8, cache.match_prefix(request))
    request.num_computed_tokens = 8
    cache.publish(request)
    with pytest.raises(InvariantError, match="a block that a request holds was to be evicted"):
        cache.bury([request.block_keys[1]])
    assert cache.pool.num_free == 2


def test_what_is_not_cached_is_never_buried_without_a_tree():
    for keys in (["a", "a"], ["x"]):
        cache = PlainCache(2, LRU)
        cache.replay("ab")
        with pytest.raises(InvariantError, match="were cached"):
            cache.bury(keys)


@pytest.mark.parametrize("answer", [[], ["a", "b"]])
def test_a_run_of_the_wrong_length_ends_without_a_guard_too(answer):
    policy = doing(victims=lambda *_: answer)(2, PlainCache(2, LRU))
    policy.on_evictable(["a", "b"])
    with pytest.raises(InvariantError, match=rf"broken: victims\(1, \.\.\.\) named {len(answer)}"):
        policy.evict(1)


# -- when it is looked up -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("methods", "reason"),
    [
        ({"name": "min"}, "which is a bound's"),
        ({"name": "Infinite"}, "which is a bound's"),
        ({"name": "LRU"}, "which is another policy's"),
        ({"name": " lru"}, "printable characters"),
        ({"name": "a\nb"}, r"'a\\nb'; reports show at most 40 printable"),
        ({"name": "\x1b[31mred"}, "printable characters"),
        ({"name": "x" * 41}, "at most 40"),
        ({"evict": lambda *_: []}, r"it overrides evict\(\)"),
    ],
)
def test_what_would_mislead_is_refused_by_find_policy(monkeypatch, methods, reason):
    monkeypatch.setitem(globals(), "Broken", doing(**methods))
    with pytest.raises(ConfigError, match=reason):
        find_policy(f"{__name__}:Broken")
    monkeypatch.setitem(globals(), "Broken", doing(name="x" * 40))
    find_policy(f"{__name__}:Broken")
