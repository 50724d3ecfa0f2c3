"""`octavo batch`: a file of OpenAI requests, answered together by continuous batching."""

import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.batch_files import ResultFile, check_ids, read_requests
from octavo.cli.guard import FAILED
from octavo.cli.options import engine_options
from octavo.cli.terminal import open_llm, say, say_faults
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.cli.batch_job import Part
    from octavo.sampling.params import SamplingParams


@engine_options()
def batch(
    input_file: Annotated[
        Path, typer.Argument(metavar="INPUT", help="Requests: OpenAI batch lines.")
    ],
    output_file: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Where the results go.")],
    *,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Tell what was chosen automatically.")
    ] = False,
    engine: dict[str, Any],
) -> None:
    """Answer a file of requests, continuing where it was left.

    A line of INPUT is {"custom_id": ..., "method": "POST", "url": "/v1/chat/completions" or
    "/v1/completions", "body": {...}}. A line that cannot be served gets a result that says why,
    and the exit code is 1. Results are appended as they finish. Run again after an interruption,
    of whatever kind: what is finished is kept, and the rest gets the seeds that it would have got.
    Its answers are the same, to the bit; with --backend reference up to rounding, so that a token
    that is drawn can differ.
    """
    lines = check_ids(input_file)
    if output_file.exists() and output_file.samefile(input_file):
        raise ConfigError("INPUT and OUTPUT are the same file; name another OUTPUT")
    with ResultFile(output_file) as results:
        strange = next((name for name in results.finished if name not in lines), None)
        if strange is not None:
            raise ConfigError(
                f"{output_file} has a result for {strange!r}, which {input_file} does not ask "
                "for; name another OUTPUT"
            )
        start = time.perf_counter()
        num_kept = len(results.finished)
        num_tokens = 0
        try:
            if num_kept < len(lines):
                num_tokens = _answer(input_file, results, len(lines), engine, verbose)
        except KeyboardInterrupt:
            say(
                f"interrupted: {len(results.finished)} of {len(lines)} lines are finished; "
                "the same command goes on from there"
            )
            raise
        seconds = time.perf_counter() - start
        num_failed = sum(not succeeded for succeeded in results.finished.values())
    say(
        f"{len(lines) - num_failed} answered, {num_failed} failed ({num_kept} of them before); "
        f"{num_tokens} tokens in {seconds:.1f} s"
    )
    if num_failed:
        raise typer.Exit(FAILED)


def _answer(
    path: Path, results: ResultFile, num_lines: int, engine: dict[str, Any], verbose: bool
) -> int:
    """Answer every line that has no result yet; return how many tokens that made."""
    from octavo.cli.batch_job import Job
    from octavo.engine.llm import LLM

    llm = open_llm(LLM, engine, verbose=verbose)
    num_tokens = 0

    def requests() -> "Iterator[tuple[Part, dict[str, Any], SamplingParams, int]]":
        """Read lines as the engine has room for them; what is refused is answered here."""
        for _, line in read_requests(path):
            if line["custom_id"] in results.finished:
                continue
            job = Job.parse(line, llm, seed=_seed(engine["seed"], line["custom_id"]))
            if job.refused is None:
                asked = job.asked
                for part in job.parts:
                    yield part, asked.prompts[part.index], asked.params, asked.priority
            else:
                results.append(job.custom_id, *job.result(llm))
            show(len(results.finished), num_tokens)

    with _progress(num_lines) as show:
        show(len(results.finished), 0)
        for part, output in llm.generate_each(requests()):
            num_tokens += sum(len(choice.token_ids) for choice in output.outputs)
            if part.job.take(part, output):
                results.append(part.job.custom_id, *part.job.result(llm))
            show(len(results.finished), num_tokens)
    say_faults(llm.faults)
    return num_tokens


def _seed(engine_seed: int, custom_id: str) -> int:
    """Return the seed of a line that brings none.

    By its name, not its place in a queue: so a batch that is resumed, or a file whose lines stand
    in another order, gets the same seeds, and from the cpu backend the same answers. The last bits
    of the reference depend on which requests are computed together, and a draw can tip over them.
    """
    from octavo.sampling.rng import derive_seed

    digest = hashlib.blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return derive_seed(engine_seed, int.from_bytes(digest, "little"))


@contextmanager
def _progress(num_lines: int) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on stderr if that is a terminal; yields what moves it (lines, tokens)."""
    if not sys.stderr.isatty():
        yield lambda _lines, _tokens: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (MofNCompleteColumn(), BarColumn(), TimeElapsedColumn())
    tokens = TextColumn("{task.fields[tokens]} tokens")
    with Progress(*columns, tokens, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=num_lines, tokens=0)
        yield lambda lines, tokens: bar.update(task, completed=lines, tokens=tokens)
