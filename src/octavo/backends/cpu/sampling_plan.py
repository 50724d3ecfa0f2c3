"""The numbers that steer the choice of a token: names of columns, sizes of a thread's own room."""

from __future__ import annotations

CHUNK = 256
"""Weights with one running sum."""
BINS = 4096
"""Of a thread's histogram of order keys."""

(
    NUM_ROWS,
    VOCAB_SIZE,
    STRIDE,  # floats from a row of logits to the next
    LOGITS,  # address of float32
    ROWS,  # address of int64 [rows, ROW_SIZE]
    REALS,  # address of float64 [rows, REAL_SIZE]
    LISTS,  # address of int32: the token ids that rows name
    LISTS_SIZE,
    AMOUNTS,  # address of float32, beside LISTS: what is added to a logit
    MOST,  # room for likeliest tokens of a row
    TOP_IDS,  # address of int32 [rows, MOST]
    TOP_VALUES,  # address of float32 [rows, MOST]
    ROOM,  # VOCAB_SIZE, rounded up to CHUNK
    VALUES,  # addresses of the threads' own room: float32 [threads, values_size(ROOM)],
    SUMS,  # float64 [threads, sums_size(ROOM)],
    COUNTS,  # int32 [threads, ROOM], all 0
) = range(16)
TASK_SIZE = 16

(
    MODE,
    IS_PLAIN,  # the raw logits go to the choice as they are
    TOP_K,  # 0: off
    NUM_TOP,  # 0: no logprobs; 1 + how many of the likeliest
    ALLOWED,  # first of LISTS, and how many; none: all are allowed
    NUM_ALLOWED,
    EDITS,  # what gets AMOUNTS, in this order
    NUM_EDITS,
    PROMPT,  # for penalties
    NUM_PROMPT,
    OUTPUT,
    NUM_OUTPUT,
    TOKEN,  # the choice, -1 if there is none; given where the row is only SCORED
    RANK,
    MASK,  # address of int32: a bit a token, 0 for what must not be chosen; 0: there is none
) = range(15)
ROW_SIZE = 15
GREEDY, DRAWN, SCORED = range(3)

(
    TEMPERATURE,
    TOP_P,
    MIN_P,
    NUMBER,
    REPETITION,
    FREQUENCY,
    PRESENCE,
    LARGEST,  # found: of the raw logits, NaN if any is,
    TOTAL,  # the sum of their exponentials,
    LOGIT,  # and the chosen token's
) = range(10)
REAL_SIZE = 10


def values_size(room: int) -> int:
    """Floats of a thread: values and weights of a row, maxima of its blocks of 64, a tail."""
    return 2 * room + room // 64 + 32


def sums_size(room: int) -> int:
    """Doubles of a thread: bins, and the running sums of a row's chunks."""
    return BINS + room // CHUNK
