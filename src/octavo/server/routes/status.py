"""What is served here, and how it is: models, version, health, readiness, metrics."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from octavo import __version__
from octavo.errors import UnknownModelError, shown
from octavo.server.bodies import json_response
from octavo.server.schemas import answers_json
from octavo.server.state import ServerState, state_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    _Answer = Callable[..., Awaitable[Response]]

router = APIRouter(tags=["Status"])


def _get(path: str, **documented: Any) -> Callable[[_Answer], _Answer]:
    """Serve GET, and HEAD as the same without its body; only GET is in the schema."""

    def serve(answer: _Answer) -> _Answer:
        router.get(path, **documented)(answer)
        router.head(path, include_in_schema=False)(answer)
        return answer

    return serve


@_get("/v1/models", **answers_json(401))
async def models(request: Request) -> Response:
    """List the model, under each of its names here."""
    state = state_of(request)
    state.check_key(request)
    names = state.served_names or (state.model,)
    return json_response({"object": "list", "data": [_card(state, name) for name in names]})


@_get("/v1/models/{name:path}", **answers_json(401, 404))
async def model(request: Request, name: str) -> Response:
    """Describe the model by one of its names."""
    state = state_of(request)
    state.check_key(request)
    if name not in state.names:
        raise UnknownModelError(
            f"no model {shown(name)} is served here; there is {state.model}", param="model"
        )
    return json_response(_card(state, name))


def _card(state: ServerState, name: str) -> dict[str, Any]:
    llm = state.engine.llm
    return {
        "id": name,
        "object": "model",
        "created": state.created,
        "owned_by": "octavo",
        "root": llm.config.model,
        "parent": None,
        "max_model_len": llm.core.max_model_len,
    }


@_get("/version", **answers_json())
async def version() -> Response:
    """Return the engine's version."""
    return json_response({"version": __version__})


@_get("/health", **answers_json(503))
async def health(request: Request) -> Response:
    """Say whether the engine lives (200), or must be restarted (503)."""
    fault = state_of(request).engine.fault
    if fault is not None:
        return json_response({"status": "stopped", "reason": fault}, 503)
    return json_response({"status": "ok"})


@_get("/ready", **answers_json(503))
async def ready(request: Request) -> Response:
    """Say whether requests are taken (200), or not: it is draining, or has stopped (503)."""
    engine = state_of(request).engine
    if engine.fault is not None or engine.is_draining:
        reason = engine.fault or "draining"
        return json_response({"status": "not ready", "reason": reason}, 503)
    return json_response({"status": "ready"})


@_get("/metrics", responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """Return all metrics, as Prometheus reads them."""
    watch = state_of(request).watch
    if watch is None:
        return Response(b"", media_type="text/plain; version=0.0.4")
    body, content_type = await asyncio.to_thread(watch.metrics.render)
    return Response(body, headers={"content-type": content_type})
