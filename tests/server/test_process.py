"""`octavo serve` as a process: its one line, its signals, its exit codes."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager

import httpx2
import pytest

from octavo.cli.guard import BAD_REQUEST
from server.conftest import events, wait_until

LONG = {"prompt": "hello", "max_tokens": 480, "ignore_eos": True, "seed": 3, "stream": True}

# A step takes a while there, so that something runs when the signal comes.
SLOW = """
import sys, time
from octavo.engine.core import EngineCore
step = EngineCore.step
def slowed(self):
    time.sleep(0.004)
    return step(self)
EngineCore.step = slowed
from octavo.cli.main import main
sys.argv[0] = "octavo"
main()
"""


class Process:
    """A server as a process, that has said where it listens."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.line = process.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:(\d+)$", self.line.strip())
        assert address, self.line or process.communicate()[1]
        self.port = int(address[1])
        self.url = address[0]

    def ask(self, body, path="/v1/completions"):
        return httpx2.post(self.url + path, content=json.dumps(body), timeout=30)

    def end(self):
        """Return the exit code and what it said."""
        out, err = self.process.communicate(timeout=20)
        return self.process.returncode, out, err


@pytest.fixture
def run(kernels, tiny_model_path):
    @contextmanager
    def running(*flags):
        command = (
            sys.executable, "-c", SLOW, "serve", tiny_model_path, "--num-kv-blocks", "40",
            "--num-threads", "1", "--port", "0", *flags,
        )  # fmt: skip
        process = subprocess.Popen(
            [str(part) for part in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield Process(process)
        finally:
            process.kill()
            process.communicate()

    return running


class Reader:
    """Reads a stream in a thread of its own, to its end however that comes."""

    def __init__(self, server: Process, body) -> None:
        self.text = ""
        self._thread = threading.Thread(target=self._read, args=(server, body))
        self._thread.start()
        wait_until(lambda: "data:" in self.text)

    def _read(self, server, body) -> None:
        try:
            with httpx2.stream(
                "POST", server.url + "/v1/completions", content=json.dumps(body), timeout=30
            ) as answer:
                for part in answer.iter_text():
                    self.text += part
        except httpx2.TransportError as error:
            self.text += f"{type(error).__name__}"

    def end(self) -> str:
        self._thread.join(30)
        return self.text


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT], ids=lambda sign: sign.name)
def test_a_signal_lets_it_finish_what_runs(run, sign):
    with run("--served-model-name", "mine") as server:
        stream = Reader(server, LONG)
        server.process.send_signal(sign)
        wait_until(lambda: httpx2.get(server.url + "/ready").status_code == 503)
        assert httpx2.get(server.url + "/health").status_code == 200
        refused = server.ask({"prompt": "hello"})
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "draining"
        *chunks, done = events(stream.end())
        assert done == "[DONE]"
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        assert chunks[-1]["model"] == "mine"
        code, out, err = server.end()
    assert code == 0, err
    assert out == ""  # the line that it is ready is all there is
    assert "Traceback" not in err


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT], ids=lambda sign: sign.name)
def test_a_second_signal_ends_it_at_once(run, sign):
    with run() as server:
        stream = Reader(server, LONG)
        server.process.send_signal(sign)
        wait_until(lambda: httpx2.get(server.url + "/ready").status_code == 503)
        server.process.send_signal(sign)
        code, _, err = server.end()
        assert "[DONE]" not in stream.end()
    assert code == -sign, err
    assert "Traceback" not in err


def test_what_does_not_finish_in_time_is_ended_properly(run):
    with run("--drain-seconds", "0.1") as server:
        stream = Reader(server, LONG)
        server.process.send_signal(signal.SIGTERM)
        *chunks, done = events(stream.end())
        assert done == "[DONE]"
        assert chunks[-1]["choices"][0]["finish_reason"] == "abort"
        assert server.end()[0] == 0


def test_a_killed_server_leaves_nothing_behind(run):
    with run() as server:
        stream = Reader(server, LONG)
        children = subprocess.run(
            ["ps", "--ppid", str(server.process.pid), "-o", "pid="], capture_output=True, text=True
        ).stdout.split()
        server.process.kill()
        server.end()
        stream.end()
        assert not [pid for pid in children if os.path.exists(f"/proc/{pid}")]
        with socket.socket() as again:  # the port is free for the next one
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(("127.0.0.1", server.port))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--port", "{taken}"), "cannot listen at 127.0.0.1:{taken}: Address already in use"),
        (("--host", "203.0.113.7"), "cannot listen at 203.0.113.7:0"),
        (("--host", "no..name"), "cannot listen at no..name:0"),
        (("--host", "x" * 70), "cannot listen at"),
        (("--api-key", ""), "--api-key is empty"),
    ],
    ids=["port in use", "not here", "no name", "too long", "empty key"],
)
def test_what_it_cannot_do_is_one_line(monkeypatch, capsys, flags, message):
    from octavo.cli.app import app

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        args = [flag.replace("{taken}", port) for flag in flags]
        defaults = [] if "--port" in flags else ["--port", "0"]
        with pytest.raises(SystemExit) as ended:
            app(args=["serve", "no-such-model", *defaults, *args], prog_name="octavo")
    told = capsys.readouterr()
    assert ended.value.code == BAD_REQUEST
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert message.replace("{taken}", port) in told.err
