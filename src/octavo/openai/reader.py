"""Reads one answer's text as it comes and says what it is in OpenAI's words.

Content, reasoning and calls of tools, as the fields of a chunk's ``delta``. Joined, they do not
depend on how the text was cut into pieces.
"""

from __future__ import annotations

import secrets
import string
from typing import TYPE_CHECKING, Any, Final

from octavo.openai.reasoning import ReasoningSplitter
from octavo.openai.tools.parser import ToolParser

if TYPE_CHECKING:
    from octavo.openai.reasoning import Reasoning
    from octavo.openai.tools.formats import ToolFormat
    from octavo.openai.tools.parser import CallPiece, Event
    from octavo.openai.tools.request import ToolUse

_ID_CHARACTERS: Final = string.ascii_letters + string.digits


class AnswerReader:
    """Reads one choice; without reasoning and tools all text is content."""

    def __init__(
        self,
        reasoning: Reasoning | None = None,
        use: ToolUse | None = None,
        form: ToolFormat | None = None,
    ) -> None:
        self._splitter = None if reasoning is None else ReasoningSplitter(reasoning)
        self._parser: ToolParser | None = None
        if use is not None and form is not None:
            self._parser = ToolParser(form, [tool.name for tool in use.callable])
            self._short_ids = form.short_ids

    @property
    def has_called(self) -> bool:
        """Whether the answer has calls, and none was cut off."""
        return self._parser is not None and self._parser.has_called

    def feed(self, text: str, *, is_last: bool = False) -> dict[str, Any]:
        """Return the fields of a delta that the next piece brings; none are empty."""
        reasoning = ""
        if self._splitter is not None:
            reasoning, text = self._splitter.feed(text, is_last=is_last)
        events: list[Event] = [text] if text else []
        if self._parser is not None:
            events = self._parser.feed(text)
            if is_last:
                events += self._parser.finish()
        delta: dict[str, Any] = {}
        if reasoning:
            delta["reasoning_content"] = reasoning
        content = "".join(event for event in events if isinstance(event, str))
        if content:
            delta["content"] = content
        calls = [self._call(event) for event in events if not isinstance(event, str)]
        if calls:
            delta["tool_calls"] = calls
        return delta

    def _call(self, piece: CallPiece) -> dict[str, Any]:
        function = {"arguments": piece.arguments}
        if piece.name is None:
            return {"index": piece.index, "function": function}
        return {
            "index": piece.index,
            "id": piece.call_id or self._new_id(),
            "type": "function",
            "function": {"name": piece.name, **function},
        }

    def _new_id(self) -> str:
        if self._short_ids:
            return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"
