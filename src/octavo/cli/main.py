"""Where `octavo` begins: the streams it runs on, and what ends it before a command runs.

Importing this loads next to nothing: what loads the rest must know already how to be interrupted.
"""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper

from octavo.cli import interrupt


def main() -> None:
    """Run the command that the command line names, and exit with its code."""
    interrupt.end_at_once()
    _open_missing_streams()
    # Whatever the locale: what cannot be shown is replaced, and what is not text is refused later
    # as a prompt that is not UTF-8, by name.
    for stream, errors in (
        (sys.stdin, "surrogateescape"),
        (sys.stdout, "replace"),
        (sys.stderr, "replace"),
    ):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=errors)

    import logging

    from octavo.cli.app import app
    from octavo.cli.guard import BROKEN_PIPE, discard_output

    logging.basicConfig(level=logging.WARNING, format="warning: %(message)s")
    try:
        app(prog_name="octavo")
    except SystemExit as end:
        # typer, for a help text, and rich, for a table, make their own end of a closed pipe.
        if isinstance(end.__context__, BrokenPipeError):
            discard_output()
            raise SystemExit(BROKEN_PIPE) from None
        raise


def _open_missing_streams() -> None:
    """Put something in the place of each standard stream that was closed when we were started.

    Their numbers must not go to files that we open later. Nobody is there to read stdout, so that
    becomes a pipe without a reader; stdin is empty, and stderr goes nowhere.
    """
    if sys.stdin is None:
        _put(0, os.open(os.devnull, os.O_RDONLY))
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    if sys.stdout is None:
        reader, writer = os.pipe()
        if reader != 1:  # else it is closed by what takes its place
            os.close(reader)
        _put(1, writer)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        _put(2, os.open(os.devnull, os.O_WRONLY))
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)


def _put(number: int, descriptor: int) -> None:
    """Move a descriptor to a standard stream's number, for us and for the processes we start."""
    if descriptor == number:
        os.set_inheritable(number, True)
    else:
        os.dup2(descriptor, number)
        os.close(descriptor)
