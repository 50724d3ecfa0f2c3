"""The sampling kernels against their NumPy twin by `==`, and both against what must be true."""

from __future__ import annotations

import functools
import math
import struct
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from backends.cpu.models import batch, spec, weights
from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.cpu.rows import CpuRows
from octavo.sampling import logits as row_math
from octavo.sampling.logits import TokenLogprobs, compute_logprobs
from octavo.sampling.params import SamplingParams
from octavo.sampling.sampler import NumpyRows, Sampler, SamplerOutput, SamplingRow

if TYPE_CHECKING:
    from collections.abc import Sequence

INF, NAN = float("inf"), float("nan")


@functools.cache
def kernels(num_threads: int) -> CpuRows:
    s = spec()
    return CpuRows(CpuBackend(s, weights(s), num_blocks=8, num_threads=num_threads))


def bits(entry: TokenLogprobs | None) -> object:
    if entry is None:
        return None
    numbers = (entry.logprob, *entry.top_logprobs)
    return entry.token_id, entry.rank, entry.top_ids, struct.pack(f"{len(numbers)}d", *numbers)


def exact(output: SamplerOutput) -> object:
    return output.token_ids, output.errors, [bits(entry) for entry in output.logprobs]


# -- rows of all kinds ----------------------------------------------------------------------------


def row_of(kind: str, size: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if kind == "normal":
        values = rng.normal(0, 3, size)
    elif kind == "peaked":
        values = np.where(rng.random(size) < 0.01, rng.normal(20, 2, size), rng.normal(0, 1, size))
    elif kind == "ties":
        values = rng.choice([0.0, -0.0, 1.0, 1.0, -2.0], size)
    elif kind == "flat":
        values = np.full(size, rng.normal())
    elif kind == "tiny":  # denormals of both signs, and zeros
        values = rng.choice([1e-45, -1e-45, 1e-40, 0.0, -0.0, -1e-39], size)
    elif kind == "huge":
        values = rng.choice([3.4028234e38, -3.4028234e38, 1e30, 0.0], size)
    elif kind == "rising":
        values = np.sort(rng.normal(0, 3, size))
    else:
        values = rng.normal(0, 3, size)
        values[rng.random(size) < 0.7] = -INF
    values = values.astype(np.float32)
    if not values.max() > -INF:
        values[rng.integers(size)] = 0.5
    return values


KINDS = ("normal", "peaked", "ties", "flat", "tiny", "huge", "rising", "masked")
FAULTS = {"nan": NAN, "inf": INF, "all": -INF}


@st.composite
def requests(draw: st.DrawFn, size: int) -> SamplingRow:
    ids = st.lists(st.integers(0, size - 1), max_size=6)
    params = SamplingParams(
        temperature=draw(st.sampled_from([0.0, 1e-5, 0.3, 1.0, 1.0, 2.5, 1e300])),
        top_k=draw(st.sampled_from([0, 0, 1, 2, 7, 50, 700, 3000])),
        top_p=draw(st.sampled_from([1.0, 1.0, 1e-9, 0.3, 0.9, 0.999999, 1 - 1e-16])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.05, 1 / 3, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3, 0.7, 1e3, 1e-3])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, 0.7, -1.9])),
        presence_penalty=draw(st.sampled_from([0.0, 0.0, 0.3, -2.0])),
        logit_bias=dict.fromkeys(draw(ids), draw(st.sampled_from([5.0, -100.0, 0.1]))) or None,
        allowed_token_ids=draw(st.sampled_from([None, None, None, draw(ids) or None])),
        min_tokens=draw(st.sampled_from([0, 0, 3])),
        ignore_eos=draw(st.booleans()),
        stop_token_ids=draw(ids),
        logprobs=draw(st.sampled_from([None, 0, 1, 5, 20])),
    )
    words = tuple(tuple(word) for word in draw(st.lists(ids, max_size=2)) if word)
    mask = draw(st.sampled_from([None, None, "all", "few", "most"]))
    if mask is not None:
        bits = np.full(-(-size // 32) * 32, mask != "few")
        bits[draw(ids)] = mask == "few"
        mask = np.packbits(bits if mask != "all" else bits | True, bitorder="little").view(np.int32)
    return SamplingRow(
        params,
        draw(st.integers(0, 2**64 - 1)),
        draw(st.integers(0, 3)),
        draw(ids),
        draw(st.lists(st.integers(0, size - 1), max_size=40)),
        frozenset(draw(ids)[:2]),
        words,
        mask,
        draw(st.booleans()),
    )


@st.composite
def steps(draw: st.DrawFn) -> tuple[np.ndarray, list[SamplingRow], dict[int, str]]:
    """Logits, their requests, and which rows are to be spoiled how."""
    size = draw(st.one_of(st.integers(1, 40), st.integers(1, 2000)))
    count = draw(st.integers(1, 6))
    seed = draw(st.integers(0, 2**20))
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=count, max_size=count))
    logits = np.stack([row_of(kind, size, seed + i) for i, kind in enumerate(kinds)])
    rows = [draw(requests(size)) for _ in range(count)]
    faults = draw(st.dictionaries(st.integers(0, count - 1), st.sampled_from(list(FAULTS))))
    return logits, rows, faults


@settings(max_examples=300, deadline=None)
@given(steps(), st.sampled_from([1, 2, 3]))
def test_kernels_have_the_twins_bits_and_faulty_rows_touch_nobody(step, num_threads: int):
    logits, rows, faults = step
    before = logits.copy()
    sampler = Sampler(kernels(num_threads))
    whole = sampler.sample(logits, rows)
    assert exact(whole) == exact(Sampler().sample(logits, rows))
    assert logits.tobytes() == before.tobytes(), "the caller's logits were changed"
    for i, fault in faults.items():
        place = slice(None) if fault == "all" else logits.shape[1] // 2
        logits[i, place] = FAULTS[fault]
    spoiled = sampler.sample(logits, rows)
    assert exact(spoiled) == exact(Sampler().sample(logits, rows))
    for i in set(range(len(rows))) - set(faults):
        assert spoiled.token_ids[i] == whole.token_ids[i]
        assert bits(spoiled.logprobs[i]) == bits(whole.logprobs[i])


VARIED: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0, "logprobs": 5},
    {"logprobs": 20},
    {"temperature": 0.8, "top_p": 0.9},
    {"top_k": 50},
    {"top_k": 5000, "top_p": 0.999},
    {"min_p": 0.05, "repetition_penalty": 1.2, "frequency_penalty": 0.5, "presence_penalty": 0.2},
    {"top_p": 0.01, "temperature": 3.0},
]


def requests_of(values: Sequence[dict[str, Any]]) -> list[SamplingRow]:
    return [
        SamplingRow(SamplingParams(**v), 7 + i, 0, [1, 2, 2], [3, 3, 8], frozenset({0}))
        for i, v in enumerate(values)
    ]


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary_of_a_real_model(kind: str, num_threads: int):
    logits = np.stack([row_of(kind, 49_152, i) for i in range(len(VARIED))])
    rows = requests_of(VARIED)
    found = Sampler(kernels(num_threads)).sample(logits, rows)
    assert exact(found) == exact(Sampler().sample(logits, rows))
    assert found.errors == [None] * len(rows)


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 700),
    count=st.integers(0, 9),
    num_top=st.sampled_from([0, 1, 3, 20]),
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**20),
    num_threads=st.sampled_from([1, 2, 3]),
)
@example(size=3, count=4, num_top=20, kind="masked", seed=0, num_threads=2)
def test_prompt_logprobs(size, count, num_top, kind, seed, num_threads):
    logits = np.stack([row_of(kind, size, seed + i) for i in range(count + 1)])[:count]
    if count > 2:
        logits[1, seed % size] = NAN
    token_ids = np.random.default_rng(seed).integers(0, size, count).tolist()
    found = kernels(num_threads).compute_logprobs(logits, token_ids, num_top)
    expected = compute_logprobs(logits, token_ids, num_top)
    assert [bits(entry) for entry in found] == [bits(entry) for entry in expected]


@pytest.mark.parametrize("layout", ["columns", "every other row", "reversed", "read-only", "wide"])
def test_logits_may_lie_in_any_layout(layout: str):
    logits = np.stack([row_of("normal", 333, i) for i in range(len(VARIED))])
    rows = requests_of(VARIED)
    expected = exact(Sampler(kernels(2)).sample(logits, rows))
    if layout == "columns":
        logits = np.asfortranarray(logits)
    elif layout == "every other row":
        logits = np.repeat(logits, 2, axis=0)[::2]
    elif layout == "reversed":
        logits = logits[::-1].copy()[::-1]
    elif layout == "read-only":
        logits.setflags(write=False)
    else:
        beside = np.full((len(logits), 9), INF, np.float32)
        logits = np.concatenate([logits, beside], axis=1)[:, :333]
    assert exact(Sampler(kernels(2)).sample(logits, rows)) == expected


def test_an_answer_that_grows_is_penalised_by_all_its_tokens():
    output: list[int] = []
    params = SamplingParams(temperature=0, frequency_penalty=1.0, repetition_penalty=1.1)
    row = SamplingRow(params, 1, 0, [5], output, frozenset())
    logits = row_of("normal", 90, 3)[None]
    for _ in range(80):
        (token_id,) = Sampler(kernels(1)).sample(logits, [row]).token_ids
        fresh = SamplingRow(params, 1, 0, [5], list(output), frozenset())
        assert Sampler().sample(logits, [fresh]).token_ids == [token_id]
        output.append(token_id)
    assert len(set(output)) > 5


def test_draws_at_the_very_end_where_two_orders_of_a_sum_differ():
    logits = np.random.default_rng(0).normal(0, 6, (200, 250)).astype(np.float32)
    logits[:, 240:] = -INF  # so that the last token that may be drawn is not the chunk's last
    rows, numbers = requests_of([{"logprobs": 0}] * 200), np.full(200, 1 - 2**-53)
    found = kernels(2).choose(logits, rows, numbers)
    assert exact(found) == exact(NumpyRows().choose(logits, rows, numbers))
    assert max(found.token_ids) == 239
    fell_short = 0
    for row in logits:
        chosen = weights_of(row)
        by_id = np.cumsum(chosen, dtype=np.float64)[-1]
        fell_short += bool(by_id <= (1 - 2**-53) * row_math.total(chosen))
    assert fell_short > 20


def test_nuclei_whose_goal_is_a_bins_own_sum():
    """top_p such that the goal is what the bins from some bin on hold, to the last bit."""
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 6, (150, 2000)).astype(np.float32)
    asked, equal = [], 0
    for row in logits:
        weights = weights_of(row)
        parts = weights.view(np.int32) >> 20
        sums = np.bincount(parts, weights)[::-1]
        running = np.cumsum(sums[sums > 0])
        reached = running[rng.integers(len(running) - 1)]
        total = row_math.total(weights)
        asked.append({"top_p": min(1 - 2**-53, float(reached / total))})
        equal += bool(asked[-1]["top_p"] * total == reached)
    assert equal > 50
    rows = requests_of(asked)
    for numbers in (np.full(len(rows), 1 - 2**-53), rng.random(len(rows))):
        found = kernels(2).choose(logits, rows, numbers)
        assert exact(found) == exact(NumpyRows().choose(logits, rows, numbers))


def weights_of(row: np.ndarray) -> np.ndarray:
    return row_math.exp(row_math.below_max(row, float(row.max())))


def test_zeros_of_both_signs_have_the_same_logprobs():
    for values in ([-0.0], [0.0], [-0.0, 0.0, -INF], [0.0, -0.0, -INF]):
        logits = np.array([values], dtype=np.float32)
        (found,) = kernels(1).compute_logprobs(logits, [0], 3)
        (twin,) = compute_logprobs(logits, [0], 3)
        assert bits(found) == bits(twin)
        assert found is not None
        assert found.rank == 1
        assert found.top_ids == tuple(range(len(values)))


# -- against what must be true, should both be wrong together -------------------------------------


def test_draws_follow_small_distributions_exactly():
    # Numbers on a grid, none at a boundary: how many of them draw each id follows by hand.
    probabilities = np.array([0.5, 0.125, 0.25, 0.125])
    count = 64
    logits = np.tile(np.log(probabilities), (count, 1)).astype(np.float32)
    numbers = (np.arange(count) + 0.5) / count

    def drawn(**asked: Any) -> dict[int, int]:
        rows = requests_of([asked] * count)
        return dict(Counter(kernels(2).choose(logits, rows, numbers).token_ids))

    assert drawn() == {0: 32, 1: 8, 2: 16, 3: 8}
    assert drawn(top_k=2) == {0: 43, 2: 21}  # of 3 parts 2; the 43rd number is 42.5 / 64 < 2 / 3
    assert drawn(top_k=3) == {0: 32, 1: 8, 2: 16, 3: 8}  # a tie at the threshold stays whole
    assert drawn(top_p=0.7) == {0: 43, 2: 21}
    assert drawn(min_p=0.4) == {0: 43, 2: 21}
    assert drawn(top_p=0.45) == {0: 64}
    assert drawn(temperature=0.5) == {0: 47, 1: 2, 2: 12, 3: 3}  # 16 : 1 : 4 : 1 of 22
    assert drawn(allowed_token_ids=[1, 3]) == {1: 32, 3: 32}
    assert drawn(logit_bias={1: math.log(4)}, top_k=1) == {0: 32, 1: 32}
    assert drawn(temperature=0) == {0: 64}


def test_logprobs_of_a_small_distribution():
    logits = np.log(np.array([[1, 4, 2, 4, 1]])).astype(np.float32)
    (found,) = kernels(1).compute_logprobs(logits, [2], 3)
    assert found is not None
    assert (found.token_id, found.rank, found.top_ids) == (2, 3, (1, 3, 2))
    assert found.logprob == pytest.approx(math.log(2 / 12), abs=1e-6)
    assert found.top_logprobs == pytest.approx([math.log(1 / 3)] * 2 + [math.log(1 / 6)], abs=1e-6)


# -- beside steps of the model --------------------------------------------------------------------


def test_sampling_before_steps_between_them_and_after_the_team_was_sent_home():
    s = spec()
    compute = CpuBackend(s, weights(s), num_blocks=8, num_threads=3)
    sampler, step = Sampler(CpuRows(compute)), batch([([5, 6, 7], 0, [2])])
    logits, rows = row_of("normal", 500, 1)[None].repeat(5, axis=0), requests_of(VARIED[:5])
    first = exact(sampler.sample(logits, rows))
    alone = exact(sampler.sample(logits[:1], rows[:1]))
    usual = compute.execute(step).tobytes()
    for _ in range(20):
        assert exact(sampler.sample(logits, rows)) == first
        assert exact(sampler.sample(logits[:1], rows[:1])) == alone
        assert compute.execute(step).tobytes() == usual
    compute.close()
    assert exact(sampler.sample(logits, rows)) == first
    assert compute.execute(step).tobytes() == usual
