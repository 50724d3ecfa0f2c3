"""How a command ends: exit codes, one line for an error, silence for a closed pipe.

0 done   1 failed   2 bad usage, setting or request   3 the model cannot be had or opened
130 interrupted   141 nobody reads the output any more
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import traceback
from contextlib import suppress
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.interrupt import INTERRUPTED, raise_again
from octavo.cli.options import with_signature
from octavo.cli.terminal import say
from octavo.errors import ConfigError, InvalidRequestError, InvariantError, ModelError, OctavoError

if TYPE_CHECKING:
    from octavo.cli.options import Command

FAILED = 1
BAD_REQUEST = 2
NO_MODEL = 3
BROKEN_PIPE = 141  # as a process that SIGPIPE ended

_DEBUG = Parameter(
    "debug",
    Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool,
        typer.Option("--debug", envvar="OCTAVO_DEBUG", help="Show where an error came from."),
    ],
)


def guarded(command: Command) -> Command:
    """Return ``command`` with a flag --debug, and with its exceptions turned into exit codes.

    What is neither an `OctavoError` nor the system's doing is a bug of ours and keeps its
    traceback.
    """

    @functools.wraps(command)
    def wrapper(*, debug: bool, **values: Any) -> None:
        try:
            raise_again()
            command(**values)
            sys.stdout.flush()  # so that a closed pipe shows here
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            discard_output()
            raise typer.Exit(BROKEN_PIPE) from None
        except OSError as error:  # a full disk, say
            if debug:
                traceback.print_exc()
            say(f"error: {error}", colour="red")
            raise typer.Exit(FAILED) from None
        except OctavoError as error:
            if debug:
                traceback.print_exc()
            bug = " (this is a bug of Octavo)" if isinstance(error, InvariantError) else ""
            say(f"error: {error}{bug}", colour="red")
            raise typer.Exit(exit_code(error)) from None

    return with_signature(wrapper, [*inspect.signature(command).parameters.values(), _DEBUG])


def exit_code(error: OctavoError) -> int:
    """Return the exit code that tells a script what kind of error it was."""
    if isinstance(error, InvalidRequestError | ConfigError):
        return BAD_REQUEST
    return NO_MODEL if isinstance(error, ModelError) else FAILED


def discard_output() -> None:
    """Let what is still buffered go nowhere: Python flushes at exit, and would complain."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
