"""The grammar of a whole answer: reasoning, then calls, free text, or a given structure."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from octavo.openai.reasoning import reasoning_rules
from octavo.openai.tools.grammar import tool_rules
from octavo.sampling.structured import StructuredOutputs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from octavo.openai.reasoning import Reasoning
    from octavo.openai.tools.formats import ToolFormat
    from octavo.openai.tools.request import ToolUse

_ANY: Final = "ANY: /(?s:.*)/"
_UNESCAPED_SLASH: Final = re.compile(r"(\\.)|/", re.DOTALL)


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
    """Return a structure as a part of a rule."""
    if structure.json is not None:
        return f"%json {structure.json}"
    if structure.json_object:
        return '%json {"type": "object"}'
    if structure.regex is not None:
        escaped = _UNESCAPED_SLASH.sub(lambda found: found[1] or r"\/", structure.regex)
        return f"/{escaped}/".replace("\n", r"\n")
    if structure.choice is not None:
        return f"({' | '.join(json.dumps(choice) for choice in structure.choice)})"
    return f"%lark {{\n{structure.grammar}\n}}"
