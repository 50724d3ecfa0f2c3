"""The cache of compiled code: nothing twice, nothing stale, and no need for a writable folder."""

from __future__ import annotations

import fcntl
import os
import pickle
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm
import pytest

import octavo
from octavo.backends.cpu import compiled
from octavo.backends.cpu.object_code import EntryPoint, ObjectCode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SOURCE = Path(octavo.__file__).parent

PROGRAM = """
import numpy as np
from octavo.backends.cpu.compiled import Compiled
told = []
one = Compiled("entry", "answer", what="the test")
out = np.zeros(16, np.float32)
one.get([out], told.append)(out)
print(float(out[0]), one.was_loaded, len(told), " | ".join(told))
"""
ENTRY = """
from octavo.backends.cpu.simd import splat, store_f32
from octavo.backends.cpu.helper import constant
def answer(out):
    store_f32(out, 0, splat(constant()))
"""
HELPER = """
import numpy as np
from octavo.backends.cpu.simd import kernel
VALUE = np.float32({value})
@kernel
def constant():
    return VALUE
"""


class Copy:
    """A copy of the package with one more kernel file, run in processes of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        shutil.copytree(SOURCE, folder / "octavo", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "entry.py").write_text(ENTRY)
        self.edit(3.0)

    def edit(self, value: float) -> None:
        path = self.folder / "octavo" / "backends" / "cpu" / "helper.py"
        path.write_text(HELPER.format(value=value))

    def start(
        self,
        home: Path | None = None,
        compiled: Path | None = None,
        under: Sequence[str] = (),
        setup: Callable[[], None] | None = None,
    ) -> subprocess.Popen[str]:
        """Start the program, ``under`` another command, after ``setup`` in its process."""
        env = {**os.environ, "PYTHONPATH": str(self.folder)}
        env["OCTAVO_HOME"] = str(home or self.home)
        env.pop("OCTAVO_COMPILED", None)
        if compiled is not None:
            env["OCTAVO_COMPILED"] = str(compiled)
        return subprocess.Popen(
            [*under, sys.executable, "-c", PROGRAM],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=setup,
        )  # fmt: skip

    def run(
        self, home: Path | None = None, compiled: Path | None = None, **more: Any
    ) -> tuple[float, bool, int, str]:
        return finish(self.start(home, compiled, **more))


def finish(process: subprocess.Popen[str]) -> tuple[float, bool, int, str]:
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    value, loaded, told, text = out.strip("\n").split(" ", 3)
    return float(value), loaded == "True", int(told), text


class Held:
    """Another process that has the folder's lock, for as long as the test wants."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = (folder / "lock").open("ab")
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def let_go(self) -> None:
        self.file.close()


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy(tmp_path_factory.mktemp("copy"))


def test_a_second_process_compiles_nothing_and_an_edit_is_seen(copy: Copy):
    value, loaded, told, text = copy.run()
    assert (value, loaded) == (3.0, False)
    assert told == 2  # that it begins, and how long it took
    assert "compiling the test" in text
    assert copy.run() == (3.0, True, 0, "")
    # An imported kernel's constant: Numba by itself would not notice.
    copy.edit(5.0)
    assert copy.run()[:2] == (5.0, False)
    copy.edit(3.0)
    assert copy.run()[:2] == (3.0, True)


STEP = """
import sys
from backends.cpu.models import batch, spec, weights
from octavo.backends.cpu import backend
from octavo.backends.cpu.rows import CpuRows
compute = backend.CpuBackend(spec(), weights(spec()), num_blocks=8, num_threads=2)
CpuRows(compute)
bits = compute.execute(batch([([5, 6, 7], 0, [2])])).tobytes().hex()
print(backend.STEP.was_loaded, "numba" in sys.modules, bits)
"""


def test_who_loads_the_code_needs_no_numba_and_computes_the_same_bits(tmp_path: Path):
    env = {**os.environ, "OCTAVO_COMPILED": str(tmp_path)}
    env["PYTHONPATH"] = os.pathsep.join([str(SOURCE.parent), str(Path(__file__).parents[2])])
    seen = [
        subprocess.run(
            [sys.executable, "-c", STEP], env=env, capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert [one[:2] for one in seen] == [["False", "True"], ["True", "False"]]
    assert seen[0][2] == seen[1][2]


def test_code_that_calls_what_is_not_there_is_refused():
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    source = llvm.parse_assembly("""
        declare i32 @octavo_has_no_such_function()
        define i32 @entry(i64 %a, i64 %b, i64 %c) {
            %status = call i32 @octavo_has_no_such_function()
            ret i32 %status
        }""")
    machine = llvm.Target.from_default_triple().create_target_machine()
    with pytest.raises(RuntimeError, match="entry"):  # and not the end of the process
        EntryPoint(ObjectCode("entry", machine.emit_object(source)))


def test_the_folder_may_lie_elsewhere(copy: Copy, tmp_path: Path):
    homes = [tmp_path / "home", tmp_path / "other home"]
    loaded = [copy.run(home, tmp_path / "elsewhere")[1] for home in homes]
    assert loaded == [False, True]
    assert not any((home / "compiled").exists() for home in homes)


def test_two_processes_at_once(copy: Copy, tmp_path: Path):
    both = [copy.start(tmp_path), copy.start(tmp_path)]
    results = [finish(process) for process in both]
    assert [value for value, *_ in results] == [3.0, 3.0]
    assert sorted(loaded for _, loaded, *_ in results) == [False, True]


DAMAGES = {
    "empty": lambda _: b"",
    "cut short": lambda data: data[:1000],
    "one bit": lambda data: data[:1500] + bytes([data[1500] ^ 1]) + data[1501:],
    "another function's": lambda _: compiled.sealed(pickle.dumps("another") * 2),
    "its stamp, but no code": lambda data: compiled.sealed(
        pickle.dumps(pickle.loads(compiled.unsealed(data))) + pickle.dumps("none")
    ),
}


def test_damaged_code_is_told_and_compiled_again(copy: Copy, tmp_path: Path):
    copy.run(tmp_path)
    (path,) = tmp_path.rglob("*.code")
    assert path.stat().st_size > 1501
    for name, damage in DAMAGES.items():
        path.write_bytes(damage(path.read_bytes()))
        value, loaded, told, text = copy.run(tmp_path)
        assert (value, loaded, told) == (3.0, False, 3), (name, text)
        assert f"{path} cannot be loaded (" in text
        assert "compiling it again" in text
        assert {found.name for found in path.parent.iterdir()} == {"lock", path.name}
    assert copy.run(tmp_path) == (3.0, True, 0, "")


def test_without_room_the_code_stays_in_memory(copy: Copy, tmp_path: Path):
    def without_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))

    value, loaded, told, text = copy.run(tmp_path, setup=without_room)
    assert (value, loaded, told) == (3.0, False, 3)
    (folder,) = (tmp_path / "compiled").iterdir()
    assert "cannot be kept ([Errno 27] File too large: " in text
    assert str(folder) in text
    assert "set OCTAVO_COMPILED" in text
    assert [path.name for path in folder.iterdir()] == ["lock"]  # no half of it


def test_a_folder_that_cannot_be_written_is_loaded_from(copy: Copy, tmp_path: Path):
    copy.run(compiled=tmp_path)
    (folder,) = tmp_path.iterdir()
    (folder / "lock").unlink()  # an image need not bring it along
    without_rights: list[str] = []
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root may write everywhere, and there is no setpriv to take that away")
        without_rights = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"]
    folder.chmod(0o555)
    try:
        assert copy.run(compiled=tmp_path, under=without_rights) == (3.0, True, 0, "")
        (path,) = folder.glob("*.code")
        path.write_bytes(b"")  # by its own rights, which are not the folder's
        value, loaded, told, text = copy.run(compiled=tmp_path, under=without_rights)
    finally:
        folder.chmod(0o755)
    assert (value, loaded, told) == (3.0, False, 4)
    assert "cannot be loaded (" in text
    assert "cannot be kept ([Errno 13] Permission denied" in text
    assert "each time" in text
    assert not path.read_bytes()


@pytest.mark.parametrize("obstacle", ["a file", "a file in the way"])
def test_a_folder_that_cannot_be_written_costs_a_compilation(
    copy: Copy, tmp_path: Path, obstacle: str
):
    home = tmp_path / "home"
    if obstacle == "a file":
        home.write_text("")
    else:
        home.mkdir()
        (home / "compiled").write_text("")
    value, loaded, _, text = copy.run(home)
    assert (value, loaded) == (3.0, False)
    assert "cannot be kept ([Errno 20] Not a directory" in text
    assert str(home) in text


def test_who_waits_for_another_process_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    held = Held(tmp_path)
    monkeypatch.setattr(compiled, "_PATIENCE", 0.0)
    told = []

    def say(text: str) -> None:
        told.append(text)
        held.let_go()

    with compiled._locked(tmp_path, say):
        assert told == ["another process is compiling the kernels: waiting for it"]
    with compiled._locked(tmp_path, say):
        assert len(told) == 1


def test_the_key_is_made_of_all_that_decides_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "a.py").write_text("x = 1")
    keys = {compiled.cache_key(tmp_path)}
    assert keys == {compiled.cache_key(tmp_path)}
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.py").write_text("y = 1")
    keys.add(compiled.cache_key(tmp_path))
    (tmp_path / "deep" / "b.py").write_text("y = 2")
    keys.add(compiled.cache_key(tmp_path))
    monkeypatch.setenv("OCTAVO_DOT", "generic")
    keys.add(compiled.cache_key(tmp_path))
    monkeypatch.setattr(compiled, "cpu_features", lambda: "+other")
    keys.add(compiled.cache_key(tmp_path))
    monkeypatch.setattr(compiled, "numba_version", lambda: "0")
    keys.add(compiled.cache_key(tmp_path))
    assert len(keys) == 6
