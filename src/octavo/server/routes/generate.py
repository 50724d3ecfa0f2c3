"""`/v1/completions` and `/v1/chat/completions`."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from octavo.openai.request import ParsedBody, parse_body
from octavo.openai.response import new_id
from octavo.openai.shape import SHAPE_FIELDS
from octavo.server.answers import Answer, AnswerResponse
from octavo.server.bodies import read_object
from octavo.server.schemas import CHAT, COMPLETION, documented
from octavo.server.state import state_of

if TYPE_CHECKING:
    from octavo.server.state import ServerState

router = APIRouter(tags=["OpenAI"])

_LONG_BODY = 20_000
"""Bytes whose tokenising takes milliseconds: another thread does it."""


@router.post("/v1/completions", **documented(COMPLETION))
async def completions(request: Request) -> Response:
    """Complete one prompt or several, given as text or as token ids."""
    return await _generate(request, chat=False)


@router.post("/v1/chat/completions", **documented(CHAT))
async def chat_completions(request: Request) -> Response:
    """Answer a conversation, rendered by the model's chat template."""
    return await _generate(request, chat=True)


async def _generate(request: Request, *, chat: bool) -> Response:
    arrived = perf_counter()
    state = state_of(request)
    state.check_key(request)
    body = await read_object(request)
    # A shape or tools that are not known yet are compiled, which may take as long.
    compiles = any(body.get(field) for field in (*SHAPE_FIELDS, "tools"))
    if compiles or request.state.num_body_bytes > _LONG_BODY:
        asked = await asyncio.to_thread(_parse, body, state, chat=chat)
    else:
        asked = _parse(body, state, chat=chat)
    response_id = new_id(chat=chat, name=request.state.request_id)
    return AnswerResponse(
        Answer(
            state,
            asked,
            chat=chat,
            response_id=response_id,
            arrived=arrived,
            trace_headers=_trace_headers(request),
        )
    )


def _parse(body: dict[str, Any], state: ServerState, *, chat: bool) -> ParsedBody:
    return parse_body(
        body, state.engine.llm, chat=chat, seed=None, names=state.names, may_stream=True
    )


def _trace_headers(request: Request) -> dict[str, str] | None:
    """Return what the caller says of its trace, None if nothing."""
    names = ("traceparent", "tracestate")
    return {name: request.headers[name] for name in names if name in request.headers} or None
