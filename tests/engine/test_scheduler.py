"""The scheduler alone: who computes how much in each step, who waits, who gives way."""

from __future__ import annotations

import pytest

from engine.scheduler_harness import Harness, expected_output
from octavo.cache.manager import KVCacheManager
from octavo.cache.policies.lru import LRU
from octavo.engine.request import FinishReason, RequestStatus
from octavo.engine.scheduler import Scheduler


def prompt(start: int, length: int) -> list[int]:
    return list(range(start, start + length))


# -- sharing out the budget -------------------------------------------------------------------


def test_the_order_is_priority_then_arrival() -> None:
    harness = Harness(max_num_seqs=3)
    for name, priority in [("a", 1), ("b", 0), ("c", 1), ("d", -5), ("e", 0)]:
        harness.add(prompt(ord(name), 2), name=name, priority=priority, max_tokens=3)
    assert list(harness.step()) == ["d/0", "b/0", "e/0"]
    assert [r.request_id for r in harness.scheduler.waiting] == ["a", "c"]
    harness.run()


def test_a_long_prompt_is_computed_in_chunks_beside_those_who_decode() -> None:
    harness = Harness(max_num_batched_tokens=10, max_num_seqs=4)
    harness.add(prompt(0, 3), name="short", max_tokens=6)
    assert harness.step() == {"short/0": 3}
    harness.add(prompt(100, 25), name="long", max_tokens=2)
    plans = [harness.step() for _ in range(4)]
    assert plans[0] == {"short/0": 1, "long/0": 9}
    assert plans[1] == {"short/0": 1, "long/0": 9}
    assert plans[2] == {"short/0": 1, "long/0": 7}
    assert plans[3] == {"short/0": 1, "long/0": 1}
    harness.run()


def test_a_long_prompt_at_the_head_leaves_a_token_for_everybody_behind_it() -> None:
    harness = Harness(max_num_batched_tokens=10, max_num_seqs=4)
    for name in "abc":
        harness.add(prompt(ord(name), 2), name=name, max_tokens=8)
    harness.step()
    harness.add(prompt(0, 40), name="long", priority=-1, max_tokens=1)
    assert harness.step() == {"long/0": 7, "a/0": 1, "b/0": 1, "c/0": 1}
    assert harness.step() == {"long/0": 7, "a/0": 1, "b/0": 1, "c/0": 1}
    harness.run()


def test_no_more_than_max_num_seqs_run_and_an_ended_one_leaves_its_seat_at_once() -> None:
    harness = Harness(max_num_seqs=2)
    for name, max_tokens in [("a", 1), ("b", 3), ("c", 2)]:
        harness.add(prompt(ord(name), 3), name=name, max_tokens=max_tokens)
    assert harness.step() == {"a/0": 3, "b/0": 3}
    assert harness.step() == {"b/0": 1, "c/0": 3}
    assert harness.step() == {"b/0": 1, "c/0": 1}
    assert harness.step() == {}
    assert harness.num_steps == 3


def test_a_static_batch_takes_nobody_until_all_of_it_is_done() -> None:
    harness = Harness(max_num_seqs=2, static=True)
    for name, max_tokens in [("a", 1), ("b", 3), ("c", 2)]:
        harness.add(prompt(ord(name), 3), name=name, max_tokens=max_tokens)
    plans = [harness.step() for _ in range(5)]
    assert plans == [{"a/0": 3, "b/0": 3}, {"b/0": 1}, {"b/0": 1}, {"c/0": 3}, {"c/0": 1}]


def test_a_scored_prompt_is_computed_at_most_64_tokens_a_step() -> None:
    harness = Harness(max_num_batched_tokens=100, block_size=16)
    harness.add(prompt(0, 150), max_tokens=2, prompt_logprobs=0)
    assert [harness.step() for _ in range(4)] == [{"r0/0": n} for n in (64, 64, 22, 1)]


# -- one prefix, many requests ----------------------------------------------------------------


def test_a_burst_with_one_prefix_computes_it_once() -> None:
    harness = Harness(num_blocks=400, block_size=16, max_num_seqs=32, max_num_batched_tokens=256)
    shared = prompt(0, 1024)
    for i in range(32):
        harness.add([*shared, 2000 + i, 3000 + i, 4000 + i], max_tokens=2)
    harness.run()
    assert harness.num_computed["r0"] == 1024 + 3 + 1
    assert [harness.num_computed[f"r{i}"] for i in range(1, 32)] == [3 + 1] * 31
    assert harness.cache.pool.num_allocated == 64 + 32
    assert harness.cache.stats.prefix_hits == 31 * 1024
    assert harness.num_steps <= 8


def test_without_prefix_caching_the_burst_is_served_all_the_same() -> None:
    harness = Harness(max_num_batched_tokens=64, enable_prefix_caching=False)
    for _ in range(3):
        harness.add(prompt(0, 16), max_tokens=6, n=2)
    harness.run()
    assert harness.num_computed == {f"r{i}": 16 + 2 * 5 for i in range(3)}


def test_who_waits_for_a_prefix_lets_others_pass() -> None:
    harness = Harness(max_num_batched_tokens=16)
    harness.add(prompt(0, 12), name="first", max_tokens=4)
    harness.add(prompt(0, 12), name="same", max_tokens=4)
    harness.add(prompt(50, 2), name="other", max_tokens=4)
    assert harness.step() == {"first/0": 12, "other/0": 2}
    assert harness.step() == {"first/0": 1, "same/0": 1, "other/0": 1}
    harness.run()


def test_who_waits_for_a_prefix_computes_it_when_its_owner_is_aborted() -> None:
    harness = Harness(max_num_batched_tokens=8)
    first = harness.add(prompt(0, 24), name="first", max_tokens=4)
    harness.add(prompt(0, 24), name="same", max_tokens=4)
    assert harness.step() == {"first/0": 8}
    harness.scheduler.finish(first, FinishReason.ABORT)
    assert harness.step() == {"same/0": 8}  # 8 were published, 8 more are computed
    assert harness.all_requests[1].num_cached_tokens == 8
    harness.run()


def test_waiting_counts_no_queries() -> None:
    """vllm#43736: one running hog, one waiting, 50 steps."""
    harness = Harness(max_num_seqs=1)
    harness.add(prompt(0, 4), max_tokens=50)
    harness.add(prompt(0, 8), max_tokens=1)
    for _ in range(50):
        harness.step()
    stats = harness.cache.stats
    assert (stats.prefix_queries, stats.prefix_hits) == (4, 0)
    harness.step()
    assert (stats.prefix_queries, stats.prefix_hits) == (12, 4)


# -- choices ----------------------------------------------------------------------------------


def test_choices_share_one_prompt_pass_and_its_blocks() -> None:
    harness = Harness(num_blocks=32)
    harness.add(prompt(0, 10), max_tokens=3, n=4)
    assert harness.step() == {"r0/0": 10}
    choices = harness.scheduler.running
    assert [(r.choice, r.block_table) for r in choices] == [(i, [0, 1, 2]) for i in range(4)]
    assert harness.step() == {f"r0/{i}": 1 for i in range(4)}
    # Three copies of the tail; the last holder writes the original.
    assert harness.last.block_copies == [(2, 3), (2, 4), (2, 5)]
    assert [r.block_table for r in choices] == [[0, 1, 3], [0, 1, 4], [0, 1, 5], [0, 1, 2]]
    harness.run()
    assert harness.num_computed == {"r0": 10 + 4 * 2}
    assert harness.cache.stats.prefix_queries == 10


@pytest.mark.parametrize("caching", [True, False])
def test_choices_without_a_seat_come_later(caching: bool) -> None:
    harness = Harness(max_num_seqs=2, enable_prefix_caching=caching)
    harness.add(prompt(0, 9), max_tokens=4, n=5)
    harness.step()
    assert [r.choice for r in harness.scheduler.running] == [0, 1]
    assert [r.choice for r in harness.scheduler.waiting] == [2, 3, 4]
    assert all(r.num_output_tokens == 1 for r in harness.scheduler.requests())
    harness.run()
    assert len(harness.all_requests) == 5
    assert harness.cache.stats.prefix_queries == 9


def test_one_choice_ends_alone() -> None:
    harness = Harness()
    request = harness.add(prompt(0, 6), max_tokens=5, n=3)
    harness.step()
    _, second, _ = harness.scheduler.running
    harness.scheduler.finish(second, FinishReason.STOP)
    harness.check()
    assert harness.step() == {"r0/0": 1, "r0/2": 1}
    harness.run()
    assert second.num_output_tokens == 1
    assert request.num_output_tokens == 5


def test_choices_in_a_pool_of_one_requests_size_end_one_after_another() -> None:
    harness = Harness(num_blocks=4, max_model_len=16, max_num_seqs=4)
    harness.add(prompt(0, 6), max_tokens=10, n=4)
    harness.run(max_steps=100)
    assert [r.num_output_tokens for r in harness.all_requests] == [10] * 4


# -- when blocks run out ----------------------------------------------------------------------


def test_the_last_in_order_is_preempted_and_resumes_where_it_was() -> None:
    harness = Harness(num_blocks=6, max_model_len=16)
    first = harness.add(prompt(0, 8), max_tokens=8)
    second = harness.add(prompt(50, 8), max_tokens=8)
    while not harness.scheduler.num_preemptions:
        harness.step()
    assert second.status is RequestStatus.PREEMPTED
    assert second.num_preemptions == 1
    tokens = list(second.output_token_ids)
    harness.run()
    assert first.num_preemptions == 0
    assert second.output_token_ids[: len(tokens)] == tokens
    assert second.num_cached_tokens == 0
    stats = harness.cache.stats
    assert stats.recomputed_tokens == second.num_recomputed_tokens > 0
    assert stats.prefix_hits == 0  # what it found of its own on its return is no hit


def test_tokens_are_counted_as_recomputed_only_where_they_are() -> None:
    harness = Harness(num_blocks=8, max_model_len=16)
    first = harness.add(prompt(0, 4), max_tokens=8)
    harness.step()
    second = harness.add(prompt(50, 6), max_tokens=3, priority=1)
    harness.step()
    harness.scheduler._preempt(second)  # 6 computed, 4 of them published
    harness.check()
    harness.step()
    assert second.num_recomputed_tokens == 2
    harness.run()
    assert first.num_recomputed_tokens == 0
    assert harness.cache.stats.recomputed_tokens == 2


def test_preemptions_are_bounded_and_all_answers_right() -> None:
    """vllm#25538, #41951: preempt and resume for ever, nobody ahead."""
    harness = Harness(num_blocks=8, max_model_len=32, max_num_batched_tokens=5, max_num_seqs=5)
    requests = [harness.add(prompt(100 * i, 12), max_tokens=20) for i in range(6)]
    harness.run(max_steps=400)
    assert harness.scheduler.num_preemptions > 0
    # Between two preemptions of one request all ahead of it fill a block or end: 5 x 8 blocks.
    assert max(r.num_preemptions for r in requests) <= 8
    assert requests[0].num_preemptions == 0
    total = sum(r.num_tokens for r in requests)
    assert sum(harness.num_computed.values()) <= 3 * total


def test_the_head_of_the_order_never_gives_way() -> None:
    harness = Harness(num_blocks=5, max_model_len=20, max_num_seqs=4)
    head = harness.add(prompt(0, 4), max_tokens=16)
    for i in range(1, 6):
        harness.add(prompt(100 * i, 4), max_tokens=16)
    harness.run(max_steps=300)
    assert head.num_preemptions == 0
    assert harness.scheduler.num_preemptions > 0


def test_a_request_is_not_let_in_by_its_first_chunk_alone() -> None:
    """It would take the blocks that the running need next, and be preempted having done nothing."""
    harness = Harness(num_blocks=8, max_model_len=32, max_num_batched_tokens=8, max_num_seqs=2)
    harness.add(prompt(0, 8), max_tokens=16)
    harness.step()
    late = harness.add(prompt(100, 20), max_tokens=1)
    harness.step()
    # It wants 5 blocks and 5 are free, but the running one will want one of them in 4 steps.
    assert harness.cache.num_available_blocks == 5
    assert late.status is RequestStatus.WAITING
    harness.run()
    assert harness.scheduler.num_preemptions == 0


# -- priorities -------------------------------------------------------------------------------


def test_a_strictly_higher_priority_takes_the_seat_of_the_last() -> None:
    """vllm#23347, #40004."""
    harness = Harness(max_num_seqs=2)
    low = [
        harness.add(prompt(100 * i, 4), name=f"low{i}", priority=5, max_tokens=6) for i in (1, 2)
    ]
    harness.step()
    harness.add(prompt(0, 4), name="high", priority=1, max_tokens=2)
    assert harness.step() == {"high/0": 4, "low1/0": 1}
    assert low[1].status is RequestStatus.PREEMPTED
    harness.add(prompt(300, 4), name="equal", priority=5, max_tokens=2)
    assert harness.step() == {"high/0": 1, "low1/0": 1}  # an equal priority displaces nobody
    harness.run()
    assert low[0].num_preemptions == 0


def test_a_strictly_higher_priority_takes_blocks_and_budget_too() -> None:
    harness = Harness(num_blocks=6, max_model_len=24, max_num_batched_tokens=8, max_num_seqs=4)
    low = harness.add(prompt(100, 20), name="low", priority=9, max_tokens=2)
    harness.step()
    harness.add(prompt(0, 16), name="high", priority=0, max_tokens=2)
    assert harness.step() == {"high/0": 8}
    assert low.num_preemptions == 1
    harness.run()


def test_a_displacement_that_makes_no_room_is_not_made() -> None:
    """The victim would lose its work, and nobody gain a step by it."""
    harness = Harness(num_blocks=12, max_model_len=48, max_num_batched_tokens=64)
    harness.add(prompt(0, 28), name="equal", priority=0, max_tokens=8)
    low = harness.add(prompt(100, 8), name="low", priority=5, max_tokens=8)
    harness.step()
    harness.add(prompt(200, 40), name="large", priority=0, max_tokens=2)
    assert harness.step() == {"equal/0": 1, "low/0": 1}
    assert low.num_preemptions == 0
    harness.run()


def test_nobody_overtakes_who_was_displaced_in_the_same_step() -> None:
    harness = Harness(num_blocks=12, max_model_len=48, max_num_batched_tokens=64)
    harness.add(prompt(0, 4), name="first", priority=0, max_tokens=20)
    harness.add(prompt(100, 36), name="displaced", priority=5, max_tokens=8)
    harness.step()
    harness.add(prompt(200, 8), name="high", priority=0, max_tokens=8)
    harness.add(prompt(300, 8), name="later", priority=5, max_tokens=8)
    assert list(harness.step()) == ["first/0", "high/0"]
    harness.run()


# -- the end ----------------------------------------------------------------------------------


def test_ends_by_length_model_length_end_token_and_stop_token() -> None:
    harness = Harness(num_blocks=16, max_model_len=12)
    probe = [harness.add(prompt(100 * i, 4), max_tokens=3) for i in range(5)]
    answers = [expected_output(r) for r in probe]
    harness.run()
    harness = Harness(num_blocks=32, max_model_len=12, eos_token_ids=frozenset({answers[0][1]}))
    assert all(answer[0] != answer[1] for answer in (answers[0], answers[2]))
    ends = {
        "end token": harness.add(prompt(0, 4), max_tokens=3),
        "ignored": harness.add(prompt(0, 4), max_tokens=3, ignore_eos=True),
        "stop token": harness.add(prompt(200, 4), max_tokens=3, stop_token_ids=[answers[2][1]]),
        "length": harness.add(prompt(300, 4), max_tokens=3),
        "no limit": harness.add(prompt(400, 4), max_tokens=None),
        "over the limit": harness.add(prompt(400, 4), max_tokens=100),
        "no token": harness.add(prompt(500, 4), max_tokens=0),
    }
    while harness.scheduler.has_requests:
        harness.step()
    found = {
        name: (r.finish_reason.value, r.num_output_tokens, r.stop_reason)
        for name, r in ends.items()
    }
    assert found == {
        "end token": ("stop", 2, None),
        "ignored": ("length", 3, None),
        "stop token": ("stop", 2, answers[2][1]),
        "length": ("length", 3, None),
        "no limit": ("length", 8, None),
        "over the limit": ("length", 8, None),
        "no token": ("length", 0, None),
    }


def test_an_abort_gives_everything_back_whoever_it_hits_and_whenever() -> None:
    harness = Harness(num_blocks=16, max_num_batched_tokens=8, max_num_seqs=2)
    harness.add(prompt(0, 20), max_tokens=4)
    harness.add(prompt(0, 20), max_tokens=4, n=2)
    harness.add(prompt(50, 4), max_tokens=4)
    for request in harness.all_requests[:]:
        harness.step()
        harness.scheduler.finish(request, FinishReason.ABORT)
        harness.scheduler.finish(request, FinishReason.LENGTH)  # a second end changes nothing
        assert request.finish_reason is FinishReason.ABORT
        harness.check()
    harness.run()
    assert harness.cache.num_available_blocks == 16


def test_a_failure_ends_its_request_alone_and_keeps_nothing_that_may_be_at_fault() -> None:
    harness = Harness(num_blocks=16)
    good = harness.add(prompt(50, 6), max_tokens=4)
    bad = harness.add(prompt(0, 8), max_tokens=4)
    harness.errors[bad] = "logits contain NaN"
    harness.step()
    assert (bad.finish_reason, bad.error) == (FinishReason.ERROR, "logits contain NaN")
    again = harness.add(prompt(0, 8), max_tokens=4)
    harness.step()
    assert again.num_cached_tokens == 0
    harness.run()
    assert good.output_token_ids == expected_output(good)


def test_a_scheduler_refuses_settings_under_which_it_could_not_go_on() -> None:
    cache = KVCacheManager(4, 4, LRU)
    with pytest.raises(AssertionError, match="owed one token"):
        Scheduler(cache, max_num_seqs=3, max_num_batched_tokens=2, max_model_len=16)
    with pytest.raises(AssertionError, match="fits alone"):
        Scheduler(cache, max_num_seqs=1, max_num_batched_tokens=2, max_model_len=17)
