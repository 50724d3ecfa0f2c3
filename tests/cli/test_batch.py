"""`octavo batch`: results in OpenAI's form, bad lines answered one by one, nothing done twice."""

import fcntl
import json
import signal
import time

import pytest


def chat(custom_id, text="hello", **body):
    body = {"messages": [{"role": "user", "content": text}], **body}
    return request(custom_id, "/v1/chat/completions", body)


def completion(custom_id, prompt="hello", **body):
    return request(custom_id, "/v1/completions", {"prompt": prompt, **body})


def request(custom_id, url, body):
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def read(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    by_id = {line["custom_id"]: line for line in lines}
    assert len(by_id) == len(lines), "a line was answered twice"
    return by_id


@pytest.fixture
def files(tmp_path):
    return tmp_path / "in.jsonl", tmp_path / "out.jsonl"


@pytest.fixture
def batch(octavo, tiny, files):
    """Answer requests; returns (exit code, results by custom_id, stderr)."""

    def call(*requests, flags=()):
        source, target = files
        source.write_text("".join(json.dumps(line) + "\n" for line in requests))
        result = octavo("batch", source, target, *tiny, *flags)
        assert result.out == ""
        return result.code, read(target), result.err

    return call


@pytest.fixture
def answer(batch):
    """Answer one request, and return the body of the response."""

    def call(line):
        code, results, err = batch(line)
        assert code == 0, results or err
        return results[line["custom_id"]]["response"]["body"]

    return call


@pytest.fixture
def refuse(batch):
    """Have one request refused, and return the error."""

    def call(line):
        code, results, _ = batch(line)
        assert code == 1
        response = results[line["custom_id"]]["response"]
        assert response["status_code"] == 400
        return response["body"]["error"]

    return call


def test_a_chat_completion(answer):
    body = answer(chat("a", max_tokens=5, ignore_eos=True, n=2, seed=3, model="tiny"))
    assert body["object"] == "chat.completion"
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    choice = body["choices"][0]
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] is None
    usage = body["usage"]
    assert usage["completion_tokens"] == 10
    assert usage["total_tokens"] == usage["prompt_tokens"] + 10
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    assert body["seed"] == 3


def test_a_completion_of_several_prompts(answer):
    prompts = ["one", "two", "three"]
    together = answer(completion("a", prompts, max_tokens=4, temperature=0, n=2))
    assert [choice["index"] for choice in together["choices"]] == list(range(6))
    texts = [choice["text"] for choice in together["choices"]]
    assert texts[0] == texts[1] != texts[2]


def test_token_ids_are_prompts(answer):
    assert answer(completion("a", [5, 6, 7]))["usage"]["prompt_tokens"] == 3


def test_several_lists_of_token_ids(answer):
    assert len(answer(completion("a", [[5, 6], [7]]))["choices"]) == 2


def test_defaults_for_the_length(batch):
    _, results, _ = batch(
        completion("short", ignore_eos=True),
        chat("long", ignore_eos=True),
        chat("alias", ignore_eos=True, max_completion_tokens=3, max_tokens=None),
        flags=("--max-model-len", "60"),
    )
    usage = {name: line["response"]["body"]["usage"] for name, line in results.items()}
    assert usage["short"]["completion_tokens"] == 16
    assert usage["long"]["total_tokens"] == 60
    assert usage["alias"]["completion_tokens"] == 3


def test_chat_logprobs(answer):
    body = answer(chat("a", max_tokens=2, ignore_eos=True, logprobs=True, top_logprobs=3))
    content = body["choices"][0]["logprobs"]["content"]
    assert len(content) == 2
    for entry in content:
        top = [other["logprob"] for other in entry["top_logprobs"]]
        assert len(top) == 3
        assert top == sorted(top, reverse=True)
        assert entry["logprob"] <= top[0] <= 0
        assert isinstance(entry["bytes"], list)


def test_completion_logprobs(answer):
    body = answer(
        completion("a", max_tokens=3, ignore_eos=True, temperature=0, logprobs=1, prompt_logprobs=0)
    )
    (choice,) = body["choices"]
    logprobs = choice["logprobs"]
    assert logprobs["text_offset"][0] == len("hello")
    for token, value, top in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert top == {token: value}
    assert choice["prompt_logprobs"][0] is None
    assert len(choice["prompt_logprobs"]) == body["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("line", "param"),
    [
        (chat("a", tools=[{"type": "function"}]), "tools[0].function"),
        (completion("a", tools=[{"type": "function"}]), "tools"),
        (chat("a", response_format={"type": "yaml"}), "response_format"),
        (chat("a", structured_outputs={"regex": "("}), "structured_outputs"),
        (chat("a", stream=True), "stream"),
        (chat("a", logprobs=3), "logprobs"),
        (chat("a", top_logprobs=3), "top_logprobs"),
        (chat("a", logprobs=True, top_logprobs=21), "top_logprobs"),
        (chat("a", bad_words=["\ud800"]), "bad_words"),
        (chat("a", chat_template_kwargs={"messages": []}), "chat_template_kwargs"),
        (chat("a", max_tokens=1, max_completion_tokens=2), "max_completion_tokens"),
        (chat("a", max_tokens=-1), "max_tokens"),
        (chat("a", temperature="hot"), "temperature"),
        (chat("a", priority=0.5), "priority"),
        (chat("a", messages=[]), "messages"),
        (chat("a", chat_template_kwargs=[1]), "chat_template_kwargs"),
        (chat("a", "x" * 3000), "messages"),
        (completion("a", ""), "prompt"),
        (completion("a", ["fine", ""]), "prompt"),
        (completion("a", "\ud800"), "prompt"),
        (chat("a", min_tokens=10**9), "min_tokens"),
        (completion("a", []), "prompt"),
        (completion("a", ["x", 1]), "prompt"),
        (completion("a", [100_000]), "prompt"),
        (completion("a", best_of=2), "best_of"),
        (completion("a", add_special_tokens=False), "add_special_tokens"),
        (chat("a", stream_options={"include_usage": True}), "stream_options"),
        (completion("a", suffix="x"), "suffix"),
        (request("a", "/v1/chat/completions", {}), "messages"),
        (request("a", "/v1/chat/completions", None), "body"),
        (request("a", "/v1/embeddings", {}), "url"),
        ({**chat("a"), "method": "GET"}, "method"),
    ],
)
def test_what_is_not_honoured_is_refused_by_name(refuse, line, param):
    error = refuse(line)
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


def test_another_model_is_not_found(batch):
    _, results, _ = batch(chat("a", model="another"))
    response = results["a"]["response"]
    assert response["status_code"] == 404
    assert response["body"]["error"]["code"] == "model_not_found"
    assert response["body"]["error"]["param"] == "model"


def test_an_echo_is_the_prompt_and_the_answer(batch):
    asked = {"max_tokens": 2, "temperature": 0, "ignore_eos": True}
    _, results, _ = batch(
        completion("a", "hello", **asked),
        completion("b", "hello", echo=True, logprobs=0, **asked),
    )
    (plain,), (choice,) = (results[name]["response"]["body"]["choices"] for name in "ab")
    assert choice["text"] == "hello" + plain["text"]
    logprobs = choice["logprobs"]
    assert "prompt_logprobs" not in choice
    assert logprobs["token_logprobs"][0] is None
    assert all(value <= 0 for value in logprobs["token_logprobs"][1:])
    assert logprobs["text_offset"][0] == 0
    assert "hello" in "".join(logprobs["tokens"])


def test_a_call_of_a_tool(answer):
    tool = {"type": "function", "function": {"name": "f"}}
    body = answer(chat("a", tools=[tool], tool_choice=tool, seed=3))
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": "{}"}


def test_what_asks_for_nothing_is_accepted(answer):
    body = {"tools": None, "stream": False, "response_format": {"type": "text"}, "user": "me"}
    assert answer(chat("a", max_tokens=1, temperature=None, **body))


def test_a_bad_line_stops_no_other(batch):
    code, results, err = batch(
        chat("good", max_tokens=2), chat("bad", top_p=2), completion("fine", max_tokens=2)
    )
    assert code == 1
    statuses = {name: line["response"]["status_code"] for name, line in results.items()}
    assert statuses == {"good": 200, "bad": 400, "fine": 200}
    assert "2 answered, 1 failed" in err


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([chat("a"), chat("b"), chat("a")], "line 3 has the custom_id of line 1"),
        ([chat("a"), chat("")], "line 2 has no custom_id"),
        ([{"url": "x"}], "line 1 has no custom_id"),
        ([chat("a"), [1]], "line 2 is not a JSON object"),
    ],
)
def test_ids_are_checked_before_anything_is_computed(octavo, files, lines, message):
    source, target = files
    source.write_text("\n".join(json.dumps(line) for line in lines))
    result = octavo("batch", source, target)
    assert result.code == 2
    assert message in result.err
    assert not target.exists()


def test_finished_lines_are_kept_and_skipped(batch, files):
    lines = [chat("a", max_tokens=2), chat("bad", top_p=2)]
    batch(*lines)
    before = files[1].read_bytes()
    code, results, err = batch(*lines, completion("b", max_tokens=2))
    assert code == 1  # the bad line is still one
    assert set(results) == {"a", "bad", "b"}
    assert files[1].read_bytes().startswith(before)
    assert "2 of them before" in err


@pytest.mark.parametrize("cut", [1, 2, 40])
def test_a_torn_last_line_is_cut_off(batch, files, cut):
    lines = [chat("a", max_tokens=2), chat("b", max_tokens=2)]
    batch(*lines)
    whole = files[1].read_bytes()
    files[1].write_bytes(whole[:-cut])
    code, results, _ = batch(*lines)
    assert code == 0
    assert set(results) == {"a", "b"}
    first_line = whole[: whole.index(b"\n") + 1]
    assert files[1].read_bytes().startswith(whole if cut == 1 else first_line)


@pytest.mark.parametrize(
    "content", [b"my notes", b"my notes\n", b'{"custom_id": "x"}\n', b'{"torn": \n{"a": 1}\n']
)
def test_a_file_of_something_else_is_left_alone(octavo, tiny, files, content):
    source, target = files
    source.write_text(json.dumps(chat("a")))
    target.write_bytes(content)
    result = octavo("batch", source, target, *tiny)
    assert result.code == 2
    assert "line 1 is not the result of a batch" in result.err
    assert target.read_bytes() == content


def test_results_of_another_batch_are_refused(batch, octavo, tiny, files):
    batch(chat("a", max_tokens=1))
    files[0].write_text(json.dumps(chat("b")))
    result = octavo("batch", *files, *tiny)
    assert result.code == 2
    assert "'a'" in result.err


def test_one_batch_at_a_time_writes_a_file(octavo, tiny, files):
    files[0].write_text(json.dumps(chat("a")))
    with files[1].open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        result = octavo("batch", *files, *tiny)
    assert result.code == 2
    assert "another batch" in result.err


def test_files_that_are_not_there_exit_2(octavo, files, tmp_path):
    assert octavo("batch", *files).code == 2
    files[0].write_text(json.dumps(chat("a")))
    assert octavo("batch", files[0], tmp_path / "no" / "out.jsonl").code == 2
    assert octavo("batch", files[0], files[0]).code == 2


def test_an_empty_batch_is_done(octavo, files):
    files[0].write_text("\n")
    result = octavo("batch", *files)
    assert result.code == 0
    assert "0 answered, 0 failed" in result.err


def test_the_same_answers_in_any_order(batch, files):
    lines = [completion(f"{i}", f"text {i}", max_tokens=6, ignore_eos=True) for i in range(6)]
    _, first, _ = batch(*lines)
    files[1].unlink()
    _, second, _ = batch(*reversed(lines))
    seeds = {name: line["response"]["body"]["seed"] for name, line in first.items()}
    assert len(set(seeds.values())) == 6
    assert seeds == {name: line["response"]["body"]["seed"] for name, line in second.items()}


def test_more_lines_than_the_window(batch):
    lines = [completion(f"{i}", max_tokens=1) for i in range(30)]
    code, results, _ = batch(*lines, flags=("--max-num-seqs", "2"))
    assert code == 0
    assert len(results) == 30


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT], ids=lambda sign: sign.name)
def test_killed_and_resumed(start, octavo, tiny, files, sign):
    source, target = files
    lines = [completion(f"{i}", max_tokens=60, ignore_eos=True) for i in range(25)]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with start("batch", source, target, *tiny, "--max-num-seqs", "1") as process:
        until = time.monotonic() + 20
        while not target.exists() or target.read_bytes().count(b"\n") < 3:
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < until
            time.sleep(0.002)
        process.send_signal(sign)
        _, err = process.communicate(timeout=20)
    if sign is signal.SIGINT:
        assert process.returncode == 130
        assert "the same command goes on from there" in err
        assert "Traceback" not in err
    kept = target.read_bytes()
    kept = kept[: kept.rfind(b"\n") + 1]
    assert 3 <= kept.count(b"\n") < 25
    result = octavo("batch", source, target, *tiny)
    assert result.code == 0, result.err
    assert target.read_bytes().startswith(kept)
    assert len(read(target)) == 25


def test_faults_of_the_arithmetic_are_told_at_the_end(batch, monkeypatch):
    from octavo.backends.cpu.backend import CpuBackend

    execute = CpuBackend.execute
    assert "warning" not in batch(chat("a", max_tokens=1))[2]
    monkeypatch.setattr(CpuBackend, "execute", lambda self, x: execute(self, x) * float("nan"))
    lines = [chat(name, max_tokens=1) for name in "abc"]
    code, results, err = batch(*lines)
    assert code == 1
    assert "NaN" in results["b"]["response"]["body"]["error"]["message"]
    assert "warning: 2 requests failed: their logits held NaN or infinity\n" in err
