"""Reads calls out of an answer's text as it comes: the text between them, and the calls in pieces.

Every decision depends on the text alone, never on how it was cut into pieces: what could still
become a call is held back until it is one, or comes out as the text that it is. A call's
arguments come out as they are written, once its name is known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, TypeAlias

from octavo.openai.tools.formats import Space
from octavo.openai.tools.matching import (
    SPACE,
    Found,
    JsonObject,
    Match,
    match,
    match_any,
    maybe_beginning,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from octavo.openai.tools.formats import Items, ToolFormat


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of one call: at its beginning the name, and then its arguments as they come."""

    index: int
    arguments: str = ""
    name: str | None = None
    call_id: str | None = None
    """The id that the model itself wrote, in the forms that have one."""


Event: TypeAlias = "str | CallPiece"


class _State(Enum):
    TEXT = auto()
    ARGUMENTS = auto()
    TAIL = auto()
    """Behind a call's arguments."""
    BETWEEN = auto()
    """Behind a whole call."""
    AFTER = auto()
    """Behind all calls, unless another begins."""
    PLAIN = auto()
    """No call can begin any more."""


class ToolParser:
    """Reads one answer. ``feed`` its pieces, then ``finish``; joined texts are what is no call.

    White space before a call and around it is the form's own, and is left out.
    """

    def __init__(self, form: ToolFormat, names: Iterable[str]) -> None:
        names = list(names)
        self._form = form
        lead: list[Items] = [(form.opening,)] if form.opening else [()]
        if form.may_lead is not None:
            lead = [(), (form.may_lead, Space())]
        self._first = {
            name: [(*before, *form.first, *form.named(name)) for before in lead] for name in names
        }
        self._again = {
            name: [] if form.again is None else [(*form.again, *form.named(name))] for name in names
        }
        self._state = _State.TEXT
        self._held = ""
        self._num_calls = 0
        self._json = JsonObject()
        self._events: list[Event] = []
        self._is_last = False
        self._steps = {
            _State.TEXT: self._in_text,
            _State.ARGUMENTS: self._in_arguments,
            _State.TAIL: self._in_tail,
            _State.BETWEEN: self._between,
            _State.AFTER: self._after,
            _State.PLAIN: self._in_plain,
        }

    @property
    def has_called(self) -> bool:
        """Whether there were calls, and none was cut off."""
        return self._num_calls > 0 and self._state is not _State.ARGUMENTS

    def feed(self, text: str) -> list[Event]:
        """Return what the next piece of the text brings."""
        self._held += text
        return self._advance(is_last=False)

    def finish(self) -> list[Event]:
        """Return what was held back, now that nothing follows."""
        return self._advance(is_last=True)

    def _advance(self, *, is_last: bool) -> list[Event]:
        self._is_last = is_last
        while self._steps[self._state]():
            pass
        events, self._events = _joined(self._events), []
        return events

    # Each step works on what is held, and returns whether another may follow at once.

    def _in_text(self) -> bool:
        opening = self._form.opening
        if not opening:
            return self._at_beginning()
        at = self._held.find(opening)
        if at < 0:
            kept = "" if self._is_last else maybe_beginning(self._held, opening)
            self._emit(len(self._held) - len(kept))
            return False
        space = self._held[:at].rstrip(SPACE)
        self._emit(len(space))  # the white space is held: it may be the call's
        at -= len(space)
        found = match_any(self._first, self._held, at)
        if found is Match.PARTIAL and not self._is_last:
            return False
        if isinstance(found, Found):
            self._begin_call(found)
        else:
            self._emit(at + 1)  # the marker's first character: it was none
        return True

    def _at_beginning(self) -> bool:
        start = len(self._held) - len(self._held.lstrip(SPACE))
        found = match_any(self._first, self._held, start)
        if found is Match.PARTIAL and not self._is_last:
            return False
        if isinstance(found, Found):
            self._begin_call(found)
        else:
            self._state = _State.PLAIN
        return True

    def _begin_call(self, found: Found) -> None:
        self._events.append(CallPiece(self._num_calls, "", found.name, found.call_id))
        self._num_calls += 1
        self._held = self._held[found.end :]
        self._json = JsonObject()
        self._state = _State.ARGUMENTS

    def _in_arguments(self) -> bool:
        end = self._json.follow(self._held)
        arguments, self._held = self._held[:end], self._held[end:]
        if arguments:
            self._events.append(CallPiece(self._num_calls - 1, arguments))
        if self._json.ended:
            self._state = _State.TAIL
        return self._json.ended

    def _in_tail(self) -> bool:
        end = match(self._form.tail, self._held, 0)
        if end is Match.PARTIAL:
            if self._is_last:
                self._held = ""
            return False
        if isinstance(end, Found):
            self._held = self._held[end.end :]
        self._state = _State.BETWEEN
        return True

    def _between(self) -> bool:
        found = match_any(self._again, self._held, 0)
        if isinstance(found, Found):
            self._begin_call(found)
            return True
        end = match(self._form.end, self._held, 0)
        if Match.PARTIAL in (found, end) and not self._is_last:
            return False
        if isinstance(end, Found):
            self._held = self._held[end.end :]
        elif end is Match.PARTIAL:
            self._held = ""
        self._state = _State.AFTER
        return True

    def _after(self) -> bool:
        if not self._held.strip(SPACE):
            self._held = "" if self._is_last else self._held
            return False
        self._state = _State.TEXT if self._form.opening else _State.PLAIN
        return True

    def _in_plain(self) -> bool:
        self._emit(len(self._held))
        return False

    def _emit(self, count: int) -> None:
        if count:
            self._events.append(self._held[:count])
            self._held = self._held[count:]


def _joined(events: list[Event]) -> list[Event]:
    """Return the events with neighbours of one kind put together."""
    joined: list[Event] = []
    for event in events:
        last = joined[-1] if joined else None
        if isinstance(event, str) and isinstance(last, str):
            joined[-1] = last + event
        elif (
            isinstance(event, CallPiece)
            and isinstance(last, CallPiece)
            and event.index == last.index
        ):
            joined[-1] = replace(last, arguments=last.arguments + event.arguments)
        else:
            joined.append(event)
    return joined
