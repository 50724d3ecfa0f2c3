"""Calls of tools in each textual form, texts cut into pieces, and what llguidance lets through."""

from __future__ import annotations

from typing import TYPE_CHECKING

import llguidance
from hypothesis import strategies as st

from octavo.openai.tools.formats import GENERIC, HERMES, LLAMA, MISTRAL_LIST, mistral_args

if TYPE_CHECKING:
    from collections.abc import Sequence

    from octavo.openai.tools.formats import ToolFormat

BYTES = llguidance.LLTokenizer("byte")
"""A vocabulary of the bytes, and some control tokens from 256 on."""
FORMS = {
    "hermes": HERMES,
    "llama": LLAMA,
    "generic": GENERIC,
    "mistral-list": MISTRAL_LIST,
    "mistral-args": mistral_args(with_id=False),
    "mistral-id": mistral_args(with_id=True),
}


def written(form: ToolFormat, calls: list[tuple[str, str]]) -> str:
    """Return an answer with these calls, as the form's models write it."""
    match form.name:
        case "llama":
            return "".join(f'{{"name": "{n}", "parameters": {a}}}' for n, a in calls[:1])
        case "mistral-list":
            inner = ", ".join(f'{{"name": "{n}", "arguments": {a}}}' for n, a in calls)
            return f"[TOOL_CALLS] [{inner}]"
        case "mistral-args":
            middle = "[CALL_ID]abcDEF123" if "[CALL_ID]" in form.named_end else ""
            return "".join(f"[TOOL_CALLS]{n}{middle}[ARGS]{a}" for n, a in calls)
    return "\n".join(
        f'<tool_call>\n{{"name": "{n}", "arguments": {a}}}\n</tool_call>' for n, a in calls
    )


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted({place % (len(text) + 1) for place in places})
    return [text[i:j] for i, j in zip([0, *ends], [*ends, len(text)], strict=True)]


places = st.lists(st.integers(0, 400), max_size=12)


def matcher(grammar: str) -> llguidance.LLMatcher:
    """Return llguidance's own state at an answer's beginning."""
    found = llguidance.LLMatcher(BYTES, grammar, log_level=0)
    assert not found.is_error(), found.get_error()
    return found


def lets_through(grammar: str, answer: str | Sequence[int]) -> bool:
    """Return whether a text, or ids, may be a whole answer."""
    found = matcher(grammar)
    return found.consume_tokens(_ids(answer)) and found.is_accepting()


def num_allowed(grammar: str, answer: str | Sequence[int]) -> int:
    """Return how many bytes of a text may be the beginning of an answer."""
    return matcher(grammar).validate_tokens(_ids(answer))


def _ids(answer: str | Sequence[int]) -> list[int]:
    return list(answer.encode() if isinstance(answer, str) else answer)
