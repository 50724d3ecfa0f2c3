"""The grammar of a whole answer: reasoning, then calls, free text, or a given structure."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from octavo.errors import InvalidRequestError
from octavo.openai.reasoning import reasoning_rules
from octavo.openai.tools.grammar import tool_rules
from octavo.sampling.structured import PARAM, StructuredOutputs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from octavo.openai.reasoning import Reasoning
    from octavo.openai.tools.formats import ToolFormat
    from octavo.openai.tools.request import ToolUse

_ANY: Final = "ANY: /(?s:.*)/"
_SLASH: Final = re.compile(r"(\\.)|/", re.DOTALL)


def answer_grammar(
    structure: StructuredOutputs | None,
    reasoning: Reasoning | None,
    use: ToolUse | None,
    form: ToolFormat | None,
    control_ids: Mapping[str, int],
) -> StructuredOutputs | None:
    """Return what a whole answer is held to; None: to nothing.

    ``structure`` is that of the answer's text. Reasoning that may come before it is free, and a
    call of a tool may take its place. ``control_ids`` are the vocabulary's control tokens, by
    their literals.
    """
    if use is None and (structure is None or reasoning is None):
        return structure
    start, text = "start: answer", "ANY"
    if reasoning is not None:
        start, text = reasoning_rules(reasoning, control_ids)
    instead = None if structure is None else structure_rule(structure)
    if use is not None and form is not None:
        rules = tool_rules(use, form, control_ids, instead=instead, text=text)
    else:
        rules = f"answer: {instead}"
    return StructuredOutputs(grammar=f"{start}\n{rules}\n{_ANY}\n")


def structure_rule(structure: StructuredOutputs) -> str:
    """Return a structure as a part of a rule.

    Raises `InvalidRequestError` for a GBNF grammar: there is no such part.
    """
    if structure.json is not None or structure.json_object:
        schema = {"type": "object"} if structure.json is None else json.loads(str(structure.json))
        return f"%json {json.dumps(_spaced(schema, structure.whitespace))}"
    if structure.regex is not None:
        escaped = _SLASH.sub(lambda found: found[1] or r"\/", structure.regex)
        return f"/{escaped}/".replace("\n", r"\n")
    if structure.choice is not None:
        return f"({' | '.join(json.dumps(choice) for choice in structure.choice)})"
    assert structure.grammar is not None, "exactly one is there"
    if "::=" in structure.grammar:
        raise InvalidRequestError(
            f"{PARAM} has a grammar in GBNF, which cannot stand beside tools or reasoning; "
            "write it in Lark",
            param=PARAM,
        )
    return f"%lark {{\n{structure.grammar}\n}}"


def _spaced(schema: Any, most: int) -> Any:
    """Return a schema that says how much white space there may be between its parts."""
    if schema is True:  # which says nothing, and llguidance takes for an object
        schema = {}
    if not isinstance(schema, dict):
        return schema
    style: dict[str, Any] = {"whitespace_flexible": most > 0}
    if most:
        style["whitespace_pattern"] = f"[ \\n\\r\\t]{{1,{most}}}"
    return {**schema, "x-guidance": style}
