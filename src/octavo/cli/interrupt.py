"""Ctrl-C before a command runs: nothing is begun then, so the process ends at once, in silence.

A KeyboardInterrupt would not do there: it comes out of whichever import it hits, and some libraries
turn it into an error of their own. Imports nothing heavy: it must be in force before the rest is.
"""

from __future__ import annotations

import os
import signal

INTERRUPTED = 130


def end_at_once() -> None:
    """Let Ctrl-C end the process, unless whoever started us wants it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_again() -> None:
    """Let Ctrl-C be a KeyboardInterrupt again, if `end_at_once` changed that."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(_signal: int, _frame: object) -> None:
    os._exit(INTERRUPTED)
