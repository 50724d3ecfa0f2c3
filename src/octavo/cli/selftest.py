"""`octavo selftest`: the equalities on this model and this machine."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from octavo.cli.guard import FAILED
from octavo.cli.terminal import say, table, table_console

_RESULTS = {True: "equal", False: "NOT EQUAL", None: "not checked"}


def selftest(
    model: Annotated[
        str, typer.Argument(help="A known model's name, or the path of a model.")
    ] = "smollm2",
    *,
    num_threads: Annotated[
        int | None, typer.Option(min=1, help="Threads for the arithmetic. [default: all cores]")
    ] = None,
    paths: Annotated[
        bool,
        typer.Option(
            help="Also compute with this CPU's other instructions, each in a process of its own; "
            "the first time compiles for half a minute each."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check that the same request gives the same bits, whatever happens around it.

    Exits with 1 if any equality does not hold. Other instructions are checked only if asked for:
    requests here never run on them, and they take as long as all the rest.
    """
    from octavo.evaluate.selftest import Selftest
    from octavo.model.loader import load_model

    test = Selftest(load_model(model), num_threads=num_threads, paths=paths, say=say)
    checks = list(test.checks())
    if as_json:
        print(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        rows = table("equality", "the same when", "result", "of", "s", numeric=("s",))
        for check in checks:
            number = str(check.number) if check.number else ""
            result = _RESULTS[check.passed]
            rows.add_row(number, check.name, result, check.detail, f"{check.seconds:.1f}")
        table_console().print(rows)
    if any(check.passed is False for check in checks):
        raise typer.Exit(FAILED)
