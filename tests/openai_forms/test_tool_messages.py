"""Tools, calls and results in prompts: each family's form, the generic one, and faults by place."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from family_templates import FAMILIES, template, tokenizer
from octavo.errors import InvalidRequestError
from octavo.openai.tools.formats import GENERIC, HERMES, LLAMA, ToolFormat, format_of, mistral_args
from octavo.openai.tools.messages import messages_with_tools
from octavo.openai.tools.request import ToolUse, read_tool_use

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds é.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a"],
        },
    },
}
CALL = {
    "id": "abcDEF123",
    "type": "function",
    "function": {"name": "add", "arguments": '{"a": 1}'},
}
ASKED = {"role": "user", "content": "Go"}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
TOLD = {"role": "tool", "tool_call_id": "abcDEF123", "content": "one"}


def written(
    messages: list[Any], use: ToolUse | None, form: ToolFormat, family: str = "phi3"
) -> list[dict[str, Any]]:
    return messages_with_tools(messages, use, form, template(family))


def use() -> ToolUse:
    found = read_tool_use({"tools": [TOOL]})
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("family", "name", "variable"),
    [
        ("gemma2", "generic", None),
        ("gemma3", "generic", None),
        ("llama2", "generic", None),
        ("llama3", "llama", "tools"),
        ("mistral", "mistral-list", "tools"),
        ("phi3", "generic", None),
        ("qwen2.5", "hermes", "tools"),
        ("qwen3", "hermes", "tools"),
        ("smollm3", "hermes", "xml_tools"),
    ],
)
def test_the_form_is_known_by_the_template(family: str, name: str, variable: str | None) -> None:
    form = format_of(template(family).source)
    assert (form.name, form.tools_variable) == (name, variable)


@pytest.mark.parametrize(
    ("source", "form"),
    [
        ("{{ tools }}[TOOL_CALLS]{{ name }}[ARGS]", mistral_args(with_id=False)),
        ("{{ tools }}[TOOL_CALLS]{{ name }}[CALL_ID]{{ id }}[ARGS]", mistral_args(with_id=True)),
        ("{{ tools }}<|python_tag|>", LLAMA),
        (r"""{{ tools }}{{ '{\"name\": \"' + n + '\", \"parameters\": ' }}""", LLAMA),
        ("{{ tools }}<tool_call>{{ tool_calls | tojson }}</tool_call>", HERMES),
        ("{{ tools }}<tool_call>", replace(HERMES, calls_as_text=True)),
        # Elements of their own between the same tags: Qwen 3 Coder, GLM.
        ("{{ tools }}<tool_call><function={{ n }}>", GENERIC),
        ("{{ tools }}<tool_call>{{ n }}<arg_key>", GENERIC),
        ("{{ tools }}<start_function_call>call:f", GENERIC),
        ("{{ messages }}", GENERIC),
    ],
)
def test_forms_that_no_family_here_has(source: str, form: ToolFormat) -> None:
    assert format_of(source) == form


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_and_its_result_come_into_every_prompt(family: str) -> None:
    """An answer of ours goes back as it came: null for its content, arguments as a string."""
    form = format_of(template(family).source)
    messages = messages_with_tools([ASKED, CALLED, TOLD], use(), form, template(family))
    kwargs: dict[str, Any] = {}
    if form.tools_variable is not None:
        kwargs[form.tools_variable] = [TOOL]
    text = template(family).render_text(messages, **kwargs)
    assert text.count("Adds é.") == (family != "mistral")  # its template: at the last user's turn
    assert '{"a": 1}' in text
    assert "one" in text
    assert "None" not in text


@pytest.mark.parametrize("family", FAMILIES)
def test_no_tool_and_no_call_writes_a_control_token(family: str) -> None:
    """Row 8's kind: in the names, descriptions, arguments and results of tools."""
    chat, tok = template(family), tokenizer(family)
    form = format_of(chat.source)

    def specials(text: str) -> list[int]:
        tool = {"type": "function", "function": {"name": "add", "description": text}}
        use = read_tool_use({"tools": [tool]})
        assert use is not None
        function = {"name": "add", "arguments": json.dumps({text: text})}
        call = {**CALLED, "tool_calls": [{**CALL, "function": function}]}
        messages = written([ASKED, call, {**TOLD, "content": text}], use, form, family)
        kwargs: dict[str, Any] = {}
        if form.tools_variable is not None:
            kwargs[form.tools_variable] = [use.tools[0].definition]
        ids = chat.render_ids(messages, **kwargs)
        return [i for i in ids if i in tok.special_ids]

    assert specials("".join(tok.control_literals)) == specials("x")


def test_the_generic_form_explains_itself() -> None:
    messages = written([ASKED, CALLED, TOLD, {**TOLD, "content": "2"}], use(), GENERIC)
    function = json.dumps(TOOL["function"], ensure_ascii=False)
    assert messages == [
        {
            "role": "system",
            "content": "You can call functions. To call one, answer with its call, the values "
            "filled in, and nothing else. The result comes back in <tool_response> tags.\n\n"
            f"{function}\n"
            '<tool_call>\n{"name": "add", "arguments": {"a": "..."}}\n</tool_call>',
        },
        ASKED,
        {
            "role": "assistant",
            "content": '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
        },
        {
            "role": "user",
            "content": "<tool_response>\none\n</tool_response>\n"
            "<tool_response>\n2\n</tool_response>",
        },
    ]


def test_the_explanation_joins_the_message_that_is_there() -> None:
    told = written([ASKED], use(), GENERIC)[0]["content"]
    messages = written([{"role": "system", "content": "Be brief."}, ASKED], use(), GENERIC)
    assert messages == [{"role": "system", "content": f"Be brief.\n\n{told}"}, ASKED]
    (message,) = written([ASKED], use(), GENERIC, "gemma2")  # which has no system message
    assert message == {"role": "user", "content": f"{told}\n\nGo"}


def test_without_tools_a_conversation_stays_but_for_calls() -> None:
    for form in (HERMES, GENERIC):
        assert written([ASKED], None, form) == [ASKED]
    assert len(written([ASKED, CALLED, TOLD], None, GENERIC)) == 3


@pytest.mark.parametrize("given", [{"a": [1]}, '{"a": [1]}'])
def test_templates_get_arguments_as_an_object(given: object) -> None:
    call = {"function": {"arguments": given, "name": "add"}}  # as OpenAI's client orders them
    (message,) = written([{**CALLED, "tool_calls": [call]}], None, HERMES)
    assert message["content"] == ""
    assert list(message["tool_calls"][0]["function"]) == ["name", "arguments"]
    assert message["tool_calls"] == [
        {"type": "function", "function": {"name": "add", "arguments": {"a": [1]}}}
    ]


@pytest.mark.parametrize("given", [None, ""])
def test_no_arguments_are_an_empty_object(given: object) -> None:
    call = {"function": {"name": "add", "arguments": given}}
    (message,) = written([{**CALLED, "tool_calls": [call]}], None, HERMES)
    assert message["tool_calls"][0]["function"]["arguments"] == {}


def called(call: object) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [CALL, call]}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (called(3), "messages[1].tool_calls[1]"),
        (called({"type": "custom"}), "messages[1].tool_calls[1].type"),
        (called({}), "messages[1].tool_calls[1].function"),
        (called({"function": {"name": 1}}), "messages[1].tool_calls[1].function"),
        *(
            (
                called({"function": {"name": "f", "arguments": arguments}}),
                "messages[1].tool_calls[1].function.arguments",
            )
            for arguments in ('{"a": ', "[1]", "7", [1], "[" * 100_000)
        ),
        ({"role": "assistant", "content": "", "tool_calls": "x"}, "messages[1].tool_calls"),
        ({"role": "tool", "content": "x", "tool_call_id": 1}, "messages[1].tool_call_id"),
        ({"role": "tool"}, "messages[1].content"),
    ],
)
def test_a_fault_is_named_by_its_place(message: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as told:
        written([ASKED, message], None, HERMES)
    assert told.value.param == param
    assert param in str(told.value)
