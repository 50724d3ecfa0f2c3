"""One request on its way: its streams, its pieces, and the whole answer or the events made of them.

A client that goes away ends its requests, whether it asked for a stream or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from octavo.engine.outputs import RequestOutput
from octavo.errors import EngineFaultError, InvalidRequestError, OctavoError
from octavo.openai.chunks import ChunkMaker
from octavo.openai.response import Fold, error_body, usage, usage_of, whole_body
from octavo.server.bodies import encoded, error_response, fault_of, json_response
from octavo.server.logs import timings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from starlette.types import Receive, Scope, Send

    from octavo.engine.outputs import Delta
    from octavo.engine.stream import Stream
    from octavo.openai.chunks import Piece
    from octavo.openai.request import ParsedBody
    from octavo.server.state import ServerState

CLIENT_GONE = 499
"""Nginx's status for it; nobody reads it but the log."""


class Answer:
    """What a body asks for, in the engine: a stream a prompt."""

    def __init__(
        self,
        state: ServerState,
        asked: ParsedBody,
        *,
        chat: bool,
        response_id: str,
        arrived: float,
        trace_headers: Mapping[str, str] | None = None,
    ) -> None:
        """Hand all prompts to the engine. Raises `OctavoError`, and then none is there."""
        if len(asked.prompts) > state.engine.most_open:
            raise InvalidRequestError(
                f"{len(asked.prompts)} prompts in one request, and {state.engine.most_open} "
                "requests may be open here, a prompt each; send fewer at once",
                param="prompt",
            )
        self.asked = asked
        self.chat = chat
        self.response_id = response_id
        self.created = int(time.time())
        self.model = state.model
        tokenizer = state.engine.llm.tokenizer
        self.streams: list[Stream] = []
        self._makers: list[ChunkMaker] = []
        for i, prompt in enumerate(asked.prompts):
            name = response_id if len(asked.prompts) == 1 else f"{response_id}-{i}"
            try:
                self.streams.append(
                    state.engine.submit(
                        prompt,
                        asked.params,
                        request_id=name,
                        priority=asked.priority,
                        arrived=arrived,
                        trace_headers=trace_headers,
                    )
                )
            except OctavoError:
                self.abort()
                raise
            self._makers.append(ChunkMaker(asked, tokenizer, chat=chat, prompt=i))

    def abort(self) -> None:
        """End whatever has not ended."""
        for stream in self.streams:
            stream.abort()

    @property
    def outputs(self) -> list[RequestOutput]:
        """What the prompts that have begun have so far."""
        return [stream.output for stream in self.streams if stream.output is not None]

    @property
    def failure(self) -> OctavoError | None:
        """What went wrong in the engine, if anything did."""
        for output in self.outputs:
            if output.error is not None:
                return EngineFaultError(output.error)
        return None

    async def pieces(self) -> AsyncIterator[list[Piece]]:
        """Yield the pieces of all prompts as they come. Raises `OctavoError` if a step failed."""
        async for i, deltas in _merged(self.streams):
            output = self.streams[i].output
            assert output is not None
            # One by one where each is told with what has been sent by then.
            for some in [[delta] for delta in deltas] if self.asked.continuous_usage else [deltas]:
                pieces = self._makers[i].pieces(output, some)
                if pieces:
                    yield pieces

    def last_pieces(self) -> list[Piece]:
        """Return an end for each choice that has had none, after a fault."""
        nothing = RequestOutput("", None, [], 0, [])
        return [
            piece
            for stream, maker in zip(self.streams, self._makers, strict=True)
            for piece in maker.last_pieces(stream.output or nothing)
        ]

    async def whole(self) -> Response:
        """Wait for all of it and return the body."""
        fold = Fold(self.asked.params.n * len(self.streams), chat=self.chat)
        async for pieces in self.pieces():
            fold.add(pieces)
        if self.failure is not None:
            raise self.failure
        body = whole_body(
            self.outputs,
            fold.choices,
            self.asked,
            chat=self.chat,
            model=self.model,
            response_id=self.response_id,
            created=self.created,
        )
        if self.asked.timings:
            body["timings"] = self._timings()
        return json_response(body)

    def _timings(self) -> object:
        """Return what each prompt's request cost and waited for; one alone by itself."""
        all_of_them = [timings(stream.stats) for stream in self.streams]
        return all_of_them[0] if len(all_of_them) == 1 else all_of_them

    def _usage_so_far(self) -> dict[str, Any]:
        """Return what has been sent once all pieces made so far have."""
        num_completion = sum(maker.num_tokens for maker in self._makers)
        num_prompt = sum(stream.stats.num_prompt_tokens for stream in self.streams)
        num_cached = sum(output.num_cached_tokens for output in self.outputs)
        return usage_of(num_prompt, num_completion, num_cached)

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the events of the stream, to its ``[DONE]``; an error is an event before that."""
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        head = {
            "id": self.response_id, "object": kind, "created": self.created, "model": self.model
        }  # fmt: skip
        start = b"data: " + encoded(head)[:-1] + b',"choices":'

        def event(pieces: list[Piece], **more: object) -> bytes:
            tail = b"".join(b',"' + name.encode() + b'":' + encoded(more[name]) for name in more)
            return start + encoded(pieces) + tail + b"}\n\n"

        failure: OctavoError | None = None
        more: dict[str, object]
        tells_prompt = self.chat and self.asked.return_token_ids
        try:
            async for pieces in self.pieces():
                data = b""
                for piece in pieces:
                    more = {}
                    if self.asked.continuous_usage:
                        more["usage"] = self._usage_so_far()
                    if tells_prompt:  # beside the choices, as in a whole answer; once
                        more["prompt_token_ids"] = self.outputs[0].prompt_token_ids
                        tells_prompt = False
                    data += event([piece], **more)
                yield data
            failure = self.failure
        except Exception as error:  # whatever it was, the stream has its proper end
            failure = error if isinstance(error, OctavoError) else fault_of(error)
            last = self.last_pieces()
            if last:
                yield b"".join(event([piece]) for piece in last)
        if failure is not None:
            yield b"data: " + encoded(error_body(failure)) + b"\n\n"
        more = {"timings": self._timings()} if self.asked.timings else {}
        if self.asked.include_usage:
            more["usage"] = usage(self.outputs)
        if more:
            yield event([], **more)
        yield b"data: [DONE]\n\n"


class AnswerResponse(Response):
    """Sends an answer, whole or as events, and watches whether the client is still there."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve it."""
        work = asyncio.ensure_future(self._send(scope, receive, send))
        gone = asyncio.ensure_future(_until_gone(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            self._answer.abort()
            for task in (work, gone):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    await task

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._answer.asked.stream:
            await self._send_events(send)
            return
        try:
            response = await self._answer.whole()
        except OctavoError as error:
            response = error_response(error)
        await response(scope, receive, send)

    async def _send_events(self, send: Send) -> None:
        headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",  # a proxy must not hold them back
        }
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        async for data in self._answer.events():
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _merged(streams: list[Stream]) -> AsyncIterator[tuple[int, list[Delta]]]:
    """Yield what comes from any of several streams, with its number."""
    if len(streams) == 1:
        async for deltas in streams[0]:
            yield 0, deltas
        return
    queue: asyncio.Queue[tuple[int, list[Delta]] | BaseException | None] = asyncio.Queue()

    async def follow(i: int) -> None:
        try:
            async for deltas in streams[i]:
                queue.put_nowait((i, deltas))
            queue.put_nowait(None)
        except OctavoError as error:
            queue.put_nowait(error)

    tasks = [asyncio.ensure_future(follow(i)) for i in range(len(streams))]
    try:
        left = len(streams)
        while left:
            item = await queue.get()
            if item is None:
                left -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
