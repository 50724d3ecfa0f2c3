"""The cache of compiled code: a second process compiles nothing, an edited kernel is never missed.

Numba's own cache stamps only the file in which a function stands and does not see that a kernel
which it imports has changed. So the folder's name is a hash over all that decides the code: every
file under ``backends/``, the versions of numba and llvmlite, the CPU and its features, the switches
in the environment. Only whole entry points are kept; what they call is inside them.

What is kept is an object file, which LLVM loads alone (`object_code.py`): a process that finds it
does not import Numba, nor any kernel.

The folders lie in ``$OCTAVO_COMPILED``, or under ``$OCTAVO_HOME`` where that is not set.

An entry point is one file with a checksum, which appears whole or not at all: it is read without a
lock, also in a folder that cannot be written. A lock is held while it is compiled, so that two
processes do not both. Code that cannot be loaded is compiled again; code that cannot be kept costs
a compilation each time.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import importlib
import importlib.util
import io
import os
import pickle
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

import llvmlite
import llvmlite.binding as llvm

from octavo.backends.cpu.machine import SWITCHES, cpu_features, cpu_name
from octavo.backends.cpu.object_code import EntryPoint, ObjectCode, kind_of
from octavo.errors import ConfigError, shown
from octavo.model.store import octavo_home

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from octavo.backends.cpu.object_code import Argument

_BACKENDS: Final = Path(__file__).resolve().parents[1]
_DIGEST_BYTES: Final = 32
_PATIENCE: Final = 1.0
"""Seconds; another process that holds the lock for longer is compiling."""


def cache_key(folder: Path = _BACKENDS) -> str:
    """Return the hash of all that decides the compiled code of the kernels under ``folder``."""
    digest = hashlib.blake2b(digest_size=12)
    switches = [f"{name}={os.environ.get(name, '')}" for name in SWITCHES]
    facts = [numba_version(), llvmlite.__version__, sys.version, llvm.get_process_triple()]
    for fact in (*facts, cpu_name(), cpu_features(), *switches):
        digest.update(fact.encode() + b"\0")
    for path in sorted(folder.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def numba_version() -> str:
    """Return what Numba says of its version, without importing it."""
    spec = importlib.util.find_spec("numba")
    assert spec is not None
    assert spec.origin is not None
    return (Path(spec.origin).parent / "_version.py").read_text()


def compiled_home() -> Path:
    """Return the folder for all compiled code: $OCTAVO_COMPILED, or ``compiled`` in the home."""
    configured = os.environ.get("OCTAVO_COMPILED")
    if configured:
        return Path(os.path.expanduser(configured)).absolute()
    return octavo_home() / "compiled"


class Compiled:
    """A module's function, compiled for arguments of some kinds when first asked for, or loaded.

    The module is imported only to compile it.
    """

    def __init__(self, module: str, function: str, *, what: str) -> None:
        self._module, self._function = module, function
        self._what = what
        self._entry: EntryPoint | None = None
        self.was_loaded = False
        """Whether the code came from the cache."""

    def get(
        self, arguments: Sequence[Argument], say: Callable[[str], None] | None = None
    ) -> EntryPoint:
        """Return the function for arguments of these kinds, which stay the same from call to call.

        ``say`` is told if that takes a while, and how long; of kept code that cannot be loaded; and
        of code that cannot be kept.
        """
        if self._entry is None:
            kinds = [kind_of(argument) for argument in arguments]
            self._entry = self._load_or_compile(kinds, say or _say)
        return self._entry

    def _load_or_compile(self, kinds: Sequence[str], say: Callable[[str], None]) -> EntryPoint:
        kept: KeptCode | None = None
        how_often = "once for this version and CPU"
        with contextlib.ExitStack() as held:
            try:
                kept = KeptCode(self._module, self._function, kinds, say)
                entry = kept.load()
                if entry is None:
                    held.enter_context(_locked(kept.path.parent, say))
                    entry = kept.load()  # another process may have made it meanwhile
            except (OSError, ConfigError) as error:
                say(_not_kept(error))
                entry, kept, how_often = None, None, "each time"
            if entry is not None:
                self.was_loaded = True
                return entry
            say(f"compiling {self._what}: up to half a minute, {how_often}")
            begin = time.monotonic()
            code = self._compile(kinds)
            entry = EntryPoint(code)
            if kept is not None:
                kept.save(code)
            say(f"compiled {self._what} in {time.monotonic() - begin:.1f} s")
        return entry

    def _compile(self, kinds: Sequence[str]) -> ObjectCode:
        from octavo.backends.cpu.entry import compile_entry

        function = getattr(importlib.import_module(self._module), self._function)
        assert function.__closure__ is None, "what a function closes over is not in the stamp"
        code: ObjectCode = compile_entry(function, kinds)
        return code


class KeptCode:
    """An entry point's file: a checksum and two pickles.

    They are the stamp (which function, what it takes, its file's hash) and the code.
    """

    def __init__(
        self, module: str, function: str, kinds: Sequence[str], say: Callable[[str], None]
    ) -> None:
        spec = importlib.util.find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        source = hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()
        self._stamp = repr((module, function, tuple(kinds), source))
        own = hashlib.blake2b(self._stamp.encode(), digest_size=6).hexdigest()
        self.path = compiled_home() / cache_key() / f"{function}.{own}.code"
        self._say = say
        self._fault = ""

    def load(self) -> EntryPoint | None:
        """Return the function if the file is there and sound."""
        try:
            content = io.BytesIO(unsealed(self.path.read_bytes()))
            stamp = pickle.load(content)
            if stamp != self._stamp:
                raise ValueError(f"it holds other code, of {shown(stamp)}")
            return EntryPoint(ObjectCode(*pickle.load(content)))
        except (FileNotFoundError, NotADirectoryError):
            pass  # not compiled yet
        except Exception as error:  # a damaged file can raise anything
            fault = f"{type(error).__name__}: {error}"
            if fault != self._fault:
                self._say(f"{self.path} cannot be loaded ({fault}): compiling it again")
            self._fault = fault
        return None

    def save(self, code: ObjectCode) -> None:
        """Write what was compiled; where that cannot be, say so: it is in memory all the same."""
        content = sealed(pickle.dumps(self._stamp) + pickle.dumps(tuple(code)))
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
