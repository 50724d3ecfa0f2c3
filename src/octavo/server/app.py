"""The application: its routes, its errors in OpenAI's form, and a name for every request."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Any, Final

from fastapi import FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException

from octavo import __version__
from octavo.errors import OctavoError, WrongPathError
from octavo.server.bodies import error_response, fault_of
from octavo.server.http_metrics import WatchHttp
from octavo.server.routes import generate, status, tokens

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from octavo.server.state import ServerState

_NAME: Final = re.compile(r"[\x21-\x7e]{1,128}")


def create_app(state: ServerState) -> FastAPI:
    """Return the application that serves what ``state`` holds."""
    app = FastAPI(
        title="Octavo",
        version=__version__,
        description="An OpenAI-compatible server. Unknown fields are accepted; a field that would "
        "change the answer and is not honoured is a 400 that names it.",
    )
    app.state.octavo = state
    for routes in (generate, tokens, status):
        app.include_router(routes.router)
    app.add_exception_handler(OctavoError, _answer_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_middleware(RequestName)
    if state.watch is not None:
        app.add_middleware(WatchHttp, metrics=state.watch.metrics.http)
    return app


class RequestName:
    """Gives every request the name of its `X-Request-Id`, or a new one, and returns it.

    A fault of the server's is answered here, so that its answer has the name too.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on the request by its name."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        name = given if _NAME.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = name

        has_begun = False

        async def named(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                MutableHeaders(scope=message)["X-Request-Id"] = name
            await send(message)

        try:
            await self._app(scope, receive, named)
        except Exception as error:
            if has_begun:  # the client sees an answer that breaks off; uvicorn logs why
                raise
            await error_response(fault_of(error))(scope, receive, named)


async def _answer_error(_request: Request, error: Any) -> Response:
    return error_response(error)


async def _answer_http_error(request: Request, error: Any) -> Response:
    known = {404: "there is no such path", 405: "the method is not allowed"}
    what = known.get(error.status_code, str(error.detail))
    answer = error_response(WrongPathError(f"{request.method} {request.url.path}: {what}"))
    answer.status_code = error.status_code
    for name, value in (error.headers or {}).items():
        answer.headers[name] = value
    return answer
