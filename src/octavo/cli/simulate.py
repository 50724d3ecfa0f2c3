"""`octavo simulate`: recorded traces through the production cache, under any eviction policy."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cache.policies import POLICIES, find_policy
from octavo.cli.terminal import harmless, table, table_console
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.cache.eviction import EvictionPolicy
    from octavo.simulate.experiment import Experiment, Result
    from octavo.simulate.trace import Trace

_BYTES_OF_A_BLOCK = 152  # that its accounts take from the start; measured


def simulate(
    traces: Annotated[
        list[Path], typer.Argument(help="Trace files; .gz and .zst are unpacked.", metavar="TRACE")
    ],
    *,
    policy: Annotated[
        str, typer.Option(help=f"Policies, with commas: {', '.join(POLICIES)}, or module:Class.")
    ] = "lru,arc",
    capacity: Annotated[
        str, typer.Option(help="Sizes of the cache in blocks, with commas.")
    ] = "1000,10000",
    concurrency: Annotated[
        int, typer.Option(min=1, help="Requests that hold their blocks at a time.")
    ] = 1,
    rules: Annotated[
        str,
        typer.Option(
            help="engine: as the engine's cache does. forward, reverse: every block of a prompt "
            "alone, without a tree, head to tail or tail first."
        ),
    ] = "engine",
    format_name: Annotated[
        str | None,
        typer.Option(
            "--format", help="mooncake, sessions, text, lis, lirs, lengths. [default: by the file]"
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Replay only the first so many requests, or keys.")
    ] = None,
    block_size: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens in a block. [default: 512 for mooncake, 16 for text]"),
    ] = None,
    users: Annotated[
        int, typer.Option(min=1, help="Of agent sessions: how many run at the same time.")
    ] = 32,
    seed: Annotated[int, typer.Option(help="Of agent sessions: in which order they come.")] = 0,
    tokenizer: Annotated[
        str, typer.Option(help="Whose tokenizer cuts text into tokens: a model's name or path.")
    ] = "smollm2",
    bounds: Annotated[bool, typer.Option(help="Compute MIN and the infinite cache too.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Write the results to this CSV file.")
    ] = None,
    plot_file: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw hit rate against capacity into this PNG file."),
    ] = None,
) -> None:
    """Replay recorded traces through the cache, and report what each policy would have hit."""
    from octavo.simulate.experiment import MIN, RULES, Experiment, check_replayable

    if rules not in RULES:
        raise ConfigError(f"rules is {rules!r}; known are {', '.join(RULES)}", param="rules")
    if rules != "engine" and concurrency != 1:
        raise ConfigError(
            f"concurrency is {concurrency}; only --rules engine holds blocks", param="concurrency"
        )
    for output in (csv_file, plot_file):  # before the replay, whose results would be lost
        if output is not None:
            _check_writable(output)
    if plot_file is not None and plot_file.suffix.lower() != ".png":
        raise ConfigError(f"--plot writes PNG files, not {plot_file.name}; end it in .png")
    if plot_file is not None:
        from octavo.simulate.plot import check_can_plot

        check_can_plot()
    asked = _split(policy, "policy")
    names = [name for name in asked if name != MIN]  # a bound, computed without being asked for
    plan = Experiment(
        policies=_policies(names),
        capacities=_capacities(capacity),
        concurrency=concurrency,
        rules=rules,
        with_bounds=bounds or MIN in asked,
    )

    def load(path: Path) -> "Trace":
        from octavo.simulate.loaders import load_trace

        return check_replayable(
            load_trace(
                path,
                format_name=format_name,
                limit=limit,
                block_size=block_size,
                seed=seed,
                users=users,
                tokenize=_lazy_tokenizer(tokenizer),
            )
        )

    loaded = [
        load(path) for path in traces
    ]  # all of them before the first replay, which may be long
    groups = [_run(plan, trace) for trace in loaded]
    results = [result for group in groups for result in group]
    settings = {
        "concurrency": concurrency,
        "limit": limit,
        "block_size": block_size,
        "users": users,
        "seed": seed,
    }
    if csv_file is not None:
        from octavo.simulate.report import write_csv

        with csv_file.open("w", newline="", encoding="utf-8") as file:
            write_csv(results, file, settings)
    if plot_file is not None:
        from octavo.simulate.plot import plot

        plot(results, plot_file)
    if as_json:
        from octavo.simulate.report import to_json

        print(to_json(results, settings))
        return
    _print(groups, limit)


def _check_writable(path: Path) -> None:
    if not path.parent.is_dir() or path.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError(f"{path} cannot be written: its folder is missing or not writable")


def _run(plan: "Experiment", trace: "Trace") -> "list[Result]":
    """Run the experiment on one trace, with a progress bar on stderr."""
    try:
        return _run_with_bar(plan, trace)
    except MemoryError:
        raise ConfigError(
            f"there is not enough memory for capacity {max(plan.capacities)} on {trace.name}; "
            "lower it, or replay less with --limit",
            param="capacity",
        ) from None


def _run_with_bar(plan: "Experiment", trace: "Trace") -> "list[Result]":
    import dataclasses

    if not sys.stderr.isatty():  # a bar that is disabled still ends the line, in older rich
        return plan.run(trace)
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(harmless(trace.name), total=plan.num_steps(trace))
        plan = dataclasses.replace(plan, progress=lambda count: bar.advance(task, count))
        return plan.run(trace)


def _print(groups: "list[list[Result]]", limit: int | None) -> None:
    """Print a table for each trace, then what the words mean."""
    from octavo.simulate.report import COLUMNS, definitions, rows

    console = table_console()
    for group in groups:
        references = group[0].counts.references
        mix = f"; {group[0].mix}" if group[0].mix else ""
        cut = f"; limit {limit:,}" if limit is not None else ""
        console.print(f"{harmless(group[0].trace)}: {references:,} references{mix}{cut}")
        made = table(*COLUMNS, numeric=tuple(c for c in COLUMNS if c != "policy"))
        for cells in rows(group):
            made.add_row(*cells)
        console.print(made)
        console.print()
    for sentence in definitions([result for group in groups for result in group]):
        console.print(sentence)


def _split(text: str, param: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ConfigError(f"{param} is {text!r}; name at least one", param=param)
    return list(dict.fromkeys(names))


def _policies(names: list[str]) -> "list[type[EvictionPolicy]]":
    """Return the policies of these names, each once; refuse two that reports could not tell."""
    found: dict[str, type[EvictionPolicy]] = {}
    for name in names:
        policy = find_policy(name)
        if found.setdefault(policy.name, policy) is not policy:
            raise ConfigError(
                f"policy names two that are called {policy.name!r}, the second is {name}; reports "
                "would mix them up: give one another name",
                param="policy",
            )
    return list(found.values())


def _capacities(text: str) -> list[int]:
    from octavo.config import format_bytes
    from octavo.engine.memory import available_memory

    sizes = []
    free = available_memory()
    for word in _split(text, "capacity"):
        if not word.isdecimal() or not word.strip("0"):
            raise ConfigError(
                f"capacity is {word!r}; it must be a whole number of blocks, at least 1",
                param="capacity",
            )
        most = free // _BYTES_OF_A_BLOCK
        if len(word) > 18 or int(word) > most:
            raise ConfigError(
                f"capacity is {word[:40]}; the accounts of a block take {_BYTES_OF_A_BLOCK} bytes, "
                f"and {format_bytes(free)} of memory are free: it may be {most} at most",
                param="capacity",
            )
        sizes.append(int(word))
    return sorted(set(sizes))


def _lazy_tokenizer(model: str) -> Callable[[str], list[int]]:
    """Return what turns text into tokens; the model is opened when the first text comes."""
    opened: list[Callable[[str], list[int]]] = []

    def tokenize(text: str) -> list[int]:
        if not opened:
            from octavo.model.loader import load_model

            opened.append(load_model(model).tokenizer.encode)
        return opened[0](text)

    return tokenize
