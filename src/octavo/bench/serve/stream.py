"""A streamed answer as it arrives: server-sent events, their times, tokens and usage.

It runs for every chunk, on the cores of the server that it measures. Typed decoding by msgspec is
quicker than looking for keys in the bytes, and right for any order and spacing of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec


class _Delta(msgspec.Struct, gc=False):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None


class _Choice(msgspec.Struct, gc=False):
    text: Any = None
    delta: _Delta | None = None
    finish_reason: Any = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Event(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    message: Any = None
    """Of an error that some servers send without an object around it."""


_decode = msgspec.json.Decoder(_Event).decode


@dataclass(slots=True)
class AnswerStream:
    """What has come of one answer. Times are those that the caller gives, of a monotonic clock."""

    keep_text: bool = False
    token_times: list[float] = field(default_factory=list)
    """When each event came that has text (or a tool call); those of one read came together."""
    last_time: float | None = None
    """When the last event came that has a choice."""
    is_ended: bool = False
    """Whether the server said that the answer is whole."""
    error: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    texts: list[str] = field(default_factory=list)
    _rest: bytes = b""

    def feed(self, data: bytes, now: float) -> None:
        """Take bytes of the body, however they are cut; ``now`` is when they came."""
        if self._rest:
            data = self._rest + data
        if b"\r" in data:  # JSON has none inside; one that is cut from its \n waits in the rest
            data = data.replace(b"\r\n", b"\n")
        *events, self._rest = data.split(b"\n\n")
        for event in events:
            self._take(event, now)

    def end(self) -> None:
        """Say that the body is over; what is missing then is an error."""
        if self._rest.strip() and self.last_time is not None:
            self._take(self._rest.strip(), self.last_time)
        if not self.error and not self.is_ended:
            self.error = (
                "the answer is cut short: neither a finish_reason nor [DONE] came"
                if self.last_time is not None
                else "the server sent no event: it does not stream"
            )

    def _take(self, event: bytes, now: float) -> None:
        """Take one event; what is no data (a comment, a ping) says nothing."""
        if not event.startswith(b"data:"):
            lines = [line for line in event.split(b"\n") if line.startswith(b"data:")]
            if not lines:
                return
            event = lines[0]
        payload = event[5:]
        try:
            found = _decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if payload.strip() == b"[DONE]":
                self.is_ended = True
            elif not self.error:
                self.error = f"an event cannot be read: {error}: {payload[:200]!r}"
            return
        if found.choices:
            self._take_choice(found.choices[0], now)
        if found.usage is not None:
            self._take_usage(found.usage)
        if found.error is not None or (found.choices is None and found.message is not None):
            self.error = error_text(found.error if found.error is not None else found.message)

    def _take_choice(self, choice: _Choice, now: float) -> None:
        self.last_time = now
        delta = choice.delta
        if delta is None:
            text = choice.text
        else:
            text = delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls
        if text:
            self.token_times.append(now)
            if self.keep_text and isinstance(text, str):
                self.texts.append(text)
        if choice.finish_reason is not None:
            self.is_ended = True

    def _take_usage(self, usage: _Usage) -> None:
        self.prompt_tokens = usage.prompt_tokens
        self.completion_tokens = usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            self.cached_tokens = usage.prompt_tokens_details.cached_tokens


def error_text(error: Any) -> str:
    """Return the message of an error body, in whichever of the common shapes."""
    if isinstance(error, dict):
        inner = error.get("error", error)
        inner = inner.get("message", inner) if isinstance(inner, dict) else inner
        return str(inner) or repr(error)
    return str(error) or "an error without a message"
