"""What a backend is: one whole forward pass over a paged KV cache that it owns.

This is the granularity at which backends differ. A backend sees arrays of tokens, positions and
blocks; it knows no requests, no sampling and no sharing.

    position t of a sequence lies in block `block_tables[seq, t // block_size]`,
    at offset `t % block_size` of it; its slot is `block_id * block_size + offset`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from octavo.model.spec import ModelSpec

NO_SLOT = -1
"""In `slot_mapping`: compute this token, and do not store its keys and values.

Used where its block is shared and holds them already; attention reads them from there.
"""


@dataclass(frozen=True, slots=True)
class InputBatch:
    """The arrays of one step: sequences of any lengths, one after another.

    Sequence i has the tokens ``query_start_loc[i]`` to ``query_start_loc[i + 1]`` - 1, and they
    are its last ones: after this step ``seq_lens[i]`` tokens of it have been computed.
    """

    input_ids: NDArray[np.int32]  # [num_tokens]
    positions: NDArray[np.int32]  # [num_tokens], from 0
    slot_mapping: NDArray[np.int32]  # [num_tokens], or NO_SLOT
    query_start_loc: NDArray[np.int32]  # [num_seqs + 1]
    seq_lens: NDArray[np.int32]  # [num_seqs]
    # [num_seqs, most blocks of a sequence], padded with 0; -1 for a block that has left every
    # layer's window and is not to be read
    block_tables: NDArray[np.int32]
    logits_indices: NDArray[np.int32]  # [num_rows], the tokens whose logits are wanted

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return len(self.input_ids)

    @property
    def num_seqs(self) -> int:
        """Sequences that take part in this step."""
        return len(self.seq_lens)


class Backend(Protocol):
    """The arithmetic of one model on one machine."""

    spec: ModelSpec
    block_size: int
    num_blocks: int

    @property
    def num_clamped(self) -> int:
        """Keys and values so far that were too large to be stored as they were."""

    def execute(self, batch: InputBatch) -> NDArray[np.float32]:
        """Compute ``batch`` and store its keys and values.

        Returns the logits of ``logits_indices``, ``[num_rows, vocab_size]``; the array may be the
        backend's own, and then holds until the next call: to copy it would be 5 % of a decode step.
        Keys and values are stored before attention reads them, so a token sees itself as any later
        token will see it.
        """

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (source, target), one after another."""
