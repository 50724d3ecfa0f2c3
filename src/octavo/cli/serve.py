"""`octavo serve`: an OpenAI-compatible server."""

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.options import engine_options
from octavo.cli.terminal import open_llm, say
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from socket import socket

    from octavo.engine.llm import LLM
    from octavo.server.state import ServerState

_KEYS = "OCTAVO_API_KEY"


@engine_options()
def serve(
    model_name: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="The model; the same as --model.")
    ] = None,
    *,
    host: Annotated[
        str, typer.Option(help="Where to listen; 0.0.0.0 is every interface.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 picks a free one.")] = 8000,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(help="What clients call the model; may be given several times."),
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(help=f"A key that clients must send; several are good. [also: {_KEYS}]"),
    ] = None,
    max_waiting: Annotated[
        int, typer.Option(min=0, help="Requests that may wait beyond those that run.")
    ] = 1024,
    drain_seconds: Annotated[
        float, typer.Option(min=0, help="How long to finish what runs when told to end.")
    ] = 30.0,
    log_format: Annotated[
        str, typer.Option(help="json, console (for people), or auto: console on a terminal.")
    ] = "auto",
    log_level: Annotated[
        str, typer.Option(help="The least that is told: debug, info, warning, error.")
    ] = "info",
    log_requests: Annotated[
        bool, typer.Option(help="A line a request: what it cost, and why it took so long.")
    ] = True,
    otlp_traces_endpoint: Annotated[
        str | None,
        typer.Option(help="Send a span a request to this OpenTelemetry collector (OTLP, HTTP)."),
    ] = None,
    engine: dict[str, Any],
) -> None:
    """Serve a model over HTTP, as OpenAI's API has it: /v1/chat/completions and the rest.

    Prints one line when it is ready. SIGTERM and Ctrl-C let it finish what runs; a second one ends
    it at once.
    """
    _check_installed()
    from octavo.server.logs import configure_logs
    from octavo.server.run import listen
    from octavo.server.run import serve as run_server

    keys = _keys(api_key)
    listener = listen(host, port)
    configure_logs(log_format, log_level)

    from octavo import LLM

    if model_name is not None:
        engine = {**engine, "model": model_name}
    llm = open_llm(LLM, engine, verbose=True)
    names = tuple(served_model_name or ())
    make_state = _state_maker(
        llm, names, keys, max_waiting, log_requests=log_requests, traces=otlp_traces_endpoint
    )

    def say_ready() -> None:
        typer.echo(f"octavo serves {llm.config.model} at {_address(listener)}")

    run_server(make_state, listener, drain_seconds=drain_seconds, on_ready=say_ready)
    say("octavo has stopped")


def _check_installed() -> None:
    try:
        import octavo.server.run
        import octavo.server.watch  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"octavo serve needs {error.name}; install it: pip install 'octavo[serve]'"
        ) from None


def _keys(given: list[str] | None) -> tuple[str, ...]:
    """Return the keys of the command line and of the environment."""
    keys = (*(given or ()), *filter(None, [os.environ.get(_KEYS)]))
    if not all(keys):
        raise ConfigError("an --api-key is empty; leave it out, or give one", param="api_key")
    return keys


def _state_maker(
    llm: "LLM",
    names: tuple[str, ...],
    keys: tuple[str, ...],
    max_waiting: int,
    *,
    log_requests: bool,
    traces: str | None,
) -> "Callable[[], ServerState]":
    """Return what makes the server's state in its loop's thread; who watches is made now."""
    from octavo.engine.async_engine import AsyncEngine
    from octavo.server.state import ServerState
    from octavo.server.watch import Watch

    watch = Watch(
        llm.core,
        model_name=names[0] if names else llm.config.model,
        logs_requests=log_requests,
        otlp_traces_endpoint=traces,
    )

    def make_state() -> ServerState:
        engine = AsyncEngine(llm, max_waiting=max_waiting, observers=(watch,))
        return ServerState(engine, served_names=names, api_keys=keys, watch=watch)

    return make_state


def _address(listener: "socket") -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
