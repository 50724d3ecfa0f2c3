"""Traces: one OpenTelemetry span a request, in it its queue, prefill and decode.

The attributes are vLLM's ``gen_ai.*``, and ``octavo.*`` for what it has no name for. Nothing here
is imported from OpenTelemetry before a `Tracer` is made: it is the extra ``otel``.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from octavo.errors import ConfigError, shown
from octavo.server.phases import phases

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.sdk.trace import SpanProcessor

    from octavo.engine.stats import RequestStats

FLAG: Final = "--otlp-traces-endpoint"
"""What the command line calls the endpoint, as vLLM does."""


class Tracer:
    """Sends a span for each request that ended; with no endpoint it does nothing.

    ``endpoint`` is where an OTLP collector listens for HTTP, such as ``http://localhost:4318``;
    ``/v1/traces`` is appended if it has no path. ``processor`` takes the spans instead, in tests.
    Spans are sent in batches by a thread. ``OTEL_SERVICE_NAME`` and ``OTEL_TRACES_SAMPLER`` are
    honoured. Raises `ConfigError` for an endpoint that is no URL, and without the extra ``otel``.
    """

    def __init__(
        self, endpoint: str | None, *, model_name: str, processor: SpanProcessor | None = None
    ) -> None:
        self._model_name = model_name
        self._tracer: Any = None
        if endpoint is None and processor is None:
            return
        url = None if endpoint is None else _checked(endpoint)
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            if processor is None:
                from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

                processor = BatchSpanProcessor(OTLPSpanExporter(endpoint=url))
        except ImportError:
            raise ConfigError(
                f"{FLAG} needs OpenTelemetry, which is not installed; pip install 'octavo[otel]'",
                param="otlp_traces_endpoint",
            ) from None
        name = os.environ.get("OTEL_SERVICE_NAME", "octavo")
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": name}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("octavo")

    @property
    def is_on(self) -> bool:
        """Whether anybody gets the spans."""
        return self._tracer is not None

    def on_finished(self, stats: RequestStats, headers: Mapping[str, str] | None = None) -> None:
        """Send the spans of a request that has ended.

        ``headers`` are those of its HTTP request, in small letters: ``traceparent`` and
        ``tracestate`` make the span a child of the caller's.
        """
        if self._tracer is None:
            return
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        assert stats.ended is not None, "the request has ended"
        carrier = {
            name: value
            for name, value in (headers or {}).items()
            if name in ("traceparent", "tracestate")
        }
        to_unix = _UnixClock()
        span = self._tracer.start_span(
            "llm_request",
            context=TraceContextTextMapPropagator().extract(carrier),
            kind=SpanKind.SERVER,
            attributes=self._attributes(stats),
            start_time=to_unix(stats.arrived),
        )
        within = set_span_in_context(span)
        for name, (begin, end) in phases(stats).items():
            child = self._tracer.start_span(name, context=within, start_time=to_unix(begin))
            child.end(to_unix(end))
        if stats.error is not None or "error" in stats.finish_reasons:
            span.set_status(Status(StatusCode.ERROR, stats.error))
        span.end(to_unix(stats.ended))

    def close(self) -> None:
        """Send what is left, within some seconds, and end the thread."""
        if self._tracer is not None:
            self._provider.shutdown()

    def _attributes(self, stats: RequestStats) -> dict[str, Any]:
        params = stats.params
        found = {
            "gen_ai.request.id": stats.request_id,
            "gen_ai.request.max_tokens": params.max_tokens,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
            "gen_ai.request.n": params.n,
            "gen_ai.response.model": self._model_name,
            "gen_ai.response.finish_reasons": stats.finish_reasons,
            "gen_ai.usage.prompt_tokens": stats.num_prompt_tokens,
            "gen_ai.usage.completion_tokens": stats.num_output_tokens,
            "gen_ai.usage.num_sequences": params.n,
            "gen_ai.latency.time_in_queue": stats.queue_seconds,
            "gen_ai.latency.time_to_first_token": stats.first_token_seconds,
            "gen_ai.latency.e2e": stats.seconds,
            "gen_ai.latency.time_in_model_prefill": stats.prefill_seconds,
            "gen_ai.latency.time_in_model_decode": stats.decode_seconds,
            "gen_ai.latency.time_in_model_inference": stats.inference_seconds,
            "octavo.cached_tokens": stats.num_cached_tokens,
            "octavo.recomputed_tokens": stats.num_recomputed_tokens,
            "octavo.preemptions": stats.num_preemptions,
            "octavo.queue_reason": stats.waited_for or None,
        }
        return {name: value for name, value in found.items() if value is not None}


class _UnixClock:
    """Turns `perf_counter` seconds into nanoseconds since 1970, by one reading of both clocks."""

    def __init__(self) -> None:
        self._offset = time.time_ns() - time.perf_counter_ns()

    def __call__(self, seconds: float) -> int:
        return self._offset + round(seconds * 1e9)


def _checked(endpoint: str) -> str:
    """Return the URL to post to."""
    url = urlsplit(endpoint)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ConfigError(
            f"{FLAG} is {shown(endpoint)}; it must be a URL such as http://localhost:4318 "
            "(OTLP over HTTP)",
            param="otlp_traces_endpoint",
        )
    return endpoint if url.path not in ("", "/") else f"{endpoint.rstrip('/')}/v1/traces"
