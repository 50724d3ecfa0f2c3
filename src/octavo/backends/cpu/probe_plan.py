"""What the probes of the machine's limits and who runs them agree on: names and sizes.

Here, and not beside the probes, because compiled code is stamped with the files under ``backends``
and its own, and because who finds it compiled needs no Numba.
"""

from __future__ import annotations

from typing import Final

from octavo.backends.cpu.machine import HAS_AVX512

READ, DOT, FMA = range(3)

DOT_CHAINS: Final = 12 if HAS_AVX512 else 3
FMA_CHAINS: Final = 16 if HAS_AVX512 else 6
"""Accumulators that do not wait for each other: what fits into the registers beside operands."""
OPS_PER_DOT: Final = 128 * DOT_CHAINS
"""Of one turn of the loop: a vector has 64 products and as many additions."""
OPS_PER_FMA: Final = 32 * FMA_CHAINS
SEEDS: Final = 64
"""Vectors that the arithmetic begins with."""

VECTORS: Final = 16
"""Of 64 bytes, read at a turn of the loop."""
READ_UNIT: Final = 1 << 20
"""Bytes that a thread takes at a time, as the kernels take items: one held up costs one of them."""
SINK: Final = 16 * VECTORS
"""Floats that a thread writes: as many as any probe has accumulators."""
