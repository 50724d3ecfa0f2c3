"""What the grammars of calls let through, asked of llguidance itself; and it reads back."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from octavo.openai.reasoning import Reasoning, reasoning_rules
from octavo.openai.tools.formats import HERMES
from octavo.openai.tools.grammar import tool_rules
from octavo.openai.tools.parser import ToolParser
from octavo.openai.tools.request import read_tool_use
from tool_texts import FORMS, lets_through, matcher, num_allowed, written

if TYPE_CHECKING:
    from octavo.openai.tools.formats import ToolFormat

SCHEMAS: dict[str, dict[str, Any]] = {
    "f": {"type": "object", "properties": {"a": {"type": "integer", "minimum": -3, "maximum": 3}}},
    "ff": {
        "type": "object",
        "properties": {
            "unit": {"enum": ["C", "F"]},
            "at": {"$ref": "#/$defs/place"},
            "days": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
        },
        "required": ["unit", "at"],
        "$defs": {"place": {"type": "string", "maxLength": 3}},
    },
    "none": {},
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
SHUT = Reasoning("<think>", "</think>", is_open=False)
OPEN = Reasoning("<think>", "</think>", is_open=True)


def grammar(
    form: ToolFormat,
    choice: Any = "auto",
    *,
    parallel: bool = True,
    instead: str | None = None,
    reasoning: Reasoning | None = None,
) -> str:
    use = read_tool_use({"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": parallel})
    assert use is not None
    start, text = "start: answer", "ANY"
    if reasoning is not None:
        start, text = reasoning_rules(reasoning, {})
    rules = tool_rules(use, form, {}, instead=instead, text=text)
    return f"{start}\n{rules}\nANY: /(?s:.*)/\n"


F, FF = ("f", '{"a": 2}'), ("ff", '{"unit": "C", "at": "é"}')


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_text_is_free_and_calls_are_held_to_their_schema(form: ToolFormat) -> None:
    auto = grammar(form)
    for text in (
        "",
        "Hello é\n",
        "<tool",
        "{",
        '{"a": 1}',
        written(form, [F]),
        written(form, [FF]),
    ):
        assert lets_through(auto, text), text
    bad = written(form, [("f", '{"a": 4}')])
    assert num_allowed(auto, bad) == bad.encode().index(b"4")
    bad = written(form, [("g", "{}")])
    assert num_allowed(auto, bad) < len(bad)
    call = written(form, [F])
    assert num_allowed(auto, f"{call} more") == len(call)  # nothing but further calls
    assert lets_through(auto, f"So:\n{call}")


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_how_many_calls(form: ToolFormat) -> None:
    one, two = written(form, [F]), written(form, [F, FF])
    if form.again is None:
        return
    assert lets_through(grammar(form), two)
    assert lets_through(grammar(form, "required"), two)
    assert not lets_through(grammar(form, parallel=False), two)
    assert lets_through(grammar(form, parallel=False), one)
    named = grammar(form, TOOLS[0])
    assert lets_through(named, one)
    assert not lets_through(named, two)
    assert not lets_through(named, written(form, [FF]))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("choice", ["required", TOOLS[0]], ids=["required", "named"])
def test_a_call_that_must_be_is(form: ToolFormat, choice: Any) -> None:
    must = grammar(form, choice)
    assert not lets_through(must, "")
    assert num_allowed(must, "Hello") == 0
    assert lets_through(must, written(form, [F]))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_structure_stands_for_free_text(form: ToolFormat) -> None:
    either = grammar(form, instead='"yes" | "no"')
    assert lets_through(either, "yes")
    assert not lets_through(either, "maybe")
    assert lets_through(either, written(form, [F]))


def test_reasoning_comes_first_and_is_free() -> None:
    call = written(HERMES, [F])
    shut, must = grammar(HERMES, reasoning=SHUT), grammar(HERMES, "required", reasoning=OPEN)
    for text in ("Hello", f"<think>\n{call}x</think>\n\nHello", f"<think>a</think>{call}", call):
        assert lets_through(shut, text), text
    bad = f"<think>{call}x</think>\n{written(HERMES, [('g', '{}')])}"
    assert num_allowed(shut, bad) < len(bad)
    must_shut = grammar(HERMES, "required", reasoning=SHUT)
    assert lets_through(must_shut, f"<think>so</think>{call}")
    assert num_allowed(must_shut, f"so</think>{call}") == 0
    assert lets_through(must, f"so be it</think>\n\n{call}")
    assert not lets_through(must, "so be it</think>\n\nHello")
    assert not lets_through(must, call)


def test_properties_that_no_schema_names_are_not_made_up() -> None:
    assert not lets_through(grammar(HERMES), written(HERMES, [("f", '{"b": 1}')]))
    assert not lets_through(grammar(HERMES), written(HERMES, [("none", '{"b": 1}')]))
    assert lets_through(grammar(HERMES), written(HERMES, [("none", "{}")]))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_whatever_the_grammar_makes_reads_back_and_is_valid(form: ToolFormat) -> None:
    """Random walks: any byte that is allowed, until nothing is or a call is whole."""
    random_ = random.Random(0)
    rules = grammar(form, "required")
    num_calls = 0
    for _ in range(12):
        found, text = matcher(rules), bytearray()
        while not found.is_stopped() and len(text) < 2000:
            allowed = [i for i, bias in enumerate(found.compute_logit_bias()) if bias]
            token = random_.choice(allowed)
            assert found.consume_token(token)
            if token >= 256:
                break
            text.append(token)
        parser = ToolParser(form, SCHEMAS)
        events = parser.feed(text.decode()) + parser.finish()
        names, arguments = [], []
        for event in events:
            assert not isinstance(event, str)
            if event.name is not None:
                names.append(event.name)
                arguments.append("")
            arguments[-1] += event.arguments
        assert parser.has_called
        for name, value in zip(names, arguments, strict=True):
            jsonschema.validate(json.loads(value), SCHEMAS[name])
            num_calls += 1
    assert num_calls >= 12
