"""The replay: known hit rates, the definition of a hit, concurrency, refusals and bounds."""

from __future__ import annotations

import pytest

from octavo.cache.policies import POLICIES, find_policy
from octavo.errors import ConfigError, TraceError
from octavo.simulate.experiment import Experiment
from octavo.simulate.loaders import load_trace
from octavo.simulate.optimal import min_hits
from octavo.simulate.replay import EngineReplay, InfiniteReplay, PlainReplay
from octavo.simulate.trace import KeyTrace, LengthTrace, PromptTrace, TraceRequest
from simulate.trace_files import CONVERSATION_400, load_shared, only_if_long_tests_are_wanted


def request(*blocks, num_tokens=None):
    num_tokens = 16 * len(blocks) if num_tokens is None else num_tokens
    return TraceRequest(list(blocks), num_tokens, 0, 0.0)


def engine(capacity, policy="lru", **more):
    return EngineReplay(capacity, find_policy(policy), block_size=16, **more)


def admit(replay, *requests):
    """Admit ``requests``; return the hits of each."""
    hits = []
    for each in requests:
        before = replay.counts.hits
        replay.admit(each)
        hits.append(replay.counts.hits - before)
    return hits


def rate(trace, replay):
    for each in trace.requests:
        replay.admit(each)
    return 100 * replay.counts.hits / replay.counts.references


# Requests one at a time, prefix-contiguous hits of blocks in per cent, two digits.
CONVERSATION = {
    ("fifo", "forward"): {
        1000: 4.34,
        2000: 5.17,
        5000: 10.53,
        10000: 18.15,
        30000: 29.44,
        50000: 33.35,
    },
    ("lru", "forward"): {
        1000: 4.45,
        2000: 5.37,
        5000: 11.04,
        10000: 21.12,
        30000: 32.57,
        50000: 35.46,
    },
    ("lru", "reverse"): {
        1000: 4.45,
        2000: 5.43,
        5000: 11.18,
        10000: 21.16,
        30000: 32.57,
        50000: 35.46,
    },
    ("arc", "reverse"): {
        1000: 5.29,
        2000: 7.15,
        5000: 11.31,
        10000: 22.26,
        30000: 31.11,
        50000: 34.37,
    },
    ("lru", "engine"): {
        1000: 4.45,
        2000: 5.43,
        5000: 11.18,
        10000: 21.16,
        30000: 32.57,
        50000: 35.46,
    },
    ("arc", "engine"): {1000: 5.29, 2000: 7.15, 10000: 22.26, 30000: 31.11, 50000: 34.37},
}


@pytest.mark.parametrize(
    ("policy", "rules", "capacity", "expected"),
    [(*who, capacity, x) for who, row in CONVERSATION.items() for capacity, x in row.items()],
)
def test_the_conversation_trace_has_these_hit_rates(policy, rules, capacity, expected):
    if capacity != 5000 and (policy, capacity) != ("arc", 10000):
        only_if_long_tests_are_wanted()
    trace = load_shared("kv/mooncake_conversation.jsonl.gz")
    kind = find_policy(policy)
    if rules == "engine":
        replay = EngineReplay(capacity, kind, block_size=512)
    else:
        replay = PlainReplay(capacity, kind, block_size=512, reverse=rules == "reverse")
    assert rate(trace, replay) == pytest.approx(expected, abs=0.02)


def test_the_bounds_of_the_conversation_trace():
    trace = load_shared("kv/mooncake_conversation.jsonl.gz")
    infinite = InfiniteReplay(block_size=512)
    assert rate(trace, infinite) == pytest.approx(36.64, abs=0.005)
    tokens = 100 * infinite.counts.token_hits / infinite.counts.tokens
    assert tokens == pytest.approx(37.36, abs=0.005)
    keys = [block for each in trace.requests for block in each.blocks]
    for capacity, expected in ((1000, 19.07), (2000, 25.50), (5000, 34.12), (10000, 36.64)):
        best = 100 * min_hits(keys, capacity, may_bypass=True) / len(keys)
        assert best == pytest.approx(expected, abs=0.005)


def test_a_small_real_trace_has_exactly_these_hits():
    trace = load_trace(CONVERSATION_400)
    found = {}
    for policy in POLICIES:
        replay = EngineReplay(3000, find_policy(policy), block_size=512)
        rate(trace, replay)
        replay.cache.check_invariants(list(replay._holding))
        found[policy] = replay.counts.hits
    assert found == {
        "fifo": 471, "lru": 471, "lfu": 475, "slru": 475, "s3fifo": 467, "arc": 475
    }  # fmt: skip


def test_a_hit_needs_everything_before_it():
    replay = engine(4)
    assert admit(replay, request("a", "b"), request("a", "c"), request("a", "b", "d")) == [0, 1, 2]
    plain = PlainReplay(2, find_policy("lru"), block_size=16, reverse=False)
    assert admit(plain, request("a", "b", "c"), request("a", "b", "c")) == [0, 0]
    assert "b" in plain.cache  # cached, and of no use without its head


def test_a_prompt_that_is_cached_as_a_whole_counts_all_its_blocks():
    assert admit(engine(4), request("a", "b"), request("a", "b")) == [0, 2]


def test_the_token_hits_of_a_partial_tail_are_its_tokens():
    replay = engine(4)
    admit(replay, request("a", "b", num_tokens=20), request("a", "b", num_tokens=20))
    assert (replay.counts.tokens, replay.counts.token_hits) == (40, 20)


def test_a_prompt_longer_than_the_cache_is_refused_and_counted():
    replay = engine(2)
    assert admit(replay, request("a", "b", "c"), request("a")) == [0, 0]
    assert (replay.counts.refused, replay.counts.requests, replay.counts.references) == (1, 2, 4)


def test_a_prompt_of_no_full_block_is_counted():
    replay = engine(2)
    assert admit(replay, request(num_tokens=5)) == [0]
    assert replay.counts.requests == 1


def test_the_tail_of_a_prompt_dies_before_its_head():
    replay = engine(3)
    assert admit(replay, request("a", "b", "c"), request("x"), request("a", "b", "c")) == [0, 0, 2]


def test_what_concurrent_requests_hold_does_not_die():
    alone, together = engine(4), engine(4, concurrency=2)
    requests = [request("a", "b"), request("c", "d"), request("e"), request("c", "d")]
    assert admit(alone, *requests) == admit(together, *requests) == [0, 0, 0, 2]
    assert len(together._holding) == 2
    together.cache.check_invariants(list(together._holding))


def test_room_is_made_by_letting_the_oldest_go():
    replay = engine(4, concurrency=8)
    assert admit(replay, request("a", "b"), request("c", "d"), request("e", "f", "g")) == [0, 0, 0]
    assert [job.block_keys for job in replay._holding] == [["e", "f", "g"]]
    assert replay.counts.let_go_early == 2
    replay.cache.check_invariants(list(replay._holding))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("concurrency", [1, 5])
def test_no_policy_exceeds_its_bounds(policy, concurrency):
    trace = load_trace(CONVERSATION_400)
    infinite = InfiniteReplay(block_size=512)
    rate(trace, infinite)
    keys = [block for each in trace.requests for block in each.blocks]
    for capacity in (300, 2000):
        replay = EngineReplay(
            capacity, find_policy(policy), block_size=512, concurrency=concurrency
        )
        rate(trace, replay)
        replay.cache.check_invariants(list(replay._holding))
        best = min_hits(keys, capacity, may_bypass=True)
        assert replay.counts.hits <= best <= infinite.counts.hits
    ample = EngineReplay(len(keys), find_policy(policy), block_size=512)
    rate(trace, ample)
    assert ample.counts.hits == infinite.counts.hits
    assert ample.counts.token_hits == infinite.counts.token_hits
    assert ample.counts.evictions == 0


class TestExperiment:
    def run(self, trace, **more):
        plan = {"policies": [POLICIES["lru"], POLICIES["arc"]], "capacities": [2, 3], **more}
        return Experiment(**plan).run(trace)

    prompts = PromptTrace("p", 16, [request("a", "b"), request("a", "c"), request("a", "b")])
    keys = KeyTrace("k", [1, 2, 1, 3, 1])

    def test_one_result_for_each_capacity_and_policy_and_then_the_bounds(self):
        found = [(r.policy, r.capacity, r.counts.hits) for r in self.run(self.prompts)]
        assert found == [
            ("lru", 2, 2), ("arc", 2, 2), ("min", 2, 3),
            ("lru", 3, 3), ("arc", 3, 3), ("min", 3, 3),
            ("infinite", None, 3),
        ]  # fmt: skip

    def test_keys_go_through_the_policy_alone(self):
        found = [(r.policy, r.capacity, r.rules, r.counts.hits) for r in self.run(self.keys)]
        assert ("lru", 2, "keys", 2) in found
        assert ("infinite", None, "bound", 2) in found

    def test_a_policy_from_outside_answers_for_its_faults(self):
        class Broken(POLICIES["lru"]):
            __module__ = "somebody.else"
            name = "broken"

            def victims(self, count, incoming):
                raise KeyError("lost")

        for trace in (self.prompts, self.keys):
            with pytest.raises(ConfigError, match=r"'broken' of somebody\.else failed .*lost"):
                self.run(trace, policies=[Broken])

    def test_without_bounds(self):
        assert [r.policy for r in self.run(self.keys, with_bounds=False)] == ["lru", "arc"] * 2

    @pytest.mark.parametrize("trace", [prompts, keys])
    def test_progress_adds_up(self, trace):
        steps = []
        plan = Experiment(policies=[POLICIES["lru"]], capacities=[2, 3], progress=steps.append)
        plan.run(trace)
        assert sum(steps) == plan.num_steps(trace)

    def test_lengths_cannot_be_replayed(self):
        with pytest.raises(TraceError, match="of use for generating load"):
            self.run(LengthTrace("l", []))

    def test_a_record_has_every_number(self):
        record = self.run(self.prompts, policies=[POLICIES["lru"]], capacities=[3])[0].record()
        assert record == {
            "trace": "p", "policy": "lru", "capacity": 3, "references": 6, "hits": 3,
            "hit_rate": 0.5, "tokens": 96, "token_hits": 48, "token_hit_rate": 0.5,
            "evictions": 0, "requests": 3, "refused": 0, "let_go_early": 0,
            "rules": "engine", "mix": None,
        }  # fmt: skip
