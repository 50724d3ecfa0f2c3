"""The HTTP client: one request, one streamed answer, and what it took. Needs the extra ``serve``.

Speaks to the given URL only: no proxy of the environment, no redirect is followed.
"""

from __future__ import annotations

import json
import time
import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from octavo.errors import ConfigError, in_one_line

try:
    import aiohttp

    from octavo.bench.serve.stream import AnswerStream, error_text
except ImportError:
    raise ConfigError(
        "a bench of a server needs aiohttp and msgspec: pip install 'octavo[serve]'"
    ) from None

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from octavo.bench.serve.datasets import BenchRequest
    from octavo.bench.serve.settings import Target

_LONGEST = 6 * 60 * 60  # seconds of one answer, as vLLM's
_HEADERS_BYTES = 1 << 16
_ERROR_BYTES = 1 << 16


@dataclass(slots=True)
class Answer:
    """What became of one request. Times are of `time.perf_counter`."""

    arrival: float
    """When it was ready to be sent; behind ``max_concurrency`` it may wait."""
    start: float
    """When it was sent."""
    prompt_len: int
    output_len: int = 0
    first: float = 0.0
    """When its first token came."""
    end: float = 0.0
    """When its last event came."""
    token_times: tuple[float, ...] = ()
    cached_tokens: int | None = None
    text: str = ""
    error: str = ""
    """Empty where it succeeded."""

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.first - self.start

    @property
    def latency(self) -> float:
        """Seconds to the last event."""
        return self.end - self.start

    @property
    def itls(self) -> list[float]:
        """Seconds between chunks."""
        return [after - before for before, after in pairwise(self.token_times)]

    @property
    def tpot(self) -> float | None:
        """Seconds a token after the first; None where there is none."""
        return (self.end - self.first) / (self.output_len - 1) if self.output_len > 1 else None


class Client:
    """Sends requests to one server. Made by `open_client`."""

    def __init__(self, session: aiohttp.ClientSession, target: Target, *, keep_text: bool) -> None:
        self._session = session
        self._target = target
        self._keep_text = keep_text
        self._headers = target.headers()
        self._prefix = target.request_id_prefix
        if self._prefix is None:
            self._prefix = f"bench-{uuid.uuid4().hex[:8]}-"
        self._num_sent = 0

    async def first_model(self) -> str:
        """Return the first model that the server names; raises `ConnectionError`."""
        url = self._target.models_url
        try:
            async with self._session.get(
                url, headers=self._headers, allow_redirects=False
            ) as response:
                body = await response.read()
                if response.status != 200:
                    raise ConnectionError(f"{url} answers {_refusal(response.status, body)}")
                name = json.loads(body)["data"][0]["id"]
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ConnectionError(f"{url} does not answer: {in_one_line(error)}") from None
        except (ValueError, LookupError, TypeError):
            raise ConnectionError(f"{url} names no model; name it with --model") from None
        return str(name)

    async def send(self, body: bytes, request: BenchRequest, arrival: float) -> Answer:
        """Send a body and read the answer to its end; never raises but when it is cancelled."""
        headers = {**self._headers, "X-Request-Id": f"{self._prefix}{self._num_sent}"}
        self._num_sent += 1
        stream = AnswerStream(self._keep_text)
        clock = time.perf_counter
        start = clock()
        answer = Answer(arrival, start, request.prompt_len)
        try:
            async with self._session.post(
                self._target.url, data=body, headers=headers, allow_redirects=False
            ) as response:
                if response.status != 200:
                    answer.error = _refusal(
                        response.status, await response.content.read(_ERROR_BYTES)
                    )
                    return answer
                async for data in response.content.iter_any():
                    stream.feed(data, clock())
            stream.end()
        except (aiohttp.ClientError, OSError, ValueError) as error:
            answer.error = in_one_line(error)
            return answer
        answer.error = stream.error
        _fill(answer, stream)
        return answer


def _fill(answer: Answer, stream: AnswerStream) -> None:
    """Put what the stream said into the answer."""
    answer.token_times = tuple(stream.token_times)
    answer.end = answer.start if stream.last_time is None else stream.last_time
    # An answer of which no text came (a token without any) began when it ended.
    answer.first = stream.token_times[0] if stream.token_times else answer.end
    answer.output_len = (
        len(stream.token_times) if stream.completion_tokens is None else stream.completion_tokens
    )
    if stream.prompt_tokens is not None:
        answer.prompt_len = stream.prompt_tokens
    answer.cached_tokens = stream.cached_tokens
    answer.text = "".join(stream.texts)


def _refusal(status: int, body: bytes) -> str:
    """Return a status other than 200 with the message of its body."""
    try:
        said = error_text(json.loads(body))
    except ValueError:
        said = body.decode(errors="replace")
    return f"HTTP {status}: {' '.join(said.split())[:500]}".rstrip(": ")


@asynccontextmanager
async def open_client(target: Target, *, keep_text: bool) -> AsyncIterator[Client]:
    """Open the connections' pool, without a limit; they are reused."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
        timeout=aiohttp.ClientTimeout(total=_LONGEST),
        trust_env=False,
        # Compressed, events would wait for each other.
        skip_auto_headers=("Accept-Encoding",),
        max_field_size=_HEADERS_BYTES,
    ) as session:
        yield Client(session, target, keep_text=keep_text)


def encode_body(
    request: BenchRequest, model: str, fields: dict[str, Any], *, is_chat: bool
) -> bytes:
    """Return the body of a request, as JSON; ``fields`` come last and replace ours."""
    prompt = {"messages": request.prompt} if is_chat else {"prompt": request.prompt}
    length = "max_completion_tokens" if is_chat else "max_tokens"
    body = {
        "model": model,
        **prompt,
        length: request.output_len,
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }
    return json.dumps(body, separators=(",", ":")).encode()
