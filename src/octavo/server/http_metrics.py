"""Metrics of HTTP itself: what was asked, how it was answered; refused requests are seen here only.

Names, labels and buckets are those of prometheus-fastapi-instrumentator, which vLLM serves.
"""

from __future__ import annotations

from collections import Counter
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.registry import Collector

from octavo.server.families import FamilyMaker, Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.metrics_core import Metric
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

CLIENT_GONE: Final = 499
"""Counted where the client left before the answer began."""

_METHODS: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_BUCKETS: Final = (0.1, 0.5, 1)


class HttpMetrics(Collector):
    """Counts requests by route, not by path: what clients invent makes no new time series."""

    def __init__(self) -> None:
        self._make = FamilyMaker()
        self._requests: Counter[tuple[str, ...]] = Counter()
        self._responses: Counter[tuple[str, ...]] = Counter()
        self._seconds: dict[tuple[str, ...], Histogram] = {}
        self._sizes: dict[str, tuple[Counter[tuple[str, ...]], Counter[tuple[str, ...]]]] = {
            "request": (Counter(), Counter()),
            "response": (Counter(), Counter()),
        }

    def observe(
        self, handler: str, method: str, status: int, seconds: float, sizes: dict[str, int]
    ) -> None:
        """Count one exchange; ``sizes`` are the bytes of both bodies, `request` and `response`."""
        method = method if method in _METHODS else "OTHER"
        self._requests[handler, method, f"{status // 100}xx"] += 1
        self._responses[handler, str(status)] += 1
        if (handler, method) not in self._seconds:
            self._seconds[handler, method] = Histogram(_BUCKETS)
        self._seconds[handler, method].observe(seconds)
        for name, size in sizes.items():
            counts, sums = self._sizes[name]
            counts[handler,] += 1
            sums[handler,] += size

    def collect(self) -> Iterable[Metric]:
        """Return the families as they are now."""
        make = self._make
        yield make.counters(
            "http_requests",
            "HTTP requests, by route, method and class of status.",
            ("handler", "method", "status"),
            dict(self._requests),
        )
        yield make.counters(
            "octavo_http_responses",
            "HTTP responses, by route and status.",
            ("handler", "status"),
            dict(self._responses),
        )
        yield make.histograms(
            "http_request_duration_seconds",
            "From a request's head to the last byte of its answer.",
            ("handler", "method"),
            dict(self._seconds),
        )
        for name, (counts, sums) in self._sizes.items():
            yield make.summaries(
                f"http_{name}_size_bytes",
                f"Bytes of the {name}'s body.",
                ("handler",),
                {key: (count, sums[key]) for key, count in dict(counts).items()},
            )


class WatchHttp:
    """ASGI middleware that tells `HttpMetrics` of every exchange."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and watch what goes by."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, sizes = perf_counter(), CLIENT_GONE, {"request": 0, "response": 0}

        async def receive_watched() -> Message:
            message = await receive()
            sizes["request"] += len(message.get("body", b""))
            return message

        async def send_watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            sizes["response"] += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive_watched, send_watched)
        except Exception:
            status = 500  # what the server answers in its place
            raise
        finally:
            route: Any = scope.get("route")
            handler = getattr(route, "path", "none")
            seconds = perf_counter() - began
            self._metrics.observe(handler, scope["method"], status, seconds, sizes)
