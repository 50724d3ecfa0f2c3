"""A small OpenAI server on a thread of its own: it says what it is told, and keeps what it got."""

import asyncio
import json
import threading
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class Script:
    """How the server answers. The default is a token a chunk, usage at the end."""

    delay: float = 0.0
    """Seconds before each chunk."""
    status: int = 200
    error_from: int | None = None
    """From which request on the answer is an error event in the middle of the stream."""
    fail_every: int | None = None
    """Each so many-th request gets HTTP 500."""
    not_ready: int = 0
    """So many requests get HTTP 503 first."""
    usage: bool = True
    cached_tokens: int | None = 3
    cut: bool = False
    """End without finish_reason and [DONE]."""
    tokens_per_chunk: int = 1
    newline: str = "\n"


@dataclass
class FakeServer:
    script: Script
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    open_now: int = 0
    open_most: int = 0
    first_token: threading.Event = field(default_factory=threading.Event)

    async def models(self, request: web.Request) -> web.Response:
        self.paths.append(request.path)
        return web.json_response({"object": "list", "data": [{"id": "org/fake"}]})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.paths.append(request.path)
        self.bodies.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        number, script = len(self.bodies), self.script
        if script.status in (301, 307):
            raise web.HTTPTemporaryRedirect("/elsewhere")
        if number <= script.not_ready:
            return _refuse(503, "not ready")
        if script.status != 200 or (script.fail_every and number % script.fail_every == 0):
            return _refuse(script.status if script.status != 200 else 500, "no, by the script")
        self.open_now += 1
        self.open_most = max(self.open_most, self.open_now)
        try:
            return await self._stream(request, body, number)
        finally:
            self.open_now -= 1

    async def _stream(
        self, request: web.Request, body: dict[str, Any], number: int
    ) -> web.StreamResponse:
        script, chat = self.script, "messages" in body
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)

        async def event(value: Any) -> None:
            text = value if isinstance(value, str) else json.dumps(value)
            await response.write(f"data: {text}{script.newline * 2}".encode())

        def choice(text: str, finish: str | None = None) -> dict[str, Any]:
            said = {"delta": {"content": text}} if chat else {"text": text}
            return {"choices": [{"index": 0, **said, "finish_reason": finish}], "usage": None}

        if chat:
            await event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        count = body["max_completion_tokens" if chat else "max_tokens"]
        for i in range(0, count, script.tokens_per_chunk):
            await asyncio.sleep(script.delay)
            if i and script.error_from is not None and number >= script.error_from:
                await event({"error": {"message": "broke in the middle", "code": None}})
                await event("[DONE]")
                return response
            await event(choice(f" t{i}"))
            self.first_token.set()
        if not script.cut:
            await event(choice("", "length"))
            if script.usage and body.get("stream_options", {}).get("include_usage"):
                await event({"choices": [], "usage": self._usage(body, count)})
            await event("[DONE]")
        return response

    def _usage(self, body: dict[str, Any], count: int) -> dict[str, Any]:
        prompt = body.get("prompt", "x")
        usage = {"prompt_tokens": len(prompt) if isinstance(prompt, list) else 11}
        usage["completion_tokens"] = count
        if self.script.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.script.cached_tokens}
        return usage


def _refuse(status: int, message: str) -> web.Response:
    body = {"error": {"message": message, "type": "t", "param": None, "code": None}}
    return web.json_response(body, status=status)


class Serving:
    """Runs a `FakeServer` while it is entered."""

    def __init__(self, script: Script) -> None:
        self.server = FakeServer(script)
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> FakeServer:
        self._thread.start()
        assert self._started.wait(10)
        return self.server

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        app = web.Application()
        app.router.add_get("/v1/models", self.server.models)
        app.router.add_post("/{path:.*}", self.server.answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.server.url = "http://{}:{}".format(*runner.addresses[0])
        self._started.set()
        await self._stop.wait()
        await runner.cleanup()
