"""Stream: one request's answer on its way from the engine's thread to who waits for it on the loop.

The engine's thread asks a stream what has not been told yet; the loop hands that out.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from octavo.engine.outputs import Delta

if TYPE_CHECKING:
    from octavo.engine.async_engine import AsyncEngine
    from octavo.engine.outputs import RequestOutput
    from octavo.engine.request import Request
    from octavo.engine.stats import RequestStats
    from octavo.errors import OctavoError


class Stream:
    """One request's answer as it comes: an asynchronous iterator over what each step brought."""

    def __init__(self, engine: AsyncEngine, stats: RequestStats, num_choices: int) -> None:
        self.stats = stats
        self.output: RequestOutput | None = None
        """What all requests have; there once anything came, and complete at the end."""
        self._engine = engine
        self._arrived: list[Delta] = []
        self._ended = False
        self._error: OctavoError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.told = [_Told() for _ in range(num_choices)]
        """How much of each choice has been told; the engine thread's."""
        self.last_arrival = [0.0] * num_choices
        """When tokens of each choice last came; the loop's."""

    def __aiter__(self) -> Stream:
        """Return itself."""
        return self

    async def __anext__(self) -> list[Delta]:
        """Return all that came since the last call; wait for something if that is nothing.

        Raises `OctavoError` if the request was refused by the engine, or a step failed.
        """
        while not self._arrived:
            if self._error is not None:
                raise self._error
            if self._ended:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        arrived, self._arrived = self._arrived, []
        return arrived

    @property
    def ended(self) -> bool:
        """Whether nothing more will come from the engine."""
        return self._ended

    def abort(self) -> None:
        """End the request if it has not ended; its blocks are free within a step."""
        self._engine.abort(self)

    # -- for the engine only ----------------------------------------------------------------------

    def take(self, deltas: list[Delta], *, ended: bool, error: OctavoError | None = None) -> None:
        """Take what came, on the loop's thread, and wake who waits for it."""
        self._arrived += deltas
        self._ended = self._ended or ended
        self._error = self._error or error
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def untold(self) -> list[Delta]:
        """Return what has come to a request's choices since the last time."""
        assert self.output is not None
        deltas = []
        for choice, told in zip(self.output.outputs, self.told, strict=True):
            first, start = told.num_tokens, told.num_characters
            if told.ended or (len(choice.token_ids) == first and not choice.finished):
                continue
            told.num_tokens, told.num_characters = len(choice.token_ids), len(choice.text)
            told.ended = choice.finished
            deltas.append(
                Delta(
                    choice.index,
                    choice.text[start:],
                    choice.token_ids[first:],
                    None if choice.logprobs is None else choice.logprobs[first:],
                    choice.finish_reason,
                    choice.stop_reason,
                )
            )
        return deltas


class _Told:
    """How much of one choice has been told."""

    __slots__ = ("ended", "num_characters", "num_preemptions", "num_recomputed", "num_tokens")

    def __init__(self) -> None:
        self.num_characters = 0
        self.num_tokens = 0
        self.num_preemptions = 0
        self.num_recomputed = 0
        self.ended = False

    def take_counts(self, request: Request) -> None:
        self.num_preemptions = request.num_preemptions
        self.num_recomputed = request.num_recomputed_tokens
