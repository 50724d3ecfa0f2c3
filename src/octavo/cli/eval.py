"""`octavo eval`: how well a model predicts a text."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from octavo.cli.options import engine_options
from octavo.cli.terminal import open_llm, say, say_faults
from octavo.errors import InvalidRequestError


@engine_options()
def perplexity(
    file: Annotated[Path, typer.Argument(help="A text file, UTF-8.")],
    *,
    window: Annotated[int, typer.Option(min=2, help="Tokens a window has.")] = 512,
    max_tokens: Annotated[
        int | None, typer.Option(min=2, help="Use only this many tokens of the text.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    engine: dict[str, Any],
) -> None:
    """Print the perplexity of a text.

    The text is cut into windows; each token but a window's first is predicted from those before.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidRequestError(f"{file}: {error.strerror}", param="file") from None
    except UnicodeDecodeError:
        raise InvalidRequestError(f"{file}: is not UTF-8 text", param="file") from None

    from octavo import LLM
    from octavo.evaluate import perplexity as evaluation

    llm = open_llm(LLM, engine)
    found = evaluation.perplexity(llm, text, window=window, max_tokens=max_tokens)
    say_faults(llm.faults)
    if as_json:
        print(json.dumps(asdict(found)))
        return
    print(f"{found.perplexity:.3f}")
    say(
        f"perplexity {found.perplexity:.3f} (log ± {found.standard_error:.4f}) of "
        f"{found.num_tokens} tokens in {found.num_windows} windows of {found.window}"
    )
