"""OpenAI's own client, against a server that it must not know from OpenAI's."""

import asyncio

import openai
import pytest

from octavo import SamplingParams

ASK = {"model": "tiny", "prompt": "hello", "max_tokens": 8}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
FULL = {"extra_body": {"ignore_eos": True}}


def test_the_models(client):
    names = [model.id for model in client.models.list()]
    assert names == ["tiny", "alias"]
    for name in names:
        model = client.models.retrieve(name)
        assert (model.id, model.owned_by) == (name, "octavo")
    with pytest.raises(openai.NotFoundError) as told:
        client.models.retrieve("another")
    assert told.value.code == "model_not_found"


def test_a_completion(client, reference):
    answer = client.completions.create(**ASK, temperature=0, **FULL)
    (expected,) = reference.generate(
        ["hello"], SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    )
    assert answer.object == "text_completion"
    assert answer.model == "tiny"
    assert answer.id.startswith("cmpl-")
    assert answer.choices[0].text == expected.outputs[0].text
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].logprobs is None
    assert answer.usage.prompt_tokens == len(expected.prompt_token_ids)
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8


def test_a_chat(client, reference):
    answer = client.chat.completions.create(**CHAT, seed=7, **FULL)
    (expected,) = reference.chat(
        CHAT["messages"], SamplingParams(seed=7, max_tokens=8, ignore_eos=True)
    )
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == expected.outputs[0].text
    assert choice.message.refusal is None
    assert choice.finish_reason == "length"
    assert answer.usage.prompt_tokens == len(expected.prompt_token_ids)


def test_both_stream(client):
    asked = {"seed": 3, "n": 2, "stream": True}
    whole = client.chat.completions.create(**CHAT, seed=3, n=2)
    texts = ["", ""]
    for chunk in client.chat.completions.create(**CHAT, **asked):
        assert chunk.object == "chat.completion.chunk"
        assert chunk.usage is None
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]
    whole = client.completions.create(**ASK, seed=3, n=2)
    texts = ["", ""]
    for chunk in client.completions.create(**ASK, **asked):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]


def test_the_helper_for_streams_folds_to_the_answer(client):
    with client.chat.completions.stream(**CHAT, seed=3, logprobs=True, top_logprobs=2) as stream:
        stream.until_done()
        folded = stream.current_completion_snapshot
    whole = client.chat.completions.create(**CHAT, seed=3, logprobs=True, top_logprobs=2)
    assert folded.choices[0].message.content == whole.choices[0].message.content
    assert folded.choices[0].finish_reason == whole.choices[0].finish_reason
    assert folded.choices[0].logprobs.content == whole.choices[0].logprobs.content


def test_many_at_once_with_the_asynchronous_client(server):
    async def ask(client: openai.AsyncOpenAI, i: int) -> str:
        asked = {**CHAT, "messages": [{"role": "user", "content": f"number {i}"}], "seed": i}
        if i % 2:
            answer = await client.chat.completions.create(**asked)
            return answer.choices[0].message.content
        text = ""
        async for chunk in await client.chat.completions.create(**asked, stream=True):
            text += chunk.choices[0].delta.content or ""
        return text

    async def ask_all(indices, *, together: bool) -> list[str]:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none", max_retries=0
        ) as client:
            if together:
                return await asyncio.gather(*(ask(client, i) for i in indices))
            return [await ask(client, i) for i in indices]

    together = asyncio.run(ask_all(range(24), together=True))
    alone = asyncio.run(ask_all(range(24), together=False))
    assert together == alone  # nothing leaks from one into another
    assert len(set(together)) == 24


def test_a_seed_gives_the_same_text_and_none_another(client):
    first, again, other = (
        client.completions.create(**ASK, seed=seed, **FULL).choices[0].text for seed in (1, 1, 2)
    )
    assert first == again != other
    free = client.completions.create(**ASK, **FULL)
    told = client.completions.create(**ASK, seed=free.model_extra["seed"], **FULL)
    assert free.choices[0].text == told.choices[0].text


def test_n_choices_are_those_of_generate(client, reference):
    answer = client.completions.create(**ASK, n=3, seed=5)
    (expected,) = reference.generate(["hello"], SamplingParams(n=3, seed=5, max_tokens=8))
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [choice.text for choice in answer.choices] == [o.text for o in expected.outputs]
    assert answer.usage.completion_tokens == sum(len(o.token_ids) for o in expected.outputs)


def test_logprobs_of_a_chat(client):
    for count in (None, 0, 1, 5):
        answer = client.chat.completions.create(
            **CHAT, seed=2, logprobs=True, top_logprobs=count, **FULL
        )
        content = answer.choices[0].logprobs.content
        assert len(content) == 8
        for entry in content:
            assert len(entry.top_logprobs) == (count or 0)
            assert entry.logprob <= 0
            assert entry.bytes is not None
    text = answer.choices[0].message.content
    joined = bytes(byte for entry in content for byte in entry.bytes)
    assert joined.decode(errors="replace") == text


def test_logprobs_of_a_completion(client):
    for count in (0, 1, 5):
        answer = client.completions.create(**ASK, seed=2, logprobs=count, **FULL)
        logprobs = answer.choices[0].logprobs
        assert len(logprobs.tokens) == len(logprobs.token_logprobs) == 8
        assert None not in logprobs.token_logprobs
        assert logprobs.text_offset[0] == len("hello")
        if count:
            assert all(len(top) <= count for top in logprobs.top_logprobs)


def test_a_stop_string(client):
    text = client.completions.create(**ASK, seed=1, **FULL).choices[0].text
    stop = text[3:5]
    for given in (stop, [stop, "never this"]):
        answer = client.completions.create(**ASK, seed=1, stop=given, **FULL)
        assert answer.choices[0].text == text[: text.index(stop)]
        assert answer.choices[0].finish_reason == "stop"
        assert answer.choices[0].model_extra["stop_reason"] == stop


def test_cached_tokens_are_exact(client, server):
    block = server.llm.config.block_size
    ids = [3 + i % 200 for i in range(3 * block)]
    for prompt, cached in (
        (ids, 0),
        (ids, 3 * block - 1),  # one token at least is computed
        ([*ids, 9], 3 * block),
        ([*ids[:block], 9, 9], block),
        ([9, *ids], 0),
    ):
        before = server.llm.core.num_prompt_tokens
        answer = client.completions.create(
            model="tiny", prompt=prompt, max_tokens=1, extra_body={"cache_salt": "exact"}
        )
        assert server.llm.core.num_prompt_tokens - before == len(prompt) - cached
        assert answer.usage.prompt_tokens == len(prompt)
        assert answer.usage.prompt_tokens_details.cached_tokens == cached


def test_usage_of_a_stream_is_a_chunk_of_its_own_if_asked_for(client):
    chunks = list(
        client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True})
    )
    assert [bool(chunk.choices) for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    assert [chunk.usage is not None for chunk in chunks[:-1]] == [False] * (len(chunks) - 1)
    usage = chunks[-1].usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens is not None
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"temperature": -1}, "temperature", "invalid_value"),
        ({"top_p": 2}, "top_p", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"max_tokens": -1}, "max_tokens", "invalid_value"),
        ({"logit_bias": {"100000": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"AI": -100}}, "logit_bias", "invalid_value"),
        ({"logprobs": 21}, "logprobs", "invalid_value"),
        ({"prompt": ""}, "prompt", "invalid_value"),
        ({"prompt": []}, "prompt", "invalid_value"),
        ({"prompt": [5] * 512}, "prompt", "context_length_exceeded"),
        ({"prompt": [5] * 600}, "prompt", "context_length_exceeded"),
        ({"suffix": "x"}, "suffix", "invalid_value"),
        ({"best_of": 2}, "best_of", "invalid_value"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"extra_body": {"stop_token_ids": [10**6]}}, "stop_token_ids", "invalid_value"),
        ({"extra_body": {"min_p": 2}}, "min_p", "invalid_value"),
        ({"extra_body": {"priority": 0.5}}, "priority", "invalid_value"),
        ({"extra_body": {"cache_salt": 5}}, "cache_salt", "invalid_value"),
        ({"extra_body": {"guided_json": []}}, "guided_json", "invalid_value"),
        ({"extra_body": {"guided_regex": "foo("}}, "guided_regex", "invalid_value"),
        (
            {"extra_body": {"guided_whitespace_pattern": " "}},
            "guided_whitespace_pattern",
            "invalid_value",
        ),
        (
            {"extra_body": {"structured_outputs": {"grammar": "root ::= x"}}},
            "structured_outputs",
            "invalid_value",
        ),
        (
            {"extra_body": {"guided_regex": "a", "guided_choice": ["b"]}},
            "guided_choice",
            "invalid_value",
        ),
    ],
)
def test_what_cannot_be_served_is_a_bad_request_that_names_it(client, body, param, code):
    with pytest.raises(openai.BadRequestError) as told:
        client.completions.create(**{**ASK, **body})
    assert (told.value.param, told.value.code) == (param, code)
    assert told.value.type == "invalid_request_error"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"extra_body": {"echo": True}}, "echo"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"response_format": {"type": "yaml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "object", "properties": "x"}},
                }
            },
            "response_format",
        ),
        ({"max_completion_tokens": -1, "max_tokens": None}, "max_completion_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"messages": []}, "messages"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"extra_body": {"chat_template": "x"}}, "chat_template"),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, "messages"),
    ],
)
def test_what_a_chat_cannot_have_is_a_bad_request_that_names_it(client, body, param):
    with pytest.raises(openai.BadRequestError) as told:
        client.chat.completions.create(**{**CHAT, **body})
    assert told.value.param == param


def test_a_prompt_too_long_is_told_with_both_counts(client):
    with pytest.raises(openai.BadRequestError) as told:
        client.completions.create(model="tiny", prompt=[5] * 600)
    assert "600" in told.value.message
    assert "511" in told.value.message
    # The most that fits leaves room for one token, and gets it.
    answer = client.completions.create(model="tiny", prompt=[5] * 511, **FULL)
    assert answer.usage.completion_tokens == 1
    assert answer.choices[0].finish_reason == "length"


def test_another_model_is_not_found(client):
    for create, asked in (
        (client.completions.create, ASK),
        (client.chat.completions.create, CHAT),
    ):
        with pytest.raises(openai.NotFoundError) as told:
            create(**{**asked, "model": "another"})
        assert (told.value.param, told.value.code) == ("model", "model_not_found")
    assert client.completions.create(**{**ASK, "model": "alias"}).model == "tiny"


def test_keys(run_server):
    with run_server(api_keys=("secret", "schlüssel")) as server:
        for key in ("secret", "schlüssel"):
            headers = {"Authorization": f"Bearer {key}".encode()}
            answer = server.post("/v1/completions", {"prompt": "x"}, headers=headers)
            assert answer.status_code == 200, answer.text
        with server.client(api_key="secret") as client:
            assert client.completions.create(**ASK).choices
        with server.client(api_key="wrong") as client:
            for call in (
                lambda: client.completions.create(**ASK),
                lambda: client.chat.completions.create(**CHAT),
                client.models.list,
                lambda: client.models.retrieve("tiny"),
            ):
                with pytest.raises(openai.AuthenticationError) as told:
                    call()
                assert told.value.code == "invalid_api_key"
        for headers in ({}, {"Authorization": "secret"}, {"Authorization": "Basic secret"}):
            for path in ("/tokenize", "/detokenize", "/v1/completions"):
                refused = server.post(path, {}, headers=headers)
                assert refused.status_code == 401
                assert refused.headers["WWW-Authenticate"] == "Bearer"
        for path in ("/health", "/ready", "/version"):
            assert server.get(path).status_code == 200  # what watches a server has no key


def test_a_full_queue(run_server, monkeypatch):
    from server.conftest import Gate

    with run_server(max_num_seqs=1, max_waiting=1) as server, server.client() as client:
        gate = Gate(server.llm, monkeypatch)
        held = [client.completions.create(**ASK, stream=True) for _ in range(2)]
        with pytest.raises(openai.RateLimitError) as told:
            client.completions.create(**ASK)
        assert told.value.code == "queue_full"
        assert int(told.value.response.headers["Retry-After"]) >= 1
        gate.open()
        for stream in held:
            assert list(stream)[-1].choices[0].finish_reason
        server.check_idle()
        assert client.completions.create(**ASK).choices


def test_what_has_no_meaning_here_is_accepted(client):
    """Rows 13 and 27: unknown fields, and null for all that is optional."""
    nothing = (
        "temperature", "top_p", "n", "stop", "seed", "logit_bias", "logprobs", "stream",
        "stream_options", "user", "frequency_penalty", "presence_penalty",
    )  # fmt: skip
    chat_only = ("max_completion_tokens", "response_format", "tools", "tool_choice", "top_logprobs")
    message = {"role": "user", "content": [{"type": "text", "text": "hello"}], "id": "x"}
    answer = client.post(
        "/chat/completions",
        cast_to=dict,
        body={
            "messages": [message],
            **dict.fromkeys((*nothing, *chat_only)),
            "max_tokens": 3,
            "parallel_tool_calls": True,
            "store": False,
            "metadata": {"a": "b"},
            "service_tier": "auto",
        },
    )
    assert answer["usage"]["completion_tokens"] <= 3
    answer = client.post(
        "/completions",
        cast_to=dict,
        body={"prompt": "x", "max_tokens": None, "ignore_eos": True, **dict.fromkeys(nothing)},
    )
    assert answer["usage"]["completion_tokens"] == 16


def test_max_completion_tokens(client):
    asked = {name: value for name, value in CHAT.items() if name != "max_tokens"}
    answer = client.chat.completions.create(**asked, max_completion_tokens=3, **FULL)
    assert answer.usage.completion_tokens == 3


# -- vLLM's extras ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "extra",
    [
        {"top_k": 1},
        {"top_k": 3},
        {"top_k": 0},
        {"top_k": -1},
        {"top_k": 10**6},
        {"min_p": 0.3},
        {"repetition_penalty": 1.7},
        {"min_tokens": 6},
        {"ignore_eos": True},
        {"stop_token_ids": list(range(3, 200))},
        {"skip_special_tokens": False},
        {"allowed_token_ids": [50, 60, 70]},
        {"bad_words": ["a", "e"]},
        {"include_stop_str_in_output": True, "stop": ["e"]},
    ],
    ids=str,
)
def test_an_extra_does_what_it_does_in_generate(client, reference, extra):
    answer = client.completions.create(
        **ASK, seed=11, extra_body={**extra, "return_token_ids": True}
    )
    (expected,) = reference.generate(["hello"], SamplingParams(seed=11, max_tokens=8, **extra))
    choice, (output,) = answer.choices[0], expected.outputs
    assert choice.model_extra["token_ids"] == output.token_ids
    assert choice.model_extra["prompt_token_ids"] == expected.prompt_token_ids
    assert choice.text == output.text
    assert choice.finish_reason == output.finish_reason
    assert choice.model_extra["stop_reason"] == output.stop_reason


def test_prompt_logprobs(client, reference):
    answer = client.completions.create(**ASK, extra_body={"prompt_logprobs": 2})
    (expected,) = reference.generate(
        ["hello"], SamplingParams(prompt_logprobs=2, max_tokens=1, temperature=0)
    )
    told = answer.choices[0].model_extra["prompt_logprobs"]
    assert told[0] is None
    for entry, position in zip(told[1:], expected.prompt_logprobs[1:], strict=True):
        assert {int(key): value["logprob"] for key, value in entry.items()} == {
            key: value.logprob for key, value in position.items()
        }


def test_echo_scores_a_prompt(client):
    """Row 14: what lm-eval sends."""
    answer = client.completions.create(
        model="tiny", prompt="hello", echo=True, logprobs=1, max_tokens=0
    )
    (choice,) = answer.choices
    assert choice.text == "hello"
    assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 0
    assert "".join(choice.logprobs.tokens) == "hello"
    assert choice.logprobs.token_logprobs[0] is None
    assert choice.logprobs.text_offset[0] == 0
    assert all(value <= 0 for value in choice.logprobs.token_logprobs[1:])


@pytest.mark.parametrize(("asked", "echoed"), [(1, 3), (3, 1), (0, 2), (2, 0)])
def test_prompt_logprobs_beside_an_echo_that_needs_others(client, asked, echoed):
    """Each tells as many as it was asked for, and the same numbers."""
    prompt = {"model": "tiny", "prompt": "hello", "max_tokens": 1, "seed": 1}
    alone = client.completions.create(**prompt, extra_body={"prompt_logprobs": asked}).choices[0]
    echo = client.completions.create(**prompt, echo=True, logprobs=echoed).choices[0]
    both = client.completions.create(
        **prompt, echo=True, logprobs=echoed, extra_body={"prompt_logprobs": asked}
    ).choices[0]
    assert both.logprobs == echo.logprobs
    assert both.model_extra["prompt_logprobs"] == alone.model_extra["prompt_logprobs"]
    for entry in both.model_extra["prompt_logprobs"][1:]:
        assert max(asked, 1) <= len(entry) <= asked + 1


def test_priority_and_salt(client):
    salted = {"prompt": [7] * 40, "model": "tiny", "max_tokens": 1}
    for salt, cached in (("a", 0), ("a", 32), ("b", 0)):
        answer = client.completions.create(
            **salted, extra_body={"cache_salt": salt, "priority": -5}
        )
        assert answer.usage.prompt_tokens_details.cached_tokens == cached


def test_what_a_template_is_given(client, server, reference):
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "he"}]

    def ids(**extra):
        answer = client.chat.completions.create(
            model="tiny", messages=messages, max_tokens=1,
            extra_body={**extra, "return_token_ids": True},
        )  # fmt: skip
        return answer.model_extra["prompt_token_ids"]

    for extra in (
        {},
        {"add_generation_prompt": False},
        {"continue_final_message": True, "add_generation_prompt": False},
        {"chat_template_kwargs": {"anything": 1}},
    ):
        expected = reference.chat_prompt(messages, **extra)
        assert ids(**extra) == expected["prompt_token_ids"]
        told = server.post("/tokenize", {"messages": messages, **extra}).json()
        assert told["tokens"] == expected["prompt_token_ids"]
    assert ids(continue_final_message=True) == ids(
        continue_final_message=True, add_generation_prompt=False
    )
