"""Reads `tools`, `tool_choice` and `parallel_tool_calls`: what a request lets the model call.

Every fault is named with its place. Knows no template and no grammar.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from octavo.errors import InvalidRequestError, shown
from octavo.model.text.chat_messages import check_value

_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_MOST_TOOLS: Final = 1024


@dataclass(frozen=True, slots=True)
class Tool:
    """One function that the model may call."""

    name: str
    definition: dict[str, Any]
    """As the request gave it and templates expect it, without ``strict``."""
    parameters: dict[str, Any]
    """The JSON schema of its arguments; always of an object."""
    where: str
    """The place of the schema in the request, for errors."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a request lets the model call, and whether it must."""

    tools: tuple[Tool, ...]
    """All that the prompt tells of."""
    callable: tuple[Tool, ...]
    """Those that may be called now: fewer where ``tool_choice`` says so."""
    must_call: bool
    parallel: bool
    """Whether one answer may have several calls."""


def read_tool_use(given: Mapping[str, Any]) -> ToolUse | None:
    """Return what a body lets the model call; None where that is nothing.

    ``tool_choice`` "none" is as if there were no tools: the prompt does not tell of them.
    Raises `InvalidRequestError`.
    """
    parallel = given.get("parallel_tool_calls", True)
    if not isinstance(parallel, bool):
        raise InvalidRequestError(
            f"parallel_tool_calls={shown(parallel)} must be true or false",
            param="parallel_tool_calls",
        )
    tools = _read_tools(given.get("tools", []))
    choice = given.get("tool_choice", "auto")
    if choice == "none":
        return None
    if not tools:
        if choice != "auto":
            raise InvalidRequestError(
                f"tool_choice={shown(choice)} needs tools; give some, or leave it out",
                param="tool_choice",
            )
        return None
    chosen, must_call, is_named = _read_choice(choice, tools)
    return ToolUse(tools, chosen, must_call, parallel and not is_named)


def _read_tools(given: object) -> tuple[Tool, ...]:
    if not isinstance(given, list):
        raise InvalidRequestError(f"tools={shown(given)} must be a list", param="tools")
    if len(given) > _MOST_TOOLS:
        raise InvalidRequestError(
            f"tools has {len(given)} entries, more than {_MOST_TOOLS}; give fewer", param="tools"
        )
    tools: dict[str, Tool] = {}
    for n, entry in enumerate(given):
        tool = _read_tool(entry, f"tools[{n}]")
        if tool.name in tools:
            raise InvalidRequestError(
                f"tools[{n}].function.name={shown(tool.name)} is there twice; names must differ",
                param=f"tools[{n}].function.name",
            )
        tools[tool.name] = tool
    return tuple(tools.values())


def _read_tool(entry: object, where: str) -> Tool:
    if not isinstance(entry, Mapping):
        raise InvalidRequestError(f"{where}={shown(entry)} must be an object", param=where)
    check_value(entry, where)
    if entry.get("type") != "function":
        raise InvalidRequestError(
            f"{where}.type={shown(entry.get('type'))} is not supported; it must be 'function'",
            param=f"{where}.type",
        )
    function = entry.get("function")
    where = f"{where}.function"
    if not isinstance(function, Mapping):
        raise InvalidRequestError(f"{where}={shown(function)} must be an object", param=where)
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequestError(
            f"{where}.name={shown(name)} must have 1 to 128 of the characters a-z A-Z 0-9 _ . -",
            param=f"{where}.name",
        )
    for field, kind, words in (("description", str, "a string"), ("strict", bool, "true or false")):
        value = function.get(field)
        if value is not None and not isinstance(value, kind):
            raise InvalidRequestError(
                f"{where}.{field}={shown(value)} must be {words}", param=f"{where}.{field}"
            )
    parameters = _read_parameters(function.get("parameters"), f"{where}.parameters")
    told = {key: value for key, value in function.items() if key != "strict" and value is not None}
    definition = {"type": "function", "function": {**told, "parameters": parameters}}
    return Tool(name, definition, parameters, f"{where}.parameters")


def _read_parameters(given: object, where: str) -> dict[str, Any]:
    """Return a schema of an object; without one a function takes nothing."""
    if given is None or given == {}:
        return {"type": "object", "properties": {}}
    if not isinstance(given, Mapping):
        raise InvalidRequestError(
            f"{where}={shown(given)} must be a JSON schema, an object", param=where
        )
    kind = given.get("type", "object")
    if kind != "object":
        raise InvalidRequestError(
            f"{where}.type={shown(kind)} must be 'object': a call's arguments are one",
            param=f"{where}.type",
        )
    return {"type": "object", **given}


def _read_choice(choice: object, tools: tuple[Tool, ...]) -> tuple[tuple[Tool, ...], bool, bool]:
    """Return the tools that may be called, whether one must be, and whether it is one by name."""
    if choice == "auto":
        return tools, False, False
    if choice == "required":
        return tools, True, False
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if isinstance(choice, Mapping) and kind == "function":
        return (_named(choice, tools, "tool_choice"),), True, True
    if isinstance(choice, Mapping) and kind == "allowed_tools":
        return *_read_allowed(choice.get("allowed_tools"), tools), False
    raise InvalidRequestError(
        f"tool_choice={shown(choice)} must be 'none', 'auto', 'required', an object of type "
        "'function' with the function's name, or one of type 'allowed_tools'",
        param="tool_choice",
    )


def _read_allowed(given: object, tools: tuple[Tool, ...]) -> tuple[tuple[Tool, ...], bool]:
    where = "tool_choice.allowed_tools"
    mode = given.get("mode") if isinstance(given, Mapping) else None
    entries = given.get("tools") if isinstance(given, Mapping) else None
    if mode not in ("auto", "required") or not isinstance(entries, list) or not entries:
        raise InvalidRequestError(
            f"{where}={shown(given)} must have a mode, 'auto' or 'required', and a list of tools",
            param="tool_choice",
        )
    named = [_named(entry, tools, f"{where}.tools[{n}]") for n, entry in enumerate(entries)]
    return tuple(tool for tool in tools if tool in named), mode == "required"


def _named(entry: object, tools: tuple[Tool, ...], where: str) -> Tool:
    function = entry.get("function") if isinstance(entry, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    for tool in tools:
        if tool.name == name:
            return tool
    raise InvalidRequestError(
        f"{where}.function.name={shown(name)} is none of the tools; name one of them",
        param="tool_choice",
    )
