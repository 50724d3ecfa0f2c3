"""What a bench found, as JSON of vLLM's fields and ours, and how near it came to the limits."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from octavo.bench.counts import Work
    from octavo.bench.peaks import Peaks
    from octavo.bench.run import Measured, Part

PERCENTILES: Final = (10, 25, 50, 75, 90, 99)


@dataclass(frozen=True, slots=True)
class Reached:
    """The rates of some counted work; 10^9 a second each, and each as a share of its limit."""

    gb_per_second: float
    gops: float
    """Of integers."""
    gflops: float
    memory_percent: float | None
    dot_percent: float | None
    fma_percent: float | None

    @classmethod
    def of(cls, work: Work, seconds: float, peaks: Peaks | None) -> Reached:
        """Return what ``work`` in ``seconds`` is; no shares without ``peaks``."""
        gb, gops, gflops = (
            count / seconds / 1e9 for count in (work.num_bytes, work.int_ops, work.float_ops)
        )
        if peaks is None:
            return cls(gb, gops, gflops, None, None, None)
        return cls(
            gb,
            gops,
            gflops,
            memory_percent=100 * gb / peaks.read_gb,
            dot_percent=100 * gops / peaks.dot_gops,
            fma_percent=100 * gflops / peaks.fma_gflops,
        )


@dataclass(frozen=True, slots=True)
class Point:
    """A dot of the roofline."""

    name: str
    work: Work
    seconds: float


def latency_fields(latencies: Sequence[float]) -> dict[str, Any]:
    """Return vLLM's fields of ``bench latency``, seconds a batch."""
    values = np.percentile(latencies, PERCENTILES).tolist()
    return {
        "avg_latency": float(np.mean(latencies)),
        "latencies": list(latencies),
        "percentiles": {str(q): value for q, value in zip(PERCENTILES, values, strict=True)},
    }


def throughput_fields(seconds: float, num_requests: int, num_tokens: int) -> dict[str, Any]:
    """Return vLLM's fields of ``bench throughput``; tokens are the prompts' and the answers'."""
    return {
        "elapsed_time": seconds,
        "num_requests": num_requests,
        "total_num_tokens": num_tokens,
        "requests_per_second": num_requests / seconds,
        "tokens_per_second": num_tokens / seconds,
    }


def engine_fields(measured: Measured, peaks: Peaks | None) -> dict[str, Any]:
    """Return what vLLM does not say: for prefill and for decode the rate and where time went."""
    return {
        "prefill": _part_fields(measured.prefill, peaks),
        "decode": _part_fields(measured.decode, peaks),
        "peaks": None if peaks is None else asdict(peaks),
    }


def _part_fields(part: Part, peaks: Peaks | None) -> dict[str, Any]:
    """Return what is known of one kind of step; rates and shares are None or empty without any."""
    is_counted = part.num_steps and part.work.num_bytes
    return {
        "num_steps": part.num_steps,
        "num_tokens": part.num_tokens,
        "seconds": part.seconds,
        "tokens_per_second": part.tokens_per_second,
        "engine_overhead": part.engine_overhead,
        "shares": part.shares(),
        "forward_shares": part.phase_shares(),
        "reached": asdict(Reached.of(part.work, part.seconds, peaks)) if is_counted else None,
    }


def points(measured: Measured) -> list[Point]:
    """Return prefill and decode, as far as there were any and their work was counted."""
    return [
        Point(name, part.work, part.seconds)
        for name, part in (("prefill", measured.prefill), ("decode", measured.decode))
        if part.num_steps and part.work.num_bytes
    ]


def engine_lines(measured: Measured, peaks: Peaks | None) -> Iterator[str]:
    """Yield `engine_fields` in words."""
    for name, part in (("prefill", measured.prefill), ("decode", measured.decode)):
        rate = part.tokens_per_second
        if rate is None:
            continue
        steps = "1 step" if part.num_steps == 1 else f"{part.num_steps} steps"
        yield f"{name}: {rate:,.1f} tok/s ({part.num_tokens:,} tokens in {steps})"
        yield "  of a step: " + _shares(part.shares())
        if part.phases:
            yield "  of its forward pass: " + _shares(part.phase_shares())
        if part.engine_overhead is not None:
            yield f"  outside compiled code: {100 * part.engine_overhead:.1f} %"
        if part.work.num_bytes:
            yield f"  reached: {reached_text(Reached.of(part.work, part.seconds, peaks))}"
    if peaks is not None:
        yield peak_line(peaks)


def peak_line(peaks: Peaks) -> str:
    """Return the machine's limits in words."""
    return (
        f"limits of {peaks.num_threads} threads: {peaks.read_gb:.1f} GB/s read, "
        f"{peaks.dot_gops:,.0f} GOPS byte dot, {peaks.fma_gflops:,.0f} GFLOPS float32"
    )


def reached_text(reached: Reached) -> str:
    """Return rates and shares in words."""
    rates = (
        (f"{reached.gb_per_second:.1f} GB/s", reached.memory_percent),
        (f"{reached.gops:,.0f} GOPS", reached.dot_percent),
        (f"{reached.gflops:,.1f} GFLOPS", reached.fma_percent),
    )
    return ", ".join(
        text if percent is None else f"{text} ({percent:.0f} %)" for text, percent in rates
    )


def _shares(shares: dict[str, float]) -> str:
    return ", ".join(f"{name} {100 * share:.1f} %" for name, share in shares.items())
