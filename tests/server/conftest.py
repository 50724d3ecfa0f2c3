"""Servers with a tiny model: one for all tests, in a thread of this process, others as wanted.

In a thread, so that a test can look into the engine: whether all blocks are free again, and what
happens if a step fails. `test_process.py` has the command as a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import openai
import pytest
import structlog
import uvicorn

from octavo import LLM
from octavo.engine.async_engine import AsyncEngine
from octavo.server.run import listen, make_config
from octavo.server.state import ServerState
from octavo.server.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SETTINGS = {"num_kv_blocks": 40, "num_threads": 1, "max_num_seqs": 8}
"""Of the engine behind the server; an LLM of the same must give the same answers."""
PATIENCE = 20.0  # s, until what should have happened counts as lost


class Server:
    """A server that runs, seen from outside and from inside."""

    def __init__(self, llm: LLM, max_waiting: int, api_keys: tuple[str, ...]) -> None:
        self.llm = llm
        self._listener = listen("127.0.0.1", 0)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._max_waiting, self._api_keys = max_waiting, api_keys
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        watch = Watch(self.llm.core, model_name="tiny")
        self.engine = AsyncEngine(self.llm, max_waiting=self._max_waiting, observers=(watch,))
        async with self.engine:
            state = ServerState(self.engine, ("tiny", "alias"), self._api_keys, watch)
            self._server = uvicorn.Server(make_config(state))
            asyncio.get_running_loop().call_soon(self._ready.set)
            await self._server.serve(sockets=[self._listener])

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(PATIENCE)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(PATIENCE)
        self._listener.close()
        assert not self._thread.is_alive()

    # -- from outside -----------------------------------------------------------------------------

    def client(self, **options: Any) -> openai.OpenAI:
        options = {"api_key": "none", "max_retries": 0, **options}
        return openai.OpenAI(base_url=f"{self.url}/v1", **options)

    def post(self, path: str, body: object = None, **options: Any) -> httpx2.Response:
        if body is not None:
            options["content"] = json.dumps(body)
        return httpx2.post(self.url + path, timeout=PATIENCE, **options)

    def get(self, path: str, **options: Any) -> httpx2.Response:
        return httpx2.get(self.url + path, timeout=PATIENCE, **options)

    def connect(self, path: str, body: object) -> socket.socket:
        """Send a request on a new connection and read nothing."""
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        connection.sendall(head.encode() + data)
        return connection

    # -- from inside ------------------------------------------------------------------------------

    @property
    def num_free_blocks(self) -> int:
        return self.llm.core.cache.num_available_blocks

    @property
    def num_blocks(self) -> int:
        return self.llm.core.cache.pool.num_blocks

    def is_idle(self) -> bool:
        return not self.engine.num_open and not self.llm.core.has_requests

    def check_idle(self) -> None:
        """Fail unless all requests end soon, and all accounts add up then."""
        wait_until(self.is_idle)
        assert self.num_free_blocks == self.num_blocks
        assert not self.engine._streams
        assert not self.engine._unscheduled
        assert not self.llm._processor._outputs
        assert not self.llm._processor._choices
        assert not self.llm.core._draw_rows
        self.llm.core.cache.check_invariants([])


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.002)


@pytest.fixture(scope="session")
def run_server(kernels, tiny_model_path) -> Callable[..., Any]:
    """Run a server of its own settings; a context manager ends it."""

    @contextmanager
    def running(
        *, max_waiting: int = 1024, api_keys: tuple[str, ...] = (), **settings: Any
    ) -> Iterator[Server]:
        llm = LLM(tiny_model_path, **{**SETTINGS, **settings})
        server = Server(llm, max_waiting, api_keys)
        server.start()
        try:
            yield server
        finally:
            server.stop()

    return running


@pytest.fixture(scope="session")
def _server(run_server) -> Iterator[Server]:
    with run_server() as server:
        yield server


@pytest.fixture
def server(_server) -> Iterator[Server]:
    """The server that tests share; each must leave it idle, with all blocks free."""
    yield _server
    _server.check_idle()


@pytest.fixture
def client(server) -> Iterator[openai.OpenAI]:
    """OpenAI's own client."""
    with server.client() as client:
        yield client


@pytest.fixture(scope="session")
def reference(kernels, tiny_model_path) -> LLM:
    """An engine of the server's settings, for what an answer should be."""
    return LLM(tiny_model_path, **SETTINGS)


class Gate:
    """Lets the engine compute a step only when the test says so."""

    def __init__(self, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
        self._steps = threading.Semaphore(0)
        self._is_open = False
        self.num_begun = 0
        step = llm.core.step

        def gated() -> Any:
            self.num_begun += 1
            if not self._is_open:
                self._steps.acquire()
            return step()

        monkeypatch.setattr(llm.core, "step", gated)

    def let(self, count: int) -> None:
        """Let that many steps be computed."""
        self._steps.release(count)

    def open(self) -> None:
        """Let all be computed."""
        self._is_open = True
        self._steps.release(1)


@pytest.fixture
def gate(server, monkeypatch) -> Iterator[Gate]:
    """The gate before the engine's steps, shut."""
    gate = Gate(server.llm, monkeypatch)
    yield gate
    gate.open()
    wait_until(server.is_idle)


@pytest.fixture
def loggers_as_before() -> Iterator[None]:
    """Let the test configure the logs of the process, and undo that."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


def events(text: str) -> list[Any]:
    """Return the events of a stream; what is no JSON stays as it is."""
    assert text.endswith("\n\n")
    found = []
    for event in text[:-2].split("\n\n"):
        assert event.startswith("data: ")
        assert "\n" not in event
        data = event.removeprefix("data: ")
        found.append(data if data == "[DONE]" else json.loads(data))
    return found
