"""What the requests ask: random prompts, prompts that share prefixes, and the data sets by name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from octavo.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from octavo.bench.serve.settings import DatasetSettings
    from octavo.model.text.tokenizer import Tokenizer

    Ids: TypeAlias = NDArray[np.int64]

NUM_SPECIALS = 17
"""SmolLM2's control tokens are its first ids; other vocabularies have theirs last."""


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """One request, before it is sent."""

    prompt: str | list[int] | list[dict[str, Any]]
    """Text, token ids, or the messages of a chat."""
    prompt_len: int
    """Tokens; 0 where nobody can count them here, and the server will."""
    output_len: int
    arrival: float = 0.0
    """Seconds from the run's start, where the data set says it."""


class Vocabulary:
    """The ids that random prompts are drawn from: all but the special ones."""

    def __init__(self, settings: DatasetSettings, tokenizer: Tokenizer | None) -> None:
        if tokenizer is not None:
            ids = [i for i in range(tokenizer.vocab_size) if i not in tokenizer.special_ids]
        else:
            ids = list(range(NUM_SPECIALS, settings.vocab_size))
        if not ids:
            raise ConfigError(
                f"vocab_size is {settings.vocab_size}; it must be above {NUM_SPECIALS}, the ids "
                "that are left out",
                param="vocab_size",
            )
        self._ids: Ids = np.array(ids)

    def draw(self, count: int, rng: np.random.Generator) -> list[int]:
        """Return ``count`` random ids."""
        ids: list[int] = self._ids[rng.integers(0, len(self._ids), count)].tolist()
        return ids

    def pick(self, numbers: NDArray[np.uint64]) -> list[int]:
        """Return the id that each number stands for."""
        ids: list[int] = self._ids[numbers % np.uint64(len(self._ids))].tolist()
        return ids


def load_dataset(
    settings: DatasetSettings, *, seed: int, is_chat: bool, tokenizer: Tokenizer | None
) -> list[BenchRequest]:
    """Return the requests of one run.

    Another seed gives other prompts, or another order of a file's. Raises `ConfigError` for
    settings that do not fit, and `TraceError` for a file that cannot be read.
    """
    name = settings.dataset_name
    if name in ("sharegpt", "custom"):
        from octavo.bench.serve import text_files

        load = text_files.load_sharegpt if name == "sharegpt" else text_files.load_custom
        assert settings.dataset_path is not None
        path = Path(settings.dataset_path)
        requests = load(path, settings, seed=seed, is_chat=is_chat, tokenizer=tokenizer)
    else:
        vocabulary = Vocabulary(settings, tokenizer)
        rng = np.random.default_rng(seed)
        if name == "random":
            requests = _random(settings, vocabulary, rng)
        elif name == "prefix_repetition":
            requests = _prefix_repetition(settings, vocabulary, rng)
        else:
            from octavo.bench.serve.timed_trace import load_timed_trace

            requests = load_timed_trace(settings, vocabulary, seed=seed, tokenizer=tokenizer)
        if is_chat:
            requests = [_as_chat(request, tokenizer) for request in requests]
    if not requests:
        raise ConfigError(
            f"{settings.dataset_path} has no request that may be sent; see --max-total-len",
            param="dataset_path",
        )
    return requests


def _random(
    settings: DatasetSettings, vocabulary: Vocabulary, rng: np.random.Generator
) -> list[BenchRequest]:
    """One prefix for all, and behind it what nobody else has."""
    prefix = vocabulary.draw(settings.random_prefix_len, rng)
    count, ratio = settings.num_prompts, settings.random_range_ratio
    input_lens = _lengths(settings.input_len or settings.random_input_len, ratio, count, rng)
    output_lens = _lengths(settings.output_len or settings.random_output_len, ratio, count, rng)
    return [
        BenchRequest(prefix + vocabulary.draw(length, rng), len(prefix) + length, output_len)
        for length, output_len in zip(input_lens, output_lens, strict=True)
    ]


def _lengths(length: int, ratio: float, count: int, rng: np.random.Generator) -> list[int]:
    """Return lengths, each as likely, from (1 - ratio) to (1 + ratio) times ``length``."""
    low = max(1, math.floor(length * (1 - ratio)))
    found: list[int] = rng.integers(low, math.ceil(length * (1 + ratio)) + 1, count).tolist()
    return found


def _prefix_repetition(
    settings: DatasetSettings, vocabulary: Vocabulary, rng: np.random.Generator
) -> list[BenchRequest]:
    """Some prefixes, each in equally many prompts (to one), in random order."""
    num_prefixes = settings.prefix_repetition_num_prefixes
    if settings.num_prompts < num_prefixes:
        raise ConfigError(
            f"num_prompts is {settings.num_prompts}, less than the {num_prefixes} prefixes; raise "
            "it, or lower prefix_repetition_num_prefixes",
            param="num_prompts",
        )
    prefix_len = settings.prefix_repetition_prefix_len
    suffix_len = settings.prefix_repetition_suffix_len
    prefixes = [vocabulary.draw(prefix_len, rng) for _ in range(num_prefixes)]
    requests = [
        BenchRequest(
            prefixes[i % num_prefixes] + vocabulary.draw(suffix_len, rng),
            prefix_len + suffix_len,
            settings.output_len or settings.prefix_repetition_output_len,
        )
        for i in range(settings.num_prompts)
    ]
    return [requests[i] for i in rng.permutation(len(requests))]


def _as_chat(request: BenchRequest, tokenizer: Tokenizer | None) -> BenchRequest:
    """Return the request as a message of text. Its length is about that; the server counts."""
    if tokenizer is None:
        raise ConfigError(
            "prompts of this data set are token ids, and a chat wants text: name a tokenizer that "
            "makes it, such as --tokenizer smollm2",
            param="tokenizer",
        )
    text = tokenizer.decode(request.prompt)  # type: ignore[arg-type]
    return BenchRequest(message(text), request.prompt_len, request.output_len, request.arrival)


def message(text: str) -> list[dict[str, Any]]:
    """Return a conversation of one message."""
    return [{"role": "user", "content": text}]
