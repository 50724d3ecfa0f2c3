"""How long a batch of requests takes from its arrival to its last token, again and again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.bench.report import engine_fields, latency_fields
from octavo.bench.run import Bench, Measured

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.bench.peaks import Peaks


@dataclass(frozen=True, slots=True)
class Latency:
    """The measured iterations."""

    latencies: list[float]
    """Seconds a batch."""
    measured: Measured

    def to_json(self, peaks: Peaks | None) -> dict[str, Any]:
        """Return all there is to say."""
        return {**latency_fields(self.latencies), **engine_fields(self.measured, peaks)}


def measure_latency(
    bench: Bench,
    *,
    batch_size: int,
    num_iters_warmup: int,
    num_iters: int,
    done: Callable[[int], None] = lambda _: None,
) -> Latency:
    """Run batches of new random prompts; those of the warm-up are not counted.

    ``done`` is called with 1 after each.
    """
    latencies, measured = [], Measured()
    for i in range(num_iters_warmup + num_iters):
        prompts = bench.prompts(batch_size)
        is_counted = i >= num_iters_warmup
        seconds = bench.run(prompts, measured if is_counted else Measured())
        if is_counted:
            latencies.append(seconds)
        done(1)
    return Latency(latencies, measured)
