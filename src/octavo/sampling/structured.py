"""What shape an answer must have: one of vLLM's structured outputs, checked as far as text goes.

Must not know of models or of llguidance: `octavo.grammar` makes masks of it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from octavo.errors import InvalidRequestError, shown

PARAM: Final = "structured_outputs"
MAX_WHITESPACE: Final = 1000
MAX_BYTES: Final = 256 * 1024
"""Of a schema, a pattern, a grammar, or all choices together."""
_KINDS: Final = ("json", "regex", "choice", "grammar", "json_object")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputs:
    """The shape of an answer: exactly one of the five kinds, by vLLM's names.

    Values are normalised, so that equal ones compare equal, and serve as a key. Raises
    `InvalidRequestError`, whose ``param`` is ``structured_outputs``.

    Attributes:
        json: a JSON schema, as an object or as its text; kept as text, its keys in their order,
            for an answer has its properties in that order.
        regex: a pattern that the whole answer matches, in the syntax of Rust's regex crate.
        choice: the answer is one of these.
        grammar: a context-free grammar, Lark as llguidance has it, or llama.cpp's GBNF.
        json_object: the answer is any JSON object.
        whitespace: most white space characters in a row between the parts of JSON; 0 to 1000.
    """

    json: str | Mapping[str, Any] | bool | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    whitespace: int = 8

    def __new__(cls, *_: object, **values: object) -> Self:
        """Refuse unknown names."""
        for name in values.keys() - cls.__dataclass_fields__.keys():
            raise _refused(
                f"has {shown(name)}, which is not known; give one of {', '.join(_KINDS)}, and "
                "whitespace"
            )
        return object.__new__(cls)

    def __post_init__(self) -> None:
        """Normalise and check every field."""
        if self.json_object is False:
            self._set("json_object", None)
        given = [name for name in _KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            have = " and ".join(given) or "none"
            raise _refused(f"must have exactly one of {', '.join(_KINDS)}; it has {have}")
        if self.json is not None:
            self._set("json", _schema(self.json))
        if self.choice is not None:
            self._set("choice", _choices(self.choice))
        for name in ("regex", "grammar"):
            if getattr(self, name) is not None:
                _check_text(name, getattr(self, name))
        if self.json_object is not None and self.json_object is not True:
            raise _refused(f"has json_object={shown(self.json_object)}; it must be true or false")
        if (
            isinstance(self.whitespace, bool)
            or not isinstance(self.whitespace, int)
            or not 0 <= self.whitespace <= MAX_WHITESPACE
        ):
            raise _refused(
                f"has whitespace={shown(self.whitespace)}; it must be a whole number from 0 to "
                f"{MAX_WHITESPACE}"
            )
        size = sum(len(text.encode()) for text in self._texts())
        if size > MAX_BYTES:
            raise _refused(f"has {given[0]} of {size} bytes, and {MAX_BYTES} are the most")

    @property
    def kind(self) -> str:
        """Which of the five it is."""
        return next(name for name in _KINDS if getattr(self, name) is not None)

    def _texts(self) -> Sequence[str]:
        if self.choice is not None:
            return self.choice
        text = self.json or self.regex or self.grammar or ""
        assert isinstance(text, str), "normalised"
        return (text,)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # the only way in: the class is frozen


def read_structured_outputs(value: object) -> StructuredOutputs | None:
    """Return what a user gave, an object or a mapping of its fields; None if nothing."""
    if value is None or isinstance(value, StructuredOutputs):
        return value
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise _refused(f"is {shown(value)}; give an object with one of {', '.join(_KINDS)}")
    return StructuredOutputs(**value)


def _refused(what: str) -> InvalidRequestError:
    return InvalidRequestError(f"structured_outputs {what}", param=PARAM)


def _schema(value: object) -> str:
    """Return a schema as canonical text: no white space, the keys in their order."""
    if isinstance(value, str):
        if len(value) > 4 * MAX_BYTES:  # white space goes, so the real limit comes later
            raise _refused(f"has json of {len(value)} characters, and {MAX_BYTES} are the most")
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise _refused(f"has json that is no JSON: {error}") from None
        except (RecursionError, ValueError) as error:
            raise _refused(f"has json that cannot be read: {error}") from None
    if not isinstance(value, Mapping | bool):
        raise _refused(f"has json={shown(value)}; a schema is an object, or its text")
    try:
        text = json.dumps(
            value, separators=(",", ":"), allow_nan=False, ensure_ascii=False, default=_plain
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise _refused(f"has json that cannot be written as JSON: {error}") from None
    _check_text("json", text)
    return "{}" if value is True else text


def _plain(value: object) -> object:
    """Return a mapping as a dict, which is what `json` writes."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{shown(value)} has no JSON form")


def _choices(value: object) -> tuple[str, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence) or not value:
        raise _refused(f"has choice={shown(value)}; give a list of strings, one at least")
    for text in value:
        _check_text("choice", text)
    return tuple(dict.fromkeys(value))


def _check_text(name: str, text: object) -> None:
    if not isinstance(text, str):
        raise _refused(f"has {name}={shown(text)}; it must be a string")
    if not text:
        raise _refused(f"has an empty string as {name}; an answer of nothing needs no model")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _refused(
            f"has {name} with a lone surrogate at character {error.start}, which UTF-8 cannot "
            "express; remove it"
        ) from None
