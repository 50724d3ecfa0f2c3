"""`octavo bench latency` and `throughput`: how fast the engine is, with vLLM's flags and fields."""

from collections.abc import Callable
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
    progress,
)
from octavo.cli.options import engine_options
from octavo.cli.terminal import open_llm, say, say_faults

if TYPE_CHECKING:
    from octavo.bench.latency import Latency
    from octavo.bench.run import Bench
    from octavo.bench.throughput import Throughput

InputLen = Annotated[int, typer.Option(min=1, help="Tokens of a prompt, random ones.")]
OutputLen = Annotated[int, typer.Option(min=1, help="Tokens of an answer; nothing ends it before.")]
Choices = Annotated[int, typer.Option("--n", min=1, help="Answers to a prompt.")]
Temperature = Annotated[
    float, typer.Option(min=0.0, help="Divides the logits; 0 takes the likeliest token.")
]
Detokenize = Annotated[
    bool, typer.Option("--detokenize/--disable-detokenize", help="Make text of the answers.")
]

# As vLLM's: prompts that were found in the cache would not be computed.
_engine_flags = engine_options(enable_prefix_caching=False)


@_engine_flags
def latency(
    *,
    input_len: InputLen = 32,
    output_len: OutputLen = 128,
    batch_size: Annotated[int, typer.Option(min=1, help="Requests that come together.")] = 8,
    n: Choices = 1,
    num_iters_warmup: Annotated[int, typer.Option(min=0, help="Batches before the first.")] = 2,
    num_iters: Annotated[int, typer.Option(min=1, help="Batches that are measured.")] = 10,
    temperature: Temperature = 1.0,
    detokenize: Detokenize = True,
    peaks: MeasurePeaks = True,
    as_json: AsJson = False,
    output_json: OutputJson = None,
    plot: Plot = None,
    engine: dict[str, Any],
) -> None:
    """Measure how long a batch of requests takes from its arrival to its last token.

    Flags and JSON fields are those of `vllm bench latency`; there are more fields.
    """

    def measure(bench: "Bench") -> "Latency":
        from octavo.bench.latency import measure_latency

        with progress("batches", num_iters_warmup + num_iters) as done:
            return measure_latency(
                bench, batch_size=batch_size, num_iters_warmup=num_iters_warmup,
                num_iters=num_iters, done=done,
            )  # fmt: skip

    def headline(fields: dict[str, Any]) -> str:
        percentiles = (f"{q} % {value:.3f} s" for q, value in fields["percentiles"].items())
        return f"latency: {fields['avg_latency']:.3f} s on average, {', '.join(percentiles)}"

    lengths = {"input_len": input_len, "output_len": output_len, "n": n}
    _run(
        engine, {**lengths, "temperature": temperature, "detokenize": detokenize}, measure,
        headline, peaks=peaks, as_json=as_json, output_json=output_json, plot=plot,
    )  # fmt: skip


@_engine_flags
def throughput(
    *,
    num_prompts: Annotated[int, typer.Option(min=1, help="Requests, all there at once.")] = 64,
    input_len: InputLen = 128,
    output_len: OutputLen = 32,
    n: Choices = 1,
    temperature: Temperature = 1.0,
    detokenize: Detokenize = True,
    peaks: MeasurePeaks = True,
    as_json: AsJson = False,
    output_json: OutputJson = None,
    plot: Plot = None,
    engine: dict[str, Any],
) -> None:
    """Measure how many requests and tokens a second the engine does.

    Flags and JSON fields are those of `vllm bench throughput`; there are more fields.
    """

    def measure(bench: "Bench") -> "Throughput":
        from octavo.bench.throughput import measure_throughput

        with progress("answers", num_prompts * n) as done:
            return measure_throughput(
                bench, num_prompts=num_prompts, input_len=input_len, output_len=output_len, n=n,
                done=done,
            )  # fmt: skip

    def headline(fields: dict[str, Any]) -> str:
        return (
            f"throughput: {fields['requests_per_second']:.2f} requests/s, "
            f"{fields['tokens_per_second']:,.1f} tok/s of prompts and answers "
            f"({fields['num_requests']} requests in {fields['elapsed_time']:.2f} s)"
        )

    lengths = {"input_len": input_len, "output_len": output_len, "n": n}
    _run(
        engine, {**lengths, "temperature": temperature, "detokenize": detokenize}, measure,
        headline, peaks=peaks, as_json=as_json, output_json=output_json, plot=plot,
    )  # fmt: skip


def _run(
    engine: dict[str, Any], work: dict[str, Any],
    measure: "Callable[[Bench], Latency | Throughput]", headline: Callable[[dict[str, Any]], str],
    *, peaks: bool, as_json: bool, output_json: Path | None, plot: Path | None,
) -> None:  # fmt: skip
    """Open an engine, measure it, then the machine, and say what came out."""
    check_outputs(output_json, plot, peaks)
    from octavo.bench.report import engine_lines, points
    from octavo.bench.run import Bench
    from octavo.engine.llm import LLM

    llm = open_llm(LLM, engine)
    bench = Bench(llm, seed=engine["seed"], **work)
    if peaks and bench.backend is None:
        say("only the cpu backend's work is counted: no limits are measured")
    found = measure(bench)
    limits = measured_peaks(bench.backend.num_threads) if peaks and bench.backend else None
    say_faults(llm.faults)
    fields = found.to_json(limits)
    deliver(fields, [headline(fields), *engine_lines(found.measured, limits)], as_json, output_json)
    draw(points(found.measured), limits, plot)
