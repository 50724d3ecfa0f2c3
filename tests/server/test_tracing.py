"""Traces: one span a request, its phases in it, in the caller's trace."""

from __future__ import annotations

import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from octavo.errors import ConfigError
from octavo.server.tracing import Tracer
from server.front import ended

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=7"}


class Traced:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        processor = SimpleSpanProcessor(self.exporter)
        self.tracer = Tracer(None, model_name="tiny", processor=processor)

    def spans(self, stats, headers=None):
        self.exporter.clear()
        self.tracer.on_finished(stats, headers)
        return {span.name: span for span in self.exporter.get_finished_spans()}


@pytest.fixture
def traced() -> Traced:
    return Traced()


def test_a_request_is_a_span_with_its_three_phases_at_their_times(traced) -> None:
    spans = traced.spans(ended())
    assert sorted(spans) == ["decode", "llm_request", "prefill", "queue"]
    root = spans.pop("llm_request")
    assert root.kind is SpanKind.SERVER
    assert root.parent is None
    assert root.status.status_code is StatusCode.UNSET
    begin = root.start_time  # arrived at 10.0
    assert root.end_time - begin == 3_500_000_000
    times = {n: (s.start_time - begin, s.end_time - begin) for n, s in spans.items()}
    assert times == {
        "queue": (250_000_000, 750_000_000),
        "prefill": (750_000_000, 1_250_000_000),
        "decode": (1_250_000_000, 3_250_000_000),
    }
    for span in spans.values():
        assert span.parent.span_id == root.context.span_id
        assert span.kind is SpanKind.INTERNAL


def test_times_are_those_of_the_wall(traced) -> None:
    now = time.perf_counter()
    before = time.time()
    spans = traced.spans(ended(
        arrived=now - 4, queued=now - 4, scheduled=now - 3, first_token=now - 2,
        last_token=now - 1, ended=now,
    ))  # fmt: skip
    assert spans["llm_request"].end_time / 1e9 == pytest.approx(before, abs=60)


def test_attributes_are_gen_ai_ones(traced) -> None:
    found = dict(traced.spans(ended())["llm_request"].attributes)
    assert found == {
        "gen_ai.request.id": "cmpl-1",
        "gen_ai.request.max_tokens": 20,
        "gen_ai.request.temperature": 1.0,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.n": 1,
        "gen_ai.response.model": "tiny",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.prompt_tokens": 50,
        "gen_ai.usage.completion_tokens": 17,
        "gen_ai.usage.num_sequences": 1,
        "gen_ai.latency.time_in_queue": 0.5,
        "gen_ai.latency.time_to_first_token": 1.25,
        "gen_ai.latency.e2e": 3.5,
        "gen_ai.latency.time_in_model_prefill": 0.5,
        "gen_ai.latency.time_in_model_decode": 2.0,
        "gen_ai.latency.time_in_model_inference": 2.5,
        "octavo.cached_tokens": 32,
        "octavo.recomputed_tokens": 9,
        "octavo.preemptions": 1,
        "octavo.queue_reason": "prefix",
    }


def test_the_callers_trace_goes_on(traced) -> None:
    spans = traced.spans(ended(), {**HEADERS, "authorization": "Bearer x", "baggage": "a=b"})
    root = spans["llm_request"]
    assert format(root.context.trace_id, "032x") == TRACE
    assert format(root.parent.span_id, "016x") == PARENT
    assert root.parent.is_remote
    assert root.context.trace_state.get("vendor") == "7"
    assert {span.context.trace_id for span in spans.values()} == {root.context.trace_id}


def test_a_caller_that_samples_nothing_is_obeyed(traced) -> None:
    assert traced.spans(ended(), {"traceparent": f"00-{TRACE}-{PARENT}-00"}) == {}


def test_a_malformed_parent_begins_a_trace(traced) -> None:
    assert traced.spans(ended(), {"traceparent": "00-zz"})["llm_request"].parent is None


def test_an_error_is_one(traced) -> None:
    stats = ended(error="the logits contain NaN", finish_reasons=["error"])
    status = traced.spans(stats)["llm_request"].status
    assert (status.status_code, status.description) == (StatusCode.ERROR, "the logits contain NaN")


def test_what_was_aborted_in_the_queue_has_that_phase_only(traced) -> None:
    stats = ended(scheduled=None, first_token=None, last_token=None, finish_reasons=["abort"])
    spans = traced.spans(stats)
    assert sorted(spans) == ["llm_request", "queue"]
    assert spans["queue"].end_time == spans["llm_request"].end_time
    assert "gen_ai.latency.time_to_first_token" not in spans["llm_request"].attributes


def test_without_an_endpoint_nothing_is_imported_and_nothing_happens(monkeypatch) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.setitem(sys.modules, name, None)
    tracer = Tracer(None, model_name="tiny")
    assert not tracer.is_on
    tracer.on_finished(ended())
    tracer.close()


@pytest.mark.parametrize("module", ["opentelemetry.sdk.trace", "opentelemetry.exporter"])
def test_without_the_extra_the_remedy_is_told(module, monkeypatch) -> None:
    for name in [*sys.modules, module]:
        if name.startswith(module):
            monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError) as caught:
        Tracer("http://localhost:4318", model_name="tiny")
    assert str(caught.value) == (
        "--otlp-traces-endpoint needs OpenTelemetry, which is not installed; "
        "pip install 'octavo[otel]'"
    )


@pytest.mark.parametrize("endpoint", ["localhost:4318", "grpc://host:4317", "", "http://"])
def test_what_is_no_url_is_refused(endpoint) -> None:
    with pytest.raises(ConfigError, match=r"--otlp-traces-endpoint is '.*; it must be a URL such"):
        Tracer(endpoint, model_name="tiny")


def test_spans_reach_a_collector_before_close_returns() -> None:
    posts = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            posts.append((self.path, body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        tracer = Tracer(f"http://127.0.0.1:{server.server_port}", model_name="tiny")
        assert tracer.is_on
        tracer.on_finished(ended())
        tracer.close()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert [path for path, _ in posts] == ["/v1/traces"]
