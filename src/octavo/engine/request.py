"""One user's job inside the engine. Its progress is integers; its status says only who owns it.

Knows no tensors, no text and no queue.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

    from octavo.grammar.compile import CompiledGrammar
    from octavo.sampling.logits import TokenLogprobs
    from octavo.sampling.params import SamplingParams


class RequestStatus(Enum):
    """Who owns a request: a queue (WAITING, PREEMPTED), the batch (RUNNING), or nobody."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class FinishReason(Enum):
    """Why a request ended; the values are OpenAI's where it has one."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class Request:
    """One choice of one user's job: `num_computed_tokens` chasing `num_tokens`.

    A job with ``n`` choices enters as choice 0. When its prompt has been computed, the other
    choices are forked from it and are requests of their own.

    The block table and what follows it belong to `KVCacheManager`; nobody else writes them.
    """

    __slots__ = (
        "arrival",
        "bad_words_token_ids",
        "block_keys",
        "block_table",
        "blocked_on",
        "cache_salt",
        "choice",
        "error",
        "finish_reason",
        "grammar",
        "is_complete",
        "num_awaited_blocks",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_dropped_blocks",
        "num_lost_tokens",
        "num_missed_blocks",
        "num_preemptions",
        "num_prompt_tokens",
        "num_published_blocks",
        "num_recomputed_tokens",
        "output_logprobs",
        "output_token_ids",
        "params",
        "priority",
        "prompt_logprobs",
        "prompt_token_ids",
        "request_id",
        "seed",
        "status",
        "stop_reason",
    )

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        arrival: int = 0,
        priority: int = 0,
        choice: int = 0,
        seed: int = 0,
        cache_salt: str = "",
        bad_words_token_ids: tuple[tuple[int, ...], ...] = (),
        grammar: CompiledGrammar | None = None,
        block_keys: list[Hashable] | None = None,
    ) -> None:
        self.request_id = request_id
        self.prompt_token_ids = prompt_token_ids
        self.num_prompt_tokens = len(prompt_token_ids)
        self.output_token_ids: list[int] = []
        self.output_logprobs: list[TokenLogprobs | None] = []
        """One entry an output token; None where the request asked for no logprobs."""
        self.params = params
        self.arrival = arrival
        self.priority = priority
        self.choice = choice
        self.seed = seed
        self.cache_salt = cache_salt
        self.bad_words_token_ids = bad_words_token_ids
        self.grammar = grammar
        """What the answer's shape compiled to; its state is not kept here."""

        self.status = RequestStatus.WAITING
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | None = None
        """The stop token's id where `stop_token_ids` ended the request."""
        self.is_complete = False
        """The answer's grammar ended it, and its last token is part of the text."""
        self.error: str | None = None
        self.num_computed_tokens = 0
        self.num_cached_tokens: int | None = None
        """Prompt tokens found in the cache at the first admission; None before it."""
        self.num_preemptions = 0
        self.num_lost_tokens = 0
        """Tokens that had been computed when the request was last preempted."""
        self.num_recomputed_tokens = 0
        """Tokens whose keys and values had been computed and were lost to preemption."""
        self.prompt_logprobs: list[TokenLogprobs | None] = []
        """One entry a prompt token that has been scored so far; the first is None."""

        # Owned by KVCacheManager.
        self.block_table: list[int] = []
        self.block_keys: list[Hashable] = [] if block_keys is None else block_keys
        """The chained keys of the full blocks known so far."""
        self.num_published_blocks = 0
        """How many leading blocks of the table are in the prefix tree."""
        self.num_dropped_blocks = 0
        """How many leading blocks it holds no more: they have left every layer's window."""
        self.num_awaited_blocks = 0
        """Up to which key others may wait for what this request is computing."""
        self.num_missed_blocks = 0
        """Up to which key the policy was told that the block is missing, and will come."""
        self.blocked_on: Hashable | None = None
        """The key, computed by another request just now, for which this one was passed over."""

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens so far."""
        return self.num_prompt_tokens + len(self.output_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Output tokens so far."""
        return len(self.output_token_ids)

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens whose keys and values are still to be computed."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def order(self) -> tuple[int, int, int]:
        """The place in line: lower priority values first, then arrival, then choice."""
        return (self.priority, self.arrival, self.choice)

    @property
    def is_finished(self) -> bool:
        """Whether the request has ended, for whatever reason."""
        return self.status is RequestStatus.FINISHED

    @property
    def skips_prefix_reads(self) -> bool:
        """Whether every prompt token must pass through the model because it is scored."""
        return (
            self.params.prompt_logprobs is not None
            and len(self.prompt_logprobs) < self.num_prompt_tokens
        )

    def new_choice(self, choice: int) -> Request:
        """Return another choice of the same job, with this one's prompt and no output."""
        child = Request(
            self.request_id,
            self.prompt_token_ids,
            self.params,
            arrival=self.arrival,
            priority=self.priority,
            choice=choice,
            seed=self.seed,
            cache_salt=self.cache_salt,
            bad_words_token_ids=self.bad_words_token_ids,
            grammar=self.grammar,
            block_keys=list(self.block_keys),
        )
        child.num_cached_tokens = self.num_cached_tokens
        child.prompt_logprobs = self.prompt_logprobs
        return child

    def token_at(self, position: int) -> int:
        """Return the token at an absolute position."""
        if position < self.num_prompt_tokens:
            return self.prompt_token_ids[position]
        return self.output_token_ids[position - self.num_prompt_tokens]

    def tokens(self, start: int, stop: int) -> list[int]:
        """Return the tokens at the absolute positions ``start`` to ``stop`` - 1."""
        split = self.num_prompt_tokens
        if stop <= split:
            return self.prompt_token_ids[start:stop]
        if start >= split:
            return self.output_token_ids[start - split : stop - split]
        return self.prompt_token_ids[start:] + self.output_token_ids[: stop - split]

    def __repr__(self) -> str:
        return (
            f"<Request {self.request_id}/{self.choice} {self.status.value} "
            f"{self.num_computed_tokens}/{self.num_tokens} tokens>"
        )
