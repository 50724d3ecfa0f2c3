"""Arrivals: the rate is met, the spread is the burstiness's, a seed fixes all."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.serve.arrivals import arrival_times
from octavo.bench.serve.settings import Traffic


def times(count, seed=0, **traffic):
    return arrival_times(count, Traffic(**traffic), np.random.default_rng(seed))


def intervals(*args, **kwargs):
    return np.diff([0.0, *times(*args, **kwargs)])


def test_without_a_rate_all_come_at_once():
    assert times(3) == [0.0, 0.0, 0.0]


@given(st.integers(1, 300), st.floats(0.01, 1e4), st.floats(0.001, 100), st.integers(0, 9))
def test_a_rate_is_met_exactly_and_time_goes_forward(count, rate, burstiness, seed):
    found = times(count, seed, request_rate=rate, burstiness=burstiness)
    assert found[-1] == pytest.approx(count / rate)
    assert found == sorted(found)
    assert found[0] >= 0


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_the_spread_of_intervals_is_the_burstiness(burstiness):
    gaps = intervals(20_000, request_rate=5.0, burstiness=burstiness)
    assert gaps.mean() == pytest.approx(1 / 5)
    assert gaps.std() / gaps.mean() == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_one_is_poisson():
    # Of exponential intervals 1 - 1/e are shorter than the mean.
    gaps = intervals(20_000, request_rate=1.0)
    assert np.mean(gaps < 1.0) == pytest.approx(1 - math.exp(-1), abs=0.015)


def test_infinite_burstiness_is_even():
    assert times(4, request_rate=2.0, burstiness=math.inf) == [0.5, 1.0, 1.5, 2.0]


def test_a_seed_fixes_the_arrivals():
    assert times(9, 1, request_rate=1.0) == times(9, 1, request_rate=1.0)
    assert times(9, 1, request_rate=1.0) != times(9, 2, request_rate=1.0)


@pytest.mark.parametrize(
    ("strategy", "rates"),
    [("linear", [1, 3, 5, 7, 9]), ("exponential", [1, 3**0.5, 3, 27**0.5, 9])],
)
def test_a_ramp_goes_from_the_first_rate_to_the_last(strategy, rates):
    ramp = {"ramp_up_strategy": strategy, "ramp_up_start_rps": 1.0, "ramp_up_end_rps": 9.0}
    even = intervals(5, burstiness=math.inf, **ramp)
    assert 1 / even == pytest.approx(rates)
    assert times(1, burstiness=math.inf, **ramp) == [1.0]


@pytest.mark.parametrize("burstiness", [0.5, 4.0])
def test_a_ramp_keeps_its_rates_whatever_the_burstiness(burstiness):
    flat = {"ramp_up_strategy": "linear", "ramp_up_start_rps": 4.0, "ramp_up_end_rps": 4.0}
    gaps = intervals(20_000, burstiness=burstiness, **flat)
    assert gaps.mean() == pytest.approx(1 / 4, rel=0.05)
