"""From tokens to answers: text, stop strings, logprobs by name, and what a user gets to see.

Knows no batch and no cache. A stop string is found here, in text, and ends the request there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

from octavo.engine.request import FinishReason, Request
from octavo.model.text.detokenizer import Detokenizer
from octavo.sampling.stops import StopChecker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from octavo.model.text.tokenizer import Tokenizer
    from octavo.sampling.logits import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Logprob:
    """How likely one token was by the raw logits."""

    logprob: float
    rank: int
    """1 + the number of tokens strictly likelier."""
    decoded_token: str


@dataclass(slots=True)
class CompletionOutput:
    """One choice."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] | None = None
    """An entry a token, if asked for: the token itself and the likeliest ones."""
    finish_reason: str | None = None
    """``stop``, ``length``, ``abort`` or ``error``; None while it goes on."""
    stop_reason: int | str | None = None
    """The stop token's id or the stop string that ended it; None for the model's own end."""

    @property
    def finished(self) -> bool:
        """Whether the choice has ended."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """One request and its choices, as far as they have come."""

    request_id: str
    prompt: str | None
    """The prompt's text, where it was given as text."""
    prompt_token_ids: list[int]
    seed: int
    """What the randomness was drawn from: give it as `seed` and get the same answer."""
    outputs: list[CompletionOutput]
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    """An entry a prompt token, if asked for; the first is None."""
    num_cached_tokens: int = 0
    """Prompt tokens whose keys and values were found in the cache."""
    error: str | None = None
    """What went wrong, where a choice's finish_reason is ``error``."""

    @property
    def finished(self) -> bool:
        """Whether every choice has ended."""
        return all(output.finished for output in self.outputs)


@dataclass(frozen=True, slots=True)
class Delta:
    """What came to one choice since the last one: joined, a choice's deltas are the choice."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: str | None
    stop_reason: int | str | None


class _Choice:
    """The text of one choice while it is being made."""

    __slots__ = ("detokenizer", "output", "stops")

    def __init__(self, output: CompletionOutput, request: Request, tokenizer: Tokenizer) -> None:
        params = request.params
        self.output = output
        self.detokenizer = Detokenizer(tokenizer, skip_special_tokens=params.skip_special_tokens)
        self.stops = StopChecker(params.stop_strings, params.include_stop_str_in_output)


def fault_lines(num_corrupted: int, num_clamped: int) -> tuple[str, ...]:
    """Return the engine's counts of faults in words; nothing of those that are 0."""
    lines = []
    if num_corrupted:
        failed = (
            "1 request failed: its"
            if num_corrupted == 1
            else f"{num_corrupted} requests failed: their"
        )
        lines.append(f"{failed} logits held NaN or infinity")
    if num_clamped:
        lines.append(
            f"{num_clamped} keys or values lay beyond ±65504, the most that float16 holds, and "
            "were stored as that; the reference backend can store float32"
        )
    return tuple(lines)


class OutputProcessor:
    """Follows requests from their first token to their last.

    ``finish`` ends a request in the engine when a stop string has been found in its text.
    """

    def __init__(
        self, tokenizer: Tokenizer, finish: Callable[[Request, FinishReason], None]
    ) -> None:
        self._tokenizer = tokenizer
        self._finish = finish
        self._outputs: dict[str, RequestOutput] = {}
        self._choices: dict[tuple[str, int], _Choice] = {}
        self.seconds = 0.0
        """What `process` has taken so far: detokenising, stop strings, logprobs by name."""

    def add(self, request: Request, prompt: str | None = None) -> RequestOutput:
        """Follow ``request`` from now on; returns its output, which grows with every step."""
        params = request.params
        output = RequestOutput(
            request.request_id,
            prompt,
            request.prompt_token_ids,
            request.seed,
            [CompletionOutput(index) for index in range(params.n)],
            prompt_logprobs=None if params.prompt_logprobs is None else [],
        )
        if params.logprobs is not None:
            for choice in output.outputs:
                choice.logprobs = []
        self._outputs[request.request_id] = output
        return output

    def process(self, touched: Iterable[Request]) -> None:
        """Take in what a step brought: the outputs of the requests concerned grow."""
        begin = perf_counter()
        for request in touched:
            output = self._outputs.get(request.request_id)
            if output is None:
                continue  # dropped by `discard`
            choice = self._choice(output, request)
            if choice.output.finished:
                continue
            self._take_request(output, request)
            choice.output.text += self._take_tokens(choice, request)
            if choice.output.finished:
                del self._choices[request.request_id, request.choice]
                if not request.output_token_ids:  # it ended before the other choices began
                    for other in output.outputs:
                        other.finish_reason = choice.output.finish_reason
            if output.finished:
                del self._outputs[request.request_id]
        self.seconds += perf_counter() - begin

    def discard(self, request_id: str) -> None:
        """Stop following a request."""
        output = self._outputs.pop(request_id, None)
        if output is not None:
            for choice in output.outputs:
                self._choices.pop((request_id, choice.index), None)

    # -- details ----------------------------------------------------------------------------------

    def _choice(self, output: RequestOutput, request: Request) -> _Choice:
        key = (request.request_id, request.choice)
        choice = self._choices.get(key)
        if choice is None:
            choice = _Choice(output.outputs[request.choice], request, self._tokenizer)
            self._choices[key] = choice
        return choice

    def _take_request(self, output: RequestOutput, request: Request) -> None:
        output.num_cached_tokens = request.num_cached_tokens or 0
        output.error = output.error or request.error
        scores = output.prompt_logprobs
        if scores is not None:
            scores += [self._named(entry) for entry in request.prompt_logprobs[len(scores) :]]

    def _take_tokens(self, choice: _Choice, request: Request) -> str:
        """Take the request's new tokens; return the text that may be shown now."""
        output, params = choice.output, request.params
        text, stop = "", None
        last = request.num_output_tokens - 1
        # The token that ends an answer is among its ids; in its text only if asked for, or if it is
        # the last of what a grammar asks for.
        hides_last = request.finish_reason is FinishReason.STOP and not (
            params.include_stop_str_in_output or request.is_complete
        )
        for i in range(len(output.token_ids), last + 1):
            token_id = request.output_token_ids[i]
            output.token_ids.append(token_id)
            if output.logprobs is not None:
                output.logprobs.append(self._named(request.output_logprobs[i]) or {})
            if i == last and hides_last:
                break
            piece = choice.detokenizer.add((token_id,))
            shown, stop = choice.stops.feed(piece, may_stop=i >= params.min_tokens)
            text += shown
            if stop is not None:
                break
        if stop is not None:
            self._finish(request, FinishReason.STOP)
            output.finish_reason = FinishReason.STOP.value
            output.stop_reason = stop
        elif request.finish_reason is not None:
            text += self._flush(choice)
            output.finish_reason = request.finish_reason.value
            output.stop_reason = request.stop_reason
        return text

    def _flush(self, choice: _Choice) -> str:
        """Return what was held back, now that nothing follows it."""
        shown, stop = choice.stops.feed(choice.detokenizer.finish(), may_stop=False)
        assert stop is None, "a stop string may not end what has ended"
        return shown + choice.stops.finish()

    def _named(self, entry: TokenLogprobs | None) -> dict[int, Logprob] | None:
        """Return one position's logprobs by token id: the token itself first."""
        if entry is None:
            return None
        named = {entry.token_id: self._logprob(entry.token_id, entry.logprob, entry.rank)}
        rank = 0
        for i, (token_id, logprob) in enumerate(
            zip(entry.top_ids, entry.top_logprobs, strict=True)
        ):
            if i == 0 or logprob != entry.top_logprobs[i - 1]:
                rank = i + 1
            if token_id not in named:
                named[token_id] = self._logprob(token_id, logprob, rank)
        return named

    def _logprob(self, token_id: int, logprob: float, rank: int) -> Logprob:
        text = self._tokenizer.decode((token_id,), skip_special_tokens=False, continuing=True)
        return Logprob(logprob, rank, text)
