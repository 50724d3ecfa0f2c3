"""The cache of compiled code: a second process compiles nothing, an edited kernel is never missed.

Numba's own cache stamps only the file in which a function stands and does not see that a kernel
which it imports has changed. So the folder's name is a hash over all that decides the code: every
file under ``backends/``, the versions of numba and llvmlite, the CPU and its features, the switches
in the environment. Only whole entry points are kept; what they call is inside them.

The folders lie in ``$OCTAVO_COMPILED``, or under ``$OCTAVO_HOME`` where that is not set.

An entry point is one file with a checksum, which appears whole or not at all: it is read without a
lock, also in a folder that cannot be written. A lock is held while it is compiled, so that two
processes do not both. Code that cannot be loaded is compiled again; code that cannot be kept costs
a compilation each time.
"""

# mypy: disable-error-code="no-untyped-call, misc"

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import hashlib
import inspect
import io
import os
import pickle
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import llvmlite
import numba
from numba.core import config
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.compiler_lock import global_compiler_lock
from numba.core.serialize import dumps

from octavo.backends.cpu.compiler import OPTIONS
from octavo.backends.cpu.machine import SWITCHES, cpu_features, cpu_name
from octavo.errors import ConfigError, shown
from octavo.model.store import octavo_home

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_BACKENDS: Final = Path(__file__).resolve().parents[1]
_DIGEST_BYTES: Final = 32
_PATIENCE: Final = 1.0
"""Seconds; another process that holds the lock for longer is compiling."""


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


class Compiled:
    """A module's function, compiled for one signature when first asked for, or loaded."""

    def __init__(self, function: Callable[..., None], *, what: str) -> None:
        self._function = function
        self._what = what
        self._dispatcher: Any = None
        self.was_loaded = False
        """Whether the code came from the cache."""

    def get(
        self, signature: Sequence[Any], say: Callable[[str], None] | None = None
    ) -> Callable[..., None]:
        """Return the compiled function; ``say`` is told if that takes a while, and how long.

        It is told too of kept code that cannot be loaded, and of code that cannot be kept.
        """
        if self._dispatcher is None:
            self._dispatcher = self._compile(tuple(signature), say or _say)
        compiled: Callable[..., None] = self._dispatcher
        return compiled

    def _compile(self, signature: tuple[Any, ...], say: Callable[[str], None]) -> Any:
        dispatcher = numba.njit(**OPTIONS)(self._function)
        how_often = "once for this version and CPU"
        with contextlib.ExitStack() as held:
            try:
                dispatcher._cache = kept = KeptCode(dispatcher, signature, say)
                if not kept.load():
                    held.enter_context(_locked(kept.path.parent, say))
                    kept.load()  # another process may have made it meanwhile
            except (OSError, ConfigError) as error:
                say(_not_kept(error))
                dispatcher._cache = NullCache()
                how_often = "each time"
            self._compile_or_take(dispatcher, signature, how_often, say)
        return dispatcher

    def _compile_or_take(
        self,
        dispatcher: Any,
        signature: tuple[Any, ...],
        how_often: str,
        say: Callable[[str], None],
    ) -> None:
        """Let the dispatcher take what its cache has loaded; else it compiles, and keeps that."""
        self.was_loaded = getattr(dispatcher._cache, "is_loaded", False)
        if not self.was_loaded:
            say(f"compiling {self._what}: up to half a minute, {how_often}")
        begin = time.monotonic()
        with _without_gc(), _first_level():
            dispatcher.compile(signature)
        if not self.was_loaded:
            say(f"compiled {self._what} in {time.monotonic() - begin:.1f} s")


class KeptCode(NullCache):
    """What Numba's dispatcher asks for compiled code and gives it to: one file, one signature.

    The file is a checksum and two pickles: the stamp (which function and signature, its file's
    hash, which CPU), and Numba's own form of a compilation's result.
    """

    def __init__(
        self, dispatcher: Any, signature: tuple[Any, ...], say: Callable[[str], None]
    ) -> None:
        function, self._context = dispatcher.py_func, dispatcher.targetctx
        assert function.__closure__ is None, "what a function closes over is not in the stamp"
        source = hashlib.sha256(Path(inspect.getfile(function)).read_bytes()).hexdigest()
        cpu = self._context.codegen().magic_tuple()
        self._stamp = repr((function.__module__, function.__qualname__, signature, source, cpu))
        own = hashlib.blake2b(self._stamp.encode(), digest_size=6).hexdigest()
        self.path = compiled_home() / cache_key() / f"{function.__name__}.{own}.code"
        self._say = say
        self._result: Any = None
        self._fault = ""

    @property
    def is_loaded(self) -> bool:
        """Whether there is code for the dispatcher to take."""
        return self._result is not None

    def load(self) -> bool:
        """Load the code if the file is there and sound, and return whether it was."""
        try:
            content = io.BytesIO(unsealed(self.path.read_bytes()))
            stamp = pickle.load(content)
            if stamp != self._stamp:
                raise ValueError(f"it holds other code, of {shown(stamp)}")
            parts = pickle.load(content)
            with global_compiler_lock:
                self._context.refresh()
                self._result = CompileResult._rebuild(self._context, *parts)
        except (FileNotFoundError, NotADirectoryError):
            pass  # not compiled yet
        except Exception as error:  # a damaged file can raise anything
            fault = f"{type(error).__name__}: {error}"
            if fault != self._fault:
                self._say(f"{self.path} cannot be loaded ({fault}): compiling it again")
            self._fault = fault
        return self.is_loaded

    def load_overload(self, _signature: Any, _context: Any) -> Any:
        """Return what `load` has loaded, or None, and the dispatcher compiles."""
        return self._result

    def save_overload(self, _signature: Any, result: Any) -> None:
        """Write what was compiled; where that cannot be, say so: it is in memory all the same."""
        assert not result.library.has_dynamic_globals, "holds an address of this process"
        content = sealed(dumps(self._stamp) + dumps(result._reduce()))
        part = self.path.with_name(f"{self.path.name}.{uuid.uuid4().hex}")
        try:
            try:
                part.write_bytes(content)
                part.replace(self.path)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
        except OSError as error:
            self._say(_not_kept(OSError(error.errno, error.strerror, str(self.path))))


def sealed(content: bytes) -> bytes:
    """Return ``content`` behind its checksum."""
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest() + content


def unsealed(data: bytes) -> bytes:
    """Return what was `sealed`. Raises `ValueError` if a byte is missing or has changed."""
    content = data[_DIGEST_BYTES:]
    if sealed(content) != data:
        raise ValueError(f"its {len(data)} bytes are not those that were written")
    return content


def _not_kept(error: Exception) -> str:
    return (
        f"compiled code cannot be kept ({error}): set OCTAVO_COMPILED (or OCTAVO_HOME, which "
        "holds models too) to a folder that can be written and has a few MB free"
    )


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
def _first_level() -> Iterator[None]:
    """Let LLVM optimise at its first level: others take longer, and no kernel gets faster."""
    before = config.OPT
    config.OPT = type(before)(min(1, before))
    try:
        yield
    finally:
        config.OPT = before


@contextlib.contextmanager
def _locked(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the folder's lock; ``say`` is told if another process has it for longer than loading.

    The folder is made if need be. Raises `OSError` if it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "ab") as lock:
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
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
