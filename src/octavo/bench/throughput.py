"""How many requests and tokens a second an engine does when all requests are there at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.bench.report import engine_fields, throughput_fields
from octavo.bench.run import Bench, Measured

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.bench.peaks import Peaks


@dataclass(frozen=True, slots=True)
class Throughput:
    """One run of all requests."""

    num_requests: int
    num_tokens: int
    """Of prompts and answers together."""
    measured: Measured

    def to_json(self, peaks: Peaks | None) -> dict[str, Any]:
        """Return all there is to say."""
        fields = throughput_fields(self.measured.seconds, self.num_requests, self.num_tokens)
        return {**fields, **engine_fields(self.measured, peaks)}


def measure_throughput(
    bench: Bench,
    *,
    num_prompts: int,
    input_len: int,
    output_len: int,
    n: int = 1,
    done: Callable[[int], None] = lambda _: None,
) -> Throughput:
    """Answer ``num_prompts`` random prompts; one more before them, not counted, warms up.

    ``done`` is told how many answers have ended.
    """
    bench.run(bench.prompts(1), Measured())
    measured = Measured()
    bench.run(bench.prompts(num_prompts), measured, done)
    return Throughput(num_prompts, num_prompts * (input_len + n * output_len), measured)
