"""`octavo pull`: fetch a known model, or one of the Hugging Face Hub."""

from typing import Annotated

import typer

from octavo.config import DEFAULT_MODEL


def pull(
    name: Annotated[
        str,
        typer.Argument(
            help="A known model (`octavo models` lists them), or "
            "hf:org/repo[@revision][:quant-or-file] of the Hugging Face Hub."
        ),
    ] = DEFAULT_MODEL,
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Fetch it even if it is here already.")
    ] = False,
) -> None:
    """Fetch a model, check it, and print where it is.

    Known models go to ~/.cache/octavo/models (OCTAVO_HOME moves it); hf: models to the Hugging
    Face cache (HF_HUB_CACHE). HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE are honoured; hf: needs
    `pip install 'octavo[hf]'`.
    """
    from octavo.model.store import pull as pull_model

    print(pull_model(name, force=force))
