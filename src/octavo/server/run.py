"""Run a server until it is told to end: first it drains, then it stops."""

from __future__ import annotations

import asyncio
import signal
import socket
from typing import TYPE_CHECKING

import uvicorn

from octavo.errors import ConfigError
from octavo.server.app import create_app
from octavo.server.connections import BoundedProtocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from octavo.engine.async_engine import AsyncEngine
    from octavo.server.state import ServerState

_BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 takes a free one. Raises `ConfigError`."""
    listener = None
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except (OSError, UnicodeError) as error:  # the second for a host that no name can be
        if listener is not None:
            listener.close()
        raise ConfigError(
            f"cannot listen at {host}:{port}: {getattr(error, 'strerror', None) or error}; "
            "take another --host or --port (0 picks a free one)",
            param="port",
        ) from None
    return listener


def serve(
    make_state: Callable[[], ServerState],
    listener: socket.socket,
    *,
    drain_seconds: float,
    on_ready: Callable[[], None],
) -> None:
    """Serve until SIGINT or SIGTERM, and then until nothing runs or ``drain_seconds`` are over.

    A second signal ends it at once. ``make_state`` is called in the loop's thread.
    """
    config = uvicorn.Config("unused", log_config=None, access_log=False, lifespan="off")
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(_serve(make_state, listener, drain_seconds, on_ready))


def make_config(state: ServerState) -> uvicorn.Config:
    """Return how uvicorn is to serve what ``state`` holds."""
    return uvicorn.Config(
        create_app(state),
        http=BoundedProtocol,
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        backlog=_BACKLOG,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=5,
        server_header=False,
    )


async def _serve(
    make_state: Callable[[], ServerState],
    listener: socket.socket,
    drain_seconds: float,
    on_ready: Callable[[], None],
) -> None:
    state = make_state()
    async with state.engine as engine:
        server = _Server(make_config(state), engine, drain_seconds, on_ready)
        await server.serve(sockets=[listener])
    if state.watch is not None:
        await asyncio.to_thread(state.watch.close)


class _Server(uvicorn.Server):
    """Drains at the first signal, stops at the second, or when it has drained."""

    def __init__(
        self,
        config: uvicorn.Config,
        engine: AsyncEngine,
        drain_seconds: float,
        on_ready: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._engine = engine
        self._drain_seconds = drain_seconds
        self._on_ready = on_ready
        self._loop = asyncio.get_running_loop()
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Say that it is ready, once it is."""
        await super().startup(sockets)
        self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Take a signal; the second ends the process, as one that nobody takes would."""
        if self._engine.is_draining:
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
        self._engine.is_draining = True
        self._loop.call_soon_threadsafe(self._begin_to_drain)

    def _begin_to_drain(self) -> None:
        self._draining = self._loop.create_task(self._drain())

    async def _drain(self) -> None:
        await self._engine.drain(self._drain_seconds)
        self.should_exit = True
