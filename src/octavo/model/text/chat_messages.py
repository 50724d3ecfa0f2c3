"""Checks the messages of a chat request, and brings every content to a string or None.

What passes is what JSON can express, with text that UTF-8 can express. This module must not know
of templates or tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from octavo.errors import InvalidRequestError
from octavo.model.text.tokenizer import check_utf8

_MAX_DEPTH: Final = 64  # of lists and mappings in a message or a tool's schema


def checked_messages(messages: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """The messages with every content a str or None; raises InvalidRequestError."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise InvalidRequestError(
            f"messages must be a list, not {type(messages).__name__}", param="messages"
        )
    if not messages:
        raise InvalidRequestError("messages is empty; give at least one", param="messages")
    return [_checked_message(message, f"messages[{n}]") for n, message in enumerate(messages)]


def _checked_message(message: object, where: str) -> dict[str, object]:
    if not isinstance(message, Mapping):
        raise InvalidRequestError(
            f"{where} must be an object, not {type(message).__name__}", param=where
        )
    check_value(message, where)
    if not isinstance(message.get("role"), str):
        raise InvalidRequestError(f"{where}.role must be a string", param=f"{where}.role")
    # Null is the template's to refuse; left out altogether it is as a rule forgotten, and some
    # templates would write "None". A call of a tool says what it says without.
    if "content" not in message and not message.get("tool_calls"):
        raise InvalidRequestError(f"{where}.content is missing", param=f"{where}.content")
    content = _content_text(message.get("content"), f"{where}.content")
    return {**message, "content": content}


def _content_text(content: object, where: str) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise InvalidRequestError(
            f"{where} must be a string, a list of text parts or null, not {type(content).__name__}",
            param=where,
        )
    texts: list[str] = []
    for n, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if not isinstance(part, Mapping) or kind != "text":
            raise InvalidRequestError(
                f"{where}[{n}] is a part of type {kind!r}; only parts of type 'text' are supported",
                param=where,
            )
        text = part.get("text")
        if not isinstance(text, str):
            raise InvalidRequestError(f"{where}[{n}].text must be a string", param=where)
        texts.append(text)
    return "\n".join(texts)


def check_value(value: object, where: str, depth: int = 0) -> None:
    """Refuse what JSON cannot express, text that UTF-8 cannot, and absurd nesting."""
    if depth > _MAX_DEPTH:
        raise InvalidRequestError(f"{where} is nested deeper than {_MAX_DEPTH}", param=where)
    if isinstance(value, str):
        check_utf8(value, param=where)
    elif isinstance(value, Mapping):
        for key, element in value.items():
            if not isinstance(key, str):
                raise InvalidRequestError(f"{where} has the key {key!r}; keys must be strings")
            check_utf8(key, param=where)
            check_value(element, f"{where}.{key}", depth + 1)
    elif isinstance(value, list | tuple):
        for n, element in enumerate(value):
            check_value(element, f"{where}[{n}]", depth + 1)
    elif value is not None and not isinstance(value, bool | int | float):
        raise InvalidRequestError(
            f"{where} is of type {type(value).__name__}, which JSON cannot express", param=where
        )
