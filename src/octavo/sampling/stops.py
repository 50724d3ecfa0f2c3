"""Finds stop strings in streamed text, and holds back what might become one.

Must not know of tokens: it is fed text, cut anywhere; what it emits does not depend on the cuts.

The stop that counts is the one that completes first; of several that complete at the same
character, the longest. Each stop string is followed by the automaton of Knuth, Morris and Pratt,
"Fast Pattern Matching in Strings" (1977): its state is how much of the stop string the text ends
with, which is also how much text must be held back. So every character costs the same, however
the text was cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class StopResult(NamedTuple):
    """Text that may be shown now, and the stop string that ended the answer, if one did."""

    text: str
    stop: str | None


class StopChecker:
    """Watches one answer for its stop strings.

    Args:
        stop: the stop strings, none empty; no strings at all lets all text through.
        include: whether the stop string is shown. Then nothing need be held back.
    """

    __slots__ = ("_fallbacks", "_held", "_include", "_matched", "_states", "_stop")

    def __init__(self, stop: Sequence[str], include: bool = False) -> None:
        assert all(stop), "empty stop strings are refused by SamplingParams"
        # Longest first: the first found to complete at a character is the one that counts.
        self._stop = sorted(stop, key=len, reverse=True)
        self._fallbacks = [_fallbacks(string) for string in self._stop]
        self._states = [0] * len(self._stop)  # length of the stop's prefix that the text ends with
        self._include = include
        self._held = ""
        self._matched = False

    def feed(self, piece: str, *, may_stop: bool = True) -> StopResult:
        """Take the next piece of text; return what may be shown and the stop it completed.

        What is shown can no longer become part of a stop string. After a stop string, the rest of
        the piece is dropped and nothing more may be fed. With ``may_stop`` False (`min_tokens` not
        yet reached) a stop string that completes in this piece is text like any other; one that
        begins in it and completes in a later piece counts.
        """
        assert not self._matched, "fed after a stop string"
        if not self._stop:
            return StopResult(piece, None)
        text = self._held + piece
        for place in range(len(self._held), len(text)):
            stop = self._advance(text[place])
            if stop is not None and may_stop:
                self._matched, self._held = True, ""
                end = place + 1
                return StopResult(text[: end if self._include else end - len(stop)], stop)
        num_held = 0 if self._include else max(self._states)
        shown = len(text) - num_held
        self._held = text[shown:]
        return StopResult(text[:shown], None)

    def finish(self) -> str:
        """Return the text still held back, when the answer ends for another reason."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> str | None:
        """Move every automaton by one character; return the longest stop completed by it."""
        completed = None
        for i, (string, fallbacks) in enumerate(zip(self._stop, self._fallbacks, strict=True)):
            state = self._states[i]
            while state and string[state] != character:
                state = fallbacks[state]
            state += string[state] == character
            if state == len(string):
                completed = completed or string
                state = fallbacks[state]
            self._states[i] = state
        return completed


def _fallbacks(string: str) -> list[int]:
    """Return, for each length of prefix, the length of its longest proper prefix that ends it."""
    lengths = [0, 0]
    for character in string[1:]:
        length = lengths[-1]
        while length and string[length] != character:
            length = lengths[length]
        lengths.append(length + (string[length] == character))
    return lengths
