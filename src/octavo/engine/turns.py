"""How soon an engine's thread gets Python's lock from a thread that keeps it busy.

A step computes without the lock and takes it back twice, behind the forward pass and behind the
choice of tokens; and whenever it holds the lock, a busy thread asks for it. Each change of hands
costs the switch interval and what Linux adds to a wait. docs/log.md has what that costs.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from typing import Final

SWITCH_INTERVAL: Final = 2e-5
"""Seconds after which a busy thread gives way to the engine's; Python's own 5 ms double a step."""

_PR_SET_TIMERSLACK: Final = 29


def shorten() -> float:
    """Let threads of this process change hands at `SWITCH_INTERVAL`; return what it was before."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL)
    return before


def wake_in_time() -> None:
    """End this thread's waits when their time is over: Linux adds 50 us to each unless told not to.

    Elsewhere, and where a sandbox forbids it, nothing changes.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # a libc without prctl
            ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
