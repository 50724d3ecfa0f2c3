"""The counters of the compiled code: which phases ran, and that nothing counted is ever lost."""

from __future__ import annotations

import numpy as np
import pytest

from backends.cpu.models import batch, spec, weights
from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.cpu.counters import Counters, PhaseSeconds
from octavo.backends.cpu.plan import PHASES
from octavo.backends.cpu.rows import CpuRows

MODEL = spec()
TENSORS = weights(MODEL, "Q4_0")


@pytest.fixture(params=[1, 2])
def backend(request):
    made = CpuBackend(MODEL, TENSORS, num_blocks=64, num_threads=request.param)
    yield made
    made.close()


def ids(count: int) -> list[int]:
    return [i % MODEL.vocab_size for i in range(count)]


def ran(counters: Counters) -> set[str]:
    return {name for name, spent in zip(PHASES, counters.ticks, strict=True) if spent[0] > 0}


def test_every_phase_of_a_step_is_counted(backend):
    assert backend.counters().ticks.sum() == 0
    backend.execute(batch([(ids(5), 0, [0])]))
    found = backend.counters()
    assert ran(found) == set(PHASES) - {"merge"}
    assert (found.ticks >= 0).all()
    assert found.forward_seconds > 0 == found.sampling_seconds


def test_a_long_context_is_merged_where_threads_share_it(backend):
    blocks = list(range(64))
    backend.execute(batch([(ids(1000), 0, blocks)]))
    before = backend.counters()
    backend.execute(batch([(ids(1), 1000, blocks)]))
    assert ("merge" in ran(backend.counters() - before)) == (backend.num_threads > 1)


def test_a_larger_workspace_and_another_team_go_on_counting(backend):
    backend.execute(batch([(ids(1), 0, [0])]))
    first = backend.counters()
    backend.execute(batch([(ids(700), 0, list(range(44)))]))
    second = backend.counters()
    backend.close()
    backend.execute(batch([(ids(1), 0, [0])]))
    third = backend.counters()
    for later, earlier in ((second, first), (third, second)):
        assert ran(later - earlier) >= set(PHASES) - {"merge"}
        assert (later.ticks >= earlier.ticks).all()


def test_the_choice_of_tokens_is_no_forward_pass(backend):
    CpuRows(backend).compute_logprobs(np.zeros((3, 8), np.float32), [0, 1, 2], 1)
    found = backend.counters()
    assert found.ticks.sum() == 0 == found.forward_seconds < found.sampling_seconds


def test_seconds_are_the_ticks_share_of_the_forward_seconds():
    ticks = np.zeros((len(PHASES), 2), np.int64)
    ticks[PHASES.index("qkv")] = 600, 200
    ticks[PHASES.index("head")] = 1200, 0
    seconds = Counters(ticks, 4.0, 9.0).phase_seconds()
    assert seconds["qkv"] == PhaseSeconds(1.2, 0.4)
    assert seconds["head"] == PhaseSeconds(2.4, 0.0)
    assert seconds["down"] == PhaseSeconds(0.0, 0.0)
    nothing = Counters(0 * ticks, 4.0, 9.0).phase_seconds()
    assert set(nothing.values()) == {PhaseSeconds(0.0, 0.0)}
