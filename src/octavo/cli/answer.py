"""One answer, streamed and measured: what `run` and `chat` have in common."""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from octavo.engine.llm import LLM, Prompt
    from octavo.engine.outputs import CompletionOutput, RequestOutput
    from octavo.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer and how long it took. Times in seconds."""

    output: RequestOutput
    ttft: float
    """Until the first token."""
    total: float

    @property
    def choice(self) -> CompletionOutput:
        """The only choice."""
        return self.output.outputs[0]

    @property
    def tokens_per_second(self) -> float | None:
        """The rate after the first token; None without a second one."""
        num_later = len(self.choice.token_ids) - 1
        return num_later / (self.total - self.ttft) if num_later > 0 else None

    def summary(self) -> str:
        """Return the numbers in a line."""
        rate = self.tokens_per_second
        return (
            f"[{len(self.choice.token_ids)} tokens, "
            + ("" if rate is None else f"{rate:.1f} tok/s, ")
            + f"TTFT {self.ttft:.2f} s; prompt {len(self.output.prompt_token_ids)} tokens, "
            f"{self.output.num_cached_tokens} cached; seed {self.output.seed}]"
        )

    def as_json(self) -> dict[str, Any]:
        """Return everything worth keeping."""
        output, choice = self.output, self.choice
        return {
            "text": choice.text,
            "token_ids": choice.token_ids,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "error": output.error,
            "num_prompt_tokens": len(output.prompt_token_ids),
            "num_cached_tokens": output.num_cached_tokens,
            "num_output_tokens": len(choice.token_ids),
            "seed": output.seed,
            "ttft_s": round(self.ttft, 6),
            "total_s": round(self.total, 6),
            "tokens_per_s": self.tokens_per_second and round(self.tokens_per_second, 3),
        }


def stream_answer(
    llm: LLM,
    prompt: Prompt,
    params: SamplingParams,
    write: Callable[[str], None],
    *,
    should_stop: Callable[[], bool] = lambda: False,
) -> Answer:
    """Answer ``prompt``, writing the text as it comes.

    ``should_stop`` is asked after every token; the answer then ends with no finish_reason.
    """
    start = time.perf_counter()
    ttft = 0.0
    for piece, grown in llm.stream(prompt, params):
        output = grown
        ttft = ttft or time.perf_counter() - start
        write(piece)
        if should_stop():
            break  # which aborts the request
    return Answer(output, ttft, time.perf_counter() - start)


def cut_note(llm: LLM, answer: Answer) -> str | None:
    """Return what to tell of an answer that ended before its end; None if it did not."""
    if answer.choice.finish_reason != "length" or not answer.choice.token_ids:
        return None  # no tokens: none were asked for
    length = len(answer.output.prompt_token_ids) + len(answer.choice.token_ids)
    if length >= llm.core.max_model_len:
        return f"note: cut here: the context of {llm.core.max_model_len} tokens is full"
    return f"note: cut after {len(answer.choice.token_ids)} tokens; --max-tokens allows more"


@contextmanager
def stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Let a first Ctrl-C ask for a stop, told by the function given; a second one interrupts.

    An exception in the middle of a step would leave the engine's accounts half written; between
    two steps the answer can be dropped and the next one computed.
    """
    pressed = False

    def on_interrupt(_signal: int, _frame: object) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
