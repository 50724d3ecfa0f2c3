"""`octavo inspect`: what a model file or folder says of itself."""

import dataclasses
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.terminal import harmless, table, table_console
from octavo.config import format_bytes
from octavo.errors import ModelNotFoundError

if TYPE_CHECKING:
    from rich.table import Table

    from octavo.model.description import ModelDescription, TokenizerDescription

_GIB = 1 << 30


def inspect(
    model: Annotated[
        str,
        typer.Argument(
            help="A .gguf file, a Hugging Face folder, or the name of a pulled model (hf:org/repo)."
        ),
    ],
    *,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything as one JSON object.")
    ] = False,
) -> None:
    """Show what a model file or folder holds, and what a token of KV costs.

    Any well-formed GGUF file or Hugging Face folder can be shown, also one that cannot be run.
    Nothing is fetched.
    """
    path = _find(model)

    from octavo.model.inspect import describe

    described = describe(path)
    if as_json:
        print(json.dumps(dataclasses.asdict(described), indent=2))
        return
    console = table_console()
    for part in (_overview(described), _hyper_parameters(described), _types(described)):
        console.print(part)
        console.print()
    if tensors:
        console.print(_tensors(described))
        console.print()
    console.print("chat template")
    console.print(harmless(described.chat_template or "(none)"))


def _find(name: str) -> Path:
    """Return the file or folder that is meant; nothing is fetched for a mere look."""
    from octavo.model.remote.hub_name import HUB_PREFIX
    from octavo.model.store import KNOWN_MODELS, ensure_model, find_model

    path = find_model(name)
    if path is not None:
        return path
    if name in KNOWN_MODELS or name.startswith(HUB_PREFIX):
        raise ModelNotFoundError(
            f"{name} is not here yet; fetch it: octavo pull {shlex.quote(name)}"
        )
    return ensure_model(name)  # tells what is known


def _overview(model: "ModelDescription") -> "Table":
    """Return what there is to know in a line each."""
    facts = {
        "path": f"{model.path} ({format_bytes(model.num_bytes)}, {model.format})",
        "name": model.name or "(none)",
        "licence": model.licence or "(none given)",
        "architecture": model.architecture or "(none)",
        "runs here": "yes" if model.unsupported is None else f"no: {model.unsupported}",
        "parameters": f"{model.num_params:,}",
        "fingerprint": model.fingerprint,
        "tokenizer": _tokenizer_line(model.tokenizer),
    }
    for dtype, cost in (
        ("float16", model.kv_bytes_per_token_float16),
        ("float32", model.kv_bytes_per_token_float32),
    ):
        if cost is not None:
            facts[f"KV as {dtype}"] = f"{cost:,} bytes a token; 1 GiB holds {_GIB // cost:,} tokens"
    rows = table("", "")
    rows.show_header = False
    for name, value in facts.items():
        rows.add_row(name, harmless(value))
    return rows


def _tokenizer_line(tokenizer: "TokenizerDescription") -> str:
    specials = [
        f"{name} {token_id} {tokenizer.special_tokens.get(name, '(outside)')}"
        for name, token_id in tokenizer.special_ids.items()
    ]
    rules = [] if tokenizer.pre is None else [f"rules {tokenizer.pre}"]
    return ", ".join(
        [
            tokenizer.model or "(none)",
            *rules,
            f"{tokenizer.num_tokens:,} tokens",
            f"{tokenizer.num_merges:,} merges",
            *specials,
        ]
    )


def _hyper_parameters(model: "ModelDescription") -> "Table":
    rows = table("hyper-parameter", "value")
    for name, value in model.hyper_parameters.items():
        rows.add_row(harmless(name), harmless(str(value)))
    return rows


def _types(model: "ModelDescription") -> "Table":
    numeric = ("tensors", "parameters", "size", "bits a weight")
    rows = table("type", *numeric, numeric=numeric)
    for kind in model.types:
        rows.add_row(
            kind.type if kind.supported else f"{kind.type} (not supported)",
            str(kind.num_tensors),
            f"{kind.num_params:,}",
            format_bytes(kind.num_bytes),
            f"{8 * kind.num_bytes / max(1, kind.num_params):.2f}",
        )
    return rows


def _tensors(model: "ModelDescription") -> "Table":
    rows = table("tensor", "type", "shape", "bytes", numeric=("bytes",))
    for tensor in model.tensors:
        shape = " x ".join(map(str, tensor.shape))
        rows.add_row(harmless(tensor.name), tensor.type, shape, f"{tensor.num_bytes:,}")
    return rows
