"""Text that remembers which of its characters a user wrote, through a whole chat template.

A chat template mixes its own literals with the user's words, and afterwards nobody can tell
``<|im_end|>`` that the template wrote from ``<|im_end|>`` that a user typed. So every character
of the user's that could be part of a control token is replaced, before rendering, by a *mark*: a
lone surrogate code point of its own. No valid text holds one, so marks cannot be confused with
any input, and no string operation turns a mark back into its character: whatever a template
concatenates, slices, trims or joins, the marks stay marks. That is the safety, and it rests on
the characters alone. (A change of case could make such a character of another one; so the
variants in case are to be marked too, see ``with_case_variants``.)

``MarkedText`` adds faithfulness: its comparisons, searches and splits see the unmarked text, so
that a template which looks at a message (``'</think>' in content``, ``content.strip()``) does as
it would with the plain one.

This module must not know of tokens, nor of templates.
"""

# ruff: noqa: D102  (the methods of a str mean what str says)

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, SupportsIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_FIRST_MARK: Final = 0xD800
_NUM_MARKS: Final = 0x7FF
UNUSED_MARK: Final = "\udfff"  # marks no character: free for callers, as no valid text holds it
_ANY_MARK: Final = re.compile("[\ud800-\udfff]")

# All characters outside ASCII of which some change of case yields an ASCII letter: ß gives SS, the
# Kelvin sign gives k. A test finds them anew.
ASCII_IN_OTHER_CASE: Final = frozenset(
    "\u00df\u0130\u0131\u0149\u017f\u01f0\u1e96\u1e97\u1e98\u1e99\u1e9a\u1e9e\u212a"
    "\ufb00\ufb01\ufb02\ufb03\ufb04\ufb05\ufb06"
)


def with_case_variants(characters: Iterable[str]) -> frozenset[str]:
    """The characters and those that a change of case could turn into one of them."""
    given = set(characters)
    variants = {v for c in given for v in (c.lower(), c.upper(), c.title(), c.casefold())}
    return frozenset(given | {v for v in variants if len(v) == 1} | ASCII_IN_OTHER_CASE)


class Marks:
    """A one-to-one map between ``characters`` and as many lone surrogates.

    Raises ValueError where there are more characters than marks (2047).
    """

    def __init__(self, characters: Iterable[str]) -> None:
        ordered = sorted(set(characters))
        if len(ordered) > _NUM_MARKS:
            raise ValueError(f"{len(ordered)} characters to mark; at most {_NUM_MARKS} can be")
        self._pairs = [(c, chr(_FIRST_MARK + n)) for n, c in enumerate(ordered)]

    # One pass for each character looks slow, but is several times as fast as str.translate. No mark
    # is itself a character to be marked, so the passes do not disturb one another.

    def mark(self, text: str) -> MarkedText:
        """``text`` as a user's: each of the characters replaced by its mark."""
        for character, mark in self._pairs:
            text = str.replace(text, character, mark)
        return MarkedText(text, self)

    def unmark(self, text: str) -> str:
        """The text that a person would read."""
        text = str.__str__(text)
        for character, mark in self._pairs:
            text = text.replace(mark, character)
        return text

    def join(self, parts: Iterable[str]) -> str:
        """The parts as one string, which is a MarkedText where any part has a mark."""
        text = "".join(parts)
        return MarkedText(text, self) if _ANY_MARK.search(text) else text


class MarkedText(str):
    """A string with marks in it, that answers questions as its unmarked text would.

    Its length and positions are those of the unmarked text, one character for one. Results that
    are text are cut from the marked string and stay MarkedText where ``str`` allows it; an
    operation that is not listed here works on the marks themselves, which is safe, but may
    differ from what the unmarked text would give.
    """

    __slots__ = ("_marks", "_unmarked")

    _marks: Marks
    _unmarked: str | None

    def __new__(cls, text: str, marks: Marks) -> MarkedText:
        self = super().__new__(cls, text)
        self._marks = marks
        self._unmarked = None
        return self

    @property
    def _plain(self) -> str:
        """The unmarked text; its name keeps it out of reach of a sandboxed template."""
        if self._unmarked is None:
            self._unmarked = self._marks.unmark(self)
        return self._unmarked

    def __str__(self) -> str:
        return self

    def __getitem__(self, key: SupportsIndex | slice) -> MarkedText:
        return MarkedText(super().__getitem__(key), self._marks)

    def __iter__(self) -> Iterator[str]:
        return (MarkedText(character, self._marks) for character in super().__iter__())

    def __add__(self, other: str) -> MarkedText:
        return MarkedText(super().__add__(other), self._marks)

    def __radd__(self, other: str) -> MarkedText:
        return MarkedText(str.__add__(other, self), self._marks)

    def strip(self, chars: str | None = None, /) -> MarkedText:
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None, /) -> MarkedText:
        return self[len(self) - len(self._plain.lstrip(_plain(chars))) :]

    def rstrip(self, chars: str | None = None, /) -> MarkedText:
        return self[: len(self._plain.rstrip(_plain(chars)))]

    def removeprefix(self, prefix: str, /) -> MarkedText:
        return self[len(prefix) :] if self._plain.startswith(_plain(prefix)) else self

    def removesuffix(self, suffix: str, /) -> MarkedText:
        return self[: len(self._plain.removesuffix(_plain(suffix)))]

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._cut(self._plain.split(_plain(sep), maxsplit), sep or "")

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._cut(self._plain.rsplit(_plain(sep), maxsplit), sep or "")

    def splitlines(self, keepends: bool = False) -> list[str]:
        lines = self._cut(self._plain.splitlines(keepends=True), "")
        if keepends:
            return lines
        bare = self._plain.splitlines()
        return [line[: len(end)] for line, end in zip(lines, bare, strict=True)]

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        before, found, after = self._cut(self._plain.partition(_plain(sep)), "")
        return before, found, after

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        before, found, after = self._cut(self._plain.rpartition(_plain(sep)), "")
        return before, found, after

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> MarkedText:
        if not old:
            return MarkedText(super().replace(old, new, count), self._marks)
        return MarkedText(str.join(new, self.split(old, count)), self._marks)

    def upper(self) -> MarkedText:
        return self._recase(self._plain.upper())

    def lower(self) -> MarkedText:
        return self._recase(self._plain.lower())

    def capitalize(self) -> MarkedText:
        return self._recase(self._plain.capitalize())

    def title(self) -> MarkedText:
        return self._recase(self._plain.title())

    def _cut(self, parts: Iterable[str], separator: str) -> list[str]:
        """Cut where the unmarked text is cut into ``parts``, which lie in it in this order."""
        pieces: list[str] = []
        position = 0
        for part in parts:
            if not separator:  # between two parts lies white space, or nothing
                position = self._plain.index(part, position)
            pieces.append(self[position : position + len(part)])
            position += len(part) + len(separator)
        return pieces

    def _recase(self, plain: str) -> MarkedText:
        """``plain`` with marks where this text has them; everywhere if lengths differ ('ß')."""
        marked = self._marks.mark(plain)
        if len(plain) != len(self):
            return marked
        pairs = zip(str.__iter__(self), plain, str.__iter__(marked), strict=True)
        mixed = (mark if _ANY_MARK.match(old) else own for old, own, mark in pairs)
        return MarkedText("".join(mixed), self._marks)


def _plain(value: Any) -> Any:
    """What a comparison should see of its argument."""
    if isinstance(value, MarkedText):
        return value._plain
    if isinstance(value, tuple):  # startswith() and endswith() take several at once
        return tuple(map(_plain, value))
    return value


def _asked_of_plain_text(name: str) -> Callable[..., Any]:
    question = getattr(str, name)

    def ask(self: MarkedText, *arguments: Any) -> Any:
        return question(self._plain, *map(_plain, arguments))

    ask.__name__ = name
    return ask


# Questions: what they answer (a truth value, a number) holds no text, so it needs no mark.
_QUESTIONS: Final = (
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__contains__"),
    *("startswith", "endswith", "find", "rfind", "index", "rindex", "count"),
    *("isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower"),
    *("isnumeric", "isprintable", "isspace", "istitle", "isupper"),
)
for _name in _QUESTIONS:
    setattr(MarkedText, _name, _asked_of_plain_text(_name))
