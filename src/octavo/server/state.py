"""What every route works with: the engine, the names it answers to, and who may ask."""

from __future__ import annotations

import hmac
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from octavo.errors import AuthenticationError
from octavo.openai.request import model_names

if TYPE_CHECKING:
    from starlette.requests import Request

    from octavo.engine.async_engine import AsyncEngine
    from octavo.server.watch import Watch

MOST_BODY_BYTES = 32 << 20


@dataclass(slots=True)
class ServerState:
    """One server's; `Request.app.state.octavo` is where a route finds it."""

    engine: AsyncEngine
    served_names: tuple[str, ...] = ()
    """What the model is called here; the first is what answers say."""
    api_keys: tuple[str, ...] = ()
    """Anyone may ask if there is none."""
    watch: Watch | None = None
    """Who has the metrics."""
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def model(self) -> str:
        """What the model is called in answers."""
        return self.names[0]

    @property
    def names(self) -> list[str]:
        """All names that mean the model."""
        return [*self.served_names, *model_names(self.engine.llm)]

    def check_key(self, request: Request) -> None:
        """Raise `AuthenticationError` unless the request has one of the keys, if there are any."""
        if not self.api_keys:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # Headers are read as Latin-1 whatever they hold: this is what was sent.
        sent = given.strip().encode("latin-1")
        is_known = [hmac.compare_digest(sent, key.encode()) for key in self.api_keys]
        if scheme.lower() != "bearer" or not any(is_known):
            raise AuthenticationError(
                "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'"
            )


def state_of(request: Request) -> ServerState:
    """Return the state of the server that has the request."""
    state: ServerState = request.app.state.octavo
    return state
