"""From a scheduler's plan to a backend's arrays: which tokens, where they go, which rows to return.

The one place that knows both requests and arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from octavo.backends.base import NO_SLOT, InputBatch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from octavo.engine.request import Request


@dataclass(frozen=True, slots=True)
class LogitRows:
    """Which rows of the step's logits belong to one request."""

    request: Request
    scored: range
    """Rows whose targets are the prompt tokens `first_target` and following."""
    first_target: int
    sampled: int | None
    """The row from which the next token is drawn; None while the request is being prefilled."""


def build_batch(
    scheduled: Mapping[Request, int], block_size: int
) -> tuple[InputBatch, list[LogitRows]]:
    """Lay out the tokens of ``scheduled``, a request's number of new tokens each, in its order."""
    input_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    starts = [0]
    seq_lens = []
    indices: list[int] = []
    rows = []
    width = max(len(request.block_table) for request in scheduled)
    block_tables = np.zeros((len(scheduled), width), dtype=np.int32)
    for i, (request, count) in enumerate(scheduled.items()):
        first, table = request.num_computed_tokens, request.block_table
        stop = first + count
        # A fully cached prompt: its last token is computed for its logits, and stored already.
        is_stored = request.num_published_blocks * block_size
        rows.append(_wanted_rows(request, first, stop, starts[-1], indices))
        input_ids += request.tokens(first, stop)
        positions += range(first, stop)
        slots += [
            table[position // block_size] * block_size + position % block_size
            if position >= is_stored
            else NO_SLOT
            for position in range(first, stop)
        ]
        starts.append(starts[-1] + count)
        seq_lens.append(stop)
        block_tables[i, : len(table)] = table
    batch = InputBatch(
        input_ids=np.array(input_ids, dtype=np.int32),
        positions=np.array(positions, dtype=np.int32),
        slot_mapping=np.array(slots, dtype=np.int32),
        query_start_loc=np.array(starts, dtype=np.int32),
        seq_lens=np.array(seq_lens, dtype=np.int32),
        block_tables=block_tables,
        logits_indices=np.array(indices, dtype=np.int32),
    )
    return batch, rows


def _wanted_rows(
    request: Request, first: int, stop: int, start: int, indices: list[int]
) -> LogitRows:
    """Append to ``indices`` the tokens of [first, stop) whose logits are wanted.

    The token at position p, which is row ``start + p - first`` of the batch, predicts p + 1.
    """
    scored_from = scored_to = len(indices)
    target = 0
    if request.skips_prefix_reads:
        target = max(first + 1, len(request.prompt_logprobs), 1)
        last = min(stop, request.num_prompt_tokens - 1)  # one past the last predicting position
        indices.extend(range(start + target - 1 - first, start + last - first))
        scored_to = len(indices)
    sampled = None
    if stop == request.num_tokens:
        sampled = len(indices)
        indices.append(start + stop - 1 - first)
    return LogitRows(request, range(scored_from, scored_to), target, sampled)
