"""A measured run: tokens, steps and work exact, and no second counted twice or not at all."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.backends.cpu.counters import Counters
from octavo.backends.cpu.plan import PHASES
from octavo.bench.counts import ModelWork, Work
from octavo.bench.kernels import KernelBench
from octavo.bench.latency import measure_latency
from octavo.bench.run import Bench, Measured
from octavo.bench.throughput import measure_throughput
from octavo.engine.llm import LLM
from octavo.errors import ConfigError

PARTS = ["schedule", "build_batch", "forward", "sample", "update", "detokenise", "other"]


@pytest.fixture
def llm(tiny_model_path, kernels):
    def make(**settings):
        return LLM(str(tiny_model_path), num_kv_blocks=64, num_threads=2, **settings)

    return make


def totals(work: ModelWork, *steps) -> Work:
    total = Work()
    for sequences, num_rows in steps:
        total.add(work.step(sequences, num_rows))
    return total


def test_steps_tokens_and_work_are_exact(llm):
    bench = Bench(llm(enable_prefix_caching=False), input_len=5, output_len=4)
    measured, ended = Measured(), []
    bench.run(bench.prompts(3), measured, ended.append)
    prefill, decode = measured.prefill, measured.decode
    assert (prefill.num_steps, prefill.num_tokens) == (1, 15)
    assert (decode.num_steps, decode.num_tokens) == (3, 9)
    assert ended == [3]
    work = ModelWork(bench.backend)
    assert prefill.work == totals(work, ([(5, 5)] * 3, 3))
    assert decode.work == totals(work, *(([(1, 5 + i)] * 3, 3) for i in (1, 2, 3)))


def test_a_chunked_prompt_is_prefill_and_choices_fork_from_one(llm):
    engine = llm(enable_prefix_caching=False, max_num_batched_tokens=4, max_num_seqs=4)
    bench = Bench(engine, input_len=10, output_len=3, n=2)
    measured = Measured()
    bench.run(bench.prompts(1), measured)
    assert (measured.prefill.num_steps, measured.prefill.num_tokens) == (3, 10)
    assert (measured.decode.num_steps, measured.decode.num_tokens) == (2, 4)
    work = ModelWork(bench.backend)
    assert measured.prefill.work == totals(work, ([(4, 4)], 0), ([(4, 8)], 0), ([(2, 10)], 1))
    assert measured.decode.work == totals(work, ([(1, 11)] * 2, 2), ([(1, 12)] * 2, 2))


def test_the_parts_of_the_time_are_the_whole(llm):
    bench = Bench(llm(enable_prefix_caching=False), input_len=40, output_len=8)
    measured = Measured()
    seconds = bench.run(bench.prompts(2), measured)
    assert measured.seconds == seconds > measured.prefill.seconds + measured.decode.seconds
    for part in (measured.prefill, measured.decode):
        shares = part.shares()
        assert list(shares) == PARTS
        assert min(shares.values()) >= 0
        assert sum(shares.values()) == pytest.approx(1)
        assert sum(part.phase_shares().values()) == pytest.approx(shares["forward"])
        assert min(part.phase_shares().values()) >= 0
        assert 1 - shares["forward"] - shares["sample"] < part.engine_overhead < 1
        assert part.tokens_per_second == part.num_tokens / part.seconds


def test_a_call_of_the_step_is_overhead(llm):
    """The step with most ticks a second says how long a tick is."""
    bench = Bench(llm(), input_len=4, output_len=2)
    ticks = np.zeros((len(PHASES), 2), np.int64)
    ticks[:2] = ((600, 100), (300, 0))
    assert bench._share_inside(Counters(ticks, 1.0, 0.0)) == 1.0
    assert bench._share_inside(Counters(ticks, 4.0, 0.0)) == 0.25
    assert bench._share_inside(Counters(0 * ticks, 4.0, 0.0)) == 1.0


def test_without_text_nothing_is_detokenised(llm):
    bench = Bench(llm(), input_len=4, output_len=2, detokenize=False)
    measured = Measured()
    bench.run(bench.prompts(1), measured)
    assert measured.decode.shares()["detokenise"] == 0


def test_the_reference_backend_has_parts_but_no_phases(llm):
    bench = Bench(llm(backend="reference"), input_len=4, output_len=2)
    measured = Measured()
    bench.run(bench.prompts(1), measured)
    assert measured.decode.engine_overhead is None
    assert measured.decode.phases == {}
    assert measured.decode.work == Work()
    assert sum(measured.decode.shares().values()) == pytest.approx(1)


def test_warm_ups_are_not_counted(llm):
    bench = Bench(llm(enable_prefix_caching=False), input_len=4, output_len=2)
    ended = []
    found = measure_latency(bench, batch_size=2, num_iters_warmup=2, num_iters=3, done=ended.append)
    assert len(found.latencies) == 3
    assert found.measured.seconds == pytest.approx(sum(found.latencies))
    assert found.measured.prefill.num_tokens == 3 * 2 * 4
    assert ended == [1] * 5


def test_throughput_counts_prompts_and_all_their_answers(llm):
    bench = Bench(llm(enable_prefix_caching=False), input_len=6, output_len=3, n=2)
    found = measure_throughput(bench, num_prompts=4, input_len=6, output_len=3, n=2)
    assert (found.num_requests, found.num_tokens) == (4, 4 * (6 + 2 * 3))
    assert found.measured.prefill.num_tokens == 24


def test_prompts_differ_and_the_seed_repeats_them(llm):
    engine = llm()
    one, two = (Bench(engine, input_len=8, output_len=1, seed=3) for _ in range(2))
    first = one.prompts(2)
    assert first == two.prompts(2) != one.prompts(2)
    assert [len(prompt) for prompt in first] == [8, 8]


def test_lengths_that_no_request_may_have_are_refused(llm):
    engine = llm(max_model_len=32)
    Bench(engine, input_len=24, output_len=8)
    with pytest.raises(ConfigError, match="make 33 tokens, and a request may have at most 32"):
        Bench(engine, input_len=25, output_len=8)


@pytest.mark.parametrize("scattered", [False, True])
def test_each_kernel_is_measured_on_its_own_work(llm, scattered):
    backend = llm().core.backend
    bench = KernelBench(backend, repeats=2, scattered=scattered)
    work = ModelWork(backend)
    products = list(bench.products(70))
    assert [(each.kernel, each.num_rows) for each in products] == [
        ("qkv", 70), ("output", 70), ("feed", 70), ("down", 70), ("head", 64),
    ]  # fmt: skip
    for each in products:
        assert each.work == work.phase(each.kernel, each.num_rows)
        assert each.seconds > 0
    attention = list(bench.attention(100))
    assert [(each.size, each.num_rows) for each in attention] == [
        ("context 100", 1),
        ("context 100", 100),
    ]
    assert [each.work for each in attention] == [work.attention(1, 100), work.attention(100, 100)]
    with pytest.raises(ConfigError, match=f"more than the {bench.longest} that"):
        list(bench.attention(bench.longest + 1))
