"""What kernels and whoever makes their arrays agree on: sizes, the places of a team's numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from octavo.backends.cpu.machine import HAS_AVX512
from octavo.backends.cpu.plan import PHASES

if TYPE_CHECKING:
    from numpy.typing import NDArray

# -- matrix products (`tiles.py`, `gemm.py`) ------------------------------------------------------

LANES = 16
"""Outputs that lie side by side, one a lane."""
CHUNK = 64
"""Outputs of one work item: four blocks, whose codes lie in turn so that they are one stream."""
K_CHUNK = 256
"""How many k's of 16-bit weights are widened at once."""
GROUP_SIZE = 32
"""Activations that share one scale."""
BIG_ROWS = 8
"""Of the largest tile."""
PANEL_ROWS = 128
"""Rows of activations of one work item: their codes stay in the second-level cache."""

# -- the feed-forward part (`feed_phase.py`) ------------------------------------------------------

FEED_GROUPS = CHUNK // GROUP_SIZE
FEED_NUMBERS_AT = (PANEL_ROWS + BIG_ROWS) * 2 * CHUNK
FEED_NUMBERS = PANEL_ROWS * FEED_GROUPS
FEED_SCRATCH_SIZE = FEED_NUMBERS_AT + 8 * FEED_NUMBERS + 64
"""Floats: gate and up of each row, 64 columns each, then scales, sums, half sums and starts."""
FEED_SPARE_SIZE = PANEL_ROWS * CHUNK
"""Codes of the same rows."""

# -- attention (`attention.py`) -------------------------------------------------------------------

BLOCK = 16
"""Tokens of a block of keys and values."""
SEGMENT, SEGMENT_CHUNK = 512, 64
"""Tokens of a segment, and of its chunks."""
TILE_ROWS = (4, 12) if HAS_AVX512 else (2, 6)
"""The numbers of rows for which there is a tile; a tile with fewer repeats its last row.

The first is decoding's, which waits for memory whatever it computes; each further one would be two
more seconds of compiling.
"""
MAX_ROWS = TILE_ROWS[-1]


def state_size(head_dim: int) -> int:
    """Return the floats of a tile's running state: per row m, 16 partial sums of l, and o."""
    return MAX_ROWS * (16 + 16 + head_dim)


def scratch_size(head_dim: int) -> int:
    """Return the floats one thread needs: queries, scores, and two states."""
    return MAX_ROWS * (head_dim + SEGMENT_CHUNK) + 2 * state_size(head_dim)


# -- the team's numbers, one int64 array (`team.py`) ----------------------------------------------

_APART = 16  # 128 bytes, so that no two share a cache line
ARRIVED, GENERATION, SLEEPERS, NEXT_ITEM, JOB, JOB_SLEEPERS, QUIT, CLAMPED = (
    i * _APART for i in range(8)
)
COMPLETE = GENERATION + 1
"""The clock when all had come to the last barrier."""
TICKS = 8 * _APART
"""For each phase two numbers: thread 0's own work, and the rest of the time that the phase took.
From here on only thread 0 touches them."""
NUM_TICKS = 2 * len(PHASES)
MARK = TICKS + NUM_TICKS
"""Two of the clock: thread 0 left the last barrier; all had come to it."""
SYNC_SIZE = MARK + _APART


def new_sync() -> NDArray[np.int64]:
    """Return a team's shared numbers, all zero, on a cache line's boundary."""
    room = np.zeros(SYNC_SIZE + 8, np.int64)
    skip = -room.ctypes.data % 64 // 8
    return room[skip : skip + SYNC_SIZE]
