"""The arithmetic on one row: exp, log and sums to the bit, logprobs, bias, masks and penalties."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.sampling import logits as row_math
from octavo.sampling.logits import TokenLogprobs, compute_logprobs, row_faults
from octavo.sampling.params import SamplingParams

if TYPE_CHECKING:
    from numpy.typing import NDArray

INF, NAN = float("inf"), float("nan")


def array(*values: float) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


def random_logits(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 3, shape).astype(np.float32)


def exp_twin(x: np.float32) -> np.float32:
    """The same steps on one float32 number, each rounded by itself."""
    f = np.float32
    r = max(x, f(-87.5))
    k = f(round(float(r * f(1.4426950408889634))))
    r = (r - k * f(0.693359375)) - k * f(-2.121944400546905827679e-4)
    power = r * f(2 / math.factorial(7))
    for i in range(6, 0, -1):
        power = (power + f(2 / math.factorial(i))) * r
    power = power + f(2.0)
    return f(power * f(2.0 ** (int(k) - 1))) if k > -126 else f(0.0)


def test_exp_has_the_bits_of_its_scalar_twin():
    x = np.concatenate([-np.geomspace(1e-30, 1e4, 3000), np.linspace(-90, 0, 3001)])
    x = x.astype(np.float32)
    assert row_math.exp(x).tobytes() == np.array([exp_twin(v) for v in x]).tobytes()


def test_exp_is_accurate_and_exact_at_its_ends():
    x = np.linspace(-86.9, 0, 100_001).astype(np.float32)
    assert np.abs(row_math.exp(x) / np.exp(x.astype(np.float64)) - 1).max() < 2e-7
    ends = array(0.0, -0.0, -88.0, -1e30, -INF)
    assert row_math.exp(ends).tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_exp_never_returns_a_denormal():
    x = np.linspace(-88, -86, 20_001).astype(np.float32)
    y = row_math.exp(x)
    assert np.all((y == 0) | (y >= np.finfo(np.float32).tiny))


def test_exp_does_not_depend_on_length_or_alignment():
    x = -np.abs(random_logits(1003))
    whole = row_math.exp(x)
    for start, stop in [(0, 1), (1, 18), (3, 1003), (500, 533)]:
        assert row_math.exp(x[start:stop]).tobytes() == whole[start:stop].tobytes()


@given(st.floats(1.0, 1e15))
def test_log_is_accurate(x: float):
    assert row_math.log(np.array([x]))[0] == pytest.approx(math.log(x), rel=4e-16, abs=4e-16)


def test_log_of_one_is_zero():
    assert row_math.log(np.array([1.0, 1.0])).tolist() == [0.0, 0.0]


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=40))
def test_total_is_the_sum(values: list[float]):
    assert row_math.total(array(*values)) == pytest.approx(math.fsum(values), rel=1e-14, abs=1e-300)


@pytest.mark.parametrize("size", [1, 15, 16, 17, 255, 256, 257, 1000])
def test_running_sums_have_the_bits_of_their_definition(size: int):
    values = np.random.default_rng(size).uniform(0, 1, size).astype(np.float32)
    expected, running = [], 0.0
    for start in range(0, size, 256):
        lanes = [0.0] * 16
        for i in range(start, min(start + 256, size)):
            lanes[i % 16] += float(values[i])
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = [lanes[i] + lanes[i + half] for i in range(half)]
        running += lanes[0]
        expected.append(running)
    assert row_math.running_sums(values).tolist() == expected


def test_logprobs_of_a_known_row():
    (found,) = compute_logprobs(np.log(array(1, 4, 2, 4, 1))[None], [2], 3)
    assert found is not None
    assert (found.token_id, found.rank, found.top_ids) == (2, 3, (1, 3, 2))
    assert found.logprob == pytest.approx(math.log(2 / 12), abs=1e-6)
    assert found.top_logprobs == pytest.approx([math.log(1 / 3)] * 2 + [math.log(1 / 6)], abs=1e-6)
    assert found.top_logprobs[2] == found.logprob


def test_logprobs_against_float64():
    logits = random_logits(8, 5000)
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    token_ids = list(range(0, 4000, 500))
    for i, found in enumerate(compute_logprobs(logits, token_ids, 20)):
        assert found is not None
        order = np.argsort(-exact[i], kind="stable")
        assert found.logprob == pytest.approx(exact[i, token_ids[i]], abs=1e-6)
        assert found.top_ids == tuple(order[:20].tolist())
        assert found.top_logprobs == pytest.approx(exact[i, order[:20]], abs=1e-6)
        assert found.rank == order.tolist().index(token_ids[i]) + 1


def test_logprobs_have_the_same_bits_in_any_batch_and_layout():
    logits = random_logits(9, 1001)
    token_ids = list(range(9))
    whole = compute_logprobs(logits, token_ids, 7)
    alone = [compute_logprobs(logits[i : i + 1], [i], 7)[0] for i in range(9)]
    by_columns = compute_logprobs(np.asfortranarray(logits), token_ids, 7)
    assert whole == alone == by_columns


@given(
    st.lists(st.sampled_from([0.0, 1.0, 2.0, -INF]), min_size=1, max_size=12), st.integers(0, 15)
)
def test_top_ids_break_ties_by_id(values: list[float], num_top: int):
    expected = sorted(range(len(values)), key=lambda i: (-values[i], i))[:num_top]
    assert row_math.top_token_ids(array(*values), num_top).tolist() == expected


def test_logprobs_of_masked_tokens_are_minus_infinity():
    (found,) = compute_logprobs(array(0, -INF, 0)[None], [1], 3)
    assert found == TokenLogprobs(
        1, -INF, 3, (0, 2, 1), (pytest.approx(-math.log(2)), pytest.approx(-math.log(2)), -INF)
    )


def test_a_faulty_row_has_no_logprobs_and_its_neighbours_do():
    logits = np.stack([array(0, NAN), array(0, 1), array(INF, 0), array(-INF, -INF), array(2, 1)])
    found = compute_logprobs(logits, [0] * 5, 1)
    assert [entry is None for entry in found] == [True, False, True, True, False]
    assert row_faults(logits.max(axis=1).tolist()) == [
        "logits contain NaN",
        None,
        "logits contain infinity",
        "logits are all -inf",
        None,
    ]


def masked(params: SamplingParams, output: list[int], *words: tuple[int, ...]) -> list[int]:
    row = np.zeros(8, dtype=np.float32)
    masked = row_math.masked_token_ids(params, output, frozenset({0, 1}), words)
    row_math.mask_tokens(row, params, masked)
    return np.flatnonzero(row == -INF).tolist()


@pytest.mark.parametrize(("num_output", "ids"), [(0, [0, 1, 5]), (1, [0, 1, 5]), (2, []), (3, [])])
def test_min_tokens_masks_all_that_ends_an_answer(num_output: int, ids: list[int]):
    for ignore_eos in (False, True):
        params = SamplingParams(min_tokens=2, stop_token_ids=[5], ignore_eos=ignore_eos)
        assert masked(params, [7] * num_output) == ids


def test_only_allowed_tokens_stay():
    assert masked(SamplingParams(allowed_token_ids=[3, 3, 6]), []) == [0, 1, 2, 4, 5, 7]


@pytest.mark.parametrize(
    ("output", "ids"),
    [([], [2]), ([3], [2, 4]), ([4, 3], [2, 4]), ([3, 4], [2, 5]), ([3, 7], [2]), ([4], [2])],
)
def test_a_bad_word_is_never_completed(output: list[int], ids: list[int]):
    assert masked(SamplingParams(), output, (2,), (3, 4), (3, 4, 5)) == ids


def test_bias_cannot_undo_a_mask():
    row = np.zeros(8, dtype=np.float32)
    params = SamplingParams(logit_bias={0: 100, 7: -1}, min_tokens=1)
    row_math.add_bias(row, params)
    row_math.mask_tokens(row, params, row_math.masked_token_ids(params, [], frozenset({0}), ()))
    assert row.tolist() == [-INF, 0, 0, 0, 0, 0, 0, -1]


def test_penalties_by_their_definitions():
    row = array(3, -3, 3, -3, 3)
    params = SamplingParams(
        repetition_penalty=2, frequency_penalty=0.25, presence_penalty=0.5, max_tokens=9
    )
    row_math.penalise(row, params, np.array([0, 1, 0]), [2, 2, 1])
    # 0: prompt only. 1: prompt, once in the answer. 2: twice in the answer. 3, 4: unseen.
    assert row.tolist() == [1.5, -6 - 0.25 - 0.5, 1.5 - 0.5 - 0.5, -3, 3]


def test_penalties_leave_masked_tokens_masked_and_may_find_nothing_to_do():
    row = array(-INF, 1)
    params = SamplingParams(repetition_penalty=0.5, frequency_penalty=-2, presence_penalty=-2)
    row_math.penalise(row, params, np.array([], dtype=np.intp), [])
    assert row.tolist() == [-INF, 1]
    row_math.penalise(row, params, np.array([0]), [0])
    assert row.tolist() == [-INF, 1]
