"""What a request lets the model call, and every fault by its place."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from pydantic import BaseModel

from octavo.errors import InvalidRequestError
from octavo.openai.tools.request import read_tool_use


def tool(name: str, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


TOOLS = [tool("f"), tool("g", description="G"), tool("h")]


def names(tools: Any) -> list[str]:
    return [one.name for one in tools]


@pytest.mark.parametrize(
    ("choice", "callable_", "must_call", "parallel"),
    [
        (None, ["f", "g", "h"], False, True),
        ("auto", ["f", "g", "h"], False, True),
        ("required", ["f", "g", "h"], True, True),
        (tool("g"), ["g"], True, False),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [tool("h"), tool("f")]},
            },
            ["f", "h"],
            False,
            True,
        ),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [tool("h")]}},
            ["h"],
            True,
            True,
        ),
    ],
)
def test_the_choice_says_which_may_and_must_be_called(
    choice: Any, callable_: list[str], must_call: bool, parallel: bool
) -> None:
    body = {"tools": TOOLS} if choice is None else {"tools": TOOLS, "tool_choice": choice}
    use = read_tool_use(body)
    assert use is not None
    assert names(use.tools) == ["f", "g", "h"]
    assert (names(use.callable), use.must_call, use.parallel) == (callable_, must_call, parallel)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"tools": []},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": False},
        {"tool_choice": "none"},
        {"tools": TOOLS, "tool_choice": "none"},
    ],
)
def test_nothing_to_call(body: dict[str, Any]) -> None:
    assert read_tool_use(body) is None


def test_one_call_at_a_time() -> None:
    use = read_tool_use({"tools": TOOLS, "parallel_tool_calls": False})
    assert use is not None
    assert not use.parallel


def test_pydantics_tools_are_read() -> None:
    class Weather(BaseModel):
        """What the weather is."""

        city: str

    use = read_tool_use({"tools": [openai.pydantic_function_tool(Weather)]})
    assert use is not None
    (weather,) = use.tools
    assert weather.name == "Weather"
    assert weather.parameters["required"] == ["city"]
    # `strict` is for the engine, and no business of the model's.
    assert weather.definition["function"].keys() == {"name", "description", "parameters"}


@pytest.mark.parametrize("parameters", [None, {}])
def test_without_parameters_a_function_takes_nothing(parameters: Any) -> None:
    use = read_tool_use({"tools": [tool("f", parameters=parameters)]})
    assert use is not None
    assert use.tools[0].parameters == {"type": "object", "properties": {}}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"tools": "f"}, "tools"),
    ({"tools": [tool("f")] * 1025}, "tools"),
    ({"tools": [tool("f"), "g"]}, "tools[1]"),
    ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type"),
    ({"tools": [{"type": "custom"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [tool("f"), tool("")]}, "tools[1].function.name"),
    ({"tools": [tool("a b")]}, "tools[0].function.name"),
    ({"tools": [tool("x" * 129)]}, "tools[0].function.name"),
    ({"tools": [tool("f"), tool("g"), tool("f")]}, "tools[2].function.name"),
    ({"tools": [tool("f", description=1)]}, "tools[0].function.description"),
    ({"tools": [tool("f", strict="yes")]}, "tools[0].function.strict"),
    ({"tools": [tool("f", parameters=[1])]}, "tools[0].function.parameters"),
    ({"tools": [tool("f", parameters={"type": "string"})]}, "tools[0].function.parameters.type"),
    ({"tools": [tool("f", parameters={"x": "\ud800"})]}, "tools[0].function.parameters.x"),
    ({"tools": TOOLS, "parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": ["f"]}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": tool("x")}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": tool("f")}, "tool_choice"),
    (
        {
            "tools": TOOLS,
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "any"}},
        },
        "tool_choice",
    ),
    (
        {
            "tools": TOOLS,
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [tool("f"), tool("x")]},
            },
        },
        "tool_choice",
    ),
]


@pytest.mark.parametrize(("body", "param"), BAD)
def test_what_is_wrong_is_named_by_its_place(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as told:
        read_tool_use(body)
    assert told.value.param == param
    assert param in str(told.value) or "surrogate" in str(told.value)
