"""Reasoning that comes before an answer: where a template has it, and how text is told apart.

Only the beginning of an answer can be reasoning. Line breaks at the edges of the section, and
behind it, are the tags' own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from octavo.model.text.chat import ChatTemplate
    from octavo.model.text.tokenizer import Tokenizer

_TAGS: Final = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
_SPACE: Final = " \t\r\n"
_NUM_LAST_TOKENS: Final = 16
"""At the end of a prompt: enough for the template's last words to the model."""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """How an answer may begin."""

    start: str
    end: str
    is_open: bool
    """Whether the prompt itself has begun the section."""


def reasoning_of(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    prompt_ids: Sequence[int],
    continued: object = None,
) -> Reasoning | None:
    """Return how an answer to a prompt may begin with reasoning; None: not at all.

    ``continued`` is the content of a last message that the answer goes on with.
    """
    for start, end in _TAGS:
        if start not in template.source or end not in template.source:
            continue
        if isinstance(continued, str):
            is_open = continued.rfind(start) > continued.rfind(end)
            return Reasoning(start, end, is_open) if is_open else None
        last = tokenizer.decode(prompt_ids[-_NUM_LAST_TOKENS:], skip_special_tokens=False).rstrip()
        if last.endswith(end):  # the template has had it done with
            return None
        return Reasoning(start, end, last.endswith(start))
    return None


def reasoning_rules(reasoning: Reasoning, control_ids: Mapping[str, int]) -> tuple[str, str]:
    """Return the rules of a ``start`` before an ``answer``, and the terminal of text in that.

    ``control_ids`` are the vocabulary's control tokens, by their literals. `ANY` must be defined
    beside these rules.
    """
    begin, end = (
        f"<[{control_ids[tag]}]>" if tag in control_ids else json.dumps(tag)
        for tag in (reasoning.start, reasoning.end)
    )
    begins_in_text = not reasoning.is_open and reasoning.start not in control_ids
    inside = f"{begin} ANY" if begins_in_text else "ANY"
    if reasoning.end in control_ids:
        thought = f"thought: THOUGHT {end}\nTHOUGHT: {inside}"
    else:
        thought = f"thought[lazy]: {inside} {end}"
    before = "thought" if reasoning.is_open or begins_in_text else f"{begin} thought"
    start = f"{before} gap?" if reasoning.is_open else f"({before} gap?)?"
    rules = f"start: {start} answer\n{thought}\ngap: /\\n{{1,4}}/"
    # A text that begins with the tag is reasoning, so the answer's own text must not.
    return rules, f"(ANY & ~(/\\s*/ {begin} ANY))" if begins_in_text else "ANY"


class _State(Enum):
    BEGINNING = auto()
    REASONING = auto()
    BEHIND = auto()
    ANSWER = auto()


class ReasoningSplitter:
    """Tells one answer's reasoning from the rest, whatever pieces its text comes in."""

    def __init__(self, reasoning: Reasoning) -> None:
        self._start, self._end = reasoning.start, reasoning.end
        self._state = _State.REASONING if reasoning.is_open else _State.BEGINNING
        self._held = ""
        self._has_reasoned = False

    def feed(self, text: str, *, is_last: bool = False) -> tuple[str, str]:
        """Return the reasoning and the answer's text that the next piece brings."""
        self._held += text
        reasoning = ""
        if self._state is _State.BEGINNING:
            self._begin(is_last)
        if self._state is _State.REASONING:
            reasoning = self._reason(is_last)
        if self._state is _State.BEHIND:
            self._held = self._held.lstrip("\n")
            if self._held:
                self._state = _State.ANSWER
        answer = ""
        if self._state is _State.ANSWER:
            answer, self._held = self._held, ""
        return reasoning, answer

    def _begin(self, is_last: bool) -> None:
        text = self._held.lstrip(_SPACE)
        if text.startswith(self._start):
            self._held = text[len(self._start) :]
            self._state = _State.REASONING
        elif is_last or not self._start.startswith(text):
            self._state = _State.ANSWER

    def _reason(self, is_last: bool) -> str:
        if not self._has_reasoned:
            self._held = self._held.lstrip("\n")
        at = self._held.find(self._end)
        if at >= 0:
            found, self._held = self._held[:at].rstrip("\n"), self._held[at + len(self._end) :]
            self._state = _State.BEHIND
        else:
            kept = 0 if is_last else self._num_kept()
            size = len(self._held) - kept
            found, self._held = self._held[:size], self._held[size:]
        self._has_reasoned = self._has_reasoned or bool(found)
        return found

    def _num_kept(self) -> int:
        """Count the characters at the end that may be line breaks before the end, or its start."""
        sizes = range(min(len(self._end) - 1, len(self._held)), 0, -1)
        size = next((n for n in sizes if self._held.endswith(self._end[:n])), 0)
        before = self._held[: len(self._held) - size]
        return len(self._held) - len(before.rstrip("\n"))
