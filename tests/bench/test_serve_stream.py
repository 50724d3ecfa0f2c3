"""The streamed answer, whatever the bytes' cuts, the JSON's spacing and the server's habits."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.serve.stream import AnswerStream, error_text


def event(value, newline="\n", separators=(",", ":")):
    text = value if isinstance(value, str) else json.dumps(value, separators=separators)
    return f"data: {text}{newline * 2}".encode()


def text(value, finish=None):
    return {"id": "a", "choices": [{"index": 0, "text": value, "finish_reason": finish}]}


def delta(finish=None, **fields):
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


USAGE = {
    "choices": [],
    "usage": {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 5},
    },
}


def read(*reads, keep_text=True):
    stream = AnswerStream(keep_text)
    for i, data in enumerate(reads):
        stream.feed(data, float(i))
    stream.end()
    return stream


def test_times_are_of_chunks_with_text_and_the_end_is_the_last_choice():
    stream = read(
        event(text("a")), event(text("")), event(text("b")), event(text("", "stop")),
        event(USAGE), event("[DONE]"),
    )  # fmt: skip
    assert stream.token_times == [0.0, 2.0]
    assert stream.last_time == 3.0
    assert (stream.prompt_tokens, stream.completion_tokens, stream.cached_tokens) == (7, 3, 5)
    assert (stream.error, "".join(stream.texts)) == ("", "ab")


def test_a_chats_role_is_no_token_but_reasoning_and_tool_calls_are():
    stream = read(
        event(delta(role="assistant", content="")), event(delta(reasoning_content="hm")),
        event(delta(reasoning="hm")), event(delta(content="a")),
        event(delta(tool_calls=[{"index": 0}])), event(delta("stop")), event("[DONE]"),
    )  # fmt: skip
    assert stream.token_times == [1.0, 2.0, 3.0, 4.0]
    assert stream.last_time == 5.0


BODY = [text("a\n\n"), text("é"), text('"usage": {'), text("", "length"), USAGE, "[DONE]"]


@given(
    st.sets(st.integers(1, 700)),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([(",", ":"), (", ", ": ")]),
)
def test_cuts_line_ends_and_spacing_do_not_matter(cuts, newline, separators):
    body = b": ping" + 2 * newline.encode()
    body += b"".join(event(each, newline, separators) for each in BODY)
    places = [0, *sorted(cut for cut in cuts if cut < len(body)), len(body)]
    stream = read(*(body[a:b] for a, b in pairwise(places)))
    assert (stream.error, "".join(stream.texts)) == ("", 'a\n\né"usage": {')
    assert len(stream.token_times) == 3
    assert stream.completion_tokens == 3


def test_text_is_kept_only_where_it_is_wanted():
    assert read(event(text("a", "stop")), keep_text=False).texts == []


def test_a_null_usage_in_every_chunk_says_nothing():
    stream = read(event({**text("a", "stop"), "usage": None, "error": None}))
    assert (stream.error, stream.completion_tokens, stream.is_ended) == ("", None, True)


@pytest.mark.parametrize(
    ("reads", "error"),
    [
        ([], "does not stream"),
        ([b'{"object":"text_completion"}'], "does not stream"),
        ([event(text("a"))], "cut short"),
        ([event(text("a")), b'data: {"choices":[{"te'], "cannot be read"),
        ([event(text("a")), event({"error": {"message": "lost"}}), event("[DONE]")], "lost"),
        ([b"event: error\n" + event({"message": "gone", "code": 400})], "gone"),
        ([event("nonsense"), event("[DONE]")], "cannot be read"),
    ],
)
def test_errors_are_kept(reads, error):
    assert error in read(*reads).error


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "too long", "type": "x"}}, "too long"),
        ({"message": "too long", "code": 400}, "too long"),
        ({"error": "too long"}, "too long"),
        ("too long", "too long"),
        ({"detail": "x"}, "{'detail': 'x'}"),
    ],
)
def test_error_bodies_come_in_several_shapes(body, message):
    assert error_text(body) == message
