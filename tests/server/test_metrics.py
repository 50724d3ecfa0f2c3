"""The exposition: parseable, under names that stay, and every number counted once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from octavo.cache.policies.lru import LRU
from octavo.engine.stats import RequestStats, StepStats
from octavo.sampling.params import SamplingParams
from octavo.server.families import Histogram, RecentRate
from octavo.server.metrics import Metrics
from server.front import Front, prompt

if TYPE_CHECKING:
    from collections.abc import Iterator

# name, type, labels; what is taken away or renamed here breaks somebody's dashboard
GOLDEN_FILE = Path(__file__).with_name("metric_names.txt")
GOLDEN = [line.split() for line in GOLDEN_FILE.read_text().splitlines()]
VLLM = [name.removeprefix("vllm:") for name, *_ in GOLDEN if name.startswith("vllm:")]
PER_REQUEST = [
    name
    for name in VLLM
    if name.startswith(("request_", "e2e_request")) and name != "request_success"
]


def families(metrics: Metrics) -> Iterator[object]:
    body, content_type = metrics.render()
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    return text_string_to_metric_families(body.decode())


# -- the exposition (llama.cpp#17384, #25128) -------------------------------------------------


def test_names_types_and_labels_are_these_and_no_others() -> None:
    front = Front(num_blocks=8, block_size=4)
    for seed in range(4):
        front.add("r", prompt(seed, 9), max_tokens=2)
        front.run()
    front.metrics.http.observe("/x", "GET", 200, 0.1, {"request": 0, "response": 1})
    told = []
    for family in families(front.metrics):
        assert family.documentation
        suffix = {"counter": ["_total"], "gauge": [""], "summary": ["_count", "_sum"]}
        suffixes = suffix.get(family.type, ["_bucket", "_count", "_sum"])
        if family.samples:  # none of attention's: this backend does not count it
            assert {s.name for s in family.samples} == {f"{family.name}{end}" for end in suffixes}
        labels = sorted({label for s in family.samples for label in s.labels} - {"le"})
        if not family.name.startswith("process_"):
            told.append([family.name, family.type, *labels])
    assert sorted(told) == GOLDEN


def test_no_name_comes_or_goes_with_the_policy_or_the_load() -> None:
    front = Front(policy=LRU)
    names = [family.name for family in families(front.metrics)]
    assert {name for name, *_ in GOLDEN} <= set(names)
    front.add("a", prompt(1, 40), max_tokens=3)
    front.run()
    assert [family.name for family in families(front.metrics)] == names


def test_the_values_of_labels_are_vllms() -> None:
    found = {family.name: family for family in families(Front().metrics)}

    def values(name: str, label: str) -> list[str]:
        return [sample.labels[label] for sample in found[f"vllm:{name}"].samples]

    for name in VLLM:
        assert set(values(name, "model_name")) == {"tiny"}
    assert values("request_success", "finished_reason") == ["stop", "length", "abort", "error"]
    assert values("num_requests_waiting_by_reason", "reason") == ["capacity", "deferred"]
    assert values("prompt_tokens_by_source", "source") == [
        *("local_compute", "local_cache_hit", "external_kv_transfer"),
    ]
    (info,) = found["vllm:cache_config_info"].samples
    assert (info.value, info.labels["block_size"], info.labels["num_gpu_blocks"]) == (1, "16", "64")


def test_the_buckets_are_vllms() -> None:
    front = Front(max_model_len=200)
    bounds = {}
    for family in families(front.metrics):
        buckets = [s.labels["le"] for s in family.samples if s.name.endswith("_bucket")]
        bounds[family.name] = [float(bound) for bound in buckets[:-1]]
        assert buckets == [] or buckets[-1] == "+Inf"
    first = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5]
    assert bounds["vllm:time_to_first_token_seconds"] == [*first, 10, 20, 40, 80, 160, 640, 2560]
    lengths = [1, 2, 5, 10, 20, 50, 100, 200]
    assert bounds["vllm:request_prompt_tokens"] == lengths
    assert bounds["vllm:request_params_max_tokens"] == lengths
    assert bounds["vllm:request_params_n"] == [1, 2, 5, 10, 20]
    steps = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]
    assert bounds["vllm:iteration_tokens_total"] == steps
    assert len(bounds["vllm:inter_token_latency_seconds"]) == 19
    assert len(bounds["vllm:e2e_request_latency_seconds"]) == 21


def test_a_model_name_may_be_any_text() -> None:
    metrics = Metrics(Front().core, model_name='a "b"\\\n{c}', registry=CollectorRegistry())
    (family,) = [f for f in families(metrics) if f.name == "vllm:num_requests_running"]
    assert family.samples[0].labels == {"model_name": 'a "b"\\\n{c}'}


def test_the_process_is_measured() -> None:
    found = Front().samples()
    assert found["process_resident_memory_bytes"] > 1e6
    assert found["process_cpu_seconds_total"] > 0


# -- counted once (vllm#43736, #25780, #48860) ------------------------------------------------


def test_fifty_steps_of_waiting_count_a_prompt_once_at_its_admission() -> None:
    front = Front(max_num_seqs=1)
    front.add("first", prompt(1, 48), max_tokens=1)
    front.run()
    front.add("hog", prompt(2, 16), max_tokens=60)
    front.step()
    front.add("waiting", prompt(1, 48), max_tokens=2)
    for _ in range(50):
        front.step()
        found = front.samples()
        assert found["vllm:prefix_cache_queries_total"] == 48 + 16
        assert found["vllm:prefix_cache_hits_total"] == 0
        assert found["vllm:num_requests_running"] == found["vllm:num_requests_waiting"] == 1
        assert found["vllm:num_requests_waiting_by_reason{reason=capacity}"] == 1
        assert found["octavo_queue_depth"] == 1
    front.run()
    found = front.samples()
    assert found["vllm:prefix_cache_queries_total"] == 48 + 16 + 48
    assert found["vllm:prefix_cache_hits_total"] == 47  # one token at least is computed
    assert found["vllm:prompt_tokens_cached_total"] == 47
    assert found["vllm:prompt_tokens_total"] == 112
    assert found["vllm:prompt_tokens_by_source_total{source=local_compute}"] == 65
    assert found["vllm:prompt_tokens_by_source_total{source=local_cache_hit}"] == 47
    assert found["octavo_block_hit_ratio"] == 3 / 7
    assert found["vllm:num_requests_waiting"] == 0


def test_what_a_preemption_lost_is_counted_apart_and_never_as_a_hit() -> None:
    front = Front(num_blocks=8, block_size=4)
    front.add("head", prompt(1, 12), max_tokens=16)
    victim = front.add("victim", prompt(2, 6), max_tokens=12)
    front.run()
    found = front.samples()
    assert victim.num_preemptions == found["vllm:num_preemptions_total"] == 1
    assert found["vllm:prompt_tokens_recomputed_total"] == victim.num_recomputed_tokens > 0
    assert found["vllm:prompt_tokens_total"] == found["vllm:prefix_cache_queries_total"] == 18
    assert found["vllm:prefix_cache_hits_total"] == 0
    assert found["vllm:generation_tokens_total"] == 28


def test_who_waits_for_a_prefix_that_is_being_computed_is_deferred() -> None:
    front = Front(budget=16)
    front.add("first", prompt(1, 64), max_tokens=1)
    front.step()
    front.add("same", prompt(1, 64), max_tokens=1)
    front.step()
    found = front.samples()
    assert found["vllm:num_requests_waiting_by_reason{reason=deferred}"] == 1
    assert found["vllm:num_requests_waiting_by_reason{reason=capacity}"] == 0


# -- requests ---------------------------------------------------------------------------------


def test_every_request_is_in_every_histogram_of_requests_however_it_ended() -> None:
    front = Front(max_num_seqs=1)
    front.add("whole", prompt(1, 20), max_tokens=4)
    front.run()
    front.add("running", prompt(2, 20), max_tokens=100)
    front.step()
    front.step()
    front.add("queued", prompt(3, 20), max_tokens=None)
    front.abort("queued")
    front.abort("running")
    never = RequestStats("never", SamplingParams(), 0, arrived=1.0, ended=2.0)
    front.metrics.on_finished(never)
    refused = RequestStats("no", SamplingParams(), 0, arrived=1.0, ended=2.0, error="no room")
    front.metrics.on_finished(refused)
    found = front.samples()
    assert {name: found[f"vllm:{name}_count"] for name in PER_REQUEST} == dict.fromkeys(
        PER_REQUEST, 5
    )
    reasons = {"stop": 0, "length": 1, "abort": 3, "error": 1}
    for reason, count in reasons.items():
        assert found[f"vllm:request_success_total{{finished_reason={reason}}}"] == count
    assert found["vllm:time_to_first_token_seconds_count"] == 2
    assert found["vllm:inter_token_latency_seconds_count"] == 3 + 1
    assert found["vllm:request_prompt_tokens_sum"] == 60
    assert found["vllm:request_generation_tokens_sum"] == 4 + 2
    assert found["vllm:request_prefill_kv_computed_tokens_sum"] == 40  # not of the queued
    room = front.core.max_model_len
    assert found["vllm:request_params_max_tokens_sum"] == 4 + 100 + (room - 20) + 16 + 16


def test_phases_of_a_request_add_up() -> None:
    front = Front()
    stats = RequestStats(
        *("r", SamplingParams(n=2), 10),
        arrived=1.0, queued=1.5, scheduled=3.5, first_token=4.5, last_token=8.5, ended=9.0,
        num_output_tokens=7, num_choice_tokens=[2, 5], finish_reasons=["stop", "length"],
    )  # fmt: skip
    front.metrics.on_finished(stats)
    aborted = RequestStats(
        "q", SamplingParams(), 10, arrived=1.0, queued=2.0, ended=7.0, finish_reasons=["abort"]
    )
    front.metrics.on_finished(aborted)
    found = front.samples()
    sums = {name: found[f"vllm:{name}_sum"] for name in PER_REQUEST}
    assert sums["request_queue_time_seconds"] == 2.0 + 5.0  # aborted while it waited
    assert sums["request_prefill_time_seconds"] == 1.0
    assert sums["request_decode_time_seconds"] == 4.0
    assert sums["request_inference_time_seconds"] == 5.0
    assert sums["e2e_request_latency_seconds"] == 8.0 + 6.0
    assert sums["request_time_per_output_token_seconds"] == 1.0  # 4 tokens after the longest's 1st
    assert sums["request_generation_tokens"] == 7
    assert sums["request_max_num_generation_tokens"] == 5
    assert sums["request_params_n"] == 3
    assert found["vllm:request_success_total{finished_reason=length}"] == 1
    assert found["vllm:request_success_total{finished_reason=abort}"] == 1


def test_tokens_that_came_together_share_their_gap() -> None:
    front = Front()
    front.metrics.on_token_gap(0.12, 4)
    found = front.samples()
    for name in ("inter_token_latency_seconds", "time_per_output_token_seconds"):
        assert found[f"vllm:{name}_count"] == 4
        assert found[f"vllm:{name}_sum"] == pytest.approx(0.12)
        assert found[f"vllm:{name}_bucket{{le=0.025}}"] == 0
        assert found[f"vllm:{name}_bucket{{le=0.05}}"] == 4


# -- the cache, the policy, the time ----------------------------------------------------------


def test_blocks_by_state_are_the_pool() -> None:
    front = Front(num_blocks=12, block_size=4)
    front.add("gone", prompt(1, 10), max_tokens=1)
    front.run()
    front.add("two", prompt(2, 10), max_tokens=9, n=2)
    front.step()
    found = front.samples()
    states = {s: found[f"octavo_kv_blocks{{state={s}}}"] for s in ("used", "cached", "free")}
    assert states == {"used": 3, "cached": 2, "free": 7}
    assert found["octavo_kv_cache_utilization"] == found["vllm:kv_cache_usage_perc"] == 3 / 12
    assert found["octavo_prefix_share_ratio"] == 0.5  # both choices hold the same three
    assert found["octavo_blocks_allocated_total"] == 3 + 3
    front.run()
    assert front.samples()["octavo_prefix_share_ratio"] == 0


def test_arc_tells_its_lists_its_target_and_who_gave() -> None:
    front = Front(num_blocks=8, block_size=4)
    for seed in (1, 1, 2, 3, 4, 1, 5, 2):
        front.add("r", prompt(seed, 9), max_tokens=1)
        front.run()
    policy, found = front.core.cache.policy, front.samples()
    sizes = {name: found[f"octavo_arc_list_blocks{{list={name}}}"] for name in policy.lists()}
    assert sizes == policy.lists()
    assert found["octavo_arc_target"] == policy.target_t1 > 0
    evicted = [found[f"octavo_evictions_total{{list={name},policy=arc}}"] for name in ("t1", "t2")]
    assert sum(evicted) == front.core.cache.stats.evictions > 0
    assert evicted[0] > 0


def test_a_policy_of_one_list_gives_from_all_and_arcs_are_empty() -> None:
    front = Front(num_blocks=8, block_size=4, policy=LRU)
    for seed in range(5):
        front.add("r", prompt(seed, 9), max_tokens=1)
        front.run()
    found = front.samples()
    evictions = front.core.cache.stats.evictions
    assert found["octavo_evictions_total{list=all,policy=lru}"] == evictions > 0
    assert not [name for name in found if name.startswith("octavo_arc")]


class Outsider(LRU):
    """A policy from outside: asked anything by a scrape, it would be blamed for it."""

    name = "outsider"
    may_be_asked = True

    @property
    def num_evictable(self) -> int:
        assert self.may_be_asked
        return super().num_evictable

    def lists(self) -> dict[str, int]:
        raise AssertionError


def test_a_scrape_asks_a_policy_from_outside_nothing(monkeypatch) -> None:
    front = Front(policy=Outsider)
    front.add("r", prompt(1, 40), max_tokens=1)
    front.run()
    monkeypatch.setattr(Outsider, "may_be_asked", False)
    found = front.samples()
    assert found["octavo_evictions_total{list=all,policy=outsider}"] == 0
    assert found["octavo_kv_blocks{state=cached}"] == 2


def test_seconds_are_those_of_the_steps() -> None:
    front = Front()
    front.add("r", prompt(1, 40), max_tokens=5)
    front.run()
    found, seconds = front.samples(), front.core.seconds
    assert found["octavo_step_seconds_count{part=forward}"] == front.core.num_steps == 5
    for part in ("schedule", "build_batch", "forward", "sample", "update"):
        assert found[f"octavo_step_seconds_sum{{part={part}}}"] == getattr(seconds, part) > 0
    assert "octavo_attention_seconds_sum" not in found  # this backend does not count them


class Ticks:
    """Counters whose rate falls between two scrapes, as a step under way makes it."""

    def __init__(self) -> None:
        self.seconds = [(1.0, 0.25), (0.75, 0.25), (2.0, 0.5)]

    def counters(self) -> Ticks:
        return self

    def phase_seconds(self) -> dict[str, tuple[float, float]]:
        work, waiting = self.seconds.pop(0)
        return {"qkv": (9.0, 9.0), "attention": (work, waiting), "merge": (0.25, 0.0)}


def test_attention_seconds_never_fall(monkeypatch) -> None:
    front = Front()
    monkeypatch.setattr(front.core.backend, "counters", Ticks().counters, raising=False)
    told = [front.samples()["octavo_attention_seconds_sum"] for _ in range(3)]
    assert told == [1.5, 1.5, 2.75]


def test_rates_are_of_the_last_seconds() -> None:
    now = 100.0
    rate = RecentRate(lambda: now)
    assert rate.per_second() == 0
    rate.add(30, 98.5, 99.5)
    assert rate.per_second() == 30 / 1.5
    rate.add(30, 99.5, 100.0)
    rate.add(10, 100.0, 100.0)
    assert rate.per_second() == 70 / 1.5
    now = 108.5
    assert rate.per_second() == 70 / 9.5  # the window began with second 99
    now = 109.5
    assert rate.per_second() == 40 / 9.5
    now = 110.0
    assert rate.per_second() == 0
    rate.add(18, 109.5, 110.0)
    assert rate.per_second() == 18 / 9


def test_steps_make_the_rates_and_the_iterations() -> None:
    front = Front()
    metrics = front.metrics
    metrics._prefill_rate._clock = metrics._decode_rate._clock = lambda: 52.0
    metrics.on_step(StepStats(50.0, 51.0, 300, 2, 0))
    metrics.on_step(StepStats(51.0, 52.0, 0, 6, 0))
    found = front.samples()
    assert found["octavo_prefill_tokens_per_second"] == 150
    assert found["octavo_decode_tokens_per_second"] == 4
    assert found["vllm:iteration_tokens_total_count"] == 2
    assert found["vllm:iteration_tokens_total_sum"] == 308
    assert found["vllm:iteration_tokens_total_bucket{le=8.0}"] == 1
    assert found["vllm:generation_tokens_total"] == 8


def test_a_bucket_holds_its_upper_end() -> None:
    histogram = Histogram([1, 2.5])
    for value in (0, 1, 1.5, 2.5, 3):
        histogram.observe(value)
    assert histogram.buckets() == [("1.0", 2), ("2.5", 4), ("+Inf", 5)]
    assert histogram.sum == 8
