"""`octavo pull`: fetch a known model."""

from typing import Annotated

import typer

from octavo.config import DEFAULT_MODEL


def pull(
    name: Annotated[
        str, typer.Argument(help="A known model; `octavo models` lists them.")
    ] = DEFAULT_MODEL,
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Fetch it even if it is here already.")
    ] = False,
) -> None:
    """Fetch a model, check it, and print where it is.

    The folder is ~/.cache/octavo/models; OCTAVO_HOME moves it.
    """
    from octavo.model.store import pull as pull_model

    print(pull_model(name, force=force))
