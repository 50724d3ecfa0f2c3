"""EngineCore: a step is three calls, `schedule`, `execute`, `update_from_output`.

Knows token ids only: text, templates and stop strings are the front's.
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from octavo.engine.batch import build_batch
from octavo.engine.masks import Masks
from octavo.engine.request import FinishReason, Request
from octavo.engine.scheduler import SampledTokens, Scheduler
from octavo.engine.timing import StepSeconds
from octavo.errors import ContextLengthError, InvalidRequestError
from octavo.sampling.rng import derive_seed
from octavo.sampling.sampler import Sampler, SamplingRow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from octavo.backends.base import Backend
    from octavo.cache.manager import KVCacheManager
    from octavo.engine.batch import LogitRows
    from octavo.grammar.compile import CompiledGrammar
    from octavo.sampling.params import SamplingParams
    from octavo.sampling.sampler import RowArithmetic


class EngineCore:
    """Requests in, tokens out, one step at a time, on the caller's thread."""

    def __init__(
        self,
        backend: Backend,
        cache: KVCacheManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        eos_token_ids: frozenset[int] = frozenset(),
        static: bool = False,
        seed: int = 0,
        arithmetic: RowArithmetic | None = None,
    ) -> None:
        assert backend.block_size == cache.block_size
        assert backend.num_blocks == cache.pool.num_blocks
        self.backend = backend
        self.cache = cache
        self.max_model_len = max_model_len
        self.eos_token_ids = eos_token_ids
        self.seed = seed
        self.scheduler = Scheduler(
            cache,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            eos_token_ids=eos_token_ids,
            static=static,
        )
        self.sampler = Sampler(arithmetic)
        self.num_steps = 0
        self.num_prompt_tokens = 0
        """Prompt tokens computed so far, what was computed again among them."""
        self.seconds = StepSeconds()
        """What each part of the steps has taken so far."""
        self._num_arrivals = 0
        self._draw_rows: dict[Request, SamplingRow] = {}
        self._masks = Masks()

    # -- requests come and go -------------------------------------------------------------------

    def add_request(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str = "",
        bad_words_token_ids: tuple[tuple[int, ...], ...] = (),
        grammar: CompiledGrammar | None = None,
    ) -> Request:
        """Check a request and let it in; returns its choice 0.

        ``grammar`` is what ``params.structured_outputs`` compiled to for this model.
        Raises `InvalidRequestError`, and nothing has changed, if it cannot be served as asked.
        """
        self.check(prompt_token_ids, params)
        assert (grammar is None) is (params.shape is None), "who submits it compiles it"
        arrival = self._num_arrivals
        self._num_arrivals += 1
        seed = params.seed if params.seed is not None else derive_seed(self.seed, arrival)
        request = Request(
            request_id,
            list(prompt_token_ids),
            params,
            arrival=arrival,
            priority=priority,
            seed=seed,
            cache_salt=cache_salt,
            bad_words_token_ids=bad_words_token_ids,
            grammar=grammar,
        )
        self.scheduler.add_request(request)
        return request

    def check(self, prompt_token_ids: list[int], params: SamplingParams) -> None:
        """Raise `InvalidRequestError` for a request that could never be served as asked."""
        vocab_size = self.backend.spec.vocab_size
        length = len(prompt_token_ids)
        if not length:
            raise InvalidRequestError(
                "the prompt is empty; give at least one token", param="prompt_token_ids"
            )
        for token_id in prompt_token_ids:
            if not 0 <= token_id < vocab_size:
                raise InvalidRequestError(
                    f"prompt_token_ids holds {token_id}, outside the vocabulary "
                    f"(0 to {vocab_size - 1})",
                    param="prompt_token_ids",
                )
        params.validate_for(vocab_size)
        if params.max_tokens == 0 and params.n > 1:
            raise InvalidRequestError(
                f"n={params.n} with max_tokens=0: there is nothing to choose; use n=1", param="n"
            )
        # A request that generates needs room for one token at least behind its prompt.
        most = self.max_model_len - (0 if params.max_tokens == 0 else 1)
        if length > most:
            raise ContextLengthError(
                f"the prompt has {length} tokens, and a request of this kind may have at most "
                f"{most}: max_model_len is {self.max_model_len}, prompt and answer together "
                "(the model's context or, where it is smaller, what the KV cache holds); "
                "shorten the prompt, or raise max_model_len or kv_cache_memory",
                param="prompt_token_ids",
            )
        room = self.max_model_len - length
        if params.min_tokens > room:
            raise ContextLengthError(
                f"min_tokens={params.min_tokens} is more than the {room} tokens that fit behind "
                f"the prompt's {length}: max_model_len is {self.max_model_len}; lower min_tokens "
                "or shorten the prompt",
                param="min_tokens",
            )

    def finish(self, request: Request, reason: FinishReason = FinishReason.ABORT) -> None:
        """End one choice between two steps and take its blocks."""
        self.scheduler.finish(request, reason)
        self._forget(request)

    def abort(self, request_id: str) -> None:
        """End every choice of a request; an unknown or ended one is no error."""
        for request in list(self.scheduler.requests()):
            if request.request_id == request_id:
                self.finish(request)

    @property
    def has_requests(self) -> bool:
        """Whether any request has not ended."""
        return self.scheduler.has_requests

    @property
    def num_corrupted(self) -> int:
        """Requests so far that failed because their row of logits held NaN or infinity."""
        return self.scheduler.num_corrupted

    @property
    def num_clamped(self) -> int:
        """Keys and values so far that lay beyond what float16 holds; stored as ±65504."""
        return self.backend.num_clamped

    # -- one step ---------------------------------------------------------------------------------

    def step(self) -> list[Request]:
        """Compute one step; return the requests that got a token or ended.

        Each got one token at most. Choices that were just forked are among them.
        """
        begin = perf_counter()
        output = self.scheduler.schedule()
        if not output.num_scheduled_tokens:
            assert not self.has_requests, "requests wait and none was scheduled"
            return []
        self.num_steps += 1
        for request, count in output.num_scheduled_tokens.items():
            left = request.num_prompt_tokens - request.num_computed_tokens
            if left > 0:
                self.num_prompt_tokens += min(left, count)
        scheduled = perf_counter()
        batch, rows = build_batch(output.num_scheduled_tokens, self.cache.block_size)
        built = perf_counter()
        self.backend.copy_blocks(output.block_copies)
        logits = self.backend.execute(batch)
        executed = perf_counter()
        sampled_tokens = self._sample(logits, rows)
        sampled = perf_counter()
        touched = self.scheduler.update_from_output(output, sampled_tokens)
        for request in touched:
            if request.is_finished:
                self._forget(request)
        self._masks.start(touched)
        seconds = self.seconds
        seconds.schedule += scheduled - begin
        seconds.build_batch += built - scheduled
        seconds.forward += executed - built
        seconds.sample += sampled - executed
        seconds.update += perf_counter() - sampled
        return touched

    def _forget(self, request: Request) -> None:
        self._draw_rows.pop(request, None)
        self._masks.drop(request)

    def _sample(
        self, logits: NDArray[np.float32], rows: list[LogitRows]
    ) -> dict[Request, SampledTokens]:
        """Score the prompts that ask for it, and draw every token that is due."""
        self._masks.join()
        results: dict[Request, SampledTokens] = {}
        draws: list[SamplingRow] = []
        owners: list[Request] = []
        indices: list[int] = []
        for row in rows:
            request = row.request
            error = self._score_prompt(logits, row)
            if error is not None:
                results[request] = SampledTokens(error=error, is_tainted=True)
            elif row.sampled is not None:
                error = self._grammar_fault(request)
                results[request] = SampledTokens(error=error)
                for draw in self._draws(request):
                    draws.append(draw)
                    owners.append(request)
                    indices.append(row.sampled)
        in_order = indices == list(range(len(logits)))  # as a rule; no copy then
        drawn = self.sampler.sample(logits if in_order else logits[indices], draws)
        for i, request in enumerate(owners):
            result = results[request]
            result.token_ids.append(drawn.token_ids[i])
            result.logprobs.append(drawn.logprobs[i])
            if drawn.errors[i] is not None:
                result.error = drawn.errors[i]
                result.is_tainted = not np.isfinite(logits[indices[i]].max())
            elif request.grammar is not None:
                self._advance(request, result)
        return results

    def _grammar_fault(self, request: Request) -> str | None:
        """Give the request's row its grammar's mask; return what makes that impossible."""
        if request.grammar is None:
            return None
        matcher = self._masks.matcher(request)
        if matcher.error is not None:
            return matcher.error
        row = self._draw_row(request)
        assert matcher.mask is not None, "made when the last token came, or with the grammar"
        row.mask, row.must_end = matcher.mask, matcher.must_end
        return None

    def _advance(self, request: Request, result: SampledTokens) -> None:
        """Take the token that was drawn last into the grammar; note whether it is the last."""
        matcher = self._masks.matcher(request)
        if request.params.n > 1 and not request.output_token_ids and not request.choice:
            matcher = matcher.fork()  # first tokens of several choices: each begins with its own
        matcher.accept(result.token_ids[-1])
        result.error = result.error or matcher.error
        if matcher.is_ended:
            result.completing.add(len(result.token_ids) - 1)

    def _draws(self, request: Request) -> list[SamplingRow]:
        """Return what is drawn from the request's row: all its choices at first, then its own."""
        if request.params.max_tokens == 0:
            return []
        row = self._draw_row(request)
        if request.choice or request.output_token_ids:
            return [row]
        return [row, *(replace(row, choice=choice) for choice in range(1, request.params.n))]

    def _draw_row(self, request: Request) -> SamplingRow:
        """Return what the sampler is to know of a choice; made once."""
        row = self._draw_rows.get(request)
        if row is None:
            row = self._draw_rows[request] = SamplingRow(
                params=request.params,
                seed=request.seed,
                choice=request.choice,
                prompt_token_ids=request.prompt_token_ids,
                output_token_ids=request.output_token_ids,
                eos_token_ids=self.eos_token_ids,
                bad_words_token_ids=request.bad_words_token_ids,
            )
        return row

    def _score_prompt(self, logits: NDArray[np.float32], row: LogitRows) -> str | None:
        """Append the logprobs of the prompt tokens scored in this step; return what went wrong."""
        request = row.request
        num_top = request.params.prompt_logprobs
        if num_top is None or not request.skips_prefix_reads:
            return None
        if not request.prompt_logprobs:
            request.prompt_logprobs.append(None)  # nothing predicts the first token
        if row.scored:
            targets = request.prompt_token_ids[row.first_target :][: len(row.scored)]
            scored = logits[row.scored.start : row.scored.stop]
            for entry in self.sampler.arithmetic.compute_logprobs(scored, targets, num_top):
                if entry is None:
                    return "the logits of a prompt token contain NaN or infinity"
                request.prompt_logprobs.append(entry)
        return None
