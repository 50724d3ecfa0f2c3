"""Where a schema or a pattern is at fault: llguidance names the fault, not always its place."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MOST_TRIES: Final = 200
"""Parts of a schema that are compiled by themselves to find the one at fault."""
_MOST_TOLD: Final = 150
_OF_NAMES: Final = ("properties", "patternProperties", "$defs", "definitions")
_OF_LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_OF_ONE: Final = ("items", "additionalProperties", "not")


def fault_of(schema: str, error: str, compile_text: Callable[[str], str | None]) -> str:
    """Return "at #/the/place: " of the smallest part of a schema that has the error by itself.

    ``compile_text`` returns a schema's error, None where it has none.
    """
    place = _place(json.loads(schema), error, compile_text)
    return f"at {place if len(place) <= _MOST_TOLD else place[:_MOST_TOLD] + '...'}: "


def _place(root: Any, error: str, compile_text: Callable[[str], str | None]) -> str:
    shared = {name: root[name] for name in ("$defs", "definitions") if name in root}
    place, part, tries = "#", root, 0
    while True:
        for name, child in _parts(part):
            tries += 1
            if tries > _MOST_TRIES:
                return place
            try:
                text = json.dumps({**({} if name.startswith("$defs/") else shared), **child})
            except (ValueError, RecursionError):
                return place
            if compile_text(text) == error:
                place, part = f"{place}/{name}", child
                break
        else:
            return place


def regex_fault(text: str) -> str:
    """Return a message of the regex crate's with the place as a number, others as they are.

    The crate shows the pattern, below it a caret, and then says what is wrong.
    """
    found = re.search(r"regex parse error:\n {4}(.*)\n {4}( *)\^+\nerror: (.*)", text)
    if found is None:
        return text
    pattern, before, what = found.groups()
    start = max(0, len(before) - 20)
    return f"at character {len(before)} of the pattern, {pattern[start : start + 40]!r}: {what}"


def _parts(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the schemas right inside a schema, with their places."""
    if not isinstance(schema, dict):
        return
    for keyword in (*_OF_NAMES, *_OF_LISTS):
        inner = schema.get(keyword)
        pairs: Any = ()
        if isinstance(inner, dict) and keyword in _OF_NAMES:
            pairs = inner.items()
        elif isinstance(inner, list) and keyword in _OF_LISTS:
            pairs = enumerate(inner)
        for name, child in pairs:
            if isinstance(child, dict):
                yield f"{keyword}/{name}", child
    for keyword in _OF_ONE:
        if isinstance(schema.get(keyword), dict):
            yield keyword, schema[keyword]
