"""The same request, the same bits: alone, batched, chunked, cached, preempted, on any threads.

Each example lets random requests run through a random engine on the compiled kernels and holds
every token and every logprob against the same request alone, whole, on one thread.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.cpu.models import batch, spec, tensor, weights
from byte_tokenizer import ByteTokenizer
from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.cpu.rows import CpuRows
from octavo.cache.manager import KVCacheManager
from octavo.cache.policies import find_policy
from octavo.engine.core import EngineCore
from octavo.errors import ConfigError
from octavo.grammar.compile import GrammarCompiler
from octavo.model.spec import RopeSpec
from octavo.sampling.params import SamplingParams

MODELS = {
    # grouped heads, 4-bit codes, interleaved rope
    "plain": (spec(), "Q4_0", {}),
    # everything else a family may have
    "rich": (
        spec(
            num_layers=3,
            hidden=96,
            inner=160,
            heads=6,
            kv_heads=2,
            head_dim=32,
            windows=(24, None, 70),
            rope=RopeSpec(10_000.0, 16, "half", factors=(1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)),
            tied=False,
            activation="gelu_tanh",
            attention_bias=True,
            qk_norm=True,
            post_norms=True,
            embedding_scale=1.5,
        ),
        "Q4_1",
        {"ffn_down": "Q8_0", "attn_v": "Q8_0", "attn_k": "F16", "output": "BF16"},
    ),
    "gpt": (
        spec(
            hidden=48,
            inner=96,
            heads=3,
            kv_heads=3,
            rope=None,
            context=512,
            norm="layer",
            activation="gelu_tanh",
            gated=False,
            attention_bias=True,
            projection_bias=True,
            learned_positions=True,
        ),
        "F32",
        {},
    ),
}


@functools.cache
def backend(model: str, num_threads: int, num_blocks: int) -> CpuBackend:
    s, kind, kinds = MODELS[model]
    return CpuBackend(
        s, weights(s, kind, kinds=kinds), num_blocks=num_blocks, num_threads=num_threads
    )


COMPILER = GrammarCompiler(ByteTokenizer(), 288)
SHAPES = (
    {"json_object": True},
    {"json": {"type": "array", "items": {"enum": [True, "yes", 12]}}},
    {"regex": "(ab|yes|[0-9]+ )+"},
    {"choice": ["yes, ab", "no", "12  34"]},
)


@dataclass(frozen=True)
class Job:
    prompt: tuple[int, ...]
    params: SamplingParams
    arrival: int = 0

    def key(self):
        return self.prompt, repr(self.params)


def run(model, jobs, *, threads=1, blocks=160, budget=512, seqs=16, prefix=True):
    """Run jobs, each added at its step; return every choice's ids, logprob bits, and the core."""
    compute = backend(model, threads, blocks)
    core = EngineCore(
        compute,
        KVCacheManager(blocks, 16, find_policy("lru"), enable_prefix_caching=prefix),
        max_num_seqs=seqs,
        max_num_batched_tokens=max(budget, seqs),
        max_model_len=min(blocks * 16, 400),
        eos_token_ids=frozenset({0}),
        arithmetic=CpuRows(compute),
    )
    waiting = sorted(enumerate(jobs), key=lambda pair: pair[1].arrival)
    done: dict[str, dict[int, object]] = {}
    step = 0
    while waiting or core.has_requests:
        while waiting and (waiting[0][1].arrival <= step or not core.has_requests):
            i, job = waiting.pop(0)
            shape = job.params.shape
            grammar = None if shape is None else COMPILER.compile(shape)
            core.add_request(str(i), list(job.prompt), job.params, grammar=grammar)
        for request in core.step():
            if request.is_finished:
                done.setdefault(request.request_id, {})[request.choice] = fingerprint(request)
        step += 1
    return [done[str(i)] for i in range(len(jobs))], core


def exact(entry):
    if entry is None:
        return None
    numbers = (entry.logprob, *entry.top_logprobs)
    return entry.token_id, entry.rank, entry.top_ids, struct.pack(f"{len(numbers)}d", *numbers)


def fingerprint(request):
    assert request.error is None
    return (
        tuple(request.output_token_ids),
        tuple(exact(entry) for entry in request.output_logprobs),
        tuple(exact(entry) for entry in request.prompt_logprobs),
    )


_ALONE: dict[object, object] = {}


def alone(model, job):
    """What the job gives by itself, its prompt whole, on one thread, with nothing cached."""
    key = (model, *job.key())
    if key not in _ALONE:
        (result,), _ = run(model, [replace(job, arrival=0)], prefix=False)
        _ALONE[key] = result
    return _ALONE[key]


PREFIXES = [tuple(np.random.default_rng(i).integers(3, 288, 90).tolist()) for i in range(3)]


@st.composite
def jobs(draw):
    shared = draw(st.integers(0, 90))
    prefix = PREFIXES[draw(st.integers(0, 2))][:shared]
    own = draw(st.lists(st.integers(3, 287), min_size=1, max_size=30))
    sampled = draw(st.booleans())
    penalty = draw(st.sampled_from([0.0, 0.0, 0.7]))
    params = SamplingParams(
        max_tokens=draw(st.one_of(st.integers(1, 4), st.integers(20, 40))),
        temperature=draw(st.sampled_from([0.5, 1.0])) if sampled else 0.0,
        top_p=draw(st.sampled_from([1.0, 0.9])),
        top_k=draw(st.sampled_from([0, 40])),
        frequency_penalty=penalty,
        repetition_penalty=1.1 if penalty else 1.0,
        seed=draw(st.integers(0, 3)),
        n=draw(st.sampled_from([1, 1, 1, 3])) if sampled else 1,
        logprobs=draw(st.sampled_from([None, 0, 3])),
        prompt_logprobs=draw(st.sampled_from([None, None, None, 1])),
        ignore_eos=draw(st.sampled_from([True, True, False])),
        structured_outputs=draw(st.sampled_from([None, None, *SHAPES])),
    )
    return Job(prefix + tuple(own), params, draw(st.integers(0, 4)))


@pytest.mark.parametrize("model", list(MODELS))
def test_equalities(model):
    @settings(
        max_examples=30,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(
        st.lists(jobs(), min_size=2, max_size=7),
        st.sampled_from([1, 2, 3]),
        st.sampled_from([11, 12, 14, 160]),
        st.sampled_from([1, 3, 16, 37, 512]),
        st.sampled_from([2, 8, 8]),
    )
    def check(listed, threads, blocks, budget, seqs):
        results, core = run(model, listed, threads=threads, blocks=blocks, budget=budget, seqs=seqs)
        for job, result in zip(listed, results, strict=True):
            assert result == alone(model, job)
        core.cache.check_invariants([])

    check()


@pytest.mark.parametrize("threads", [1, 3])
def test_a_crowd_with_grammars_that_preempts(threads):
    """Row 51's kind: a grammar's state outlives preemption, recomputing and forks, to the bit."""
    crowd = [
        Job(
            PREFIXES[0][:40] + tuple(range(10 + i, 20 + i)),
            SamplingParams(
                max_tokens=40, temperature=1, seed=i, logprobs=2, n=1 + i % 2, ignore_eos=i % 3 > 0,
                structured_outputs=SHAPES[i % 3] if i % 4 else None,
            ),
            arrival=i // 2,
        )
        for i in range(10)
    ]  # fmt: skip
    results, core = run("plain", crowd, threads=threads, blocks=12, budget=32, seqs=8)
    assert core.scheduler.num_preemptions > 0
    for job, result in zip(crowd, results, strict=True):
        assert result == alone("plain", job)


@pytest.mark.parametrize("model", list(MODELS))
@pytest.mark.parametrize("threads", [1, 3])
def test_a_crowd_that_preempts_and_shares(model, threads):
    crowd = [
        Job(
            PREFIXES[0][:40] + tuple(range(10 + i, 20 + i)),
            SamplingParams(max_tokens=40, temperature=i % 2, seed=i, logprobs=2, ignore_eos=True),
            arrival=i // 2,
        )
        for i in range(8)
    ]
    results, core = run(model, crowd, threads=threads, blocks=12, budget=37, seqs=8)
    assert core.scheduler.num_preemptions > 0
    assert core.cache.stats.prefix_hits > 0
    for job, result in zip(crowd, results, strict=True):
        assert result == alone(model, job)


def test_a_fully_cached_prompt_gives_the_bits_of_a_computed_one():
    job = Job(PREFIXES[0][:64], SamplingParams(max_tokens=5, temperature=0, logprobs=2))
    later = replace(job, arrival=30)
    results, core = run("plain", [job, later])
    assert core.cache.stats.prefix_hits == 63
    assert results[0] == results[1] == alone("plain", job)


def test_a_long_context_is_split_between_threads_without_changing_a_bit():
    rng = np.random.default_rng(1)
    ids = rng.integers(3, 288, 1300).tolist()
    table = rng.permutation(90).tolist()
    outputs = []
    for threads in (1, 2, 3):
        compute = backend("plain", threads, 90)
        for at in range(0, 1299, 100):
            part = ids[at : min(at + 100, 1299)]
            compute.execute(batch([(part, at, table)], []))
        outputs.append(compute.execute(batch([([ids[1299]], 1299, table)])).copy())
    whole = backend("plain", 2, 90).execute(batch([(ids, 0, table)], [1299]))
    for output in outputs:
        assert output.tobytes() == whole.tobytes()


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_a_spoiled_row_spoils_nothing_but_itself(kind):
    s = spec()
    tensors = weights(s, kind)
    good = CpuBackend(s, tensors, num_blocks=40, num_threads=2)
    table = tensors["token_embd.weight"].dequantize()
    if kind == "F32":
        table[7] = np.nan
        table[8] = np.inf
        tensors["token_embd.weight"] = tensor("token_embd.weight", table, kind)
    else:  # a scale of NaN in the file
        data = tensors["token_embd.weight"].data.copy().reshape(288, 2, 34)
        data[7:9, :, :2] = np.array([np.nan], np.float16).view(np.uint8)
        fresh = tensors["token_embd.weight"]
        tensors["token_embd.weight"] = type(fresh)(
            fresh.name, fresh.type, fresh.shape, data.reshape(-1)
        )
    # The head is tied: its own rows 7 and 8 are NaN for everybody, the others are not.
    spoiled = CpuBackend(s, tensors, num_blocks=40, num_threads=2)
    a, b, c = [5, 20, 30], [9, 7, 11, 12], [40, 8]
    tables = ([0, 1], [2, 3], [4, 5])
    step = batch([(ids, 0, t) for ids, t in zip((a, b, c), tables, strict=True)])
    clean = [9, 6, 11, 12], [40, 6]
    usual = good.execute(batch([(x, 0, t) for x, t in zip((a, *clean), tables, strict=True)]))
    got = spoiled.execute(step)
    rest = np.ones(288, bool)
    rest[7:9] = False
    untouched = [0, 1, 2, 3, 7]  # all of the first sequence; what comes before the spoiled token
    assert got[untouched][:, rest].tobytes() == usual[untouched][:, rest].tobytes()
    assert np.isnan(got[[4, 5, 6, 8]]).all()


def test_stale_slots_of_nan_change_nothing():
    s, kind, kinds = MODELS["rich"]
    tensors = weights(s, kind, kinds=kinds)
    ids = np.random.default_rng(3).integers(3, 288, 50).tolist()
    outputs = []
    for stale in (0x0000, 0x7E00, 0xFC00):
        compute = CpuBackend(s, tensors, num_blocks=8, num_threads=2)
        compute.keys[:] = stale
        compute.values[:] = stale
        outputs.append(compute.execute(batch([(ids, 0, [3, 1, 6, 2])])).tobytes())
        compute.close()
    assert outputs[0] == outputs[1] == outputs[2]


def test_blocks_behind_every_window_are_not_read():
    s = spec(windows=(20, 33))
    tensors = weights(s, "Q4_0")
    ids = np.random.default_rng(4).integers(3, 288, 120).tolist()
    whole = CpuBackend(s, tensors, num_blocks=16, num_threads=2)
    table = [9, 3, 1, 6, 2, 8, 11, 4]
    usual = whole.execute(batch([(ids, 0, table)], [118, 119]))
    parts = CpuBackend(s, tensors, num_blocks=16, num_threads=2)
    parts.execute(batch([(ids[:100], 0, table)], []))
    gone = [-1, -1, -1, -1, *table[4:]]  # tokens before 64; the first query, 100, sees from 68
    for store in (parts.keys, parts.values):
        store[:, :, table[:4]] = 0x7E00
    got = parts.execute(batch([(ids[100:], 100, gone)], [18, 19]))
    assert got.tobytes() == usual.tobytes()


def test_a_token_without_a_slot_is_computed_and_not_stored():
    s = spec()
    compute = CpuBackend(s, weights(s), num_blocks=8, num_threads=1)
    ids = [5, 6, 7, 8]
    first = compute.execute(batch([(ids, 0, [2])], [3])).copy()
    before = compute.keys.copy()
    again = compute.execute(batch([([8], 3, [2])], stored=False))
    assert first.tobytes() == again.tobytes()
    assert np.array_equal(before, compute.keys)


def test_blocks_are_copied_in_order():
    s = spec()
    compute = CpuBackend(s, weights(s), num_blocks=8, num_threads=1)
    compute.execute(batch([([5, 6, 7], 0, [2])], []))
    compute.copy_blocks([(2, 4), (4, 5)])
    assert np.array_equal(compute.keys[:, :, 2], compute.keys[:, :, 5])
    assert np.array_equal(compute.values[:, :, 2], compute.values[:, :, 5])


def test_values_beyond_float16_are_clamped_and_counted():
    s = spec()
    tensors = weights(s, "F32")
    name = "blk.0.attn_v.weight"
    tensors[name] = tensor(name, tensors[name].dequantize() * np.float32(1e6), "F32")
    compute = CpuBackend(s, tensors, num_blocks=8, num_threads=2)
    logits = compute.execute(batch([([5, 6, 7], 0, [2])]))
    assert np.isfinite(logits).all()
    assert compute.num_clamped > 0


def test_what_the_kernels_do_not_compute_is_refused():
    s = spec()
    with pytest.raises(ConfigError, match="blocks of 16"):
        CpuBackend(s, weights(s), num_blocks=8, block_size=8)
    odd = spec(head_dim=24, rope=None)
    with pytest.raises(ConfigError, match=r"multiples of 16.*--backend reference"):
        CpuBackend(odd, weights(odd), num_blocks=8)
