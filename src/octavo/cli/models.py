"""`octavo models`: the models that are here, and those that could be."""

import json
from typing import Annotated

import typer

from octavo.cli.terminal import harmless, table, table_console


def models(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the known models, and the files in the models' folder."""
    from octavo.config import format_bytes
    from octavo.model.store import list_models

    listing = list_models()
    if as_json:
        entries = [
            {
                "name": model.name,
                "path": str(model.path),
                "num_bytes": model.num_bytes,
                "pulled": model.pulled,
                "known": model.known is not None,
                "licence": model.known and model.known.licence,
            }
            for model in listing
        ]
        print(json.dumps(entries, indent=2))
        return
    rows = table("name", "size", "here", "path", numeric=("size",))
    for model in listing:
        here = "yes" if model.pulled else "no: octavo pull " + model.name
        rows.add_row(
            harmless(model.name), format_bytes(model.num_bytes), here, harmless(str(model.path))
        )
    table_console().print(rows)
