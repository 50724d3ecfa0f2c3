"""CpuBackend: a model's packed weights, its KV arrays, and the team of threads that computes."""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from octavo.backends.cpu import plan as p
from octavo.backends.cpu.compiled import Compiled
from octavo.backends.cpu.counters import Counters
from octavo.backends.cpu.layout import BLOCK, CLAMPED, NUM_TICKS, TICKS
from octavo.backends.cpu.packing import in_small_pages
from octavo.backends.cpu.sampling_plan import NUM_ROWS
from octavo.backends.cpu.weights import pack_model
from octavo.backends.cpu.workspace import Workspace
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from octavo.backends.base import InputBatch
    from octavo.backends.cpu.object_code import Call, EntryPoint
    from octavo.backends.cpu.packing import Tensor
    from octavo.backends.cpu.weights import PackedModel
    from octavo.model.spec import ModelSpec

MOST_THREADS: Final = 64

STEP: Final = Compiled("octavo.backends.cpu.decoder", "enter", what="the kernels")


class CpuBackend:
    """The compiled forward pass over a paged float16 KV cache of blocks of 16 tokens.

    ``tensors`` are named as in GGUF. Results are the same to the last bit for any number of
    threads, any batch and any instruction set. ``quantization="int8"`` rounds 16-bit and float32
    matrices to 8 bits; None leaves every weight as its file has it. Not for two threads at once.
    Raises `ConfigError` for what the kernels do not compute.
    """

    def __init__(
        self,
        spec: ModelSpec,
        tensors: Mapping[str, Tensor],
        *,
        num_blocks: int,
        block_size: int = BLOCK,
        num_threads: int | None = None,
        quantization: str | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        if block_size != BLOCK:
            raise ConfigError(
                f"block_size is {block_size}; the cpu backend computes with blocks of {BLOCK} "
                "tokens (the reference backend takes any size)",
                param="block_size",
            )
        if spec.head_dim % 16:
            raise ConfigError(
                f"the model's heads have {spec.head_dim} dimensions; the cpu backend computes "
                "multiples of 16: take the reference backend, which computes any (--backend "
                "reference)",
                param="backend",
            )
        self.spec = spec
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.num_threads = min(num_threads or usable_cores(), MOST_THREADS)
        self._model = pack_model(spec, tensors, num_blocks, is_rounded=quantization == "int8")
        shape = (spec.num_layers, spec.num_kv_heads, num_blocks, spec.head_dim * BLOCK)
        self.keys = in_small_pages(shape, np.uint16)
        """``[layer, kv_head, block, head_dim, 16]``, the bits of float16."""
        self.values = in_small_pages(shape, np.uint16)
        """``[layer, kv_head, block, 16, head_dim]``."""
        self._team: Team | None = None
        self._workspace: Workspace | None = None
        self._say = say
        self._forward_seconds = self._sampling_seconds = 0.0

    def prepare(self) -> None:
        """Compile or load the kernels now, and call the team; else the first step does."""
        self._team_in(self._any_workspace())

    def execute(self, batch: InputBatch) -> NDArray[np.float32]:
        """Compute ``batch``; see `Backend.execute`."""
        workspace, team = self._ready_for(batch)
        workspace.load(batch)
        begin = time.perf_counter()
        team.run()
        self._forward_seconds += time.perf_counter() - begin
        return workspace.wanted_logits(len(batch.logits_indices), self.spec.vocab_size)

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (source, target), one after another."""
        for source, target in copies:
            for store in (self.keys, self.values):
                store[:, :, target] = store[:, :, source]

    @property
    def num_clamped(self) -> int:
        """How many keys and values lay beyond ±65504 and were stored as that."""
        return 0 if self._workspace is None else int(self._workspace.sync[CLAMPED])

    @property
    def packed(self) -> PackedModel:
        """The weights, as the kernels read them."""
        return self._model

    def counters(self) -> Counters:
        """Return what the compiled code has taken so far; a difference is what lay between."""
        ticks = np.zeros(NUM_TICKS, np.int64)
        if self._workspace is not None:
            ticks[:] = self._workspace.sync[TICKS : TICKS + NUM_TICKS]
        return Counters(ticks.reshape(-1, 2), self._forward_seconds, self._sampling_seconds)

    def close(self) -> None:
        """Send the threads home; the next step would call new ones."""
        if self._team is not None:
            self._team.close()
            self._team = None

    def sample(self, task: NDArray[np.int64]) -> None:
        """Let the team choose tokens; ``task`` and what it points to are `sampling.py`'s.

        May come before any step.
        """
        workspace = self._any_workspace()
        team = self._team_in(workspace)
        workspace.job[p.SAMPLING] = task.ctypes.data
        begin = time.perf_counter()
        team.run(alone=task[NUM_ROWS] == 1)
        self._sampling_seconds += time.perf_counter() - begin
        workspace.job[p.SAMPLING] = 0

    def _ready_for(self, batch: InputBatch) -> tuple[Workspace, Team]:
        """Return a workspace that holds the batch, and the team that works in it."""
        workspace = self._workspace
        if workspace is None or not workspace.holds(batch):
            self.close()
            grown = Workspace.for_batch(self._model, batch, self.num_threads, workspace)
            if workspace is not None:
                grown.sync[CLAMPED:] = workspace.sync[CLAMPED:]
            self._workspace = workspace = grown
        return workspace, self._team_in(workspace)

    def _any_workspace(self) -> Workspace:
        """Return the workspace that there is, or the smallest."""
        if self._workspace is None:
            self._workspace = Workspace.for_batch(self._model, None, self.num_threads, None)
        return self._workspace

    def _team_in(self, workspace: Workspace) -> Team:
        if self._team is None or self._team.pid != os.getpid():
            arrays = self._arrays(workspace)
            step = STEP.get((0, 0, *arrays), self._say)
            self._team = Team(step, self.num_threads, arrays)
        return self._team

    def _arrays(self, workspace: Workspace) -> tuple[NDArray[Any], ...]:
        """Return the arrays in the order in which `decoder.enter` takes them."""
        model, w = self._model, workspace
        return (
            *(w.sync, model.model, model.layers, model.matrices, model.arena, model.floats),
            *(model.reals, self.keys.reshape(-1), self.values.reshape(-1)),
            *(w.job, w.ids, w.positions, w.slots, w.starts, w.lens, w.tables, w.wanted),
            *(w.x, w.h, w.wide, w.y, w.codes, w.scales, w.sums, w.half_sums, w.row_starts),
            *(w.inner_codes, w.inner_scales, w.inner_sums, w.inner_half_sums),
            *(w.inner_row_starts, w.logits),
            *(w.items, w.parts, w.scratches, w.panels, w.seens, w.spares),
        )


class Team:
    """Threads that sit in the compiled step and wait for work: the caller's is one of them."""

    def __init__(
        self, step: EntryPoint, num_threads: int, arrays: tuple[NDArray[Any], ...]
    ) -> None:
        self._together = step.bind(0, num_threads, *arrays)
        self._alone = step.bind(0, 1, *arrays)
        self.pid = os.getpid()
        """A forked child has no threads of this team."""
        # Fresh numbers: a team counts its jobs from 0. From CLAMPED on they count for good.
        arrays[0][:CLAMPED] = 0
        self._threads = [
            threading.Thread(
                target=step.bind(i, num_threads, *arrays), name=f"octavo-{i}", daemon=True
            )
            for i in range(1, num_threads)
        ]
        for thread in self._threads:
            thread.start()
        self.close: Callable[[], object] = weakref.finalize(
            self, _send_home, step.bind(-1, num_threads, *arrays), self._threads, self.pid
        )

    def run(self, *, alone: bool = False) -> None:
        """Do one job; ``alone`` is the caller's thread by itself, which wakes nobody."""
        (self._alone if alone else self._together)()


def _send_home(dismiss: Call, threads: list[threading.Thread], pid: int) -> None:
    if pid == os.getpid():
        dismiss()
        for thread in threads:
            thread.join()


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
