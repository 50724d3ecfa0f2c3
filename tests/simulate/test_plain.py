"""The plain cache and MIN: known answers on known traces, and three independent judges."""

from __future__ import annotations

import random

import pytest

from octavo.cache.policies import POLICIES, find_policy
from octavo.cache.policies.s3fifo import S3FIFO
from octavo.simulate.optimal import min_hits
from octavo.simulate.plain import PlainCache
from simulate import naive
from simulate.synthetic import TRACES
from simulate.trace_files import (
    DATA,
    SHARED,
    load_shared,
    only_if_long_tests_are_wanted,
    read_answers,
    shared,
)

SYNTHETIC = read_answers(DATA / "synthetic_answers.csv")
KNOWN = read_answers(SHARED / "arc/known_answers.csv")


def hits(policy, keys, capacity):
    if policy == "min":
        return min_hits(keys, capacity)
    return PlainCache(capacity, find_policy(policy)).replay(keys)


def row_id(row):
    return f"{row['trace']}-{row['capacity']}"


@pytest.mark.parametrize("row", SYNTHETIC, ids=row_id)
def test_synthetic_traces_have_exactly_these_hits(row):
    keys, capacity = TRACES[row["trace"]](), int(row["capacity"])
    assert len(keys) == int(row["references"])
    assert len(set(keys)) == int(row["unique"])
    for policy in (*POLICIES, "min"):
        assert hits(policy, keys, capacity) == int(row[policy]), policy


def test_the_synthetic_answers_cover_every_policy():
    assert len(SYNTHETIC) == 12
    assert {*POLICIES, "min"} <= set(SYNTHETIC[0])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("policy", [*POLICIES, "min"])
def test_the_papers_own_words_agree(policy, seed):
    """Small random traces against `naive`, at capacities down to one key."""
    rng = random.Random(seed)
    for capacity in (1, 2, 3, 7, 20):
        keys = [int(rng.expovariate(1 / capacity)) + rng.randrange(3) for _ in range(600)]
        judge = naive.optimal if policy == "min" else getattr(naive, policy)
        assert hits(policy, keys, capacity) == judge(keys, capacity), capacity


@pytest.mark.parametrize("capacity", [20, 50, 100])
@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize(
    ("policy", "theirs"),
    [("fifo", "FIFO"), ("lru", "LRU"), ("lfu", "LFU"), ("s3fifo", "S3FIFO"), ("arc", "ARC")],
)
def test_libcachesim_agrees(policy, theirs, name, capacity):
    """S3-FIFO with its defaults: small 0.1, ghosts 0.9, to main after 2 hits; they are ours too.

    Its warm-up is not: `WarmsUpInMain` has it.
    """
    libcachesim = pytest.importorskip(
        "libcachesim", reason="the second judge: pip install libcachesim"
    )
    keys = TRACES[name]()
    cache = getattr(libcachesim, theirs)(capacity)
    request = libcachesim.Request()
    request.obj_size = 1
    count = 0
    for now, key in enumerate(keys):
        request.obj_id, request.clock_time = key + 1, now
        count += cache.get(request)
    kind = WarmsUpInMain if policy == "s3fifo" else find_policy(policy)
    assert PlainCache(capacity, kind).replay(keys) == count


class WarmsUpInMain(S3FIFO):
    """libCacheSim's S3-FIFO: until the first eviction, what finds small full enters main."""

    def __init__(self, capacity, owner):
        super().__init__(capacity, owner)
        self.is_warm = False

    def _enters_main(self, key):
        overflows = not self.is_warm and self._num_small >= self._max_small
        return super()._enters_main(key) or overflows

    def victim(self, incoming):
        self.is_warm = True
        return super().victim(incoming)


@pytest.mark.skipif(not KNOWN, reason=f"known_answers.csv is not in {SHARED}/arc")
@pytest.mark.parametrize("row", KNOWN or [{"trace": "none", "capacity": "0"}], ids=row_id)
def test_the_traces_of_the_papers_have_exactly_these_hits(row):
    """Every row; those of the longest traces only if asked for: they take a minute or two."""
    if int(row["refs"]) > 200_000 and row_id(row) != "mooncake_flat_conversation-5000":
        only_if_long_tests_are_wanted()
    name, keys = row["trace"], known_keys(row["trace"])
    assert len(keys) == int(row["refs"])
    assert len(set(keys)) == int(row["unique"]), name
    capacity = int(row["capacity"])
    assert hits("lru", keys, capacity) == int(row["LRU_hits"])
    assert hits("fifo", keys, capacity) == int(row["FIFO_hits"])
    assert hits("arc", keys, capacity) == int(row["ARC_hits_realp"])
    assert hits("min", keys, capacity) == int(row["MIN_hits"])


def known_keys(trace: str) -> list[int]:
    if trace == "OLTP":
        return load_shared("arc/OLTP.lis.zst").keys
    if trace.startswith("lirs_"):
        return load_shared(f"arc/{trace.removeprefix('lirs_')}.trace.gz").keys
    requests = load_shared("kv/mooncake_conversation.jsonl.gz").requests
    return [block for request in requests for block in request.blocks]


def test_a_plain_cache_knows_what_it_holds():
    cache = PlainCache(2, find_policy("lru"))
    assert [cache.reference(key) for key in "abac"] == [False, False, True, False]
    assert "a" in cache
    assert "b" not in cache
    assert len(cache) == 2
    assert cache.num_evictions == 1


def test_min_may_bypass_what_comes_later_than_all_it_has():
    keys = list("abacbda")
    assert min_hits(keys, 1) == 0
    assert min_hits(list("abab"), 1, may_bypass=True) == 1
    assert min_hits(keys, 2, may_bypass=True) >= min_hits(keys, 2)


@pytest.mark.parametrize("name", TRACES)
def test_no_policy_beats_min(name):
    keys = TRACES[name]()
    for capacity in (5, 30, 90):
        best = min_hits(keys, capacity)
        assert best <= min_hits(keys, capacity, may_bypass=True)
        assert all(hits(policy, keys, capacity) <= best for policy in POLICIES)


def test_a_missing_large_trace_skips_with_a_reason():
    with pytest.raises(pytest.skip.Exception, match="OCTAVO_TRACES"):
        shared("arc/no_such_trace.gz")
