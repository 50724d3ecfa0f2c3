"""Streams: joined they are the whole answer, they end properly whatever happens, and both are what
`LLM.generate` gives.
"""

import json

import pytest

from octavo import SamplingParams
from octavo.backends.cpu.backend import CpuBackend
from octavo.openai.response import Fold
from server.conftest import events

COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hello"}]
FULL = {"max_tokens": 24, "ignore_eos": True}
# Half of a character's bytes, and the other half: streams must hold the first one back.
BYTES = {"allowed_token_ids": [3 + byte for byte in (0xC3, 0xA9, 0xF0, 0x9F, 0x98, 0x80, 0x41)]}

COMPLETIONS = {
    "plain": {},
    "greedy": {"temperature": 0},
    "choices": {"n": 3},
    "stop": {"n": 2, "stop": ["e", "the", "\n"]},
    "stop of bytes": {"n": 4, "stop": ["é😀", "éA", "\ufffdA"], **BYTES},
    "stop included": {"stop": ["a", "ing"], "include_stop_str_in_output": True, "n": 2},
    "logprobs": {"logprobs": 3, "n": 2},
    "no logprobs but the token's": {"logprobs": 0},
    "echo": {"echo": True},
    "echo and logprobs": {"echo": True, "logprobs": 2, "n": 2},
    "only an echo": {"echo": True, "logprobs": 0, "max_tokens": 0},
    "nothing at all": {"max_tokens": 0},
    "several prompts": {"prompt": ["one", "two", "and three"], "n": 2},
    "several prompts echoed": {"prompt": ["one", "two"], "echo": True, "logprobs": 1},
    "ids": {"prompt": [10, 11, 0xC3 + 3], "echo": True},
    "lists of ids": {"prompt": [[10, 11], [12]]},
    "bytes": {**BYTES, "n": 4, "max_tokens": 40},
    "bytes and logprobs": {**BYTES, "n": 2, "logprobs": 2},
    "token ids": {"return_token_ids": True, "n": 2, "logprobs": 1},
    "special tokens": {"skip_special_tokens": False, "allowed_token_ids": [0, 1, 80]},
}  # fmt: skip
CHATS = {
    "plain": {},
    "choices": {"n": 3},
    "stop": {"n": 2, "stop": "e"},
    "logprobs": {"logprobs": True, "n": 2},
    "likeliest": {"logprobs": True, "top_logprobs": 4},
    "bytes": {**BYTES, "logprobs": True, "top_logprobs": 1, "n": 2},
    "token ids": {"return_token_ids": True, "n": 2},
}


def streamed(server, path, body):
    """Return the chunks of a stream; what every stream must be is checked here."""
    answer = server.post(path, {**body, "stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    *chunks, last = events(answer.text)
    assert last == "[DONE]"
    assert all("error" not in chunk for chunk in chunks)
    check_chunks(chunks)
    return chunks


def check_chunks(chunks):
    """Fail unless chunks have one head, and each choice one finish_reason, in its last piece."""
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    ended = set()
    for chunk in chunks:
        for choice in chunk["choices"]:
            assert choice["index"] not in ended
            if choice["finish_reason"] is not None:
                ended.add(choice["index"])
    begun = {choice["index"] for chunk in chunks for choice in chunk["choices"]}
    assert begun == ended == set(range(len(begun)))


def folded(chunks, *, chat):
    pieces = [choice for chunk in chunks for choice in chunk["choices"]]
    fold = Fold(1 + max(piece["index"] for piece in pieces), chat=chat)
    fold.add(pieces)
    return fold.choices


@pytest.mark.parametrize("name", COMPLETIONS)
def test_a_completion_in_pieces_is_the_whole(server, name):
    body = {"prompt": "hello", "seed": 4, **FULL, **COMPLETIONS[name]}
    whole = server.post(COMPLETION, body)
    assert whole.status_code == 200, whole.text
    chunks = streamed(server, COMPLETION, body)
    assert folded(chunks, chat=False) == whole.json()["choices"]
    # Said without our own Fold as well.
    texts: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    assert texts == {choice["index"]: choice["text"] for choice in whole.json()["choices"]}


@pytest.mark.parametrize("name", CHATS)
def test_a_chat_in_pieces_is_the_whole(server, name):
    body = {"messages": MESSAGES, "seed": 4, **FULL, **CHATS[name]}
    whole = server.post(CHAT, body)
    assert whole.status_code == 200, whole.text
    chunks = streamed(server, CHAT, body)
    choices = whole.json()["choices"]
    assert folded(chunks, chat=True) == choices
    told = [chunk["prompt_token_ids"] for chunk in chunks if "prompt_token_ids" in chunk]
    assert told == ([whole.json()["prompt_token_ids"]] if name == "token ids" else [])
    firsts = {}
    texts: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            index, delta = choice["index"], choice["delta"]
            firsts.setdefault(index, delta)
            texts[index] = texts.get(index, "") + delta.get("content", "")
            assert ("role" in delta) == (delta is firsts[index])
    assert texts == {choice["index"]: choice["message"]["content"] for choice in choices}


@pytest.mark.parametrize("name", ["choices", "stop", "stop of bytes", "logprobs", "bytes"])
def test_http_gives_what_generate_gives(server, reference, name):
    """Ids, text and logprobs: the same numbers to the last bit, in a batch of strangers too."""
    options = {**FULL, **COMPLETIONS[name], "seed": 4, "logprobs": 3}
    body = {"prompt": "hello", **options, "return_token_ids": True}
    alone = server.post(COMPLETION, body).json()["choices"]
    (expected,) = reference.generate(["hello"], SamplingParams(**options))
    for choice, output in zip(alone, expected.outputs, strict=True):
        assert choice["text"] == output.text
        assert choice["token_ids"] == output.token_ids
        assert choice["finish_reason"] == output.finish_reason
        assert choice["stop_reason"] == output.stop_reason
        values = [
            position[token_id].logprob
            for token_id, position in zip(output.token_ids, output.logprobs, strict=True)
        ]
        assert choice["logprobs"]["token_logprobs"] == values
    others = [server.connect(COMPLETION, {"prompt": f"{i} of", **FULL, "n": 2}) for i in range(6)]
    assert server.post(COMPLETION, body).json()["choices"] == alone
    for other in others:
        other.close()


def test_the_texts_of_tokens_stand_at_their_offsets(server):
    for echo in (False, True):
        body = {"prompt": "hello the", "echo": echo, "logprobs": 0, **FULL, "seed": 4}
        (choice,) = server.post(COMPLETION, body).json()["choices"]
        logprobs = choice["logprobs"]
        offsets = logprobs["text_offset"]
        assert offsets[0] == (0 if echo else len("hello the"))
        lengths = [len(token) for token in logprobs["tokens"]]
        assert offsets == [offsets[0] + sum(lengths[:i]) for i in range(len(lengths))]


def test_usage_comes_only_if_asked_for(server):
    body = {"prompt": ["hello", "the"], "n": 2, **FULL, "seed": 4}
    whole = server.post(COMPLETION, body).json()["usage"]
    for options in (None, {}, {"include_usage": False}, {"include_usage": None}):
        chunks = streamed(server, COMPLETION, {**body, "stream_options": options})
        assert all(chunk["choices"] for chunk in chunks)
        assert all("usage" not in chunk for chunk in chunks)
    *chunks, last = streamed(
        server, COMPLETION, {**body, "stream_options": {"include_usage": True}}
    )
    assert last["choices"] == []
    whole["prompt_tokens_details"] = last["usage"]["prompt_tokens_details"]  # more is cached now
    assert last["usage"] == whole
    assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks)
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = streamed(server, COMPLETION, {**body, "stream_options": options})
    assert chunks[-1]["usage"]["completion_tokens"] == 4 * FULL["max_tokens"]


@pytest.mark.parametrize("form", ["text", "held text", "chat"])
def test_continuous_usage_counts_what_has_been_sent_and_no_more(server, form):
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**FULL, "n": 3, "seed": 4, "stream_options": options, "return_token_ids": True}
    if form == "chat":
        chunks = streamed(server, CHAT, {**body, "messages": MESSAGES})
    else:
        if form == "held text":  # halves of characters show nothing; then the tokens are told late
            body |= {"allowed_token_ids": [3 + 0xC3, 3 + 0xA9], "return_token_ids": False}
        chunks = streamed(server, COMPLETION, {**body, "prompt": ["hello", "the"]})
    *pieces, last = chunks
    num_sent = num_characters = 0
    for chunk in pieces:
        usage = chunk["usage"]
        (choice,) = chunk["choices"]
        if form == "held text":  # a character is one token or two, and each choice may hold one
            num_characters += len(choice["text"])
            num_sent = usage["completion_tokens"]
            assert num_characters <= num_sent <= 2 * num_characters + 6
        else:
            num_sent += len(choice["token_ids"])
        assert usage["completion_tokens"] == num_sent
        assert usage["prompt_tokens"] == last["usage"]["prompt_tokens"]
    assert num_sent == last["usage"]["completion_tokens"]


def test_a_stop_string_is_never_seen_in_part(server):
    """Row 5: held back until it is known to be none; let go if it is none."""
    body = {"prompt": "hello", "seed": 4, **FULL}
    text = server.post(COMPLETION, body).json()["choices"][0]["text"]
    stop = text[8:12]
    for given, shown in (
        (stop, text[: text.index(stop)]),
        (text[-2:] + "never", text),
        (stop + "never", text),
    ):
        seen = ""
        for chunk in streamed(server, COMPLETION, {**body, "stop": given}):
            seen += chunk["choices"][0]["text"]
            assert shown.startswith(seen)
        assert seen == shown


def test_characters_come_whole(server):
    """Row 1: no piece of a character becomes a replacement character that the text has not."""
    body = {"prompt": "hello", "allowed_token_ids": [3 + 0xC3, 3 + 0xA9], "max_tokens": 60}
    body["seed"] = 1
    text = ""
    whole = server.post(COMPLETION, body).json()["choices"][0]["text"]
    for chunk in streamed(server, COMPLETION, body):
        text += chunk["choices"][0]["text"]
        assert whole.startswith(text)
    assert "é" in whole
    assert text == whole


# -- faults ----------------------------------------------------------------------------------------


@pytest.fixture
def fault(server, monkeypatch, caplog):
    """Let the engine's step of that number, counted from now, raise; once."""
    step = server.llm.core.step

    def install(number):
        left = [number]

        def failing():
            left[0] -= 1
            if left[0] == -1:
                raise RuntimeError("injected")
            return step()

        monkeypatch.setattr(server.llm.core, "step", failing)

    yield install
    records = caplog.get_records("call")
    logged = [record.message for record in records if record.name.startswith("octavo.engine")]
    assert logged == ["the engine failed: its requests have ended"]


@pytest.mark.parametrize("number", [0, 1, 5])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETION, {"prompt": "hello"}),
        (COMPLETION, {"prompt": ["hello", "the"], "n": 2, "echo": True, "logprobs": 1}),
        (CHAT, {"messages": MESSAGES, "n": 2, "logprobs": True}),
    ],
    ids=["completion", "completions", "chat"],
)
def test_a_stream_ends_properly_when_a_step_fails(server, fault, path, body, number):
    """Row 32."""
    body = {**body, **FULL, "seed": 4}
    whole = server.post(path, body).json()["choices"]
    fault(number)
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    answer = server.post(path, {**body, **usage})
    assert answer.status_code == 200
    *chunks, error, costs, done = events(answer.text)
    assert done == "[DONE]"
    assert costs["choices"] == []
    assert error["error"]["code"] == "engine_fault"
    assert error["error"]["type"] == "server_error"
    assert "injected" in error["error"]["message"]
    check_chunks(chunks)
    pieces = [choice for chunk in chunks for choice in chunk["choices"]]
    assert len({piece["index"] for piece in pieces}) == len(whole)
    assert {piece["finish_reason"] for piece in pieces} - {None} == {"error"}
    # The server lives, all is free, and what comes next is as it was before.
    server.check_idle()
    assert server.get("/health").status_code == 200
    assert server.get("/ready").status_code == 200
    assert server.post(path, body).json()["choices"] == whole


def test_a_whole_answer_is_an_error_when_a_step_fails(server, fault):
    fault(3)
    answer = server.post(COMPLETION, {"prompt": "hello", **FULL})
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "engine_fault"


def test_an_engine_that_cannot_be_emptied_says_so(run_server, monkeypatch, caplog):
    with run_server() as server:
        held = server.connect(COMPLETION, {"prompt": "hello", "max_tokens": 400})

        def fail(*_):
            raise RuntimeError("broken")

        monkeypatch.setattr(server.llm.core, "step", fail)
        monkeypatch.setattr(server.llm.core, "finish", fail)
        answer = server.post(COMPLETION, {"prompt": "hello"})
        assert answer.status_code == 500
        for _ in range(2):
            answer = server.post(COMPLETION, {"prompt": "hello"})
            assert answer.status_code == 500
            assert "restart the server" in answer.json()["error"]["message"]
        assert server.get("/health").status_code == 503
        assert server.get("/ready").status_code == 503
        assert b"engine_fault" in held.recv(10_000)
        held.close()
        assert caplog.text.count("cannot be emptied") == 1  # it does not go on trying


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("when", ["in the prompt", "in the answer"])
def test_logits_that_are_no_numbers(server, monkeypatch, stream, when):
    execute = CpuBackend.execute
    calls = []

    def spoilt(self, batch):
        calls.append(1)
        logits = execute(self, batch)
        return logits * float("nan") if len(calls) > (when == "in the answer") * 3 else logits

    monkeypatch.setattr(CpuBackend, "execute", spoilt)
    body = {"prompt": "hello" * 30, "echo": True, "logprobs": 1, **FULL, "stream": stream}
    answer = server.post(COMPLETION, body)
    monkeypatch.undo()
    if stream:
        *chunks, error, done = events(answer.text)
        assert done == "[DONE]"
        check_chunks(chunks)
        assert chunks[-1]["choices"][0]["finish_reason"] == "error"
    else:
        assert answer.status_code == 500
        error = answer.json()
    assert "NaN" in error["error"]["message"]
    assert server.post(COMPLETION, {**body, "stream": False}).status_code == 200


def test_a_fault_of_the_server_itself_ends_a_stream_properly(server, monkeypatch, caplog):
    from octavo.openai.chunks import ChunkMaker

    make = ChunkMaker.pieces

    def failing(self, output, deltas):
        if any(delta.token_ids for delta in deltas):
            raise ValueError("injected")
        return make(self, output, deltas)

    monkeypatch.setattr(ChunkMaker, "pieces", failing)
    answer = server.post(COMPLETION, {"prompt": "hello", **FULL, "stream": True})
    *chunks, error, done = events(answer.text)
    assert done == "[DONE]"
    check_chunks(chunks)
    assert error["error"]["code"] == "internal_error"
    assert "injected" not in json.dumps(error)  # that is for the log
    assert "injected" in caplog.text
    whole = server.post(COMPLETION, {"prompt": "hello", **FULL})
    assert whole.status_code == 500
    assert whole.json()["error"]["code"] == "internal_error"
