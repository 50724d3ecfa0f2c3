"""The machine's limits, measured: how fast it reads memory, and how fast it computes at all.

The best of a few runs, for what the machine can do is asked, not what it did while others were
about. All threads begin together, and the last one's end is the end.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from octavo.backends.cpu.backend import usable_cores
from octavo.backends.cpu.compiled import Compiled
from octavo.backends.cpu.layout import ARRIVED, new_sync
from octavo.backends.cpu.packing import aligned
from octavo.backends.cpu.probe_plan import (
    DOT,
    FMA,
    OPS_PER_DOT,
    OPS_PER_FMA,
    READ,
    READ_UNIT,
    SEEDS,
    SINK,
)
from octavo.engine.memory import available_memory
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from numpy.typing import NDArray

PROBE: Final = Compiled("octavo.bench.probes", "probe", what="the probes of the machine's limits")

READ_BYTES: Final = 1 << 30
BEST_OF: Final = 5
_TURNS: Final = 1 << 22  # 20 to 40 ms on a server core


@dataclass(frozen=True, slots=True)
class Peaks:
    """What a number of threads together reach in the best case; 10^9 a second each."""

    num_threads: int
    read_gb: float
    """Bytes read from memory, not from a cache."""
    dot_gops: float
    """Integer operations of the byte dot, two for each product."""
    fma_gflops: float
    """Float32 operations, two for each fused multiplication and addition."""


def measure_peaks(
    num_threads: int | None = None,
    *,
    read_bytes: int = READ_BYTES,
    turns: int = _TURNS,
    best_of: int = BEST_OF,
    say: Callable[[str], None] | None = None,
) -> Peaks:
    """Measure the limits of ``num_threads`` threads, of all cores if None: a second or two.

    Raises `ConfigError` where there is no memory to read: smaller arrays would be read from caches.
    """
    threads = usable_cores() if num_threads is None else num_threads
    if available_memory() < read_bytes + (64 << 20):
        raise ConfigError(
            f"measuring how fast memory is read takes {read_bytes >> 20} MiB, and "
            f"{available_memory() >> 20} MiB are free; free some, or leave the peaks out "
            "(--no-peaks)",
            param="peaks",
        )
    memory = aligned(read_bytes, np.uint8)
    memory[:] = 1  # else every page would be the one page of zeros
    run = _Probe(threads, memory, say)

    def best(what: int, work: float) -> float:
        return work / min(run(what, turns) for _ in range(best_of)) / 1e9

    return Peaks(
        num_threads=threads,
        read_gb=best(READ, read_bytes // READ_UNIT * READ_UNIT),
        dot_gops=best(DOT, turns * OPS_PER_DOT * threads),
        fma_gflops=best(FMA, turns * OPS_PER_FMA * threads),
    )


class _Probe:
    """Runs one probe on all threads; returns its seconds."""

    def __init__(
        self, num_threads: int, memory: NDArray[np.uint8], say: Callable[[str], None] | None
    ) -> None:
        self._num_threads = num_threads
        seeds = aligned(SEEDS * 64, np.uint8)
        seeds[:] = np.arange(seeds.size) % 13 + 1
        reals = aligned(SEEDS * 16, np.float32)
        reals[:] = np.arange(reals.size) % 13 * 1e-3 + 1
        sink = aligned(num_threads * SINK, np.float32)
        self._arrays: tuple[NDArray[Any], ...] = (memory, seeds, reals, sink)
        self._probe = PROBE.get((0, 0, new_sync(), 0, 0, *self._arrays), say)

    def __call__(self, what: int, turns: int) -> float:
        sync, count = new_sync(), self._num_threads
        args: tuple[Any, ...] = (count, sync, what, turns, *self._arrays)
        threads = [
            threading.Thread(target=self._probe, args=(i, *args), daemon=True)
            for i in range(1, count)
        ]
        for thread in threads:
            thread.start()
        while sync[ARRIVED] < count - 1:  # an array's number is read anew each time
            time.sleep(1e-4)
        begin = time.perf_counter()
        self._probe(0, *args)
        seconds = time.perf_counter() - begin
        for thread in threads:
            thread.join()
        return seconds
