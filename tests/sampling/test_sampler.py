"""The choice of a token: against a sorted twin, alone and in batches, with faulty neighbours."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from octavo.sampling import logits as row_math
from octavo.sampling import rng
from octavo.sampling import sampler as sampler_module
from octavo.sampling.params import SamplingParams
from octavo.sampling.sampler import Sampler, SamplerOutput, SamplingRow

INF, NAN = float("inf"), float("nan")


def make_row(
    seed: int = 1,
    choice: int = 0,
    prompt: list[int] | None = None,
    output: list[int] | None = None,
    eos: frozenset[int] = frozenset({0}),
    bad_words: tuple[tuple[int, ...], ...] = (),
    **values: Any,
) -> SamplingRow:
    params = SamplingParams(**values)
    return SamplingRow(params, seed, choice, prompt or [1, 2], output or [], eos, bad_words)


def sample(logits: Any, *rows: SamplingRow) -> SamplerOutput:
    return Sampler().sample(np.atleast_2d(np.asarray(logits, dtype=np.float32)), rows)


def candidates(values: list[float], **params: Any) -> list[int]:
    row = np.array(values, dtype=np.float32)
    return np.flatnonzero(sampler_module._candidates(row, SamplingParams(**params))).tolist()


def reaching(weights: list[float], goal: float) -> float:
    """The nucleus' definition on Python numbers: bins of bins of bins, each added up by ids."""
    bits = [int(np.float32(weight).view(np.int32)) for weight in weights]
    above, inside = 0.0, list(range(len(weights)))
    for shift in (20, 10, 0):
        parts: dict[int, list[int]] = {}
        for i in inside:
            if weights[i] > 0:
                parts.setdefault(bits[i] >> shift, []).append(i)
        for key in sorted(parts, reverse=True):
            inside, before = parts[key], above
            part = 0.0
            for i in inside:
                part += weights[i]
            above += part
            if above >= goal:
                break
        else:
            if shift == 20:
                return 0.0
        above = before
    return weights[inside[0]]


def twin_candidates(values: list[float], params: SamplingParams) -> list[int]:
    """The definition, one number at a time: temperature, top_k, top_p, min_p, ties kept."""
    row = np.array(values, dtype=np.float32)
    ids = list(range(len(row)))
    if params.top_k:
        kth = sorted(row.tolist(), reverse=True)[min(params.top_k, len(row)) - 1]
        ids = [i for i in ids if row[i] >= kth]
    weights = np.zeros_like(row)
    weights[ids] = row_math.exp(row_math.below_max(row[ids], float(row.max()), params.temperature))
    threshold = params.min_p
    if params.top_p < 1:
        goal = params.top_p * row_math.total(weights)
        threshold = max(threshold, reaching(weights.tolist(), goal))
    return [i for i in ids if weights[i] >= np.float32(threshold) and weights[i] > 0]


LOGIT = st.one_of(
    st.sampled_from([0.0, 1.0, 1.0, -2.0, -INF]), st.floats(-30, 30, width=32), st.just(-100.0)
)


@given(
    values=st.lists(LOGIT, min_size=1, max_size=60).filter(lambda v: max(v) > -INF),
    top_k=st.sampled_from([0, 1, 2, 5, 70]),
    top_p=st.sampled_from([1e-9, 0.1, 0.5, 0.9, 0.999, 1 - 1e-15, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.5, 1.0]),
    temperature=st.sampled_from([1e-5, 0.5, 1.0, 3.0, 1e300]),
)
@example(values=[0.0] * 50, top_k=3, top_p=0.1, min_p=0.0, temperature=1.0)
@example(values=[0.0] * 50, top_k=0, top_p=1 - 1e-16, min_p=0.0, temperature=1.0)
def test_candidates_equal_the_sorted_twin(values: list[float], **params: Any):
    assert candidates(values, **params) == twin_candidates(values, SamplingParams(**params))


@pytest.mark.parametrize("scale", [0.0, 0.01, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("top_p", [0.1, 0.9, 0.999999])
def test_candidates_equal_the_twin_on_long_rows(scale: float, top_p: float):
    values = (np.random.default_rng(0).normal(0, 1, 5000) * scale).tolist()
    params = SamplingParams(top_p=top_p)
    assert candidates(values, top_p=top_p) == twin_candidates(values, params)


def test_ties_at_a_threshold_are_all_kept():
    assert candidates([1, 2, 1, 0, 1], top_k=2) == [0, 1, 2, 4]
    assert candidates([0, 0, 0, -50], top_p=0.3) == [0, 1, 2]
    assert candidates([0, 1, 1, 0], min_p=1.0) == [1, 2]


@pytest.mark.parametrize("top_k", [0, -1, 5, 8])
def test_top_k_off_or_beyond_the_vocabulary_keeps_all(top_k: int):
    assert candidates([3, 1, 2, 0, 5], top_k=top_k) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("values", [{"temperature": 0}, {"temperature": 1e-9}, {"top_k": 1}])
def test_greedy_takes_the_likeliest_and_ties_go_to_the_lowest_id(values: dict[str, Any]):
    assert sample([0, 3, 2.5, 1], make_row(**values)).token_ids == [1]
    assert sample([0, 3, 3, 1], make_row(temperature=0)).token_ids == [1]


def test_the_draw_is_the_inverse_of_the_running_sum():
    weights = np.array([0.25, 0, 0.5, 0.25, 0], dtype=np.float32)
    # First id whose running sum is strictly more than the number times the total.
    for number, token_id in [(0, 0), (0.24, 0), (0.25, 2), (0.74, 2), (0.75, 3), (1 - 2**-53, 3)]:
        assert sampler_module._draw(weights, number) == token_id


def test_the_draw_finds_its_place_in_any_chunk():
    weights = np.zeros(1000, dtype=np.float32)
    weights[[3, 255, 256, 511, 512, 999]] = 0.25
    for number, token_id in zip(np.arange(6) / 6 + 0.01, [3, 255, 256, 511, 512, 999], strict=True):
        assert sampler_module._draw(weights, number) == token_id


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=40).filter(any))
def test_the_largest_number_draws_the_last_token_that_has_weight(values: list[float]):
    weights = np.array(values, dtype=np.float32)
    token_id = sampler_module._draw(weights, 1 - 2**-53)
    assert weights[token_id] > 0
    assert math.fsum(values[token_id + 1 :]) <= 1e-14 * math.fsum(values)


@given(
    weights=st.lists(st.floats(2.0**-20, 1, width=32), min_size=1, max_size=60),
    goal=st.floats(1e-9, 1.0),
)
def test_the_nucleus_is_the_least_that_reaches_its_goal(weights: list[float], goal: float):
    total = math.fsum(weights)
    found = row_math.nucleus_threshold(np.array(weights, dtype=np.float32), goal * total)
    kept = math.fsum(weight for weight in weights if weight >= found)
    without = math.fsum(weight for weight in weights if weight > found)
    assert without - 1e-12 * total <= goal * total <= kept + 1e-12 * total


def test_the_drawn_token_follows_from_seed_choice_and_position():
    logits = np.zeros(1000, dtype=np.float32)
    for seed, choice, output in [(5, 0, []), (5, 1, []), (2**64 - 1, 3, [4, 4])]:
        number = rng.uniform(seed, choice, 2 + len(output), rng.DRAW)
        row = make_row(seed, choice, output=output)
        assert row.position == 2 + len(output)
        assert sample(logits, row).token_ids == [int(number * 1000)]


def test_draws_follow_the_probabilities():
    probabilities = np.array([0.5, 0.25, 0.15, 0.1])
    count = 4000
    logits = np.tile(np.log(probabilities).astype(np.float32), (count, 1))
    drawn = Sampler().sample(logits, [make_row(seed) for seed in range(count)]).token_ids
    expected = probabilities * count
    # Chi-squared of 3 degrees of freedom exceeds 25 about once in 65 000 runs.
    assert ((np.bincount(drawn, minlength=4) - expected) ** 2 / expected).sum() < 25


VARIED: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0, "logprobs": 3},
    {},
    {"logprobs": 0},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "logprobs": 5},
    {"top_p": 0.5},
    {"min_p": 0.2, "repetition_penalty": 1.3},
    {"temperature": 0, "frequency_penalty": 1.5, "presence_penalty": 0.5},
    {"logit_bias": {3: 5.0}, "min_tokens": 5, "stop_token_ids": [9]},
    {"allowed_token_ids": [5, 6, 7], "logprobs": 2},
    {"bad_words": ((4,),)},
]


def test_a_row_gets_the_same_bits_alone_and_in_any_batch():
    logits = np.random.default_rng(3).normal(0, 3, (len(VARIED), 3001)).astype(np.float32)
    rows = [make_row(seed=100 + i, output=[3, 3, 8], **v) for i, v in enumerate(VARIED)]
    before = logits.copy()
    whole = Sampler().sample(logits, rows)
    assert whole.errors == [None] * len(rows)
    order = np.random.default_rng(4).permutation(len(rows)).tolist()
    shuffled = Sampler().sample(np.asfortranarray(logits[order]), [rows[i] for i in order])
    for place, i in enumerate(order):
        alone = Sampler().sample(logits[i : i + 1], [rows[i]])
        for field in ("token_ids", "logprobs", "errors"):
            mine = getattr(whole, field)[i]
            assert mine == getattr(alone, field)[0] == getattr(shuffled, field)[place]
    assert logits.tobytes() == before.tobytes(), "the caller's logits were changed"


def test_logits_may_be_read_only():
    logits = np.zeros((1, 8), dtype=np.float32)
    logits.setflags(write=False)
    assert Sampler().sample(logits, [make_row(logit_bias={5: 100})]).token_ids == [5]


def test_no_rows():
    assert Sampler().sample(np.empty((0, 8), dtype=np.float32), []) == SamplerOutput([], [], [])


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("values", VARIED)
def test_a_faulty_row_does_not_touch_its_neighbours(bad: float, values: dict[str, Any]):
    logits = np.random.default_rng(5).normal(0, 3, (3, 50)).astype(np.float32)
    rows = [make_row(seed=i, **values) for i in range(3)]
    good = Sampler().sample(logits, rows)
    logits[1, slice(None) if bad == -INF else 7] = bad
    faulty = Sampler().sample(logits, rows)
    assert faulty.token_ids == [good.token_ids[0], -1, good.token_ids[2]]
    assert faulty.logprobs == [good.logprobs[0], None, good.logprobs[2]]
    assert faulty.errors[0] is faulty.errors[2] is None
    assert (
        faulty.errors[1]
        == {
            "nan": "logits contain NaN",
            "inf": "logits contain infinity",
            "-inf": "logits are all -inf",
        }[str(bad)]
    )


def test_a_row_with_every_token_masked_has_an_error():
    output = sample([0, 1, 2], make_row(allowed_token_ids=[0], min_tokens=1))
    assert output.token_ids == [-1]
    assert output.errors[0] is not None
    assert "no token is left" in output.errors[0]


def test_masked_tokens_are_never_drawn():
    logits = np.zeros((500, 4), dtype=np.float32)
    asked: dict[str, Any] = {"min_tokens": 1, "logit_bias": {0: 100}, "bad_words": ((2,),)}
    rows = [make_row(seed, **asked) for seed in range(500)]
    assert set(Sampler().sample(logits, rows).token_ids) == {1, 3}


@pytest.mark.parametrize("min_tokens", range(5))
def test_min_tokens_is_exact_even_against_a_bias_and_with_two_ends(min_tokens: int):
    output: list[int] = []
    row = make_row(
        output=output, eos=frozenset({0, 1}), min_tokens=min_tokens, logit_bias={0: 100, 1: 99}
    )
    row.output_token_ids = output  # a live view: the engine appends to it
    while not output or output[-1] not in (0, 1):
        output.append(sample(np.zeros(6), row).token_ids[0])
    assert len(output) == min_tokens + 1


def test_penalties_count_by_prompt_and_answer():
    logits = [0.0, 2.0, 1.9, 1.8, 0.0]
    row = make_row(prompt=[1], output=[2], temperature=0, repetition_penalty=1.2)
    assert sample(logits, row).token_ids == [3]
    row = make_row(prompt=[1], output=[2], temperature=0, presence_penalty=1)
    assert sample(logits, row).token_ids == [1]


def test_bias_comes_before_the_penalty_and_temperature_before_min_p():
    # Biased to 2 and then halved, 1 is behind 1.5; halved first, it would be ahead.
    row = make_row(prompt=[1], temperature=0, logit_bias={1: 2.0}, repetition_penalty=2.0)
    assert sample([0.0, 0.0, 1.5], row).token_ids == [2]
    assert candidates([0.0, -2.0], temperature=1.0, min_p=0.3) == [0]
    assert candidates([0.0, -2.0], temperature=2.0, min_p=0.3) == [0, 1]


def test_top_p_counts_only_what_top_k_left():
    # Of the whole, 0.4 + 0.2 reach 0.6; of the two likeliest alone, 0.4 of 0.6 reaches 0.6.
    values = np.log([0.4, 0.2, 0.1, 0.1, 0.1, 0.1]).tolist()
    assert candidates(values, top_p=0.55) == [0, 1]
    assert candidates(values, top_k=2, top_p=0.55) == [0]


def test_logprobs_are_of_the_raw_logits():
    logits = [0.0, 1.0, 2.0]
    biased = sample(logits, make_row(temperature=0, logit_bias={0: 100}, logprobs=2)).logprobs[0]
    assert biased is not None
    (raw,) = row_math.compute_logprobs(np.array([logits], dtype=np.float32), [0], 2)
    assert biased == raw
    assert (biased.token_id, biased.rank, biased.top_ids) == (0, 3, (2, 1))


def test_extreme_logits_do_not_overflow():
    big = float(np.finfo(np.float32).max)
    for temperature in (0.0, 1e-9, 1e-5, 1.0, 1e300):
        row = make_row(temperature=temperature, logprobs=3, top_p=0.9, repetition_penalty=1.5)
        output = sample([-big, big, 0.0, -INF], row)
        assert output.errors == [None]
        assert output.token_ids[0] in (range(3) if temperature == 1e300 else [1])
