"""Calls read out of text: the same events joined, however the text was cut."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.openai.tools.formats import HERMES
from octavo.openai.tools.parser import CallPiece, ToolParser
from tool_texts import FORMS, cut, places, written

if TYPE_CHECKING:
    from octavo.openai.tools.formats import ToolFormat

NAMES = ("f", "ff", "get.weather-2")


def read(form: ToolFormat, pieces: list[str]) -> tuple[str, list[tuple[str, str]], bool]:
    """Return an answer's text, its calls (name, arguments), and whether they are whole."""
    parser = ToolParser(form, NAMES)
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
    text, names, arguments = "", [], []
    for event in events:
        if isinstance(event, str):
            text += event
        elif event.name is not None:
            assert event.index == len(names)
            names.append(event.name)
            arguments.append(event.arguments)
        else:
            assert event.index == len(names) - 1
            arguments[-1] += event.arguments
    return text, list(zip(names, arguments, strict=True)), parser.has_called


json_values: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(['"', "\\", "}", "{", "</tool_call>", "<tool_call>", "[TOOL_CALLS]", "é€𝄞"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
arguments_texts = st.builds(
    lambda value, indent, plain: json.dumps(value, indent=indent, ensure_ascii=plain),
    st.dictionaries(st.text(max_size=4), json_values, max_size=3),
    st.sampled_from([None, 2]),
    st.booleans(),
)
some_calls = st.lists(st.tuples(st.sampled_from(NAMES), arguments_texts), min_size=1, max_size=3)
# Fragments of which a text is made that looks like a call, and is one sometimes.
fragments = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "<tool",
        "_call>",
        "[TOOL_CALLS]",
        "[TOOL",
        "[ARGS]",
        "[CALL_ID]",
        "abcDEF123",
        "<|python_tag|>",
        '{"name": "f", "arguments": ',
        '{"name": "ff", "parameters": ',
        '{"name":"f","arguments":{}}',
        '{"a": [1, "}"]}',
        "{",
        "}",
        "[",
        "]",
        ", ",
        "\n",
        " ",
        "f",
        "ff",
        '"',
        "é",
        "𝄞",
        "x",
    ]
)
lookalikes = st.lists(fragments, max_size=14).map("".join)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@given(calls=some_calls, before=st.sampled_from(["", "é so:", "{x"]), cuts=places)
def test_calls_come_apart_wherever_the_text_is_cut(
    form: ToolFormat, calls: list[tuple[str, str]], before: str, cuts: list[int]
) -> None:
    if form.name == "llama":
        before, calls = "", calls[:1]
    answer = f"{before}{chr(10) * bool(before)}{written(form, calls)}"
    assert read(form, cut(answer, cuts)) == (before, calls, True)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@given(text=lookalikes | st.text(), cuts=places)
def test_any_text_reads_the_same_however_it_is_cut(
    form: ToolFormat, text: str, cuts: list[int]
) -> None:
    assert read(form, cut(text, cuts)) == read(form, list(text)) == read(form, [text])


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@given(text=lookalikes | st.text())
def test_text_without_a_call_comes_through_exactly(form: ToolFormat, text: str) -> None:
    content, calls, has_called = read(form, list(text))
    if not calls:
        assert (content, has_called) == (text, False)


@pytest.mark.parametrize(
    "text",
    [
        'Use <tool_call> like this: <tool_call>\n{"name": "f"}\n</tool_call>.',
        '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": "{}"}\n</tool_call>',
        '<tool_call>{"arguments": {}, "name": "f"}</tool_call>',
        "a <tool_call",
        '<tool_call>\n{"name": "f", "arg',
        " \n ",
    ],
)
def test_what_only_looks_like_a_call_is_text(text: str) -> None:
    assert read(HERMES, list(text)) == (text, [], False)


@pytest.mark.parametrize(
    ("form", "text", "content", "calls"),
    [
        # White space as models vary it; and a marker that fails right before one that does not.
        ("hermes", '<tool_call> {"name" :"f",\n"arguments":{} }</tool_call>', "", [("f", "{}")]),
        (
            "hermes",
            'a <tool_call><tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n',
            "a <tool_call>",
            [("f", "{}")],
        ),
        (
            "hermes",
            '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n\nDone.\n',
            "\n\nDone.\n",
            [("f", "{}")],
        ),
        (
            "hermes",
            '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n<tool_call>',
            "\n<tool_call>",
            [("f", "{}")],
        ),
        ("llama", '<|python_tag|>{"name": "f", "parameters": {}}', "", [("f", "{}")]),
        ("llama", 'So: {"name": "f", "parameters": {}}', 'So: {"name": "f", "parameters": {}}', []),
        ("mistral-list", '[TOOL_CALLS][{"name":"f","arguments":{}}] ', "", [("f", "{}")]),
        (
            "mistral-args",
            "[TOOL_CALLS]ff[ARGS]{}[TOOL_CALLS]f[ARGS]{}",
            "",
            [("ff", "{}"), ("f", "{}")],
        ),
    ],
)
def test_forms_as_they_vary(
    form: str, text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    assert read(FORMS[form], list(text)) == (content, calls, bool(calls))


@pytest.mark.parametrize(("length", "is_whole"), [(47, False), (48, True), (60, True)])
def test_a_call_is_whole_once_its_arguments_are(length: int, is_whole: bool) -> None:
    text = written(HERMES, [("f", '{"a": {}}')])[:length]
    assert read(HERMES, list(text))[2] is is_whole


def test_arguments_come_as_they_are_written() -> None:
    parser = ToolParser(HERMES, NAMES)
    head = '<tool_call>\n{"name": "f", "arguments": '
    assert parser.feed(head) == []  # what follows might be no object
    assert parser.feed('{"a') == [CallPiece(0, '{"a', "f")]
    assert parser.feed('": "\\') == [CallPiece(0, '": "\\')]
    assert parser.feed('"}"') == [CallPiece(0, '"}"')]
    assert parser.feed('}}\n</tool_call>\n<tool_call>\n{"name": "ff", "arguments": {') == [
        CallPiece(0, "}"),
        CallPiece(1, "{", "ff"),
    ]


def test_the_id_that_the_model_writes_is_the_calls() -> None:
    parser = ToolParser(FORMS["mistral-id"], NAMES)
    assert parser.feed("[TOOL_CALLS]f[CALL_ID]abcDEF123[ARGS]{}") == [
        CallPiece(0, "{}", "f", "abcDEF123")
    ]
