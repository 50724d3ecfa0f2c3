"""When requests arrive: all at once, Poisson, bursty, or at a rate that changes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from octavo.bench.serve.settings import Traffic

    Floats: TypeAlias = NDArray[np.float64]


def arrival_times(num_requests: int, traffic: Traffic, rng: np.random.Generator) -> list[float]:
    """Return when each request arrives, in seconds from the start, ascending.

    The intervals are gamma distributed with shape ``burstiness``: their coefficient of variation
    is 1 / sqrt(burstiness), so 1 makes them exponential. As in vLLM, a fixed rate is met exactly:
    the intervals are scaled so that the last request arrives at ``num_requests / request_rate``. A
    ramp is not scaled.
    """
    if traffic.ramp_up_strategy is None:
        if math.isinf(traffic.request_rate):
            return [0.0] * num_requests
        times = np.cumsum(_intervals(num_requests, traffic.burstiness, rng))
        times *= num_requests / traffic.request_rate / times[-1]
    else:
        rates = ramp(num_requests, traffic)
        times = np.cumsum(_intervals(num_requests, traffic.burstiness, rng) / rates)
    found: list[float] = times.tolist()
    return found


def ramp(num_requests: int, traffic: Traffic) -> Floats:
    """Return the rate at each request, ``[num_requests]``, from the first's to the last's."""
    start, end = traffic.ramp_up_start_rps, traffic.ramp_up_end_rps
    assert start is not None
    assert end is not None
    if traffic.ramp_up_strategy == "exponential":
        return np.geomspace(start, end, num_requests)
    return np.linspace(start, end, num_requests)


def _intervals(count: int, burstiness: float, rng: np.random.Generator) -> Floats:
    """Return intervals of mean 1."""
    if math.isinf(burstiness):
        return np.ones(count)
    # A very bursty draw may underflow to 0, and a sum of 0 could not be scaled.
    return np.maximum(rng.gamma(burstiness, 1 / burstiness, count), np.finfo(float).tiny)
