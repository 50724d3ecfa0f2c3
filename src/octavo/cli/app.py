"""The commands of `octavo`, put together, and its version."""

from typing import Annotated

import typer

from octavo import __version__
from octavo.cli.batch import batch
from octavo.cli.bench import latency, throughput
from octavo.cli.bench_kernels import kernels
from octavo.cli.bench_serve import MANY_VALUES, bench_serve
from octavo.cli.chat import chat
from octavo.cli.demo import demo
from octavo.cli.eval import perplexity
from octavo.cli.guard import guarded
from octavo.cli.inspect import inspect
from octavo.cli.many_values import many_values
from octavo.cli.models import models
from octavo.cli.pull import pull
from octavo.cli.run import run
from octavo.cli.selftest import selftest
from octavo.cli.serve import serve
from octavo.cli.simulate import simulate

# Plain help: it is quick, it greps, and it says a flag's whole name in a narrow terminal.
app = typer.Typer(
    name="octavo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (run, chat, batch, serve):
    app.command(_command.__name__)(guarded(_command))
app.command("demo", cls=many_values("--prompts"))(guarded(demo))
for _command in (pull, models, inspect, simulate, selftest):
    app.command(_command.__name__)(guarded(_command))
_eval = typer.Typer(help="Measure how well a model does.", no_args_is_help=True)
_eval.command("perplexity")(guarded(perplexity))
app.add_typer(_eval, name="eval")
_bench = typer.Typer(
    help="Measure how fast it is, and how near to the machine's limits.", no_args_is_help=True
)
for _command in (latency, throughput, kernels):
    _bench.command(_command.__name__)(guarded(_command))
_bench.command("serve", cls=many_values(*MANY_VALUES))(guarded(bench_serve))
app.add_typer(_bench, name="bench")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"octavo {__version__}")
        raise typer.Exit


@app.callback()
def _octavo(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Octavo: an LLM inference engine for CPUs, Python all the way down."""
