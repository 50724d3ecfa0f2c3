"""Agent sessions as runs of block ids, and the mix in which they reach one cache.

One line is one session:

    {"block_size": 64, "requests": [{"t": 0.0, "in": 71175, "out": 169, "h": [[1, 1112]]},
                                    {"t": 19.0, "in": 72762, "out": 88, "h": [[1, 1136]]}, ...]}

``h`` has runs of ids, ``[first, count]``; an id stands for a full block and its whole prefix, and
is local to the session. ``t`` is in seconds from the session's start. A request that holds
``requests`` of its own is a sub-agent: their times count from its own.

A session says nothing of when it ran beside others. The mix: the sessions are shuffled by a seed;
so many users start one each at the same moment, and whoever comes to the end of a session starts
the next one. Requests are in order of time; of equal times, in that of the shuffled sessions.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from octavo.simulate.files import MAX_RUN, Fields, read_lines
from octavo.simulate.trace import PromptTrace, TraceRequest

if TYPE_CHECKING:
    from collections.abc import Hashable
    from pathlib import Path

    from octavo.simulate.files import Line


@dataclass(frozen=True, slots=True)
class _SessionRequest:
    """A prompt whose blocks are still runs; ids are unique in the trace."""

    runs: list[tuple[int, int]]
    num_tokens: int
    num_output_tokens: int
    arrival: float

    def expand(self) -> TraceRequest:
        blocks: list[Hashable] = []
        for first, count in self.runs:
            blocks.extend(range(first, first + count))
        return TraceRequest(blocks, self.num_tokens, self.num_output_tokens, self.arrival)


class _Mix(Collection[TraceRequest]):
    """The requests of a mix, each expanded when its turn comes: a trace has 94 million blocks."""

    def __init__(self, requests: list[_SessionRequest]) -> None:
        self._requests = requests

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[TraceRequest]:
        return (request.expand() for request in self._requests)

    def __contains__(self, request: object) -> bool:
        return any(request == own for own in self)


def load_sessions(
    path: Path, name: str, *, limit: int | None, seed: int, users: int
) -> PromptTrace:
    """Load a file of sessions, mixed; ``limit`` is of requests of the mix."""
    block_size = 0
    sessions: list[list[_SessionRequest]] = []
    offset = 0
    for line in read_lines(path):
        fields = line.json()
        size = fields.count("block_size")
        if size != block_size and sessions:
            raise line.error(f"block_size is {size} here and {block_size} before")
        block_size = size
        session = _Session(line, offset)
        session.add(fields.get("requests", list), 0.0)
        offset = session.end
        if session.requests:
            sessions.append(session.requests)
    random.Random(seed).shuffle(sessions)
    mix = f"{users} sessions at a time, seed {seed}"
    return PromptTrace(name, block_size, _Mix(_mix(sessions, users)[:limit]), mix)


class _Session:
    """The requests of one line. Its ids become unique by the sum of what came before."""

    def __init__(self, line: Line, offset: int) -> None:
        self.requests: list[_SessionRequest] = []
        self.end = offset
        self._line = line
        self._offset = offset
        self._parents: dict[int, int | None] = {}

    def add(self, requests: list[Any], start: float) -> None:
        """Add ``requests``, whose times count from ``start``, and their sub-agents'."""
        for value in requests:
            if not isinstance(value, dict):
                raise self._line.error("a request is not a JSON object")
            fields = Fields(self._line, value)
            time = start + fields.get("t", float)
            if "requests" in value:
                self.add(fields.get("requests", list), time)
                continue
            self.requests.append(
                _SessionRequest(
                    self._runs(fields.get("h", list)), fields.count("in"), fields.count("out"), time
                )
            )
        self.requests.sort(key=lambda request: request.arrival)

    def _runs(self, pairs: list[Any]) -> list[tuple[int, int]]:
        runs = []
        parent = None
        for pair in pairs:
            match pair:
                case [int(first), int(count)] if first >= 0 and 0 < count <= MAX_RUN:
                    pass
                case _:
                    raise self._line.error(
                        f"{pair!r} is not [first id, count], the count from 1 to {MAX_RUN}"
                    )
            if self._parents.setdefault(first, parent) != parent:
                raise self._line.error(
                    f"id {first} follows {parent} here and {self._parents[first]} before: "
                    "it does not stand for a whole prefix"
                )
            parent = first + count - 1
            runs.append((self._offset + first, count))
            self.end = max(self.end, self._offset + parent + 1)
        return runs


def _mix(sessions: list[list[_SessionRequest]], users: int) -> list[_SessionRequest]:
    """Return the requests of all ``sessions`` in order of time, one session a user at a time."""
    free_at = [0.0] * users
    timed: list[_SessionRequest] = []
    for session in sessions:
        start = heapq.heappop(free_at)
        timed += [replace(request, arrival=start + request.arrival) for request in session]
        heapq.heappush(free_at, timed[-1].arrival)
    timed.sort(key=lambda request: request.arrival)
    return timed
