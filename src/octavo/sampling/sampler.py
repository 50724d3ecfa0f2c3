"""Chooses one token per row of logits: process, filter, draw.

The order is fixed: bias and masks (allowed tokens, bad words, min_tokens), penalties, temperature,
top_k, top_p, min_p, draw. Ties at a threshold are all kept; greedy ties go to the lowest id.

A row's result is a pure function of that row and its request: no sum runs across rows, none has
an order that the batch's shape could change, and randomness comes from the place (`rng`). So a
request gets the same bits alone and in any batch. How rows are computed is a `RowArithmetic`: in
NumPy (`NumpyRows`), or as a backend's kernels. Must not know of schedulers, caches or text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from octavo.sampling import logits as row_math
from octavo.sampling import rng
from octavo.sampling.logits import TokenLogprobs, compute_logprobs, row_faults

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from octavo.sampling.params import SamplingParams

__all__ = [
    "NumpyRows",
    "RowArithmetic",
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
    mask: NDArray[np.int32] | None = None
    """What a grammar allows, a bit a token: bit i % 32 of word i // 32 is token i. None: all."""
    must_end: bool = False
    """A grammar leaves nothing but an end token: then neither min_tokens nor ignore_eos forbids it.
    """
    _prompt_ids: NDArray[np.int32] | None = field(
        default=None, init=False, repr=False, compare=False
    )
    _output_ids: NDArray[np.int32] | None = field(
        default=None, init=False, repr=False, compare=False
    )
    _num_output_ids: int = field(default=0, init=False, repr=False, compare=False)

    @property
    def position(self) -> int:
        """Absolute index of the token to draw: the prompt's first token has index 0."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def prompt_ids(self) -> NDArray[np.int32]:
        """The distinct tokens of the prompt, rising; found once, for a prompt does not change."""
        if self._prompt_ids is None:
            self._prompt_ids = np.unique(np.asarray(self.prompt_token_ids, dtype=np.int32))
        return self._prompt_ids

    @property
    def output_ids(self) -> NDArray[np.int32]:
        """The tokens of the answer as an array; only what is new since the last call is copied."""
        known, count, room = self._num_output_ids, len(self.output_token_ids), self._output_ids
        if room is None or count > len(room):
            larger = np.empty(max(32, 2 * count), dtype=np.int32)
            if room is not None:
                larger[:known] = room[:known]
            room = self._output_ids = larger
        if known < count:
            room[known:count] = self.output_token_ids[known:]
            self._num_output_ids = count
        return room[:count]

    @property
    def masked_token_ids(self) -> list[int]:
        """See `logits.masked_token_ids`; and, under a grammar, the end tokens that do not end."""
        masked = row_math.masked_token_ids(
            self.params,
            self.output_token_ids,
            () if self.must_end else self.eos_token_ids,
            self.bad_words_token_ids,
        )
        if self.mask is not None and self.params.ignore_eos and not self.must_end:
            masked += self.eos_token_ids
        return masked

    @property
    def is_plain(self) -> bool:
        """Whether the raw logits go to the choice as they are: no bias, mask or penalty."""
        params = self.params
        return not (
            params.logit_bias
            or params.allowed_token_ids is not None
            or self.mask is not None
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


class RowArithmetic(Protocol):
    """How a step's rows are computed; every one of them gives `NumpyRows`' bits."""

    def choose(
        self,
        logits: NDArray[np.float32],
        rows: Sequence[SamplingRow],
        numbers: NDArray[np.float64],
    ) -> SamplerOutput:
        """Choose a token per row, where one is drawn by its number in [0, 1); see `Sampler`."""

    def compute_logprobs(
        self, logits: NDArray[np.float32], token_ids: Sequence[int], num_top: int
    ) -> list[TokenLogprobs | None]:
        """See `logits.compute_logprobs`."""


class NumpyRows:
    """The plain arithmetic, one row after another: what the kernels are held against."""

    def choose(
        self,
        logits: NDArray[np.float32],
        rows: Sequence[SamplingRow],
        numbers: NDArray[np.float64],
    ) -> SamplerOutput:
        """See `RowArithmetic`."""
        # NumPy's argmax takes the first of equals, and takes a NaN for the largest.
        likeliest = logits.argmax(axis=1)
        errors = row_faults(logits[np.arange(len(rows)), likeliest].tolist())
        token_ids = likeliest.tolist()
        for i, row in enumerate(rows):
            if errors[i] is None and not (row.params.greedy and row.is_plain):
                token_ids[i], errors[i] = _choose(logits[i], row, float(numbers[i]))
            if errors[i] is not None:
                token_ids[i] = -1
        logprobs = [
            _logprobs(logits[i : i + 1], row, token_ids[i]) if errors[i] is None else None
            for i, row in enumerate(rows)
        ]
        return SamplerOutput(token_ids, logprobs, errors)

    def compute_logprobs(
        self, logits: NDArray[np.float32], token_ids: Sequence[int], num_top: int
    ) -> list[TokenLogprobs | None]:
        """See `logits.compute_logprobs`."""
        return compute_logprobs(logits, token_ids, num_top)


class Sampler:
    """Draws one token for every row; holds no state but the way to compute rows."""

    def __init__(self, arithmetic: RowArithmetic | None = None) -> None:
        self.arithmetic = arithmetic or NumpyRows()

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
        return self.arithmetic.choose(logits, rows, _numbers(rows))


def _numbers(rows: Sequence[SamplingRow]) -> NDArray[np.float64]:
    """Return the random number of each row's draw, 0 where every row is greedy."""
    if all(row.params.greedy for row in rows):
        return np.zeros(len(rows))
    return np.array([rng.uniform(row.seed, row.choice, row.position, rng.DRAW) for row in rows])


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
            return -1, row_math.NOTHING_LEFT
    if row.params.greedy:
        return int(values.argmax()), None
    return _draw(_candidates(values, row.params), number), None


def _process(values: NDArray[np.float32], row: SamplingRow) -> None:
    """Apply what can change the likeliest token, in place."""
    row_math.add_bias(values, row.params)
    row_math.mask_tokens(values, row.params, row.masked_token_ids)
    if row.mask is not None:
        row_math.mask_others(values, row.mask)
    if row.has_penalties:
        row_math.penalise(values, row.params, row.prompt_ids, row.output_ids)


def _candidates(values: NDArray[np.float32], params: SamplingParams) -> NDArray[np.float32]:
    """Return the weights exp((logit - max) / T) of what may be drawn, 0 for all else.

    The largest weight is exactly 1. Temperature does not reorder logits, so top_k may look at
    them before it, and the exponentials of what it drops are never computed.
    """
    if 0 < params.top_k < len(values):
        ids = row_math.at_least_kth(values, params.top_k)
        weights = np.zeros_like(values)
        weights[ids] = _weights(values[ids], params)
    else:
        weights = _weights(values, params)
    # min_p is relative to the largest weight, which top_p always keeps: one threshold serves both.
    threshold = params.min_p
    if params.top_p < 1.0:
        goal = params.top_p * row_math.total(weights)
        threshold = max(threshold, row_math.nucleus_threshold(weights, goal))
    if threshold > 0.0:
        weights *= weights >= threshold
    return weights


def _weights(values: NDArray[np.float32], params: SamplingParams) -> NDArray[np.float32]:
    return row_math.exp(row_math.below_max(values, float(values.max()), params.temperature))


def _draw(weights: NDArray[np.float32], number: float) -> int:
    """Return the id at which the sum of the weights so far passes ``number`` * total.

    First the chunk (`running_sums`), then within it id by id; should the sum by ids round to less
    than the sum by lanes that passed, the chunk's last id with any weight.
    """
    running = row_math.running_sums(weights)
    # At most (1 - 2^-53) * total, which rounds to less than the total: there always is a chunk.
    goal = number * running[-1]
    chunk = int(np.searchsorted(running, goal, side="right"))
    first = chunk * row_math.CHUNK
    inside = weights[first : first + row_math.CHUNK]
    before = running[chunk - 1] if chunk else 0.0
    by_id = np.cumsum(np.concatenate(([before], inside)), dtype=np.float64)[1:]
    place = int(np.searchsorted(by_id, goal, side="right"))
    return first + (place if place < len(inside) else int(np.flatnonzero(inside)[-1]))
