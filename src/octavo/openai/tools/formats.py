"""The textual forms of tool calls, as data: the same lines make the grammar and read the text.

A form is recognised by the model's own chat template. Where that has none, or one that is not
known here, calls have the generic form, which the prompt explains (`messages.py`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, TypeAlias


@dataclass(frozen=True, slots=True)
class Space:
    """White space of whatever length where a text is read; where one is forced, this."""

    text: str = ""
    is_loose: bool = False
    """None, one or two spaces are forced: tokenizers differ on them."""


class CallId(Enum):
    """Where the model itself writes the call's id: nine letters and digits."""

    NINE = 9


Item: TypeAlias = "str | Space | CallId"
Items: TypeAlias = "tuple[Item, ...]"


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How calls stand in an answer: ``opening first CALL (again CALL)* end``.

    A CALL is what names the function, its arguments as a JSON object, and ``tail``.
    """

    name: str
    opening: str
    """The literal that begins calls anywhere in a text; empty: they can only begin the answer."""
    first: Items = ()
    again: Items | None = None
    """Between two calls; None where an answer has one at most."""
    arguments_key: str | None = None
    """The key of the arguments in a JSON object with the name; None: ``NAME named_end``."""
    named_end: Items = ()
    tail: Items = ()
    end: Items = ()
    may_lead: str | None = None
    """A literal that may come before calls that begin the answer."""
    tools_variable: str | None = "tools"
    """By what name the template takes the tools; None: the prompt is to explain them."""
    calls_as_text: bool = False
    """Whether the template passes over calls in a conversation, so that we must write them."""
    short_ids: bool = False
    """Whether the template demands ids of nine letters and digits."""

    def named(self, name: str) -> Items:
        """What says that ``name`` is called, up to the arguments."""
        if self.arguments_key is None:
            return (name, *self.named_end)
        blank, gap = Space(), Space(" ")
        return (
            *("{", blank, '"name"', blank, ":", gap, json.dumps(name), blank, ",", gap),
            *(f'"{self.arguments_key}"', blank, ":", gap),
        )

    @property
    def literals(self) -> set[str]:
        """All literals that might be control tokens of a vocabulary."""
        items = (*self.first, *(self.again or ()), *self.named_end, *self.tail, *self.end)
        found = {item for item in items if isinstance(item, str)}
        return found | ({self.opening, self.may_lead or ""} - {""})


_LINE: Final = Space("\n")

HERMES: Final = ToolFormat(
    "hermes",
    opening="<tool_call>",
    first=(_LINE,),
    again=(_LINE, "<tool_call>", _LINE),
    arguments_key="arguments",
    tail=(Space(), "}", _LINE, "</tool_call>"),
)
MISTRAL_LIST: Final = ToolFormat(
    "mistral-list",
    opening="[TOOL_CALLS]",
    first=(Space(is_loose=True), "[", Space()),
    again=(Space(), ",", Space(" ")),
    arguments_key="arguments",
    tail=(Space(), "}"),
    end=(Space(), "]"),
    short_ids=True,
)
"""The older form of Mistral's: a JSON list after the marker."""
LLAMA: Final = ToolFormat(
    "llama",
    opening="",
    arguments_key="parameters",
    tail=(Space(), "}"),
    may_lead="<|python_tag|>",
)
GENERIC: Final = replace(HERMES, name="generic", tools_variable=None, calls_as_text=True)
"""For templates that have no form: Hermes', explained in the prompt."""


def mistral_args(*, with_id: bool) -> ToolFormat:
    """Return the newer form of Mistral's: the name, then the arguments; once, with an id."""
    call_id: Items = ("[CALL_ID]", CallId.NINE) if with_id else ()
    return ToolFormat(
        "mistral-args",
        opening="[TOOL_CALLS]",
        again=("[TOOL_CALLS]",),
        named_end=(*call_id, "[ARGS]", Space()),
        short_ids=True,
    )


def format_of(source: str) -> ToolFormat:
    """Return the form of calls in a template of this source."""
    if "tools" in source:
        if "[TOOL_CALLS]" in source and "[ARGS]" in source:
            return mistral_args(with_id="[CALL_ID]" in source)
        if "[TOOL_CALLS]" in source:
            return MISTRAL_LIST
        as_text = "tool_calls" not in source
        if "xml_tools" in source:  # SmolLM3's name for the tools of this form
            return replace(HERMES, tools_variable="xml_tools", calls_as_text=as_text)
        if "<tool_call>" in source and _is_json(source):
            return replace(HERMES, calls_as_text=as_text)
        if "<|python_tag|>" in source or '"parameters": ' in source.replace('\\"', '"'):
            return LLAMA
    return GENERIC


def _is_json(source: str) -> bool:
    """Whether calls between the tags are JSON: some models have elements of their own there."""
    return not any(mark in source for mark in ("<function=", "<arg_key>", "<parameter"))
