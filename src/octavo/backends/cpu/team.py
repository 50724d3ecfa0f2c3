"""A team of threads inside compiled code: barriers, shared work, and how a step is handed over.

Every thread runs the same function with its own number. A phase's work lies in numbered items;
`claim` gives the next one to whoever asks, so a thread that the machine holds up costs one item,
not its share. Results do not depend on who computes an item. A barrier ends the phase and sets
the numbering back to 0.

Waiting is a short spin, then a futex: a spin alone falls apart as soon as another process wants
the core. Where there is no futex (macOS) a waiter yields instead.

`sync` is one int64 array (`layout.py`).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import platform
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from octavo.backends.cpu.layout import (
    ARRIVED,
    COMPLETE,
    GENERATION,
    JOB,
    JOB_SLEEPERS,
    MARK,
    NEXT_ITEM,
    QUIT,
    SLEEPERS,
    TICKS,
)
from octavo.backends.cpu.machine import is_x86
from octavo.backends.cpu.simd import emit, fetch, kernel
from octavo.backends.cpu.simd.vectors import call

if TYPE_CHECKING:
    from octavo.backends.cpu.arrays import Member
    from octavo.backends.cpu.simd import Ints

SPINS = 500
"""Pauses before a waiter sleeps, about 12 us."""
JOB_SPINS = 8000
"""The same between two jobs, about 0.2 ms: what the caller does between two steps. To be woken up
takes a quarter of that."""
FETCHED_LINES = 2048
"""What a waiter fetches at most, in lines of 64 bytes."""

_HAS_FUTEX = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
_FUTEX = 202 if platform.machine() == "x86_64" else 98
_WAIT_PRIVATE, _WAKE_PRIVATE = 128, 129
_EVERYONE = 1 << 30
_IS_X86 = is_x86()

_syscall = types.ExternalFunction("syscall", types.int64(*[types.int64] * 7))
_sched_yield = types.ExternalFunction("sched_yield", types.int32())


# -- atomics --------------------------------------------------------------------------------------


def _element(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    return builder.gep(context.make_array(kind)(context, builder, array).data, [index])


@intrinsic
def atomic_add(typingctx, array, index, value):  # noqa: ARG001
    """Add to ``array[index]`` and return what it was."""

    def code(context, builder, signature, values):
        place = _element(context, builder, signature.args[0], values[0], values[1])
        return builder.atomic_rmw("add", place, values[2], "seq_cst")

    return types.int64(array, types.intp, types.int64), code


@intrinsic
def atomic_load(typingctx, array, index):  # noqa: ARG001
    """Return ``array[index]`` as it is now."""

    def code(context, builder, signature, values):
        place = _element(context, builder, signature.args[0], values[0], values[1])
        return builder.load_atomic(place, "seq_cst", 8)

    return types.int64(array, types.intp), code


@intrinsic
def atomic_store(typingctx, array, index, value):  # noqa: ARG001
    """Set ``array[index]``."""

    def code(context, builder, signature, values):
        place = _element(context, builder, signature.args[0], values[0], values[1])
        builder.store_atomic(values[2], place, "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.int64), code


@intrinsic
def _address(typingctx, array, index):  # noqa: ARG001
    def code(context, builder, signature, values):
        place = _element(context, builder, signature.args[0], values[0], values[1])
        return builder.ptrtoint(place, ir.IntType(64))

    return types.int64(array, types.intp), code


def _void(builder: Any, name: str) -> Any:
    kind = ir.FunctionType(ir.VoidType(), [])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [])
    return ir.Constant(ir.IntType(8).as_pointer(), None)


@emit(types.void)
def _pause_x86(builder):
    return _void(builder, "llvm.x86.sse2.pause")


@emit(types.void)
def _pause_none(_builder):
    return ir.Constant(ir.IntType(8).as_pointer(), None)


_pause = _pause_x86 if _IS_X86 else _pause_none

# -- rounding mode --------------------------------------------------------------------------------

_MXCSR = 0x1F80  # round to nearest, denormals kept, no exception raised


@emit(types.int32)
def _get_mode_x86(builder):
    place = cgutils.alloca_once(builder, ir.IntType(32))
    address = builder.bitcast(place, ir.IntType(8).as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [address.type])
    name = "llvm.x86.sse.stmxcsr"
    builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [address])
    return builder.load(place)


@emit(types.void, types.int32)
def _set_mode_x86(builder, mode):
    place = cgutils.alloca_once(builder, ir.IntType(32))
    builder.store(mode, place)
    address = builder.bitcast(place, ir.IntType(8).as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [address.type])
    name = "llvm.x86.sse.ldmxcsr"
    builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [address])
    return ir.Constant(ir.IntType(8).as_pointer(), None)


@kernel
def take_rounding_mode() -> Any:
    """Set this thread to IEEE's defaults, which other libraries change; return what it had."""
    if _IS_X86:
        mode = _get_mode_x86()
        _set_mode_x86(np.int32(_MXCSR))
        return mode
    return np.int32(0)


@kernel
def restore_rounding_mode(mode: int) -> None:
    """Set back what `take_rounding_mode` returned."""
    if _IS_X86:
        _set_mode_x86(np.int32(mode))


# -- waiting --------------------------------------------------------------------------------------


@kernel
def _wait_for_change(sync: Any, index: int, seen: int, sleepers: int, spins: int) -> None:
    """Return once ``sync[index]`` is no longer ``seen``; ``sleepers`` counts who sleeps on it."""
    for _ in range(spins):
        if atomic_load(sync, index) != seen:
            return
        _pause()
    if _HAS_FUTEX:
        atomic_add(sync, sleepers, 1)
        address, low = _address(sync, index), seen & 0xFFFFFFFF
        while atomic_load(sync, index) == seen:
            _syscall(_FUTEX, address, _WAIT_PRIVATE, low, 0, 0, 0)
        atomic_add(sync, sleepers, -1)
    else:
        while atomic_load(sync, index) == seen:
            _sched_yield()


@kernel
def _change(sync: Any, index: int, sleepers: int) -> None:
    """Add 1 to ``sync[index]`` and wake whoever sleeps on it."""
    atomic_add(sync, index, 1)
    if _HAS_FUTEX and atomic_load(sync, sleepers) > 0:
        _syscall(_FUTEX, _address(sync, index), _WAKE_PRIVATE, _EVERYONE, 0, 0, 0)


@emit(types.int64)
def _clock(builder):
    # rdtsc; on ARM CNTVCT_EL0. Both run evenly. LLVM puts 0 where a CPU has no such counter.
    return call(builder, "llvm.readcyclecounter", ir.IntType(64))


@kernel
def _arrive(sync: Any, num_threads: int) -> Any:
    """Say that this thread is here; return whether it is the last, and has let the others go."""
    if atomic_add(sync, ARRIVED, 1) + 1 < num_threads:
        return False
    atomic_store(sync, ARRIVED, 0)
    atomic_store(sync, NEXT_ITEM, 0)
    sync[COMPLETE] = _clock()
    _change(sync, GENERATION, SLEEPERS)
    return True


@kernel
def barrier(sync: Any, num_threads: int) -> None:
    """Wait until every thread is here; the next phase's items count from 0."""
    generation = atomic_load(sync, GENERATION)
    if not _arrive(sync, num_threads):
        _wait_for_change(sync, GENERATION, generation, SLEEPERS, SPINS)


@kernel
def barrier_fetching(sync: Any, num_threads: int, arena: Ints, ahead: int) -> None:
    """As `barrier`; who waits fetches what comes next, ``arena`` from ``ahead`` on.

    Where one token is computed the memory would rest while few have anything to do.
    """
    generation = atomic_load(sync, GENERATION)
    if _arrive(sync, num_threads):
        return
    for line in range(FETCHED_LINES):
        if atomic_load(sync, GENERATION) != generation:
            return
        fetch(arena, ahead + line * 64)
    _wait_for_change(sync, GENERATION, generation, SLEEPERS, SPINS)


@kernel
def claim(sync: Any) -> Any:
    """Return the number of the next item of this phase that nobody has taken."""
    return atomic_add(sync, NEXT_ITEM, 1)


# -- where the time goes --------------------------------------------------------------------------


@kernel
def begin_phases(me: Member) -> None:
    """Start the clock of a step's first phase."""
    if me.thread == 0:
        me.sync[MARK] = me.sync[MARK + 1] = _clock()


@kernel
def end_phase(me: Member, phase: int, arena: Ints, ahead: int) -> None:
    """Wait as `barrier_fetching` does; thread 0 counts its work since the last end, and the rest as
    waiting.

    A phase lasts from one barrier's completion to the next one's. Thread 0 may wake up when others
    are well in the next phase: that is waiting of the next phase.
    """
    if me.thread != 0:
        barrier_fetching(me.sync, me.num_threads, arena, ahead)
        return
    work = _clock() - me.sync[MARK]
    barrier_fetching(me.sync, me.num_threads, arena, ahead)
    complete = me.sync[COMPLETE]
    me.sync[TICKS + 2 * phase] += work
    me.sync[TICKS + 2 * phase + 1] += complete - me.sync[MARK + 1] - work
    me.sync[MARK] = _clock()
    me.sync[MARK + 1] = complete


# -- a step is handed over ------------------------------------------------------------------------


@kernel
def post_job(sync: Any) -> None:
    """Let every worker run the next step."""
    _change(sync, JOB, JOB_SLEEPERS)


@kernel
def post_quit(sync: Any) -> None:
    """Let every worker leave."""
    atomic_store(sync, QUIT, 1)
    _change(sync, JOB, JOB_SLEEPERS)


@kernel
def wait_for_job(sync: Any, seen: int) -> Any:
    """Wait for the job after the ``seen``-th; return whether there is one."""
    _wait_for_change(sync, JOB, seen, JOB_SLEEPERS, JOB_SPINS)
    return atomic_load(sync, QUIT) == 0
