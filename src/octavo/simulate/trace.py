"""What a trace is once it is loaded: prompts in blocks, bare keys, or lengths only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One prompt. Equal blocks mean equal whole prefixes, in the whole of a trace."""

    blocks: list[Hashable]
    """One id a block, head to tail. Where the trace gives the last, partial block an id, it counts
    as a block like the others."""
    num_tokens: int
    num_output_tokens: int
    arrival: float
    """Seconds since the beginning of the trace."""


@dataclass(frozen=True, slots=True)
class RequestLengths:
    """A request of which only the lengths are known."""

    num_tokens: int
    num_output_tokens: int
    arrival: float
    """Seconds since the beginning of the trace."""


@dataclass(frozen=True, slots=True)
class PromptTrace:
    """Requests in the order of their admission. May build them anew each time it is read."""

    name: str
    block_size: int
    requests: Collection[TraceRequest]
    mix: str = ""
    """In which order the requests come, where the file leaves that open."""


@dataclass(frozen=True, slots=True)
class KeyTrace:
    """References to keys that have nothing to do with each other: no prompt, no prefix."""

    name: str
    keys: list[int]


@dataclass(frozen=True, slots=True)
class LengthTrace:
    """Load without identity: nothing in it can be found in a cache."""

    name: str
    requests: list[RequestLengths]


Trace: TypeAlias = PromptTrace | KeyTrace | LengthTrace
