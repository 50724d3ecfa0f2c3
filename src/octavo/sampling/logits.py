"""Arithmetic on one row of logits: exp and log of our own, raw logprobs, bias, masks, penalties.

Every function here is a pure function of one row, built of IEEE additions, multiplications and
comparisons in a fixed order. NumPy's and the C library's exp and log are not used: their last
bits differ between instruction sets, and a token must not. Values and weights are float32, as
the logits are; every sum is float64.

These are the definitions: a backend may compute them by compiled kernels, to the same bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from octavo.sampling.params import SamplingParams

# ln 2 in two parts, for float32 and for float64: the first has so few bits that its product with
# an exponent is exact.
_LN2_HIGH_32, _LN2_LOW_32 = 0.693359375, -2.121944400546905827679e-4
_LN2_HIGH, _LN2_LOW = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")
_LOG2_E = 1.4426950408889634
_TWICE_EXP_TAYLOR = [2.0 / math.factorial(k) for k in range(7, -1, -1)]
_EXP_FLOOR = -87.5  # from about -87 on exp is 0, with no denormals on the way
_LOG_TERMS = 12
NOTHING_LEFT = (
    "no token is left: the grammar, allowed tokens, bad words, bias and penalties exclude the "
    "whole vocabulary together"
)
LANES, CHUNK = 16, 256
"""How sums are divided: see `running_sums`."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely one token was, by the raw logits, and which tokens were likeliest.

    ``rank`` is 1 + the number of tokens strictly likelier. ``top_ids`` and ``top_logprobs`` go by
    falling logprob, ties by rising id; the token itself is among them only if it belongs there.
    A logprob is -inf where the raw logit is.
    """

    token_id: int
    logprob: float
    rank: int
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


def row_faults(largest: Iterable[float]) -> list[str | None]:
    """Say for each row, by its largest logit (as `numpy.max` finds it), why it cannot be used."""
    return [None if math.isfinite(value) else _fault(value) for value in largest]


def _fault(largest: float) -> str:
    if math.isnan(largest):
        return "logits contain NaN"
    return "logits contain infinity" if largest > 0 else "logits are all -inf"


def exp(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return exp of ``x`` (one row, no NaN, all at most 0), the same on every CPU.

    Relative error 2e-7; exp(0) is exactly 1; below about -87 it is exactly 0. By the usual
    reduction to 2^(k-1) * 2 exp(r), |r| <= ln(2)/2, and Taylor's polynomial of degree 7.
    """
    r, k = np.maximum(x, _EXP_FLOOR), np.empty_like(x)
    np.rint(np.multiply(r, _LOG2_E, out=k), out=k)
    power = k * _LN2_HIGH_32
    np.subtract(r, power, out=r)
    np.subtract(r, np.multiply(k, _LN2_LOW_32, out=power), out=r)
    np.multiply(r, _TWICE_EXP_TAYLOR[0], out=power)
    for coefficient in _TWICE_EXP_TAYLOR[1:-1]:
        np.add(power, coefficient, out=power)
        np.multiply(power, r, out=power)
    np.add(power, _TWICE_EXP_TAYLOR[-1], out=power)
    # 2^(k-1) by its bit pattern; the floor's k, -126, is the pattern of 0.
    bits = k.astype(np.int32)
    np.add(bits, 126, out=bits)
    np.left_shift(bits, 23, out=bits)
    np.multiply(power, bits.view(np.float32), out=power)
    return power


def log(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the natural logarithms of finite ``x`` >= 1, the same on every CPU.

    The error is about one in the last place. By ln(m) = 2 artanh((m - 1) / (m + 1)) for
    x = m * 2^e, m within [sqrt(1/2), sqrt(2)).
    """
    mantissa, exponent = np.frexp(x)
    is_low = mantissa < math.sqrt(0.5)
    mantissa = np.where(is_low, mantissa * 2.0, mantissa)
    power = np.where(is_low, exponent - 1, exponent).astype(np.float64)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square, series = s * s, np.zeros_like(s)
    for k in range(_LOG_TERMS, -1, -1):
        series = series * square + 1.0 / (2 * k + 1)
    found: NDArray[np.float64] = power * _LN2_HIGH + (2.0 * s * series + power * _LN2_LOW)
    return found


def running_sums(x: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the float64 sums of a non-empty row up to the end of each chunk of 256; last: of all.

    Number i belongs to lane i % 16 of its chunk. A lane is summed in ascending order, the lanes of
    a chunk by one tree (8-15 onto 0-7, then 4-7 onto 0-3, and so on), the chunks in ascending
    order. It is the order of a loop over vectors of sixteen; NumPy's own sum goes pairwise, in an
    order that is an accident of its version.
    """
    lanes = np.zeros((-(-len(x) // CHUNK), CHUNK // LANES, LANES))
    lanes.reshape(-1)[: len(x)] = x
    sums = lanes[:, 0].copy()
    for group in range(1, CHUNK // LANES):
        sums += lanes[:, group]
    while sums.shape[1] > 1:
        half = sums.shape[1] // 2
        sums = sums[:, :half] + sums[:, half:]
    running: NDArray[np.float64] = sums[:, 0].cumsum()
    return running


def total(x: NDArray[np.float32]) -> float:
    """Return the sum of a non-empty row in float64, in the order of `running_sums`."""
    return float(running_sums(x)[-1])


def nucleus_threshold(weights: NDArray[np.float32], goal: float) -> float:
    """Return the smallest weight of the largest that together reach ``goal``; 0 is all.

    (Holtzman et al., "The Curious Case of Neural Text Degeneration", 2019.) A radix select in
    place of a sort. A weight's bit pattern, as an integer, orders as the weight does. Its upper 12
    bits choose one of 4096 bins; the bins are added up from the largest on until the goal is
    reached; that bin is divided by the next 10 bits, and then by the last 10, which name a weight.
    A bin's own sum goes in the order of ids. Where rounding makes a bin's parts fall short of the
    goal that it reached as a whole, its smallest part is taken.

    Args:
        weights: ``[vocab_size]``, 0 or positive, and not denormal.
        goal: positive; if even all of them do not reach it, all are kept.
    """
    bits = weights.view(np.int32)
    above, prefix = 0.0, 0
    for shift in (20, 10, 0):
        inside = bits if shift == 20 else bits[bits >> (shift + 10) == prefix]
        parts = (inside >> shift) if shift == 20 else (inside >> shift) & 1023
        sums = np.bincount(parts, inside.view(np.float32))  # one by one, in the order of ids
        places = np.flatnonzero(sums)[::-1]
        running = np.cumsum([above, *sums[places]])
        reached = int(np.searchsorted(running[1:], goal))
        if reached == len(places):
            if shift == 20:
                return 0.0
            reached -= 1
        above, prefix = float(running[reached]), prefix << 10 | int(places[reached])
    return float(np.array(prefix, dtype=np.int32).view(np.float32))


def compute_logprobs(
    logits: NDArray[np.float32], token_ids: Sequence[int], num_top: int
) -> list[TokenLogprobs | None]:
    """Return the raw logprobs of one token per row, and of the ``num_top`` likeliest.

    A logprob is ``(logit - max) - ln(sum of exp(logit - max))`` in float64, but for the float32
    exponentials; its error is under 1e-6. Rows are reduced one by one, so a result does not depend
    on the others; for a prompt, give at most 64 rows at once.

    Args:
        logits: ``[num_rows, vocab_size]``, left as they are.
        token_ids: ``[num_rows]``, in the vocabulary.
        num_top: how many of the likeliest to return; more than the vocabulary is all of it.

    Returns:
        ``[num_rows]``; None for a row that has NaN or infinity or is all -inf (`row_faults`).
    """
    assert logits.ndim == 2
    assert len(token_ids) == len(logits)
    return [
        _row_logprobs(row, int(token_id), num_top)
        for row, token_id in zip(logits, token_ids, strict=True)
    ]


def _row_logprobs(row: NDArray[np.float32], token_id: int, num_top: int) -> TokenLogprobs | None:
    largest = float(row.max()) + 0.0  # not -0.0
    if not math.isfinite(largest):
        return None
    log_total = float(log(running_sums(exp(below_max(row, largest)))[-1]))
    top_ids = top_token_ids(row, num_top)
    return TokenLogprobs(
        token_id=token_id,
        logprob=float(row[token_id]) - largest - log_total,
        rank=1 + int(np.count_nonzero(row > row[token_id])),
        top_ids=tuple(top_ids.tolist()),
        top_logprobs=tuple(value - largest - log_total for value in row[top_ids].tolist()),
    )


def below_max(
    row: NDArray[np.float32], largest: float, temperature: float = 1.0
) -> NDArray[np.float32]:
    """Return ``(row - largest) / temperature``: at most 0; what lies too low becomes -inf."""
    with np.errstate(over="ignore"):
        shifted = row - np.float32(largest)
        if temperature != 1.0:
            # From 1e30 on all finite logits are equal anyway, and float32 still holds it.
            shifted /= np.float32(min(temperature, 1e30))
    return shifted


def top_token_ids(row: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """Return the ids of the ``count`` largest of a row, falling, ties by rising id."""
    ids = at_least_kth(row, count)
    return ids[np.argsort(-row[ids], kind="stable")][:count]


def at_least_kth(row: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """Return the rising ids of all elements no smaller than the ``count``-th largest, ties too."""
    if count >= len(row):
        return np.arange(len(row))
    if count == 0:
        return np.empty(0, dtype=np.intp)
    place = len(row) - count
    return np.flatnonzero(row >= np.partition(row, place)[place])


def add_bias(row: NDArray[np.float32], params: SamplingParams) -> None:
    """Add the request's biases to a row, in place."""
    for token_id, bias in (params.logit_bias or {}).items():
        row[token_id] += np.float32(bias)


def mask_tokens(
    row: NDArray[np.float32], params: SamplingParams, masked_token_ids: list[int]
) -> None:
    """Set to -inf, in place, what must not be chosen: no later step brings a token back.

    That is: all but the allowed tokens, and those that are named.
    """
    if params.allowed_token_ids is not None:
        allowed = np.array(params.allowed_token_ids)
        kept = row[allowed]
        row.fill(-np.inf)
        row[allowed] = kept
    row[masked_token_ids] = -np.inf


def mask_others(row: NDArray[np.float32], mask: NDArray[np.int32]) -> None:
    """Set to -inf, in place, the tokens whose bit is 0: bit i % 32 of word i // 32 is token i."""
    bits = np.unpackbits(mask.view(np.uint8), count=len(row), bitorder="little")
    row[bits == 0] = -np.inf


def masked_token_ids(
    params: SamplingParams,
    output_token_ids: Sequence[int],
    eos_token_ids: Iterable[int],
    bad_words_token_ids: Iterable[Sequence[int]],
) -> list[int]:
    """Return the ids that must not be chosen, perhaps repeated, besides those not allowed.

    That is: the last token of a bad word whose others end the answer so far; and, while fewer than
    `min_tokens` are generated, every token that would end it (the model's own end tokens also
    under `ignore_eos`, as in vLLM).
    """
    masked: list[int] = []
    num_output = len(output_token_ids)
    for word in bad_words_token_ids:
        num_before = len(word) - 1
        if num_before <= num_output and all(
            output_token_ids[num_output - num_before + i] == word[i] for i in range(num_before)
        ):
            masked.append(word[-1])
    if num_output < params.min_tokens:
        masked += (*eos_token_ids, *(params.stop_token_ids or ()))
    return masked


def penalise(
    row: NDArray[np.float32],
    params: SamplingParams,
    prompt_ids: NDArray[np.int32],
    output_token_ids: Sequence[int] | NDArray[np.int32],
) -> None:
    """Apply the three penalties to a row, in place, as in vLLM and OpenAI's reference.

    Repetition (Keskar et al., CTRL, 2019) by the tokens of prompt and answer; frequency and
    presence by those of the answer alone. ``prompt_ids`` may name a token more than once.
    """
    used, counts = np.unique(np.asarray(output_token_ids, dtype=np.intp), return_counts=True)
    if params.repetition_penalty != 1.0:
        is_seen = np.zeros(len(row), dtype=np.bool_)
        is_seen[prompt_ids] = True
        is_seen[used] = True
        seen = np.flatnonzero(is_seen)
        values, penalty = row[seen], np.float32(params.repetition_penalty)
        with np.errstate(over="ignore"):
            row[seen] = np.where(values > 0, values / penalty, values * penalty)
    if params.frequency_penalty != 0.0:
        row[used] -= np.float32(params.frequency_penalty) * counts.astype(np.float32)
    if params.presence_penalty != 0.0:
        row[used] -= np.float32(params.presence_penalty)
