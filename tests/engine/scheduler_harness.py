"""A scheduler with a cache and a fake model: tokens are a pure function of what came before them.

Every step is held against the rules that no plan may break, and every token against what a run
without any engine would have drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cache.cache_driver import ShadowKV, check_flights, history
from octavo.cache.manager import KVCacheManager
from octavo.cache.policies.lru import LRU
from octavo.engine.request import Request, RequestStatus
from octavo.engine.scheduler import SampledTokens, Scheduler
from octavo.sampling.params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from octavo.engine.scheduler import SchedulerOutput

VOCAB = 97


def fake_token(state: int, choice: int) -> int:
    """Return what the fake model says after the tokens whose hash is ``state``."""
    return hash((state, choice, 7919)) % VOCAB


def expected_output(request: Request) -> list[int]:
    """Return the tokens of ``request`` had it run alone, with no engine at all."""
    twin = request.new_choice(request.choice)
    for _ in range(request.params.max_tokens):
        twin.output_token_ids.append(fake_token(history(twin)[-1], request.choice))
    return twin.output_token_ids


class Harness:
    """Adds requests, takes steps, checks each."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 32,
        max_model_len: int | None = None,
        eos_token_ids: frozenset[int] = frozenset(),
        static: bool = False,
        enable_prefix_caching: bool = True,
    ) -> None:
        self.cache = KVCacheManager(
            num_blocks, block_size, LRU, enable_prefix_caching=enable_prefix_caching
        )
        self.scheduler = Scheduler(
            self.cache,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len or num_blocks * block_size,
            eos_token_ids=eos_token_ids,
            static=static,
        )
        self.kv = ShadowKV(block_size)
        self.arrivals = 0
        self.all_requests: list[Request] = []
        """Every choice that has been seen, ended ones included."""
        self.num_steps = 0
        self.num_computed: dict[str, int] = {}
        """Tokens computed for each request, all its choices together."""
        self.errors: dict[Request, str] = {}
        """What to fail, and how, the next time a token is drawn for it."""

    def add(
        self,
        prompt: Sequence[int],
        *,
        name: str | None = None,
        priority: int = 0,
        salt: str = "",
        **params: object,
    ) -> Request:
        request = Request(
            name or f"r{self.arrivals}",
            list(prompt),
            SamplingParams(**params),
            arrival=self.arrivals,
            priority=priority,
            cache_salt=salt,
        )
        self.arrivals += 1
        self.all_requests.append(request)
        self.scheduler.add_request(request)
        return request

    @property
    def plan(self) -> dict[str, int]:
        """The last step's tokens by request and choice."""
        return {f"{r.request_id}/{r.choice}": n for r, n in self.last.num_scheduled_tokens.items()}

    def step(self) -> dict[str, int]:
        """Take a step and return its plan."""
        scheduler = self.scheduler
        running, preempted = list(scheduler.running), scheduler.num_preemptions
        waiting = list(scheduler.waiting)
        output = self.last = scheduler.schedule()
        self.num_steps += bool(output.num_scheduled_tokens)
        self._check_plan(output)
        if running and scheduler.num_preemptions > preempted:
            newcomers = [r for r in scheduler.running if r not in running]
            head_stays = running[0] in scheduler.running
            assert head_stays or newcomers[0].priority < running[0].priority
        for request in scheduler.waiting:
            if request in waiting and not self.cache.is_blocked(request):
                overtakers = [r for r in waiting if r.order > request.order and r.block_table]
                assert not overtakers, f"{overtakers} overtook {request}"
        self.kv.copy_blocks(output.block_copies)
        for request, count in output.num_scheduled_tokens.items():
            self.kv.write(request, count, self.cache.pool.ref_counts)
        sampled = {}
        for request, count in output.num_scheduled_tokens.items():
            stop = request.num_computed_tokens + count
            self.kv.check(request, stop)
            if request.skips_prefix_reads:  # the core would have scored these now
                scores, num_prompt = request.prompt_logprobs, request.num_prompt_tokens
                scores += [None] * (min(stop + 1, num_prompt) - len(scores))
            name = request.request_id
            self.num_computed[name] = self.num_computed.get(name, 0) + count
            if stop == request.num_tokens:
                sampled[request] = self._draw(request)
        touched = scheduler.update_from_output(output, sampled)
        for request in touched:
            if request not in self.all_requests:
                self.all_requests.append(request)
        self.check()
        return self.plan

    def run(self, max_steps: int = 10_000) -> None:
        """Step until nobody is left; every answer must be what the fake model says."""
        for _ in range(max_steps):
            if not self.scheduler.has_requests:
                break
            self.step()
        assert not self.scheduler.has_requests, f"not done after {max_steps} steps"
        assert self.cache.num_available_blocks == self.cache.pool.num_blocks
        for request in self.all_requests:
            if request.finish_reason.value == "length":
                assert request.output_token_ids == expected_output(request), request

    def _draw(self, request: Request) -> SampledTokens:
        error = self.errors.pop(request, None)
        if error is not None or request.params.max_tokens == 0:
            return SampledTokens(error=error)
        state = history(request)[-1]
        first = request.choice == 0 and not request.output_token_ids
        choices = range(request.params.n) if first else [request.choice]
        tokens = [fake_token(state, choice) for choice in choices]
        return SampledTokens(tokens, [None] * len(tokens))

    def _check_plan(self, output: SchedulerOutput) -> None:
        scheduler, scheduled = self.scheduler, output.num_scheduled_tokens
        assert bool(scheduled) == scheduler.has_requests, "somebody waits and nobody is computed"
        assert sum(scheduled.values()) <= scheduler.max_num_batched_tokens
        assert len(scheduler.running) <= scheduler.max_num_seqs
        assert sorted(scheduled, key=lambda r: r.order) == scheduler.running
        for request, count in scheduled.items():
            assert 1 <= count <= request.num_uncomputed_tokens
            room = len(request.block_table) * self.cache.block_size
            assert request.num_computed_tokens + count <= room
            if request.skips_prefix_reads:
                assert count <= 64

    def check(self) -> None:
        scheduler, cache = self.scheduler, self.cache
        cache.check_invariants(scheduler.requests())
        for queue in (scheduler.running, scheduler.waiting):
            assert queue == sorted(queue, key=lambda r: r.order)
        for request in scheduler.running:
            assert request.status is RequestStatus.RUNNING
            assert request.num_computed_tokens <= request.num_tokens
            self.kv.check(request, request.num_computed_tokens)
        for request in scheduler.waiting:
            assert request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
            assert request.block_table == []
            assert request.num_computed_tokens == 0
        check_flights(cache, scheduler.running)
