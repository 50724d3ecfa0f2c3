"""The cache of compiled code: a second process compiles nothing, an edited kernel is never missed.

Numba stamps only the file in which a function stands and does not see that a kernel which it
imports has changed. So the folder's name is a hash over all that decides the code: every file
under ``backends/``, the versions of numba and llvmlite, the CPU and its features, the switches in
the environment. Only whole entry points are cached; what they call is inside them.

The folders lie in ``$OCTAVO_COMPILED``, or under ``$OCTAVO_HOME`` where that is not set.

Two processes that write one index can pair a key with the wrong code: a lock is held while a
function is loaded or compiled. A folder that cannot be written costs a compilation each time.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import hashlib
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import llvmlite
import numba
from numba.core import config

from octavo.backends.cpu.compiler import OPTIONS
from octavo.backends.cpu.machine import SWITCHES, cpu_features, cpu_name
from octavo.errors import ConfigError
from octavo.model.store import octavo_home

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_BACKENDS: Final = Path(__file__).resolve().parents[1]
_READY: Final = "ready"
_PATIENCE: Final = 1.0
"""Seconds; loading takes less."""


def cache_key(folder: Path = _BACKENDS) -> str:
    """Return the hash of all that decides the compiled code of the kernels under ``folder``."""
    digest = hashlib.blake2b(digest_size=12)
    switches = [f"{name}={os.environ.get(name, '')}" for name in SWITCHES]
    facts = [numba.__version__, llvmlite.__version__, sys.version, cpu_name(), cpu_features()]
    for fact in (*facts, *switches):
        digest.update(fact.encode() + b"\0")
    for path in sorted(folder.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def compiled_home() -> Path:
    """Return the folder for all compiled code: $OCTAVO_COMPILED, or ``compiled`` in the home."""
    configured = os.environ.get("OCTAVO_COMPILED")
    if configured:
        return Path(os.path.expanduser(configured)).absolute()
    return octavo_home() / "compiled"


def cache_folder() -> Path:
    """Return this process's folder for compiled code, made if need be.

    Raises `OSError` or `ConfigError` if there can be none that is written.
    """
    folder = compiled_home() / cache_key()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "ab"):
        pass
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    return folder


class Compiled:
    """A Python function, compiled for one signature when first asked for, or loaded."""

    def __init__(self, function: Callable[..., None], *, what: str) -> None:
        self._function = function
        self._what = what
        self._dispatcher: Any = None
        self.was_loaded = False
        """Whether the code came from the cache."""

    def get(
        self, signature: Sequence[Any], say: Callable[[str], None] | None = None
    ) -> Callable[..., None]:
        """Return the compiled function; ``say`` is told if that takes a while, and how long."""
        if self._dispatcher is None:
            self._dispatcher = self._compile(tuple(signature), say or _say)
        compiled: Callable[..., None] = self._dispatcher
        return compiled

    def _compile(self, signature: tuple[Any, ...], say: Callable[[str], None]) -> Any:
        dispatcher = numba.njit(**OPTIONS)(self._function)
        try:
            folder = cache_folder()
        except (OSError, ConfigError) as error:
            say(
                f"compiled code cannot be kept ({error}): set OCTAVO_COMPILED (or OCTAVO_HOME, "
                "which holds models too) to a folder that can be written"
            )
            self._compile_into(dispatcher, signature, None, say)
            return dispatcher
        with _cache_dir(folder):
            dispatcher.enable_caching()
        with _locked(folder, say):
            self._compile_into(dispatcher, signature, folder, say)
        return dispatcher

    def _compile_into(
        self,
        dispatcher: Any,
        signature: tuple[Any, ...],
        folder: Path | None,
        say: Callable[[str], None],
    ) -> None:
        """Load or compile; the dispatcher keeps the code in ``folder``, if there is one."""
        ready = None if folder is None else folder / f"{self._function.__name__}.{_READY}"
        is_new = ready is None or not ready.exists()
        if is_new:
            how_often = "each time" if ready is None else "once for this version and CPU"
            say(f"compiling {self._what}: up to half a minute, {how_often}")
        begin = time.monotonic()
        with _without_gc():
            dispatcher.compile(signature)
        self.was_loaded = sum(dispatcher.stats.cache_hits.values()) > 0
        if is_new:
            say(f"compiled {self._what} in {time.monotonic() - begin:.1f} s")
        if ready is not None and is_new:
            with contextlib.suppress(OSError):
                ready.touch()


def _say(text: str) -> None:
    if sys.stderr is not None:  # print would take stdout instead
        print(f"octavo: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _without_gc() -> Iterator[None]:
    """Compiling makes millions of objects, and little garbage: collecting it costs a fifth."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def _cache_dir(folder: Path) -> Iterator[None]:
    """Point Numba to ``folder``, and back: other users of Numba in this process keep theirs."""
    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        config.CACHE_DIR = before


@contextlib.contextmanager
def _locked(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the folder's lock; ``say`` is told if another process has it for longer than loading."""
    with open(folder / "lock", "ab") as lock:
        begin = time.monotonic()
        while not _try_lock(lock.fileno()):
            if time.monotonic() - begin > _PATIENCE:
                say("another process is compiling the kernels: waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
                break
            time.sleep(0.05)
        yield


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
