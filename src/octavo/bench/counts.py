"""What a step has to move and to compute at the least, counted from the model: no clock, no guess.

Bytes are those of the weights as they are packed, each read once a step, and of the keys and values
that are seen (read once) and stored. Activations are not counted: they stay in caches. A product of
[M, K] with [N, K] is 2 N K M operations: of integers where the weights are quantised, else of
float32; in N are the rows that packing puts between q, k and v where they are no multiples of 64.
Attention is 4 head_dim operations for each head, query token and token it sees.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from octavo.backends.cpu import plan as p

if TYPE_CHECKING:
    from collections.abc import Iterable

    from octavo.backends.cpu.backend import CpuBackend

_BYTES_PER_VALUE: Final = 2  # keys and values are float16
_COLUMNS: Final = {"qkv": p.QKV, "output": p.OUTPUT, "feed": p.FEED, "down": p.DOWN}


@dataclass(slots=True)
class Work:
    """Bytes from and to memory, operations of integers, operations of float32."""

    num_bytes: int = 0
    int_ops: int = 0
    float_ops: int = 0

    def add(self, other: Work) -> None:
        """Count ``other`` too."""
        self.num_bytes += other.num_bytes
        self.int_ops += other.int_ops
        self.float_ops += other.float_ops


class ModelWork:
    """Counts the work of steps of one model on the cpu backend."""

    def __init__(self, backend: CpuBackend) -> None:
        spec = backend.spec
        self._packed = packed = backend.packed
        # Matrices lie one after another in the arena, each with its scales behind it.
        self._sizes = np.diff(np.append(packed.matrices[:, p.PLACE], packed.arena.size))
        self._kv_bytes = 2 * spec.num_kv_heads * spec.head_dim * _BYTES_PER_VALUE  # a layer's token
        self._attended = 4 * spec.num_heads * spec.head_dim
        self._windows = Counter(layer.window for layer in spec.layers)
        self._layers = Work()  # of one row through all layers' matrices
        for name in _COLUMNS:
            self._layers.add(self.phase(name, 1))
        self._head = self.phase("head", 1)

    def matrices(self, name: str) -> list[range]:
        """Return a phase's matrices, those of ``qkv`` say: of each layer, or the head's."""
        if name == "head":
            rows, column = [self._packed.model], p.HEAD
        else:
            rows, column = list(self._packed.layers), _COLUMNS[name]
        return [range(int(row[column]), int(row[column] + row[column + 1])) for row in rows]

    def phase(self, name: str, num_rows: int) -> Work:
        """Return the work of a phase that multiplies ``num_rows`` rows, over all layers."""
        work = Work()
        for i in itertools.chain.from_iterable(self.matrices(name)):
            matrix = self._packed.matrices[i]
            ops = 2 * int(matrix[p.ROWS]) * int(matrix[p.COLUMNS]) * num_rows
            is_int = bool(matrix[p.KIND] <= p.U8)
            work.add(Work(int(self._sizes[i]), ops * is_int, ops * (not is_int)))
        return work

    def shape(self, name: str) -> tuple[int, int]:
        """Return (N, K) of such a phase in the first layer: outputs and inputs."""
        first = self._packed.matrices[self.matrices(name)[0]]
        return int(first[:, p.ROWS].sum()), int(first[0, p.COLUMNS])

    def attention(self, num_tokens: int, context: int) -> Work:
        """Return the work of a sequence's last ``num_tokens`` tokens where it has ``context``."""
        work = Work()
        first = context - num_tokens + 1  # what the first of them sees, itself included
        for window, num_layers in self._windows.items():
            most = context if window is None else window
            rising = max(0, min(context, most) - first + 1)
            seen = rising * (2 * first + rising - 1) // 2 + (num_tokens - rising) * most
            read = context - max(0, first - most)
            work.num_bytes += num_layers * self._kv_bytes * (read + num_tokens)
            work.float_ops += num_layers * self._attended * seen
        return work

    def step(self, sequences: Iterable[tuple[int, int]], num_rows: int) -> Work:
        """Return a whole step's work: (new tokens, all tokens) a sequence; rows of logits."""
        work, num_tokens = Work(), 0
        for new, context in sequences:
            num_tokens += new
            work.add(self.attention(new, context))
        for each, count in ((self._layers, num_tokens), (self._head, num_rows)):
            work.add(Work(each.num_bytes, each.int_ops * count, each.float_ops * count))
        return work
