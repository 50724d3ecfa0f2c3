"""The cache of compiled code: nothing twice, nothing stale, and no need for a writable folder."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import octavo
from octavo.backends.cpu import compiled

SOURCE = Path(octavo.__file__).parent

PROGRAM = """
import sys
import numba, numpy as np
from octavo.backends.cpu import team
from octavo.backends.cpu.compiled import Compiled
import entry
told = []
one = Compiled(entry.answer, what="the test")
out = np.zeros(16, np.float32)
one.get([numba.typeof(out)], told.append)(out)
print(float(out[0]), one.was_loaded, len(told), told[0] if told else "")
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
        self, home: Path | None = None, compiled: Path | None = None
    ) -> subprocess.Popen[str]:
        env = {**os.environ, "PYTHONPATH": str(self.folder)}
        env["OCTAVO_HOME"] = str(home or self.home)
        env.pop("OCTAVO_COMPILED", None)
        if compiled is not None:
            env["OCTAVO_COMPILED"] = str(compiled)
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(
        self, home: Path | None = None, compiled: Path | None = None
    ) -> tuple[float, bool, int, str]:
        return finish(self.start(home, compiled))


def finish(process: subprocess.Popen[str]) -> tuple[float, bool, int, str]:
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    value, loaded, told, first = out.strip("\n").split(" ", 3)
    return float(value), loaded == "True", int(told), first


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
    value, loaded, told, first = copy.run()
    assert (value, loaded) == (3.0, False)
    assert told == 2  # that it begins, and how long it took
    assert "compiling the test" in first
    assert copy.run() == (3.0, True, 0, "")
    # An imported kernel's constant: Numba by itself would not notice.
    copy.edit(5.0)
    assert copy.run()[:2] == (5.0, False)
    copy.edit(3.0)
    assert copy.run()[:2] == (3.0, True)


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
    value, loaded, _, first = copy.run(home)
    assert (value, loaded) == (3.0, False)
    assert "cannot be kept ([Errno 20] Not a directory" in first
    assert str(home) in first


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
    monkeypatch.setattr(compiled.numba, "__version__", "0")
    keys.add(compiled.cache_key(tmp_path))
    assert len(keys) == 6
