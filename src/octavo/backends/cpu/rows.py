"""CpuRows: lays out a step's rows for the sampling kernels, and reads what they chose.

It gives `NumpyRows`' bits. The arrays of a call are kept for the next one, and their addresses with
them: for one row, to make them anew took longer than to choose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from octavo.backends.cpu import sampling_plan as s
from octavo.backends.cpu.packing import padded
from octavo.sampling.logits import NOTHING_LEFT, TokenLogprobs, log, row_faults
from octavo.sampling.sampler import SamplerOutput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from octavo.backends.cpu.backend import CpuBackend
    from octavo.sampling.sampler import SamplingRow

_NO_TEMPERATURE: Final = 1e30
"""`logits.below_max` takes no higher one."""


_NO_IDS: Final = np.zeros(1, np.int32)
_NO_AMOUNTS: Final = np.zeros(1, np.float32)


class _Lists:
    """Lists of token ids, one behind another, and beside each id an amount."""

    def __init__(self) -> None:
        self._ids: list[NDArray[np.int32]] = []
        self._amounts: list[tuple[int, NDArray[np.float32]]] = []
        self.size = 0

    def add(self, ids: Any, amounts: Any = None) -> tuple[int, int]:
        """Append a list; return where it begins and how long it is."""
        array = np.asarray(ids, dtype=np.int32)
        if amounts is not None:
            self._amounts.append((self.size, np.asarray(amounts, dtype=np.float32)))
        self._ids.append(array)
        self.size += len(array)
        return self.size - len(array), len(array)

    def arrays(self) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return the ids and the amounts, one array each, never empty."""
        if not self.size:
            return _NO_IDS, _NO_AMOUNTS
        ids, amounts = np.concatenate(self._ids), _NO_AMOUNTS
        if self._amounts:
            amounts = np.zeros(self.size, np.float32)
            for start, values in self._amounts:
                amounts[start : start + len(values)] = values
        return ids, amounts


class _Tables:
    """What the kernels read and write of each row, for up to ``num_rows`` rows."""

    def __init__(self, num_rows: int, most: int) -> None:
        self.rows = np.zeros((num_rows, s.ROW_SIZE), np.int64)
        self.reals = np.zeros((num_rows, s.REAL_SIZE), np.float64)
        self.top_ids = np.zeros(num_rows * most, np.int32)
        self.top_values = np.zeros(num_rows * most, np.float32)

    def of(self, num_rows: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the integers and the reals of so many rows, all 0."""
        rows, reals = self.rows[:num_rows], self.reals[:num_rows]
        rows[:], reals[:] = 0, 0.0
        return rows, reals


class CpuRows:
    """Samples on the team of a `CpuBackend`, whatever vocabulary the logits have."""

    def __init__(self, backend: CpuBackend) -> None:
        self._backend = backend
        self._room = 0
        self._own: tuple[NDArray[Any], ...] = ()
        self._task = np.zeros(s.TASK_SIZE, np.int64)
        self._keep(_Tables(1, 1))

    def choose(
        self,
        logits: NDArray[np.float32],
        rows: Sequence[SamplingRow],
        numbers: NDArray[np.float64],
    ) -> SamplerOutput:
        """See `RowArithmetic`."""
        table, reals = self._tables_for(len(rows)).of(len(rows))
        lists = _Lists()
        table[:, s.IS_PLAIN] = 1
        most = 0
        for i, row in enumerate(rows):
            num_top = row.params.logprobs
            if num_top is not None:
                num_top = min(num_top, logits.shape[1])
                table[i, s.NUM_TOP] = 1 + num_top
                most = max(most, 1 + num_top)
            _lay_out(row, table[i], reals[i], lists)
        reals[:, s.NUMBER] = numbers
        tops = self._run(logits, lists, most)
        errors = row_faults(reals[:, s.LARGEST].tolist())
        token_ids: list[int] = table[:, s.TOKEN].tolist()
        for i, token_id in enumerate(token_ids):
            if token_id < 0 and errors[i] is None:
                errors[i] = NOTHING_LEFT
        logprobs: list[TokenLogprobs | None] = [None] * len(rows)
        if most:
            logprobs = _logprobs(table, reals, *tops)
        return SamplerOutput(token_ids, logprobs, errors)

    def compute_logprobs(
        self, logits: NDArray[np.float32], token_ids: Sequence[int], num_top: int
    ) -> list[TokenLogprobs | None]:
        """See `logits.compute_logprobs`."""
        if not len(logits):
            return []
        assert len(token_ids) == len(logits)
        # The kernels check nothing.
        assert min(token_ids) >= 0
        assert max(token_ids) < logits.shape[1]
        table, reals = self._tables_for(len(logits)).of(len(logits))
        most = 1 + min(num_top, logits.shape[1])
        table[:, s.MODE] = s.SCORED
        table[:, s.TOKEN] = token_ids
        table[:, s.NUM_TOP] = most
        return _logprobs(table, reals, *self._run(logits, _Lists(), most))

    def _run(
        self, logits: NDArray[np.float32], lists: _Lists, most: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Let the team work; return the likeliest ids and their logits, [rows, most].

        ``most`` is the largest `NUM_TOP` of the tables' rows.
        """
        num_rows, vocab_size = logits.shape
        if logits.dtype != np.float32 or logits.strides[1] != 4 or logits.strides[0] % 4:
            logits = np.ascontiguousarray(logits, np.float32)
        stride = logits.strides[0] // 4
        if stride < vocab_size:
            logits, stride = np.ascontiguousarray(logits), vocab_size
        most = max(1, most - 1)
        top_ids, top_values = self._tops_for(num_rows * most)
        ids, amounts = lists.arrays()
        if lists.size:
            assert ids.min() >= 0
            assert ids.max() < vocab_size
        self._room_for(vocab_size)
        task = self._task
        task[s.NUM_ROWS], task[s.VOCAB_SIZE], task[s.STRIDE] = num_rows, vocab_size, stride
        task[s.LISTS_SIZE], task[s.MOST] = len(ids), most
        task[s.LOGITS] = logits.ctypes.data
        task[s.LISTS], task[s.AMOUNTS] = ids.ctypes.data, amounts.ctypes.data
        self._backend.sample(task)
        shape, size = (num_rows, most), num_rows * most
        return top_ids[:size].reshape(shape), top_values[:size].reshape(shape)

    def _tables_for(self, num_rows: int) -> _Tables:
        if num_rows > len(self._tables.rows):
            self._keep(_Tables(1 << (num_rows - 1).bit_length(), 1))
        return self._tables

    def _tops_for(self, size: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        if size > self._tables.top_ids.size:
            self._tables.top_ids = np.zeros(size, np.int32)
            self._tables.top_values = np.zeros(size, np.float32)
            self._keep(self._tables)
        return self._tables.top_ids, self._tables.top_values

    def _keep(self, tables: _Tables) -> None:
        """Use these from now on; the task knows their addresses."""
        self._tables = tables
        for place, array in (
            (s.ROWS, tables.rows),
            (s.REALS, tables.reals),
            (s.TOP_IDS, tables.top_ids),
            (s.TOP_VALUES, tables.top_values),
        ):
            self._task[place] = array.ctypes.data

    def _room_for(self, vocab_size: int) -> None:
        """Have room for each thread's own work; the task knows its addresses."""
        room, threads = padded(vocab_size, s.CHUNK), self._backend.num_threads
        if room != self._room:
            self._room = room
            self._own = (
                np.zeros((threads, s.values_size(room)), np.float32),
                np.zeros((threads, s.sums_size(room)), np.float64),
                np.zeros((threads, room), np.int32),
            )
            self._task[s.ROOM] = room
            for place, array in zip((s.VALUES, s.SUMS, s.COUNTS), self._own, strict=True):
                self._task[place] = array.ctypes.data


def _lay_out(
    row: SamplingRow, integers: NDArray[np.int64], reals: NDArray[np.float64], lists: _Lists
) -> None:
    """Write what a row asks of the choice; a plain greedy one asks nothing."""
    params = row.params
    if not params.greedy:
        integers[s.MODE], integers[s.TOP_K] = s.DRAWN, params.top_k
        reals[s.TEMPERATURE : s.MIN_P + 1] = (
            min(params.temperature, _NO_TEMPERATURE),
            params.top_p,
            params.min_p,
        )
    if row.is_plain:
        return
    integers[s.IS_PLAIN] = 0
    if row.mask is not None:
        assert row.mask.dtype == np.int32
        integers[s.MASK] = row.mask.ctypes.data  # the row keeps it
    if params.allowed_token_ids is not None:
        integers[s.ALLOWED : s.NUM_ALLOWED + 1] = lists.add(params.allowed_token_ids)
    bias, masked = params.logit_bias or {}, row.masked_token_ids
    if bias or masked:
        amounts = [*bias.values(), *[-np.inf] * len(masked)]
        integers[s.EDITS : s.NUM_EDITS + 1] = lists.add([*bias, *masked], amounts)
    reals[s.REPETITION] = params.repetition_penalty
    if row.has_penalties:
        reals[s.FREQUENCY : s.PRESENCE + 1] = params.frequency_penalty, params.presence_penalty
        integers[s.OUTPUT : s.NUM_OUTPUT + 1] = lists.add(row.output_ids)
        if params.repetition_penalty != 1.0:
            integers[s.PROMPT : s.NUM_PROMPT + 1] = lists.add(row.prompt_ids)


def _logprobs(
    table: NDArray[np.int64],
    reals: NDArray[np.float64],
    top_ids: NDArray[np.int32],
    top_values: NDArray[np.float32],
) -> list[TokenLogprobs | None]:
    """Return the logprobs of the rows that have a token and asked for them."""
    found: list[TokenLogprobs | None] = [None] * len(table)
    wanted = np.flatnonzero((table[:, s.NUM_TOP] > 0) & (table[:, s.TOKEN] >= 0))
    if not len(wanted):
        return found
    largest, log_totals = reals[wanted, s.LARGEST], log(reals[wanted, s.TOTAL])
    logprobs = (reals[wanted, s.LOGIT] - largest - log_totals).tolist()
    tops = top_values[wanted].astype(np.float64) - largest[:, None] - log_totals[:, None]
    columns = (table[wanted, column].tolist() for column in (s.TOKEN, s.RANK, s.NUM_TOP))
    for i, token_id, rank, num_top, logprob, ids, values in zip(
        wanted.tolist(), *columns, logprobs, top_ids[wanted].tolist(), tops.tolist(), strict=True
    ):
        count = num_top - 1
        found[i] = TokenLogprobs(token_id, logprob, rank, tuple(ids[:count]), tuple(values[:count]))
    return found
