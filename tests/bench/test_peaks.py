"""The probes do every operation that is counted for them; what they say of a machine is by hand."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from octavo.backends.cpu.layout import new_sync
from octavo.backends.cpu.packing import aligned
from octavo.backends.cpu.probe_plan import (
    DOT,
    DOT_CHAINS,
    FMA,
    FMA_CHAINS,
    OPS_PER_DOT,
    OPS_PER_FMA,
    READ,
    READ_UNIT,
    SEEDS,
    SINK,
)
from octavo.bench import peaks
from octavo.bench.peaks import PROBE
from octavo.errors import ConfigError

TURNS = 7


def run(what: int, memory: np.ndarray, seeds: np.ndarray, reals: np.ndarray) -> np.ndarray:
    """Run a probe on one thread; return what its accumulators held, [., 16]."""
    sink = aligned(SINK, np.float32)
    arguments = (0, 1, new_sync(), what, TURNS, memory, seeds, reals, sink)
    PROBE.get(arguments)(*arguments)
    return sink.reshape(-1, 16)


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    memory, seeds = aligned(3 * READ_UNIT, np.uint8), aligned(SEEDS * 64, np.uint8)
    memory[:] = rng.integers(0, 256, memory.size)
    seeds[:] = rng.integers(0, 16, seeds.size)
    reals = aligned(SEEDS * 16, np.float32)
    reals[:] = rng.normal(0, 1, reals.size)
    return memory, seeds, reals


def test_every_byte_is_read(arrays):
    words = arrays[0].view(np.int32).reshape(-1, 16, 16)
    expected = words.sum(axis=0, dtype=np.int32).astype(np.float32)
    np.testing.assert_array_equal(run(READ, *arrays)[:16], expected)


def test_every_dot_is_computed(arrays):
    codes = arrays[1].reshape(SEEDS, 16, 4).astype(int)
    expected = [
        sum((codes[i] * codes[turn % SEEDS]).sum(axis=1) for turn in range(TURNS))
        for i in range(DOT_CHAINS)
    ]
    np.testing.assert_array_equal(run(DOT, *arrays)[:DOT_CHAINS], expected)
    assert 2 * codes[0].size * DOT_CHAINS == OPS_PER_DOT


def test_every_fma_is_computed(arrays):
    rows = arrays[2].reshape(SEEDS, 16).astype(float)
    expected = rows[2 : 2 + FMA_CHAINS] + TURNS * rows[0] * rows[1]
    np.testing.assert_allclose(run(FMA, *arrays)[:FMA_CHAINS], expected, rtol=1e-4, atol=1e-5)
    assert 2 * rows[0].size * FMA_CHAINS == OPS_PER_FMA


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_peaks_are_of_all_threads(num_threads):
    found = peaks.measure_peaks(num_threads, read_bytes=4 * READ_UNIT, turns=64, best_of=1)
    assert found.num_threads == num_threads
    assert min(found.read_gb, found.dot_gops, found.fma_gflops) > 0


def test_without_memory_nothing_is_measured(monkeypatch):
    monkeypatch.setattr(peaks, "available_memory", lambda: 1 << 30)
    with pytest.raises(ConfigError, match=r"takes 1024 MiB, and 1024 MiB are free.*--no-peaks"):
        peaks.measure_peaks(1)


def test_who_finds_the_probes_compiled_needs_no_numba() -> None:
    arguments = (0, 1, new_sync(), READ, 1, *(aligned(READ_UNIT, np.uint8),) * 2)
    PROBE.get((*arguments, *(aligned(SINK, np.float32),) * 2))
    script = (
        "import sys\nfrom octavo.bench.peaks import PROBE, measure_peaks\n"
        "measure_peaks(1, read_bytes=1 << 20, turns=1, best_of=1)\n"
        "print(PROBE.was_loaded, 'numba' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert told.stdout.split() == ["True", "False"], told.stderr
