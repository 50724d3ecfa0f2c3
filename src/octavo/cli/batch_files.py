"""The two files of a batch: the requests, and the results, which survive `kill -9`.

A result is one line, written at once and whole. What is killed in the middle of that leaves a torn
last line, which is no JSON; it is cut off when the batch goes on. Knows no engine.
"""

from __future__ import annotations

import fcntl
import json
from typing import TYPE_CHECKING, Any, Self

from octavo.errors import ConfigError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MOST_PROBLEMS_TOLD = 5


def read_requests(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line number and the object of every line that is not blank.

    A line that is no JSON object comes as an empty one: it has no custom_id either.
    """
    with _opened(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, _parse(line.removeprefix(b"\xef\xbb\xbf")) or {}


def check_ids(path: Path) -> dict[str, int]:
    """Return the line number of every custom_id.

    Raises `InvalidRequestError`, naming the lines, unless every line has one of its own: results
    could not be told apart, nor a batch resumed.
    """
    lines: dict[str, int] = {}
    problems = []
    for number, request in read_requests(path):
        custom_id = request.get("custom_id")
        if not request:
            problems.append(f"line {number} is not a JSON object")
        elif not isinstance(custom_id, str) or not custom_id:
            problems.append(f"line {number} has no custom_id, a string that is not empty")
        elif custom_id in lines:
            problems.append(f"line {number} has the custom_id of line {lines[custom_id]}")
        else:
            lines[custom_id] = number
    if problems:
        told = "; ".join(problems[:_MOST_PROBLEMS_TOLD])
        more = len(problems) - _MOST_PROBLEMS_TOLD
        raise InvalidRequestError(
            f"{path}: {told}{f'; and {more} more' if more > 0 else ''}", param="custom_id"
        )
    return lines


class ResultFile:
    """The results, appended as they come; held by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = _opened(path, "ab")
        try:
            self._lock()
            self.finished = self._read()
            """Whether it was answered well, by custom_id."""
        except BaseException:
            self._file.close()
            raise

    def append(self, custom_id: str, status: int, result: dict[str, Any]) -> None:
        """Write a result, the system's own before the next one is computed.

        ASCII only: every reader then agrees where the line ends.
        """
        self._file.write(json.dumps(result).encode("ascii") + b"\n")
        self._file.flush()
        self.finished[custom_id] = status < 400

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{self.path} is being written by another batch; wait for it, or write to "
                "another file",
                param="output",
            ) from None
        except OSError:  # a file system without locks: go on without
            return

    def _read(self) -> dict[str, bool]:
        """Return what is finished, and make the file end with a whole line."""
        finished: dict[str, bool] = {}
        end = 0
        size = self.path.stat().st_size
        line = b"\n"
        with _opened(self.path, "rb") as file:
            for number, line in enumerate(file, 1):
                result = _result(line)
                if result is None:
                    is_last = end + len(line) == size
                    if is_last and line.startswith(b"{") and _parse(line) is None:
                        self._file.truncate(end)
                        return finished
                    raise ConfigError(
                        f"{self.path}: line {number} is not the result of a batch, so nothing is "
                        "written there; name another file",
                        param="output",
                    )
                custom_id, succeeded = result
                finished[custom_id] = succeeded
                end += len(line)
        if not line.endswith(b"\n"):  # all but the line's end was written
            self._file.write(b"\n")
        return finished


def _result(line: bytes) -> tuple[str, bool] | None:
    """Return a result's custom_id and whether it was answered well; None if it is no result."""
    match _parse(line):
        case {"custom_id": str(custom_id), "response": {"status_code": int(status)}}:
            return custom_id, status < 400
    return None


def _parse(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object that a line holds; None if it holds none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _opened(path: Path, mode: str) -> Any:
    try:
        return path.open(mode)
    except OSError as error:
        raise ConfigError(f"{path} cannot be opened: {error.strerror or error}") from error
