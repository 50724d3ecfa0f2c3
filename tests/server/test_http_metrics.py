"""HTTP's own metrics: every exchange once, under its route, however it ends."""

from __future__ import annotations

import pytest
from fastapi import FastAPI, Request
from starlette.responses import StreamingResponse
from starlette.testclient import TestClient

from octavo.server.http_metrics import WatchHttp
from server.front import Front


@pytest.fixture
def front() -> Front:
    return Front()


@pytest.fixture
def client(front: Front) -> TestClient:
    app = FastAPI()

    @app.post("/items/{name}")
    async def item(name: str, request: Request) -> StreamingResponse:
        await request.body()
        return StreamingResponse(iter([b"ab", b"cde"]), status_code=429 if name == "no" else 200)

    @app.get("/fails")
    async def fails() -> None:
        raise RuntimeError

    app.add_middleware(WatchHttp, metrics=front.metrics.http)
    return TestClient(app, raise_server_exceptions=False)


def told(front: Front) -> dict[str, float]:
    return {
        name: value
        for name, value in front.samples().items()
        if name.startswith(("http_", "octavo_http")) and "seconds_bucket" not in name
        and "seconds_sum" not in name
    }  # fmt: skip


def test_an_exchange_is_counted_by_its_route_with_the_bytes_of_both_bodies(client, front) -> None:
    for name in ("a", "b", "no"):
        client.post(f"/items/{name}", content=b"1234")
    assert told(front) == {
        "http_requests_total{handler=/items/{name},method=POST,status=2xx}": 2,
        "http_requests_total{handler=/items/{name},method=POST,status=4xx}": 1,
        "octavo_http_responses_total{handler=/items/{name},status=200}": 2,
        "octavo_http_responses_total{handler=/items/{name},status=429}": 1,
        "http_request_duration_seconds_count{handler=/items/{name},method=POST}": 3,
        "http_request_size_bytes_count{handler=/items/{name}}": 3,
        "http_request_size_bytes_sum{handler=/items/{name}}": 12,
        "http_response_size_bytes_count{handler=/items/{name}}": 3,
        "http_response_size_bytes_sum{handler=/items/{name}}": 15,
    }


def test_paths_and_methods_that_clients_invent_make_no_series(client, front) -> None:
    for i in range(3):
        client.request(f"BREW{i}", f"/nothing/{i}")
    found = told(front)
    assert found["http_requests_total{handler=none,method=OTHER,status=4xx}"] == 3
    assert found["octavo_http_responses_total{handler=none,status=404}"] == 3


def test_a_fault_is_a_500(client, front) -> None:
    assert client.get("/fails").status_code == 500
    assert told(front)["octavo_http_responses_total{handler=/fails,status=500}"] == 1


async def _gone(scope: object, receive: object, send: object) -> None: ...


def test_a_client_that_left_before_the_answer_is_a_499(front) -> None:
    watch = WatchHttp(_gone, front.metrics.http)
    with pytest.raises(StopIteration):  # nothing in it waits
        watch({"type": "http", "method": "POST"}, None, None).send(None)
    assert told(front)["octavo_http_responses_total{handler=none,status=499}"] == 1
