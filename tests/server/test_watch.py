"""Metrics, timings, log lines and spans of a server that runs: what it says of real requests."""

from __future__ import annotations

import json

import pytest
from prometheus_client.parser import text_string_to_metric_families

from octavo.server.logs import configure_logs

from .conftest import events, wait_until

PROMPT = list(range(20, 60))
BODY = {"prompt": PROMPT, "max_tokens": 4, "ignore_eos": True, "temperature": 0}


def samples(server) -> dict[str, float]:
    """Scrape; return each value by its name and labels, the model's name left out."""
    response = server.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    values = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k != "model_name"}
            values[sample.name, *sorted(labels.items())] = sample.value
    return values


def growth(server, act) -> dict[str, float]:
    before = samples(server)
    act()
    wait_until(server.is_idle)
    return {
        name[0] if len(name) == 1 else name: value - before.get(name, 0.0)
        for name, value in samples(server).items()
    }


def test_a_request_is_counted_once_in_every_family(server):
    salt = {"cache_salt": "counted once"}
    first = growth(server, lambda: server.post("/v1/completions", BODY | salt))
    again = growth(server, lambda: server.post("/v1/completions", BODY | salt))
    for grown in (first, again):
        assert grown["vllm:prefix_cache_queries_total"] == 40
        assert grown["vllm:generation_tokens_total"] == 4
        assert grown["vllm:time_to_first_token_seconds_count"] == 1
        assert grown["vllm:inter_token_latency_seconds_count"] == 3
        assert grown["vllm:e2e_request_latency_seconds_count"] == 1
        assert grown["vllm:request_prompt_tokens_sum"] == 40
        assert grown["vllm:request_success_total", ("finished_reason", "length")] == 1
    assert first["vllm:prefix_cache_hits_total"] == 0
    assert again["vllm:prefix_cache_hits_total"] == 32  # two full blocks of 16
    assert again["vllm:request_prefill_kv_computed_tokens_sum"] == 8
    # Prompt and output tokens of all steps: what was cached was not computed.
    assert first["vllm:iteration_tokens_total_sum"] == 44
    assert again["vllm:iteration_tokens_total_sum"] == 12


def test_a_client_that_leaves_is_in_every_metric_of_requests(server):
    def leave() -> None:
        connection = server.connect("/v1/completions", BODY | {"max_tokens": 500, "stream": True})
        connection.recv(1)
        connection.close()

    grown = growth(server, leave)
    assert grown["vllm:request_success_total", ("finished_reason", "abort")] == 1
    assert grown["vllm:e2e_request_latency_seconds_count"] == 1
    assert grown["vllm:request_generation_tokens_count"] == 1


def test_a_refused_request_is_counted_as_http_only(server):
    grown = growth(server, lambda: server.post("/v1/completions", BODY | {"top_p": 7}))
    assert grown["vllm:e2e_request_latency_seconds_count"] == 0
    key = ("octavo_http_responses_total", ("handler", "/v1/completions"), ("status", "400"))
    assert grown[key] == 1


@pytest.mark.parametrize("stream", [False, True])
def test_timings_come_with_the_answer_when_asked(server, stream):
    body = BODY | {"cache_salt": "timed", "timings": True, "stream": stream}
    server.post("/v1/completions", body)
    response = server.post("/v1/completions", body)
    answers = events(response.text)[:-1] if stream else [response.json()]
    (told,) = [answer["timings"] for answer in answers if "timings" in answer]
    assert told["prompt_tokens"] == 40
    assert told["cached_tokens"] == 32
    assert told["computed_tokens"] == 8
    assert told["output_tokens"] == 4
    assert told["queue_reason"] is None
    assert 0 <= told["queue_seconds"] <= told["ttft_seconds"] <= told["total_seconds"]
    assert "timings" not in server.post("/v1/completions", BODY).json()


@pytest.mark.usefixtures("loggers_as_before")
def test_the_log_says_why_and_never_what(server, capsys):
    configure_logs("json")
    secret = "nobody must read this sentence"
    told = ""
    server.post("/v1/completions", BODY | {"prompt": secret, "echo": True})

    def is_told() -> bool:
        nonlocal told
        told += capsys.readouterr().err
        return '"finish_reasons"' in told

    wait_until(is_told)
    (line,) = [line for line in told.splitlines() if '"finish_reasons"' in line]
    assert json.loads(line)["queue_reason"] is None
    assert json.loads(line)["output_tokens"] == 4
    assert secret not in told


def test_an_observer_that_fails_stops_nothing(server, monkeypatch, caplog):
    def fail(*_: object) -> None:
        raise ValueError("no")

    (watch,) = server.engine._observers
    for name in ("on_step", "on_first_token", "on_finished"):
        monkeypatch.setattr(watch.metrics, name, fail)
    assert server.post("/v1/completions", BODY).status_code == 200
    wait_until(server.is_idle)
    assert "what watches the engine failed" in caplog.text


def test_who_watches_is_answered_while_a_step_takes_long(server, gate):
    """None of it waits for the engine's thread, which sits in a step here."""
    held = server.connect("/v1/completions", {"prompt": "hello", "max_tokens": 4})
    wait_until(lambda: gate.num_begun == 1)
    for path in ("/health", "/ready", "/version", "/v1/models"):
        assert server.get(path).status_code == 200
    assert "octavo_queue_depth 1.0" in server.get("/metrics").text
    assert server.post("/tokenize", {"prompt": "hello"}).status_code == 200
    assert gate.num_begun == 1
    gate.open()
    assert b"200 OK" in held.recv(1000)
    held.close()
