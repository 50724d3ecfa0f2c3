"""A client that goes away: its blocks are free at once, and nobody else notices."""

import json
import socket
import threading
import time

import pytest

from server.conftest import events, wait_until

SOON = 1.0  # s
COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"
LONG = {"max_tokens": 400, "ignore_eos": True, "seed": 3}
MESSAGES = [{"role": "user", "content": "hello"}]


def close(connection, *, how):
    """Close as a client does (FIN), or as a process that is killed may (RST)."""
    if how == "reset":
        linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    connection.close()


def read_event(connection):
    data = b""
    while b"data: " not in data:
        data += connection.recv(65536)
    return data


@pytest.fixture
def slow(server, monkeypatch):
    """Let a step take long enough that no answer ends by itself during a test."""
    step, pause = server.llm.core.step, threading.Event()

    def slowed():
        pause.wait(0.01)
        return step()

    monkeypatch.setattr(server.llm.core, "step", slowed)


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETION, {"prompt": "hello"}),
        (COMPLETION, {"prompt": ["hello", "the"], "n": 3}),
        (CHAT, {"messages": MESSAGES, "n": 2}),
    ],
    ids=["completion", "choices", "chat"],
)
def test_a_client_that_leaves_frees_its_blocks(server, slow, path, body, stream, how):
    """Row 45."""
    connection = server.connect(path, {**body, **LONG, "stream": stream})
    if stream:
        read_event(connection)
    else:
        wait_until(lambda: server.num_free_blocks < server.num_blocks)
    close(connection, how=how)
    wait_until(lambda: server.is_idle() and server.num_free_blocks == server.num_blocks, SOON)


def test_a_client_that_leaves_disturbs_nobody(server, slow):
    body = {"prompt": "hello", "max_tokens": 40, "ignore_eos": True, "seed": 9}
    expected = server.post(COMPLETION, body).json()["choices"]
    stays = server.connect(COMPLETION, body)
    leaving = [server.connect(COMPLETION, {"prompt": "x", **LONG, "n": 2, "stream": i % 2 == 0})
               for i in range(3)]  # fmt: skip
    wait_until(lambda: server.engine.num_open == 4)
    for connection in leaving:
        connection.close()
    wait_until(lambda: server.engine.num_open == 1, SOON)
    data = b""
    while not data.endswith(b"}"):
        data += stays.recv(65536)
    stays.close()
    assert json.loads(data.partition(b"\r\n\r\n")[2])["choices"] == expected


def test_a_client_that_leaves_while_it_is_queued(run_server, monkeypatch):
    from server.conftest import Gate

    with run_server(max_num_seqs=1) as server:
        gate = Gate(server.llm, monkeypatch)
        body = {"prompt": "hello", "max_tokens": 30, "ignore_eos": True, "stream": True}
        first = server.connect(COMPLETION, body)
        wait_until(lambda: server.llm.core.has_requests)
        queued = [server.connect(COMPLETION, {**body, "stream": i == 0}) for i in range(2)]
        wait_until(lambda: server.engine.num_open == 3)
        for connection in queued:
            connection.close()
        for _ in range(25):  # fewer steps than the first needs
            gate.let(1)
            time.sleep(SOON / 25)
            if server.engine.num_open == 1:
                break
        assert server.engine.num_open == 1
        gate.open()
        data = b""
        while b"[DONE]" not in data:
            data += first.recv(65536)
        first.close()
        server.check_idle()


def test_a_client_that_leaves_while_its_prompt_is_computed(run_server, monkeypatch):
    from server.conftest import Gate

    with run_server(max_num_batched_tokens=16) as server:
        body = {"max_tokens": 5, "ignore_eos": True, "stream": True}
        other = {"prompt": [9] * 40, **body, "seed": 1}
        expected = server.post(COMPLETION, other).text
        gate = Gate(server.llm, monkeypatch)
        long = server.connect(COMPLETION, {"prompt": [7] * 500, **body})
        wait_until(lambda: server.llm.core.has_requests)
        beside = server.connect(COMPLETION, other)
        wait_until(lambda: server.engine.num_open == 2)
        gate.let(3)
        wait_until(lambda: server.llm.core.num_steps and server.num_free_blocks < 39)
        long.close()
        gate.open()
        data = b""
        while b"[DONE]" not in data:
            data += beside.recv(65536)
        beside.close()
        pieces = [e["choices"] for e in events(expected)[:-1]]
        told = [json.loads(line[6:])["choices"] for line in data.decode().split("\r\n")
                for line in line.split("\n") if line.startswith("data: {")]  # fmt: skip
        assert told == pieces
        server.check_idle()


def test_a_client_that_leaves_before_its_body_has_come(server, caplog):
    for sent in (b"", b'{"prompt": "he'):
        connection = socket.create_connection(("127.0.0.1", server.port))
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n" + sent
        )
        connection.close()
    assert server.get("/health").status_code == 200
    assert not caplog.text


def test_a_client_that_does_not_read_holds_up_nobody(server):
    body = {"prompt": "hello", **LONG, "n": 4, "logprobs": 20, "stream": True}
    connection = server.connect(COMPLETION, body)
    for _ in range(3):
        answer = server.post(COMPLETION, {"prompt": "hello", "max_tokens": 4})
        assert answer.status_code == 200
    wait_until(lambda: not server.llm.core.has_requests)
    data = b""
    while b"[DONE]" not in data[-30:]:
        data += connection.recv(1 << 20)
    connection.close()
    assert data.count(b'"finish_reason":"length"') == 4


def test_many_that_leave_at_any_time(server):
    """Two hundred requests, each left after another number of events."""
    for i in range(200):
        connection = server.connect(
            COMPLETION, {"prompt": f"{i % 7} hello", **LONG, "n": 1 + i % 3, "stream": i % 2 == 0}
        )
        if i % 2 == 0:
            for _ in range(i % 5):
                read_event(connection)
        close(connection, how=("close", "reset")[i % 4 // 2])
    server.check_idle()
    assert server.post(COMPLETION, {"prompt": "hello"}).status_code == 200
