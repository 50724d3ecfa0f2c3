"""Chooses one token per row of logits: process, filter, draw.

The order is fixed: bias and masks (allowed tokens, bad words, min_tokens), penalties, temperature,
top_k, top_p, min_p, draw. Ties at a threshold are all kept; greedy ties go to the lowest id.

A row's result is a pure function of that row and its request: no sum runs across rows, none has
an order that the batch's shape could change, and randomness comes from the place (`rng`). So a
request gets the same bits alone and in any batch. Must not know of schedulers, caches or text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from octavo.sampling import logits as row_math
from octavo.sampling import rng
from octavo.sampling.logits import TokenLogprobs, compute_logprobs, row_faults

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from octavo.sampling.params import SamplingParams

__all__ = [
    "Sampler",
    "SamplerOutput",
    "SamplingRow",
    "TokenLogprobs",
    "compute_logprobs",
    "row_faults",
]


@dataclass(slots=True)
class SamplingRow:
    """What the sampler must know of the request behind one row of logits.

    The engine owns it and keeps the two sequences growing; the sampler only reads. Penalties and
    `min_tokens` count by these two, never by what is being prefilled, so preemption changes
    nothing. ``seed`` is 0 .. 2**64 - 1, ``choice`` the index among the request's n answers.
    """

    params: SamplingParams
    seed: int
    choice: int
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    eos_token_ids: frozenset[int]  # the model's own
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()  # params.bad_words, each tokenised
    _prompt_ids: NDArray[np.intp] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    @property
    def position(self) -> int:
        """Absolute index of the token to draw: the prompt's first token has index 0."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def prompt_ids(self) -> NDArray[np.intp]:
        """The distinct tokens of the prompt, rising; found once, for a prompt does not change."""
        if self._prompt_ids is None:
            self._prompt_ids = np.unique(np.asarray(self.prompt_token_ids, dtype=np.intp))
        return self._prompt_ids

    @property
    def is_plain(self) -> bool:
        """Whether the raw logits go to the choice as they are: no bias, mask or penalty."""
        params = self.params
        return not (
            params.logit_bias
            or params.allowed_token_ids is not None
            or self.bad_words_token_ids
            or len(self.output_token_ids) < params.min_tokens
            or self.has_penalties
        )

    @property
    def has_penalties(self) -> bool:
        """Whether any of the three penalties is on."""
        params = self.params
        return (
            params.repetition_penalty != 1.0
            or params.frequency_penalty != 0.0
            or params.presence_penalty != 0.0
        )


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """One step's choices, one entry per row.

    Where ``errors`` has a text, the row could not be sampled: its token id is -1, its logprobs
    None. Logprobs are also None where the request asked for none.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]
    errors: list[str | None]


class Sampler:
    """Draws one token for every row; holds no state."""

    def sample(self, logits: NDArray[np.float32], rows: Sequence[SamplingRow]) -> SamplerOutput:
        """Choose a token per row.

        Args:
            logits: ``[num_rows, vocab_size]``; never written to.
            rows: ``[num_rows]``; what each row asks. Token ids are valid for the vocabulary
                (`SamplingParams.validate_for`).
        """
        assert logits.ndim == 2
        assert len(logits) == len(rows)
        if not rows:
            return SamplerOutput([], [], [])
        # NumPy's argmax takes the first of equals, and takes a NaN for the largest.
        likeliest = logits.argmax(axis=1)
        largest = logits[np.arange(len(rows)), likeliest].tolist()
        errors = row_faults(largest)
        numbers = self._numbers(rows)
        token_ids = likeliest.tolist()
        for i, row in enumerate(rows):
            if errors[i] is None and not (row.params.greedy and row.is_plain):
                token_ids[i], errors[i] = _choose(logits[i], row, numbers[i])
            if errors[i] is not None:
                token_ids[i] = -1
        logprobs = [
            _logprobs(logits[i : i + 1], row, token_ids[i]) if errors[i] is None else None
            for i, row in enumerate(rows)
        ]
        return SamplerOutput(token_ids, logprobs, errors)

    def _numbers(self, rows: Sequence[SamplingRow]) -> list[float]:
        """Return the random number of each row's draw, 0 where every row is greedy."""
        if all(row.params.greedy for row in rows):
            return [0.0] * len(rows)
        numbers = rng.uniform(
            np.array([row.seed for row in rows], dtype=np.uint64),
            np.array([row.choice for row in rows], dtype=np.uint32),
            np.array([row.position for row in rows], dtype=np.uint64),
            rng.DRAW,
        )
        return [float(number) for number in numbers]


def _logprobs(raw: NDArray[np.float32], row: SamplingRow, token_id: int) -> TokenLogprobs | None:
    if row.params.logprobs is None:
        return None
    return compute_logprobs(raw, [token_id], row.params.logprobs)[0]


def _choose(raw: NDArray[np.float32], row: SamplingRow, number: float) -> tuple[int, str | None]:
    """Return the token chosen from one fault-free row, or what makes it impossible."""
    values = raw
    if not row.is_plain:
        values = raw.copy()
        _process(values, row)
        if not math.isfinite(values.max()):
            return -1, "no token is left: bias, masks and penalties exclude the whole vocabulary"
    if row.params.greedy:
        return int(values.argmax()), None
    ids, weights = _candidates(values, row.params)
    return _draw(ids, weights, number), None


def _process(values: NDArray[np.float32], row: SamplingRow) -> None:
    """Apply what can change the likeliest token, in place."""
    row_math.add_bias(values, row.params)
    row_math.mask_tokens(
        values,
        row.params,
        row.output_token_ids,
        row.eos_token_ids,
        row.bad_words_token_ids,
    )
    if row.has_penalties:
        row_math.penalise(values, row.params, row.prompt_ids, row.output_token_ids)


def _candidates(
    values: NDArray[np.float32], params: SamplingParams
) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """Return the ids that may be drawn, rising, and their weights: exp((logit - max) / T).

    The largest weight is exactly 1. Temperature does not reorder logits, so top_k may look at
    them before it, and the exponentials of what it drops are never computed.
    """
    ids = row_math.at_least_kth(values, params.top_k or len(values))
    values = values if len(ids) == len(values) else values[ids]
    weights = row_math.exp(row_math.below_max(values, float(values.max()), params.temperature))
    # min_p is relative to the largest weight, which top_p always keeps: one threshold serves both.
    threshold = max(_nucleus_threshold(weights, params.top_p), params.min_p)
    if threshold > 0.0:
        kept = weights >= threshold
        ids, weights = ids[kept], weights[kept]
    return ids, weights


def _nucleus_threshold(weights: NDArray[np.float32], top_p: float) -> float:
    """Return the smallest weight of the likeliest tokens that together reach ``top_p``; 0 is all.

    (Holtzman et al., "The Curious Case of Neural Text Degeneration", 2019.) A full sort is seldom
    needed: the weights under (1 - top_p) / 2 of the mean weight hold less than that part of the
    total, so the others reach top_p. Should rounding spoil that (top_p within 1e-12 of 1), all
    are sorted. Running sums start from the largest, so both ways give the same bits.
    """
    if top_p >= 1.0:
        return 0.0
    total = row_math.total(weights)
    goal = top_p * total
    for floor in (0.5 * (1.0 - top_p) * total / len(weights), 0.0):
        falling = np.sort(weights[weights >= floor])[::-1]
        running = np.cumsum(falling, dtype=np.float64)
        if running[-1] >= goal:
            return float(falling[np.searchsorted(running, goal)])
    return 0.0


def _draw(ids: NDArray[np.intp], weights: NDArray[np.float32], number: float) -> int:
    """Return the first id at which the running sum of the weights passes ``number`` * total."""
    running = np.cumsum(weights, dtype=np.float64)
    # At most (1 - 2^-53) * total, which rounds to less than the total: there always is such an id.
    place = np.searchsorted(running, number * running[-1], side="right")
    return int(ids[place])
