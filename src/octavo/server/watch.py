"""Everybody who watches a server's engine, as one observer: metrics, the log, traces."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from octavo.server.logs import log_request
from octavo.server.metrics import Metrics
from octavo.server.tracing import Tracer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from octavo.engine.core import EngineCore
    from octavo.engine.stats import RequestStats, StepStats

_log = logging.getLogger(__name__)


class Watch:
    """Tells metrics, log and traces what happens; a fault of one of them is logged, no more."""

    def __init__(
        self,
        core: EngineCore,
        *,
        model_name: str,
        logs_requests: bool = True,
        otlp_traces_endpoint: str | None = None,
    ) -> None:
        """Raises `ConfigError` for an endpoint that cannot be."""
        self.metrics = Metrics(core, model_name=model_name)
        self._tracer = Tracer(otlp_traces_endpoint, model_name=model_name)
        self._logs_requests = logs_requests

    def on_step(self, step: StepStats) -> None:
        """A step has been computed."""
        with _harmless():
            self.metrics.on_step(step)

    def on_first_token(self, stats: RequestStats, seconds: float) -> None:
        """A request's first token came."""
        with _harmless():
            self.metrics.on_first_token(stats, seconds)

    def on_token_gap(self, seconds: float, count: int) -> None:
        """Tokens of one choice came."""
        with _harmless():
            self.metrics.on_token_gap(seconds, count)

    def on_finished(self, stats: RequestStats) -> None:
        """A request has ended."""
        with _harmless():
            self.metrics.on_finished(stats)
        with _harmless():
            self._tracer.on_finished(stats, stats.trace_headers)
        if self._logs_requests:
            with _harmless():
                log_request(stats)

    def close(self) -> None:
        """Send the spans that are left."""
        self._tracer.close()


@contextmanager
def _harmless() -> Iterator[None]:
    try:
        yield
    except Exception:
        _log.exception("what watches the engine failed; the engine goes on")
