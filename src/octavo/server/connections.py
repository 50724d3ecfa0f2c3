"""Connections that are bounded before there is a request: how long a head may be, and may take.

uvicorn would gather the head of a request for ever. Bodies are bounded where they are read
(`bodies.py`), answers by what the client takes.
"""

from __future__ import annotations

import asyncio  # noqa: TC003 - a default of a runtime annotation
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD_BYTES: Final = 64 << 10
"""Of a head that has not ended; what comes with its first packet is not counted."""
HEAD_SECONDS: Final = 60.0

_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)
_TOO_SLOW: Final = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, which ends a connection whose next head is too long or takes too long."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._is_in_head = False
        self._head_size = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head."""
        super().connection_made(transport)
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._end_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came; count it if it lies within a head."""
        was_in_head = self._is_in_head
        super().data_received(data)
        if was_in_head and self._is_in_head:
            self._head_size += len(data)
            if self._head_size > MOST_HEAD_BYTES:
                self._refuse(_TOO_LARGE)

    def on_message_begin(self) -> None:
        """Begin a head: the first, or another on a connection that stayed open."""
        super().on_message_begin()
        self._begin_head()

    def on_headers_complete(self) -> None:
        """End it."""
        self._end_head()
        super().on_headers_complete()

    def _begin_head(self) -> None:
        if not self._is_in_head:
            self._is_in_head, self._head_size = True, 0
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._on_slow_head)

    def _end_head(self) -> None:
        self._is_in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _on_slow_head(self) -> None:
        if (
            self.cycle is not None and not self.cycle.response_complete
        ):  # it is still being answered
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._on_slow_head)
        else:
            self._refuse(_TOO_SLOW)

    def _refuse(self, answer: bytes) -> None:
        self._end_head()
        if not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()
