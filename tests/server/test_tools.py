"""Tools and reasoning over HTTP, by OpenAI's own client.

What the model says is given token by token, so that every answer is known; the last tests let a
model of random weights speak, which the grammar alone holds to its schema.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

from octavo import LLM
from server.conftest import SETTINGS, Server, events
from tiny_model import tiny_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Qwen 3's shape: tools in the system message, calls and results written by the template.
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if thinks %}<think>\n{% elif thinks is defined %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 20}}\n</tool_call>'
WEATHER = (
    '<tool_call>\n{"name": "Weather", "arguments": {"city": "Örebro 𝄞", "unit": "C"}}\n</tool_call>'
)
END = "<|im_end|>"
ASKED = [{"role": "user", "content": "Go"}]


class Weather(BaseModel):
    """What the weather is like."""

    city: str = Field(max_length=12)
    unit: Literal["C", "F"]


INTEGER = {"type": "integer", "minimum": -9, "maximum": 99}
ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": INTEGER, "b": INTEGER},
            "required": ["a", "b"],
        },
    },
}
TOOLS: list[Any] = [ADD, openai.pydantic_function_tool(Weather)]


@pytest.fixture(scope="module")
def _tooled(kernels: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("tools") / "tiny.gguf"
    llm = LLM(
        tiny_model(path, context_length=2048, chat_template=TEMPLATE),
        **{**SETTINGS, "num_kv_blocks": 400},
    )
    server = Server(llm, 1024, ())
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def tooled(_tooled: Server) -> Iterator[Server]:
    """A server whose template has tools and reasoning; left idle."""
    yield _tooled
    _tooled.check_idle()


@pytest.fixture
def ask(tooled: Server) -> Iterator[openai.OpenAI]:
    with tooled.client() as client:
        yield client


@pytest.fixture
def says(tooled: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the model say these texts, one a choice, whatever is asked."""

    def script(*texts: str) -> None:
        tokenizer = tooled.llm.tokenizer
        ids = [tokenizer.encode(text + END, parse_special=True) for text in texts]
        sample = tooled.llm.core.sampler.sample

        def scripted(logits: Any, rows: Any, *more: Any) -> Any:
            output = sample(logits, rows, *more)
            for i, row in enumerate(rows):
                output.token_ids[i] = ids[row.choice][len(row.output_token_ids)]
                if output.logprobs[i] is not None:
                    output.logprobs[i] = tooled.llm.core.sampler.arithmetic.compute_logprobs(
                        logits[i : i + 1], [output.token_ids[i]], row.params.logprobs
                    )[0]
            return output

        monkeypatch.setattr(tooled.llm.core.sampler, "sample", scripted)

    return script


def whole(client: openai.OpenAI, **asked: Any) -> Any:
    body = {"model": "tiny", "messages": ASKED, "tools": TOOLS, "temperature": 0, **asked}
    return client.chat.completions.create(**body)


def joined(chunks: list[Any]) -> list[dict[str, Any]]:
    """Return a stream's choices, as a client puts them together."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            found = choices.setdefault(
                choice.index, {"content": "", "reasoning": "", "calls": [], "reason": None}
            )
            assert found["reason"] is None, "something came behind the end"
            delta = choice.delta
            found["content"] += delta.content or ""
            found["reasoning"] += getattr(delta, "reasoning_content", None) or ""
            for call in delta.tool_calls or ():
                if call.id is not None:
                    assert call.type == "function"
                    assert call.index == len(found["calls"])
                    found["calls"].append([call.function.name, ""])
                found["calls"][call.index][1] += call.function.arguments
            found["reason"] = choice.finish_reason
    return [choices[index] for index in sorted(choices)]


def as_joined(answer: Any) -> list[dict[str, Any]]:
    """Return a whole answer's choices in the same form."""
    return [
        {
            "content": choice.message.content or "",
            "reasoning": getattr(choice.message, "reasoning_content", None) or "",
            "calls": [
                [call.function.name, call.function.arguments]
                for call in choice.message.tool_calls or ()
            ],
            "reason": choice.finish_reason,
        }
        for choice in answer.choices
    ]


def test_a_call_is_a_message_without_content(ask: openai.OpenAI, says: Any, tooled: Server) -> None:
    says(CALL)
    answer = whole(ask)
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "add")
    assert call.function.arguments == '{"a": 1, "b": 20}'
    assert call.id.startswith("call_")
    assert answer.usage.completion_tokens == len(tooled.llm.tokenizer.encode(CALL)) + 1


ANSWERS = {
    "text": ("Hello é 𝄞\n", ["Hello é 𝄞\n", "", [], "stop"]),
    "call": (CALL, ["", "", [["add", '{"a": 1, "b": 20}']], "tool_calls"]),
    "text and calls": (
        f"So:\n{WEATHER}\n{CALL}",
        [
            "So:",
            "",
            [["Weather", '{"city": "Örebro 𝄞", "unit": "C"}'], ["add", '{"a": 1, "b": 20}']],
            "tool_calls",
        ],
    ),
    "no call": ("a <tool_cal", ["a <tool_cal", "", [], "stop"]),
    "thought": ("<think>\nhm\né\n</think>\n\nYes", ["Yes", "hm\né", [], "stop"]),
    "thought and call": (
        f"<think>\n{CALL}\n</think>\n\n{CALL}",
        ["", CALL, [["add", '{"a": 1, "b": 20}']], "tool_calls"],
    ),
}


@pytest.mark.parametrize(("text", "expected"), ANSWERS.values(), ids=ANSWERS)
def test_streamed_and_whole_are_the_same(
    ask: openai.OpenAI, says: Any, text: str, expected: list[Any]
) -> None:
    says(text)
    as_dict = dict(zip(("content", "reasoning", "calls", "reason"), expected, strict=True))
    assert as_joined(whole(ask)) == [as_dict]
    chunks = list(whole(ask, stream=True, stream_options={"include_usage": True}))
    assert joined(chunks) == [as_dict]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage == whole(ask).usage


def test_arguments_are_streamed_as_they_are_written(ask: openai.OpenAI, says: Any) -> None:
    says(CALL)
    pieces = [
        call.function.arguments
        for chunk in whole(ask, stream=True)
        for choice in chunk.choices
        for call in choice.delta.tool_calls or ()
    ]
    assert len(pieces) > 10  # the tiny model's tokens are bytes, as a rule
    assert all(len(piece) <= 2 for piece in pieces)


def test_every_choice_is_read_by_itself(ask: openai.OpenAI, says: Any) -> None:
    texts = [CALL, "Hello", f"<think>x</think>{WEATHER}"]
    says(*texts)
    answer = whole(ask, n=3, logprobs=True, top_logprobs=1)
    assert [choice.finish_reason for choice in answer.choices] == [
        "tool_calls",
        "stop",
        "tool_calls",
    ]
    assert joined(list(whole(ask, n=3, stream=True))) == as_joined(answer)
    for choice, text in zip(answer.choices, texts, strict=True):
        read = b"".join(bytes(entry.bytes) for entry in choice.logprobs.content)
        assert read == (text + END).encode()


def test_a_call_that_is_cut_off_is_no_call(ask: openai.OpenAI, says: Any) -> None:
    says(CALL)
    for length, content, names in ((45, "", ["add"]), (10, CALL[:10], [])):
        (found,) = as_joined(whole(ask, max_tokens=length))
        assert found["reason"] == "length"
        assert [name for name, _ in found["calls"]] == names
        assert found["content"].startswith(content) if content else not found["content"]
        assert joined(list(whole(ask, max_tokens=length, stream=True))) == [found]
    (found,) = as_joined(whole(ask, stop='"b"'))  # and by a stop string the same
    assert found == {
        "content": "",
        "reasoning": "",
        "calls": [["add", '{"a": 1, ']],
        "reason": "stop",
    }


def test_a_call_goes_back_with_its_result(ask: openai.OpenAI, says: Any, tooled: Server) -> None:
    says(f"<think>x</think>So:{CALL}")
    answer = whole(ask)
    message = answer.choices[0].message
    messages = [
        *ASKED,
        message.model_dump(),  # nulls and all, as a client keeps it
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "21"},
    ]
    says("21.")
    assert whole(ask, messages=messages).choices[0].message.content == "21."
    tokens = tooled.post("/tokenize", {"messages": messages, "tools": TOOLS}).json()["tokens"]
    text = tooled.llm.tokenizer.decode(tokens, skip_special_tokens=False)
    assert '{"name": "add", "arguments": {"a": 1, "b": 20}}' in text
    assert "What the weather is like." in text
    assert text.endswith("tool\n21<|im_end|>\n<|im_start|>assistant\n")


def test_none_is_as_if_there_were_no_tools(ask: openai.OpenAI, says: Any, tooled: Server) -> None:
    says(CALL)
    (found,) = as_joined(whole(ask, tool_choice="none"))
    assert found == {"content": CALL, "reasoning": "", "calls": [], "reason": "stop"}
    bare = tooled.post("/tokenize", {"messages": ASKED}).json()
    none = tooled.post(
        "/tokenize", {"messages": ASKED, "tools": TOOLS, "tool_choice": "none"}
    ).json()
    assert none == bare


@pytest.mark.parametrize(
    ("thinks", "text", "reasoning", "content"),
    [
        (True, "hm\n</think>\nYes", "hm", "Yes"),
        (True, "never done", "never done", ""),
        (False, "<think>Yes", "", "<think>Yes"),
        (None, "<think>hm</think>Yes", "hm", "Yes"),
    ],
)
def test_the_prompt_may_begin_the_reasoning_or_be_done_with_it(
    ask: openai.OpenAI, says: Any, thinks: bool | None, text: str, reasoning: str, content: str
) -> None:
    says(text)
    kwargs = {} if thinks is None else {"thinks": thinks}
    asked = {"tools": openai.omit, "extra_body": {"chat_template_kwargs": kwargs}}
    (found,) = as_joined(whole(ask, **asked))
    assert found == {"content": content, "reasoning": reasoning, "calls": [], "reason": "stop"}
    assert joined(list(whole(ask, stream=True, **asked))) == [found]


def test_pydantic_models_are_tools(ask: openai.OpenAI, says: Any) -> None:
    says(WEATHER)
    tool = openai.pydantic_function_tool(Weather)
    answer = ask.chat.completions.parse(model="tiny", messages=ASKED, tools=[tool])
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.parsed_arguments == Weather(city="Örebro 𝄞", unit="C")
    with ask.chat.completions.stream(model="tiny", messages=ASKED, tools=[tool]) as stream:
        kinds = [event.type for event in stream]
        (call,) = stream.get_final_completion().choices[0].message.tool_calls
    assert call.function.parsed_arguments == Weather(city="Örebro 𝄞", unit="C")
    assert kinds.count("tool_calls.function.arguments.done") == 1


def test_the_asynchronous_client(tooled: Server, says: Any) -> None:
    says(f"So:{CALL}")

    async def both() -> tuple[Any, list[Any]]:
        url = f"{tooled.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            asked: Any = {"model": "tiny", "messages": ASKED, "tools": TOOLS}
            answer = await client.chat.completions.create(**asked)
            stream = await client.chat.completions.create(**asked, stream=True)
            return answer, [chunk async for chunk in stream]

    answer, chunks = asyncio.run(both())
    assert joined(chunks) == as_joined(answer)
    assert answer.choices[0].finish_reason == "tool_calls"


def test_a_fault_in_a_call_ends_the_stream_properly(
    tooled: Server, says: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 32: an error event, an end, `[DONE]`; and what was held back is not lost."""
    says("x <tool_call>\n" + CALL)
    step, count = tooled.llm.core.step, 0

    def failing() -> Any:
        nonlocal count
        count += 1
        if count == 12:
            raise RuntimeError("broken")
        return step()

    monkeypatch.setattr(tooled.llm.core, "step", failing)
    body = {"messages": ASKED, "tools": TOOLS, "stream": True}
    found = events(tooled.post("/v1/chat/completions", body).text)
    assert found[-1] == "[DONE]"
    assert found[-2]["error"]["code"] == "engine_fault"
    choices = [event["choices"][0] for event in found[:-2]]
    assert choices[-1]["finish_reason"] == "error"
    text = "".join(choice["delta"].get("content", "") for choice in choices)
    assert "x <tool_call>".startswith(text)
    assert text.startswith("x <tool")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [ADD, ADD]}, "tools[1].function.name"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"functions": [ADD["function"]]}, "functions"),
        ({"function_call": "add"}, "function_call"),
        ({"extra_body": {"chat_template_kwargs": {"tools": [ADD]}}}, "chat_template_kwargs"),
        (
            {"messages": [*ASKED, {"role": "assistant", "content": "", "tool_calls": [{}]}]},
            "messages[1].tool_calls[0].function",
        ),
    ],
)
def test_what_is_wrong_is_a_bad_request_that_names_its_place(
    ask: openai.OpenAI, body: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as told:
        whole(ask, **body)
    assert told.value.body["param"] == param  # type: ignore[call-overload, index]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": "string"}},
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "foo("}}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}},
    ],
)
def test_a_schema_at_fault_is_named(ask: openai.OpenAI, schema: dict[str, Any]) -> None:
    """Row 49's kind, among tools that are well."""
    bad: Any = {"type": "function", "function": {"name": "bad", "parameters": schema}}
    with pytest.raises(openai.BadRequestError) as told:
        whole(ask, tools=[ADD, bad, TOOLS[1]])
    error: Any = told.value.body
    assert error["param"] == "tools[1].function.parameters"
    assert error["message"].startswith("tools[1].function.parameters: ")


def test_more_tools_than_a_grammar_holds_are_refused(ask: openai.OpenAI) -> None:
    values = [f"value {i}" for i in range(200)]
    schema = {"type": "object", "properties": {"a": {"enum": values}}}
    tools = [
        {"type": "function", "function": {"name": f"f{i}", "parameters": schema}}
        for i in range(120)
    ]
    with pytest.raises(openai.BadRequestError) as told:
        whole(ask, tools=tools)
    error: Any = told.value.body
    assert error["param"] == "tools"


JSON_SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "n",
        "schema": {
            "type": "object",
            "properties": {"n": {"type": "integer"}},
            "required": ["n"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize(
    ("text", "content"),
    [('<think>\nhm\n</think>\n\n{"n": 7}', '{"n": 7}'), (CALL, ""), ('{"n": 7}', '{"n": 7}')],
)
def test_an_answer_is_calls_or_of_the_structure(
    ask: openai.OpenAI, says: Any, text: str, content: str
) -> None:
    says(text)
    (found,) = as_joined(whole(ask, response_format=JSON_SCHEMA))
    assert found["content"] == content
    assert found["reason"] == ("stop" if content else "tool_calls")


def test_a_structure_at_fault_beside_tools_is_named_by_its_own_field(ask: openai.OpenAI) -> None:
    bad = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "none"}}}
    for extra in ({"response_format": bad}, {"extra_body": {"guided_regex": "a("}}):
        for tools in (TOOLS, openai.omit):
            with pytest.raises(openai.BadRequestError) as told:
                whole(ask, tools=tools, **extra)
            error: Any = told.value.body
            assert error["param"] in ("response_format", "guided_regex")
            assert error["param"] in error["message"]


# -- a model of random weights ---------------------------------------------------------------------


NO_THOUGHT = {"chat_template_kwargs": {"thinks": False}}  # it would never end
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_call_that_must_be_is_valid_whatever_the_model_is(
    ask: openai.OpenAI, stream: bool
) -> None:
    asked: Any = {"tool_choice": "required", "parallel_tool_calls": False, "temperature": 1.0}
    asked |= {"n": 8, "seed": 1, "max_tokens": 400, "stream": stream, "extra_body": NO_THOUGHT}
    answer = whole(ask, **asked)
    names = set()
    for choice in joined(list(answer)) if stream else as_joined(answer):
        assert (choice["content"], choice["reason"]) == ("", "tool_calls")
        ((name, arguments),) = choice["calls"]
        jsonschema.validate(json.loads(arguments), SCHEMAS[name])
        names.add(name)
    assert names == SCHEMAS.keys()


def test_a_named_function_is_called(ask: openai.OpenAI) -> None:
    choice = {"type": "function", "function": {"name": "add"}}
    answer = whole(ask, tool_choice=choice, n=4, temperature=1.0, seed=2, extra_body=NO_THOUGHT)
    for found in as_joined(answer):
        ((name, arguments),) = found["calls"]
        assert name == "add"
        jsonschema.validate(json.loads(arguments), SCHEMAS["add"])


def test_a_structure_holds_behind_the_reasoning(ask: openai.OpenAI) -> None:
    """The prompt is done with reasoning, or the model would be for ever."""
    answer = whole(
        ask,
        tools=openai.omit,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": SCHEMAS["add"]},
        },
        n=4,
        temperature=1.0,
        seed=3,
        extra_body=NO_THOUGHT,
    )
    for found in as_joined(answer):
        jsonschema.validate(json.loads(found["content"]), SCHEMAS["add"])
        assert found["reason"] == "stop"
