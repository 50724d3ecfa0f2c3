"""`octavo bench serve`: load on an OpenAI server, with vLLM bench serve's flags and fields."""

import asyncio
import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.bench.serve.refused import Refused
from octavo.bench.serve.settings import DatasetSettings, Reporting, Sampling, Target, Traffic
from octavo.cli.bench_output import AsJson, check_outputs, progress
from octavo.cli.guard import FAILED
from octavo.cli.interrupt import INTERRUPTED
from octavo.cli.options import settings_options
from octavo.cli.terminal import harmless, say, table, table_console

if TYPE_CHECKING:
    from octavo.bench.serve.run import LoadTest, Run
    from octavo.model.text.tokenizer import Tokenizer

MANY_VALUES = ("--goodput", "--metadata", "--header")
"""The flags that take several values at once."""


@settings_options(Refused, "refused")
@settings_options(Reporting, "reporting")
@settings_options(Sampling, "sampling")
@settings_options(Traffic, "traffic")
@settings_options(DatasetSettings, "dataset")
@settings_options(Target, "target")
def bench_serve(
    *,
    as_json: AsJson = False,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Write a row a run to this CSV file.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw latencies and throughput into this PNG.")
    ] = None,
    target: dict[str, Any],
    dataset: dict[str, Any],
    traffic: dict[str, Any],
    sampling: dict[str, Any],
    reporting: dict[str, Any],
    refused: dict[str, Any],
) -> None:
    """Measure an OpenAI server: send requests, and time their streamed answers.

    Flags and JSON fields are those of `vllm bench serve`; there are more. Ends with 1 if every
    request failed. Ctrl-C ends the run and reports what was measured.
    """
    Refused(**refused)
    report = Reporting(**reporting)
    server, data = Target(**target), DatasetSettings(**dataset)
    load, asked = Traffic(**traffic), Sampling(**sampling)
    check_outputs(csv_file, plot, peaks=True)
    if plot is not None:
        from octavo.bench.serve.plots import check_can_plot

        check_can_plot()
    from octavo.bench.serve.run import LoadTest

    total = (data.num_prompts + load.num_warmups) * len(load.concurrencies())
    with progress("answers", total) as done:
        test = LoadTest(
            server, data, load, asked, tokenizer=_tokenizer(data.tokenizer),
            keep_text=report.save_detailed, done=done,
        )  # fmt: skip
        now = datetime.now()
        model, runs = asyncio.run(test.run())
    results = _results(model, runs, test, report, now)
    _deliver(runs, results, report, as_json=as_json, csv_file=csv_file, plot=plot)
    if any(run.is_interrupted for run in runs):
        raise typer.Exit(INTERRUPTED)
    if not any(result["completed"] for result in results):
        raise typer.Exit(FAILED)


def _tokenizer(model: str | None) -> "Tokenizer | None":
    if model is None:
        return None
    from octavo.model.loader import load_model

    return load_model(model).tokenizer


def _results(
    model: str, runs: "list[Run]", test: "LoadTest", report: Reporting, now: datetime
) -> list[dict[str, Any]]:
    from octavo.bench.serve.report import to_json

    return [to_json(run, model, test, report, now) for run in runs]


def _deliver(
    runs: "list[Run]", results: list[dict[str, Any]], report: Reporting,
    *, as_json: bool, csv_file: Path | None, plot: Path | None,
) -> None:  # fmt: skip
    """Write the files; print a line of JSON a run, or figures and a table for people."""
    from octavo.bench.serve.report import (
        error_lines,
        lines,
        save,
        statistics_columns,
        statistics_rows,
        write_csv,
    )

    for path in save(results, report):
        say(f"written: {harmless(str(path))}")
    if csv_file is not None:
        write_csv(results, csv_file)
    if plot is not None:
        from octavo.bench.serve.plots import draw

        draw(runs, results, plot)
    columns = statistics_columns(report)
    for run, result in zip(runs, results, strict=True):
        for line in error_lines(run):
            say(line, colour="red")
        if as_json:
            print(json.dumps(result))
            continue
        for line in lines(result, report.goals()):
            print(harmless(line))
        made = table(*columns, numeric=tuple(columns[1:]))
        for cells in statistics_rows(result, report):
            made.add_row(*cells)
        table_console().print(made)
