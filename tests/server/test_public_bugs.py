"""Faults that public servers had, tried over HTTP: bytes that are no characters, prompts too large.

Rows are those of the table that the project keeps of them; other files have the other rows.
"""

import pytest

from server.conftest import events, wait_until

COMPLETION = "/v1/completions"


def ids_of(data):
    """Return token ids of bytes: the tiny model's bytes are its tokens from 3 on."""
    return [3 + byte for byte in data]


def both_ways(server, body):
    """Return an answer's text and its ids, which are the same whole and in pieces."""
    body = {**body, "return_token_ids": True}
    (whole,) = server.post(COMPLETION, body).json()["choices"]
    *chunks, done = events(server.post(COMPLETION, {**body, "stream": True}).text)
    assert done == "[DONE]"
    pieces = [choice for chunk in chunks for choice in chunk["choices"]]
    assert "".join(piece["text"] for piece in pieces) == whole["text"]
    assert [i for piece in pieces for i in piece["token_ids"]] == whole["token_ids"]
    return whole["text"], whole["token_ids"]


@pytest.mark.parametrize("tail", [b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xff", b"hello"])
@pytest.mark.parametrize("allowed", [b"ab", b"\xa9", b"\xac\x80a"], ids=repr)
def test_a_prompt_that_ends_within_a_character_is_not_in_the_answer(server, tail, allowed):
    """Row 2: the first piece is of generated tokens only, whatever the prompt left open."""
    body = {"prompt": ids_of(b"the prompt " + tail), "allowed_token_ids": ids_of(allowed)}
    text, ids = both_ways(server, {**body, "max_tokens": 9, "ignore_eos": True, "seed": 5})
    assert text == bytes(i - 3 for i in ids).decode(errors="replace")
    assert len(ids) == 9


@pytest.mark.parametrize("seed", range(4))
def test_bytes_that_are_no_text_are_replaced_and_the_answer_goes_on(server, seed):
    """Row 4: an invalid byte, and then a space or a letter, or the beginning of a character."""
    body = {"prompt": "hello", "allowed_token_ids": ids_of(b"\xff\xc3 a"), "seed": seed}
    body["temperature"] = 100.0  # all four about as likely
    text, ids = both_ways(server, {**body, "max_tokens": 60, "ignore_eos": True})
    data = bytes(i - 3 for i in ids)
    assert b"\xff " in data
    assert text == data.decode(errors="replace")


def test_what_no_pool_could_hold_is_refused_and_the_next_is_served(run_server):
    """Row 16: it would wait for ever, and everybody behind it."""
    with run_server(num_kv_blocks=20, max_model_len=320) as server:
        small = {"prompt": [5] * 16, "max_tokens": 4, "ignore_eos": True, "seed": 1}
        expected = server.post(COMPLETION, small).json()["choices"]
        running = server.connect(COMPLETION, {**small, "max_tokens": 280})
        wait_until(lambda: server.llm.core.has_requests)
        refused = server.post(COMPLETION, {"prompt": [5] * 480, "max_tokens": 1})
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (400, "context_length_exceeded")
        assert "480 tokens" in error["message"]
        assert "kv_cache_memory" in error["message"]
        assert server.post(COMPLETION, small).json()["choices"] == expected
        # What may become too long is not refused: it ends where the pool does.
        body = {"prompt": [6] * 200, "max_tokens": 500, "ignore_eos": True}
        answer = server.post(COMPLETION, body).json()
        assert answer["usage"]["total_tokens"] == 20 * 16
        assert answer["choices"][0]["finish_reason"] == "length"
        running.close()
        server.check_idle()
