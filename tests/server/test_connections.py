"""What strangers do to connections: slow, endless or odd ones harm nobody, and each has its end."""

import json
import socket
import time

import pytest

from octavo.server import bodies, connections

BODY = b'{"prompt":"x","max_tokens":2,"ignore_eos":true,"seed":1}'
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%s\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n"
CLOSE = b"Connection: close\r\n\r\n"


@pytest.fixture
def connect(server):
    """Open connections; all are closed at the end, and the server must still be well."""
    opened = []

    def make(data=b""):
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=20)
        opened.append(connection)
        connection.sendall(data)
        return connection

    yield make
    for connection in opened:
        connection.close()
    assert server.get("/health").status_code == 200


def read_all(connection):
    """Read until the server closes."""
    data = b""
    try:
        while part := connection.recv(65536):
            data += part
    except ConnectionError:
        assert data
    return data


def send_slowly(connection, parts):
    for part in parts:
        connection.sendall(part)
        time.sleep(0.01)


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.2)


@pytest.mark.parametrize("begun", [b"", b"P", HEALTH, HEALTH + b"X: "], ids=repr)
def test_a_head_that_does_not_come_ends_the_connection(connect, short, begun):
    assert read_all(connect(begun)).startswith(b"HTTP/1.1 408 ")


def test_a_head_that_comes_byte_by_byte_is_not_waited_for_longer(connect, short):
    connection = connect()
    with pytest.raises(ConnectionError):
        send_slowly(connection, [b"G"] * 1000)


def test_a_second_head_that_does_not_come_ends_the_connection_after_the_first_answer(
    connect, short
):
    answer = read_all(connect(POST % (len(BODY), b"") + BODY + HEALTH))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b'"finish_reason":"length"' in answer
    assert b"HTTP/1.1 408 " in answer


def test_an_answer_outlives_the_time_of_heads(connect, server, short, monkeypatch):
    step = server.llm.core.step

    def slowed():
        time.sleep(0.1)
        return step()

    monkeypatch.setattr(server.llm.core, "step", slowed)
    body = BODY.replace(b'"max_tokens":2', b'"max_tokens":6,"stream":true')
    for behind in (b"", HEALTH):  # and so it does where another request has begun behind it
        end = CLOSE[:-2] if not behind else b""
        answer = read_all(connect(POST % (len(body), end) + body + behind))
        assert answer.partition(b"data: [DONE]")[1]


def test_a_head_without_end_is_cut_off(connect):
    connection = connect(HEALTH)
    with pytest.raises(ConnectionError):
        send_slowly(connection, [b"X: " + b"a" * 16_000] * 1000)


def test_a_body_that_does_not_come_is_told_so(connect, short):
    answer = read_all(connect(POST % (len(BODY), b"X-Request-Id: mine\r\n") + BODY[:-5]))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert b"x-request-id: mine" in head
    assert json.loads(body)["error"]["code"] == "request_timeout"


def test_hundreds_that_say_nothing_leave_room_for_those_who_ask(connect, server):
    for _ in range(300):
        connect(HEALTH)
    assert server.post("/v1/completions", json.loads(BODY)).status_code == 200


def test_requests_in_a_row_are_answered_in_order(connect):
    ask = POST % (len(BODY), b"X-Request-Id: %d\r\n") + BODY
    answers = read_all(connect(ask % 1 + ask % 2 + HEALTH + CLOSE))
    assert answers.count(b"HTTP/1.1 200 ") == 3
    assert answers.index(b"x-request-id: 1") < answers.index(b"x-request-id: 2")
    assert answers.endswith(b'{"status":"ok"}')


def test_http_1_0(connect):
    head = (POST % (len(BODY), b"")).replace(b"HTTP/1.1", b"HTTP/1.0")
    _, _, body = read_all(connect(head + BODY)).partition(b"\r\n\r\n")
    assert json.loads(body)["usage"]["completion_tokens"] == 2


REFUSED = {
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x05" * 500,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no length": POST.replace(b"%d", b"x") % b"",
    "a negative length": POST.replace(b"%d", b"-5") % b"",
    "two lengths": POST % (2, b"Content-Length: 3\r\n") + b"{}",
    "a length and chunks": POST % (2, b"Transfer-Encoding: chunked\r\n") + b"0\r\n\r\n",
    "no chunk": POST.replace(b"Content-Length: %d", b"Transfer-Encoding: chunked") % b""
    + b"zz\r\n",
    "a zero byte": HEALTH + b"X: a\0b\r\n\r\n",
    "more than it said": POST % (len(BODY) - 5, b"") + BODY,
    "a line of 100,000": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=list(REFUSED))
def test_what_is_no_http_is_a_bad_request(connect, data):
    assert read_all(connect(data)).startswith(b"HTTP/1.1 400 ")


def test_a_websocket_is_refused(connect):
    upgrade = (
        b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    assert read_all(connect(HEALTH + upgrade)).startswith(b"HTTP/1.1 403 ")
