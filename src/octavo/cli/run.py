"""`octavo run`: one question, one answer, streamed."""

# No `from __future__ import annotations` here and in the other commands: typer reads the types.

import json
import sys
from typing import Annotated, Any

import typer

from octavo.cli.answer import cut_note, stream_answer
from octavo.cli.guard import FAILED
from octavo.cli.options import engine_options, sampling_options
from octavo.cli.terminal import check_text, open_llm, print_piece, say, say_faults
from octavo.errors import InvalidRequestError


# A small model rambles at SamplingParams' own temperature of 1.
@engine_options({"seed": "The key of the answer's randomness."})
@sampling_options(max_tokens=512, temperature=0.7, top_p=0.9)
def run(
    prompt: Annotated[
        str | None, typer.Argument(help="The question; - or nothing reads it from stdin.")
    ] = None,
    *,
    system: Annotated[str | None, typer.Option(help="A system message to put first.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Complete the text as it is, without chat template.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end; nothing is streamed.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Tell what was chosen, and the numbers.")
    ] = False,
    sampling: dict[str, Any],
    engine: dict[str, Any],
) -> None:
    """Answer a question; the text comes as it is made.

    The answer is a function of the prompt, the settings and --seed.
    """
    if raw and system is not None:
        raise InvalidRequestError("--raw has no place for --system; leave one out", param="system")
    text = _read_prompt(prompt)
    check_text(text, "prompt")
    check_text(system or "", "system")
    if not text.strip():
        raise InvalidRequestError("the prompt is empty; ask something", param="prompt")

    from octavo import LLM, SamplingParams

    params = SamplingParams(seed=engine["seed"], **sampling)
    llm = open_llm(LLM, engine, verbose=verbose)
    messages = [{"role": "user", "content": text}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    request = text if raw else llm.chat_prompt(messages)
    answer = stream_answer(llm, request, params, _ignore if as_json else print_piece)
    if as_json:
        print(json.dumps(answer.as_json()))
    else:
        print()
    note = cut_note(llm, answer)
    if note is not None and not as_json:
        say(note)
    if verbose or (sys.stderr.isatty() and not as_json):
        say(answer.summary())
    say_faults(llm.faults)
    if answer.output.error is not None:
        say(f"error: {answer.output.error}", colour="red")
        raise typer.Exit(FAILED)


def _read_prompt(prompt: str | None) -> str:
    """Return the prompt from the command line, or from stdin if it is ``-`` or piped."""
    if prompt not in (None, "-"):
        return str(prompt)
    if prompt is None and sys.stdin.isatty():
        raise InvalidRequestError(
            "there is no prompt; give one, or pipe one in: octavo run 'Why is the sky blue?'",
            param="prompt",
        )
    return sys.stdin.read().removesuffix("\n")


def _ignore(_text: str) -> None:
    """Write nothing."""
