"""Finds a form's items in text that is still coming: there, not there, or perhaps.

What is found never depends on how the text was cut into pieces.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from octavo.openai.tools.formats import CallId, Space

if TYPE_CHECKING:
    from octavo.openai.tools.formats import Item, Items

SPACE: Final = " \t\r\n"
_CALL_ID: Final = re.compile("[a-zA-Z0-9]{0,9}")
_ID_LENGTH: Final = 9
# What matters while JSON is followed: brackets outside strings, quotes, escapes.
_OUTSIDE: Final = re.compile(r'["{}\[\]]')
_INSIDE: Final = re.compile(r'["\\]')


class JsonObject:
    """Follows the characters of a JSON object to its end, wherever its text is cut."""

    __slots__ = ("_depth", "_in_string", "_is_escaped", "ended")

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self.ended = False

    def follow(self, text: str) -> int:
        """Take in more text; return how much of it is the object's."""
        at = 0
        while at < len(text) and not self.ended:
            if self._is_escaped:
                self._is_escaped = False
                at += 1
                continue
            found = (_INSIDE if self._in_string else _OUTSIDE).search(text, at)
            if found is None:
                return len(text)
            at = found.end()
            self._take(found.group())
        return at

    def _take(self, character: str) -> None:
        if character == "\\":
            self._is_escaped = True
        elif character == '"':
            self._in_string = not self._in_string
        else:
            self._depth += 1 if character in "{[" else -1
            self.ended = self._depth == 0


class Match(Enum):
    """Why nothing was found."""

    NONE = auto()
    PARTIAL = auto()
    """It may match once more text has come."""


@dataclass(frozen=True, slots=True)
class Found:
    """Where what was looked for ends, and what it says."""

    end: int
    name: str | None = None
    call_id: str | None = None


def match_any(heads: dict[str, list[Items]], text: str, start: int) -> Match | Found:
    """Match what leads up to the arguments of a call of any of these names."""
    best = Match.NONE
    for name, alternatives in heads.items():
        for items in alternatives:
            found = match((*items, "{"), text, start)
            if isinstance(found, Found):
                return Found(found.end - 1, name, found.call_id)
            if found is Match.PARTIAL:
                best = found
    return best


def match(items: Items, text: str, at: int) -> Match | Found:
    """Match items one after the other, from a place in the text on."""
    call_id = None
    for item in items:
        end = _end_of(item, text, at)
        if isinstance(end, Match):
            return end
        if isinstance(item, CallId):
            call_id = text[at:end]
        at = end
    return Found(at, None, call_id)


def _end_of(item: Item, text: str, at: int) -> Match | int:
    if isinstance(item, Space):
        return len(text) - len(text[at:].lstrip(SPACE))
    if isinstance(item, CallId):
        found = _CALL_ID.match(text, at)
        assert found is not None, "the pattern matches an empty text too"
        if found.end() - at == _ID_LENGTH:
            return found.end()
        return Match.PARTIAL if found.end() == len(text) else Match.NONE
    if text.startswith(item, at):
        return at + len(item)
    return Match.PARTIAL if item.startswith(text[at:]) else Match.NONE


def maybe_beginning(text: str, marker: str) -> str:
    """Return the end of a text that may be white space and the beginning of a marker."""
    for size in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:size]):
            break
    else:
        size = 0
    before = text[: len(text) - size]
    return text[len(before.rstrip(SPACE)) :]
