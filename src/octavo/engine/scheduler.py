"""Who computes how many tokens in the next step. Knows no tensors, no text and no model.

There is no prefill phase and no decode phase: every request has `num_computed_tokens` chasing
`num_tokens`, and a step shares out one budget of tokens. Chunked prefill, prefix hits and
resumption after preemption are all that same arithmetic.

Requests stand in one order: (priority, arrival, choice). When blocks run out the last in order is
preempted: its blocks go, its tokens stay, and it is computed again later. The head of the order is
never the victim, and it always fits the pool alone, so the engine always makes progress.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

from octavo.engine.request import FinishReason, Request, RequestStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from octavo.cache.manager import KVCacheManager, PrefixMatch
    from octavo.sampling.logits import TokenLogprobs

MAX_SCORED_TOKENS = 64
"""Tokens a step for a request whose prompt is scored: each needs a whole row of logits."""


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """The plan of one step."""

    num_scheduled_tokens: dict[Request, int]
    """How many tokens of each request are computed, in order."""
    block_copies: list[tuple[int, int]]
    """(source, target) blocks to copy, one after another, before the forward pass."""


@dataclass(slots=True)
class SampledTokens:
    """What a step drew for one request: its own token, then one for each choice to fork."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    completing: set[int] = field(default_factory=set)
    """Which of the tokens (their places) end their choice's grammar."""
    error: str | None = None
    is_tainted: bool = False
    """With an error: the arithmetic is at fault, so that what was computed must not be shared."""


class Scheduler:
    """Continuous batching over one `KVCacheManager`.

    With ``static`` no request joins a batch that has begun: what continuous batching is worth is
    the difference to that.
    """

    def __init__(
        self,
        cache: KVCacheManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        eos_token_ids: frozenset[int] = frozenset(),
        static: bool = False,
    ) -> None:
        assert max_num_batched_tokens >= max_num_seqs, "every running request is owed one token"
        assert max_model_len <= cache.pool.num_blocks * cache.block_size, "one request fits alone"
        self.cache = cache
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.eos_token_ids = eos_token_ids
        self.static = static
        self.waiting: list[Request] = []
        """In order; preempted requests among them."""
        self.running: list[Request] = []
        """In order."""
        self.lacked = "room"
        """What those who wait lacked in the last step: ``seats``, or ``room`` for their tokens."""
        self.num_preemptions = 0
        self.num_corrupted = 0
        """Requests that ended because their row of logits held NaN or infinity."""

    # -- requests come and go -------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Let ``request`` wait for its turn."""
        _insert(self.waiting, request)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End ``request`` now and take its blocks; does nothing if it has ended."""
        if request.is_finished:
            return
        (self.running if request.status is RequestStatus.RUNNING else self.waiting).remove(request)
        self.cache.free(request)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason

    def requests(self) -> Iterator[Request]:
        """Iterate over every request that has not ended."""
        yield from self.running
        yield from self.waiting

    @property
    def has_requests(self) -> bool:
        """Whether any request has not ended."""
        return bool(self.running or self.waiting)

    # -- one step ---------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """Share out the step's budget; give and take blocks accordingly."""
        scheduled: dict[Request, int] = {}
        may_admit = not (self.static and self.running)
        self.lacked = "room" if may_admit else "seats"
        self._schedule_running(scheduled)
        if may_admit:
            self._admit_waiting(scheduled)
        return SchedulerOutput(scheduled, self.cache.take_block_copies())

    def update_from_output(
        self, output: SchedulerOutput, sampled: Mapping[Request, SampledTokens]
    ) -> list[Request]:
        """Take in what a step computed: publish, append, fork, finish.

        ``sampled`` has an entry for each request whose last token was computed. Returns the
        requests that got a token or ended, choices that were just forked among them.
        """
        touched: list[Request] = []
        for request, count in output.num_scheduled_tokens.items():
            request.num_computed_tokens += count
            result = sampled.get(request)
            if result is not None and result.error is not None:
                self._fail(request, result.error, result.is_tainted)
                touched.append(request)
                continue
            self.cache.publish(request)
            self.cache.leave_window(request)
            if result is None:
                continue
            choices = self._fork(request, len(result.token_ids) - 1)
            touched.extend(choices)
            if not result.token_ids:
                self.finish(request, FinishReason.LENGTH)
            drawn = zip(choices, result.token_ids, result.logprobs, strict=False)
            for i, (choice, token_id, logprobs) in enumerate(drawn):
                choice.output_token_ids.append(token_id)
                choice.output_logprobs.append(logprobs)
                self._finish_if_done(choice, token_id, completes=i in result.completing)
        return touched

    # -- the running ------------------------------------------------------------------------------

    def _schedule_running(self, scheduled: dict[Request, int]) -> None:
        """Give every running request what the budget allows, at least one token each."""
        budget = self.max_num_batched_tokens
        running = self.running
        i = 0
        while i < len(running):  # shrinks from its end as victims go
            request = running[i]
            owed = len(running) - i - 1  # one token for everybody behind this one
            count = min(request.num_uncomputed_tokens, budget - owed, _limit(request))
            while not self.cache.allocate(request, count):
                victim = running[-1]
                assert victim is not running[0], "the head of the order fits the pool alone"
                self._preempt(victim)
                if victim is request:
                    return
            scheduled[request] = count
            budget -= count
            i += 1

    def _preempt(self, victim: Request) -> None:
        """Take the blocks of ``victim`` and let it wait, its tokens kept, to be computed again."""
        self.running.remove(victim)
        self.cache.free(victim)
        victim.status = RequestStatus.PREEMPTED
        victim.num_preemptions += 1
        victim.num_lost_tokens = victim.num_computed_tokens
        victim.num_computed_tokens = 0
        self.num_preemptions += 1
        _insert(self.waiting, victim)

    # -- the waiting ------------------------------------------------------------------------------

    def _admit_waiting(self, scheduled: dict[Request, int]) -> None:
        """Admit requests in order while seats, budget and blocks last.

        A request of strictly higher priority takes the room of running ones, the last in order
        first, if that makes room enough; nobody behind those it displaced is admitted then.
        """
        first_displaced: Request | None = None
        for request in list(self.waiting):
            if first_displaced is not None and first_displaced.order < request.order:
                return
            if self.cache.is_blocked(request):
                continue
            match = self.cache.match_prefix(request)
            request.blocked_on = self.cache.awaited_key(request, match)
            if request.blocked_on is not None:
                continue  # what it lacks is being computed: in a later step it will be a hit
            victims = self._make_room(request, match, scheduled)
            if victims is None:
                if len(self.running) >= self.max_num_seqs:
                    self.lacked = "seats"
                return
            for victim in victims:
                scheduled.pop(victim, None)
                self._preempt(victim)
                first_displaced = victim
            self._admit(request, match, scheduled)

    def _make_room(
        self, request: Request, match: PrefixMatch, scheduled: dict[Request, int]
    ) -> list[Request] | None:
        """Return who must go, the last in order first, for ``request`` to be admitted; most often
        nobody. None if it cannot be admitted whoever may be displaced for it.

        All tokens of a request must fit beside what the running ones will soon need: admitted by
        its first chunk alone it would be preempted before it has done anything. So preemptions
        are bounded: between two of one request, every running one fills a block.
        """
        cache = self.cache
        seats = self.max_num_seqs - len(self.running)
        budget = self.max_num_batched_tokens - sum(scheduled.values())
        room = cache.num_available_blocks - cache.num_idle(match)
        room -= cache.num_blocks_for(request.num_tokens) - len(match.nodes)
        room -= sum(map(self._claim, self.running))
        victims: list[Request] = []
        while seats <= 0 or budget <= 0 or room < 0:
            if len(victims) == len(self.running):
                return None
            victim = self.running[-1 - len(victims)]
            if victim.priority <= request.priority:
                return None
            victims.append(victim)
            seats += 1
            budget += scheduled.get(victim, 0)
            room += self._claim(victim)
            room += cache.num_freed_by(victims, match) - cache.num_freed_by(victims[:-1], match)
        return victims

    def _claim(self, request: Request) -> int:
        """Return how many blocks more a running request will soon need: for a block of tokens."""
        end = min(request.num_tokens + self.cache.block_size, self._last_length(request))
        return max(0, self.cache.num_blocks_for(end) - len(request.block_table))

    def _admit(self, request: Request, match: PrefixMatch, scheduled: dict[Request, int]) -> None:
        budget = self.max_num_batched_tokens - sum(scheduled.values())
        count = min(request.num_tokens - match.num_tokens, budget, _limit(request))
        has_blocks = self.cache.allocate(request, count, match)
        assert has_blocks, "room was made for all its tokens"
        self.waiting.remove(request)
        if request.status is RequestStatus.PREEMPTED:
            lost = max(0, request.num_lost_tokens - match.num_tokens)
            request.num_recomputed_tokens += lost
            self.cache.stats.recomputed_tokens += lost
        request.status = RequestStatus.RUNNING
        _insert(self.running, request)
        scheduled[request] = count

    # -- the end and the beginning of choices -----------------------------------------------------

    def _fork(self, request: Request, count: int) -> list[Request]:
        """Return ``request`` and ``count`` new choices that share all it has computed."""
        choices = [request]
        for i in range(1, count + 1):
            child = request.new_choice(i)
            choices.append(child)
            if len(self.running) < self.max_num_seqs:
                self.cache.fork(request, child)
                child.num_computed_tokens = request.num_computed_tokens
                child.status = RequestStatus.RUNNING
                _insert(self.running, child)
            else:  # no seat: it comes back through the prefix cache
                _insert(self.waiting, child)
        return choices

    def _last_length(self, request: Request) -> int:
        """Return the most tokens that ``request`` can come to."""
        max_tokens = request.params.max_tokens
        if max_tokens is None:
            return self.max_model_len
        return min(request.num_prompt_tokens + max_tokens, self.max_model_len)

    def _finish_if_done(self, request: Request, token_id: int, *, completes: bool) -> None:
        params = request.params
        if token_id in self.eos_token_ids and not params.ignore_eos:
            self.finish(request, FinishReason.STOP)
        elif token_id in (params.stop_token_ids or ()):
            request.stop_reason = token_id
            self.finish(request, FinishReason.STOP)
        elif completes:
            request.is_complete = token_id not in self.eos_token_ids
            self.finish(request, FinishReason.STOP)
        elif request.num_tokens >= self._last_length(request):
            self.finish(request, FinishReason.LENGTH)

    def _fail(self, request: Request, error: str, is_tainted: bool) -> None:
        """End ``request`` with an error; drop what is cached if that may be at fault too."""
        request.error = error
        self.finish(request, FinishReason.ERROR)
        if is_tainted:
            self.num_corrupted += 1
            self.cache.clear()


def _limit(request: Request) -> int:
    """Return the most tokens of ``request`` that one step may compute."""
    return MAX_SCORED_TOKENS if request.skips_prefix_reads else request.num_tokens


def _insert(queue: list[Request], request: Request) -> None:
    insort(queue, request, key=_ORDER)


_ORDER = attrgetter("order")
