"""The probe kernels: nothing but loads, byte dots or FMAs, as fast as the machine can.

An entry point of its own, compiled when a bench command first needs it. Everything it is made of
is in this file or under ``backends/``, so that the compiled code's stamp covers all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.backends.cpu.dots import DOT_U4
from octavo.backends.cpu.probe_plan import (
    DOT,
    DOT_CHAINS,
    FMA_CHAINS,
    READ,
    READ_UNIT,
    SEEDS,
    SINK,
    VECTORS,
)
from octavo.backends.cpu.simd import (
    fma,
    kernel,
    load_codes,
    load_f32,
    regs_f32,
    regs_i32,
    store_f32,
    to_f32,
    zero_i32,
)
from octavo.backends.cpu.team import barrier, claim

if TYPE_CHECKING:
    from octavo.backends.cpu.simd import Floats, Ints

_regs, _, _step, _finish = DOT_U4


@kernel
def _read(sync: Ints, memory: Ints, sink: Floats, sink_at: int) -> None:
    """Load ``memory``, each piece straight through."""
    total = regs_i32(1, VECTORS)
    first = claim(sync) * READ_UNIT
    while first + READ_UNIT <= memory.size:
        for at in range(first, first + READ_UNIT, VECTORS * 64):
            for v in range(VECTORS):
                total[0, v] = total[0, v] + load_codes(memory, at + v * 64)
        first = claim(sync) * READ_UNIT
    for v in range(VECTORS):  # what nobody reads the compiler would drop
        store_f32(sink, sink_at + v * 16, to_f32(total[0, v]))


@kernel
def _dot(turns: int, seeds: Ints, sink: Floats, sink_at: int) -> None:
    """Multiply 4-bit codes with bytes, by the instructions that the matrix products use.

    Each accumulator has weights of its own and every turn another x: where a dot is several
    instructions, the compiler would do what is the same for two of them only once.
    """
    weights = regs_i32(DOT_CHAINS, 1)
    for i in range(DOT_CHAINS):
        weights[i, 0] = load_codes(seeds, i * 64)
    total = _regs(DOT_CHAINS, 1)
    for turn in range(turns):
        x = load_codes(seeds, turn % SEEDS * 64)
        for i in range(DOT_CHAINS):
            total[i, 0] = _step(total[i, 0], weights[i, 0], x)
    for i in range(DOT_CHAINS):
        store_f32(sink, sink_at + i * 16, to_f32(_finish(total[i, 0], zero_i32())))


@kernel
def _fma(turns: int, seeds: Floats, sink: Floats, sink_at: int) -> None:
    weights, x = load_f32(seeds, 0), load_f32(seeds, 16)
    total = regs_f32(FMA_CHAINS, 1)
    for i in range(FMA_CHAINS):  # each begins otherwise, or the compiler would see that all are one
        total[i, 0] = load_f32(seeds, (2 + i) * 16)
    for _ in range(turns):
        for i in range(FMA_CHAINS):
            total[i, 0] = fma(weights, x, total[i, 0])
    for i in range(FMA_CHAINS):
        store_f32(sink, sink_at + i * 16, total[i, 0])


def probe(
    thread: int, num_threads: int, sync: Ints, what: int, turns: int, memory: Ints, seeds: Ints,
    reals: Floats, sink: Floats,
) -> None:  # fmt: skip
    """Begin when all threads are here, do one probe's work, end when all have.

    ``memory`` is shared out in pieces of `READ_UNIT`, arithmetic is done by each thread as often.
    """
    at = thread * SINK
    barrier(sync, num_threads)
    if what == READ:
        _read(sync, memory, sink, at)
    elif what == DOT:
        _dot(turns, seeds, sink, at)
    else:
        _fma(turns, reals, sink, at)
    barrier(sync, num_threads)
