"""`octavo bench kernels`: matrix products and attention one by one, beside the machine's limits."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.bench_output import (
    AsJson,
    MeasurePeaks,
    OutputJson,
    Plot,
    check_outputs,
    deliver,
    draw,
    measured_peaks,
)
from octavo.cli.options import engine_options
from octavo.cli.terminal import open_llm, table, table_console
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from octavo.backends.cpu.backend import CpuBackend
    from octavo.bench.kernels import KernelResult
    from octavo.bench.peaks import Peaks

_MOST = 1 << 20  # rows, tokens of context


@engine_options()
def kernels(
    *,
    rows: Annotated[str, typer.Option(help="Rows of the products, with commas.")] = "1,512",
    contexts: Annotated[
        str | None,
        typer.Option(
            help="Tokens that attention sees, with commas. "
            "[default: 128, 512 and 4096, as far as the model goes]",
        ),
    ] = None,
    scattered: Annotated[
        bool, typer.Option("--scattered", help="A sequence's blocks lie all over the cache.")
    ] = False,
    repeats: Annotated[int, typer.Option(min=1, help="Steps of which the best counts.")] = 5,
    peaks: MeasurePeaks = True,
    as_json: AsJson = False,
    output_json: OutputJson = None,
    plot: Plot = None,
    engine: dict[str, Any],
) -> None:
    """Measure the matrix products and attention one by one, beside the machine's limits.

    A product is that of all layers together; the head's has 64 rows at most.
    """
    check_outputs(output_json, plot, peaks)
    counts = _numbers(rows, "rows")
    lengths = None if contexts is None else _numbers(contexts, "contexts")
    from octavo.bench.kernels import KernelBench

    backend = _backend(engine)
    bench = KernelBench(backend, repeats=repeats, scattered=scattered)
    if lengths is None:
        lengths = [length for length in (128, 512, 4096) if length <= bench.longest]
    found = [result for count in counts for result in bench.products(count)]
    found += [result for length in lengths for result in bench.attention(length)]
    limits = measured_peaks(backend.num_threads) if peaks else None
    _deliver(found, limits, as_json, output_json)
    draw([result.point for result in found], limits, plot)


def _backend(engine: dict[str, Any]) -> "CpuBackend":
    from octavo.bench.run import cpu_backend
    from octavo.engine.llm import LLM

    backend = cpu_backend(open_llm(LLM, engine))
    if backend is None:
        raise ConfigError(
            f"backend is {engine['backend']!r}; only the cpu backend has kernels to measure",
            param="backend",
        )
    return backend


def _numbers(text: str, param: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and 1 <= int(word) <= _MOST for word in words):
        raise ConfigError(
            f"{param} is {text!r}; it must be whole numbers from 1 to {_MOST}, with commas",
            param=param,
        )
    return list(dict.fromkeys(map(int, words)))


def _deliver(
    found: "Sequence[KernelResult]", limits: "Peaks | None", as_json: bool, path: Path | None
) -> None:
    from octavo.bench.report import peak_line

    kernels = [result.to_json(limits) for result in found]
    fields = {"kernels": kernels, "peaks": None if limits is None else dataclasses.asdict(limits)}
    deliver(fields, [] if limits is None else [peak_line(limits)], as_json, path)
    if as_json:
        return
    columns = ("kernel", "size", "M", "ms", "GB/s", "GOPS", "GFLOPS", "% memory", "% dot", "% fma")
    printed = table(*columns, numeric=columns[2:])
    for each in kernels:
        rates = [each[name] for name in ("gb_per_second", "gops", "gflops")]
        shares = [each[name] for name in ("memory_percent", "dot_percent", "fma_percent")]
        printed.add_row(
            each["kernel"],
            each["size"],
            str(each["num_rows"]),
            f"{1e3 * each['seconds']:.3f}",
            *(f"{rate:,.1f}" if rate else "" for rate in rates),
            *(f"{share:.0f}" if share else "" for share in shares),
        )
    table_console().print(printed)
