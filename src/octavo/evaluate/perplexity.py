"""Perplexity: exp of the mean negative log-probability of a text's tokens.

The text is cut into windows, and every token of a window but its first is predicted from those
before it in the window. Logprobs are the engine's own, of the raw logits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from octavo.errors import InvalidRequestError
from octavo.sampling.params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.engine.llm import LLM
    from octavo.engine.outputs import RequestOutput

DEFAULT_WINDOW: Final = 512


@dataclass(frozen=True, slots=True)
class Perplexity:
    """How well a model predicts a text."""

    perplexity: float
    num_tokens: int
    """Tokens that were predicted."""
    num_windows: int
    window: int
    standard_error: float
    """Of ``log(perplexity)``, from the spread of the tokens' log-probabilities."""


def perplexity(
    llm: LLM,
    text: str,
    *,
    window: int = DEFAULT_WINDOW,
    max_tokens: int | None = None,
    on_window: Callable[[int, int], None] | None = None,
) -> Perplexity:
    """Return the perplexity of ``text``, of its first ``max_tokens`` tokens if given.

    ``on_window`` is told how many windows are done, and of how many.
    """
    most = llm.core.max_model_len
    if not 2 <= window <= most:
        raise InvalidRequestError(
            f"window is {window}; it must lie from 2 to {most}, the engine's max_model_len",
            param="window",
        )
    ids = llm.tokenizer.encode(text)[:max_tokens]
    windows = [ids[i : i + window] for i in range(0, len(ids), window)]
    windows = [part for part in windows if len(part) > 1]
    if not windows:
        raise InvalidRequestError(
            f"the text has {len(ids)} tokens; give at least 2", param="prompt"
        )
    logprobs: list[float] = []
    done = 0

    def take(_output: RequestOutput) -> None:
        nonlocal done
        done += 1
        if on_window is not None:
            on_window(done, len(windows))

    outputs = llm.generate(
        [{"prompt_token_ids": part} for part in windows],
        SamplingParams(max_tokens=0, prompt_logprobs=0),
        on_output=take,
    )
    for part, output in zip(windows, outputs, strict=True):
        if output.error is not None:
            raise InvalidRequestError(f"a window could not be scored: {output.error}")
        assert output.prompt_logprobs is not None
        for token, entry in zip(part[1:], output.prompt_logprobs[1:], strict=True):
            assert entry is not None
            logprobs.append(entry[token].logprob)
    mean = math.fsum(logprobs) / len(logprobs)
    variance = math.fsum((value - mean) ** 2 for value in logprobs) / len(logprobs)
    return Perplexity(
        math.exp(-mean), len(logprobs), len(windows), window, math.sqrt(variance / len(logprobs))
    )
