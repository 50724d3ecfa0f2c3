"""What is told of requests and of steps, and to whom: plain numbers, for metrics, logs and traces.

Times are seconds of `time.perf_counter`; a time that never came is None.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from octavo.sampling.params import SamplingParams


@dataclass(slots=True)
class RequestStats:
    """One request, all its choices together. Grows while the request runs; complete at its end."""

    request_id: str
    params: SamplingParams
    num_prompt_tokens: int
    arrived: float
    """When the front had it: before it was tokenised."""
    queued: float | None = None
    """When it was handed to the engine."""
    scheduled: float | None = None
    """When the first of its tokens was computed: the beginning of that step."""
    first_token: float | None = None
    last_token: float | None = None
    ended: float | None = None
    waited_for: str = ""
    """Why it was not scheduled at once: ``seats``, ``room`` (blocks, or the step's tokens), or
    ``prefix`` (another request was just computing what this one shares); empty: it was."""
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    """Of all choices."""
    num_choice_tokens: list[int] = field(default_factory=list)
    """Of each choice; empty where the request ended before it had any."""
    num_preemptions: int = 0
    num_recomputed_tokens: int = 0
    """Computed, lost to a preemption, and computed again."""
    finish_reasons: list[str] = field(default_factory=list)
    """A choice each: stop, length, abort, error."""
    error: str | None = None
    trace_headers: Mapping[str, str] | None = None
    """What the caller said of the trace that the request is part of (W3C)."""

    @property
    def num_computed_tokens(self) -> int:
        """Prompt tokens that were not in the cache."""
        return self.num_prompt_tokens - self.num_cached_tokens

    @property
    def queue_seconds(self) -> float | None:
        """From the engine's hands to the first step."""
        return _between(self.queued, self.scheduled)

    @property
    def prefill_seconds(self) -> float | None:
        """From the first step to the first token."""
        return _between(self.scheduled, self.first_token)

    @property
    def decode_seconds(self) -> float | None:
        """From the first token to the last."""
        return _between(self.first_token, self.last_token)

    @property
    def inference_seconds(self) -> float | None:
        """From the first step to the last token."""
        return _between(self.scheduled, self.last_token)

    @property
    def first_token_seconds(self) -> float | None:
        """From arrival to the first token."""
        return _between(self.arrived, self.first_token)

    @property
    def seconds(self) -> float | None:
        """From arrival to the end."""
        return _between(self.arrived, self.ended)


@dataclass(frozen=True, slots=True)
class StepStats:
    """One step."""

    began: float
    ended: float
    num_prompt_tokens: int
    """Prompt tokens computed."""
    num_output_tokens: int
    """Tokens generated."""
    num_recomputed_tokens: int
    """Computed for the second time, after a preemption."""


class Observer(Protocol):
    """Who is told what happens, on the loop's thread: metrics, logs, traces."""

    def on_step(self, step: StepStats) -> None:
        """A step has been computed."""

    def on_first_token(self, stats: RequestStats, seconds: float) -> None:
        """A request's first token came ``seconds`` after its arrival."""

    def on_token_gap(self, seconds: float, count: int) -> None:
        """``count`` tokens of one choice came ``seconds`` after the ones before."""

    def on_finished(self, stats: RequestStats) -> None:
        """A request has ended, however."""


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else end - begin
