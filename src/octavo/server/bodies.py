"""Read a request's body as a JSON object, within bounds; write an answer as JSON."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from octavo.errors import BodyTooLargeError, InvalidRequestError, OctavoError, SlowBodyError
from octavo.openai.response import error_body
from octavo.server.state import MOST_BODY_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

BODY_SECONDS = 120.0

_log = logging.getLogger(__name__)
_decoder = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


async def read_object(request: Request) -> dict[str, Any]:
    """Return the body, and note its size as ``request.state.num_body_bytes``.

    Raises `InvalidRequestError` if it is no JSON object, too long, or takes too long.
    """
    try:
        async with asyncio.timeout(BODY_SECONDS):
            data = await _read(request)
    except TimeoutError:
        raise SlowBodyError(
            f"the body took more than {BODY_SECONDS:g} s; send it at once"
        ) from None
    except ClientDisconnect:
        raise InvalidRequestError("the client left before the end of its body") from None
    request.state.num_body_bytes = len(data)
    try:
        body = _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise InvalidRequestError("the body must be a JSON object")
    return body


async def _read(request: Request) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > MOST_BODY_BYTES:
            raise BodyTooLargeError(
                f"the body has more than {MOST_BODY_BYTES} bytes; send less in one request"
            )
        parts.append(part)
    return b"".join(parts)


def json_response(
    body: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return ``body`` as JSON."""
    return Response(_encoder.encode(body), status, headers, "application/json")


def error_response(error: OctavoError) -> Response:
    """Return an error in OpenAI's form, with its status."""
    retry_after = getattr(error, "retry_after", None)
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    if error.http_status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.http_status in (408, 413):  # the rest of the body may still come, or never
        headers["Connection"] = "close"
    return json_response(error_body(error), error.http_status, headers)


def fault_of(error: Exception) -> OctavoError:
    """Return what a client is told of a fault of the server's; the log has the rest."""
    _log.error("an answer failed", exc_info=error)
    return OctavoError("the server failed; its log says how")


def encoded(body: object) -> bytes:
    """Return ``body`` as JSON bytes."""
    return _encoder.encode(body)
