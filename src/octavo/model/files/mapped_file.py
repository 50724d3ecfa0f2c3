"""Mapping a model file into memory, or saying why it cannot be read."""

from __future__ import annotations

import mmap
import os
import stat
from typing import TYPE_CHECKING

from octavo.errors import ModelFileError, ModelNotFoundError

if TYPE_CHECKING:
    from pathlib import Path


def map_file(path: Path, *, kind: str, least_bytes: int) -> mmap.mmap:
    """Return a read-only map of the whole regular file at `path`.

    `kind` ("GGUF") and `least_bytes`, the size of the smallest such file, are for messages. Another
    process that truncates the file while it is mapped kills this one (SIGBUS): replace model files,
    never rewrite them. Raises `ModelNotFoundError` or `ModelFileError`.
    """
    try:
        with open(path, "rb", opener=_open_now) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ModelFileError("not a regular file", path=path)
            if status.st_size < least_bytes:
                raise ModelFileError(
                    f"the file has {status.st_size} bytes, too few for a {kind} header "
                    f"({least_bytes}); was its download interrupted?",
                    path=path,
                )
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelNotFoundError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise ModelFileError(f"is a directory; name the {kind} file in it", path=path) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path, or emptied just now
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelFileError(f"cannot be read: {reason}", path=path) from error


def _open_now(path: str, flags: int) -> int:
    """Open without waiting: a named pipe would otherwise hold us until somebody writes to it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
