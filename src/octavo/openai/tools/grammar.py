"""The grammar of an answer that may call tools, in llguidance's dialect of Lark.

Text is free until a call begins; from there on the form, the name and the arguments' schema hold.
After a call come further calls or the end. What calls must look like is in `formats.py`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from octavo.openai.tools.formats import CallId, Space

if TYPE_CHECKING:
    from collections.abc import Mapping

    from octavo.openai.tools.formats import Item, Items, ToolFormat
    from octavo.openai.tools.request import Tool, ToolUse

# As Python's json writes it, which is what models have seen; so no run of white space is possible.
_JSON_STYLE: Final = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
_OPEN_ENDED: Final = ("additionalProperties", "patternProperties", "unevaluatedProperties")
_COMBINED: Final = ("$ref", "allOf", "anyOf", "oneOf", "not", "if")


def tool_rules(
    use: ToolUse,
    form: ToolFormat,
    control_ids: Mapping[str, int],
    *,
    instead: str | None,
    text: str,
) -> str:
    """Return the rules of an ``answer``.

    ``control_ids`` are the vocabulary's control tokens, by their literals. ``instead`` is a rule
    for an answer that calls nothing, in the place of free text; ``text`` is the terminal that
    free text is within. `ANY` must be defined beside these rules.
    """
    literal = _Literals(control_ids)
    calls = [f"call_{i}" for i in range(len(use.callable))]
    lines = [
        f"calls: {literal.rule(form.first)} call{_more_calls(use, form, literal)}"
        f" {literal.rule(form.end)}",
        f"call: ({' | '.join(calls)}) {literal.rule(form.tail)}",
    ]
    for name, tool in zip(calls, use.callable, strict=True):
        lines.append(f"{name}: {literal.rule(form.named(tool.name))} {arguments_rule(tool)}")
    opened = f"{literal.rule((form.opening,))} calls" if form.opening else "calls"
    if form.may_lead is not None:
        opened = f"({literal.rule((form.may_lead,))})? calls"
    if use.must_call:
        return "\n".join([f"answer: {opened}", *lines])
    if instead is not None:
        return "\n".join([f"answer: {instead} | {opened}", *lines])
    return "\n".join([*_beside_text(form, control_ids, opened, text), *lines])


def arguments_rule(tool: Tool) -> str:
    """Return the rule of a call's arguments: their JSON schema."""
    return f"%json {json.dumps({**closed(tool.parameters), 'x-guidance': _JSON_STYLE})}"


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema without properties that it does not name, unless it speaks of such.

    JSON schema allows whatever is not forbidden; a model that is offered that makes things up.
    """
    speaks = any(key in schema for key in (*_OPEN_ENDED, *_COMBINED))
    if "properties" not in schema or speaks:
        return dict(schema)
    return {**schema, "additionalProperties": False}


def _more_calls(use: ToolUse, form: ToolFormat, literal: _Literals) -> str:
    if form.again is None or not use.parallel:
        return ""
    return f" ({literal.rule(form.again)} call)*"


def _beside_text(
    form: ToolFormat, control_ids: Mapping[str, int], opened: str, text: str
) -> list[str]:
    """Return the rules of an answer that is free text, or calls behind free text."""
    if not form.opening:
        begins = r'"{" /\s*/ "\"name\""'
        if form.may_lead is not None:
            begins = f"({json.dumps(form.may_lead)} | {begins})"
        return [f"answer: FREE | {opened}", f"FREE: {text} & ~(/\\s*/ {begins} ANY)"]
    marker = json.dumps(form.opening)
    free = f"FREE: {text} & ~(ANY {marker} ANY)"
    if form.opening in control_ids:
        return [f"answer: FREE ({opened})?", free]
    return [
        "answer: FREE | before calls",
        f"before[lazy]: BEFORE {marker}",
        f"BEFORE: {text}",
        free,
    ]


class _Literals:
    """Writes items of a form as a rule: text in quotes, control tokens by their ids."""

    def __init__(self, control_ids: Mapping[str, int]) -> None:
        self._control_ids = control_ids

    def rule(self, items: Items) -> str:
        parts: list[str] = []
        text = ""
        for item in items:
            if isinstance(item, Space) and not item.is_loose:
                text += item.text
            elif isinstance(item, str) and item not in self._control_ids:
                text += item
            else:
                parts += [json.dumps(text)] * bool(text)
                text = ""
                parts.append(self._pattern(item))
        return " ".join([*parts, *[json.dumps(text)] * bool(text)])

    def _pattern(self, item: Item) -> str:
        if isinstance(item, Space):
            return "/ {0,2}/"
        if isinstance(item, CallId):
            return "/[a-zA-Z0-9]{9}/"
        return f"<[{self._control_ids[item]}]>"
