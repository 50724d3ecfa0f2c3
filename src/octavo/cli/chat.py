"""`octavo chat`: a conversation in the terminal, or one turn a line from a pipe."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.answer import cut_note, stop_on_interrupt, stream_answer
from octavo.cli.guard import FAILED
from octavo.cli.options import engine_options, sampling_options
from octavo.cli.terminal import check_text, open_llm, print_piece, say, say_faults
from octavo.errors import ContextLengthError, InvalidRequestError

if TYPE_CHECKING:
    from octavo.engine.llm import LLM
    from octavo.sampling.params import SamplingParams

_HELP = """\
/system TEXT  set the system message; without TEXT remove it
/reset        forget the conversation, keep the system message
/help         this
/quit         leave, as Ctrl-D does; Ctrl-C stops an answer
A blank before the / sends the line as it is."""


@engine_options()
@sampling_options(max_tokens=512, temperature=0.7, top_p=0.9)
def chat(
    *,
    system: Annotated[str | None, typer.Option(help="A system message to put first.")] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Tell what was chosen, and each turn's numbers.")
    ] = False,
    sampling: dict[str, Any],
    engine: dict[str, Any],
) -> None:
    """Talk with a model. Piped stdin is one turn a line.

    Every turn renders the whole conversation anew; the prefix cache knows most of it already.
    """
    from octavo import LLM, SamplingParams

    check_text(system or "", "system")
    params = SamplingParams(**sampling)
    llm = open_llm(LLM, engine, verbose=verbose)
    conversation = Conversation(llm, params, system=system, verbose=verbose)
    interactive = sys.stdin.isatty()
    if interactive:
        say(f"{llm.model.path.stem}; /help tells the commands")
    num_failed = 0
    for line in _read_lines(interactive):
        try:
            check_text(line, "line")
        except InvalidRequestError as error:
            say(f"error: {error}", colour="red")
            num_failed += 1
            continue
        if line in ("/quit", "/exit"):
            break
        if line.startswith("/"):
            conversation.command(line)
        elif line.strip() and not conversation.answer(line):
            num_failed += 1
    if num_failed and not interactive:
        raise typer.Exit(FAILED)


class Conversation:
    """The messages so far; they only ever grow, until the user resets them."""

    def __init__(
        self, llm: "LLM", params: "SamplingParams", *, system: str | None, verbose: bool
    ) -> None:
        self._llm = llm
        self._params = params
        self._system = system
        self._verbose = verbose
        self._turns: list[dict[str, str]] = []
        self._faults: tuple[str, ...] = ()

    def command(self, line: str) -> None:
        """Do what a line that begins with / asks for."""
        name, _, argument = line.partition(" ")
        if name == "/help":
            say(_HELP)
        elif name == "/reset":
            self._turns.clear()
        elif name == "/system":
            self._system = argument.strip() or None
        else:
            say(f"{name} is no command; /help tells them")

    def answer(self, text: str) -> bool:
        """Answer a turn, and keep it; return False, the turn forgotten, if that cannot be."""
        turns = [*self._turns, {"role": "user", "content": text}]
        system = [] if self._system is None else [{"role": "system", "content": self._system}]
        try:
            prompt = self._llm.chat_prompt([*system, *turns])
            with stop_on_interrupt() as stopped:
                answer = stream_answer(
                    self._llm, prompt, self._params, print_piece, should_stop=stopped
                )
        except ContextLengthError as error:
            say(f"error: the conversation no longer fits: {error}", colour="red")
            say("/reset begins a new one")
            return False
        except InvalidRequestError as error:
            say(f"error: {error}", colour="red")
            return False
        print(flush=True)
        say_faults(fault for fault in self._llm.faults if fault not in self._faults)
        self._faults = self._llm.faults
        if answer.output.error is not None:
            say(f"error: {answer.output.error}", colour="red")
            return False
        note = "note: stopped" if stopped() else cut_note(self._llm, answer)
        if note is not None:
            say(note)
        if self._verbose:
            say(answer.summary())
        self._turns = [*turns, {"role": "assistant", "content": answer.choice.text}]
        return True


def _read_lines(interactive: bool) -> Iterator[str]:
    """Yield the user's lines until there are no more."""
    if not interactive:
        for line in sys.stdin:
            yield line.rstrip("\n")
        return
    with suppress(ImportError):
        import readline  # noqa: F401 - gives input() line editing and a history
    while True:
        try:
            yield input("> ")
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            say("(/quit or Ctrl-D leaves)")
