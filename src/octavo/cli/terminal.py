"""What a person sees: lines on stderr, safe text, tables; and the engine, opened with its notes.

Heavy imports are inside the functions that need them: `octavo --help` passes through here.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import typer

from octavo.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rich.console import Console
    from rich.table import Table

    class HasNotes(Protocol):
        """An LLM, or what stands in for one."""

        notes: tuple[str, ...]

    Opened = TypeVar("Opened", bound=HasNotes)

_PLAIN_WIDTH = 100_000  # columns of an output that is no terminal: nothing is wrapped or cut

# C0 but tab and line feed, DEL, C1: what could move the cursor, or program the terminal.
_CONTROLS = dict.fromkeys((*range(32), *range(127, 160)), "\N{REPLACEMENT CHARACTER}")
del _CONTROLS[ord("\t")], _CONTROLS[ord("\n")]


def say(text: str, *, colour: str | None = None) -> None:
    """Print a line to stderr, in colour if that is a terminal."""
    typer.secho(harmless(text), fg=colour, err=True)


def harmless(text: str) -> str:
    """Return ``text`` without what could steer a terminal: a model or a file wrote it."""
    return text.translate(_CONTROLS)


def check_text(text: str, what: str) -> None:
    """Refuse an argument or a line of stdin that was not UTF-8: Python lets its bytes through."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"the {what} is not UTF-8: byte 0x{ord(text[error.start]) & 0xFF:02x} at character "
            f"{error.start}; convert it",
            param=what,
        ) from None


def print_piece(text: str) -> None:
    """Print a piece of an answer at once: as it is into a pipe or file, harmless on a terminal."""
    sys.stdout.write(harmless(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def open_llm(
    factory: Callable[..., Opened],
    settings: dict[str, Any],
    *,
    verbose: bool = False,
    warn: bool = True,
) -> Opened:
    """Open an engine; what it warns of, and if ``verbose`` what it chose, goes to stderr."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        llm = factory(**settings)
    for warning in caught:
        if warn and issubclass(warning.category, UserWarning):
            say(f"warning: {warning.message}", colour="yellow")
    if verbose:
        for note in llm.notes:
            say(note)
    return llm


def say_faults(faults: Iterable[str]) -> None:
    """Print what went wrong in the arithmetic, `LLM.faults`, to stderr: as a rule nothing."""
    for fault in faults:
        say(f"warning: {fault}", colour="yellow")


def table_console() -> Console:
    """Return the console for stdout; what is no terminal gets plain text of any width."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _PLAIN_WIDTH
    return Console(width=width, markup=False, highlight=False, emoji=False)


def table(*columns: str, numeric: tuple[str, ...] = ()) -> Table:
    """Return an empty table; the ``numeric`` columns are set to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(box=SIMPLE_HEAD if sys.stdout.isatty() else None, pad_edge=False)
    for column in columns:
        right = column in numeric
        made.add_column(
            column, justify="right" if right else "left", no_wrap=right, overflow="fold"
        )
    return made
