"""The command, run in this process, and as a process of its own where that is the point."""

import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from octavo.cli.app import app
from tiny_model import tiny_model


@dataclass
class Result:
    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def _compiled(kernels) -> None:
    """The commands' stderr is about the commands."""


@pytest.fixture
def octavo(capsys, monkeypatch) -> Callable[..., Result]:
    """Run a command line in this process; `stdin` is piped in."""

    def call(*args: object, stdin: str = "") -> Result:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            app(args=[str(arg) for arg in args], prog_name="octavo")
        captured = capsys.readouterr()
        return Result(int(ended.value.code or 0), captured.out, captured.err)

    return call


@pytest.fixture
def tiny(tiny_model_path) -> tuple[str, ...]:
    """The flags of a tiny model."""
    return ("--model", str(tiny_model_path), "--num-kv-blocks", "64", "--num-threads", "1")


@pytest.fixture(scope="session")
def long_tiny(tmp_path_factory) -> tuple[str, ...]:
    """The flags of a tiny model that can talk for long."""
    path = tiny_model(tmp_path_factory.mktemp("models") / "long.gguf", context_length=8192)
    return ("--model", str(path), "--num-kv-blocks", "520", "--num-threads", "1")


@pytest.fixture(scope="session")
def start() -> Callable[..., subprocess.Popen[str]]:
    """Start a command line as a process with piped streams; a context manager ends it."""

    @contextmanager
    def started(*args: object) -> Iterator[subprocess.Popen[str]]:
        code = "import sys; from octavo.cli.main import main; sys.argv[0] = 'octavo'; main()"
        process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    return started
