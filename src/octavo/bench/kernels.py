"""The kernels one by one, against the machine's limits: what the step's own counters say of them.

Nothing is compiled for this. A batch made for the purpose goes through the engine's forward pass,
and each phase's time is read from the ticks, its waiting included, in the best of a few steps.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from octavo.backends.base import InputBatch
from octavo.bench.counts import ModelWork, Work
from octavo.bench.report import Point, Reached
from octavo.engine.scheduler import MAX_SCORED_TOKENS
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from octavo.backends.cpu.backend import CpuBackend
    from octavo.bench.peaks import Peaks

MOST_PREFILL: Final = 512
"""Query tokens of attention's prefill: the engine's usual step."""
MOST_HEAD_ROWS: Final = MAX_SCORED_TOKENS
"""Rows of logits in one step: as many as the engine asks of one prompt."""


@dataclass(frozen=True, slots=True)
class KernelResult:
    """One kernel on one size of work, over all layers of a step."""

    kernel: str
    """A phase's name."""
    size: str
    num_rows: int
    """Rows of the product, query tokens of attention."""
    seconds: float
    work: Work

    @property
    def point(self) -> Point:
        """Where it lies in the roofline."""
        return Point(f"{self.kernel} {self.size}, M = {self.num_rows}", self.work, self.seconds)

    def to_json(self, peaks: Peaks | None) -> dict[str, Any]:
        """Return what was measured, and the rates."""
        return {
            "kernel": self.kernel,
            "size": self.size,
            "num_rows": self.num_rows,
            "seconds": self.seconds,
            **asdict(self.work),
            **asdict(Reached.of(self.work, self.seconds, peaks)),
        }


class KernelBench:
    """Measures the kernels of one backend, which computes nothing else meanwhile.

    A sequence has the first blocks of the cache, with ``scattered`` any, in no order.
    """

    def __init__(self, backend: CpuBackend, *, repeats: int = 5, scattered: bool = False) -> None:
        self._backend = backend
        self._work = ModelWork(backend)
        self._repeats = repeats
        self._rng = np.random.default_rng(0)
        blocks = np.arange(backend.num_blocks, dtype=np.int32)
        self._blocks = self._rng.permutation(blocks) if scattered else blocks
        self.longest = min(backend.spec.context_length, backend.block_size * backend.num_blocks)
        """Most tokens of a context."""

    def products(self, num_rows: int) -> Iterator[KernelResult]:
        """Yield each matrix product of a step of ``num_rows`` tokens, the head's last."""
        seconds = self._seconds(num_rows, num_rows)
        for name in ("qkv", "output", "feed", "down", "head"):
            outputs, inputs = self._work.shape(name)
            count = min(num_rows, MOST_HEAD_ROWS) if name == "head" else num_rows
            work = self._work.phase(name, count)
            yield KernelResult(name, f"{outputs} x {inputs}", count, seconds[name], work)

    def attention(self, context: int) -> Iterator[KernelResult]:
        """Yield attention to ``context`` tokens: of the last one, then of the last 512 or all."""
        for num_tokens in dict.fromkeys((1, min(context, MOST_PREFILL))):
            seconds = self._seconds(num_tokens, context)
            total = seconds["attention"] + seconds["merge"]
            work = self._work.attention(num_tokens, context)
            yield KernelResult("attention", f"context {context}", num_tokens, total, work)

    def _seconds(self, num_tokens: int, context: int) -> dict[str, float]:
        """Return each phase's seconds in the quickest of some steps of a sequence's last tokens."""
        batch = self._batch(num_tokens, context)
        self._backend.execute(batch)  # warm
        steps = []
        for _ in range(self._repeats):
            before = self._backend.counters()
            self._backend.execute(batch)
            steps.append(self._backend.counters() - before)
        best = min(steps, key=lambda step: step.forward_seconds)
        if not best.ticks.any():
            raise ConfigError("this CPU has no counter that a program may read; nothing to report")
        return {name: sum(spent) for name, spent in best.phase_seconds().items()}

    def _batch(self, num_tokens: int, context: int) -> InputBatch:
        backend = self._backend
        if context > self.longest:
            raise ConfigError(
                f"a context of {context} tokens is more than the {self.longest} that the model or "
                "its cache has; ask for less (--contexts, --rows), or for more (--max-model-len, "
                "--kv-cache-memory)",
                param="contexts",
            )
        size = backend.block_size
        positions = np.arange(context - num_tokens, context, dtype=np.int32)
        table = self._blocks[: -(-context // size)]
        self._fill(table)
        return InputBatch(
            input_ids=positions % backend.spec.vocab_size,
            positions=positions,
            slot_mapping=table[positions // size] * size + positions % size,
            query_start_loc=np.array([0, num_tokens], np.int32),
            seq_lens=np.array([context], np.int32),
            block_tables=table[None, :],
            logits_indices=np.arange(num_tokens, dtype=np.int32)[-MOST_HEAD_ROWS:],
        )

    def _fill(self, blocks: np.ndarray[Any, np.dtype[np.int32]]) -> None:
        """Write numbers into blocks: memory that nobody has written is read from a cache."""
        for store in (self._backend.keys, self._backend.values):
            block = np.asarray(self._rng.normal(0, 1, store.shape[-1]), np.float16)
            store[:, :, blocks] = block.view(np.uint16)
