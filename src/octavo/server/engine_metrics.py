"""What a scrape reads from the engine: its running counts and its present state.

Read in whatever thread serves the scrape while the engine's computes: integers only, and lists only
by one call of C, which no other thread interrupts. So the numbers of one scrape may be those of two
neighbouring steps. A policy from outside is asked nothing: it expects one thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.registry import Collector

from octavo.cache.policies.arc import ARC
from octavo.server.families import FamilyMaker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.metrics_core import Metric

    from octavo.engine.core import EngineCore

STEP_PARTS: Final = ("schedule", "build_batch", "forward", "sample", "update")
"""The fields of `StepSeconds`, in the order in which they come."""


class EngineMetrics(Collector):
    """The metrics of one `EngineCore` that need no event, in vLLM's names and in ours."""

    def __init__(self, core: EngineCore, model_name: str) -> None:
        self._core = core
        self._vllm = FamilyMaker(model_name=model_name)
        self._octavo = FamilyMaker()
        self._attention_seconds = 0.0

    def collect(self) -> Iterable[Metric]:
        """Return the families as they are now."""
        yield from self._requests()
        yield from self._prompt_tokens()
        yield from self._cache()
        yield from self._blocks()
        yield from self._policy()
        yield from self._time()

    # -- vLLM's names -----------------------------------------------------------------------------

    def _requests(self) -> Iterator[Metric]:
        make, scheduler = self._vllm, self._core.scheduler
        waiting = list(scheduler.waiting)
        num_deferred = sum(1 for request in waiting if request.blocked_on is not None)
        yield make.gauge(
            "vllm:num_requests_running",
            "Requests in the batch, each choice counted.",
            len(scheduler.running),
        )
        yield make.gauge(
            "vllm:num_requests_waiting",
            "Requests that wait to be computed, preempted ones among them.",
            len(waiting),
        )
        yield make.gauges(
            "vllm:num_requests_waiting_by_reason",
            "Requests that wait: for seats or blocks (capacity), or for a prefix that another "
            "request is computing (deferred).",
            ("reason",),
            {("capacity",): len(waiting) - num_deferred, ("deferred",): num_deferred},
        )
        yield make.counter(
            "vllm:num_preemptions",
            "Times that a request lost its blocks and was put back.",
            scheduler.num_preemptions,
        )
        yield make.counter(
            "vllm:corrupted_requests",
            "Requests that failed because their logits held NaN or infinity.",
            scheduler.num_corrupted,
        )
        yield make.gauges(
            "vllm:engine_sleep_state",
            "1 for the state in which the engine is: always awake.",
            ("sleep_state",),
            {("awake",): 1, ("weights_offloaded",): 0, ("discard_all",): 0},
        )

    def _prompt_tokens(self) -> Iterator[Metric]:
        make, stats = self._vllm, self._core.cache.stats
        hits, queries = stats.prefix_hits, stats.prefix_queries  # in this order: hits <= queries
        for name in ("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries"):
            yield make.counter(name, "Prompt tokens looked up in the cache, at admission.", queries)
        for name in ("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits"):
            yield make.counter(name, "Those of them that were found.", hits)
        yield make.counter(
            "vllm:prompt_tokens", "Prompt tokens of the requests that were admitted.", queries
        )
        yield make.counter("vllm:prompt_tokens_cached", "Those of them that were cached.", hits)
        yield make.counters(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens of the requests that were admitted, by where they came from.",
            ("source",),
            {
                ("local_compute",): queries - hits,
                ("local_cache_hit",): hits,
                ("external_kv_transfer",): 0,
            },
        )
        yield make.counter(
            "vllm:prompt_tokens_recomputed",
            "Tokens computed again after a preemption; counted nowhere else.",
            stats.recomputed_tokens,
        )

    def _cache(self) -> Iterator[Metric]:
        make, cache = self._vllm, self._core.cache
        usage = cache.pool.num_referenced / cache.pool.num_blocks
        for name in ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"):
            yield make.gauge(name, "Share of the blocks that requests hold, 0 to 1.", usage)
        facts = {
            "block_size": cache.block_size,
            "num_gpu_blocks": cache.pool.num_blocks,
            "enable_prefix_caching": cache.enable_prefix_caching,
            "sliding_window": cache.window,
            "eviction_policy": cache.policy.name,
        }
        yield make.gauges(
            "vllm:cache_config_info",
            "How the KV cache is made; always 1.",
            tuple(facts),
            {tuple(map(str, facts.values())): 1},
        )

    # -- ours -------------------------------------------------------------------------------------

    def _blocks(self) -> Iterator[Metric]:
        make, cache = self._octavo, self._core.cache
        pool, stats = cache.pool, cache.stats
        num_used, num_references, num_free = pool.num_referenced, pool.num_references, pool.num_free
        num_cached = max(0, pool.num_blocks - num_used - num_free)
        yield make.gauge(
            "octavo_kv_cache_utilization",
            "Share of the blocks that requests hold, 0 to 1.",
            num_used / pool.num_blocks,
        )
        yield make.gauges(
            "octavo_kv_blocks",
            "Blocks that requests hold (used), that only the cache keeps (cached), and the rest.",
            ("state",),
            {("used",): num_used, ("cached",): num_cached, ("free",): num_free},
        )
        yield make.counter(
            "octavo_blocks_allocated", "Blocks handed out to be written.", pool.num_allocated
        )
        yield make.gauge(
            "octavo_prefix_share_ratio",
            "Share of what requests hold that needs no block of its own, 0 to 1.",
            _ratio(num_references - num_used, num_references),
        )
        hits, queries = stats.block_hits, stats.block_queries
        yield make.gauge(
            "octavo_block_hit_ratio",
            "Share of the full prompt blocks so far that were cached, 0 to 1.",
            _ratio(hits, queries),
        )
        yield make.gauge(
            "octavo_queue_depth", "Requests that wait.", len(self._core.scheduler.waiting)
        )

    def _policy(self) -> Iterator[Metric]:
        make, cache = self._octavo, self._core.cache
        policy = cache.policy
        by_list = policy.num_evicted or {"all": cache.stats.evictions}
        yield make.counters(
            "octavo_evictions",
            "Blocks that the policy gave up, by the list that gave them.",
            ("policy", "list"),
            {(policy.name, name): count for name, count in by_list.items()},
        )
        is_arc = isinstance(policy, ARC)
        yield make.gauges(
            "octavo_arc_target",
            "Blocks that ARC would give to what was asked for once.",
            (),
            {(): policy.target_t1} if isinstance(policy, ARC) else {},
        )
        yield make.gauges(
            "octavo_arc_list_blocks",
            "Sizes of ARC's lists; b1 and b2 are ghosts.",
            ("list",),
            {(name,): size for name, size in policy.lists().items()} if is_arc else {},
        )

    def _time(self) -> Iterator[Metric]:
        make, core = self._octavo, self._core
        yield make.summaries(
            "octavo_step_seconds",
            "Seconds of each part of the engine's steps.",
            ("part",),
            {(part,): (core.num_steps, getattr(core.seconds, part)) for part in STEP_PARTS},
        )
        attention = self._read_attention()
        yield make.summaries(
            "octavo_attention_seconds",
            "Seconds of attention in the engine's steps, waiting for other threads included.",
            (),
            {} if attention is None else {(): (core.num_steps, attention)},
        )
        yield make.counter(
            "octavo_kv_clamped",
            "Keys and values that were too large for float16 and were stored as the largest.",
            core.num_clamped,
        )

    def _read_attention(self) -> float | None:
        """Return the seconds so far, None from a backend that does not count them.

        Ticks are turned into seconds by a rate that moves a little, and a step may be under way:
        the sum must not fall, or Prometheus would take it for a restart.
        """
        counters = getattr(self._core.backend, "counters", None)
        if counters is None:
            return None
        of_phases = counters().phase_seconds()
        seconds = sum(sum(of_phases[name]) for name in ("attention", "merge"))
        self._attention_seconds = max(self._attention_seconds, seconds)
        return self._attention_seconds


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
